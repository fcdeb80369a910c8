/* execute, execute/stream and /api/execution over scripted services. */
#include "handlers_fake.h"

static client c = {.reply = {.ops = &client_ops}};

static void execute(const char *body) { ask(&c, CP_POST, "/api/execute", body); }
static void stream(const char *body) { ask(&c, CP_POST, "/api/execute/stream", body); }

static void expect(int status, const char *code) {
    assert_int_equal(c.res.status, status);
    if (code) assert_string_equal(text(&c, "/code"), code);
}

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
    expect(500, "COMMAND_EXECUTION_ERROR");
    assert_string_equal(text(&c, "/context/command"), "true");
    assert_string_equal(text(&c, "/context/stderr"), "Invalid environment variable name: 1bad");
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
    assert_int_equal(c.reply.on_stdin(&c.reply, CP_STR("more"), true, &err), 0);
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

/* ---- streams ---- */

static void a_stream_from_start_to_complete(void **state) {
    (void)state;
    stream("{\"command\":\"x y\"}");
    assert_null(c.src);
    cp_exec *e = fake_begin(fake_newest());
    assert_string_equal(pull(&c), "start");
    assert_string_equal(text(&c, "/command"), "x y");
    assert_int_equal(yyjson_obj_size(yyjson_doc_get_root(c.doc)), 3); /* exactly the page's fields */
    assert_string_equal(pull(&c), "WAIT");
    fake_say(e, 0, "one\n");
    fake_say(e, 1, "two\n");
    assert_true(c.wakes > 0);
    assert_string_equal(pull(&c), "stdout");
    assert_string_equal(text(&c, "/data"), "one\n");
    assert_int_equal(yyjson_obj_size(yyjson_doc_get_root(c.doc)), 3);
    assert_string_equal(c.ev.id, "");
    assert_string_equal(pull(&c), "stderr");
    assert_string_equal(pull(&c), "WAIT");
    fake_exit(e, 0, 0);
    assert_string_equal(pull(&c), "complete");
    assert_int_equal(num(&c, "/exitCode"), 0);
    assert_int_equal(yyjson_obj_size(yyjson_doc_get_root(c.doc)), 3);
    assert_string_equal(pull(&c), "END");
}

static void characters_are_not_cut(void **state) {
    (void)state;
    stream("{\"command\":\"x\"}");
    cp_exec *e = fake_begin(fake_newest());
    pull(&c);
    fake_print(e, 0, "a\xe2\x82", 3);
    assert_string_equal(pull(&c), "stdout");
    assert_string_equal(text(&c, "/data"), "a");
    assert_string_equal(pull(&c), "WAIT");
    fake_print(e, 0, "\xac\xf0\x9f", 3);
    assert_string_equal(pull(&c), "stdout");
    assert_string_equal(text(&c, "/data"), "\xe2\x82\xac");
    assert_string_equal(pull(&c), "WAIT");
    fake_exit(e, 1, 0);
    assert_string_equal(pull(&c), "stdout");
    assert_string_equal(text(&c, "/data"), "\xef\xbf\xbd"); /* what never became a character */
    assert_string_equal(pull(&c), "complete");
}

static void nothing_is_lost_and_both_get_their_turn(void **state) {
    (void)state;
    stream("{\"command\":\"x\"}");
    cp_exec *e = fake_begin(fake_newest());
    cp_buf sent[2] = {{0}}, got[2] = {{0}};
    for (int i = 0; i < 200000; i++) cp_buf_addf(&sent[i & 1], "%d\xe2\x82\xac\n", i);
    size_t at_[2] = {0};
    bool over = false;
    const char *type;
    pull(&c);
    while (strcmp(type = pull(&c), "complete") != 0) {
        if (type[0] == 's') {
            int k = strcmp(type, "stderr") == 0;
            assert_true(yyjson_get_len(at(&c, "/data")) <= 65536);
            cp_buf_add(&got[k], text(&c, "/data"), yyjson_get_len(at(&c, "/data")));
            continue;
        }
        for (int k = 0; k < 2; k++) {
            size_t n = sent[k].n - at_[k];
            ssize_t w = n ? write(e->impl->write_fd[k], sent[k].p + at_[k], n < 30001 ? n : 30001) : 0;
            if (w > 0) at_[k] += (size_t)w;
        }
        if (!over && at_[0] == sent[0].n && at_[1] == sent[1].n) over = true, fake_exit(e, 0, 0);
        fake_loop();
    }
    for (int k = 0; k < 2; k++) {
        assert_int_equal(got[k].n, sent[k].n);
        assert_memory_equal(got[k].p, sent[k].p, sent[k].n);
        cp_buf_free(&got[k]), cp_buf_free(&sent[k]);
    }
}

static void offsets_and_resume(void **state) {
    (void)state;
    stream("{\"command\":\"x\",\"from\":0,\"executionId\":\"r\"}");
    cp_exec *e = fake_begin(fake_newest());
    assert_string_equal(pull(&c), "start");
    assert_string_equal(text(&c, "/executionId"), "r");
    fake_say(e, 0, "hello");
    fake_say(e, 1, "!");
    assert_string_equal(pull(&c), "stdout");
    assert_int_equal(num(&c, "/offset"), 0);
    assert_string_equal(c.ev.id, "5-0");
    assert_string_equal(pull(&c), "stderr");
    assert_string_equal(c.ev.id, "5-1");
    const cp_header last = {CP_STR("Last-Event-ID"), CP_STR("2-1")};
    ask_with(&c, CP_GET, "/api/execution/r/stream?from=0", NULL, (ask_opts){.headers = &last, .nheaders = 1});
    assert_string_equal(pull(&c), "start");
    assert_string_equal(pull(&c), "stdout");
    assert_string_equal(text(&c, "/data"), "llo");
    assert_int_equal(num(&c, "/offset"), 2);
    assert_string_equal(pull(&c), "WAIT");
    fake_exit(e, 0, 15);
    assert_string_equal(pull(&c), "complete");
    assert_int_equal(num(&c, "/exitCode"), 143);
    assert_int_equal(num(&c, "/offsets/stdout"), 5);
    assert_string_equal(text(&c, "/signal"), "SIGTERM");
    static const char *const bad[] = {"-1", "1-", "x", "1-2-3", ""};
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        char target[64];
        snprintf(target, sizeof target, "/api/execution/r/stream?from=%s", bad[i]);
        ask(&c, CP_GET, target, NULL);
        expect(400, "VALIDATION_FAILED");
        assert_string_equal(text(&c, "/context/validationErrors/0/field"), "from");
    }
}

static void base64_pieces_can_be_joined(void **state) {
    (void)state;
    stream("{\"command\":\"x\",\"encoding\":\"base64\"}");
    cp_exec *e = fake_begin(fake_newest());
    char data[50000];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (char)(i * 7);
    fake_print(e, 0, data, sizeof data);
    fake_exit(e, 0, 0);
    cp_autobuf cp_buf joined = {0}, want = {0};
    cp_base64_encode(&want, data, sizeof data);
    pull(&c);
    while (strcmp(pull(&c), "stdout") == 0) cp_buf_addz(&joined, text(&c, "/data"));
    assert_true(cp_str_eq(cp_buf_str(&joined), cp_buf_str(&want)));
}

static void a_session_that_dies_leaves_no_exit_code(void **state) {
    (void)state;
    stream("{\"command\":\"x\"}");
    cp_exec *e = fake_begin(fake_newest());
    e->session_destroyed = true;
    fake_exit(e, 0, 9);
    pull(&c);
    assert_string_equal(pull(&c), "complete");
    assert_null(at(&c, "/exitCode"));
}

static void streams_detach_unless_told_otherwise(void **state) {
    (void)state;
    static const struct {
        const char *body;
        cp_end why;
        bool kill, dies;
    } cases[] = {
        {"{\"command\":\"x\"}", CP_END_CANCELLED, false, false},
        {"{\"command\":\"x\"}", CP_END_DISCONNECTED, false, false},
        {"{\"command\":\"x\"}", CP_END_CANCELLED, true, true},
        {"{\"command\":\"x\",\"onCancel\":\"kill\"}", CP_END_CANCELLED, false, true},
        {"{\"command\":\"x\",\"onCancel\":\"kill\"}", CP_END_DISCONNECTED, false, false},
        {"{\"command\":\"x\",\"onDisconnect\":\"kill\"}", CP_END_DISCONNECTED, false, true},
        {"{\"command\":\"x\",\"onDisconnect\":\"kill\"}", CP_END_SHUTDOWN, false, false},
    };
    for (size_t i = 0; i < CP_COUNT(cases); i++) {
        stream(cases[i].body);
        cp_exec *e = fake_begin(fake_newest());
        pull(&c);
        c.src->ops->close(c.src, cases[i].why, cases[i].kill);
        c.src = NULL;
        assert_int_equal(e->impl->killed_with, cases[i].dies ? SIGTERM : 0);
        fake_exit(e, 0, 0);
    }
}

static void a_stream_that_cannot_start_is_an_error(void **state) {
    (void)state;
    stream("{\"command\":\"x\",\"cwd\":\"/nope\"}");
    fake_fail(fake_newest(), CP_E_COMMAND_EXECUTION_ERROR, ENOENT);
    expect(500, "STREAM_START_ERROR");
    assert_string_equal(text(&c, "/context/errno"), "ENOENT");
    stream("{\"command\":\"x\"}");
    cp_exec *e = fake_newest();
    assert_false(c.reply.on_cancel(&c.reply, CP_END_CANCELLED, false)); /* before it has begun */
    fake_exit(fake_begin(e), 0, 0);
    assert_null(c.src);
}

static int teardown(void **state) {
    client_reset(&c);
    return fake_teardown(state);
}

#define T(f) cmocka_unit_test_setup_teardown(f, fake_setup, teardown)
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

int main(void) {
    const struct CMUnitTest tests[] = {
        T(bad_fields_are_named),
        T(an_execution_id_has_up_to_128_characters),
        T(errors_of_the_page),
        T(where_the_session_comes_from),
        T(what_the_service_is_asked_for),
        T(fingerprints),
        T(a_result_in_a_session),
        T(a_sessionless_result_is_verbatim),
        T(base64_is_exact),
        T(a_long_result_comes_whole),
        T(ends_that_are_errors),
        T(a_sessionless_timeout_is_a_result),
        T(cancel_ends_the_tree_and_says_so),
        T(cancel_may_detach),
        T(a_lost_connection_follows_its_policy),
        T(cancel_in_the_last_moment_gives_the_result),
        T(detach_and_ask_again),
        T(respond_async),
        T(an_execution_is_ended_by_its_id),
        T(background_is_a_process),
        T(logs_by_offset),
        T(a_stream_from_start_to_complete),
        T(characters_are_not_cut),
        T(nothing_is_lost_and_both_get_their_turn),
        T(offsets_and_resume),
        T(base64_pieces_can_be_joined),
        T(a_session_that_dies_leaves_no_exit_code),
        T(streams_detach_unless_told_otherwise),
        T(a_stream_that_cannot_start_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
