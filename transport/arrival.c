/* Design notes. A client that sends two commands of one session at a time, each on a connection of its own, expects
 * them to run in the order in which they were sent: single-threaded servers keep it without trying. Here each
 * connection has a worker, and which of two woken threads runs first is the scheduler's throw: 30 % of such pairs were
 * swapped.
 *
 * The kernel knows the order. All connections are in one epoll set whose ready list grows in order of arrival; whoever
 * begins a request drains it and gives each connection with news the next turn. Requests for the loop are posted in
 * order of turns: one that is read before an earlier one has been waits for that. What turns out to want nothing of
 * the loop gives its turn back at once, and nobody is waited for longer than CP_ARRIVAL_PATIENCE_MS.
 *
 * The interest is EPOLLOUT besides EPOLLIN, edge-triggered. epoll_wait looks at a socket again before it reports it:
 * with EPOLLIN alone it would drop those whose bytes the worker has read meanwhile, which are the very ones that are
 * raced for. A socket is nearly always writable, so with EPOLLOUT it stays in the list. A new connection reports itself
 * for the same reason; it gets a turn then only when EPOLLIN is among the events.
 *
 * Bytes that come behind a whole request belong to the next one, and open its turn. */
#include "transport/arrival.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>

struct cp_arrivals {
    cp_loop *loop;
    int epfd;
    pthread_mutex_t mu; /* guards the rest, and all arrivals */
    cp_arrival *first, *last;
    size_t nheld;
    bool waking; /* `wake` is posted or the timer runs */
    cp_task wake;
    cp_timer timer; /* loop thread */
};

cp_arrivals *cp_arrivals_new(cp_loop *loop, cp_err *err) {
    cp_arrivals *q = cp_new(cp_arrivals);
    q->loop = loop;
    q->epfd = epoll_create1(EPOLL_CLOEXEC);
    if (q->epfd < 0) {
        cp_fail_sys(err, CP_E_INTERNAL_ERROR, errno, "cannot watch connections");
        free(q);
        return NULL;
    }
    pthread_mutex_init(&q->mu, NULL);
    return q;
}

void cp_arrivals_free(cp_arrivals *q) {
    if (!q) return;
    cp_timer_stop(q->loop, &q->timer);
    cp_close(&q->epfd);
    pthread_mutex_destroy(&q->mu);
    free(q);
}

/* ---- the list; from here to the next line with q->mu held ---- */

static void open_turn(cp_arrivals *q, cp_arrival *a) {
    a->state = CP_ARRIVAL_OPEN;
    a->since = cp_now_ms();
    a->next = NULL;
    a->prev = q->last;
    if (q->last) q->last->next = a;
    else q->first = a;
    q->last = a;
}

static void leave(cp_arrivals *q, cp_arrival *a, cp_arrival_state then) {
    if (a->state == CP_ARRIVAL_OPEN || a->state == CP_ARRIVAL_HELD) {
        if (a->prev) a->prev->next = a->next;
        else q->first = a->next;
        if (a->next) a->next->prev = a->prev;
        else q->last = a->prev;
        a->prev = a->next = NULL;
        q->nheld -= a->state == CP_ARRIVAL_HELD;
    }
    a->state = then;
}

static void post(cp_arrivals *q, cp_arrival *a) {
    leave(q, a, CP_ARRIVAL_NONE);
    cp_loop_post(q->loop, cp_take(a->task), a->fn);
}

/* Posts what waits for nobody any more. */
static void advance(cp_arrivals *q) {
    for (cp_arrival *a; q->nheld && (a = q->first);) {
        if (a->state == CP_ARRIVAL_HELD) post(q, a);
        else if (cp_now_ms() - a->since > CP_ARRIVAL_PATIENCE_MS) leave(q, a, CP_ARRIVAL_LATE);
        else return;
    }
}

static void drain(cp_arrivals *q) {
    struct epoll_event ev[64];
    int n;
    do {
        n = epoll_wait(q->epfd, ev, CP_COUNT(ev), 0);
        for (int i = 0; i < n; i++) {
            cp_arrival *a = ev[i].data.ptr;
            if (a->state == CP_ARRIVAL_NONE) open_turn(q, a);
        }
    } while (n == CP_COUNT(ev));
}

static void wake_up(cp_task *task);

static void watch_patience(cp_arrivals *q) {
    if (!q->nheld || q->waking) return;
    q->waking = true;
    cp_loop_post(q->loop, &q->wake, wake_up);
}

/* ---- the timer, loop thread ---- */

static void on_timer(cp_timer *timer) {
    cp_arrivals *q = CP_CONTAINER(timer, cp_arrivals, timer);
    pthread_mutex_lock(&q->mu);
    advance(q);
    bool again = q->waking = q->nheld > 0;
    pthread_mutex_unlock(&q->mu);
    if (again) cp_timer_start(q->loop, timer, 1, on_timer);
}

static void wake_up(cp_task *task) {
    cp_arrivals *q = CP_CONTAINER(task, cp_arrivals, wake);
    cp_timer_start(q->loop, &q->timer, CP_ARRIVAL_PATIENCE_MS, on_timer);
}

/* ---- connections ---- */

/* CivetWeb's queue hands connections out in the order in which it has accepted them: this comes first of all, before
 * the socket is looked for. */
void cp_arrival_accept(cp_arrivals *q, cp_arrival *a) { cp_arrival_begin(q, a); }

/* What the new watch reports of itself is taken off the list in the same step. */
void cp_arrival_watch(cp_arrivals *q, cp_arrival *a, int fd) {
    struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = a}, got[64];
    pthread_mutex_lock(&q->mu);
    drain(q);
    a->fd = fd;
    a->watched = epoll_ctl(q->epfd, EPOLL_CTL_ADD, fd, &ev) == 0;
    int n = epoll_wait(q->epfd, got, CP_COUNT(got), 0);
    for (int i = 0; i < n; i++) {
        cp_arrival *b = got[i].data.ptr;
        bool input = got[i].events & EPOLLIN;
        if (b == a && !input) leave(q, a, CP_ARRIVAL_NONE);
        else if (b->state == CP_ARRIVAL_NONE) open_turn(q, b);
    }
    advance(q);
    pthread_mutex_unlock(&q->mu);
}

void cp_arrival_unwatch(cp_arrivals *q, cp_arrival *a) {
    pthread_mutex_lock(&q->mu);
    if (a->watched) epoll_ctl(q->epfd, EPOLL_CTL_DEL, a->fd, NULL);
    a->watched = false;
    pthread_mutex_unlock(&q->mu);
}

/* ---- requests ---- */

void cp_arrival_begin(cp_arrivals *q, cp_arrival *a) {
    pthread_mutex_lock(&q->mu);
    drain(q);
    if (a->state == CP_ARRIVAL_NONE) open_turn(q, a);
    pthread_mutex_unlock(&q->mu);
}

void cp_arrival_pass(cp_arrivals *q, cp_arrival *a, bool body_done) {
    pthread_mutex_lock(&q->mu);
    leave(q, a, body_done ? CP_ARRIVAL_NONE : CP_ARRIVAL_BODY);
    advance(q);
    pthread_mutex_unlock(&q->mu);
}

/* Drained before: bytes of its own body that are still in the list must not open a turn for the next request. */
void cp_arrival_post(cp_arrivals *q, cp_arrival *a, cp_task *task, void (*fn)(cp_task *)) {
    pthread_mutex_lock(&q->mu);
    drain(q);
    a->task = task;
    a->fn = fn;
    if (a->state == CP_ARRIVAL_OPEN) {
        a->state = CP_ARRIVAL_HELD;
        q->nheld++;
        advance(q);
        watch_patience(q);
    } else {
        post(q, a);
    }
    pthread_mutex_unlock(&q->mu);
}

void cp_arrival_hurry(cp_arrivals *q, cp_arrival *a) {
    pthread_mutex_lock(&q->mu);
    if (a->state == CP_ARRIVAL_HELD) {
        post(q, a);
        advance(q);
    }
    pthread_mutex_unlock(&q->mu);
}

void cp_arrival_end(cp_arrivals *q, cp_arrival *a) {
    pthread_mutex_lock(&q->mu);
    if (a->state == CP_ARRIVAL_BODY) {
        drain(q);
        a->state = CP_ARRIVAL_NONE;
    }
    pthread_mutex_unlock(&q->mu);
}
