#include "services/stray.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#include "base/fd.h"
#include "base/ring.h"

enum { AGAIN_MS = 100, AT_ONCE = 32 /* of one turn of the loop */ };

typedef struct stray {
    cp_link link;
    pid_t pid;
    uint64_t start_time;
    cp_mark mark;
    bool alone; /* not what belongs to it */
} stray;

struct cp_strays {
    cp_loop *loop;
    cp_link waiting;
    cp_timer again;
};

/* False: a lack has kept it from being seen or reached. */
static bool kill_one(const cp_proc *p) { return cp_proc_signal(p, SIGKILL) == 0 || !cp_lack(errno); }

static bool snapshot(cp_tree *all) { return cp_tree_snapshot(all) == 0 || !cp_lack(errno); }

/* `whole`: the snapshot has all. */
static bool kill_now(const stray *k, cp_tree *all, bool whole) {
    if (k->alone) return kill_one(&(cp_proc){.pid = k->pid, .start_time = k->start_time});
    cp_tree mine = {0};
    cp_tree_collect(&mine, all, k->pid, k->start_time, &k->mark);
    for (size_t i = 0; i < mine.n; i++) whole &= kill_one(&mine.v[i]);
    cp_tree_free(&mine);
    return whole;
}

static stray *first(const cp_link *list) {
    cp_link *l = cp_ring_first(list);
    return l ? CP_CONTAINER(l, stray, link) : NULL;
}

static void forget(stray *k) {
    cp_ring_del(&k->link);
    free(k);
}

/* Who cannot be ended yet goes to the end of the queue. */
static void again(cp_timer *t) {
    struct cp_strays *x = CP_CONTAINER(t, struct cp_strays, again);
    cp_tree all = {0};
    cp_link later;
    cp_ring_init(&later);
    bool whole = snapshot(&all);
    stray *k;
    for (int n = 0; n < AT_ONCE && (k = first(&x->waiting)); n++) {
        if (kill_now(k, &all, whole)) forget(k);
        else cp_ring_move(&later, &k->link);
    }
    bool lack = !whole || !cp_ring_empty(&later);
    cp_ring_join(&x->waiting, &later);
    cp_tree_free(&all);
    if (!cp_ring_empty(&x->waiting)) cp_timer_start(x->loop, t, lack ? AGAIN_MS : 1, again);
}

/* By then a number alone may be somebody else's. */
static void remember(cp_services *s, const stray *k) {
    pid_t pid = k->start_time ? k->pid : 0;
    if (!pid && !k->mark.spawn) return;
    if (!s->strays) {
        s->strays = cp_new(struct cp_strays);
        s->strays->loop = s->loop;
        cp_ring_init(&s->strays->waiting);
    }
    stray *kept = cp_new(stray);
    *kept = *k;
    kept->pid = pid;
    cp_ring_add(&s->strays->waiting, &kept->link);
    if (!cp_timer_active(&s->strays->again)) cp_timer_start(s->loop, &s->strays->again, AGAIN_MS, again);
}

void cp_stray_kill(cp_services *s, pid_t pid, uint64_t start_time) {
    stray k = {.pid = pid, .start_time = start_time, .alone = true};
    if (!kill_now(&k, NULL, true)) remember(s, &k);
}

void cp_stray_kill_all(cp_services *s, pid_t root, uint64_t start_time, const cp_mark *mark) {
    stray k = {.pid = root, .start_time = start_time, .mark = *mark};
    cp_tree all = {0};
    bool whole = snapshot(&all);
    if (!kill_now(&k, &all, whole)) remember(s, &k);
    cp_tree_free(&all);
}

void cp_strays_close(cp_services *s) {
    if (!s->strays) return;
    cp_timer_stop(s->loop, &s->strays->again);
    for (stray *k; (k = first(&s->strays->waiting));) forget(k);
    free(s->strays);
    s->strays = NULL;
}
