#include "cli/progress.h"

#include "base/clock.h"
#include "cli/say.h"

#include <stdio.h>
#include <unistd.h>

enum { EVERY_MS = 100, FIRST_MS = 300 /* short copies show nothing */, BAR = 20 };

void cli_progress_begin(cli_progress *p, bool quiet, const char *name, uint64_t total) {
    cp_autobuf cp_buf clean = {0};
    *p = (cli_progress){.on = !quiet && isatty(STDERR_FILENO), .total = total, .began_ms = cp_now_ms()};
    p->shown_ms = p->began_ms + FIRST_MS - EVERY_MS;
    cli_clean(&clean, cp_str_of(name));
    snprintf(p->name, sizeof p->name, "%.40s", cp_buf_z(&clean));
}

static void put_bar(cp_buf *out, uint64_t done, uint64_t total) {
    uint64_t full = done < total ? done * BAR / total : BAR;
    cp_buf_addz(out, " [");
    for (uint64_t i = 0; i < BAR; i++) cp_buf_addc(out, i < full ? '#' : ' ');
    cp_buf_addf(out, "] %3llu%%", (unsigned long long)(done < total ? done * 100 / total : 100));
}

static void show(const cli_progress *p, uint64_t now) {
    char done[24], rate[24];
    cp_autobuf cp_buf line = {0};
    uint64_t ms = now > p->began_ms ? now - p->began_ms : 1;
    cli_bytes(done, p->done);
    cli_bytes(rate, p->done * 1000 / ms);
    cp_buf_addf(&line, "\r\033[K%s", p->name);
    if (p->total) put_bar(&line, p->done, p->total);
    cp_buf_addf(&line, " %s, %s/s", done, rate);
    if (write(STDERR_FILENO, line.p, line.n) < 0) return; /* the terminal is gone, and the copy is not */
}

void cli_progress_add(cli_progress *p, uint64_t n) {
    p->done += n;
    if (!p->on) return;
    uint64_t now = cp_now_ms();
    if (now < p->shown_ms + EVERY_MS) return;
    p->shown_ms = now;
    show(p, now);
}

void cli_progress_end(cli_progress *p) {
    static const char wipe[] = "\r\033[K";
    if (p->on && p->shown_ms >= p->began_ms + FIRST_MS && write(STDERR_FILENO, wipe, sizeof wipe - 1) < 0) return;
    p->on = false;
}
