/* Doors "http": keep-alive connections, each with one request at a time, and "http-close": a connection for each
 * request. What the server closes is opened again for the next request, as any HTTP client does it. */
#include <errno.h>
#include <stdio.h>

#include "load/doors.h"
#include "load/load.h"
#include "load/request.h"
#include "load/sock.h"

static void http_open(conn *c) {
    c->fd = sock_begin();
    http_in_next(&c->http);
}

static void make(cp_buf *out, slot *s, bool close) {
    cp_autobuf cp_buf body = {0};
    request_body(&body, s->op, s->step);
    cp_buf_addf(out, "%s %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n", opt.method, opt.path, (int)opt.port);
    if (close) cp_buf_addz(out, "Connection: close\r\n");
    if (request_has_body()) cp_buf_addf(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body.n);
    cp_buf_addz(out, "\r\n");
    if (body.n) cp_buf_add(out, body.p, body.n);
}

static void put(conn *c, slot *s, bool close) {
    if (!request_fixed()) {
        make(&c->out, s, close);
        return;
    }
    if (!c->made->n) make(c->made, s, close);
    cp_buf_add(&c->out, c->made->p, c->made->n);
}

static void put_keep(conn *c, slot *s, unsigned nth) {
    (void)nth;
    put(c, s, false);
}

static void put_close(conn *c, slot *s, unsigned nth) {
    (void)nth;
    put(c, s, true);
}

static void answered(conn *c, uint64_t now) {
    slot *s = engine_single(c);
    if (!s) die("a response that belongs to no request");
    if (c->http.close) sock_drop(&c->fd);
    http_in_next(&c->http);
    engine_reply(s, now);
}

static void take(conn *c, char *p, size_t n, uint64_t now) {
    size_t used = http_in_feed(&c->http, p, n);
    errno = 0;
    if (c->http.status && (c->http.status < 200 || c->http.status > 299)) {
        fprintf(stderr, "%.*s\n", (int)(n > 500 ? 500 : n), p);
        die("not a 200 response");
    }
    if (c->http.state != HTTP_DONE) return;
    if (used != n) die("bytes that belong to no response");
    answered(c, now);
}

static bool ended(conn *c, uint64_t now) {
    if (!c->http.unending || c->http.state != HTTP_BODY) return false;
    answered(c, now);
    return true;
}

#define HTTP .one_slot = true, .reconnect = true, .open = http_open, .take = take, .ended = ended
const door door_http = {.name = "http", HTTP, .put = put_keep};
const door door_http_close = {.name = "http-close", HTTP, .put = put_close};
