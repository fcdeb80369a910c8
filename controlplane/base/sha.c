#include "base/sha.h"

#include "base/sha_impl.h"

#include <stdatomic.h>
#include <string.h>

static uint32_t rol(uint32_t x, unsigned n) { return x << n | x >> (32 - n); }
static uint32_t ror(uint32_t x, unsigned n) { return x >> n | x << (32 - n); }

static uint32_t load32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void store32(uint8_t *p, uint32_t v) {
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> (24 - 8 * i));
}

typedef void compress_fn(uint32_t *h, const uint8_t *p, size_t blocks);

/* Section 5.1.1: the last `n` < 64 bytes, a one bit, zeros, the length in bits. */
static void finish(compress_fn *compress, uint32_t *h, const uint8_t *rest, size_t n, uint64_t total) {
    uint8_t tail[128] = {0};
    size_t size = n < 56 ? 64 : 128;
    memcpy(tail, rest, n);
    tail[n] = 0x80;
    store32(tail + size - 8, (uint32_t)(total >> 29));
    store32(tail + size - 4, (uint32_t)(total << 3));
    compress(h, tail, size / 64);
}

/* ---- SHA-1, section 6.1 ---- */

static void sha1_block(uint32_t *h, const uint8_t block[64]) {
    uint32_t w[80], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
    for (int t = 0; t < 16; t++) w[t] = load32(block + 4 * t);
    for (int t = 16; t < 80; t++) w[t] = rol(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1);
    for (int t = 0; t < 80; t++) {
        uint32_t f, k;
        if (t < 20) f = (b & c) ^ (~b & d), k = 0x5a827999;
        else if (t < 40) f = b ^ c ^ d, k = 0x6ed9eba1;
        else if (t < 60) f = (b & c) ^ (b & d) ^ (c & d), k = 0x8f1bbcdc;
        else f = b ^ c ^ d, k = 0xca62c1d6;
        uint32_t x = rol(a, 5) + f + e + k + w[t];
        e = d;
        d = c;
        c = rol(b, 30);
        b = a;
        a = x;
    }
    h[0] += a;
    h[1] += b;
    h[2] += c;
    h[3] += d;
    h[4] += e;
}

static void sha1_blocks(uint32_t *h, const uint8_t *p, size_t blocks) {
    for (; blocks; blocks--, p += 64) sha1_block(h, p);
}

void cp_sha1(const void *p, size_t n, uint8_t out[CP_SHA1_SIZE]) {
    uint32_t h[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    const uint8_t *in = n ? p : (const void *)"";
    sha1_blocks(h, in, n / 64);
    finish(sha1_blocks, h, in + n / 64 * 64, n % 64, n);
    for (int j = 0; j < 5; j++) store32(out + 4 * j, h[j]);
}

/* ---- SHA-256, section 6.2 ---- */

const uint32_t sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

/* One round that leaves the working variables where the next one finds them under rotated names: moving eight of them
 * each round would cost half the speed. Changes d and h only. */
static inline __attribute__((always_inline)) void round256(uint32_t a, uint32_t b, uint32_t c, uint32_t *d, uint32_t e,
                                                           uint32_t f, uint32_t g, uint32_t *h, uint32_t kw) {
    uint32_t x = *h + (ror(e, 6) ^ ror(e, 11) ^ ror(e, 25)) + (g ^ (e & (f ^ g))) + kw;
    *d += x;
    *h = x + (ror(a, 2) ^ ror(a, 13) ^ ror(a, 22)) + ((a & b) | (c & (a | b)));
}

static void sha256_block(uint32_t *h, const uint8_t block[64]) {
    uint32_t w[64];
    uint32_t a = h[0], b = h[1], c = h[2], d = h[3], e = h[4], f = h[5], g = h[6], i = h[7];
    for (int t = 0; t < 16; t++) w[t] = load32(block + 4 * t);
    for (int t = 16; t < 64; t++) {
        uint32_t s0 = ror(w[t - 15], 7) ^ ror(w[t - 15], 18) ^ w[t - 15] >> 3;
        uint32_t s1 = ror(w[t - 2], 17) ^ ror(w[t - 2], 19) ^ w[t - 2] >> 10;
        w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    for (int t = 0; t < 64; t += 8) {
        round256(a, b, c, &d, e, f, g, &i, sha256_k[t] + w[t]);
        round256(i, a, b, &c, d, e, f, &g, sha256_k[t + 1] + w[t + 1]);
        round256(g, i, a, &b, c, d, e, &f, sha256_k[t + 2] + w[t + 2]);
        round256(f, g, i, &a, b, c, d, &e, sha256_k[t + 3] + w[t + 3]);
        round256(e, f, g, &i, a, b, c, &d, sha256_k[t + 4] + w[t + 4]);
        round256(d, e, f, &g, i, a, b, &c, sha256_k[t + 5] + w[t + 5]);
        round256(c, d, e, &f, g, i, a, &b, sha256_k[t + 6] + w[t + 6]);
        round256(b, c, d, &e, f, g, i, &a, sha256_k[t + 7] + w[t + 7]);
    }
    const uint32_t v[8] = {a, b, c, d, e, f, g, i};
    for (int t = 0; t < 8; t++) h[t] += v[t];
}

void sha256_blocks_portable(uint32_t h[8], const uint8_t *p, size_t blocks) {
    for (; blocks; blocks--, p += 64) sha256_block(h, p);
}

static void sha256_blocks(uint32_t *h, const uint8_t *p, size_t blocks) {
#if defined(__x86_64__)
    static atomic_int usable; /* 0: not asked yet; 1: no; 2: yes */
    int u = atomic_load_explicit(&usable, memory_order_relaxed);
    if (!u) atomic_store_explicit(&usable, u = 1 + sha256_x86_usable(), memory_order_relaxed);
    if (u == 2) {
        sha256_blocks_x86(h, p, blocks);
        return;
    }
#endif
    sha256_blocks_portable(h, p, blocks);
}

void cp_sha256_init(cp_sha256 *s) {
    *s = (cp_sha256){
        .h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void cp_sha256_update(cp_sha256 *s, const void *p, size_t n) {
    const uint8_t *in = p;
    size_t have = s->total % 64;
    s->total += n;
    if (have) {
        size_t take = n < 64 - have ? n : 64 - have;
        if (take) memcpy(s->block + have, in, take);
        if (have + take < 64) return;
        sha256_blocks(s->h, s->block, 1);
        in += take;
        n -= take;
    }
    if (n >= 64) sha256_blocks(s->h, in, n / 64);
    if (n % 64) memcpy(s->block, in + n / 64 * 64, n % 64);
}

void cp_sha256_final(cp_sha256 *s, uint8_t out[CP_SHA256_SIZE]) {
    finish(sha256_blocks, s->h, s->block, s->total % 64, s->total);
    for (int i = 0; i < 8; i++) store32(out + 4 * i, s->h[i]);
}

void cp_sha256_of(const void *p, size_t n, uint8_t out[CP_SHA256_SIZE]) {
    cp_sha256 s;
    cp_sha256_init(&s);
    cp_sha256_update(&s, p, n);
    cp_sha256_final(&s, out);
}

void cp_sha256_hex(const uint8_t digest[CP_SHA256_SIZE], char out[2 * CP_SHA256_SIZE + 1]) {
    static const char hex[] = "0123456789abcdef";
    for (size_t i = 0; i < CP_SHA256_SIZE; i++) {
        out[2 * i] = hex[digest[i] >> 4];
        out[2 * i + 1] = hex[digest[i] & 15];
    }
    out[2 * CP_SHA256_SIZE] = '\0';
}

bool cp_equal_ct(const void *a, const void *b, size_t n) {
    const volatile uint8_t *x = a, *y = b; /* volatile: no early exit may be made of the loop */
    uint8_t diff = 0;
    for (size_t i = 0; i < n; i++) diff |= x[i] ^ y[i];
    return diff == 0;
}
