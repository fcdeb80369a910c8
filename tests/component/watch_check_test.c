/* Checks for changes since a version, and what requests are refused. */
#include "component/watch_fixture.h"

static void check(const char *since, const char *status) {
    char body[256];
    snprintf(body, sizeof body, "{\"path\":\"@\",\"since\":\"%s\"}", since ? since : "");
    ask_for(&c, "/api/watch/check", since ? body : "{\"path\":\"@\"}");
    until(c.res.status);
    assert_int_equal(c.res.status, 200);
    assert_string_equal(text(&c, "/status"), status);
}

static void a_check_sees_all_that_came_before_it(void **state) {
    (void)state;
    char v[128];
    check(NULL, "unchanged");
    version_of(&c, v);
    assert_memory_equal(v, "watch-1-", 8);
    assert_string_equal(strrchr(v, ':'), ":0");
    check(v, "unchanged");
    put("f", "x");
    check(v, "changed");
    version_of(&c, v);
    assert_string_equal(strrchr(v, ':'), ":2"); /* as captured: create and modify */
    check(v, "unchanged");
    make_dir("a");
    make_dir("a/b");
    check(v, "changed");
    version_of(&c, v);
    put("node_modules", "x");
    check(v, "unchanged");
    put("a/b/f", "x");
    check(v, "changed");
}

static void a_watcher_that_nobody_asks_expires(void **state) {
    (void)state;
    char v[128];
    check(NULL, "unchanged");
    version_of(&c, v);
    cp_watcher *w = fx.svc.watches->first;
    assert_true(cp_timer_active(&w->expiry));
    assert_true(w->expiry.at <= cp_now_ms() + 600000 && w->expiry.at > cp_loop_now(fx.loop) + 500000);
    cp_timer_stop(fx.loop, &w->expiry);
    w->expiry.fn(&w->expiry);
    assert_null(fx.svc.watches->first);
    check(v, "resync");
    assert_string_equal(text(&c, "/reason"), "expired");
}

static void check_dir(const char *name, int status) {
    char body[64];
    snprintf(body, sizeof body, "{\"path\":\"@/%s\"}", name);
    ask_for(&c, "/api/watch/check", body);
    until(c.res.status);
    assert_int_equal(c.res.status, status);
}

/* What is kept may be asked for; one more is refused until one of them has gone. Streams are not counted: they end with
 * their connection. */
static void kept_watchers_are_limited(void **state) {
    (void)state;
    static const char *const names[] = {"a", "b", "third"};
    for (size_t i = 0; i < CP_COUNT(names); i++) make_dir(names[i]);
    fx.config.max_watches = 2;
    begin(&d, "{\"path\":\"@/third\"}");
    check_dir("a", 200);
    check_dir("b", 200);
    check_dir("third", 429);
    assert_string_equal(text(&c, "/code"), "LIMIT_EXCEEDED");
    assert_non_null(strstr(text(&c, "/message"), "max-watches"));
    check_dir("a", 200);
    cp_watcher *w = fx.svc.watches->first; /* of b, the newest */
    assert_non_null(strstr(w->path, "/b"));
    cp_timer_stop(fx.loop, &w->expiry);
    w->expiry.fn(&w->expiry);
    check_dir("third", 200);
    check_dir("b", 429);
}

static void versions_of_other_watchers(void **state) {
    (void)state;
    check("watch-99-1:0", "resync");
    assert_string_equal(text(&c, "/reason"), "expired");
    check("watch-99-1:0", "resync");
    assert_string_equal(text(&c, "/reason"), "restarted");
}

static void refused_versions(void **state) {
    (void)state;
    static const char *const bad[] = {"garbage", "a:", ":1", "a:-1", "a:1x", "a:99999999999999999999"};
    char v[128], body[256];
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        snprintf(body, sizeof body, "{\"path\":\"@\",\"since\":\"%s\"}", bad[i]);
        ask_for(&c, "/api/watch/check", body);
        assert_int_equal(c.res.status, 400);
        assert_string_equal(text(&c, "/message"), "since must be a version returned by checkChanges()");
        assert_string_equal(text(&c, "/context/since"), bad[i]);
    }
    ask_for(&c, "/api/watch/check", "{\"path\":\"@\",\"since\":\"\"}");
    assert_string_equal(text(&c, "/message"), "since must be a non-empty string when provided");
    check(NULL, "unchanged");
    version_of(&c, v);
    *strrchr(v, ':') = 0;
    snprintf(body, sizeof body, "{\"path\":\"@\",\"since\":\"%s:999\"}", v);
    ask_for(&c, "/api/watch/check", body);
    until(c.res.status);
    assert_int_equal(c.res.status, 400);
    assert_string_equal(text(&c, "/message"), "since refers to a newer version than the current watch state");
    snprintf(body, sizeof body, "%s:0", v);
    assert_string_equal(text(&c, "/context/currentVersion"), body);
}

/* ---- refusals, in the words of the reference ---- */

static void refused(const char *json, int status, const char *message) {
    ask_for(&c, "/api/watch", json);
    until(c.res.status);
    if (c.res.status != status || strcmp(text(&c, "/message"), message) != 0)
        fail_msg("%s: %d %s", json, c.res.status, text(&c, "/message"));
    assert_int_equal(num(&c, "/httpStatus"), status);
}

static void bad_requests(void **state) {
    (void)state;
    static const char no_path[] = "path is required and must be a non-empty string";
    char message[256];
    refused("{}", 400, no_path);
    refused("{\"path\":\"  \"}", 400, no_path);
    refused("{\"path\":5}", 400, no_path);
    assert_int_equal(num(&c, "/context/path"), 5);
    refused("{\"path\":\"@\",\"include\":[\"*.a\"],\"exclude\":[\"*.b\"]}", 400,
            "include and exclude cannot be used together. Use include to whitelist patterns, or exclude to blacklist "
            "patterns.");
    assert_string_equal(text(&c, "/context/include/0"), "*.a");
    assert_string_equal(text(&c, "/context/exclude/0"), "*.b");
    refused("{\"path\":\"@\",\"include\":\"x\"}", 400, "include must be an array of strings");
    refused("{\"path\":\"@\",\"exclude\":[1]}", 400, "exclude must be an array of strings");
    refused("{\"path\":\"@\",\"include\":[\"{a,b}\"]}", 400,
            "include contains unsupported glob syntax. Supported tokens: *, **, ? and path separators");
    assert_string_equal(text(&c, "/context/pattern"), "{a,b}");
    refused("{\"path\":\"@\",\"recursive\":\"y\"}", 400, "recursive must be a boolean when provided");
    refused("{\"path\":\"@\",\"events\":[\"open\"]}", 400,
            "events must be an array of create, modify, delete, move_from, move_to and attrib");
    refused("[]", 400, "Request body must be a JSON object");
    snprintf(message, sizeof message, "path must be inside %s", fx.workspace);
    refused("{\"path\":\"/etc\"}", 403, message);
    assert_string_equal(text(&c, "/context/path"), "/etc");
    assert_string_equal(text(&c, "/context/resolvedPath"), "/etc");
    assert_string_equal(text(&c, "/context/workspaceRoot"), fx.workspace);
    refused("{\"path\":\"../work2\"}", 403, message);
    snprintf(message, sizeof message, "Path does not exist: %s/none", fx.workspace);
    refused("{\"path\":\" none \"}", 404, message);
    assert_string_equal(text(&c, "/code"), "FILE_NOT_FOUND");
    ask(&c, CP_POST, "/api/watch", "{x");
    assert_int_equal(c.res.status, 400);
    assert_string_equal(text(&c, "/code"), "VALIDATION_FAILED");
    assert_memory_equal(text(&c, "/message"), "Failed to parse request body: ", 30);
}

static void too_many_patterns(void **state) {
    (void)state;
    cp_autobuf cp_buf b = {0};
    cp_buf_addz(&b, "{\"path\":\"@\",\"exclude\":[\"a\"");
    for (int i = 0; i < CP_WATCH_GLOBS; i++) cp_buf_addz(&b, ",\"a\"");
    cp_buf_addz(&b, "]}");
    refused(cp_buf_z(&b), 400, "exclude may hold 64 patterns of 255 bytes");
    cp_buf_clear(&b);
    cp_buf_addz(&b, "{\"path\":\"@\",\"include\":[\"");
    for (int i = 0; i <= CP_GLOB_MAX; i++) cp_buf_addc(&b, 'a');
    cp_buf_addz(&b, "\"]}");
    refused(cp_buf_z(&b), 400, "include may hold 64 patterns of 255 bytes");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_check_sees_all_that_came_before_it),
        TEST(a_watcher_that_nobody_asks_expires),
        TEST(kept_watchers_are_limited),
        TEST(versions_of_other_watchers),
        TEST(refused_versions),
        TEST(bad_requests),
        TEST(too_many_patterns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
