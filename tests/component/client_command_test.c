/* Commands that are ended, and commands that are fed. */
#include "component/client_fixture.h"

static const conflux_mode modes[] = {CONFLUX_WEBSOCKET, CONFLUX_HTTP, CONFLUX_AUTO};

/* ---- cancel ---- */

static void t_cancel(void **state) {
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        conflux_client *c = client_of(srv.url, modes[i]);
        outcome s = {0};
        conflux_error err;
        char body[300], name[32];
        snprintf(name, sizeof name, "alive-%zu", i);
        snprintf(body, sizeof body, "{\"command\":\"touch %s; sleep 1000; touch never-%zu\"}", in_dir(&srv, name), i);
        conflux_handlers h = {.on_event = see_event, .on_done = see_done, .arg = &s};
        snprintf(name, sizeof name, "cancelled-%zu", i);
        conflux_request rq = {.path = "/api/execute/stream", .body = body, .execution_id = name};
        conflux_call *call = conflux_start(c, &rq, &h, &err);
        snprintf(name, sizeof name, "alive-%zu", i);
        wait_until(exists(&srv, name) && atomic_load(&s.events) > 0);
        conflux_call_cancel(call, 1);
        wait_until(atomic_load(&s.done));
        assert_int_equal(s.err.kind, CONFLUX_E_CANCELLED);
        conflux_call_cancel(call, 1); /* over: nothing */
        conflux_response r;
        snprintf(name, sizeof name, "cancelled-%zu", i);
        assert_int_equal(conflux_resume(c, name, 0, &r, &err), 0); /* it has ended, and by our signal */
        const char *end = modes[i] == CONFLUX_HTTP ? "\"signal\":\"SIGTERM\"" : "\"outcome\":\"cancelled\"";
        if (!strstr(r.body, end)) fail_msg("%s", r.body);
        conflux_response_free(&r);
        conflux_call_free(call);
        conflux_client_free(c);
    }
}

/* A command that has no id of its own, or one that stands in the body or in the path, ends as well. */
static void t_cancel_without_an_id(void **state) {
    (void)state;
    for (size_t i = 0; i < 9; i++) {
        conflux_client *c = client_of(srv.url, modes[i % 3]);
        conflux_error err;
        conflux_event ev;
        char body[200], id[64] = "", path[64];
        if (i >= 3) snprintf(id, sizeof id, ",\"executionId\":\"in-the-body-%zu\"", i);
        snprintf(body, sizeof body, "{\"args\":[\"sh\",\"-c\",\"echo $$; exec sleep 1000\"]%s}", id);
        conflux_request rq = {.path = "/api/execute/stream", .body = body};
        conflux_stream *s = conflux_fetch_stream(c, &rq, &err);
        const char *pid = NULL;
        while (!pid && conflux_stream_next(s, &ev, &err) == 1)
            if (strstr(ev.data, "\"type\":\"stdout\"")) pid = strstr(ev.data, "\"data\":\"");
        assert_non_null(pid);
        pid_t running = (pid_t)strtol(pid + strlen("\"data\":\""), NULL, 10);
        assert_true(running > 1 && kill(running, 0) == 0);
        if (i >= 6) {
            conflux_stream_free(s);
            snprintf(path, sizeof path, "/api/execution/in-the-body-%zu/stream?from=0", i);
            s = conflux_fetch_stream(c, &(conflux_request){.path = path}, &err);
            assert_int_equal(conflux_stream_next(s, &ev, &err), 1);
        }
        conflux_stream_cancel(s, 1);
        wait_until(kill(running, 0) < 0);
        conflux_stream_free(s);
        conflux_client_free(c);
    }
}

/* What a command has written about itself; 0: nothing yet. */
static pid_t pid_in(const char *path) {
    char text[32] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    return n > 0 && text[n - 1] == '\n' ? (pid_t)strtol(text, NULL, 10) : 0;
}

/* The command of a buffered call ends with it, unless it has asked to be left alone: cancelled or too late. */
static void t_cancel_of_a_buffered_call(void **state) {
    (void)state;
    for (size_t i = 0, again = 0; i < 12; i += !again) {
        bool late = i / 3 % 2, detach = i / 6;
        conflux_client *c = client_of(srv.url, modes[i % 3]);
        outcome s = {0};
        conflux_error err;
        char body[300], name[32];
        snprintf(name, sizeof name, "buffered-%zu-%zu", i, again);
        snprintf(body, sizeof body, "{\"args\":[\"sh\",\"-c\",\"echo $$ >%s; exec sleep 1000\"],\"onCancel\":\"%s\"}",
                 in_dir(&srv, name), detach ? "detach" : "kill");
        conflux_handlers h = {.on_done = see_done, .arg = &s};
        conflux_request rq = {.path = "/api/execute", .body = body, .timeout_ms = late ? 1000U << again : 60000};
        conflux_call *call = conflux_start(c, &rq, &h, &err);
        pid_t running = 0;
        wait_until((running = pid_in(in_dir(&srv, name))) > 1 || atomic_load(&s.done));
        if (!late) conflux_call_cancel(call, 0);
        wait_until(atomic_load(&s.done));
        assert_int_equal(s.err.kind, late ? CONFLUX_E_REQUEST_TIMEOUT : CONFLUX_E_CANCELLED);
        again = running > 1 ? 0 : again + 1; /* it must run by then: with twice the time */
        assert_true(again < 6);
        if (!again && detach) {
            assert_int_equal(kill(running, 0), 0);
            kill(running, SIGKILL);
        }
        if (!again) wait_until(kill(running, 0) < 0);
        conflux_call_free(call);
        conflux_client_free(c);
    }
}

/* Bytes of every value, in pieces, right after the start: some of it before the request has left. */

/* How many commands run, says the server. */
static long running_now(conflux_client *c) {
    char *got = body_of(c, &(conflux_request){.path = "/metrics"}, 200);
    const char *at = strstr(got, "\nconflux_processes ");
    long n = at ? strtol(at + strlen("\nconflux_processes "), NULL, 10) : -1;
    free(got);
    return n;
}

/* Cancelled at any moment, and the client freed at once: nothing is left running. */
static void t_cancel_and_leave(void **state) {
    (void)state;
    conflux_client *watcher = client_of(srv.url, CONFLUX_HTTP);
    wait_until(running_now(watcher) == 0);
    for (int i = 0; i < 60; i++) {
        conflux_client *c = client_of(srv.url, modes[i % 3]);
        outcome s;
        conflux_request rq = {.path = i % 2 ? "/api/execute" : "/api/execute/stream",
                              .body = "{\"args\":[\"sleep\",\"1000\"]}"};
        conflux_call *call = begin(c, &rq, &s);
        poll(NULL, 0, i % 7);
        conflux_call_cancel(call, 1);
        conflux_client_free(c);
        assert_true(atomic_load(&s.done));
        assert_int_equal(s.err.kind, CONFLUX_E_CANCELLED);
        conflux_call_free(call);
    }
    wait_until(running_now(watcher) == 0);
    conflux_client_free(watcher);
}

/* The command is still on its way when its end has arrived. */
static void t_cancel_overtakes(void **state) {
    (void)state;
    for (int leave = 0; leave < 2; leave++) {
        door d;
        outcome s;
        char body[200], path[64];
        door_open(&d, srv.port, DOOR_OPEN);
        conflux_client *c = client_of(d.url, CONFLUX_HTTP), *watcher = client_of(srv.url, CONFLUX_HTTP);
        snprintf(body, sizeof body, "{\"args\":[\"sleep\",\"1000\"],\"executionId\":\"overtaken-%d\"}", leave);
        snprintf(path, sizeof path, "/api/execution/overtaken-%d", leave);
        assert_int_equal(conflux_connect(c, NULL), 0);
        atomic_store(&d.mode, DOOR_HELD);
        door_wake(&d);
        conflux_call *call = begin(c, &(conflux_request){.path = "/api/execute", .body = body}, &s);
        wait_until(atomic_load(&d.held));
        conflux_call_cancel(call, 1);
        finish(call, &s);
        assert_int_equal(s.err.kind, CONFLUX_E_CANCELLED);
        wait_until(atomic_load(&d.accepted) >= 2);
        free(body_of(watcher, &(conflux_request){.path = path}, 404));
        atomic_store(&d.mode, DOOR_OPEN);
        door_wake(&d);
        if (leave) {
            conflux_client_free(c);
            c = NULL;
        }
        for (bool ended = false; !ended; poll(NULL, 0, 5)) {
            conflux_response r;
            assert_int_equal(conflux_fetch(watcher, &(conflux_request){.path = path}, &r, NULL), 0);
            ended = strstr(r.body, "CANCELLED") != NULL;
            conflux_response_free(&r);
        }
        conflux_client_free(c);
        conflux_client_free(watcher);
        door_close(&d);
    }
}

/* ---- stdin ---- */

static void t_stdin(void **state) {
    (void)state;
    enum { SIZE = 1 << 20 };
    conflux_client *c = client_of(srv.url, CONFLUX_WEBSOCKET);
    conflux_error err;
    conflux_event ev;
    bool counted = false;
    char *data = malloc(SIZE);
    for (size_t i = 0; i < SIZE; i++) data[i] = (char)(i * 7 + i / 256);
    conflux_request rq = {.path = "/api/execute/stream", .body = "{\"command\":\"cksum\",\"stdin\":\"open\"}"};
    conflux_stream *s = conflux_fetch_stream(c, &rq, &err);
    for (size_t i = 0; i < SIZE; i += SIZE / 4)
        assert_int_equal(conflux_stream_stdin(s, data + i, SIZE / 4, 0, &err), 0);
    assert_int_equal(conflux_stream_stdin(s, NULL, 0, 1, &err), 0);
    FILE *f = fopen(in_dir(&srv, "input"), "we");
    assert_int_equal(fwrite(data, 1, SIZE, f), SIZE);
    fclose(f);
    char command[200], want[64] = "";
    snprintf(command, sizeof command, "{\"command\":\"cksum < %s\"}", in_dir(&srv, "input"));
    char *sum = body_of(c, &(conflux_request){.path = "/api/execute", .body = command}, 200);
    assert_int_equal(sscanf(strstr(sum, "\"stdout\":"), "\"stdout\":\"%63[0-9 ]", want), 1);
    free(sum);
    while (conflux_stream_next(s, &ev, &err) == 1)
        if (strstr(ev.data, "\"type\":\"stdout\"")) counted |= strstr(ev.data, want) != NULL;
    assert_true(counted);
    conflux_stream_free(s);
    conflux_client_free(c);
    free(data);
}

/* More than the server holds for a command (16 MiB), and a command that takes it late. */
static void t_stdin_of_a_slow_reader(void **state) {
    (void)state;
    enum { SIZE = 24 << 20 };
    conflux_client *c = client_of(srv.url, CONFLUX_WEBSOCKET);
    conflux_error err;
    conflux_event ev;
    bool counted = false;
    char *data = calloc(1, SIZE);
    conflux_request rq = {.path = "/api/execute/stream", .body = "{\"command\":\"sleep 1; wc -c\",\"stdin\":\"open\"}"};
    conflux_stream *s = conflux_fetch_stream(c, &rq, &err);
    if (conflux_stream_stdin(s, data, SIZE, 1, &err) < 0) fail_msg("%s", err.message);
    while (conflux_stream_next(s, &ev, &err) == 1) counted |= strstr(ev.data, "25165824\\n") != NULL;
    assert_true(counted);
    conflux_stream_free(s);

    rq.body =
        "{\"command\":\"exec <&-; sleep 1\",\"stdin\":\"open\"}"; /* nobody takes it: no reason to wait for ever */
    s = conflux_fetch_stream(c, &rq, &err);
    conflux_stream_stdin(s, data, SIZE, 1, &err);
    int rc;
    while ((rc = conflux_stream_next(s, &ev, &err)) == 1) continue;
    assert_int_equal(rc, 0);
    conflux_stream_free(s);
    conflux_client_free(c);
    free(data);
}

/* More pieces than the server owes receipts for at a time (16,384), behind what fills the pipe. */
static void t_stdin_in_small_pieces(void **state) {
    (void)state;
    enum { FULL = 100000, PIECES = 20000 };
    static const char full[FULL];
    conflux_client *c = client_of(srv.url, CONFLUX_WEBSOCKET);
    conflux_error err;
    conflux_event ev;
    bool counted = false;
    conflux_request rq = {.path = "/api/execute/stream", .body = "{\"command\":\"sleep 1; wc -c\",\"stdin\":\"open\"}"};
    conflux_stream *s = conflux_fetch_stream(c, &rq, &err);
    assert_int_equal(conflux_stream_stdin(s, full, FULL, 0, &err), 0);
    for (int i = 0; i < PIECES; i++)
        if (conflux_stream_stdin(s, "x", 1, i == PIECES - 1, &err) < 0) fail_msg("%s", err.message);
    while (conflux_stream_next(s, &ev, &err) == 1) counted |= strstr(ev.data, "120000\\n") != NULL;
    assert_true(counted);
    conflux_stream_free(s);
    conflux_client_free(c);
}

static void t_stdin_over_http(void **state) {
    (void)state;
    conflux_client *c = client_of(srv.url, CONFLUX_HTTP);
    conflux_error err;
    conflux_event ev;
    conflux_request rq = {.path = "/api/execute/stream", .body = "{\"command\":\"cat\",\"stdin\":\"open\"}"};
    assert_int_equal(conflux_connect(c, &err), 0);
    conflux_stream *s = conflux_fetch_stream(c, &rq, &err);
    assert_int_equal(conflux_stream_next(s, &ev, &err), 1);
    assert_int_equal(conflux_stream_stdin(s, "x", 1, 0, &err), -1);
    assert_int_equal(err.kind, CONFLUX_E_UNSUPPORTED);
    conflux_stream_cancel(s, 1);
    while (conflux_stream_next(s, &ev, &err) == 1) continue;
    assert_int_equal(err.kind, CONFLUX_E_CANCELLED);
    conflux_stream_free(s);
    conflux_client_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_cancel),
        cmocka_unit_test(t_cancel_without_an_id),
        cmocka_unit_test(t_cancel_of_a_buffered_call),
        cmocka_unit_test(t_cancel_and_leave),
        cmocka_unit_test(t_cancel_overtakes),
        cmocka_unit_test(t_stdin),
        cmocka_unit_test(t_stdin_of_a_slow_reader),
        cmocka_unit_test(t_stdin_in_small_pieces),
        cmocka_unit_test(t_stdin_over_http),
    };
    return cmocka_run_group_tests(tests, srv_start, srv_stop);
}
