/* All WebSockets of a server: draining, cutting, and what GET /api/pending shows of them. */
#include "transport/ws_impl.h"

#include "transport/mux.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>

struct cp_ws_shared *cp_ws_shared_of(cp_transport *t) {
    if (!t->ws_shared) {
        t->ws_shared = cp_new(struct cp_ws_shared);
        t->ws_shared->t = t;
        cp_buf_reserve(&t->ws_shared->spare, WS_READ);
    }
    return t->ws_shared;
}

static void on_drained(cp_deferred *d) {
    struct cp_ws_shared *s = CP_CONTAINER(d, struct cp_ws_shared, drained);
    void (*done)(void *) = s->drain_done;
    s->drain_done = NULL;
    cp_timer_stop(s->t->loop, &s->drain);
    if (done) done(s->drain_arg);
}

void cp_ws_left(cp_transport *t) {
    struct cp_ws_shared *s = t->ws_shared;
    if (s && s->drain_done && !t->ws_head && !cp_mux_ending(t)) cp_loop_defer(t->loop, &s->drained, on_drained);
}

static void on_deadline(cp_timer *timer) {
    struct cp_ws_shared *s = CP_CONTAINER(timer, struct cp_ws_shared, drain);
    while (s->t->ws_head) cp_ws_cut(s->t->ws_head);
    cp_mux_end_all(s->t);
}

void cp_ws_drain_all(cp_transport *t, uint64_t timeout_ms, void (*done)(void *arg), void *arg) {
    struct cp_ws_shared *s = cp_ws_shared_of(t);
    s->drain_done = done;
    s->drain_arg = arg;
    cp_timer_start(t->loop, &s->drain, timeout_ms, on_deadline);
    for (cp_ws *ws = t->ws_head; ws; ws = ws->next) {
        if (ws->ep->drain && !ws->ended) ws->ep->drain(ws);
        cp_ws_close(ws, CP_CLOSE_GOING_AWAY, "server is shutting down");
    }
    cp_ws_left(t);
}

void cp_ws_close_all(cp_transport *t) {
    while (t->ws_head) cp_ws_cut(t->ws_head);
    cp_mux_end_all(t);
    cp_mux_free_shared(t);
    if (!t->ws_shared) return;
    cp_timer_stop(t->loop, &t->ws_shared->drain);
    cp_loop_undefer(t->loop, &t->ws_shared->drained);
    cp_buf_free(&t->ws_shared->spare);
    free(t->ws_shared);
    t->ws_shared = NULL;
}

const char *cp_ws_peer(const cp_ws *ws, char out[64]) {
    char addr[INET6_ADDRSTRLEN] = "";
    if (ws->peer.family == AF_INET) {
        inet_ntop(AF_INET, &ws->peer.in4.sin_addr, addr, sizeof addr);
        snprintf(out, 64, "%s:%u", addr, ntohs(ws->peer.in4.sin_port));
    } else if (ws->peer.family == AF_INET6) {
        inet_ntop(AF_INET6, &ws->peer.in6.sin6_addr, addr, sizeof addr);
        snprintf(out, 64, "[%s]:%u", addr, ntohs(ws->peer.in6.sin6_port));
    } else {
        snprintf(out, 64, "local");
    }
    return out;
}

/* ---- GET /api/pending ---- */

struct cp_ws_pending {
    cp_transport *t;
    uint64_t below; /* connections from this number on have had their turn, or have come too late */
    const cp_ws_endpoint *ep;
    cp_buf rows; /* of the connection that is open */
    size_t at;
    bool open;
};

cp_ws_pending *cp_ws_pending_open(cp_transport *t) {
    cp_ws_pending *p = cp_new(cp_ws_pending);
    p->t = t;
    p->below = UINT64_MAX;
    return p;
}

void cp_ws_pending_close(cp_ws_pending *p) {
    cp_buf_free(&p->rows);
    free(p);
}

/* The list begins with the youngest, which has the highest number. */
static cp_ws *next_of(cp_ws_pending *p) {
    cp_ws *ws = p->t->ws_head;
    while (ws && ws->id >= p->below) ws = ws->next;
    if (ws) p->below = ws->id;
    return ws;
}

static void begin_connection(cp_ws_pending *p, cp_ws *ws, cp_jw *w) {
    char peer[64];
    cp_jw_obj(w);
    cp_jw_ku64(w, "connection", ws->id);
    cp_jw_kz(w, "peer", cp_ws_peer(ws, peer));
    cp_jw_kz(w, "kind", "websocket");
    cp_jw_kz(w, "endpoint", ws->ep->name);
    cp_jw_ku64(w, "queuedBytes", cp_outbox_queued(&ws->out) + (ws->ep->held && !ws->ended ? ws->ep->held(ws) : 0));
    cp_jw_key(w, "pending");
    cp_jw_arr(w);
    cp_buf_clear(&p->rows);
    p->at = 0;
    p->ep = ws->ep;
    p->open = true;
    if (ws->ep->pending && !ws->ended) ws->ep->pending(ws, &p->rows);
}

bool cp_ws_pending_row(cp_ws_pending *p, cp_jw *w) {
    if (p->open && p->at < p->rows.n) {
        p->ep->pending_row(p->t, &p->rows, &p->at, w);
        return true;
    }
    if (p->open) {
        cp_jw_end_arr(w);
        cp_jw_end_obj(w);
    }
    p->open = false;
    cp_ws *ws = next_of(p);
    if (ws) begin_connection(p, ws, w);
    return ws != NULL;
}
