#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include "transport/client/client_impl.h"

#include <cmocka.h>

enum { N = 5000 };

static conflux_call *calls;

static void check(const call_table *t, const bool *in, size_t n) {
    assert_int_equal(t->n, n);
    for (size_t i = 0; i < N; i++) assert_ptr_equal(table_find(t, calls[i].id), in[i] ? &calls[i] : NULL);
}

/* Ids that collide, added and removed in disorder, against a plain list. */
static void t_against_list(void **state) {
    (void)state;
    static bool in[N];
    call_table t = {0};
    size_t n = 0;
    uint32_t x = 1;
    for (int round = 0; round < 40000; round++) {
        x = x * 1664525 + 1013904223;
        size_t i = (x >> 8) % (round < 20000 ? N : 40); /* at last nearly all go: it shrinks */
        if (round >= 20000 && !in[i]) i = (x >> 8) % N;
        if (in[i]) table_remove(&t, &calls[i]), n--;
        else if (round < 20000) table_add(&t, &calls[i]), n++;
        else continue;
        in[i] = !in[i];
        if (round % 1000 == 0) check(&t, in, n);
    }
    check(&t, in, n);
    for (size_t i = 0; i < N; i++)
        if (in[i]) table_remove(&t, &calls[i]);
    assert_int_equal(t.n, 0);
    assert_true(t.cap <= 128);
    table_fini(&t);
}

static void t_empty(void **state) {
    (void)state;
    call_table t = {0};
    size_t n;
    assert_null(table_find(&t, 1));
    conflux_call **all = table_all(&t, &n);
    assert_int_equal(n, 0);
    free(all);
}

static void t_all(void **state) {
    (void)state;
    call_table t = {0};
    size_t n;
    for (size_t i = 0; i < 100; i++) table_add(&t, &calls[i]);
    conflux_call **all = table_all(&t, &n);
    assert_int_equal(n, 100);
    uint64_t sum = 0, want = 0;
    for (size_t i = 0; i < 100; i++) sum += all[i]->id, want += calls[i].id;
    assert_int_equal(sum, want);
    assert_int_equal(atomic_load(&calls[0].refs), 2);
    free(all);
    table_fini(&t);
}

static void insert(const char *object, const char *pairs, const char *want) {
    cp_autobuf cp_buf b = {0};
    json_insert(&b, cp_str_of(object), cp_str_of(pairs));
    assert_string_equal(cp_buf_z(&b), want);
}

static void t_json_insert(void **state) {
    (void)state;
    insert("{\"b\":{}}", "\"a\":1,", "{\"a\":1,\"b\":{}}");
    insert(" { } ", "\"a\":1,", " {\"a\":1 } ");
    insert("{}", "\"a\":1,\"c\":2,", "{\"a\":1,\"c\":2}");
    insert("{\n \"b\":1}", "\"a\":1,", "{\"a\":1,\n \"b\":1}");
}

static int make(void **state) {
    (void)state;
    calls = calloc(N, sizeof *calls);
    for (size_t i = 0; i < N; i++) {
        calls[i].id = i * 64 + i % 3; /* many share their low bits */
        atomic_init(&calls[i].refs, 1);
    }
    return 0;
}

static int drop(void **state) {
    (void)state;
    free(calls);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_against_list),
        cmocka_unit_test(t_empty),
        cmocka_unit_test(t_all),
        cmocka_unit_test(t_json_insert),
    };
    return cmocka_run_group_tests(tests, make, drop);
}
