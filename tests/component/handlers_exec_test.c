/* execute and /api/execution over scripted services. Streams: handlers_stream_test. */
#include "handlers_fake.h"

/* ---- requests ---- */

static void bad_fields_are_named(void **state) {
    (void)state;
    static const struct {
        const char *body, *field;
    } bad[] = {
        {"{}", "command"},
        {"{\"command\":5}", "command"},
        {"{\"command\":\"a\\u0000b\"}", "command"},
        {"{\"command\":\"a\",\"args\":[\"b\"]}", "args"},
        {"{\"args\":[]}", "args"},
        {"{\"args\":[\"\"]}", "args[0]"},
        {"{\"args\":[\"a\",1]}", "args[1]"},
        {"{\"args\":[\"a\",\"\\u0000\"]}", "args[1]"},
        {"{\"command\":\"a\",\"cwd\":1}", "cwd"},
        {"{\"command\":\"a\",\"cwd\":\"/a\\u0000\"}", "cwd"},
        {"{\"command\":\"a\",\"env\":[]}", "env"},
        {"{\"command\":\"a\",\"env\":{\"A\":1}}", "env.A"},
        {"{\"command\":\"a\",\"env\":{\"A\":\"\\u0000\"}}", "env.A"},
        {"{\"command\":\"a\",\"timeoutMs\":-1}", "timeoutMs"},
        {"{\"command\":\"a\",\"timeoutMs\":1.5}", "timeoutMs"},
        {"{\"command\":\"a\",\"timeoutMs\":\"1\"}", "timeoutMs"},
        {"{\"command\":\"a\",\"sessionId\":7}", "sessionId"},
        {"{\"command\":\"a\",\"executionId\":\"\"}", "executionId"},
        {"{\"command\":\"a\",\"executionId\":\"a/b\"}", "executionId"},
        {"{\"command\":\"a\",\"stdin\":1}", "stdin"},
        {"{\"command\":\"a\",\"stdin\":\"!\",\"stdinEncoding\":\"base64\"}", "stdin"},
        {"{\"command\":\"a\",\"stdin\":\"a\",\"stdinEncoding\":\"x\"}", "stdinEncoding"},
        {"{\"command\":\"a\",\"maxOutputBytes\":0}", "maxOutputBytes"},
        {"{\"command\":\"a\",\"encoding\":\"latin1\"}", "encoding"},
        {"{\"command\":\"a\",\"onCancel\":\"stop\"}", "onCancel"},
        {"{\"command\":\"a\",\"onDisconnect\":\"stop\"}", "onDisconnect"},
        {"{\"command\":\"a\",\"detachAfterMs\":-1}", "detachAfterMs"},
        {"{\"command\":\"a\",\"background\":\"yes\"}", "background"},
        {"{\"command\":\"a\",\"user\":1}", "user"},
    };
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        execute(bad[i].body);
        expect(400, "VALIDATION_FAILED");
        assert_string_equal(text(&c, "/context/validationErrors/0/field"), bad[i].field);
    }
    assert_int_equal(fake.nexecs, 0);
}

static void an_execution_id_has_up_to_128_characters(void **state) {
    (void)state;
    char body[256];
    for (int n = 128; n <= 129; n++) {
        snprintf(body, sizeof body, "{\"command\":\"a\",\"executionId\":\"%0*d\"}", n, 1);
        execute(body);
        if (n == 128) fake_exit(fake_begin(fake_newest()), 0, 0);
        assert_int_equal(c.res.status, n == 128 ? 200 : 400);
    }
}

static void errors_of_the_page(void **state) {
    (void)state;
    execute("{\"command\":\"true\",\"env\":{\"1bad\":\"x\"}}");
    expect(400, "VALIDATION_FAILED");
    assert_string_equal(text(&c, "/context/validationErrors/0/field"), "env.1bad");
    execute("{\"command\":\"echo x\",\"sessionId\":\"  \"}");
    expect(500, "COMMAND_EXECUTION_ERROR");
    assert_string_equal(text(&c, "/context/stderr"), "sessionId must not be empty or whitespace");
    stream("{\"command\":\"echo x\",\"sessionId\":\" \"}");
    expect(500, "STREAM_START_ERROR");
    stream("{\"command\":\"\"}");
    expect(400, "INVALID_COMMAND");
    assert_string_equal(text(&c, "/message"), "Invalid command: empty command provided");
    assert_int_equal(yyjson_obj_size(at(&c, "/context")), 0);
    ask(&c, CP_POST, "/api/process/start", "{\"command\":\"  \"}");
    expect(400, "INVALID_COMMAND");
    execute("{\"command\":\"a\",\"limits\":{\"memoryMb\":1}}");
    expect(501, "NOT_SUPPORTED");
    assert_string_equal(text(&c, "/context/validationErrors/0/field"), "limits");
    execute("{\"command\":\"a\",\"isolation\":\"strict\"}");
    expect(501, "NOT_SUPPORTED");
    cp_fail(&fake.refuse, CP_E_EXECUTION_CONFLICT, "other");
    execute("{\"command\":\"a\",\"executionId\":\"e\"}");
    expect(409, "EXECUTION_CONFLICT");
}

static void session_from(const char *target, const char *body, const cp_header *h, size_t n, const char *want) {
    ask_with(&c, CP_POST, target, body, (ask_opts){.headers = h, .nheaders = n});
    assert_string_equal(fake.last_session, want);
    fake_exit(fake_begin(fake_newest()), 0, 0);
    const char *given = strcmp(want, "default") == 0 ? "(none)" : want;
    assert_string_equal(text(&c, "/sessionId"), given);
}

static void where_the_session_comes_from(void **state) {
    (void)state;
    const cp_header h[] = {{CP_STR("Authorization"), CP_STR("Bearer b")}, {CP_STR("X-Session-Id"), CP_STR("x")}};
    const char *plain = "{\"command\":\"a\"}";
    session_from("/api/execute?session=q&sessionId=r", "{\"command\":\"a\",\"sessionId\":\"body\"}", h, 2, "body");
    session_from("/api/execute?session=q&sessionId=r", plain, h, 2, "b");
    session_from("/api/execute?session=q&sessionId=r", plain, h + 1, 1, "x");
    session_from("/api/execute?session=q%201&sessionId=r", plain, NULL, 0, "q 1");
    session_from("/exec?sessionId=r", plain, NULL, 0, "r");
    session_from("/api/execute", plain, NULL, 0, "default");
    session_from("/api/execute", "{\"command\":\"a\",\"sessionId\":\"\"}", NULL, 0, "default");
    fake.config.has_token = true; /* then Authorization authenticates and never names a session */
    session_from("/api/execute", plain, h, 2, "x");
}

static void what_the_service_is_asked_for(void **state) {
    (void)state;
    execute("{\"args\":[\"/bin/echo\",\"a "
            "b\"],\"sessionId\":\"__DISABLE_SESSION__\",\"stdin\":\"aGk=\",\"stdinEncoding\":\"base64\","
            "\"env\":{\"N\":null,\"A\":\"1\"},\"timeoutMs\":5,\"maxOutputBytes\":9}");
    assert_true(fake.last.sessionless);
    assert_int_equal(fake.last.nargs, 2);
    assert_int_equal(fake.last.nenv, 1);
    assert_string_equal(fake.last_env, "A=1");
    assert_string_equal(fake.last_stdin, "hi");
    assert_int_equal(fake.last.timeout_ms, 5);
    assert_int_equal(fake.last.max_output, 9);
    assert_string_equal(fake_newest()->command, "/bin/echo a b");
    fake_exit(fake_begin(fake_newest()), 0, 0);
    execute("{\"command\":\"cat\",\"stdin\":\"open\"}");
    assert_true(fake.last.stdin_open);
    cp_err err;
    assert_int_equal(c.reply.on_stdin(&c.reply, CP_STR("more"), true, NULL, &err), 0);
    assert_string_equal(fake_newest()->impl->stdin_got, "more");
    assert_true(fake_newest()->impl->stdin_eof);
    fake_exit(fake_begin(fake_newest()), 0, 0);
    execute("{\"command\":\"cat\",\"stdin\":\"open\",\"stdinEncoding\":\"text\"}");
    assert_false(fake.last.stdin_open);
    assert_string_equal(fake_newest() ? fake.last_stdin : "", "open");
    fake_exit(fake_begin(fake_newest()), 0, 0);
}

static void fingerprint_of(const char *body, uint8_t out[32]) {
    execute(body);
    memcpy(out, fake.last.fingerprint, 32);
    fake_exit(fake_begin(fake_newest()), 0, 0);
}

static void fingerprints(void **state) {
    (void)state;
    uint8_t a[32], b[32];
    fingerprint_of("{\"command\":\"a\",\"env\":{\"A\":\"1\",\"B\":\"2\"}}", a);
    fingerprint_of("{\"encoding\":\"base64\",\"env\":{\"B\":\"2\",\"A\":\"1\"},\"command\":\"a\"}", b);
    assert_memory_equal(a, b, 32);
    static const char *const others[] = {
        "{\"command\":\"b\",\"env\":{\"A\":\"1\",\"B\":\"2\"}}",
        "{\"command\":\"a\",\"env\":{\"A\":\"1B\",\"B\":\"2\"}}",
        "{\"command\":\"a\"}",
        "{\"args\":[\"a\"],\"env\":{\"A\":\"1\",\"B\":\"2\"}}",
        "{\"command\":\"a\",\"cwd\":\"/\",\"env\":{\"A\":\"1\",\"B\":\"2\"}}",
        "{\"command\":\"a\",\"timeoutMs\":1,\"env\":{\"A\":\"1\",\"B\":\"2\"}}",
    };
    for (size_t i = 0; i < CP_COUNT(others); i++) {
        fingerprint_of(others[i], b);
        assert_memory_not_equal(a, b, 32);
    }
}

/* One that is kept by its digest. */
static void fingerprints_of_long_commands(void **state) {
    (void)state;
    uint8_t a[32], b[32];
    cp_autobuf cp_buf body = {0};
    cp_buf_addz(&body, "{\"command\":\"");
    for (int i = 0; i < 70000; i++) cp_buf_addc(&body, 'x');
    size_t last = body.n - 1;
    cp_buf_addz(&body, "\"}");
    fingerprint_of(cp_buf_z(&body), a);
    fingerprint_of(cp_buf_z(&body), b);
    assert_memory_equal(a, b, 32);
    body.p[last] = 'y';
    fingerprint_of(cp_buf_z(&body), b);
    assert_memory_not_equal(a, b, 32);
    body.p[last] = 'x';
    body.n--;
    cp_buf_addz(&body, ",\"cwd\":\"/\"}");
    fingerprint_of(cp_buf_z(&body), b);
    assert_memory_not_equal(a, b, 32);
}

/* ---- results ---- */

static void a_result_in_a_session(void **state) {
    (void)state;
    execute("{\"command\":\"x\",\"sessionId\":\"s\"}");
    cp_exec *e = fake_begin(fake_newest());
    fake_print(e, 0, "a\0b\n\n", 5);
    fake_say(e, 1, "err");
    e->max_rss = 4096, e->cpu_us = 2500;
    assert_int_equal(c.res.status, 0);
    fake_exit(e, 7, 0);
    expect(200, NULL);
    assert_false(yyjson_get_bool(at(&c, "/success")));
    assert_int_equal(num(&c, "/exitCode"), 7);
    assert_string_equal(text(&c, "/stdout"), "ab\n"); /* one newline less, no NUL */
    assert_string_equal(text(&c, "/stderr"), "err");
    assert_string_equal(text(&c, "/command"), "x");
    assert_int_equal(num(&c, "/duration"), 0);
    assert_string_equal(text(&c, "/sessionId"), "s");
    assert_string_equal(text(&c, "/executionId"), "x0");
    assert_string_equal(text(&c, "/outcome"), "exited");
    assert_int_equal(num(&c, "/stdoutBytes"), 5);
    assert_true(yyjson_get_bool(at(&c, "/lossy")));
    assert_int_equal(num(&c, "/usage/maxRssBytes"), 4096);
    assert_int_equal(num(&c, "/usage/cpuMs"), 2);
}

static void a_sessionless_result_is_verbatim(void **state) {
    (void)state;
    execute("{\"command\":\"x\",\"sessionId\":\"__DISABLE_SESSION__\"}");
    cp_exec *e = fake_begin(fake_newest());
    fake_print(e, 0, "a\0\xff\n", 4);
    fake_exit(e, 0, 9);
    assert_int_equal(yyjson_get_len(at(&c, "/stdout")), 6);
    assert_memory_equal(text(&c, "/stdout"), "a\0\xef\xbf\xbd\n", 6);
    assert_int_equal(num(&c, "/exitCode"), 137);
    assert_string_equal(text(&c, "/signal"), "SIGKILL");
    assert_string_equal(text(&c, "/sessionId"), "__DISABLE_SESSION__");
    assert_true(yyjson_get_bool(at(&c, "/lossy")));
}

static void base64_is_exact(void **state) {
    (void)state;
    execute("{\"command\":\"x\",\"encoding\":\"base64\"}");
    cp_exec *e = fake_begin(fake_newest());
    fake_print(e, 0, "\0\xff\n", 3);
    fake_exit(e, 0, 0);
    assert_string_equal(text(&c, "/stdout"), "AP8K");
    assert_false(yyjson_get_bool(at(&c, "/lossy")));
}

static void a_long_result_comes_whole(void **state) {
    (void)state;
    execute("{\"command\":\"x\"}");
    cp_exec *e = fake_begin(fake_newest());
    cp_autobuf cp_buf big = {0};
    for (int i = 0; i < 400000; i++) cp_buf_addf(&big, "%d\n", i);
    fake_print(e, 0, big.p, big.n);
    fake_exit(e, 0, 0);
    while (!c.res.status) cp_loop_once(fake.loop, 1000);
    assert_int_equal(yyjson_get_len(at(&c, "/stdout")), big.n - 1);
    assert_memory_equal(text(&c, "/stdout"), big.p, big.n - 1);
}

static void ends_that_are_errors(void **state) {
    (void)state;
    execute("{\"command\":\"exit 5\",\"sessionId\":\"ex\"}");
    cp_exec *e = fake_begin(fake_newest());
    fake_say(e, 0, "bye\n");
    e->session_ended = true;
    fake_exit(e, 5, 0);
    expect(410, "SESSION_TERMINATED");
    assert_string_equal(text(&c, "/message"), "Session 'ex' shell exited (exit code: 5)");
    assert_string_equal(text(&c, "/context/sessionId"), "ex");
    assert_int_equal(num(&c, "/context/exitCode"), 5);
    assert_string_equal(text(&c, "/context/stdout"), "bye");

    execute("{\"command\":\"a\",\"sessionId\":\"d\"}");
    e = fake_begin(fake_newest());
    e->session_destroyed = true;
    fake_exit(e, -1, 0);
    expect(410, "SESSION_DESTROYED");

    execute("{\"command\":\"a\",\"timeoutMs\":300}");
    e = fake_begin(fake_newest());
    fake_say(e, 0, "partial");
    e->timed_out = true, e->outcome = CP_OUTCOME_timeout;
    fake_exit(e, 0, 15);
    expect(500, "COMMAND_EXECUTION_ERROR");
    assert_non_null(strstr(text(&c, "/message"), "Command timeout after 300ms"));
    assert_true(yyjson_get_bool(at(&c, "/context/timedOut")));
    assert_string_equal(text(&c, "/context/stdout"), "partial");

    execute("{\"command\":\"a\"}");
    e = fake_begin(fake_newest());
    e->outcome = CP_OUTCOME_lost;
    fake_exit(e, -1, 0);
    expect(500, "EXECUTION_LOST");

    execute("{\"args\":[\"/nope\"]}");
    fake_fail(fake_newest(), CP_E_COMMAND_NOT_FOUND, ENOENT);
    expect(404, "COMMAND_NOT_FOUND");
    assert_string_equal(text(&c, "/context/errno"), "ENOENT");
}

static void a_sessionless_timeout_is_a_result(void **state) {
    (void)state;
    execute("{\"command\":\"a\",\"timeoutMs\":300,\"sessionId\":\"__DISABLE_SESSION__\"}");
    cp_exec *e = fake_begin(fake_newest());
    e->timed_out = true, e->outcome = CP_OUTCOME_timeout;
    fake_exit(e, 124, 0);
    expect(200, NULL);
    assert_int_equal(num(&c, "/exitCode"), 124);
    assert_true(yyjson_get_bool(at(&c, "/timedOut")));
}

/* ---- cancel, detach ---- */

static void cancel_ends_the_tree_and_says_so(void **state) {
    (void)state;
    execute("{\"command\":\"sleep 1000\"}");
    cp_exec *e = fake_begin(fake_newest());
    assert_true(c.reply.on_cancel(&c.reply, CP_END_CANCELLED, false));
    assert_int_equal(e->impl->killed_with, SIGTERM);
    fake_exit(e, 0, 15);
    assert_int_equal(c.res.status, 0); /* not before it is known who is left */
    pid_t killed[] = {41, 42};
    fake_killed(e, &(cp_kill_result){killed, 2, NULL, 0});
    expect(499, "CANCELLED");
    assert_int_equal(num(&c, "/context/killed/1"), 42);
    assert_int_equal(yyjson_arr_size(at(&c, "/context/survivors")), 0);
    assert_string_equal(text(&c, "/context/outcome"), "cancelled");
}

static void cancel_may_detach(void **state) {
    (void)state;
    execute("{\"command\":\"a\",\"onCancel\":\"detach\"}");
    cp_exec *e = fake_begin(fake_newest());
    assert_false(c.reply.on_cancel(&c.reply, CP_END_CANCELLED, false));
    assert_int_equal(e->impl->killed_with, 0);
    fake_exit(e, 0, 0);
    assert_int_equal(c.res.status, 0);
    execute("{\"command\":\"a\",\"onCancel\":\"detach\"}");
    e = fake_begin(fake_newest());
    assert_true(c.reply.on_cancel(&c.reply, CP_END_CANCELLED, true)); /* kill forces it */
    assert_int_equal(e->impl->killed_with, SIGTERM);
    fake_exit(e, 0, 15);
    fake_killed(e, &(cp_kill_result){0});
    expect(499, "CANCELLED");
}

static void a_lost_connection_follows_its_policy(void **state) {
    (void)state;
    execute("{\"command\":\"a\"}");
    cp_exec *e = fake_begin(fake_newest());
    assert_false(c.reply.on_cancel(&c.reply, CP_END_DISCONNECTED, false));
    assert_int_equal(e->impl->killed_with, 0);
    fake_exit(e, 0, 0);
    execute("{\"command\":\"a\",\"onDisconnect\":\"kill\"}");
    e = fake_begin(fake_newest());
    assert_false(c.reply.on_cancel(&c.reply, CP_END_DISCONNECTED, false));
    assert_int_equal(e->impl->killed_with, SIGTERM);
    fake_exit(e, 0, 15);
    fake_killed(e, &(cp_kill_result){0});
}

static void cancel_in_the_last_moment_gives_the_result(void **state) {
    (void)state;
    execute("{\"command\":\"a\"}");
    cp_exec *e = fake_begin(fake_newest());
    e->impl->exited = true; /* reaped, not drained */
    assert_true(c.reply.on_cancel(&c.reply, CP_END_CANCELLED, false));
    fake_exit(e, 3, 0);
    expect(200, NULL);
    assert_int_equal(num(&c, "/exitCode"), 3);
}

static void detach_and_ask_again(void **state) {
    (void)state;
    execute("{\"command\":\"a\",\"executionId\":\"job-1\",\"detachAfterMs\":0}");
    cp_exec *e = fake_begin(fake_newest());
    while (!c.res.status) cp_loop_once(fake.loop, 100);
    expect(202, NULL);
    assert_true(yyjson_get_bool(at(&c, "/detached")));
    assert_string_equal(text(&c, "/executionId"), "job-1");
    assert_true(cp_str_is(cp_buf_str(&c.res.headers), "Location: /api/execution/job-1\r\n"));
    ask(&c, CP_GET, "/api/execution/job-1", NULL);
    expect(202, NULL);
    ask(&c, CP_GET, "/api/execution/job-1?waitMs=100000", NULL);
    fake_say(e, 0, "done\n");
    fake_exit(e, 0, 0);
    expect(200, NULL);
    assert_string_equal(text(&c, "/stdout"), "done");
    ask(&c, CP_GET, "/api/execution/job-1?encoding=base64", NULL);
    assert_string_equal(text(&c, "/stdout"), "ZG9uZQo=");
    ask(&c, CP_GET, "/api/execution/none", NULL);
    expect(404, "EXECUTION_NOT_FOUND");
    ask(&c, CP_GET, "/api/execution/job-1?wait=1", NULL);
    expect(400, "VALIDATION_FAILED");
    assert_string_equal(text(&c, "/context/validationErrors/0/field"), "wait");
}

static void respond_async(void **state) {
    (void)state;
    ask_with(&c, CP_POST, "/api/execute", "{\"command\":\"a\"}", (ask_opts){.respond_async = true});
    expect(202, NULL);
    assert_string_equal(text(&c, "/executionId"), "x0");
    fake_exit(fake_begin(fake_newest()), 0, 0);
}

static void background_is_a_process(void **state) {
    (void)state;
    execute("{\"command\":\"a\",\"background\":true}");
    assert_int_equal(fake.last.kind, CP_EXEC_PROCESS);
    cp_exec *e = fake_begin(fake_newest());
    expect(200, NULL);
    assert_string_equal(text(&c, "/processId"), "p0");
    assert_int_equal(num(&c, "/pid"), getpid());
    fake_exit(e, 0, 0);
}

/* Anybody who knows the id ends it; who waits for the result is told that it was cancelled. */
static void an_execution_is_ended_by_its_id(void **state) {
    (void)state;
    pid_t dead[] = {7, 8}, alive[] = {9};
    client other = {.reply = {.ops = &client_ops}};
    execute("{\"command\":\"a\",\"executionId\":\"job\"}");
    cp_exec *e = fake_begin(fake_newest());
    ask(&other, CP_DELETE, "/api/execution/job?signal=INT&graceMs=5", NULL);
    assert_int_equal(other.res.status, 0);
    assert_int_equal(e->impl->killed_with, SIGINT);
    fake_exit(e, 0, SIGINT);
    assert_int_equal(c.res.status, 499);
    assert_string_equal(text(&c, "/code"), "CANCELLED");
    fake_killed(e, &(cp_kill_result){dead, 2, alive, 1});
    assert_int_equal(other.res.status, 200);
    assert_string_equal(text(&other, "/executionId"), "job");
    assert_int_equal(num(&other, "/killed/1"), 8);
    assert_int_equal(num(&other, "/survivors/0"), 9);
    assert_string_not_equal(text(&other, "/timestamp"), "(none)");
    ask(&other, CP_DELETE, "/api/execution/job", NULL);
    assert_int_equal(other.res.status, 404);
    assert_string_equal(text(&other, "/code"), "COMMAND_NOT_FOUND");
    assert_string_equal(text(&other, "/context/command"), "job");
    ask(&other, CP_DELETE, "/api/execution/none", NULL);
    assert_int_equal(other.res.status, 404);
    assert_string_equal(text(&other, "/code"), "EXECUTION_NOT_FOUND");
    ask(&other, CP_DELETE, "/api/execution/job?grace=5", NULL);
    assert_string_equal(text(&other, "/context/validationErrors/0/field"), "grace");
    client_reset(&other);
}

/* ---- logs by offset ---- */

static void logs_by_offset(void **state) {
    (void)state;
    execute("{\"command\":\"a\",\"executionId\":\"l\"}");
    cp_exec *e = fake_begin(fake_newest());
    client_reset(&c), c.reply.ops = &client_ops;
    client other = {.reply = {.ops = &client_ops}};
    fake_say(e, 0, "ab\xe2\x82");
    ask(&other, CP_GET, "/api/execution/l/logs?from=1", NULL);
    assert_string_equal(text(&other, "/data"), "b"); /* the rest of the character may come */
    assert_int_equal(num(&other, "/next"), 2);
    assert_int_equal(num(&other, "/total"), 4);
    assert_false(yyjson_get_bool(at(&other, "/ended")));
    fake_say(e, 0, "\xac!");
    ask(&other, CP_GET, "/api/execution/l/logs?from=2", NULL);
    assert_string_equal(text(&other, "/data"), "\xe2\x82\xac!");
    ask(&other, CP_GET, "/api/execution/l/logs?from=106&encoding=base64", NULL);
    assert_string_equal(text(&other, "/data"), "");
    assert_int_equal(num(&other, "/next"), 6);
    ask(&other, CP_GET, "/api/execution/l/logs?from=-1", NULL);
    assert_int_equal(other.res.status, 400);
    ask(&other, CP_GET, "/api/execution/l/logs?stream=both", NULL);
    assert_string_equal(text(&other, "/context/validationErrors/0/field"), "stream");
    fake_exit(e, 0, 0);
    client_reset(&other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(bad_fields_are_named),
        TEST(an_execution_id_has_up_to_128_characters),
        TEST(errors_of_the_page),
        TEST(where_the_session_comes_from),
        TEST(what_the_service_is_asked_for),
        TEST(fingerprints),
        TEST(fingerprints_of_long_commands),
        TEST(a_result_in_a_session),
        TEST(a_sessionless_result_is_verbatim),
        TEST(base64_is_exact),
        TEST(a_long_result_comes_whole),
        TEST(ends_that_are_errors),
        TEST(a_sessionless_timeout_is_a_result),
        TEST(cancel_ends_the_tree_and_says_so),
        TEST(cancel_may_detach),
        TEST(a_lost_connection_follows_its_policy),
        TEST(cancel_in_the_last_moment_gives_the_result),
        TEST(detach_and_ask_again),
        TEST(respond_async),
        TEST(an_execution_is_ended_by_its_id),
        TEST(background_is_a_process),
        TEST(logs_by_offset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
