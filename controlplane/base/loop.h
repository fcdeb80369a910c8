#pragma once
/* The event loop: one thread, epoll, timers, messages from other threads. Everything here except cp_loop_post and
 * cp_loop_stop is called on the loop thread only.
 *
 * That thread serves everybody, so a callback does a bounded amount of work and waits for nobody: no write to a peer
 * who may be slow, no file, no name service, no child, no lock that is held over any of these, and not all of a queue
 * that a client can make long: the rest goes to the next turn. What blocks is given to the workers (base/work.h), the
 * output threads or the registry's writer. A build with CONFLUX_TURNS measures it (base/turn.h).
 *
 * Callbacks may add, change and remove any watcher or timer, their own included. A watcher that was removed gets no
 * further event, not even one already fetched from the kernel in this round. */
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

typedef struct cp_loop cp_loop;

#ifdef CONFLUX_TURNS /* where a callback was given, for the measurement */
#define CP_LOOP_NAME const char *name;
#else
#define CP_LOOP_NAME
#endif

/* Embed in the owner. Zero-initialised (with fd -1 or after cp_io_del) it is idle. */
typedef struct cp_io {
    int fd;
    uint32_t events; /* EPOLLIN | EPOLLOUT | EPOLLRDHUP …, level-triggered unless EPOLLET */
    void (*fn)(struct cp_io *io, uint32_t events);
    uint32_t slot; /* loop's: index + 1 into its table, 0 when idle */
    CP_LOOP_NAME
} cp_io;

/* Embed in the owner. Zero-initialised it is stopped. */
typedef struct cp_timer {
    uint64_t at; /* cp_now_ms deadline */
    void (*fn)(struct cp_timer *t);
    uint32_t slot; /* loop's: heap index + 1, 0 when stopped */
    CP_LOOP_NAME
} cp_timer;

/* A message to the loop. Embed in the owner; must stay alive until fn has run. */
typedef struct cp_task {
    struct cp_task *next;
    void (*fn)(struct cp_task *task);
    CP_LOOP_NAME
} cp_task;

cp_loop *cp_loop_new(cp_err *err); /* NULL on failure; owner frees */
void cp_loop_free(cp_loop *loop);
int cp_loop_run(cp_loop *loop, cp_err *err); /* until cp_loop_stop; returns 0 then */
void cp_loop_stop(cp_loop *loop);            /* any thread, async-signal-safe */
/* One round: waits at most timeout_ms (-1: until something happens). For tests. */
int cp_loop_once(cp_loop *loop, int timeout_ms);

/* Registers fd (borrowed; the owner closes it after cp_io_del). Where the kernel has no memory for one more watch it is
 * added as soon as there is some: no event is lost, it comes late. 0; -1 with errno when fd cannot be watched at all.
 */
int cp_io_add(cp_loop *loop, cp_io *io, int fd, uint32_t events, void (*fn)(cp_io *, uint32_t));
int cp_io_mod(cp_loop *loop, cp_io *io, uint32_t events); /* no system call when unchanged */
void cp_io_del(cp_loop *loop, cp_io *io);                 /* idle is fine */

/* (Re)starts: fires once, at or after cp_loop_now + delay_ms. The first 64 take no memory. */
void cp_timer_start(cp_loop *loop, cp_timer *t, uint64_t delay_ms, void (*fn)(cp_timer *));
void cp_timer_stop(cp_loop *loop, cp_timer *t); /* stopped is fine */
static inline bool cp_timer_active(const cp_timer *t) { return t->slot != 0; }

/* Any thread: run task->fn on the loop, in order of posting. Never blocks. */
void cp_loop_post(cp_loop *loop, cp_task *task, void (*fn)(cp_task *));
/* Loop thread: run task->fn when the events of this round have been handled (e.g. one flush for many writes).
 * A task that is already deferred is not queued twice. */
typedef struct cp_deferred {
    struct cp_deferred *next, **link; /* link: what points to it */
    void (*fn)(struct cp_deferred *d);
    bool queued;
    CP_LOOP_NAME
} cp_deferred;
void cp_loop_defer(cp_loop *loop, cp_deferred *d, void (*fn)(cp_deferred *));
void cp_loop_undefer(cp_loop *loop, cp_deferred *d); /* before freeing its owner; not queued is fine */

uint64_t cp_loop_now(const cp_loop *loop); /* cp_now_ms at the start of this round */
bool cp_loop_here(const cp_loop *loop);    /* is this the loop's thread? for assertions */

#ifdef CONFLUX_TURNS
static inline int cp_io_add_named(cp_loop *loop, cp_io *io, int fd, uint32_t events, void (*fn)(cp_io *, uint32_t),
                                  const char *name) {
    int rc = cp_io_add(loop, io, fd, events, fn);
    io->name = name;
    return rc;
}
static inline void cp_timer_start_named(cp_loop *loop, cp_timer *t, uint64_t delay_ms, void (*fn)(cp_timer *),
                                        const char *name) {
    t->name = name;
    cp_timer_start(loop, t, delay_ms, fn);
}
static inline void cp_loop_post_named(cp_loop *loop, cp_task *task, void (*fn)(cp_task *), const char *name) {
    task->name = name;
    cp_loop_post(loop, task, fn);
}
static inline void cp_loop_defer_named(cp_loop *loop, cp_deferred *d, void (*fn)(cp_deferred *), const char *name) {
    cp_loop_defer(loop, d, fn);
    d->name = name;
}
#ifndef CP_LOOP_UNNAMED
#define CP_LOOP_HERE(fn)                      __FILE_NAME__ ":" #fn
#define cp_io_add(loop, io, fd, events, fn)   cp_io_add_named(loop, io, fd, events, fn, CP_LOOP_HERE(fn))
#define cp_timer_start(loop, t, delay_ms, fn) cp_timer_start_named(loop, t, delay_ms, fn, CP_LOOP_HERE(fn))
#define cp_loop_post(loop, task, fn)          cp_loop_post_named(loop, task, fn, CP_LOOP_HERE(fn))
#define cp_loop_defer(loop, d, fn)            cp_loop_defer_named(loop, d, fn, CP_LOOP_HERE(fn))
#endif
#endif
