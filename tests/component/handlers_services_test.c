/* The handlers on the real services and a real keeper. Bnnn: shared field cases. */
#include "component/handlers_client.h"

#include "component/services_fixture.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

static cp_ctx ctx;

static void execute(const char *body) {
    ask(&c, CP_POST, "/api/execute", body);
    fx_until(c.res.status);
}

/* Pulls until an event of this type; collects stdout and stderr. */
static void pull_to(const char *type, cp_buf *out, cp_buf *err) {
    const char *t;
    fx_until(c.src);
    while (strcmp(t = pull(&c), type) != 0) {
        assert_string_not_equal(t, "END");
        if (strcmp(t, "WAIT") == 0) {
            unsigned seen = c.wakes;
            fx_until(c.wakes != seen);
            continue;
        }
        cp_buf *b = strcmp(t, "stdout") == 0 ? out : strcmp(t, "stderr") == 0 ? err : NULL;
        if (b) cp_buf_add(b, text(&c, "/data"), yyjson_get_len(at(&c, "/data")));
    }
}

static void a_session_keeps_its_state(void **state) {
    (void)state;
    execute("{\"command\":\"echo hi\",\"sessionId\":\"s\"}");
    assert_string_equal(text(&c, "/stdout"), "hi");
    assert_string_equal(text(&c, "/outcome"), "exited");
    execute("{\"command\":\"cd /tmp; v=2; (exit 7)\",\"sessionId\":\"s\"}");
    assert_int_equal(num(&c, "/exitCode"), 7);
    execute("{\"command\":\"pwd; echo $v$A\",\"sessionId\":\"s\",\"env\":{\"A\":\"q'\"}}");
    assert_string_equal(text(&c, "/stdout"), "/tmp\n2q'");
    execute("{\"command\":\"exit 5\",\"sessionId\":\"s\"}");
    assert_int_equal(c.res.status, 410);
    assert_int_equal(num(&c, "/context/exitCode"), 5);
    ask(&c, CP_GET, "/api/session/list", NULL);
    assert_int_equal(c.res.status, 200);
}

/* Executes `before`, then waits until that times out: longer and longer until `before` came to its end in time. The
 * timeout. */
static unsigned until_timeout(const char *before, const char *more) {
    char body[256], mark[96];
    snprintf(mark, sizeof mark, "%s/in-time", fx.dir);
    for (unsigned ms = 300;; ms *= 2) {
        snprintf(body, sizeof body, "{\"command\":\"%s; : >%s; sleep 100\",\"timeoutMs\":%u%s}", before, mark, ms,
                 more);
        execute(body);
        if (unlink(mark) == 0) return ms;
        assert_true(ms < 60000);
    }
}

static void timeouts_give_what_was_printed(void **state) {
    (void)state;
    char want[64];
    unsigned ms = until_timeout("printf partial", ""); /* B009 */
    assert_int_equal(c.res.status, 500);
    snprintf(want, sizeof want, "Command timeout after %ums", ms);
    assert_non_null(strstr(text(&c, "/message"), want));
    assert_string_equal(text(&c, "/context/stdout"), "partial");
    ms = until_timeout("printf partial", ",\"sessionId\":\"__DISABLE_SESSION__\"");
    assert_int_equal(c.res.status, 200);
    assert_int_equal(num(&c, "/exitCode"), 124);
    assert_string_equal(text(&c, "/stdout"), "partial");
    snprintf(want, sizeof want, "Command timed out after %ums", ms);
    assert_string_equal(text(&c, "/stderr"), want);
}

static void programs_without_a_shell(void **state) {
    (void)state;
    execute("{\"args\":[\"printf\",\"%s\",\"a b\"],\"sessionId\":\"__DISABLE_SESSION__\"}");
    assert_string_equal(text(&c, "/stdout"), "a b");
    execute("{\"args\":[\"nosuchcmd\"],\"sessionId\":\"__DISABLE_SESSION__\"}"); /* B006 */
    assert_int_equal(c.res.status, 404);
    assert_string_equal(text(&c, "/context/errno"), "ENOENT");
    assert_null(at(&c, "/exitCode"));
}

static void one_id_is_one_start(void **state) {
    (void)state;
    char body[512];
    snprintf(body, sizeof body,
             "{\"command\":\"echo x >> %s/f; wc -l < %s/f\",\"executionId\":\"once\","
             "\"sessionId\":\"__DISABLE_SESSION__\"}",
             fx.dir, fx.dir);
    for (int i = 0; i < 2; i++) { /* B020 */
        execute(body);
        assert_string_equal(text(&c, "/stdout"), "1\n");
    }
    execute("{\"command\":\"true\",\"executionId\":\"once\"}");
    assert_int_equal(c.res.status, 409);
    assert_string_equal(text(&c, "/code"), "EXECUTION_CONFLICT");
    ask(&c, CP_GET, "/api/execution/once", NULL);
    fx_until(c.res.status);
    assert_string_equal(text(&c, "/stdout"), "1\n");
}

static void stdin_forms(void **state) {
    (void)state;
    cp_err err;
    execute("{\"command\":\"cat\",\"stdin\":\"given\",\"sessionId\":\"__DISABLE_SESSION__\"}");
    assert_string_equal(text(&c, "/stdout"), "given");
    ask(&c, CP_POST, "/api/execute", "{\"command\":\"cat\",\"stdin\":\"open\",\"sessionId\":\"__DISABLE_SESSION__\"}");
    assert_int_equal(c.reply.on_stdin(&c.reply, CP_STR("later"), true, NULL, &err), 0); /* B012 */
    fx_until(c.res.status);
    assert_string_equal(text(&c, "/stdout"), "later");
}

static void cancel_ends_the_tree(void **state) {
    (void)state;
    ask(&c, CP_POST, "/api/execute", "{\"command\":\"sleep 1000 & sleep 1000\",\"executionId\":\"tree\"}"); /* B040 */
    cp_exec *e = cp_exec_find(&fx.s, CP_STR("tree"));
    fx_until(e->state == CP_STATE_RUNNING);
    assert_true(c.reply.on_cancel(&c.reply, CP_END_CANCELLED, false));
    fx_until(c.res.status);
    assert_int_equal(c.res.status, 499);
    assert_int_equal(yyjson_arr_size(at(&c, "/context/survivors")), 0);
    execute("{\"command\":\"echo next\"}");
    assert_string_equal(text(&c, "/stdout"), "next");
}

static void a_long_stream_is_whole(void **state) {
    (void)state;
    static const char *const bodies[] = {
        "{\"command\":\"seq 1 100000; echo e >&2; (exit 4)\",\"sessionId\":\"st\"}",
        "{\"command\":\"seq 1 100000; echo e >&2; exit 4\",\"sessionId\":\"__DISABLE_SESSION__\"}",
    };
    for (int i = 0; i < 2; i++) {
        cp_autobuf cp_buf out = {0}, err = {0}, want = {0};
        for (int k = 1; k <= 100000; k++) cp_buf_addf(&want, "%d\n", k);
        ask(&c, CP_POST, "/api/execute/stream", bodies[i]);
        pull_to("complete", &out, &err);
        assert_int_equal(num(&c, "/exitCode"), 4);
        assert_true(cp_str_eq(cp_buf_str(&out), cp_buf_str(&want)));
        assert_true(cp_str_is(cp_buf_str(&err), "e\n"));
        assert_string_equal(pull(&c), "END");
    }
}

static void a_process_from_start_to_delete(void **state) {
    (void)state;
    ask(&c, CP_POST, "/api/process/start", "{\"command\":\"echo up; sleep 1000\",\"processId\":\"web\"}");
    fx_until(c.res.status);
    assert_true(num(&c, "/pid") > 1);
    ask(&c, CP_GET, "/api/process/web/wait?for=log&pattern=up", NULL);
    fx_until(c.res.status);
    assert_string_equal(text(&c, "/line"), "up");
    ask(&c, CP_GET, "/api/process/web/logs", NULL);
    fx_until(c.res.status);
    assert_string_equal(text(&c, "/stdout"), "up\n");
    client viewer = {.reply = {.ops = &client_ops}};
    ask(&viewer, CP_GET, "/api/process/web/stream", NULL);
    ask(&c, CP_DELETE, "/api/process/web", NULL);
    fx_until(c.res.status);
    assert_int_equal(c.res.status, 200);
    assert_true(yyjson_arr_size(at(&c, "/killed")) > 0);
    ask(&c, CP_GET, "/api/process/web", NULL);
    assert_string_equal(text(&c, "/process/status"), "killed");
    assert_int_equal(num(&c, "/process/exitCode"), 143);
    ask(&c, CP_DELETE, "/api/process/web", NULL);
    assert_string_equal(text(&c, "/code"), "COMMAND_NOT_FOUND");
    assert_string_equal(pull(&viewer), "process_info");
    assert_string_equal(pull(&viewer), "stdout");
    assert_string_equal(pull(&viewer), "exit");
    assert_int_equal(num(&viewer, "/exitCode"), 143);
    client_reset(&viewer);
}

static void deleting_a_session_ends_what_waits_in_it(void **state) {
    (void)state;
    client waiting[3] = {0}; /* B099 */
    ask(&c, CP_POST, "/api/session/create", "{\"id\":\"d\",\"cwd\":\"/tmp\"}");
    fx_until(c.res.status);
    assert_string_equal(text(&c, "/data/id"), "d");
    for (int i = 0; i < 3; i++) {
        waiting[i].reply.ops = &client_ops;
        ask(&waiting[i], CP_POST, "/api/execute", "{\"command\":\"sleep 1000\",\"sessionId\":\"d\"}");
    }
    ask(&c, CP_POST, "/api/session/delete", "{\"sessionId\":\"d\"}");
    for (int i = 0; i < 3; i++) {
        fx_until(waiting[i].res.status);
        assert_int_equal(waiting[i].res.status, 410);
        assert_string_equal(text(&waiting[i], "/code"), "SESSION_DESTROYED");
        client_reset(&waiting[i]);
    }
    fx_until(c.res.status);
    assert_string_equal(text(&c, "/sessionId"), "d");
    ask(&c, CP_POST, "/api/session/delete", "{\"sessionId\":\"d\"}");
    fx_until(c.res.status);
    assert_string_equal(text(&c, "/code"), "INTERNAL_ERROR");
    assert_string_equal(text(&c, "/context/originalError"), "Session not found");
}

/* What is open stays open, nothing can be opened. */
static void no_descriptors(bool none) {
    struct rlimit r;
    int lowest = fcntl(0, F_DUPFD_CLOEXEC, 0);
    close(lowest);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &r), 0);
    static rlim_t before;
    if (none) before = r.rlim_cur;
    r.rlim_cur = none ? (rlim_t)lowest : before;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &r), 0);
}

static void get(const char *target) {
    ask(&c, CP_GET, target, NULL);
    fx_until(c.res.status);
}

/* A text that is short because its log cannot be opened says so, and the rest is there afterwards. */
static void a_log_that_cannot_be_opened_is_no_empty_log(void **state) {
    (void)state;
    execute("{\"command\":\"printf 12345; printf e >&2; (exit 3)\",\"executionId\":\"ok\"}");
    execute("{\"command\":\"printf 12345; exit 4\",\"executionId\":\"died\"}");
    ask(&c, CP_POST, "/api/process/start", "{\"command\":\"printf 12345\",\"processId\":\"p\"}");
    fx_until(c.res.status);
    get("/api/process/p/wait?for=exit");
    no_descriptors(true);
    get("/api/execution/ok");
    no_descriptors(false);
    assert_int_equal(c.res.status, 200);
    assert_int_equal(num(&c, "/exitCode"), 3);
    assert_string_equal(text(&c, "/stdout"), "");
    assert_int_equal(num(&c, "/stdoutBytes"), 5);
    assert_true(yyjson_get_bool(at(&c, "/stdoutTruncated")) && yyjson_get_bool(at(&c, "/stderrTruncated")));
    no_descriptors(true);
    get("/api/execution/died");
    no_descriptors(false);
    assert_int_equal(c.res.status, 410);
    assert_int_equal(num(&c, "/context/stdoutBytes"), 5);
    assert_true(yyjson_get_bool(at(&c, "/context/stdoutTruncated")));
    assert_null(at(&c, "/context/stderrTruncated"));
    no_descriptors(true);
    get("/api/process/p/logs");
    no_descriptors(false);
    assert_int_equal(c.res.status, 500);
    assert_string_equal(text(&c, "/code"), "TOO_MANY_FILES");
    assert_string_equal(text(&c, "/context/processId"), "p");
    get("/api/execution/ok");
    assert_string_equal(text(&c, "/stdout"), "12345");
    assert_false(yyjson_get_bool(at(&c, "/stdoutTruncated")));
    get("/api/execution/died");
    assert_string_equal(text(&c, "/context/stdout"), "12345");
    get("/api/process/p/logs");
    assert_string_equal(text(&c, "/stdout"), "12345");
}

static int setup(void **state) {
    cp_err err;
    fx_setup(state);
    ctx = (cp_ctx){.loop = fx.loop, .workers = fx.s.workers, .svc = &fx.s, .config = &fx.config};
    client_router = ctx.router = cp_router_new(&ctx, &err);
    return client_router ? 0 : -1;
}

static int teardown(void **state) {
    client_reset(&c);
    cp_router_free(client_router);
    return fx_teardown(state);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        T(a_session_keeps_its_state),
        T(timeouts_give_what_was_printed),
        T(programs_without_a_shell),
        T(one_id_is_one_start),
        T(stdin_forms),
        T(cancel_ends_the_tree),
        T(a_long_stream_is_whole),
        T(a_process_from_start_to_delete),
        T(deleting_a_session_ends_what_waits_in_it),
        T(a_log_that_cannot_be_opened_is_no_empty_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
