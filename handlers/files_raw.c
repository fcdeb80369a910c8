/* GET and PUT /api/files/raw: bytes as they are, in constant memory. */
#include "handlers/conditions.h"
#include "handlers/files_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/sha.h"
#include "services/mime.h"

#define GET_OP "file.rawRead"
#define PUT_OP "file.rawWrite"
/* The files are the workload's: shown by a browser, their scripts must not run as pages of this server. */
#define SANDBOX  "Content-Security-Policy: sandbox\r\n"
#define CHECKSUM "X-Checksum-Sha256" /* empty: it is told, not compared */

enum { WRITE_BACK = 8 << 20 };

/* ---- GET ---- */

static void put_headers(cp_result *res, const struct stat *st, const char *etag) {
    char date[40];
    struct tm tm;
    gmtime_r(&st->st_mtim.tv_sec, &tm);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    cp_buf_addf(&res->headers, "ETag: %s\r\nLast-Modified: %s\r\nAccept-Ranges: bytes\r\n" SANDBOX, etag, date);
}

static int unsatisfiable(cp_result *res, uint64_t size) {
    cp_err err;
    cp_fail(&err, CP_E_RANGE_NOT_SATISFIABLE, "The range begins behind the end of the file (%llu bytes)",
            (unsigned long long)size);
    cp_error_result(res, &err, GET_OP, (cp_str){0});
    cp_buf_addf(&res->headers, "Content-Range: bytes */%llu\r\n", (unsigned long long)size);
    return 0;
}

static const char *type_of(cp_str path, int fd) {
    char head[4096];
    cp_str name = cp_path_base(path);
    const char *type = cp_mime_by_name(name);
    if (type) return type;
    ssize_t n = pread(fd, head, sizeof head, 0);
    return cp_mime_of(name, (cp_str){head, n > 0 ? (size_t)n : 0}, n < (ssize_t)sizeof head);
}

static int send_file(const cp_request *req, cp_str path, int *fd, const struct stat *st, cp_result *res) {
    char etag[64];
    uint64_t size = (uint64_t)st->st_size, from = 0, len = size;
    cp_file_etag(st, etag);
    if (cp_etag_listed(cp_request_header(req, "If-None-Match"), etag, true)) {
        res->status = 304;
        put_headers(res, st, etag);
        return 0;
    }
    cp_str if_range = cp_request_header(req, "If-Range");
    bool ranged = !if_range.n || cp_str_is(cp_str_trim(if_range), etag);
    cp_range_kind kind = ranged ? cp_range_parse(cp_request_header(req, "Range"), size, &from, &len) : CP_RANGE_NONE;
    if (kind == CP_RANGE_BAD) return unsatisfiable(res, size);
    res->status = kind == CP_RANGE_ONE ? 206 : 200;
    res->type = type_of(path, *fd);
    put_headers(res, st, etag);
    if (kind == CP_RANGE_ONE)
        cp_buf_addf(&res->headers, "Content-Range: bytes %llu-%llu/%llu\r\n", (unsigned long long)from,
                    (unsigned long long)(from + len - 1), (unsigned long long)size);
    res->file_fd = cp_take_fd(fd);
    res->file_off = from;
    res->file_len = len;
    return 0;
}

typedef struct content {
    cp_body_source body;
    int fd;
} content;

static ssize_t content_read(cp_body_source *b, void *p, size_t n) {
    return cp_read_full(CP_CONTAINER(b, content, body)->fd, p, n);
}

static void content_close(cp_body_source *b) {
    content *c = CP_CONTAINER(b, content, body);
    cp_close(&c->fd);
    free(c);
}

/* Files of /proc have no size that could be announced: they are read until they end. */
static int send_content(cp_str path, int *fd, cp_result *res) {
    content *c = cp_new(content);
    res->status = 200;
    res->type = type_of(path, *fd);
    cp_buf_addz(&res->headers, SANDBOX);
    *c = (content){.body = {.read = content_read, .close = content_close}, .fd = cp_take_fd(fd)};
    res->source = &c->body;
    return 0;
}

int cp_files_raw_get(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    static const char *const known[] = {"path", "sessionId", NULL};
    cp_autobuf cp_buf text = {0};
    cp_files_path p;
    struct stat st;
    char byte;
    if (cp_request_only(req, known, err) < 0) return -1;
    if (cp_files_path_query(ctx, req, GET_OP, &text, &p, res) < 0) return 0;
    cp_autofd int fd = cp_file_open(&p.where, &st, err);
    if (fd < 0) return cp_files_error(res, err, GET_OP, p.given);
    if (st.st_size == 0 && pread(fd, &byte, 1, 0) == 1) return send_content(p.given, &fd, res);
    return send_file(req, p.given, &fd, &st, res);
}

/* ---- PUT ---- */

typedef struct upload {
    cp_owner owner;
    uint64_t parents;
    uint64_t size, begun; /* received; of that, handed to the disk */
    bool hash;
    cp_sha256 sha;
    char digest[2 * CP_SHA256_SIZE + 1];
} upload;

static int parse_upload(const cp_request *req, upload *u, cp_err *err) {
    static const char *const known[] = {"path", "mode", "uid", "gid", "parents", "sessionId", NULL};
    cp_autobuf cp_buf mode = {0};
    uint64_t uid = 0, gid = 0;
    u->owner = CP_OWNER_KEEP;
    u->hash = cp_request_header(req, CHECKSUM).p != NULL;
    if (cp_request_only(req, known, err) < 0) return -1;
    int has_mode = cp_request_param(req, "mode", &mode, err);
    if (has_mode < 0 || (has_mode && cp_files_mode_text(cp_buf_str(&mode), &u->owner.mode, err) < 0)) return -1;
    int has_uid = cp_request_param_u64(req, "uid", UINT32_MAX - 1, &uid, err);
    if (has_uid < 0) return -1;
    int has_gid = cp_request_param_u64(req, "gid", UINT32_MAX - 1, &gid, err);
    if (has_gid < 0) return -1;
    if (has_uid) u->owner.uid = (int64_t)uid;
    if (has_gid) u->owner.gid = (int64_t)gid;
    return cp_request_param_u64(req, "parents", 1, &u->parents, err) < 0 ? -1 : 0;
}

static int check_conditions(const cp_request *req, const cp_stage *s, cp_err *err) {
    char etag[64] = "";
    if (s->exists) cp_file_etag(&s->old, etag);
    cp_str match = cp_request_header(req, "If-Match"), none = cp_request_header(req, "If-None-Match");
    if (match.p && (!s->exists || !cp_etag_listed(match, etag, false)))
        return cp_fail(err, CP_E_PRECONDITION_FAILED, "If-Match: the file is not the one that was named");
    if (none.p && s->exists && cp_etag_listed(none, etag, true))
        return cp_fail(err, CP_E_PRECONDITION_FAILED, "If-None-Match: the file is there");
    return 0;
}

/* The disk begins while the rest is still on its way, or the fsync at the end would wait for all of it. */
static void write_back(upload *u, int fd) {
    if (u->size - u->begun < WRITE_BACK) return;
    (void)sync_file_range(fd, (off_t)u->begun, (off_t)(u->size - u->begun), SYNC_FILE_RANGE_WRITE); /* a hint */
    u->begun = u->size;
}

static int receive(const cp_request *req, upload *u, int fd, cp_err *err) {
    cp_autopiece cp_piece piece = {0};
    cp_body_reader *body = req->raw;
    ssize_t n;
    if (cp_piece_take(&piece, body, err) < 0) return -1;
    if (u->hash) cp_sha256_init(&u->sha);
    while ((n = body->read(body, piece.p, piece.n)) > 0) {
        if (cp_write_all(fd, piece.p, (size_t)n) < 0)
            return cp_fail_sys(err, cp_no_space(errno) ? CP_E_NO_SPACE : CP_E_FILESYSTEM_ERROR, errno,
                               "write after %llu bytes", (unsigned long long)u->size);
        if (u->hash) cp_sha256_update(&u->sha, piece.p, (size_t)n);
        u->size += (uint64_t)n;
        write_back(u, fd);
    }
    if (n < 0 || (body->length >= 0 && u->size != (uint64_t)body->length))
        return cp_fail(err, CP_E_INVALID_REQUEST, "The body ended early: %llu of %lld bytes",
                       (unsigned long long)u->size, (long long)body->length);
    return 0;
}

static int check_digest(const cp_request *req, upload *u, cp_err *err) {
    uint8_t digest[CP_SHA256_SIZE];
    cp_str want = cp_str_trim(cp_request_header(req, CHECKSUM));
    if (!u->hash) return 0;
    cp_sha256_final(&u->sha, digest);
    cp_sha256_hex(digest, u->digest);
    if (!want.n || cp_str_ieq(want, cp_str_of(u->digest))) return 0;
    return cp_fail(err, CP_E_CHECKSUM_MISMATCH, "The body's SHA-256 is %s", u->digest);
}

static int store(const cp_request *req, const cp_where *w, upload *u, cp_result *res, cp_str given, cp_err *err) {
    cp_autostage cp_stage s = CP_STAGE_EMPTY;
    struct stat st;
    char etag[64];
    if (cp_stage_open(&s, w, u->parents, err) < 0 || check_conditions(req, &s, err) < 0 ||
        receive(req, u, s.fd, err) < 0 || check_digest(req, u, err) < 0 ||
        cp_stage_commit(&s, &u->owner, true, &st, err) < 0)
        return -1;
    cp_file_etag(&st, etag);
    cp_jw out = cp_success_begin(res);
    cp_jw_kstr(&out, "path", given);
    cp_jw_ku64(&out, "size", u->size);
    if (u->hash) cp_jw_kz(&out, "sha256", u->digest);
    cp_jw_kz(&out, "etag", etag);
    cp_jw_kbool(&out, "created", !s.exists);
    cp_success_end(&out);
    return 0;
}

int cp_files_raw_put(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    cp_autobuf cp_buf text = {0};
    cp_files_path p;
    upload u = {0};
    if (!req->raw) return cp_fail(err, CP_E_NOT_SUPPORTED, "A raw body is served over HTTP only");
    if (parse_upload(req, &u, err) < 0) return -1;
    if (cp_files_path_query(ctx, req, PUT_OP, &text, &p, res) < 0) return 0;
    if (store(req, &p.where, &u, res, p.given, err) < 0) return cp_files_error(res, err, PUT_OP, p.given);
    return 0;
}
