#include "load/hist.h"

enum { HALF = HIST_EXACT / 2 };

static size_t step_of(uint64_t value) {
    const uint64_t top = (UINT64_C(1) << (HIST_BITS + HIST_OCTAVES)) - 1;
    if (value > top) value = top;
    if (value < HIST_EXACT) return (size_t)value;
    unsigned shift = (unsigned)(64 - __builtin_clzll(value)) - HIST_BITS;
    return (size_t)HALF * shift + (size_t)(value >> shift);
}

static uint64_t highest_of(size_t step) {
    if (step < HIST_EXACT) return step;
    unsigned shift = (unsigned)(step / HALF) - 1;
    return ((uint64_t)(step - (size_t)HALF * shift + 1) << shift) - 1;
}

void hist_add(hist *h, uint64_t value) {
    h->steps[step_of(value)]++;
    if (!h->count || value < h->min) h->min = value;
    if (value > h->max) h->max = value;
    h->count++;
    h->sum += value;
}

uint64_t hist_quantile(const hist *h, double q) {
    if (!h->count) return 0;
    /* Rounded up: a share is reached, not nearly reached; 0.001 * 20000 is a little over 20 and means 20. */
    double want = q * (double)h->count * (1 - 1e-12);
    uint64_t rank = (uint64_t)want, seen = 0;
    if ((double)rank < want || rank == 0) rank++;
    for (size_t i = 0; i < HIST_SIZE; i++) {
        seen += h->steps[i];
        if (seen < rank) continue;
        uint64_t v = highest_of(i);
        return v < h->max ? v : h->max;
    }
    return h->max;
}
