/* POST /api/read. The body is built in one pass, piece by piece through a buffer that stays in the cache: a second copy
 * of the file, or fresh memory for it, costs more than the escaping. */
#include "handlers/files_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/escape.h"
#include "base/fd.h"
#include "base/utf8.h"
#include "services/mime.h"

enum { HEADROOM = 4 }; /* before a piece: the unfinished character that the last one ended with */

typedef struct reader {
    int fd;
    struct stat st;
    bool sized; /* false: the size says 0, which files of /proc do too: read to the end */
    bool ranged;
    uint64_t start, end; /* bytes wanted; end only when sized */
    uint64_t got;        /* bytes sent */
    bool base64, lossy;
    const char *mime;
    char *buf; /* HEADROOM + CP_FILE_CHUNK */
} reader;

static ssize_t read_at(int fd, char *p, size_t n, uint64_t at) {
    size_t got = 0;
    while (got < n) {
        ssize_t k = pread(fd, p + got, n - got, (off_t)(at + got));
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return -1;
        if (k == 0) break;
        got += (size_t)k;
    }
    return (ssize_t)got;
}

/* offset and limit in bytes; fromEnd counts offset back from the end (by default the limit: the last bytes). */
static int parse_range(reader *r, const cp_request *req, cp_err *err) {
    int64_t offset = -1, limit = -1;
    bool from_end = false;
    uint64_t size = (uint64_t)r->st.st_size;
    if (cp_json_int(req->body, "offset", 0, INT64_MAX, &offset, err) < 0 ||
        cp_json_int(req->body, "limit", 0, CP_READ_MAX, &limit, err) < 0 ||
        cp_json_bool(req->body, "fromEnd", &from_end, err) < 0)
        return -1;
    if (from_end && offset < 0 && limit < 0) return cp_fail_field(err, "fromEnd", "fromEnd needs offset or limit");
    r->ranged = offset >= 0 || limit >= 0;
    r->start = offset > 0 ? (uint64_t)offset : 0;
    if (from_end) {
        uint64_t back = offset >= 0 ? (uint64_t)offset : (uint64_t)limit;
        r->start = back < size ? size - back : 0;
    }
    r->end = r->sized ? size : r->start + CP_READ_MAX + 1;
    if (r->start > r->end) r->start = r->end;
    if (limit >= 0 && (uint64_t)limit < r->end - r->start) r->end = r->start + (uint64_t)limit;
    return 0;
}

static int too_large(cp_result *res, cp_str path, uint64_t actual) {
    cp_err err;
    cp_autobuf cp_buf context = {0};
    cp_jw w = cp_jw_on(&context);
    cp_jw_obj(&w);
    cp_jw_kstr(&w, "path", path);
    cp_jw_kz(&w, "operation", "file.read");
    cp_jw_ku64(&w, "actualSize", actual);
    cp_jw_ku64(&w, "maxSize", CP_READ_MAX);
    cp_jw_end_obj(&w);
    cp_fail(&err, CP_E_FILE_TOO_LARGE, "File is too large to read at once (%llu bytes, at most %d)",
            (unsigned long long)actual, CP_READ_MAX);
    cp_result_free(res);
    cp_error_result(res, &err, "file.read", cp_buf_str(&context));
    return 0;
}

static int choose(reader *r, const cp_request *req, cp_str path, cp_err *err) {
    cp_str name = cp_path_base(path), asked = cp_files_body_str(req, "encoding");
    r->mime = cp_mime_by_name(name);
    if (!r->mime) {
        ssize_t n = read_at(r->fd, r->buf, CP_FILE_CHUNK, 0);
        if (n < 0) return cp_fail_sys(err, CP_E_FILESYSTEM_ERROR, errno, "read");
        r->mime = cp_mime_of(name, (cp_str){r->buf, (size_t)n}, n < CP_FILE_CHUNK);
    }
    if (cp_str_is(asked, "base64")) r->base64 = true;
    else if (cp_str_is(asked, "utf-8") || cp_str_is(asked, "utf8")) r->base64 = false;
    else r->base64 = cp_mime_binary(r->mime);
    return 0;
}

/* The content as the inside of a JSON string. -1: it cannot be read, or there is no room for it. */
static int put_content(reader *r, cp_spool *spool, cp_err *err) {
    cp_buf *out = &spool->mem;
    char *piece = r->buf + HEADROOM;
    size_t held = 0; /* bytes before piece */
    bool more = r->start < r->end;
    while (more) {
        uint64_t at = r->start + r->got + held, left = r->end - at;
        ssize_t n = read_at(r->fd, piece, left < CP_FILE_CHUNK ? (size_t)left : CP_FILE_CHUNK, at);
        if (n < 0) return cp_fail_sys(err, CP_E_FILESYSTEM_ERROR, errno, "read");
        more = n == CP_FILE_CHUNK && (uint64_t)n < left;
        const char *p = piece - held;
        size_t have = held + (size_t)n;
        if (cp_spool_room(spool, CP_ESCAPED_MAX(have), err) < 0) return -1;
        if (r->base64) {
            cp_base64_encode(out, p, have);
            held = 0;
        } else {
            /* A range may end inside a character: its rest is for the next range, unless there is nothing else here. */
            bool cut = (uint64_t)n == left && r->ranged && r->end < (uint64_t)r->st.st_size;
            held = more || cut ? cp_utf8_tail(p, have) : 0;
            if (held == have) held = more ? held : 0;
            if (!cp_escape(out, (cp_str){p, have - held}, 1)) r->lossy = true;
        }
        r->got += have - held;
        memmove(piece - held, p + have - held, held);
        if (cp_spool_settle(spool, err) < 0) return -1;
    }
    return 0;
}

static void put_rest(const reader *r, cp_jw *w) {
    cp_jw_kz(w, "encoding", r->base64 ? "base64" : "utf-8");
    cp_jw_kbool(w, "isBinary", r->base64);
    cp_jw_kz(w, "mimeType", r->mime);
    cp_jw_ku64(w, "size", r->ranged && r->sized ? (uint64_t)r->st.st_size : r->start + r->got);
    if (r->ranged) {
        cp_jw_ku64(w, "offset", r->start);
        cp_jw_ku64(w, "length", r->got);
    }
    if (r->lossy) cp_jw_kbool(w, "lossy", true);
    cp_success_end(w);
}

/* Room for the body. A large one comes fresh from the kernel, and its page faults cost as much as reading the file;
 * taken all at once they save a fifth of a 1 MB read. (Kernels before 5.14 refuse; the faults then come one by one.) */
static void reserve_body(cp_buf *b, uint64_t n) {
    enum { WORTH = 256 * 1024, PAGE = 4096 };
    if (!cp_buf_try_reserve(b, n + 1024) || n < WORTH) return; /* without memory it goes to a file, piece by piece */
    uintptr_t from = ((uintptr_t)b->p + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
    uintptr_t to = ((uintptr_t)b->p + b->n + n) & ~(uintptr_t)(PAGE - 1);
    madvise((void *)from, to - from, MADV_POPULATE_WRITE);
}

static int failed(cp_result *res, const cp_err *err, cp_str path) {
    cp_result_free(res);
    if (err->code != CP_E_FILESYSTEM_ERROR) return cp_files_error(res, err, "file.read", path);
    return cp_files_sdk_error(res, err, "file.read", path, "Failed to read file");
}

static int serve(reader *r, cp_str path, cp_result *res) {
    cp_err err = {0};
    uint64_t n = r->sized ? r->end - r->start : 0;
    if (r->base64) n = n / 3 * 4;
    cp_jw w = cp_success_begin(res);
    cp_jw_kstr(&w, "path", path);
    cp_jw_key(&w, "content");
    cp_buf_addc(&res->body, '"');
    cp_spool spool = {.mem = cp_take(res->body), .charge.kind = CP_MEM_RESULTS};
    w.out = &spool.mem;
    if (cp_charge_set(&spool.charge, n + spool.mem.n, NULL) == 0) reserve_body(&spool.mem, n + n / 16);
    if (put_content(r, &spool, &err) < 0) {
        cp_spool_free(&spool);
        return failed(res, &err, path);
    }
    if (r->got > CP_READ_MAX) {
        cp_spool_free(&spool);
        return too_large(res, path, r->got);
    }
    cp_buf_addc(&spool.mem, '"');
    w.comma = true;
    put_rest(r, &w);
    if (cp_result_spooled(res, &spool, &err) == 0) return 0;
    return failed(res, &err, path);
}

int cp_files_read(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    cp_files_path p;
    reader r = {0};
    if (cp_files_path_arg(ctx, req, "path", "file.read", &p, res) < 0) return 0;
    cp_autofd int fd = cp_file_open(&p.where, &r.st, err);
    if (fd < 0) {
        if (err->sys == ENOENT || err->sys == ENOTDIR || err->sys == EISDIR)
            return cp_files_not_found(res, "file.read", p.given, "File not found");
        return cp_files_sdk_error(res, err, "file.read", p.given, "Failed to read file");
    }
    r.fd = fd;
    r.sized = r.st.st_size > 0;
    if (parse_range(&r, req, err) < 0) return -1;
    if (r.sized && r.end - r.start > CP_READ_MAX) return too_large(res, p.given, r.end - r.start);
    cp_autofree char *buf = cp_realloc(NULL, HEADROOM + CP_FILE_CHUNK); /* not zeroed */
    r.buf = buf;
    if (choose(&r, req, p.given, err) < 0)
        return cp_files_sdk_error(res, err, "file.read", p.given, "Failed to read file");
    return serve(&r, p.given, res);
}
