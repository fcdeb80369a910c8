/* The foreground command of a session across a restart: left in the depot by one server, gone on with by the next. */
#include "services/session_impl.h"

#include "base/clock.h"
#include "base/fd.h"
#include "services/exec_core.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool over(const cp_exec *e) { return e->state == CP_STATE_ENDED || e->state == CP_STATE_FAILED; }

/* Commands whose end is on disk have no need of it any more; nor those that history has let go. */
static void purge(struct cp_session *s) {
    struct session_deposit v[SESSION_DEPOT_MAX];
    size_t n = session_depot_list(s->depot, v);
    for (size_t i = 0; i < n; i++) {
        const cp_exec *e = cp_exec_find(s->svc, cp_str_of(v[i].id));
        bool reports = v[i].status == SESSION_REPORTS;
        if (!reports && (!e || e->impl->recorded || !e->durable)) session_depot_drop(s->depot, &v[i]);
        session_deposit_close(&v[i]);
    }
}

static struct session_deposit describe(const struct session_job *j, int status) {
    struct session_deposit d = {.seq = j->seq,
                                .begin_ticks = j->begin_ticks,
                                .last_pid = j->last_pid,
                                .status = status,
                                .pair = j->pair->n,
                                .temp_cwd = j->temp_cwd,
                                .interruptible = j->interruptible};
    snprintf(d.id, sizeof d.id, "%s", j->exec->id);
    for (int i = 0; i < SESSION_DEPOSIT_FDS; i++) d.fds[i] = -1;
    return d;
}

void session_deposit(struct cp_session *s, struct session_job *j) {
    if (s->depot < 0 || !j->exec->durable || strlen(j->exec->id) >= SESSION_DEPOSIT_ID) return;
    purge(s);
    struct session_deposit d = describe(j, -1);
    const int fds[SESSION_DEPOSIT_FDS] = {j->read_end[0], j->read_end[1], j->keep[0],
                                          j->keep[1],     j->in_read,     j->in_keep};
    memcpy(d.fds, fds, sizeof fds);
    j->deposited = session_depot_put(s->depot, &d);
}

/* The pair is not used again: the next server may have to read the rest of it. */
void session_deposit_status(struct cp_session *s, struct session_job *j, int status) {
    if (!j->deposited || !j->exec) return;
    struct session_deposit d = describe(j, status), begun = describe(j, -1);
    memcpy(d.fds, j->pair->probe, sizeof j->pair->probe);
    (void)session_depot_put(s->depot, &d);
    (void)session_depot_drop(s->depot, &begun);
}

/* ---- where reports come from ---- */

/* Beyond the numbers of commands, later ones higher. Without it the next server makes another FIFO: what this one has
 * not read by then is lost, as is said to who waits for it. */
void session_deposit_reports(struct cp_session *s) {
    struct session_deposit was = {.seq = s->reports_seq, .status = SESSION_REPORTS},
                           d = {.seq = cp_now_us() | (uint64_t)1 << 63, .status = SESSION_REPORTS, .pair = UINT32_MAX};
    for (int i = 0; i < SESSION_DEPOSIT_FDS; i++) d.fds[i] = -1;
    d.fds[0] = s->status;
    if (s->depot < 0) return;
    bool put = s->shell != SHELL_NONE && session_depot_put(s->depot, &d);
    if (was.seq) (void)session_depot_drop(s->depot, &was);
    s->reports_seq = put ? d.seq : 0;
}

bool session_inherit_reports(struct cp_session *s, struct session_held *held) {
    struct session_deposit *newest = NULL;
    for (size_t i = 0; i < held->n; i++)
        if (held->v[i].status == SESSION_REPORTS && held->v[i].fds[0] >= 0 && (!newest || held->v[i].seq > newest->seq))
            newest = &held->v[i];
    if (!newest) return false;
    cp_close(&s->status);
    s->status = cp_take_fd(&newest->fds[0]);
    s->reports_seq = newest->seq;
    return true;
}

/* ---- by the next server ---- */

static const struct session_deposit *end_of(const struct session_held *held, uint64_t seq) {
    for (size_t i = 0; i < held->n; i++)
        if (held->v[i].seq == seq && held->v[i].status >= 0) return &held->v[i];
    return NULL;
}

static void ended(struct cp_session *s, cp_exec *e, struct session_deposit *d) {
    cp_exit x = {.code = d->status};
    cp_exec_started(e, s->child.pid, s->child.start_time);
    cp_exec_attach_output(e, cp_take_fd(&d->fds[0]), cp_take_fd(&d->fds[1]));
    cp_exec_exited(e, &x);
}

static void inherit_job(struct cp_session *s, cp_exec *e, struct session_deposit *d) {
    struct session_job *j = s->current = session_job_new(s, JOB_FOREGROUND);
    j->exec = e;
    j->seq = d->seq;
    j->state = JOB_TURN;
    j->deposited = j->inherited = true;
    j->begin_ticks = d->begin_ticks;
    j->last_pid = d->last_pid;
    j->temp_cwd = d->temp_cwd;
    j->interruptible = d->interruptible;
    j->pair = cp_new(struct session_pair);
    j->pair->n = d->pair;
    for (int k = 0; k < 2; k++) {
        j->pair->probe[k] = fcntl(d->fds[k], F_DUPFD_CLOEXEC, 0);
        j->keep[k] = cp_take_fd(&d->fds[2 + k]);
    }
    j->in_read = cp_take_fd(&d->fds[4]);
    j->in_keep = cp_take_fd(&d->fds[5]);
    cp_exec_set_backend(e, &session_backend, j);
    e->mark = session_mark_of(j);
    cp_exec_attach_output(e, cp_take_fd(&d->fds[0]), cp_take_fd(&d->fds[1]));
    cp_exec_started(e, s->child.pid, s->child.start_time);
    e->impl->in_open = j->in_keep >= 0; /* what was queued is lost; its end is the client's to give */
    if (j->in_keep >= 0 && j->in_read < 0) cp_exec_attach_stdin(e, cp_take_fd(&j->in_keep));
    session_watch_turn(s);
}

void session_inherit(struct cp_session *s, struct session_held *held) {
    for (size_t i = 0; i < held->n; i++) {
        struct session_deposit *d = &held->v[i];
        if (d->status == SESSION_REPORTS) continue;
        cp_exec *e = cp_exec_find(s->svc, cp_str_of(d->id));
        if (!e && s->svc->registry && cp_registry_lost(s->svc->registry))
            e = cp_exec_adopt_foreground(s->svc, d->id, s->id);
        if (!e || over(e)) continue;
        if (d->status >= 0) ended(s, e, d);
        else if (!end_of(held, d->seq) && !s->current) inherit_job(s, e, d);
    }
}

bool cp_sessions_held_whole(const cp_services *svc) { return !svc->sessions || !svc->sessions->held_cut; }

bool cp_session_inherits(cp_services *svc, const char *exec_id) {
    struct session_held *held = svc->sessions ? svc->sessions->held : NULL;
    for (; held; held = held->next)
        for (size_t i = 0; i < held->n; i++)
            if (strcmp(held->v[i].id, exec_id) == 0) return true;
    return false;
}
