#pragma once
/* A loop with WebSocket connections whose other ends the test holds, and a router with routes made for tests: it
 * stands in for handlers/router.c. All in one thread: waiting for something is running the loop until it is there. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/id.h"
#include "component/router_stub.h"
#include "component/until.h"
#include "transport/mux.h"
#include "transport/ws.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- what router.c would do; the routes are the test program's ---- */

static struct {
    unsigned total;
    unsigned by_status[600];
} counted;

struct cp_router {
    cp_ctx *ctx;
};

static inline bool refused(const cp_match *m, const cp_request *req, cp_result *res) {
    cp_err err;
    if (!m->route) cp_router_refuse(m, res);
    else if (m->route->flags & (CP_R_HTTP_ONLY | CP_R_RAW_BODY)) {
        cp_fail(&err, CP_E_NOT_SUPPORTED, "This endpoint is served over HTTP only");
        cp_error_result(res, &err, NULL, (cp_str){0});
    } else if ((m->route->flags & CP_R_BODY) && !yyjson_is_obj(req->body)) {
        cp_fail(&err, CP_E_INTERNAL_ERROR, "Failed to parse request body: x");
        cp_error_result(res, &err, NULL, (cp_str){0});
    } else return false;
    return true;
}

static inline void serve(const cp_route *route, const cp_request *req, cp_result *res) {
    cp_err err = {0};
    if (route->sync(NULL, req, res, &err) == 0) return;
    cp_result_free(res);
    cp_error_result(res, &err, NULL, (cp_str){0});
}

void cp_router_call(cp_router *r, const cp_match *m, cp_request *req, cp_result *res) {
    (void)r;
    if (!refused(m, req, res)) serve(m->route, req, res);
}

typedef struct io_job {
    cp_work work;
    const cp_route *route;
    cp_request *req;
    yyjson_doc *doc;
    cp_reply *reply;
    cp_result res;
} io_job;

static inline void io_run(cp_work *w) {
    io_job *j = CP_CONTAINER(w, io_job, work);
    serve(j->route, j->req, &j->res);
}

static inline void io_done(cp_work *w) {
    io_job *j = CP_CONTAINER(w, io_job, work);
    if (j->reply) cp_reply_send(j->reply, &j->res);
    else cp_result_free(&j->res);
    yyjson_doc_free(j->doc);
    free(j->req);
    free(j);
}

static inline bool io_cancel(cp_reply *reply, cp_end why, bool kill) {
    (void)why, (void)kill;
    ((io_job *)reply->handler)->reply = NULL;
    return false;
}

void cp_router_dispatch(cp_router *r, const cp_match *m, cp_request *req, yyjson_doc *doc, cp_reply *reply) {
    cp_result res = {0};
    if (refused(m, req, &res)) {
        cp_reply_send(reply, &res);
    } else if (m->route->flags & CP_R_LOOP) {
        m->route->async(r->ctx, req, reply);
    } else {
        io_job *j = cp_new(io_job);
        *j = (io_job){.route = m->route, .req = cp_request_keep(req), .doc = doc, .reply = reply};
        reply->handler = j;
        reply->on_cancel = io_cancel;
        cp_workers_submit(r->ctx->workers, &j->work, io_run, io_done);
        return;
    }
    yyjson_doc_free(doc);
}

void cp_router_count(cp_router *r, unsigned index, int status, uint64_t us) {
    (void)r, (void)index, (void)us;
    counted.total++;
    counted.by_status[status]++;
}

/* ---- the server ---- */

typedef struct harness {
    cp_config config;
    cp_transport t;
    cp_ctx ctx;
    cp_router router;
} harness;

static inline harness *harness_new(void) {
    harness *h = cp_new(harness);
    cp_err err;
    h->config = (cp_config){.max_message = 16 << 20,
                            .max_pending = 10000,
                            .max_request_id = 512,
                            .ping_interval = 15000,
                            .stall_timeout = 300000};
    h->t.loop = cp_loop_new(&err);
    h->t.workers = cp_workers_new(h->t.loop, 2, &err);
    h->t.config = &h->config;
    h->t.ctx = &h->ctx;
    h->t.router = &h->router;
    h->router.ctx = &h->ctx;
    h->ctx.workers = h->t.workers;
    memset(&counted, 0, sizeof counted);
    return h;
}

static inline void harness_free(harness *h) {
    cp_ws_close_all(&h->t);
    assert_int_equal(h->t.nconns, 0);
    cp_workers_free(h->t.workers);
    cp_loop_once(h->t.loop, 0); /* what the pool had posted */
    cp_ws_close_all(&h->t);
    cp_loop_free(h->t.loop);
    free(h);
}

#define WAIT_FOR(h, cond) loop_until((h)->t.loop, cond)

/* Rounds without anything to do: what was going to happen has happened. */
static inline void settle(harness *h) {
    for (int i = 0; i < 20; i++) cp_loop_once(h->t.loop, 1);
}

/* ---- the client ---- */

typedef struct client {
    harness *h;
    int fd;
    cp_frame_in in;
    cp_buf got; /* read and not decoded; decoded[0..at) */
    size_t at;
    bool eof;
    size_t largest_frame; /* seen by client_scan */
} client;

static inline client *client_new_buf(harness *h, const cp_ws_endpoint *ep, int sndbuf) {
    int sv[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv), 0);
    if (sndbuf) setsockopt(sv[1], SOL_SOCKET, SO_SNDBUF, &sndbuf, sizeof sndbuf);
    client *c = cp_new(client);
    c->h = h;
    c->fd = sv[0];
    cp_frame_in_init(&c->in, CP_FRAME_CLIENT, 1u << 30);
    cp_ws_adopt(&h->t, sv[1], ep, NULL, NULL);
    return c;
}
static inline client *client_new(harness *h, const cp_ws_endpoint *ep) { return client_new_buf(h, ep, 0); }

static inline void client_free(client *c) {
    cp_close(&c->fd);
    cp_frame_in_fini(&c->in);
    cp_buf_free(&c->got);
    free(c);
}

static inline void client_write(client *c, const void *p, size_t n) {
    const char *at = p;
    uint64_t until = cp_now_ms() + PATIENCE_MS;
    while (n) {
        ssize_t k = send(c->fd, at, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EPIPE) return;
        if (k < 0) {
            assert_int_equal(errno, EAGAIN);
            if (cp_now_ms() > until) fail_msg("the server does not read");
            cp_loop_once(c->h->t.loop, 10);
            continue;
        }
        at += k;
        n -= (size_t)k;
    }
}

static inline void client_frame(client *c, unsigned op, bool fin, const void *p, size_t n) {
    cp_autobuf cp_buf b = {0};
    uint8_t mask[4];
    cp_random(mask, sizeof mask);
    cp_frame_put(&b, op, fin, p, n, mask);
    client_write(c, b.p, b.n);
}

static inline void client_text(client *c, const char *text) { client_frame(c, CP_OP_TEXT, true, text, strlen(text)); }

static inline void client_textf(client *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static inline void client_textf(client *c, const char *fmt, ...) {
    char text[4096];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    assert_in_range(n, 0, sizeof text - 1);
    client_text(c, text);
}

static inline bool client_read(client *c) {
    cp_buf_reserve(&c->got, 256 * 1024);
    ssize_t n = read(c->fd, c->got.p + c->got.n, 256 * 1024);
    if (n == 0 || (n < 0 && errno != EAGAIN)) c->eof = true;
    if (n > 0) c->got.n += (size_t)n;
    return n > 0;
}

/* The next event; NEED_MORE at the end of input. */
static inline cp_frame_event client_next(client *c) {
    cp_frame_event ev = {0};
    uint64_t until = cp_now_ms() + PATIENCE_MS;
    for (;;) {
        size_t used;
        if (c->at < c->got.n) {
            cp_frame_kind k = cp_frame_next(&c->in, c->got.p + c->at, c->got.n - c->at, &used, &ev);
            c->at += used;
            if (k != CP_FRAME_NEED_MORE) return ev;
        }
        c->at = c->got.n = 0;
        if (c->eof) return ev;
        if (cp_now_ms() > until) fail_msg("no message in time");
        cp_loop_once(c->h->t.loop, client_read(c) ? 0 : 5);
    }
}

/* The next data message as a string; owner frees. NULL at a close or the end. */
static inline char *client_message(client *c) {
    for (;;) {
        cp_frame_event ev = client_next(c);
        if (ev.kind == CP_FRAME_MESSAGE) return cp_str_dup(ev.payload);
        if (ev.kind != CP_FRAME_PING && ev.kind != CP_FRAME_PONG) return NULL;
    }
}

static inline void expect_message(client *c, const char *text) {
    cp_autofree char *got = client_message(c);
    if (!got) fail_msg("end instead of %s", text);
    assert_string_equal(got, text);
}

static inline void expect_start(client *c, const char *text) {
    cp_autofree char *got = client_message(c);
    if (!got || strncmp(got, text, strlen(text)) != 0) fail_msg("%.200s instead of %s", got ? got : "end", text);
}

/* A close frame with this code, then the end of the connection. */
static inline void expect_close(client *c, unsigned code) {
    cp_frame_event ev;
    do ev = client_next(c);
    while (ev.kind == CP_FRAME_MESSAGE || ev.kind == CP_FRAME_PING || ev.kind == CP_FRAME_PONG);
    assert_int_equal(ev.kind, CP_FRAME_CLOSE);
    assert_int_equal(ev.code, code);
}

static inline void expect_end(client *c) { WAIT_FOR(c->h, (client_read(c), c->eof)); }
