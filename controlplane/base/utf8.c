#include "base/utf8.h"

#include <string.h>

/* state: 0 between characters, BAD, or what the next byte must be: bytes still missing << 16 | highest << 8 | lowest.
 * Only the second byte has a range of its own (RFC 3629 section 4: no overlong forms, no surrogates, at most U+10FFFF).
 */
#define BAD           UINT32_MAX
#define WANT(n, l, h) ((uint32_t)(n) << 16 | (uint32_t)(h) << 8 | (uint32_t)(l))

static uint32_t after_lead(unsigned char c) {
    if (c < 0x80) return 0;
    if (c < 0xC2) return BAD;
    if (c < 0xE0) return WANT(1, 0x80, 0xBF);
    if (c == 0xE0) return WANT(2, 0xA0, 0xBF);
    if (c == 0xED) return WANT(2, 0x80, 0x9F);
    if (c < 0xF0) return WANT(2, 0x80, 0xBF);
    if (c == 0xF0) return WANT(3, 0x90, 0xBF);
    if (c < 0xF4) return WANT(3, 0x80, 0xBF);
    if (c == 0xF4) return WANT(3, 0x80, 0x8F);
    return BAD;
}

static inline uint32_t step(uint32_t state, unsigned char c) {
    if (state == 0) return after_lead(c);
    if (c < (state & 0xFF) || c > (state >> 8 & 0xFF)) return BAD;
    uint32_t missing = (state >> 16) - 1;
    return missing ? WANT(missing, 0x80, 0xBF) : 0;
}

/* The first byte at or after p that is not ASCII. */
static const char *skip_ascii(const char *p, const char *end) {
    for (uint64_t a, b; end - p >= 16; p += 16) {
        memcpy(&a, p, 8);
        memcpy(&b, p + 8, 8);
        if ((a | b) & 0x8080808080808080u) break;
    }
    while (p < end && !(*p & 0x80)) p++;
    return p;
}

bool cp_utf8_feed(cp_utf8 *u, const char *p, size_t n) {
    uint32_t state = u->state;
    if (n == 0) return state != BAD; /* then p may be NULL, and even NULL + 0 is undefined */
    for (const char *end = p + n; p < end && state != BAD; p++) {
        if (state == 0 && (p = skip_ascii(p, end)) == end) break;
        state = step(state, (unsigned char)*p);
    }
    u->state = state;
    return state != BAD;
}

bool cp_utf8_complete(const cp_utf8 *u) { return u->state == 0; }

size_t cp_utf8_next(const char *p, size_t n, bool *valid) {
    uint32_t state = after_lead((unsigned char)p[0]);
    size_t i = 1;
    while (state != 0 && state != BAD && i < n) {
        state = step(state, (unsigned char)p[i]);
        if (state != BAD) i++;
    }
    *valid = state == 0;
    return i;
}

bool cp_utf8_valid(const char *p, size_t n) { return cp_utf8_prefix(p, n) == n; }

size_t cp_utf8_prefix(const char *p, size_t n) {
    if (n == 0) return 0;
    const char *at = p, *end = p + n;
    while ((at = skip_ascii(at, end)) < end) {
        bool valid;
        size_t len = cp_utf8_next(at, (size_t)(end - at), &valid);
        if (!valid) break;
        at += len;
    }
    return (size_t)(at - p);
}

size_t cp_utf8_tail(const char *p, size_t n) {
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = (unsigned char)p[n - back];
        if (c < 0x80) return 0;
        if (c < 0xC0) continue;
        cp_utf8 u = {0};
        return cp_utf8_feed(&u, p + n - back, back) && !cp_utf8_complete(&u) ? back : 0;
    }
    return 0;
}
