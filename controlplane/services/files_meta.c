/* stat, chmod, chown. */
#include "services/files_impl.h"

#include "services/files_walk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int cp_file_stat(const cp_where *w, bool follow, struct stat *st, cp_buf *target, cp_err *err) {
    cp_autofd int fd = cp_where_open(w, w->path, O_PATH | (follow ? 0 : O_NOFOLLOW), 0);
    if (fd < 0 || fstat(fd, st) < 0) return cp_file_fail(err, errno, "stat", w->full);
    if (!S_ISLNK(st->st_mode)) return 0;
    cp_buf_reserve(target, CP_PATH_MAX);
    ssize_t n = readlinkat(fd, "", target->p, CP_PATH_MAX);
    if (n < 0) return cp_file_fail(err, errno, "readlink", w->full);
    target->n = (size_t)n;
    return 0;
}

/* What to do to each entry of a tree: at (dir, name), a link itself, or at fd (O_PATH) when name is "". 0, -1 with
 * errno. */
typedef struct change {
    int (*apply)(const struct change *c, int dir, const char *name, const struct stat *st);
    mode_t mode;
    int64_t uid, gid;
} change;

static int apply_chown(const change *c, int dir, const char *name, const struct stat *st) {
    (void)st;
    return fchownat(dir, name, (uid_t)c->uid, (gid_t)c->gid, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH);
}

/* fchmodat follows links, and the call that does not is newer than our kernels: through the descriptor's name in /proc.
 */
static int apply_chmod(const change *c, int dir, const char *name, const struct stat *st) {
    char self[40];
    if (S_ISLNK(st->st_mode)) return 0; /* links have no mode */
    cp_autofd int fd = *name ? openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC) : fcntl(dir, F_DUPFD_CLOEXEC, 3);
    struct stat now;
    if (fd < 0 || fstat(fd, &now) < 0) return -1;
    if (S_ISLNK(now.st_mode)) return 0;
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    return chmod(self, c->mode);
}

/* Content first: the change may take away the right to enter. */
static int change_tree(const change *c, int dir, const struct stat *st) {
    cp_walk_entry e;
    cp_autowalk cp_walk *walk = cp_walk_at(dir, ".");
    if (!walk) return -1;
    while (cp_walk_next(walk, &e)) {
        if (S_ISDIR(e.st.st_mode) && !e.left) continue;
        if (c->apply(c, e.dir, e.name, &e.st) < 0 && errno != ENOENT) return -1; /* gone in the meantime */
    }
    if (cp_walk_failed(walk)) return errno = cp_walk_failed(walk), -1;
    return c->apply(c, dir, "", st);
}

static int change_at(const cp_where *w, const change *c, bool recursive, const char *call, cp_err *err) {
    struct stat st;
    cp_autofd int fd = cp_where_open(w, w->path, O_PATH, 0);
    if (fd < 0 || fstat(fd, &st) < 0) return cp_file_fail(err, errno, call, w->full);
    int rc = recursive && S_ISDIR(st.st_mode) ? change_tree(c, fd, &st) : c->apply(c, fd, "", &st);
    return rc < 0 ? cp_file_fail(err, errno, call, w->full) : 0;
}

int cp_file_chmod(const cp_where *w, mode_t mode, bool recursive, cp_err *err) {
    change c = {.apply = apply_chmod, .mode = mode};
    return change_at(w, &c, recursive, "chmod", err);
}

int cp_file_chown(const cp_where *w, int64_t uid, int64_t gid, bool recursive, cp_err *err) {
    change c = {.apply = apply_chown, .uid = uid, .gid = gid};
    return change_at(w, &c, recursive, "chown", err);
}
