/* HTTP as it arrives on the socket: every fault of CivetWeb that we know of, bodies, and answers from a worker. */
#include "http_fixture.h"

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
    fd = dial(f); /* X33 */
    put(fd, "POST /api/ping HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n");
    r = get(fd);
    assert_true(r.status == 405 && body_has(&r, "METHOD_NOT_ALLOWED") && !r.closes);
    assert_true(cp_str_is(header_of(&r, "Allow"), "GET, HEAD, OPTIONS"));
    free_response(&r);
    close(fd);
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
    assert_int_equal(ask(*state, cp_buf_z(&b), "HEADERS_TOO_LARGE"), 431);
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
    assert_int_equal(ask(f, "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\nzz\r\n", "chunked"), 400);
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
    fixture *f = *state = fx_prepare();
    f->cfg.max_body = 1024;
    fx_start(f);
    return 0;
}

static int impatient_up(void **state) {
    fixture *f = *state = fx_prepare();
    f->cfg.header_timeout = 1000;
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
    put(fd, "POST /echo HTTP/1.1\r\n" H "Content-Length: 24000000\r\n\r\n");
    char part[10000];
    memset(part, 'x', sizeof part);
    for (int i = 0; i < 2400; i++) assert_int_equal(send(fd, part, sizeof part, MSG_NOSIGNAL), sizeof part);
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
    assert_true(at_end(fd)); /* it will send no more, and cannot be served */
    /* one byte at a time: each read makes progress, the whole never ends */
    struct pollfd p = {.fd = trickle, .events = POLLIN};
    uint64_t until = cp_now_ms() + PATIENCE_MS;
    while (poll(&p, 1, 20) == 0 && cp_now_ms() < until) put(trickle, " ");
    assert_true(p.revents != 0);
    response slow = get(trickle), half = get(chunked);
    assert_true(slow.status == 408 && slow.closes && body_has(&slow, "REQUEST_TIMEOUT"));
    assert_true(half.status == 408 && half.closes);
    free_response(&slow), free_response(&half);
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
    assert_true(r.status == 408 && r.closes && body_has(&r, "REQUEST_TIMEOUT"));
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

/* X02: what stands before a request is nothing, or an error; it is never taken for a head that somebody else has sent.
 */
static void nothing_stale_is_parsed(void **state) {
    fixture *f = *state;
    for (int i = 0; i < 40; i++) { /* more than there are workers */
        int fd = dial(f);
        put(fd, "POST /echo?secret HTTP/1.1\r\n" H "Authorization: Bearer secret\r\nContent-Length: 2\r\n\r\n{}"
                "GET /api/ping?secret HTTP/1.1\r\n" H "Authorization: Bearer secret\r\n\r\n");
        response r = get(fd);
        free_response(&r);
        close(fd);
    }
    int fd = dial(f);
    put(fd, "\r\n\r\nPOST /echo HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}");
    response r = get(fd);
    assert_true(r.status == 200 && cp_str_is(r.body, "{}") && !r.closes);
    free_response(&r);
    put(fd, "GET /api/ping?mine HTTP/1.1\r\n" H "\r\n");
    r = get(fd);
    assert_true(r.status == 200 && body_has(&r, "\"query\":\"mine\",\"auth\":false"));
    free_response(&r);
    close(fd);
    static const char *const blanks[] = {" \r\n\r\n", "\t\r\n\r\n", "   \r\n   \r\n\r\n",
                                         "\n\n",      "\r\r\n\r\n", "\v\r\n\r\n"};
    for (size_t i = 0; i < CP_COUNT(blanks); i++)
        for (int k = 0; k < 20; k++) assert_int_equal(ask(f, blanks[i], "INVALID_REQUEST"), 400);
}

/* X33, X148: trailers and extensions are read over, the connection stays; what is malformed is told. */
static void chunks_with_all_that_belongs_to_them(void **state) {
    fixture *f = *state;
    int fd = dial(f);
    for (int i = 0; i < 3; i++) {
        put(fd, "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n"
                "3;name=value\r\n{\"a\r\n004 ; q=\"x\"\r\n\":4}\r\n0;last\r\nX-Sum: 1\r\nX-Other: two\r\n\r\n");
        response r = get(fd);
        assert_true(r.status == 200 && cp_str_is(r.body, "{\"a\":4}") && !r.closes);
        free_response(&r);
        put(fd, "PUT /raw HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n5;x\r\nhello\r\n0\r\nT: 1\r\n\r\n");
        r = get(fd);
        assert_true(r.status == 200 && body_has(&r, "\"bytes\":5") && !r.closes);
        free_response(&r);
    }
    close(fd);
    static const char *const bad[] = {"5\nhello\r\n0\r\n\r\n",
                                      "5\r\nhelloX\r\n0\r\n\r\n",
                                      "-1\r\n",
                                      "0x5\r\nhello\r\n0\r\n\r\n",
                                      "ffffffffffffffff\r\nx",
                                      "\r\n",
                                      " 5\r\nhello\r\n"};
    for (size_t i = 0; i < CP_COUNT(bad); i++)
        for (int raw = 0; raw < 2; raw++) {
            fd = dial(f);
            putf(fd, "%s HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n%s", raw ? "PUT /raw" : "POST /echo",
                 bad[i]);
            response r = get(fd);
            if (r.status != 400 || !r.closes || !body_has(&r, "INVALID_REQUEST"))
                fail_msg("%d for: %s", r.status, bad[i]);
            free_response(&r);
            close(fd);
        }
}

/* X33: RFC 9110 section 6.6.1. */
static void replies_say_when(void **state) {
    int fd = dial(*state);
    put(fd, "GET /api/ping HTTP/1.1\r\n" H "\r\n");
    response r = get(fd);
    struct tm t = {0};
    char date[64];
    snprintf(date, sizeof date, "%.*s", (int)header_of(&r, "Date").n, header_of(&r, "Date").p);
    const char *end = strptime(date, "%a, %d %b %Y %H:%M:%S GMT", &t);
    assert_true(end && !*end);
    time_t said = timegm(&t), now = time(NULL);
    assert_true(said <= now && now - said < 600);
    assert_true(cp_str_is(header_of(&r, "Cross-Origin-Resource-Policy"), "same-origin")); /* X144 */
    free_response(&r);
    close(fd);
}

/* Split anywhere, a request is the same request. */
static void requests_may_come_in_any_pieces(void **state) {
    static const char all[] =
        "POST /echo HTTP/1.1\r\n" H "Content-Length: 7\r\n\r\n{\"a\":1}"
        "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n7\r\n{\"a\":2}\r\n0\r\n\r\n";
    for (size_t cut = 1; cut < sizeof all - 1; cut++) {
        int fd = dial(*state);
        char first[sizeof all];
        memcpy(first, all, cut);
        first[cut] = '\0';
        put(fd, first);
        put(fd, all + cut);
        for (int i = 1; i <= 2; i++) {
            char want[16];
            cp_buf got = {0};
            snprintf(want, sizeof want, "{\"a\":%d}", i);
            while (more_bytewise(fd, &got) && !memmem(got.p, got.n, want, strlen(want))) {
            }
            assert_non_null(memmem(got.p, got.n, want, strlen(want)));
            cp_buf_free(&got);
        }
        close(fd);
    }
}

/* The client reads nothing until the rest of the reply waits for it. */
static void a_slow_reader_holds_no_worker(void **state) {
    fixture *f = *state;
    int fd = dial(f);
    for (int i = 0; i < 2; i++) {
        put(fd, "GET /big HTTP/1.1\r\n" H "\r\n");
        WAIT_FOR(clients_in(f, CP_CLIENT_SEND) == 1);
        response r = get(fd);
        assert_int_equal(r.status, 200);
        assert_true(r.complete && !r.closes);
        assert_int_equal(r.body.n, BIG);
        free_response(&r);
    }
    close(fd);
}

#define T(fn) cmocka_unit_test_setup(fn, fx_again)
int main(void) {
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
        T(a_slow_reader_holds_no_worker),
        T(nothing_stale_is_parsed),
        T(chunks_with_all_that_belongs_to_them),
        T(replies_say_when),
        T(requests_may_come_in_any_pieces),
    };
    const struct CMUnitTest small[] = {
        T(too_large_is_told_before_it_is_read),
    };
    const struct CMUnitTest slow[] = {
        T(stalled_and_short_bodies_are_dropped),
        T(slow_heads_are_cut),
    };
    return cmocka_run_group_tests(plain, fx_up, fx_down) + cmocka_run_group_tests(small, small_body_up, fx_down) +
           cmocka_run_group_tests(slow, impatient_up, fx_down);
}
