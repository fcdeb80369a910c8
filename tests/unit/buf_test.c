#include "base/buf.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

static void appends_and_grows(void **state) {
    (void)state;
    cp_autobuf cp_buf b = {0};
    cp_buf_addz(&b, "ab");
    cp_buf_addc(&b, 'c');
    cp_buf_addu(&b, 0);
    cp_buf_addu(&b, UINT64_MAX);
    cp_buf_addf(&b, "-%s-%d", "x", 7);
    assert_string_equal(cp_buf_z(&b), "abc018446744073709551615-x-7");
    for (int i = 0; i < 100000; i++) cp_buf_add(&b, "0123456789", 10);
    assert_int_equal(b.n, 28 + 1000000);
    assert_true(b.cap >= b.n);
    assert_memory_equal(b.p + b.n - 10, "0123456789", 10);
}

static void format_longer_than_the_room(void **state) {
    (void)state;
    cp_autobuf cp_buf b = {0};
    char big[5000];
    memset(big, 'z', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    cp_buf_addf(&b, "<%s>", big);
    assert_int_equal(b.n, 5001);
    assert_int_equal(b.p[0], '<');
    assert_int_equal(b.p[5000], '>');
}

static void words_of_a_shell(void **state) {
    (void)state;
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"", "''"}, {"a b", "'a b'"}, {"it's", "'it'\\''s'"}, {"'", "''\\'''"}, {"$x `y` \"\\\n", "'$x `y` \"\\\n'"}};
    for (size_t i = 0; i < CP_COUNT(cases); i++) {
        cp_autobuf cp_buf b = {0};
        cp_buf_add_word(&b, cp_str_of(cases[i].in));
        assert_string_equal(cp_buf_z(&b), cases[i].out);
    }
}

static void consume_keeps_the_rest(void **state) {
    (void)state;
    cp_autobuf cp_buf b = {0};
    cp_buf_addz(&b, "hello world");
    cp_buf_consume(&b, 6);
    assert_true(cp_str_is(cp_buf_str(&b), "world"));
    cp_buf_consume(&b, 99);
    assert_int_equal(b.n, 0);
}

static void reset_gives_big_memory_back(void **state) {
    (void)state;
    cp_autobuf cp_buf b = {0};
    cp_buf_reserve(&b, 100);
    cp_buf_reset(&b, 1024);
    assert_non_null(b.p);
    cp_buf_reserve(&b, 100000);
    cp_buf_reset(&b, 1024);
    assert_null(b.p);
    assert_int_equal(b.cap, 0);
}

static void take_moves(void **state) {
    (void)state;
    cp_autofree char *a = cp_str_dup(CP_STR("moved"));
    cp_autofree char *b = cp_take(a);
    assert_null(a);
    assert_string_equal(b, "moved");
}

static void strings(void **state) {
    (void)state;
    assert_true(cp_str_eq((cp_str){NULL, 0}, CP_STR("")));
    assert_false(cp_str_eq(CP_STR("a"), CP_STR("b")));
    assert_true(cp_str_ieq(CP_STR("Content-TYPE"), CP_STR("content-type")));
    assert_false(cp_str_ieq(CP_STR("["), CP_STR("{"))); /* differ in the bit that letters differ in */
    assert_true(cp_str_starts(CP_STR("/api/x"), CP_STR("/api/")));
    assert_false(cp_str_starts(CP_STR("/ap"), CP_STR("/api/")));
    assert_true(cp_str_is(cp_str_trim(CP_STR(" \t a b\r\n")), "a b"));
    assert_int_equal(cp_str_trim(CP_STR(" \n\t ")).n, 0);
    assert_int_equal(cp_str_of(NULL).n, 0);
}

static void decimal_numbers(void **state) {
    (void)state;
    uint64_t v = 42;
    assert_true(cp_str_u64(CP_STR("18446744073709551615"), UINT64_MAX, &v));
    assert_true(v == UINT64_MAX);
    assert_true(cp_str_u64(CP_STR("007"), 7, &v));
    assert_int_equal(v, 7);
    static const char *const bad[] = {"", "+1", "-1", " 1", "1 ", "0x1", "1.0", "18446744073709551616", "8"};
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        uint64_t max = i == CP_COUNT(bad) - 1 ? 7 : UINT64_MAX;
        assert_false(cp_str_u64(cp_str_of(bad[i]), max, &v));
    }
    assert_int_equal(v, 7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appends_and_grows),
        cmocka_unit_test(format_longer_than_the_room),
        cmocka_unit_test(words_of_a_shell),
        cmocka_unit_test(consume_keeps_the_rest),
        cmocka_unit_test(reset_gives_big_memory_back),
        cmocka_unit_test(take_moves),
        cmocka_unit_test(strings),
        cmocka_unit_test(decimal_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
