/* Doors to the raw servers: "echo", 64-byte messages answered in the order in which they came, and "mux", calls with an
 * id beside the output of a command. They are the least that a server can do for a request, behind the same client. */
#include "load/doors.h"
#include "load/load.h"
#include "load/raw.h"
#include "load/sock.h"

static void raw_open(conn *c) {
    c->fd = sock_dial();
    c->mux.left = 0;
    cp_buf_clear(&c->mux.head);
}

/* ---- echo ---- */

static void echo_put(conn *c, slot *s, unsigned nth) {
    static const char message[RAW_CALL];
    (void)nth;
    c->fifo.order[c->fifo.head++ % ((uint64_t)c->nslots * (uint64_t)opt.burst)] = s->index;
    cp_buf_add(&c->out, message, sizeof message);
}

static void echo_take(conn *c, char *p, size_t n, uint64_t now) {
    (void)p;
    uint64_t before = c->fifo.due, capacity = (uint64_t)c->nslots * (uint64_t)opt.burst;
    c->fifo.due += n;
    for (uint64_t i = before / RAW_CALL; i < c->fifo.due / RAW_CALL; i++)
        engine_reply(&c->slots[c->fifo.order[i % capacity]], now);
}

const door door_echo = {.name = "echo", .open = raw_open, .put = echo_put, .take = echo_take};

/* ---- mux ---- */

static void mux_put(conn *c, slot *s, unsigned nth) {
    static const char filler[RAW_CALL - sizeof(raw_head)];
    raw_head h = {.length = sizeof filler, .id = s->index * (unsigned)opt.burst + nth + 1};
    cp_buf_add(&c->out, &h, sizeof h);
    cp_buf_add(&c->out, filler, sizeof filler);
}

static void mux_take(conn *c, char *p, size_t n, uint64_t now) {
    cp_buf *head = &c->mux.head;
    for (size_t at = 0; at < n;) {
        size_t want = c->mux.left ? (size_t)c->mux.left : sizeof(raw_head) - head->n, k = n - at < want ? n - at : want;
        raw_head h;
        if (!c->mux.left) {
            cp_buf_add(head, p + at, k);
        } else {
            memcpy(&h, head->p, sizeof h);
            c->mux.left -= k;
            if (h.id == 0) engine_beside(k);
            if (!c->mux.left) cp_buf_clear(head);
            if (!c->mux.left && h.id) engine_reply(&c->slots[(h.id - 1) / (unsigned)opt.burst], now);
        }
        if (!c->mux.left && head->n == sizeof h) {
            memcpy(&h, head->p, sizeof h);
            c->mux.left = h.length;
        }
        at += k;
    }
}

static void begin_beside(conn *c) {
    raw_head h = {.length = (unsigned)strlen(opt.beside), .id = 0};
    cp_buf_add(&c->out, &h, sizeof h);
    cp_buf_add(&c->out, opt.beside, h.length);
}

/* The server ends the command when the connection ends. */
static void end_beside(conn *c) { sock_drop(&c->fd); }

const door door_mux = {.name = "mux",
                       .open = raw_open,
                       .put = mux_put,
                       .take = mux_take,
                       .begin_beside = begin_beside,
                       .end_beside = end_beside};

const door *const doors[] = {&door_ws, &door_ws_close, &door_http, &door_http_close, &door_echo, &door_mux, NULL};
