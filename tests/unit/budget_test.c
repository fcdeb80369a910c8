#include "base/budget.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>

enum { MB = 1 << 20, LIMIT = 64 * MB };

static int set_up(void **state) {
    (void)state;
    cp_budget_open(LIMIT);
    return 0;
}

/* Every test gives back what it took. */
static int all_is_given_back(void **state) {
    (void)state;
    return cp_budget_held(CP_MEM_COUNT) == 0 ? 0 : -1;
}

static void a_refusal_names_what_was_asked_for_and_counts_nothing(void **state) {
    (void)state;
    cp_err err = {0};
    assert_int_equal(cp_budget_reserve(CP_MEM_BODIES, 33 * MB, &err), -1); /* its share is a half */
    assert_int_equal(err.code, CP_E_LIMIT_EXCEEDED);
    assert_non_null(strstr(err.msg, "34603008 bytes of request bodies"));
    assert_non_null(strstr(err.msg, "67108864"));
    assert_non_null(strstr(err.msg, "--memory-budget"));
    assert_int_equal(cp_budget_held(CP_MEM_BODIES), 0);
}

static void no_kind_takes_more_than_its_share(void **state) {
    (void)state;
    assert_int_equal(cp_budget_reserve(CP_MEM_BODIES, 31 * MB, NULL), 0);
    assert_int_equal(cp_budget_reserve(CP_MEM_BODIES, 2 * MB, NULL), -1);
    assert_int_equal(cp_budget_reserve(CP_MEM_RESULTS, 2 * MB, NULL), 0);
    cp_budget_release(CP_MEM_RESULTS, 2 * MB);
    cp_budget_release(CP_MEM_BODIES, 31 * MB);
}

static void the_last_of_it_is_for_small_ones(void **state) {
    (void)state;
    assert_int_equal(cp_budget_reserve(CP_MEM_BODIES, 30 * MB, NULL), 0);
    assert_int_equal(cp_budget_reserve(CP_MEM_RESULTS, 26 * MB, NULL), 0);
    assert_int_equal(cp_budget_reserve(CP_MEM_JSON, CP_BUDGET_SMALL + 1, NULL), -1);
    assert_int_equal(cp_budget_reserve(CP_MEM_JSON, CP_BUDGET_SMALL, NULL), 0);
    cp_budget_force(CP_MEM_JSON, 8 * MB);
    assert_int_equal(cp_budget_reserve(CP_MEM_JSON, 1, NULL), -1); /* over the whole: nothing more */
    cp_budget_release(CP_MEM_JSON, 8 * MB + CP_BUDGET_SMALL);
    cp_budget_release(CP_MEM_RESULTS, 26 * MB);
    cp_budget_release(CP_MEM_BODIES, 30 * MB);
}

static void what_is_refused_makes_its_kind_short_where_half_of_it_is_held(void **state) {
    (void)state;
    assert_int_equal(cp_budget_reserve(CP_MEM_STDIN, 17 * MB, NULL), -1); /* its share is a quarter */
    assert_false(cp_budget_half(CP_MEM_STDIN) || cp_budget_short(CP_MEM_STDIN));
    assert_int_equal(cp_budget_reserve(CP_MEM_STDIN, 9 * MB, NULL), 0);
    assert_true(cp_budget_half(CP_MEM_STDIN) && cp_budget_short(CP_MEM_STDIN));
    assert_false(cp_budget_tight(CP_MEM_STDIN));
    assert_int_equal(cp_budget_reserve(CP_MEM_WATCH, 9 * MB, NULL), 0);
    assert_true(cp_budget_half(CP_MEM_WATCH));
    assert_false(cp_budget_short(CP_MEM_WATCH)); /* nobody has been refused */
    cp_budget_force(CP_MEM_WATCH, 8 * MB);
    assert_true(cp_budget_short(CP_MEM_WATCH)); /* tight */
    cp_budget_release(CP_MEM_WATCH, 17 * MB);
    cp_budget_release(CP_MEM_STDIN, 9 * MB);
    assert_false(cp_budget_short(CP_MEM_STDIN));
}

static void a_holding_grows_and_shrinks_by_what_it_is(void **state) {
    (void)state;
    cp_charge c = {.kind = CP_MEM_STDIN};
    assert_int_equal(cp_charge_set(&c, 10 * MB, NULL), 0);
    assert_int_equal(cp_charge_set(&c, 12 * MB, NULL), 0);
    assert_int_equal(cp_charge_set(&c, 17 * MB, NULL), -1); /* a quarter is 16 */
    assert_int_equal(cp_budget_held(CP_MEM_STDIN), 12 * MB);
    assert_int_equal(cp_charge_set(&c, MB, NULL), 0);
    assert_int_equal(cp_budget_held(CP_MEM_STDIN), MB);
    cp_charge_force(&c, 20 * MB);
    assert_int_equal(cp_budget_held(CP_MEM_STDIN), 20 * MB);
    cp_charge_free(&c);
    cp_charge_free(&c);
}

/* One that has grown piece by piece is not small because each piece was. */
static void small_is_the_whole_holding(void **state) {
    (void)state;
    cp_budget_force(CP_MEM_EVENTS, 58 * MB);
    cp_charge c = {.kind = CP_MEM_STDIN};
    assert_int_equal(cp_charge_set(&c, CP_BUDGET_SMALL, NULL), 0);
    assert_int_equal(cp_charge_set(&c, CP_BUDGET_SMALL + 1, NULL), -1);
    cp_charge_free(&c);
    cp_budget_release(CP_MEM_EVENTS, 58 * MB);
}

static void *take_and_give(void *arg) {
    for (int i = 0; i < 20000; i++) {
        if (cp_budget_reserve(CP_MEM_RESULTS, 10 * MB, NULL) < 0) continue;
        bool over = cp_budget_held(CP_MEM_RESULTS) > LIMIT / 2;
        cp_budget_release(CP_MEM_RESULTS, 10 * MB);
        if (over) return arg;
    }
    return NULL;
}

static void threads_never_hold_more_than_there_is(void **state) {
    (void)state;
    pthread_t t[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&t[i], NULL, take_and_give, state), 0);
    for (int i = 0; i < 4; i++) {
        void *over;
        pthread_join(t[i], &over);
        assert_null(over);
    }
}

static void gauges_tell_it(void **state) {
    (void)state;
    cp_budget_force(CP_MEM_WATCH, 7);
    cp_budget_spilled(11);
    cp_autobuf cp_buf b = {0};
    cp_budget_metrics(&b);
    const char *text = cp_buf_z(&b);
    assert_non_null(strstr(text, "\nconflux_memory_budget_bytes 67108864\n"));
    assert_non_null(strstr(text, "\nconflux_memory_held_bytes{kind=\"watch\"} 7\n"));
    assert_non_null(strstr(text, "\nconflux_memory_refused_total{kind=\"bodies\"} 2\n"));
    assert_non_null(strstr(text, "\nconflux_memory_spilled_bytes_total 11\n"));
    cp_budget_release(CP_MEM_WATCH, 7);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, all_is_given_back)
    const struct CMUnitTest tests[] = {
        T(a_refusal_names_what_was_asked_for_and_counts_nothing),
        T(no_kind_takes_more_than_its_share),
        T(the_last_of_it_is_for_small_ones),
        T(what_is_refused_makes_its_kind_short_where_half_of_it_is_held),
        T(a_holding_grows_and_shrinks_by_what_it_is),
        T(small_is_the_whole_holding),
        T(threads_never_hold_more_than_there_is),
        T(gauges_tell_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
