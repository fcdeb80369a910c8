#pragma once
/* Between exec.c and its backends (session.c, pool.c, exec_spawn.c). Nobody else includes this.
 *
 * A backend gets an execution whose outputs exist (e->out[0], e->out[1]) and must, in this order: attach the read ends
 * to them, call cp_exec_started (or cp_exec_failed), and call cp_exec_exited once with the true status. exec.c then
 * runs the drain window, waits for both outputs to end, ends the execution and tells the watchers. Timeouts, stdin
 * pumping, kill escalation, registry rows and history are exec.c's. */
#include "keeper/client.h"
#include "services/exec.h"
#include "services/tree.h"

typedef struct cp_exec_backend {
    const char *name;
    /* Which processes belong to the execution right now, for signals: appends pids (verified by start time) in
     * tree order. Default (NULL): the process group and descendants of e->pid. */
    void (*collect)(cp_exec *e, struct cp_tree *tree);
    /* Its processes are about to be signalled for a kill: whatever would go on with the command when they have ended is
     * told not to. Called again for those that are found later. NULL: there is nothing of that kind. */
    void (*interrupt)(cp_exec *e);
    /* The execution is to end at once but its own processes were killed in vain or there are none: a shell that is busy
     * itself. NULL where it cannot happen. */
    void (*unwedge)(cp_exec *e);
    /* The last of its stdin has been written: whoever else holds the write end lets go of it, or the command never
     * meets the end of its input. NULL: nobody does, but for the keeper. */
    void (*stdin_ends)(cp_exec *e);
    /* The execution has ended, its watchers know, and its end is recorded: release what the backend holds. Once. Where
     * the end was forced (a process that cannot be killed), this comes although cp_exec_exited was never called, unless
     * owns_child. */
    void (*release)(cp_exec *e);
    /* It spawns a child for this execution alone. Its spawn may be answered after a forced end: cp_exec_started then
     * kills it, and release waits for cp_exec_exited or cp_exec_failed. */
    bool owns_child;
} cp_exec_backend;

/* A resolved request that outlives the client's strings; owned by the execution, and gone once it has started: nothing
 * that a client makes long is held while a command runs. */
typedef struct cp_exec_job {
    char *command;
    char **args;     /* NULL-terminated, or NULL */
    char *cwd;       /* NULL: default */
    char **env;      /* "NAME=value", NULL-terminated, or NULL */
    bool want_stdin; /* a pipe instead of /dev/null */
    bool set_user;
    uid_t uid;
    gid_t gid;
    char *user;
    gid_t *groups; /* supplementary ones */
    size_t ngroups;
} cp_exec_job;

struct cp_exec_impl; /* exec.c's */
cp_exec_job *cp_exec_job_of(cp_exec *e);
void cp_exec_set_backend(cp_exec *e, const cp_exec_backend *b, void *data);
void *cp_exec_backend_data(cp_exec *e);

/* Attach the read ends (owned from here on; -1: that stream ends at once). */
void cp_exec_attach_output(cp_exec *e, int out_fd, int err_fd);
/* The write end of the child's stdin, non-blocking (owned from here on), when job->want_stdin. */
void cp_exec_attach_stdin(cp_exec *e, int fd);
/* A durable child: its stdin ends by way of cp_keeper_close_hold (hold[0]), and it is acknowledged to the keeper when
 * its end is recorded. Must be alive until release. */
typedef struct cp_exec_child {
    cp_child child;
    cp_exec *e; /* set by cp_exec_set_child */
} cp_exec_child;
void cp_exec_set_child(cp_exec *e, cp_exec_child *c);
/* The keeper's key of a durable child, into out: "x:<execution id>/<letter of its kind>/<process id>", so that a child
 * whose row has been lost can be told by it. A process id that is too long is left out. */
enum { CP_EXEC_KEY_MAX = 256 };
void cp_exec_key(const cp_exec *e, char out[CP_EXEC_KEY_MAX]);
/* base_env with the job's variables over it, NULL-terminated; owner frees the array, the strings are borrowed. NULL
 * with cp_no_memory. */
const char **cp_exec_environ(cp_exec *e, cp_err *err);
/* (Re)starts the clock of e->timeout_ms, which a backend may have filled in (a session's default). */
void cp_exec_timeout_start(cp_exec *e);
void cp_exec_started(cp_exec *e, pid_t pid, uint64_t start_time);
void cp_exec_failed(cp_exec *e, const cp_err *err);
/* Once. code/signal as the keeper or the shell reported; usage 0 where unknown. */
void cp_exec_exited(cp_exec *e, const cp_exit *x);

/* Backends' entries, called by cp_exec_start on the loop; failures go through cp_exec_failed, asynchronously. */
void cp_exec_run_argv(cp_exec *e);    /* exec_spawn.c: argv, no shell; also a shell without pool for want_stdin etc. */
void cp_exec_run_shell(cp_exec *e);   /* pool.c: sessionless shell text */
void cp_exec_run_session(cp_exec *e); /* session.c: shell text in e->session (created when unknown) */
/* exec_spawn.c: a running or ended child that the keeper has handed over. */
void cp_exec_run_held(cp_exec *e, const cp_held *h);

int cp_pool_open(cp_services *s, cp_err *err);
void cp_pool_close(cp_services *s);
/* Fewer commands are in flight than before: room to start shells for later. */
void cp_pool_refill(cp_services *s);
/* Path of the shell: argv is {path, "-c", script, "bash"}, so that a PATH from the request cannot hide it and $0 is
 * bash. */
const char *cp_exec_bash(const cp_services *s);
size_t cp_exec_oneshots(const cp_services *s); /* running sessionless buffered calls */
