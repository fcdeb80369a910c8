/* Requests that the loop serves over HTTP: parked ones, streams, hang-ups and deadlines. */
#include "http_fixture.h"

#include "base/metrics.h"

static void parked_requests_keep_their_connection(void **state) {
    int fd = dial(*state);
    for (int i = 0; i < 3; i++) {
        put(fd, "POST /later HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}");
        answer_held(*state, "{\"late\":true}");
        response r = get(fd);
        assert_true(r.status == 200 && body_has(&r, "late") && !r.closes);
        free_response(&r);
    }
    close(fd);
}

static void a_reset_cancels_a_parked_request(void **state) {
    int fd = dial(*state);
    put(fd, "POST /later HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}");
    WAIT_FOR(held_reply);
    struct linger hard = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close(fd);
    WAIT_FOR(seen_cancels == 1);
    assert_int_equal(seen_why, CP_END_DISCONNECTED);
    assert_int_equal(seen_kill, 0);
}

/* The loop has looked at a call whose client has shut its side down. */
static void looked(cp_client *c, void *arg) {
    int *n = arg;
    if (atomic_load(&c->phase) == CP_CLIENT_CALL && atomic_load(&c->state) & CP_STATE_LOOP) *n += c->look;
}
static void count_looked(void *arg) {
    void **a = arg;
    cp_clients_each(((const fixture *)a[0])->t.server->clients, looked, a[1]);
}
static int noticed(const fixture *f) {
    int n = 0;
    void *a[2] = {(void *)(uintptr_t)f, &n};
    run_on_loop(f, count_looked, a);
    return n;
}

static void a_half_closed_client_gets_its_reply(void **state) {
    fixture *f = *state;
    int fd = dial(f);
    put(fd, "POST /later HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}");
    WAIT_FOR(held_reply);
    shutdown(fd, SHUT_WR);
    WAIT_FOR(noticed(f) == 1);
    answer_held(*state, "{\"late\":1}");
    response r = get(fd);
    assert_int_equal(r.status, 200);
    assert_true(r.complete);
    assert_true(at_end(fd)); /* it can send nothing more */
    assert_int_equal(seen_cancels, 0);
    free_response(&r);
    close(fd);
}

static void hanging_up_kills_when_asked_to(void **state) {
    int fd = dial(*state);
    const char *body = "{\"onDisconnect\":\"kill\"}";
    putf(fd, "POST /later HTTP/1.1\r\n" H "Content-Length: %zu\r\n\r\n%s", strlen(body), body);
    WAIT_FOR(held_reply);
    close(fd);
    WAIT_FOR(seen_cancels == 1);
    assert_int_equal(seen_kill, 1);
}

static void answer_if_held(void *arg) {
    (void)arg;
    cp_reply *r = held_reply;
    held_reply = NULL;
    cp_result res = {.status = 200};
    if (r) cp_reply_send(r, &res);
}

/* The answer and the hang-up race; whoever wins, the request ends once and leaves nothing behind. */
static void replies_and_hang_ups_cross(void **state) {
    fixture *f = *state;
    struct linger hard = {.l_onoff = 1};
    for (int i = 0; i < 150; i++) {
        int fd = dial(f);
        put(fd, "POST /later HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}");
        WAIT_FOR(held_reply);
        if (i % 3 == 0) setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        on_loop o = {.fn = answer_if_held};
        if (i % 2) cp_loop_post(f->t.loop, &o.task, on_loop_run);
        if (i % 3 == 1) shutdown(fd, SHUT_WR);
        else close(fd);
        if (i % 2 == 0) cp_loop_post(f->t.loop, &o.task, on_loop_run);
        WAIT_FOR(o.done && !held_reply);
        if (i % 3 == 1) close(fd);
    }
    WAIT_FOR(f->t.nconns == 0 && cp_metric_values[CP_M_PENDING] == 0);
    assert_int_equal(seen_calls, 150);
}

static void deadlines_pass(void **state) {
    const char *body = "{\"deadlineMs\":50}";
    char req[200];
    snprintf(req, sizeof req, "POST /later HTTP/1.1\r\n" H "Content-Length: %zu\r\n\r\n%s", strlen(body), body);
    assert_int_equal(ask(*state, req, "DEADLINE_EXCEEDED"), 408);
    assert_int_equal(seen_why, CP_END_DEADLINE);
    int fd = dial(*state);
    put(fd, "GET /wait HTTP/1.1\r\n" H "Content-Length: 17\r\n\r\n{\"deadlineMs\":50}");
    response r = get(fd);
    assert_int_equal(r.status, 408);
    free_response(&r);
    close(fd);
    assert_int_equal(ask(*state, "POST /later HTTP/1.1\r\n" H "Content-Length: 14\r\n\r\n{\"priority\":8}", "priority"),
                     400);
}

static void streams_are_events_and_end_visibly(void **state) {
    int fd = dial(*state);
    put(fd, "GET /stream?n=3 HTTP/1.1\r\n" H "\r\n");
    response r = get(fd);
    assert_int_equal(r.status, 200);
    assert_true(cp_str_is(header_of(&r, "Content-Type"), "text/event-stream"));
    assert_true(cp_str_is(header_of(&r, "Cache-Control"), "no-cache, no-store"));
    assert_true(cp_str_is(header_of(&r, "X-Accel-Buffering"), "no")); /* X161 */
    assert_true(r.complete && r.closes);
    assert_true(cp_str_is(r.body, "data: {\"left\":3}\n\ndata: {\"left\":2}\n\ndata: {\"left\":1}\n\n"));
    assert_true(at_end(fd));
    WAIT_FOR(seen_close == 1);
    assert_int_equal(seen_why, CP_END_DONE);
    free_response(&r);
    close(fd);
    fd = dial(*state);
    put(fd, "GET /stream?n=1 HTTP/1.1\r\n" H "Last-Event-ID: 0-0\r\n\r\n");
    r = get(fd);
    assert_true(cp_str_is(r.body, "id: 1-0\ndata: {\"left\":1}\n\n"));
    free_response(&r);
    close(fd);
}

static void a_long_stream_reaches_a_slow_reader(void **state) {
    int fd = dial(*state);
    put(fd, "GET /stream?n=8000&fat=1 HTTP/1.1\r\n" H "\r\n");
    response r = get(fd);
    assert_true(r.complete);
    size_t events = 0;
    for (size_t i = 0; i + 1 < r.body.n; i++) events += r.body.p[i] == '\n' && r.body.p[i + 1] == '\n';
    assert_int_equal(events, 8000);
    free_response(&r);
    close(fd);
}

static void a_stream_notices_its_client_leave(void **state) {
    fixture *f = *state;
    int fd = dial(f);
    put(fd, "GET /stream HTTP/1.1\r\n" H "\r\n");
    cp_buf b = {0};
    assert_true(more(fd, &b));
    cp_buf_free(&b);
    close(fd);
    WAIT_FOR(seen_close == 1);
    assert_int_equal(seen_why, CP_END_DISCONNECTED);
    WAIT_FOR(f->t.nconns == 0);
    fd = dial(f);
    put(fd, "GET /wait HTTP/1.1\r\n" H "\r\n");
    WAIT_FOR(held_reply);
    close(fd);
    WAIT_FOR(seen_cancels == 1);
}

static void a_parked_route_may_stream(void **state) {
    assert_int_equal(ask(*state, "POST /surprise?n=2 HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n", "{\"left\":1}"), 200);
}

/* A handler may answer from within on_cancel, though nobody is there any more. */
static void an_answer_may_come_while_the_client_goes(void **state) {
    fixture *f = *state;
    struct linger hard = {.l_onoff = 1};
    answers_when_cancelled = true;
    int parked = dial(f), taken = dial(f), half = dial(f);
    put(parked, "POST /later HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}");
    put(taken, "GET /wait HTTP/1.1\r\n" H "\r\n");
    put(half, "POST /later HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}");
    WAIT_FOR(seen_calls == 3);
    shutdown(half, SHUT_WR);
    WAIT_FOR(noticed(f) == 1);
    int all[] = {parked, taken, half};
    for (int i = 0; i < 3; i++) {
        setsockopt(all[i], SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        close(all[i]);
        WAIT_FOR(seen_cancels == i + 1);
    }
    WAIT_FOR(f->t.nconns == 0);
    answers_when_cancelled = false;
}

static void deadlines_end_requests_once(void **state) {
    const char *body = "{\"deadlineMs\":20}";
    for (int answers = 0; answers < 2; answers++) {
        answers_when_cancelled = answers;
        int fd = dial(*state);
        putf(fd, "POST /later HTTP/1.1\r\n" H "Content-Length: %zu\r\n\r\n%s", strlen(body), body);
        response r = get(fd);
        assert_int_equal(r.status, answers ? 200 : 408);
        assert_int_equal(seen_why, CP_END_DEADLINE);
        free_response(&r);
        close(fd);
    }
    answers_when_cancelled = false;
}

static void end_requests(void *arg) { cp_server_end_requests(arg); }

static void leaving_answers_what_waits_and_ends_streams(void **state) {
    fixture *f = *state;
    int half = dial(f), taken = dial(f), stream = dial(f);
    put(half, "POST /later HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}");
    put(taken, "GET /wait HTTP/1.1\r\n" H "\r\n");
    put(stream, "GET /stream HTTP/1.1\r\n" H "\r\n");
    WAIT_FOR(seen_calls == 3);
    shutdown(half, SHUT_WR);
    WAIT_FOR(noticed(f) == 1 && f->t.nconns == 1);
    run_on_loop(f, end_requests, &f->t);
    response a = get(half), b = get(taken), c = get(stream);
    assert_true(a.complete && body_has(&a, "OPERATION_INTERRUPTED"));
    assert_true(b.complete && body_has(&b, "OPERATION_INTERRUPTED"));
    assert_true(c.status == 200 && !c.complete && c.body.n == 0); /* it would have gone on: no last chunk */
    assert_int_equal(seen_close, 1);
    free_response(&a), free_response(&b), free_response(&c);
    close(half), close(taken), close(stream);
    WAIT_FOR(f->t.nconns == 0);
}

/* The worker cannot bring the socket: it answers instead of waiting for ever. */
static void a_stream_without_room_is_refused(void **state) {
    fixture *f = *state;
    int64_t most = f->cfg.max_connections;
    f->cfg.max_connections = 0;
    assert_int_equal(ask(f, "POST /surprise?n=2 HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n", "LIMIT_EXCEEDED"), 429);
    f->cfg.max_connections = most;
    WAIT_FOR(seen_close == 1);
}

static void shutting_down_answers_what_waits(void **state) {
    fixture *f = *state;
    int parked = dial(f), idle = dial(f), stream = dial(f);
    put(idle, "GET /api/ping HTTP/1.1\r\n" H "\r\n");
    response pong = get(idle);
    assert_int_equal(pong.status, 200);
    free_response(&pong);
    put(parked, "POST /later HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}");
    put(stream, "GET /stream HTTP/1.1\r\n" H "\r\n");
    WAIT_FOR(held_reply && f->t.nconns == 1);
    fx_stop(f);
    response r = get(parked);
    assert_true(body_has(&r, "OPERATION_INTERRUPTED"));
    assert_true(at_end(idle));
    assert_int_equal(seen_close, 1);
    assert_int_equal(seen_why, CP_END_SHUTDOWN);
    free_response(&r);
    close(parked), close(idle), close(stream);
}

/* ---- workers that are woken ---- */

static cp_reply *_Atomic both[2];

static void answer_both_fn(void *arg) {
    (void)arg;
    for (int i = 0; i < 2; i++) {
        cp_result res = {.status = 200};
        cp_reply_send(both[i], &res);
    }
}

static int answers_to_end(int fd) {
    cp_autobuf cp_buf b = {0};
    int n = 0;
    while (more(fd, &b)) continue;
    for (const char *p = b.p, *end = b.p + b.n; (p = memmem(p, (size_t)(end - p), "HTTP/1.1 200", 12)); p++) n++;
    return n;
}

/* Two clients whose parked requests are answered together have each sent another behind it. Two workers are awake, and
 * one may take the call for both: he is at the first one's until the second one's is served, too. */
static void clients_offered_together_are_served_together(void **state) {
    fixture *f = *state;
    for (int round = 0; round < 50; round++) {
        int fds[2], pipes[2];
        assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
        blocked_on = pipes[0];
        seen_calls = 0;
        for (int i = 0; i < 2; i++) {
            fds[i] = dial(f);
            put(fds[i], "POST /later HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}GET /blocks HTTP/1.1\r\n" H "\r\n");
            WAIT_FOR(seen_calls == i + 1 && held_reply);
            both[i] = held_reply;
            held_reply = NULL;
        }
        run_on_loop(f, answer_both_fn, NULL);
        WAIT_FOR(seen_calls == 4);
        close(pipes[1]);
        for (int i = 0; i < 2; i++) {
            shutdown(fds[i], SHUT_WR);
            assert_int_equal(answers_to_end(fds[i]), 2);
            close(fds[i]);
        }
        WAIT_FOR(atomic_load(&f->t.server->open) == 0);
        close(pipes[0]);
    }
}

/* ---- quiet streams ---- */

static int pinging_up(void **state) {
    fixture *f = *state = fx_prepare();
    f->cfg.ping_interval = 500;
    fx_start(f);
    return 0;
}

static void await_text(int fd, const char *text) {
    cp_autobuf cp_buf b = {0};
    while (more(fd, &b) && !memmem(b.p, b.n, text, strlen(text))) continue;
    assert_true(b.n && memmem(b.p, b.n, text, strlen(text)));
}

static void nothing(void *arg) { (void)arg; }

/* The interval counts from the last event: a stream that began later and says nothing is not pinged first. */
static void a_stream_is_quiet_no_longer_than_the_interval(void **state) {
    int spoke = dial(*state), silent = dial(*state);
    put(spoke, "GET /stream?n=1&lingers HTTP/1.1\r\n" H "\r\n");
    await_text(spoke, "left");
    put(silent, "GET /stream HTTP/1.1\r\n" H "\r\n");
    await_text(silent, "\n:\n\n");
    run_on_loop(*state, nothing, NULL); /* both may have been pinged in one round, in any order */
    assert_int_equal(poll(&(struct pollfd){.fd = spoke, .events = POLLIN}, 1, 0), 1);
    await_text(spoke, "\n:\n\n");
    close(spoke), close(silent);
}

#define T(fn) cmocka_unit_test_setup(fn, fx_again)
int main(void) {
    const struct CMUnitTest plain[] = {
        T(an_answer_may_come_while_the_client_goes),
        T(deadlines_end_requests_once),
        T(leaving_answers_what_waits_and_ends_streams),
        T(a_stream_without_room_is_refused),
        T(parked_requests_keep_their_connection),
        T(a_reset_cancels_a_parked_request),
        T(a_half_closed_client_gets_its_reply),
        T(hanging_up_kills_when_asked_to),
        T(replies_and_hang_ups_cross),
        T(deadlines_pass),
        T(streams_are_events_and_end_visibly),
        T(a_long_stream_reaches_a_slow_reader),
        T(a_stream_notices_its_client_leave),
        T(a_parked_route_may_stream),
        T(clients_offered_together_are_served_together),
    };
    const struct CMUnitTest pinging[] = {T(a_stream_is_quiet_no_longer_than_the_interval)};
    const struct CMUnitTest shutdown[] = {
        cmocka_unit_test_setup(shutting_down_answers_what_waits, fx_up),
    };
    return cmocka_run_group_tests(plain, fx_up, fx_down) + cmocka_run_group_tests(pinging, pinging_up, fx_down) +
           cmocka_run_group_tests(shutdown, NULL, NULL);
}
