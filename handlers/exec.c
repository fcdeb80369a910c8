/* POST /api/execute and /api/execute/stream (cloudflare-sandbox.md sections 2, 3.1, 6.1; conflux-additions.md). */
#include "handlers/exec_args.h"
#include "handlers/exec_call.h"
#include "handlers/exec_start.h"
#include "handlers/families.h"

/* Prefer: respond-async: the answer is the execution's id; what happens then is asked for under /api/execution. */
static void start_detached(cp_ctx *ctx, const cp_exec_args *a, cp_reply *reply) {
    cp_err err = {0};
    cp_exec *e;
    bool existing;
    if (cp_exec_start(ctx->svc, &a->spec, NULL, &e, &existing, &err) < 0) {
        cp_exec_args_refuse(reply, a, &err);
        return;
    }
    cp_exec_accepted(reply, e, false);
    cp_exec_unref(e);
}

static void start_buffered(cp_ctx *ctx, const cp_exec_args *a, cp_reply *reply) {
    cp_err err = {0};
    cp_exec *e;
    bool existing;
    cp_call_opts opts = {
        .view = {.session_given = a->session_given, .plain = !a->additions, .base64 = a->base64},
        .kill_on_cancel = a->kill_on_cancel,
        .kill_on_disconnect = a->kill_on_disconnect,
        .detaches = a->detach_after,
        .detach_ms = a->detach_after_ms,
    };
    cp_call *call = cp_call_new(ctx, reply, &opts);
    if (cp_exec_start(ctx->svc, &a->spec, cp_call_watch(call), &e, &existing, &err) < 0) {
        cp_call_drop(call);
        cp_exec_args_refuse(reply, a, &err);
        return;
    }
    cp_call_run(call, e);
}

static void execute(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    cp_autoargs cp_exec_args a;
    cp_err err = {0};
    if (cp_exec_args_read(&a, ctx, req, CP_ARGS_EXECUTE, &err) < 0 || cp_exec_admit(ctx, &a, &err) < 0)
        cp_exec_args_refuse(reply, &a, &err);
    else if (req->respond_async) start_detached(ctx, &a, reply);
    else if (a.background) cp_exec_start_process(ctx, &a, reply);
    else start_buffered(ctx, &a, reply);
}

static void execute_stream(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    cp_autoargs cp_exec_args a;
    cp_err err = {0};
    if (cp_exec_args_read(&a, ctx, req, CP_ARGS_STREAM, &err) < 0 || cp_exec_admit(ctx, &a, &err) < 0)
        cp_exec_args_refuse(reply, &a, &err);
    else if (req->respond_async) start_detached(ctx, &a, reply);
    else cp_exec_start_stream(ctx, &a, reply);
}

const cp_route cp_exec_routes[] = {
    {CP_POST, "/api/execute", CP_R_LOOP | CP_R_BODY, "command.execute", NULL, execute,
     "Runs a command and answers with its result"},
    {CP_POST, "/exec", CP_R_LOOP | CP_R_BODY, "command.execute", NULL, execute, "The same, by its old name"},
    {CP_POST, "/api/execute/stream", CP_R_LOOP | CP_R_LASTS | CP_R_BODY, "command.stream", NULL, execute_stream,
     "Runs a command and streams what it prints"},
};
const size_t cp_exec_nroutes = CP_COUNT(cp_exec_routes);
