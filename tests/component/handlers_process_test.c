/* /api/process over scripted services. */
#include <netinet/in.h>
#include <sys/socket.h>

#include "handlers_fake.h"

static void get(const char *target) { ask(&c, CP_GET, target, NULL); }
static void post(const char *target, const char *body) { ask(&c, CP_POST, target, body); }

static cp_exec *start(const char *body) {
    post("/api/process/start", body);
    return fake_begin(fake_newest());
}

static void start_and_look(void **state) {
    (void)state;
    cp_exec *e = start("{\"command\":\"sleep 30\",\"processId\":\"web\",\"sessionId\":\"s\",\"encoding\":\"latin1\"}");
    expect(200, NULL);
    assert_string_equal(text(&c, "/processId"), "web");
    assert_int_equal(num(&c, "/pid"), getpid());
    assert_string_equal(text(&c, "/command"), "sleep 30");
    get("/api/process/web");
    assert_string_equal(text(&c, "/process/id"), "web");
    assert_string_equal(text(&c, "/process/status"), "running");
    assert_int_equal(strlen(text(&c, "/process/startTime")), 24);
    assert_null(at(&c, "/process/exitCode"));
    assert_null(at(&c, "/process/endTime"));
    assert_string_equal(text(&c, "/process/sessionId"), "s");
    fake_say(e, 0, "12345");
    fake_exit(e, 0, 15);
    get("/api/process/web");
    assert_string_equal(text(&c, "/process/status"), "killed");
    assert_int_equal(num(&c, "/process/exitCode"), 143);
    assert_string_equal(text(&c, "/process/signal"), "SIGTERM");
    assert_int_equal(num(&c, "/process/offsets/stdout"), 5);
    assert_int_equal(strlen(text(&c, "/process/endTime")), 24);
}

static void unknown_ids(void **state) {
    (void)state;
    static const struct {
        cp_method m;
        const char *path, *body;
    } all[] = {
        {CP_GET, "/api/process/none", NULL},        {CP_DELETE, "/api/process/none", NULL},
        {CP_GET, "/api/process/none/logs", NULL},   {CP_GET, "/api/process/none/stream", NULL},
        {CP_GET, "/api/process/none/wait", NULL},   {CP_POST, "/api/process/none/signal", "{\"signal\":1}"},
        {CP_POST, "/api/process/none/stdin", "{}"},
    };
    for (size_t i = 0; i < CP_COUNT(all); i++) {
        ask(&c, all[i].m, all[i].path, all[i].body);
        expect(404, "PROCESS_NOT_FOUND");
        assert_string_equal(text(&c, "/message"), "Process none not found");
        assert_string_equal(text(&c, "/context/processId"), "none");
    }
}

/* A record of it would not outlive the server. */
static void what_we_lack_is_an_error(void **state) {
    (void)state;
    post("/api/process/start", "{\"args\":[\"/bin/true\"]}");
    fake_fail(fake_newest(), CP_E_NO_SPACE, ENOSPC);
    expect(500, "NO_SPACE");
    post("/api/process/start", "{\"args\":[\"/bin/true\"]}");
    fake_fail(fake_newest(), CP_E_LIMIT_EXCEEDED, 0);
    expect(429, "LIMIT_EXCEEDED");
}

static void one_that_ended_before_it_began_is_an_error(void **state) {
    (void)state;
    for (int lost = 0; lost < 2; lost++) {
        post("/api/process/start", "{\"command\":\"a\"}");
        cp_exec *e = fake_newest();
        e->state = CP_STATE_ENDED;
        e->cancelled = !lost;
        e->outcome = lost ? CP_OUTCOME_lost : CP_OUTCOME_cancelled;
        e->impl->exited = true;
        fake_tell(e, true);
        if (lost) expect(500, "EXECUTION_LOST");
        else expect(499, "CANCELLED");
    }
}

static void a_program_that_is_not_there_is_a_record(void **state) {
    (void)state;
    post("/api/process/start", "{\"args\":[\"/nope\"]}");
    fake_fail(fake_newest(), CP_E_COMMAND_NOT_FOUND, ENOENT);
    expect(200, NULL);
    assert_string_equal(text(&c, "/processId"), "p0");
    assert_string_equal(text(&c, "/status"), "failed");
    assert_string_equal(text(&c, "/errno"), "ENOENT");
    get("/api/process/p0");
    assert_string_equal(text(&c, "/process/status"), "failed");
    assert_string_equal(text(&c, "/process/errno"), "ENOENT");
    get("/api/process/p0/logs");
    assert_string_equal(text(&c, "/stdout"), "");
    get("/api/process/p0/stream");
    assert_string_equal(pull(&c), "process_info");
    assert_string_equal(pull(&c), "exit");
    assert_null(at(&c, "/exitCode"));
    assert_string_equal(text(&c, "/errno"), "ENOENT");
    /* shell text that cannot start is an ordinary error */
    post("/api/process/start", "{\"command\":\"x\",\"cwd\":\"/nope\"}");
    fake_fail(fake_newest(), CP_E_COMMAND_EXECUTION_ERROR, ENOENT);
    expect(500, "STREAM_START_ERROR");
}

static void list_and_filters(void **state) {
    (void)state;
    cp_exec *a = start("{\"command\":\"a\",\"processId\":\"a\"}");
    cp_exec *b = start("{\"command\":\"b\",\"processId\":\"b\",\"sessionId\":\"s\"}");
    post("/api/execute", "{\"command\":\"not listed\"}");
    fake_exit(fake_begin(fake_newest()), 0, 0);
    fake_exit(b, 3, 0);
    get("/api/process/list");
    assert_int_equal(yyjson_arr_size(at(&c, "/processes")), 2);
    assert_string_equal(text(&c, "/processes/0/id"), "a");
    assert_int_equal(num(&c, "/processes/1/exitCode"), 3);
    static const struct {
        const char *query, *only;
    } cases[] = {
        {"status=running", "a"}, {"status=failed", "b"}, {"sessionId=s", "b"}, {"limit=1", "a"}, {"after=a", "b"}};
    for (size_t i = 0; i < CP_COUNT(cases); i++) {
        char target[64];
        snprintf(target, sizeof target, "/api/process/list?%s", cases[i].query);
        get(target);
        assert_int_equal(yyjson_arr_size(at(&c, "/processes")), 1);
        assert_string_equal(text(&c, "/processes/0/id"), cases[i].only);
    }
    get("/api/process/list?limit=0");
    assert_int_equal(yyjson_arr_size(at(&c, "/processes")), 0);
    get("/api/process/list?limit=x");
    expect(400, "VALIDATION_FAILED");
    get("/api/process/list?after=zz");
    assert_string_equal(text(&c, "/context/validationErrors/0/field"), "after");
    fake_exit(a, 0, 0);
}

static void delete_answers_when_it_has_ended(void **state) {
    (void)state;
    cp_exec *e = start("{\"command\":\"a\",\"processId\":\"a\"}");
    ask(&c, CP_DELETE, "/api/process/a?signal=INT&graceMs=10", NULL);
    assert_int_equal(e->impl->killed_with, SIGINT);
    pid_t pids[] = {7, 8};
    fake_killed(e, &(cp_kill_result){pids, 2, NULL, 0});
    assert_int_equal(c.res.status, 0); /* gone, but its output is not drained */
    fake_exit(e, 0, 2);
    expect(200, NULL);
    assert_string_equal(text(&c, "/processId"), "a");
    assert_int_equal(num(&c, "/killed/0"), 7);
    assert_int_equal(yyjson_arr_size(at(&c, "/survivors")), 0);
    ask(&c, CP_DELETE, "/api/process/a", NULL);
    expect(404, "COMMAND_NOT_FOUND");
    assert_string_equal(text(&c, "/message"), "Command 'a' not found or already completed in session 'default'");
    assert_string_equal(text(&c, "/context/command"), "a");
}

static void survivors_do_not_keep_delete_waiting(void **state) {
    (void)state;
    cp_exec *e = start("{\"command\":\"a\",\"processId\":\"a\"}");
    ask(&c, CP_DELETE, "/api/process/a?signal=NOPE", NULL);
    assert_string_equal(text(&c, "/context/validationErrors/0/field"), "signal");
    ask(&c, CP_DELETE, "/api/process/a", NULL);
    pid_t left[] = {9};
    fake_killed(e, &(cp_kill_result){NULL, 0, left, 1});
    expect(200, NULL);
    assert_int_equal(num(&c, "/survivors/0"), 9);
    fake_exit(e, 0, 9);
}

static void kill_all_counts(void **state) {
    (void)state;
    cp_exec *a = start("{\"command\":\"a\"}"), *b = start("{\"command\":\"b\"}");
    fake_exit(start("{\"command\":\"over\"}"), 0, 0);
    ask(&c, CP_DELETE, "/api/process/kill-all", NULL);
    fake_exit(a, 0, 15);
    fake_killed(a, &(cp_kill_result){0});
    assert_int_equal(c.res.status, 0);
    fake_exit(b, 0, 15);
    fake_killed(b, &(cp_kill_result){0});
    expect(200, NULL);
    assert_int_equal(num(&c, "/cleanedCount"), 2);
    ask(&c, CP_DELETE, "/api/process/kill-all", NULL);
    assert_int_equal(num(&c, "/cleanedCount"), 0);
}

static void logs(void **state) {
    (void)state;
    cp_exec *e = start("{\"command\":\"a\",\"processId\":\"a\"}");
    fake_say(e, 0, "out\n\n");
    fake_say(e, 1, "err\n");
    get("/api/process/a/logs");
    assert_string_equal(text(&c, "/processId"), "a");
    assert_string_equal(text(&c, "/stdout"), "out\n\n"); /* nothing is taken off */
    assert_string_equal(text(&c, "/stderr"), "err\n");
    get("/api/process/a/logs?stream=stderr&from=1&limit=2");
    assert_string_equal(text(&c, "/data"), "rr");
    assert_int_equal(num(&c, "/next"), 3);
    get("/api/process/a/logs?from=0&lines=3");
    assert_string_equal(text(&c, "/context/validationErrors/0/field"), "lines");
    e->pid = 0x3ffffff; /* gone, but not drained: what it printed last must not be missed */
    get("/api/process/a/logs");
    assert_int_equal(c.res.status, 0);
    fake_say(e, 0, "late\n");
    fake_exit(e, 0, 0);
    assert_string_equal(text(&c, "/stdout"), "out\n\nlate\n");
}

static void a_process_stream(void **state) {
    (void)state;
    cp_exec *e = start("{\"command\":\"a\",\"processId\":\"a\"}");
    fake_say(e, 0, "r1\n");
    get("/api/process/a/stream");
    assert_string_equal(pull(&c), "process_info");
    assert_string_equal(text(&c, "/processId"), "a");
    assert_string_equal(text(&c, "/status"), "running");
    assert_string_equal(pull(&c), "stdout");
    assert_string_equal(text(&c, "/data"), "r1\n");
    assert_string_equal(text(&c, "/processId"), "a");
    assert_string_equal(pull(&c), "WAIT");
    fake_exit(e, 5, 0);
    assert_string_equal(pull(&c), "exit");
    assert_int_equal(num(&c, "/exitCode"), 5);
    assert_string_equal(text(&c, "/data"), "Process failed with exit code 5");
    assert_string_equal(pull(&c), "END");
    get("/api/process/a/stream"); /* again, of an ended one */
    assert_string_equal(pull(&c), "process_info");
    assert_string_equal(text(&c, "/status"), "failed");
    assert_string_equal(pull(&c), "stdout");
    assert_string_equal(pull(&c), "exit");
}

static void signals_and_stdin(void **state) {
    (void)state;
    cp_exec *e = start("{\"command\":\"a\",\"processId\":\"a\"}");
    post("/api/process/a/signal", "{\"signal\":\"SIGUSR1\",\"tree\":true}");
    expect(200, NULL);
    assert_int_equal(e->impl->killed_with, SIGUSR1);
    post("/api/process/a/signal", "{\"signal\":1}");
    assert_int_equal(e->impl->killed_with, SIGHUP);
    static const char *const bad[] = {"{}", "{\"signal\":0}", "{\"signal\":\"NOPE\"}", "{\"signal\":4000}"};
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        post("/api/process/a/signal", bad[i]);
        assert_string_equal(text(&c, "/context/validationErrors/0/field"), "signal");
    }
    post("/api/process/a/signal", "{\"signal\":1,\"trees\":true}");
    assert_string_equal(text(&c, "/context/validationErrors/0/field"), "trees");
    post("/api/process/a/stdin", "{\"data\":\"aGk=\",\"encoding\":\"base64\"}");
    assert_string_equal(e->impl->stdin_got, "hi");
    post("/api/process/a/stdin", "{\"eof\":true}");
    assert_true(e->impl->stdin_eof);
    post("/api/process/a/stdin", "{}");
    assert_string_equal(text(&c, "/context/validationErrors/0/field"), "data");
    post("/api/process/a/stdin", "{\"data\":\"%\",\"encoding\":\"base64\"}");
    assert_string_equal(text(&c, "/context/validationErrors/0/field"), "data");
    fake_exit(e, 0, 0);
    post("/api/process/a/stdin", "{\"data\":\"x\"}");
    expect(409, "RESOURCE_BUSY");
}

/* ---- wait ---- */

static void wait_for_exit(void **state) {
    (void)state;
    cp_exec *e = start("{\"command\":\"a\",\"processId\":\"a\"}");
    get("/api/process/a/wait?timeoutMs=100000");
    assert_int_equal(c.res.status, 0);
    fake_exit(e, 3, 0);
    expect(200, NULL);
    assert_int_equal(num(&c, "/process/exitCode"), 3);
    get("/api/process/a/wait?for=exit");
    assert_int_equal(num(&c, "/process/exitCode"), 3);
}

static void wait_for_a_line(void **state) {
    (void)state;
    cp_exec *e = start("{\"command\":\"a\",\"processId\":\"a\"}");
    get("/api/process/a/wait?for=log&pattern=listening+on");
    fake_say(e, 1, "boot\nserver list");
    assert_int_equal(c.res.status, 0);
    fake_say(e, 1, "ening on 80\n");
    expect_soon(200, NULL);
    assert_string_equal(text(&c, "/stream"), "stderr");
    assert_int_equal(num(&c, "/offset"), 12);
    assert_string_equal(text(&c, "/match"), "listening on");
    get("/api/process/a/wait?for=log&pattern=%5Eserver.*%5B0-9%5D%2B%24&regex=1&stream=stderr"); /* ^server.*[0-9]+$ */
    expect_soon(200, NULL);
    assert_string_equal(text(&c, "/line"), "server listening on 80");
    get("/api/process/a/wait?for=log&pattern=boot&from=1");
    assert_int_equal(c.res.status, 0);
    fake_exit(e, 4, 0);
    expect_soon(500, "PROCESS_EXITED_BEFORE_READY");
    assert_int_equal(num(&c, "/context/exitCode"), 4);
    assert_string_equal(text(&c, "/context/stderr"), "boot\nserver listening on 80\n");
}

static void a_wait_that_is_too_long(void **state) {
    (void)state;
    cp_exec *e = start("{\"command\":\"a\",\"processId\":\"a\"}");
    get("/api/process/a/wait?for=log&pattern=x&timeoutMs=1");
    while (!c.res.status) cp_loop_once(fake.loop, 1000);
    expect(408, "PROCESS_READY_TIMEOUT");
    assert_int_equal(num(&c, "/context/timeoutMs"), 1);
    get("/api/process/a/wait");
    assert_false(c.reply.on_cancel(&c.reply, CP_END_DISCONNECTED, false));
    fake_exit(e, 0, 0);
    assert_int_equal(c.res.status, 0);
}

static void wait_for_a_port(void **state) {
    (void)state;
    cp_exec *e = start("{\"command\":\"a\",\"processId\":\"a\"}");
    cp_autofd int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof addr;
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, n), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &n), 0);
    char target[80];
    snprintf(target, sizeof target, "/api/process/a/wait?for=port&port=%d", ntohs(addr.sin_port));
    get(target);
    for (int i = 0; i < 5; i++) cp_loop_once(fake.loop, 100);
    assert_int_equal(c.res.status, 0); /* bound, not listening */
    assert_int_equal(listen(fd, 1), 0);
    while (!c.res.status) cp_loop_once(fake.loop, 1000);
    expect(200, NULL);
    assert_int_equal(num(&c, "/port"), ntohs(addr.sin_port));
    cp_close(&fd);
    get(target);
    assert_false(c.reply.on_cancel(&c.reply, CP_END_CANCELLED, false)); /* while a probe runs */
    for (int i = 0; i < 5; i++) cp_loop_once(fake.loop, 100);
    get(target);
    for (int i = 0; i < 5; i++) cp_loop_once(fake.loop, 20);
    fake_exit(e, 1, 0);
    while (!c.res.status) cp_loop_once(fake.loop, 1000);
    expect(500, "PROCESS_EXITED_BEFORE_READY");
}

static void bad_waits_name_the_field(void **state) {
    (void)state;
    cp_exec *e = start("{\"command\":\"a\",\"processId\":\"a\"}");
    static const struct {
        const char *query, *field;
    } bad[] = {
        {"for=door", "for"},
        {"for=log", "pattern"},
        {"for=log&pattern=(&regex=1", "pattern"},
        {"for=log&pattern=a&stream=x", "stream"},
        {"for=log&pattern=a&regex=yes", "regex"},
        {"for=log&pattern=a&from=-1", "from"},
        {"for=port", "port"},
        {"for=port&port=70000", "port"},
        {"timeoutMs=-1", "timeoutMs"},
        {"timeout=1", "timeout"},
    };
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        char target[80];
        snprintf(target, sizeof target, "/api/process/a/wait?%s", bad[i].query);
        get(target);
        expect(400, "VALIDATION_FAILED");
        assert_string_equal(text(&c, "/context/validationErrors/0/field"), bad[i].field);
    }
    fake_exit(e, 0, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(start_and_look),
        TEST(unknown_ids),
        TEST(a_program_that_is_not_there_is_a_record),
        TEST(what_we_lack_is_an_error),
        TEST(one_that_ended_before_it_began_is_an_error),
        TEST(list_and_filters),
        TEST(delete_answers_when_it_has_ended),
        TEST(survivors_do_not_keep_delete_waiting),
        TEST(kill_all_counts),
        TEST(logs),
        TEST(a_process_stream),
        TEST(signals_and_stdin),
        TEST(wait_for_exit),
        TEST(wait_for_a_line),
        TEST(a_wait_that_is_too_long),
        TEST(wait_for_a_port),
        TEST(bad_waits_name_the_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
