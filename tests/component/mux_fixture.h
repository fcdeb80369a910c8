#pragma once
/* A connection of the multiplexed WebSocket, and routes that answer at once, on the pool, when the test says so, or
 * with a stream. */
#include "component/ws_harness.h"

/* What GET /api/pending says of the connections. */
static inline void write_pending(harness *h, cp_buf *out) {
    cp_jw w = cp_jw_on(out);
    cp_ws_pending *p = cp_ws_pending_open(&h->t);
    cp_jw_arr(&w);
    while (cp_ws_pending_row(p, &w)) continue;
    cp_jw_end_arr(&w);
    cp_ws_pending_close(p);
}

/* ---- routes ---- */

static inline int inline_ok(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
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

static inline int inline_text(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    (void)ctx, (void)req, (void)err;
    res->status = 200;
    res->type = "text/plain; charset=utf-8";
    cp_buf_addz(&res->body, "hello");
    return 0;
}

/* Takes a while of the processor; which connection was served when. */
static struct { unsigned n, other_at; /* served so far; how many when ?other=1 was */ } burnt;
static inline void burn(const cp_request *req) {
    uint64_t other = 0, until = cp_now_us() + 200;
    cp_err err;
    cp_request_param_u64(req, "other", 1, &other, &err);
    burnt.n++;
    if (other) burnt.other_at = burnt.n;
    while (cp_now_us() < until) continue;
}
static inline int burn_inline(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    burn(req);
    return inline_text(ctx, req, res, err);
}
static inline void burn_loop(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    cp_result res = {0};
    cp_err err;
    burn_inline(ctx, req, &res, &err);
    cp_reply_send(reply, &res);
}

/* A JSON string of ?n characters. */
static inline int sized(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
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

static inline int io_echo(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
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
    bool slow; /* its handler has much to do when it is told: longer than a round of the loop may take */
    char input[64];
    bool eof;
    cp_stdin_ack *acks[8];
    unsigned nacks;
} held;

static inline bool held_cancel(cp_reply *r, cp_end why, bool kill) {
    for (uint64_t until = cp_now_us() + 1200; held.slow && cp_now_us() < until;) continue;
    held.cancelled++;
    held.why = why;
    held.kill = kill;
    for (unsigned i = 0; i < held.n; i++)
        if (held.reply[i] == r && !held.will_answer) held.reply[i] = NULL;
    return held.will_answer;
}

/* Of a piece whose receipt is asked for, it is given when the test says so (held.acks), or at once for "now". */
static inline int held_stdin(cp_reply *r, cp_str data, bool eof, cp_stdin_ack *ack, cp_err *err) {
    (void)r;
    if (cp_str_is(data, "bad")) return cp_fail(err, CP_E_PROCESS_ERROR, "stdin is closed");
    snprintf(held.input, sizeof held.input, "%.*s", (int)data.n, data.p);
    held.eof = eof;
    if (ack && cp_str_is(data, "now")) ack->taken(ack);
    else if (ack) held.acks[held.nacks++] = ack;
    return 0;
}

static inline void hold(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    (void)ctx, (void)req;
    if (!held.deaf) {
        reply->on_cancel = held_cancel;
        reply->on_stdin = held_stdin;
    }
    held.reply[held.n++] = reply;
}

static inline void answer(cp_reply *r, const char *json) {
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

static inline cp_pull feeder_pull(cp_source *s, size_t budget, cp_event *ev) {
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

static inline void feeder_close(cp_source *s, cp_end why, bool kill) {
    feeder *f = CP_CONTAINER(s, feeder, src);
    f->closed = true;
    f->why = why;
    f->kill = kill;
}

static const cp_source_ops feeder_ops = {.pull = feeder_pull, .close = feeder_close};

/* ?n bytes, &open=1: waits for more then, &unit=… */
static inline void stream(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
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
    {CP_GET, "/burn", CP_R_INLINE, "burn", burn_inline, NULL, NULL},
    {CP_POST, "/burn", CP_R_LOOP, "burn", NULL, burn_loop, NULL},
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

static inline int setup(void **state) {
    fixture *x = cp_new(fixture);
    memset(&held, 0, sizeof held);
    memset(&feeders, 0, sizeof feeders);
    x->h = harness_new();
    x->c = client_new(x->h, &cp_ws_mux);
    *state = x;
    return 0;
}

static inline int teardown(void **state) {
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

/* Length of the output that a stream message carries. */
static inline size_t output_bytes(const char *message) {
    yyjson_doc *outer = yyjson_read(message, strlen(message), 0);
    yyjson_val *data = yyjson_obj_get(yyjson_doc_get_root(outer), "data");
    yyjson_doc *inner = yyjson_read(yyjson_get_str(data), yyjson_get_len(data), 0);
    size_t n = yyjson_get_len(yyjson_obj_get(yyjson_doc_get_root(inner), "data"));
    yyjson_doc_free(inner);
    yyjson_doc_free(outer);
    return n;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
