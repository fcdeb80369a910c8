#include "base/turn.h"

#ifdef CONFLUX_TURNS
#include "base/fd.h"
#include "base/log.h"
#include "base/metrics.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { NS_PER_MS = 1000000 };

static _Thread_local const char *note;

void cp_turn_note(const char *what) { note = what; }

static uint64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The second number is the time that the thread has waited for a processor. */
static uint64_t waited_ns(const cp_turns *t) {
    char text[96];
    ssize_t n = t->schedstat < 0 ? -1 : pread(t->schedstat, text, sizeof text - 1, 0);
    if (n <= 0) return 0;
    text[n] = '\0';
    char *end;
    (void)strtoull(text, &end, 10);
    return strtoull(end, NULL, 10);
}

void cp_turns_open(cp_turns *t) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", (int)gettid());
    const char *ms = getenv("CONFLUX_TURN_MS");
    uint64_t slow = ms ? strtoull(ms, NULL, 10) : CP_TURN_SLOW_MS;
    *t = (cp_turns){.schedstat = open(path, O_RDONLY | O_CLOEXEC), .slow_ns = slow * NS_PER_MS};
}

void cp_turns_close(cp_turns *t) { cp_close(&t->schedstat); }

void cp_turn_begin(cp_turns *t) {
    t->waited = waited_ns(t);
    t->cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    t->wall = t->at = clock_ns(CLOCK_MONOTONIC);
    t->longest = NULL;
    t->longest_ns = 0;
    note = NULL;
}

void cp_turn_ran(cp_turns *t, const char *what) {
    uint64_t now = clock_ns(CLOCK_MONOTONIC), took = now - t->at;
    t->at = now;
    if (took <= t->longest_ns) return;
    t->longest_ns = took;
    t->longest = note ? note : what;
    note = NULL;
}

static void tell(const cp_turns *t, uint64_t busy, uint64_t cpu) {
    const char *what = t->longest ? t->longest : "nothing";
    cp_metric_add(CP_M_SLOW_TURNS, 1);
    cp_log(CP_LOG_WARN, "loop.turn", "a turn of the loop took long", CP_KVI("pid", getpid()),
           CP_KVI("busy_ms", busy / NS_PER_MS), CP_KVI("cpu_ms", cpu / NS_PER_MS), CP_KVZ("longest", what),
           CP_KVI("longest_ms", t->longest_ns / NS_PER_MS));
}

void cp_turn_end(cp_turns *t) {
    uint64_t wall = clock_ns(CLOCK_MONOTONIC) - t->wall;
    if (wall < t->slow_ns) return;
    uint64_t waited = waited_ns(t) - t->waited, cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID) - t->cpu;
    uint64_t busy = t->schedstat < 0 ? cpu : wall > waited ? wall - waited : 0;
    if (busy >= t->slow_ns) tell(t, busy, cpu);
}
#endif
