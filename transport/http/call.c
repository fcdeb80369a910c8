/* Design notes. A call is one HTTP request that the loop answers. From cp_call_start on the loop owns the client; the
 * worker has gone on. What happens on its socket meanwhile a worker hears of, who tells the loop by a message
 * (cp_client_take); the loop looks at the socket itself, so a message that comes late, or for another call, does no
 * harm.
 *
 * A client that shuts its write side down cannot be told from one that closed its socket until we write. It is not
 * taken for gone: the answer is still written, unless the request said onDisconnect: "kill". A reset is gone. Where the
 * reply may last (LASTS), the end of input is the end of the client: an idle stream would otherwise never notice. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/metrics.h"
#include "transport/http/http.h"

struct cp_http_call {
    cp_reply reply;
    cp_client *client; /* NULL: it has gone */
    cp_server *srv;
    cp_task start;
    cp_match match;
    cp_request *req;
    yyjson_doc *doc;
    cp_err body_err;
    cp_reply_to to; /* origin: own copy */
    char *origin;
    cp_timer deadline;
    uint64_t began_us;
    bool started;
    bool pinned; /* somebody up the stack still looks at it: freed later */
    bool ended;  /* the reply is over */
    cp_http_call *prev, *next;
};

static const cp_reply_ops ops;

static cp_http_call *call_new(cp_client *c, const cp_match *m, const cp_request *req, const cp_reply_to *to) {
    cp_http_call *k = cp_new(cp_http_call);
    cp_request with = *req;
    memcpy(with.params, m->params, sizeof with.params);
    k->reply.ops = &ops;
    k->client = c;
    k->srv = c->srv;
    k->match = *m;
    k->req = cp_request_keep(&with);
    memcpy(k->match.params, k->req->params, sizeof k->match.params);
    if (req->body_err) {
        k->body_err = *req->body_err;
        k->req->body_err = &k->body_err;
    }
    k->to = *to;
    k->to.origin.p = k->origin = cp_str_dup(to->origin);
    k->began_us = cp_now_us();
    return k;
}

static void call_free(cp_http_call *k) {
    yyjson_doc_free(k->doc);
    free(k->req);
    free(k->origin);
    free(k);
}

static bool kills(const cp_http_call *k) { return k->req->kill_on_disconnect; }
static bool lasts(const cp_http_call *k) { return k->match.route && k->match.route->flags & CP_R_LASTS; }

static void list_add(cp_http_call *k) {
    k->next = k->srv->calls;
    if (k->next) k->next->prev = k;
    k->srv->calls = k;
}

static void list_remove(cp_http_call *k) {
    if (k->prev) k->prev->next = k->next;
    else k->srv->calls = k->next;
    if (k->next) k->next->prev = k->prev;
}

/* The client is the caller's. */
static cp_client *let_go(cp_http_call *k) {
    cp_client *c = cp_take(k->client);
    if (!c) return NULL;
    c->call = NULL;
    atomic_fetch_and(&c->state, ~(uint32_t)CP_STATE_LOOP);
    return c;
}

static void end(cp_http_call *k, int status) {
    k->ended = true;
    cp_timer_stop(k->srv->t->loop, &k->deadline);
    list_remove(k);
    cp_metric_add(CP_M_PENDING, -1);
    cp_router_count(k->srv->t->router, k->match.index, status, cp_now_us() - k->began_us);
}

static void settle(cp_http_call *k) {
    if (!k->pinned) call_free(k);
}

/* ---- the reply ---- */

static void call_send(cp_reply *r, cp_result *res) {
    cp_http_call *k = CP_CONTAINER(r, cp_http_call, reply);
    cp_client *c = let_go(k);
    end(k, res->status);
    if (!c) cp_result_free(res);
    else if (cp_send_reply(c, &k->to, res, &k->srv->loop_out)) cp_client_release(c);
    cp_buf_reset(&k->srv->loop_out, CP_KEEP);
    settle(k);
}

static void send_error(cp_http_call *k, const cp_err *err) {
    cp_result res = {0};
    cp_error_result(&res, err, k->match.route ? k->match.route->op : NULL, (cp_str){0});
    call_send(&k->reply, &res);
}

static void call_stream(cp_reply *r, cp_source *src) {
    cp_http_call *k = CP_CONTAINER(r, cp_http_call, reply);
    cp_err err;
    if (k->client && cp_lasting_take(k->srv, &err) < 0) {
        src->ops->close(src, CP_END_DISCONNECTED, kills(k));
        send_error(k, &err);
        return;
    }
    uint64_t deadline = cp_timer_active(&k->deadline) ? k->deadline.at : 0;
    cp_client *c = let_go(k);
    end(k, 200);
    if (c) cp_stream_start(c, src, &k->to, kills(k), deadline);
    else src->ops->close(src, CP_END_DISCONNECTED, kills(k));
    settle(k);
}

static const cp_reply_ops ops = {call_send, call_stream};

/* ---- ends that are not the handler's ---- */

static void fail(cp_http_call *k, cp_code code, const char *msg) {
    cp_err err;
    cp_fail(&err, code, "%s", msg);
    send_error(k, &err);
}

/* The transport ends the call in the handler's place, unless that answers when it is told. msg NULL: nobody is there to
 * hear. */
static void give_up(cp_http_call *k, cp_end why, cp_code code, const char *msg) {
    bool (*on_cancel)(cp_reply *, cp_end, bool) = k->reply.on_cancel;
    k->reply.on_cancel = NULL;
    k->pinned = true;
    if (on_cancel) on_cancel(&k->reply, why, kills(k));
    if (!k->ended && msg) fail(k, code, msg);
    if (!k->ended) end(k, 499);
    k->pinned = false;
    settle(k);
}

static void deadline_passed(cp_timer *timer) {
    give_up(CP_CONTAINER(timer, cp_http_call, deadline), CP_END_DEADLINE, CP_E_DEADLINE_EXCEEDED,
            "The deadline of the request has passed");
}

static void interrupt(cp_http_call *k) {
    give_up(k, CP_END_SHUTDOWN, CP_E_OPERATION_INTERRUPTED, "The server is shutting down");
}

static void gone(cp_http_call *k) {
    cp_client_close(let_go(k));
    give_up(k, CP_END_DISCONNECTED, CP_E_CANCELLED, NULL);
}

void cp_calls_shutdown(cp_server *srv) {
    while (srv->calls) interrupt(srv->calls);
}

/* ---- the socket ---- */

void cp_call_look(cp_client *c) {
    if (!(atomic_load(&c->state) & CP_STATE_LOOP) || !c->call || !c->call->started) return;
    struct pollfd p = {.fd = c->fd, .events = POLLRDHUP};
    atomic_fetch_and(&c->state, ~(uint32_t)CP_STATE_AGAIN);
    c->look = c->thorough = true; /* what the edge told of is looked at when the call is over */
    if (poll(&p, 1, 0) < 1) return;
    bool over = p.revents & POLLRDHUP && (lasts(c->call) || kills(c->call));
    if (over || p.revents & (POLLERR | POLLHUP | POLLNVAL)) gone(c->call);
}

/* ---- starting ---- */

static void start(cp_task *task) {
    cp_http_call *k = CP_CONTAINER(task, cp_http_call, start);
    cp_client *c = k->client;
    cp_transport *t = k->srv->t;
    k->started = true;
    list_add(k);
    cp_metric_add(CP_M_PENDING, 1);
    if (k->req->deadline_ms) cp_timer_start(t->loop, &k->deadline, k->req->deadline_ms, deadline_passed);
    k->pinned = true;
    cp_router_dispatch(t->router, &k->match, k->req, cp_take(k->doc), &k->reply);
    k->pinned = false;
    if (k->ended) call_free(k);
    else if (atomic_load(&c->state) & CP_STATE_AGAIN) cp_call_look(c);
}

void cp_call_start(cp_client *c, const cp_match *m, const cp_request *req, yyjson_doc *doc, const cp_reply_to *to) {
    cp_http_call *k = call_new(c, m, req, to);
    cp_server *srv = c->srv;
    k->doc = doc;
    c->call = k;
    atomic_store(&c->phase, CP_CLIENT_CALL);
    cp_client_used(c);
    atomic_fetch_or(&c->state, CP_STATE_LOOP);
    (void)cp_client_watch(c, false); /* without it a client that goes is noticed when it is answered */
    cp_loop_post(srv->t->loop, &k->start, start);
}
