/* The client library and a server that is killed: what is lost is said, what has an id is found again. */
#include "component/client_fixture.h"

static const conflux_mode modes[] = {CONFLUX_WEBSOCKET, CONFLUX_HTTP, CONFLUX_AUTO};

/* Over HTTP on a connection that has been used before: libcurl would send it again by itself. */
static void t_killed_in_mid_call(void **state) {
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        conflux_client *c = client_of(srv.url, modes[i]);
        outcome s, t;
        conflux_error err;
        char body[400], starts[32], go[32], id[32];
        snprintf(starts, sizeof starts, "starts-%zu", i);
        snprintf(go, sizeof go, "go-%zu", i);
        snprintf(id, sizeof id, "killed-%zu", i);
        size_t n =
            (size_t)snprintf(body, sizeof body, "{\"sessionId\":\"__DISABLE_SESSION__\",\"command\":\"echo x >> %s; ",
                             in_dir(&srv, starts));
        snprintf(body + n, sizeof body - n, "while [ ! -e %s ]; do sleep 0.01; done; echo done\"}", in_dir(&srv, go));
        wait_up(c);
        expect_output(c, "echo warm", "warm\\n");
        conflux_request rq = {.path = "/api/execute", .body = body};
        conflux_call *one = begin(c, &rq, &s);
        rq.execution_id = id;
        conflux_call *two = begin(c, &rq, &t);
        wait_until(file_size(&srv, starts) == 4);
        server_kill(&srv);
        finish(one, &s);
        if (s.err.kind != CONFLUX_E_CONNECTION_LOST) fail_msg("%zu %s", i, s.err.message);
        assert_false(s.err.retry_safe);
        assert_false(s.err.resumable);
        wait_until(atomic_load(&t.done));
        if (t.err.kind) { /* over HTTP libcurl may have asked again: it is the same execution */
            assert_int_equal(t.err.kind, CONFLUX_E_CONNECTION_LOST);
            assert_true(t.err.retry_safe && t.err.resumable);
        }
        conflux_call_free(two);
        make_file(&srv, go);
        conflux_response r;
        assert_int_equal(conflux_resume(c, id, 0, &r, &err), 0);
        if (!strstr(r.body, "\"stdout\":\"done\\n\"")) fail_msg("%s", r.body);
        conflux_response_free(&r);
        assert_int_equal(file_size(&srv, starts), 4); /* each was started once */
        conflux_client_free(c);
    }
}

static void add_output(char *all, size_t max, const char *data) {
    const char *at = strstr(data, "\"type\":\"stdout\",\"data\":\"");
    if (!at) return;
    at += strlen("\"type\":\"stdout\",\"data\":\"");
    size_t n = strcspn(at, "\""), have = strlen(all);
    assert_true(have + n < max);
    memcpy(all + have, at, n);
    all[have + n] = '\0';
}

enum { LINES = 300, GATE = 100 };

/* Prints LINES lines, and before each hundredth waits for a file of its name: so every kill finds it at work. */
static void gated_command(char *body, size_t max, const char *prefix) {
    snprintf(body, max,
             "{\"command\":\"for i in $(seq 1 %d); do echo line $i; while [ $((i %% %d)) = 0 ] && [ ! -e %s$i ]; do "
             "sleep 0.01; done; done\"}",
             LINES, GATE, prefix);
}

/* Kills the server when the next gate has been reached, and opens it. */
static void kill_at_gate(const char *all, const char *name, int *gate) {
    char line[32], file[64];
    snprintf(line, sizeof line, "line %d\\n", *gate);
    if (*gate > LINES || !strstr(all, line)) return;
    server_kill(&srv);
    snprintf(file, sizeof file, "%s%d", name, *gate);
    make_file(&srv, file);
    *gate += GATE;
}

/* All of the output, once and in order, over three kills. */
static void t_stream_resumes(void **state) {
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        conflux_client *c = client_of(srv.url, modes[i]);
        conflux_error err;
        conflux_event ev;
        char all[8192] = "", want[8192] = "", id[32], body[400];
        size_t n = 0;
        int rc, gate = GATE;
        snprintf(id, sizeof id, "gated-%zu-", i);
        gated_command(body, sizeof body, in_dir(&srv, id));
        wait_up(c);
        conflux_request rq = {.path = "/api/execute/stream", .execution_id = id, .body = body};
        conflux_stream *s = conflux_fetch_stream(c, &rq, &err);
        for (;;) {
            while ((rc = conflux_stream_next(s, &ev, &err)) == 1) {
                add_output(all, sizeof all, ev.data);
                kill_at_gate(all, id, &gate);
            }
            if (rc == 0) break;
            if (!err.resumable) fail_msg("%s: %s", conflux_kind_name(err.kind), err.message);
            assert_int_equal(conflux_stream_resume(s, &err), 0);
        }
        assert_int_equal(gate, LINES + GATE);
        for (int k = 1; k <= LINES; k++) n += (size_t)snprintf(want + n, sizeof want - n, "line %d\\n", k);
        assert_string_equal(all, want);
        conflux_stream_free(s);
        conflux_client_free(c);
    }
}

/* Bytes that are no text, before and behind a kill. */
static void t_stream_resumes_exact(void **state) {
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        conflux_client *c = client_of(srv.url, modes[i]);
        conflux_error err;
        conflux_event ev;
        char all[64] = "", id[32], body[300];
        int rc, kills = 0;
        snprintf(id, sizeof id, "exact-%zu", i);
        snprintf(body, sizeof body,
                 "{\"encoding\":\"base64\",\"command\":\"printf '\\\\377'; while [ ! -e %s ]; do sleep 0.01; done; "
                 "printf '\\\\376'\"}",
                 in_dir(&srv, id));
        wait_up(c);
        conflux_request rq = {.path = "/api/execute/stream", .execution_id = id, .body = body};
        conflux_stream *s = conflux_fetch_stream(c, &rq, &err);
        for (;;) {
            while ((rc = conflux_stream_next(s, &ev, &err)) == 1) {
                add_output(all, sizeof all, ev.data);
                if (strcmp(all, "/w==") != 0 || kills++) continue;
                server_kill(&srv);
                make_file(&srv, id);
            }
            if (rc == 0) break;
            if (!err.resumable) fail_msg("%s: %s", conflux_kind_name(err.kind), err.message);
            assert_int_equal(conflux_stream_resume(s, &err), 0);
        }
        assert_string_equal(all, "/w==/g==");
        assert_true(kills > 0);
        conflux_stream_free(s);
        conflux_client_free(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_killed_in_mid_call),
        cmocka_unit_test(t_stream_resumes),
        cmocka_unit_test(t_stream_resumes_exact),
    };
    return cmocka_run_group_tests(tests, srv_start, srv_stop);
}
