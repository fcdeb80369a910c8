#include <stdlib.h>
#include <string.h>

#include "handlers/process.h"
#include "handlers/reply.h"
#include "handlers/rows.h"

typedef struct process_rows {
    cp_rows rows;
    cp_buf status, session, after; /* empty: any */
    uint64_t limit, written;
    bool passed_after;
    cp_exec **v; /* those that there were, each with a reference; from `at` on they are still to be written */
    size_t n, cap, at;
} process_rows;

static int read_filter(const cp_request *req, process_rows *f, cp_err *err) {
    f->limit = UINT64_MAX;
    if (cp_request_param(req, "status", &f->status, err) < 0 ||
        cp_request_param(req, "sessionId", &f->session, err) < 0 ||
        cp_request_param(req, "after", &f->after, err) < 0 ||
        cp_request_param_u64(req, "limit", 1000000, &f->limit, err) < 0)
        return -1;
    f->passed_after = f->after.n == 0;
    return 0;
}

static bool take_down(void *arg, cp_exec *e) {
    process_rows *f = arg;
    if (!e->process_id) return true;
    if (!f->passed_after) {
        f->passed_after = cp_str_is(cp_buf_str(&f->after), e->process_id);
        return true;
    }
    if (f->session.n && !(e->session && cp_str_is(cp_buf_str(&f->session), e->session))) return true;
    if (f->n == f->cap) f->v = cp_realloc(f->v, (f->cap = f->cap ? 2 * f->cap : 64) * sizeof *f->v);
    cp_exec_ref(e);
    f->v[f->n++] = e;
    return true;
}

static void begin(cp_rows *r) {
    process_rows *f = CP_CONTAINER(r, process_rows, rows);
    if (f->limit) cp_exec_each(r->ctx->svc, take_down, f);
}

static bool row(cp_rows *r, cp_jw *w) {
    process_rows *f = CP_CONTAINER(r, process_rows, rows);
    if (f->at == f->n || f->written >= f->limit) return false;
    cp_exec *e = f->v[f->at++];
    if (!f->status.n || cp_str_is(cp_buf_str(&f->status), cp_exec_status(e))) {
        f->written++;
        cp_jw_process(w, e);
    }
    cp_exec_unref(e);
    return true;
}

static void rows_free(cp_rows *r) {
    process_rows *f = CP_CONTAINER(r, process_rows, rows);
    while (f->at < f->n) cp_exec_unref(f->v[f->at++]);
    free(f->v);
    cp_buf_free(&f->status);
    cp_buf_free(&f->session);
    cp_buf_free(&f->after);
    free(f);
}

void cp_process_list(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    static const cp_rows_ops ops = {.key = "processes", .begin = begin, .row = row, .free = rows_free};
    process_rows *f = cp_new(process_rows);
    cp_err err = {0};
    if (read_filter(req, f, &err) == 0 && f->after.n && !cp_exec_find_process(ctx->svc, cp_buf_str(&f->after)))
        cp_fail_field(&err, "after", "after names no process that is known");
    if (!err.code) {
        cp_rows_answer(&f->rows, &ops, ctx, reply);
        return;
    }
    rows_free(&f->rows);
    cp_reply_error(reply, &err, NULL, (cp_str){0});
}
