#include "base/spool.h"

#include "base/act.h"
#include "base/aside.h"
#include "base/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAMED ".conflux-spill-"
enum { FLUSH = 256 * 1024 }; /* memory in front of a file */

static const char *folder = "/tmp";
static uint64_t most = UINT64_MAX;
static _Atomic uint64_t in_all;

void cp_spool_setup(const char *dir, uint64_t total) {
    folder = dir;
    most = total;
}

void cp_spool_forget(uint64_t filed) { atomic_fetch_sub_explicit(&in_all, filed, memory_order_relaxed); }

static int file_failed(int sys, cp_err *err) {
    cp_code code = cp_no_space(sys) ? CP_E_NO_SPACE : cp_no_fd(sys) ? CP_E_TOO_MANY_FILES : CP_E_FILESYSTEM_ERROR;
    return cp_fail_sys(err, code, sys, "the memory budget has no room for this answer, and its file failed");
}

/* Not every file system makes files without a name (overlayfs did not before Linux 6.x): there it loses it at once. */
static int open_file(void) {
    cp_as_self;
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR || errno == EACCES) && cp_folder_make(folder, 0700) >= 0)
        fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
    char path[4096];
    if (snprintf(path, sizeof path, "%s/" NAMED "XXXXXX", folder) >= (int)sizeof path) return errno = ENAMETOOLONG, -1;
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0) unlink(path);
    return fd;
}

unsigned cp_spool_sweep(void) {
    struct stat st;
    unsigned n = 0;
    DIR *d = opendir(folder);
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));)
        if (strncmp(e->d_name, NAMED, strlen(NAMED)) == 0 && strlen(e->d_name) == strlen(NAMED) + 6 &&
            fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
            st.st_uid == geteuid())
            n += unlinkat(dirfd(d), e->d_name, 0) == 0;
    closedir(d);
    return n;
}

static int count(cp_spool *s, size_t n, cp_err *err) {
    uint64_t now = atomic_fetch_add_explicit(&in_all, n, memory_order_relaxed);
    if (now <= most && n <= most - now) {
        s->filed += n;
        return 0;
    }
    cp_spool_forget(n);
    return cp_fail(
        err, CP_E_LIMIT_EXCEEDED,
        "the memory budget (--memory-budget) has no room for this answer, nor have its files: they hold %llu "
        "of %llu bytes (--spill-total)",
        (unsigned long long)now, (unsigned long long)most);
}

static int write_out(cp_spool *s, cp_err *err) {
    if (count(s, s->mem.n, err) < 0) return -1;
    for (size_t at = 0; at < s->mem.n;) {
        ssize_t k = write(s->fd, s->mem.p + at, s->mem.n - at);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return file_failed(errno, err);
        at += (size_t)k;
    }
    cp_budget_spilled(s->mem.n);
    cp_buf_reset(&s->mem, 2 * FLUSH);
    cp_charge_force(&s->charge, 0);
    return 0;
}

bool cp_spool_fits(cp_spool *s) { return s->fd <= 0 && cp_charge_set(&s->charge, s->mem.n, NULL) == 0; }

int cp_spool_room(cp_spool *s, size_t more, cp_err *err) {
    if (cp_buf_try_reserve(&s->mem, more)) return 0;
    if (s->fd <= 0 && (s->fd = open_file()) < 0) return file_failed(errno, err);
    if (s->mem.n && write_out(s, err) < 0) return -1;
    return cp_room(&s->mem, more, err);
}

int cp_spool_settle(cp_spool *s, cp_err *err) {
    if (cp_spool_fits(s)) return 0;
    if (s->fd > 0 && s->mem.n < FLUSH) return 0;
    if (s->fd <= 0 && (s->fd = open_file()) < 0) return file_failed(errno, err);
    return write_out(s, err);
}

int cp_spool_end(cp_spool *s, cp_err *err) {
    if (cp_spool_settle(s, err) < 0) return -1;
    if (s->fd <= 0) return 0;
    if (s->mem.n && write_out(s, err) < 0) return -1;
    cp_buf_free(&s->mem);
    return 0;
}

void cp_spool_free(cp_spool *s) {
    cp_buf_free(&s->mem);
    cp_charge_free(&s->charge);
    if (s->fd > 0) close(s->fd);
    cp_spool_forget(s->filed);
    s->fd = 0;
    s->filed = 0;
}
