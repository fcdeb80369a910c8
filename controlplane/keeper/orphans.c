/* Design notes. A child without a key dies with its server, and so does what it has started, wherever that has gone: to
 * another group or session, or to us, when its parent ended first. Whose a process is, its nearest ancestor in the
 * books tells (a durable child may be the child of one that is not). One that has come to us with no such ancestor has
 * kept its group, its session or its mark. */
#include "keeper/core.h"

#include <signal.h>
#include <unistd.h>

enum { ROUNDS = 2 }; /* one may have forked between the reading of /proc and its end */

static bool dies(const child *c) { return c && !c->key && !c->exited; }

static bool is_orphan_of_dying(keeper *k, const proc *p) {
    cp_mark m;
    return dies(books_by_pid(&k->books, p->st.group)) || dies(books_by_pid(&k->books, p->st.session)) ||
           (cp_mark_of(p->pid, &m) && dies(books_by_mark(&k->books, &m)));
}

static bool belongs_to_dying(keeper *k, const proc_table *t, const proc *p) {
    const proc *a = p;
    for (size_t depth = 0; a && depth <= t->n; a = proc_find(t, a->st.ppid), depth++) { /* pids were read one by one */
        const child *c = books_by_pid(&k->books, a->pid);
        if (c) return dies(c);
        if (a->pid == k->cmd || a->pid == k->server) return false;
        if (a->st.ppid == getpid()) return is_orphan_of_dying(k, p);
    }
    return false;
}

static bool any_dies(const keeper *k) {
    const child *c;
    TAILQ_FOREACH(c, &k->books.all, all)
    if (dies(c)) return true;
    return false;
}

static void kill_trees(keeper *k) {
    autotable proc_table t;
    proc_table_read(&t);
    for (size_t i = 0; i < t.n; i++) /* all before the first is killed: ancestry is lost then */
        t.v[i].chosen = t.v[i].pid != getpid() && t.v[i].st.state != 'Z' && belongs_to_dying(k, &t, &t.v[i]);
    for (size_t i = 0; i < t.n; i++)
        if (t.v[i].chosen) proc_signal(&t.v[i], SIGKILL);
}

/* Needs no /proc and no descriptor. */
static void kill_with_group(const child *c) {
    if (!c->adopted) kill(-c->pid, SIGKILL);
    kill(c->pid, SIGKILL); /* it may have moved to another group */
}

void orphans_kill(keeper *k) {
    for (child *c = TAILQ_FIRST(&k->books.all), *next; c; c = next) {
        next = TAILQ_NEXT(c, all);
        if (c->adopt_by) books_remove(&k->books, c); /* it waits for a go-ahead that cannot come, and sees its end */
    }
    if (!any_dies(k)) return;
    for (int round = 0; round < ROUNDS; round++) {
        kill_trees(k);
        child *c;
        TAILQ_FOREACH(c, &k->books.all, all)
        if (dies(c)) kill_with_group(c);
    }
}
