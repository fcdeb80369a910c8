/* What outlives an execution: its row, its logs, its place in the history; and what a restarted server makes of them.
 *
 * Design notes. A row is written at each step of a durable execution: intent (waited for), running, ended (waited for
 * before the keeper may forget the child). After a crash a child that the keeper holds is continued or gets its true
 * status; a row without one is lost, and says so. History is bounded by count, age and bytes of log, the oldest going
 * first; buffered calls without an id of their own are only a convenience there and have a smaller bound. */
#include "base/age.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/metrics.h"
#include "services/exec_core.h"
#include "services/session.h"
#include "services/stray.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { AGE_MS = 10000 };

/* ---- rows ---- */

static void no_registry(cp_task *t) {
    cp_reg_done *d = CP_CONTAINER(t, cp_reg_done, task);
    d->fn(d);
}

void cp_exec_put_row(cp_exec *e, const char *state, void (*done)(cp_reg_done *)) {
    bool ended = e->state == CP_STATE_ENDED;
    cp_exec_row row = {.id = e->id,
                       .process_id = e->process_id,
                       .kind = (cp_row_kind)e->kind,
                       .session = e->session,
                       .command = e->command,
                       .command_length = e->command_length,
                       .cwd = e->cwd,
                       .state = state,
                       .pid = e->pid,
                       .pid_start = e->pid_start,
                       .started_ms = e->started_wall,
                       .ended_ms = e->ended_wall,
                       .outcome = ended ? cp_outcome_name(e->outcome) : NULL,
                       .exit_code = e->exit_code,
                       .signal = e->signal,
                       .max_rss = e->max_rss,
                       .cpu_us = e->cpu_us,
                       .error = e->start_err ? e->start_err->msg : NULL,
                       .error_errno = e->start_err ? e->start_err->sys : 0,
                       .stopped_by_us = e->stopped_by_us,
                       .timed_out = e->timed_out,
                       .timeout_ms = e->timeout_ms,
                       .max_output = e->max_output};
    memcpy(row.fingerprint, e->fingerprint, sizeof row.fingerprint);
    memcpy(row.command_sha256, e->command_sha256, sizeof row.command_sha256);
    for (int k = 0; k < 2; k++) {
        row.total[k] = cp_output_total(e->out[k]);
        row.dropped[k] = cp_output_dropped(e->out[k]);
        row.truncated[k] = cp_output_truncated(e->out[k]);
    }
    struct cp_row_wait *w = NULL;
    if (done) {
        w = cp_new(struct cp_row_wait);
        w->done.fn = done;
        w->e = e;
        cp_exec_ref(e);
    }
    cp_registry *r = e->svc->registry;
    if (r) cp_registry_begin(r);
    cp_exec_publish(e);
    if (r) cp_registry_put_exec(r, &row, w ? &w->done : NULL);
    else if (w) cp_loop_post(e->svc->loop, &w->done.task, no_registry);
    if (r) cp_registry_end(r);
}

static const char *row_state(const cp_exec *e) {
    if (e->state == CP_STATE_STARTING) return "intent";
    return e->state == CP_STATE_RUNNING ? "running" : "ended";
}

void cp_exec_put_all(cp_services *s) {
    for (cp_exec *e = s->execs->first; e; e = e->impl->next)
        if (e->durable) cp_exec_put_row(e, row_state(e), NULL);
}

/* ---- history ---- */

static struct cp_exec_history *history_of(const cp_exec *e) {
    struct cp_execs *x = e->svc->execs;
    return e->durable ? &x->ended : &x->ended_plain;
}

static void leave_history(cp_exec *e) {
    struct cp_exec_history *h = history_of(e);
    struct cp_exec_impl *i = e->impl;
    if (i->older) i->older->impl->newer = i->newer;
    else h->oldest = i->newer;
    if (i->newer) i->newer->impl->older = i->older;
    else h->newest = i->older;
    i->older = i->newer = NULL;
    h->n--;
    h->bytes -= i->log_bytes;
}

void cp_exec_evict(cp_exec *e) {
    leave_history(e);
    if (e->durable) {
        for (int k = 0; k < 2; k++) cp_output_unlink(e->out[k]);
        cp_exec_text_remove(e);
        if (e->svc->registry) cp_registry_del_exec(e->svc->registry, e->id);
    }
    cp_exec_unlist(e);
}

static cp_exec *oldest(const struct cp_execs *x) {
    cp_exec *a = x->ended.oldest, *b = x->ended_plain.oldest;
    return a && (!b || a->impl->end_number < b->impl->end_number) ? a : b;
}

/* Runs at each end: it may look at what goes, not at what stays. */
static void trim(cp_services *s) {
    struct cp_execs *x = s->execs;
    struct cp_exec_history *logs = &x->ended, *plain = &x->ended_plain;
    cp_exec *e;
    while (logs->n + plain->n > (size_t)s->config->history) cp_exec_evict(oldest(x));
    while (logs->n && logs->bytes + x->running_bytes > (uint64_t)s->config->log_total) cp_exec_evict(logs->oldest);
    /* The newest stays whatever its size: its id has just been given out. */
    while (plain->n > CP_HISTORY_PLAIN || (plain->bytes > CP_HISTORY_PLAIN_BYTES && plain->n > 1))
        cp_exec_evict(plain->oldest);
    while ((e = oldest(x)) && cp_age_ms(e->ended_wall) > s->config->history_age * 1000) cp_exec_evict(e);
}

void cp_exec_retain(cp_exec *e) {
    struct cp_exec_history *h = history_of(e);
    struct cp_exec_impl *i = e->impl;
    i->log_bytes = i->text_bytes;
    for (int k = 0; k < 2; k++) i->log_bytes += cp_output_kept(e->out[k]);
    i->end_number = e->svc->execs->ends++;
    i->older = h->newest;
    if (h->newest) h->newest->impl->newer = e;
    else h->oldest = e;
    h->newest = e;
    h->n++;
    h->bytes += i->log_bytes;
    trim(e->svc);
}

static bool has_dropped(const cp_exec *e) {
    return cp_output_dropped(e->out[0]) > e->impl->told_dropped[0] ||
           cp_output_dropped(e->out[1]) > e->impl->told_dropped[1];
}

/* What runs has its own budgets; the history makes room for it. */
static void measure_running(struct cp_execs *x) {
    x->running_bytes = 0;
    for (cp_exec *e = x->first; e; e = e->impl->next) {
        if (!e->durable || e->state != CP_STATE_RUNNING) continue;
        x->running_bytes += cp_output_kept(e->out[0]) + cp_output_kept(e->out[1]) + e->impl->text_bytes;
        if (e->process_id && has_dropped(e)) cp_exec_put_row(e, "running", NULL);
    }
}

static void on_age(cp_timer *t) {
    cp_services *s = CP_CONTAINER(t, struct cp_execs, age)->svc;
    cp_age_look();
    measure_running(s->execs);
    trim(s);
    cp_exec_age_start(s);
}

void cp_exec_age_start(cp_services *s) { cp_timer_start(s->loop, &s->execs->age, AGE_MS, on_age); }

/* ---- restart ---- */

static cp_outcome outcome_of(const char *word) {
    for (int o = 0; o < CP_OUTCOME_COUNT; o++)
        if (word && strcmp(word, cp_outcome_name((cp_outcome)o)) == 0) return (cp_outcome)o;
    return CP_OUTCOME_lost;
}

static char *dup_z(const char *z) { return z ? cp_str_dup(cp_str_of(z)) : NULL; }

/* 0 would mean that it has not started. */
static void set_age(cp_exec *e, uint64_t age) {
    uint64_t now = cp_now_ms();
    e->started_ms = age < now ? now - age : 1;
}

/* Its process knows when it was started: so long after the call was accepted as a call waits for descriptors, and a
 * spawn takes, at most. */
static void age_by_process(cp_exec *e, uint64_t start_time) {
    enum { WAIT_MS = 5000 };
    struct timespec up;
    if (!start_time || clock_gettime(CLOCK_BOOTTIME, &up) < 0) return;
    int64_t now = (int64_t)up.tv_sec * 1000 + up.tv_nsec / 1000000;
    int64_t least = now - (int64_t)(start_time * 1000 / (uint64_t)sysconf(_SC_CLK_TCK));
    int64_t most = least + WAIT_MS + e->svc->config->spawn_timeout, age = (int64_t)(cp_now_ms() - e->started_ms);
    if (least < 0) return;
    if (age < least || age > most) set_age(e, (uint64_t)(age < least ? least : most));
}

static cp_exec *from_row(cp_services *s, const cp_exec_row *row) {
    cp_exec *e = cp_exec_make(s, row->id, (cp_exec_kind)row->kind);
    e->durable = true;
    e->chosen_id = row->kind == CP_ROW_BUFFERED;
    e->process_id = dup_z(row->process_id);
    e->session = dup_z(row->session);
    cp_exec_text_of_row(e, row);
    e->cwd = dup_z(row->cwd);
    memcpy(e->fingerprint, row->fingerprint, sizeof e->fingerprint);
    e->pid = (pid_t)row->pid;
    e->pid_start = row->pid_start;
    e->started_wall = row->started_ms;
    set_age(e, (uint64_t)cp_age_ms(e->started_wall));
    e->timeout_ms = row->timeout_ms;
    e->max_output = row->max_output ? row->max_output : (uint64_t)s->config->max_output;
    e->stopped_by_us = row->stopped_by_us;
    e->timed_out = row->timed_out;
    return e;
}

/* The rows keep the errno. */
static cp_code code_of(int sys) {
    switch (sys) {
    case ENOENT: return CP_E_COMMAND_NOT_FOUND;
    case EACCES: return CP_E_COMMAND_PERMISSION_DENIED;
    case EMFILE:
    case ENFILE: return CP_E_TOO_MANY_FILES;
    case ENOSPC:
    case EFBIG: return CP_E_NO_SPACE;
    default: return CP_E_COMMAND_EXECUTION_ERROR;
    }
}

static void start_err_of(cp_exec *e, const cp_exec_row *row) {
    e->start_err = cp_new(cp_err);
    cp_fail_sys(e->start_err, CP_E_COMMAND_EXECUTION_ERROR, 0, "%s", row->error);
    e->start_err->sys = row->error_errno;
    if (row->error_errno) e->start_err->code = code_of(row->error_errno);
}

static void end_from_row(cp_exec *e, const cp_exec_row *row) {
    e->ended_wall = row->ended_ms;
    e->started_ms = 0; /* only the difference has a meaning now */
    e->ended_ms = row->ended_ms > row->started_ms ? (uint64_t)(row->ended_ms - row->started_ms) : 0;
    e->exit_code = row->exit_code;
    e->signal = row->signal;
    e->max_rss = row->max_rss;
    e->cpu_us = row->cpu_us;
    e->outcome = outcome_of(row->outcome);
    e->cancelled = e->outcome == CP_OUTCOME_cancelled;
    e->state = row->error ? CP_STATE_FAILED : CP_STATE_ENDED;
    if (row->error) start_err_of(e, row);
    e->impl->argv_form = row->error != NULL;
}

static struct cp_held_child *take_held(struct cp_execs *x, const char *id) {
    for (struct cp_held_child **p = &x->held, *h; (h = *p); p = &h->next) {
        if (!cp_str_is(cp_exec_id_of_key(h->key), id)) continue;
        *p = h->next;
        return h;
    }
    return NULL;
}

static void free_held(struct cp_held_child *h) {
    free(h->key);
    free(h);
}

/* A held child that no execution goes on with: acknowledged as soon as it has ended, or the keeper would hold it for
 * good. */
struct cp_orphan {
    cp_child child;
    cp_services *svc;
    struct cp_orphan *prev, *next;
};

static void orphan_free(struct cp_orphan *o) {
    if (o->prev) o->prev->next = o->next;
    else o->svc->execs->orphans = o->next;
    if (o->next) o->next->prev = o->prev;
    cp_keeper_forget(o->svc->keeper, &o->child);
    free(o);
}

static void orphan_ended(cp_child *c, const cp_exit *x) {
    (void)x;
    struct cp_orphan *o = CP_CONTAINER(c, struct cp_orphan, child);
    cp_keeper_ack(o->svc->keeper, c);
    orphan_free(o);
}

void cp_exec_orphans_close(cp_services *s) {
    while (s->execs->orphans) orphan_free(s->execs->orphans);
}

static void disown(cp_services *s, cp_held *h) {
    for (int k = 0; k < 3; k++) cp_close(&h->fds[k]);
    struct cp_orphan *o = cp_new(struct cp_orphan);
    o->svc = s;
    o->child.on_exit = orphan_ended;
    o->next = s->execs->orphans;
    if (o->next) o->next->prev = o;
    s->execs->orphans = o;
    cp_keeper_claim(s->keeper, &o->child, h);
    if (h->exited) orphan_ended(&o->child, &h->exit);
}

/* The child is gone and so is its status: the keeper died as well. */
void cp_exec_lose(cp_exec *e) {
    e->state = CP_STATE_RUNNING;
    e->impl->has_exit = e->impl->forced = true;
    cp_exec_attach_output(e, -1, -1);
}

static bool over(const cp_exec *e) { return e->state == CP_STATE_ENDED || e->state == CP_STATE_FAILED; }

struct restoring {
    cp_services *svc;
    bool failed;
    cp_err *err;
};

/* Only reads: a row that is written while the table is being read may come up once more. */
static void restore_row(void *arg, const cp_exec_row *row) {
    struct restoring *r = arg;
    cp_services *s = r->svc;
    if (r->failed || cp_exec_find(s, cp_str_of(row->id))) return;
    cp_exec *e = from_row(s, row);
    if (cp_exec_outputs(e, row, r->err) < 0) {
        r->failed = true;
    } else {
        if (strcmp(row->state, "ended") == 0) end_from_row(e, row);
        cp_exec_publish_told(e, row);
        cp_exec_list(e);
    }
    cp_exec_unref(e);
}

static void resume_ended(cp_exec *e, struct cp_held_child *h) {
    for (int k = 0; k < 2; k++) cp_output_finish(e->out[k]);
    if (h) disown(e->svc, &h->h); /* the row was written, the acknowledgement lost */
    e->impl->acked = true;
    e->impl->has_exit = true;
    cp_exec_retain(e);
}

static void resume(cp_exec *e) {
    struct cp_held_child *h = take_held(e->svc->execs, e->id);
    if (over(e)) {
        resume_ended(e, h);
    } else {
        e->svc->execs->running++;
        cp_metric_add(CP_M_PROCESSES, 1);
        e->impl->in_open = h && h->h.fds[0] >= 0; /* what was queued is lost; its end is the client's to give */
        if (h) age_by_process(e, h->h.start_time);
        if (h) cp_exec_run_held(e, &h->h);
        else if (!cp_session_inherits(e->svc, e->id)) cp_exec_lose(e);
        cp_exec_timeout_start(e); /* what is left of it */
    }
    if (h) free_held(h);
}

/* A row is written before its child is begun: where there is none it was lost, and its child goes on. Of one that no
 * server of this kind has begun nobody has been told. */
static void adopt_or_end(cp_services *s) {
    for (struct cp_held_child *h; (h = s->execs->held);) {
        cp_exec *e = cp_exec_adopt(s, h);
        if (e) {
            resume(e); /* which takes it out of the list */
            continue;
        }
        s->execs->held = h->next;
        cp_log(CP_LOG_WARN, "exec.unknown", "a child without a record is ended", CP_KVZ("key", h->key),
               CP_KVI("pid", h->h.pid));
        if (!h->h.exited) cp_stray_kill_all(s, h->h.pid, h->h.start_time, &h->h.mark);
        disown(s, &h->h);
        free_held(h);
    }
}

static bool is_suffix(const char *end) {
    return strcmp(end, ".out") == 0 || strcmp(end, ".err") == 0 || strcmp(end, CP_COMMAND_SUFFIX) == 0;
}

/* What a session's shell is still at has a log, though its row may be lost: it is adopted later (session_inherit.c). */
static bool is_known(cp_services *s, cp_str id) {
    cp_autofree char *text = cp_str_dup(id);
    return cp_exec_find(s, id) || cp_session_inherits(s, text);
}

/* "~PID-N": on its way in or out (output.c, exec_text.c). */
static bool is_passing(cp_str id) {
    static const char digits[] = "0123456789";
    cp_autofree char *text = cp_str_dup(id);
    size_t pid = *text == '~' ? strspn(text + 1, digits) : 0;
    const char *rest = text + 1 + pid;
    return pid && *rest == '-' && rest[1] && !rest[1 + strspn(rest + 1, digits)];
}

/* Logs that no row names: of calls that were under way when a former server died. Only under names that we give: a
 * folder that was there before us may hold other people's files. What has a client's name had a row, which was lost
 * with the registry: it stays, for who looks for it, until an execution takes the name. */
static void sweep_logs(cp_services *s) {
    cp_autobuf cp_buf path = {0};
    cp_buf_addf(&path, "%s/logs", s->state_dir);
    bool strange = false;
    s->execs->strange_logs = true; /* until they have been looked at */
    cp_autofd int fd = open(cp_buf_z(&path), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) return;
    (void)cp_take_fd(&fd);
    for (struct dirent *f; (errno = 0, f = readdir(d));) {
        size_t n = strlen(f->d_name);
        if (n < 5 || !is_suffix(f->d_name + n - 4)) continue;
        cp_str id = {f->d_name, n - 4};
        if (is_known(s, id)) continue;
        if (is_passing(id) || cp_exec_made_id(id)) unlinkat(dirfd(d), f->d_name, 0);
        else strange = true;
    }
    s->execs->strange_logs = strange || errno;
    closedir(d);
}

int cp_exec_restore(cp_services *s, cp_err *err) {
    struct restoring r = {.svc = s, .err = err};
    if (!cp_sessions_held_whole(s))
        return cp_fail_sys(err, CP_E_TOO_MANY_FILES, EMFILE, "what the shells of sessions have kept");
    if (s->registry && cp_registry_each_exec(s->registry, restore_row, &r, err) < 0) return -1;
    if (r.failed) return -1; /* the next start has another go; nothing has been touched */
    for (cp_exec *e = s->execs->first, *next; e; e = next) {
        next = e->impl->next;
        cp_exec_ref(e); /* the history may let go of it at once */
        resume(e);
        if (e->impl->row_due && e->impl->listed) cp_exec_put_row(e, row_state(e), NULL);
        cp_exec_unref(e);
    }
    adopt_or_end(s);
    if (!s->registry || cp_registry_healthy(s->registry)) sweep_logs(s);
    else s->execs->strange_logs = true; /* rows may be there that were not read */
    return 0;
}
