#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static _Noreturn void out_of_memory(size_t n) {
    fprintf(stderr, "conflux: out of memory (%zu bytes)\n", n);
    abort();
}

void *cp_alloc(size_t n) {
    void *p = calloc(1, n ? n : 1);
    if (!p) out_of_memory(n);
    return p;
}

void *cp_realloc(void *p, size_t n) {
    void *q = realloc(p, n ? n : 1);
    if (!q) out_of_memory(n);
    return q;
}

void cp_autofree_(void *pp) { free(*(void **)pp); }

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c; }

bool cp_str_ieq(cp_str a, cp_str b) {
    if (a.n != b.n) return false;
    for (size_t i = 0; i < a.n; i++)
        if (lower(a.p[i]) != lower(b.p[i])) return false;
    return true;
}

bool cp_str_starts(cp_str s, cp_str prefix) {
    return s.n >= prefix.n && (prefix.n == 0 || memcmp(s.p, prefix.p, prefix.n) == 0);
}

static bool blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

cp_str cp_str_trim(cp_str s) {
    while (s.n && blank(s.p[0])) s.p++, s.n--;
    while (s.n && blank(s.p[s.n - 1])) s.n--;
    return s;
}

bool cp_str_u64(cp_str s, uint64_t max, uint64_t *out) {
    uint64_t v = 0;
    if (s.n == 0) return false;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9') return false;
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, (uint64_t)(s.p[i] - '0'), &v)) return false;
    }
    if (v > max) return false;
    *out = v;
    return true;
}

char *cp_str_dup(cp_str s) {
    char *z = cp_alloc(s.n + 1);
    if (s.n) memcpy(z, s.p, s.n);
    return z;
}

char *cp_str_try_dup(cp_str s) {
    char *z = malloc(s.n + 1);
    if (!z) return NULL;
    if (s.n) memcpy(z, s.p, s.n);
    z[s.n] = '\0';
    return z;
}

void cp_buf_free(cp_buf *b) {
    free(b->p);
    *b = (cp_buf){0};
}

/* The capacity that has room for `more` bytes; 0: no number is large enough. */
static size_t cap_for(const cp_buf *b, size_t more) {
    size_t need;
    if (__builtin_add_overflow(b->n, more, &need)) return 0;
    size_t cap = b->cap ? b->cap : 256;
    while (cap < need) cap = cap < ((size_t)1 << 20) ? cap * 2 : cap + cap / 2;
    return cap;
}

void cp_buf_reserve(cp_buf *b, size_t more) {
    size_t cap = cap_for(b, more);
    if (!cap) out_of_memory(more);
    if (cap == b->cap) return;
    b->p = cp_realloc(b->p, cap);
    b->cap = cap;
}

bool cp_buf_try_reserve(cp_buf *b, size_t more) {
    size_t cap = cap_for(b, more);
    if (cap && cap == b->cap) return true;
    char *p = cap ? realloc(b->p, cap) : NULL;
    if (!p) return false;
    b->p = p;
    b->cap = cap;
    return true;
}

void cp_buf_add(cp_buf *b, const void *p, size_t n) {
    if (!n) return;
    cp_buf_reserve(b, n);
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

void cp_buf_addz(cp_buf *b, const char *z) { cp_buf_add(b, z, strlen(z)); }

void cp_buf_addc(cp_buf *b, char c) {
    cp_buf_reserve(b, 1);
    b->p[b->n++] = c;
}

void cp_buf_addf(cp_buf *b, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n > 0) {
        cp_buf_reserve(b, (size_t)n + 1);
        vsnprintf(b->p + b->n, (size_t)n + 1, fmt, again);
        b->n += (size_t)n;
    }
    va_end(again);
}

void cp_buf_addu(cp_buf *b, uint64_t v) {
    char tmp[20];
    size_t i = sizeof tmp;
    do tmp[--i] = (char)('0' + v % 10);
    while (v /= 10);
    cp_buf_add(b, tmp + i, sizeof tmp - i);
}

void cp_buf_add_word(cp_buf *b, cp_str word) {
    cp_buf_addc(b, '\'');
    for (const char *quote; word.n && (quote = memchr(word.p, '\'', word.n));) {
        size_t n = (size_t)(quote - word.p);
        cp_buf_add(b, word.p, n);
        cp_buf_addz(b, "'\\''");
        word.p += n + 1;
        word.n -= n + 1;
    }
    cp_buf_add(b, word.p, word.n);
    cp_buf_addc(b, '\'');
}

void cp_buf_consume(cp_buf *b, size_t n) {
    if (n >= b->n) {
        b->n = 0;
        return;
    }
    memmove(b->p, b->p + n, b->n - n);
    b->n -= n;
}

const char *cp_buf_z(cp_buf *b) {
    cp_buf_reserve(b, 1);
    b->p[b->n] = '\0';
    return b->p;
}

void cp_buf_reset(cp_buf *b, size_t keep) {
    b->n = 0;
    if (b->cap > keep) cp_buf_free(b);
}
