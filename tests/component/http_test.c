/* HTTP as it arrives on the socket: every fault of CivetWeb that we know of, the three ways of serving, and hang-ups.
 */
#include "http_fixture.h"

#include "base/metrics.h"

#define H "Host: 127.0.0.1\r\n"

/* One server for all tests of a configuration (CivetWeb takes two seconds to stop), and one at a time: what belongs to
 * the loop thread may be static. */
static fixture *shared;

static int group_up(void **state) {
    (void)state;
    shared = fx_prepare();
    fx_start(shared);
    return 0;
}
static int group_down(void **state) {
    (void)state;
    fx_stop(shared);
    return 0;
}
static int reset(void **state) {
    *state = shared;
    WAIT_FOR(shared->t.nconns == 0);
    fx_reset();
    return 0;
}

static int up(void **state) {
    *state = fx_prepare();
    fx_start(*state);
    return 0;
}

/* ---- plain requests ---- */

static void keep_alive_serves_many(void **state) {
    int fd = dial(*state);
    for (int i = 0; i < 3; i++) {
        put(fd, "GET /api/ping?a=%41&b HTTP/1.1\r\n" H "\r\n");
        response r = get(fd);
        assert_int_equal(r.status, 200);
        assert_true(body_has(&r, "\"query\":\"a=%41&b\""));
        assert_false(r.closes);
        assert_true(cp_str_is(header_of(&r, "Access-Control-Allow-Origin"), "*"));
        assert_int_equal(count_headers(&r, "Access-Control-Allow-Origin"), 1);
        assert_true(cp_str_is(header_of(&r, "X-Content-Type-Options"), "nosniff"));
        free_response(&r);
    }
    close(fd);
}

static void close_is_obeyed_and_http10_has_no_chunks(void **state) {
    int fd = dial(*state);
    put(fd, "GET /api/ping HTTP/1.1\r\n" H "Connection: close\r\n\r\n");
    response r = get(fd);
    assert_true(r.closes && r.complete);
    assert_true(at_end(fd));
    close(fd);
    free_response(&r);
    fd = dial(*state);
    put(fd, "GET /stream?n=2 HTTP/1.0\r\n\r\n");
    r = get(fd);
    assert_int_equal(r.status, 200);
    assert_false(header_of(&r, "Transfer-Encoding").p != NULL);
    assert_true(body_has(&r, "data: {\"left\":2}\n\ndata: {\"left\":1}\n\n"));
    close(fd);
    free_response(&r);
}

static void pipelined_requests_are_answered_in_turn(void **state) {
    int fd = dial(*state);
    put(fd, "GET /api/ping?1 HTTP/1.1\r\n" H "\r\nPOST /now?2 HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n"
            "GET /api/ping?3 HTTP/1.1\r\n" H "Connection: close\r\n\r\n");
    cp_buf all = {0};
    while (more(fd, &all)) {
    }
    const char *z = cp_buf_z(&all), *one = strstr(z, "\"query\":\"1\""), *two = strstr(z, "\"now\":\"2\""),
               *three = strstr(z, "\"query\":\"3\"");
    assert_true(one && two && three && one < two && two < three);
    cp_buf_free(&all);
    close(fd);
}

static void head_has_no_body(void **state) {
    int fd = dial(*state);
    put(fd, "HEAD /api/ping HTTP/1.1\r\n" H "\r\n");
    response r = get_for(fd, true);
    assert_int_equal(r.status, 200);
    assert_int_equal(r.raw.n, r.head.n);
    assert_true(header_of(&r, "Content-Length").n > 0);
    free_response(&r);
    put(fd, "GET /api/ping HTTP/1.1\r\n" H "\r\n");
    r = get(fd);
    assert_int_equal(r.status, 200);
    free_response(&r);
    close(fd);
}

static void the_path_is_left_as_sent(void **state) {
    assert_int_equal(ask(*state, "GET /api%2Fping HTTP/1.1\r\n" H "\r\n", "UNKNOWN_ERROR"), 404);
    assert_int_equal(ask(*state, "GET /x/../api/ping HTTP/1.1\r\n" H "\r\n", "UNKNOWN_ERROR"), 404);
    assert_int_equal(ask(*state, "GET /api/ping%00x HTTP/1.1\r\n" H "\r\n", "INVALID_REQUEST"), 400);
    assert_int_equal(ask(*state, "GET /api/ping/more HTTP/1.1\r\n" H "\r\n", "UNKNOWN_ERROR"), 404);
    assert_int_equal(ask(*state, "GET /api/ping?x=%00%2F HTTP/1.1\r\n" H "\r\n", "x=%00%2F"), 200);
}

static void absolute_targets_are_served(void **state) {
    fixture *f = *state;
    char own[200];
    snprintf(own, sizeof own, "GET http://127.0.0.1:%u/api/ping?q HTTP/1.1\r\n" H "\r\n", f->port);
    assert_int_equal(ask(f, own, "\"query\":\"q\""), 200);
    assert_int_equal(ask(f, "GET http://elsewhere/api/ping?q=1 HTTP/1.1\r\n" H "\r\n", "\"query\":\"q=1\""), 200);
    assert_int_equal(ask(f, "POST http://elsewhere/echo HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}", "{}"), 200);
    assert_int_equal(ask(f, "GET http://elsewhere/stream?n=1 HTTP/1.1\r\n" H "\r\n", "\"left\":1"), 200);
    assert_int_equal(ask(f, "GET nonsense HTTP/1.1\r\n" H "\r\n", NULL), 400);
}

static void options_and_methods(void **state) {
    fixture *f = *state;
    int fd = dial(f);
    put(fd, "OPTIONS /echo HTTP/1.1\r\n" H "\r\n");
    response r = get(fd);
    assert_int_equal(r.status, 204);
    assert_true(cp_str_is(header_of(&r, "Allow"), "POST, OPTIONS"));
    assert_false(header_of(&r, "Content-Length").p != NULL);
    free_response(&r);
    put(fd, "OPTIONS * HTTP/1.1\r\n" H "\r\n");
    r = get(fd);
    assert_int_equal(r.status, 204);
    free_response(&r);
    close(fd);
    assert_int_equal(ask(f, "OPTIONS /nowhere HTTP/1.1\r\n" H "\r\n", NULL), 404);
    assert_int_equal(ask(f, "GET * HTTP/1.1\r\n" H "\r\n", "INVALID_REQUEST"), 400);
    assert_int_equal(ask(f, "PATCH /echo HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n", "METHOD_NOT_ALLOWED"), 405);
    assert_int_equal(ask(f, "PROPFIND / HTTP/1.1\r\n" H "\r\n", "METHOD_NOT_ALLOWED"), 405);
    assert_int_equal(ask(f, "BREW / HTTP/1.1\r\n" H "\r\n", "METHOD_NOT_ALLOWED"), 405);
    assert_int_equal(ask(f, "POST /api/ping HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n", "UNKNOWN_ERROR"), 404);
    assert_int_equal(ask(f, "GET /.htpasswd HTTP/1.1\r\n" H "\r\n", "UNKNOWN_ERROR"), 404);
}

/* ---- heads that CivetWeb lets through ---- */

static void malformed_heads_are_refused(void **state) {
    static const char *const heads[] = {
        "GET /api/ping HTTP/1.1\r\n\r\n",             /* no Host */
        "GET /api/ping HTTP/1.1\r\n" H H "\r\n",      /* two */
        "GET /api/ping HTTP/1.1\r\nHost : a\r\n\r\n", /* blank before the colon */
        "GET /api/ping HTTP/1.1\r\nHost \t: a\r\n\r\n",
        "GET /api/ping HTTP/1.1\nHost: a\n\n", /* bare LF */
        "GET /api/ping HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
        "GET /api/ping HTTP/1.1\r\n" H "X: a\r\n b\r\n\r\n", /* obs-fold */
        "GET /api/ping HTTP/1.1\r\n" H "X: a\r\n\tb\r\n\r\n",
        "GET /api/ping HTTP/1.1\r\n" H " X: a\r\nContent-Length: 5\r\n\r\nhello",
        "GET /api/ping HTTP/1.1\r\n" H "X\r\n\r\n",     /* no colon */
        "GET /api/ping HTTP/1.1\r\n" H "X(: a\r\n\r\n", /* not a token */
        "GET /api/ping HTTP/1.1\r\n" H "X: a\x01\r\n\r\n",
        "GET /api/ping HTTP/1.1\r\n" H "X: a\rb\r\n\r\n",
        "POST /echo HTTP/1.1\r\n" H "Content-Length: 5abc\r\n\r\n{}   ",
        "POST /echo HTTP/1.1\r\n" H "Content-Length: +5\r\n\r\n{}   ",
        "POST /echo HTTP/1.1\r\n" H "Content-Length: -5\r\n\r\n",
        "POST /echo HTTP/1.1\r\n" H "Content-Length: \r\n\r\n",
        "POST /echo HTTP/1.1\r\n" H "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
        "POST /echo HTTP/1.1\r\n" H "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        "POST /echo HTTP/1.1\r\n" H "Content-Length: 2, 2\r\n\r\n{}",
        "POST /echo HTTP/1.1\r\n" H "Content-Length: 99999999999999999999\r\n\r\n",
        "POST /echo HTTP/1.1\r\n" H "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: identity\r\n\r\n",
        "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /echo HTTP/1.1\r\n" H "Expect: the-unexpected\r\nContent-Length: 2\r\n\r\n{}",
        "GET /api/ping HTTP/2.0\r\n" H "\r\n",
        "GET  /api/ping\r\n\r\n",
    };
    for (size_t i = 0; i < CP_COUNT(heads); i++) {
        int fd = dial(*state);
        put(fd, heads[i]);
        response r = get(fd);
        if (r.status != 400) fail_msg("status %d for: %s", r.status, heads[i]);
        assert_true(body_has(&r, "\"code\":\"INVALID_REQUEST\""));
        assert_true(r.closes);
        assert_true(at_end(fd));
        free_response(&r);
        close(fd);
    }
    assert_int_equal(seen_calls, 0);
}

static void too_many_headers(void **state) {
    for (int n = 62; n <= 64; n++) { /* and Host: 63, 64, 65 in all */
        cp_buf b = {0};
        cp_buf_addz(&b, "POST /echo HTTP/1.1\r\n" H);
        for (int i = 0; i < n - 1; i++) cp_buf_addf(&b, "X-%d: y\r\n", i);
        cp_buf_addz(&b, "Content-Length: 2\r\n\r\n{}");
        assert_int_equal(ask(*state, cp_buf_z(&b), n == 62 ? "{}" : "HEADERS_TOO_LARGE"), n == 62 ? 200 : 431);
        cp_buf_free(&b);
    }
    cp_buf b = {0};
    cp_buf_addz(&b, "GET /api/ping HTTP/1.1\r\n" H "X: ");
    for (int i = 0; i < 20000; i++) cp_buf_addc(&b, 'x');
    cp_buf_addz(&b, "\r\n\r\n");
    assert_int_equal(ask(*state, cp_buf_z(&b), "INVALID_REQUEST"), 400); /* CivetWeb does not tell it from nonsense */
    cp_buf_free(&b);
}

/* ---- bodies ---- */

static void bodies_by_length_and_in_chunks(void **state) {
    fixture *f = *state;
    int fd = dial(f);
    put(fd, "POST /echo HTTP/1.1\r\n" H "Content-Length: 7\r\n\r\n{\"a\":1}");
    response r = get(fd);
    assert_true(r.status == 200 && body_has(&r, "{\"a\":1}") && !r.closes);
    free_response(&r);
    put(fd, "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n");
    put(fd, "3\r\n{\"a\r\n");
    put(fd, "4\r\n\":2}\r\n0\r\n\r\n");
    r = get(fd);
    assert_true(r.status == 200 && body_has(&r, "{\"a\":2}"));
    assert_false(r.closes);
    free_response(&r);
    put(fd, "POST /echo HTTP/1.1\r\n" H "Content-Length: 9\r\n\r\n{\"a\":1}xx");
    r = get(fd);
    assert_true(r.status == 500 && body_has(&r, "position"));
    free_response(&r);
    put(fd, "POST /now?after HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}");
    r = get(fd);
    assert_true(r.status == 200 && body_has(&r, "after"));
    free_response(&r);
    close(fd);
    assert_int_equal(ask(f, "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\nzz\r\n", NULL), 0);
}

static void large_bodies(void **state) {
    fixture *f = *state;
    size_t n = 3 << 20;
    int fd = dial(f);
    cp_buf b = {0};
    cp_buf_addf(&b, "POST /echo HTTP/1.1\r\n" H "Content-Length: %zu\r\n\r\n\"", n);
    for (size_t i = 0; i < n - 2; i++) cp_buf_addc(&b, 'a' + i % 26);
    cp_buf_addc(&b, '"');
    for (int round = 0; round < 2; round++) {
        put(fd, cp_buf_z(&b));
        response r = get(fd);
        assert_int_equal(r.status, 200);
        assert_true(r.complete && r.body.n == n);
        assert_memory_equal(r.body.p, b.p + b.n - n, n);
        free_response(&r);
        close(fd);
        fd = dial(f);
    }
    cp_buf_free(&b);
    close(fd);
}

static int small_body_up(void **state) {
    (void)state;
    fixture *f = shared = fx_prepare();
    f->cfg.max_body = 1024;
    f->cfg.header_timeout = 300;
    fx_start(f);
    return 0;
}

static void too_large_is_told_before_it_is_read(void **state) {
    fixture *f = *state;
    int fd = dial(f);
    put(fd, "POST /echo HTTP/1.1\r\n" H "Content-Length: 1025\r\nExpect: 100-continue\r\n\r\n");
    response r = get(fd);
    assert_int_equal(r.status, 413);
    assert_true(body_has(&r, "PAYLOAD_TOO_LARGE") && r.closes);
    free_response(&r);
    close(fd);
    fd = dial(f);
    put(fd, "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n400\r\n");
    for (int i = 0; i < 1024; i++) put(fd, "x");
    put(fd, "\r\n5\r\nyyyyy\r\n0\r\n\r\n");
    r = get(fd);
    assert_int_equal(r.status, 413);
    free_response(&r);
    close(fd);
    /* The client sends all of it before it reads: the reply still reaches it. */
    fd = dial(f);
    put(fd, "POST /echo HTTP/1.1\r\n" H "Content-Length: 300000\r\n\r\n");
    for (int i = 0; i < 300; i++) {
        char kb[1001];
        memset(kb, 'x', 1000);
        kb[1000] = '\0';
        put(fd, kb);
    }
    r = get(fd);
    assert_int_equal(r.status, 413);
    free_response(&r);
    close(fd);
    assert_int_equal(seen_calls, 0);
}

static void stalled_and_short_bodies_are_dropped(void **state) {
    fixture *f = *state;
    int fd = dial(f), trickle = dial(f), chunked = dial(f);
    put(fd, "POST /echo HTTP/1.1\r\n" H "Content-Length: 10\r\n\r\n{}");
    shutdown(fd, SHUT_WR);
    put(trickle, "POST /echo HTTP/1.1\r\n" H "Content-Length: 1000\r\n\r\n{}");
    put(chunked, "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n5\r\n{}");
    assert_true(at_end(fd));
    /* one byte at a time: each read makes progress, the whole never ends */
    struct pollfd p = {.fd = trickle, .events = POLLIN};
    uint64_t until = cp_now_ms() + PATIENCE_MS;
    while (poll(&p, 1, 20) == 0 && cp_now_ms() < until) put(trickle, " ");
    assert_true(p.revents != 0);
    assert_true(at_end(trickle));
    assert_true(at_end(chunked));
    assert_int_equal(seen_calls, 0);
    close(fd), close(trickle), close(chunked);
}

static void slow_heads_are_cut(void **state) {
    fixture *f = *state;
    int fd = dial(f);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    put(fd, "GET /api/ping HTTP/1.1\r\nX: ");
    uint64_t until = cp_now_ms() + PATIENCE_MS;
    while (poll(&p, 1, 20) == 0 && cp_now_ms() < until) put(fd, "a");
    assert_true(p.revents != 0);
    response r = get(fd);
    assert_true(r.status == 400 || r.status == 0); /* told when it could be told */
    free_response(&r);
    close(fd);
}

static void continue_is_sent_before_the_body(void **state) {
    int fd = dial(*state);
    put(fd, "POST /echo HTTP/1.1\r\n" H "Content-Length: 7\r\nExpect: 100-continue\r\n\r\n");
    cp_buf b = {0};
    assert_true(more(fd, &b));
    assert_string_equal(cp_buf_z(&b), "HTTP/1.1 100 Continue\r\n\r\n");
    cp_buf_free(&b);
    put(fd, "{\"a\":3}");
    response r = get(fd);
    assert_int_equal(r.status, 200);
    assert_true(body_has(&r, "{\"a\":3}"));
    free_response(&r);
    close(fd);
    assert_int_equal(
        ask(*state, "POST /nowhere HTTP/1.1\r\n" H "Content-Length: 7\r\nExpect: 100-continue\r\n\r\n", NULL), 404);
}

static void raw_bodies_stream(void **state) {
    assert_int_equal(
        ask(*state, "PUT /raw HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhello", "{\"bytes\":5,\"length\":5}"), 200);
    assert_int_equal(ask(*state, "PUT /raw HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
                         "{\"bytes\":5,\"length\":-1}"),
                     200);
    int fd = dial(*state);
    put(fd, "PUT /raw HTTP/1.1\r\n" H "Content-Length: 50\r\n\r\nhello");
    shutdown(fd, SHUT_WR);
    response r = get(fd);
    assert_true(r.status != 200);
    assert_int_equal(seen_bytes, 5);
    free_response(&r);
    close(fd);
}

/* ---- answers ---- */

static void a_file_is_sent_by_range(void **state) {
    int fd = dial(*state);
    put(fd, "GET /file HTTP/1.1\r\n" H "\r\n");
    response r = get(fd);
    assert_int_equal(r.status, 206);
    assert_true(cp_str_is(r.body, "23456"));
    assert_true(cp_str_is(header_of(&r, "Content-Type"), "application/octet-stream"));
    free_response(&r);
    put(fd, "HEAD /file HTTP/1.1\r\n" H "\r\n");
    r = get_for(fd, true);
    assert_true(cp_str_is(header_of(&r, "Content-Length"), "5"));
    free_response(&r);
    close(fd);
}

/* The client reads nothing until the worker has let go of it. */
static void a_slow_reader_holds_no_worker(void **state) {
    fixture *f = *state;
    int fd = dial(f);
    put(fd, "GET /big HTTP/1.1\r\n" H "\r\n");
    WAIT_FOR(f->t.nconns == 1);
    response r = get(fd);
    assert_int_equal(r.status, 200);
    assert_true(r.complete);
    assert_int_equal(r.body.n, BIG);
    free_response(&r);
    close(fd);
    WAIT_FOR(f->t.nconns == 0);
}

/* ---- requests that the loop serves ---- */

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

static void a_half_closed_client_gets_its_reply(void **state) {
    fixture *f = *state;
    int fd = dial(f);
    put(fd, "POST /later HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}");
    WAIT_FOR(held_reply);
    shutdown(fd, SHUT_WR);
    WAIT_FOR(f->t.nconns == 1);
    answer_held(*state, "{\"late\":1}");
    response r = get(fd);
    assert_int_equal(r.status, 200);
    assert_true(r.complete && r.closes);
    assert_int_equal(seen_cancels, 0);
    free_response(&r);
    close(fd);
    WAIT_FOR(f->t.nconns == 0);
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
    assert_true(cp_str_is(header_of(&r, "Cache-Control"), "no-cache"));
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
    WAIT_FOR(f->t.nconns == 2);
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
    WAIT_FOR(f->t.nconns == 3);
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

int main(void) {
#define T(fn) cmocka_unit_test_setup(fn, reset)
    const struct CMUnitTest plain[] = {
        T(keep_alive_serves_many),
        T(close_is_obeyed_and_http10_has_no_chunks),
        T(pipelined_requests_are_answered_in_turn),
        T(head_has_no_body),
        T(the_path_is_left_as_sent),
        T(absolute_targets_are_served),
        T(options_and_methods),
        T(malformed_heads_are_refused),
        T(too_many_headers),
        T(bodies_by_length_and_in_chunks),
        T(large_bodies),
        T(continue_is_sent_before_the_body),
        T(raw_bodies_stream),
        T(a_file_is_sent_by_range),
        T(an_answer_may_come_while_the_client_goes),
        T(deadlines_end_requests_once),
        T(leaving_answers_what_waits_and_ends_streams),
        T(a_stream_without_room_is_refused),
        T(a_slow_reader_holds_no_worker),
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
    };
    const struct CMUnitTest small[] = {
        T(too_large_is_told_before_it_is_read),
        T(stalled_and_short_bodies_are_dropped),
        T(slow_heads_are_cut),
    };
    const struct CMUnitTest shutdown[] = {cmocka_unit_test_setup(shutting_down_answers_what_waits, up)};
    return cmocka_run_group_tests(plain, group_up, group_down) +
           cmocka_run_group_tests(small, small_body_up, group_down) + cmocka_run_group_tests(shutdown, NULL, NULL);
}
