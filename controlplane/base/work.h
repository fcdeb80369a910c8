#pragma once
/* Threads for work that may block or takes long. There are lanes: each has threads of its own, so that one kind of
 * blocking (a hung file system, a slow directory of users) delays no other. Within a lane owners take turns, whatever
 * each has queued, and one whose work hangs cannot keep the others out: see work.c. */
#include "base/err.h"
#include "base/loop.h"

typedef struct cp_workers cp_workers;

typedef enum cp_lane {
    CP_LANE_FILES,  /* the clients' files: may hang with their file system */
    CP_LANE_OUTPUT, /* the logs of children: pipe to disk, and back; nothing that opens a client's path or waits for one
                     */
    CP_LANE_LOOKUP, /* users and groups: may ask a slow directory */
    CP_LANE_COMPUTE, /* parsing, building, matching: takes a processor, and waits for nothing but our own state folder
                      */
    CP_LANE_BODIES,  /* handlers that read the body of their request as it comes. These and the next leave the
                        processors to all the others */
    CP_LANE_BULK,    /* a piece of an answer that is read, packed or compressed while it is sent */
    CP_LANES
} cp_lane;

/* One piece of work. Embed in the owner; it must stay alive until done has run, or cp_workers_withdraw has said true.
 * run is called on a thread of the lane, then done on the loop thread. Work that has begun cannot be cancelled: an
 * owner that loses interest marks itself and frees itself in done. */
typedef struct cp_work {
    struct cp_work *next, *prev;
    void (*run)(struct cp_work *w);
    void (*done)(struct cp_work *w);
    cp_task task;
    cp_workers *pool;
    struct cp_work_queue *queue; /* of its owner; NULL: idle */
    bool waits;                  /* has not begun */
} cp_work;

/* Owners of work: a number that stands for a client, or one of these. */
enum {
    CP_OWNER_ANYONE,  /* clients that are not told apart */
    CP_OWNER_WATCH,   /* walks for watches */
    CP_OWNER_UPKEEP,  /* sweeps */
    CP_OWNER_CLIENTS, /* numbers from here on are clients' */
};

enum { CP_WORK_WAITING_MAX = 65536 }; /* pieces that may wait in one lane; see cp_workers_full */

/* One thread starts now, more when needed, up to `threads` (at least 1) each for files and bodies, as many as there are
 * processors for bulk, and two for each other lane; eight times as many (256 for bodies and bulk) where work hangs.
 * They end when they have had nothing to do for some seconds. NULL when not even the one can start. */
cp_workers *cp_workers_new(cp_loop *loop, unsigned threads, cp_err *err);
/* No further work begins, and what waits never will. Waits for what runs, `ms` at most. True: all threads have ended.
 * False: work is still running, and nothing that it may touch may be freed. Loop thread. */
bool cp_workers_stop(cp_workers *w, uint64_t ms);
/* Waits for running work; queued work still runs, its done callbacks are posted. Loop thread. */
void cp_workers_free(cp_workers *w);
/* Any thread; first in, first out for one owner. done NULL: nobody is told, and run may free the work. */
void cp_workers_submit_to(cp_workers *w, cp_lane lane, uint64_t owner, cp_work *work, void (*run)(cp_work *),
                          void (*done)(cp_work *));
/* The same in the lane of files, for CP_OWNER_ANYONE. */
void cp_workers_submit(cp_workers *w, cp_work *work, void (*run)(cp_work *), void (*done)(cp_work *));
/* Takes back work that has not begun. True: it will not run, and done will not be called. False: it runs, has run, or
 * was never submitted. Loop thread. */
bool cp_workers_withdraw(cp_work *work);
/* More waits than may: whoever can refuse does (LIMIT_EXCEEDED). Any thread. */
bool cp_workers_full(cp_workers *w, cp_lane lane);
