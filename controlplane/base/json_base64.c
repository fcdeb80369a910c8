#include "base/json.h"

/* clang-format off */
/* Two characters for each 12 bits: half the look-ups of a table of single characters. */
#define ROW(c) \
    {c,'A'},{c,'B'},{c,'C'},{c,'D'},{c,'E'},{c,'F'},{c,'G'},{c,'H'},{c,'I'},{c,'J'},{c,'K'},{c,'L'},{c,'M'}, \
    {c,'N'},{c,'O'},{c,'P'},{c,'Q'},{c,'R'},{c,'S'},{c,'T'},{c,'U'},{c,'V'},{c,'W'},{c,'X'},{c,'Y'},{c,'Z'}, \
    {c,'a'},{c,'b'},{c,'c'},{c,'d'},{c,'e'},{c,'f'},{c,'g'},{c,'h'},{c,'i'},{c,'j'},{c,'k'},{c,'l'},{c,'m'}, \
    {c,'n'},{c,'o'},{c,'p'},{c,'q'},{c,'r'},{c,'s'},{c,'t'},{c,'u'},{c,'v'},{c,'w'},{c,'x'},{c,'y'},{c,'z'}, \
    {c,'0'},{c,'1'},{c,'2'},{c,'3'},{c,'4'},{c,'5'},{c,'6'},{c,'7'},{c,'8'},{c,'9'},{c,'+'},{c,'/'}
static const char pairs[4096][2] = {
    ROW('A'), ROW('B'), ROW('C'), ROW('D'), ROW('E'), ROW('F'), ROW('G'), ROW('H'), ROW('I'), ROW('J'), ROW('K'),
    ROW('L'), ROW('M'), ROW('N'), ROW('O'), ROW('P'), ROW('Q'), ROW('R'), ROW('S'), ROW('T'), ROW('U'), ROW('V'),
    ROW('W'), ROW('X'), ROW('Y'), ROW('Z'), ROW('a'), ROW('b'), ROW('c'), ROW('d'), ROW('e'), ROW('f'), ROW('g'),
    ROW('h'), ROW('i'), ROW('j'), ROW('k'), ROW('l'), ROW('m'), ROW('n'), ROW('o'), ROW('p'), ROW('q'), ROW('r'),
    ROW('s'), ROW('t'), ROW('u'), ROW('v'), ROW('w'), ROW('x'), ROW('y'), ROW('z'), ROW('0'), ROW('1'), ROW('2'),
    ROW('3'), ROW('4'), ROW('5'), ROW('6'), ROW('7'), ROW('8'), ROW('9'), ROW('+'), ROW('/'),
};

/* Value + 1; 0 is what is not in the alphabet, so that value - 1 has its top bit set. */
static const uint8_t value1[256] = {
    ['A'] = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26,
    ['a'] = 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52,
    ['0'] = 53, 54, 55, 56, 57, 58, 59, 60, 61, 62,
    ['+'] = 63, ['/'] = 64,
};
/* clang-format on */

static inline uint32_t value(unsigned char c) { return (uint32_t)value1[c] - 1; }

static inline uint64_t load_be64(const unsigned char *p) {
    uint64_t v;
    memcpy(&v, p, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

static inline char *put_pair(char *o, uint64_t twelve_bits) {
    memcpy(o, pairs[twelve_bits & 0xFFF], 2);
    return o + 2;
}

void cp_base64_encode(cp_buf *out, const void *data, size_t n) {
    const unsigned char *p = data;
    if (n == 0) return;
    cp_buf_reserve(out, (n + 2) / 3 * 4);
    char *o = out->p + out->n;
    for (; n >= 8; n -= 6, p += 6) { /* six bytes at a time, of eight that are read */
        uint64_t v = load_be64(p);
        o = put_pair(o, v >> 52);
        o = put_pair(o, v >> 40);
        o = put_pair(o, v >> 28);
        o = put_pair(o, v >> 16);
    }
    for (; n >= 3; n -= 3, p += 3) {
        uint32_t v = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2];
        o = put_pair(o, v >> 12);
        o = put_pair(o, v);
    }
    if (n) {
        uint32_t v = (uint32_t)p[0] << 16 | (n == 2 ? (uint32_t)p[1] << 8 : 0);
        o = put_pair(o, v >> 12);
        o = put_pair(o, v);
        o[-1] = '=';
        if (n == 1) o[-2] = '=';
    }
    out->n = (size_t)(o - out->p);
}

/* Four characters to 24 bits; the top bit is set when one was not in the alphabet. */
static inline uint32_t quad(const unsigned char *p) {
    uint32_t a = value(p[0]), b = value(p[1]), c = value(p[2]), d = value(p[3]);
    return a << 18 | b << 12 | c << 6 | d | ((a | b | c | d) & 0x80000000u);
}

static inline char *put24(char *o, uint32_t v) {
    *o++ = (char)(v >> 16);
    *o++ = (char)(v >> 8);
    *o++ = (char)v;
    return o;
}

int cp_base64_decode(cp_buf *out, cp_str text) {
    const unsigned char *p = (const unsigned char *)text.p;
    size_t n = text.n;
    if (n == 0) return 0;
    if (n % 4) return -1;
    cp_buf_reserve(out, n / 4 * 3);
    char *o = out->p + out->n;
    uint32_t bad = 0;
    for (; n > 4; n -= 4, p += 4) {
        uint32_t v = quad(p);
        bad |= v;
        o = put24(o, v);
    }
    /* The last four may be padded; the bits that padding leaves unused must be zero (RFC 4648 section 3.5). */
    unsigned char last[4] = {p[0], p[1], p[2], p[3]};
    unsigned padding = last[3] != '=' ? 0 : last[2] != '=' ? 1 : 2;
    for (unsigned i = 0; i < padding; i++) last[3 - i] = 'A';
    uint32_t v = quad(last);
    if ((bad | v) & 0x80000000u || v & ((1u << 8 * padding) - 1)) return -1;
    out->n = (size_t)(put24(o, v) - out->p) - padding;
    return 0;
}
