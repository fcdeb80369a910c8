/* The pending table and its queues against a plain model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "transport/pending.h"

static cp_str id_of(int i, char out[32]) { return (cp_str){out, (size_t)snprintf(out, 32, "\"id-%d\"", i)}; }

static void entries_are_found_until_unlinked(void **state) {
    (void)state;
    enum { N = 10000 };
    static pend *all[N];
    pend_table t = {0};
    char text[32];
    for (int i = 0; i < N; i++) {
        assert_null(pend_find(&t, id_of(i, text)));
        all[i] = pend_add(&t, id_of(i, text));
    }
    assert_int_equal(t.count, N);
    for (int i = 0; i < N; i++) assert_ptr_equal(pend_find(&t, id_of(i, text)), all[i]);
    for (int k = 0; k < N; k++) {
        int i = k * 7919 % N; /* each once: 7919 is prime */
        pend_unlink(&t, all[i]);
        assert_null(pend_find(&t, id_of(i, text)));
        free(all[i]);
    }
    assert_int_equal(t.count, 0);
    assert_null(t.all);
    assert_null(t.buckets); /* an idle connection keeps nothing */
}

static void entries_without_id_are_not_found(void **state) {
    (void)state;
    pend_table t = {0};
    pend *a = pend_add(&t, (cp_str){0}), *b = pend_add(&t, (cp_str){0});
    assert_null(pend_find(&t, (cp_str){0}));
    assert_int_equal(t.count, 2);
    pend_unlink(&t, a);
    assert_ptr_equal(t.all, b);
    pend_unlink(&t, b);
    free(a);
    free(b);
    free(t.buckets);
}

static void deadlines(void **state) {
    (void)state;
    pend_table t = {0};
    uint64_t next;
    pend *a = pend_add(&t, CP_STR("1")), *b = pend_add(&t, CP_STR("2")), *c = pend_add(&t, CP_STR("3"));
    assert_null(pend_expired(&t, 100, &next));
    assert_int_equal(next, 0);
    pend_set_deadline(&t, a, 150);
    pend_set_deadline(&t, b, 120);
    pend_set_deadline(&t, c, 130);
    assert_null(pend_expired(&t, 119, &next));
    assert_int_equal(next, 120);
    assert_ptr_equal(pend_expired(&t, 120, &next), b);
    pend_clear_deadline(&t, b);
    pend_clear_deadline(&t, b); /* harmless */
    assert_null(pend_expired(&t, 125, &next));
    assert_int_equal(next, 130);
    pend_unlink(&t, c);
    assert_null(pend_expired(&t, 149, &next));
    assert_int_equal(next, 150);
    pend_unlink(&t, a);
    pend_unlink(&t, b);
    assert_null(t.timed);
    free(a);
    free(b);
    free(c);
    free(t.buckets);
}

static void queues_are_fifo_within_a_priority(void **state) {
    (void)state;
    pend_queue q = {0};
    pend p[5] = {{.priority = 3}, {.priority = 7}, {.priority = 3}, {.priority = 0}, {.priority = 3}};
    static const int want[] = {1, 0, 4, 3};
    assert_null(pend_top(&q));
    for (size_t i = 0; i < 5; i++) pend_push(&q, &p[i]);
    pend_drop(&q, &p[2]); /* from the middle */
    pend_drop(&q, &p[2]);
    for (size_t i = 0; i < CP_COUNT(want); i++) {
        assert_ptr_equal(pend_top(&q), &p[want[i]]);
        pend_drop(&q, pend_top(&q));
    }
    assert_null(pend_top(&q));
    assert_int_equal(q.mask, 0);
}

static void an_entry_is_small(void **state) {
    (void)state;
    assert_true(sizeof(pend) <= 216); /* 256 with a UUID for its id */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_are_found_until_unlinked),
        cmocka_unit_test(entries_without_id_are_not_found),
        cmocka_unit_test(deadlines),
        cmocka_unit_test(queues_are_fifo_within_a_priority),
        cmocka_unit_test(an_entry_is_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
