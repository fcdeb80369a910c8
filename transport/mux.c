/* The endpoint: birth, loss, draining and inspection of a multiplexed connection.
 *
 * A connection may have ten thousand requests, and to end one calls into its handler. So they are ended in rounds of
 * the loop, also when the connection has gone: the mux then outlives it (`closing`, without ws and out) until its table
 * is empty, counts as before for the memory budget, and says nothing to anybody. */
#include "transport/mux.h"

#include "base/clock.h"
#include "transport/ws_impl.h"

#include <stdio.h>
#include <stdlib.h>

struct cp_mux_shared *mux_shared_of(cp_transport *t) {
    if (!t->mux_shared) {
        t->mux_shared = cp_new(struct cp_mux_shared);
        t->mux_shared->t = t;
        t->mux_shared->queue_tail = &t->mux_shared->queue;
        cp_ring_init(&t->mux_shared->ending);
    }
    return t->mux_shared;
}

void cp_mux_free_shared(cp_transport *t) {
    if (!t->mux_shared || t->mux_shared->parsing) return; /* a job on the pool still counts itself there */
    cp_buf_free(&t->mux_shared->id);
    cp_buf_free(&t->mux_shared->text);
    cp_buf_free(&t->mux_shared->body);
    free(t->mux_shared);
    t->mux_shared = NULL;
}

static int mux_open(cp_ws *ws) {
    mux *m = cp_new(mux);
    m->ws = ws;
    m->t = cp_ws_transport(ws);
    m->out = cp_ws_outbox(ws);
    m->expand = 256;
    m->window = MUX_WINDOW_FIRST;
    m->charge.kind = CP_MEM_BODIES;
    cp_ws_set_data(ws, m);
    return 0;
}

/* ---- the end of all its requests ---- */

static void mux_free(mux *m) {
    cp_transport *t = m->t;
    cp_ring_del(&m->link);
    cp_loop_undefer(t->loop, &m->ending);
    free(m->table.buckets);
    cp_charge_free(&m->charge);
    free(m);
    cp_ws_left(t);
}

/* Ends the next one. False: there is none. */
static bool lose_next(mux *m) {
    pend *p = pend_from(&m->table, m->ending_at);
    if (!p) return false;
    m->ending_at = pend_bucket(&m->table, p);
    mux_lose(m, p);
    return true;
}

/* What is there is sent; what would have to be waited for is ended. Sees to one bucket: it may keep some. False: all
 * have been seen to. */
static bool drain_next(mux *m, const cp_err *err) {
    pend *p = pend_from(&m->table, m->ending_at);
    if (!p) return false;
    uint32_t bucket = pend_bucket(&m->table, p);
    for (pend *next; p && pend_bucket(&m->table, p) == bucket; p = next) {
        next = pend_next(&m->table, p);
        if (p->state == PEND_STREAMING) mux_wake_stream(m, p); /* the pull ends it when it would wait */
        else if (mux_give_up(m, p, CP_END_SHUTDOWN, false, err))
            next = pend_from(&m->table, bucket); /* others may be gone too */
    }
    m->ending_at = bucket + 1;
    return true;
}

static void end_some(cp_deferred *d) {
    mux *m = CP_CONTAINER(d, mux, ending);
    uint64_t until = cp_now_us() + MUX_ENDING_US;
    cp_err err;
    bool more;
    cp_fail(&err, CP_E_OPERATION_INTERRUPTED, "The server is shutting down");
    do more = m->closing ? lose_next(m) : drain_next(m, &err);
    while (more && cp_now_us() < until);
    if (more) {
        cp_loop_defer(m->t->loop, &m->ending, end_some);
    } else if (m->closing) {
        mux_free(m);
    } else {
        cp_ring_del(&m->link);
        cp_outbox_wake(m->out); /* it may close now */
    }
}

static bool is_ending(const mux *m) { return m->link.next != NULL; }

static void begin_ending(mux *m) {
    m->ending_at = 0;
    if (!is_ending(m)) cp_ring_add(&mux_shared_of(m->t)->ending, &m->link);
    end_some(&m->ending); /* mostly they are few, and this is all */
}

bool cp_mux_ending(const cp_transport *t) { return t->mux_shared && !cp_ring_empty(&t->mux_shared->ending); }

void cp_mux_end_all(cp_transport *t) {
    for (cp_link *l; t->mux_shared && (l = cp_ring_first(&t->mux_shared->ending));) {
        mux *m = CP_CONTAINER(l, mux, link);
        while (lose_next(m)) continue;
        mux_free(m);
    }
}

static void mux_close(cp_ws *ws, uint16_t code) {
    (void)code;
    mux *m = cp_ws_data(ws);
    m->closing = true;
    m->ws = NULL;
    m->out = NULL;
    mux_job_abandon(m);
    for (pend *p; (p = pend_top(&m->held)); pend_drop(&m->held, p)) p->m = NULL;
    cp_timer_stop(m->t->loop, &m->deadline);
    cp_timer_stop(m->t->loop, &m->starved);
    cp_loop_undefer(m->t->loop, &m->more);
    cp_timer_stop(m->t->loop, &m->paced);
    cp_buf_free(&m->parked);
    begin_ending(m);
}

static void mux_writable(cp_ws *ws) { mux_pull(cp_ws_data(ws)); }

static void mux_drain(cp_ws *ws) {
    mux *m = cp_ws_data(ws);
    m->draining = true;
    begin_ending(m);
}

static bool mux_busy(cp_ws *ws) {
    const mux *m = cp_ws_data(ws);
    return is_ending(m) || m->sending || m->parked.n || m->large.mask || m->streams.mask;
}

static size_t mux_held_outside(cp_ws *ws) {
    const mux *m = cp_ws_data(ws);
    return mux_held(m) - cp_outbox_queued(m->out);
}

static void put_route(cp_jw *w, const cp_route *route) {
    static const char *const names[CP_METHOD_COUNT] = {"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"};
    char text[128];
    snprintf(text, sizeof text, "%s %s", route ? names[route->method] : "", route ? route->pattern : "");
    cp_jw_kz(w, "route", text);
}

/* What is taken down of a request; its id follows. */
typedef struct pending_row {
    uint64_t started_us, bytes, deadline; /* cp_now_ms; 0 none */
    uint16_t index, id_n;
    uint8_t state;
} pending_row;

enum { PARSING = 255 };

static int by_age(const void *a, const void *b) {
    const pend *x = *(const pend *const *)a, *y = *(const pend *const *)b;
    return (x->started_us > y->started_us) - (x->started_us < y->started_us);
}

/* The oldest first: whoever asks looks for what hangs. */
static void mux_pending(cp_ws *ws, cp_buf *rows) {
    const mux *m = cp_ws_data(ws);
    cp_autofree const pend **all = cp_alloc((m->table.count + 1) * sizeof *all);
    size_t n = 0;
    for (const pend *p = pend_from(&m->table, 0); p; p = pend_next(&m->table, p)) all[n++] = p;
    qsort(all, n, sizeof *all, by_age);
    for (size_t i = 0; i < n; i++) {
        const pend *p = all[i];
        pending_row r = {.started_us = p->started_us,
                         .bytes = p->state == PEND_WAITING ? 0 : p->bytes,
                         .deadline = pend_deadline(p),
                         .index = p->index,
                         .id_n = p->id_n,
                         .state = p->state};
        cp_buf_add(rows, &r, sizeof r);
        cp_buf_add(rows, p->id, p->id_n);
    }
    pending_row parsing = {.state = PARSING};
    if (m->job) cp_buf_add(rows, &parsing, sizeof parsing);
}

static void mux_pending_row(cp_transport *t, const cp_buf *rows, size_t *at, cp_jw *w) {
    static const char *const words[] = {"waiting", "running", "streaming", "sending", "held"};
    pending_row r;
    memcpy(&r, rows->p + *at, sizeof r);
    cp_str id = {rows->p + *at + sizeof r, r.id_n};
    *at += sizeof r + r.id_n;
    cp_jw_obj(w);
    if (r.id_n) {
        cp_jw_key(w, "id");
        cp_jw_raw(w, id);
    }
    if (r.state == PARSING) {
        cp_jw_kz(w, "state", "parsing");
        cp_jw_end_obj(w);
        return;
    }
    put_route(w, cp_router_route(t->router, r.index));
    cp_jw_kz(w, "state", words[r.state]);
    cp_jw_ku64(w, "ageMs", (cp_now_us() - r.started_us) / 1000);
    cp_jw_ku64(w, "bytes", r.bytes);
    if (r.deadline) {
        uint64_t now = cp_now_ms();
        cp_jw_ku64(w, "deadlineMs", r.deadline > now ? r.deadline - now : 0);
    }
    cp_jw_end_obj(w);
}

const cp_ws_endpoint cp_ws_mux = {
    .name = "mux",
    .open = mux_open,
    .message = mux_on_message,
    .pong = mux_pong,
    .writable = mux_writable,
    .close = mux_close,
    .pending = mux_pending,
    .pending_row = mux_pending_row,
    .drain = mux_drain,
    .busy = mux_busy,
    .held = mux_held_outside,
};
