/* Life: waiting → gathering the output → answered; or waiting → ending the tree (cancel) → answered. Callbacks that are
 * still to come (gather, kill) hold the call; the client may be gone meanwhile (reply NULL). */
#include "handlers/exec_call.h"

#include <signal.h>
#include <stdlib.h>

#include "handlers/exec_kill.h"
#include "handlers/reply.h"

struct cp_call {
    cp_exec_watch watch;
    cp_ctx *ctx;
    cp_reply *reply;
    cp_exec *exec;
    cp_call_opts opts;
    cp_timer detach;
    unsigned holds;
    cp_gathering *gathering;
    bool ending, answering;
};

static void release(cp_call *c) {
    if (c->reply || c->holds) return;
    cp_exec_watch_del(&c->watch);
    cp_timer_stop(c->ctx->loop, &c->detach);
    if (c->exec) cp_exec_unref(c->exec);
    free(c);
}

/* The reply is over (answered, or the transport's): nothing may touch it. */
static cp_reply *take_reply(cp_call *c) {
    cp_reply *r = c->reply;
    c->reply = NULL;
    return r;
}

static void gathered(void *arg, cp_result *res) {
    cp_call *c = arg;
    cp_reply *r = take_reply(c);
    c->gathering = NULL;
    c->holds--;
    if (r) cp_reply_send(r, res);
    else cp_result_free(res);
    release(c);
}

/* Nobody wants the result any more. */
static void stop_gathering(cp_call *c) {
    if (!c->gathering) return;
    cp_gather_cancel(cp_take(c->gathering));
    c->holds--;
}

static void answer(cp_call *c) {
    if (!c->reply || c->ending || c->answering) return;
    c->answering = true;
    c->holds++;
    cp_timer_stop(c->ctx->loop, &c->detach);
    c->gathering = cp_gather_new(c->ctx, c->exec, c->opts.view, &cp_gather_exec, gathered, c);
    cp_gather_start(c->gathering);
}

static void on_end(cp_exec_watch *w, cp_exec *e) {
    (void)e;
    answer(CP_CONTAINER(w, cp_call, watch));
}

static void on_detach(cp_timer *t) {
    cp_call *c = CP_CONTAINER(t, cp_call, detach);
    cp_exec_accepted(take_reply(c), c->exec, true);
    release(c);
}

/* ---- cancel ---- */

static void ended(void *arg, cp_exec *e, const cp_kill_result *k) {
    cp_call *c = arg;
    cp_reply *r = take_reply(c);
    c->holds--;
    if (r) {
        cp_err err;
        cp_autobuf cp_buf context = {0};
        cp_jw w = cp_jw_on(&context);
        cp_fail(&err, CP_E_CANCELLED, "The execution was cancelled");
        cp_jw_obj(&w);
        cp_jw_kz(&w, "executionId", e->id);
        cp_jw_kz(&w, "outcome", cp_outcome_name(CP_OUTCOME_cancelled));
        cp_jw_kill(&w, k);
        cp_jw_end_obj(&w);
        cp_reply_error(r, &err, NULL, cp_buf_str(&context));
    }
    release(c);
}

/* Returns whether we answer: with what was killed, or, where it had just ended by itself, with the result. */
static bool end_tree(cp_call *c) {
    c->ending = true;
    c->holds++;
    if (cp_exec_end(c->exec, SIGTERM, (uint64_t)c->ctx->config->timeout_grace, CP_OUTCOME_cancelled, ended, c, NULL) ==
        0)
        return true;
    c->holds--;
    c->ending = false;
    return true;
}

static bool on_cancel(cp_reply *reply, cp_end why, bool kill) {
    cp_call *c = reply->handler;
    bool by_policy = why == CP_END_DISCONNECTED ? c->opts.kill_on_disconnect
                     : why == CP_END_SHUTDOWN   ? false
                                                : c->opts.kill_on_cancel;
    cp_timer_stop(c->ctx->loop, &c->detach);
    if (why == CP_END_CANCELLED && (kill || by_policy)) return end_tree(c);
    c->reply = NULL;
    stop_gathering(c);
    if (kill || by_policy) end_tree(c);
    release(c);
    return false;
}

static int on_stdin(cp_reply *reply, cp_str data, bool eof, cp_stdin_ack *ack, cp_err *err) {
    return cp_exec_stdin(((cp_call *)reply->handler)->exec, data, eof, ack, err);
}

/* ---- life ---- */

cp_call *cp_call_new(cp_ctx *ctx, cp_reply *reply, const cp_call_opts *o) {
    static const cp_exec_watch_ops on_watch = {.on_end = on_end};
    cp_call *c = cp_new(cp_call);
    c->watch.ops = &on_watch;
    c->ctx = ctx;
    c->reply = reply;
    c->opts = *o;
    return c;
}

cp_exec_watch *cp_call_watch(cp_call *c) { return &c->watch; }

void cp_call_drop(cp_call *c) {
    c->reply = NULL;
    release(c);
}

void cp_call_run(cp_call *c, cp_exec *e) {
    c->exec = e;
    c->reply->handler = c;
    c->reply->on_cancel = on_cancel;
    c->reply->on_stdin = on_stdin;
    if (c->opts.detaches) cp_timer_start(c->ctx->loop, &c->detach, c->opts.detach_ms, on_detach);
}

void cp_call_attach(cp_call *c, cp_exec *e) {
    cp_call_run(c, e);
    if (cp_exec_over(e)) answer(c);
    else cp_exec_watch_add(e, &c->watch);
}

void cp_exec_accepted(cp_reply *reply, cp_exec *e, bool detached) {
    cp_exec_promise(e);
    cp_result res = {0};
    cp_jw w = cp_success_begin(&res);
    res.status = 202;
    cp_buf_addf(&res.headers, "Location: /api/execution/%s\r\n", e->id);
    cp_jw_kz(&w, "executionId", e->id);
    if (e->process_id) cp_jw_kz(&w, "processId", e->process_id);
    cp_jw_kz(&w, "status", cp_exec_status(e));
    if (detached) cp_jw_kbool(&w, "detached", true);
    cp_success_end(&w);
    cp_reply_send(reply, &res);
}
