#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

uint64_t cp_now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t cp_now_us(void) { return cp_now_ns() / 1000; }
uint64_t cp_now_ms(void) { return cp_now_ns() / 1000000; }

int64_t cp_wall_ms(void) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void digits(char *p, int width, unsigned v) {
    for (int i = width - 1; i >= 0; i--, v /= 10) p[i] = (char)('0' + v % 10);
}

/* The date changes once a second at most: each thread keeps the last one it wrote. */
void cp_iso(int64_t wall_ms, char out[CP_ISO_LEN + 1]) {
    static __thread int64_t last_sec = INT64_MIN;
    static __thread char last[20];
    int64_t ms = (wall_ms % 1000 + 1000) % 1000, sec = (wall_ms - ms) / 1000; /* a file may be older than the epoch */
    if (sec != last_sec) {
        struct tm tm = {0};
        time_t t = (time_t)sec;
        gmtime_r(&t, &tm);
        digits(last, 4, (unsigned)(tm.tm_year + 1900));
        digits(last + 5, 2, (unsigned)(tm.tm_mon + 1));
        digits(last + 8, 2, (unsigned)tm.tm_mday);
        digits(last + 11, 2, (unsigned)tm.tm_hour);
        digits(last + 14, 2, (unsigned)tm.tm_min);
        digits(last + 17, 2, (unsigned)tm.tm_sec);
        last[4] = last[7] = '-', last[10] = 'T', last[13] = last[16] = ':', last[19] = '.';
        last_sec = sec;
    }
    memcpy(out, last, 20);
    digits(out + 20, 3, (unsigned)ms);
    out[23] = 'Z', out[24] = '\0';
}
