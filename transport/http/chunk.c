#include "transport/http/chunk.h"

#include <string.h>

enum { SIZE, EXTENSION, SIZE_LF, DATA, DATA_CR, DATA_LF, TRAILER, TRAILER_LF };
enum { MAX_DIGITS = 15, MAX_EXTRA = 16 * 1024 };

static int hex(char ch) {
    if (ch >= '0' && ch <= '9') return ch - '0';
    ch |= 0x20;
    return ch >= 'a' && ch <= 'f' ? ch - 'a' + 10 : -1;
}

static int size_digit(cp_chunks *c, char ch) {
    int v = hex(ch);
    if (v >= 0 && c->digits < MAX_DIGITS) {
        c->left = c->left * 16 + (uint64_t)v;
        c->digits++;
        return 0;
    }
    if (v >= 0 || c->digits == 0) return -1;
    if (ch == '\r') c->state = SIZE_LF;
    else if (ch == ';' || ch == ' ' || ch == '\t') c->state = EXTENSION;
    else return -1;
    return 0;
}

static int end_of_size(cp_chunks *c, char ch) {
    if (ch != '\n') return -1;
    c->state = c->left ? DATA : TRAILER;
    c->digits = 0;
    c->line = c->extra = 0;
    return 0;
}

/* A line of the trailer, or the empty one that ends the body. */
static int end_of_trailer(cp_chunks *c, char ch) {
    if (ch != '\n') return -1;
    c->ended = c->line == 0;
    c->state = TRAILER;
    c->line = 0;
    return 0;
}

static int extra(cp_chunks *c, char ch, uint8_t at_cr) {
    if (++c->extra > MAX_EXTRA || ch == '\n') return -1; /* a bare LF */
    if (ch == '\r') c->state = at_cr;
    else c->line++;
    return 0;
}

/* One byte that is not content. */
static int step(cp_chunks *c, char ch) {
    switch (c->state) {
    case SIZE: return size_digit(c, ch);
    case EXTENSION: return extra(c, ch, SIZE_LF);
    case SIZE_LF: return end_of_size(c, ch);
    case DATA_CR: c->state = DATA_LF; return ch == '\r' ? 0 : -1;
    case DATA_LF: c->state = SIZE; return ch == '\n' ? 0 : -1;
    case TRAILER: return extra(c, ch, TRAILER_LF);
    default: return end_of_trailer(c, ch);
    }
}

ptrdiff_t cp_chunks_read(cp_chunks *c, const char *p, size_t n, char *out, size_t room, size_t *used) {
    size_t at = 0, wrote = 0;
    while (at < n && !c->ended) {
        if (c->state != DATA) {
            if (step(c, p[at++]) < 0) return -1;
            continue;
        }
        size_t k = n - at;
        if (k > c->left) k = c->left;
        if (k > room - wrote) k = room - wrote;
        if (k == 0) break;
        memmove(out + wrote, p + at, k);
        wrote += k;
        at += k;
        c->left -= k;
        if (c->left == 0) c->state = DATA_CR;
    }
    *used = at;
    return (ptrdiff_t)wrote;
}
