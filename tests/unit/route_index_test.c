#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "handlers/route_index.h"

static const cp_route first[] = {
    {.method = CP_GET, .pattern = "/"},
    {.method = CP_GET, .pattern = "/api/process/list"},
    {.method = CP_DELETE, .pattern = "/api/process/kill-all"},
    {.method = CP_GET, .pattern = "/api/process/{id}"},
    {.method = CP_DELETE, .pattern = "/api/process/{id}"},
    {.method = CP_GET, .pattern = "/api/process/{id}/logs"},
};
static const cp_route second[] = {
    {.method = CP_POST, .pattern = "/api/execute"},
    {.method = CP_GET, .pattern = "/v1/{a}/x/{b}"},
};

static cp_route_index *make(void) {
    const cp_route *const tables[] = {first, second};
    const size_t counts[] = {CP_COUNT(first), CP_COUNT(second)};
    cp_err err = {0};
    cp_route_index *x = cp_route_index_new(tables, counts, 2, &err);
    assert_non_null(x);
    return x;
}

static void expect(const cp_route_index *x, cp_method m, const char *path, const char *pattern, const char *a,
                   const char *b) {
    cp_str params[CP_MAX_PARAMS] = {{0}};
    int i = cp_route_index_find(x, m, cp_str_of(path), params);
    if (!pattern) {
        assert_int_equal(i, -1);
        return;
    }
    assert_true(i >= 0);
    assert_string_equal(cp_route_index_at(x, (size_t)i)->pattern, pattern);
    assert_int_equal(cp_route_index_at(x, (size_t)i)->method, m);
    if (a) assert_true(cp_str_is(params[0], a));
    if (b) assert_true(cp_str_is(params[1], b));
}

static void matching(void **state) {
    (void)state;
    cp_route_index *x = make();
    assert_int_equal(cp_route_index_count(x), CP_COUNT(first) + CP_COUNT(second));
    expect(x, CP_GET, "/", "/", NULL, NULL);
    expect(x, CP_POST, "/api/execute", "/api/execute", NULL, NULL);
    expect(x, CP_GET, "/api/execute", NULL, NULL, NULL);
    expect(x, CP_POST, "/api/execute/", NULL, NULL, NULL);
    expect(x, CP_POST, "/API/execute", NULL, NULL, NULL);
    expect(x, CP_GET, "/api/process/p1", "/api/process/{id}", "p1", NULL);
    expect(x, CP_GET, "/api/process/p%201/logs", "/api/process/{id}/logs", "p%201", NULL);
    expect(x, CP_GET, "/api/process/", NULL, NULL, NULL);
    expect(x, CP_GET, "/api/process//logs", NULL, NULL, NULL);
    expect(x, CP_GET, "/api/process/a/b/logs", NULL, NULL, NULL);
    expect(x, CP_GET, "/api/process/a/logs/", NULL, NULL, NULL);
    expect(x, CP_GET, "/v1/one/x/two", "/v1/{a}/x/{b}", "one", "two");
    expect(x, CP_GET, "/v1/one/y/two", NULL, NULL, NULL);
    expect(x, CP_GET, "", NULL, NULL, NULL);
    cp_route_index_free(x);
}

static void exact_segments_win(void **state) {
    (void)state;
    cp_route_index *x = make();
    expect(x, CP_GET, "/api/process/list", "/api/process/list", NULL, NULL);
    expect(x, CP_DELETE, "/api/process/kill-all", "/api/process/kill-all", NULL, NULL);
    /* but a name that only another method knows is a process's */
    expect(x, CP_DELETE, "/api/process/list", "/api/process/{id}", "list", NULL);
    expect(x, CP_GET, "/api/process/kill-all", "/api/process/{id}", "kill-all", NULL);
    cp_route_index_free(x);
}

static void methods_of_a_path(void **state) {
    (void)state;
    cp_route_index *x = make();
    assert_int_equal(cp_route_index_methods(x, CP_STR("/api/process/p")), 1u << CP_GET | 1u << CP_DELETE);
    assert_int_equal(cp_route_index_methods(x, CP_STR("/api/execute")), 1u << CP_POST);
    assert_int_equal(cp_route_index_methods(x, CP_STR("/none")), 0);
    cp_route_index_free(x);
}

static void refused(const cp_route *table, size_t n) {
    const cp_route *const tables[] = {table};
    cp_err err = {0};
    assert_null(cp_route_index_new(tables, &n, 1, &err));
    assert_int_equal(err.code, CP_E_INTERNAL_ERROR);
}

static void clashes_and_bad_patterns_are_errors(void **state) {
    (void)state;
    const cp_route twice[] = {{.method = CP_GET, .pattern = "/a"}, {.method = CP_GET, .pattern = "/a"}};
    const cp_route relative[] = {{.method = CP_GET, .pattern = "a"}};
    const cp_route open[] = {{.method = CP_GET, .pattern = "/a/{id"}};
    const cp_route part[] = {{.method = CP_GET, .pattern = "/a/{id}x"}};
    const cp_route three[] = {{.method = CP_GET, .pattern = "/{a}/{b}/{c}"}};
    refused(twice, 2);
    refused(relative, 1);
    refused(open, 1);
    refused(part, 1);
    refused(three, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matching),
        cmocka_unit_test(exact_segments_win),
        cmocka_unit_test(methods_of_a_path),
        cmocka_unit_test(clashes_and_bad_patterns_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
