/* Texts come back whole, in any order of leaving, and nothing is held when the last is gone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "transport/backlog.h"

static cp_str text_of(int i, char out[8192]) {
    size_t n = (size_t)i * 7919 % (i % 16 ? 200 : 8192); /* now and then one that needs a block of its own */
    for (size_t k = 0; k < n; k++) out[k] = (char)((size_t)i + k);
    return (cp_str){out, n};
}

static void texts_are_whole_whoever_goes_first(void **state) {
    (void)state;
    enum { N = 5000 };
    static char *all[N], want[8192];
    backlog b = {0};
    for (int i = 0; i < N; i++) all[i] = backlog_add(&b, text_of(i, want));
    assert_true(b.held > 0);
    for (int k = 0; k < N; k++) {
        int i = k * 1009 % N; /* each once */
        cp_str t = text_of(i, want);
        assert_memory_equal(all[i], t.p, t.n);
        backlog_del(&b, all[i]);
    }
    assert_int_equal(b.held, 0);
    assert_null(b.open);
}

static void one_that_waits_long_holds_one_block(void **state) {
    (void)state;
    backlog b = {0};
    char *old = backlog_add(&b, CP_STR("old"));
    size_t one = b.held;
    for (int i = 0; i < 100000; i++) backlog_del(&b, backlog_add(&b, CP_STR("a message of some length")));
    assert_true(b.held <= 2 * one);
    assert_memory_equal(old, "old", 3);
    backlog_del(&b, old);
    assert_true(b.held <= one);
    backlog_del(&b, backlog_add(&b, CP_STR("")));
    assert_int_equal(b.held, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_whole_whoever_goes_first),
        cmocka_unit_test(one_that_waits_long_holds_one_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
