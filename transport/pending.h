#pragma once
/* The pending table of one multiplexed connection: requests that have not had their last message (design.md section 3).
 * Loop thread only; memory and links, no policy. An entry costs about 200 bytes and its id. */
#include "handlers/request.h"
#include "handlers/router.h"
#include "transport/outbox.h"

struct mux;

typedef enum {
    PEND_WAITING,   /* not dispatched yet */
    PEND_RUNNING,   /* with its handler */
    PEND_STREAMING, /* its source is pulled from */
    PEND_SENDING,   /* its large response goes out piece by piece */
} pend_state;

typedef struct pend {
    cp_reply reply;
    struct mux *m; /* NULL: answered or disconnected, but the handler still holds the reply */
    struct pend *hash_next;
    struct pend *prev, *next;             /* all of the connection */
    struct pend *timed_prev, *timed_next; /* those with a deadline */
    struct pend *q_prev, *q_next;         /* the queue it is in, if any */
    union {
        cp_source *src;       /* STREAMING */
        cp_outbox_body *body; /* SENDING */
        yyjson_doc *doc;      /* WAITING: its message as it was parsed, when that was much work */
        char *text;           /* WAITING and not `parsed`: `size` bytes */
    };
    const cp_route *route;
    size_t size; /* WAITING: of its message. SENDING: of the part that has gone out */
    uint64_t started_us;
    uint64_t deadline_at;   /* cp_loop_now; 0 none */
    uint64_t bytes;         /* sent so far */
    int64_t credit, window; /* STREAMING with window > 0: bytes that may still be sent */
    int32_t deficit;
    uint32_t hash;
    uint32_t index; /* of the route, for metrics */
    uint16_t status;
    uint16_t id_n;
    uint8_t state;
    uint8_t priority;
    uint8_t kind; /* the mux's: which of its limits it counts for */
    bool runs;    /* counted as running */
    bool kill_on_disconnect, queued, pulling, woken, parsed;
    char id[]; /* JSON text; empty: the request had none, and it cannot be found */
} pend;

static inline cp_str pend_id(const pend *p) { return (cp_str){p->id, p->id_n}; }

typedef struct pend_table {
    pend **buckets;
    uint32_t nbuckets, count;
    pend *all;
    pend *timed;
} pend_table;

pend *pend_find(const pend_table *t, cp_str id);
pend *pend_add(pend_table *t, cp_str id); /* zeroed; the caller has looked that the id is free */
void pend_unlink(pend_table *t, pend *p); /* out of the table and the deadlines; the caller frees */
void pend_set_deadline(pend_table *t, pend *p, uint64_t at);
void pend_clear_deadline(pend_table *t, pend *p);
/* The first entry whose deadline has passed, or NULL and *next (0: no deadline at all). */
pend *pend_expired(const pend_table *t, uint64_t now, uint64_t *next);

/* Queues by priority, first in first out within one. */
typedef struct pend_queue {
    pend *head[8], *tail[8];
    uint8_t mask; /* bit: that priority has entries */
} pend_queue;
void pend_push(pend_queue *q, pend *p);
void pend_drop(pend_queue *q, pend *p); /* not queued is fine */
pend *pend_top(const pend_queue *q);    /* of the highest priority; NULL when empty */
