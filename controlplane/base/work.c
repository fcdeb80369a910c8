/* Design notes. A lane is a ring of owners that have work waiting. A free thread takes the first piece of the owner
 * whose turn it is, and the owner goes to the end of the ring: a client with ten thousand pieces waiting delays another
 * by one.
 *
 * Work may hang: a lock that is held, a file system that has gone. So an owner runs at most `most` pieces at a time,
 * and where `most` pieces run and some of them hang, others run beside them, up to `bound`, each of an owner that runs
 * nothing: those who hang keep their own share and no more.
 *
 * Work that computes does not hang, and more threads would only slow it down. So while work waits that may not run yet,
 * one of the idle threads, the watcher, looks at those that run: whose processor time has not advanced between two
 * looks, and who is not waiting for a processor, is blocked. At most `most` that are not blocked run at a time. A look
 * may err for the length of one piece: who was blocked may compute again, beside the one that was let in for him.
 *
 * Threads end after LINGER_S without work, and their stacks go back to the system, but for the FEW that a lane keeps:
 * of two that rest, one is there while the other is ready and has no processor. Those for bodies and bulk end all.
 *
 * A lane whose first thread cannot start (the table of processes is full) hands its work to the lane of files, which
 * has had one since the beginning. */
#include "base/work.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/cond.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum {
    STACK = 256 * 1024,
    LINGER_S = 3,
    BUCKETS = 64,
    THREADS_MAX = 256, /* of a pool, but for the first `most` of each lane */
    BEYOND = 8,
    FEW = 2,
    NICE = 10,
    LOOK_FIRST_MS = 5, /* twice as long after each look that has found nothing new */
    LOOK_LAST_MS = 80,
};

typedef struct cp_work_queue {
    struct lane *lane;
    uint64_t owner;
    cp_work *head, *tail;              /* what waits */
    unsigned running;                  /* what runs */
    struct cp_work_queue *next, *prev; /* the ring, while something waits */
    struct cp_work_queue *hash_next;
} queue;

/* A thread that is at a piece of work. */
typedef struct worker {
    struct worker *next, *prev;
    clockid_t clock; /* its processor time */
    pid_t tid;
    uint64_t spent; /* ns of it, at the last look; UINT64_MAX: not looked at since the piece began */
    bool blocked;   /* it was, at the last look */
} worker;

struct lane {
    cp_workers *pool;
    cp_cond cond;
    queue *first, *last; /* the ring */
    queue *buckets[BUCKETS];
    worker *working;
    unsigned waiting, idle, started, running, blocked, most, bound, kept;
    bool yields;   /* its threads leave the processors to all others */
    bool watched;  /* one of the idle is the watcher */
    uint64_t look; /* cp_now_ms of the next look */
    unsigned look_ms;
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

/* ---- who is blocked ---- */

/* It waits for a processor, or has one. Where that cannot be told, its clock alone says. */
static bool runnable(const worker *w) {
    char path[48], text[128];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)w->tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (n <= 0) return false;
    text[n] = 0;
    const char *name_end =
        strrchr(text, ')'); /* proc(5): the name before it may hold anything, what follows does not */
    return name_end && strncmp(name_end, ") R", 3) == 0;
}

static bool is_blocked(worker *w) {
    struct timespec t;
    if (clock_gettime(w->clock, &t) < 0) return false;
    uint64_t spent = (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
    bool same = spent == w->spent;
    w->spent = spent;
    return same && (w->blocked || !runnable(w));
}

static void look(struct lane *l) {
    unsigned before = l->blocked;
    for (worker *w = l->working; w; w = w->next) {
        l->blocked -= w->blocked;
        w->blocked = is_blocked(w);
        l->blocked += w->blocked;
    }
    l->look_ms = l->blocked != before ? LOOK_FIRST_MS : l->look_ms * 2 < LOOK_LAST_MS ? l->look_ms * 2 : LOOK_LAST_MS;
    l->look = cp_now_ms() + l->look_ms;
}

static bool crowded(const struct lane *l) { return l->running >= l->most; }
/* More would compute than the lane may. */
static bool closed(const struct lane *l) { return l->running - l->blocked >= l->most; }

/* Of the owner whose turn it is; those that run their full share are passed over, and each of them holds a thread. */
static cp_work *turn(struct lane *l) {
    if (crowded(l) && l->blocked && cp_now_ms() >= l->look) look(l); /* they may compute by now */
    if (closed(l)) return NULL;
    unsigned share = crowded(l) ? 1 : l->most;
    queue *q = l->first;
    while (q && q->running >= share) q = q->next;
    if (!q) return NULL;
    cp_work *w = q->head;
    take(w);
    q->running++;
    l->running++;
    if (q->head) {
        leave_ring(q);
        join_ring(q);
    }
    return w;
}

static void begin_work(struct lane *l, worker *w) {
    w->spent = UINT64_MAX;
    w->prev = NULL;
    w->next = l->working;
    if (w->next) w->next->prev = w;
    l->working = w;
}

static void end_work(struct lane *l, worker *w) {
    if (w->prev) w->prev->next = w->next;
    else l->working = w->next;
    if (w->next) w->next->prev = w->prev;
    l->blocked -= w->blocked;
    w->blocked = false;
    l->running--;
}

/* ---- threads ---- */

static void post_done(cp_task *t) {
    cp_work *w = CP_CONTAINER(t, cp_work, task);
    w->pool = NULL;
    w->done(w);
}

/* Work waits, and may not run yet. */
static void watch(struct lane *l) {
    l->watched = true;
    l->look_ms = LOOK_FIRST_MS;
    l->look = cp_now_ms() + l->look_ms;
    while (l->waiting && closed(l) && !l->pool->dropping) {
        struct timespec until = {.tv_sec = (time_t)(l->look / 1000), .tv_nsec = (long)(l->look % 1000) * 1000000};
        cp_cond_wait_until(&l->cond, &l->pool->mu, &until);
        if (cp_now_ms() >= l->look) look(l);
    }
    l->watched = false;
}

static bool rest(struct lane *l) {
    struct timespec until;
    if (l->started <= l->kept) {
        cp_cond_wait(&l->cond, &l->pool->mu);
        return true;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += LINGER_S;
    return cp_cond_wait_until(&l->cond, &l->pool->mu, &until) || l->started <= l->kept;
}

/* False: nothing has come for long, and the lane keeps others, or none. */
static bool wait_for_work(struct lane *l) {
    bool stays = true;
    l->idle++;
    if (l->waiting && closed(l) && !l->watched) watch(l);
    else stays = rest(l);
    l->idle--;
    return stays;
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

/* Best effort: where the priority cannot be lowered, it is that of the others. */
static void begin_thread(const struct lane *l, worker *self) {
    *self = (worker){.tid = gettid()};
    (void)pthread_getcpuclockid(pthread_self(), &self->clock);
    errno = 0;
    int now = l->yields ? getpriority(PRIO_PROCESS, 0) : 0;
    if (l->yields && errno == 0) (void)setpriority(PRIO_PROCESS, (id_t)self->tid, now + NICE);
}

static void provide(struct lane *l);

static void *worker_main(void *arg) {
    struct lane *l = arg;
    cp_workers *p = l->pool;
    worker self;
    begin_thread(l, &self);
    pthread_mutex_lock(&p->mu);
    l->idle--;
    for (cp_work *w; (w = next_work(l));) {
        queue *q = w->queue;
        bool told = w->done != NULL; /* else it may be gone afterwards */
        begin_work(l, &self);
        provide(l);
        pthread_mutex_unlock(&p->mu);
        w->run(w);
        pthread_mutex_lock(&p->mu);
        end_work(l, &self);
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
    if (l->started >= l->most && l->pool->threads >= THREADS_MAX) return EAGAIN;
    int rc = cp_thread_start(&thread, STACK, worker_main, l);
    if (rc) return rc;
    l->idle++; /* until it has begun, too */
    l->started++;
    l->pool->threads++;
    return 0;
}

/* Somebody takes what waits, or watches until it may run. That more cannot start only makes the lane smaller. */
static void provide(struct lane *l) {
    if (!l->waiting) return;
    bool more = l->idle < l->waiting && (l->started < l->most || !l->idle);
    if (more && l->started < l->bound) start_thread(l);
    if (l->idle && !(l->watched && closed(l))) cp_cond_signal(&l->cond);
}

static unsigned processors(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : FEW;
    return n > FEW ? (unsigned)n : FEW;
}

static void init_lane(cp_workers *p, cp_lane which, unsigned most, unsigned kept) {
    struct lane *l = &p->lanes[which];
    l->pool = p;
    l->most = most;
    l->bound = most * BEYOND;
    l->kept = kept;
}

static void init_bulk_lane(cp_workers *p, cp_lane which, unsigned most) {
    init_lane(p, which, most, 0);
    p->lanes[which].yields = true;
    p->lanes[which].bound = THREADS_MAX;
}

cp_workers *cp_workers_new(cp_loop *loop, unsigned threads, cp_err *err) {
    cp_workers *p = cp_new(cp_workers);
    p->loop = loop;
    pthread_mutex_init(&p->mu, NULL);
    init_lane(p, CP_LANE_FILES, threads, FEW);
    init_lane(p, CP_LANE_OUTPUT, FEW, FEW);
    init_lane(p, CP_LANE_LOOKUP, FEW, FEW);
    init_lane(p, CP_LANE_COMPUTE, FEW, FEW);
    init_bulk_lane(p, CP_LANE_BODIES, threads);
    init_bulk_lane(p, CP_LANE_BULK, processors());
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
    if (!p->dropping) provide(l);
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
