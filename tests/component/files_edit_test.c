/* POST /api/files/replace and /api/files/batch. */
#include "tests/component/files_fixture.h"

#include "component/config_fixture.h"
#include "services/files_edit.h"

static int setup(void **state) {
    config_defaults(&fx.config);
    return fx_setup(state);
}

/* ---- replace ---- */

static void edit(const char *text, const char *old, const char *with, bool all, int64_t want, const char *becomes) {
    cp_autobuf cp_buf out = {0};
    cp_edit e = {.old = cp_str_of(old), .with = cp_str_of(with), .all = all};
    assert_int_equal(cp_edit_text(cp_str_of(text), &e, 100, &out), want);
    assert_string_equal(cp_buf_z(&out), becomes);
}

static void texts(void **state) {
    (void)state;
    edit("one two", "two", "2", false, 1, "one 2");
    edit("one two", "one", "", false, 1, " two");
    edit("one", "one", "three", false, 1, "three");
    edit("one", "four", "x", false, 0, "");
    edit("one", "ones", "x", false, 0, "");
    edit("", "a", "x", true, 0, "");
    edit("a b a", "a", "x", false, 2, "");
    edit("aaa", "aa", "x", false, 2, ""); /* here or one further on? */
    edit("aaa", "aa", "x", true, 1, "xa");
    edit("a b a", "a", "xx", true, 2, "xx b xx");
    edit("aaaa", "a", "", true, 4, "");
    edit("aaaaa", "a", "12345678901234567890", true, 5,
         "1234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890");
    edit("aaaaab", "a", "12345678901234567890", true, -1, "");
}

static void replaces(void **state) {
    (void)state;
    fx_put("f", "let a = 1;\nlet b = 1;\n", 22, 0751);
    assert_int_equal(fx_post("/api/files/replace", "{\"path\":\"@/f\",\"edits\":[{\"old\":\"a = 1\",\"new\":\"a = 2\"},"
                                                   "{\"old\":\"let\",\"new\":\"var\",\"all\":true},"
                                                   "{\"old\":\"var a = 2\",\"new\":\"var c\"}]}"),
                     200);
    assert_int_equal(fx_num("replacements"), 4);
    assert_int_equal(fx_num("size"), 18);
    fx_holds("f", "var c;\nvar b = 1;\n", 18);
    assert_int_equal(fx_mode("f"), 0751);
    assert_int_equal(fx_entries("."), 1);
}

static void all_or_none(void **state) {
    (void)state;
    fx_put("f", "a b b", 5, 0644);
    assert_int_equal(fx_post("/api/files/replace", "{\"path\":\"@/f\",\"edits\":[{\"old\":\"a\",\"new\":\"x\"},"
                                                   "{\"old\":\"c\",\"new\":\"x\"}]}"),
                     409);
    assert_string_equal(fx_str("code"), "EDIT_NO_MATCH");
    assert_int_equal(fx_num("context.edit"), 1);
    assert_string_equal(fx_str("context.field"), "edits[1].old");
    assert_int_equal(fx_post("/api/files/replace", "{\"path\":\"@/f\",\"edits\":[{\"old\":\"b\",\"new\":\"x\"}]}"),
                     409);
    assert_string_equal(fx_str("code"), "EDIT_AMBIGUOUS");
    assert_int_equal(fx_num("context.edit"), 0);
    fx_holds("f", "a b b", 5);
}

static void replace_checks_its_fields(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"[]", "edits"},
        {"{}", "edits"},
        {"[1]", "edits[0]"},
        {"[{\"old\":\"a\"}]", "edits[0].new"},
        {"[{\"old\":\"a\",\"new\":\"b\"},{\"old\":\"\",\"new\":\"b\"}]", "edits[1].old"},
        {"[{\"old\":\"a\",\"new\":\"b\",\"every\":true}]", "edits[0].every"},
        {"[{\"old\":\"a\",\"new\":\"b\",\"all\":\"yes\"}]", "edits[0].all"},
    };
    fx_put("f", "a", 1, 0644);
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        assert_int_equal(fx_post("/api/files/replace", "{\"path\":\"@/f\",\"edits\":%s}", bad[i][0]), 400);
        assert_string_equal(fx_str("context.validationErrors.0.field"), bad[i][1]);
    }
    cp_autobuf cp_buf many = {0};
    cp_buf_addf(&many, "{\"path\":\"%s\",\"edits\":[", fx_path("f"));
    for (int i = 0; i <= CP_EDITS_MAX; i++) cp_buf_addf(&many, "%s{\"old\":\"a\",\"new\":\"a\"}", i ? "," : "");
    cp_buf_addz(&many, "]}");
    assert_int_equal(fx_post_str("/api/files/replace", cp_buf_str(&many)), 400);
    assert_int_equal(fx_post("/api/files/replace", "{\"path\":\"@/no\",\"edits\":[{\"old\":\"a\",\"new\":\"b\"}]}"),
                     404);
    assert_int_equal(fx_post("/api/files/replace", "{\"path\":\"@\",\"edits\":[{\"old\":\"a\",\"new\":\"b\"}]}"), 400);
    assert_string_equal(fx_str("code"), "IS_DIRECTORY");
    assert_int_equal(truncate(fx_path("f"), CP_READ_MAX + 1), 0);
    assert_int_equal(fx_post("/api/files/replace", "{\"path\":\"@/f\",\"edits\":[{\"old\":\"a\",\"new\":\"b\"}]}"),
                     413);
}

/* ---- batch ---- */

static void results_in_order(void **state) {
    (void)state;
    assert_int_equal(fx_post("/api/files/batch",
                             "{\"operations\":["
                             "{\"path\":\"/api/write\",\"body\":{\"path\":\"@/a.txt\",\"content\":\"x\"}},"
                             "{\"path\":\"/api/read\",\"body\":{\"path\":\"@/a.txt\"}},"
                             "{\"path\":\"/api/read\",\"body\":{\"path\":\"@/no\"}},"
                             "{\"path\":\"/api/delete\",\"body\":{\"path\":\"@/a.txt\"}},"
                             "{\"path\":\"/api/exists\",\"body\":{\"path\":\"@/a.txt\"}}]}"),
                     200);
    static const int want[] = {200, 200, 404, 200, 200};
    assert_int_equal(yyjson_arr_size(fx_get("results")), CP_COUNT(want));
    for (size_t i = 0; i < CP_COUNT(want); i++)
        assert_int_equal(yyjson_get_int(yyjson_obj_get(yyjson_arr_get(fx_get("results"), i), "status")), want[i]);
    assert_string_equal(fx_str("results.1.body.content"), "x");
    assert_string_equal(fx_str("results.2.body.code"), "FILE_NOT_FOUND");
    assert_false(yyjson_get_bool(fx_get("results.4.body.exists")));
    assert_int_equal(fx_num("failed"), 1);
    assert_int_equal(fx_post("/api/files/batch", "{\"operations\":[]}"), 200);
    assert_int_equal(yyjson_arr_size(fx_get("results")), 0);
}

static void a_bad_operation_is_its_own_matter(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"1", "operations"},
        {"{}", "path"},
        {"{\"path\":\"/api/write\"}", "body"},
        {"{\"path\":\"/api/write\",\"body\":[]}", "body"},
        {"{\"path\":\"/api/execute\",\"body\":{}}", "path"},
        {"{\"path\":\"/api/files/batch\",\"body\":{}}", "path"},
        {"{\"path\":\"/api/read/stream\",\"body\":{}}", "path"},
        {"{\"path\":\"/api/files/raw\",\"method\":\"PUT\",\"body\":{}}", "path"},
        {"{\"path\":\"/api/read\",\"body\":{},\"op\":1}", "op"},
        {"{\"path\":\"/api/files/stat\",\"body\":{\"path\":\"@/x\",\"nope\":1}}", "nope"},
    };
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        assert_int_equal(fx_post("/api/files/batch",
                                 "{\"operations\":[%s,{\"path\":\"/api/write\",\"body\":"
                                 "{\"path\":\"@/%zu\",\"content\":\"x\"}}]}",
                                 bad[i][0], i),
                         200);
        assert_int_equal(fx_num("results.0.status"), 400);
        assert_string_equal(fx_str("results.0.body.context.validationErrors.0.field"), bad[i][1]);
        assert_int_equal(fx_num("results.1.status"), 200);
    }
    assert_int_equal(fx_entries("."), CP_COUNT(bad));
    assert_int_equal(fx_post("/api/files/batch", "{}"), 400);
    assert_int_equal(fx_post("/api/files/batch", "{\"operations\":{}}"), 400);
}

static void bounded(void **state) {
    (void)state;
    static char data[3000];
    memset(data, 'd', sizeof data);
    fx_put("f", data, sizeof data, 0644);
    fx.config.max_batch = 3;
    fx.config.batch_bytes = 4096;
#define READ "{\"path\":\"/api/read\",\"body\":{\"path\":\"@/f\"}}"
    assert_int_equal(fx_post("/api/files/batch", "{\"operations\":[" READ "," READ "," READ "]}"), 200);
    assert_int_equal(fx_num("results.1.status"), 200);
    assert_int_equal(fx_num("results.2.status"), 413);
    assert_string_equal(fx_str("results.2.body.code"), "PAYLOAD_TOO_LARGE");
    assert_int_equal(fx_post("/api/files/batch", "{\"operations\":[" READ "," READ "," READ "," READ "]}"), 413);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, fx_teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts),
        T(replaces),
        T(all_or_none),
        T(replace_checks_its_fields),
        T(results_in_order),
        T(a_bad_operation_is_its_own_matter),
        T(bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
