/* SHA-256 by the processor's SHA extensions (Intel, "SHA Extensions", 2013): eight times as fast as the portable one,
 * and a file that is uploaded is hashed while it comes. */
#include "base/sha_impl.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

bool sha256_x86_usable(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSSE3) || !(c & bit_SSE4_1)) return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA);
}

/* The state lies as the instructions want it: {a, b, e, f} and {c, d, g, h}, the first in the highest lane. */
__attribute__((target("sha,sse4.1"))) void sha256_blocks_x86(uint32_t h[8], const uint8_t *p, size_t blocks) {
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i low = _mm_shuffle_epi32(_mm_loadu_si128((const void *)h), 0xb1);
    __m128i high = _mm_shuffle_epi32(_mm_loadu_si128((const void *)(h + 4)), 0x1b);
    __m128i abef = _mm_alignr_epi8(low, high, 8), cdgh = _mm_blend_epi16(high, low, 0xf0);

    for (; blocks; blocks--, p += 64) {
        __m128i abef_before = abef, cdgh_before = cdgh, w[4];
        for (int i = 0; i < 4; i++) w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const void *)(p + 16 * i)), big_endian);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) { /* four rounds each */
            __m128i kw = _mm_add_epi32(w[i & 3], _mm_loadu_si128((const void *)(sha256_k + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, kw);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(kw, 0x0e));
            if (i >= 12) continue;
            /* the schedule for the rounds 16 later: w[t] from w[t-16], w[t-15], w[t-7] and w[t-2] */
            __m128i part = _mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]);
            part = _mm_add_epi32(part, _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4));
            w[i & 3] = _mm_sha256msg2_epu32(part, w[(i + 3) & 3]);
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }

    low = _mm_shuffle_epi32(abef, 0x1b);
    high = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((void *)h, _mm_blend_epi16(low, high, 0xf0));
    _mm_storeu_si128((void *)(h + 4), _mm_alignr_epi8(high, low, 8));
}

#endif
