#include "base/host.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void t_loopback(void **state) {
    (void)state;
    static const char *const inside[] = {"127.0.0.1", "127.9.9.9", "::1",       "[::1]",
                                         "localhost", "LocalHost", "localhost."};
    static const char *const outside[] = {
        "",
        "0.0.0.0",
        "::",
        "10.0.0.1",
        "127.",
        "127.1",
        "127.example.com",
        "127.0.0.1.example",
        "localhost.example",
        "[::1",
        "::1]",
        "[]",
        "[::1]:1",
        "127.0.0.1:80",
        "::2",
    };
    for (size_t i = 0; i < sizeof inside / sizeof *inside; i++)
        if (!cp_host_is_loopback(cp_str_of(inside[i]))) fail_msg("%s", inside[i]);
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
        if (cp_host_is_loopback(cp_str_of(outside[i]))) fail_msg("%s", outside[i]);
    assert_false(cp_host_is_loopback((cp_str){"127.0.0.1\0", 10}));
}

static void t_brackets(void **state) {
    (void)state;
    assert_true(cp_str_is(cp_host_unbracket(CP_STR("[fe80::1]")), "fe80::1"));
    assert_true(cp_str_is(cp_host_unbracket(CP_STR("[")), "["));
    assert_true(cp_str_is(cp_host_unbracket(CP_STR("a]")), "a]"));
    assert_int_equal(cp_host_unbracket(CP_STR("[]")).n, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_loopback),
        cmocka_unit_test(t_brackets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
