#include <signal.h>
#include <stdlib.h>

#include "handlers/exec_args.h"
#include "handlers/exec_kill.h"
#include "handlers/exec_result.h"
#include "handlers/process.h"
#include "handlers/reply.h"

/* ---- one ---- */

typedef struct deletion {
    cp_reply *reply; /* NULL: the client has gone; the kill goes on */
} deletion;

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
    cp_jw_kz(&w, "processId", e->process_id);
    cp_jw_kill(&w, r);
    cp_success_end(&w);
    cp_reply_send(d->reply, &res);
}

static void already_over(cp_reply *reply, const cp_exec *e) {
    cp_err err;
    cp_autobuf cp_buf context = {0};
    cp_jw w = cp_jw_on(&context);
    cp_fail(&err, CP_E_COMMAND_NOT_FOUND, "Command '%s' not found or already completed in session '%s'", e->process_id,
            e->session ? e->session : "default");
    cp_jw_obj(&w);
    cp_jw_kz(&w, "command", e->process_id);
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

void cp_process_delete(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    int sig;
    uint64_t grace;
    cp_err err = {0};
    cp_exec *e = cp_process_find(ctx, req, reply);
    if (!e) return;
    if (read_how(ctx, req, &sig, &grace, &err) < 0) {
        cp_reply_error(reply, &err, NULL, (cp_str){0});
        return;
    }
    deletion *d = cp_new(deletion);
    d->reply = reply;
    reply->handler = d;
    reply->on_cancel = delete_cancel;
    if (cp_exec_end(e, sig, grace, CP_OUTCOME_signal, delete_done, d, &err) == 0) return;
    free(d);
    reply->on_cancel = NULL;
    if (err.code == CP_E_COMMAND_NOT_FOUND) already_over(reply, e);
    else cp_reply_error(reply, &err, NULL, (cp_str){0});
}

/* ---- all ---- */

typedef struct kill_all {
    cp_reply *reply;
    cp_exec **execs; /* referenced */
    size_t n, cap;
    size_t waiting, cleaned;
} kill_all;

static bool collect(void *arg, cp_exec *e) {
    kill_all *m = arg;
    if (!e->process_id || cp_exec_over(e)) return true;
    if (m->n == m->cap) {
        m->cap = m->cap ? 2 * m->cap : 16;
        m->execs = cp_realloc(m->execs, m->cap * sizeof *m->execs);
    }
    cp_exec_ref(e);
    m->execs[m->n++] = e;
    return true;
}

static bool all_cancel(cp_reply *reply, cp_end why, bool kill) {
    (void)why, (void)kill;
    ((kill_all *)reply->handler)->reply = NULL;
    return false;
}

static void one_less(kill_all *m) {
    if (--m->waiting) return;
    if (m->reply) {
        cp_result res = {0};
        cp_jw w = cp_success_begin(&res);
        cp_jw_ku64(&w, "cleanedCount", m->cleaned);
        cp_success_end(&w);
        cp_reply_send(m->reply, &res);
    }
    for (size_t i = 0; i < m->n; i++) cp_exec_unref(m->execs[i]);
    free(m->execs);
    free(m);
}

static void one_done(void *arg, cp_exec *e, const cp_kill_result *r) {
    kill_all *m = arg;
    (void)r;
    if (cp_exec_over(e)) m->cleaned++;
    one_less(m);
}

/* The list is taken first: ending one may change what cp_exec_each goes over. `waiting` counts one more than there are,
 * so that kills which are done at once do not answer before all have been asked for. */
void cp_process_kill_all(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    (void)req;
    kill_all *m = cp_new(kill_all);
    m->reply = reply;
    m->waiting = 1;
    reply->handler = m;
    reply->on_cancel = all_cancel;
    cp_exec_each(ctx->svc, collect, m);
    for (size_t i = 0; i < m->n; i++) {
        m->waiting++;
        if (cp_exec_end(m->execs[i], SIGTERM, (uint64_t)ctx->config->kill_grace, CP_OUTCOME_signal, one_done, m, NULL) <
            0)
            m->waiting--;
    }
    one_less(m);
}
