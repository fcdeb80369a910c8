#include <string.h>

#include "handlers/process.h"
#include "handlers/reply.h"

typedef struct filter {
    cp_buf status, session, after; /* empty: any */
    uint64_t limit, written;
    bool passed_after;
    cp_jw *w;
} filter;

static int read_filter(const cp_request *req, filter *f, cp_err *err) {
    f->limit = UINT64_MAX;
    if (cp_request_param(req, "status", &f->status, err) < 0 ||
        cp_request_param(req, "sessionId", &f->session, err) < 0 ||
        cp_request_param(req, "after", &f->after, err) < 0 ||
        cp_request_param_u64(req, "limit", 1000000, &f->limit, err) < 0)
        return -1;
    f->passed_after = f->after.n == 0;
    return 0;
}

static bool write_one(void *arg, cp_exec *e) {
    filter *f = arg;
    if (!e->process_id) return true;
    if (!f->passed_after) {
        f->passed_after = cp_str_is(cp_buf_str(&f->after), e->process_id);
        return true;
    }
    if (f->status.n && !cp_str_is(cp_buf_str(&f->status), cp_exec_status(e))) return true;
    if (f->session.n && !(e->session && cp_str_is(cp_buf_str(&f->session), e->session))) return true;
    if (f->written++ >= f->limit) return false;
    cp_jw_process(f->w, e);
    return true;
}

static void answer(cp_ctx *ctx, filter *f, cp_reply *reply) {
    cp_result res = {0};
    cp_jw w = cp_success_begin(&res);
    f->w = &w;
    cp_jw_key(&w, "processes");
    cp_jw_arr(&w);
    if (f->limit) cp_exec_each(ctx->svc, write_one, f);
    cp_jw_end_arr(&w);
    cp_success_end(&w);
    cp_reply_send(reply, &res);
}

void cp_process_list(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    filter f = {0};
    cp_err err = {0};
    if (read_filter(req, &f, &err) < 0) {
        cp_reply_error(reply, &err, NULL, (cp_str){0});
    } else if (f.after.n && !cp_exec_find_process(ctx->svc, cp_buf_str(&f.after))) {
        cp_fail_field(&err, "after", "after names no process that is known");
        cp_reply_error(reply, &err, NULL, (cp_str){0});
    } else {
        answer(ctx, &f, reply);
    }
    cp_buf_free(&f.status);
    cp_buf_free(&f.session);
    cp_buf_free(&f.after);
}
