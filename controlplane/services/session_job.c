/* The commands of a session: one at a time has the turn, the others wait in order. A foreground command keeps the turn
 * until the shell has reported its status; a background one until its subshell is in the keeper's books and the shell
 * has gone on. */
#include "services/session_impl.h"

#include "base/clock.h"
#include "base/fd.h"
#include "services/exec_core.h"
#include "services/nofile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* ---- one ---- */

struct session_job *session_job_new(struct cp_session *s, session_job_kind kind) {
    struct session_job *j = cp_new(struct session_job);
    j->s = s;
    j->svc = s->svc;
    j->kind = kind;
    j->read_end[0] = j->read_end[1] = j->keep[0] = j->keep[1] = -1;
    j->in_read = j->in_keep = j->go = -1;
    return j;
}

void session_job_unref(struct session_job *j) {
    if (!j->exec && !j->booked && j->state == JOB_DETACHED) free(j);
}

void session_job_push(struct cp_session *s, struct session_job *j, bool front) {
    j->state = JOB_QUEUED;
    j->prev = front ? NULL : s->tail;
    j->next = front ? s->head : NULL;
    if (j->prev) j->prev->next = j;
    else s->head = j;
    if (j->next) j->next->prev = j;
    else s->tail = j;
    s->waiting++;
}

static void dequeue(struct cp_session *s, struct session_job *j) {
    if (j->prev) j->prev->next = j->next;
    else s->head = j->next;
    if (j->next) j->next->prev = j->prev;
    else s->tail = j->prev;
    j->prev = j->next = NULL;
    s->waiting--;
}

static struct session_job *pop(struct cp_session *s) {
    struct session_job *j = s->head;
    dequeue(s, j);
    return j;
}

void session_job_leave(struct session_job *j) {
    dequeue(j->s, j);
    j->state = JOB_DETACHED;
    j->s = NULL;
}

static void job_fail(struct session_job *j, const cp_err *err) {
    j->failed = true;
    if (j->exec) cp_exec_failed(j->exec, err);
}

void session_fail_waiting(struct cp_session *s, const cp_err *err) {
    while (s->head) {
        struct session_job *j = pop(s);
        j->state = JOB_DETACHED;
        j->s = NULL;
        if (j->exec && err->code == CP_E_SESSION_DESTROYED) j->exec->session_destroyed = true;
        job_fail(j, err);
        session_job_unref(j);
    }
}

static void abandon(struct session_job *j) {
    if (j->booked) cp_keeper_forget(j->svc->keeper, &j->kid.child);
    j->booked = false;
    session_job_close(j);
    if (j->pair) session_pair_free(cp_take(j->pair));
    j->state = JOB_DETACHED;
    j->s = NULL;
    session_job_unref(j);
}

void session_abandon(struct cp_session *s) {
    if (s->current) abandon(cp_take(s->current));
    while (s->head) abandon(pop(s));
}

/* ---- the turn ---- */

static uint64_t ticks_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    uint64_t hz = (uint64_t)sysconf(_SC_CLK_TCK);
    return (uint64_t)t.tv_sec * hz + (uint64_t)t.tv_nsec * hz / 1000000000u;
}

/* The pid that was given last: the final field of /proc/loadavg. */
static pid_t last_pid(const cp_services *svc) {
    char text[128];
    ssize_t n = pread(svc->sessions->loadavg, text, sizeof text - 1, 0);
    if (n <= 0) return 0;
    text[n] = '\0';
    const char *field = strrchr(text, ' ');
    return field ? (pid_t)strtol(field, NULL, 10) : 0;
}

static int type(struct cp_session *s, const cp_buf *text, cp_err *err) {
    if (session_type(s, cp_buf_str(text)) == 0) return 0;
    return cp_fail_sys(err, CP_E_INTERNAL_ERROR, errno, "the shell of session %s cannot be reached", s->id);
}

static int type_lines(struct cp_session *s, const cp_buf *record, cp_err *err) {
    cp_autobuf cp_buf lines = {0};
    if (s->record_dir) cp_script_lines_of(&lines, s->record_dir, s->record_name);
    else cp_script_lines(&lines, s->path);
    return session_record(s, cp_buf_str(record), err) < 0 ? -1 : type(s, &lines, err);
}

static int begin_internal(struct cp_session *s, struct session_job *j, cp_err *err) {
    cp_autobuf cp_buf text = {0};
    if (j->kind == JOB_SYNC) {
        cp_script_sync(&text, s->path, j->seq);
        return type(s, &text, err);
    }
    cp_script script = {.dir = s->path, .seq = j->seq, .command = cp_buf_z(&s->exports)};
    if (!cp_script_silent(&text, &script)) return cp_no_memory(err, s->exports.n);
    return type_lines(s, &text, err);
}

static int open_channels(struct cp_session *s, struct session_job *j, cp_err *err) {
    char go[16];
    if (session_pair_take(s, j, err) < 0) return -1;
    if (cp_exec_job_of(j->exec)->want_stdin && session_stdin_open(s, j, err) < 0) return -1;
    if (j->kind != JOB_BACKGROUND) return 0;
    snprintf(go, sizeof go, "g%u", j->pair->n);
    j->go = session_fifo(s, go, O_RDWR, err);
    return j->go < 0 ? -1 : 0;
}

static bool write_record(struct cp_session *s, struct session_job *j, cp_buf *text) {
    const cp_exec_job *job = cp_exec_job_of(j->exec);
    char in[16];
    snprintf(in, sizeof in, "i%u", j->pair->n);
    cp_script script = {.dir = s->path,
                        .seq = j->seq,
                        .command = job->command,
                        .cwd = job->cwd,
                        .env = job->env,
                        .in = job->want_stdin ? in : NULL,
                        .pair = j->pair->n,
                        .last_status = s->last_status,
                        .interruptible = j->interruptible,
                        .marked = s->mark != 0};
    if (j->kind == JOB_BACKGROUND) return cp_script_background(text, &script);
    bool may_be_replaced = j->exec->timeout_ms || !j->interruptible;
    script.dump = may_be_replaced && !s->exports_fresh && session_exports_open(s);
    return cp_script_foreground(text, &script);
}

/* seq is never used twice in the life of a session: a shell that comes in the place of another has the same mark. */
cp_mark session_mark_of(const struct session_job *j) { return (cp_mark){.spawn = j->s->mark, .command = j->seq}; }

static int begin(struct cp_session *s, struct session_job *j, cp_err *err) {
    cp_autobuf cp_buf text = {0};
    if (session_folder_mend(s, err) < 0) return -1;
    if (j->kind == JOB_SYNC || j->kind == JOB_EXPORTS) return begin_internal(s, j, err);
    /* It was admitted before the sessions that came with it had started their shells. */
    if (cp_nofile_room(CP_NOFILE_START, err) < 0 || open_channels(s, j, err) < 0) return -1;
    j->temp_cwd = cp_exec_job_of(j->exec)->cwd != NULL;
    j->interruptible = cp_script_interruptible(cp_exec_job_of(j->exec)->command);
    if (!write_record(s, j, &text)) return cp_no_memory(err, strlen(cp_exec_job_of(j->exec)->command));
    j->begin_ticks = ticks_now();
    j->last_pid = last_pid(s->svc);
    if (!j->exec->cwd && !j->temp_cwd) j->exec->cwd = cp_str_dup(cp_str_of(s->cwd));
    if (j->kind == JOB_FOREGROUND) session_deposit(s, j);
    if (type_lines(s, &text, err) < 0) return -1;
    if (j->kind == JOB_FOREGROUND) {
        cp_exec_attach_output(j->exec, cp_take_fd(&j->read_end[0]), cp_take_fd(&j->read_end[1]));
        j->exec->mark = session_mark_of(j);
        cp_exec_started(j->exec, s->child.pid, s->child.start_time);
    }
    return 0;
}

static void give_back(struct cp_session *s, struct session_job *j) {
    session_job_close(j);
    if (j->pair && (j->kind == JOB_BACKGROUND || j->deposited)) {
        session_pair_drop(s, j->pair);
    } else if (j->pair) {
        j->pair->next = s->pairs;
        s->pairs = j->pair;
    }
    j->pair = NULL;
}

/* Gives the channels back. */
static void end_turn(struct cp_session *s) {
    struct session_job *j = s->current;
    s->current = NULL;
    cp_timer_stop(s->svc->loop, &s->poll);
    cp_timer_stop(s->svc->loop, &s->unwedge);
    give_back(s, j);
    session_record_trim(s);
    j->state = JOB_DETACHED;
    j->s = NULL;
    session_job_unref(j);
}

static void next_turn(struct cp_session *s) {
    if (s->deleted && s->shell == SHELL_NONE) session_gone(s);
    else session_pump(s);
}

void session_turn_over(struct cp_session *s) {
    end_turn(s);
    next_turn(s);
}

static void next_turn_fn(cp_deferred *d) { next_turn(CP_CONTAINER(d, struct cp_session, more)); }

void session_pump(struct cp_session *s) {
    if (s->shell == SHELL_NONE && s->head && !s->current && !s->deleted) {
        session_shell_start(s);
        return;
    }
    if (s->current || s->deleted || s->shell != SHELL_READY || !s->head) return;
    cp_err err = {0};
    struct session_job *j = s->current = pop(s);
    j->state = JOB_TURN;
    j->seq = ++s->seq;
    if (begin(s, j, &err) == 0) {
        session_watch_turn(s);
    } else if (err.sys ==
               EPIPE) { /* the shell has just ended: the keeper is about to say so, and the next one runs it */
        s->shell = SHELL_DYING;
        s->current = NULL;
        give_back(s, j);
        session_job_push(s, j, true);
    } else { /* the next one may fail too, and so may all of ten thousand: each in a round of the loop */
        if (j->kind == JOB_SYNC) session_created(s, &err);
        job_fail(j, &err);
        end_turn(s);
        cp_loop_defer(s->svc->loop, &s->more, next_turn_fn);
    }
}

/* ---- reports ---- */

static void update_cwd(struct cp_session *s) {
    static const char gone[] = " (deleted)";
    char link[40], path[4096];
    snprintf(link, sizeof link, "/proc/%d/cwd", (int)s->child.pid);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return;
    path[n] = '\0';
    size_t tail = sizeof gone - 1;
    if ((size_t)n > tail && strcmp(path + n - tail, gone) == 0) path[(size_t)n - tail] = '\0';
    if (!s->cwd || strcmp(s->cwd, path) != 0) session_set_cwd(s, path);
}

static void foreground_done(struct cp_session *s, struct session_job *j, int status) {
    if (session_pair_missed(s, j, status)) {
        session_unanswered(s);
        return;
    }
    s->last_status = status;
    session_exports_refresh(s);
    if (!j->temp_cwd) update_cwd(s);
    session_deposit_status(s, j, status);
    cp_close(&j->keep[0]); /* before exec.c looks: the end of the output shows at once */
    cp_close(&j->keep[1]);
    cp_exit x = {.code = status};
    if (j->exec) cp_exec_exited(j->exec, &x);
    session_turn_over(s);
}

void session_job_settle(struct session_job *j) {
    struct cp_session *s = j->s;
    if (s && s->current == j && j->answered && (j->failed || j->started || (!j->exec && !j->booked)))
        session_turn_over(s);
}

void session_no_pid(struct cp_session *s) {
    cp_err err;
    cp_fail(&err, CP_E_COMMAND_EXECUTION_ERROR, "the shell of session %s could not start a subshell", s->id);
    job_fail(s->current, &err);
    session_job_settle(s->current);
}

/* Its report was read by a server that died before it could tell, or it had not been typed yet; or the report, or what
 * it wrote, had no place to go to. */
void session_unanswered(struct cp_session *s) {
    struct session_job *j = s->current;
    cp_err err;
    if (j->kind == JOB_BACKGROUND) { /* its subshell has told of itself, or never will */
        j->answered = true;
        j->answered_ms = cp_now_ms();
        session_job_settle(j);
        return;
    }
    cp_fail(&err, CP_E_FILESYSTEM_ERROR, "the folder of session %s was removed", s->id);
    if (j->kind == JOB_SYNC) session_created(s, &err);
    cp_close(&j->keep[0]);
    cp_close(&j->keep[1]);
    if (j->exec) cp_exec_force_end(j->exec);
    session_turn_over(s);
}

static void input_opened(struct session_job *j) {
    cp_close(&j->in_read);
    session_release(j, SESSION_IN_READ); /* the next server will not hear of it */
    if (j->exec && j->kind == JOB_FOREGROUND && j->in_keep >= 0) cp_exec_attach_stdin(j->exec, cp_take_fd(&j->in_keep));
}

/* Who has not opened its input by now cannot any more; who has may have said so to nobody. */
void session_unsure(struct cp_session *s) {
    struct session_job *j = s->current;
    j->unsure = true;
    if (j->kind == JOB_FOREGROUND && j->in_keep >= 0 && session_input_lost(s, j)) input_opened(j);
}

static void child_exit(cp_child *c, const cp_exit *x) {
    struct session_job *j = CP_CONTAINER(c, struct session_job, kid.child);
    j->booked = j->adopted = false;
    if (!j->started) cp_keeper_ack(j->svc->keeper, c); /* exec.c does not know it */
    else if (j->exec) cp_exec_exited(j->exec, x);
    if (j->state == JOB_TURN) session_job_settle(j); /* which may free it */
    else session_job_unref(j);
}

static void child_adopted(cp_child *c, int sys, const char *step) {
    struct session_job *j = CP_CONTAINER(c, struct session_job, kid.child);
    (void)step;
    if (sys || !j->exec ||
        (j->s && j->s->deleted)) { /* gone before it was told to begin; or nobody wants it: without a word it ends */
        cp_err err;
        if (j->s && j->s->deleted) {
            cp_fail(&err, CP_E_SESSION_DESTROYED, "session %s has been deleted", j->s->id);
            if (j->exec) j->exec->session_destroyed = true;
        } else {
            cp_fail_sys(&err, CP_E_COMMAND_EXECUTION_ERROR, sys, "the command could not be started");
        }
        j->booked = !sys;
        cp_close(&j->go);
        job_fail(j, &err);
        session_job_settle(j);
        return;
    }
    j->adopted = true;
    cp_exec_set_child(j->exec, &j->kid);
    cp_exec_attach_output(j->exec, cp_take_fd(&j->read_end[0]), cp_take_fd(&j->read_end[1]));
    if (j->in_keep >= 0) cp_exec_attach_stdin(j->exec, cp_take_fd(&j->in_keep));
    j->exec->mark = c->mark;
    cp_exec_started(j->exec, c->pid, c->start_time);
    (void)!write(j->go, "\n", 1);
    j->started = true;
    session_job_settle(j);
}

/* The subshell has opened its output and input, so our placeholders go; it waits until the keeper knows it. */
static void background_pid(struct cp_session *s, struct session_job *j, pid_t pid) {
    if (j->has_pid || j->failed) return;
    if (getsid(pid) != s->child.pid) return; /* not one of this session: somebody made it up */
    j->has_pid = true;
    cp_close(&j->keep[0]);
    cp_close(&j->keep[1]);
    cp_close(&j->in_read);
    if (!j->exec) {
        cp_close(&j->go);
        session_job_settle(j);
        return;
    }
    char key[CP_EXEC_KEY_MAX];
    cp_err err = {0};
    cp_exec_key(j->exec, key);
    j->kid.child = (cp_child){.pid = pid, .mark = session_mark_of(j), .on_spawn = child_adopted, .on_exit = child_exit};
    const int hold[3] = {j->in_keep, j->read_end[0], j->read_end[1]};
    if (cp_keeper_adopt(s->svc->keeper, &j->kid.child, key, hold, &err) < 0) {
        cp_close(&j->go);
        job_fail(j, &err);
        session_job_settle(j);
        return;
    }
    j->booked = true;
}

void session_release(struct session_job *j, unsigned which) {
    if (!j->deposited) return;
    j->to_release |= which;
    if (session_depot_release(j->s->depot, j->seq, j->to_release)) j->to_release = 0;
}

static void done(struct cp_session *s, struct session_job *j, int status) {
    switch (j->kind) {
    case JOB_FOREGROUND: foreground_done(s, j, status); return;
    case JOB_SYNC:
        session_folder_drained(s);
        session_created(s, NULL);
        session_turn_over(s);
        return;
    case JOB_EXPORTS: session_turn_over(s); return;
    case JOB_BACKGROUND: break;
    }
    if (j->answered) return;
    j->answered = true;
    j->answered_ms = cp_now_ms();
    if (status && !j->has_pid) session_no_pid(s); /* fork failed */
    else session_job_settle(j);
}

void session_report(struct cp_session *s, const cp_report *r) {
    struct session_job *j = s->current;
    session_stale_close(s);
    if (!j || r->seq != j->seq) return; /* late, or made up */
    switch (r->kind) {
    case 'd': done(s, j, (int)(r->value & 255)); return;
    case 'p':
        if (j->kind == JOB_BACKGROUND) background_pid(s, j, (pid_t)r->value);
        return;
    case 'i': input_opened(j); return;
    }
}

/* ---- the shell has ended ---- */

static void ended_under(struct cp_session *s, struct session_job *j, const cp_exit *x) {
    cp_err err;
    if (s->deleted) cp_fail(&err, CP_E_SESSION_DESTROYED, "session %s has been deleted", s->id);
    else cp_fail(&err, CP_E_SESSION_TERMINATED, "the shell of session %s has ended", s->id);
    if (j->kind == JOB_SYNC) session_created(s, &err);
    if (!j->exec) return;
    j->exec->session_destroyed = s->deleted;
    j->exec->shell_replaced = !s->deleted && s->replacing;
    j->exec->session_ended = !s->deleted && !s->replacing;
    if (j->kind == JOB_FOREGROUND) {
        cp_close(&j->keep[0]);
        cp_close(&j->keep[1]);
        cp_exec_exited(j->exec, x);
    } else {
        job_fail(j, &err);
    }
}

void session_shell_ended(struct cp_session *s, const cp_exit *x) {
    struct session_job *j = s->current;
    if (!s->deleted) session_store(s, "ended");
    bool replaced = s->replacing && !s->deleted;
    if (j && j->kind == JOB_BACKGROUND && j->has_pid) {
        j->answered = true; /* its subshell may live on; the keeper is about to say */
    } else if (j) {
        ended_under(s, j, x);
    }
    s->replacing = false;
    if (replaced && s->exports.n) session_job_push(s, session_job_new(s, JOB_EXPORTS), true);
    if (j && j->kind == JOB_BACKGROUND && j->has_pid) session_job_settle(j);
    else if (j) session_turn_over(s);
    else if (s->deleted) session_gone(s);
    else session_pump(s);
}

/* ---- the entry ---- */

static int admit(cp_exec *e, struct cp_session *s, cp_err *err) {
    const cp_exec_job *job = cp_exec_job_of(e);
    const struct cp_sessions *t = e->svc->sessions;
    uid_t uid = t->set_user ? t->uid : geteuid();
    if (job->set_user && job->uid != uid)
        return cp_fail_field(err, "user", "a session's commands run as its shell does; use a call without session");
    if (s->waiting >= CP_SESSION_QUEUE)
        return cp_fail(err, CP_E_LIMIT_EXCEEDED, "%zu commands wait in session %s", s->waiting, s->id);
    return 0;
}

void cp_exec_run_session(cp_exec *e) {
    cp_err err = {0};
    struct cp_session *s = session_find(e->svc, cp_str_of(e->session));
    if (!s) s = session_implicit(e, &err);
    if (!s || admit(e, s, &err) < 0) {
        cp_exec_failed(e, &err);
        return;
    }
    struct session_job *j = session_job_new(s, e->kind == CP_EXEC_BUFFERED ? JOB_FOREGROUND : JOB_BACKGROUND);
    j->exec = e;
    cp_exec_set_backend(e, &session_backend, j);
    if (!e->timeout_ms && j->kind == JOB_FOREGROUND && s->command_timeout_ms) {
        e->timeout_ms = s->command_timeout_ms;
        cp_exec_timeout_start(e);
    }
    session_job_push(s, j, false);
    session_pump(s);
}
