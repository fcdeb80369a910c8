#include "services/archive.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "services/files_impl.h"
#include "services/files_walk.h"
#include "services/tar.h"

enum { FILL = 64 * 1024, GZIP_WINDOW = 15 + 16 /* zlib.h: 16 more is the gzip format */, GZIP_MEMORY = 8 };

struct cp_pack {
    cp_walk *walk; /* NULL: a single file */
    char *name;    /* of what is being packed, for errors */
    int fd;        /* its content, or -1 */
    uint64_t left, size;
    cp_buf tar; /* bytes of the archive, not given yet from `at` on */
    size_t at;
    bool end, gzip, flushed;
    z_stream z;
};

static void put_header(cp_pack *p, const char *name, char type, const struct stat *st, const char *link) {
    cp_tar_entry e = {.type = type,
                      .path = name,
                      .link = link,
                      .size = type == CP_TAR_FILE ? (uint64_t)st->st_size : 0,
                      .mode = st->st_mode & 07777,
                      .mtime = st->st_mtim.tv_sec,
                      .uid = st->st_uid,
                      .gid = st->st_gid};
    cp_tar_put(&p->tar, &e);
}

static void begin_file(cp_pack *p, int fd, const char *name, const struct stat *st) {
    put_header(p, name, CP_TAR_FILE, st, NULL);
    free(p->name);
    p->name = cp_str_dup(cp_str_of(name));
    p->fd = fd;
    p->left = p->size = (uint64_t)st->st_size;
}

static int open_file(cp_pack *p, const cp_walk_entry *e, cp_err *err) {
    struct stat st;
    cp_autofd int fd = openat(e->dir, e->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) return errno == ENOENT ? 0 : cp_file_fail(err, errno, "open", e->relative);
    if (S_ISREG(st.st_mode)) begin_file(p, cp_take_fd(&fd), e->relative, &st);
    return 0;
}

static int put_folder(cp_pack *p, const cp_walk_entry *e) {
    cp_autobuf cp_buf name = {0};
    cp_buf_addf(&name, "%s/", e->relative);
    put_header(p, cp_buf_z(&name), CP_TAR_DIR, &e->st, NULL);
    return 0;
}

static int put_link(cp_pack *p, const cp_walk_entry *e, cp_err *err) {
    char target[CP_PATH_MAX];
    ssize_t n = readlinkat(e->dir, e->name, target, sizeof target - 1);
    if (n < 0) return errno == ENOENT ? 0 : cp_file_fail(err, errno, "readlink", e->relative);
    target[n] = 0;
    put_header(p, e->relative, CP_TAR_SYMLINK, &e->st, target);
    return 0;
}

static int finish(cp_pack *p, cp_err *err) {
    if (p->walk && cp_walk_skipped(p->walk))
        return cp_fail(err, CP_E_FILESYSTEM_ERROR, "%llu folders cannot be read, or are too deep",
                       (unsigned long long)cp_walk_skipped(p->walk));
    cp_tar_end(&p->tar);
    p->end = true;
    return 0;
}

static int next_entry(cp_pack *p, cp_err *err) {
    cp_walk_entry e;
    if (!p->walk || !cp_walk_next(p->walk, &e)) return finish(p, err);
    if (S_ISREG(e.st.st_mode)) return open_file(p, &e, err);
    if (S_ISDIR(e.st.st_mode)) return put_folder(p, &e);
    if (S_ISLNK(e.st.st_mode)) return put_link(p, &e, err);
    return 0;
}

/* As much as the header has promised: what a file grows meanwhile is not packed. */
static int read_content(cp_pack *p, cp_err *err) {
    size_t n = p->left < FILL ? (size_t)p->left : FILL;
    cp_buf_reserve(&p->tar, n + CP_TAR_BLOCK);
    ssize_t got = cp_read_full(p->fd, p->tar.p + p->tar.n, n);
    if (got < 0) return cp_file_fail(err, errno, "read", p->name);
    if ((size_t)got < n) return cp_fail(err, CP_E_RESOURCE_BUSY, "Became shorter while it was packed: %s", p->name);
    p->tar.n += n;
    p->left -= n;
    if (p->left) return 0;
    cp_tar_pad(&p->tar, p->size);
    cp_close(&p->fd);
    return 0;
}

static int fill(cp_pack *p, cp_err *err) {
    cp_buf_clear(&p->tar);
    p->at = 0;
    while (!p->end && p->tar.n < FILL)
        if ((p->fd >= 0 ? read_content(p, err) : next_entry(p, err)) < 0) return -1;
    return 0;
}

cp_pack *cp_pack_open(const cp_where *w, bool gzip, cp_err *err) {
    struct stat st;
    cp_autofd int fd = -1;
    cp_walk *walk = cp_walk_open(w, CP_WALK_HIDDEN, err);
    if (!walk && (err->sys != ENOTDIR || (fd = cp_file_open(w, &st, err)) < 0)) return NULL;
    cp_pack *p = cp_new(cp_pack);
    p->walk = walk;
    p->fd = -1;
    if (fd >= 0) begin_file(p, cp_take_fd(&fd), w->full + (cp_path_base(cp_str_of(w->full)).p - w->full), &st);
    if (gzip &&
        deflateInit2(&p->z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, GZIP_WINDOW, GZIP_MEMORY, Z_DEFAULT_STRATEGY) == Z_OK)
        p->gzip = true;
    return p;
}

static ssize_t read_gzip(cp_pack *p, void *to, size_t n, cp_err *err) {
    p->z.next_out = to;
    p->z.avail_out = (uInt)n;
    while (p->z.avail_out == n && !p->flushed) {
        if (p->at == p->tar.n && !p->end && fill(p, err) < 0) return -1;
        p->z.next_in = (Bytef *)p->tar.p + p->at;
        p->z.avail_in = (uInt)(p->tar.n - p->at);
        int rc = deflate(&p->z, p->end ? Z_FINISH : Z_NO_FLUSH);
        p->at = p->tar.n - p->z.avail_in;
        p->flushed = rc == Z_STREAM_END;
    }
    return (ssize_t)(n - p->z.avail_out);
}

ssize_t cp_pack_read(cp_pack *p, void *to, size_t n, cp_err *err) {
    if (n > INT32_MAX) n = INT32_MAX;
    if (p->gzip) return read_gzip(p, to, n, err);
    /* What begin_file has put before the first call must not be cleared. */
    if (p->at == p->tar.n && !p->end && fill(p, err) < 0) return -1;
    size_t have = p->tar.n - p->at;
    if (n > have) n = have;
    memcpy(to, p->tar.p + p->at, n);
    p->at += n;
    return (ssize_t)n;
}

void cp_pack_close(cp_pack *p) {
    if (!p) return;
    if (p->gzip) deflateEnd(&p->z);
    cp_walk_close(p->walk);
    cp_close(&p->fd);
    cp_buf_free(&p->tar);
    free(p->name);
    free(p);
}
