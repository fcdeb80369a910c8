/* The endpoint: birth, loss, draining and inspection of a multiplexed connection. */
#include "transport/mux.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>

struct cp_mux_shared *mux_shared_of(cp_transport *t) {
    if (!t->mux_shared) {
        t->mux_shared = cp_new(struct cp_mux_shared);
        t->mux_shared->t = t;
        t->mux_shared->queue_tail = &t->mux_shared->queue;
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

static void mux_close(cp_ws *ws, uint16_t code) {
    (void)code;
    mux *m = cp_ws_data(ws);
    m->closing = true;
    mux_job_abandon(m);
    uint32_t bucket = 0;
    for (pend *p; (p = pend_from(&m->table, bucket)); mux_lose(m, p)) bucket = pend_bucket(&m->table, p);
    for (pend *p; (p = pend_top(&m->held)); pend_drop(&m->held, p)) p->m = NULL;
    cp_timer_stop(m->t->loop, &m->deadline);
    cp_timer_stop(m->t->loop, &m->starved);
    cp_loop_undefer(m->t->loop, &m->more);
    cp_timer_stop(m->t->loop, &m->paced);
    free(m->table.buckets);
    cp_buf_free(&m->parked);
    cp_charge_free(&m->charge);
    free(m);
}

static void mux_writable(cp_ws *ws) { mux_pull(cp_ws_data(ws)); }

/* What is there is sent; what would have to be waited for is ended. */
static void mux_drain(cp_ws *ws) {
    mux *m = cp_ws_data(ws);
    cp_err err;
    m->draining = true;
    cp_fail(&err, CP_E_OPERATION_INTERRUPTED, "The server is shutting down");
    for (pend *p = pend_from(&m->table, 0), *next; p; p = next) {
        uint32_t bucket = pend_bucket(&m->table, p);
        next = pend_next(&m->table, p);
        if (p->state == PEND_STREAMING) mux_wake_stream(m, p); /* the pull ends it when it would wait */
        else if (mux_give_up(m, p, CP_END_SHUTDOWN, false, &err))
            next = pend_from(&m->table, bucket); /* others may be gone too */
    }
}

static bool mux_busy(cp_ws *ws) {
    const mux *m = cp_ws_data(ws);
    return m->sending || m->parked.n || m->large.mask || m->streams.mask;
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
