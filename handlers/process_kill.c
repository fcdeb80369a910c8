#include <signal.h>
#include <stdlib.h>

#include "handlers/exec_kill.h"
#include "handlers/exec_result.h"
#include "handlers/process.h"
#include "handlers/reply.h"

void cp_process_delete(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    cp_exec *e = cp_process_find(ctx, req, reply);
    if (e) cp_exec_delete(ctx, req, reply, e, CP_DELETE_PROCESS);
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
