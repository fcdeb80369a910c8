/* Requests on their way to the router, and what ends them before their handler does.
 *
 * Requests that never block are served at once and never become pending. Of the others only so many are dispatched that
 * their replies can be held, and none while the peer owes us reading: a client that asks for ten thousand things and
 * reads nothing costs ten thousand small messages, not their replies. The rest waits, by priority.
 * - IO: a few more than there are threads in the pool.
 * - Loop: how many is learnt, as TCP learns its window: one more with each reply, but not more than MUX_REPLIES_AHEAD
 *   bytes of average replies; twice as many when none has been answered for a while, because those that run may be long
 *   waits or commands. A stream does not count: it is pulled. */
#include "transport/mux.h"

#include "base/clock.h"
#include "base/metrics.h"

#include <stdlib.h>

typedef struct incoming {
    cp_request req;
    cp_match match;
    cp_err body_err;
    cp_header headers[MUX_HEADERS];
    int64_t window;
} incoming;

/* ---- from a message to a request ---- */

static cp_str str_of(yyjson_val *v) { return (cp_str){yyjson_get_str(v), yyjson_get_len(v)}; }

/* The reference builds a Request of it, for which "get" is GET and none is GET. */
static cp_method method_of(yyjson_val *v) {
    char upper[8];
    size_t n = yyjson_get_len(v);
    if (!v) return CP_GET;
    if (!yyjson_is_str(v) || n > sizeof upper) return CP_METHOD_UNKNOWN;
    const char *name = yyjson_get_str(v);
    for (size_t i = 0; i < n; i++) upper[i] = (char)(name[i] >= 'a' && name[i] <= 'z' ? name[i] - 'a' + 'A' : name[i]);
    return cp_method_of((cp_str){upper, n});
}

static int read_headers(const mux_msg *msg, incoming *in, cp_err *err) {
    size_t i, n;
    yyjson_val *key, *val;
    if (!msg->headers || yyjson_is_null(msg->headers)) return 0;
    if (!yyjson_is_obj(msg->headers)) return cp_fail_field(err, "headers", "headers must be an object");
    if (yyjson_obj_size(msg->headers) > MUX_HEADERS)
        return cp_fail(err, CP_E_HEADERS_TOO_LARGE, "More than %d headers", MUX_HEADERS);
    yyjson_obj_foreach(msg->headers, i, n, key, val) if (yyjson_is_str(val)) in->headers[in->req.nheaders++] =
        (cp_header){str_of(key), str_of(val)};
    in->req.headers = in->headers;
    in->req.trace_id = cp_request_header(&in->req, "X-Trace-Id");
    return 0;
}

static int read_options(const mux_msg *msg, incoming *in, cp_err *err) {
    static const char *const words[] = {"continue", "kill", NULL};
    int64_t priority = 3, deadline = 0;
    int on_disconnect = 0;
    in->req.priority = 3;
    if (!msg->more) return 0;
    if (cp_json_int(msg->root, "priority", 0, 7, &priority, err) < 0 ||
        cp_json_int(msg->root, "deadlineMs", 0, INT32_MAX, &deadline, err) < 0 ||
        cp_json_int(msg->root, "window", 1, INT64_C(1) << 53, &in->window, err) < 0 ||
        cp_json_enum(msg->root, "onDisconnect", words, &on_disconnect, err) < 0)
        return -1;
    in->req.priority = (uint8_t)priority;
    in->req.deadline_ms = (uint64_t)deadline;
    in->req.kill_on_disconnect = on_disconnect == 1;
    return 0;
}

static void read_path(yyjson_val *path, cp_request *req) {
    cp_str all = str_of(path);
    if (!all.p) return;
    const char *hash = memchr(all.p, '#', all.n);
    if (hash) all.n = (size_t)(hash - all.p);
    const char *mark = memchr(all.p, '?', all.n);
    req->path = (cp_str){all.p, mark ? (size_t)(mark - all.p) : all.n};
    if (mark) req->query = (cp_str){mark + 1, all.n - req->path.n - 1};
}

/* A body is used for POST and PUT only (protocol page, section 4). */
static void read_body(const mux_msg *msg, incoming *in) {
    if (in->req.method != CP_POST && in->req.method != CP_PUT) return;
    in->req.body = msg->body;
    if (msg->body) return;
    cp_fail(&in->body_err, CP_E_PARSE_ERROR, "Unexpected end of JSON input");
    in->req.body_err = &in->body_err;
}

/* path and method have been looked at. Fills all but headers beyond nheaders. */
static int read_request(mux *m, const mux_msg *msg, cp_method method, incoming *in, cp_err *err) {
    in->req = (cp_request){
        .method = method, .mux = true, .reply_keeps = true, .client = CP_OWNER_CLIENTS + cp_ws_id(m->ws) * 2};
    in->window = 0;
    read_path(msg->path, &in->req);
    read_body(msg, in);
    in->match = cp_router_match(m->t->router, method, in->req.path);
    in->req.trace = atomic_fetch_add_explicit(&m->t->next_trace, 1, memory_order_relaxed) + 1;
    if (read_options(msg, in, err) < 0) return -1;
    return read_headers(msg, in, err);
}

/* ---- dispatch ---- */

static pend *new_pending(mux *m, cp_str id, const incoming *in, uint64_t started_us) {
    uint64_t deadline = in->req.deadline_ms;
    pend *p = pend_add(&m->table, id, in->window > 0, deadline > 0);
    pend_flow *flow = pend_flow_of(p);
    p->m = m;
    p->reply.ops = &mux_reply_ops;
    p->state = PEND_RUNNING;
    p->index = (uint16_t)in->match.index;
    p->started_us = started_us;
    p->priority = in->req.priority;
    p->kill_on_disconnect = in->req.kill_on_disconnect;
    if (flow) *flow = (pend_flow){.credit = in->window, .window = in->window};
    cp_metric_add(CP_M_PENDING, 1);
    if (!deadline) return p;
    pend_due_at(&m->table, p, started_us / 1000 + deadline);
    if (pend_due_first(&m->table) == p) cp_timer_start(m->t->loop, &m->deadline, deadline, mux_on_deadline);
    return p;
}

static void dispatch(mux *m, pend *p, incoming *in, mux_kind kind, yyjson_doc *doc) {
    p->state = PEND_RUNNING;
    p->kind = (uint8_t)kind;
    p->runs = true;
    m->running[kind]++;
    cp_router_dispatch(m->t->router, &in->match, &in->req, doc, &p->reply);
}

static bool may_run(const mux *m, mux_kind kind) {
    uint32_t most = kind == MUX_IO ? MUX_IO_RUNNING : m->window;
    return m->running[kind] < most && mux_held(m) <= cp_outbox_high();
}

static void on_starved(cp_timer *timer) {
    mux *m = CP_CONTAINER(timer, mux, starved);
    if (!m->waiting[MUX_LOOP].mask) return;
    if (m->answered == m->answered_then && mux_held(m) <= cp_outbox_high() && m->window < MUX_WINDOW_MOST)
        m->window *= 2;
    m->answered_then = m->answered;
    cp_timer_start(m->t->loop, timer, MUX_STARVED_MS, on_starved);
    mux_check_full(m);
}

/* A small message is kept as text, which takes a fifth of what its document does, and is parsed again. */
static void enqueue(mux *m, pend *p, mux_kind kind, yyjson_doc *doc, cp_str text) {
    p->state = PEND_WAITING;
    p->kind = (uint8_t)kind;
    p->parsed = !text.n;
    p->bytes = p->parsed ? yyjson_doc_get_read_size(doc) : text.n;
    if (p->parsed) {
        p->doc = doc;
        m->waiting_docs += p->bytes;
    } else {
        p->text = backlog_add(&m->texts, text);
    }
    pend_push(&m->waiting[kind], p);
    if (kind == MUX_LOOP && !cp_timer_active(&m->starved)) {
        m->answered_then = m->answered;
        cp_timer_start(m->t->loop, &m->starved, MUX_STARVED_MS, on_starved);
    }
}

/* The message of one that waited; it waits no longer. NULL with *err: memory ran out. */
static yyjson_doc *waited(mux *m, pend *p, cp_err *err) {
    yyjson_doc *doc = p->parsed ? p->doc : NULL;
    pend_drop(&m->waiting[p->kind], p);
    if (p->parsed) {
        m->waiting_docs -= p->bytes;
    } else {
        doc = cp_json_read((cp_str){p->text, p->bytes}, err);
        backlog_del(&m->texts, p->text);
    }
    p->doc = NULL;
    p->bytes = 0;
    p->state = PEND_RUNNING;
    return doc;
}

void mux_forget_waiting(mux *m, pend *p) {
    pend_drop(&m->waiting[p->kind], p);
    if (p->parsed) {
        m->waiting_docs -= p->bytes;
        yyjson_doc_free(p->doc);
    } else {
        backlog_del(&m->texts, p->text);
    }
}

void mux_run_now(mux *m, pend *p) {
    incoming in;
    mux_msg msg;
    cp_err err = {0};
    yyjson_doc *doc = waited(m, p, &err);
    mux_read_msg(yyjson_doc_get_root(doc), &msg);
    if (doc && read_request(m, &msg, method_of(msg.method), &in, &err) == 0) {
        dispatch(m, p, &in, (mux_kind)p->kind, doc);
    } else { /* it was fine the first time */
        yyjson_doc_free(doc);
        mux_answer_error(m, p, &err);
    }
}

static void admit_more(cp_deferred *d) { mux_check_full(CP_CONTAINER(d, mux, more)); }

/* Many handlers answer at once: those that wait are dispatched for a while, the others in the next round. */
void mux_admit(mux *m) {
    if (m->admitting || m->draining) return; /* a reply that comes at once would lead here again */
    uint64_t until = cp_now_us() + MUX_ADMIT_US;
    bool late = false;
    m->admitting = true;
    for (mux_kind kind = 0; kind < MUX_KINDS && !late; kind++)
        for (pend *p; !late && may_run(m, kind) && (p = pend_top(&m->waiting[kind])); late = cp_now_us() >= until)
            mux_run_now(m, p);
    m->admitting = false;
    if (late) cp_loop_defer(m->t->loop, &m->more, admit_more);
}

void mux_stops_running(mux *m, pend *p, size_t reply_size) {
    if (!p->runs) return;
    p->runs = false;
    m->running[p->kind]--;
    if (p->kind != MUX_LOOP) return;
    m->answered++;
    m->reply_size += ((int64_t)reply_size - m->reply_size) / 8;
    int64_t most = MUX_REPLIES_AHEAD / (m->reply_size + 1);
    if (m->window < most) m->window++;
    else m->window = most > MUX_WINDOW_LEAST ? (uint32_t)most : MUX_WINDOW_LEAST;
}

static void serve_now(mux *m, cp_str id, incoming *in, uint64_t started_us) {
    cp_result res = {.body = cp_take(mux_shared_of(m->t)->body)};
    cp_router_call(m->t->router, &in->match, &in->req, &res);
    mux_answer_now(m, id, &in->match, started_us, &res);
}

/* False: refused, and the peer told. */
static bool may_start(mux *m, const mux_msg *msg, cp_method method, cp_str id) {
    cp_err err;
    if (!yyjson_is_str(msg->path) || !cp_str_starts(str_of(msg->path), CP_STR("/")))
        cp_fail(&err, CP_E_INTERNAL_ERROR, "path must be a string that begins with /");
    else if (method == CP_HEAD) cp_fail(&err, CP_E_INTERNAL_ERROR, "HEAD is served over HTTP only");
    else if (pend_find(&m->table, id))
        cp_fail(&err, CP_E_DUPLICATE_REQUEST_ID, "A request with this id is in flight on this connection");
    else if (m->table.count >= (uint64_t)m->t->config->max_pending)
        cp_fail(&err, CP_E_LIMIT_EXCEEDED, "More than %lld requests in flight on this connection",
                (long long)m->t->config->max_pending);
    else return true;
    mux_refuse(m, id, &err);
    return false;
}

void mux_request(mux *m, const mux_msg *msg, cp_str id, yyjson_doc *doc_taken, cp_str text) {
    cp_autodoc yyjson_doc *doc = doc_taken;
    incoming in;
    cp_err err = {0};
    uint64_t now = cp_now_us();
    cp_method method = method_of(msg->method);
    if (!may_start(m, msg, method, id)) return;
    if (read_request(m, msg, method, &in, &err) < 0) {
        cp_result res = {0};
        cp_error_result(&res, &err, NULL, (cp_str){0});
        mux_answer_now(m, id, &in.match, now, &res);
        return;
    }
    const cp_route *route = in.match.route;
    if (!route || (route->flags & (CP_R_INLINE | CP_R_HTTP_ONLY | CP_R_RAW_BODY))) {
        serve_now(m, id, &in, now);
        return;
    }
    mux_kind kind = route->flags & CP_R_IO ? MUX_IO : MUX_LOOP;
    if (kind == MUX_LOOP && may_run(m, kind) && !m->waiting[kind].mask) {
        dispatch(m, new_pending(m, id, &in, now), &in, kind, cp_take(doc));
        return;
    }
    /* the caller's mux_check_full admits it when it may run */
    enqueue(m, new_pending(m, id, &in, now), kind, text.n ? NULL : cp_take(doc), text);
}

/* ---- endings that are not the handler's ---- */

static bool give_up_running(mux *m, pend *p, cp_end why, bool kill, const cp_err *err) {
    bool (*fn)(cp_reply *, cp_end, bool) = p->reply.on_cancel;
    if (!fn) { /* it cannot be told, and will answer into the void */
        if (why != CP_END_DEADLINE) return false;
        cp_result res = {0};
        cp_error_result(&res, err, NULL, (cp_str){0});
        mux_put_response(m, pend_id(p), res.status, cp_buf_str(&res.body));
        mux_end(m, p, res.status, true);
        cp_result_free(&res);
        return true;
    }
    p->reply.on_cancel = NULL;
    m->cancelling = p;
    bool waits = fn(&p->reply, why, kill);
    if (m->cancelling != p) return true; /* it has answered meanwhile */
    m->cancelling = NULL;
    if (waits && p->kind == MUX_IO) {
        mux_answer_held(m, p, err);
        return true;
    }
    if (waits && why == CP_END_CANCELLED) return false;
    mux_answer_error(m, p, err);
    return true;
}

bool mux_give_up(mux *m, pend *p, cp_end why, bool kill, const cp_err *err) {
    switch ((pend_state)p->state) {
    case PEND_RUNNING: return give_up_running(m, p, why, kill, err);
    case PEND_STREAMING: mux_close_source(m, p, why, kill); break;
    case PEND_WAITING: break;
    case PEND_SENDING:
    case PEND_HELD: return false;
    }
    mux_answer_error(m, p, err);
    return true;
}

void mux_cancel(mux *m, cp_str id, bool kill) {
    cp_err err;
    pend *p = pend_find(&m->table, id);
    if (!p) return;
    cp_fail(&err, CP_E_CANCELLED, "The request was cancelled");
    if (p->state == PEND_STREAMING && !kill) { /* the SDK expects a stream's ordinary end */
        mux_close_source(m, p, CP_END_CANCELLED, false);
        mux_put_response(m, id, 200, (cp_str){0});
        mux_end(m, p, 200, false);
    } else {
        mux_give_up(m, p, CP_END_CANCELLED, kill, &err);
    }
}

void mux_on_deadline(cp_timer *timer) {
    mux *m = CP_CONTAINER(timer, mux, deadline);
    uint64_t now = cp_loop_now(m->t->loop), until = cp_now_us() + MUX_DEADLINES_US;
    cp_err err;
    cp_fail(&err, CP_E_DEADLINE_EXCEEDED, "The deadline of the request has passed");
    pend *p;
    for (bool late = false; !late && (p = pend_due_first(&m->table)) && pend_deadline(p) <= now;) {
        pend_due_drop(&m->table, p); /* once, though it may stay */
        mux_give_up(m, p, CP_END_DEADLINE, false, &err);
        late = cp_now_us() >= until;
    }
    if ((p = pend_due_first(
             &m->table))) { /* what there was no time for comes in a millisecond: others have their turn */
        uint64_t at = pend_deadline(p);
        cp_timer_start(m->t->loop, timer, at > now ? at - now : 1, mux_on_deadline);
    }
    mux_check_full(m);
}

void mux_lose(mux *m, pend *p) {
    bool orphan = false;
    if (p->state == PEND_STREAMING) {
        mux_close_source(m, p, CP_END_DISCONNECTED, p->kill_on_disconnect);
    } else if (p->state == PEND_RUNNING && p->reply.on_cancel) {
        m->cancelling = p;
        p->reply.on_cancel(&p->reply, CP_END_DISCONNECTED, p->kill_on_disconnect);
        if (m->cancelling != p) return;
    } else {
        orphan = p->state == PEND_RUNNING;
    }
    mux_end(m, p, 499, orphan);
}
