/* What is freed mostly stays with malloc: the holes are in the middle of the heap. malloc_trim gives whole pages of
 * them back, but it holds the lock of each arena meanwhile, so it waits until little is done, and runs on a thread. */
#include "trim.h"

#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "transport/outbox.h"

enum {
    LOOK_MS = 2000,
    QUIET_US = LOOK_MS * 1000 / 50,
    USED_US = 10 * 1000, /* since the last trim: after that, there may be much to give back */
    WAIT_MAX = 32,       /* looks */
    WORTH = 512 * 1024,
};

static uint64_t cpu_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* 0: not known. */
static uint64_t resident(void) {
    char text[128];
    cp_autofd int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (n <= 0) return 0;
    text[n] = 0;
    char *end;
    strtoull(text, &end, 10);
    return strtoull(end, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* On a thread; the loop looks at neither until it is done. */
static void trim_run(cp_work *w) {
    cp_trim *t = CP_CONTAINER(w, cp_trim, work);
    malloc_trim(0);
    uint64_t now = resident();
    if (now && now < t->least) t->least = now;
}

static void trim_done(cp_work *w) { CP_CONTAINER(w, cp_trim, work)->working = false; }

static void look(cp_timer *timer) {
    cp_trim *t = CP_CONTAINER(timer, cp_trim, timer);
    uint64_t now = cpu_us();
    bool quiet = now - t->cpu_us < QUIET_US;
    t->cpu_us = now;
    bool used = now - t->trimmed_us > USED_US;
    t->looks++;
    /* What is freed right after a trim (a busy machine can make the quiet moment look so) takes too little time to be
     * noticed as use: so it is tried again, ever more seldom. */
    if (quiet && !t->working && (used || t->looks >= t->wait) && resident() > t->least + WORTH) {
        t->wait = used ? 1 : t->wait * 2 < WAIT_MAX ? t->wait * 2 : WAIT_MAX;
        t->looks = 0;
        t->trimmed_us = now;
        cp_outbox_trim();
        t->working = true;
        cp_workers_submit_to(t->workers, CP_LANE_COMPUTE, CP_OWNER_UPKEEP, &t->work, trim_run, trim_done);
    }
    cp_timer_start(t->loop, timer, LOOK_MS, look);
}

void cp_trim_start(cp_trim *t, cp_loop *loop, cp_workers *workers) {
    *t = (cp_trim){.loop = loop, .workers = workers, .least = resident(), .wait = 1};
    cp_timer_start(loop, &t->timer, LOOK_MS, look);
}
