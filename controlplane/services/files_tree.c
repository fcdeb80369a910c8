/* Whole trees: removing and copying. Every name is taken from its folder's descriptor without following links, so that
 * an exchange in the meantime cannot lead out of the tree. A copy goes down two ways at once: the walk's, and one of
 * its own through what it makes. */
#include "services/files_impl.h"
#include "services/files_walk.h"
#include "services/files_way.h"
#include "services/watch_glob.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { COPY_BUFFER = 64 * 1024 };

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

int cp_tree_remove(int dir, const char *name) {
    cp_walk_entry e;
    if (unlinkat(dir, name, 0) == 0) return 0;
    if (errno != EISDIR && errno != EPERM) return -1;
    cp_autowalk cp_walk *walk = cp_walk_at(dir, name);
    if (!walk) return -1;
    while (cp_walk_next(walk, &e)) {
        if (S_ISDIR(e.st.st_mode) && !e.left) continue; /* its content first */
        if (unlinkat(e.dir, e.name, e.left ? AT_REMOVEDIR : 0) < 0 && errno != ENOENT) return -1;
    }
    if (cp_walk_failed(walk)) return errno = cp_walk_failed(walk), -1;
    return unlinkat(dir, name, AT_REMOVEDIR);
}

/* For us to look into and to remove from. By its descriptor: a name may be exchanged for a link. */
static void let_in(int folder) {
    struct stat st;
    char link[32];
    if (fstat(folder, &st) < 0 || (st.st_mode & 0700) == 0700) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder); /* fchmod refuses O_PATH */
    (void)!chmod(link, 0700);
}

int cp_tree_empty(int folder) {
    cp_walk_entry e;
    let_in(folder);
    cp_autowalk cp_walk *walk = cp_walk_at(folder, ".");
    if (!walk) return -1;
    while (cp_walk_next(walk, &e)) {
        if (S_ISDIR(e.st.st_mode) && !e.left) {
            cp_autofd int below = openat(e.dir, e.name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            if (below >= 0) let_in(below);
        } else if (unlinkat(e.dir, e.name, e.left ? AT_REMOVEDIR : 0) < 0 && errno != ENOENT) {
            return -1;
        }
    }
    return cp_walk_failed(walk) ? (errno = cp_walk_failed(walk), -1) : 0;
}

int cp_tree_discard(int dir, const char *name) {
    if (unlinkat(dir, name, 0) == 0) return 0;
    if (errno != EISDIR && errno != EPERM) return -1;
    cp_autofd int folder = openat(dir, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return folder < 0 || cp_tree_empty(folder) < 0 ? -1 : unlinkat(dir, name, AT_REMOVEDIR);
}

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

/* The entry that is made beside a target has a record of its own, or is the whole copy's first. */
static void made(cp_tree_copy *c, const cp_temp *own, int to, const char *name) {
    cp_temp_made(own, to, name);
    if (c->top) cp_temp_made(c->top, to, name);
    c->top = NULL;
}

static int copy_file(cp_tree_copy *c, int from, const char *from_name, int to, const char *to_name) {
    struct stat st;
    cp_autofd int in = openat(from, from_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (in < 0 || fstat(in, &st) < 0) return -1;
    char temp[40];
    cp_temp_name(temp);
    const char *name = c->overwrite ? temp : to_name;
    mode_t mode = c->preserve ? 0600 : st.st_mode & 0777;
    cp_autotemp cp_temp record = {0};
    if (c->overwrite) cp_temp_begin(&record, c->temps, to, temp);
    cp_autofd int out = openat(to, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (out < 0) return -1;
    made(c, &record, to, name);
    if (copy_content(in, out, &st, &c->bytes) == 0 && dress(c, out, &st) == 0 &&
        (!c->overwrite || renameat(to, temp, to, to_name) == 0))
        return 0;
    int sys = errno;
    unlinkat(to, name, 0);
    return errno = sys, -1;
}

/* A link, pipe, device or socket. */
static int copy_node(cp_tree_copy *c, int from, const char *from_name, const struct stat *st, int to,
                     const char *to_name) {
    char temp[40], target[CP_PATH_MAX];
    cp_temp_name(temp);
    const char *name = c->overwrite ? temp : to_name;
    cp_autotemp cp_temp record = {0};
    if (c->overwrite) cp_temp_begin(&record, c->temps, to, temp);
    if (S_ISLNK(st->st_mode)) {
        ssize_t n = readlinkat(from, from_name, target, sizeof target - 1);
        if (n < 0) return -1;
        target[n] = 0;
        if (symlinkat(target, to, name) < 0) return -1;
    } else if (mknodat(to, name, st->st_mode & (S_IFMT | 0777), st->st_rdev) < 0) {
        return -1;
    }
    made(c, &record, to, name);
    if (c->preserve && fchownat(to, name, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW) < 0 && errno != EPERM) goto undo;
    if (!c->overwrite || renameat(to, temp, to, to_name) == 0) return 0;
undo:;
    int sys = errno;
    unlinkat(to, name, 0);
    return errno = sys, -1;
}

static int copy_entry(cp_tree_copy *c, int from, const char *from_name, const struct stat *st, int to,
                      const char *to_name) {
    if (S_ISREG(st->st_mode)) return copy_file(c, from, from_name, to, to_name);
    return copy_node(c, from, from_name, st, to, to_name);
}

/* ---- folders ---- */

/* Makes the folder (to, name), or goes on with the one that is there, one level further down the way. */
static int enter_copy(const cp_tree_copy *c, cp_way *way, int to, const char *name) {
    bool made = mkdirat(to, name, 0700) == 0;
    if (!made && !(errno == EEXIST && c->overwrite)) return -1;
    if (cp_way_down(way, openat(to, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0) return -1;
    cp_way_last(way)->mark = made;
    return 0;
}

/* st: of the folder that the last one on the way is the copy of. */
static int finish_copy(const cp_tree_copy *c, const cp_way *way, const struct stat *st) {
    const cp_way_level *l = cp_way_last(way);
    if (c->preserve) return dress(c, l->fd, st);
    return l->mark ? fchmod(l->fd, st->st_mode & 0777) : 0;
}

static int copy_told(cp_tree_copy *c, cp_walk *walk, const cp_walk_entry *e, cp_way *way) {
    const cp_way_level *first = &way->v[0], *last = cp_way_last(way);
    if (e->left) return finish_copy(c, way, &e->st) < 0 ? -1 : cp_way_up(way);
    if (cp_watch_staged(cp_str_of(e->name))) { /* what is being written is not there yet, nor is it the client's */
        cp_walk_pass(walk);
        return 0;
    }
    if (!S_ISDIR(e->st.st_mode)) return copy_entry(c, e->dir, e->name, &e->st, last->fd, e->name);
    /* The copy has been moved into what is copied: there would be no end. */
    if (e->st.st_dev == first->dev && e->st.st_ino == first->ino) return errno = EINVAL, -1;
    cp_way_name(way, e->name);
    return enter_copy(c, way, last->fd, e->name);
}

static int copy_dir(cp_tree_copy *c, int from, const char *from_name, const struct stat *st, int to,
                    const char *to_name) {
    cp_walk_entry e;
    cp_autoway cp_way way = {0};
    cp_autowalk cp_walk *walk = cp_walk_at(from, from_name);
    if (!walk || enter_copy(c, &way, to, to_name) < 0) return -1;
    made(c, &(cp_temp){0}, to, to_name);
    while (cp_walk_next(walk, &e))
        if (copy_told(c, walk, &e, &way) < 0) return -1;
    if (cp_walk_failed(walk)) return errno = cp_walk_failed(walk), -1;
    return finish_copy(c, &way, st);
}

int cp_tree_copy_to(cp_tree_copy *c, int from, const char *from_name, int to, const char *to_name) {
    struct stat st;
    if (fstatat(from, from_name, &st, AT_SYMLINK_NOFOLLOW) < 0) return -1;
    if (S_ISDIR(st.st_mode)) return copy_dir(c, from, from_name, &st, to, to_name);
    return copy_entry(c, from, from_name, &st, to, to_name);
}
