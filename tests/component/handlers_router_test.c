/* The whole table behind the router: refusals, body rules, fixed answers, metrics, sessions. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/statvfs.h>

#include "handlers_fake.h"

static void expect_error(int status, const char *code, const char *message) {
    assert_int_equal(c.res.status, status);
    assert_string_equal(text(&c, "/code"), code);
    if (message) assert_string_equal(text(&c, "/message"), message);
    assert_int_equal(num(&c, "/httpStatus"), status);
    assert_true(yyjson_is_obj(at(&c, "/context")));
    assert_int_equal(strlen(text(&c, "/timestamp")), 24);
}

static void no_route(void **state) {
    (void)state;
    const char *message = "The requested endpoint was not found";
    ask(&c, CP_GET, "/api/nope", NULL);
    expect_error(404, "UNKNOWN_ERROR", message);
    assert_int_equal(yyjson_obj_size(at(&c, "/context")), 0);
    ask(&c, CP_POST, "/api/ping", "{}"); /* X33 */
    expect_error(405, "METHOD_NOT_ALLOWED", NULL);
    ask(&c, CP_OPTIONS, "/api/ping", NULL); /* the transport answers it */
    expect_error(405, "METHOD_NOT_ALLOWED", NULL);
    ask(&c, CP_METHOD_UNKNOWN, "/api/ping", NULL);
    expect_error(405, "METHOD_NOT_ALLOWED", NULL);
    char allow[64];
    assert_true(cp_router_allow(fake.router, CP_STR("/api/process/x"), allow));
    assert_string_equal(allow, "GET, HEAD, DELETE, OPTIONS");
    assert_false(cp_router_allow(fake.router, CP_STR("/nope"), allow));
    cp_match head = cp_router_match(fake.router, CP_HEAD, CP_STR("/api/ping"));
    assert_true(head.is_head && head.route);
}

static void body_rules(void **state) {
    (void)state;
    ask(&c, CP_POST, "/api/execute", "{bad");
    expect_error(500, "INTERNAL_ERROR", NULL);
    assert_memory_equal(text(&c, "/message"), "Failed to parse request body: ", 30);
    ask(&c, CP_POST, "/api/execute", NULL);
    expect_error(500, "INTERNAL_ERROR", "Failed to parse request body: Unexpected end of JSON input");
    ask(&c, CP_POST, "/api/execute", "[]");
    expect_error(400, "VALIDATION_FAILED", NULL);
    ask(&c, CP_POST, "/api/session/delete", "{x");
    expect_error(400, "VALIDATION_FAILED", "Invalid request body");
    ask(&c, CP_POST, "/api/session/delete", "{}");
    expect_error(400, "VALIDATION_FAILED", "sessionId is required");
    ask(&c, CP_POST, "/api/session/create", "{bad");
    assert_int_equal(c.res.status, 200);
    assert_string_equal(text(&c, "/data/id"), "session_1795811127947_415a67e4522d");
}

static void too_large_is_told_on_every_route(void **state) {
    (void)state;
    cp_err err;
    cp_fail(&err, CP_E_PAYLOAD_TOO_LARGE, "too large");
    client_reset(&c);
    cp_request req = {.method = CP_POST, .path = CP_STR("/api/session/create"), .body_err = &err};
    cp_match m = cp_router_match(fake.router, req.method, req.path);
    cp_router_dispatch(fake.router, &m, &req, NULL, &c.reply);
    expect_error(413, "PAYLOAD_TOO_LARGE", "too large");
}

static void fixed_answers(void **state) {
    (void)state;
    ask(&c, CP_GET, "/", NULL);
    assert_int_equal(c.res.status, 200);
    assert_memory_equal(c.res.type, "text/plain", 10);
    ask(&c, CP_GET, "/api/ping", NULL);
    assert_string_equal(text(&c, "/status"), "healthy");
    ask(&c, CP_GET, "/api/version", NULL);
    assert_true(yyjson_is_str(at(&c, "/version")));
    ask(&c, CP_GET, "/api/commands", NULL);
    assert_true(yyjson_is_arr(at(&c, "/availableCommands")));
    assert_int_equal(num(&c, "/count"), 0);
    ask(&c, CP_GET, "/api/pending", NULL);
    assert_true(yyjson_is_arr(at(&c, "/connections")));
    ask(&c, CP_GET, "/healthz", NULL);
    assert_int_equal(c.res.status, 200);
}

static void readiness_names_what_is_missing(void **state) {
    (void)state;
    ask(&c, CP_GET, "/readyz", NULL);
    while (!c.res.status) cp_loop_once(fake.loop, 1000);
    assert_int_equal(c.res.status, 503);
    assert_false(yyjson_get_bool(at(&c, "/checks/started")));
    assert_false(yyjson_get_bool(at(&c, "/checks/keeper")));
    assert_true(yyjson_get_bool(at(&c, "/checks/accepting")));
    assert_true(yyjson_get_bool(at(&c, "/checks/disk")));
}

/* Stands in for the C library's: the disk of the state folder answers when the gate is open. */
static pthread_mutex_t disk_gate = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint disk_asked;
int statvfs(const char *path, struct statvfs *v) {
    (void)path;
    atomic_fetch_add(&disk_asked, 1);
    pthread_mutex_lock(&disk_gate);
    pthread_mutex_unlock(&disk_gate);
    *v = (struct statvfs){.f_bavail = 1 << 20, .f_frsize = 4096};
    return 0;
}

/* X37: a disk that does not answer holds up nobody; readiness says so, and asks it once. */
static void a_stuck_disk_is_not_ready(void **state) {
    (void)state;
    client k[3];
    disk_asked = 0;
    pthread_mutex_lock(&disk_gate);
    for (size_t i = 0; i < CP_COUNT(k); i++) {
        k[i] = (client){.reply = {.ops = &client_ops}};
        ask(&k[i], CP_GET, "/readyz", NULL);
        assert_int_equal(k[i].res.status, 0);
    }
    ask(&c, CP_GET, "/api/ping", NULL);
    assert_int_equal(c.res.status, 200);
    assert_false(k[2].reply.on_cancel(&k[2].reply, CP_END_DISCONNECTED, false));
    for (size_t i = 0; i < 2; i++) {
        while (!k[i].res.status) cp_loop_once(fake.loop, 1000);
        assert_int_equal(k[i].res.status, 503);
        assert_false(yyjson_get_bool(at(&k[i], "/checks/disk")));
        client_reset(&k[i]);
    }
    assert_int_equal(k[2].res.status, 0);
    ask(&c, CP_GET, "/readyz", NULL); /* as long as it hangs, nobody waits for it again */
    assert_int_equal(c.res.status, 503);
    assert_false(yyjson_get_bool(at(&c, "/checks/disk")));
    assert_int_equal(disk_asked, 1);
    pthread_mutex_unlock(&disk_gate);
    do {
        cp_loop_once(fake.loop, 10);
        ask(&c, CP_GET, "/readyz", NULL);
        while (!c.res.status) cp_loop_once(fake.loop, 1000);
    } while (!yyjson_get_bool(at(&c, "/checks/disk")));
}

static void io_routes_run_on_the_pool(void **state) {
    (void)state;
    const cp_header h = {CP_STR("X-Session-Id"), CP_STR("s")};
    ask_with(&c, CP_POST, "/api/read", "{\"path\":\"/yes\"}", (ask_opts){.headers = &h, .nheaders = 1});
    while (!c.res.status) cp_loop_once(fake.loop, 1000);
    assert_true(cp_str_is(cp_buf_str(&c.res.body), "\"s\""));
    ask(&c, CP_POST, "/api/read", "{\"path\":\"/no\"}");
    while (!c.res.status) cp_loop_once(fake.loop, 1000);
    expect_error(404, "FILE_NOT_FOUND", "File not found: /no");
    assert_string_equal(text(&c, "/operation"), "file.read");
    ask(&c, CP_POST, "/api/read", "{}");
    while (!c.res.status) cp_loop_once(fake.loop, 1000);
    expect_error(400, "VALIDATION_FAILED", NULL);
    assert_string_equal(text(&c, "/context/validationErrors/0/field"), "path");
    assert_string_equal(text(&c, "/operation"), "(none)");
}

static void a_client_that_leaves_an_io_route(void **state) {
    (void)state;
    ask(&c, CP_POST, "/api/read", "{\"path\":\"/yes\"}");
    assert_false(c.reply.on_cancel(&c.reply, CP_END_DISCONNECTED, false));
    for (int i = 0; i < 20; i++) cp_loop_once(fake.loop, 5);
    assert_int_equal(c.res.status, 0);
}

/* Holds the only thread, and those beyond it, of the lane of files until it is let go. */
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static cp_work blocks[8];
static void hang(cp_work *w) {
    (void)w;
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
}
static void hung(cp_work *w) { (void)w; }
static void hang_all(void) {
    pthread_mutex_lock(&gate);
    for (unsigned i = 0; i < CP_COUNT(blocks); i++)
        cp_workers_submit_to(fake.workers, CP_LANE_FILES, 100 + i, &blocks[i], hang, hung);
}

/* X05: what is given up before it began is freed at once and never done; what a lost client leaves is bounded. */
static void what_is_given_up_is_not_kept(void **state) {
    (void)state;
    static const cp_end ends[] = {CP_END_CANCELLED, CP_END_DEADLINE, CP_END_SHUTDOWN};
    hang_all();
    unsigned before = atomic_load(&fake_reads);
    for (int i = 0; i < 5000; i++) {
        ask(&c, CP_POST, "/api/read", "{\"path\":\"/yes\"}");
        assert_false(c.reply.on_cancel(&c.reply, ends[i % 3], false));
    }
    for (int i = 0; i < 5000; i++) {
        ask(&c, CP_POST, "/api/read", "{\"path\":\"/yes\"}");
        assert_false(c.reply.on_cancel(&c.reply, CP_END_DISCONNECTED, false));
    }
    pthread_mutex_unlock(&gate);
    ask(&c, CP_POST, "/api/read", "{\"path\":\"/yes\"}"); /* behind all that was left */
    expect_soon(200, NULL);
    assert_in_range(atomic_load(&fake_reads) - before, 2, 1 + 1024);
}

/* X05: what has begun goes on, and a transport that counts keeps its place until it has ended. */
static void what_has_begun_is_held(void **state) {
    (void)state;
    pthread_mutex_lock(&fake_gate);
    ask_with(&c, CP_POST, "/api/read", "{\"path\":\"/wait\"}", (ask_opts){.keeps = true});
    while (!atomic_load(&fake_waiting)) sched_yield();
    assert_true(c.reply.on_cancel(&c.reply, CP_END_DEADLINE, false));
    pthread_mutex_unlock(&fake_gate);
    expect_soon(200, NULL);
}

static void raw_bodies_are_http_only(void **state) {
    (void)state;
    ask_with(&c, CP_PUT, "/api/files/raw?path=/x", NULL, (ask_opts){.mux = true});
    expect_error(501, "NOT_SUPPORTED", NULL);
}

static void sessions(void **state) {
    (void)state;
    ask(&c, CP_POST, "/api/session/create", "{\"id\":\"s1\",\"env\":{\"A\":\"1\",\"B\":null},\"cwd\":\"/tmp\"}");
    assert_string_equal(text(&c, "/data/id"), "s1");
    assert_true(yyjson_is_null(at(&c, "/containerPlacementId")));
    ask(&c, CP_POST, "/api/session/create", "{\"id\":\"s1\"}");
    expect_error(409, "SESSION_ALREADY_EXISTS", NULL);
    assert_string_equal(text(&c, "/context/sessionId"), "s1");
    assert_true(yyjson_is_null(at(&c, "/context/containerPlacementId")));
    ask(&c, CP_GET, "/api/session/list", NULL);
    assert_string_equal(text(&c, "/data/0"), "s1");
    ask(&c, CP_POST, "/api/session/delete", "{\"sessionId\":\"s1\",\"keep\":true}");
    assert_string_equal(text(&c, "/sessionId"), "s1");
    ask(&c, CP_POST, "/api/session/delete", "{\"sessionId\":\"s1\"}");
    expect_error(500, "INTERNAL_ERROR", "Session 's1' not found");
    assert_string_equal(text(&c, "/context/originalError"), "Session not found");
    ask(&c, CP_POST, "/api/session/create", "{\"id\":5}");
    assert_string_equal(text(&c, "/context/validationErrors/0/field"), "id");
    ask(&c, CP_POST, "/api/session/create", "{\"env\":{\"1A\":\"\"}}");
    expect_error(400, "VALIDATION_FAILED", NULL);
    assert_string_equal(text(&c, "/context/validationErrors/0/field"), "env.1A");
}

static void metrics(void **state) {
    (void)state;
    cp_match ping = cp_router_match(fake.router, CP_GET, CP_STR("/api/ping"));
    cp_match none = cp_router_match(fake.router, CP_GET, CP_STR("/secret-path"));
    cp_router_count(fake.router, ping.index, 200, 70);
    cp_router_count(fake.router, ping.index, 200, 80);
    cp_router_count(fake.router, none.index, 404, 10);
    ask(&c, CP_GET, "/metrics", NULL);
    expect_soon(200, NULL);
    const char *z = cp_buf_z(&c.res.body);
    assert_non_null(strstr(z, "conflux_requests_total{method=\"GET\",route=\"/api/ping\",status=\"200\"} 2\n"));
    assert_non_null(strstr(z, "conflux_requests_total{route=\"none\",status=\"404\"} 1\n"));
    assert_non_null(strstr(z, "conflux_request_seconds_count{method=\"GET\",route=\"/api/ping\"} 2\n"));
    assert_null(strstr(z, "secret-path"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(no_route),
        TEST(body_rules),
        TEST(too_large_is_told_on_every_route),
        TEST(fixed_answers),
        TEST(readiness_names_what_is_missing),
        TEST(a_stuck_disk_is_not_ready),
        TEST(io_routes_run_on_the_pool),
        TEST(a_client_that_leaves_an_io_route),
        TEST(what_is_given_up_is_not_kept),
        TEST(what_has_begun_is_held),
        TEST(raw_bodies_are_http_only),
        TEST(sessions),
        TEST(metrics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
