/* Streams: pulled one event at a time when the socket takes more. Nothing is kept per stream but its place in the
 * round: an event is written by its source, escaped once more, straight into the outbox behind the head of its message.
 *
 * Deficit round robin: within a priority each stream may send MUX_QUANTUM bytes before the next one's turn. Between
 * priorities each class may send MUX_QUANTUM << priority bytes before all classes get their share anew: higher ones
 * come first and more, none starves. */
#include "transport/mux.h"

#include <stdlib.h>

/* What stands before the data of an event; its frame head goes in front when the length is known. */
enum { HEAD_GAP = 4, ENVELOPE = 64, ROOM_MAX = 96 * 1024, LEAST = 64 /* a source must get a whole character out */ };

/* ---- readiness ---- */

static bool has_credit(pend *p) {
    const pend_flow *flow = pend_flow_of(p);
    return !flow || flow->credit > 0;
}

void mux_wake_stream(mux *m, pend *p) {
    if (m->closing) return;
    if (p->pulling) {
        p->woken = true;
        return;
    }
    if (p->queued || !(has_credit(p) || m->draining)) return;
    if (p->deficit <= 0) p->deficit = MUX_QUANTUM;
    pend_push(&m->streams, p);
    cp_outbox_wake(m->out);
}

static void wake(cp_source *s) {
    pend *p = s->sink;
    mux_wake_stream(p->m, p);
}

void mux_start_stream(mux *m, pend *p, cp_source *src) {
    mux_stops_running(m, p, 0);
    p->state = PEND_STREAMING;
    p->src = src;
    p->reply.on_cancel = NULL;
    src->sink = p;
    src->wake = wake;
    mux_wake_stream(m, p);
    mux_check_full(m); /* another may run */
}

void mux_close_source(mux *m, pend *p, cp_end why, bool kill) {
    cp_source *src = cp_take(p->src);
    pend_drop(&m->streams, p);
    p->state = PEND_RUNNING; /* without a handler: for the answer only */
    p->reply.on_cancel = NULL;
    src->wake = NULL;
    src->ops->close(src, why, kill);
}

void mux_window(mux *m, cp_str id, yyjson_val *bytes) {
    pend *p = pend_find(&m->table, id);
    uint64_t n = yyjson_get_uint(bytes);
    if (!yyjson_is_uint(bytes) || !n || n > UINT64_C(1) << 53) {
        cp_err err;
        cp_fail_field(&err, "bytes", "bytes must be a whole number above 0");
        mux_refuse_message(m, id, "window", &err);
        return;
    }
    pend_flow *flow = p ? pend_flow_of(p) : NULL;
    if (!flow) return;
    flow->credit += (int64_t)n;
    if (flow->credit > INT64_C(1) << 53) flow->credit = INT64_C(1) << 53;
    if (p->state == PEND_STREAMING) mux_wake_stream(m, p);
}

/* ---- framing ---- */

/* The message stands at start + HEAD_GAP up to the end of b. Puts its frame heads in: one, or as many as make it fit,
 * with the pieces moved apart. Pieces are of equal size, so that all heads are. */
static void frame_in_place(cp_buf *b, size_t start) {
    size_t n = b->n - start - HEAD_GAP, k = (n + MUX_FRAGMENT - 1) / MUX_FRAGMENT;
    char head[CP_FRAME_HEAD_MAX];
    if (k <= 1) {
        size_t h = cp_frame_head(head, CP_OP_TEXT, true, n, NULL);
        if (h < HEAD_GAP) memmove(b->p + start + h, b->p + start + HEAD_GAP, n);
        memcpy(b->p + start, head, h);
        b->n = start + h + n;
        return;
    }
    size_t size = (n + k - 1) / k;
    cp_buf_reserve(b, (k - 1) * HEAD_GAP);
    for (size_t i = k; i-- > 0;) {
        size_t len = i == k - 1 ? n - i * size : size;
        char *from = b->p + start + HEAD_GAP + i * size, *to = from + i * HEAD_GAP;
        if (i) memmove(to, from, len);
        cp_frame_head(head, i ? CP_OP_CONT : CP_OP_TEXT, i == k - 1, len, NULL);
        memcpy(to - HEAD_GAP, head, HEAD_GAP);
    }
    b->n += (k - 1) * HEAD_GAP;
}

/* The length of the string that this escaped text stands for. Of level 2 there are only two-byte escapes. */
static size_t unescaped(const char *p, size_t n) {
    size_t len = n;
    const char *end = p + n;
    while (p < end && (p = memchr(p, '\\', (size_t)(end - p)))) {
        len--;
        p += 2;
    }
    return len;
}

/* ---- pulling ---- */

static size_t clamp(size_t v, size_t low, size_t high) { return v < low ? low : v > high ? high : v; }

/* So many bytes that the message, escapes included, probably fits a frame, and the window. */
static size_t budget_of(const mux *m, pend *p) {
    size_t budget = clamp((size_t)(MUX_FRAGMENT - 1024) * 256 / m->expand, 4096, MUX_CHUNK);
    const pend_flow *flow = pend_flow_of(p);
    if (!flow || m->draining) return budget;
    size_t outstanding = (size_t)(flow->window > flow->credit ? flow->window - flow->credit : 0);
    size_t credit = (size_t)flow->credit;
    if (credit >= 2 * budget) return budget;
    if (credit < 1024 && outstanding) return 0;
    return clamp(credit / 2, LEAST, budget); /* half: newlines and quotes are two bytes each */
}

static void put_head(cp_buf *b, const pend *p) {
    b->n += HEAD_GAP;
    cp_buf_add(b, "{\"type\":\"stream\"", 16);
    if (p->id_n) {
        cp_buf_add(b, ",\"id\":", 6);
        cp_buf_add(b, p->id, p->id_n);
    }
    cp_buf_add(b, ",\"data\":\"", 9);
}

static void put_tail(cp_buf *b, const cp_event *ev) {
    cp_buf_addc(b, '"');
    if (ev->id[0]) {
        cp_jw w = {.out = b, .level = 1, .comma = true};
        cp_jw_kz(&w, "eventId", ev->id);
    }
    cp_buf_addc(b, '}');
}

/* Writes the next event into the outbox. */
static cp_pull pull_event(mux *m, pend *p, size_t budget) {
    size_t room = clamp(m->last_event + m->last_event / 2 + ENVELOPE + p->id_n + 512, 1024, ROOM_MAX);
    cp_buf *b = cp_outbox_tail(m->out, room);
    size_t start = b->n;
    put_head(b, p);
    size_t data = b->n;
    cp_event ev = {.w = {.out = b, .level = 2}};
    m->pulling = p->pulling = true;
    cp_pull got = p->src->ops->pull(p->src, budget, &ev);
    m->pulling = p->pulling = false;
    if (got == CP_PULL_EVENT) {
        size_t n = b->n - data;
        if (n > budget / 2) m->expand = (uint32_t)clamp(n * 256 / budget, 256, 256 * 8);
        m->last_event = (uint32_t)n;
        if (p->windowed) pend_flow_of(p)->credit -= (int64_t)unescaped(b->p + data, n);
        put_tail(b, &ev);
        frame_in_place(b, start);
        p->bytes += b->n - start;
    } else {
        b->n = start;
    }
    cp_outbox_commit(m->out);
    return got;
}

static void finish(mux *m, pend *p, cp_pull how) {
    bool interrupted = how == CP_PULL_WAIT;
    mux_close_source(m, p, interrupted ? CP_END_SHUTDOWN : CP_END_DONE, false);
    if (how == CP_PULL_FAIL) mux_put_error(m, pend_id(p), "STREAM_ERROR", 500, "The source of the stream failed");
    else if (interrupted) /* not its end: who takes it for that does not come back for the rest */
        mux_put_error(m, pend_id(p), "OPERATION_INTERRUPTED", 409, "The server is shutting down");
    else mux_put_response(m, pend_id(p), 200, (cp_str){0});
    mux_end(m, p, how == CP_PULL_FAIL ? 500 : interrupted ? 409 : 200, false);
}

/* Charges what was sent, and passes the turn on when the share is used up. */
static void charge(mux *m, pend *p, size_t n) {
    m->class_credit[p->priority] -= (int64_t)n;
    m->turn -= (int64_t)n;
    pace_sent(&m->pace, n);
    p->deficit -= (int32_t)n;
    if (p->deficit > 0) return;
    p->deficit += MUX_QUANTUM;
    pend_drop(&m->streams, p);
    pend_push(&m->streams, p);
}

static pend *next_stream(mux *m) {
    for (;;) {
        for (unsigned mask = m->streams.mask; mask;) {
            unsigned k = 31 - (unsigned)__builtin_clz(mask);
            if (m->class_credit[k] > 0) return m->streams.head[k];
            mask &= ~(1u << k);
        }
        if (!m->streams.mask) return NULL;
        for (unsigned k = 0; k < 8; k++)
            if (m->streams.mask & 1u << k) m->class_credit[k] += (int64_t)MUX_QUANTUM << k;
    }
}

bool mux_pull_stream(mux *m) {
    pend *p = next_stream(m);
    if (!p) return false;
    size_t budget = budget_of(m, p);
    if (!budget) {
        pend_drop(&m->streams, p); /* until the peer gives credit */
        return true;
    }
    uint64_t before = p->bytes;
    p->woken = false;
    cp_pull got = pull_event(m, p, budget);
    if (got == CP_PULL_EVENT) {
        charge(m, p, (size_t)(p->bytes - before));
        if (!has_credit(p) && !m->draining) pend_drop(&m->streams, p);
    } else if (got == CP_PULL_WAIT && !m->draining) {
        pend_drop(&m->streams, p);
        if (p->woken) { /* while it was asked; not again in this round, lest it goes on for ever */
            pend_push(&m->streams, p);
            cp_outbox_wake(m->out);
            return false;
        }
    } else {
        finish(m, p, got);
    }
    return true;
}
