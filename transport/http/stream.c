/* Design notes. A client that is being streamed to has left HTTP: the loop owns its socket, and it ends with the
 * stream. Its life:
 *   STREAMING  a source is pulled whenever the outbox has room
 *   FLUSHING   everything is queued
 *   LINGERING  we have shut our side down and read what the client still sends, for a short while: closing with
 *              unread bytes would reset the connection and could take the end of the stream away from the client
 * While STREAMING the end of input ends it. */
#include "transport/http/http.h"

#include "base/metrics.h"
#include "services/nofile.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/outbox.h"

enum {
    LINGER_MS = 2000,
    STALL_CHECK_MS = 5000,
    LINGER_BYTES = 1 << 20,
    BUDGET = 64 * 1024, /* of one event */
    CHUNK_HEAD = 10,    /* eight digits, CR, LF: patched when the length is known */
};

/* A proxy in front must neither keep events back nor store them. */
#define STREAM_HEADERS "Cache-Control: no-cache, no-store\r\nX-Accel-Buffering: no\r\n"

typedef enum { STREAMING, FLUSHING, LINGERING } stream_state;

struct cp_http_stream {
    cp_server *srv;
    cp_client *client;
    cp_http_stream *prev, *next;
    int fd;
    cp_io io;
    cp_outbox out;
    stream_state state;
    cp_source *src; /* STREAMING */
    cp_reply_to to; /* without its origin */
    cp_timer stall, deadline, ping;
    uint64_t spoke; /* cp_loop_now of the last event or ping */
    size_t dropped; /* LINGERING: bytes read */
    bool kills;
    bool draining; /* STREAMING: ends where it would wait */
};

/* ---- room ---- */

int cp_lasting_take(cp_server *srv, cp_err *err) {
    cp_transport *t = srv->t;
    if (cp_nofile_room(CP_NOFILE_CONNECTION, err) < 0) return -1;
    if (atomic_fetch_add(&t->nconns, 1) < (unsigned)t->config->max_connections) return 0;
    atomic_fetch_sub(&t->nconns, 1);
    return cp_fail(err, CP_E_LIMIT_EXCEEDED, "Too many connections");
}

void cp_lasting_give(cp_server *srv) { atomic_fetch_sub(&srv->t->nconns, 1); }

/* ---- opening and closing ---- */

static void on_room(void *arg);
static void on_error(void *arg);
static void on_empty(void *arg);
static void on_io(cp_io *io, uint32_t events);
static void on_stall(cp_timer *t);

static void list_add(cp_http_stream *c) {
    cp_transport *t = c->srv->t;
    c->next = t->http_head;
    if (c->next) c->next->prev = c;
    t->http_head = c;
}

static void list_remove(cp_http_stream *c) {
    if (c->prev) c->prev->next = c->next;
    else c->srv->t->http_head = c->next;
    if (c->next) c->next->prev = c->prev;
}

static uint64_t stall_ms(const cp_http_stream *c) { return (uint64_t)c->srv->t->config->stall_timeout; }

static uint64_t stall_check_ms(const cp_http_stream *c) {
    uint64_t quarter = stall_ms(c) / 4 + 1;
    return quarter < STALL_CHECK_MS ? quarter : STALL_CHECK_MS;
}

static void client_close(cp_http_stream *c) {
    cp_metric_add(CP_M_HTTP_STREAMS, -1);
    cp_client_close(c->client);
    cp_lasting_give(c->srv);
}

static cp_http_stream *stream_new(cp_client *client, const cp_reply_to *to) {
    cp_server *srv = client->srv;
    cp_loop *loop = srv->t->loop;
    cp_http_stream *c = cp_new(cp_http_stream);
    c->srv = srv;
    c->client = client;
    c->fd = client->fd;
    cp_metric_add(CP_M_HTTP_STREAMS, 1);
    cp_client_lend(client);
    if (cp_io_add(loop, &c->io, c->fd, EPOLLRDHUP, on_io) < 0) {
        client_close(c);
        free(c);
        return NULL;
    }
    c->to = *to;
    cp_outbox_init(&c->out, loop, &c->io, c->fd,
                   (cp_outbox_events){.arg = c, .on_room = on_room, .on_error = on_error, .on_empty = on_empty});
    cp_timer_start(loop, &c->stall, stall_check_ms(c), on_stall);
    list_add(c);
    return c;
}

static void stream_free(cp_http_stream *c) {
    cp_loop *loop = c->srv->t->loop;
    list_remove(c);
    cp_timer_stop(loop, &c->stall);
    cp_timer_stop(loop, &c->deadline);
    cp_timer_stop(loop, &c->ping);
    cp_outbox_fini(&c->out);
    cp_io_del(loop, &c->io);
    client_close(c);
    free(c);
}

static void abandon(cp_http_stream *c, cp_end why) {
    cp_source *src = cp_take(c->src);
    bool kills = c->kills;
    stream_free(c);
    if (src) src->ops->close(src, why, kills);
}

void cp_streams_close(cp_server *srv, cp_end why) {
    while (srv->t->http_head) abandon(srv->t->http_head, why);
}

void cp_streams_interrupt(cp_server *srv) {
    for (cp_http_stream *c = srv->t->http_head; c; c = c->next) {
        if (c->state != STREAMING) continue;
        c->draining = true;
        cp_outbox_wake(&c->out);
    }
}

bool cp_streams_flushed(const cp_server *srv) {
    const cp_http_stream *c = srv->t->http_head;
    while (c && c->state == LINGERING) c = c->next;
    return !c;
}

/* ---- ending ---- */

static void watch(cp_http_stream *c, uint32_t events) {
    cp_io_mod(c->srv->t->loop, &c->io, events | (c->io.events & EPOLLOUT));
}

static void linger_over(cp_timer *t) { stream_free(CP_CONTAINER(t, cp_http_stream, deadline)); }

static void linger(cp_http_stream *c) {
    c->state = LINGERING;
    shutdown(c->fd, SHUT_WR);
    cp_timer_start(c->srv->t->loop, &c->deadline, LINGER_MS, linger_over);
    watch(c, EPOLLIN | EPOLLRDHUP);
}

static void finish(cp_http_stream *c) {
    c->state = FLUSHING;
    cp_timer_stop(c->srv->t->loop, &c->deadline);
    if (cp_outbox_queued(&c->out) == 0) linger(c);
}

static void on_empty(void *arg) {
    cp_http_stream *c = arg;
    if (c->state == FLUSHING) linger(c);
}

static void drop_input(cp_http_stream *c) {
    char buf[16384];
    ssize_t n = read(c->fd, buf, sizeof buf);
    if (n > 0) c->dropped += (size_t)n;
    else if (n == 0 || (errno != EAGAIN && errno != EINTR)) stream_free(c);
    if (n > 0 && c->dropped > LINGER_BYTES) stream_free(c);
}

/* ---- streaming ---- */

/* A comment (WHATWG HTML, 9.2.6), so that a proxy does not take a quiet stream for a dead one. */
static void on_ping(cp_timer *t) {
    cp_http_stream *c = CP_CONTAINER(t, cp_http_stream, ping);
    cp_str comment = c->to.http11 ? CP_STR("3\r\n:\n\n\r\n") : CP_STR(":\n\n");
    uint64_t now = cp_loop_now(c->srv->t->loop), interval = (uint64_t)c->srv->t->config->ping_interval;
    if (c->state != STREAMING) return;
    if (now - c->spoke >= interval) {
        if (cp_outbox_queued(&c->out) == 0) cp_outbox_add(&c->out, comment.p, comment.n);
        c->spoke = now;
    }
    cp_timer_start(c->srv->t->loop, t, c->spoke + interval - now, on_ping); /* an event does not touch the timer */
}

static void wake(cp_source *s) {
    cp_http_stream *c = s->sink;
    cp_outbox_wake(&c->out);
}

static void stream_deadline(cp_timer *t) { abandon(CP_CONTAINER(t, cp_http_stream, deadline), CP_END_DEADLINE); }

void cp_stream_start(cp_client *client, cp_source *src, const cp_reply_to *to, bool kills, uint64_t deadline) {
    cp_loop *loop = client->srv->t->loop;
    cp_http_stream *c = stream_new(client, to);
    if (!c) {
        src->ops->close(src, CP_END_DISCONNECTED, kills);
        return;
    }
    c->kills = kills;
    c->to.keep_alive = false;
    cp_buf *tail = cp_outbox_tail(&c->out, 1024);
    cp_http_head_write(tail, &c->to, 200, "text/event-stream", CP_STR(STREAM_HEADERS), -1);
    c->to.origin = (cp_str){0}; /* it was borrowed */
    cp_outbox_commit(&c->out);
    if (c->to.head_only) {
        src->ops->close(src, CP_END_DONE, false);
        finish(c);
        return;
    }
    c->state = STREAMING;
    c->src = src;
    src->sink = c;
    src->wake = wake;
    uint64_t now = cp_loop_now(loop);
    c->spoke = now;
    cp_timer_start(loop, &c->ping, (uint64_t)client->srv->t->config->ping_interval, on_ping);
    if (deadline) cp_timer_start(loop, &c->deadline, deadline > now ? deadline - now : 0, stream_deadline);
    cp_outbox_wake(&c->out);
}

/* ---- events ---- */

static void insert(cp_buf *b, size_t at, const char *p, size_t n) {
    cp_buf_reserve(b, n);
    memmove(b->p + at + n, b->p + at, b->n - at);
    memcpy(b->p + at, p, n);
    b->n += n;
}

/* The event was written behind its "data: "; the id line goes before that. */
static void insert_id(cp_buf *b, size_t at, const char *id) {
    char line[80];
    int n = snprintf(line, sizeof line, "id: %s\n", id);
    insert(b, at, line, (size_t)n);
}

/* Chunked, so that a stream that was cut can be told from one that has ended. */
static cp_pull put_event(cp_http_stream *c) {
    cp_buf *b = cp_outbox_tail(&c->out, BUDGET + BUDGET / 2);
    size_t base = b->n, head = c->to.http11 ? CHUNK_HEAD : 0;
    cp_buf_add(b, "00000000\r\n", head);
    cp_buf_add(b, "data: ", 6);
    cp_event ev = {.w = cp_jw_on(b)};
    cp_pull pull = c->src->ops->pull(c->src, BUDGET, &ev);
    if (pull != CP_PULL_EVENT) {
        b->n = base;
        cp_outbox_commit(&c->out);
        return pull;
    }
    c->spoke = cp_loop_now(c->srv->t->loop);
    if (ev.id[0]) insert_id(b, base + head, ev.id);
    cp_buf_add(b, "\n\n", 2);
    if (head) {
        char digits[9];
        snprintf(digits, sizeof digits, "%08zx", b->n - base - head);
        memcpy(b->p + base, digits, 8);
        cp_buf_add(b, "\r\n", 2);
    }
    cp_outbox_commit(&c->out);
    return pull;
}

static void on_room(void *arg) {
    cp_http_stream *c = arg;
    while (c->state == STREAMING && cp_outbox_has_room(&c->out)) {
        cp_pull pull = put_event(c);
        if (pull == CP_PULL_WAIT && !c->draining) return;
        if (pull == CP_PULL_EVENT) continue;
        cp_source *src = cp_take(c->src);
        /* Without its last chunk a body counts as cut: so does one that goes on, when we do not. */
        if (c->to.http11 && pull == CP_PULL_END) cp_outbox_add(&c->out, "0\r\n\r\n", 5);
        finish(c);
        src->ops->close(src, pull == CP_PULL_WAIT ? CP_END_SHUTDOWN : CP_END_DONE, false);
        return;
    }
}

/* ---- the socket ---- */

static void on_error(void *arg) { abandon(arg, CP_END_DISCONNECTED); }

static void on_io(cp_io *io, uint32_t events) {
    cp_http_stream *c = CP_CONTAINER(io, cp_http_stream, io);
    if (c->state == LINGERING) {
        drop_input(c);
    } else if (events & (EPOLLERR | EPOLLHUP) || (events & EPOLLRDHUP && c->state == STREAMING)) {
        abandon(c, CP_END_DISCONNECTED);
    } else {
        if (events & EPOLLRDHUP) watch(c, 0); /* FLUSHING: its end is written all the same */
        if (events & EPOLLOUT) cp_outbox_writable(&c->out);
    }
}

static void on_stall(cp_timer *t) {
    cp_http_stream *c = CP_CONTAINER(t, cp_http_stream, stall);
    if (cp_outbox_stalled_ms(&c->out) >= cp_outbox_stall_limit(stall_ms(c))) abandon(c, CP_END_DISCONNECTED);
    else cp_timer_start(c->srv->t->loop, t, stall_check_ms(c), on_stall);
}
