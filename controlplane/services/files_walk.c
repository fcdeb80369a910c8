/* Design notes. A folder between the first and the last few (files_way.h) is closed while the walk is below it, and
 * read on from the entry by which it was left: the kernel's cookie (telldir) is tried, and holds only if that entry is
 * the one found there; else the entry is looked for by name from the beginning. Cookies alone skip or repeat entries on
 * file systems that number them (tmpfs before Linux 6.6) when others come and go; names alone cost the square of the
 * folder. Ruled out: keeping the names that are still to come, which a client could make as many as it likes. */
#include "services/files_walk.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/budget.h"
#include "services/files_impl.h"
#include "services/files_way.h"
#include "services/watch_glob.h"

enum { PER_FOLDER = 33 * 1024 /* bytes that the C library has for a folder that is read */ };

struct cp_walk {
    cp_way way;
    cp_walk_how how;
    bool enter; /* the entry told last is a folder */
    cp_charge charge;
    uint64_t skipped;
    int failed;
};

static bool kernels_own(int fd) {
    static const unsigned long types[] = {PROC_SUPER_MAGIC,   SYSFS_MAGIC,      DEBUGFS_MAGIC,  TRACEFS_MAGIC,
                                          CGROUP_SUPER_MAGIC, SECURITYFS_MAGIC, BPF_FS_MAGIC,   CGROUP2_SUPER_MAGIC,
                                          DEVPTS_SUPER_MAGIC, SELINUX_MAGIC,    EFIVARFS_MAGIC, BINFMTFS_MAGIC};
    struct statfs f;
    if (fstatfs(fd, &f) < 0) return true;
    for (size_t i = 0; i < CP_COUNT(types); i++)
        if ((unsigned long)f.f_type == types[i]) return true;
    return false;
}

static void trouble(cp_walk *w, int sys) {
    if (w->how == CP_WALK_WHOLE) w->failed = sys;
    else w->skipped++;
}

/* What is over the first folder is not refused any more: the number of open ones is bounded. */
static void count(cp_walk *w) {
    size_t open = w->way.n < CP_WAY_OPEN + 1 ? w->way.n : CP_WAY_OPEN + 1;
    cp_charge_force(&w->charge, open * PER_FOLDER);
}

static cp_walk *walk_new(int fd, cp_walk_how how) {
    cp_walk *w = cp_new(cp_walk);
    w->how = how;
    w->charge.kind = CP_MEM_TRANSFERS;
    cp_charge_force(&w->charge, PER_FOLDER);
    if (cp_way_down(&w->way, fd) == 0) return w;
    int sys = errno;
    cp_walk_close(w);
    return errno = sys, NULL;
}

cp_walk *cp_walk_open(const cp_where *where, cp_walk_how how, cp_err *err) {
    if (cp_budget_reserve(CP_MEM_TRANSFERS, PER_FOLDER, err) < 0) return NULL;
    int fd = cp_where_open(where, where->path, O_RDONLY | O_DIRECTORY, 0);
    cp_walk *w = fd < 0 ? NULL : walk_new(fd, how);
    if (!w) cp_file_fail(err, errno, "scandir", where->full);
    cp_budget_release(CP_MEM_TRANSFERS, PER_FOLDER); /* it counts itself */
    return w;
}

cp_walk *cp_walk_at(int dir, const char *name) {
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? NULL : walk_new(fd, CP_WALK_WHOLE);
}

/* ---- one folder ---- */

static struct dirent *read_on(cp_way_level *l) {
    l->before = telldir(l->d);
    errno = 0;
    return cp_dir_next(l->d);
}

static bool found_at(cp_way_level *l, const char *name) {
    const struct dirent *e = read_on(l);
    return e && strcmp(e->d_name, name) == 0;
}

/* Sets a folder to be read on after `name`, which was found behind the cookie `before`. Without it: from there on. */
static void read_after(cp_way_level *l, long before, const char *name) {
    const struct dirent *e;
    seekdir(l->d, before);
    if (found_at(l, name)) return;
    rewinddir(l->d);
    while ((e = read_on(l)) && strcmp(e->d_name, name) != 0) continue;
    if (!e) seekdir(l->d, l->before = before);
}

static bool begin_reading(cp_walk *w, cp_way_level *l) {
    l->d = l->fd < 0 ? NULL : fdopendir(l->fd);
    if (!l->d && l->fd >= 0) trouble(w, errno);
    return l->d != NULL;
}

/* The next entry of the last folder; NULL: there is none, or it cannot be read. */
static const struct dirent *next_of(cp_walk *w) {
    cp_way_level *l = cp_way_last(&w->way);
    if (!l->d && !begin_reading(w, l)) return NULL;
    const struct dirent *e = read_on(l);
    if (!e && errno) trouble(w, errno);
    return e;
}

/* ---- down and up ---- */

/* The folder that was told last. */
static void enter(cp_walk *w) {
    const cp_way_level *top = cp_way_last(&w->way);
    w->enter = false;
    if (w->how != CP_WALK_WHOLE && w->way.path.n > CP_WALK_PATH_MAX) {
        w->skipped++;
        return;
    }
    dev_t dev = top->dev;
    int fd = openat(top->fd, cp_buf_z(&w->way.path) + top->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && w->how != CP_WALK_WHOLE) return; /* gone meanwhile */
    if (cp_way_down(&w->way, fd) < 0) {
        trouble(w, errno);
        return;
    }
    count(w);
    top = cp_way_last(&w->way);
    if (w->how <= CP_WALK_HIDDEN && top->dev != dev && kernels_own(top->fd)) (void)cp_way_up(&w->way);
}

/* From a folder whose content has been told. True: that is to be told. */
static bool leave(cp_walk *w, cp_walk_entry *e) {
    bool again = w->how == CP_WALK_WHOLE;
    if (w->way.n == 1) {
        cp_way_end(&w->way);
        return false;
    }
    if (again && fstat(cp_way_last(&w->way)->fd, &e->st) < 0) trouble(w, errno);
    if (cp_way_up(&w->way) < 0) {
        trouble(w, errno);
        return false;
    }
    count(w);
    cp_way_level *top = cp_way_last(&w->way);
    if (!top->d && begin_reading(w, top)) read_after(top, top->before, cp_buf_z(&w->way.path) + top->path);
    return again && !w->failed;
}

/* What is being written (cp_temp_name) is not there yet: an archive must not hold half an upload. */
static bool left_out(const cp_walk *w, const char *name) {
    if (*name != '.' || w->how > CP_WALK_HIDDEN) return false;
    return w->how == CP_WALK_VISIBLE || cp_watch_staged(cp_str_of(name)) != CP_STAGED_NOT;
}

static bool tell(cp_walk *w, cp_walk_entry *e, bool left) {
    const cp_way_level *top = cp_way_last(&w->way);
    e->dir = top->fd;
    e->relative = cp_buf_z(&w->way.path);
    e->name = e->relative + top->path;
    e->left = left;
    w->enter = !left && S_ISDIR(e->st.st_mode);
    return true;
}

bool cp_walk_next(cp_walk *w, cp_walk_entry *e) {
    if (w->enter) enter(w);
    while (w->way.n && !w->failed) {
        const struct dirent *found = next_of(w);
        if (w->failed) break;
        if (!found) {
            if (leave(w, e)) return tell(w, e, true);
            continue;
        }
        if (left_out(w, found->d_name)) continue;
        if (fstatat(cp_way_last(&w->way)->fd, found->d_name, &e->st, AT_SYMLINK_NOFOLLOW) < 0) {
            if (errno != ENOENT) trouble(w, errno);
            continue;
        }
        cp_way_name(&w->way, found->d_name);
        return tell(w, e, false);
    }
    return false;
}

void cp_walk_pass(cp_walk *w) { w->enter = false; }
int cp_walk_failed(const cp_walk *w) { return w->failed; }
uint64_t cp_walk_skipped(const cp_walk *w) { return w->skipped; }

/* ---- going on later ---- */

/* "<before>.<before>.…/<path>": in hex, for each level that the path has. */
void cp_walk_mark(const cp_walk *w, cp_buf *out) {
    for (size_t i = 0; i < w->way.n; i++) cp_buf_addf(out, "%s%lx", i ? "." : "", (unsigned long)w->way.v[i].before);
    cp_buf_addc(out, '/');
    cp_buf_add(out, w->way.path.p, w->way.path.n);
}

/* The next cookie, and what ends it. */
static bool take_cookie(const char **at, long *before, char *end) {
    char *after;
    if (!strchr("0123456789abcdef", **at) || !**at) return false;
    *before = (long)strtoul(*at, &after, 16);
    *end = *after;
    *at = after + (*after != 0);
    return *end == '.' || *end == '/';
}

/* One name of the mark's path: the last folder is read on behind it, and entered if there is more. */
static bool seek_name(cp_walk *w, const char *name, long before, bool more) {
    struct stat st;
    cp_way_level *top = cp_way_last(&w->way);
    if (!begin_reading(w, top)) return false;
    read_after(top, before, name);
    cp_way_name(&w->way, name);
    w->enter = fstatat(top->fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
    size_t depth = w->way.n;
    if (w->enter && more) enter(w);
    return w->way.n > depth;
}

static bool name_fits(const char *name) {
    return *name && strlen(name) <= CP_NAME_MAX && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

int cp_walk_seek(cp_walk *w, cp_str mark) {
    cp_autofree char *text = cp_str_dup(mark);
    const char *cookies = text;
    char *path = memchr(text, '/', mark.n), end;
    if (!path || strlen(text) != mark.n) return -1;
    for (char *name = path + 1, *slash; name; name = slash) {
        long before;
        slash = strchr(name, '/');
        if (slash) *slash++ = 0;
        if (!take_cookie(&cookies, &before, &end) || (end == '/') != !slash || !name_fits(name)) return -1;
        if (!seek_name(w, name, before, slash != NULL)) return 0;
    }
    return 0;
}

void cp_walk_close(cp_walk *w) {
    if (!w) return;
    cp_way_end(&w->way);
    cp_charge_free(&w->charge);
    free(w);
}
