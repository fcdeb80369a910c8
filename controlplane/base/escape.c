/* Design notes. All output of all children passes here, so the speed of a stream is decided in this file. Plain text is
 * copied 16 bytes at a time by a store that may run ahead: what it wrote too much is overwritten by what follows, which
 * is why every write here needs SLACK bytes of room behind it. Where escapes are dense (`yes`: every second byte) going
 * from one to the next costs a chain of dependent loads each; there a table with one eight-byte entry for each byte is
 * faster: seven bytes of text, and in the last its length, so that putting a byte is one load and one store. */
#include "base/escape.h"

#include "base/utf8.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { WORST = 7, SLACK = 32, BLOCK = 4096 };
_Static_assert(CP_ESCAPED_MAX(0) >= SLACK * WORST + WORST * BLOCK && CP_ESCAPED_MAX(1) - CP_ESCAPED_MAX(0) >= WORST,
               "");

struct entry {
    char text[7];
    uint8_t len; /* 0: not ASCII */
};

/* clang-format off */
#define PLAIN(c)  [c] = {{c}, 1}
#define PLAIN8(c) PLAIN(c), PLAIN(c + 1), PLAIN(c + 2), PLAIN(c + 3), PLAIN(c + 4), PLAIN(c + 5), PLAIN(c + 6), PLAIN(c + 7)
#define PLAIN_ALL PLAIN(0x20), PLAIN(0x21), PLAIN(0x23), PLAIN(0x24), PLAIN(0x25), PLAIN(0x26), PLAIN(0x27), PLAIN8(0x28), \
    PLAIN8(0x30), PLAIN8(0x38), PLAIN8(0x40), PLAIN8(0x48), PLAIN8(0x50), PLAIN(0x58), PLAIN(0x59), PLAIN(0x5A), PLAIN(0x5B), \
    PLAIN(0x5D), PLAIN(0x5E), PLAIN(0x5F), PLAIN8(0x60), PLAIN8(0x68), PLAIN8(0x70), PLAIN8(0x78)
/* Each control character and its level-1 escape without the backslash. */
#define CONTROLS(X) \
    X(0x00, "u0000") X(0x01, "u0001") X(0x02, "u0002") X(0x03, "u0003") X(0x04, "u0004") X(0x05, "u0005") \
    X(0x06, "u0006") X(0x07, "u0007") X(0x08, "b")     X(0x09, "t")     X(0x0A, "n")     X(0x0B, "u000b") \
    X(0x0C, "f")     X(0x0D, "r")     X(0x0E, "u000e") X(0x0F, "u000f") X(0x10, "u0010") X(0x11, "u0011") \
    X(0x12, "u0012") X(0x13, "u0013") X(0x14, "u0014") X(0x15, "u0015") X(0x16, "u0016") X(0x17, "u0017") \
    X(0x18, "u0018") X(0x19, "u0019") X(0x1A, "u001a") X(0x1B, "u001b") X(0x1C, "u001c") X(0x1D, "u001d") \
    X(0x1E, "u001e") X(0x1F, "u001f")
#define ONCE(c, text)  [c] = {"\\" text, sizeof(text)},
#define TWICE(c, text) [c] = {"\\\\" text, sizeof(text) + 1},
static const struct entry tables[2][256] = {
    {PLAIN_ALL, CONTROLS(ONCE) ['"'] = {"\\\"", 2}, ['\\'] = {"\\\\", 2}},
    {PLAIN_ALL, CONTROLS(TWICE) ['"'] = {"\\\\\\\"", 4}, ['\\'] = {"\\\\\\\\", 4}},
};
/* clang-format on */

/* Bit i: byte i is a control character, a quote, a backslash or not ASCII. */
#ifdef __SSE2__
static inline unsigned special16(const char *p) {
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
    __m128i low = _mm_cmplt_epi8(x, _mm_set1_epi8(0x20)); /* signed: bytes from 0x80 are below too */
    __m128i quote = _mm_cmpeq_epi8(x, _mm_set1_epi8('"'));
    __m128i slash = _mm_cmpeq_epi8(x, _mm_set1_epi8('\\'));
    return (unsigned)_mm_movemask_epi8(_mm_or_si128(low, _mm_or_si128(quote, slash)));
}
#else
static inline uint64_t special8(uint64_t x) {
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    uint64_t q = x ^ ones * '"', s = x ^ ones * '\\';
    return (x | (x - ones * 0x20) | (q - ones) | (s - ones)) & high;
}

/* Does not tell which byte: all bits or none. Exact all the same: a borrow begins at a byte that is special itself. */
static inline unsigned special16(const char *p) {
    uint64_t a, b;
    memcpy(&a, p, 8);
    memcpy(&b, p + 8, 8);
    return special8(a) | special8(b) ? 0xFFFF : 0;
}
#endif

static inline bool at_least_three(unsigned m) {
    m &= m - 1;
    return (m & (m - 1)) != 0;
}

struct pen {
    const struct entry *table;
    const char *p, *end; /* input */
    char *o;             /* output */
    bool valid;
};

/* Up to n bytes by the table; stops at one that is not ASCII. */
static inline void put_bytes(struct pen *w, size_t n) {
    const char *p = w->p;
    char *o = w->o;
    for (const char *stop = p + n; p < stop; p++) {
        const struct entry *e = &w->table[(unsigned char)*p];
        if (!e->len) break;
        memcpy(o, e, sizeof *e);
        o += e->len;
    }
    w->p = p;
    w->o = o;
}

static void put_wide(struct pen *w) {
    bool valid;
    size_t n = cp_utf8_next(w->p, (size_t)(w->end - w->p), &valid);
    if (valid) {
        for (size_t i = 0; i < n; i++) w->o[i] = w->p[i];
        w->o += n;
    } else {
        memcpy(w->o, "\xEF\xBF\xBD", 3);
        w->o += 3;
        w->valid = false;
    }
    w->p += n;
}

/* Everything that begins before stop. The last character may end behind it, which SLACK covers. */
static inline void put_block(struct pen *w, const char *stop) {
    while (w->p < stop) {
        if (w->end - w->p < 16) {
            size_t left = (size_t)(stop - w->p);
            put_bytes(w, left);
        } else {
            unsigned m = special16(w->p);
            if (m == 0 || !at_least_three(m)) {
                size_t run = m ? (size_t)__builtin_ctz(m) : 16;
                memcpy(w->o, w->p, 16);
                w->p += run;
                w->o += run;
                if (m) put_bytes(w, 1);
            } else {
                put_bytes(w, 16);
            }
        }
        while (w->p < stop && (*w->p & 0x80)) put_wide(w);
    }
}

bool cp_escape(cp_buf *out, cp_str s, int level) {
    if (s.n == 0) return true; /* then s.p may be NULL, and even NULL + 0 is undefined */
    struct pen w = {.table = tables[level == 2], .p = s.p, .end = s.p + s.n, .valid = true};
    while (w.p < w.end) {
        size_t left = (size_t)(w.end - w.p);
        size_t block = left < BLOCK ? left : BLOCK;
        cp_buf_reserve(out, block * WORST + SLACK * WORST);
        w.o = out->p + out->n;
        put_block(&w, w.p + block);
        out->n = (size_t)(w.o - out->p);
    }
    return w.valid;
}
