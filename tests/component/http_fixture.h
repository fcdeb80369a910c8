/* A server on port 0 with a small route table of its own in place of handlers/router.c, its loop on a thread, and a raw
 * client. */
#pragma once
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/sha.h"
#include "component/config_fixture.h"
#include "component/router_stub.h"
#include "component/wait.h"
#include "transport/http/http.h"
#include "transport/ws.h"

/* ---- what the handlers have seen; any thread ---- */

static _Atomic int seen_calls, seen_cancels, seen_kill, seen_close, seen_why;
static _Atomic uint64_t seen_bytes;
static cp_reply *_Atomic held_reply;

static int h_ping(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    (void)ctx, (void)err;
    seen_calls++;
    res->status = 200;
    cp_buf_addf(&res->body, "{\"path\":\"%.*s\",\"query\":\"%.*s\",\"auth\":%s}", (int)req->path.n, req->path.p,
                (int)req->query.n, req->query.p, cp_request_header(req, "authorization").p ? "true" : "false");
    return 0;
}

static int h_echo(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    (void)ctx;
    seen_calls++;
    if (!req->body) return cp_fail(err, CP_E_INTERNAL_ERROR, "no body: %s", req->body_err ? req->body_err->msg : "-");
    res->status = 200;
    cp_jw w = cp_jw_on(&res->body);
    cp_jw_val(&w, req->body);
    return 0;
}

enum { BIG = 8 << 20 };

static int h_big(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    (void)ctx, (void)req, (void)err;
    res->status = 200;
    res->type = "text/plain";
    cp_buf_reserve(&res->body, BIG);
    memset(res->body.p, 'x', BIG);
    res->body.n = BIG;
    return 0;
}

static int h_file(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    (void)ctx, (void)req, (void)err;
    res->status = 206;
    res->type = "application/octet-stream";
    res->file_fd = cp_memfd("file", "0123456789", 10);
    res->file_off = 2;
    res->file_len = 5;
    return 0;
}

static _Atomic int blocked_on; /* a descriptor that ends when /blocks shall answer */

static int h_blocks(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    (void)ctx, (void)req, (void)err;
    struct pollfd p = {.fd = blocked_on};
    seen_calls++;
    poll(&p, 1, -1);
    res->status = 200;
    return 0;
}

static int h_raw(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    (void)ctx;
    char buf[4096];
    ssize_t n;
    uint64_t total = 0;
    while ((n = req->raw->read(req->raw, buf, sizeof buf)) > 0) total += (uint64_t)n;
    seen_bytes = total;
    if (n < 0) return cp_fail(err, CP_E_OPERATION_INTERRUPTED, "cut");
    res->status = 200;
    cp_buf_addf(&res->body, "{\"bytes\":%llu,\"length\":%lld}", (unsigned long long)total, (long long)req->raw->length);
    return 0;
}

static bool answers_when_cancelled;

static bool on_cancel(cp_reply *r, cp_end why, bool kill) {
    cp_result res = {.status = 200};
    held_reply = NULL;
    if (answers_when_cancelled) cp_reply_send(r, &res);
    seen_why = (int)why;
    seen_kill = kill;
    seen_cancels++;
    return false;
}

/* Answered by answer_held, or never. */
static void h_later(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    (void)ctx, (void)req;
    reply->on_cancel = on_cancel;
    held_reply = reply;
    seen_calls++;
}

static void h_now(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    (void)ctx;
    cp_result res = {.status = 200};
    cp_buf_addf(&res.body, "{\"now\":\"%.*s\"}", (int)req->query.n, req->query.p);
    cp_reply_send(reply, &res);
}

typedef struct ticker {
    cp_source src;
    int left;               /* events still to come; < 0: none ever, waits */
    bool ids, fat, lingers; /* fat: 1 KB each; lingers: waits after the last */
} ticker;

static cp_pull tick_pull(cp_source *s, size_t budget, cp_event *ev) {
    ticker *t = CP_CONTAINER(s, ticker, src);
    (void)budget;
    if (t->left < 0 || (t->left == 0 && t->lingers)) return CP_PULL_WAIT;
    if (t->left == 0) return CP_PULL_END;
    if (t->ids) snprintf(ev->id, sizeof ev->id, "%d-0", t->left);
    cp_jw_obj(&ev->w);
    cp_jw_ki64(&ev->w, "left", t->left--);
    char pad[1001];
    memset(pad, 'p', sizeof pad - 1);
    pad[1000] = '\0';
    if (t->fat) cp_jw_kz(&ev->w, "pad", pad);
    cp_jw_end_obj(&ev->w);
    return CP_PULL_EVENT;
}

static void tick_close(cp_source *s, cp_end why, bool kill) {
    seen_why = (int)why;
    seen_kill = kill;
    seen_close++;
    free(CP_CONTAINER(s, ticker, src));
}

static void h_stream(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    static const cp_source_ops ops = {.pull = tick_pull, .close = tick_close};
    (void)ctx;
    cp_str n = {0}, fat;
    ticker *t = cp_new(ticker);
    t->src.ops = &ops;
    t->ids = cp_request_header(req, "Last-Event-ID").p != NULL;
    t->fat = cp_request_query(req, "fat", &fat);
    t->lingers = cp_request_query(req, "lingers", &fat);
    uint64_t left = 0;
    t->left = cp_request_query(req, "n", &n) && cp_str_u64(n, 1 << 30, &left) ? (int)left : -1;
    seen_calls++;
    cp_reply_stream(reply, &t->src);
}

const cp_route test_routes[] = {
    {.method = CP_GET, .pattern = "/api/ping", .flags = CP_R_INLINE, .op = "ping", .sync = h_ping},
    {.method = CP_GET, .pattern = "/healthz", .flags = CP_R_INLINE | CP_R_OPEN, .op = "health", .sync = h_ping},
    {.method = CP_POST, .pattern = "/echo", .flags = CP_R_IO, .op = "echo", .sync = h_echo},
    {.method = CP_GET, .pattern = "/big", .flags = CP_R_IO, .op = "big", .sync = h_big},
    {.method = CP_GET, .pattern = "/file", .flags = CP_R_IO, .op = "file", .sync = h_file},
    {.method = CP_GET, .pattern = "/blocks", .flags = CP_R_IO, .op = "blocks", .sync = h_blocks},
    {.method = CP_PUT, .pattern = "/raw", .flags = CP_R_IO | CP_R_RAW_BODY, .op = "raw", .sync = h_raw},
    {.method = CP_POST, .pattern = "/later", .flags = CP_R_LOOP, .op = "later", .async = h_later},
    {.method = CP_POST, .pattern = "/now", .flags = CP_R_LOOP, .op = "now", .async = h_now},
    {.method = CP_GET, .pattern = "/stream", .flags = CP_R_LOOP | CP_R_LASTS, .op = "stream", .async = h_stream},
    {.method = CP_POST, .pattern = "/surprise", .flags = CP_R_LOOP, .op = "surprise", .async = h_stream},
    {.method = CP_GET, .pattern = "/wait", .flags = CP_R_LOOP | CP_R_LASTS, .op = "wait", .async = h_later},
};

const size_t test_nroutes = CP_COUNT(test_routes);

/* ---- what router.c would do ---- */

struct cp_router {
    cp_ctx ctx;
    _Atomic uint64_t counted;
};

bool cp_router_allow(cp_router *r, cp_str path, char out[64]) {
    (void)r;
    for (size_t i = 0; i < test_nroutes; i++) {
        if (!cp_str_is(path, test_routes[i].pattern)) continue;
        snprintf(out, 64, "%s", test_routes[i].method == CP_GET ? "GET, HEAD, OPTIONS" : "POST, OPTIONS");
        return true;
    }
    return false;
}

void cp_router_call(cp_router *r, const cp_match *m, cp_request *req, cp_result *res) {
    cp_err err = {0};
    if (req->body_err && req->body_err->code == CP_E_PAYLOAD_TOO_LARGE)
        cp_error_result(res, req->body_err, NULL, (cp_str){0});
    else if (m->route->sync(&r->ctx, req, res, &err) < 0) {
        cp_result_free(res);
        cp_error_result(res, &err, m->route->op, (cp_str){0});
    }
}

void cp_router_dispatch(cp_router *r, const cp_match *m, cp_request *req, yyjson_doc *doc, cp_reply *reply) {
    m->route->async(&r->ctx, req, reply);
    yyjson_doc_free(doc);
}

void cp_router_count(cp_router *r, unsigned index, int status, uint64_t us) {
    (void)index, (void)status, (void)us;
    r->counted++;
}

/* ---- the server ---- */

typedef struct fixture {
    cp_config cfg;
    cp_router router;
    cp_transport t;
    uint16_t port;
    pthread_t thread;
    pthread_mutex_t mu;
    pthread_cond_t up;
    int state; /* 1 up, -1 failed */
    cp_err err;
} fixture;

static void fx_signal(fixture *f, int state) {
    pthread_mutex_lock(&f->mu);
    f->state = state;
    pthread_cond_broadcast(&f->up);
    pthread_mutex_unlock(&f->mu);
}

static void *fx_main(void *arg) {
    fixture *f = arg;
    f->t.loop = cp_loop_new(&f->err);
    f->t.router = &f->router;
    f->t.config = &f->cfg;
    f->t.ctx = &f->router.ctx;
    int rc = f->t.loop ? cp_server_open(&f->t, 0, &f->port, &f->err) : -1;
    fx_signal(f, rc < 0 ? -1 : 1);
    if (rc == 0) {
        cp_loop_run(f->t.loop, &f->err);
        cp_server_close(&f->t);
        cp_ws_close_all(&f->t);
    }
    cp_loop_free(f->t.loop);
    return NULL;
}

static inline void fx_reset(void) {
    seen_calls = seen_cancels = seen_kill = seen_close = 0;
    seen_bytes = 0;
    seen_why = -1;
    held_reply = NULL;
}

static fixture *fx_prepare(void) {
    fixture *f = cp_new(fixture);
    config_defaults(&f->cfg);
    f->cfg.http_workers = 16;
    pthread_mutex_init(&f->mu, NULL);
    pthread_cond_init(&f->up, NULL);
    static bool logs;
    if (!logs) cp_log_setup(2, CP_LOG_WARN, false); /* before the first thread */
    logs = true;
    fx_reset();
    return f;
}

static inline void fx_start(fixture *f) {
    assert_int_equal(pthread_create(&f->thread, NULL, fx_main, f), 0);
    pthread_mutex_lock(&f->mu);
    while (!f->state) pthread_cond_wait(&f->up, &f->mu);
    pthread_mutex_unlock(&f->mu);
    if (f->state < 0) fail_msg("%s", f->err.msg);
}

static inline void fx_stop(fixture *f) {
    cp_loop_stop(f->t.loop);
    pthread_join(f->thread, NULL);
    free(f);
}

/* CivetWeb takes two seconds to stop: one server for all tests of a group, and one group at a time. */
static inline int fx_up(void **state) {
    fixture *f = *state = fx_prepare();
    fx_start(f);
    return 0;
}
static inline int fx_down(void **state) {
    fx_stop(*state);
    return 0;
}

/* Runs fn on the loop and waits for it. */
typedef struct on_loop {
    cp_task task;
    void (*fn)(void *arg);
    void *arg;
    _Atomic bool done;
} on_loop;

static inline void on_loop_run(cp_task *t) {
    on_loop *o = CP_CONTAINER(t, on_loop, task);
    o->fn(o->arg);
    o->done = true;
}

#define WAIT_FOR(cond) wait_until(cond)

static void count_phase(cp_client *c, void *arg) {
    int *want = arg; /* phase, count */
    if (atomic_load(&c->state) & CP_STATE_OPEN && atomic_load(&c->phase) == (cp_client_phase)want[0]) want[1]++;
}

/* Clients in this phase, now. */
static inline int clients_in(const fixture *f, cp_client_phase phase) {
    int want[2] = {(int)phase, 0};
    cp_clients_each(f->t.server->clients, count_phase, want);
    return want[1];
}

/* Before each test of a group. */
static inline int fx_again(void **state) {
    const fixture *f = *state;
    WAIT_FOR(f->t.nconns == 0 && atomic_load(&f->t.server->open) == 0);
    fx_reset();
    return 0;
}

static inline void run_on_loop(const fixture *f, void (*fn)(void *), void *arg) {
    on_loop o = {.fn = fn, .arg = arg};
    cp_loop_post(f->t.loop, &o.task, on_loop_run);
    WAIT_FOR(o.done);
}

static inline void answer_held_fn(void *arg) {
    cp_result res = {.status = 200};
    cp_buf_addz(&res.body, arg);
    cp_reply *r = held_reply;
    held_reply = NULL;
    if (r) cp_reply_send(r, &res);
}
static inline void answer_held(const fixture *f, const char *body) {
    WAIT_FOR(held_reply);
    run_on_loop(f, answer_held_fn, (void *)(uintptr_t)body);
}

/* ---- the client ---- */

#define H "Host: 127.0.0.1\r\n"

static inline int dial(const fixture *f) {
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(f->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static inline void put(int fd, const char *bytes) {
    size_t n = strlen(bytes), done = 0;
    while (done < n) {
        ssize_t k = send(fd, bytes + done, n - done, MSG_NOSIGNAL);
        if (k <= 0) return; /* refused early: the reply tells */
        done += (size_t)k;
    }
}

static inline void putf(int fd, const char *fmt, ...) {
    char buf[16384];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(buf, sizeof buf, fmt, ap);
    va_end(ap);
    put(fd, buf);
}

/* Appends what comes; false at the end, on error, or after PATIENCE_MS of silence. */
static inline bool more(int fd, cp_buf *b) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, PATIENCE_MS) != 1) return false;
    cp_buf_reserve(b, 65536);
    ssize_t n = read(fd, b->p + b->n, 65536);
    if (n > 0) b->n += (size_t)n;
    return n > 0;
}

static inline bool more_bytewise(int fd, cp_buf *b) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char byte;
    if (poll(&p, 1, PATIENCE_MS) != 1 || read(fd, &byte, 1) != 1) return false;
    cp_buf_addc(b, byte);
    return true;
}

typedef struct response {
    cp_buf raw;
    int status;
    cp_str head, body; /* body: content (chunks joined) */
    cp_buf joined;
    size_t at;     /* chunks joined so far end here in raw */
    bool complete; /* Content-Length reached or last chunk seen */
    bool closes;
} response;

static inline cp_str header_of(const response *r, const char *name) {
    char key[64];
    int n = snprintf(key, sizeof key, "\r\n%s: ", name);
    const char *p = memmem(r->head.p, r->head.n, key, (size_t)n);
    if (!p) return (cp_str){0};
    p += n;
    const char *end = memmem(p, (size_t)(r->head.p + r->head.n - p), "\r\n", 2);
    return (cp_str){p, (size_t)(end - p)};
}

static inline int count_headers(const response *r, const char *name) {
    char key[64];
    int n = snprintf(key, sizeof key, "\r\n%s: ", name), found = 0;
    const char *p = r->head.p, *end = p + r->head.n;
    while ((p = memmem(p, (size_t)(end - p), key, (size_t)n))) found++, p += n;
    return found;
}

/* Joins what has become whole since the last call. */
static inline bool join_chunks(response *r) {
    for (;;) {
        char *nl = memmem(r->raw.p + r->at, r->raw.n - r->at, "\r\n", 2);
        if (!nl) return false;
        size_t n = strtoul(r->raw.p + r->at, NULL, 16), data = (size_t)(nl + 2 - r->raw.p);
        if (r->raw.n < data + n + 2) return false;
        if (n == 0) return true;
        cp_buf_add(&r->joined, r->raw.p + data, n);
        r->at = data + n + 2;
    }
}

static inline void free_response(response *r) {
    cp_buf_free(&r->raw);
    cp_buf_free(&r->joined);
}

/* Reads one response; left-over bytes of the next one stay out by asking for one response at a time. */
static inline response get_for(int fd, bool head_only) {
    response r = {0};
    char *end = NULL;
    while (!end && more(fd, &r.raw)) end = memmem(r.raw.p, r.raw.n, "\r\n\r\n", 4);
    if (!end) return r;
    size_t at = (size_t)(end + 4 - r.raw.p), want = 0;
    r.head = (cp_str){r.raw.p, at};
    r.at = at;
    r.status = (int)strtol(r.raw.p + 9, NULL, 10);
    cp_str length = header_of(&r, "Content-Length");
    bool chunked = header_of(&r, "Transfer-Encoding").p != NULL;
    r.closes = cp_str_is(header_of(&r, "Connection"), "close");
    if (length.p) want = strtoul(length.p, NULL, 10);
    for (;;) {
        bool no_body = head_only || r.status == 204 || r.status == 101;
        r.complete = no_body || (chunked ? join_chunks(&r) : length.p && r.raw.n >= at + want);
        if (r.complete || !more(fd, &r.raw)) break;
    }
    r.head = (cp_str){r.raw.p, at};
    r.body = chunked ? cp_buf_str(&r.joined) : (cp_str){r.raw.p + at, r.raw.n - at};
    return r;
}
static inline response get(int fd) { return get_for(fd, false); }

static inline bool body_has(const response *r, const char *text) {
    return memmem(r->body.p, r->body.n, text, strlen(text)) != NULL;
}

/* Waits for the end of the connection; silence is none. */
static inline bool at_end(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char byte;
    return poll(&p, 1, PATIENCE_MS) == 1 && read(fd, &byte, 1) <= 0;
}

/* One request on a connection of its own; status, and the body must hold `text` when given. */
static inline int ask(const fixture *f, const char *request, const char *text) {
    int fd = dial(f);
    put(fd, request);
    response r = get(fd);
    if (text && !body_has(&r, text)) fail_msg("no %s in: %.*s", text, (int)r.raw.n, r.raw.p);
    int status = r.status;
    free_response(&r);
    close(fd);
    return status;
}
