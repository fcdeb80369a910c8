/* Design notes. A lane is a ring of owners that have work waiting. A free thread takes the first piece of the owner
 * whose turn it is, and the owner goes to the end of the ring: a client with ten thousand pieces waiting delays another
 * by one.
 *
 * Work may hang: a lock that is held, a file system that has gone. So an owner runs at most `most` pieces at a time,
 * and an owner that runs nothing gets a thread beyond `most`, up to `bound`, when none is free: those who hang keep
 * their own share and no more. Threads beyond `most` end after LINGER_S without work.
 *
 * A lane whose first thread cannot start (the table of processes is full) hands its work to the lane of files, which
 * has had one since the beginning. */
#include "base/work.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/cond.h"
#include "base/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum { STACK = 256 * 1024, LINGER_S = 10, BUCKETS = 64, THREADS_MAX = 256, BEYOND = 8 };

typedef struct cp_work_queue {
    struct lane *lane;
    uint64_t owner;
    cp_work *head, *tail;              /* what waits */
    unsigned running;                  /* what runs */
    struct cp_work_queue *next, *prev; /* the ring, while something waits */
    struct cp_work_queue *hash_next;
} queue;

struct lane {
    cp_workers *pool;
    cp_cond cond;
    queue *first, *last; /* the ring */
    queue *buckets[BUCKETS];
    unsigned waiting, idle, started, most, bound;
};

struct cp_workers {
    cp_loop *loop;
    pthread_mutex_t mu; /* guards all below */
    cp_cond ended;
    struct lane lanes[CP_LANES];
    unsigned threads; /* that have not ended */
    pthread_t last_ended;
    bool any_ended;
    bool stopping; /* no more work will come */
    bool dropping; /* and what waits is not begun */
};

/* ---- owners and their turns ---- */

static queue **bucket_of(struct lane *l, uint64_t owner) {
    return &l->buckets[(owner * UINT64_C(0x9E3779B97F4A7C15)) >> 58];
}

static queue *queue_of(struct lane *l, uint64_t owner) {
    queue **b = bucket_of(l, owner);
    for (queue *q = *b; q; q = q->hash_next)
        if (q->owner == owner) return q;
    queue *q = cp_new(queue);
    q->lane = l;
    q->owner = owner;
    q->hash_next = *b;
    *b = q;
    return q;
}

static void forget_idle(queue *q) {
    if (q->head || q->running) return;
    queue **at = bucket_of(q->lane, q->owner);
    while (*at != q) at = &(*at)->hash_next;
    *at = q->hash_next;
    free(q);
}

static void join_ring(queue *q) {
    struct lane *l = q->lane;
    q->next = NULL;
    q->prev = l->last;
    if (l->last) l->last->next = q;
    else l->first = q;
    l->last = q;
}

static void leave_ring(queue *q) {
    struct lane *l = q->lane;
    if (q->prev) q->prev->next = q->next;
    else l->first = q->next;
    if (q->next) q->next->prev = q->prev;
    else l->last = q->prev;
}

static void add(queue *q, cp_work *w) {
    if (!q->head) join_ring(q);
    w->queue = q;
    w->waits = true;
    w->next = NULL;
    w->prev = q->tail;
    if (q->tail) q->tail->next = w;
    else q->head = w;
    q->tail = w;
    q->lane->waiting++;
}

static void take(cp_work *w) {
    queue *q = w->queue;
    if (w->prev) w->prev->next = w->next;
    else q->head = w->next;
    if (w->next) w->next->prev = w->prev;
    else q->tail = w->prev;
    w->waits = false;
    q->lane->waiting--;
    if (!q->head) leave_ring(q);
}

/* Of the owner whose turn it is; those that run their full share are passed over, and each of them holds a thread. */
static cp_work *turn(struct lane *l) {
    queue *q = l->first;
    while (q && q->running >= l->most) q = q->next;
    if (!q) return NULL;
    cp_work *w = q->head;
    take(w);
    q->running++;
    if (q->head) {
        leave_ring(q);
        join_ring(q);
    }
    return w;
}

/* ---- threads ---- */

static void post_done(cp_task *t) {
    cp_work *w = CP_CONTAINER(t, cp_work, task);
    w->pool = NULL;
    w->done(w);
}

/* False: nothing has come for long, and others are there. */
static bool wait_for_work(struct lane *l) {
    struct timespec until;
    bool in_time = true, extra = l->started > l->most;
    if (extra) {
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += LINGER_S;
    }
    l->idle++;
    if (extra) in_time = cp_cond_wait_until(&l->cond, &l->pool->mu, &until);
    else cp_cond_wait(&l->cond, &l->pool->mu);
    l->idle--;
    return in_time || l->started <= l->most;
}

static cp_work *next_work(struct lane *l) {
    cp_workers *p = l->pool;
    for (bool more = true;;) {
        cp_work *w = p->dropping ? NULL : turn(l);
        if (w || !more || (p->stopping && (p->dropping || !l->waiting))) return w;
        more = wait_for_work(l);
    }
}

/* Each that ends joins the one that ended before it, so that the last of them stands for all. */
static void leave(struct lane *l) {
    cp_workers *p = l->pool;
    bool joins = p->any_ended;
    pthread_t before = p->last_ended;
    p->last_ended = pthread_self();
    p->any_ended = true;
    l->started--;
    p->threads--;
    if (p->stopping) cp_cond_broadcast(&l->cond); /* who waits for a share of work has to look again */
    cp_cond_broadcast(&p->ended);
    pthread_mutex_unlock(&p->mu);
    if (joins) pthread_join(before, NULL);
}

static void *worker_main(void *arg) {
    struct lane *l = arg;
    cp_workers *p = l->pool;
    pthread_mutex_lock(&p->mu);
    for (cp_work *w; (w = next_work(l));) {
        queue *q = w->queue;
        bool told = w->done != NULL; /* else it may be gone afterwards */
        pthread_mutex_unlock(&p->mu);
        w->run(w);
        pthread_mutex_lock(&p->mu);
        if (told) w->queue = NULL;
        q->running--;
        if (q->head && l->idle) cp_cond_signal(&l->cond); /* it may have been passed over */
        forget_idle(q);
        if (told) cp_loop_post(p->loop, &w->task, post_done);
    }
    leave(l);
    return NULL;
}

static int start_thread(struct lane *l) {
    pthread_t thread;
    if (l->pool->threads >= THREADS_MAX) return EAGAIN;
    int rc = cp_thread_start(&thread, STACK, worker_main, l);
    if (rc) return rc;
    l->started++;
    l->pool->threads++;
    return 0;
}

/* That more cannot start only makes the lane smaller. */
static void need_thread(queue *q) {
    struct lane *l = q->lane;
    bool beyond = l->started < l->bound && !q->running && q->head == q->tail;
    if (l->idle >= l->waiting) return;
    if (l->started < l->most || beyond) start_thread(l);
}

static void init_lane(cp_workers *p, cp_lane which, unsigned most) {
    struct lane *l = &p->lanes[which];
    l->pool = p;
    l->most = most;
    l->bound = most * BEYOND;
}

cp_workers *cp_workers_new(cp_loop *loop, unsigned threads, cp_err *err) {
    cp_workers *p = cp_new(cp_workers);
    p->loop = loop;
    pthread_mutex_init(&p->mu, NULL);
    init_lane(p, CP_LANE_FILES, threads);
    init_lane(p, CP_LANE_OUTPUT, 2);
    init_lane(p, CP_LANE_LOOKUP, 2);
    init_lane(p, CP_LANE_COMPUTE, 2);
    pthread_mutex_lock(&p->mu);
    int rc = start_thread(&p->lanes[CP_LANE_FILES]);
    pthread_mutex_unlock(&p->mu);
    if (rc == 0) return p;
    cp_workers_free(p);
    cp_fail_sys(err, CP_E_INTERNAL_ERROR, rc, "cannot start a thread");
    return NULL;
}

/* ---- work ---- */

void cp_workers_submit_to(cp_workers *p, cp_lane lane, uint64_t owner, cp_work *w, void (*run)(cp_work *),
                          void (*done)(cp_work *)) {
    struct lane *l = &p->lanes[lane];
    w->run = run;
    w->done = done;
    w->pool = p;
    pthread_mutex_lock(&p->mu);
    if (!l->started && !p->dropping && start_thread(l) != 0) l = &p->lanes[CP_LANE_FILES];
    queue *q = queue_of(l, owner);
    add(q, w);
    if (!p->dropping) need_thread(q);
    cp_cond_signal(&l->cond);
    pthread_mutex_unlock(&p->mu);
}

void cp_workers_submit(cp_workers *p, cp_work *w, void (*run)(cp_work *), void (*done)(cp_work *)) {
    cp_workers_submit_to(p, CP_LANE_FILES, 0, w, run, done);
}

bool cp_workers_withdraw(cp_work *w) {
    cp_workers *p = w->pool;
    if (!p) return false;
    pthread_mutex_lock(&p->mu);
    queue *q = w->queue;
    bool waits = q && w->waits;
    if (waits) {
        take(w);
        w->queue = NULL;
        forget_idle(q);
    }
    pthread_mutex_unlock(&p->mu);
    return waits;
}

bool cp_workers_full(cp_workers *p, cp_lane lane) {
    pthread_mutex_lock(&p->mu);
    bool full = p->lanes[lane].waiting >= CP_WORK_WAITING_MAX;
    pthread_mutex_unlock(&p->mu);
    return full;
}

/* ---- the end ---- */

static void tell_all(cp_workers *p) {
    p->stopping = true;
    for (int i = 0; i < CP_LANES; i++) cp_cond_broadcast(&p->lanes[i].cond);
}

bool cp_workers_stop(cp_workers *p, uint64_t ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(ms / 1000);
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&p->mu);
    p->dropping = true;
    tell_all(p);
    while (p->threads && cp_cond_wait_until(&p->ended, &p->mu, &until)) continue;
    bool ended = p->threads == 0;
    pthread_mutex_unlock(&p->mu);
    return ended;
}

/* No thread is left. */
static void forget_waiting(struct lane *l) {
    for (unsigned b = 0; b < BUCKETS; b++) {
        for (queue *q; (q = l->buckets[b]);) {
            for (cp_work *w = q->head; w; w = w->next) {
                w->queue = NULL;
                w->pool = NULL;
            }
            l->buckets[b] = q->hash_next;
            free(q);
        }
    }
}

void cp_workers_free(cp_workers *p) {
    if (!p) return;
    pthread_mutex_lock(&p->mu);
    tell_all(p);
    while (p->threads) cp_cond_wait(&p->ended, &p->mu);
    for (int i = 0; i < CP_LANES; i++) forget_waiting(&p->lanes[i]);
    pthread_mutex_unlock(&p->mu);
    if (p->any_ended) pthread_join(p->last_ended, NULL);
    pthread_mutex_destroy(&p->mu);
    free(p);
}
