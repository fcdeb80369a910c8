#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>

#include "handlers/request.h"

static cp_request with_query(const char *q) { return (cp_request){.query = cp_str_of(q)}; }

static void methods_are_case_sensitive(void **state) {
    (void)state;
    assert_int_equal(cp_method_of(CP_STR("GET")), CP_GET);
    assert_int_equal(cp_method_of(CP_STR("OPTIONS")), CP_OPTIONS);
    assert_int_equal(cp_method_of(CP_STR("get")), CP_METHOD_UNKNOWN);
    assert_int_equal(cp_method_of(CP_STR("PATCH")), CP_METHOD_UNKNOWN);
    assert_int_equal(cp_method_of(CP_STR("")), CP_METHOD_UNKNOWN);
}

static void headers_are_not(void **state) {
    (void)state;
    const cp_header h[] = {{CP_STR("x-session-id"), CP_STR("a")}, {CP_STR("Range"), CP_STR("")}};
    cp_request r = {.headers = h, .nheaders = 2};
    assert_true(cp_str_is(cp_request_header(&r, "X-Session-Id"), "a"));
    assert_non_null(cp_request_header(&r, "range").p);
    assert_null(cp_request_header(&r, "Origin").p);
}

static void decoded(const char *query, const char *name, const char *want) {
    cp_request r = with_query(query);
    cp_err err = {0};
    cp_autobuf cp_buf out = {0};
    int got = cp_request_param(&r, name, &out, &err);
    if (!want) {
        assert_int_equal(got, 0);
        return;
    }
    assert_int_equal(got, 1);
    assert_true(cp_str_is(cp_buf_str(&out), want));
}

static void query_values(void **state) {
    (void)state;
    decoded("a=1&b=2", "b", "2");
    decoded("a=1&b=2", "c", NULL);
    decoded("ab=1&b=2", "b", "2");
    decoded("a=x%20y+z%2f%C3%A9", "a", "x y z/\xc3\xa9");
    decoded("a", "a", "");
    decoded("&&a=1=2&", "a", "1=2");
    decoded("a=1&a=2", "a", "1");
    decoded("", "a", NULL);
}

static void malformed_query_values_name_the_field(void **state) {
    (void)state;
    static const char *const bad[] = {"q=%", "q=%4", "q=%zz", "q=%00", "q=a%2"};
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        cp_request r = with_query(bad[i]);
        cp_err err = {0};
        cp_autobuf cp_buf out = {0};
        assert_int_equal(cp_request_param(&r, "q", &out, &err), -1);
        assert_int_equal(err.code, CP_E_VALIDATION_FAILED);
        assert_string_equal(err.field, "q");
    }
}

static void query_numbers(void **state) {
    (void)state;
    cp_err err = {0};
    uint64_t v = 7;
    cp_request r = with_query("n=10&m=-1&o=11&p=1.5");
    assert_int_equal(cp_request_param_u64(&r, "n", 10, &v, &err), 1);
    assert_int_equal(v, 10);
    assert_int_equal(cp_request_param_u64(&r, "absent", 10, &v, &err), 0);
    assert_int_equal(v, 10);
    assert_int_equal(cp_request_param_u64(&r, "m", 10, &v, &err), -1);
    assert_int_equal(cp_request_param_u64(&r, "o", 10, &v, &err), -1);
    assert_int_equal(cp_request_param_u64(&r, "p", 10, &v, &err), -1);
    assert_string_equal(err.field, "p");
}

static void unknown_query_names_are_named(void **state) {
    (void)state;
    static const char *const known[] = {"from", "limit", NULL};
    cp_err err = {0};
    cp_request r = with_query("limit=1&from=2");
    assert_int_equal(cp_request_only(&r, known, &err), 0);
    r = with_query("limit=1&form=2");
    assert_int_equal(cp_request_only(&r, known, &err), -1);
    assert_string_equal(err.field, "form");
}

static void a_kept_request_owns_its_strings(void **state) {
    (void)state;
    char path[] = "/api/x", name[] = "A", value[] = "b";
    const cp_header h = {{name, 1}, {value, 1}};
    cp_request r = {.path = {path, 6}, .headers = &h, .nheaders = 1, .params = {{path + 5, 1}}};
    cp_request *k = cp_request_keep(&r);
    path[5] = name[0] = value[0] = '!';
    assert_true(cp_str_is(k->path, "/api/x"));
    assert_true(cp_str_is(k->params[0], "x"));
    assert_true(cp_str_is(cp_request_header(k, "a"), "b"));
    assert_null(k->query.p);
    free(k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(methods_are_case_sensitive),
        cmocka_unit_test(headers_are_not),
        cmocka_unit_test(query_values),
        cmocka_unit_test(malformed_query_values_name_the_field),
        cmocka_unit_test(query_numbers),
        cmocka_unit_test(unknown_query_names_are_named),
        cmocka_unit_test(a_kept_request_owns_its_strings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
