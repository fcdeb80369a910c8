/* Design notes. As many workers as there are processors wait for clients or serve them; more would only wake for
 * events that another has taken already (16 awake: half the throughput). The rest is parked. One of the parked is the
 * watchman: while nobody waits for clients he looks every millisecond whether somebody is still at what he did at the
 * last look. Such a worker is stuck (a slow disk, a long computation): he does not count until he comes back, and one
 * more goes in his place. Who comes back and is one too many is parked in turn. While somebody waits for clients, all
 * is well, and the watchman sleeps.
 *
 * Clients come from two places: the epoll set, and the list of those that wait for a worker (a pipelined request, an
 * answer from the loop). A worker takes them in turn, so that neither starves the other, and goes on with the client
 * that he has just served only a few times before he looks at the others. */
#include "transport/http/http.h"
#include "transport/http/stack.h"

#include "base/clock.h"
#include "base/cond.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { TICK_NS = 1000000, CALM_TICKS = 20 /* the watchman keeps looking for so long after the last cause */ };

struct cp_crew {
    cp_server *srv;
    pthread_mutex_t mu; /* guards what follows */
    cp_cond parked_cond, watch_cond;
    unsigned awake; /* the bound */
    unsigned size, joined, active, nstuck, parked, released;
    bool watched; /* there is a watchman */
    bool dismissed;
    cp_client *ready, **ready_tail;
    _Atomic unsigned nready;
    _Atomic unsigned waiting; /* workers in epoll_wait */
    atomic_bool looking;      /* the watchman looks every millisecond */
    cp_crewman *men[];
};

cp_crew *cp_crew_new(cp_server *srv, unsigned size, unsigned awake) {
    cp_crew *crew = cp_alloc(sizeof *crew + size * sizeof crew->men[0]);
    pthread_mutex_init(&crew->mu, NULL);
    crew->srv = srv;
    crew->size = size;
    crew->awake = awake < 1 ? 1 : awake;
    crew->ready_tail = &crew->ready;
    return crew;
}

void cp_crew_free(cp_crew *crew) {
    if (!crew) return;
    pthread_mutex_destroy(&crew->mu);
    free(crew);
}

/* ---- who is awake; all with crew->mu held ---- */

static unsigned working(const cp_crew *crew) { return crew->active - crew->nstuck; }

static void release_one(cp_crew *crew) {
    crew->released++;
    crew->active++;
    cp_cond_signal(&crew->parked_cond);
    if (crew->watched) cp_cond_signal(&crew->watch_cond); /* he may be the only one who is parked */
}

static bool go(cp_crew *crew) {
    if (!crew->released) return crew->dismissed;
    crew->released--;
    return true;
}

/* Finds those who are at what they did at the last look. */
static unsigned find_stuck(cp_crew *crew) {
    unsigned found = 0;
    for (unsigned i = 0; i < crew->joined; i++) {
        cp_crewman *m = crew->men[i];
        uint64_t turns = atomic_load_explicit(&m->turns, memory_order_relaxed);
        bool same = turns == m->turns_seen && m->active && !m->stuck;
        m->turns_seen = turns;
        if (!same) continue;
        m->stuck = true;
        crew->nstuck++;
        found++;
    }
    return found;
}

static void tick(cp_crew *crew) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_nsec += TICK_NS;
    if (at.tv_nsec >= 1000000000) at.tv_sec++, at.tv_nsec -= 1000000000;
    cp_cond_wait_until(&crew->watch_cond, &crew->mu, &at);
}

/* Until he is released himself. */
static void keep_watch(cp_crew *crew) {
    unsigned calm = 0;
    crew->watched = true;
    while (!go(crew)) {
        if (calm >= CALM_TICKS) {
            atomic_store(&crew->looking, false);
            /* the last who waits for clients may have left before he could see that nobody looks */
            if (atomic_load(&crew->waiting)) cp_cond_wait(&crew->watch_cond, &crew->mu);
            atomic_store(&crew->looking, true);
            calm = 0;
            continue;
        }
        tick(crew);
        if (atomic_load(&crew->waiting)) {
            calm++;
            continue;
        }
        if (find_stuck(crew)) calm = 0;
        while (working(crew) < crew->awake && crew->parked > crew->released) release_one(crew);
    }
    crew->watched = false;
    cp_cond_broadcast(&crew->parked_cond); /* another keeps watch */
}

static void park(cp_crew *crew, cp_crewman *w) {
    w->active = false;
    crew->active--;
    crew->parked++;
    while (!go(crew)) {
        if (!crew->watched) {
            keep_watch(crew);
            break;
        }
        cp_cond_wait(&crew->parked_cond, &crew->mu);
    }
    crew->parked--;
    w->active = true;
}

static void come_back(cp_crew *crew, cp_crewman *w) {
    cp_stack_trim(); /* it may be for long */
    pthread_mutex_lock(&crew->mu);
    if (w->stuck) crew->nstuck--;
    w->stuck = false;
    if (working(crew) > crew->awake && !crew->dismissed) park(crew, w);
    pthread_mutex_unlock(&crew->mu);
}

void cp_crew_join(cp_crew *crew, cp_crewman *w) {
    pthread_mutex_lock(&crew->mu);
    bool known = w->active;
    for (unsigned i = 0; i < crew->joined; i++) known |= crew->men[i] == w;
    if (!known) {
        crew->men[crew->joined++] = w;
        crew->active++;
        w->active = true;
        w->stuck = true; /* looked at, and perhaps parked, at the first turn */
        crew->nstuck++;
    }
    pthread_mutex_unlock(&crew->mu);
}

void cp_crew_dismiss(cp_crew *crew) {
    pthread_mutex_lock(&crew->mu);
    crew->dismissed = true;
    cp_cond_broadcast(&crew->parked_cond);
    cp_cond_broadcast(&crew->watch_cond);
    pthread_mutex_unlock(&crew->mu);
    (void)!write(crew->srv->wake, &(uint64_t){1}, sizeof(uint64_t));
}

/* ---- who is next ---- */

void cp_crew_offer(cp_server *srv, cp_client *c) {
    cp_crew *crew = srv->crew;
    c->next_ready = NULL;
    pthread_mutex_lock(&crew->mu);
    *crew->ready_tail = c;
    crew->ready_tail = &c->next_ready;
    atomic_fetch_add(&crew->nready, 1);
    pthread_mutex_unlock(&crew->mu);
    (void)!write(srv->wake, &(uint64_t){1}, sizeof(uint64_t));
}

/* Clients that are offered together may wake but one worker, who may be long at the first of them: whoever takes one
 * and leaves others behind wakes the next. */
static cp_client *take_ready(cp_crew *crew) {
    if (!atomic_load(&crew->nready)) return NULL;
    pthread_mutex_lock(&crew->mu);
    cp_client *c = crew->ready;
    if (c) {
        crew->ready = c->next_ready;
        if (!crew->ready) crew->ready_tail = &crew->ready;
        atomic_fetch_sub(&crew->nready, 1);
    }
    pthread_mutex_unlock(&crew->mu);
    if (c && atomic_load(&crew->nready) && atomic_load(&crew->waiting))
        (void)!write(crew->srv->wake, &(uint64_t){1}, sizeof(uint64_t));
    return c;
}

/* One event of the epoll set, as a client to go on with; NULL: none, or nothing of it. */
static cp_client *take_event(cp_crew *crew) {
    cp_server *srv = crew->srv;
    struct epoll_event ev;
    atomic_fetch_add(&crew->waiting, 1); /* before the look: who leaves a client behind sees it, or is seen */
    int wait = atomic_load(&crew->nready) ? 0 : -1;
    int n = epoll_wait(srv->epoll, &ev, 1, wait);
    if (atomic_fetch_sub(&crew->waiting, 1) == 1 && !atomic_load(&crew->looking)) {
        pthread_mutex_lock(&crew->mu);
        cp_cond_signal(&crew->watch_cond);
        pthread_mutex_unlock(&crew->mu);
    }
    if (n < 1) return NULL;
    int fd = (int)ev.data.u64;
    if (fd == srv->wake) return NULL;
    if (fd == atomic_load_explicit(&srv->listener, memory_order_relaxed)) return cp_listener_accept(srv);
    cp_client *c = cp_clients_at(srv->clients, fd);
    return c && cp_client_take(c, ev.events) ? c : NULL;
}

cp_client *cp_crew_next(cp_crew *crew, cp_crewman *w) {
    cp_client *c = NULL;
    w->in_a_row = 0;
    while (!c) {
        if (atomic_load(&w->stuck)) come_back(crew, w);
        if (atomic_load(&crew->srv->closing)) {
            (void)!write(crew->srv->wake, &(uint64_t){1}, sizeof(uint64_t)); /* the next one wakes by this */
            return NULL;
        }
        w->ready_first = !w->ready_first;
        if (w->ready_first) c = take_ready(crew);
        if (!c) c = take_event(crew);
        if (!c) c = take_ready(crew);
        cp_crewman_turn(w);
    }
    return c;
}
