/* Resolving places, and the small operations.
 *
 * Everything goes by (folder descriptor, last name): the folder is found by one resolution that the kernel confines,
 * and the call that acts takes the name without following it, or is itself such a resolution. Checking a path first and
 * using it afterwards would leave a gap in which a component can be exchanged for a link. */
#include "services/files_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/id.h"

static int beneath(int root, const char *path, int flags, mode_t mode) {
    struct open_how how = {
        .flags = (uint64_t)(unsigned)flags, .mode = mode, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    /* EAGAIN: a rename somewhere raced with a ".." and the kernel could not be sure (openat2(2)). */
    for (int tries = 0;; tries++) {
        long fd = syscall(SYS_openat2, root, path, &how, sizeof how);
        if (fd >= 0 || errno != EAGAIN || tries == 128) return (int)fd;
    }
}

int cp_where_open(const cp_where *w, const char *path, int flags, mode_t mode) {
    flags |= O_CLOEXEC | (flags & O_PATH ? 0 : O_NOCTTY);
    if (w->files->root < 0) return openat(AT_FDCWD, path, flags, mode);
    return beneath(w->files->root, path, flags, flags & O_CREAT ? mode : 0);
}

cp_files *cp_files_open(const char *root, cp_err *err) {
    cp_files *f = cp_new(cp_files);
    f->root = -1;
    if (!*root) return f;
    f->root_path = realpath(root, NULL);
    f->root = f->root_path ? open(f->root_path, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
    if (f->root < 0) {
        cp_fail_sys(err, CP_E_FILESYSTEM_ERROR, errno, "--file-root %s", root);
        cp_files_close(f);
        return NULL;
    }
    cp_autofd int probe = beneath(f->root, ".", O_PATH | O_CLOEXEC, 0);
    if (probe < 0) {
        cp_fail_sys(err, CP_E_NOT_SUPPORTED, errno, "--file-root needs openat2 (Linux 5.6, and no filter against it)");
        cp_files_close(f);
        return NULL;
    }
    if (*root == '/') {
        size_t n = strlen(root);
        while (n > 1 && root[n - 1] == '/') n--;
        f->root_alias = cp_str_dup((cp_str){root, n});
    }
    return f;
}

void cp_files_close(cp_files *f) {
    if (!f) return;
    cp_close(&f->root);
    free(f->root_path);
    free(f->root_alias);
    free(f);
}

void cp_files_record(cp_files *f, cp_temps *temps) { f->temps = temps; }

static int refuse_outside(cp_err *err, const char *path) {
    cp_fail(err, CP_E_PERMISSION_DENIED, "Path is outside the file root: %s", path);
    if (err) err->sys = EXDEV;
    return -1;
}

int cp_where_init(cp_where *w, const cp_files *f, const char *base, cp_str path, cp_err *err) {
    char joined[CP_PATH_MAX];
    w->files = f;
    w->path = w->full;
    if (cp_path_join(base, path, joined) < 0) {
        cp_fail(err, CP_E_NAME_TOO_LONG, "ENAMETOOLONG: the path is too long");
        if (err) err->sys = ENAMETOOLONG;
        return -1;
    }
    if (f->root < 0) {
        memcpy(w->full, joined, strlen(joined) + 1);
        return 0;
    }
    const char *rest = cp_path_inside(f->root_path, joined);
    if (!rest && f->root_alias) rest = cp_path_inside(f->root_alias, joined);
    if (!rest) return refuse_outside(err, joined);
    if (cp_path_join(f->root_path, (cp_str){rest, strlen(rest)}, w->full) < 0)
        return cp_file_fail(err, ENAMETOOLONG, "open", rest);
    w->path = cp_path_inside(f->root_path, w->full);
    return 0;
}

int cp_file_fail(cp_err *err, int sys, const char *call, const char *path) {
    static const struct {
        int sys;
        cp_code code;
    } map[] = {
        {ENOENT, CP_E_FILE_NOT_FOUND},   {EACCES, CP_E_PERMISSION_DENIED},
        {EPERM, CP_E_PERMISSION_DENIED}, {EEXIST, CP_E_FILE_EXISTS},
        {ENOTEMPTY, CP_E_FILE_EXISTS},   {EISDIR, CP_E_IS_DIRECTORY},
        {ENOTDIR, CP_E_NOT_DIRECTORY},   {ENAMETOOLONG, CP_E_NAME_TOO_LONG},
        {ENOSPC, CP_E_NO_SPACE},         {EDQUOT, CP_E_NO_SPACE},
        {EROFS, CP_E_READ_ONLY},         {EMFILE, CP_E_TOO_MANY_FILES},
        {ENFILE, CP_E_TOO_MANY_FILES},   {EMLINK, CP_E_TOO_MANY_LINKS},
        {ELOOP, CP_E_TOO_MANY_LINKS},    {EBUSY, CP_E_RESOURCE_BUSY},
        {ETXTBSY, CP_E_RESOURCE_BUSY},   {EFBIG, CP_E_FILE_TOO_LARGE},
    };
    if (sys == EXDEV) return refuse_outside(err, path);
    cp_code code = CP_E_FILESYSTEM_ERROR;
    for (size_t i = 0; i < CP_COUNT(map); i++)
        if (map[i].sys == sys) code = map[i].code;
    const char *text = sys == EISDIR ? "illegal operation on a directory" : strerrordesc_np(sys);
    if (!text) text = "unknown error";
    char first = *text >= 'A' && *text <= 'Z' ? (char)(*text | 0x20) : *text;
    cp_fail(err, code, "%s: %c%s, %s '%s'", cp_errno_name(sys), first, text + 1, call, path);
    if (err) err->sys = sys;
    return -1;
}

int cp_where_parent(const cp_where *w, const cp_split *split, bool parents) {
    int fd = cp_where_open(w, split->dir, O_PATH | O_DIRECTORY, 0);
    if (fd >= 0 || errno != ENOENT || !parents) return fd;
    return cp_where_mkdirs(w, split->dir);
}

/* Makes the folder whose path is text[0..end); false when it is not there afterwards (errno). */
static bool make_one(const cp_where *w, char *text, size_t end) {
    char cut = text[end];
    cp_split split;
    text[end] = 0;
    cp_autofd int fd = cp_where_open(w, text, O_PATH | O_DIRECTORY, 0);
    bool ok = fd >= 0;
    if (!ok && errno == ENOENT) {
        errno = ENAMETOOLONG;
        cp_autofd int dir = cp_path_split(text, &split) < 0 ? -1 : cp_where_open(w, split.dir, O_PATH | O_DIRECTORY, 0);
        /* EEXIST: somebody else was faster, or it is a link to nowhere, which the next step will notice. */
        ok = dir >= 0 && (mkdirat(dir, split.name, 0777) == 0 || errno == EEXIST);
    }
    text[end] = cut;
    return ok;
}

int cp_where_mkdirs(const cp_where *w, const char *path) {
    char text[CP_PATH_MAX];
    size_t n = strlen(path);
    memcpy(text, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (text[i] && text[i] != '/') continue;
        if (text[i - 1] != '/' && !make_one(w, text, i)) return -1;
    }
    return cp_where_open(w, path, O_PATH | O_DIRECTORY, 0);
}

/* What `at` stands for, for reading. By its descriptor: a name may be given to something else meanwhile. Where /proc is
 * missing it is opened by its name. */
static int open_again(const cp_where *w, int at) {
    char link[32];
    /* O_NONBLOCK: under a lease the file is refused, not waited for. */
    int flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    int fd = open(link, flags);
    return fd < 0 && errno == ENOENT && access("/proc/self/fd", F_OK) < 0 ? cp_where_open(w, w->path, flags, 0) : fd;
}

static int stat_regular(const cp_where *w, int fd, struct stat *st, cp_err *err) {
    if (fd < 0 || fstat(fd, st) < 0) return cp_file_fail(err, errno, "open", w->full);
    if (S_ISDIR(st->st_mode)) return cp_file_fail(err, EISDIR, "read", w->full);
    if (!S_ISREG(st->st_mode))
        return cp_fail(err, CP_E_FILESYSTEM_ERROR, "Not a regular file (pipe, device or socket): %s", w->full);
    return 0;
}

/* What is no file is not even opened: to open a pipe lets its writer go on, into a pipe that nobody reads; a device may
 * begin something (a watchdog its count, a tape its way back). */
int cp_file_open(const cp_where *w, struct stat *st, cp_err *err) {
    cp_autofd int at = cp_where_open(w, w->path, O_PATH, 0);
    if (stat_regular(w, at, st, err) < 0) return -1;
    cp_autofd int fd = open_again(w, at);
    if (stat_regular(w, fd, st, err) < 0) return -1;
    return cp_take_fd(&fd);
}

int cp_file_exists(const cp_where *w) {
    cp_autofd int fd = cp_where_open(w, w->path, O_PATH, 0);
    return fd >= 0;
}

int cp_file_delete(const cp_where *w, cp_err *err) {
    cp_split split;
    struct stat st;
    if (cp_path_split(w->path, &split) < 0) return cp_file_fail(err, ENAMETOOLONG, "unlink", w->full);
    cp_autofd int dir = cp_where_parent(w, &split, false);
    if (dir < 0 || fstatat(dir, split.name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return cp_file_fail(err, errno, "unlink", w->full);
    if (S_ISDIR(st.st_mode)) return cp_file_fail(err, EISDIR, "unlink", w->full);
    if (split.slash) return cp_file_fail(err, ENOTDIR, "unlink", w->full);
    if (unlinkat(dir, split.name, 0) < 0) return cp_file_fail(err, errno, "unlink", w->full);
    return 0;
}

int cp_file_mkdir(const cp_where *w, bool recursive, cp_err *err) {
    cp_split split;
    if (recursive) {
        cp_autofd int made = cp_where_mkdirs(w, w->path);
        if (made < 0)
            return cp_file_fail(err, errno == ENOTDIR && cp_file_exists(w) ? EEXIST : errno, "mkdir", w->full);
        return 0;
    }
    if (cp_path_split(w->path, &split) < 0) return cp_file_fail(err, ENAMETOOLONG, "mkdir", w->full);
    cp_autofd int dir = cp_where_parent(w, &split, false);
    if (dir < 0 || mkdirat(dir, split.name, 0777) < 0) return cp_file_fail(err, errno, "mkdir", w->full);
    return 0;
}

void cp_temp_name(char out[40]) {
    char hex[17];
    cp_random_hex(hex, 16);
    snprintf(out, 40, ".conflux-%s.tmp", hex);
}
