#include "services/stray.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#include "base/fd.h"

enum { AGAIN_MS = 100 };

typedef struct stray {
    struct stray *next;
    pid_t pid;
    uint64_t start_time;
    cp_mark mark;
    bool alone; /* not what belongs to it */
} stray;

struct cp_strays {
    cp_loop *loop;
    stray *first;
    cp_timer again;
};

/* False: a lack has kept some from being seen or reached. */
static bool kill_one(const cp_proc *p) { return cp_proc_signal(p, SIGKILL) == 0 || !cp_lack(errno); }

static bool kill_now(const stray *k) {
    if (k->alone) return kill_one(&(cp_proc){.pid = k->pid, .start_time = k->start_time});
    cp_tree all = {0}, mine = {0};
    bool whole = cp_tree_snapshot(&all) == 0 || !cp_lack(errno);
    cp_tree_collect(&mine, &all, k->pid, k->start_time, &k->mark);
    for (size_t i = 0; i < mine.n; i++) whole &= kill_one(&mine.v[i]);
    cp_tree_free(&mine);
    cp_tree_free(&all);
    return whole;
}

static void again(cp_timer *t) {
    struct cp_strays *x = CP_CONTAINER(t, struct cp_strays, again);
    for (stray **at = &x->first, *k; (k = *at);) {
        if (!kill_now(k)) {
            at = &k->next;
            continue;
        }
        *at = k->next;
        free(k);
    }
    if (x->first) cp_timer_start(x->loop, t, AGAIN_MS, again);
}

/* By then a number alone may be somebody else's. */
static void remember(cp_services *s, const stray *k) {
    pid_t pid = k->start_time ? k->pid : 0;
    if (!pid && !k->mark.spawn) return;
    if (!s->strays) {
        s->strays = cp_new(struct cp_strays);
        s->strays->loop = s->loop;
    }
    stray *kept = cp_new(stray);
    *kept = *k;
    kept->pid = pid;
    kept->next = s->strays->first;
    s->strays->first = kept;
    if (!cp_timer_active(&s->strays->again)) cp_timer_start(s->loop, &s->strays->again, AGAIN_MS, again);
}

void cp_stray_kill(cp_services *s, pid_t pid, uint64_t start_time) {
    stray k = {.pid = pid, .start_time = start_time, .alone = true};
    if (!kill_now(&k)) remember(s, &k);
}

void cp_stray_kill_all(cp_services *s, pid_t root, uint64_t start_time, const cp_mark *mark) {
    stray k = {.pid = root, .start_time = start_time, .mark = *mark};
    if (!kill_now(&k)) remember(s, &k);
}

void cp_strays_close(cp_services *s) {
    if (!s->strays) return;
    cp_timer_stop(s->loop, &s->strays->again);
    for (stray *k; (k = s->strays->first);) {
        s->strays->first = k->next;
        free(k);
    }
    free(s->strays);
    s->strays = NULL;
}
