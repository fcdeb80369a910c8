#pragma once
/* The wall clock of a test program, which it may set: everything in the program asks this one for the time. */
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int64_t clock_step_s; /* by so much it is set forward */

int clock_gettime(clockid_t id, struct timespec *t) {
    int rc = (int)syscall(SYS_clock_gettime, id, t);
    if (rc == 0 && id == CLOCK_REALTIME) t->tv_sec += clock_step_s;
    return rc;
}

time_t time(time_t *out) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}
