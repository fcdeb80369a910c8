#pragma once
/* Waiting for something in a test is running the loop until it is there. */
#include "base/clock.h"
#include "base/loop.h"
#include "component/wait.h"

/* Fails the test when the condition does not come true. What no event of the loop announces is looked at every 10 ms.
 */
#define loop_until(loop, condition)                                                                                    \
    do {                                                                                                               \
        uint64_t end_ = cp_now_ms() + PATIENCE_MS;                                                                     \
        while (!(condition)) {                                                                                         \
            if (cp_now_ms() >= end_) fail_msg("never: %s", #condition);                                                \
            assert_int_equal(cp_loop_once(loop, 10), 0);                                                               \
        }                                                                                                              \
    } while (0)
