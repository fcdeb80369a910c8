/* A child of its own for one execution: argv as given, or a shell where none of the pre-started ones will do. Also what
 * the keeper hands over after a restart, which is the same thing found half-way. */
#include "base/fd.h"
#include "services/exec_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

/* execve takes at most 128 KiB in one string (MAX_ARG_STRLEN); a longer script goes by memfd (B014). */
enum { ARG_LIMIT = 120 * 1024 };

static const char read_script[] =
    "IFS= read -rd '' BASH_EXECUTION_STRING <&3;exec 3<&-;eval \"$BASH_EXECUTION_STRING\"";

struct spawned {
    cp_exec_child c;
    cp_keeper *keeper;
};

struct ends {
    int in[2], out[2], err[2]; /* pipes; [1] of in and [0] of the others are ours */
    int script;
};

static void close_ends(struct ends *p) {
    int *fds[] = {&p->in[0], &p->in[1], &p->out[0], &p->out[1], &p->err[0], &p->err[1], &p->script};
    for (size_t i = 0; i < CP_COUNT(fds); i++) cp_close(fds[i]);
}
#define autoends __attribute__((cleanup(close_ends)))

static void release(cp_exec *e) {
    struct spawned *s = cp_exec_backend_data(e);
    cp_keeper_forget(s->keeper, &s->c.child);
    free(s);
}

static const cp_exec_backend spawn_backend = {.name = "spawn", .release = release, .owns_child = true};

/* ---- how it failed ---- */

static void describe(const cp_exec *e, const char *cwd, const char *program, int sys, const char *step, cp_err *err) {
    const char *name = cp_errno_name(sys);
    (void)e;
    if (strcmp(step, "children") == 0 || strcmp(step, "memory") == 0 ||
        strcmp(step, "fds") == 0) { /* lacks that pass */
        cp_fail_sys(err, CP_E_LIMIT_EXCEEDED, sys, "cannot start '%.200s' now: the keeper has no room: %s: %s", program,
                    step, name);
    } else if (sys == ETIMEDOUT) { /* the keeper's deadline, mostly; or the file system's own, which is as clear */
        cp_fail_sys(err, CP_E_COMMAND_EXECUTION_ERROR, sys,
                    "cannot start '%.200s' in '%.200s': %s did not come back: %s", program, cwd, step, name);
    } else if (strcmp(step, "chdir") == 0) {
        cp_fail_sys(err, CP_E_COMMAND_EXECUTION_ERROR, sys, "Failed to change directory to '%s': %s", cwd, name);
    } else if (strcmp(step, "execve") == 0) {
        cp_code code = sys == ENOENT   ? CP_E_COMMAND_NOT_FOUND
                       : sys == EACCES ? CP_E_COMMAND_PERMISSION_DENIED
                                       : CP_E_COMMAND_EXECUTION_ERROR;
        cp_fail_sys(err, code, sys, "cannot execute '%.200s': %s", program, name);
    } else if (strncmp(step, "set", 3) == 0 && sys == EPERM) {
        cp_fail_sys(err, CP_E_PERMISSION_DENIED, sys, "cannot become the user asked for: %s: %s", step, name);
        memcpy(err->field, "user", 5);
    } else {
        cp_fail_sys(err, CP_E_COMMAND_EXECUTION_ERROR, sys, "cannot start '%.200s': %s: %s", program, step, name);
    }
}

static const char *program_of(cp_exec *e) {
    const cp_exec_job *j = cp_exec_job_of(e);
    return j->args && j->args[0] ? j->args[0] : "bash";
}

static const char *cwd_of(cp_exec *e) {
    const cp_exec_job *j = cp_exec_job_of(e);
    return j->cwd ? j->cwd : e->svc->workspace;
}

static void on_spawn(cp_child *c, int sys, const char *step) {
    cp_exec *e = CP_CONTAINER(c, cp_exec_child, child)->e;
    if (sys == 0) {
        e->mark = c->mark;
        cp_exec_started(e, c->pid, c->start_time);
        return;
    }
    cp_err err = {0};
    describe(e, cwd_of(e), program_of(e), sys, step, &err);
    cp_exec_failed(e, &err);
}

static void on_exit_(cp_child *c, const cp_exit *x) { cp_exec_exited(CP_CONTAINER(c, cp_exec_child, child)->e, x); }

/* ---- making it ---- */

static int open_ends(cp_exec *e, struct ends *p, cp_err *err) {
    const cp_exec_job *j = cp_exec_job_of(e);
    bool ok = cp_pipe(p->out, 0) == 0 && cp_pipe(p->err, 0) == 0;
    if (ok && j->want_stdin) ok = cp_pipe(p->in, 0) == 0 && cp_nonblock(p->in[1]) == 0;
    if (ok && !j->args && strlen(j->command) > ARG_LIMIT) {
        p->script = cp_memfd("command", j->command, strlen(j->command) + 1); /* with its NUL: read -d '' stops there */
        ok = p->script >= 0;
    }
    if (ok) return 0;
    bool many = errno == EMFILE || errno == ENFILE;
    return cp_fail_sys(err, many ? CP_E_TOO_MANY_FILES : CP_E_COMMAND_EXECUTION_ERROR, errno, "pipes for a command");
}

static int spawn(cp_exec *e, struct spawned *s, const struct ends *p, const char *const *argv, cp_err *err) {
    const cp_exec_job *j = cp_exec_job_of(e);
    char key[CP_EXEC_KEY_MAX];
    cp_exec_key(e, key);
    const char **env = cp_exec_environ(e, err);
    if (!env) return -1;
    cp_spawn sp = {.argv = argv,
                   .env = env,
                   .cwd = cwd_of(e),
                   .fds = {p->in[0], p->out[1], p->err[1], p->script, -1, -1, -1, -1},
                   .hold = {p->in[1], p->out[0], p->err[0]},
                   .key = e->durable ? key : NULL,
                   .set_user = j->set_user,
                   .uid = j->uid,
                   .gid = j->gid,
                   .groups = j->groups,
                   .ngroups = j->ngroups};
    int r = cp_keeper_spawn(s->keeper, &s->c.child, &sp, err);
    free(env);
    return r;
}

static void run(cp_exec *e, const char *const *argv) {
    autoends struct ends p = {{-1, -1}, {-1, -1}, {-1, -1}, -1};
    cp_err err = {0};
    struct spawned *s = cp_new(struct spawned);
    s->keeper = e->svc->keeper;
    s->c.child = (cp_child){.on_spawn = on_spawn, .on_exit = on_exit_};
    s->c.e = e;
    cp_exec_set_backend(e, &spawn_backend, s);
    if (open_ends(e, &p, &err) < 0) {
        cp_exec_failed(e, &err);
        return;
    }
    const char *const long_script[] = {cp_exec_bash(e->svc), "-c", read_script, "bash", NULL};
    if (spawn(e, s, &p, p.script >= 0 ? long_script : argv, &err) < 0) {
        cp_exec_failed(e, &err);
        return;
    }
    if (e->durable) cp_exec_set_child(e, &s->c);
    cp_exec_attach_output(e, cp_take_fd(&p.out[0]), cp_take_fd(&p.err[0]));
    if (p.in[1] >= 0) cp_exec_attach_stdin(e, cp_take_fd(&p.in[1]));
}

void cp_exec_run_argv(cp_exec *e) {
    const cp_exec_job *j = cp_exec_job_of(e);
    if (j->args) {
        run(e, (const char *const *)j->args);
        return;
    }
    const char *text = strlen(j->command) <= ARG_LIMIT ? j->command : ""; /* then it is not used */
    const char *const argv[] = {cp_exec_bash(e->svc), "-c", text, "bash", NULL};
    run(e, argv);
}

/* ---- found again ---- */

void cp_exec_run_held(cp_exec *e, const cp_held *h) {
    struct spawned *s = cp_new(struct spawned);
    s->keeper = e->svc->keeper;
    s->c.child = (cp_child){.on_exit = on_exit_};
    cp_exec_set_backend(e, &spawn_backend, s);
    cp_exec_set_child(e, &s->c);
    cp_keeper_claim(s->keeper, &s->c.child, h);
    e->mark = h->mark;
    cp_exec_started(e, h->pid, h->start_time);
    cp_exec_attach_output(e, h->fds[1], h->fds[2]);
    if (h->fds[0] >= 0) {
        (void)cp_nonblock(h->fds[0]);
        cp_exec_attach_stdin(e, h->fds[0]);
    }
    if (h->exited) cp_exec_exited(e, &h->exit);
}
