/* What waits for descriptors. While calls run that will give theirs back, one more waits for its turn rather than be
 * refused: under a low limit forty calls at once are forty calls one after the other. When nothing comes back in time,
 * because processes or streams hold what there is, it fails as it would have. First come, first served.
 *
 * A call gives back a little after it has ended (its logs, its client's connection), so the end of one is not looked
 * at: a timer is. */
#include "services/exec_core.h"

#include "services/nofile.h"

#include <stdlib.h>

enum { LOOK_MS = 5, PATIENCE_MS = 3000, MOST = 1024 };

struct cp_exec_short {
    struct cp_exec_short *next;
    cp_exec *e;
    uint64_t until;
};

static bool over(const cp_exec *e) { return e->state != CP_STATE_STARTING || e->impl->has_exit || !e->impl->listed; }

static cp_exec *take_first(struct cp_execs *x) {
    struct cp_exec_short *w = x->short_head;
    cp_exec *e = w->e;
    x->short_head = w->next;
    x->nshort--;
    free(w);
    return e;
}

/* With no call under way one at a time may use what is kept for connections: these may be what holds the rest, and they
 * wait for it. Not in a session, which keeps what it takes. */
static bool has_room(const struct cp_execs *x, const cp_exec *e, cp_err *err) {
    if (cp_nofile_room(CP_NOFILE_START, err) == 0) return true;
    bool brief = e->kind == CP_EXEC_BUFFERED && !e->session;
    return brief && !x->calls && cp_nofile_room(CP_NOFILE_CONNECTION, err) == 0;
}

static void look(cp_timer *t) {
    struct cp_execs *x = CP_CONTAINER(t, struct cp_execs, short_timer);
    cp_services *s = x->svc;
    while (x->short_head) {
        cp_err err;
        struct cp_exec_short *w = x->short_head;
        bool room = over(w->e) || has_room(x, w->e, &err);
        if (!room && cp_loop_now(s->loop) < w->until) break;
        cp_exec *e = take_first(x);
        if (over(e)) (void)0; /* ended while it waited */
        else if (room) cp_exec_dispatch(e);
        else cp_exec_failed(e, &err);
        cp_exec_unref(e);
    }
    if (x->short_head) cp_timer_start(s->loop, t, LOOK_MS, look);
}

void cp_exec_begin_with_room(cp_exec *e, bool admitted) {
    cp_err err;
    struct cp_execs *x = e->svc->execs;
    if (over(e)) return;
    if (!x->short_head && cp_nofile_room(CP_NOFILE_START, &err) == 0) {
        cp_exec_dispatch(e);
        return;
    }
    if (!x->short_head && !cp_exec_gives_back(e->svc)) {
        if (admitted) cp_exec_dispatch(e);
        else cp_exec_failed(e, &err);
        return;
    }
    if (x->nshort >= MOST) {
        cp_fail(&err, CP_E_LIMIT_EXCEEDED, "%zu commands wait for descriptors already", x->nshort);
        cp_exec_failed(e, &err);
        return;
    }
    struct cp_exec_short *w = cp_new(struct cp_exec_short);
    w->e = e;
    w->until = cp_loop_now(e->svc->loop) + PATIENCE_MS;
    cp_exec_ref(e);
    if (!x->short_head) x->short_tail = &x->short_head;
    *x->short_tail = w;
    x->short_tail = &w->next;
    x->nshort++;
    if (!cp_timer_active(&x->short_timer)) cp_timer_start(e->svc->loop, &x->short_timer, LOOK_MS, look);
}

bool cp_exec_gives_back(const cp_services *s) { return s->execs->calls > 0; }

void cp_exec_short_close(cp_services *s) {
    struct cp_execs *x = s->execs;
    cp_timer_stop(s->loop, &x->short_timer);
    while (x->short_head) cp_exec_unref(take_first(x));
}
