/* Design notes. A call is one HTTP request that the loop serves. Everything about it is decided on the loop; the worker
 * only sends messages and waits, so a reply and a client that hangs up can cross without harm:
 *   worker → loop  start (dispatch it), then at most one hand (here is the socket; or: the client is gone)
 *   loop → worker  done (res is yours), leave (hand the socket over), both by flag and the slot's eventfd
 * After done the worker owns the call, after hand the loop does. When done and hand cross, hand finds the call ended
 * and sends the result on the socket. A wake-up that comes late meets the worker's next call, which looks at its own
 * flags and waits on.
 *
 * A parked client that shuts its write side down cannot be told from one that closed its socket until we write. It is
 * not taken for gone: the answer is still written, from the loop, unless the request said onDisconnect: "kill". A reset
 * is gone. Where the reply may last (LASTS), the end of input is the end of the client: an idle stream would otherwise
 * never notice. */
#include "transport/http.h"

#include "base/clock.h"
#include "base/fd.h"
#include "base/metrics.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct cp_http_call {
    cp_reply reply;
    cp_server *srv;
    cp_task start, hand;
    cp_match match;
    cp_request *req;
    yyjson_doc *doc;
    cp_err body_err;
    cp_reply_to to; /* origin: own copy */
    char *origin;
    cp_timer deadline;
    uint64_t began_us;

    atomic_bool done, leave;
    atomic_bool streams; /* src waits for the socket */
    int wakefd;          /* of the parked worker's slot */
    int fd;              /* with hand: the socket, -1 when the client is gone */
    bool half;           /* with hand */
    bool owned;          /* the loop has the socket, or had it: no worker waits */
    bool pinned;         /* somebody up the stack still looks at it: settle comes later */
    bool ended;          /* the reply is over */
    bool listed;
    cp_http_conn *conn;
    cp_result res;
    cp_source *src; /* a stream that waits for the socket */
    uint64_t stream_deadline;
    cp_http_call *prev, *next;
};

static const cp_reply_ops ops;

cp_http_call *cp_http_call_new(cp_server *srv, const cp_match *m, const cp_request *req, yyjson_doc *doc,
                               const cp_reply_to *to) {
    cp_http_call *c = cp_new(cp_http_call);
    cp_request with = *req;
    memcpy(with.params, m->params, sizeof with.params);
    c->reply.ops = &ops;
    c->srv = srv;
    c->match = *m;
    c->req = cp_request_keep(&with);
    memcpy(c->match.params, c->req->params, sizeof c->match.params);
    c->doc = doc;
    if (req->body_err) {
        c->body_err = *req->body_err;
        c->req->body_err = &c->body_err;
    }
    c->to = *to;
    c->origin = cp_str_dup(to->origin);
    c->to.origin.p = c->origin;
    c->began_us = cp_now_us();
    c->fd = c->wakefd = -1;
    return c;
}

static void call_free(cp_http_call *c) {
    yyjson_doc_free(c->doc);
    cp_result_free(&c->res);
    free(c->req);
    free(c->origin);
    free(c);
}

bool cp_http_call_kills(const cp_http_call *c) { return c->req->kill_on_disconnect; }
bool cp_http_call_lasts(const cp_http_call *c) { return c->match.route && c->match.route->flags & CP_R_LASTS; }
uint64_t cp_http_call_deadline(const cp_http_call *c) { return cp_timer_active(&c->deadline) ? c->deadline.at : 0; }

/* ---- loop ---- */

static void list_add(cp_http_call *c) {
    cp_server *srv = c->srv;
    c->next = srv->parked;
    c->prev = NULL;
    if (c->next) c->next->prev = c;
    srv->parked = c;
    c->listed = true;
}

static void list_remove(cp_http_call *c) {
    if (!c->listed) return;
    if (c->prev) c->prev->next = c->next;
    else c->srv->parked = c->next;
    if (c->next) c->next->prev = c->prev;
    c->listed = false;
}

static void wake(int fd) {
    uint64_t one = 1;
    (void)!write(fd, &one, sizeof one);
}

/* From the store on the call is the worker's. */
static void publish(cp_http_call *c) {
    int wakefd = c->wakefd;
    atomic_store_explicit(&c->done, true, memory_order_release);
    wake(wakefd);
}

static void end(cp_http_call *c, int status) {
    c->ended = true;
    cp_timer_stop(c->srv->t->loop, &c->deadline);
    list_remove(c);
    cp_metric_add(CP_M_PENDING, -1);
    if (status) cp_router_count(c->srv->t->router, c->match.index, status, cp_now_us() - c->began_us);
}

/* The reply is over: the call goes to whoever waits for it. */
static void settle(cp_http_call *c) {
    if (c->pinned) return;
    if (c->owned) call_free(c);
    else if (!c->src) publish(c);
}

static void call_send(cp_reply *r, cp_result *res) {
    cp_http_call *c = CP_CONTAINER(r, cp_http_call, reply);
    end(c, res->status);
    if (!c->owned) c->res = cp_take(*res);
    else if (c->conn) cp_http_conn_send(cp_take(c->conn), res);
    else cp_result_free(res); /* the client has gone */
    settle(c);
}

static void ask_to_leave(cp_http_call *c) {
    if (!atomic_exchange(&c->leave, true)) wake(c->wakefd);
}

/* A route that was not expected to stream does: its worker has to bring the socket first. */
static void call_stream(cp_reply *r, cp_source *src) {
    cp_http_call *c = CP_CONTAINER(r, cp_http_call, reply);
    c->stream_deadline = cp_http_call_deadline(c);
    end(c, 200);
    if (!c->owned) {
        c->src = src;
        atomic_store(&c->streams, true);
        wake(c->wakefd); /* though it may have been asked to leave before, and could not */
        return;
    }
    if (c->conn) cp_http_conn_stream(cp_take(c->conn), src, c->stream_deadline);
    else src->ops->close(src, CP_END_DISCONNECTED, cp_http_call_kills(c));
    settle(c);
}

static const cp_reply_ops ops = {call_send, call_stream};

static void fail(cp_http_call *c, cp_code code, const char *msg) {
    cp_err err;
    cp_result res = {0};
    cp_fail(&err, code, "%s", msg);
    cp_error_result(&res, &err, c->match.route ? c->match.route->op : NULL, (cp_str){0});
    call_send(&c->reply, &res);
}

/* The transport ends the call in the handler's place, unless that answers when it is told. msg NULL: nobody is there to
 * hear. */
static void give_up(cp_http_call *c, cp_end why, cp_code code, const char *msg) {
    bool (*on_cancel)(cp_reply *, cp_end, bool) = c->reply.on_cancel;
    c->reply.on_cancel = NULL;
    c->pinned = true;
    if (on_cancel) on_cancel(&c->reply, why, cp_http_call_kills(c));
    if (!c->ended && msg) fail(c, code, msg);
    if (!c->ended) end(c, 499);
    c->pinned = false;
    settle(c);
}

static void deadline_passed(cp_timer *timer) {
    give_up(CP_CONTAINER(timer, cp_http_call, deadline), CP_END_DEADLINE, CP_E_DEADLINE_EXCEEDED,
            "The deadline of the request has passed");
}

void cp_http_call_gone(cp_http_call *c, cp_end why) {
    c->conn = NULL;
    give_up(c, why, CP_E_CANCELLED, NULL);
}

void cp_http_call_interrupt(cp_http_call *c) {
    give_up(c, CP_END_SHUTDOWN, CP_E_OPERATION_INTERRUPTED, "The server is shutting down");
}

static void dispatch(cp_http_call *c) {
    cp_transport *t = c->srv->t;
    cp_metric_add(CP_M_PENDING, 1);
    if (c->req->deadline_ms) cp_timer_start(t->loop, &c->deadline, c->req->deadline_ms, deadline_passed);
    c->pinned = true;
    cp_router_dispatch(t->router, &c->match, c->req, cp_take(c->doc), &c->reply);
    c->pinned = false;
    if (c->ended) settle(c);
}

static void start_parked(cp_task *task) {
    cp_http_call *c = CP_CONTAINER(task, cp_http_call, start);
    list_add(c);
    if (cp_server_half_busy(c->srv)) cp_supervise(c->srv);
    dispatch(c);
}

static void start_taken(cp_task *task) {
    cp_http_call *c = CP_CONTAINER(task, cp_http_call, start);
    c->owned = true;
    c->conn = cp_http_conn_new(c->srv, cp_take_fd(&c->fd), c, &c->to);
    if (c->conn) dispatch(c);
    else call_free(c);
}

static void drop(cp_http_call *c) {
    if (c->src) c->src->ops->close(c->src, CP_END_DISCONNECTED, cp_http_call_kills(c));
    if (c->ended) call_free(c);
    else cp_http_call_gone(c, CP_END_DISCONNECTED);
}

static void handed(cp_task *task) {
    cp_http_call *c = CP_CONTAINER(task, cp_http_call, hand);
    list_remove(c);
    c->owned = true;
    bool unwanted = c->fd < 0 || (c->half && !c->ended && cp_http_call_kills(c));
    cp_http_conn *conn = c->fd < 0 ? NULL : cp_http_conn_new(c->srv, cp_take_fd(&c->fd), unwanted ? NULL : c, &c->to);
    if (!conn || unwanted) {
        drop(c);
        if (conn) cp_http_conn_close(conn);
        return;
    }
    c->conn = conn;
    if (c->half) cp_http_conn_half(conn);
    if (!c->ended) return;
    if (c->src) cp_http_conn_stream(conn, cp_take(c->src), c->stream_deadline);
    else cp_http_conn_send(conn, &c->res);
    call_free(c);
}

void cp_http_calls_unpark(cp_server *srv) {
    for (cp_http_call *c = srv->parked; c; c = c->next) ask_to_leave(c);
}

void cp_http_calls_shutdown(cp_server *srv) {
    while (srv->parked) cp_http_call_interrupt(srv->parked);
}

/* ---- worker ---- */

static int wakefd_of(cp_slot *s) {
    if (s->wakefd >= 0) return s->wakefd;
    pthread_mutex_lock(&s->mu); /* cp_server_close reads it */
    s->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_unlock(&s->mu);
    return s->wakefd;
}

/* fd: the socket, or -1 when the client is gone. From the post on the call is the loop's. */
static void hand(cp_http_call *c, int fd, bool half) {
    c->fd = fd;
    c->half = half;
    cp_loop_post(c->srv->t->loop, &c->hand, handed);
}

/* When the socket cannot be taken (limits) the worker stays: no wake-up is asked for again. */
static bool try_leave(cp_http_call *c, cp_slot *s, bool half) {
    cp_err err;
    int fd = cp_slot_take(s, c->match.route, &err);
    if (fd < 0) return false;
    cp_arrival_hurry(s->srv->arrivals, &s->arrival); /* start comes before hand */
    hand(c, fd, half);
    return true;
}

static int refuse_stream(cp_http_call *c, cp_slot *s, cp_result *res) {
    cp_err err;
    cp_fail(&err, CP_E_LIMIT_EXCEEDED, "Too many connections");
    cp_error_result(res, &err, c->match.route->op, (cp_str){0});
    cp_arrival_hurry(s->srv->arrivals, &s->arrival);
    hand(c, -1, false);
    return 1;
}

bool cp_http_can_park(cp_slot *s) { return wakefd_of(s) >= 0; }

int cp_http_call_park(cp_http_call *c, cp_slot *s, cp_result *res) {
    c->wakefd = s->wakefd;
    struct pollfd p[2] = {{.fd = c->wakefd, .events = POLLIN}, {.fd = s->fd, .events = POLLRDHUP}};
    s->turn = false;
    cp_arrival_post(s->srv->arrivals, &s->arrival, &c->start, start_parked);
    bool may_leave = true;
    for (;;) {
        uint64_t n;
        if (poll(p, 2, -1) < 0 && errno != EINTR) p[1].fd = -1;
        if (p[0].revents) (void)!read(c->wakefd, &n, sizeof n);
        if (atomic_load_explicit(&c->done, memory_order_acquire)) break;
        if (p[1].revents & (POLLERR | POLLHUP | POLLNVAL) || atomic_load(&c->srv->closing)) {
            cp_arrival_hurry(s->srv->arrivals, &s->arrival);
            hand(c, -1, false);
            return 0;
        }
        bool half = p[1].revents & POLLRDHUP;
        bool streams = atomic_load(&c->streams), leave = atomic_load(&c->leave);
        if ((streams || ((half || leave) && may_leave)) && try_leave(c, s, half)) return 0;
        if (streams) return refuse_stream(c, s, res);
        may_leave = may_leave && !half && !leave;
        if (half) p[1].events = 0; /* POLLERR and POLLHUP are reported all the same */
        p[1].revents = 0;
    }
    *res = cp_take(c->res);
    call_free(c);
    return 1;
}

void cp_http_call_hand(cp_http_call *c, int fd) {
    c->fd = fd;
    cp_loop_post(c->srv->t->loop, &c->start, start_taken);
}
