/* Design notes. A spawn is begun when it is asked for and is over when its pipe is at its end: the child is its program
 * then, or has given up, or is gone. Until then it has its place in the books, so that its key is taken, and its memory
 * here. What takes too long is killed and told as ETIMEDOUT at the step that it is in; one that cannot even be killed
 * (state D) is over for the server then, but keeps its memory and its place among STARTS_MAX until it has gone.
 *
 * How many go at once is bounded by not reading requests, as it was when each spawn was waited for: a burst of
 * thousands would otherwise compete with us for the processor. Only young ones count for that, so that some that hang
 * hold the others up for START_YOUNG_MS, once. The more are under way, the longer they are young: on a machine that is
 * merely slow requests wait, and only what hangs for seconds adds up to STARTS_MAX, where more are refused.
 *
 * A child whose server has died meanwhile is handed over like any other, and if it does not become its program, its end
 * is told as it is: 127, as a shell has it. */
#include "keeper/core.h"

#include "base/clock.h"
#include "base/fd.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>

/* What cannot be freed when the keeper ends, since a child that is stuck would run on it. */
static struct start_queue left_behind = TAILQ_HEAD_INITIALIZER(left_behind);

bool start_weigh(keeper *k, starting *st, size_t bytes) {
    if (k->start_bytes + bytes > START_BYTES_MAX) return false;
    st->bytes += bytes;
    k->start_bytes += bytes;
    return true;
}

starting *start_new(keeper *k, size_t groups, size_t strings, size_t text) {
    size_t block = (strings + 3) * sizeof(char *), ids = groups * sizeof(gid_t), bytes = block + ids + text;
    starting *st = malloc(sizeof *st + bytes);
    if (!st) return NULL;
    memset(st, 0, sizeof *st);
    if (!start_weigh(k, st, bytes)) {
        free(st);
        return NULL;
    }
    st->w.fd = -1;
    st->block = (char **)(void *)st->room;
    st->groups = (gid_t *)(void *)(st->room + block);
    st->text = st->room + block + ids;
    return st;
}

void start_free(keeper *k, starting *st) {
    k->start_bytes -= st->bytes;
    spawn_end(&k->spawner, &st->w);
    if (st->map) munmap(st->map, st->map_size);
    free(st);
}

static void settle(keeper *k, starting *st, int sys, uint8_t step) {
    child *c = cp_take(st->child);
    start_done *done = cp_take(st->done);
    if (done) done(k, sys, step);
    if (!c) return;
    c->start = NULL;
    if (c->told || c->generation != k->generation) return; /* handed over, or about to be: its exit tells */
    if (sys) peer_tell_refused(k, c, sys, step);
    else peer_tell_spawned(k, c);
}

/* Ends it if it is over. */
static bool look(keeper *k, starting *st) {
    spawn_state state = spawn_look(&st->w);
    if (state == SPAWN_UNDER_WAY) return false;
    cp_io_del(k->loop, &st->io);
    TAILQ_REMOVE(&k->starts, st, link);
    k->nstarts--;
    settle(k, st, state == SPAWN_FAILED ? st->w.sys : 0, st->w.step);
    start_free(k, st);
    return true;
}

static void on_timer(cp_timer *t);

/* To the first deadline, or to the next moment at which something may have changed. */
static void set_timer(keeper *k) {
    uint64_t limit = k->spawn_limit_ms, now = cp_now_ms();
    const starting *st;
    bool blind = false;
    uint64_t at = 0;
    TAILQ_FOREACH(st, &k->starts, link) {
        blind |= !st->io.slot;
        if (!at && st->child) at = st->at + limit;
    }
    if ((blind || k->starts_busy) && (!at || at > now + START_YOUNG_MS)) at = now + START_YOUNG_MS;
    cp_timer_stop(k->loop, &k->start_timer);
    if (at) cp_timer_start(k->loop, &k->start_timer, at > now ? at - now : 0, on_timer);
}

static void give_up(keeper *k, starting *st) {
    st->given_up = true;
    kill(st->w.pid, SIGKILL); /* it has not been reaped: the number is its own */
    settle(k, st, ETIMEDOUT, st->w.step);
}

static void on_timer(cp_timer *t) {
    keeper *k = CP_CONTAINER(t, keeper, start_timer);
    uint64_t limit = k->spawn_limit_ms, now = cp_now_ms();
    for (starting *st = TAILQ_FIRST(&k->starts), *next; st; st = next) {
        next = TAILQ_NEXT(st, link);
        bool due = st->child && now >= st->at + limit;
        if ((due || !st->io.slot) && look(k, st)) next = TAILQ_FIRST(&k->starts); /* what it led to may end others */
        else if (due) give_up(k, st);
    }
    peer_watch(k);
    set_timer(k);
}

static void on_end(cp_io *io, uint32_t events) {
    (void)events;
    starting *st = CP_CONTAINER(io, starting, io);
    keeper *k = st->keeper;
    if (!look(k, st)) return;
    peer_watch(k);
    set_timer(k);
}

bool start_begin(keeper *k, starting *st) {
    if (k->nstarts >= k->starts_max) {
        st->w.sys = EAGAIN;
        st->w.step = CP_STEP_children;
        return false;
    }
    if (!spawn_begin(&k->spawner, &st->w)) return false;
    st->keeper = k;
    st->at = cp_now_ms();
    TAILQ_INSERT_TAIL(&k->starts, st, link);
    k->nstarts++;
    (void)cp_io_add(k->loop, &st->io, st->w.fd, EPOLLIN, on_end); /* else the timer looks */
    set_timer(k);
    return true;
}

void start_reaped(keeper *k, pid_t pid) {
    starting *st = TAILQ_LAST(&k->starts, start_queue);
    while (st && st->w.pid != pid) st = TAILQ_PREV(st, start_queue, link);
    if (st) (void)look(k, st);
}

static bool too_many_young(const keeper *k) {
    uint64_t now = cp_now_ms(), young = START_YOUNG_MS + START_YOUNG_MS * (uint64_t)k->nstarts / START_CROWD;
    size_t n = 0, bytes = 0;
    const starting *st;
    TAILQ_FOREACH_REVERSE(st, &k->starts, start_queue, link) {
        if (now - st->at >= young) break;
        n++;
        bytes += st->bytes;
    }
    return n >= STARTS_AT_ONCE || bytes >= START_BYTES_FRESH;
}

bool start_busy(keeper *k) {
    bool before = k->starts_busy;
    k->starts_busy = too_many_young(k);
    if (k->starts_busy && !before) set_timer(k);
    return k->starts_busy;
}

void starts_hurry(keeper *k) {
    if (k->spawn_limit_ms > START_LAST_MS) k->spawn_limit_ms = START_LAST_MS;
    set_timer(k);
}

void starts_close(keeper *k) {
    for (starting *st; (st = TAILQ_FIRST(&k->starts));) {
        st->child = NULL;
        st->done = NULL;
        if (look(k, st)) continue;
        TAILQ_REMOVE(&k->starts, st, link);
        TAILQ_INSERT_TAIL(&left_behind, st, link);
    }
}
