/* The life of the server, of CMD, and the end of everything: one table of states × events. What the table does not name
 * is ignored in that state.
 *
 *   ATTACHED  somebody else's server has the other end of the socket (cp_keeper_run_on)
 *   DOWN      waiting to start it again          STARTING  it has not said READY
 *   UP        it serves                          LEAVING   HANDOVER was sent
 *   DRAINING  DRAIN was sent                     ENDING    the trees have had TERM
 *   KILLING   the trees get KILL                 OVER      the loop ends
 *
 * A server that closes its socket is left to exit by itself (it may be writing to its registry) until a deadline. Its
 * children die when it has been reaped, or given up (life.c). */
#include "keeper/core.h"

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void end_trees(keeper *k);
static void kill_trees(keeper *k);

static void on_timer(cp_timer *t) { supervise(CP_CONTAINER(t, keeper, timer), EV_TIMER); }

static void enter(keeper *k, keeper_state state, unsigned timer_ms) {
    k->state = state;
    cp_timer_stop(k->loop, &k->timer);
    if (timer_ms) cp_timer_start(k->loop, &k->timer, timer_ms, on_timer);
}

/* ---- the server ---- */

static void server_begun(keeper *k, int sys, uint8_t step);

/* What a server is given, and the other ends. */
struct lines {
    int socket, its_socket, life, its_life;
};

static bool lines_open(struct lines *l) {
    int sv[2], life[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv) < 0) return false;
    *l = (struct lines){sv[0], sv[1], -1, -1};
    if (cp_pipe(life, 0) < 0) {
        int why = errno;
        close(sv[0]);
        close(sv[1]);
        return errno = why, false;
    }
    l->life = life[0];
    l->its_life = life[1];
    return true;
}

/* false with errno and the step. */
static bool launch(keeper *k, int *sys, uint8_t *step) {
    struct lines l;
    *step = CP_STEP_request;
    if (!lines_open(&l)) {
        *sys = errno;
        return false;
    }
    static const char *const argv[] = {"conflux-server", "--keeper-fd", "3", "--life-fd", "4", NULL};
    spawn_spec spec = {
        .file = k->opts->server_path, .fds = {-1, 1, 2, l.its_socket, l.its_life, -1, -1, -1}, .group = SPAWN_GROUP};
    pid_t pid = spawn_own(k, &spec, argv, server_begun, sys, step);
    close(l.its_socket);
    close(l.its_life);
    if (pid < 0) {
        close(l.socket);
        close(l.life);
        return false;
    }
    life_watch(k, l.life);
    k->server = pid;
    k->hup = false;
    enter(k, STARTING, k->opts->start_limit_ms ? k->opts->start_limit_ms : START_LIMIT_MS);
    peer_open(k, l.socket);
    return true;
}

/* One that cannot be started comes here again, at most once: then there is a delay, since only one that was ready for
 * long takes it away. */
static void back_off(keeper *k) {
    if (k->ready_at && cp_now_ms() - k->ready_at >= HEALTHY_MS) k->backoff = 0;
    k->ready_at = 0;
    unsigned delay = k->backoff;
    k->backoff = delay ? delay * 2 : BACKOFF_MIN_MS;
    if (k->backoff > BACKOFF_MAX_MS) k->backoff = BACKOFF_MAX_MS;
    k->generation++;
    if (delay) enter(k, DOWN, delay);
    else start_server(k);
}

static void cannot_start(keeper *k, int sys, uint8_t step) {
    if (k->announced) {
        cp_log(CP_LOG_ERROR, "keeper.start", "cannot start the server", CP_KVZ("path", k->opts->server_path),
               CP_KVZ("step", cp_wire_step_name(step)), CP_KVZ("errno", cp_errno_name(sys)));
        back_off(k);
        return;
    }
    fprintf(stderr, "conflux: cannot start %s: %s: %s\n", k->opts->server_path, cp_wire_step_name(step), strerror(sys));
    k->exit_status = 1;
    end_trees(k);
}

void start_server(keeper *k) {
    int sys = 0;
    uint8_t step = 0;
    if (!launch(k, &sys, &step)) cannot_start(k, sys, step);
}

static void server_begun(keeper *k, int sys, uint8_t step) {
    if (!sys) return;
    k->server = 0; /* there was none: what is reaped is nobody's */
    life_forget(k);
    peer_close(k);
    if (k->state == STARTING) cannot_start(k, sys, step);
    else supervise(k, EV_EXIT);
}

static const char *describe(int status, char out[40]) {
    if (WIFSIGNALED(status)) snprintf(out, 40, "signal %d", WTERMSIG(status));
    else snprintf(out, 40, "exit status %d", WEXITSTATUS(status));
    return out;
}

static void restart(keeper *k) {
    char how[40];
    cp_log(CP_LOG_ERROR, "keeper.server_ended", "the server has ended; starting it again",
           CP_KVZ("how", describe(k->server_status, how)));
    back_off(k);
}

static void exited_starting(keeper *k) {
    char how[40];
    if (k->announced) {
        restart(k);
        return;
    }
    fprintf(stderr, "conflux: the server ended before it was ready: %s\n", describe(k->server_status, how));
    k->exit_status = 1;
    end_trees(k);
}

/* The reason has been printed. */
static void failed_starting(keeper *k) {
    if (!k->announced) k->exit_status = 1;
    enter(k, k->announced ? STARTING : DRAINING, LEAVE_LIMIT_MS);
}

static void replace(keeper *k) {
    k->generation++;
    k->ready_at = 0;
    start_server(k);
}

static void hand_over(keeper *k) {
    peer_send(k, &(cp_wire){.type = CP_WIRE_handover});
    enter(k, LEAVING, HANDOVER_LIMIT_MS);
}

static void note_hup(keeper *k) { k->hup = true; }
static void await_exit(keeper *k) { enter(k, k->state, LEAVE_LIMIT_MS); }

static void kill_server(keeper *k) {
    if (k->server) kill(k->server, SIGKILL);
}

/* Also when it has closed its socket or reported its failure, and does not exit: then it has no excuse any more. */
static void start_timed_out(keeper *k) {
    if (!k->announced) fprintf(stderr, "conflux: the server does not get ready; killing it\n");
    else cp_log(CP_LOG_ERROR, "keeper.start_timeout", "the server does not get ready; killing it");
    kill_server(k);
}

/* ---- CMD ---- */

static void stop(keeper *k, int exit_status) {
    if (k->stopping) return;
    k->exit_status = exit_status;
    supervise(k, EV_STOP);
}

static void cmd_begun(keeper *k, int sys, uint8_t step) {
    (void)step;
    if (!sys) return;
    k->cmd = 0;
    fprintf(stderr, "conflux: cannot run %s: %s\n", k->opts->cmd[0], strerror(sys));
    stop(k, sys == ENOENT ? 127 : 126); /* as a shell says it */
}

static void start_cmd(keeper *k) {
    const char *const *cmd = k->opts->cmd;
    if (!cmd || !cmd[0]) return;
    int sys = 0;
    uint8_t step = 0;
    spawn_spec spec = {.fds = {0, 1, 2, -1, -1, -1, -1, -1}, .group = isatty(0) ? SPAWN_SAME_GROUP : SPAWN_GROUP};
    pid_t pid = spawn_own(k, &spec, cmd, cmd_begun, &sys, &step);
    if (pid > 0) k->cmd = pid;
    else cmd_begun(k, sys, step);
}

static void became_ready(keeper *k) {
    bool first = !k->announced;
    k->announced = true;
    k->ready_at = cp_now_ms();
    enter(k, UP, 0);
    if (first && k->opts->announce) k->opts->announce(k->port);
    if (first) start_cmd(k);
    if (k->hup && k->state == UP) hand_over(k);
}

/* ---- the end ---- */

static void drain(keeper *k) {
    listener_end(k);
    peer_send(k, &(cp_wire){.type = CP_WIRE_drain});
    k->server_killed = false;
    starts_hurry(k);
    enter(k, DRAINING, DRAIN_LIMIT_MS);
}

static void abandon_server(keeper *k) {
    cp_log(CP_LOG_ERROR, "keeper.server_stuck", "the server cannot be killed; ending without it",
           CP_KVI("pid", k->server));
    peer_close(k);
    end_trees(k);
}

/* KILL is all that there is. A server that it does not end sits in the kernel (state D), and the end does not wait for
 * it for ever, nor for whoever asks a third time. */
static void end_server(keeper *k) {
    if (k->server_killed) {
        abandon_server(k);
        return;
    }
    k->server_killed = true;
    enter(k, DRAINING, k->kill_limit_ms);
    kill_server(k);
}

static void hurry(keeper *k) {
    k->hurried = true;
    end_server(k);
}

static void signal_trees(keeper *k, int sig) {
    if (proc_kill_descendants(sig)) return;
    const child *c;
    TAILQ_FOREACH(c, &k->books.all, all) { /* what is known without looking */
        if (!c->pid || c->exited) continue;
        if (!c->adopted) kill(-c->pid, sig);
        kill(c->pid, sig);
    }
    if (k->cmd) kill(k->cmd, sig);
    if (k->server) kill(k->server, sig);
}

static void end_trees(keeper *k) {
    k->stopping = true;
    listener_end(k);
    if (k->hurried) {
        kill_trees(k);
        return;
    }
    enter(k, ENDING, k->opts->grace_ms ? k->opts->grace_ms : GRACE_MS);
    signal_trees(k, SIGTERM);
    reap_children(k); /* there may be none */
}

static void kill_trees(keeper *k) {
    uint64_t now = cp_now_ms();
    if (k->state != KILLING) k->kill_until = now + k->kill_limit_ms;
    k->stopping = true;
    if (now >= k->kill_until) {
        supervise(k, EV_EMPTY);
        return;
    }
    enter(k, KILLING, KILL_POLL_MS);
    signal_trees(k, SIGKILL);
    reap_children(k);
}

static void over(keeper *k) {
    enter(k, OVER, 0);
    cp_loop_stop(k->loop);
}

/* ---- the table ---- */

static void (*const transitions[STATES][EVENTS])(keeper *) = {
    [ATTACHED] = {[EV_EOF] = kill_trees},
    [DOWN] = {[EV_TIMER] = start_server, [EV_STOP] = end_trees},
    [STARTING] = {[EV_READY] = became_ready,
                  [EV_FAILED] = failed_starting,
                  [EV_EXIT] = exited_starting,
                  [EV_EOF] = await_exit,
                  [EV_TIMER] = start_timed_out,
                  [EV_STOP] = drain,
                  [EV_HUP] = note_hup},
    [UP] =
        {[EV_EXIT] = restart, [EV_EOF] = await_exit, [EV_TIMER] = kill_server, [EV_STOP] = drain, [EV_HUP] = hand_over},
    [LEAVING] = {[EV_EXIT] = replace, [EV_TIMER] = kill_server, [EV_STOP] = drain},
    [DRAINING] = {[EV_EXIT] = end_trees, [EV_TIMER] = end_server, [EV_STOP] = hurry},
    [ENDING] = {[EV_TIMER] = kill_trees, [EV_STOP] = kill_trees, [EV_EMPTY] = over},
    [KILLING] = {[EV_TIMER] = kill_trees, [EV_STOP] = over, [EV_EMPTY] = over},
};

void supervise(keeper *k, keeper_event ev) {
    if (ev == EV_STOP) k->stopping = true;
    void (*act)(keeper *) = transitions[k->state][ev];
    if (act) act(k);
}

static int shell_status(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

static void cmd_ended(keeper *k, int status) {
    k->cmd = 0;
    if (shell_status(status)) stop(k, shell_status(status));
}

static void server_ended(keeper *k, int status) {
    k->server = 0;
    k->server_status = status;
    life_forget(k);
    peer_last_words(k);
    peer_close(k);
    orphans_kill(k);
    supervise(k, EV_EXIT);
}

/* KILL is what ends threads without a word. */
void supervise_left(keeper *k) { server_ended(k, SIGKILL); }

bool supervise_reaped(keeper *k, pid_t pid, int status) {
    if (pid == k->cmd) {
        cmd_ended(k, status);
    } else if (pid == k->server) {
        server_ended(k, status);
    } else {
        return false;
    }
    return true;
}

void supervise_signal(keeper *k, int sig, bool from_terminal) {
    bool stops = sig == SIGTERM || sig == SIGINT || sig == SIGQUIT;
    /* In our process group, CMD has had it from the terminal as well. */
    bool had_it = from_terminal && isatty(0);
    if (k->cmd && sig != SIGHUP && !had_it) kill(k->cmd, sig);
    if (sig == SIGHUP && !k->stopping) supervise(k, EV_HUP);
    if (!stops) return;
    supervise(k, EV_STOP);
}
