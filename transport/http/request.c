/* One request: from bytes of a client to its answer. On a worker, whose stack is about 100 KB, static TLS included:
 * nothing big lives on it.
 *
 * Design notes. A client comes to a worker when something has happened on its socket (cp_request_advance). Once its
 * head is whole it is fed to CivetWeb, which parses it and calls cp_request_serve. If more of the body is needed than
 * has come, the client goes back to rest; when the body is whole the same head is fed once more. A request then takes
 * one of three ways: it is served here (INLINE, IO), the loop takes the client over (LOOP), or a side thread does (a
 * large raw body, or file work when there is too much of it). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/metrics.h"
#include "transport/handshake.h"
#include "transport/http/http.h"
#include "transport/peer.h"
#include "transport/ws.h"

typedef struct exchange {
    cp_crewman *w;
    cp_client *c;
    cp_server *srv;
    cp_http_head *head;
    cp_match match;
    cp_request req;
    cp_err body_err; /* what req.body_err points to */
    cp_body_stream stream;
    cp_reply_to to;
    uint64_t began_us;
} exchange;

enum {
    IN_A_ROW = 16, /* pipelined requests of one client, before the others have their turn */
    LINGER_MS = 2000,
    LINGER_BYTES = 256 << 20,    /* who is refused at the head of a large body sends on until it has read that */
    LINGER_AT_ONCE = 256 * 1024, /* bytes, before the others have their turn */
};

#define ALL_METHODS "GET, HEAD, POST, PUT, DELETE, OPTIONS"

/* ---- answering ---- */

/* Before the reply goes out: with it the client may become somebody else's, and its buffer, which the head lies in. */
static void log_request(const exchange *x, int status) {
    if (!cp_log_on(CP_LOG_DEBUG)) return;
    cp_log(CP_LOG_DEBUG, "http.request", "served", CP_KVS("method", x->head->method_name),
           CP_KVS("path", x->head->target), CP_KVI("status", status), CP_KVI("us", cp_now_us() - x->began_us),
           CP_KVI("request", x->req.trace), CP_KVS("trace_id", x->req.trace_id));
}

static void answer(exchange *x, cp_result *res) {
    log_request(x, res->status);
    x->w->client = cp_send_reply(x->c, &x->to, res, &x->w->out) ? x->c : NULL;
}

static void refuse(exchange *x, const cp_err *err) {
    cp_result res = {0};
    cp_error_result(&res, err, NULL, (cp_str){0});
    answer(x, &res);
}

/* What the router knows is answered under its name in the metrics. */
static void count(const exchange *x, int status) {
    cp_router_count(x->srv->t->router, x->match.index, status, cp_now_us() - x->began_us);
}

void cp_request_refuse_raw(cp_client *c, const cp_err *err, bool http11) {
    cp_autobuf cp_buf out = {0};
    cp_result res = {0};
    cp_reply_to to = {.http11 = http11};
    cp_error_result(&res, err, NULL, (cp_str){0});
    (void)cp_send_reply(c, &to, &res, &out);
}

void cp_request_refused(cp_crewman *w, const char *why) {
    cp_err err;
    cp_client *c = cp_take(w->client);
    w->fed = false;
    cp_fail(&err, CP_E_INVALID_REQUEST, "Malformed request: %s", why);
    c->body.ended = false; /* whatever follows is not trusted to be a request */
    cp_request_refuse_raw(c, &err, true);
}

/* ---- building the request ---- */

static bool prefers_async(const cp_http_head *h) { return cp_http_has_word(h, "Prefer", "respond-async"); }

static void build_request(exchange *x) {
    cp_http_head *h = x->head;
    h->nheaders = cp_gate_strip(&x->srv->gate, h->headers, h->nheaders);
    x->req = (cp_request){
        .method = h->method,
        .path = h->target,
        .query = h->query,
        .headers = h->headers,
        .nheaders = h->nheaders,
        .priority = 3,
        .client = x->c->id,
        .respond_async = prefers_async(h),
        .trace = 1 + atomic_fetch_add_explicit(&x->srv->t->next_trace, 1, memory_order_relaxed),
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
    if (cp_json_int(req->body, "deadlineMs", 0, INT32_MAX, &deadline, err) < 0) return -1;
    if (cp_json_enum(req->body, "onDisconnect", policies, &policy, err) < 0) return -1;
    req->priority = (uint8_t)priority;
    req->deadline_ms = (uint64_t)deadline;
    req->kill_on_disconnect = policy == 1;
    return 0;
}

/* The body is whole. */
static int read_json(exchange *x, yyjson_doc **doc, cp_err *err) {
    cp_str text = cp_body_text(x->c);
    if (text.n) {
        *doc = cp_json_parse(text, &x->body_err);
        if (*doc) x->req.body = yyjson_doc_get_root(*doc);
        else x->req.body_err = &x->body_err;
    }
    return common_fields(&x->req, err);
}

/* ---- the three ways ---- */

static void serve_here(exchange *x) {
    cp_transport *t = x->srv->t;
    cp_result res = {0};
    cp_metric_add(CP_M_HTTP_WORKERS_BUSY, 1);
    cp_router_call(t->router, &x->match, &x->req, &res);
    cp_metric_add(CP_M_HTTP_WORKERS_BUSY, -1);
    count(x, res.status);
    answer(x, &res);
}

bool cp_blocking_begin(cp_server *srv) {
    if (atomic_fetch_add(&srv->blocking, 1) < (srv->workers + 1) / 2) return true;
    cp_blocking_end(srv);
    return false;
}

void cp_blocking_end(cp_server *srv) { atomic_fetch_sub(&srv->blocking, 1); }

/* The loop, or a side thread, owns the client from here on. What is read of the next request stays with it. */
static void serve_by_loop(exchange *x, yyjson_doc **doc) {
    cp_call_start(x->c, &x->match, &x->req, cp_take(*doc), &x->to);
}

static void serve_aside(exchange *x, yyjson_doc **doc) {
    cp_err err;
    if (x->req.raw && cp_body_charge(x->c, &err) < 0) { /* it may wait for a thread */
        refuse(x, &err);
        return;
    }
    cp_side_serve(x->srv->side, x->c, &x->match, &x->req, cp_take(*doc), &x->to);
}

/* What computes has a lane, in which clients take turns. */
static void serve_io(exchange *x, yyjson_doc **doc) {
    if (x->match.route->flags & CP_R_COMPUTE || !cp_blocking_begin(x->srv)) {
        serve_aside(x, doc);
        return;
    }
    serve_here(x);
    cp_blocking_end(x->srv);
}

/* More of the body is needed: the client rests until it has come. */
static void await_body(exchange *x) {
    cp_body_continue(x->c);
    atomic_store(&x->c->phase, CP_CLIENT_BODY);
    x->w->client = x->c;
}

/* A small one is read whole before its handler begins: that one then never waits for the client. Where memory has no
 * room for that, the handler reads it piece by piece. So it does with a large one, but not before the first piece is
 * there: a crowd that sends next to nothing holds no threads. Who waits to be asked for the body is asked by the
 * handler, that may refuse the request without it, as long as there is no crowd. */
static bool may_rest(const exchange *x, bool small) {
    return small ? cp_body_reserve(x->c) : !x->c->body.expect || cp_side_crowded(x->srv->side);
}

static void serve_raw(exchange *x) {
    yyjson_doc *none = NULL;
    bool small = cp_body_is_small(x->c), begun = cp_body_begun(x->c), whole = small ? begun : x->c->body.ended;
    x->req.raw = &x->stream.reader;
    x->c->body.raw = true;
    if (!begun && may_rest(x, small)) {
        await_body(x);
    } else if (whole && cp_blocking_begin(x->srv)) {
        cp_body_stream_init(&x->stream, x->c);
        serve_here(x);
        cp_blocking_end(x->srv);
    } else {
        serve_aside(x, &none);
    }
}

/* What anybody may ask for takes no body (RFC 9110 section 9.3.1: content in a GET means nothing). One that has come
 * with the head is passed over; more is neither awaited nor held, and the connection ends with the answer. */
static void serve_open(exchange *x) {
    yyjson_doc *none = NULL;
    cp_err err;
    int whole = cp_body_collect(x->c, CP_KEEP, &err);
    if (whole < 0 && x->c->body.bad) {
        refuse(x, &err);
        return;
    }
    if (whole <= 0) {
        x->to.keep_alive = false;
        x->c->body.ended = false;
    }
    if (x->match.route->flags & CP_R_LOOP) serve_by_loop(x, &none);
    else serve_here(x);
}

static void serve(exchange *x) {
    const cp_route *route = x->match.route;
    cp_autodoc yyjson_doc *doc = NULL;
    cp_err err = {0};
    if (route->flags & CP_R_OPEN) {
        serve_open(x);
        return;
    }
    if (route->flags & CP_R_RAW_BODY) {
        serve_raw(x);
        return;
    }
    int whole = cp_body_collect(x->c, (uint64_t)x->srv->t->config->max_body, &err);
    if (whole < 0 || (whole > 0 && read_json(x, &doc, &err) < 0)) refuse(x, &err);
    else if (whole == 0) await_body(x);
    else if (route->flags & CP_R_LOOP) serve_by_loop(x, &doc);
    else if (route->flags & CP_R_IO) serve_io(x, &doc);
    else serve_here(x);
}

/* ---- requests that no route serves ---- */

static void answer_options(exchange *x) {
    char allow[64];
    cp_result res = {.status = 204};
    bool star = cp_str_is(x->head->target, "*");
    if (!star && !cp_router_allow(x->srv->t->router, x->head->target, allow)) {
        cp_router_refuse(&x->match, &res);
    } else {
        cp_buf_addf(&res.headers, "Allow: %s\r\nAccess-Control-Max-Age: 600\r\n", star ? ALL_METHODS : allow);
    }
    answer(x, &res);
}

static void answer_no_route(exchange *x) {
    cp_result res = {0};
    char allow[64];
    cp_router_refuse(&x->match, &res);
    if (res.status == 405) {
        bool known = cp_router_allow(x->srv->t->router, x->head->target, allow);
        cp_buf_addf(&res.headers, "Allow: %s\r\n", known ? allow : ALL_METHODS);
    }
    count(x, res.status);
    answer(x, &res);
}

/* ---- WebSocket upgrades ---- */

static cp_str ws_header(const void *ctx, const char *name, size_t index) { return cp_http_header(ctx, name, index); }

static const cp_ws_endpoint *ws_endpoint(const exchange *x) {
    cp_str path = x->head->target;
    if (cp_str_is(path, "/ws") || cp_str_is(path, "/api/ws")) return &cp_ws_mux;
    if (x->srv->t->config->debug_echo && cp_str_is(path, "/ws/echo")) return &cp_ws_echo;
    return NULL;
}

typedef struct adoption {
    cp_task task;
    cp_server *srv;
    int fd;
    const cp_ws_endpoint *endpoint;
    struct sockaddr_storage peer;
    cp_buf sent;
} adoption;

static void adopt(cp_task *task) {
    adoption *a = CP_CONTAINER(task, adoption, task);
    cp_lasting_give(a->srv); /* the WebSocket counts itself */
    cp_ws_adopt(a->srv->t, a->fd, a->endpoint, &a->peer, &a->sent);
    free(a);
}

static void post_adoption(cp_server *srv, int fd, const cp_ws_endpoint *endpoint, cp_buf sent) {
    adoption *a = cp_new(adoption);
    socklen_t n = sizeof a->peer;
    a->srv = srv;
    a->fd = fd;
    a->endpoint = endpoint;
    a->sent = sent;
    (void)getpeername(fd, (struct sockaddr *)&a->peer, &n); /* reset meanwhile: the peer stays unknown */
    cp_loop_post(srv->t->loop, &a->task, adopt);
}

static void refuse_upgrade(exchange *x, const cp_ws_verdict *v) {
    cp_err err;
    cp_result res = {.status = v->status};
    cp_fail(&err, CP_E_INVALID_REQUEST, "%s", v->why);
    cp_error_result(&res, &err, NULL, (cp_str){0});
    cp_buf_addz(&res.headers, v->extra);
    answer(x, &res);
}

/* What the client has sent behind the head. It should have waited for the 101 (RFC 6455 section 4.1); but dropped, its
 * first messages would be lost without a word. */
static cp_buf sent_early(const cp_client *c) {
    cp_buf early = {0};
    size_t at = c->at + c->head.end;
    if (c->in.n > at) cp_buf_add(&early, c->in.p + at, c->in.n - at);
    return early;
}

/* An empty socket takes the 101; if not, it is broken and the loop will notice. */
static void upgrade(exchange *x, const cp_ws_request *rq, const cp_ws_endpoint *endpoint) {
    static const cp_str supported[] = {{CP_WS_SUBPROTOCOL, sizeof CP_WS_SUBPROTOCOL - 1}};
    cp_ws_verdict v;
    cp_err err;
    cp_buf *out = &x->w->out;
    if (cp_ws_check(rq, supported, CP_COUNT(supported), &v) != 101) {
        refuse_upgrade(x, &v);
    } else if (cp_lasting_take(x->srv, &err) < 0) {
        refuse(x, &err);
    } else {
        int fd = x->c->fd;
        log_request(x, 101);
        cp_buf_clear(out);
        cp_ws_accept_head(out, &v, NULL);
        cp_buf early = sent_early(x->c);
        cp_client_lend(x->c);
        (void)!send(fd, out->p, out->n, MSG_NOSIGNAL | MSG_DONTWAIT);
        post_adoption(x->srv, fd, endpoint, early);
    }
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
        x->match.method_unknown = false;
        answer_no_route(x);
    }
    return true;
}

/* ---- the whole ---- */

static bool wants_upgrade(const cp_http_head *h) { return cp_http_has_word(h, "Upgrade", "websocket"); }

static void route(exchange *x) {
    cp_http_head *h = x->head;
    cp_err err;
    x->match = cp_router_match(x->srv->t->router, h->method, h->target);
    bool options = h->method == CP_OPTIONS;
    bool open = options || (x->match.route && x->match.route->flags & CP_R_OPEN && !wants_upgrade(h));
    if (cp_gate_check(&x->srv->gate, h->headers, h->nheaders, open, wants_upgrade(h), &err) < 0 ||
        (!open && cp_peer_check(x->srv->t->config, x->c->fd, &err) < 0)) {
        x->to.cors = err.code == CP_E_UNAUTHORIZED; /* the last check: the origin is a listed one */
        cp_metric_add(CP_M_AUTH_FAILURES, 1);
        refuse(x, &err);
        return;
    }
    x->to.cors = true;
    if (!open) atomic_store_explicit(&x->c->trusted, true, memory_order_relaxed);
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

void cp_request_serve(cp_crewman *w, const struct mg_request_info *ri) {
    exchange x;
    cp_err err;
    memset(&x, 0, sizeof x);
    x.w = w;
    x.c = cp_take(w->client);
    x.srv = w->srv;
    x.head = &w->head;
    x.began_us = cp_now_us();
    int parsed = cp_http_parse(&x.c->head, ri, x.head, &err);
    x.to = (cp_reply_to){.origin = x.head->origin,
                         .http11 = x.head->http11,
                         .head_only = x.head->method == CP_HEAD,
                         .keep_alive = x.head->keep_alive};
    if (parsed < 0) {
        x.to.keep_alive = false;
        x.c->body.ended = false; /* whatever follows is not trusted to be a request */
        refuse(&x, &err);
    } else {
        if (!x.c->judged) cp_body_init(&x.c->body, x.head);
        x.c->judged = true;
        route(&x);
    }
    cp_buf_reset(&w->out, CP_KEEP);
}

/* ---- a client that something has happened to ---- */

static void take_spare(cp_crewman *w, cp_client *c) {
    if (!c->in.cap) c->in = cp_take(w->spare);
}

static void give_spare(cp_crewman *w, cp_client *c) {
    if (c->in.n != c->at || w->spare.cap || c->in.cap > CP_KEEP) return;
    w->spare = cp_take(c->in);
    w->spare.n = 0;
    c->at = 0;
}

/* How long it may rest. */
static uint64_t patience(cp_client *c) {
    const cp_config *cfg = c->srv->t->config;
    if (atomic_load(&c->phase) == CP_CLIENT_BODY) return cp_body_patience(c);
    if (c->in.n == c->at) return (uint64_t)(c->used ? cfg->keepalive : cfg->header_timeout);
    uint64_t now = cp_now_ms(), allowed = (uint64_t)cfg->header_timeout;
    if (!c->began) c->began = now;
    return now - c->began < allowed ? allowed - (now - c->began) : 1;
}

static void linger(cp_client *c) {
    size_t before = c->dropped;
    for (;;) {
        c->at = c->in.n = 0;
        int rc = cp_client_read(c);
        if (rc > 0) c->dropped += c->in.n;
        uint64_t waited = cp_now_ms() - c->began;
        if (rc < 0 || c->dropped > LINGER_BYTES || waited >= LINGER_MS) break;
        c->at = c->in.n;
        if (rc == 0 && cp_client_rest(c, LINGER_MS - waited)) return;
        if (c->dropped - before < LINGER_AT_ONCE) continue;
        cp_crew_offer(c->srv, c);
        return;
    }
    cp_client_close(c);
}

static bool refuse_to_hold(cp_client *c, const cp_err *err) {
    c->body.ended = false; /* the rest of the request would be taken for one */
    cp_request_refuse_raw(c, err, true);
    return false;
}

/* What many clients hold while they rest is bounded by the memory budget. False: there is no room for it. */
static bool afford(cp_client *c) {
    cp_err err;
    return cp_client_hold(c, &err) == 0 || refuse_to_hold(c, &err);
}

/* The same for what is read next. */
static bool make_room(cp_client *c) {
    cp_err err;
    return cp_client_room(c, &err) == 0 || refuse_to_hold(c, &err);
}

/* 1: the head was fed; 0: more has to come; -1: the client is nobody's business any more. */
static int feed_head(cp_crewman *w, cp_client *c) {
    cp_err err;
    if (c->in.n == c->at) return 0;
    int whole = cp_head_scan(&c->head, c->in.p + c->at, c->in.n - c->at, &err);
    if (whole < 0) {
        c->body.ended = false;
        cp_request_refuse_raw(c, &err, true);
        return -1;
    }
    if (whole == 0) return 0;
    if (w->in_a_row++ >= IN_A_ROW) {
        c->head = (cp_head){0};
        cp_crew_offer(c->srv, c);
        return -1;
    }
    return cp_resident_feed(w, c) ? 1 : -1;
}

/* What is wrong with the body is found again, and told, when the head has been fed once more. */
static int feed_again(cp_crewman *w, cp_client *c) {
    cp_err err;
    if (c->body.raw ? !cp_body_begun(c) : cp_body_collect(c, (uint64_t)c->srv->t->config->max_body, &err) == 0)
        return 0;
    c->head = (cp_head){0}; /* reading may have moved what it points to */
    if (cp_head_scan(&c->head, c->in.p + c->at, c->in.n - c->at, &err) != 1) {
        cp_client_close(c);
        return -1;
    }
    return cp_resident_feed(w, c) ? 1 : -1;
}

bool cp_request_advance(cp_crewman *w, cp_client *c) {
    cp_crewman_turn(w);
    if (atomic_load(&c->phase) == CP_CLIENT_LINGER) {
        linger(c);
        return false;
    }
    if (atomic_load(&c->phase) == CP_CLIENT_SEND && !cp_send_more(c)) return false;
    for (;;) {
        int rc = (atomic_load(&c->phase) == CP_CLIENT_BODY ? feed_again : feed_head)(w, c);
        if (rc) return rc > 0;
        if (!c->look) {
            give_spare(w, c);
            if (!afford(c) || cp_client_rest(c, patience(c))) return false;
            continue;
        }
        take_spare(w, c);
        if (!make_room(c)) return false;
        if (cp_client_read(c) < 0) {
            cp_client_close(c);
            return false;
        }
    }
}
