/* /api/process (cloudflare-sandbox.md sections 2, 3.2, 6.2; conflux-additions.md, "Processes"). */
#include "handlers/process.h"

#include <stdlib.h>

#include "handlers/exec_args.h"
#include "handlers/exec_log.h"
#include "handlers/exec_result.h"
#include "handlers/exec_source.h"
#include "handlers/exec_start.h"
#include "handlers/families.h"
#include "handlers/reply.h"
#include "services/tree.h"

cp_exec *cp_process_find(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    cp_str id = req->params[0];
    cp_exec *e = cp_exec_find_process(ctx->svc, id);
    if (e) return e;
    cp_err err;
    cp_autobuf cp_buf context = {0};
    cp_jw w = cp_jw_on(&context);
    cp_fail(&err, CP_E_PROCESS_NOT_FOUND, "Process %.*s not found", (int)(id.n < 256 ? id.n : 256), id.p);
    cp_jw_obj(&w);
    cp_jw_kstr(&w, "processId", id);
    cp_jw_end_obj(&w);
    cp_reply_error(reply, &err, NULL, cp_buf_str(&context));
    return NULL;
}

static void write_counts(cp_jw *w, const char *key, const cp_exec *e, uint64_t (*count)(const cp_output *)) {
    cp_jw_key(w, key);
    cp_jw_obj(w);
    cp_jw_ku64(w, "stdout", e->out[0] ? count(e->out[0]) : 0);
    cp_jw_ku64(w, "stderr", e->out[1] ? count(e->out[1]) : 0);
    cp_jw_end_obj(w);
}

static void write_end(cp_jw *w, const cp_exec *e) {
    if (e->state == CP_STATE_FAILED) {
        cp_jw_start_error(w, e);
        return;
    }
    cp_jw_kz(w, "outcome", cp_outcome_name(e->outcome));
    if (e->signal) cp_jw_signal(w, "signal", e->signal);
    cp_jw_usage(w, e);
}

static void write_iso(cp_jw *w, const char *key, int64_t ms) {
    cp_jw_key(w, key);
    cp_jw_iso(w, ms);
}

void cp_jw_process(cp_jw *w, const cp_exec *e) {
    bool over = cp_exec_over(e);
    cp_jw_obj(w);
    cp_jw_kz(w, "id", e->process_id);
    if (e->pid > 0) cp_jw_ki64(w, "pid", e->pid);
    cp_jw_command(w, e);
    cp_jw_kz(w, "status", cp_exec_status(e));
    write_iso(w, "startTime", e->started_wall);
    if (over && e->ended_wall) write_iso(w, "endTime", e->ended_wall);
    if (over && e->exit_code >= 0) cp_jw_ki64(w, "exitCode", e->exit_code);
    cp_jw_kz(w, "executionId", e->id);
    if (e->session) cp_jw_kz(w, "sessionId", e->session);
    if (e->cwd) cp_jw_kz(w, "cwd", e->cwd);
    if (e->timeout_ms) cp_jw_ku64(w, "timeoutMs", e->timeout_ms);
    if (over) write_end(w, e);
    write_counts(w, "offsets", e, cp_output_total);
    write_counts(w, "dropped", e, cp_output_dropped);
    cp_jw_end_obj(w);
}

/* ---- waiting for the drain ---- */

typedef struct settling {
    cp_exec_watch watch;
    cp_ctx *ctx;
    cp_reply *reply;
    cp_exec *exec;
    cp_settled_done *done;
    void *arg;
} settling;

static void settle_free(settling *s) {
    cp_exec_watch_del(&s->watch);
    cp_exec_unref(s->exec);
    free(s);
}

static void settle_end(cp_exec_watch *w, cp_exec *e) {
    settling *s = CP_CONTAINER(w, settling, watch);
    s->reply->on_cancel = NULL;
    s->done(s->ctx, e, s->reply, s->arg);
    settle_free(s);
}

static bool settle_cancel(cp_reply *reply, cp_end why, bool kill) {
    (void)why, (void)kill;
    settle_free(reply->handler);
    return false;
}

static bool gone_but_not_ended(const cp_exec *e) {
    if (e->state != CP_STATE_RUNNING || e->pid <= 0) return false;
    cp_proc now = {.pid = e->pid, .start_time = e->pid_start};
    return !cp_proc_alive(&now);
}

void cp_process_settled(cp_ctx *ctx, cp_exec *e, cp_reply *reply, cp_settled_done *done, void *arg) {
    if (!gone_but_not_ended(e)) {
        done(ctx, e, reply, arg);
        return;
    }
    static const cp_exec_watch_ops on_watch = {.on_end = settle_end};
    settling *s = cp_new(settling);
    *s = (settling){.watch.ops = &on_watch, .ctx = ctx, .reply = reply, .exec = e, .done = done, .arg = arg};
    cp_exec_ref(e);
    reply->handler = s;
    reply->on_cancel = settle_cancel;
    cp_exec_watch_add(e, &s->watch);
}

/* ---- routes ---- */

static void start(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    cp_autoargs cp_exec_args a;
    cp_err err = {0};
    if (cp_exec_args_read(&a, ctx, req, CP_ARGS_START, &err) < 0 || cp_exec_admit(ctx, &a, &err) < 0)
        cp_exec_args_refuse(reply, &a, &err);
    else cp_exec_start_process(ctx, &a, reply);
}

static void reply_get(cp_ctx *ctx, cp_exec *e, cp_reply *reply, void *arg) {
    (void)ctx, (void)arg;
    cp_result res = {0};
    cp_jw w = cp_success_begin(&res);
    cp_jw_key(&w, "process");
    cp_jw_process(&w, e);
    cp_success_end(&w);
    cp_reply_send(reply, &res);
}

static void get(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    cp_exec *e = cp_process_find(ctx, req, reply);
    if (e) cp_process_settled(ctx, e, reply, reply_get, NULL);
}

typedef struct whole_logs {
    cp_reply *reply;
    cp_gathering *gathering;
} whole_logs;

static bool whole_cancel(cp_reply *reply, cp_end why, bool kill) {
    (void)why, (void)kill;
    whole_logs *l = reply->handler;
    cp_gather_cancel(l->gathering);
    free(l);
    return false;
}

static void whole_done(void *arg, cp_result *res) {
    whole_logs *l = arg;
    l->reply->on_cancel = NULL;
    cp_reply_send(l->reply, res);
    free(l);
}

static void reply_logs(cp_ctx *ctx, cp_exec *e, cp_reply *reply, void *arg) {
    (void)arg;
    whole_logs *l = cp_new(whole_logs);
    l->reply = reply;
    reply->handler = l;
    reply->on_cancel = whole_cancel;
    l->gathering = cp_gather_new(ctx, e, (cp_exec_view){0}, &cp_gather_logs, whole_done, l);
    cp_gather_start(l->gathering);
}

static void logs(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    cp_exec *e = cp_process_find(ctx, req, reply);
    if (!e) return;
    if (cp_exec_log_wanted(req)) cp_exec_log(req, e, reply);
    else cp_process_settled(ctx, e, reply, reply_logs, NULL);
}

static void stream(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    cp_exec_source_opts opts = {.process = true};
    cp_err err = {0};
    cp_str encoding = {0};
    cp_exec *e = cp_process_find(ctx, req, reply);
    if (!e) return;
    if (cp_offsets_of(req, opts.from, &opts.offsets, &err) < 0) {
        cp_reply_error(reply, &err, NULL, (cp_str){0});
        return;
    }
    opts.base64 = cp_request_query(req, "encoding", &encoding) && cp_str_is(encoding, "base64");
    opts.ids = opts.offsets || opts.base64;
    cp_reply_stream(reply, cp_exec_source_new(ctx, e, &opts));
}

const cp_route cp_process_routes[] = {
    {CP_POST, "/api/process/start", CP_R_LOOP | CP_R_BODY, "process.start", NULL, start, "Starts a background process"},
    {CP_GET, "/api/process/list", CP_R_LOOP, "process.list", NULL, cp_process_list, "All processes, running and ended"},
    {CP_DELETE, "/api/process/kill-all", CP_R_LOOP | CP_R_LASTS | CP_R_ENDS, "process.killAll", NULL,
     cp_process_kill_all, "Ends every running process"},
    {CP_GET, "/api/process/{id}", CP_R_LOOP, "process.get", NULL, get, "One process"},
    {CP_DELETE, "/api/process/{id}", CP_R_LOOP | CP_R_LASTS | CP_R_ENDS, "process.kill", NULL, cp_process_delete,
     "Ends a process with its descendants"},
    {CP_GET, "/api/process/{id}/logs", CP_R_LOOP, "process.logs", NULL, logs, "What it printed, whole or by offset"},
    {CP_GET, "/api/process/{id}/stream", CP_R_LOOP | CP_R_LASTS, "process.stream", NULL, stream,
     "What it prints, live"},
    {CP_GET, "/api/process/{id}/wait", CP_R_LOOP | CP_R_LASTS, "process.wait", NULL, cp_process_wait,
     "Waits for its end, for a line of its output, or for a port"},
    {CP_POST, "/api/process/{id}/signal", CP_R_LOOP | CP_R_BODY, "process.signal", NULL, cp_process_signal,
     "Sends it a signal"},
    {CP_POST, "/api/process/{id}/stdin", CP_R_LOOP | CP_R_BODY, "process.stdin", NULL, cp_process_stdin,
     "Writes to its standard input"},
};
const size_t cp_process_nroutes = CP_COUNT(cp_process_routes);
