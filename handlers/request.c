#include "handlers/request.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/act.h"

cp_method cp_method_of(cp_str name) {
    static const char *const names[CP_METHOD_COUNT] = {"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"};
    for (int i = 0; i < CP_METHOD_COUNT; i++)
        if (cp_str_is(name, names[i])) return (cp_method)i;
    return CP_METHOD_UNKNOWN;
}

cp_str cp_request_header(const cp_request *r, const char *name) {
    cp_str want = cp_str_of(name);
    for (size_t i = 0; i < r->nheaders; i++)
        if (cp_str_ieq(r->headers[i].name, want)) return r->headers[i].value;
    return (cp_str){0};
}

ssize_t cp_body_source_read(cp_body_source *b, void *p, size_t n) {
    if (!b->files) return b->read(b, p, n);
    cp_err err;
    if (cp_act_begin(&err) < 0) return -1;
    ssize_t got = b->read(b, p, n);
    cp_act_end();
    return got;
}

int cp_piece_take(cp_piece *piece, const cp_body_reader *body, cp_err *err) {
    enum { LEAST = 512 };
    size_t n = CP_BODY_PIECE;
    if (body->length >= 0 && body->length < CP_BODY_PIECE) n = body->length < LEAST ? LEAST : (size_t)body->length;
    piece->charge.kind = CP_MEM_TRANSFERS;
    if (cp_charge_set(&piece->charge, n, err) < 0) return -1;
    piece->p = malloc(n);
    piece->n = n;
    return piece->p ? 0 : cp_no_memory(err, n);
}

void cp_piece_free(cp_piece *piece) {
    free(piece->p);
    cp_charge_free(&piece->charge);
    *piece = (cp_piece){0};
}

void cp_result_free(cp_result *r) {
    cp_buf_free(&r->body);
    cp_buf_free(&r->headers);
    if (r->file_fd > 0) close(r->file_fd);
    if (r->source) r->source->close(r->source);
    cp_charge_free(&r->charge);
    cp_spool_forget(r->spilled);
    *r = (cp_result){0};
}

int cp_result_spooled(cp_result *r, cp_spool *spool, cp_err *err) {
    if (cp_spool_end(spool, err) < 0) {
        cp_spool_free(spool);
        return -1;
    }
    r->body = cp_take(spool->mem);
    r->charge = cp_take(spool->charge);
    r->file_fd = cp_take(spool->fd);
    r->file_off = 0;
    r->file_len = r->spilled = cp_take(spool->filed);
    return 0;
}

/* ---- a copy that outlives the transport's buffers ---- */

static size_t strings_size(const cp_request *r) {
    size_t n = r->path.n + r->query.n + r->trace_id.n;
    for (size_t i = 0; i < CP_MAX_PARAMS; i++) n += r->params[i].n;
    for (size_t i = 0; i < r->nheaders; i++) n += r->headers[i].name.n + r->headers[i].value.n;
    return n;
}

static cp_str copy(char **at, cp_str s) {
    if (!s.p) return s;
    char *p = *at;
    memcpy(p, s.p, s.n);
    *at += s.n;
    return (cp_str){p, s.n};
}

cp_request *cp_request_keep(const cp_request *r) {
    size_t heads = r->nheaders * sizeof(cp_header);
    cp_request *k = cp_alloc(sizeof *k + heads + strings_size(r));
    cp_header *headers = (cp_header *)(void *)(k + 1);
    char *at = (char *)headers + heads;
    *k = *r;
    k->path = copy(&at, r->path);
    k->query = copy(&at, r->query);
    k->trace_id = copy(&at, r->trace_id);
    for (size_t i = 0; i < CP_MAX_PARAMS; i++) k->params[i] = copy(&at, r->params[i]);
    for (size_t i = 0; i < r->nheaders; i++) {
        headers[i].name = copy(&at, r->headers[i].name);
        headers[i].value = copy(&at, r->headers[i].value);
    }
    k->headers = headers;
    return k;
}
