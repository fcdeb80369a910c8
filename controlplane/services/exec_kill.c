/* Signals, kills and timeouts.
 *
 * Design notes. A tree grows while it is being killed, and its members lose their parents as these die. So a kill
 * remembers everything it has ever seen of the tree (pid and start time), looks at /proc again before each step, and
 * takes what descends from any remembered member as one more. What has left both its parents and its session is known
 * by its mark (base/mark.h), also when the root has died. It is over when nothing remembered is alive, a last look
 * finds nothing new, and the execution has ended; or when its time is up, with the survivors named.
 *
 * When there is nothing to kill and still no exit (the shell itself is busy), the backend is asked to get free. When
 * even that does not help, the execution ends without its process: the client is owed one reply (B016). */
#include "base/clock.h"
#include "base/log.h"
#include "services/exec_core.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>

enum {
    POLL_MS = 20,
    FIRST_POLL_MS = 4,
    UNKILLABLE_MS = 2000, /* after KILL; a command that somebody waits for with a deadline gets less */
    UNKILLABLE_REPLY_MS = 800,
};

struct waiter {
    struct waiter *next;
    cp_kill_done *done;
    void *arg;
};

struct cp_kill {
    cp_exec *e;
    struct cp_kill *prev, *next;
    int sig;
    uint64_t kill_at, give_up_at; /* 0: not yet known */
    uint64_t dead_at;             /* since when nothing seen is alive; 0: something is */
    bool killing;                 /* past the grace */
    unsigned idle;                /* polls that found nothing alive and no exit */
    bool unwedged;
    cp_tree seen;
    cp_timer timer;
    struct waiter *waiters;
};

static void poll_kill(cp_timer *t);

/* ---- the tree ---- */

/* One look at /proc serves all kills of a round (ending hundreds of processes took a look at all of them for each, and
 * held the loop for seconds). What starts meanwhile is met by the next look: a kill looks until all are gone. */
cp_tree *cp_exec_procs(cp_services *s) {
    struct cp_execs *x = s->execs;
    uint64_t now = cp_loop_now(s->loop);
    if (x->procs.n && x->procs_at == now) return &x->procs;
    cp_tree_free(&x->procs);
    x->procs_part = cp_tree_snapshot(&x->procs) < 0;
    x->procs_at = now;
    return &x->procs;
}

static void collect(cp_exec *e, cp_tree *out) {
    if (e->state == CP_STATE_STARTING) return;
    if (e->impl->backend && e->impl->backend->collect) e->impl->backend->collect(e, out);
    else if (e->pid > 1) cp_tree_collect(out, cp_exec_procs(e->svc), e->pid, e->pid_start, &e->mark);
}

static bool knows(const cp_tree *t, const cp_proc *p) {
    for (size_t i = 0; i < t->n; i++)
        if (t->v[i].pid == p->pid && t->v[i].start_time == p->start_time) return true;
    return false;
}

static void descend(cp_services *s, cp_tree *out, const cp_tree *seen) {
    for (size_t i = 0; i < seen->n; i++)
        if (cp_proc_alive(&seen->v[i]))
            cp_tree_collect(out, cp_exec_procs(s), seen->v[i].pid, seen->v[i].start_time, NULL);
}

static void interrupt(cp_exec *e) {
    const cp_exec_backend *b = e->impl->backend;
    if (b && b->interrupt && !e->impl->has_exit) b->interrupt(e);
}

/* Looks again; returns how many are new. Those are signalled; with `everyone`, the known ones too. */
static size_t pursue(struct cp_kill *k, int sig, bool everyone) {
    cp_tree now = {0};
    size_t before = k->seen.n;
    collect(k->e, &now);
    descend(k->e->svc, &now, &k->seen);
    for (size_t i = 0; i < now.n; i++)
        if (now.v[i].state != 'Z' && !knows(&k->seen, &now.v[i])) cp_tree_add(&k->seen, &now.v[i]);
    cp_tree_free(&now);
    if (everyone || k->seen.n > before) interrupt(k->e);
    for (size_t i = everyone ? 0 : before; i < k->seen.n; i++) {
        if (cp_proc_signal(&k->seen.v[i], sig) < 0 || sig == SIGKILL) continue;
        cp_proc p; /* a stopped process acts on nothing but KILL */
        if (cp_proc_read(k->seen.v[i].pid, &p) && p.state == 'T') (void)cp_proc_signal(&k->seen.v[i], SIGCONT);
    }
    return k->seen.n - before;
}

/* ---- the end of a kill ---- */

static void answer(struct cp_kill *k) {
    cp_autofree pid_t *pids = cp_alloc((k->seen.n + 1) * sizeof *pids);
    size_t dead = 0, alive = k->seen.n;
    for (size_t i = 0; i < k->seen.n; i++) {
        if (cp_proc_alive(&k->seen.v[i])) pids[--alive] = k->seen.v[i].pid;
        else pids[dead++] = k->seen.v[i].pid;
    }
    cp_kill_result r = {pids, dead, pids + alive, k->seen.n - alive};
    if (r.nsurvivors)
        cp_log(CP_LOG_WARN, "exec.kill", "processes survived", CP_KVZ("id", k->e->id), CP_KVI("count", r.nsurvivors));
    for (struct waiter *w; (w = k->waiters);) {
        k->waiters = w->next;
        if (w->done) w->done(w->arg, k->e, &r);
        free(w);
    }
}

static void kill_free(struct cp_kill *k) {
    cp_exec *e = k->e;
    cp_timer_stop(e->svc->loop, &k->timer);
    for (struct waiter *w; (w = k->waiters);) {
        k->waiters = w->next;
        free(w);
    }
    if (k->prev) k->prev->next = k->next;
    else e->svc->execs->kills = k->next;
    if (k->next) k->next->prev = k->prev;
    cp_tree_free(&k->seen);
    free(k);
    e->impl->kill = NULL;
    cp_exec_unref(e);
}

void cp_exec_kills_close(cp_services *s) {
    while (s->execs->kills) kill_free(s->execs->kills);
}

static bool over(const cp_exec *e) { return e->state == CP_STATE_ENDED || e->state == CP_STATE_FAILED; }

static void finish(struct cp_kill *k) {
    answer(k);
    kill_free(k);
}

/* ---- steps ---- */

static size_t count_alive(const struct cp_kill *k) {
    size_t n = 0;
    for (size_t i = 0; i < k->seen.n; i++) n += cp_proc_alive(&k->seen.v[i]);
    return n;
}

static void escalate(struct cp_kill *k, uint64_t now) {
    k->killing = true;
    k->give_up_at = now + (k->e->impl->why == CP_OUTCOME_signal ? UNKILLABLE_MS : UNKILLABLE_REPLY_MS);
    pursue(k, SIGKILL, true);
}

/* Nothing is alive but the exit has not been reported: give the report a moment, then it is the shell that is stuck. */
static void free_backend(struct cp_kill *k) {
    const cp_exec_backend *b = k->e->impl->backend;
    if (k->unwedged || k->e->impl->has_exit || ++k->idle < 3) return;
    k->unwedged = true;
    if (!b) cp_exec_force_end(k->e); /* it had not come to a backend yet, and now never will */
    else if (b->unwedge) b->unwedge(k->e);
}

static void poll_kill(cp_timer *t) {
    struct cp_kill *k = CP_CONTAINER(t, struct cp_kill, timer);
    cp_exec *e = k->e;
    cp_exec_ref(e);
    uint64_t now = cp_loop_now(e->svc->loop);
    if (!k->killing && now >= k->kill_at) escalate(k, now);
    size_t alive = count_alive(k);
    if (alive == 0 || k->killing) {
        alive += pursue(k, k->killing ? SIGKILL : k->sig, k->killing);
        alive += e->svc->execs->procs_part; /* whom we could not see may live */
    }
    if (alive) k->dead_at = 0;
    else if (!k->dead_at) k->dead_at = now;
    if (alive == 0 && !over(e)) free_backend(k);
    bool late = k->killing && now >= k->give_up_at;
    if (late && !over(e)) cp_exec_force_end(e);
    bool done = alive == 0 && over(e);
    if (late || (done && now > k->dead_at)) finish(k); /* /proc was read when all were dead, not before */
    else cp_timer_start(e->svc->loop, &k->timer, done ? FIRST_POLL_MS : POLL_MS, poll_kill);
    cp_exec_unref(e);
}

static struct cp_kill *kill_new(cp_exec *e, int sig, uint64_t grace_ms, cp_outcome why) {
    struct cp_kill *k = cp_new(struct cp_kill);
    k->e = e;
    k->sig = sig;
    k->kill_at = cp_now_ms() + grace_ms;
    e->impl->kill = k;
    k->next = e->svc->execs->kills;
    if (k->next) k->next->prev = k;
    e->svc->execs->kills = k;
    e->impl->why = why;
    e->stopped_by_us = true;
    e->cancelled = why == CP_OUTCOME_cancelled;
    cp_exec_ref(e);
    cp_timer_start(e->svc->loop, &k->timer, FIRST_POLL_MS, poll_kill);
    return k;
}

int cp_exec_kill(cp_exec *e, int sig, uint64_t grace_ms, cp_outcome why, cp_kill_done *done, void *arg, cp_err *err) {
    if (over(e) || e->impl->has_exit) return cp_fail(err, CP_E_COMMAND_NOT_FOUND, "%s has already finished", e->id);
    if (sig <= 0) sig = SIGTERM;
    struct cp_kill *k = e->impl->kill;
    bool fresh = !k;
    if (!k) k = kill_new(e, sig, sig == SIGKILL ? 0 : grace_ms, why);
    else if (cp_now_ms() + grace_ms < k->kill_at) k->kill_at = cp_now_ms() + (sig == SIGKILL ? 0 : grace_ms);
    if (done) {
        struct waiter *w = cp_new(struct waiter);
        *w = (struct waiter){.next = k->waiters, .done = done, .arg = arg};
        k->waiters = w;
    }
    if (fresh || sig != k->sig) pursue(k, sig, true);
    return 0;
}

/* ---- timeouts ---- */

static void timed_out(cp_timer *t) {
    struct cp_exec_impl *i = CP_CONTAINER(t, struct cp_exec_impl, timeout);
    cp_exec *e = i->self;
    if (over(e) || i->has_exit) return;
    e->timed_out = true;
    if (!e->session) {
        cp_autobuf cp_buf b = {0};
        cp_buf_addf(&b, "Command timed out after %llums", (unsigned long long)e->timeout_ms);
        cp_output_append(e->out[1], cp_buf_str(&b));
    }
    if (cp_exec_kill(e, SIGTERM, (uint64_t)e->svc->config->timeout_grace, CP_OUTCOME_timeout, NULL, NULL, NULL) == 0)
        i->why = CP_OUTCOME_timeout; /* also when a gentler kill is under way */
}

/* From the acceptance on: a command that waits behind a stuck one has a deadline too. One that a former server started
 * has what is left. */
void cp_exec_timeout_start(cp_exec *e) {
    if (!e->timeout_ms || e->impl->has_exit) return;
    uint64_t gone = e->started_ms ? cp_now_ms() - e->started_ms : 0;
    uint64_t left = e->timeout_ms > gone ? e->timeout_ms - gone : 0;
    cp_timer_start(e->svc->loop, &e->impl->timeout, left, timed_out);
}

/* ---- one signal ---- */

static int signal_failed(const cp_exec *e, int sys, cp_err *err) {
    if (sys == ESRCH) return cp_fail(err, CP_E_COMMAND_NOT_FOUND, "%s has already finished", e->id);
    return cp_fail_sys(err, sys == EPERM ? CP_E_PROCESS_PERMISSION_DENIED : CP_E_PROCESS_ERROR, sys, "signal to %s",
                       e->id);
}

int cp_exec_signal(cp_exec *e, int sig, bool tree, cp_err *err) {
    if (sig < 1 || sig > SIGRTMAX) return cp_fail_field(err, "signal", "no such signal: %d", sig);
    if (over(e) || e->impl->has_exit) return signal_failed(e, ESRCH, err);
    if (e->pid <= 1) return cp_fail(err, CP_E_RESOURCE_BUSY, "%s has not started yet", e->id);
    cp_tree t = {0};
    if (tree) collect(e, &t);
    else cp_tree_add(&t, &(cp_proc){.pid = e->pid, .start_time = e->pid_start});
    size_t hit = 0;
    int sys = ESRCH;
    for (size_t i = 0; i < t.n; i++) {
        if (cp_proc_signal(&t.v[i], sig) == 0) hit++;
        else if (errno != ESRCH) sys = errno;
    }
    cp_tree_free(&t);
    if (!hit) return signal_failed(e, sys, err);
    e->impl->sent |= (uint64_t)1 << (sig - 1);
    return 0;
}
