/* The client library against the real program, over each transport. */
#include "component/client_fixture.h"

static const conflux_mode modes[] = {CONFLUX_WEBSOCKET, CONFLUX_HTTP, CONFLUX_AUTO};

static void over_each(void (*fn)(conflux_client *c, conflux_mode mode)) {
    for (size_t i = 0; i < 3; i++) {
        conflux_client *c = client_of(srv.url, modes[i]);
        fn(c, modes[i]);
        conflux_client_free(c);
    }
}

/* ---- connect, fetch, errors of the server ---- */

static void connects(conflux_client *c, conflux_mode mode) {
    conflux_error err;
    assert_false(conflux_is_connected(c));
    assert_int_equal(conflux_get_mode(c), mode);
    assert_int_equal(conflux_connect(c, &err), 0);
    assert_true(conflux_is_connected(c));
    assert_int_equal(conflux_get_mode(c), mode == CONFLUX_HTTP ? CONFLUX_HTTP : CONFLUX_WEBSOCKET);
    assert_int_equal(conflux_connect(c, &err), 0);
    assert_int_equal(conflux_disconnect(c, &err), 0);
    assert_false(conflux_is_connected(c));
    expect_output(c, "echo again", "again\\n"); /* connects anew */
    assert_true(conflux_is_connected(c));
}

static void t_connect(void **state) {
    (void)state;
    over_each(connects);
}

static void fetches(conflux_client *c, conflux_mode mode) {
    conflux_response r;
    conflux_error err;
    conflux_request rq = {.path = "/api/execute",
                          .body = "{\"command\":\"printf '%s' 'a\\\"\\\\b\\u00e9'; (exit 3)\"}"};
    assert_int_equal(conflux_fetch(c, &rq, &r, &err), 0);
    assert_int_equal(r.status, 200);
    assert_int_equal(r.mode, mode == CONFLUX_HTTP ? CONFLUX_HTTP : CONFLUX_WEBSOCKET);
    assert_int_equal(r.body_len, strlen(r.body));
    assert_non_null(strstr(r.body, "\"stdout\":\"a\\\"\\\\b\xc3\xa9\""));
    assert_int_equal(conflux_check(&r, &err), 0);
    conflux_response_free(&r);
    rq = (conflux_request){.path = "/api/read", .body = "{\"path\":\"/no/such/file\"}"};
    assert_int_equal(conflux_fetch(c, &rq, &r, &err), 0);
    assert_int_equal(r.status, 404);
    assert_int_equal(conflux_check(&r, &err), -1);
    assert_int_equal(err.kind, CONFLUX_E_SERVER);
    assert_string_equal(err.code, "FILE_NOT_FOUND");
    assert_int_equal(err.status, 404);
    assert_false(err.retry_safe);
    conflux_response_free(&r);
}

static void t_fetch(void **state) {
    (void)state;
    over_each(fetches);
}

/* ---- what cannot be sent ---- */

static void refused(conflux_client *c, const conflux_request *rq) {
    conflux_response r;
    conflux_error err = {0};
    assert_int_equal(conflux_fetch(c, rq, &r, &err), -1);
    assert_int_equal(err.kind, CONFLUX_E_ARGUMENT);
}

static void t_bad_requests(void **state) {
    (void)state;
    conflux_client *c = client_of(srv.url, CONFLUX_AUTO);
    conflux_header bad = {"X-A", "1\r\nX-B: 2"};
    char long_id[130];
    memset(long_id, 'a', 129);
    long_id[129] = '\0';
    refused(c, &(conflux_request){.path = "api/ping"});
    refused(c, &(conflux_request){.path = "/api/ping\r\nX: y"});
    refused(c, &(conflux_request){.path = "/api/ping", .method = "GET /"});
    refused(c, &(conflux_request){.path = "/api/execute", .body = "{\"command\":"});
    refused(c, &(conflux_request){.path = "/api/execute", .body = "[1]"});
    refused(c, &(conflux_request){.path = "/api/ping", .headers = &bad, .nheaders = 1});
    refused(c, &(conflux_request){.path = "/api/ping", .priority = 5});
    refused(c, &(conflux_request){.path = "/api/execute", .body = "{}", .execution_id = "a b"});
    refused(c, &(conflux_request){.path = "/api/execute", .body = "{}", .execution_id = long_id});
    refused(c, &(conflux_request){.path = "/api/execute", .body = "{\"executionId\":\"x\"}", .execution_id = "y"});
    assert_false(conflux_is_connected(c)); /* nothing of it went anywhere */
    conflux_client_free(c);
}

static void t_bad_options(void **state) {
    (void)state;
    static const char *const urls[] = {NULL,      "", "ftp://x", "http://", "http://u:p@127.0.0.1/", "http://x/?q=1",
                                       "nonsense"};
    conflux_error err;
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++) {
        err.kind = CONFLUX_OK;
        assert_null(conflux_client_new(&(conflux_options){.url = urls[i]}, &err));
        assert_int_equal(err.kind, CONFLUX_E_ARGUMENT);
    }
    assert_null(conflux_client_new(&(conflux_options){.url = srv.url, .token = "a\nb"}, &err));
    assert_int_equal(err.kind, CONFLUX_E_ARGUMENT);
}

/* ---- streams ---- */

static void streams(conflux_client *c, conflux_mode mode) {
    (void)mode;
    conflux_error err;
    conflux_event ev;
    unsigned out = 0, err_out = 0;
    conflux_request rq = {.path = "/api/execute/stream", .body = "{\"command\":\"printf a; printf b >&2; exit 7\"}"};
    conflux_stream *s = conflux_fetch_stream(c, &rq, &err);
    assert_non_null(s);
    assert_int_equal(conflux_stream_next(s, &ev, &err), 1);
    assert_non_null(strstr(ev.data, "\"type\":\"start\""));
    int rc;
    bool complete = false;
    while ((rc = conflux_stream_next(s, &ev, &err)) == 1) {
        assert_false(complete);
        assert_int_equal(ev.len, strlen(ev.data));
        if (strstr(ev.data, "\"type\":\"stdout\",\"data\":\"a\"")) out++;
        if (strstr(ev.data, "\"type\":\"stderr\",\"data\":\"b\"")) err_out++;
        if (strstr(ev.data, "\"type\":\"complete\",\"exitCode\":7")) complete = true;
    }
    assert_int_equal(rc, 0);
    assert_true(complete);
    assert_int_equal(out, 1);
    assert_int_equal(err_out, 1);
    conflux_stream_free(s);
}

static void t_stream(void **state) {
    (void)state;
    over_each(streams);
}

static void stream_fails(conflux_client *c, conflux_mode mode) {
    (void)mode;
    conflux_error err;
    conflux_event ev;
    conflux_request rq = {.path = "/api/execute/stream", .body = "{\"command\":\"\"}"};
    conflux_stream *s = conflux_fetch_stream(c, &rq, &err);
    assert_int_equal(conflux_stream_next(s, &ev, &err), -1);
    assert_int_equal(err.kind, CONFLUX_E_SERVER);
    assert_true(err.status >= 400);
    conflux_stream_free(s);
}

static void t_stream_error(void **state) {
    (void)state;
    over_each(stream_fails);
}

/* Much more than the window, taken by nobody at first: what is held stays under the window, and nothing is lost. */
static void holds_back(conflux_client *c, conflux_mode mode) {
    enum { MIB = 16 };
    (void)mode;
    conflux_error err;
    conflux_event ev;
    size_t zeros = 0;
    conflux_request rq = {.path = "/api/execute/stream",
                          .body = "{\"command\":\"head -c 16777216 /dev/zero | tr '\\\\0' z\"}"};
    conflux_stream *s = conflux_fetch_stream(c, &rq, &err);
    expect_output(c, "echo beside", "beside\\n"); /* a stream that waits holds nobody up */
    int rc;
    while ((rc = conflux_stream_next(s, &ev, &err)) == 1) {
        const char *data = strstr(ev.data, "\"type\":\"stdout\",\"data\":\"");
        if (data) zeros += strspn(data + strlen("\"type\":\"stdout\",\"data\":\""), "z");
    }
    assert_int_equal(rc, 0);
    assert_int_equal(zeros, MIB << 20);
    conflux_stream_free(s);
}

static void t_backpressure(void **state) {
    (void)state;
    over_each(holds_back);
}

typedef struct seen {
    atomic_size_t bytes, events;
    atomic_bool done;
    conflux_kind kind;
    int status;
} seen;

static void count_event(void *arg, conflux_call *call, const conflux_event *ev) {
    seen *s = arg;
    (void)call;
    atomic_fetch_add(&s->bytes, ev->len);
    atomic_fetch_add(&s->events, 1);
}

static void count_end(void *arg, conflux_call *call, conflux_response *r, const conflux_error *err) {
    seen *s = arg;
    (void)call;
    s->kind = err ? err->kind : CONFLUX_OK;
    s->status = r ? r->status : 0;
    atomic_store(&s->done, true);
}

/* The sender stops at the window, and goes on when the consumer says so. */
static void stops_at_window(conflux_client *c, conflux_mode mode) {
    seen s = {0};
    conflux_error err;
    conflux_handlers h = {.on_event = count_event, .on_done = count_end, .arg = &s, .manual_consume = 1};
    conflux_request rq = {.path = "/api/execute/stream",
                          .body = "{\"command\":\"head -c 4194304 /dev/zero | tr '\\\\0' z\"}"};
    conflux_call *call = conflux_start(c, &rq, &h, &err);
    wait_until(atomic_load(&s.bytes) >= (mode == CONFLUX_HTTP ? 1000000u : 900000u));
    expect_output(c, "echo later", "later\\n"); /* a round trip: what was to come has come */
    assert_true(atomic_load(&s.bytes) < 3 << 20);
    assert_false(atomic_load(&s.done));
    size_t given = 0;
    while (!atomic_load(&s.done)) {
        size_t now = atomic_load(&s.bytes);
        if (now > given) conflux_call_consumed(call, now - given);
        given = now;
        poll(NULL, 0, 1);
    }
    assert_int_equal(s.kind, CONFLUX_OK);
    assert_true(atomic_load(&s.bytes) > 4 << 20);
    conflux_call_free(call);
}

static void t_window(void **state) {
    (void)state;
    over_each(stops_at_window);
}

/* ---- many ---- */

static void batches(conflux_client *c, conflux_mode mode) {
    enum { N = 100 };
    (void)mode;
    static conflux_request rqs[N];
    static conflux_response rs[N];
    static conflux_error errs[N];
    for (int i = 0; i < N; i++)
        rqs[i] = (conflux_request){.path = i == 50 ? "/nowhere" : "/api/ping", .priority = i % 8 - 3};
    rqs[60].path = "no slash";
    assert_int_equal(conflux_batch(c, rqs, N, rs, errs), N - 1);
    for (int i = 0; i < N; i++) {
        assert_int_equal(errs[i].kind, i == 60 ? CONFLUX_E_ARGUMENT : CONFLUX_OK);
        assert_int_equal(rs[i].status, i == 50 ? 404 : i == 60 ? 0 : 200);
        conflux_response_free(&rs[i]);
    }
}

static void t_batch(void **state) {
    (void)state;
    over_each(batches);
}

/* Raw bytes go over HTTP whatever the mode is. */
static void raw(conflux_client *c, conflux_mode mode) {
    (void)mode;
    char path[256], data[] = "a\0b\xff";
    snprintf(path, sizeof path, "/api/files/raw?path=%s", in_dir(&srv, "raw"));
    conflux_request put = {
        .method = "PUT", .path = path, .body = data, .body_len = 4, .content_type = "application/octet-stream"};
    free(body_of(c, &put, 200));
    conflux_request get = {.path = path, .over_http = 1};
    conflux_response r;
    conflux_error err;
    assert_int_equal(conflux_fetch(c, &get, &r, &err), 0);
    assert_int_equal(r.mode, CONFLUX_HTTP);
    assert_int_equal(r.body_len, 4);
    assert_memory_equal(r.body, data, 4);
    assert_non_null(strcasestr(r.headers, "\r\nETag:"));
    conflux_response_free(&r);
}

static void t_raw(void **state) {
    (void)state;
    over_each(raw);
}

/* Over a WebSocket it would be 1009, and the end of the connection for all that share it. */
static void too_large(conflux_client *c, conflux_mode mode) {
    enum { SIZE = 17 << 20 };
    conflux_response r;
    conflux_error err;
    char *body = malloc(SIZE + 300);
    size_t n = (size_t)snprintf(body, 300, "{\"path\":\"%s\",\"content\":\"", in_dir(&srv, "large"));
    memset(body + n, 'l', SIZE);
    snprintf(body + n + SIZE, 3, "\"}");
    conflux_request rq = {.path = "/api/write", .body = body};
    assert_int_equal(conflux_connect(c, &err), 0);
    int rc = conflux_fetch(c, &rq, &r, &err);
    if (mode == CONFLUX_WEBSOCKET) {
        assert_int_equal(rc, -1);
        assert_int_equal(err.kind, CONFLUX_E_TOO_LARGE);
    } else {
        assert_int_equal(rc, 0);
        assert_int_equal(r.status, 200);
        assert_int_equal(r.mode, CONFLUX_HTTP);
        assert_int_equal(file_size(&srv, "large"), SIZE);
        unlink(in_dir(&srv, "large"));
    }
    conflux_response_free(&r);
    free(body);
    assert_true(conflux_is_connected(c));
    expect_output(c, "echo still", "still\\n");
}

static void t_too_large(void **state) {
    (void)state;
    over_each(too_large);
}

static void t_answer_too_large(void **state) {
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        conflux_error err;
        conflux_response r;
        conflux_options o = {.url = srv.url, .mode = modes[i], .max_answer = 100000};
        conflux_client *c = conflux_client_new(&o, &err);
        conflux_request rq = {.path = "/api/execute",
                              .body = "{\"command\":\"head -c 200000 /dev/zero | tr '\\\\0' z\"}"};
        assert_int_equal(conflux_fetch(c, &rq, &r, &err), -1);
        assert_int_equal(err.kind, CONFLUX_E_TOO_LARGE);
        expect_output(c, "echo still", "still\\n");
        conflux_client_free(c);
    }
}

/* ---- sharing ---- */

static void t_share(void **state) {
    (void)state;
    door d;
    door_open(&d, srv.port, DOOR_OPEN);
    conflux_options o = {.url = d.url, .mode = CONFLUX_WEBSOCKET, .share = 1};
    conflux_client *a = conflux_client_new(&o, NULL), *b = conflux_client_new(&o, NULL);
    expect_output(a, "echo a", "a\\n");
    expect_output(b, "echo b", "b\\n");
    assert_int_equal(atomic_load(&d.accepted), 1);
    assert_int_equal(conflux_disconnect(a, NULL), 0);
    assert_false(conflux_is_connected(a));
    assert_true(conflux_is_connected(b));
    expect_output(b, "echo b", "b\\n");
    assert_int_equal(atomic_load(&d.accepted), 1);
    conflux_client_free(a);
    conflux_client_free(b);
    door_close(&d);
}

static void t_pool(void **state) {
    (void)state;
    door d;
    door_open(&d, srv.port, DOOR_OPEN);
    conflux_options o = {.url = d.url, .mode = CONFLUX_WEBSOCKET, .connections = 3};
    conflux_client *c = conflux_client_new(&o, NULL);
    seen s[8] = {0};
    conflux_handlers h = {.on_event = count_event, .on_done = count_end};
    conflux_request rq = {.path = "/api/execute/stream", .body = "{\"command\":\"sleep 1000\"}"};
    conflux_call *calls[8];
    for (int i = 0; i < 8; i++) {
        h.arg = &s[i];
        calls[i] = conflux_start(c, &rq, &h, NULL);
        wait_until(atomic_load(&s[i].events) > 0);
    }
    wait_until(atomic_load(&d.accepted) == 3);
    for (int i = 0; i < 8; i++) {
        conflux_call_cancel(calls[i], 1);
        wait_until(atomic_load(&s[i].done));
        conflux_call_free(calls[i]);
    }
    assert_int_equal(atomic_load(&d.accepted), 3); /* never more than was asked for */
    conflux_client_free(c);
    door_close(&d);
}

/* ---- callbacks ---- */

typedef struct from_callback {
    conflux_client *c;
    conflux_kind waits;
    seen inner;
    atomic_bool done;
} from_callback;

static void call_again(void *arg, conflux_call *call, conflux_response *r, const conflux_error *err) {
    from_callback *f = arg;
    (void)call, (void)r, (void)err;
    conflux_error why = {0};
    conflux_response none;
    conflux_request rq = {.path = "/api/ping"};
    conflux_handlers h = {.on_done = count_end, .arg = &f->inner};
    conflux_fetch(f->c, &rq, &none, &why);
    f->waits = why.kind;
    conflux_call_free(conflux_start(f->c, &rq, &h, NULL));
    atomic_store(&f->done, true);
}

static void t_callback_may_start_but_not_wait(void **state) {
    (void)state;
    from_callback f = {.c = client_of(srv.url, CONFLUX_AUTO)};
    conflux_request rq = {.path = "/api/ping"};
    conflux_handlers h = {.on_done = call_again, .arg = &f};
    conflux_call_free(conflux_start(f.c, &rq, &h, NULL));
    wait_until(atomic_load(&f.done) && atomic_load(&f.inner.done));
    assert_int_equal(f.waits, CONFLUX_E_DEADLOCK);
    assert_int_equal(f.inner.status, 200);
    conflux_client_free(f.c);
}

typedef struct log_text {
    char text[8192];
    size_t n;
} log_text;

static void keep_line(void *arg, const char *line) {
    log_text *l = arg;
    l->n += (size_t)snprintf(l->text + l->n, sizeof l->text - l->n, "%s\n", line);
}

static void t_log_has_no_secrets(void **state) {
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        log_text l = {.n = 0};
        conflux_options o = {.url = srv.url, .mode = modes[i], .token = "s3cr3t-token", .on_log = keep_line, .arg = &l};
        conflux_client *c = conflux_client_new(&o, NULL);
        conflux_header header = {"X-Trace-Id", "s3cr3t-header"};
        conflux_request rq = {.path = "/api/execute?x=s3cr3t-query",
                              .body = "{\"command\":\"echo s3cr3t-body\"}",
                              .headers = &header,
                              .nheaders = 1};
        free(body_of(c, &rq, 200));
        conflux_client_free(c);
        assert_non_null(strstr(l.text, "POST /api/execute "));
        assert_non_null(strstr(l.text, " 200 "));
        assert_null(strstr(l.text, "s3cr3t"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_connect),
        cmocka_unit_test(t_fetch),
        cmocka_unit_test(t_bad_requests),
        cmocka_unit_test(t_bad_options),
        cmocka_unit_test(t_stream),
        cmocka_unit_test(t_stream_error),
        cmocka_unit_test(t_backpressure),
        cmocka_unit_test(t_window),
        cmocka_unit_test(t_batch),
        cmocka_unit_test(t_raw),
        cmocka_unit_test(t_too_large),
        cmocka_unit_test(t_answer_too_large),
        cmocka_unit_test(t_share),
        cmocka_unit_test(t_pool),
        cmocka_unit_test(t_callback_may_start_but_not_wait),
        cmocka_unit_test(t_log_has_no_secrets),
    };
    return cmocka_run_group_tests(tests, srv_start, srv_stop);
}
