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
        all[i] = pend_add(&t, id_of(i, text), false, false);
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
    assert_null(pend_from(&t, 0));
    assert_null(t.buckets); /* an idle connection keeps nothing */
}

static void entries_without_id_are_not_found(void **state) {
    (void)state;
    pend_table t = {0};
    pend *a = pend_add(&t, (cp_str){0}, false, false), *b = pend_add(&t, (cp_str){0}, false, false);
    assert_null(pend_find(&t, (cp_str){0}));
    assert_int_equal(t.count, 2);
    pend_unlink(&t, a);
    assert_ptr_equal(pend_from(&t, 0), b);
    assert_null(pend_next(&t, b));
    pend_unlink(&t, b);
    free(a);
    free(b);
    free(t.buckets);
}

static size_t count_all(const pend_table *t) {
    size_t n = 0;
    for (const pend *p = pend_from(t, 0); p; p = pend_next(t, p)) n++;
    return n;
}

static void all_are_walked_with_and_without_id(void **state) {
    (void)state;
    enum { N = 3000 };
    pend_table t = {0};
    char text[32];
    assert_null(pend_from(&t, 0));
    for (int i = 0; i < N; i++) {
        pend_add(&t, i % 3 ? id_of(i, text) : (cp_str){0}, false, false);
        if (i % 500 == 0) assert_int_equal(count_all(&t), i + 1);
    }
    assert_int_equal(count_all(&t), N);
    /* some end on the way, and each time another with it, which may be the next */
    size_t seen = 0, gone = 0;
    for (pend *p = pend_from(&t, 0), *next; p; p = next) {
        uint32_t bucket = pend_bucket(&t, p);
        next = pend_next(&t, p);
        if (p->runs) continue; /* seen before */
        seen++;
        p->runs = true;
        if (seen % 4) continue;
        pend *other = next ? next : pend_from(&t, 0);
        if (other != p) {
            gone += !other->runs;
            pend_unlink(&t, other);
            free(other);
        }
        pend_unlink(&t, p);
        free(p);
        next = pend_from(&t, bucket);
    }
    assert_int_equal(seen + gone, N);
    assert_int_equal(count_all(&t), t.count);
    uint32_t bucket = 0;
    for (pend *p; (p = pend_from(&t, bucket)); free(p)) {
        bucket = pend_bucket(&t, p);
        pend_unlink(&t, p);
    }
    assert_int_equal(t.count, 0);
    assert_null(t.buckets);
}

static void a_window_is_kept_behind_the_id(void **state) {
    (void)state;
    pend_table t = {0};
    char id[64] = {0};
    for (size_t n = 0; n <= sizeof id; n++) {
        for (size_t i = 0; i < n; i++) id[i] = (char)('a' + (n + i) % 26);
        pend *p = pend_add(&t, (cp_str){id, n}, true, n % 2), *plain = pend_add(&t, (cp_str){0}, false, false);
        *pend_flow_of(p) = (pend_flow){.credit = -1, .window = INT64_MAX};
        if (n % 2) pend_due_at(&t, p, 7 * n); /* behind that */
        assert_int_equal(pend_deadline(p), n % 2 ? 7 * n : 0);
        assert_true(cp_str_eq(pend_id(p), (cp_str){id, n}));
        assert_int_equal(pend_flow_of(p)->credit, -1);
        assert_null(pend_flow_of(plain));
        pend_unlink(&t, p);
        pend_unlink(&t, plain);
        free(p);
        free(plain);
    }
    free(t.buckets);
}

/* The one whose deadline comes first is at hand, whoever comes and goes meanwhile. */
static void deadlines_come_in_order(void **state) {
    (void)state;
    enum { N = 1000 };
    static pend *all[N];
    pend_table t = {0};
    char text[32];
    assert_null(pend_due_first(&t));
    for (int i = 0; i < N; i++) {
        all[i] = pend_add(&t, id_of(i, text), false, i % 3);
        if (i % 3) pend_due_at(&t, all[i], (uint64_t)(i * 7919 % N) + 1);
        assert_int_equal(pend_deadline(all[i]), i % 3 ? i * 7919 % N + 1 : 0);
    }
    for (int i = 0; i < N; i += 5) { /* some end before */
        pend_unlink(&t, all[i]);
        free(all[i]);
        all[i] = NULL;
    }
    uint64_t before = 0;
    int n = 0;
    for (pend *p; (p = pend_due_first(&t)); n++) {
        assert_true(pend_deadline(p) > before);
        before = pend_deadline(p);
        pend_due_drop(&t, p); /* it may stay, without a deadline */
        assert_int_equal(pend_deadline(p), 0);
    }
    int want = 0;
    for (int i = 0; i < N; i++) {
        want += all[i] && i % 3;
        if (all[i]) pend_unlink(&t, all[i]);
        free(all[i]);
    }
    assert_int_equal(n, want);
    assert_int_equal(t.bytes, 0);
    assert_null(t.due.v);
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
    assert_true(sizeof(pend) <= 112); /* with a UUID for its id, and what waits for it, 256 */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_are_found_until_unlinked),
        cmocka_unit_test(entries_without_id_are_not_found),
        cmocka_unit_test(all_are_walked_with_and_without_id),
        cmocka_unit_test(a_window_is_kept_behind_the_id),
        cmocka_unit_test(deadlines_come_in_order),
        cmocka_unit_test(queues_are_fifo_within_a_priority),
        cmocka_unit_test(an_entry_is_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
