#include "services/archive.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/budget.h"
#include "services/files_impl.h"
#include "services/files_walk.h"
#include "services/tar.h"

enum {
    FILL = 16 * 1024,
    TAR_ROOM = 2 * FILL, /* what holds as much of the archive, with headers */
    GZIP_FORMAT = 16,    /* zlib.h: as much more in the number of the window */
    GZIP_OWN = 8 * 1024,
};

/* Measured over sources and programs: as small as without any loss, and a quarter of the 256 KB that zlib takes. */
typedef struct gzip_size {
    int window, memory;
} gzip_size;
static const gzip_size large = {15, 7}, small = {13, 6};

/* zconf.h. */
static size_t gzip_bytes(gzip_size z) {
    return ((size_t)1 << (z.window + 2)) + ((size_t)1 << (z.memory + 9)) + GZIP_OWN;
}

struct cp_pack {
    cp_walk *walk; /* NULL: a single file */
    char *name;    /* of what is being packed, for errors */
    int fd;        /* its content, or -1 */
    uint64_t left, size;
    cp_charge charge; /* but for the walk's */
    cp_buf tar;       /* bytes of the archive, not given yet from `at` on */
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
static int read_content(cp_pack *p, char *to, size_t n, cp_err *err) {
    ssize_t got = cp_read_full(p->fd, to, n);
    if (got < 0) return cp_file_fail(err, errno, "read", p->name);
    if ((size_t)got < n) return cp_fail(err, CP_E_RESOURCE_BUSY, "Became shorter while it was packed: %s", p->name);
    p->left -= n;
    return 0;
}

static void end_content(cp_pack *p) {
    cp_tar_pad(&p->tar, p->size);
    cp_close(&p->fd);
}

static int fill_content(cp_pack *p, cp_err *err) {
    size_t room = FILL - p->tar.n, n = p->left < room ? (size_t)p->left : room;
    cp_buf_reserve(&p->tar, n);
    if (read_content(p, p->tar.p + p->tar.n, n, err) < 0) return -1;
    p->tar.n += n;
    if (!p->left) end_content(p);
    return 0;
}

/* Without content, unless that is to be compressed: it need not lie here on its way. */
static int fill(cp_pack *p, cp_err *err) {
    cp_buf_clear(&p->tar);
    p->at = 0;
    while (!p->end && p->tar.n < FILL && (p->gzip || !p->left))
        if ((p->fd >= 0 ? fill_content(p, err) : next_entry(p, err)) < 0) return -1;
    return 0;
}

static int begin_gzip(cp_pack *p, cp_err *err) {
    gzip_size size = cp_budget_half(CP_MEM_TRANSFERS) ? small : large;
    if (cp_charge_set(&p->charge, TAR_ROOM + gzip_bytes(size), err) < 0) return -1;
    if (deflateInit2(&p->z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, size.window + GZIP_FORMAT, size.memory,
                     Z_DEFAULT_STRATEGY) != Z_OK)
        return cp_no_memory(err, gzip_bytes(size));
    p->gzip = true;
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
    p->charge.kind = CP_MEM_TRANSFERS;
    if ((gzip ? begin_gzip(p, err) : cp_charge_set(&p->charge, TAR_ROOM, err)) == 0) return p;
    cp_pack_close(p);
    return NULL;
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

static size_t give(cp_pack *p, char *to, size_t n) {
    size_t have = p->tar.n - p->at;
    if (n > have) n = have;
    memcpy(to, p->tar.p + p->at, n);
    p->at += n;
    return n;
}

/* Of the content of the file; what was before it has been given. */
static ssize_t give_content(cp_pack *p, char *to, size_t n, cp_err *err) {
    if (n > p->left) n = (size_t)p->left;
    if (read_content(p, to, n, err) < 0) return -1;
    cp_buf_clear(&p->tar);
    p->at = 0;
    if (!p->left) end_content(p);
    return (ssize_t)n;
}

static ssize_t read_plain(cp_pack *p, char *to, size_t n, cp_err *err) {
    size_t done = 0;
    while (done < n) {
        if (p->at < p->tar.n) {
            done += give(p, to + done, n - done);
        } else if (p->left) {
            ssize_t k = give_content(p, to + done, n - done, err);
            if (k < 0) return -1;
            done += (size_t)k;
        } else if (p->end) {
            break;
        } else if (fill(p, err) < 0) {
            return -1;
        }
    }
    return (ssize_t)done;
}

ssize_t cp_pack_read(cp_pack *p, void *to, size_t n, cp_err *err) {
    if (n > INT32_MAX) n = INT32_MAX;
    return p->gzip ? read_gzip(p, to, n, err) : read_plain(p, to, n, err);
}

void cp_pack_close(cp_pack *p) {
    if (!p) return;
    if (p->gzip) deflateEnd(&p->z);
    cp_walk_close(p->walk);
    cp_close(&p->fd);
    cp_buf_free(&p->tar);
    cp_charge_free(&p->charge);
    free(p->name);
    free(p);
}
