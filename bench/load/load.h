#pragma once
/* What the scenarios of the load program share: options, the way it ends, the measured window and its report. One
 * thread, but for the writer of raw_bytes.c; what cannot be measured ends the program with a message, because a wrong
 * figure is worse than none. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "load/hist.h"

typedef struct load_options {
    int64_t port, inflight, conns, burst, ops, steps, step_size, size, seconds_ms, warmup_ms, timeout_ms, rcvbuf,
        window;
    double rate;
    const char *door, *method, *path, *body, *beside, *file, *event, *encoding;
} load_options;

extern load_options opt;

/* Prints "load: WHAT: strerror(errno)" (without the latter when errno is 0) and ends with 1. */
_Noreturn void die(const char *what);

/* The measured window: begins after the warm-up. An operation counts when it was meant to begin in it. */
typedef struct window {
    uint64_t begin, end;
    uint64_t last;   /* when the last counted one ended */
    uint64_t done;   /* ended in it, whenever they began: a rate that leaves out what was under way would be too low */
    uint64_t missed; /* meant to begin in it, and without an answer when we gave up: counted at the age they had */
    hist latency;
} window;

extern window win;

void window_open(void);
/* An operation that was meant to begin at `intended` has ended at `now`. False: not in the window, not counted. */
bool window_note(uint64_t intended, uint64_t now);

/* One JSON object on stdout. `more`: further members, each begun with a comma; "" for none. */
void window_report(const char *name, const char *more);
