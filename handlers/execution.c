/* /api/execution/{id}: the result, the logs and the stream of an execution by its id, running or ended; and its end. */
#include "handlers/exec_args.h"
#include "handlers/exec_call.h"
#include "handlers/exec_kill.h"
#include "handlers/exec_log.h"
#include "handlers/exec_source.h"
#include "handlers/families.h"
#include "handlers/reply.h"

static void refuse(cp_reply *reply, const cp_err *err) { cp_reply_error(reply, err, NULL, (cp_str){0}); }

/* NULL: it has been answered. */
static cp_exec *find(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    cp_exec *e = cp_exec_find(ctx->svc, req->params[0]);
    if (e) return e;
    cp_err err;
    cp_autobuf cp_buf context = {0};
    cp_jw w = cp_jw_on(&context);
    cp_fail(&err, CP_E_EXECUTION_NOT_FOUND, "No execution has this id");
    cp_jw_obj(&w);
    cp_jw_kstr(&w, "executionId", req->params[0]);
    cp_jw_end_obj(&w);
    cp_reply_error(reply, &err, NULL, cp_buf_str(&context));
    return NULL;
}

static int read_encoding(const cp_request *req, bool *base64, cp_err *err) {
    cp_autobuf cp_buf text = {0};
    int got = cp_request_param(req, "encoding", &text, err);
    if (got <= 0) return got;
    *base64 = cp_str_is(cp_buf_str(&text), "base64");
    if (*base64 || cp_str_is(cp_buf_str(&text), "utf-8")) return 1;
    return cp_fail_field(err, "encoding", "encoding must be utf-8 or base64");
}

static void get(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    static const char *const known[] = {"waitMs", "encoding", NULL};
    cp_call_opts opts = {.detaches = true};
    cp_err err = {0};
    cp_exec *e = find(ctx, req, reply);
    if (!e) return;
    if (cp_request_only(req, known, &err) < 0 || read_encoding(req, &opts.view.base64, &err) < 0 ||
        cp_request_param_u64(req, "waitMs", CP_MAX_WAIT_MS, &opts.detach_ms, &err) < 0) {
        refuse(reply, &err);
        return;
    }
    if (!cp_exec_over(e) && !opts.detach_ms) {
        cp_exec_accepted(reply, e, false);
        return;
    }
    opts.view.session_given = e->session != NULL;
    cp_exec_ref(e);
    cp_call_attach(cp_call_new(ctx, reply, &opts), e);
}

static void logs(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    cp_exec *e = find(ctx, req, reply);
    if (e) cp_exec_log(req, e, reply);
}

static void stream(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    static const char *const known[] = {"from", "encoding", NULL};
    cp_exec_source_opts opts = {.ids = true, .offsets = true};
    bool given;
    cp_err err = {0};
    cp_exec *e = find(ctx, req, reply);
    if (!e) return;
    if (cp_request_only(req, known, &err) < 0 || cp_offsets_of(req, opts.from, &given, &err) < 0 ||
        read_encoding(req, &opts.base64, &err) < 0)
        refuse(reply, &err);
    else cp_reply_stream(reply, cp_exec_source_new(ctx, e, &opts));
}

static void end(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    static const char *const known[] = {"signal", "graceMs", NULL};
    cp_err err = {0};
    cp_exec *e = find(ctx, req, reply);
    if (!e) return;
    if (cp_request_only(req, known, &err) < 0) refuse(reply, &err);
    else cp_exec_delete(ctx, req, reply, e, CP_DELETE_EXECUTION);
}

const cp_route cp_execution_routes[] = {
    {CP_GET, "/api/execution/{id}", CP_R_LOOP | CP_R_LASTS, "execution.get", NULL, get,
     "The result; 202 while it runs"},
    {CP_DELETE, "/api/execution/{id}", CP_R_LOOP | CP_R_LASTS | CP_R_ENDS, "execution.kill", NULL, end,
     "Ends it with its descendants"},
    {CP_GET, "/api/execution/{id}/logs", CP_R_LOOP, "execution.logs", NULL, logs, "A piece of its output by offset"},
    {CP_GET, "/api/execution/{id}/stream", CP_R_LOOP | CP_R_LASTS, "execution.stream", NULL, stream,
     "Its output from an offset on, live"},
};
const size_t cp_execution_nroutes = CP_COUNT(cp_execution_routes);
