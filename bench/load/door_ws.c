/* Doors "ws": one WebSocket that carries all operations, and "ws-close": one for each operation, which shows what the
 * first call of a client costs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "load/doors.h"
#include "load/load.h"
#include "load/request.h"
#include "load/ws.h"

enum { MESSAGE_MAX = 1 << 30 };

#define BESIDE "beside" /* the id of the stream beside; those of slots are numbers */

static void ws_open(conn *c) {
    c->fd = ws_dial();
    cp_frame_in_fini(&c->ws);
    cp_frame_in_init(&c->ws, CP_FRAME_CLIENT, MESSAGE_MAX);
}

static void make(cp_buf *out, slot *s, unsigned number) {
    cp_autobuf cp_buf body = {0};
    char id[16];
    snprintf(id, sizeof id, "%u", number);
    request_body(&body, s->op, s->step);
    ws_put_request(out, id, opt.method, opt.path, request_has_body() ? &body : NULL, 0);
}

/* A slot that asks the same each time has its frame made once, so that what is measured is the server. */
static void ws_put_slot(conn *c, slot *s, unsigned nth) {
    unsigned number = s->index * (unsigned)opt.burst + nth;
    if (!request_fixed()) {
        make(&c->out, s, number);
        return;
    }
    cp_buf *frame = &c->made[number];
    if (!frame->n) make(frame, s, number);
    cp_buf_add(&c->out, frame->p, frame->n);
}

static void begin_beside(conn *c) {
    cp_buf body = {.p = (char *)(uintptr_t)opt.beside, .n = strlen(opt.beside)};
    ws_put_request(&c->out, BESIDE, "POST", "/api/execute/stream", &body, opt.window);
    c->owed = 0;
    c->beside_open = true;
}

/* As clients do: in halves of the window. */
static void give_credit(conn *c, uint64_t consumed) {
    c->owed += consumed;
    if (c->owed < (uint64_t)opt.window / 2) return;
    cp_autobuf cp_buf text = {0};
    cp_buf_addf(&text, "{\"type\":\"window\",\"id\":\"" BESIDE "\",\"bytes\":%llu}", (unsigned long long)c->owed);
    ws_put(&c->out, text.p, text.n);
    c->owed = 0;
}

static void message(conn *c, cp_str m, uint64_t now) {
    if (ws_is_stream(m)) {
        engine_beside(ws_stdout_bytes(m));
        if (opt.window) give_credit(c, ws_stream_cost(m));
        return;
    }
    cp_str id = ws_response_id(m);
    if (cp_str_is(id, BESIDE)) {
        c->beside_open = false; /* it has ended before the measurement: once more */
        begin_beside(c);
        return;
    }
    size_t number = strtoul(id.p, NULL, 10) / (unsigned)opt.burst;
    if (number >= c->nslots) die("a response with a foreign id");
    engine_reply(&c->slots[number], now);
}

static void ws_take(conn *c, char *p, size_t n, uint64_t now) {
    cp_frame_event ev;
    for (size_t at = 0, used; cp_frame_next(&c->ws, p + at, n - at, &used, &ev) != CP_FRAME_NEED_MORE;) {
        at += used;
        errno = 0;
        if (ev.kind == CP_FRAME_CLOSE || ev.kind == CP_FRAME_ERROR) die("the WebSocket was closed");
        if (ev.kind == CP_FRAME_PING) ws_put_pong(&c->out, ev.payload);
        if (ev.kind == CP_FRAME_MESSAGE) message(c, ev.payload, now);
    }
}

static bool beside_ended(void *ctx, cp_str m) {
    (void)ctx;
    return !ws_is_stream(m) && memmem(m.p, m.n < 100 ? m.n : 100, BESIDE, sizeof BESIDE - 1);
}

/* The command would go on without us: it is ended, and its end awaited. */
static void end_beside(conn *c) {
    static const char cancel[] = "{\"type\":\"cancel\",\"id\":\"" BESIDE "\",\"kill\":true}";
    ws_put(&c->out, cancel, sizeof cancel - 1);
    engine_flush(c);
    ws_until(c->fd, &c->ws, beside_ended, NULL);
}

const door door_ws = {.name = "ws",
                      .open = ws_open,
                      .put = ws_put_slot,
                      .take = ws_take,
                      .begin_beside = begin_beside,
                      .end_beside = end_beside};
const door door_ws_close = {
    .name = "ws-close", .one_slot = true, .per_op = true, .open = ws_open, .put = ws_put_slot, .take = ws_take};
