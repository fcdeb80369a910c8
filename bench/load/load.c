#include "load/load.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"

window win;

void die(const char *what) {
    fprintf(stderr, "load: %s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

void window_open(void) {
    win.begin = cp_now_ns() + (uint64_t)opt.warmup_ms * 1000000;
    win.end = win.begin + (uint64_t)opt.seconds_ms * 1000000;
}

bool window_note(uint64_t intended, uint64_t now) {
    if (intended < win.begin) return false;
    hist_add(&win.latency, now - intended);
    if (now > win.last) win.last = now;
    return true;
}

void window_report(const char *name, const char *more) {
    const hist *h = &win.latency;
    errno = 0;
    if (!h->count) die("nothing was measured");
    uint64_t until = win.last > win.end || opt.ops ? win.last : win.end;
    double secs = (double)(until - win.begin) / 1e9;
    printf("{\"scenario\":\"%s\",\"ops\":%llu,\"opsPerSec\":%.1f", name, (unsigned long long)h->count,
           (double)h->count / secs);
    static const struct {
        const char *name;
        double q;
    } shown[] = {{"p50us", 0.5}, {"p90us", 0.9}, {"p99us", 0.99}, {"p999us", 0.999}};
    for (size_t i = 0; i < CP_COUNT(shown); i++)
        printf(",\"%s\":%.1f", shown[i].name, (double)hist_quantile(h, shown[i].q) / 1e3);
    printf(",\"maxus\":%.1f,\"missed\":%llu%s}\n", (double)h->max / 1e3, (unsigned long long)win.missed, more);
}
