#pragma once
/* Waiting in a test for what other threads or processes do. Needs nothing of the project. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

enum { PATIENCE_MS = 60000 };

static inline uint64_t wait_now_ms(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

/* Fails the test when the condition does not come true. What no event announces is looked at every 2 ms; once each
 * time, so that what is true for a moment counts. */
#define wait_until(condition)                                                                                          \
    do {                                                                                                               \
        uint64_t end_ = wait_now_ms() + PATIENCE_MS;                                                                   \
        while (!(condition)) {                                                                                         \
            if (wait_now_ms() >= end_) fail_msg("never: %s", #condition);                                              \
            poll(NULL, 0, 2);                                                                                          \
        }                                                                                                              \
    } while (0)
