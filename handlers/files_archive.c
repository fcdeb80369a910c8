/* GET and PUT /api/files/archive?path=: a tree as tar, packed and unpacked on side threads of the transport. */
#include <stdlib.h>

#include "base/fd.h"
#include "handlers/files_impl.h"
#include "services/archive.h"

#define GET_OP "file.archiveRead"
#define PUT_OP "file.archiveWrite"

static const char *const known[] = {"path", "sessionId", NULL};

/* ---- GET ---- */

typedef struct packer {
    cp_body_source body;
    cp_pack *pack;
} packer;

static ssize_t pack_read(cp_body_source *b, void *p, size_t n) {
    cp_err err;
    return cp_pack_read(CP_CONTAINER(b, packer, body)->pack, p, n, &err);
}

static void pack_close(cp_body_source *b) {
    packer *p = CP_CONTAINER(b, packer, body);
    cp_pack_close(p->pack);
    free(p);
}

/* "gzip" in the list, and not with a weight of 0 (RFC 9110 section 12.5.3). */
static bool accepts_gzip(cp_str list) {
    while (list.n) {
        const char *comma = memchr(list.p, ',', list.n);
        cp_str item = {list.p, comma ? (size_t)(comma - list.p) : list.n};
        list.p += item.n + (comma != NULL);
        list.n -= item.n + (comma != NULL);
        const char *semicolon = item.n ? memchr(item.p, ';', item.n) : NULL;
        cp_str name = {item.p, semicolon ? (size_t)(semicolon - item.p) : item.n};
        if (!cp_str_ieq(cp_str_trim(name), CP_STR("gzip"))) continue;
        if (!semicolon) return true;
        cp_str weight = cp_str_trim((cp_str){semicolon + 1, item.n - name.n - 1});
        for (size_t i = 2; i < weight.n; i++)
            if (weight.p[i] >= '1' && weight.p[i] <= '9') return true;
        return false;
    }
    return false;
}

int cp_files_archive_get(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    cp_autobuf cp_buf text = {0};
    cp_files_path p;
    bool gzip = accepts_gzip(cp_request_header(req, "Accept-Encoding"));
    if (cp_request_only(req, known, err) < 0) return -1;
    if (cp_files_path_query(ctx, req, GET_OP, &text, &p, res) < 0) return 0;
    cp_pack *pack = cp_pack_open(&p.where, gzip, err);
    if (!pack) return cp_files_error(res, err, GET_OP, p.given);
    packer *body = cp_new(packer);
    *body = (packer){.body = {.read = pack_read, .close = pack_close}, .pack = pack};
    res->status = 200;
    res->type = "application/x-tar";
    res->source = &body->body;
    cp_buf_addz(&res->headers, "Vary: Accept-Encoding\r\n");
    if (gzip) cp_buf_addz(&res->headers, "Content-Encoding: gzip\r\n");
    return 0;
}

/* ---- PUT ---- */

static int receive(cp_body_reader *body, cp_unpack *u, cp_err *err) {
    cp_autopiece cp_piece piece = {0};
    uint64_t size = 0;
    ssize_t n;
    if (cp_piece_take(&piece, body, err) < 0) return -1;
    while ((n = body->read(body, piece.p, piece.n)) > 0) {
        if (cp_unpack_feed(u, (cp_str){piece.p, (size_t)n}, err) < 0) return -1;
        size += (uint64_t)n;
    }
    if (n < 0 || (body->length >= 0 && size != (uint64_t)body->length))
        return cp_fail(err, CP_E_INVALID_REQUEST, "The body ended early: %llu of %lld bytes", (unsigned long long)size,
                       (long long)body->length);
    return 0;
}

static int unpack(cp_ctx *ctx, const cp_request *req, const cp_where *w, cp_unpack_report *r, cp_err *err) {
    cp_unpack_limits limits = {.entries = (uint64_t)ctx->config->archive_entries,
                               .bytes = (uint64_t)ctx->config->archive_bytes};
    cp_unpack *u = cp_unpack_open(w, &limits, err);
    if (!u) return -1;
    int rc = receive(req->raw, u, err);
    if (rc == 0) rc = cp_unpack_finish(u, r, err);
    cp_unpack_close(u);
    return rc;
}

int cp_files_archive_put(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    cp_autobuf cp_buf text = {0};
    cp_files_path p;
    cp_unpack_report r = {0};
    if (!req->raw) return cp_fail(err, CP_E_NOT_SUPPORTED, "A raw body is served over HTTP only");
    if (cp_request_only(req, known, err) < 0) return -1;
    if (cp_files_path_query(ctx, req, PUT_OP, &text, &p, res) < 0) return 0;
    if (unpack(ctx, req, &p.where, &r, err) < 0) return cp_files_error(res, err, PUT_OP, p.given);
    cp_jw w = cp_success_begin(res);
    cp_jw_kstr(&w, "path", p.given);
    cp_jw_ku64(&w, "entries", r.entries);
    cp_jw_ku64(&w, "bytes", r.bytes);
    cp_success_end(&w);
    return 0;
}
