/* Design notes. Watchers sit in a table; epoll carries (generation << 32 | index), so an event fetched before its
 * watcher was removed is recognised as stale and dropped, even when the slot or the fd number has been given out again.
 * Timers are a binary heap that knows each timer's place, so stop is O(log n). Posts from other threads go to a list
 * under a mutex, and one eventfd write wakes the loop; the write is skipped while one is already pending. */
#define CP_LOOP_UNNAMED
#include "base/loop.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/turn.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { EVENTS_PER_ROUND = 256, FAR_MS = 1000, FIRST_TIMERS = 64, LATE_MS = 50 };

#if defined(CONFLUX_TURNS) && !defined(CONFLUX_LIBRARY)
#define MEASURED
#endif

#ifdef MEASURED
#define TURN_BEGIN(l) cp_turn_begin(&(l)->turns)
#define TURN_END(l)   cp_turn_end(&(l)->turns)
#define CALL(l, x, call)                                                                                               \
    do {                                                                                                               \
        const char *name_ = (x)->name; /* it may free itself */                                                        \
        call;                                                                                                          \
        cp_turn_ran(&(l)->turns, name_);                                                                               \
    } while (0)
#else
#define TURN_BEGIN(l)    ((void)0)
#define TURN_END(l)      ((void)0)
#define CALL(l, x, call) call
#endif

struct slot {
    cp_io *io;
    uint32_t gen;
    uint32_t next_free;
    bool late; /* the kernel had no memory for the watch: it is tried again */
};

struct cp_loop {
    int epfd;
    int wakefd;
    _Atomic pthread_t thread; /* any thread may ask whether it is the loop's */
    atomic_bool stop;
    uint64_t now;

    struct slot *slots;
    uint32_t nslots, free_head; /* free_head: index + 1 */
    cp_timer late;              /* active while some watch is late */

    cp_timer **heap;
    uint32_t nheap, heap_cap;

    pthread_mutex_t mu; /* guards post_* */
    cp_task *post_head, **post_tail;
    bool wake_pending;

    cp_deferred *defer_head, **defer_tail;
    cp_deferred *due; /* what this round runs; taken off the list above */
#ifdef MEASURED
    cp_turns turns;
#endif
};

cp_loop *cp_loop_new(cp_err *err) {
    cp_loop *l = cp_new(cp_loop);
    l->heap_cap = FIRST_TIMERS;
    l->heap = cp_alloc(l->heap_cap * sizeof(cp_timer *));
    l->epfd = epoll_create1(EPOLL_CLOEXEC);
    l->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = UINT64_MAX};
    if (l->epfd < 0 || l->wakefd < 0 || epoll_ctl(l->epfd, EPOLL_CTL_ADD, l->wakefd, &ev) < 0) {
        cp_fail_sys(err, CP_E_INTERNAL_ERROR, errno, "event loop");
        cp_close(&l->epfd);
        cp_close(&l->wakefd);
        free(l->heap);
        free(l);
        return NULL;
    }
    pthread_mutex_init(&l->mu, NULL);
    l->post_tail = &l->post_head;
    l->defer_tail = &l->defer_head;
    atomic_store_explicit(&l->thread, pthread_self(), memory_order_relaxed);
    l->now = cp_now_ms();
#ifdef MEASURED
    cp_turns_open(&l->turns);
#endif
    return l;
}

void cp_loop_free(cp_loop *l) {
    if (!l) return;
#ifdef MEASURED
    cp_turns_close(&l->turns);
#endif
    cp_close(&l->epfd);
    cp_close(&l->wakefd);
    pthread_mutex_destroy(&l->mu);
    free(l->slots);
    free(l->heap);
    free(l);
}

uint64_t cp_loop_now(const cp_loop *l) { return l->now; }
bool cp_loop_here(const cp_loop *l) {
    return pthread_equal(atomic_load_explicit(&l->thread, memory_order_relaxed), pthread_self());
}

/* ---- watchers ---- */

static void slots_grow(cp_loop *l) {
    uint32_t n = l->nslots ? l->nslots * 2 : 64;
    l->slots = cp_realloc(l->slots, n * sizeof *l->slots);
    for (uint32_t i = n; i-- > l->nslots;) {
        l->slots[i] = (struct slot){.next_free = l->free_head};
        l->free_head = i + 1;
    }
    l->nslots = n;
}

static uint32_t slot_take(cp_loop *l) {
    if (!l->free_head) slots_grow(l);
    uint32_t i = l->free_head - 1;
    l->free_head = l->slots[i].next_free;
    return i;
}

static void slot_give(cp_loop *l, uint32_t i) {
    l->slots[i].io = NULL;
    l->slots[i].gen++;
    l->slots[i].next_free = l->free_head;
    l->free_head = i + 1;
}

static struct epoll_event event_of(const cp_loop *l, uint32_t i, uint32_t events) {
    return (struct epoll_event){.events = events, .data.u64 = (uint64_t)l->slots[i].gen << 32 | i};
}

/* 0; 1: the kernel has no memory for it now, or the user has as many watches as may be; -1 with errno. */
static int watch(const cp_loop *l, uint32_t i, int fd, uint32_t events) {
    struct epoll_event ev = event_of(l, i, events);
    if (epoll_ctl(l->epfd, EPOLL_CTL_ADD, fd, &ev) == 0) return 0;
    return errno == ENOMEM || errno == ENOSPC ? 1 : -1;
}

static void add_late(cp_timer *t);

static void wait_to_add(cp_loop *l) {
#ifdef MEASURED
    l->late.name = "loop.c:add_late";
#endif
    cp_timer_start(l, &l->late, LATE_MS, add_late);
}

static void add_late(cp_timer *t) {
    cp_loop *l = CP_CONTAINER(t, cp_loop, late);
    bool left = false;
    for (uint32_t i = 0; i < l->nslots; i++) {
        struct slot *s = &l->slots[i];
        if (s->late) left |= s->late = watch(l, i, s->io->fd, s->io->events) > 0;
    }
    if (left) wait_to_add(l);
}

int cp_io_add(cp_loop *l, cp_io *io, int fd, uint32_t events, void (*fn)(cp_io *, uint32_t)) {
    uint32_t i = slot_take(l);
    int rc = watch(l, i, fd, events);
    if (rc < 0) {
        int saved = errno;
        slot_give(l, i);
        errno = saved;
        return -1;
    }
    l->slots[i].io = io;
    l->slots[i].late = rc > 0;
    *io = (cp_io){.fd = fd, .events = events, .fn = fn, .slot = i + 1};
    if (rc > 0 && !cp_timer_active(&l->late)) wait_to_add(l);
    return 0;
}

int cp_io_mod(cp_loop *l, cp_io *io, uint32_t events) {
    if (!io->slot) {
        errno = EBADF;
        return -1;
    }
    if (io->events == events) return 0;
    struct epoll_event ev = event_of(l, io->slot - 1, events);
    if (!l->slots[io->slot - 1].late && epoll_ctl(l->epfd, EPOLL_CTL_MOD, io->fd, &ev) < 0) return -1;
    io->events = events;
    return 0;
}

void cp_io_del(cp_loop *l, cp_io *io) {
    if (!io->slot) return;
    if (!l->slots[io->slot - 1].late) epoll_ctl(l->epfd, EPOLL_CTL_DEL, io->fd, NULL);
    l->slots[io->slot - 1].late = false;
    slot_give(l, io->slot - 1);
    io->slot = 0;
    io->events = 0;
}

/* ---- timers ---- */

static void heap_set(cp_loop *l, uint32_t i, cp_timer *t) {
    l->heap[i] = t;
    t->slot = i + 1;
}

static void heap_up(cp_loop *l, uint32_t i) {
    cp_timer *t = l->heap[i];
    while (i > 0 && l->heap[(i - 1) / 2]->at > t->at) {
        heap_set(l, i, l->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    heap_set(l, i, t);
}

static void heap_down(cp_loop *l, uint32_t i) {
    cp_timer *t = l->heap[i];
    for (;;) {
        uint32_t c = 2 * i + 1;
        if (c >= l->nheap) break;
        if (c + 1 < l->nheap && l->heap[c + 1]->at < l->heap[c]->at) c++;
        if (l->heap[c]->at >= t->at) break;
        heap_set(l, i, l->heap[c]);
        i = c;
    }
    heap_set(l, i, t);
}

void cp_timer_stop(cp_loop *l, cp_timer *t) {
    if (!t->slot) return;
    uint32_t i = t->slot - 1;
    t->slot = 0;
    cp_timer *last = l->heap[--l->nheap];
    if (last == t) return;
    heap_set(l, i, last);
    heap_up(l, i);
    heap_down(l, last->slot - 1);
}

void cp_timer_start(cp_loop *l, cp_timer *t, uint64_t delay_ms, void (*fn)(cp_timer *)) {
    cp_timer_stop(l, t);
    if (__builtin_add_overflow(l->now, delay_ms, &t->at)) t->at = UINT64_MAX;
    t->fn = fn;
    if (l->nheap == l->heap_cap) {
        l->heap_cap *= 2;
        l->heap = cp_realloc(l->heap, l->heap_cap * sizeof(cp_timer *));
    }
    heap_set(l, l->nheap++, t);
    heap_up(l, l->nheap - 1);
}

/* No more timers than there were: one that starts itself again with no delay waits for the next round, so that it
 * cannot keep the events out. */
static void run_timers(cp_loop *l) {
    for (uint32_t n = l->nheap; n && l->nheap && l->heap[0]->at <= l->now; n--) {
        cp_timer *t = l->heap[0];
        cp_timer_stop(l, t);
        CALL(l, t, t->fn(t));
    }
}

static int wait_ms(const cp_loop *l, int limit) {
    if (l->defer_head) return 0;
    if (!l->nheap) return limit;
    uint64_t at = l->heap[0]->at, d = at > l->now ? at - l->now : 0;
    if (d > FAR_MS) { /* woken a little early, once, instead of asking for the time in every round */
        d -= FAR_MS / 4;
    } else {
        uint64_t now = cp_now_ms();
        d = at > now ? at - now : 0;
    }
    if (d > 60000) d = 60000;
    return limit >= 0 && (uint64_t)limit < d ? limit : (int)d;
}

/* ---- messages and deferred work ---- */

static void wake(cp_loop *l) {
    uint64_t one = 1;
    (void)!write(l->wakefd, &one, sizeof one); /* EAGAIN: it is awake already */
}

void cp_loop_post(cp_loop *l, cp_task *task, void (*fn)(cp_task *)) {
    task->fn = fn;
    task->next = NULL;
    pthread_mutex_lock(&l->mu);
    *l->post_tail = task;
    l->post_tail = &task->next;
    bool need = !l->wake_pending;
    l->wake_pending = true;
    pthread_mutex_unlock(&l->mu);
    if (need) wake(l);
}

static void run_posts(cp_loop *l) {
    uint64_t n;
    (void)!read(l->wakefd, &n, sizeof n);
    pthread_mutex_lock(&l->mu);
    cp_task *t = l->post_head;
    l->post_head = NULL;
    l->post_tail = &l->post_head;
    l->wake_pending = false;
    pthread_mutex_unlock(&l->mu);
    while (t) {
        cp_task *next = t->next;
        CALL(l, t, t->fn(t));
        t = next;
    }
}

void cp_loop_defer(cp_loop *l, cp_deferred *d, void (*fn)(cp_deferred *)) {
    if (d->queued) return;
    *d = (cp_deferred){.fn = fn, .queued = true, .link = l->defer_tail};
    *l->defer_tail = d;
    l->defer_tail = &d->next;
}

void cp_loop_undefer(cp_loop *l, cp_deferred *d) {
    if (!d->queued) return;
    d->queued = false;
    *d->link = d->next;
    if (d->next) d->next->link = d->link;
    else if (l->defer_tail == &d->next) l->defer_tail = d->link; /* else it is the last of those that are due */
}

/* What is deferred meanwhile, perhaps by a task again for itself, waits for the next round: events come in between. */
static void run_deferred(cp_loop *l) {
    l->due = l->defer_head;
    if (l->due) l->due->link = &l->due;
    l->defer_head = NULL;
    l->defer_tail = &l->defer_head;
    while (l->due) {
        cp_deferred *d = l->due;
        cp_loop_undefer(l, d);
        CALL(l, d, d->fn(d));
    }
}

/* ---- running ---- */

int cp_loop_once(cp_loop *l, int timeout_ms) {
    struct epoll_event ev[EVENTS_PER_ROUND];
    int n = epoll_wait(l->epfd, ev, EVENTS_PER_ROUND, wait_ms(l, timeout_ms));
    if (n < 0 && errno != EINTR) return -1;
    l->now = cp_now_ms();
    TURN_BEGIN(l);
    for (int i = 0; i < n; i++) {
        if (ev[i].data.u64 == UINT64_MAX) {
            run_posts(l);
            continue;
        }
        uint32_t index = (uint32_t)ev[i].data.u64;
        struct slot *s = &l->slots[index];
        if (s->io && s->gen == (uint32_t)(ev[i].data.u64 >> 32)) CALL(l, s->io, s->io->fn(s->io, ev[i].events));
    }
    run_timers(l);
    run_deferred(l);
    TURN_END(l);
    return 0;
}

int cp_loop_run(cp_loop *l, cp_err *err) {
#ifdef MEASURED
    if (!cp_loop_here(l)) { /* it was made by another one */
        cp_turns_close(&l->turns);
        cp_turns_open(&l->turns);
    }
#endif
    atomic_store_explicit(&l->thread, pthread_self(), memory_order_relaxed);
    while (!atomic_load_explicit(&l->stop, memory_order_acquire))
        if (cp_loop_once(l, -1) < 0) return cp_fail_sys(err, CP_E_INTERNAL_ERROR, errno, "event loop");
    return 0;
}

void cp_loop_stop(cp_loop *l) {
    atomic_store_explicit(&l->stop, true, memory_order_release);
    wake(l);
}
