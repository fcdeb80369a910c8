/* Design notes. A subshell is adopted when the shell between it and us has ended; the server may ask before that, and
 * the kernel tells nobody about a change of parent. So the parent is looked at when asked, whenever something has been
 * reaped (the shell in between, mostly), and by a short timer. The answer is sent when the process is ours, since only
 * then is its status bound to reach us; until it has its go-ahead it does not end by itself. */
#include "keeper/core.h"

#include "base/clock.h"
#include "base/fd.h"

#include <errno.h>
#include <unistd.h>

static void on_timer(cp_timer *t) { adopt_check(CP_CONTAINER(t, keeper, adopt_timer)); }

static void give_up(keeper *k, child *c, int sys) {
    c->adopt_by = 0;
    k->books.adopting--;
    peer_tell_refused(k, c, sys, CP_STEP_adopt);
}

static void look(keeper *k, child *c, uint64_t now) {
    cp_proc_stat st;
    bool seen = cp_proc_stat_read(c->pid, &st);
    if (!seen && cp_lack(errno) && now < c->adopt_by) return;  /* it is looked at again */
    if (seen && !c->start_time) c->start_time = st.start_time; /* the server did not know it */
    if (!seen || st.start_time != c->start_time) {
        give_up(k, c, ESRCH);
    } else if (st.ppid == getpid()) {
        c->adopt_by = 0;
        k->books.adopting--;
        peer_tell_spawned(k, c);
    } else if (now >= c->adopt_by) {
        give_up(k, c, ETIMEDOUT);
    }
}

void adopt_check(keeper *k) {
    if (!k->books.adopting) return;
    uint64_t now = cp_now_ms();
    for (child *c = TAILQ_FIRST(&k->books.all), *next; c; c = next) {
        next = TAILQ_NEXT(c, all);
        if (c->adopt_by) look(k, c, now);
    }
    if (k->books.adopting) cp_timer_start(k->loop, &k->adopt_timer, ADOPT_POLL_MS, on_timer);
}

void adopt_begin(keeper *k, child *c, uint64_t expect_start) {
    c->adopt_by = cp_now_ms() + ADOPT_LIMIT_MS;
    k->books.adopting++;
    c->start_time = expect_start;
    look(k, c, cp_now_ms());
    if (k->books.adopting && !cp_timer_active(&k->adopt_timer))
        cp_timer_start(k->loop, &k->adopt_timer, ADOPT_POLL_MS, on_timer);
}
