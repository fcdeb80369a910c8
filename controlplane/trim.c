/* What is freed mostly stays with malloc: the holes are in the middle of the heap. malloc_trim gives whole pages of
 * them back, but it holds the lock of each arena meanwhile, so it waits until little is done, and runs on a thread.
 * It leaves alone what is free at the end of every arena but the first: up to CP_TRIM_KEPT, which saves busy threads
 * from asking the system again and again. A large free() on a thread of that arena gives it back, if that is more than
 * malloc is told to keep. A new thread gets the next arena in turn. */
#include "trim.h"

#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
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
    LARGE = 128 * 1024, /* more than the 64 KB from which free() looks at the end of its arena */
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

static void *free_one(void *arg) {
    void *volatile p = malloc(LARGE); /* volatile: the pair is not to be left out */
    free(p);
    return arg;
}

static void trim_ends(void) {
    pthread_attr_t attr;
    if (pthread_attr_init(&attr)) return;
    pthread_attr_setstacksize(&attr, 128 << 10);
    mallopt(M_TRIM_THRESHOLD, LARGE);
    for (int i = 0; i < CP_TRIM_ARENAS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &attr, free_one, NULL)) break; /* it is tried again */
        pthread_join(thread, NULL);
    }
    mallopt(M_TRIM_THRESHOLD, CP_TRIM_KEPT);
    pthread_attr_destroy(&attr);
}

void cp_trim_configure(void) {
    mallopt(M_ARENA_MAX, CP_TRIM_ARENAS);
    mallopt(M_MMAP_THRESHOLD, CP_TRIM_KEPT);
    mallopt(M_TRIM_THRESHOLD, CP_TRIM_KEPT);
}

/* On a thread; the loop looks at neither until it is done. */
static void trim_run(cp_work *w) {
    cp_trim *t = CP_CONTAINER(w, cp_trim, work);
    trim_ends();
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
