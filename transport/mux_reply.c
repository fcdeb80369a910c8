/* What goes to the peer.
 *
 * Small messages are written straight into the outbox, one frame each. A large response is one message of many frames
 * (RFC 6455 section 5.4 forbids another data message in between): while it is open (`sending`), small messages collect
 * in `parked` and follow it. A source that is being pulled writes into the outbox too, and has the same right. */
#include "transport/mux.h"

#include "base/clock.h"
#include "base/metrics.h"

#include <stdio.h>
#include <stdlib.h>

size_t mux_held(const mux *m) { return cp_outbox_queued(m->out) + m->parked.n + m->large_bytes; }

/* In steps: the table changes with each request. */
static void charge(mux *m) {
    enum { STEP = 8 * 1024 };
    size_t now = m->texts.held + m->table.bytes + m->parked.cap;
    if (now > m->charge.bytes + STEP || now + STEP < m->charge.bytes) cp_charge_force(&m->charge, now);
}

void mux_check_full(mux *m) {
    size_t held = mux_held(m), high = cp_outbox_high(), waiting = m->waiting_docs + m->texts.held;
    charge(m);
    size_t most = cp_budget_tight(CP_MEM_BODIES) ? MUX_WAITING_TIGHT : MUX_WAITING_BYTES;
    if (!m->full) m->full = held > high || waiting > most;
    else m->full = held > high / 2 || waiting > most / 2;
    cp_ws_pause(m->ws, m->full || m->job);
    if (m->waiting[MUX_IO].mask | m->waiting[MUX_LOOP].mask) mux_admit(m);
}

/* ---- small messages ---- */

static bool holds_back(const mux *m) { return m->sending || m->pulling; }

/* Room for a frame with n bytes of payload, its head written. */
static cp_buf *begin(mux *m, size_t n) {
    cp_buf *b = &m->parked;
    if (holds_back(m)) cp_buf_reserve(b, n + CP_FRAME_HEAD_MAX);
    else b = cp_outbox_tail(m->out, n + CP_FRAME_HEAD_MAX);
    b->n += cp_frame_head(b->p + b->n, CP_OP_TEXT, true, n, NULL);
    return b;
}

static void end(mux *m) {
    if (!holds_back(m)) cp_outbox_commit(m->out);
}

static void flush_parked(mux *m) {
    if (m->parked.n && !holds_back(m)) cp_outbox_add_buf(m->out, &m->parked);
}

static void put_text(mux *m, const cp_buf *json) {
    cp_buf_add(begin(m, json->n), json->p, json->n);
    end(m);
}

static inline char *put(char *o, cp_str s) {
    if (s.n) memcpy(o, s.p, s.n);
    return o + s.n;
}

#define OPEN   CP_STR("{\"type\":\"response\"")
#define ID     CP_STR(",\"id\":")
#define STATUS CP_STR(",\"status\":")
#define BODY   CP_STR(",\"body\":")
#define DONE   CP_STR(",\"done\":true}")

static size_t prefix_size(cp_str id, cp_str body) {
    return OPEN.n + (id.n ? ID.n + id.n : 0) + STATUS.n + 3 + (body.n ? BODY.n : 0);
}

static char *put_prefix(char *o, cp_str id, int status, cp_str body) {
    o = put(o, OPEN);
    if (id.n) o = put(put(o, ID), id);
    o = put(o, STATUS);
    *o++ = (char)('0' + status / 100 % 10);
    *o++ = (char)('0' + status / 10 % 10);
    *o++ = (char)('0' + status % 10);
    return body.n ? put(o, BODY) : o;
}

void mux_put_response(mux *m, cp_str id, int status, cp_str body) {
    cp_buf *b = begin(m, prefix_size(id, body) + body.n + DONE.n);
    char *o = put_prefix(b->p + b->n, id, status, body);
    o = put(put(o, body), DONE);
    b->n = (size_t)(o - b->p);
    end(m);
}

/* A message that never became a request is counted as one without a route. */
static void count_refusal(mux *m, int status) {
    cp_match none = cp_router_match(m->t->router, CP_METHOD_UNKNOWN, CP_STR(""));
    cp_router_count(m->t->router, none.index, status, 0);
}

void mux_refuse(mux *m, cp_str id, const cp_err *err) {
    count_refusal(m, cp_code_http(err->code));
    mux_put_err(m, id, err);
}

void mux_refuse_as(mux *m, cp_str id, const char *code, int status, const char *msg) {
    count_refusal(m, status);
    mux_put_error(m, id, code, status, msg);
}

static void put_error(mux *m, cp_str id, const char *of, const char *code, int status, const char *msg) {
    cp_autobuf cp_buf b = {0};
    cp_jw w = cp_jw_on(&b);
    cp_jw_obj(&w);
    cp_jw_kz(&w, "type", "error");
    if (id.n) {
        cp_jw_key(&w, "id");
        cp_jw_raw(&w, id);
    }
    if (of) cp_jw_kz(&w, "of", of);
    cp_jw_kz(&w, "code", code);
    cp_jw_kz(&w, "message", msg);
    cp_jw_ki64(&w, "status", status);
    cp_jw_end_obj(&w);
    put_text(m, &b);
}

void mux_put_error(mux *m, cp_str id, const char *code, int status, const char *msg) {
    put_error(m, id, NULL, code, status, msg);
}

void mux_refuse_message(mux *m, cp_str id, const char *of, const cp_err *err) {
    count_refusal(m, cp_code_http(err->code));
    put_error(m, id, of, cp_code_name(err->code), cp_code_http(err->code), err->msg);
}

void mux_put_err(mux *m, cp_str id, const cp_err *err) {
    mux_put_error(m, id, cp_code_name(err->code), cp_code_http(err->code), err->msg);
}

void mux_put_taken(mux *m, cp_str id, size_t bytes) {
    cp_autobuf cp_buf b = {0};
    cp_buf_addz(&b, "{\"type\":\"stdin\",\"id\":");
    cp_buf_add(&b, id.p, id.n);
    cp_buf_addf(&b, ",\"bytes\":%zu}", bytes);
    put_text(m, &b);
}

void mux_put_hello(mux *m, cp_str id) {
    const cp_config *c = m->t->config;
    cp_autobuf cp_buf b = {0};
    cp_jw w = cp_jw_on(&b);
    cp_jw_obj(&w);
    cp_jw_kz(&w, "type", "hello");
    if (id.n) {
        cp_jw_key(&w, "id");
        cp_jw_raw(&w, id);
    }
    cp_jw_kz(&w, "version", CONFLUX_VERSION);
    cp_jw_key(&w, "pingSeconds");
    cp_jw_f64(&w, (double)c->ping_interval / 1000);
    cp_jw_key(&w, "limits");
    cp_jw_obj(&w);
    cp_jw_ki64(&w, "maxMessageBytes", c->max_message);
    cp_jw_ki64(&w, "maxPending", c->max_pending);
    cp_jw_ku64(&w, "maxRequestIdBytes", mux_id_limit(m));
    cp_jw_ki64(&w, "maxEventBytes", MUX_CHUNK);
    cp_jw_end_obj(&w);
    cp_jw_end_obj(&w);
    put_text(m, &b);
}

/* ---- the end of a request ---- */

static void count_end(mux *m, const pend *p, int status) {
    uint64_t now = cp_now_us();
    cp_router_count(m->t->router, p->index, status, now > p->started_us ? now - p->started_us : 0);
    cp_metric_add(CP_M_PENDING, -1);
    if (m->cancelling == p) m->cancelling = NULL;
    if (m->sending == p) m->sending = NULL;
}

void mux_end(mux *m, pend *p, int status, bool orphan) {
    count_end(m, p, status);
    mux_stops_running(m, p, 0);
    if (p->state == PEND_WAITING) {
        mux_forget_waiting(m, p);
    } else if (p->state == PEND_SENDING) {
        pend_drop(&m->large, p);
        m->large_bytes -= p->body->size - p->bytes;
        cp_outbox_body_release(p->body);
    }
    mux_forget_acks(p);
    pend_unlink(&m->table, p);
    p->m = NULL;
    if (!orphan) free(p);
}

void mux_answer_held(mux *m, pend *p, const cp_err *err) {
    cp_result res = {0};
    cp_error_result(&res, err, NULL, (cp_str){0});
    mux_put_response(m, pend_id(p), res.status, cp_buf_str(&res.body));
    count_end(m, p, res.status);
    cp_result_free(&res);
    mux_forget_acks(p);
    pend_unlink(&m->table, p);
    p->state = PEND_HELD;
    pend_push(&m->held, p);
}

/* Its work has ended. */
static void release(mux *m, pend *p) {
    pend_drop(&m->held, p);
    mux_stops_running(m, p, 0);
    free(p);
    if (!m->closing) mux_check_full(m);
}

static cp_str json_body(const cp_result *res) {
    bool json = !res->type || cp_str_starts(cp_str_of(res->type), CP_STR("application/json"));
    return json ? cp_buf_str(&res->body) : (cp_str){0};
}

static bool is_large(cp_str id, cp_str body) {
    return body.n && prefix_size(id, body) + body.n + DONE.n > MUX_FRAGMENT;
}

static void start_large(mux *m, pend *p, cp_result *res) {
    if (res->spilled) {
        p->body = cp_outbox_body_of_file(cp_take(res->file_fd), cp_take(res->spilled));
    } else {
        if (!res->charge.bytes) res->charge.kind = CP_MEM_RESULTS, cp_charge_force(&res->charge, res->body.n);
        p->body = cp_outbox_body_new(&res->body, &res->charge);
    }
    m->large_bytes += p->body->size;
    p->bytes = 0;
    p->state = PEND_SENDING;
    p->status = (uint16_t)res->status;
    p->reply.on_cancel = NULL;
    pend_due_drop(&m->table, p);
    pend_push(&m->large, p);
    cp_outbox_wake(m->out);
}

/* The bytes of a file cannot travel in JSON, and the routes that give them are HTTP only. What was spilled is JSON. */
static void refuse_file(cp_result *res) {
    cp_err err;
    if (res->file_fd <= 0 || res->spilled) return;
    cp_result_free(res);
    cp_fail(&err, CP_E_NOT_SUPPORTED, "This endpoint is served over HTTP only");
    cp_error_result(res, &err, NULL, (cp_str){0});
}

void mux_answer(mux *m, pend *p, cp_result *res) {
    refuse_file(res);
    cp_str body = json_body(res);
    mux_stops_running(m, p, body.n);
    if (res->spilled || is_large(pend_id(p), body)) {
        start_large(m, p, res);
    } else {
        mux_put_response(m, pend_id(p), res->status, body);
        mux_end(m, p, res->status, false);
    }
    cp_result_free(res);
    mux_check_full(m);
}

void mux_answer_error(mux *m, pend *p, const cp_err *err) {
    cp_result res = {0};
    cp_error_result(&res, err, NULL, (cp_str){0});
    mux_answer(m, p, &res);
}

void mux_answer_now(mux *m, cp_str id, const cp_match *match, uint64_t started_us, cp_result *res) {
    refuse_file(res);
    cp_str body = json_body(res);
    if (res->spilled || is_large(id, body)) {
        pend *p = pend_add(&m->table, id, false, false);
        p->m = m;
        p->index = (uint16_t)match->index;
        p->started_us = started_us;
        p->priority = 3;
        cp_metric_add(CP_M_PENDING, 1);
        start_large(m, p, res);
    } else {
        mux_put_response(m, id, res->status, body);
        cp_router_count(m->t->router, match->index, res->status, cp_now_us() - started_us);
    }
    cp_buf *spare = &mux_shared_of(m->t)->body; /* the next one is served into the same memory; see serve_now */
    if (!spare->p) {
        *spare = cp_take(res->body);
        cp_buf_reset(spare, 64 * 1024);
    }
    cp_result_free(res);
}

/* ---- the sink ---- */

static void reply_send(cp_reply *r, cp_result *res) {
    pend *p = CP_CONTAINER(r, pend, reply);
    mux *m = p->m;
    bool held = p->state == PEND_HELD;
    if (m && !m->closing && !held) {
        mux_answer(m, p, res);
        return;
    }
    cp_result_free(res);
    if (m && held) release(m, p);
    else if (m) mux_end(m, p, 499, false);
    else free(p);
}

static void reply_stream(cp_reply *r, cp_source *src) {
    pend *p = CP_CONTAINER(r, pend, reply);
    mux *m = p->m;
    if (m && !m->closing) {
        mux_start_stream(m, p, src);
        return;
    }
    bool kill = p->kill_on_disconnect;
    if (m) mux_end(m, p, 499, false);
    else free(p);
    src->ops->close(src, CP_END_DISCONNECTED, kill);
}

const cp_reply_ops mux_reply_ops = {.send = reply_send, .stream = reply_stream};

/* ---- large responses ---- */

/* The next frame of the open message. A body in memory is queued by reference, one in a file is read. False: that
 * failed; the message cannot be given up in its middle, so the connection is lost. */
static bool send_fragment(mux *m) {
    pend *p = m->sending;
    bool first = p->bytes == 0, in_file = p->body->fd > 0;
    cp_str some = CP_STR("{"); /* there is a body */
    uint64_t left = p->body->size - p->bytes;
    size_t prefix = first ? prefix_size(pend_id(p), some) : 0;
    size_t take = left < MUX_FRAGMENT - prefix ? (size_t)left : MUX_FRAGMENT - prefix;
    bool last = take == left && prefix + take + DONE.n <= MUX_FRAGMENT;
    size_t n = prefix + take + (last ? DONE.n : 0);
    cp_buf *b = cp_outbox_tail(m->out, CP_FRAME_HEAD_MAX + prefix + (in_file ? take : 0));
    size_t start = b->n;
    b->n += cp_frame_head(b->p + b->n, first ? CP_OP_TEXT : CP_OP_CONT, last, n, NULL);
    if (first) b->n = (size_t)(put_prefix(b->p + b->n, pend_id(p), p->status, some) - b->p);
    bool lost = in_file && cp_outbox_body_read(p->body, p->bytes, take, b) < 0;
    if (lost) b->n = start;
    cp_outbox_commit(m->out);
    if (lost) {
        cp_ws_lose(m->ws, "the file of an answer cannot be read");
        return false;
    }
    if (!in_file) cp_outbox_add_piece(m->out, p->body, p->bytes, take);
    p->bytes += take;
    pace_sent(&m->pace, take);
    m->large_bytes -= take;
    if (!last) return true;
    cp_outbox_add(m->out, DONE.p, DONE.n);
    m->turn = MUX_TURN;
    mux_end(m, p, p->status, false);
    return true;
}

/* ---- not too far ahead of the peer's reading ---- */

static bool too_far(const mux *m, uint64_t extra) {
    bool reads = !m->full && !m->job; /* the answers to our probes */
    return reads && !m->draining && pace_full(&m->pace, extra);
}

/* Large responses and streams take turns, so that neither starves. */
static bool large_turn(const mux *m) { return m->large.mask && (m->turn <= 0 || !m->streams.mask || too_far(m, 0)); }

static bool paced(const mux *m) {
    return m->sending || m->large.mask ? too_far(m, MUX_LARGE_AHEAD) : m->streams.mask && too_far(m, 0);
}

static void on_paced(cp_timer *timer) {
    mux *m = CP_CONTAINER(timer, mux, paced);
    if (!paced(m)) return;
    cp_timer_start(m->t->loop, timer, MUX_PACED_MS, on_paced);
    if (pace_stuck(&m->pace)) cp_outbox_wake(m->out);
}

void mux_pong(cp_ws *ws, cp_str payload) {
    mux *m = cp_ws_data(ws);
    pace_answered(&m->pace, payload, cp_now_us());
    if (cp_timer_active(&m->paced)) cp_outbox_wake(m->out);
}

static void probe(mux *m) {
    char ping[CP_FRAME_HEAD_MAX + PACE_PROBE], payload[PACE_PROBE];
    if (!pace_due(&m->pace, m->sending ? MUX_PROBE_LARGE : MUX_PROBE_STREAM)) return;
    pace_probe(&m->pace, cp_now_us(), payload);
    size_t n = cp_frame_head(ping, CP_OP_PING, true, PACE_PROBE, NULL);
    memcpy(ping + n, payload, PACE_PROBE);
    cp_outbox_add(m->out, ping, n + PACE_PROBE);
}

void mux_pull(mux *m) {
    while (cp_outbox_has_room(m->out)) {
        flush_parked(m);
        probe(m);
        if (paced(m)) {
            if (!cp_timer_active(&m->paced)) cp_timer_start(m->t->loop, &m->paced, MUX_PACED_MS, on_paced);
            break;
        }
        if (m->sending) {
            if (!send_fragment(m)) break;
        } else if (large_turn(m)) {
            m->sending = pend_top(&m->large);
            pend_drop(&m->large, m->sending);
        } else if (!mux_pull_stream(m)) {
            break;
        }
    }
    flush_parked(m);
    mux_check_full(m);
}
