#include "transport/pace.h"

/* What a probe carries, and its answer brings back: nothing has to be kept for each. */
typedef struct probe {
    uint64_t sent, read, at_us;
} probe;
_Static_assert(sizeof(probe) == PACE_PROBE, "PACE_PROBE");

void pace_probe(pace *a, uint64_t now_us, char out[PACE_PROBE]) {
    probe p = {.sent = a->sent, .read = a->read, .at_us = now_us};
    memcpy(out, &p, sizeof p);
    a->probed = a->sent;
}

/* A peer may send what it likes: whatever it claims changes only how far it may be behind. */
static bool plausible(const pace *a, const probe *p, uint64_t now_us) {
    return p->sent > a->read && p->sent <= a->probed && p->read <= a->read && p->at_us <= now_us;
}

void pace_answered(pace *a, cp_str payload, uint64_t now_us) {
    probe p;
    if (payload.n != sizeof p) return;
    memcpy(&p, payload.p, sizeof p);
    if (!plausible(a, &p, now_us)) return;
    uint64_t trip = now_us - p.at_us + 1;
    a->read = p.sent;
    a->grant = 0;
    if (!a->least_us || trip < a->least_us) a->least_us = trip;
    uint64_t flight = (uint64_t)((double)(p.sent - p.read) * (double)a->least_us / (double)trip);
    a->flight -= a->flight / 16; /* what it was lately */
    if (flight > a->flight) a->flight = flight;
}

bool pace_full(const pace *a, uint64_t extra) {
    /* a quarter more than is under way, so that it can grow to what the line carries */
    uint64_t limit = PACE_QUEUE + a->flight + a->flight / 4 + a->grant + extra;
    return a->least_us && a->sent - a->read > limit;
}

bool pace_stuck(pace *a) {
    bool stuck = a->read == a->seen;
    a->seen = a->read;
    if (stuck) a->grant = a->grant ? a->grant * 2 : PACE_QUEUE;
    return stuck;
}
