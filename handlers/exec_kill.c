/* The tree is gone some moments before the execution has ended: its output must be drained first. A client that asks
 * for the status right after DELETE has answered must see "killed", so the answer waits for both; unless something
 * survived, which may keep the execution from ever ending. */
#include "handlers/exec_kill.h"

#include <stdlib.h>
#include <string.h>

#include "handlers/exec_result.h"

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

static void on_start(cp_exec_watch *w, cp_exec *e) { (void)w, (void)e; }
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
    ending *j = cp_new(ending);
    j->exec = e;
    j->done = done;
    j->arg = arg;
    j->watch.on_start = on_start;
    j->watch.on_end = on_end;
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
