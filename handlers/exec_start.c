#include "handlers/exec_start.h"

#include <signal.h>
#include <stdlib.h>

#include "handlers/exec_result.h"
#include "handlers/exec_source.h"
#include "handlers/reply.h"
#include "services/nofile.h"

typedef struct start {
    cp_exec_watch watch;
    cp_ctx *ctx;
    cp_reply *reply;
    cp_exec *exec;
    cp_exec_source_opts source;
    bool stream;
    bool fail_as_record; /* argv form: a program that cannot be started is a process with status "failed" */
} start;

static void start_free(start *s) {
    cp_exec_watch_del(&s->watch);
    if (s->exec) cp_exec_unref(s->exec);
    free(s);
}

static void reply_failure(cp_reply *reply, const cp_exec *e, cp_err err) {
    if (err.code == CP_E_COMMAND_EXECUTION_ERROR) err.code = CP_E_STREAM_START_ERROR;
    cp_exec_refuse(reply, e, &err);
}

static void reply_process(cp_reply *reply, const cp_exec *e) {
    cp_result res = {0};
    cp_jw w = cp_success_begin(&res);
    cp_jw_kz(&w, "processId", e->process_id);
    if (e->pid > 0) cp_jw_ki64(&w, "pid", e->pid);
    cp_jw_command(&w, e);
    cp_jw_kz(&w, "executionId", e->id);
    if (e->state == CP_STATE_FAILED) {
        cp_jw_kz(&w, "status", cp_exec_status(e));
        cp_jw_start_error(&w, e);
    }
    cp_success_end(&w);
    cp_reply_send(reply, &res);
}

/* What we lacked ourselves is no record of the program: where the disk is full there is no room for one. */
static bool is_the_programs(const cp_err *err) {
    return err->code == CP_E_COMMAND_NOT_FOUND || err->code == CP_E_COMMAND_PERMISSION_DENIED ||
           err->code == CP_E_COMMAND_EXECUTION_ERROR;
}

static bool failed(const start *s, const cp_exec *e, cp_err *err) {
    if (e->state == CP_STATE_ENDED && e->pid <= 0 && !s->stream) return cp_exec_how_it_failed(e, err) < 0;
    if (e->start_err) *err = *e->start_err;
    return e->start_err && (s->stream || !s->fail_as_record || !is_the_programs(err));
}

static void begun(cp_exec_watch *w, cp_exec *e) {
    start *s = CP_CONTAINER(w, start, watch);
    cp_reply *reply = cp_take(s->reply);
    cp_err err;
    if (!reply) return;
    if (failed(s, e, &err)) reply_failure(reply, e, err);
    else if (s->stream) cp_reply_stream(reply, cp_exec_source_new(s->ctx, e, &s->source));
    else reply_process(reply, e);
    start_free(s);
}

static int on_stdin(cp_reply *reply, cp_str data, bool eof, cp_stdin_ack *ack, cp_err *err) {
    return cp_exec_stdin(((start *)reply->handler)->exec, data, eof, ack, err);
}

static bool on_cancel(cp_reply *reply, cp_end why, bool kill) {
    start *s = reply->handler;
    bool by_policy = why == CP_END_DISCONNECTED ? s->source.kill_on_disconnect
                     : why == CP_END_SHUTDOWN   ? false
                                                : s->source.kill_on_cancel;
    if (kill || by_policy)
        cp_exec_kill(s->exec, SIGTERM, (uint64_t)s->ctx->config->timeout_grace, CP_OUTCOME_cancelled, NULL, NULL, NULL);
    start_free(s);
    return false;
}

static void run(cp_ctx *ctx, const cp_exec_args *a, cp_reply *reply, bool stream) {
    cp_err err = {0};
    bool existing;
    static const cp_exec_watch_ops on_watch = {.on_start = begun}; /* frees us: the end is never told */
    start *s = cp_new(start);
    s->watch.ops = &on_watch;
    s->ctx = ctx;
    s->reply = reply;
    s->stream = stream;
    s->fail_as_record = a->spec.nargs > 0;
    s->source = (cp_exec_source_opts){.base64 = a->base64,
                                      .ids = a->additions,
                                      .offsets = a->has_from,
                                      .from = {a->from[0], a->from[1]},
                                      .kill_on_cancel = a->kill_on_cancel,
                                      .kill_on_disconnect = a->kill_on_disconnect};
    if (cp_exec_start(ctx->svc, &a->spec, &s->watch, &s->exec, &existing, &err) < 0) {
        free(s);
        cp_exec_args_refuse(reply, a, &err);
        return;
    }
    reply->handler = s;
    reply->on_cancel = on_cancel;
    reply->on_stdin = on_stdin;
}

void cp_exec_start_process(cp_ctx *ctx, const cp_exec_args *a, cp_reply *reply) { run(ctx, a, reply, false); }
void cp_exec_start_stream(cp_ctx *ctx, const cp_exec_args *a, cp_reply *reply) { run(ctx, a, reply, true); }

int cp_exec_admit(const cp_ctx *ctx, const cp_exec_args *a, cp_err *err) {
    if (a->spec.exec_id.n && cp_exec_find(ctx->svc, a->spec.exec_id)) return 0;
    if (a->spec.process_id.n && cp_exec_find_process(ctx->svc, a->spec.process_id)) return 0;
    return cp_exec_gives_back(ctx->svc) ? 0 : cp_nofile_room(CP_NOFILE_START, err); /* else it may wait */
}
