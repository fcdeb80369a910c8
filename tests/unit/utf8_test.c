#include "base/buf.h"
#include "base/utf8.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

/* A second decoder, the plain way: decode, then look at the value. Length of the character or 0. */
static size_t decode(const unsigned char *p, size_t n) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t len = p[0] < 0x80 ? 1 : p[0] >> 5 == 6 ? 2 : p[0] >> 4 == 14 ? 3 : p[0] >> 3 == 30 ? 4 : 0;
    if (len == 0 || len > n) return 0;
    uint32_t v = len == 1 ? p[0] : p[0] & (0x7Fu >> len);
    for (size_t i = 1; i < len; i++) {
        if (p[i] >> 6 != 2) return 0;
        v = v << 6 | (p[i] & 0x3F);
    }
    return v < least[len] || v > 0x10FFFF || (v >= 0xD800 && v < 0xE000) ? 0 : len;
}

static size_t prefix_plain(const unsigned char *p, size_t n) {
    size_t at = 0, len;
    while (at < n && (len = decode(p + at, n - at))) at += len;
    return at;
}

static void all_sequences_of_three_agree(void **state) {
    (void)state;
    for (uint32_t v = 0; v < 1u << 24;
         v += v >> 16 < 0xC0 ? 0x101 : 1) { /* every lead byte; densely where it matters */
        const unsigned char b[3] = {(unsigned char)(v >> 16), (unsigned char)(v >> 8), (unsigned char)v};
        if (cp_utf8_prefix((const char *)b, 3) != prefix_plain(b, 3)) fail_msg("%06x", v);
    }
}

static void all_sequences_of_four_agree_at_the_edges(void **state) {
    (void)state;
    static const unsigned char edge[] = {0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF};
    for (unsigned lead = 0xE0; lead < 0x100; lead++)
        for (unsigned i = 0; i < 1000; i++) {
            const unsigned char b[4] = {(unsigned char)lead, edge[i / 100], edge[i / 10 % 10], edge[i % 10]};
            assert_int_equal(cp_utf8_prefix((const char *)b, 4), prefix_plain(b, 4));
        }
}

static const char *const valid[] = {"",
                                    "plain",
                                    "\xC2\x80",
                                    "\xDF\xBF",
                                    "\xE0\xA0\x80",
                                    "\xED\x9F\xBF",
                                    "\xEE\x80\x80",
                                    "\xEF\xBF\xBF",
                                    "\xF0\x90\x80\x80",
                                    "\xF4\x8F\xBF\xBF",
                                    "long enough for the wide loop, then \xF0\x9F\x98\x80 and plain text once more"};
static const char *const invalid[] = {"\x80",
                                      "\xC0\xAF",
                                      "\xC1\xBF",
                                      "\xC2",
                                      "\xE0\x9F\xBF",
                                      "\xED\xA0\x80",
                                      "\xF0\x8F\xBF\xBF",
                                      "\xF4\x90\x80\x80",
                                      "\xF5\x80\x80\x80",
                                      "\xFF",
                                      "\xE2\x82",
                                      "a\xC3(",
                                      "long enough for the wide loop, then \xE2\x82 and plain text once more"};

static void pieces_give_the_verdict_of_the_whole(void **state) {
    (void)state;
    for (size_t k = 0; k < CP_COUNT(valid) + CP_COUNT(invalid); k++) {
        bool good = k < CP_COUNT(valid);
        const char *z = good ? valid[k] : invalid[k - CP_COUNT(valid)];
        size_t n = strlen(z);
        assert_int_equal(cp_utf8_valid(z, n), good);
        for (size_t cut = 0; cut <= n; cut++) {
            cp_utf8 u = {0};
            bool ok = cp_utf8_feed(&u, z, cut);
            ok = cp_utf8_feed(&u, z + cut, n - cut) && ok;
            assert_int_equal(ok && cp_utf8_complete(&u), good);
        }
    }
}

static void invalid_stays_invalid(void **state) {
    (void)state;
    cp_utf8 u = {0};
    assert_false(cp_utf8_feed(&u, "\xFF", 1));
    assert_false(cp_utf8_feed(&u, "fine", 4));
    assert_false(cp_utf8_feed(&u, "", 0));
    assert_false(cp_utf8_complete(&u));
}

/* Unicode 15, section 3.9, tables 3-8 to 3-11: lengths of what one U+FFFD stands for. */
static void maximal_subparts(void **state) {
    (void)state;
    static const struct {
        const char *z;
        size_t lens[9];
    } rows[] = {
        {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82", {1, 1, 1, 1, 1, 1, 1, 1}},
        {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF", {1, 1, 1, 1, 1, 1, 1, 1}},
        {"\xF4\x91\x92\x93\xFF\x80\xBF", {1, 1, 1, 1, 1, 1, 1}},
        {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF", {2, 1, 3, 2}},
    };
    for (size_t r = 0; r < CP_COUNT(rows); r++) {
        const char *p = rows[r].z, *end = p + strlen(p);
        for (size_t i = 0; p < end; i++) {
            bool ok = true;
            size_t n = cp_utf8_next(p, (size_t)(end - p), &ok);
            assert_false(ok);
            assert_int_equal(n, rows[r].lens[i]);
            p += n;
        }
    }
}

static void tail_is_what_may_still_become_valid(void **state) {
    (void)state;
    static const struct {
        const char *z;
        size_t tail;
    } rows[] = {
        {"", 0},         {"abc", 0},          {"a\xC3", 1},         {"a\xC3\xA9", 0},        {"\xE2", 1},
        {"\xE2\x82", 2}, {"\xE2\x82\xAC", 0}, {"\xF0\x9F\x98", 3},  {"\xF0\x9F\x98\x80", 0}, {"\xF0\x9F", 2},
        {"\x82", 0},     {"\x82\x82\x82", 0}, {"\xE0\x9F", 0},      {"\xED\xA0", 0},         {"\xF5\x80", 0},
        {"\xC0", 0},     {"\xFF", 0},         {"x\xF4\x8F\xBF", 3}, {"\xC3\xA9\xC3", 1},     {"\xE2\x28", 0},
    };
    for (size_t i = 0; i < CP_COUNT(rows); i++)
        assert_int_equal(cp_utf8_tail(rows[i].z, strlen(rows[i].z)), rows[i].tail);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_sequences_of_three_agree),
        cmocka_unit_test(all_sequences_of_four_agree_at_the_edges),
        cmocka_unit_test(pieces_give_the_verdict_of_the_whole),
        cmocka_unit_test(invalid_stays_invalid),
        cmocka_unit_test(maximal_subparts),
        cmocka_unit_test(tail_is_what_may_still_become_valid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
