#include "load/hist.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 20000 };

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void empty(void **state) {
    (void)state;
    static const hist h;
    assert_int_equal(hist_quantile(&h, 0.5), 0);
}

/* 1..100: the least value that a share of them does not exceed is that share itself. */
static void small_values_are_exact(void **state) {
    (void)state;
    static hist h;
    for (uint64_t v = 100; v >= 1; v--) hist_add(&h, v);
    assert_int_equal(hist_quantile(&h, 0), 1);
    assert_int_equal(hist_quantile(&h, 0.5), 50);
    assert_int_equal(hist_quantile(&h, 0.501), 51);
    assert_int_equal(hist_quantile(&h, 0.99), 99);
    assert_int_equal(hist_quantile(&h, 1), 100);
    assert_int_equal(h.count, 100);
    assert_int_equal(h.sum, 5050);
    assert_int_equal(h.min, 1);
    assert_int_equal(h.max, 100);
}

/* Values of every magnitude, against the sorted values themselves: never below, at most 1/128 above. */
static void error_is_bounded(void **state) {
    (void)state;
    static hist h;
    static uint64_t all[N];
    uint64_t x = 88172645463325252;
    for (size_t i = 0; i < N; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        all[i] = x >> (22 + x % 40);
        hist_add(&h, all[i]);
    }
    qsort(all, N, sizeof *all, by_value);
    for (unsigned permille = 1; permille <= 1000; permille++) {
        uint64_t truth = all[(size_t)permille * N / 1000 - 1], said = hist_quantile(&h, permille / 1000.0);
        assert_true(said >= truth);
        assert_true(said - truth <= truth / 128);
    }
}

static void borders_of_steps(void **state) {
    (void)state;
    for (unsigned bit = 1; bit < 42; bit++) {
        for (int off = -1; off <= 1; off++) {
            static hist h;
            memset(&h, 0, sizeof h);
            uint64_t v = (UINT64_C(1) << bit) + (uint64_t)off;
            hist_add(&h, v);
            hist_add(&h, UINT64_MAX);
            assert_in_range(hist_quantile(&h, 0.5), v, v + v / 128);
            assert_int_equal(hist_quantile(&h, 1), (UINT64_C(1) << 42) - 1);
            assert_true(h.max == UINT64_MAX);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty),
        cmocka_unit_test(small_values_are_exact),
        cmocka_unit_test(error_is_bounded),
        cmocka_unit_test(borders_of_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
