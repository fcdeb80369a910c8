/* Design notes. A connection is read into a buffer that all share and decoded there; messages are handed out in place.
 * When its reading pauses (by its endpoint, or because its outbox is full) the undecoded rest is kept and decoded on
 * resumption, before anything new is read, so order holds.
 *
 * Freed only in cp_ws_cut, which is reached from the watcher, the timer, and the outbox's callbacks, never from inside
 * a decode: what an endpoint calls can only change the state.
 *
 *   event \ state      OPEN              FLUSHING           CLOSING             LINGER
 *   cp_ws_close        -> FLUSHING       -                  -                   -
 *   close frame        echo, LINGER      echo, LINGER       -> LINGER           dropped
 *   bad frame          close, LINGER     close, LINGER      -> LINGER           dropped
 *   outbox empty       -                 close, CLOSING     -                   shut our side
 *   end of input       cut               cut                cut                 cut
 *   timer              ping, stall       ping, stall        cut                 cut, unless bytes are being taken
 *
 * Shutting our side and waiting for the peer's end, instead of closing, is what keeps a reset from destroying the close
 * frame on its way: close() with unread input resets. */
#include "transport/ws_impl.h"

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/metrics.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    READS_PER_ROUND = 4, /* of WS_READ: the fair share of one connection */
    TURN_US = 1000,      /* and so long it may have its messages served; then others have their turn */
    CLOSE_MS = 2000,     /* for the peer's close, and then for its end */
    CLOSE_ABNORMAL = 1006,
};

static void on_timer(cp_timer *timer);

static inline cp_loop *loop_of(const cp_ws *ws) { return ws->t->loop; }

/* ---- reading on and off ---- */

static bool reading(const cp_ws *ws) { return ws->state >= WS_CLOSING || (!ws->paused && !ws->full); }

static void watch(cp_ws *ws) {
    bool on = reading(ws) && !ws->rest.n;
    cp_io_mod(loop_of(ws), &ws->io, (ws->io.events & EPOLLOUT) | (on ? EPOLLIN : 0));
}

static void feed(cp_ws *ws, char *p, size_t n);

/* A turn is from an event of this connection to the next message that finds the time used up. */
static void begin_turn(cp_ws *ws) { cp_ws_shared_of(ws->t)->turn_until = cp_now_us() + TURN_US; }
static bool turn_over(const cp_ws *ws) { return cp_now_us() >= ws->t->ws_shared->turn_until; }

static void on_resume(cp_deferred *d) {
    cp_ws *ws = CP_CONTAINER(d, cp_ws, resume);
    if (reading(ws)) {
        struct cp_ws_shared *s = cp_ws_shared_of(ws->t);
        cp_autobuf cp_buf rest = cp_take(ws->rest);
        begin_turn(ws);
        feed(ws, rest.p, rest.n);
        if (!s->spare.p && rest.cap <= 2 * WS_READ) {
            s->spare = cp_take(rest);
            cp_buf_clear(&s->spare);
        }
    }
    watch(ws);
}

static void reading_changed(cp_ws *ws) {
    if (reading(ws) && ws->rest.n) cp_loop_defer(loop_of(ws), &ws->resume, on_resume);
    watch(ws);
}

void cp_ws_pause(cp_ws *ws, bool paused) {
    if (ws->paused == paused) return;
    ws->paused = paused;
    reading_changed(ws);
}

/* ---- closing ---- */

static void end_endpoint(cp_ws *ws, uint16_t code) {
    if (ws->ended) return;
    ws->ended = true;
    if (ws->ep->close) ws->ep->close(ws, code);
    ws->data = NULL;
}

static void put_close_frame(cp_ws *ws, unsigned code, cp_str reason) {
    char frame[CP_FRAME_CLOSE_MAX];
    cp_outbox_add(&ws->out, frame, cp_frame_close(frame, code, reason, NULL));
}

static void enter(cp_ws *ws, ws_state state) {
    ws->state = (uint8_t)state;
    if (state >= WS_CLOSING) cp_timer_start(loop_of(ws), &ws->timer, CLOSE_MS, on_timer);
    cp_outbox_wake(&ws->out); /* on_empty takes the next step, even when nothing is queued */
    reading_changed(ws);
}

/* Sends a close frame behind what is queued and expects nothing more of the peer. */
static void fail_with(cp_ws *ws, unsigned code, cp_str reason) {
    end_endpoint(ws, (uint16_t)code);
    if (ws->state < WS_CLOSING) put_close_frame(ws, code, reason);
    if (ws->state != WS_LINGER) enter(ws, WS_LINGER);
}

void cp_ws_close(cp_ws *ws, uint16_t code, const char *reason) {
    if (ws->state != WS_OPEN) return;
    ws->close_code = code;
    ws->close_reason = cp_str_dup(cp_str_of(reason));
    enter(ws, WS_FLUSHING);
}

void cp_ws_cut(cp_ws *ws) {
    cp_transport *t = ws->t;
    end_endpoint(ws, CLOSE_ABNORMAL);
    if (ws->prev) ws->prev->next = ws->next;
    else t->ws_head = ws->next;
    if (ws->next) ws->next->prev = ws->prev;
    cp_timer_stop(t->loop, &ws->timer);
    cp_loop_undefer(t->loop, &ws->resume);
    cp_outbox_fini(&ws->out);
    cp_frame_in_fini(&ws->in);
    cp_charge_free(&ws->collecting);
    cp_buf_free(&ws->rest);
    int fd = ws->io.fd;
    cp_io_del(t->loop, &ws->io);
    if (t->forget) t->forget(t, fd);
    cp_close(&fd);
    free(ws->close_reason);
    free(ws);
    atomic_fetch_sub(&t->nconns, 1);
    cp_metric_add(CP_M_WEBSOCKETS, -1);
    cp_ws_left(t);
}

static void log_end(const cp_ws *ws, const char *event, const char *msg, unsigned code) {
    char peer[64];
    cp_log(CP_LOG_INFO, event, msg, CP_KVI("connection", ws->id), CP_KVZ("endpoint", ws->ep->name),
           CP_KVZ("peer", cp_ws_peer(ws, peer)), CP_KVI("code", code));
}

void cp_ws_lose(cp_ws *ws, const char *why) {
    log_end(ws, "ws.lost", why, CLOSE_ABNORMAL);
    shutdown(ws->io.fd, SHUT_RDWR); /* the loop meets the end of it in its next round */
}

/* ---- liveness ---- */

static void ping(cp_ws *ws) {
    char head[CP_FRAME_HEAD_MAX];
    cp_outbox_add(&ws->out, head, cp_frame_head(head, CP_OP_PING, true, 0, NULL));
    ws->unanswered++;
}

/* Looked at twice an interval, so that a dead peer is found within two: the second ping follows half an interval after
 * an unanswered first. Returns false when the peer is dead. */
static bool probe(cp_ws *ws) {
    if (ws->unanswered >= 2) return false;
    if (ws->unanswered == 1) {
        ping(ws);
    } else if (ws->rested) {
        ws->rested = false;
        ping(ws);
    } else {
        ws->rested = true;
    }
    return true;
}

static void arm(cp_ws *ws) {
    uint64_t half = (uint64_t)ws->t->config->ping_interval / 2;
    uint64_t stall = (uint64_t)ws->t->config->stall_timeout / 4;
    cp_timer_start(loop_of(ws), &ws->timer, (half < stall ? half : stall) + 1, on_timer);
}

static void check_open(cp_ws *ws) {
    uint64_t now = cp_loop_now(loop_of(ws)), half = (uint64_t)ws->t->config->ping_interval / 2;
    if (cp_outbox_queued(&ws->out) || (ws->ep->busy && ws->ep->busy(ws))) { /* slow, not dead */
        ws->unanswered = 0;
        if (cp_outbox_stalled_ms(&ws->out) >= cp_outbox_stall_limit((uint64_t)ws->t->config->stall_timeout)) {
            log_end(ws, "ws.stalled", "the peer takes nothing", CP_CLOSE_POLICY);
            fail_with(ws, CP_CLOSE_POLICY, CP_STR("stalled: no data taken"));
            return;
        }
    } else if (!reading(ws)) { /* its pongs lie unread */
        ws->unanswered = 0;
    } else if (now >= ws->probe_at) {
        if (!probe(ws)) {
            log_end(ws, "ws.dead", "the peer answers no ping", CLOSE_ABNORMAL);
            cp_ws_cut(ws);
            return;
        }
        ws->probe_at = now + half;
    }
    arm(ws);
}

static void on_timer(cp_timer *timer) {
    cp_ws *ws = CP_CONTAINER(timer, cp_ws, timer);
    if (ws->state < WS_CLOSING) check_open(ws);
    else if (cp_outbox_queued(&ws->out) && cp_outbox_stalled_ms(&ws->out) < CLOSE_MS) enter(ws, (ws_state)ws->state);
    else cp_ws_cut(ws);
}

/* ---- input ---- */

static void on_peer_close(cp_ws *ws, const cp_frame_event *ev) {
    if (ws->state >= WS_CLOSING) {
        enter(ws, WS_LINGER);
        return;
    }
    fail_with(ws, ev->code, CP_STR(""));
}

static void on_event(cp_ws *ws, const cp_frame_event *ev) {
    switch (ev->kind) {
    case CP_FRAME_MESSAGE:
        if (ws->state != WS_OPEN) return;
        ws->ev = ev;
        ws->ep->message(ws, ev->opcode == CP_OP_BINARY, ev->data, ev->payload.n);
        ws->ev = NULL;
        return;
    case CP_FRAME_PING:
        if (ws->state >= WS_CLOSING) return;
        cp_frame_put(cp_outbox_tail(&ws->out, CP_FRAME_HEAD_MAX + ev->payload.n), CP_OP_PONG, true, ev->payload.p,
                     ev->payload.n, NULL);
        cp_outbox_commit(&ws->out);
        return;
    case CP_FRAME_CLOSE: on_peer_close(ws, ev); return;
    case CP_FRAME_ERROR:
        log_end(ws, "ws.refused", ev->payload.p, ev->code);
        fail_with(ws, ev->code, ev->payload);
        return;
    case CP_FRAME_PONG:
        if (ws->ep->pong && !ws->ended) ws->ep->pong(ws, ev->payload);
        return;
    case CP_FRAME_NEED_MORE: return;
    }
}

static void check_full(cp_ws *ws) {
    if (!ws->full && cp_outbox_queued(&ws->out) > cp_outbox_high()) {
        ws->full = true;
        watch(ws);
    }
}

/* Thousands of peers that each begin a large message and do not end it must not take all memory. Whoever crosses the
 * budget is sent away rather than paused: if all who are in the middle of something waited, none would ever end. */
static void count_collected(cp_ws *ws) {
    if (cp_charge_set(&ws->collecting, cp_frame_held(&ws->in) + ws->rest.cap, NULL) == 0) return;
    if (ws->state >= WS_CLOSING) return;
    log_end(ws, "ws.no_memory", "too many unfinished messages", CP_CLOSE_TRY_AGAIN);
    fail_with(ws, CP_CLOSE_TRY_AGAIN, CP_STR("too many unfinished messages"));
    cp_frame_in_fini(&ws->in);
    ws->in.over = true; /* the rest of it is not wanted */
    cp_charge_free(&ws->collecting);
}

/* Decodes and delivers; what is left when the reading pauses, or the turn is over, is kept. */
static void feed(cp_ws *ws, char *p, size_t n) {
    cp_frame_event ev;
    size_t used;
    while (n) {
        cp_frame_kind kind = cp_frame_next(&ws->in, p, n, &used, &ev);
        p += used;
        n -= used;
        if (kind == CP_FRAME_NEED_MORE) break;
        on_event(ws, &ev);
        check_full(ws);
        if (!reading(ws) || (n && turn_over(ws))) break;
    }
    if (cp_frame_held(&ws->in)) cp_frame_next(&ws->in, p, 0, &used, &ev); /* lets go of a message that was handed out */
    if (n && !ws->rest.p) ws->rest = cp_take(ws->t->ws_shared->spare);
    cp_buf_add(&ws->rest, p, n);
    if (ws->rest.n && reading(ws)) cp_loop_defer(loop_of(ws), &ws->resume, on_resume);
    count_collected(ws);
}

/* Reads until there is nothing more, or the share of this round is used up. */
static void on_readable(cp_ws *ws) {
    char *buf = cp_ws_shared_of(ws->t)->read;
    begin_turn(ws);
    for (int i = 0; i < READS_PER_ROUND && reading(ws) && !ws->rest.n; i++) {
        ssize_t n = read(ws->io.fd, buf, WS_READ);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) break;
        if (n <= 0) {
            cp_ws_cut(ws);
            return;
        }
        cp_metric_add(CP_M_BYTES_IN, n);
        ws->unanswered = 0;
        feed(ws, buf, (size_t)n);
        if (n < WS_READ) break;
    }
    watch(ws);
}

static void on_io(cp_io *io, uint32_t events) {
    cp_ws *ws = CP_CONTAINER(io, cp_ws, io);
    if (events & EPOLLOUT) cp_outbox_writable(&ws->out);
    if (events & EPOLLIN || (events & (EPOLLERR | EPOLLHUP) && reading(ws) && !ws->rest.n)) on_readable(ws);
    else if (events & (EPOLLERR | EPOLLHUP) && !ws->resume.queued)
        cp_ws_cut(ws); /* else what it sent is served first */
}

/* ---- output ---- */

static void on_room(void *arg) {
    cp_ws *ws = arg;
    if (ws->full) {
        ws->full = false;
        reading_changed(ws);
    }
    if (!ws->ended && ws->ep->writable) ws->ep->writable(ws);
}

static void on_empty(void *arg) {
    cp_ws *ws = arg;
    if (ws->state == WS_FLUSHING && !(ws->ep->busy && ws->ep->busy(ws))) {
        end_endpoint(ws, ws->close_code);
        put_close_frame(ws, ws->close_code, cp_str_of(ws->close_reason));
        enter(ws, WS_CLOSING);
    } else if (ws->state == WS_LINGER && !ws->shut) {
        ws->shut = true;
        shutdown(ws->io.fd, SHUT_WR);
        cp_timer_start(loop_of(ws), &ws->timer, CLOSE_MS, on_timer);
    }
}

static void on_broken(void *arg) { cp_ws_cut(arg); }

void cp_ws_send(cp_ws *ws, unsigned opcode, const void *p, size_t n) {
    if (ws->ended) return;
    if (n <= CP_OUTBOX_LOW / 8) {
        cp_frame_put(cp_outbox_tail(&ws->out, CP_FRAME_HEAD_MAX + n), opcode, true, p, n, NULL);
        cp_outbox_commit(&ws->out);
        return;
    }
    cp_buf frame = {0};
    cp_frame_put(&frame, opcode, true, p, n, NULL);
    cp_outbox_add_buf(&ws->out, &frame);
}

/* ---- birth and small things ---- */

static void keep_peer(cp_ws *ws, const struct sockaddr_storage *peer) {
    if (peer && peer->ss_family == AF_INET) memcpy(&ws->peer.in4, peer, sizeof ws->peer.in4);
    else if (peer && peer->ss_family == AF_INET6) memcpy(&ws->peer.in6, peer, sizeof ws->peer.in6);
}

void cp_ws_adopt(cp_transport *t, int fd, const cp_ws_endpoint *ep, const struct sockaddr_storage *peer, cp_buf *sent) {
    cp_ws *ws = cp_new(cp_ws);
    if (cp_io_add(t->loop, &ws->io, fd, EPOLLIN, on_io) < 0) {
        cp_log(CP_LOG_ERROR, "ws.adopt", "cannot watch a connection", CP_KVZ("error", cp_errno_name(errno)));
        if (t->forget) t->forget(t, fd);
        cp_close(&fd);
        if (sent) cp_buf_free(sent);
        free(ws);
        return;
    }
    ws->t = t;
    ws->ep = ep;
    ws->collecting.kind = CP_MEM_BODIES;
    ws->id = ++cp_ws_shared_of(t)->last_id;
    ws->next = t->ws_head;
    if (ws->next) ws->next->prev = ws;
    t->ws_head = ws;
    keep_peer(ws, peer);
    cp_outbox_init(&ws->out, t->loop, &ws->io, fd,
                   (cp_outbox_events){.arg = ws, .on_room = on_room, .on_error = on_broken, .on_empty = on_empty});
    cp_frame_in_init(&ws->in, CP_FRAME_SERVER, (size_t)t->config->max_message);
    atomic_fetch_add(&t->nconns, 1);
    cp_metric_add(CP_M_WEBSOCKETS, 1);
    ws->probe_at = cp_loop_now(t->loop) + (uint64_t)t->config->ping_interval / 2;
    arm(ws);
    if (sent && sent->n) {
        ws->rest = cp_take(*sent);
        reading_changed(ws);
    }
    int refused = ep->open ? ep->open(ws) : 0;
    if (refused) {
        ws->ended = true; /* it has nothing to close */
        fail_with(ws, (unsigned)refused, CP_STR(""));
    } else if (cp_ws_shared_of(t)->drain_done) {
        cp_ws_close(ws, CP_CLOSE_GOING_AWAY, "server is shutting down");
    }
}

void cp_ws_take(cp_ws *ws, cp_buf *out) { cp_frame_take(&ws->in, ws->ev, out); }
void cp_ws_set_data(cp_ws *ws, void *data) { ws->data = data; }
void *cp_ws_data(const cp_ws *ws) { return ws->data; }
cp_outbox *cp_ws_outbox(cp_ws *ws) { return &ws->out; }
cp_transport *cp_ws_transport(cp_ws *ws) { return ws->t; }
uint64_t cp_ws_id(const cp_ws *ws) { return ws->id; }
bool cp_ws_open(const cp_ws *ws) { return ws->state == WS_OPEN; }
