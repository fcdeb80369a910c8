/* What goes out on a WebSocket. Only so much is put into `wire` that the socket keeps busy; what waits is chosen anew
 * each time, so a call with a higher priority overtakes those that came before it. */
#include "transport/client/client_impl.h"

#include "base/id.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>

void link_send_init(link_conn *l) {
    for (int k = 0; k < CC_PRIORITIES; k++) queue_init(&l->calls[k]);
    l->out_tail = &l->out;
    l->masks_used = sizeof l->masks;
}

void link_send_fini(link_conn *l) {
    for (out_msg *m; (m = l->out);) {
        l->out = m->next;
        msg_free(m);
    }
    cp_buf_free(&l->wire);
    cp_buf_free(&l->scratch);
}

/* ---- frames ---- */

/* Random masks by the hundred: one system call each would cost more than the frame (RFC 6455 section 5.3). */
static const uint8_t *next_mask(link_conn *l) {
    if (l->masks_used == sizeof l->masks) {
        cp_random(l->masks, sizeof l->masks);
        l->masks_used = 0;
    }
    l->masks_used += 4;
    return l->masks + l->masks_used - 4;
}

static void put_frame(link_conn *l, unsigned opcode, cp_str payload) {
    size_t before = l->wire.n;
    cp_frame_put(&l->wire, opcode, true, payload.p, payload.n, next_mask(l));
    l->begun += l->wire.n - before;
}

static void append_msg(link_conn *l, out_msg *m) {
    m->next = NULL;
    *l->out_tail = m;
    l->out_tail = &m->next;
}

/* Kept as a ready frame would be simpler, but it must not go into a wire that is being written. */
void link_put_control(link_conn *l, unsigned opcode, cp_str payload) {
    out_msg *m = cp_new(out_msg);
    cp_buf_addc(&m->json, (char)opcode); /* a JSON object never begins like this */
    cp_buf_add(&m->json, payload.p, payload.n);
    append_msg(l, m);
}

void link_message(link_conn *l, conflux_call *c, cp_buf *json) {
    out_msg *m = cp_new(out_msg);
    *m = (out_msg){.call = c, .json = cp_take(*json)};
    if (c) call_ref(c);
    append_msg(l, m);
    link_wake(l);
}

/* ---- requests ---- */

static void put_headers(const conflux_call *c, cp_jw *w) {
    if (!c->headers) return;
    cp_jw_key(w, "headers");
    cp_jw_obj(w);
    for (const struct curl_slist *h = c->headers; h; h = h->next) {
        const char *colon = strchr(h->data, ':');
        cp_autofree char *name = cp_str_dup((cp_str){h->data, (size_t)(colon - h->data)});
        cp_jw_kz(w, name, colon + 2);
    }
    cp_jw_end_obj(w);
}

static void put_request(const conflux_call *c, cp_buf *out) {
    char id[24];
    cp_jw w = cp_jw_on(out);
    snprintf(id, sizeof id, "%llu", (unsigned long long)c->id);
    cp_jw_obj(&w);
    cp_jw_kz(&w, "type", "request");
    cp_jw_kz(&w, "id", id);
    cp_jw_kz(&w, "method", c->method);
    cp_jw_kz(&w, "path", c->path);
    if (c->body.n) {
        cp_jw_key(&w, "body");
        cp_jw_raw(&w, cp_buf_str(&c->body));
    }
    put_headers(c, &w);
    if (c->priority != CC_NORMAL) cp_jw_ku64(&w, "priority", c->priority);
    if (c->stream) cp_jw_ku64(&w, "window", c->eng->set.o.window);
    if (c->kill_on_disconnect) cp_jw_kz(&w, "onDisconnect", "kill");
    cp_jw_end_obj(&w);
}

static void put_call(link_conn *l, conflux_call *c) {
    cp_buf_clear(&l->scratch);
    put_request(c, &l->scratch);
    put_frame(l, CP_OP_TEXT, cp_buf_str(&l->scratch));
    cp_buf_reset(&l->scratch, 64 * 1024);
    cp_buf_free(&c->body);
    c->state = CALL_SENT;
    c->sent_end = l->begun;
    l->sent++;
    if (!c->early) return;
    *l->out_tail = c->early;
    l->out_tail = c->early_tail;
    c->early = NULL;
    c->early_tail = &c->early;
}

static conflux_call *next_call(link_conn *l) {
    if (l->sent >= l->max_pending) return NULL;
    for (int k = CC_PRIORITIES; k-- > 0;) {
        conflux_call *c = queue_pop(&l->calls[k]);
        if (c) return c;
    }
    return NULL;
}

static void put_msg(link_conn *l, out_msg *m) {
    cp_str text = cp_buf_str(&m->json);
    bool control = text.p[0] != '{';
    if (control) put_frame(l, (unsigned char)text.p[0], (cp_str){text.p + 1, text.n - 1});
    else if (!m->call || m->call->state == CALL_SENT) put_frame(l, CP_OP_TEXT, text);
    msg_free(m);
}

static void refill(link_conn *l) {
    cp_buf_reset(&l->wire, 256 * 1024);
    l->wire_off = 0;
    while (l->wire.n < CC_WIRE_FULL) {
        out_msg *m = l->out;
        if (m) {
            l->out = m->next;
            if (!l->out) l->out_tail = &l->out;
            put_msg(l, m);
            continue;
        }
        conflux_call *c = next_call(l);
        if (!c) break;
        put_call(l, c);
    }
}

/* ---- writing ---- */

int link_flush(link_conn *l, conflux_error *err) {
    for (;;) {
        if (l->wire_off == l->wire.n) {
            if (l->state != LINK_UP) break;
            refill(l);
            if (!l->wire.n) break;
        }
        ssize_t n = link_send(l, l->wire.p + l->wire_off, l->wire.n - l->wire_off, err);
        if (n < 0) return -1;
        if (n == 0) {
            cp_io_mod(l->eng->loop, &l->io, EPOLLIN | EPOLLRDHUP | EPOLLOUT);
            return 0;
        }
        l->wire_off += (size_t)n;
        l->written += (size_t)n;
    }
    cp_io_mod(l->eng->loop, &l->io, EPOLLIN | EPOLLRDHUP);
    return 0;
}

static void on_flush(cp_deferred *d) {
    link_conn *l = CP_CONTAINER(d, link_conn, flush);
    conflux_error err;
    /* While the socket is full, EPOLLOUT comes: writing now would only ask it again. */
    if (l->state != LINK_UP || l->io.events & EPOLLOUT) return;
    if (link_flush(l, &err) < 0) link_fail(l, &err);
}

void link_wake(link_conn *l) {
    if (l->state == LINK_UP) cp_loop_defer(l->eng->loop, &l->flush, on_flush);
}

/* ---- calls ---- */

void link_add_call(link_conn *l, conflux_call *c) {
    call_placed(c, CONFLUX_WEBSOCKET);
    c->link = l;
    l->load++;
    queue_push(&l->calls[c->priority], c);
    link_wake(l);
}

void link_drop_call(link_conn *l, conflux_call *c) {
    if (c->state == CALL_QUEUED) queue_drop(&l->calls[c->priority], c);
    else l->sent--;
    l->load--;
    c->link = NULL;
    link_wake(l); /* another may go now */
}
