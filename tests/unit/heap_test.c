/* The heap against a plain model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/heap.h"
#include "component/touched.h"

enum { N = 500 };

static uint32_t seed;
static uint32_t any(uint32_t below) {
    seed = seed * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)seed * below >> 32);
}

static uint64_t least_of(const cp_heap_item *all, const bool *in) {
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < N; i++)
        if (in[i] && all[i].key < least) least = all[i].key;
    return least;
}

static void the_first_has_the_least_key(void **state) {
    (void)state;
    cp_heap h = {0};
    cp_heap_item all[N] = {0};
    bool in[N] = {0};
    uint32_t n = 0;
    seed = 1;
    for (int step = 0; step < 20000; step++) {
        uint32_t i = any(N);
        if (any(5) < 3) { /* it is added, or moves up, down or nowhere */
            n += !in[i];
            in[i] = true;
            cp_heap_put(&h, &all[i], any(1000));
        } else {
            n -= in[i];
            in[i] = false;
            cp_heap_drop(&h, &all[i]);
            cp_heap_drop(&h, &all[i]);
            assert_int_equal(all[i].slot, 0);
        }
        const cp_heap_item *first = cp_heap_first(&h);
        assert_int_equal(h.n, n);
        assert_int_equal(first ? first->key : UINT64_MAX, least_of(all, in));
    }
    for (size_t i = 0; i < N; i++) cp_heap_drop(&h, &all[i]);
    assert_null(cp_heap_first(&h));
    assert_null(h.v); /* an empty one holds nothing */
}

static void what_is_taken_from_the_front_comes_in_order(void **state) {
    (void)state;
    cp_heap h = {0};
    cp_heap_item all[N] = {0}, *first;
    uint64_t before = 0;
    size_t n = 0;
    for (size_t i = 0; i < N; i++) cp_heap_put(&h, &all[i], i * 7919 % N / 2);
    for (; (first = cp_heap_first(&h)); n++) {
        assert_true(first->key >= before);
        before = first->key;
        cp_heap_drop(&h, first);
    }
    assert_int_equal(n, N);
}

/* Of four times as many, two more a level are looked at, not four times as many. */
static void a_change_looks_at_few(void **state) {
    (void)state;
    enum { MANY = 4096, LEVELS = 12 };
    cp_heap h = {0};
    touched_open(MANY);
    for (size_t i = 0; i < MANY; i++) cp_heap_put(&h, touched_at(i), i * 7919 % MANY);
    seed = 2;
    for (int step = 0; step < 200; step++) {
        cp_heap_item *i = touched_at(any(MANY));
        touched_arm();
        if (step % 2) cp_heap_drop(&h, i);
        cp_heap_put(&h, i, any(MANY));
        assert_true(touched_count() <= (size_t)4 * LEVELS + 4);
    }
    for (size_t i = 0; i < MANY; i++) cp_heap_drop(&h, touched_at(i));
    touched_close();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_has_the_least_key),
        cmocka_unit_test(what_is_taken_from_the_front_comes_in_order),
        cmocka_unit_test(a_change_looks_at_few),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
