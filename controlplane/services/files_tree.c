/* Whole trees: removing and copying. One descriptor for each level, every name taken without following links, so that
 * an exchange in the meantime cannot lead out of the tree. */
#include "services/files_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { COPY_BUFFER = 256 * 1024 };

DIR *cp_dir_open(int dir, const char *name) {
    cp_autofd int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (d) (void)cp_take_fd(&fd);
    return d;
}

struct dirent *cp_dir_next(DIR *d) {
    struct dirent *e;
    do e = readdir(d);
    while (e && (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0));
    return e;
}

static int remove_at(int dir, const char *name, unsigned depth);

static int remove_content(int dir, const char *name, unsigned depth) {
    cp_autodir DIR *d = cp_dir_open(dir, name);
    if (!d) return -1;
    for (struct dirent *e; (e = cp_dir_next(d));)
        if (remove_at(dirfd(d), e->d_name, depth + 1) < 0) return -1;
    return 0;
}

static int remove_at(int dir, const char *name, unsigned depth) {
    if (unlinkat(dir, name, 0) == 0) return 0;
    if (errno != EISDIR && errno != EPERM) return -1;
    if (depth == CP_TREE_DEPTH) return errno = ELOOP, -1;
    if (remove_content(dir, name, depth) < 0) return -1;
    return unlinkat(dir, name, AT_REMOVEDIR);
}

int cp_tree_remove(int dir, const char *name) { return remove_at(dir, name, 0); }

int cp_tree_inside(int dir, const struct stat *st) {
    cp_autofd int at = fcntl(dir, F_DUPFD_CLOEXEC, 3);
    struct stat here, last = {0};
    for (;;) {
        if (at < 0 || fstat(at, &here) < 0) return -1;
        if (here.st_dev == st->st_dev && here.st_ino == st->st_ino) return 1;
        if (here.st_dev == last.st_dev && here.st_ino == last.st_ino) return 0; /* "/.." is "/" */
        last = here;
        int up = openat(at, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
        cp_close(&at);
        at = up;
    }
}

/* ---- content ---- */

/* Up to n bytes at the current offsets; what came, 0 at the end, -1. */
static ssize_t copy_some(int in, int out, size_t n, char **buf) {
    ssize_t k;
    if (!*buf) {
        k = copy_file_range(in, NULL, out, NULL, n, 0);
        if (k > 0) return k;
        if (k < 0 && errno != EXDEV && errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP && errno != EPERM)
            return -1;
        /* Not between these file systems, or a file of /proc, where it sees no content. */
        *buf = cp_alloc(COPY_BUFFER);
    }
    k = read(in, *buf, n < COPY_BUFFER ? n : COPY_BUFFER);
    return k > 0 && cp_write_all(out, *buf, (size_t)k) < 0 ? -1 : k;
}

static int copy_range(int in, int out, off_t from, off_t to, uint64_t *bytes) {
    cp_autofree char *buf = NULL;
    if (lseek(in, from, SEEK_SET) < 0 || lseek(out, from, SEEK_SET) < 0) return -1;
    while (from < to) {
        off_t left = to - from;
        ssize_t k = copy_some(in, out, left < (1 << 30) ? (size_t)left : 1 << 30, &buf);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return -1;
        if (k == 0) break; /* it shrank */
        from += k;
        *bytes += (uint64_t)k;
    }
    return 0;
}

/* Holes stay holes: a sparse image must not fill the disk. */
static int copy_content(int in, int out, const struct stat *st, uint64_t *bytes) {
    if (st->st_size == 0) return copy_range(in, out, 0, CP_READ_MAX, bytes); /* empty, or of /proc */
    for (off_t at = 0; at < st->st_size;) {
        off_t data = lseek(in, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO) break; /* a hole up to the end */
        if (data < 0) return copy_range(in, out, at, st->st_size, bytes);
        off_t hole = lseek(in, data, SEEK_HOLE);
        if (hole < 0 || hole > st->st_size) hole = st->st_size;
        if (copy_range(in, out, data, hole, bytes) < 0) return -1;
        at = hole;
    }
    off_t end = lseek(out, 0, SEEK_END);
    return end >= 0 && end < st->st_size ? ftruncate(out, st->st_size) : 0;
}

/* ---- entries ---- */

static int keep_times(int fd, const struct stat *st) {
    struct timespec t[2] = {st->st_atim, st->st_mtim};
    return futimens(fd, t);
}

/* A move keeps what it may: the owner only when it is ours to give, as mv does. */
static int dress(const cp_tree_copy *c, int fd, const struct stat *st) {
    if (!c->preserve) return 0;
    mode_t mode = st->st_mode & 07777;
    if (fchown(fd, st->st_uid, st->st_gid) < 0) mode &= 01777;
    if (fchmod(fd, mode) < 0) return -1;
    return keep_times(fd, st);
}

static int copy_file(cp_tree_copy *c, int from, const char *from_name, int to, const char *to_name) {
    struct stat st;
    cp_autofd int in = openat(from, from_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (in < 0 || fstat(in, &st) < 0) return -1;
    char temp[40];
    cp_temp_name(temp);
    const char *name = c->overwrite ? temp : to_name;
    mode_t mode = c->preserve ? 0600 : st.st_mode & 0777;
    cp_autofd int out = openat(to, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (out < 0) return -1;
    if (copy_content(in, out, &st, &c->bytes) == 0 && dress(c, out, &st) == 0 &&
        (!c->overwrite || renameat(to, temp, to, to_name) == 0))
        return 0;
    int sys = errno;
    unlinkat(to, name, 0);
    return errno = sys, -1;
}

/* A link, pipe, device or socket. */
static int copy_node(const cp_tree_copy *c, int from, const char *from_name, const struct stat *st, int to,
                     const char *to_name) {
    char temp[40], target[CP_PATH_MAX];
    cp_temp_name(temp);
    const char *name = c->overwrite ? temp : to_name;
    if (S_ISLNK(st->st_mode)) {
        ssize_t n = readlinkat(from, from_name, target, sizeof target - 1);
        if (n < 0) return -1;
        target[n] = 0;
        if (symlinkat(target, to, name) < 0) return -1;
    } else if (mknodat(to, name, st->st_mode & (S_IFMT | 0777), st->st_rdev) < 0) {
        return -1;
    }
    if (c->preserve && fchownat(to, name, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW) < 0 && errno != EPERM) goto undo;
    if (!c->overwrite || renameat(to, temp, to, to_name) == 0) return 0;
undo:;
    int sys = errno;
    unlinkat(to, name, 0);
    return errno = sys, -1;
}

static int copy_dir(cp_tree_copy *c, int from, const char *from_name, int to, const char *to_name) {
    struct stat st;
    if (c->depth == CP_TREE_DEPTH) return errno = ELOOP, -1;
    cp_autodir DIR *in = cp_dir_open(from, from_name);
    if (!in || fstat(dirfd(in), &st) < 0) return -1;
    bool made = mkdirat(to, to_name, 0700) == 0;
    if (!made && !(errno == EEXIST && c->overwrite)) return -1;
    cp_autofd int out = openat(to, to_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (out < 0) return -1;
    c->depth++;
    for (struct dirent *e; (e = cp_dir_next(in));)
        if (cp_tree_copy_to(c, dirfd(in), e->d_name, out, e->d_name) < 0) return -1;
    c->depth--;
    if (c->preserve) return dress(c, out, &st);
    return made ? fchmod(out, st.st_mode & 0777) : 0;
}

int cp_tree_copy_to(cp_tree_copy *c, int from, const char *from_name, int to, const char *to_name) {
    struct stat st;
    if (fstatat(from, from_name, &st, AT_SYMLINK_NOFOLLOW) < 0) return -1;
    if (S_ISDIR(st.st_mode)) return copy_dir(c, from, from_name, to, to_name);
    if (S_ISREG(st.st_mode)) return copy_file(c, from, from_name, to, to_name);
    return copy_node(c, from, from_name, &st, to, to_name);
}
