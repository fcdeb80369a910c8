/* Design notes. An execution is in one of four states and moves one way: STARTING → RUNNING → ENDED, or STARTING →
 * FAILED. It ends when three things have come, in any order: the exit status and the end of both outputs. The drain
 * window bounds the wait for the outputs after the exit; a kill that finds what cannot be killed bounds the wait for
 * the exit. So each execution ends exactly once, by cp_exec_finish_end.
 *
 * References: the tables hold one while it is listed (from the start until history lets go), the caller of
 * cp_exec_start one, and each thing under way (a registry write, a kill) one. Watchers are told by a deferred, never
 * from inside a call. */
#include "services/exec.h"

#include "base/clock.h"
#include "base/id.h"
#include "base/log.h"
#include "base/metrics.h"
#include "services/exec_core.h"
#include "services/session_script.h"
#include "services/stray.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { TELL_US = 500 }; /* so long watchers are told in one round of the loop */

/* ---- tables ---- */

static size_t hash(cp_str s) {
    uint64_t h = 1469598103934665603u; /* FNV-1a */
    for (size_t i = 0; i < s.n; i++) h = (h ^ (uint8_t)s.p[i]) * 1099511628211u;
    return (size_t)(h ^ h >> 32);
}

cp_exec *cp_exec_find(cp_services *s, cp_str id) {
    cp_exec *e = s->execs->by_id[hash(id) & s->execs->mask];
    while (e && !cp_str_is(id, e->id)) e = e->impl->id_next;
    return e;
}

cp_exec *cp_exec_find_process(cp_services *s, cp_str id) {
    cp_exec *e = s->execs->by_pid[hash(id) & s->execs->mask];
    while (e && !cp_str_is(id, e->process_id)) e = e->impl->pid_next;
    return e;
}

void cp_exec_list(cp_exec *e) {
    struct cp_execs *x = e->svc->execs;
    struct cp_exec_impl *i = e->impl;
    cp_exec **id = &x->by_id[hash(cp_str_of(e->id)) & x->mask];
    i->id_next = *id;
    *id = e;
    if (e->process_id) {
        cp_exec **pid = &x->by_pid[hash(cp_str_of(e->process_id)) & x->mask];
        i->pid_next = *pid;
        *pid = e;
    }
    i->prev = x->last;
    if (x->last) x->last->impl->next = e;
    else x->first = e;
    x->last = e;
    i->listed = true;
    cp_exec_ref(e);
}

void cp_exec_unlist(cp_exec *e) {
    struct cp_execs *x = e->svc->execs;
    struct cp_exec_impl *i = e->impl;
    if (!i->listed) return;
    i->listed = false;
    cp_exec **p = &x->by_id[hash(cp_str_of(e->id)) & x->mask];
    while (*p != e) p = &(*p)->impl->id_next;
    *p = i->id_next;
    if (e->process_id) {
        p = &x->by_pid[hash(cp_str_of(e->process_id)) & x->mask];
        while (*p != e) p = &(*p)->impl->pid_next;
        *p = i->pid_next;
    }
    if (i->prev) i->prev->impl->next = i->next;
    else x->first = i->next;
    if (i->next) i->next->impl->prev = i->prev;
    else x->last = i->prev;
    i->prev = i->next = NULL;
    cp_exec_unref(e);
}

void cp_exec_each(cp_services *s, bool (*fn)(void *arg, cp_exec *e), void *arg) {
    for (cp_exec *e = s->execs->first; e; e = e->impl->next)
        if (!fn(arg, e)) return;
}

size_t cp_exec_running(const cp_services *s) { return s->execs->running; }
const char *cp_exec_bash(const cp_services *s) { return s->execs->bash; }
size_t cp_exec_oneshots(const cp_services *s) { return s->execs->oneshots; }

/* ---- one ---- */

cp_exec *cp_exec_make(cp_services *s, const char *id, cp_exec_kind kind) {
    cp_exec *e = cp_new(cp_exec);
    e->impl = cp_new(struct cp_exec_impl);
    e->svc = s;
    e->refs = 1;
    e->kind = kind;
    e->id = cp_str_dup(cp_str_of(id));
    e->exit_code = -1;
    e->impl->self = e;
    cp_ring_init(&e->impl->watches.untold);
    cp_ring_init(&e->impl->watches.begun);
    cp_ring_init(&e->impl->watches.ended);
    e->impl->in_fd = -1;
    e->impl->job_charge.kind = CP_MEM_COMMANDS;
    e->impl->why = CP_OUTCOME_exited;
    return e;
}

static void free_strings(char **v) {
    for (char **p = v; p && *p; p++) free(*p);
    free(v);
}

void cp_exec_job_free(cp_exec *e) {
    cp_exec_job *j = &e->impl->job;
    free(j->command);
    free_strings(j->args);
    free(j->cwd);
    free_strings(j->env);
    free(j->user);
    free(j->groups);
    *j = (cp_exec_job){0};
    cp_charge_free(&e->impl->job_charge);
}

static void destroy(cp_exec *e) {
    cp_loop *loop = e->svc->loop;
    struct cp_exec_impl *i = e->impl;
    cp_loop_undefer(loop, &i->tell);
    cp_timer_stop(loop, &i->timeout);
    cp_timer_stop(loop, &i->drain);
    cp_exec_stdin_stop(e);
    if (i->backend && i->backend->release && !i->released) i->backend->release(e);
    for (int k = 0; k < 2; k++) cp_output_free(e->out[k]);
    cp_exec_job_free(e);
    free(e->id);
    free(e->process_id);
    free(e->session);
    free(e->command);
    free(e->cwd);
    free(e->start_err);
    free(i);
    free(e);
}

void cp_exec_ref(cp_exec *e) { e->refs++; }
void cp_exec_unref(cp_exec *e) {
    if (e && --e->refs == 0) destroy(e);
}

cp_exec_job *cp_exec_job_of(cp_exec *e) { return &e->impl->job; }
void cp_exec_set_backend(cp_exec *e, const cp_exec_backend *b, void *data) {
    e->impl->backend = b;
    e->impl->data = data;
}
void *cp_exec_backend_data(cp_exec *e) { return e->impl->data; }
void cp_exec_set_child(cp_exec *e, cp_exec_child *c) {
    c->e = e;
    e->impl->child = c;
}
void cp_exec_key(const cp_exec *e, char out[CP_EXEC_KEY_MAX]) {
    const char *process = e->process_id ? e->process_id : "";
    int n = snprintf(out, CP_EXEC_KEY_MAX, "x:%s/%c/%s", e->id, CP_EXEC_KINDS[e->kind], process);
    if (n >= CP_EXEC_KEY_MAX) snprintf(out, CP_EXEC_KEY_MAX, "x:%s/%c/", e->id, CP_EXEC_KINDS[e->kind]);
}

const char *cp_outcome_name(cp_outcome o) {
    static const char *const names[] = {
#define X(name) #name,
#include "schema/outcomes.def"
#undef X
    };
    return (unsigned)o < CP_OUTCOME_COUNT ? names[o] : "lost";
}

/* cloudflare-sandbox.md section 6.2, with the wait status as the truth (conflux-additions.md): `exit 143` is a failure.
 * An argv that could not be executed is a failed record, as conflux-additions.md wants it. */
const char *cp_exec_status(const cp_exec *e) {
    switch (e->state) {
    case CP_STATE_STARTING: return "starting";
    case CP_STATE_RUNNING: return "running";
    case CP_STATE_FAILED: return e->impl->argv_form ? "failed" : "error";
    case CP_STATE_ENDED: break;
    }
    if (e->session_destroyed || e->outcome == CP_OUTCOME_lost) return "error";
    if (e->signal == SIGKILL || e->signal == SIGTERM || (e->signal && e->stopped_by_us)) return "killed";
    return e->exit_code == 0 ? "completed" : "failed";
}

/* ---- watchers ---- */

void cp_exec_watch_add(cp_exec *e, cp_exec_watch *w) {
    w->exec = e;
    cp_ring_add(&e->impl->watches.untold, &w->link);
    if (e->state != CP_STATE_STARTING) cp_exec_tell(e);
}

void cp_exec_watch_del(cp_exec_watch *w) {
    if (!w->exec) return;
    w->exec = NULL;
    cp_ring_del(&w->link);
}

/* The next thing that some watcher has not been told. A callback may add and remove any watcher: what there is to tell
 * is looked for anew after each, at the head of a list. False: all have been told. */
static bool tell_one(cp_exec *e) {
    bool ended = e->state == CP_STATE_ENDED || e->state == CP_STATE_FAILED;
    struct cp_exec_watches *all = &e->impl->watches;
    cp_link *l = cp_ring_first(&all->untold);
    if (l) {
        cp_exec_watch *w = CP_CONTAINER(l, cp_exec_watch, link);
        cp_ring_move(&all->begun, l);
        if (w->ops->on_start) w->ops->on_start(w, e);
    } else if (ended && (l = cp_ring_first(&all->begun))) {
        cp_exec_watch *w = CP_CONTAINER(l, cp_exec_watch, link);
        cp_ring_move(&all->ended, l);
        if (w->ops->on_end) w->ops->on_end(w, e);
    }
    return l != NULL;
}

static void release(cp_exec *e) {
    struct cp_exec_impl *i = e->impl;
    if (i->released || !i->backend) return;
    i->released = true;
    i->child = NULL;
    if (i->backend->release) i->backend->release(e);
}

static void tell_fn(cp_deferred *d) {
    struct cp_exec_impl *i = CP_CONTAINER(d, struct cp_exec_impl, tell);
    cp_exec *e = i->self;
    cp_exec_ref(e);
    uint64_t until = cp_now_us() + TELL_US;
    bool more = e->state != CP_STATE_STARTING;
    while (more && (more = tell_one(e)) && cp_now_us() < until) continue;
    if (more) {
        cp_exec_tell(e);
    } else if (e->state != CP_STATE_STARTING) {
        bool over = e->state == CP_STATE_ENDED || e->state == CP_STATE_FAILED;
        bool awaited = i->forced && !i->reported && i->backend && i->backend->owns_child;
        if (over && !awaited && (!i->child || i->acked)) release(e); /* a durable one stays until its end is recorded */
    }
    cp_exec_unref(e);
}

void cp_exec_tell(cp_exec *e) { cp_loop_defer(e->svc->loop, &e->impl->tell, tell_fn); }

/* ---- what the backends report ---- */

static void output_ended(cp_exec *e, int which);
static void out_ended(void *arg) { output_ended(arg, 0); }
static void err_ended(void *arg) { output_ended(arg, 1); }

void cp_exec_attach_output(cp_exec *e, int out_fd, int err_fd) {
    cp_err err;
    if (cp_output_attach(e->out[0], out_fd, out_ended, e, &err) < 0)
        (void)cp_output_attach(e->out[0], -1, out_ended, e, NULL);
    if (cp_output_attach(e->out[1], err_fd, err_ended, e, &err) < 0)
        (void)cp_output_attach(e->out[1], -1, err_ended, e, NULL);
}

/* The client has been told of the end of what begins only now. */
static void started_too_late(cp_exec *e, pid_t pid, uint64_t start_time) {
    if (!e->impl->forced || !e->impl->backend || !e->impl->backend->owns_child) return;
    cp_stray_kill_all(e->svc, pid, start_time, &e->mark);
}

void cp_exec_started(cp_exec *e, pid_t pid, uint64_t start_time) {
    if (e->state != CP_STATE_STARTING) {
        started_too_late(e, pid, start_time);
        return;
    }
    e->state = CP_STATE_RUNNING;
    e->pid = pid;
    e->pid_start = start_time;
    if (!e->started_ms) { /* else a former server has seen it start */
        e->started_wall = cp_wall_ms();
        e->started_ms = cp_now_ms();
    }
    cp_metric_add(CP_M_SPAWNS, 1);
    cp_exec_job_free(e);
    if (e->durable) cp_exec_put_row(e, "running", NULL);
    cp_exec_tell(e);
}

/* The keeper may forget a child when it has ended and its end is on disk, whichever comes last. */
static void settle_child(cp_exec *e) {
    struct cp_exec_impl *i = e->impl;
    if (i->acked || !i->recorded || (i->forced && i->child && !i->reported)) return;
    if (i->child) cp_keeper_ack(e->svc->keeper, &i->child->child);
    i->acked = true;
}

/* What was ended by force has ended after all. */
static void late_report(cp_exec *e) {
    if (!e->impl->forced || e->impl->reported) return;
    e->impl->reported = true;
    settle_child(e);
    cp_exec_tell(e); /* releases the backend */
}

void cp_exec_failed(cp_exec *e, const cp_err *err) {
    struct cp_exec_impl *i = e->impl;
    if (i->forced) late_report(e);
    if (i->has_exit || e->state == CP_STATE_ENDED || e->state == CP_STATE_FAILED) return;
    i->has_exit = true;
    e->start_err = cp_new(cp_err);
    *e->start_err = *err;
    e->state = CP_STATE_FAILED;
    cp_metric_add(CP_M_SPAWN_FAILURES, 1);
    for (int k = 0; k < 2; k++) cp_output_finish(e->out[k]);
    cp_exec_finish_end(e);
}

static void check_end(cp_exec *e) {
    struct cp_exec_impl *i = e->impl;
    if (e->state != CP_STATE_RUNNING || !i->has_exit || !i->out_ended[0] || !i->out_ended[1]) return;
    cp_exec_finish_end(e);
}

static void output_ended(cp_exec *e, int which) {
    e->impl->out_ended[which] = true;
    check_end(e);
}

/* The child is gone but somebody holds its pipes: take what has been written and let go (B003). */
static void drain_over(cp_timer *t) {
    struct cp_exec_impl *i = CP_CONTAINER(t, struct cp_exec_impl, drain);
    for (int k = 0; k < 2; k++) cp_output_finish(i->self->out[k]);
}

void cp_exec_exited(cp_exec *e, const cp_exit *x) {
    struct cp_exec_impl *i = e->impl;
    if (i->has_exit) {
        late_report(e);
        return;
    }
    i->has_exit = true;
    i->exit = *x;
    if (e->state == CP_STATE_STARTING) e->state = CP_STATE_RUNNING;
    cp_timer_stop(e->svc->loop, &i->timeout);
    cp_exec_stdin_stop(e);
    if (!i->out_ended[0] || !i->out_ended[1])
        cp_timer_start(e->svc->loop, &i->drain, (uint64_t)e->svc->config->drain_window, drain_over);
    check_end(e);
}

/* ---- the end ---- */

static void settle_outcome(cp_exec *e) {
    struct cp_exec_impl *i = e->impl;
    const cp_exit *x = &i->exit;
    if (i->forced) {
        e->outcome = i->why == CP_OUTCOME_exited ? CP_OUTCOME_lost : i->why;
    } else if (e->session && x->signal == CP_SCRIPT_UNBEGUN) {
        e->outcome = CP_OUTCOME_lost; /* it has not run: its server died before the go-ahead */
    } else {
        e->signal = x->signal;
        e->exit_code = x->signal ? 128 + x->signal : x->code;
        e->max_rss = x->max_rss;
        e->cpu_us = x->cpu_us;
        e->outcome = x->signal ? CP_OUTCOME_signal : CP_OUTCOME_exited;
        if (i->why == CP_OUTCOME_timeout || i->why == CP_OUTCOME_cancelled) e->outcome = i->why;
        if (x->signal && i->sent >> (x->signal - 1) & 1) e->stopped_by_us = true;
    }
    if (e->timed_out && !e->session) e->exit_code = 124; /* cloudflare-sandbox.md section 6.1 */
}

static void recorded(cp_reg_done *d) {
    struct cp_row_wait *w = CP_CONTAINER(d, struct cp_row_wait, done);
    cp_exec *e = w->e;
    struct cp_exec_impl *i = e->impl;
    if (d->failed) /* the keeper goes on holding the status: the next server will need it */
        cp_log(CP_LOG_ERROR, "registry.put", "the end of an execution could not be recorded", CP_KVZ("id", e->id),
               CP_KVZ("error", d->err.msg));
    i->recorded = !d->failed;
    if (d->failed) i->acked = true;
    else settle_child(e);
    cp_exec_tell(e); /* releases the backend */
    free(w);
    cp_exec_unref(e);
}

void cp_exec_finish_end(cp_exec *e) {
    struct cp_exec_impl *i = e->impl;
    struct cp_execs *x = e->svc->execs;
    cp_timer_stop(e->svc->loop, &i->timeout);
    cp_timer_stop(e->svc->loop, &i->drain);
    cp_exec_stdin_stop(e);
    if (e->state != CP_STATE_FAILED) {
        settle_outcome(e);
        e->state = CP_STATE_ENDED;
    }
    e->ended_wall = cp_wall_ms();
    e->ended_ms = cp_now_ms();
    if (!e->started_ms) {
        e->started_wall = e->ended_wall;
        e->started_ms = e->ended_ms;
    }
    if (!i->borrowed) cp_exec_job_free(e); /* else a pool thread is at it */
    x->running--;
    x->calls -= i->called;
    cp_metric_add(CP_M_PROCESSES, -1);
    if (i->oneshot) {
        x->oneshots--;
        cp_pool_refill(e->svc);
    }
    cp_exec_tell(e);
    if (e->durable) {
        cp_exec_put_row(e, "ended", recorded);
    } else {
        cp_exec_publish(e);
        i->acked = true;
    }
    cp_exec_retain(e); /* last: it may let go of e */
}

void cp_exec_force_end(cp_exec *e) {
    struct cp_exec_impl *i = e->impl;
    if (e->state == CP_STATE_ENDED || e->state == CP_STATE_FAILED) return;
    if (!i->has_exit) i->forced = i->has_exit = true; /* else it is only the output that is awaited */
    for (int k = 0; k < 2; k++) cp_output_finish(e->out[k]);
    if (e->state == CP_STATE_STARTING) e->state = CP_STATE_RUNNING;
    if (i->forced)
        cp_log(CP_LOG_WARN, "exec.forced_end", "an execution was ended though its processes could not be",
               CP_KVZ("id", e->id), CP_KVI("pid", e->pid));
    i->out_ended[0] |= cp_output_ended(e->out[0]);
    i->out_ended[1] |= cp_output_ended(e->out[1]);
    check_end(e);
}
