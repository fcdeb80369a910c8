#pragma once
/* How far a peer is behind in reading a connection's bulk data (streams, large responses), and how far it may be.
 *
 * TCP does not tell: what the peer's kernel has taken counts as delivered, and it takes megabytes that its program has
 * not read, all of which lie before the answer to the next small call. A WebSocket peer must answer a ping (RFC 6455
 * section 5.5.2), and does so when it has read up to it; so pings go out among the data, and with more than a limit
 * unread no more is sent. The limit is PACE_QUEUE and what is under way between the two anyway: the rate of reading by
 * the least round trip, as BBR has it, so that a long line is kept full.
 *
 * A peer that has answered none is not limited, and one that stops to answer not for long (pace_stuck).
 * Pure; the mux gives the time. */
#include "base/buf.h"

enum {
    PACE_QUEUE = 256 * 1024,
    PACE_PROBE = 24, /* bytes in a ping */
};

typedef struct pace {
    uint64_t sent, probed; /* bytes: in all; when the last probe went out */
    uint64_t read;         /* so many the peer is known to have read */
    uint64_t seen;         /* of these at the last pace_stuck */
    uint64_t least_us;     /* shortest round trip; 0: no answer yet */
    uint64_t flight;       /* bytes read in such a time */
    uint64_t grant;        /* bytes beyond the limit, as no answers come */
} pace;

static inline void pace_sent(pace *a, size_t n) { a->sent += n; }
/* `step` bytes have gone out since the last probe: time for one. */
static inline bool pace_due(const pace *a, uint64_t step) { return a->sent - a->probed >= step; }
void pace_probe(pace *a, uint64_t now_us, char out[PACE_PROBE]); /* out: the payload of a ping to send now */
/* The payload of a pong; what is none of ours is ignored. */
void pace_answered(pace *a, cp_str payload, uint64_t now_us);
/* More than the limit, and `extra` bytes, are unread. */
bool pace_full(const pace *a, uint64_t extra);
/* To be called now and then while full. When nothing was read since the last call the limit is raised, each time twice
 * as far, until an answer comes: true. */
bool pace_stuck(pace *a);
