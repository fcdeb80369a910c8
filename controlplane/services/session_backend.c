/* What exec.c asks of a command in a session.
 *
 * Which part of a session a command owns, for signals: what carries its number (base/mark.h) and all that descends from
 * that, wherever it has gone. And, since a command may set the limit that the number is in: what descends from the
 * shell and has started since the command began, by start time (10 ms ticks) and, within one tick, by pid; never what
 * hangs below something older, or carries the number of another. The shell itself is in no command's tree: it is
 * interrupted, and replaced when that fails (session_shell.c). */
#include "services/session_impl.h"

#include "services/exec_core.h"

#include <signal.h>

static bool began_since(const struct session_job *j, const cp_proc *p) {
    if (p->start_time != j->begin_ticks) return p->start_time > j->begin_ticks;
    return p->pid > j->last_pid;
}

/* A look at a session for what belongs to one of its commands. */
struct look {
    const struct session_job *j;
    const cp_tree *all;
    pid_t shell;
    cp_mark mark;
    bool numbered; /* the shell carries the command's number, and so does what it starts */
};

static bool inside(const struct look *l, cp_proc *p) {
    if (p->ppid == l->shell) return true;
    if (p->sid != l->shell || (l->numbered && cp_proc_mark(p)->spawn == l->mark.spawn)) return false;
    /* Its parent has ended: the keeper adopted it. A parent that is still in the session is somebody else's. */
    for (size_t i = 0; i < l->all->n; i++)
        if (l->all->v[i].pid == p->ppid) return l->all->v[i].sid != l->shell;
    return true;
}

static bool owns(const struct look *l, const cp_tree *out, cp_proc *p) {
    if (cp_tree_has(out, p->ppid) || cp_mark_matches(&l->mark, cp_proc_mark(p))) return true;
    return began_since(l->j, p) && inside(l, p);
}

void session_collect_owned(struct session_job *j, cp_tree *all, cp_tree *out) {
    cp_tree session = {0};
    const cp_child *shell = &j->s->child;
    struct look l = {.j = j, .all = all, .shell = shell->pid, .mark = session_mark_of(j)};
    cp_mark now;
    cp_tree_collect(&session, all, shell->pid, shell->start_time, &(cp_mark){.spawn = l.mark.spawn});
    l.numbered = cp_mark_of(shell->pid, &now) && cp_mark_matches(&l.mark, &now);
    for (size_t i = 0; i < session.n; i++) { /* parents come first */
        cp_proc *p = &session.v[i];
        if (p->pid != shell->pid && owns(&l, out, p)) cp_tree_add(out, p);
    }
    cp_tree_free(&session);
}

/* When the turn is over, or the shell has gone under the command, what is left of it is known by its mark alone. The
 * shell carries that too, until the next command. */
static void collect(cp_exec *e, cp_tree *out) {
    struct session_job *j = cp_exec_backend_data(e);
    cp_tree *all = cp_exec_procs(e->svc);
    if (j && j->state == JOB_TURN && !j->started && !j->adopted && j->s->shell == SHELL_READY)
        session_collect_owned(j, all, out);
    else if (j && j->adopted) cp_tree_collect(out, all, j->kid.child.pid, j->kid.child.start_time, &e->mark);
    else if (e->kind == CP_EXEC_BUFFERED) cp_tree_collect_marked(out, all, &e->mark, e->pid, e->pid_start);
    else cp_tree_collect_marked(out, all, &e->mark, 0, 0);
}

/* Its shell evaluates it now. */
static bool in_shell(const struct session_job *j) {
    return j && j->state == JOB_TURN && !j->started && j->s->shell == SHELL_READY;
}

static void interrupt(cp_exec *e) {
    struct session_job *j = cp_exec_backend_data(e);
    if (in_shell(j) && j->kind == JOB_FOREGROUND) session_interrupt(j->s, j->interruptible);
}

static void unwedge(cp_exec *e) {
    struct session_job *j = cp_exec_backend_data(e);
    if (!j) return;
    if (j->state == JOB_QUEUED) { /* it has not begun, and never will */
        session_job_leave(j);
        cp_exec_attach_output(e, -1, -1);
        cp_exec_exited(e, &(cp_exit){.code = -1, .signal = SIGKILL});
    } else if (in_shell(j)) {
        session_unwedge(j->s);
    }
}

/* A kill may still ask for the tree afterwards: ours answers with what carries the mark, the default would name the
 * shell's. */
static void release(cp_exec *e) {
    struct session_job *j = cp_exec_backend_data(e);
    cp_exec_set_backend(e, &session_backend, NULL);
    if (j->state == JOB_QUEUED) session_job_leave(j);
    if (j->started) { /* also when it has ended: the end of its stdin may not have been answered */
        cp_keeper_forget(e->svc->keeper, &j->kid.child);
        j->booked = j->adopted = false;
    }
    j->exec = NULL;
    if (j->state == JOB_TURN) session_job_settle(j); /* which may free it */
    else session_job_unref(j);
}

static void stdin_ends(cp_exec *e) {
    struct session_job *j = cp_exec_backend_data(e);
    if (j && j->s) session_release(j, SESSION_IN_READ | SESSION_IN_KEEP);
}

const cp_exec_backend session_backend = {
    .name = "session",
    .collect = collect,
    .interrupt = interrupt,
    .unwedge = unwedge,
    .stdin_ends = stdin_ends,
    .release = release,
};
