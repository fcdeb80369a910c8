#pragma once
/* The order in which requests have arrived, over all connections that CivetWeb's workers serve. Any thread. */
#include <pthread.h>

#include "base/loop.h"

typedef struct cp_arrivals cp_arrivals;

typedef enum {
    CP_ARRIVAL_NONE, /* nothing has come since the last request */
    CP_ARRIVAL_OPEN, /* something has come; what it is will be known when its worker has read it */
    CP_ARRIVAL_HELD, /* its task waits for earlier ones */
    CP_ARRIVAL_LATE, /* it was open for too long: nobody waits for it any more */
    CP_ARRIVAL_BODY, /* what comes is the body of a request that has had its turn */
} cp_arrival_state;

/* One for each connection. Embed; zero-initialised it watches nothing. The fields are the module's own. */
typedef struct cp_arrival {
    struct cp_arrival *prev, *next; /* open and held ones, in order */
    cp_task *task;
    void (*fn)(cp_task *);
    uint64_t since;
    int fd; /* watched when `watched` */
    cp_arrival_state state;
    bool watched;
} cp_arrival;

enum { CP_ARRIVAL_PATIENCE_MS = 10 }; /* a request that does not get on is overtaken after this */

cp_arrivals *cp_arrivals_new(cp_loop *loop, cp_err *err);
/* Loop thread, when nothing is watched and no worker is left. */
void cp_arrivals_free(cp_arrivals *q);

/* A connection has been accepted: has a turn at once, in case its request is there already. */
void cp_arrival_accept(cp_arrivals *q, cp_arrival *a);
/* From now on bytes that come on fd open a turn; with none there yet the one of cp_arrival_accept is given back. When
 * the descriptor cannot be watched its requests take their turns when they are read. */
void cp_arrival_watch(cp_arrivals *q, cp_arrival *a, int fd);
/* Before fd is closed or given away. A turn that is held stays. */
void cp_arrival_unwatch(cp_arrivals *q, cp_arrival *a);

/* The connection's worker: a request's head has been read. */
void cp_arrival_begin(cp_arrivals *q, cp_arrival *a);
/* The request wants no turn. body_done: no more bytes of it will come. Also without begin, and after pass. */
void cp_arrival_pass(cp_arrivals *q, cp_arrival *a, bool body_done);
/* The whole request has been read: posts task to the loop as soon as no earlier request may still want its turn. */
void cp_arrival_post(cp_arrivals *q, cp_arrival *a, cp_task *task, void (*fn)(cp_task *));
/* Posts it now if it has not been. */
void cp_arrival_hurry(cp_arrivals *q, cp_arrival *a);
/* The reply is out. */
void cp_arrival_end(cp_arrivals *q, cp_arrival *a);
