/* The tree is gone some moments before the execution has ended: its output must be drained first. A client that asks
 * for the status right after DELETE has answered must see "killed", so the answer waits for both; unless something
 * survived, which may keep the execution from ever ending. */
#include "handlers/exec_kill.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "handlers/exec_args.h"
#include "handlers/exec_result.h"
#include "handlers/process.h"
#include "handlers/reply.h"

typedef struct ending {
    cp_exec_watch watch;
    cp_exec *exec;
    bool told;
    pid_t *pids; /* killed, then survivors */
    cp_kill_result result;
    cp_exec_end_done *done;
    void *arg;
} ending;

static void settle(ending *j) {
    if (!j->told || (!cp_exec_over(j->exec) && !j->result.nsurvivors)) return;
    cp_exec_watch_del(&j->watch);
    j->done(j->arg, j->exec, &j->result);
    cp_exec_unref(j->exec);
    free(j->pids);
    free(j);
}

static void on_end(cp_exec_watch *w, cp_exec *e) {
    (void)e;
    settle(CP_CONTAINER(w, ending, watch));
}

static void on_killed(void *arg, cp_exec *e, const cp_kill_result *r) {
    (void)e;
    ending *j = arg;
    j->pids = cp_alloc((r->nkilled + r->nsurvivors) * sizeof *j->pids);
    if (r->nkilled) memcpy(j->pids, r->killed, r->nkilled * sizeof *j->pids);
    if (r->nsurvivors) memcpy(j->pids + r->nkilled, r->survivors, r->nsurvivors * sizeof *j->pids);
    j->result = (cp_kill_result){j->pids, r->nkilled, j->pids + r->nkilled, r->nsurvivors};
    j->told = true;
    settle(j);
}

int cp_exec_end(cp_exec *e, int sig, uint64_t grace_ms, cp_outcome why, cp_exec_end_done *done, void *arg,
                cp_err *err) {
    if (cp_exec_over(e)) return cp_fail(err, CP_E_COMMAND_NOT_FOUND, "The execution has already ended");
    static const cp_exec_watch_ops on_watch = {.on_end = on_end};
    ending *j = cp_new(ending);
    j->exec = e;
    j->done = done;
    j->arg = arg;
    j->watch.ops = &on_watch;
    cp_exec_ref(e);
    cp_exec_watch_add(e, &j->watch);
    if (cp_exec_kill(e, sig, grace_ms, why, on_killed, j, err) == 0) return 0; /* j may be gone already */
    cp_exec_watch_del(&j->watch);
    cp_exec_unref(e);
    free(j);
    return -1;
}

static void pids(cp_jw *w, const char *key, const pid_t *v, size_t n) {
    cp_jw_key(w, key);
    cp_jw_arr(w);
    for (size_t i = 0; i < n; i++) cp_jw_i64(w, v[i]);
    cp_jw_end_arr(w);
}

void cp_jw_kill(cp_jw *w, const cp_kill_result *r) {
    pids(w, "killed", r->killed, r->nkilled);
    pids(w, "survivors", r->survivors, r->nsurvivors);
}

/* ---- DELETE ---- */

typedef struct deletion {
    cp_reply *reply; /* NULL: the client has gone; the kill goes on */
    cp_delete_of what;
} deletion;

static const char *id_of(const cp_exec *e, cp_delete_of what) {
    return what == CP_DELETE_PROCESS ? e->process_id : e->id;
}

static bool delete_cancel(cp_reply *reply, cp_end why, bool kill) {
    (void)why, (void)kill;
    ((deletion *)reply->handler)->reply = NULL;
    return false;
}

static void delete_done(void *arg, cp_exec *e, const cp_kill_result *r) {
    cp_autofree deletion *d = arg;
    if (!d->reply) return;
    cp_result res = {0};
    cp_jw w = cp_success_begin(&res);
    cp_jw_kz(&w, d->what == CP_DELETE_PROCESS ? "processId" : "executionId", id_of(e, d->what));
    cp_jw_kill(&w, r);
    cp_success_end(&w);
    cp_reply_send(d->reply, &res);
}

static void already_over(cp_reply *reply, const cp_exec *e, const char *id) {
    cp_err err;
    cp_autobuf cp_buf context = {0};
    cp_jw w = cp_jw_on(&context);
    cp_fail(&err, CP_E_COMMAND_NOT_FOUND, "Command '%s' not found or already completed in session '%s'", id,
            e->session ? e->session : "default");
    cp_jw_obj(&w);
    cp_jw_kz(&w, "command", id);
    cp_jw_end_obj(&w);
    cp_reply_error(reply, &err, NULL, cp_buf_str(&context));
}

static int read_how(const cp_ctx *ctx, const cp_request *req, int *sig, uint64_t *grace, cp_err *err) {
    cp_autobuf cp_buf text = {0};
    *sig = SIGTERM;
    *grace = (uint64_t)ctx->config->kill_grace;
    int got = cp_request_param(req, "signal", &text, err);
    if (got < 0 || (got && cp_signal_of(cp_buf_str(&text), "signal", sig, err) < 0)) return -1;
    return cp_request_param_u64(req, "graceMs", CP_MAX_WAIT_MS, grace, err) < 0 ? -1 : 0;
}

void cp_exec_delete(cp_ctx *ctx, const cp_request *req, cp_reply *reply, cp_exec *e, cp_delete_of what) {
    /* Who waits for a result is told that it was cancelled, as after a cancel of the call itself. */
    cp_outcome outcome = e->kind == CP_EXEC_BUFFERED ? CP_OUTCOME_cancelled : CP_OUTCOME_signal;
    int sig;
    uint64_t grace;
    cp_err err = {0};
    if (read_how(ctx, req, &sig, &grace, &err) < 0) {
        cp_reply_error(reply, &err, NULL, (cp_str){0});
        return;
    }
    deletion *d = cp_new(deletion);
    *d = (deletion){reply, what};
    reply->handler = d;
    reply->on_cancel = delete_cancel;
    if (cp_exec_end(e, sig, grace, outcome, delete_done, d, &err) == 0) return;
    free(d);
    reply->on_cancel = NULL;
    if (err.code == CP_E_COMMAND_NOT_FOUND) already_over(reply, e, id_of(e, what));
    else cp_reply_error(reply, &err, NULL, (cp_str){0});
}
