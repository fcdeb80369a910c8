/* The life of a session's shell: spawned, told what to run, listened to, interrupted, replaced, mourned.
 *
 * Its program is a pipe of ours that the keeper holds too (hold 0), reports come through a FIFO whose read end the
 * keeper holds (hold 1): a server that dies leaves an idle shell that waits and a busy one whose report is kept. */
#include "services/session_impl.h"
#include "services/stray.h"

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* ---- talking to it ---- */

/* The lines of one command are 200 bytes and wait for one another, so the pipe has room. */
int session_type(struct cp_session *s, cp_str text) {
    ssize_t n = write(s->script, text.p, text.n);
    return n == (ssize_t)text.n ? 0 : -1;
}

int session_record(struct cp_session *s, cp_str text, cp_err *err) {
    if (s->record_size > CP_SESSION_RECORD_KEEP && text.n < s->record_size) (void)!ftruncate(s->record, 0);
    for (size_t at = 0; at < text.n;) {
        ssize_t n = pwrite(s->record, text.p + at, text.n - at, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return cp_fail_sys(err, cp_no_space(errno) ? CP_E_NO_SPACE : CP_E_INTERNAL_ERROR, errno,
                               "the command of session %s", s->id);
        at += (size_t)n;
    }
    s->record_size = text.n;
    return 0;
}

void session_record_trim(struct cp_session *s) {
    if (s->record_size <= CP_SESSION_RECORD_KEEP) return;
    (void)!ftruncate(s->record, 0);
    s->record_size = 0;
}

static void on_report(cp_io *io, uint32_t events) {
    (void)events;
    struct cp_session *s = CP_CONTAINER(io, struct cp_session, status_io);
    char text[4096];
    ssize_t n = read(s->status, text, sizeof text);
    if (n <= 0) return;
    cp_buf_add(&s->inbox, text, (size_t)n);
    /* Reports are handled one by one from the front: each may end the turn and begin another command. */
    for (const char *nl; s->inbox.n && (nl = memchr(s->inbox.p, '\n', s->inbox.n));) {
        cp_report r;
        size_t len = (size_t)(nl - s->inbox.p);
        bool good = cp_report_parse((cp_str){s->inbox.p, len}, &r);
        cp_buf_consume(&s->inbox, len + 1);
        if (good) session_report(s, &r);
    }
    if (s->inbox.n > 256) cp_buf_clear(&s->inbox); /* a process of the session writes there what is not a report */
}

/* Not heard (the kernel has no room for one more watch), a command is not answered, and its shell is replaced. */
void session_reports_move(struct cp_session *s, int fd) {
    bool heard = s->status_io.slot != 0;
    cp_io_del(s->svc->loop, &s->status_io);
    cp_close(&s->status);
    s->status = fd;
    if (heard) (void)cp_io_add(s->svc->loop, &s->status_io, fd, EPOLLIN, on_report);
    session_deposit_reports(s);
}

/* ---- exported variables, for the shell that may have to take over ----
 *
 * Written to a FIFO, not a file: they are kept nowhere, and `ulimit -f` cannot kill the shell for it. A dump costs 30
 * µs, so it is made while the shell is idle, and before a command only when that has a deadline and none has been made
 * since the last. */

/* What there is no room for is let go as one that is too long. */
static void count_exports(struct cp_session *s) {
    cp_script_dump *d = &s->exports_new;
    if (cp_charge_set(&s->exports_charge, s->exports.cap + d->text.cap, NULL) == 0) return;
    d->too_long = true;
    cp_buf_free(&d->text);
    cp_charge_force(&s->exports_charge, s->exports.cap);
}

static void on_exports(cp_io *io, uint32_t events) {
    (void)events;
    struct cp_session *s = CP_CONTAINER(io, struct cp_session, exports_io);
    char text[16384];
    ssize_t n = read(s->exports_fd, text, sizeof text);
    if (n > 0) cp_script_exports_feed(&s->exports_new, &s->exports, CP_SESSION_EXPORTS_MAX, (cp_str){text, (size_t)n});
    if (n > 0) count_exports(s);
}

bool session_exports_open(struct cp_session *s) {
    if (s->exports_fd < 0) {
        s->exports_fd = session_fifo(s, "x", O_RDWR, NULL);
        if (s->exports_fd >= 0 && cp_io_add(s->svc->loop, &s->exports_io, s->exports_fd, EPOLLIN, on_exports) < 0)
            cp_close(&s->exports_fd);
    }
    return s->exports_fd >= 0;
}

void session_exports_close(struct cp_session *s) {
    cp_io_del(s->svc->loop, &s->exports_io);
    cp_close(&s->exports_fd);
    cp_buf_clear(&s->exports_new.text);
    s->exports_fresh = false;
}

static void refresh(cp_timer *t) {
    struct cp_session *s = CP_CONTAINER(t, struct cp_session, refresh);
    cp_autobuf cp_buf line = {0};
    if (s->current || s->head || s->shell != SHELL_READY || s->exports_fresh) return;
    if (session_folder_mend(s, NULL) < 0 || !session_exports_open(s)) return; /* or they would go to a file */
    cp_script_exports(&line, s->path);
    s->exports_fresh = session_type(s, cp_buf_str(&line)) == 0;
}

void session_exports_refresh(struct cp_session *s) {
    s->exports_fresh = false;
    cp_timer_start(s->svc->loop, &s->refresh, CP_SESSION_REFRESH_MS, refresh);
}

/* ---- start ---- */

static const char *home_of(const struct cp_session *s) {
    for (char **e = s->env; *e; e++)
        if (strncmp(*e, "HOME=", 5) == 0 && (*e)[5] == '/') return *e + 5;
    return "/";
}

/* The folder asked for, else the home, else the root. */
static const char *cwd_choice(const struct cp_session *s) {
    const char *choice[] = {s->shell_cwd, home_of(s), "/"};
    return choice[s->cwd_try < CP_COUNT(choice) ? s->cwd_try : CP_COUNT(choice) - 1];
}

static void on_spawn(cp_child *c, int sys, const char *step);
static void on_exit_(cp_child *c, const cp_exit *x);

static void start_failed(struct cp_session *s, const cp_err *err) {
    s->shell = SHELL_NONE;
    cp_close(&s->script);
    cp_io_del(s->svc->loop, &s->status_io);
    cp_log(CP_LOG_WARN, "session.start", "a session's shell could not be started", CP_KVZ("session", s->id),
           CP_KVZ("error", err->msg));
    session_fail_waiting(s, err);
    if (s->deleted) session_gone(s);
    else session_created(s, err);
}

static int spawn(struct cp_session *s, int program, cp_err *err) {
    struct cp_sessions *t = s->svc->sessions;
    const char *const argv[] = {access("/bin/bash", X_OK) == 0 ? "/bin/bash" : "bash", "--norc", "--noprofile", NULL};
    cp_autobuf cp_buf key = {0};
    cp_buf_addf(&key, "s:%s:%s", s->token, s->id);
    cp_spawn spawn = {.argv = argv,
                      .env = (const char *const *)s->env,
                      .cwd = cwd_choice(s),
                      .fds = {program, -1, -1, -1, -1, -1, -1, -1},
                      .hold = {s->script, s->status, s->depot},
                      .key = cp_buf_z(&key),
                      .own_session = true,
                      .mark = s->mark,
                      .set_user = t->set_user,
                      .uid = t->uid,
                      .gid = t->gid,
                      .groups = t->groups,
                      .ngroups = t->ngroups};
    s->child = (cp_child){.on_spawn = on_spawn, .on_exit = on_exit_};
    return cp_keeper_spawn(s->svc->keeper, &s->child, &spawn, err);
}

static int start(struct cp_session *s, cp_err *err) {
    int rw[2];
    if (session_folder_mend(s, err) < 0) return -1;
    if (cp_pipe(rw, 0) < 0) return cp_fail_sys(err, CP_E_TOO_MANY_FILES, errno, "the shell of session %s", s->id);
    cp_autofd int program = rw[0];
    s->script = rw[1];
    cp_nonblock(s->script);
    if (s->depot < 0) s->depot = session_depot_open();
    cp_autobuf cp_buf hello = {0};
    cp_script_hello(&hello);
    if (session_type(s, cp_buf_str(&hello)) < 0 ||
        (!s->status_io.slot && cp_io_add(s->svc->loop, &s->status_io, s->status, EPOLLIN, on_report) < 0))
        return cp_fail_sys(err, CP_E_INTERNAL_ERROR, errno, "the shell of session %s", s->id);
    return spawn(s, program, err);
}

void session_shell_start(struct cp_session *s) {
    cp_err err = {0};
    if (!s->shell_cwd) s->shell_cwd = cp_str_dup(cp_str_of(s->start_cwd));
    s->shell = SHELL_SPAWNING;
    s->last_status = 0;
    s->broken = false;
    if (start(s, &err) < 0) start_failed(s, &err);
}

static void on_spawn(cp_child *c, int sys, const char *step) {
    struct cp_session *s = CP_CONTAINER(c, struct cp_session, child);
    if (sys) {
        cp_close(&s->script);
        if (strcmp(step, "chdir") == 0 && s->cwd_try < 2 && !s->deleted) {
            s->cwd_try++;
            session_shell_start(s);
            return;
        }
        cp_err err;
        cp_fail_sys(&err, CP_E_COMMAND_EXECUTION_ERROR, sys, "the shell of session %s could not be started (%s)", s->id,
                    step);
        start_failed(s, &err);
        return;
    }
    s->shell = SHELL_READY;
    s->mark = c->mark.spawn;
    session_set_cwd(s, cwd_choice(s));
    free(cp_take(s->shell_cwd));
    s->cwd_try = 0;
    cp_metric_add(CP_M_SESSIONS, 1);
    session_store(s, "live");
    if (s->deleted) session_shell_kill(s);
    else session_pump(s);
}

static char *read_cwd(pid_t pid) {
    char link[40], path[4096];
    snprintf(link, sizeof link, "/proc/%d/cwd", (int)pid);
    ssize_t n = readlink(link, path, sizeof path);
    return n > 0 && n < (ssize_t)sizeof path ? cp_str_dup((cp_str){path, (size_t)n}) : NULL;
}

void session_shell_attach(struct cp_session *s, const cp_held *h) {
    s->child = (cp_child){.on_spawn = on_spawn, .on_exit = on_exit_};
    cp_keeper_claim(s->svc->keeper, &s->child, h);
    s->mark = h->mark.spawn;
    s->script = h->fds[0];
    cp_nonblock(s->script);
    s->shell = SHELL_READY;
    cp_autofree char *cwd = read_cwd(h->pid);
    if (cwd) session_set_cwd(s, cwd);
    cp_metric_add(CP_M_SESSIONS, 1);
    (void)cp_io_add(s->svc->loop, &s->status_io, s->status, EPOLLIN, on_report);
}

/* ---- the end ---- */

static void on_exit_(cp_child *c, const cp_exit *x) {
    struct cp_session *s = CP_CONTAINER(c, struct cp_session, child);
    cp_keeper_ack(s->svc->keeper, c);
    s->shell = SHELL_DYING; /* no further command begins in it */
    /* What it reported before it ended counts: a command may be done although the shell is gone by now. */
    for (size_t before = ~(size_t)0; s->inbox.n != before;) {
        before = s->inbox.n;
        on_report(&s->status_io, EPOLLIN);
    }
    if (s->deleted && !s->keep) session_kill_all(s); /* what was being forked when the shell was killed */
    s->shell = SHELL_NONE;
    cp_close(&s->script);
    cp_io_del(s->svc->loop, &s->status_io);
    cp_buf_clear(&s->inbox);
    cp_timer_stop(s->svc->loop, &s->unwedge);
    cp_metric_add(CP_M_SESSIONS, -1);
    session_shell_ended(s, x);
}

static void kill_pid(const struct cp_session *s, int sig) {
    cp_proc p = {.pid = s->child.pid, .start_time = s->child.start_time};
    (void)cp_proc_signal(&p, sig);
}

/* A shell that has ended a while ago is known by its mark alone: its number may be that of a stranger's session now. */
void session_kill_all(struct cp_session *s) {
    pid_t shell = s->shell == SHELL_NONE ? 0 : s->child.pid;
    cp_stray_kill_all(s->svc, shell, s->child.start_time, &(cp_mark){.spawn = s->mark});
}

/* With `keep` only the shell and the command at turn; else all that came from it. */
void session_shell_kill(struct cp_session *s) {
    cp_tree all = {0}, mine = {0};
    if (s->shell != SHELL_READY) return;
    s->shell = SHELL_DYING;
    bool everything = s->deleted && !s->keep;
    if (everything) session_kill_all(s);
    if (!everything && s->current && !s->current->started) {
        (void)cp_tree_snapshot(&all);
        session_collect_owned(s->current, &all, &mine);
    }
    cp_stray_kill(s->svc, s->child.pid, s->child.start_time);
    for (size_t i = 0; i < mine.n; i++) cp_stray_kill(s->svc, mine.v[i].pid, mine.v[i].start_time);
    cp_tree_free(&mine);
    cp_tree_free(&all);
}

void session_shell_forget(struct cp_session *s) {
    cp_timer_stop(s->svc->loop, &s->poll);
    cp_timer_stop(s->svc->loop, &s->unwedge);
    cp_timer_stop(s->svc->loop, &s->refresh);
    cp_io_del(s->svc->loop, &s->status_io);
    session_exports_close(s);
    cp_close(&s->script);
    if (s->shell != SHELL_NONE) cp_keeper_forget(s->svc->keeper, &s->child);
    s->shell = SHELL_NONE;
}

/* ---- a shell that is busy itself ---- */

static void replace(struct cp_session *s) {
    s->replacing = true;
    free(s->shell_cwd);
    s->shell_cwd = read_cwd(s->child.pid);
    cp_log(CP_LOG_INFO, "session.replaced", "a busy shell was replaced", CP_KVZ("session", s->id));
    session_shell_kill(s);
}

/* Not where the command, or an earlier one, has set the signal's action itself. Where that cannot be read the trap is
 * tried: a shortage of descriptors is no reason to lose what the shell knows. */
static bool has_our_trap(const struct cp_session *s) {
    char path[64];
    cp_autofree char *text = NULL;
    size_t n;
    snprintf(path, sizeof path, "/proc/%d/status", (int)s->child.pid);
    if (cp_read_file(path, 16384, &text, &n) < 0) return true;
    return cp_script_trapped(text);
}

void session_interrupt(struct cp_session *s, bool interruptible) {
    if (interruptible && has_our_trap(s)) kill_pid(s, CP_SCRIPT_INTERRUPT);
    else replace(s);
}

static void unwedge(cp_timer *t) {
    struct cp_session *s = CP_CONTAINER(t, struct cp_session, unwedge);
    if (!s->current || s->shell != SHELL_READY) return;
    if (cp_loop_now(s->svc->loop) - s->unwedge_since >= CP_SESSION_REPLACE_MS) {
        replace(s);
        return;
    }
    /* Again, because the first may have come before the command had begun. In this order: of a shell that is stopped
     * nothing runs before its trap. */
    kill_pid(s, CP_SCRIPT_INTERRUPT);
    kill_pid(s, SIGCONT);
    cp_timer_start(s->svc->loop, t, CP_SESSION_BREAK_MS, unwedge);
}

void session_unwedge(struct cp_session *s) {
    if (cp_timer_active(&s->unwedge)) return;
    s->unwedge_since = cp_loop_now(s->svc->loop);
    unwedge(&s->unwedge);
}

/* ---- a command that is never answered ---- */

/* Some options and traps (set -n, a DEBUG trap with extdebug, enable -n eval, a function called builtin) make the shell
 * read our lines without running them. It then waits for more: the pipe is empty though no report has come. Its reading
 * of the second line is the proof, since it reads byte by byte and only when the first has been executed. */
static bool swallowed(const struct cp_session *s) {
    int unread = -1;
    cp_proc p;
    return ioctl(s->script, FIONREAD, &unread) == 0 && unread == 0 && cp_proc_read(s->child.pid, &p) && p.state == 'S';
}

static void poll_turn(cp_timer *t) {
    struct cp_session *s = CP_CONTAINER(t, struct cp_session, poll);
    struct session_job *j = s->current;
    if (!j || s->shell != SHELL_READY) return;
    cp_timer_start(s->svc->loop, t, CP_SESSION_POLL_MS, poll_turn);
    if (session_folder_mend(s, NULL) != 0) session_unsure(s);
    if (s->current != j) return;
    if (j->to_release) session_release(j, 0);
    if (j->answered) {
        if (cp_now_ms() - j->answered_ms >= CP_SESSION_PID_MS) session_no_pid(s);
    } else if (!swallowed(s)) {
        s->silent_polls = 0;
    } else if (++s->silent_polls >= 2 && (j->inherited || j->unsure)) {
        session_unanswered(s);
    } else if (s->silent_polls >= 2) {
        s->broken = true;
        cp_log(CP_LOG_INFO, "session.broken", "a shell does not run what it reads", CP_KVZ("session", s->id));
        session_shell_kill(s);
    } else {
        cp_timer_start(s->svc->loop, t, CP_SESSION_POLL_FIRST_MS, poll_turn);
    }
}

void session_watch_turn(struct cp_session *s) {
    s->silent_polls = 0;
    cp_timer_start(s->svc->loop, &s->poll, CP_SESSION_POLL_FIRST_MS, poll_turn);
}
