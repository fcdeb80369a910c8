/* Pre-started shells: a bash that has done its start-up and waits for a command, used once.
 *
 * Design notes. The shell waits in a read of one line from a socket, the doorbell (bash reads a pipe or socket byte by
 * byte). What to run stands in a memfd that bash reads in blocks: a prologue (exports, cd) and the command, each ended
 * by a NUL. The command is then evaluated in BASH_EXECUTION_STRING, which `bash -c` fills as well, so that no variable
 * of ours is left; both descriptors are closed before. To the command it is `bash -c`: $0, $$, options, the exit
 * status, traps, `exec`, and syntax errors behave alike.
 *
 * What can tell the difference (the nesting that `set -x` prints, variables that only count at start-up) goes to a
 * shell of its own, as does what must outlive this server, run as another user or have a stdin: exec_spawn.c.
 *
 * Demand: a used shell is replaced at once while few commands run. When more are in flight than the pool has shells, a
 * shell started for later would only take the processor from one that is wanted now, so nothing is refilled until the
 * number falls; commands that find no shell ready start their own. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "services/exec_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static const char wait_script[] =
    "IFS= read -r <&3&&IFS= read -rd '' BASH_EXECUTION_STRING <&4||exit;unset REPLY;SECONDS=0;"
    "eval \"$BASH_EXECUTION_STRING\";IFS= read -rd '' BASH_EXECUTION_STRING <&4;exec 3<&- 4<&-;"
    "eval \"$BASH_EXECUTION_STRING\"";

enum { KEEP_STARTING = 2, REFILL_MS = 1, FAIL_PAUSE_MS = 5000, SCRIPT_LIMIT = 4 << 20 /* bytes */ };

struct shell {
    cp_child child;
    cp_services *svc;          /* one in use outlives the pool */
    struct cp_pool *pool;      /* until it is used */
    struct shell *prev, *next; /* starting and idle ones */
    bool ready;
    int out, err, bell, script;
    cp_exec *e;    /* once used */
    cp_io bell_io; /* where the shell says whether it could change its folder */
    bool started;
};

struct cp_pool {
    cp_services *svc;
    struct shell *shells;
    size_t have; /* starting and idle */
    cp_timer refill;
    uint64_t paused_until;
};

static void refill(struct cp_pool *p);
static void refill_soon(struct cp_pool *p);
static void refill_later(cp_timer *t) { refill(CP_CONTAINER(t, struct cp_pool, refill)); }

static void unlink_shell(struct shell *s) {
    if (s->prev) s->prev->next = s->next;
    else s->pool->shells = s->next;
    if (s->next) s->next->prev = s->prev;
    s->prev = s->next = NULL;
    s->pool->have--;
    s->pool = NULL;
}

static void close_shell(struct shell *s) {
    cp_io_del(s->svc->loop, &s->bell_io);
    cp_close(&s->out);
    cp_close(&s->err);
    cp_close(&s->bell);
    cp_close(&s->script);
}

/* ---- starting ---- */

/* It failed to start, or ended while it waited. */
static void drop(struct shell *s) {
    struct cp_pool *p = s->pool;
    unlink_shell(s);
    close_shell(s);
    cp_keeper_forget(p->svc->keeper, &s->child);
    free(s);
    p->paused_until = cp_loop_now(p->svc->loop) + FAIL_PAUSE_MS;
    cp_timer_start(p->svc->loop, &p->refill, FAIL_PAUSE_MS, refill_later);
}

static void begun(struct shell *s);

static void on_spawn(cp_child *c, int sys, const char *step) {
    struct shell *s = CP_CONTAINER(c, struct shell, child);
    s->ready = sys == 0;
    if (s->ready) {
        if (s->e && s->bell < 0) begun(s);
        return;
    }
    cp_log(CP_LOG_WARN, "pool.spawn", "a shell could not be started", CP_KVZ("errno", cp_errno_name(sys)),
           CP_KVZ("step", step));
    if (!s->e) {
        drop(s);
        return;
    }
    cp_err err;
    cp_fail_sys(&err, CP_E_COMMAND_EXECUTION_ERROR, sys, "cannot start a shell: %s: %s", step, cp_errno_name(sys));
    cp_exec_failed(s->e, &err);
}

static void on_exit_(cp_child *c, const cp_exit *x);

static int start_shell(struct cp_pool *p, struct shell *s) {
    int out[2] = {-1, -1}, err[2] = {-1, -1}, bell[2] = {-1, -1};
    const char *const argv[] = {cp_exec_bash(p->svc), "-c", wait_script, "bash", NULL};
    s->script = memfd_create("command", MFD_CLOEXEC);
    int r = -1;
    if (s->script >= 0 && cp_pipe(out, 0) == 0 && cp_pipe(err, 0) == 0 &&
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, bell) == 0) {
        cp_spawn sp = {.argv = argv,
                       .env = (const char *const *)p->svc->base_env,
                       .cwd = p->svc->workspace,
                       .fds = {-1, out[1], err[1], bell[1], s->script, -1, -1, -1},
                       .hold = {-1, -1, -1}};
        r = cp_keeper_spawn(p->svc->keeper, &s->child, &sp, NULL);
    }
    cp_close(&out[1]);
    cp_close(&err[1]);
    cp_close(&bell[1]);
    s->out = out[0];
    s->err = err[0];
    s->bell = bell[0];
    return r;
}

static bool add_shell(struct cp_pool *p) {
    struct shell *s = cp_new(struct shell);
    s->svc = p->svc;
    s->pool = p;
    s->out = s->err = s->bell = s->script = -1;
    s->child = (cp_child){.on_spawn = on_spawn, .on_exit = on_exit_};
    if (start_shell(p, s) < 0) {
        close_shell(s);
        free(s);
        return false;
    }
    s->next = p->shells;
    if (s->next) s->next->prev = s;
    p->shells = s;
    p->have++;
    return true;
}

/* One at a time, and not while a command that has just been handed over may be ending: a shell that starts would take
 * the processor from it. */
static void refill(struct cp_pool *p) {
    size_t size = (size_t)p->svc->config->pool_size;
    if (p->have >= size || p->svc->draining || cp_exec_oneshots(p->svc) > size) return;
    if (cp_loop_now(p->svc->loop) < p->paused_until || !add_shell(p)) return;
    refill_soon(p);
}

static void refill_soon(struct cp_pool *p) {
    if (!cp_timer_active(&p->refill)) cp_timer_start(p->svc->loop, &p->refill, REFILL_MS, refill_later);
}

/* ---- the command ---- */

/* bash sets OLDPWD on cd; one that was started in the folder has it only declared. */
static void add_prologue(cp_buf *b, const cp_exec_job *j) {
    for (char **v = j->env; v && *v; v++) {
        const char *eq = strchr(*v, '=');
        cp_buf_addz(b, "export ");
        cp_buf_add(b, *v, (size_t)(eq - *v) + 1);
        cp_buf_add_word(b, cp_str_of(eq + 1));
        cp_buf_addc(b, '\n'); /* not ';': bash goes one call deeper with each command of a line */
    }
    if (j->cwd) {
        cp_buf_addz(b, "cd -P -- ");
        cp_buf_add_word(b, cp_str_of(j->cwd));
        cp_buf_addz(b, " 2>/dev/null&&echo y >&3||{ echo n >&3;exit 1;};unset OLDPWD;export OLDPWD");
    }
    cp_buf_addc(b, '\0');
}

/* As a word in quotes, where a quote takes four bytes. */
static size_t quoted(const char *z) {
    size_t n = 2;
    for (; *z; z++) n += *z == '\'' ? 4 : 1;
    return n;
}

/* At least as much as the script takes. */
static size_t script_size(const cp_exec_job *j) {
    enum { EXPORT = 8, LINES = 256 };
    size_t n = strlen(j->command) + LINES + (j->cwd ? quoted(j->cwd) : 0);
    for (char **v = j->env; v && *v; v++) n += EXPORT + quoted(*v);
    return n;
}

/* False: there is no memory for it, or it is one that a new shell reads sooner. */
static bool make_script(cp_buf *b, const cp_exec_job *j) {
    size_t n = script_size(j);
    if (n > SCRIPT_LIMIT || !cp_buf_try_reserve(b, n)) return false;
    add_prologue(b, j);
    cp_buf_add(b, j->command, strlen(j->command) + 1);
    return true;
}

/* By offset: the position is shared with the shell. */
static bool write_script(struct shell *s, cp_str script) {
    return pwrite(s->script, script.p, script.n, 0) == (ssize_t)script.n && send(s->bell, "\n", 1, MSG_NOSIGNAL) == 1;
}

/* A shell that runs cannot export every name; one that starts with it passes it on. */
static bool exportable(const char *assignment) {
    const char *p = assignment;
    if (*p >= '0' && *p <= '9') return false;
    while (*p == '_' || (*p >= '0' && *p <= '9') || (*p >= 'A' && *p <= 'Z') || (*p >= 'a' && *p <= 'z')) p++;
    return *p == '=';
}

/* Names that mean something to a shell that starts, or nothing to one that runs. */
static bool starts_differently(const char *assignment) {
    static const char *const names[] = {
        "BASH",    "LD_",    "SHELLOPTS", "POSIXLY_CORRECT", "ENV=", "IFS=",     "PS4=",     "LINENO",
        "SECONDS", "RANDOM", "SRANDOM",   "EPOCH",           "UID=", "EUID=",    "PPID=",    "GROUPS",
        "OPTIND",  "PWD=",   "OLDPWD=",   "SHLVL=",          "_=",   "DIRSTACK", "FUNCNAME", "PIPESTATUS",
        "HISTCMD", "COMP_",  "GLIBC_"};
    for (size_t i = 0; i < CP_COUNT(names); i++)
        if (strncmp(assignment, names[i], strlen(names[i])) == 0) return true;
    return false;
}

/* Only what a used shell of the pool cannot be told from `bash -c` by. A false alarm costs a millisecond. */
static bool suits(const cp_exec *e, const cp_exec_job *j) {
    static const char *const tells[] = {"set -", "set +", "xtrace", "shopt", "$_", "${_"};
    if (e->durable || j->want_stdin || j->set_user) return false;
    for (size_t i = 0; i < CP_COUNT(tells); i++)
        if (strstr(j->command, tells[i])) return false;
    for (char **v = j->env; v && *v; v++)
        if (!exportable(*v) || starts_differently(*v)) return false;
    return true;
}

/* ---- a shell in use ---- */

static void release(cp_exec *e) {
    struct shell *s = cp_exec_backend_data(e);
    cp_keeper_forget(s->svc->keeper, &s->child);
    close_shell(s);
    free(s);
}

static const cp_exec_backend pool_backend = {.name = "pool", .release = release, .owns_child = true};

static void begun(struct shell *s) {
    if (s->started) return;
    s->started = true;
    s->e->mark = s->child.mark;
    cp_exec_started(s->e, s->child.pid, s->child.start_time);
}

/* What the shell said about the folder: 'y', 'n' (or nothing: it died before), 0 not yet. */
static char folder_reply(struct shell *s) {
    char c = 0;
    ssize_t k = recv(s->bell, &c, 1, MSG_DONTWAIT);
    return k > 0 ? c : k < 0 && errno == EAGAIN ? 0 : 'n';
}

static void on_bell(cp_io *io, uint32_t events) {
    (void)events;
    struct shell *s = CP_CONTAINER(io, struct shell, bell_io);
    char c = folder_reply(s);
    if (c) cp_io_del(s->svc->loop, io);
    if (c == 'y') begun(s); /* 'n': the exit tells */
}

static void on_exit_(cp_child *c, const cp_exit *x) {
    struct shell *s = CP_CONTAINER(c, struct shell, child);
    if (!s->e) {
        drop(s);
        return;
    }
    const cp_exec_job *j = cp_exec_job_of(s->e);
    if (!s->started && j->cwd && folder_reply(s) != 'y') {
        cp_err err;
        cp_fail(&err, CP_E_COMMAND_EXECUTION_ERROR, "Failed to change directory to '%s'", j->cwd);
        cp_exec_failed(s->e, &err);
    } else {
        begun(s);
        cp_exec_exited(s->e, x);
    }
}

static void use(struct shell *s, cp_exec *e) {
    s->e = e;
    cp_exec_set_backend(e, &pool_backend, s);
    cp_exec_attach_output(e, cp_take_fd(&s->out), cp_take_fd(&s->err));
    cp_close(&s->script);
    if (!cp_exec_job_of(e)->cwd) {
        cp_close(&s->bell);
        if (s->ready) begun(s);
    } else {
        (void)cp_io_add(s->svc->loop, &s->bell_io, s->bell, EPOLLIN, on_bell); /* else its exit tells */
    }
}

/* One that is ready, else the one that has been starting for longest: it will be ready before a new one. */
static struct shell *pick(struct cp_pool *p) {
    struct shell *starting = NULL;
    for (struct shell *s = p->shells; s; s = s->next) {
        if (s->ready) return s;
        starting = s;
    }
    return starting;
}

/* A shell that has got the command, or NULL. */
static struct shell *hand_over(struct cp_pool *p, const cp_exec_job *j) {
    cp_autobuf cp_buf script = {0};
    if (!make_script(&script, j)) return NULL;
    for (struct shell *s; (s = pick(p));) {
        if (write_script(s, cp_buf_str(&script))) {
            unlink_shell(s);
            return s;
        }
        drop(s); /* it has just died */
    }
    return NULL;
}

void cp_exec_run_shell(cp_exec *e) {
    struct cp_pool *p = e->svc->pool;
    const cp_exec_job *j = cp_exec_job_of(e);
    struct shell *s = p && suits(e, j) ? hand_over(p, j) : NULL;
    if (!s) {
        cp_exec_run_argv(e);
        return;
    }
    use(s, e);
    refill_soon(p);
}

void cp_pool_refill(cp_services *svc) {
    struct cp_pool *p = svc->pool;
    if (!p) return;
    if (p->have < KEEP_STARTING) refill(p);
    else refill_soon(p);
}

/* ---- open, close ---- */

int cp_pool_open(cp_services *svc, cp_err *err) {
    (void)err;
    struct cp_pool *p = cp_new(struct cp_pool);
    p->svc = svc;
    svc->pool = p;
    refill(p);
    return 0;
}

void cp_pool_close(cp_services *svc) {
    struct cp_pool *p = svc->pool;
    if (!p) return;
    for (struct shell *s, *next = p->shells; (s = next);) {
        next = s->next;
        unlink_shell(s);
        close_shell(s); /* the doorbell's end tells the shell to exit */
        cp_keeper_forget(svc->keeper, &s->child);
        free(s);
    }
    cp_timer_stop(svc->loop, &p->refill);
    free(p);
    svc->pool = NULL;
}
