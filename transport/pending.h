#pragma once
/* The pending table of one multiplexed connection: requests that have not had their last message (design.md section 3).
 * Loop thread only; memory and links, no policy. Ten thousand entries may wait on a socket, so an entry is small: about
 * 110 bytes and its id. What few have is only there where it is needed (pend_flow), and what can be told from the rest
 * is not held. */
#include "base/heap.h"
#include "handlers/request.h"
#include "handlers/router.h"
#include "transport/outbox.h"

struct mux;

typedef enum {
    PEND_WAITING,   /* not dispatched yet */
    PEND_RUNNING,   /* with its handler */
    PEND_STREAMING, /* its source is pulled from */
    PEND_SENDING,   /* its large response goes out piece by piece */
    PEND_HELD,      /* answered and out of the table, but its work goes on and counts */
} pend_state;

/* Of one that has a deadline. */
typedef struct pend_due {
    cp_heap_item at; /* its key: cp_now_ms */
    struct pend *p;
} pend_due;

/* Of a stream that was asked for with a window. */
typedef struct pend_flow {
    int64_t credit, window; /* bytes that may still be sent; at first */
} pend_flow;

typedef struct pend {
    cp_reply reply;
    struct mux *m;        /* NULL: answered or disconnected, but the handler still holds the reply */
    struct mux_ack *acks; /* receipts for its input that the peer waits for */
    struct pend *hash_next;
    struct pend *q_prev, *q_next; /* the queue it is in, if any */
    union {
        cp_source *src;       /* STREAMING */
        cp_outbox_body *body; /* SENDING */
        yyjson_doc *doc;      /* WAITING: its message as it was parsed, when that was much work */
        char *text;           /* WAITING and not `parsed`: `bytes` of it */
    };
    uint64_t started_us;
    uint64_t bytes; /* WAITING: of its message. Else sent so far; SENDING: of the body */
    union {
        int32_t deficit; /* STREAMING */
        uint16_t status; /* SENDING */
    };
    uint16_t index; /* of the route */
    uint16_t id_n;
    uint8_t state;
    uint8_t priority;
    uint8_t kind;  /* the mux's: which of its limits it counts for */
    bool runs : 1; /* counted as running */
    bool kill_on_disconnect : 1, queued : 1, pulling : 1, woken : 1, parsed : 1;
    bool windowed : 1; /* a pend_flow follows the id */
    bool timed : 1;    /* a pend_due follows that */
    char id[];         /* JSON text; empty: the request had none, and it cannot be found */
} pend;

static inline cp_str pend_id(const pend *p) { return (cp_str){p->id, p->id_n}; }
typedef struct pend_table {
    pend **buckets;
    uint32_t nbuckets, count;
    size_t bytes; /* of all entries */
    cp_heap due;  /* those whose deadline is ahead */
} pend_table;

pend *pend_find(const pend_table *t, cp_str id);
/* Zeroed. `windowed`, `timed`: one that may get a window, a deadline. The caller has looked that the id is free. */
pend *pend_add(pend_table *t, cp_str id, bool windowed, bool timed);
void pend_unlink(pend_table *t, pend *p); /* out of the table; the caller frees */
pend_flow *pend_flow_of(pend *p);         /* NULL: it has no window */

/* Deadlines, cp_now_ms; each call takes O(log n) steps. */
void pend_due_at(pend_table *t, pend *p, uint64_t at); /* of one that is `timed` */
void pend_due_drop(pend_table *t, pend *p);            /* it has none any more; none is fine */
uint64_t pend_deadline(const pend *p);                 /* 0: none */
pend *pend_due_first(const pend_table *t);             /* the one whose deadline comes first; NULL: none has one */

/* All, in no order: pend_from(t, 0), then pend_next. Where entries may end on the way, go on with pend_from(t, bucket),
 * that being the pend_bucket of the one that ended: all that stood before it were seen. None may be added meanwhile. */
pend *pend_from(const pend_table *t, uint32_t bucket); /* the first of that bucket or a later one; NULL: no more */
pend *pend_next(const pend_table *t, const pend *p);
uint32_t pend_bucket(const pend_table *t, const pend *p);

/* Queues by priority, first in first out within one. */
typedef struct pend_queue {
    pend *head[8], *tail[8];
    uint8_t mask; /* bit: that priority has entries */
} pend_queue;
void pend_push(pend_queue *q, pend *p);
void pend_drop(pend_queue *q, pend *p); /* not queued is fine */
pend *pend_top(const pend_queue *q);    /* of the highest priority; NULL when empty */
