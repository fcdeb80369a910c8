/* One request, on the worker that CivetWeb serves its connection with. Stacks here are about 100 KB, static TLS
 * included: nothing big lives on them. */
#include "transport/http.h"
#include "transport/peer.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/metrics.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/handshake.h"
#include "transport/ws.h"

typedef struct exchange {
    struct mg_connection *conn;
    cp_slot *slot;
    cp_http_head *head;
    cp_match match;
    cp_request req;
    cp_body body;
    cp_reply_to to;
    uint64_t began_us;
    int status; /* of the reply; for the log */
} exchange;

enum {
    PATIENCE_MS = 100,        /* a reply that the socket does not take goes to the loop after this */
    FILE_PATIENCE_MS = 30000, /* a file cannot: cut when it has waited for its client for longer than this in all, … */
    FILE_MIN_RATE = 64 * 1024, /* … and this rate, in bytes a second, would have taken */
    FILE_STEP = 1 << 20,
};

/* ---- writing ---- */

static ssize_t send_all(int fd, const char *p, size_t n, int patience_ms) {
    size_t done = 0;
    uint64_t until = cp_now_ms() + (uint64_t)patience_ms;
    while (done < n) {
        ssize_t k = send(fd, p + done, n - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k >= 0) {
            done += (size_t)k;
            continue;
        }
        struct pollfd pfd = {.fd = fd, .events = POLLOUT};
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return -1;
        uint64_t now = cp_now_ms();
        if (now >= until || poll(&pfd, 1, (int)(until - now)) <= 0) break;
    }
    return (ssize_t)done;
}

static void must_close(exchange *x) { mg_disable_connection_keep_alive(x->conn); }

/* The rest of the reply goes out from the loop; so does a whole one to a client that is still sending, since closing
 * with unread bytes would reset the connection under it. When no socket can be taken, what fits is sent. */
static void leave_to_loop(exchange *x, size_t sent) {
    cp_err err;
    cp_buf *out = &x->slot->out;
    must_close(x);
    int fd = cp_slot_take(x->slot, NULL, &err);
    if (fd < 0) {
        if (!sent) send_all(x->slot->fd, out->p, out->n, 0);
        return;
    }
    cp_buf_consume(out, sent);
    cp_http_conn_linger(x->slot->srv, fd, out);
}

static bool keeps_alive(const exchange *x) {
    const cp_server *srv = x->slot->srv;
    return x->head->keep_alive && cp_body_done(&x->body) && !cp_server_half_busy(srv) &&
           !atomic_load_explicit(&srv->draining, memory_order_relaxed);
}

/* Waits until the client takes more. *waited: so far, of FILE_PATIENCE_MS. False: for too long. Under pressure the
 * supervisor shuts the socket. */
static bool file_wait(exchange *x, uint64_t sent, uint64_t *waited) {
    struct pollfd p = {.fd = x->slot->fd, .events = POLLOUT};
    uint64_t allowed = FILE_PATIENCE_MS + sent * 1000 / FILE_MIN_RATE, began = cp_now_ms();
    if (*waited >= allowed) return false;
    uint64_t ms = allowed - *waited < FILE_PATIENCE_MS ? allowed - *waited : FILE_PATIENCE_MS;
    cp_slot_deadline(x->slot, ms);
    int n = poll(&p, 1, (int)ms);
    cp_slot_deadline(x->slot, 0);
    *waited += cp_now_ms() - began;
    return n > 0;
}

static void send_file(exchange *x, cp_result *res) {
    uint64_t waited = 0;
    off_t at = (off_t)res->file_off;
    uint64_t left = res->file_len;
    int fd = x->slot->fd;
    while (left) {
        ssize_t k = sendfile(fd, res->file_fd, &at, left < FILE_STEP ? (size_t)left : FILE_STEP);
        if (k > 0) {
            left -= (uint64_t)k;
            continue;
        }
        if (k < 0 && errno == EINTR) continue;
        if (k == 0 || errno != EAGAIN || !file_wait(x, res->file_len - left, &waited)) break;
    }
    if (left) must_close(x); /* short: the client must see that */
}

/* All of it, or false. */
static bool send_patiently(exchange *x, const char *p, size_t n, uint64_t *sent, uint64_t *waited) {
    while (n) {
        ssize_t k = send(x->slot->fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0 && (errno != EAGAIN || !file_wait(x, *sent, waited))) return false;
        if (k < 0) continue;
        p += k;
        n -= (size_t)k;
        *sent += (uint64_t)k;
    }
    return true;
}

/* In chunks (RFC 9112 section 7.1), or to a client of HTTP/1.0 up to the end of the connection. One that is cut lacks
 * the last chunk. */
static void send_source(exchange *x, cp_result *res) {
    enum { HEAD = 10, PIECE = 64 * 1024 };
    bool chunked = x->to.http11, ok = true;
    uint64_t sent = 0, waited = 0;
    ssize_t n = 0;
    cp_autofree char *buf = cp_realloc(NULL, HEAD + PIECE + 2);
    while (ok && (n = res->source->read(res->source, buf + HEAD, PIECE)) > 0) {
        char head[HEAD + 1];
        size_t before = chunked ? (size_t)snprintf(head, sizeof head, "%zx\r\n", (size_t)n) : 0;
        memcpy(buf + HEAD - before, head, before);
        memcpy(buf + HEAD + n, "\r\n", 2);
        ok = send_patiently(x, buf + HEAD - before, before + (size_t)n + (chunked ? 2 : 0), &sent, &waited);
    }
    if (ok && n == 0 && chunked) ok = send_patiently(x, "0\r\n\r\n", 5, &sent, &waited);
    if (!ok || n < 0) must_close(x);
}

/* Head and body leave in one write. */
static void write_reply(exchange *x, cp_result *res) {
    cp_buf *out = &x->slot->out;
    x->status = res->status;
    x->slot->answered = true;
    x->to.keep_alive = keeps_alive(x) && !(res->source && !x->to.http11);
    if (!x->to.keep_alive) must_close(x);
    cp_buf_clear(out);
    cp_http_reply_write(out, &x->to, res);
    bool file = (res->file_fd > 0 || res->source) && !x->to.head_only;
    if (!cp_body_done(&x->body) && !x->body.broken && !file) {
        leave_to_loop(x, 0);
        return;
    }
    ssize_t sent = send_all(x->slot->fd, out->p, out->n, file ? FILE_PATIENCE_MS : PATIENCE_MS);
    if (sent < 0 || (file && (size_t)sent < out->n)) must_close(x);
    else if (file && res->source) send_source(x, res);
    else if (file) send_file(x, res);
    else if ((size_t)sent < out->n) leave_to_loop(x, (size_t)sent);
}

static void refuse(exchange *x, const cp_err *err) {
    cp_result res = {0};
    cp_error_result(&res, err, NULL, (cp_str){0});
    write_reply(x, &res);
    cp_result_free(&res);
}

/* ---- building the request ---- */

static bool prefers_async(const cp_http_head *h) { return cp_http_has_word(h, "Prefer", "respond-async"); }

static void build_request(exchange *x) {
    cp_http_head *h = x->head;
    h->nheaders = cp_gate_strip(&x->slot->srv->gate, h->headers, h->nheaders);
    x->req = (cp_request){
        .method = h->method,
        .path = h->target,
        .query = h->query,
        .headers = h->headers,
        .nheaders = h->nheaders,
        .priority = 3,
        .respond_async = prefers_async(h),
        .trace = 1 + atomic_fetch_add_explicit(&x->slot->srv->t->next_trace, 1, memory_order_relaxed),
        .trace_id = cp_http_header(h, "X-Trace-Id", 0),
    };
}

/* conflux-additions.md, "Requests: fields that any operation accepts". */
static int common_fields(cp_request *req, cp_err *err) {
    static const char *const policies[] = {"continue", "kill", NULL};
    if (!req->body || !yyjson_is_obj(req->body)) return 0;
    int64_t priority = req->priority, deadline = 0;
    int policy = req->kill_on_disconnect;
    if (cp_json_int(req->body, "priority", 0, 7, &priority, err) < 0) return -1;
    if (cp_json_int(req->body, "deadlineMs", 0, INT64_C(1) << 40, &deadline, err) < 0) return -1;
    if (cp_json_enum(req->body, "onDisconnect", policies, &policy, err) < 0) return -1;
    req->priority = (uint8_t)priority;
    req->deadline_ms = (uint64_t)deadline;
    req->kill_on_disconnect = policy == 1;
    return 0;
}

/* Reads and parses the body; the text is dropped at once. body_err: storage for what req->body_err points to. */
static int read_json(exchange *x, yyjson_doc **doc, cp_err *body_err, cp_err *err) {
    cp_buf *in = &x->slot->in;
    cp_buf_clear(in);
    int got = cp_body_read_all(&x->body, (uint64_t)x->slot->srv->t->config->max_body, in, err);
    if (got == 0 && in->n) {
        *doc = cp_json_parse(cp_buf_str(in), body_err);
        if (*doc) x->req.body = yyjson_doc_get_root(*doc);
        else x->req.body_err = body_err;
    }
    cp_body_settle(&x->body, in);
    return got < 0 ? -1 : common_fields(&x->req, err);
}

/* ---- the three ways ---- */

static void serve_here(exchange *x) {
    cp_transport *t = x->slot->srv->t;
    cp_result res = {0};
    cp_router_call(t->router, &x->match, &x->req, &res);
    cp_router_count(t->router, x->match.index, res.status, cp_now_us() - x->began_us);
    write_reply(x, &res);
    cp_result_free(&res);
}

static cp_http_call *make_call(exchange *x, yyjson_doc **doc) {
    return cp_http_call_new(x->slot->srv, &x->match, &x->req, cp_take(*doc), &x->to);
}

static void serve_parked(exchange *x, yyjson_doc **doc) {
    cp_result res = {0};
    if (!cp_http_can_park(x->slot)) {
        cp_err err;
        cp_fail(&err, CP_E_LIMIT_EXCEEDED, "Too many open descriptors");
        refuse(x, &err);
        return;
    }
    if (cp_http_call_park(make_call(x, doc), x->slot, &res)) {
        write_reply(x, &res);
        cp_result_free(&res);
    } else {
        must_close(x);
        x->slot->answered = true;
    }
}

static void serve_taken(exchange *x, yyjson_doc **doc) {
    cp_err err;
    int fd = cp_slot_take(x->slot, x->match.route, &err);
    if (fd < 0) {
        refuse(x, &err);
        return;
    }
    must_close(x);
    x->slot->answered = true;
    cp_http_call_hand(make_call(x, doc), fd);
}

static void serve(exchange *x) {
    const cp_route *route = x->match.route;
    cp_autodoc yyjson_doc *doc = NULL;
    cp_err err = {0}, body_err;
    if (route->flags & CP_R_RAW_BODY) x->req.raw = &x->body.reader;
    else if (read_json(x, &doc, &body_err, &err) < 0) {
        if (x->body.broken) must_close(x); /* the client is gone or stalled: nothing is dispatched */
        else refuse(x, &err);
        return;
    }
    if (route->flags & CP_R_LASTS) serve_taken(x, &doc);
    else if (route->flags & CP_R_LOOP) serve_parked(x, &doc);
    else serve_here(x);
}

/* ---- requests that no route serves ---- */

static void answer_options(exchange *x) {
    char allow[64];
    cp_result res = {.status = 204};
    bool star = cp_str_is(x->head->target, "*");
    if (!star && !cp_router_allow(x->slot->srv->t->router, x->head->target, allow)) {
        cp_router_refuse(&x->match, &res);
    } else {
        cp_buf_addf(&res.headers, "Allow: %s\r\nAccess-Control-Max-Age: 600\r\n",
                    star ? "GET, HEAD, POST, PUT, DELETE, OPTIONS" : allow);
    }
    write_reply(x, &res);
    cp_result_free(&res);
}

static void answer_no_route(exchange *x) {
    cp_transport *t = x->slot->srv->t;
    cp_result res = {0};
    cp_router_refuse(&x->match, &res);
    cp_router_count(t->router, x->match.index, res.status, cp_now_us() - x->began_us);
    write_reply(x, &res);
    cp_result_free(&res);
}

/* ---- WebSocket upgrades ---- */

static cp_str ws_header(const void *ctx, const char *name, size_t index) { return cp_http_header(ctx, name, index); }

static const cp_ws_endpoint *ws_endpoint(const exchange *x) {
    cp_str path = x->head->target;
    if (cp_str_is(path, "/ws") || cp_str_is(path, "/api/ws")) return &cp_ws_mux;
    if (x->slot->srv->t->config->debug_echo && cp_str_is(path, "/ws/echo")) return &cp_ws_echo;
    return NULL;
}

typedef struct adoption {
    cp_task task;
    cp_server *srv;
    int fd;
    const cp_ws_endpoint *endpoint;
    struct sockaddr_storage peer;
} adoption;

static void adopt(cp_task *task) {
    adoption *a = CP_CONTAINER(task, adoption, task);
    cp_taken_give(a->srv);
    cp_ws_adopt(a->srv->t, a->fd, a->endpoint, &a->peer);
    free(a);
}

static void post_adoption(cp_server *srv, int fd, const cp_ws_endpoint *endpoint) {
    adoption *a = cp_new(adoption);
    socklen_t n = sizeof a->peer;
    a->srv = srv;
    a->fd = fd;
    a->endpoint = endpoint;
    (void)getpeername(fd, (struct sockaddr *)&a->peer, &n); /* reset meanwhile: the peer stays unknown */
    cp_loop_post(srv->t->loop, &a->task, adopt);
}

static void refuse_upgrade(exchange *x, const cp_ws_verdict *v) {
    cp_err err;
    cp_result res = {.status = v->status};
    cp_fail(&err, CP_E_INVALID_REQUEST, "%s", v->why);
    cp_error_result(&res, &err, NULL, (cp_str){0});
    cp_buf_addz(&res.headers, v->extra);
    write_reply(x, &res);
    cp_result_free(&res);
}

static void upgrade(exchange *x, const cp_ws_request *rq, const cp_ws_endpoint *endpoint) {
    static const cp_str supported[] = {{CP_WS_SUBPROTOCOL, sizeof CP_WS_SUBPROTOCOL - 1}};
    cp_ws_verdict v;
    cp_err err;
    cp_buf *out = &x->slot->out;
    if (cp_ws_check(rq, supported, CP_COUNT(supported), &v) != 101) {
        refuse_upgrade(x, &v);
        return;
    }
    int fd = cp_slot_take(x->slot, NULL, &err);
    if (fd < 0) {
        refuse(x, &err);
        return;
    }
    must_close(x);
    x->slot->answered = true;
    x->status = 101;
    cp_buf_clear(out);
    cp_ws_accept_head(out, &v, NULL);
    send_all(fd, out->p, out->n, 0); /* an empty socket takes it; if not, it is broken and the loop will notice */
    post_adoption(x->slot->srv, fd, endpoint);
}

/* True when the request was about a WebSocket. */
static bool serve_upgrade(exchange *x) {
    const cp_http_head *h = x->head;
    cp_ws_request rq = {
        .method = h->method_name, .version = h->http11 ? CP_STR("1.1") : CP_STR("1.0"), .header = ws_header, .ctx = h};
    if (!cp_ws_wanted(&rq)) return false;
    const cp_ws_endpoint *endpoint = ws_endpoint(x);
    if (endpoint) {
        upgrade(x, &rq, endpoint);
    } else {
        x->match.route = NULL;
        answer_no_route(x);
    }
    return true;
}

/* ---- the whole ---- */

static bool wants_upgrade(const cp_http_head *h) { return cp_http_has_word(h, "Upgrade", "websocket"); }

/* Only what is parked: a stream or a wait begins a life of its own, and the order of those means little. */
static bool takes_turn(const cp_match *m) {
    return m->route && (m->route->flags & (CP_R_LOOP | CP_R_LASTS)) == CP_R_LOOP;
}

static void route(exchange *x) {
    cp_server *srv = x->slot->srv;
    cp_http_head *h = x->head;
    cp_err err;
    x->match = cp_router_match(srv->t->router, h->method, h->target);
    bool options = h->method == CP_OPTIONS;
    bool open = options || (x->match.route && x->match.route->flags & CP_R_OPEN && !wants_upgrade(h));
    if (!takes_turn(&x->match)) cp_slot_pass(x->slot, cp_body_done(&x->body));
    if (cp_gate_check(&srv->gate, h->headers, h->nheaders, open, wants_upgrade(h), &err) < 0 ||
        (!open && cp_peer_check(srv->t->config, x->slot->fd, &err) < 0)) {
        x->to.cors = err.code == CP_E_UNAUTHORIZED; /* the last check: the origin is a listed one */
        cp_metric_add(CP_M_AUTH_FAILURES, 1);
        refuse(x, &err);
        return;
    }
    x->to.cors = true;
    if (serve_upgrade(x)) return;
    if (options) {
        answer_options(x);
    } else if (!x->match.route) {
        answer_no_route(x);
    } else {
        build_request(x);
        serve(x);
    }
}

static void log_request(const exchange *x) {
    cp_log(CP_LOG_DEBUG, "http.request", "served", CP_KVS("method", x->head->method_name),
           CP_KVS("path", x->head->target), CP_KVI("status", x->status), CP_KVI("us", cp_now_us() - x->began_us),
           CP_KVI("request", x->req.trace), CP_KVS("trace_id", x->req.trace_id));
}

static void begin(exchange *x, struct mg_connection *conn, cp_slot *s) {
    memset(x, 0, sizeof *x);
    x->conn = conn;
    x->slot = s;
    x->head = &s->head;
    x->began_us = cp_now_us();
}

static void finish(exchange *x) {
    if (cp_log_on(CP_LOG_DEBUG)) log_request(x);
    cp_buf_reset(&x->slot->out, CP_SLOT_KEEP);
    cp_buf_reset(&x->slot->in, CP_SLOT_KEEP);
}

static bool has_socket(exchange *x, const struct mg_request_info *ri) {
    if (x->slot->fd >= 0 || cp_slot_find(x->slot, ri)) return true;
    static const char sorry[] = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    must_close(x);
    mg_write(x->conn, sorry, sizeof sorry - 1);
    x->slot->answered = true;
    return false;
}

void cp_http_serve(struct mg_connection *conn, cp_slot *s) {
    exchange x;
    cp_err err;
    const struct mg_request_info *ri = mg_get_request_info(conn);
    begin(&x, conn, s);
    cp_slot_enter(s, CP_SLOT_BUSY);
    if (!has_socket(&x, ri)) return;
    s->turn = true;
    cp_arrival_begin(s->srv->arrivals, &s->arrival);
    int parsed = cp_http_parse(ri, x.head, &err);
    x.to = (cp_reply_to){.origin = x.head->origin, .http11 = x.head->http11, .head_only = x.head->method == CP_HEAD};
    cp_body_init(&x.body, conn, s);
    if (parsed < 0) {
        x.head->keep_alive = false;
        x.body.ended = false; /* whatever follows is not trusted to be a request */
        refuse(&x, &err);
    } else if (!cp_selftest_take(s)) {
        route(&x);
    } else {
        must_close(&x);
    }
    finish(&x);
}

/* CivetWeb does not say which of these it was: a method that it does not know, or anything else that it cannot parse.
 */
static cp_code refusal(const struct mg_request_info *ri, int status) {
    if (status == 413) return CP_E_HEADERS_TOO_LARGE;
    bool parsed = ri->request_method && ri->http_version && strncmp(ri->http_version, "1.", 2) == 0;
    if (status == 400 && parsed && cp_method_of(cp_str_of(ri->request_method)) == CP_METHOD_UNKNOWN)
        return CP_E_METHOD_NOT_ALLOWED;
    return CP_E_INVALID_REQUEST;
}

void cp_http_refused(struct mg_connection *conn, cp_slot *s, int status, const char *why) {
    exchange x;
    cp_err err;
    const struct mg_request_info *ri = mg_get_request_info(conn);
    begin(&x, conn, s);
    memset(x.head, 0, offsetof(cp_http_head, headers));
    if (!has_socket(&x, ri)) return;
    x.to.http11 = true;
    cp_fail(&err, refusal(ri, status), "Malformed request: %s", why);
    refuse(&x, &err);
    finish(&x);
}
