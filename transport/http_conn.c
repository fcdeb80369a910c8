/* Design notes. A socket that has left CivetWeb serves one request and ends. Its life:
 *   WAITING    its call has not been answered
 *   STREAMING  a source is pulled whenever the outbox has room
 *   FLUSHING   everything is queued
 *   LINGERING  we have shut our side down and read what the client still sends, for a short while: closing with unread
 *              bytes would reset the connection and could take the reply away from the client
 * While WAITING or STREAMING the end of input ends it, but for a buffered call (http_call.c says why). */
#include "transport/http.h"

#include "base/fd.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
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

typedef enum { WAITING, STREAMING, FLUSHING, LINGERING } conn_state;

struct cp_http_loop {
    cp_server *srv;
    cp_http_conn *prev, *next;
    int fd;
    cp_io io;
    cp_outbox out;
    conn_state state;
    cp_http_call *call;   /* WAITING */
    cp_source *src;       /* STREAMING */
    cp_outbox_body *body; /* FLUSHING: an answer in a file, of which `sent` is queued */
    uint64_t sent;
    cp_reply_to to;
    char *origin;
    cp_timer stall, deadline;
    size_t dropped; /* LINGERING: bytes read */
    bool half;      /* the end of input has been seen and means nothing */
    bool kills;
    bool draining; /* STREAMING: ends where it would wait */
};

/* ---- opening and closing ---- */

static void on_room(void *arg);
static void on_error(void *arg);
static void on_empty(void *arg);
static void on_io(cp_io *io, uint32_t events);
static void on_stall(cp_timer *t);

static void list_add(cp_http_conn *c) {
    cp_transport *t = c->srv->t;
    c->next = t->http_head;
    if (c->next) c->next->prev = c;
    t->http_head = c;
}

static void list_remove(cp_http_conn *c) {
    if (c->prev) c->prev->next = c->next;
    else c->srv->t->http_head = c->next;
    if (c->next) c->next->prev = c->prev;
}

/* A client that has gone without a word (a lost host, a dropped NAT entry) is found by the kernel while nothing is on
 * its way to it: a quiet stream would be kept for ever. The stall timeout sees to the rest. */
static void find_dead_peers(int fd) {
    int on = 1, idle = 60, interval = 20, probes = 4; /* s */
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

static uint64_t stall_ms(const cp_http_conn *c) { return (uint64_t)c->srv->t->config->stall_timeout; }

static uint64_t stall_check_ms(const cp_http_conn *c) {
    uint64_t quarter = stall_ms(c) / 4 + 1;
    return quarter < STALL_CHECK_MS ? quarter : STALL_CHECK_MS;
}

cp_http_conn *cp_http_conn_new(cp_server *srv, int fd, cp_http_call *call, const cp_reply_to *to) {
    cp_loop *loop = srv->t->loop;
    cp_http_conn *c = cp_new(cp_http_conn);
    c->srv = srv;
    c->fd = fd;
    if (cp_io_add(loop, &c->io, fd, EPOLLRDHUP, on_io) < 0) {
        cp_taken_close(srv, &c->fd);
        free(c);
        return NULL;
    }
    c->call = call;
    c->to = *to;
    c->to.keep_alive = false;
    c->origin = cp_str_dup(to->origin);
    c->to.origin.p = c->origin;
    cp_outbox_init(&c->out, loop, &c->io, fd,
                   (cp_outbox_events){.arg = c, .on_room = on_room, .on_error = on_error, .on_empty = on_empty});
    find_dead_peers(fd);
    cp_timer_start(loop, &c->stall, stall_check_ms(c), on_stall);
    list_add(c);
    return c;
}

static void conn_free(cp_http_conn *c) {
    cp_loop *loop = c->srv->t->loop;
    list_remove(c);
    cp_timer_stop(loop, &c->stall);
    cp_timer_stop(loop, &c->deadline);
    cp_outbox_fini(&c->out);
    if (c->body) cp_outbox_body_release(c->body);
    cp_io_del(loop, &c->io);
    cp_taken_close(c->srv, &c->fd);
    free(c->origin);
    free(c);
}

static void abandon(cp_http_conn *c, cp_end why) {
    cp_http_call *call = cp_take(c->call);
    cp_source *src = cp_take(c->src);
    bool kills = c->kills;
    conn_free(c);
    if (call) cp_http_call_gone(call, why);
    if (src) src->ops->close(src, why, kills);
}

void cp_http_conn_close(cp_http_conn *c) { abandon(c, CP_END_DISCONNECTED); }

void cp_http_conns_close(cp_server *srv, cp_end why) {
    while (srv->t->http_head) abandon(srv->t->http_head, why);
}

void cp_http_conns_interrupt(cp_server *srv) {
    for (cp_http_conn *c = srv->t->http_head; c;) {
        cp_http_conn *next = c->next;
        bool waits = c->state == WAITING && c->call;
        if (waits) cp_http_call_interrupt(c->call);
        if (c->state == STREAMING) {
            c->draining = true;
            cp_outbox_wake(&c->out);
        }
        c = waits ? srv->t->http_head : next; /* what was ended with it may have been the next */
    }
}

bool cp_http_conns_flushed(const cp_server *srv) {
    const cp_http_conn *c = srv->t->http_head;
    while (c && c->state == LINGERING) c = c->next;
    return !c;
}

/* ---- ending ---- */

static void watch(cp_http_conn *c, uint32_t events) {
    cp_io_mod(c->srv->t->loop, &c->io, events | (c->io.events & EPOLLOUT));
}

static void linger_over(cp_timer *t) { conn_free(CP_CONTAINER(t, cp_http_conn, deadline)); }

static void linger(cp_http_conn *c) {
    c->state = LINGERING;
    shutdown(c->fd, SHUT_WR);
    cp_timer_start(c->srv->t->loop, &c->deadline, LINGER_MS, linger_over);
    watch(c, EPOLLIN | EPOLLRDHUP);
}

static void finish(cp_http_conn *c) {
    c->state = FLUSHING;
    cp_timer_stop(c->srv->t->loop, &c->deadline);
    if (cp_outbox_queued(&c->out) == 0) linger(c);
}

static void on_empty(void *arg) {
    cp_http_conn *c = arg;
    if (c->state == FLUSHING && !c->body) linger(c);
}

static void drop_input(cp_http_conn *c) {
    char buf[16384];
    ssize_t n = read(c->fd, buf, sizeof buf);
    if (n > 0) c->dropped += (size_t)n;
    else if (n == 0 || (errno != EAGAIN && errno != EINTR)) conn_free(c);
    if (n > 0 && c->dropped > LINGER_BYTES) conn_free(c);
}

/* ---- answers ---- */

/* Not copied: what is in memory is queued as it is, what is in a file is read when the client takes it. */
static void send_large(cp_http_conn *c, cp_result *res) {
    if (res->spilled) {
        c->body = cp_outbox_body_of_file(cp_take(res->file_fd), cp_take(res->spilled));
        return;
    }
    size_t n = res->body.n;
    cp_outbox_body *body = cp_outbox_body_new(&res->body, &res->charge);
    cp_outbox_add_piece(&c->out, body, 0, n);
    cp_outbox_body_release(body);
}

/* False: the file failed, and the connection is gone. */
static bool send_body_piece(cp_http_conn *c) {
    uint64_t left = c->body->size - c->sent;
    size_t n = left < BUDGET ? (size_t)left : BUDGET;
    cp_buf *tail = cp_outbox_tail(&c->out, n);
    size_t start = tail->n;
    bool ok = cp_outbox_body_read(c->body, c->sent, n, tail) == 0;
    if (!ok) tail->n = start;
    cp_outbox_commit(&c->out);
    if (!ok) {
        abandon(c, CP_END_DISCONNECTED);
        return false;
    }
    c->sent += n;
    if (n == left) cp_outbox_body_release(cp_take(c->body));
    return true;
}

void cp_http_conn_send(cp_http_conn *c, cp_result *res) {
    bool large = res->spilled || res->body.n > BUDGET;
    c->call = NULL;
    if ((res->file_fd > 0 && !res->spilled) || res->source) { /* only the workers may block on a file */
        cp_err err;
        cp_fail(&err, CP_E_INTERNAL_ERROR, "a file body needs a worker");
        cp_result_free(res);
        cp_error_result(res, &err, NULL, (cp_str){0});
        large = false;
    }
    cp_buf *tail = cp_outbox_tail(&c->out, 1024 + (large ? 0 : res->body.n));
    if (large)
        cp_http_head_write(tail, &c->to, res->status, res->type, cp_buf_str(&res->headers),
                           (int64_t)(res->spilled ? res->file_len : res->body.n));
    else cp_http_reply_write(tail, &c->to, res);
    cp_outbox_commit(&c->out);
    if (large && !c->to.head_only) send_large(c, res);
    cp_result_free(res);
    finish(c);
}

static void wake(cp_source *s) {
    cp_http_conn *c = s->sink;
    cp_outbox_wake(&c->out);
}

static void stream_deadline(cp_timer *t) { abandon(CP_CONTAINER(t, cp_http_conn, deadline), CP_END_DEADLINE); }

void cp_http_conn_stream(cp_http_conn *c, cp_source *src, uint64_t deadline) {
    cp_loop *loop = c->srv->t->loop;
    if (c->call) c->kills = cp_http_call_kills(cp_take(c->call));
    cp_buf *tail = cp_outbox_tail(&c->out, 1024);
    cp_http_head_write(tail, &c->to, 200, "text/event-stream", CP_STR("Cache-Control: no-cache\r\n"), -1);
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
static cp_pull put_event(cp_http_conn *c) {
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
    cp_http_conn *c = arg;
    while (c->body && cp_outbox_has_room(&c->out))
        if (!send_body_piece(c)) return;
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

void cp_http_conn_half(cp_http_conn *c) {
    c->half = true;
    watch(c, 0);
}

static bool waits_for_reply(const cp_http_conn *c) {
    return c->state == WAITING && !(c->call && (cp_http_call_lasts(c->call) || cp_http_call_kills(c->call)));
}

static void on_io(cp_io *io, uint32_t events) {
    cp_http_conn *c = CP_CONTAINER(io, cp_http_conn, io);
    if (c->state == LINGERING) {
        drop_input(c);
    } else if (events & (EPOLLERR | EPOLLHUP)) {
        abandon(c, CP_END_DISCONNECTED);
    } else if (events & EPOLLRDHUP && !c->half && c->state != FLUSHING && !waits_for_reply(c)) {
        abandon(c, CP_END_DISCONNECTED);
    } else {
        if (events & EPOLLRDHUP) cp_http_conn_half(c);
        if (events & EPOLLOUT) cp_outbox_writable(&c->out);
    }
}

static void on_stall(cp_timer *t) {
    cp_http_conn *c = CP_CONTAINER(t, cp_http_conn, stall);
    if (cp_outbox_stalled_ms(&c->out) >= cp_outbox_stall_limit(stall_ms(c))) abandon(c, CP_END_DISCONNECTED);
    else cp_timer_start(c->srv->t->loop, t, stall_check_ms(c), on_stall);
}

/* ---- last words from a worker ---- */

typedef struct last_words {
    cp_task task;
    cp_server *srv;
    int fd;
    cp_buf bytes;
} last_words;

static void say(cp_task *task) {
    last_words *w = CP_CONTAINER(task, last_words, task);
    cp_reply_to to = {0};
    cp_http_conn *c = cp_http_conn_new(w->srv, w->fd, NULL, &to);
    if (c) {
        cp_http_conn_half(c); /* only a reset ends it early */
        cp_outbox_add_buf(&c->out, &w->bytes);
        finish(c);
    }
    cp_buf_free(&w->bytes);
    free(w);
}

void cp_http_conn_linger(cp_server *srv, int fd, cp_buf *bytes) {
    last_words *w = cp_new(last_words);
    w->srv = srv;
    w->fd = fd;
    w->bytes = cp_take(*bytes);
    cp_loop_post(srv->t->loop, &w->task, say);
}
