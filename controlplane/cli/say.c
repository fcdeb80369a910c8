#include "cli/say.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static uint32_t decode(const char *p, size_t n) {
    const unsigned char *u = (const unsigned char *)p;
    if (n == 1) return u[0];
    if (n == 2) return (u[0] & 0x1fu) << 6 | (u[1] & 0x3fu);
    if (n == 3) return (u[0] & 0x0fu) << 12 | (u[1] & 0x3fu) << 6 | (u[2] & 0x3fu);
    return (u[0] & 0x07u) << 18 | (u[1] & 0x3fu) << 12 | (u[2] & 0x3fu) << 6 | (u[3] & 0x3fu);
}

static bool drives(uint32_t c) {
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x200e || c == 0x200f || (c >= 0x202a && c <= 0x202e) ||
           (c >= 0x2066 && c <= 0x2069);
}

static void escape(cp_buf *out, uint32_t c) {
    if (c == '\n') cp_buf_addz(out, "\\n");
    else if (c == '\t') cp_buf_addz(out, "\\t");
    else if (c < 0x80) cp_buf_addf(out, "\\x%02x", c);
    else cp_buf_addf(out, "\\u{%x}", c);
}

void cli_clean(cp_buf *out, cp_str s) {
    for (size_t i = 0, k; i < s.n; i += k) {
        bool valid;
        k = cp_utf8_next(s.p + i, s.n - i, &valid);
        uint32_t c = valid ? decode(s.p + i, k) : 0;
        if (!valid)
            for (size_t j = 0; j < k; j++) cp_buf_addf(out, "\\x%02x", (unsigned char)s.p[i + j]);
        else if (drives(c)) escape(out, c);
        else if (c == '\\') cp_buf_addz(out, "\\\\");
        else cp_buf_add(out, s.p + i, k);
    }
}

/* C0 is escaped in JSON strings as it is, and stands outside of them as white space. */
void cli_clean_json(cp_buf *out, cp_str s) {
    for (size_t i = 0, k; i < s.n; i += k) {
        bool valid;
        k = cp_utf8_next(s.p + i, s.n - i, &valid);
        uint32_t c = valid ? decode(s.p + i, k) : 0xfffd;
        if (c >= 0x20 && drives(c)) cp_buf_addf(out, "\\u%04x", c);
        else cp_buf_add(out, s.p + i, k);
    }
}

__attribute__((format(printf, 1, 0))) static void say(const char *fmt, va_list ap) {
    char text[2048];
    cp_autobuf cp_buf line = {0};
    vsnprintf(text, sizeof text, fmt, ap);
    cp_buf_addz(&line, "conflux: ");
    cli_clean(&line, cp_str_of(text));
    cp_buf_addc(&line, '\n');
    /* One write: lines of several programs in a pipeline do not mix. There is nobody to tell of its failure. */
    if (write(STDERR_FILENO, line.p, line.n) < 0) return;
}

int cli_fail(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    say(fmt, ap);
    va_end(ap);
    return 125;
}

void cli_warn(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    say(fmt, ap);
    va_end(ap);
}

void cli_bytes(char out[24], uint64_t n) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)n;
    size_t unit = 0;
    if (n < 1024) {
        snprintf(out, 24, "%llu B", (unsigned long long)n);
        return;
    }
    for (v /= 1024; v >= 1024 && unit + 1 < CP_COUNT(units); unit++) v /= 1024;
    snprintf(out, 24, "%.1f %s", v, units[unit]);
}

/* ---- tables ---- */

void cli_table_row(cli_table *t, const char *const cells[], size_t n) {
    t->ncols = n;
    t->cells = cp_realloc(t->cells, (t->nrows + 1) * n * sizeof *t->cells);
    for (size_t i = 0; i < n; i++) {
        cp_buf b = {0};
        cli_clean(&b, cp_str_of(cells[i] && *cells[i] ? cells[i] : "-"));
        cp_buf_addc(&b, '\0');
        t->cells[t->nrows * n + i] = b.p;
    }
    t->nrows++;
}

/* Columns on a screen, taken as one a character: names of wide characters come out of line, which harms nothing. */
static size_t columns(const char *z) {
    size_t n = 0;
    for (; *z; z++) n += ((unsigned char)*z & 0xc0) != 0x80;
    return n;
}

static size_t widest(const cli_table *t, size_t col) {
    size_t most = 0;
    for (size_t r = 0; r < t->nrows; r++) {
        size_t n = columns(t->cells[r * t->ncols + col]);
        if (n > most) most = n;
    }
    return most;
}

static void put_last(cp_buf *out, const char *cell, size_t room) {
    size_t n = 0;
    for (const char *p = cell; *p && (!room || n <= room); p++) {
        if (((unsigned char)*p & 0xc0) != 0x80 && room && n++ == room) break;
        cp_buf_addc(out, *p);
    }
    cp_buf_addc(out, '\n');
}

void cli_table_put(cli_table *t, size_t width, cp_buf *out) {
    cp_autofree size_t *widths = cp_alloc((t->ncols + 1) * sizeof *widths);
    for (size_t c = 0; c + 1 < t->ncols; c++) widths[c] = widest(t, c) + 2;
    for (size_t r = 0; r < t->nrows; r++) {
        size_t used = 0;
        char **row = t->cells + r * t->ncols;
        for (size_t c = 0; c + 1 < t->ncols; c++) {
            cp_buf_addf(out, "%s%*s", row[c], (int)(widths[c] - columns(row[c])), "");
            used += widths[c];
        }
        put_last(out, row[t->ncols - 1], width > used + 1 ? width - used : 0);
    }
    for (size_t i = 0; i < t->nrows * t->ncols; i++) free(t->cells[i]);
    free(t->cells);
    *t = (cli_table){0};
}
