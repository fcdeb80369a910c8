#pragma once
/* The io pool: a few threads for work that may block (files, splices, parsing of big messages). */
#include "base/err.h"
#include "base/loop.h"

typedef struct cp_workers cp_workers;

/* One piece of work. Embed in the owner; it must stay alive until done has run. run is called on a pool thread, then
 * done on the loop thread. Work cannot be cancelled: an owner that loses interest marks itself and frees itself in
 * done. */
typedef struct cp_work {
    struct cp_work *next;
    void (*run)(struct cp_work *w);
    void (*done)(struct cp_work *w);
    cp_task task;
    cp_workers *pool;
} cp_work;

/* One thread starts now, more when needed, up to `threads` (at least 1). NULL when not even the one can start. */
cp_workers *cp_workers_new(cp_loop *loop, unsigned threads, cp_err *err);
/* Waits for running work; queued work still runs, its done callbacks are posted. Loop thread. */
void cp_workers_free(cp_workers *w);
/* Any thread; first in, first out. */
void cp_workers_submit(cp_workers *w, cp_work *work, void (*run)(cp_work *), void (*done)(cp_work *));
