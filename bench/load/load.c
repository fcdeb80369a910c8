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
    win.done += now >= win.begin && now <= win.end;
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
    double rate = (double)h->count * 1e9 / (double)(until - win.begin);
    if (!opt.ops && opt.rate <= 0 && win.done) rate = (double)win.done * 1e9 / (double)(win.end - win.begin);
    printf("{\"scenario\":\"%s\",\"ops\":%llu,\"opsPerSec\":%.1f", name, (unsigned long long)h->count, rate);
    static const struct {
        const char *name;
        double q;
    } shown[] = {{"p50us", 0.5}, {"p90us", 0.9}, {"p99us", 0.99}, {"p999us", 0.999}};
    for (size_t i = 0; i < CP_COUNT(shown); i++)
        printf(",\"%s\":%.1f", shown[i].name, (double)hist_quantile(h, shown[i].q) / 1e3);
    printf(",\"maxus\":%.1f,\"missed\":%llu%s}\n", (double)h->max / 1e3, (unsigned long long)win.missed, more);
}
