/* The multiplexed WebSocket from outside: messages in, messages out (protocols/cloudflare-sandbox.md section 4,
 * conflux-additions.md "WebSocket messages"). */
#include "ws_harness.h"

/* ---- routes ---- */

static int inline_ok(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    (void)ctx, (void)err;
    cp_str session = cp_request_header(req, "x-session-id");
    res->status = 200;
    cp_jw w = cp_jw_on(&res->body);
    cp_jw_obj(&w);
    cp_jw_kbool(&w, "ok", true);
    if (session.n) cp_jw_kstr(&w, "session", session);
    if (req->query.n) cp_jw_kstr(&w, "query", req->query);
    cp_jw_end_obj(&w);
    return 0;
}

static int inline_text(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    (void)ctx, (void)req, (void)err;
    res->status = 200;
    res->type = "text/plain; charset=utf-8";
    cp_buf_addz(&res->body, "hello");
    return 0;
}

/* A JSON string of ?n characters. */
static int sized(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    (void)ctx;
    uint64_t n = 0;
    if (cp_request_param_u64(req, "n", UINT64_MAX, &n, err) < 0) return -1;
    res->status = 200;
    cp_buf_reserve(&res->body, n + 2);
    memset(res->body.p, 'b', n + 2);
    res->body.p[0] = res->body.p[n + 1] = '"';
    res->body.n = n + 2;
    return 0;
}

static int io_echo(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    (void)ctx, (void)err;
    cp_jw w = cp_jw_on(&res->body);
    res->status = 200;
    cp_jw_val(&w, req->body);
    return 0;
}

/* Requests that stay until the test answers. */
static struct {
    cp_reply *reply[20000];
    unsigned n, cancelled;
    cp_end why;
    bool kill, will_answer, deaf;
    char input[64];
    bool eof;
} held;

static bool held_cancel(cp_reply *r, cp_end why, bool kill) {
    held.cancelled++;
    held.why = why;
    held.kill = kill;
    for (unsigned i = 0; i < held.n; i++)
        if (held.reply[i] == r && !held.will_answer) held.reply[i] = NULL;
    return held.will_answer;
}

static int held_stdin(cp_reply *r, cp_str data, bool eof, cp_err *err) {
    (void)r;
    if (cp_str_is(data, "bad")) return cp_fail(err, CP_E_PROCESS_ERROR, "stdin is closed");
    snprintf(held.input, sizeof held.input, "%.*s", (int)data.n, data.p);
    held.eof = eof;
    return 0;
}

static void hold(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    (void)ctx, (void)req;
    if (!held.deaf) {
        reply->on_cancel = held_cancel;
        reply->on_stdin = held_stdin;
    }
    held.reply[held.n++] = reply;
}

static void answer(cp_reply *r, const char *json) {
    cp_result res = {.status = 200};
    cp_buf_addz(&res.body, json);
    cp_reply_send(r, &res);
}

/* A stream: `left` bytes of text in events, then END; or WAIT while `open`. */
typedef struct feeder {
    cp_source src;
    uint64_t left, sent;
    size_t largest;
    const char *unit; /* repeated */
    bool open, fail, number;
    bool closed, kill;
    cp_end why;
} feeder;

static struct {
    feeder *f[4096];
    unsigned n;
} feeders;

static cp_pull feeder_pull(cp_source *s, size_t budget, cp_event *ev) {
    feeder *f = CP_CONTAINER(s, feeder, src);
    if (f->fail) return CP_PULL_FAIL;
    if (!f->left) return f->open ? CP_PULL_WAIT : CP_PULL_END;
    size_t n = f->left < budget ? (size_t)f->left : budget, unit = strlen(f->unit);
    cp_autobuf cp_buf text = {0};
    while (text.n < n) cp_buf_add(&text, f->unit, unit < n - text.n ? unit : n - text.n);
    if (n > f->largest) f->largest = n;
    f->left -= n;
    f->sent += n;
    cp_jw_obj(&ev->w);
    cp_jw_kz(&ev->w, "type", "stdout");
    cp_jw_kstr(&ev->w, "data", cp_buf_str(&text));
    cp_jw_end_obj(&ev->w);
    if (f->number) snprintf(ev->id, sizeof ev->id, "%llu-0", (unsigned long long)f->sent);
    return CP_PULL_EVENT;
}

static void feeder_close(cp_source *s, cp_end why, bool kill) {
    feeder *f = CP_CONTAINER(s, feeder, src);
    f->closed = true;
    f->why = why;
    f->kill = kill;
}

static const cp_source_ops feeder_ops = {.pull = feeder_pull, .close = feeder_close};

/* ?n bytes, &open=1: waits for more then, &unit=… */
static void stream(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    (void)ctx;
    static const char *const units[] = {"abcdefgh", "y\n"};
    feeder *f = cp_new(feeder);
    uint64_t open = 0, unit = 0, fail = 0, number = 0;
    cp_err err;
    cp_request_param_u64(req, "n", UINT64_MAX, &f->left, &err);
    cp_request_param_u64(req, "open", 1, &open, &err);
    cp_request_param_u64(req, "unit", 1, &unit, &err);
    cp_request_param_u64(req, "fail", 1, &fail, &err);
    cp_request_param_u64(req, "number", 1, &number, &err);
    f->src.ops = &feeder_ops;
    f->open = open;
    f->fail = fail;
    f->number = number;
    f->unit = units[unit];
    feeders.f[feeders.n++] = f;
    cp_reply_stream(reply, &f->src);
}

const cp_route test_routes[] = {
    {CP_GET, "/ok", CP_R_INLINE, "ok", inline_ok, NULL, NULL},
    {CP_POST, "/ok", CP_R_INLINE | CP_R_BODY, "ok", inline_ok, NULL, NULL},
    {CP_GET, "/text", CP_R_INLINE, "text", inline_text, NULL, NULL},
    {CP_GET, "/sized", CP_R_INLINE, "sized", sized, NULL, NULL},
    {CP_GET, "/file", CP_R_IO, "file", sized, NULL, NULL},
    {CP_POST, "/echo", CP_R_IO | CP_R_BODY, "echo", io_echo, NULL, NULL},
    {CP_PUT, "/raw", CP_R_IO | CP_R_RAW_BODY, "raw", io_echo, NULL, NULL},
    {CP_POST, "/hold", CP_R_LOOP, "hold", NULL, hold, NULL},
    {CP_POST, "/stream", CP_R_LOOP | CP_R_LASTS, "stream", NULL, stream, NULL},
};
const size_t test_nroutes = CP_COUNT(test_routes);

/* ---- set-up ---- */

typedef struct fixture {
    harness *h;
    client *c;
} fixture;

static int setup(void **state) {
    fixture *x = cp_new(fixture);
    memset(&held, 0, sizeof held);
    memset(&feeders, 0, sizeof feeders);
    x->h = harness_new();
    x->c = client_new(x->h, &cp_ws_mux);
    *state = x;
    return 0;
}

static int teardown(void **state) {
    fixture *x = *state;
    if (x->c) client_free(x->c);
    harness_free(x->h);
    assert_int_equal(cp_metric_values[CP_M_PENDING], 0);
    assert_int_equal(cp_metric_values[CP_M_WEBSOCKETS], 0);
    for (unsigned i = 0; i < feeders.n; i++) {
        assert_true(feeders.f[i]->closed);
        free(feeders.f[i]);
    }
    free(x);
    return 0;
}

/* ---- the page's rules ---- */

static void not_json(void **state) {
    client *c = ((fixture *)*state)->c;
    const char *const bad[] = {"{x", "", "{\"type\":\"request\"", "nul"};
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        client_text(c, bad[i]);
        expect_message(
            c, "{\"type\":\"error\",\"code\":\"PARSE_ERROR\",\"message\":\"Invalid JSON message\",\"status\":400}");
    }
}

static void not_a_request(void **state) {
    client *c = ((fixture *)*state)->c;
    const char *const bad[] = {"[]",
                               "null",
                               "5",
                               "\"s\"",
                               "{}",
                               "{\"type\":\"foo\",\"id\":\"a\"}",
                               "{\"type\":\"cancel\"}",
                               "{\"type\":\"cancel\",\"id\":true}",
                               "{\"type\":7,\"id\":\"a\"}"};
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        client_text(c, bad[i]);
        expect_message(c, "{\"type\":\"error\",\"code\":\"INVALID_REQUEST\",\"message\":\"Message must be a valid "
                          "WSRequest\",\"status\":400}");
    }
}

static void ids_come_back_as_they_were(void **state) {
    client *c = ((fixture *)*state)->c;
    const char *const ids[] = {"\"x\"", "7",    "-1.5", "\"日本\"",  "\"a b \\\"q\\\"\\n\"",
                               "null",  "true", "[1]",  "{\"a\":1}", "\"\""};
    char want[200];
    for (size_t i = 0; i < CP_COUNT(ids); i++) {
        client_textf(c, "{\"type\":\"request\",\"id\":%s,\"method\":\"GET\",\"path\":\"/ok\"}", ids[i]);
        snprintf(want, sizeof want,
                 "{\"type\":\"response\",\"id\":%s,\"status\":200,\"body\":{\"ok\":true},\"done\":true}", ids[i]);
        expect_message(c, want);
    }
    client_text(c, "{\"type\":\"request\",\"method\":\"GET\",\"path\":\"/ok\"}");
    expect_message(c, "{\"type\":\"response\",\"status\":200,\"body\":{\"ok\":true},\"done\":true}");
}

static void methods_and_paths(void **state) {
    client *c = ((fixture *)*state)->c;
    client_text(c, "{\"type\":\"request\",\"id\":1,\"method\":\"get\",\"path\":\"/ok?session=s#frag\"}");
    expect_message(c, "{\"type\":\"response\",\"id\":1,\"status\":200,\"body\":{\"ok\":true,\"query\":\"session=s\"},"
                      "\"done\":true}");
    client_text(c, "{\"type\":\"request\",\"id\":1,\"method\":\"GET\",\"path\":\"/nope\"}");
    expect_start(c, "{\"type\":\"response\",\"id\":1,\"status\":404,\"body\":{\"code\":\"UNKNOWN_ERROR\"");
    client_text(c, "{\"type\":\"request\",\"id\":1,\"method\":\"PATCH\",\"path\":\"/ok\"}");
    expect_start(c, "{\"type\":\"response\",\"id\":1,\"status\":405,");
    const char *const bad[] = {"", ",\"path\":\"ok\"", ",\"path\":5", ",\"path\":\"\""};
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        client_textf(c, "{\"type\":\"request\",\"id\":\"np\",\"method\":\"GET\"%s}", bad[i]);
        expect_start(c, "{\"type\":\"error\",\"id\":\"np\",\"code\":\"INTERNAL_ERROR\",");
    }
    client_text(c, "{\"type\":\"request\",\"id\":\"h\",\"method\":\"HEAD\",\"path\":\"/ok\"}");
    expect_start(c, "{\"type\":\"error\",\"id\":\"h\",\"code\":\"INTERNAL_ERROR\",");
}

static void bodies_and_headers(void **state) {
    client *c = ((fixture *)*state)->c;
    client_text(c, "{\"type\":\"request\",\"id\":1,\"method\":\"GET\",\"path\":\"/text\"}");
    expect_message(c, "{\"type\":\"response\",\"id\":1,\"status\":200,\"done\":true}");
    client_text(c, "{\"type\":\"request\",\"id\":1,\"method\":\"POST\",\"path\":\"/ok\"}");
    expect_start(c, "{\"type\":\"response\",\"id\":1,\"status\":500,\"body\":{\"code\":\"INTERNAL_ERROR\"");
    client_text(c, "{\"type\":\"request\",\"id\":1,\"method\":\"GET\",\"path\":\"/ok\",\"body\":{\"a\":1},"
                   "\"headers\":{\"X-Session-Id\":\"s1\",\"n\":5}}");
    expect_message(
        c, "{\"type\":\"response\",\"id\":1,\"status\":200,\"body\":{\"ok\":true,\"session\":\"s1\"},\"done\":true}");
    client_text(c, "{\"type\":\"request\",\"id\":1,\"method\":\"PUT\",\"path\":\"/raw\",\"body\":{}}");
    expect_start(c, "{\"type\":\"response\",\"id\":1,\"status\":501,\"body\":{\"code\":\"NOT_SUPPORTED\"");
    client_frame(c, CP_OP_BINARY, true, "{\"type\":\"request\",\"id\":2,\"path\":\"/ok\"}", 39);
    cp_frame_event ev = client_next(c);
    assert_int_equal(ev.kind, CP_FRAME_MESSAGE);
    assert_int_equal(ev.opcode, CP_OP_TEXT);
}

static void options_are_checked(void **state) {
    client *c = ((fixture *)*state)->c;
    const char *const bad[] = {"\"priority\":8", "\"priority\":\"x\"", "\"deadlineMs\":-1", "\"window\":0",
                               "\"onDisconnect\":\"stop\""};
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        client_textf(c, "{\"type\":\"request\",\"id\":1,\"method\":\"GET\",\"path\":\"/ok\",%s}", bad[i]);
        expect_start(c, "{\"type\":\"response\",\"id\":1,\"status\":400,\"body\":{\"code\":\"VALIDATION_FAILED\"");
    }
}

static void hello(void **state) {
    fixture *x = *state;
    x->h->config.ping_interval = 1500;
    client_text(x->c, "{\"type\":\"hello\"}");
    expect_start(x->c, "{\"type\":\"hello\",\"version\":\"" CONFLUX_VERSION
                       "\",\"pingSeconds\":1.5,\"limits\":{\"maxMessageBytes\":16777216,\"maxPending\":10000,");
}

/* ---- limits ---- */

static void id_limit(void **state) {
    client *c = ((fixture *)*state)->c;
    char id[600], want[700];
    memset(id, 'z', sizeof id);
    id[510] = 0; /* and two quotes: 512 */
    client_textf(c, "{\"type\":\"request\",\"id\":\"%s\",\"path\":\"/ok\"}", id);
    snprintf(want, sizeof want, "{\"type\":\"response\",\"id\":\"%s\",\"status\":200,", id);
    expect_start(c, want);
    id[510] = 'z', id[511] = 0;
    client_textf(c, "{\"type\":\"request\",\"id\":\"%s\",\"path\":\"/ok\"}", id);
    snprintf(want, sizeof want, "{\"type\":\"error\",\"id\":\"%s\",\"code\":\"LIMIT_EXCEEDED\",", id);
    expect_start(c, want);
}

static void duplicate_id(void **state) {
    fixture *x = *state;
    client_text(x->c, "{\"type\":\"request\",\"id\":\"a\",\"method\":\"POST\",\"path\":\"/hold\"}");
    client_text(x->c, "{\"type\":\"request\",\"id\":\"\\u0061\",\"method\":\"POST\",\"path\":\"/hold\"}");
    expect_start(x->c, "{\"type\":\"error\",\"id\":\"a\",\"code\":\"DUPLICATE_REQUEST_ID\",");
    assert_int_equal(counted.total, 1); /* refusals show in /metrics */
    assert_int_equal(held.n, 1);
    /* another type is another id; the first may be used again when it has ended */
    client_text(x->c, "{\"type\":\"request\",\"id\":[\"a\"],\"method\":\"GET\",\"path\":\"/ok\"}");
    expect_start(x->c, "{\"type\":\"response\",\"id\":[\"a\"],\"status\":200");
    answer(held.reply[0], "1");
    expect_message(x->c, "{\"type\":\"response\",\"id\":\"a\",\"status\":200,\"body\":1,\"done\":true}");
    client_text(x->c, "{\"type\":\"request\",\"id\":\"a\",\"method\":\"GET\",\"path\":\"/ok\"}");
    expect_start(x->c, "{\"type\":\"response\",\"id\":\"a\",\"status\":200");
}

static void ten_thousand_pending(void **state) {
    fixture *x = *state;
    for (int i = 0; i < 10000; i++)
        client_textf(x->c, "{\"type\":\"request\",\"id\":%d,\"method\":\"POST\",\"path\":\"/hold\"}", i);
    WAIT_FOR(x->h, held.n == 10000);
    assert_int_equal(cp_metric_values[CP_M_PENDING], 10000);
    client_text(x->c, "{\"type\":\"request\",\"id\":\"more\",\"method\":\"GET\",\"path\":\"/ok\"}");
    expect_start(x->c, "{\"type\":\"error\",\"id\":\"more\",\"code\":\"LIMIT_EXCEEDED\",");
    for (int i = 0; i < 10000; i++) answer(held.reply[(i * 7919) % 10000], "0"); /* 7919 is prime: each once */
    static bool seen[10000];
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < 10000; i++) {
        cp_autofree char *got = client_message(x->c);
        int id = -1;
        assert_int_equal(sscanf(got, "{\"type\":\"response\",\"id\":%d,\"status\":200,", &id), 1);
        assert_in_range(id, 0, 9999);
        assert_false(seen[id]);
        seen[id] = true;
    }
}

static void message_limit(void **state) {
    fixture *x = *state;
    size_t n = (16 << 20) + 1;
    cp_autobuf cp_buf big = {0};
    cp_buf_reserve(&big, n);
    memset(big.p, ' ', n);
    big.n = n;
    client_frame(x->c, CP_OP_TEXT, true, big.p, big.n);
    expect_close(x->c, CP_CLOSE_TOO_BIG);
}

static void json_limits(void **state) {
    fixture *x = *state;
    cp_autobuf cp_buf deep = {0}, wide = {0};
    for (int i = 0; i < 65; i++) cp_buf_addc(&deep, '[');
    for (int i = 0; i < 65; i++) cp_buf_addc(&deep, ']');
    client_frame(x->c, CP_OP_TEXT, true, deep.p, deep.n);
    expect_start(x->c, "{\"type\":\"error\",\"code\":\"PAYLOAD_TOO_LARGE\",");
    cp_buf_addc(&wide, '[');
    for (int i = 0; i < 1000000; i++) cp_buf_add(&wide, "1,", 2);
    cp_buf_add(&wide, "1]", 2);
    client_frame(x->c, CP_OP_TEXT, true, wide.p, wide.n);
    expect_start(x->c, "{\"type\":\"error\",\"code\":\"PAYLOAD_TOO_LARGE\",");
}

/* Messages that are nearly right, in every order: nothing breaks, and the connection goes on. */
static void mutated_messages(void **state) {
    fixture *x = *state;
    static const char *const seeds[] = {
        "{\"type\":\"request\",\"id\":\"a\",\"method\":\"POST\",\"path\":\"/"
        "hold?x=1\",\"body\":{\"a\":[1,2]},\"priority\":5}",
        "{\"type\":\"request\",\"id\":7,\"method\":\"POST\",\"path\":\"/"
        "stream?n=5&open=1\",\"window\":9,\"deadlineMs\":9}",
        "{\"type\":\"request\",\"id\":null,\"method\":\"GET\",\"path\":\"/file?n=9\",\"headers\":{\"a\":\"b\"}}",
        "{\"type\":\"cancel\",\"id\":\"a\",\"kill\":true}",
        "{\"type\":\"stdin\",\"id\":\"a\",\"data\":\"eA==\",\"encoding\":\"base64\",\"eof\":true}",
        "{\"type\":\"window\",\"id\":7,\"bytes\":5}",
        "{\"type\":\"hello\",\"id\":[{}]}",
    };
    uint32_t random = 12345;
    for (int i = 0; i < 3000; i++) {
        char text[300];
        int n = snprintf(text, sizeof text, "%s", seeds[(random >> 16) % CP_COUNT(seeds)]);
        for (int k = (int)(random >> 28) % 4; k > 0; k--) {
            random = random * 1664525 + 1013904223;
            text[(random >> 8) % (unsigned)n] = "\"{}[]:,5ax\\ "[(random >> 20) % 12];
        }
        random = random * 1664525 + 1013904223;
        client_frame(x->c, CP_OP_BINARY, true, text, (size_t)n);
        if (feeders.n == CP_COUNT(feeders.f) || held.n == CP_COUNT(held.reply)) break;
        client_read(x->c);
        x->c->got.n = 0;
    }
    settle(x->h);
    while (client_read(x->c)) x->c->got.n = 0;
    x->c->got.n = 0;
    client_text(x->c, "{\"type\":\"request\",\"id\":\"still here\",\"path\":\"/ok\"}");
    expect_start(x->c, "{\"type\":\"response\",\"id\":\"still here\",\"status\":200");
}

/* ---- cancel, deadline, loss ---- */

static void cancel_of_a_running_request(void **state) {
    fixture *x = *state;
    client_text(x->c, "{\"type\":\"cancel\",\"id\":\"nothing\"}");
    client_text(x->c, "{\"type\":\"request\",\"id\":7,\"method\":\"POST\",\"path\":\"/hold\"}");
    client_text(x->c, "{\"type\":\"cancel\",\"id\":7,\"kill\":true}");
    expect_start(x->c, "{\"type\":\"response\",\"id\":7,\"status\":499,\"body\":{\"code\":\"CANCELLED\"");
    assert_int_equal(held.why, CP_END_CANCELLED);
    assert_true(held.kill);

    held.will_answer = true; /* the handler will tell how it ended; a second cancel and a loss reach it no more */
    client_text(x->c, "{\"type\":\"request\",\"id\":8,\"method\":\"POST\",\"path\":\"/hold\"}");
    client_text(x->c, "{\"type\":\"cancel\",\"id\":8}");
    client_text(x->c, "{\"type\":\"cancel\",\"id\":8}");
    WAIT_FOR(x->h, held.cancelled == 2);
    settle(x->h);
    assert_int_equal(held.cancelled, 2);
    assert_false(held.kill);
    answer(held.reply[1], "\"ended\"");
    expect_message(x->c, "{\"type\":\"response\",\"id\":8,\"status\":200,\"body\":\"ended\",\"done\":true}");
}

static void cancel_of_a_stream(void **state) {
    fixture *x = *state;
    client_text(x->c, "{\"type\":\"request\",\"id\":\"s\",\"method\":\"POST\",\"path\":\"/stream?n=3&open=1\"}");
    expect_message(
        x->c, "{\"type\":\"stream\",\"id\":\"s\",\"data\":\"{\\\"type\\\":\\\"stdout\\\",\\\"data\\\":\\\"abc\\\"}\"}");
    client_text(x->c, "{\"type\":\"cancel\",\"id\":\"s\"}");
    expect_message(x->c, "{\"type\":\"response\",\"id\":\"s\",\"status\":200,\"done\":true}");
    assert_true(feeders.f[0]->closed);
    assert_int_equal(feeders.f[0]->why, CP_END_CANCELLED);
    assert_false(feeders.f[0]->kill);
    client_text(x->c, "{\"type\":\"request\",\"id\":\"s\",\"method\":\"POST\",\"path\":\"/stream?open=1\"}");
    client_text(x->c, "{\"type\":\"cancel\",\"id\":\"s\",\"kill\":true}");
    expect_start(x->c, "{\"type\":\"response\",\"id\":\"s\",\"status\":499,\"body\":{\"code\":\"CANCELLED\"");
    assert_true(feeders.f[1]->kill);
}

static void deadline(void **state) {
    fixture *x = *state;
    client_text(x->c, "{\"type\":\"request\",\"id\":1,\"method\":\"POST\",\"path\":\"/hold\",\"deadlineMs\":30}");
    client_text(x->c,
                "{\"type\":\"request\",\"id\":2,\"method\":\"POST\",\"path\":\"/stream?open=1\",\"deadlineMs\":20}");
    client_text(x->c, "{\"type\":\"request\",\"id\":3,\"method\":\"POST\",\"path\":\"/hold\",\"deadlineMs\":10000000}");
    expect_start(x->c, "{\"type\":\"response\",\"id\":2,\"status\":408,\"body\":{\"code\":\"DEADLINE_EXCEEDED\"");
    expect_start(x->c, "{\"type\":\"response\",\"id\":1,\"status\":408,\"body\":{\"code\":\"DEADLINE_EXCEEDED\"");
    assert_int_equal(held.why, CP_END_DEADLINE);
    assert_int_equal(feeders.f[0]->why, CP_END_DEADLINE);
    assert_int_equal(held.cancelled, 1);

    held.deaf = true; /* a handler that cannot be told answers later, into the void */
    client_text(x->c, "{\"type\":\"request\",\"id\":4,\"method\":\"POST\",\"path\":\"/hold\",\"deadlineMs\":10}");
    expect_start(x->c, "{\"type\":\"response\",\"id\":4,\"status\":408");
    answer(held.reply[2], "1");
    client_text(x->c, "{\"type\":\"request\",\"id\":4,\"path\":\"/ok\"}");
    expect_start(x->c, "{\"type\":\"response\",\"id\":4,\"status\":200");
}

static void connection_loss(void **state) {
    fixture *x = *state;
    client_text(x->c,
                "{\"type\":\"request\",\"id\":1,\"method\":\"POST\",\"path\":\"/hold\",\"onDisconnect\":\"kill\"}");
    client_text(x->c, "{\"type\":\"request\",\"id\":2,\"method\":\"POST\",\"path\":\"/stream?open=1\"}");
    WAIT_FOR(x->h, held.n == 1);
    held.deaf = true;
    client_text(x->c, "{\"type\":\"request\",\"id\":3,\"method\":\"POST\",\"path\":\"/hold\"}");
    for (int i = 0; i < 20; i++) client_textf(x->c, "{\"type\":\"request\",\"id\":\"io%d\",\"path\":\"/file?n=9\"}", i);
    WAIT_FOR(x->h, held.n == 2);
    client_free(cp_take(x->c));
    WAIT_FOR(x->h, x->h->t.nconns == 0);
    assert_int_equal(held.cancelled, 1);
    assert_int_equal(held.why, CP_END_DISCONNECTED);
    assert_true(held.kill);
    assert_true(feeders.f[0]->closed);
    assert_false(feeders.f[0]->kill);
    answer(held.reply[1], "1"); /* the one that could not be told */
}

/* ---- order ---- */

/* A message that is parsed on the pool is followed by those that need it. */
static void order_behind_a_large_message(void **state) {
    fixture *x = *state;
    cp_autobuf cp_buf big = {0};
    cp_buf_addz(&big, "{\"type\":\"request\",\"id\":\"big\",\"method\":\"POST\",\"path\":\"/hold\",\"body\":{\"x\":\"");
    for (int i = 0; i < 3000000; i++) cp_buf_addc(&big, 'x');
    cp_buf_addz(&big, "\"}}");
    client_frame(x->c, CP_OP_TEXT, true, big.p, big.n);
    client_text(x->c, "{\"type\":\"stdin\",\"id\":\"big\",\"data\":\"in\"}");
    client_text(x->c, "{\"type\":\"request\",\"id\":\"after\",\"path\":\"/ok\"}");
    client_text(x->c, "{\"type\":\"cancel\",\"id\":\"big\"}");
    expect_start(x->c, "{\"type\":\"response\",\"id\":\"after\",\"status\":200");
    expect_start(x->c, "{\"type\":\"response\",\"id\":\"big\",\"status\":499");
    assert_string_equal(held.input, "in");
}

static void large_request_round_trip(void **state) {
    fixture *x = *state;
    cp_autobuf cp_buf big = {0}, want = {0};
    cp_buf_addz(&big, "{\"type\":\"request\",\"id\":\"big\",\"method\":\"POST\",\"path\":\"/echo\",\"body\":");
    size_t from = big.n;
    cp_buf_addz(&big, "{\"x\":\"");
    for (int i = 0; i < 10 << 20; i++) cp_buf_addc(&big, (char)('a' + i % 26));
    cp_buf_addz(&big, "\"}}");
    cp_buf_addz(&want, "{\"type\":\"response\",\"id\":\"big\",\"status\":200,\"body\":");
    cp_buf_add(&want, big.p + from, big.n - from - 1);
    cp_buf_addz(&want, ",\"done\":true}");
    client_frame(x->c, CP_OP_TEXT, true, big.p, big.n);
    cp_autofree char *got = client_message(x->c);
    assert_int_equal(strlen(got), want.n);
    assert_memory_equal(got, want.p, want.n);
}

/* ---- stdin ---- */

static void stdin_messages(void **state) {
    fixture *x = *state;
    client_text(x->c, "{\"type\":\"request\",\"id\":1,\"method\":\"POST\",\"path\":\"/hold\"}");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":1,\"data\":\"aGVsbG8=\",\"encoding\":\"base64\",\"eof\":true}");
    WAIT_FOR(x->h, held.eof);
    assert_string_equal(held.input, "hello");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":1,\"data\":\"%%\",\"encoding\":\"base64\"}");
    expect_start(x->c, "{\"type\":\"error\",\"id\":1,\"of\":\"stdin\",\"code\":\"VALIDATION_FAILED\"");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":1}");
    expect_start(x->c, "{\"type\":\"error\",\"id\":1,\"of\":\"stdin\",\"code\":\"VALIDATION_FAILED\"");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":1,\"data\":\"bad\"}");
    expect_message(x->c, "{\"type\":\"error\",\"id\":1,\"of\":\"stdin\",\"code\":\"PROCESS_ERROR\",\"message\":\"stdin "
                         "is closed\",\"status\":500}");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":2,\"data\":\"x\"}");
    expect_start(x->c, "{\"type\":\"error\",\"id\":2,\"of\":\"stdin\",\"code\":\"NOT_FOUND\"");
    client_text(x->c, "{\"type\":\"request\",\"id\":3,\"method\":\"POST\",\"path\":\"/stream?open=1\"}");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":3,\"data\":\"x\"}");
    expect_start(x->c, "{\"type\":\"error\",\"id\":3,\"of\":\"stdin\",\"code\":\"NOT_SUPPORTED\"");
}

/* ---- streams ---- */

/* Takes frames apart: the largest payload of a frame, and whether another message began inside one. */
typedef struct scan {
    size_t largest, frames;
} scan;

static void scan_frames(const char *p, size_t n, scan *s) {
    size_t at = 0;
    while (at + 2 <= n) {
        const uint8_t *h = (const uint8_t *)p + at;
        size_t len = h[1] & 127, head = 2;
        if (len == 126) len = (size_t)h[2] << 8 | h[3], head = 4;
        if (len == 127) {
            len = 0;
            for (int i = 0; i < 8; i++) len = len << 8 | h[2 + i];
            head = 10;
        }
        if (len > s->largest) s->largest = len;
        s->frames++;
        at += head + len;
    }
    assert_int_equal(at, n);
}

/* Length of the output that a stream message carries. */
static size_t output_bytes(const char *message) {
    yyjson_doc *outer = yyjson_read(message, strlen(message), 0);
    yyjson_val *data = yyjson_obj_get(yyjson_doc_get_root(outer), "data");
    yyjson_doc *inner = yyjson_read(yyjson_get_str(data), yyjson_get_len(data), 0);
    size_t n = yyjson_get_len(yyjson_obj_get(yyjson_doc_get_root(inner), "data"));
    yyjson_doc_free(inner);
    yyjson_doc_free(outer);
    return n;
}

static void frames_are_at_most_64k(void **state) {
    fixture *x = *state;
    client_text(x->c, "{\"type\":\"request\",\"id\":1,\"method\":\"POST\",\"path\":\"/stream?n=1000000&unit=1\"}");
    client_text(x->c, "{\"type\":\"request\",\"id\":2,\"path\":\"/sized?n=1000000\"}");
    client_text(x->c, "{\"type\":\"request\",\"id\":3,\"path\":\"/sized?n=65536\"}");
    client_text(x->c, "{\"type\":\"request\",\"id\":4,\"path\":\"/sized?n=65470\"}");
    for (int quiet = 0; quiet < 50;) {
        cp_loop_once(x->h->t.loop, 1);
        quiet = client_read(x->c) ? 0 : quiet + 1;
    }
    scan s = {0};
    scan_frames(x->c->got.p, x->c->got.n, &s);
    assert_in_range(s.largest, 60000, 65536);
    size_t text = 0, bodies = 0, ends = 0;
    while (ends < 4) {
        cp_autofree char *got = client_message(x->c);
        if (strstr(got, "\"type\":\"stream\"")) {
            text += output_bytes(got);
        } else {
            for (char *p = strstr(got, "\"body\""); p && *p; p++) bodies += *p == 'b';
            ends++;
        }
    }
    assert_int_equal(text, 1000000);
    assert_int_equal(bodies, 1000000 + 65536 + 65470 + 3); /* and the b of "body" */
}

static void stream_end_failure_and_ids(void **state) {
    fixture *x = *state;
    client_text(x->c, "{\"type\":\"request\",\"id\":1,\"method\":\"POST\",\"path\":\"/stream?n=2&number=1\"}");
    expect_message(x->c, "{\"type\":\"stream\",\"id\":1,\"data\":\"{\\\"type\\\":\\\"stdout\\\",\\\"data\\\":"
                         "\\\"ab\\\"}\",\"eventId\":\"2-0\"}");
    expect_message(x->c, "{\"type\":\"response\",\"id\":1,\"status\":200,\"done\":true}");
    assert_int_equal(feeders.f[0]->why, CP_END_DONE);
    client_text(x->c, "{\"type\":\"request\",\"id\":2,\"method\":\"POST\",\"path\":\"/stream?fail=1\"}");
    expect_start(x->c, "{\"type\":\"error\",\"id\":2,\"code\":\"STREAM_ERROR\",\"message\":");
    client_text(x->c, "{\"type\":\"request\",\"id\":3,\"method\":\"POST\",\"path\":\"/stream?open=1\"}");
    WAIT_FOR(x->h, feeders.n == 3);
    settle(x->h);
    feeders.f[2]->left = 1;
    cp_source_wake(&feeders.f[2]->src);
    expect_start(x->c, "{\"type\":\"stream\",\"id\":3,");
}

/* At most so many bytes of "data" strings are unacknowledged. */
static void window(void **state) {
    fixture *x = *state;
    enum { N = 50000 };
    client_text(
        x->c,
        "{\"type\":\"request\",\"id\":1,\"method\":\"POST\",\"path\":\"/stream?n=1000000&unit=1\",\"window\":50000}");
    uint64_t seen = 0, acked = 0;
    for (;;) {
        for (int quiet = 0; quiet < 5;) {
            cp_loop_once(x->h->t.loop, 1);
            quiet = client_read(x->c) ? 0 : quiet + 1;
        }
        bool ended = false;
        while (x->c->at < x->c->got.n) {
            cp_frame_event ev;
            size_t used;
            cp_frame_next(&x->c->in, x->c->got.p + x->c->at, x->c->got.n - x->c->at, &used, &ev);
            x->c->at += used;
            if (ev.kind != CP_FRAME_MESSAGE) continue;
            yyjson_doc *doc = yyjson_read(ev.payload.p, ev.payload.n, 0);
            yyjson_val *root = yyjson_doc_get_root(doc), *data = yyjson_obj_get(root, "data");
            if (data) seen += yyjson_get_len(data);
            ended |= yyjson_equals_str(yyjson_obj_get(root, "type"), "response");
            yyjson_doc_free(doc);
        }
        x->c->at = x->c->got.n = 0;
        assert_true(seen - acked <= N);
        if (ended) break;
        assert_true(seen > acked);
        client_textf(x->c, "{\"type\":\"window\",\"id\":1,\"bytes\":%llu}", (unsigned long long)(seen - acked));
        acked = seen;
    }
    assert_true(seen >= 1500000); /* each newline is two bytes */
    client_text(x->c, "{\"type\":\"window\",\"id\":1,\"bytes\":-1}");
    expect_start(x->c, "{\"type\":\"error\",\"id\":1,\"of\":\"window\",\"code\":\"VALIDATION_FAILED\"");
}

/* ---- fairness ---- */

static uint64_t share(const feeder *f) { return f->sent; }

static void streams_share_by_priority(void **state) {
    fixture *x = *state;
    client_text(x->c,
                "{\"type\":\"request\",\"id\":1,\"method\":\"POST\",\"path\":\"/stream?n=1000000000\",\"priority\":2}");
    client_text(x->c,
                "{\"type\":\"request\",\"id\":2,\"method\":\"POST\",\"path\":\"/stream?n=1000000000\",\"priority\":2}");
    client_text(x->c,
                "{\"type\":\"request\",\"id\":3,\"method\":\"POST\",\"path\":\"/stream?n=1000000000\",\"priority\":4}");
    for (uint64_t total = 0; total < 20000000;) {
        cp_loop_once(x->h->t.loop, 1);
        x->c->got.n = 0;
        if (client_read(x->c)) total += x->c->got.n;
    }
    x->c->got.n = 0;
    uint64_t a = share(feeders.f[0]), b = share(feeders.f[1]), c = share(feeders.f[2]);
    assert_true(a > 500000 && b > 500000); /* nobody starves */
    assert_true(a < b + 300000 && b < a + 300000);
    assert_true(c > 2 * (a + b)); /* four times the two of the lower class together */
}

static void small_replies_pass_streams(void **state) {
    fixture *x = *state;
    client_text(x->c, "{\"type\":\"request\",\"id\":1,\"method\":\"POST\",\"path\":\"/stream?n=1000000000\"}");
    WAIT_FOR(x->h, feeders.n == 1 && feeders.f[0]->sent > 0);
    settle(x->h); /* the peer reads nothing: the stream has stopped */
    uint64_t ahead = feeders.f[0]->sent;
    client_text(x->c, "{\"type\":\"request\",\"id\":2,\"path\":\"/ok\"}");
    uint64_t before = 0;
    for (;;) {
        cp_autofree char *got = client_message(x->c);
        if (strncmp(got, "{\"type\":\"response\"", 18) == 0) break;
        before += strlen(got);
    }
    assert_true(before < ahead + 512 * 1024); /* what was sent already, and little more */
}

/* B094: whoever reads nothing is not read, costs little, and disturbs nobody. */
static void slow_reader(void **state) {
    fixture *x = *state;
    cp_autobuf cp_buf all = {0};
    char text[100];
    uint8_t mask[4] = {1, 2, 3, 4};
    for (int i = 0; i < 10000; i++) {
        int n = snprintf(text, sizeof text, "{\"type\":\"request\",\"id\":%d,\"path\":\"/%s?n=19000\"}", i,
                         i % 2 ? "file" : "sized");
        cp_frame_put(&all, CP_OP_TEXT, true, text, (size_t)n, mask);
    }
    size_t at = 0;
    for (int quiet = 0; quiet < 50;) {
        ssize_t n = at < all.n ? send(x->c->fd, all.p + at, all.n - at, MSG_NOSIGNAL) : -1;
        if (n > 0) at += (size_t)n;
        quiet = n > 0 ? 0 : quiet + 1;
        cp_loop_once(x->h->t.loop, 1);
    }
    cp_autobuf cp_buf json = {0};
    cp_jw w = cp_jw_on(&json);
    cp_ws_pending_json(&x->h->t, &w);
    yyjson_doc *doc = yyjson_read(json.p, json.n, 0);
    yyjson_val *first = yyjson_arr_get_first(yyjson_doc_get_root(doc));
    assert_in_range(yyjson_get_uint(yyjson_obj_get(first, "queuedBytes")), 100000, 2 << 20);
    yyjson_doc_free(doc);

    client *other = client_new(x->h, &cp_ws_mux);
    client_text(other, "{\"type\":\"request\",\"id\":1,\"path\":\"/ok\"}");
    expect_start(other, "{\"type\":\"response\",\"id\":1,\"status\":200");
    client_free(other);

    for (int answers = 0; answers < 10000; answers++) { /* it reads at last: everything comes */
        if (at < all.n) {
            ssize_t n = send(x->c->fd, all.p + at, all.n - at, MSG_NOSIGNAL);
            if (n > 0) at += (size_t)n;
        }
        cp_autofree char *got = client_message(x->c);
        assert_true(strlen(got) > 19000);
    }
}

/* The same with requests whose handlers answer whenever they like: they are dispatched as their replies can be held. */
static void slow_reader_of_late_replies(void **state) {
    fixture *x = *state;
    enum { ALL = 10000, SIZE = 19000 };
    static char reply[SIZE + 1];
    memset(reply, 'r', SIZE);
    reply[0] = reply[SIZE - 1] = '"';
    cp_autobuf cp_buf all = {0};
    char text[100];
    uint8_t mask[4] = {1, 2, 3, 4};
    for (int i = 0; i < ALL; i++) {
        int n =
            snprintf(text, sizeof text, "{\"type\":\"request\",\"id\":%d,\"method\":\"POST\",\"path\":\"/hold\"}", i);
        cp_frame_put(&all, CP_OP_TEXT, true, text, (size_t)n, mask);
    }
    size_t at = 0;
    unsigned answered = 0;
    for (int quiet = 0; quiet < 50;) {
        ssize_t n = at < all.n ? send(x->c->fd, all.p + at, all.n - at, MSG_NOSIGNAL) : -1;
        if (n > 0) at += (size_t)n;
        quiet = n > 0 || answered < held.n ? 0 : quiet + 1;
        while (answered < held.n) answer(held.reply[answered++], reply);
        cp_loop_once(x->h->t.loop, 1);
    }
    assert_true((size_t)held.n * SIZE < 24 << 20);
    for (int got = 0; got < ALL; got++) {
        while (answered < held.n) answer(held.reply[answered++], reply);
        if (at < all.n) {
            ssize_t n = send(x->c->fd, all.p + at, all.n - at, MSG_NOSIGNAL);
            if (n > 0) at += (size_t)n;
        }
        if (answered == (unsigned)got) WAIT_FOR(x->h, held.n > answered);
        while (answered < held.n) answer(held.reply[answered++], reply);
        cp_autofree char *message = client_message(x->c);
        assert_true(strlen(message) > SIZE);
    }
    assert_int_equal(held.n, ALL);
}

/* Input for a request that still waits for its turn brings the turn. */
static void stdin_for_a_waiting_request(void **state) {
    fixture *x = *state;
    for (int i = 0; i < MUX_WINDOW_FIRST; i++)
        client_textf(x->c, "{\"type\":\"request\",\"id\":%d,\"method\":\"POST\",\"path\":\"/hold\"}", i);
    client_text(x->c, "{\"type\":\"request\",\"id\":\"w\",\"method\":\"POST\",\"path\":\"/hold\"}");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":\"w\",\"data\":\"now\",\"eof\":true}");
    client_text(x->c, "{\"type\":\"request\",\"id\":\"v\",\"method\":\"POST\",\"path\":\"/hold\"}");
    WAIT_FOR(x->h, held.eof);
    assert_string_equal(held.input, "now");
    client_text(x->c, "{\"type\":\"cancel\",\"id\":\"v\"}");
    expect_start(x->c, "{\"type\":\"response\",\"id\":\"v\",\"status\":499");
}

static void large_responses_do_not_starve_small_ones(void **state) {
    fixture *x = *state;
    for (int i = 0; i < 3; i++)
        client_textf(x->c, "{\"type\":\"request\",\"id\":\"L%d\",\"path\":\"/sized?n=300000\"}", i);
    client_text(x->c, "{\"type\":\"request\",\"id\":\"s\",\"method\":\"POST\",\"path\":\"/hold\"}");
    WAIT_FOR(x->h, held.n == 1);
    answer(held.reply[0], "1");
    expect_start(x->c, "{\"type\":\"response\",\"id\":\"L0\"");
    expect_start(x->c, "{\"type\":\"response\",\"id\":\"s\"");
    expect_start(x->c, "{\"type\":\"response\",\"id\":\"L1\"");
    expect_start(x->c, "{\"type\":\"response\",\"id\":\"L2\"");
}

/* ---- inspection and drain ---- */

static void pending_can_be_inspected(void **state) {
    fixture *x = *state;
    client_text(x->c, "{\"type\":\"request\",\"id\":\"r\",\"method\":\"POST\",\"path\":\"/hold\"}");
    client_text(x->c, "{\"type\":\"request\",\"id\":5,\"method\":\"POST\",\"path\":\"/stream?n=2&open=1\"}");
    expect_start(x->c, "{\"type\":\"stream\"");
    cp_autobuf cp_buf json = {0};
    cp_jw w = cp_jw_on(&json);
    cp_ws_pending_json(&x->h->t, &w);
    const char *text = cp_buf_z(&json);
    assert_non_null(strstr(text, "[{\"connection\":1,\"peer\":\"local\",\"kind\":\"websocket\""));
    assert_non_null(strstr(text, "{\"id\":\"r\",\"route\":\"POST /hold\",\"state\":\"running\",\"ageMs\":"));
    assert_non_null(strstr(text, "{\"id\":5,\"route\":\"POST /stream\",\"state\":\"streaming\",\"ageMs\":"));
}

static void set_true(void *arg) { *(bool *)arg = true; }

/* B097: everything that is there goes out, then the close frame. A stream that would go on is said to be interrupted.
 */
static void drain(void **state) {
    fixture *x = *state;
    client_text(x->c, "{\"type\":\"request\",\"id\":1,\"method\":\"POST\",\"path\":\"/hold\"}");
    client_text(x->c, "{\"type\":\"request\",\"id\":2,\"method\":\"POST\",\"path\":\"/stream?n=5000000&open=1\"}");
    client_text(x->c, "{\"type\":\"request\",\"id\":4,\"method\":\"POST\",\"path\":\"/stream?open=1\"}");
    client_text(x->c, "{\"type\":\"request\",\"id\":3,\"path\":\"/sized?n=2000000\"}");
    WAIT_FOR(x->h, feeders.n == 2);
    settle(x->h);
    bool done = false;
    cp_ws_drain_all(&x->h->t, PATIENCE_MS, set_true, &done);
    bool ended[5] = {0};
    size_t streamed = 0;
    for (char *got; (got = client_message(x->c)); free(got)) {
        int id = 0;
        if (sscanf(got, "{\"type\":\"response\",\"id\":%d", &id) == 1) ended[id] = id == 1 || id == 3;
        if (sscanf(got, "{\"type\":\"error\",\"id\":%d", &id) == 1)
            ended[id] = (id == 2 || id == 4) && strstr(got, "\"code\":\"OPERATION_INTERRUPTED\"");
        if (strstr(got, "\"type\":\"stream\"")) streamed += output_bytes(got);
    }
    assert_true(ended[1] && ended[2] && ended[3] && ended[4]);
    assert_int_equal(streamed, 5000000);
    assert_int_equal(held.why, CP_END_SHUTDOWN);
    assert_int_equal(feeders.f[1]->why, CP_END_SHUTDOWN);
    cp_close(&x->c->fd);
    WAIT_FOR(x->h, done);
    assert_int_equal(x->h->t.nconns, 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(not_json),
        TEST(not_a_request),
        TEST(ids_come_back_as_they_were),
        TEST(methods_and_paths),
        TEST(bodies_and_headers),
        TEST(options_are_checked),
        TEST(hello),
        TEST(id_limit),
        TEST(duplicate_id),
        TEST(ten_thousand_pending),
        TEST(message_limit),
        TEST(json_limits),
        TEST(mutated_messages),
        TEST(cancel_of_a_running_request),
        TEST(cancel_of_a_stream),
        TEST(deadline),
        TEST(connection_loss),
        TEST(order_behind_a_large_message),
        TEST(large_request_round_trip),
        TEST(stdin_messages),
        TEST(frames_are_at_most_64k),
        TEST(stream_end_failure_and_ids),
        TEST(window),
        TEST(streams_share_by_priority),
        TEST(small_replies_pass_streams),
        TEST(slow_reader),
        TEST(slow_reader_of_late_replies),
        TEST(stdin_for_a_waiting_request),
        TEST(large_responses_do_not_starve_small_ones),
        TEST(pending_can_be_inspected),
        TEST(drain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
