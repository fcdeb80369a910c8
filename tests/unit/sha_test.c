#include "base/sha.h"

#include "base/sha_impl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* FIPS 180-4 examples and the NIST byte-oriented test vectors. */
static const struct {
    const char *text, *sha1, *sha256;
} known[] = {
    {"", "da39a3ee5e6b4b0d3255bfef95601890afd80709",
     "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"abc", "a9993e364706816aba3e25717850c26c9cd0d89d",
     "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", "84983e441c3bd26ebaae4aa1f95129e5e54670f1",
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
     "a49b2446a02c645bf419f995b67091253a04a259", "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
};

static void hex(const uint8_t *p, size_t n, char *out) {
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = "0123456789abcdef"[p[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[p[i] & 15];
    }
    out[2 * n] = '\0';
}

static void known_answers(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint8_t d[32];
        char text[65];
        cp_sha1(known[i].text, strlen(known[i].text), d);
        hex(d, CP_SHA1_SIZE, text);
        assert_string_equal(text, known[i].sha1);
        cp_sha256_of(known[i].text, strlen(known[i].text), d);
        cp_sha256_hex(d, text);
        assert_string_equal(text, known[i].sha256);
    }
}

/* One million times "a", in pieces that fit no block. */
static void million(void **state) {
    (void)state;
    static char a[1000000];
    char text[65];
    uint8_t d[32];
    memset(a, 'a', sizeof a);
    cp_sha1(a, sizeof a, d);
    hex(d, CP_SHA1_SIZE, text);
    assert_string_equal(text, "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
    cp_sha256 s;
    cp_sha256_init(&s);
    for (size_t at = 0, piece = 1; at < sizeof a; at += piece, piece = piece % 200 + 1) {
        if (piece > sizeof a - at) piece = sizeof a - at;
        cp_sha256_update(&s, a + at, piece);
    }
    cp_sha256_final(&s, d);
    cp_sha256_hex(d, text);
    assert_string_equal(text, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* Every length around the padding borders, whole and cut in two at every place. */
static void pieces(void **state) {
    (void)state;
    uint8_t in[130], whole[32], cut[32];
    for (size_t i = 0; i < sizeof in; i++) in[i] = (uint8_t)(i * 37);
    for (size_t n = 0; n <= sizeof in; n++) {
        cp_sha256_of(in, n, whole);
        for (size_t at = 0; at <= n; at++) {
            cp_sha256 s;
            cp_sha256_init(&s);
            cp_sha256_update(&s, in, at);
            cp_sha256_update(&s, in + at, n - at);
            cp_sha256_final(&s, cut);
            assert_memory_equal(whole, cut, 32);
        }
    }
}

static void equal_ct(void **state) {
    (void)state;
    assert_true(cp_equal_ct("", "", 0));
    assert_true(cp_equal_ct("secret", "secret", 6));
    assert_false(cp_equal_ct("secret", "Secret", 6));
    assert_false(cp_equal_ct("secret", "secres", 6));
}

/* What the processor's own instructions make of any blocks, the portable way makes too. */
static void every_way_is_the_same(void **state) {
    (void)state;
#if defined(__x86_64__)
    if (!sha256_x86_usable()) skip();
    uint8_t data[64 * 9 + 1];
    uint32_t x = 1, a[8], b[8];
    for (int round = 0; round < 1000; round++) {
        for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)((x = x * 1664525 + 1013904223) >> 24);
        for (int i = 0; i < 8; i++) a[i] = b[i] = x = x * 1664525 + 1013904223;
        sha256_blocks_portable(a, data + round % 2, (size_t)round % 10);
        sha256_blocks_x86(b, data + round % 2, (size_t)round % 10);
        assert_memory_equal(a, b, sizeof a);
    }
#else
    skip();
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers), cmocka_unit_test(million),  cmocka_unit_test(every_way_is_the_same),
        cmocka_unit_test(pieces),        cmocka_unit_test(equal_ct),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
