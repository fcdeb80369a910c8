#pragma once
/* A histogram of durations with bounded relative error: log-linear, as HdrHistogram has it (Debian packages no C
 * version of that). Values up to HIST_EXACT are counted exactly; above, each power of two is cut into HIST_EXACT / 2
 * steps, so that what a quantile says is at most 1/128 (0.8 %) above the true value and never below it. Fixed size, no
 * allocation while it counts: a measurement must not disturb itself. Pure. */
#include <stddef.h>
#include <stdint.h>

enum { HIST_BITS = 8, HIST_EXACT = 1 << HIST_BITS, HIST_OCTAVES = 34, HIST_SIZE = HIST_EXACT / 2 * (HIST_OCTAVES + 2) };

typedef struct hist {
    uint64_t count, sum, min, max;
    uint64_t steps[HIST_SIZE];
} hist;

/* A zeroed hist is empty. Values over 2^42 ns (73 minutes) are counted as that; max keeps them exact. */
void hist_add(hist *h, uint64_t value);
/* The least value that at least the share q (0..1) of all values do not exceed; 0 when empty. */
uint64_t hist_quantile(const hist *h, double q);
