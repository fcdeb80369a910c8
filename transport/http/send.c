/* Design notes. Most replies leave in one system call. What the socket does not take waits in a cp_sending while the
 * client rests for room, so that a slow reader holds its reply and nothing else. A file or a source is read as the
 * client takes it, a quantum at a time. Reading a file may block, so no more than half of the workers do it at once; a
 * source may compute, too (an archive is packed, and compressed), and is read on side threads only. The loop does
 * neither. No piece of a source is made before the socket has room for one, so that who is slow holds none. */
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/fd.h"
#include "transport/http/http.h"

enum {
    CHUNK_HEAD = 10,
    CHUNK_END = 2,
    PIECE = CP_BODY_PIECE - CHUNK_HEAD - CHUNK_END,
    QUANTUM = 1 << 20,  /* then the others have their turn, */
    QUANTUM_US = 20000, /* also when a piece takes long to make */
};

void cp_sending_free(cp_sending *s) {
    if (!s) return;
    cp_buf_free(&s->bytes);
    cp_buf_free(&s->body);
    cp_charge_free(&s->charge);
    cp_close(&s->file);
    cp_spool_forget(s->spilled);
    if (s->src) s->src->close(s->src);
    free(s);
}

static struct iovec rest_of(cp_str s, size_t at) {
    if (at == s.n) return (struct iovec){0}; /* it may be NULL */
    return (struct iovec){(void *)(uintptr_t)(s.p + at), s.n - at};
}

/* Head and body in one system call. 1: all of it; 0: the socket takes nothing more for now; -1: it is broken. */
static int push_bytes(int fd, cp_str head, size_t *head_at, cp_str body, size_t *body_at) {
    while (*head_at < head.n || *body_at < body.n) {
        struct iovec v[2] = {rest_of(head, *head_at), rest_of(body, *body_at)};
        struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
        ssize_t k = sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return errno == EAGAIN ? 0 : -1;
        size_t of_head = (size_t)k < v[0].iov_len ? (size_t)k : v[0].iov_len;
        *head_at += of_head;
        *body_at += (size_t)k - of_head;
    }
    return 1;
}

static int push_file(int fd, cp_sending *s, size_t *quantum) {
    while (s->left && *quantum) {
        size_t n = s->left < *quantum ? (size_t)s->left : *quantum;
        ssize_t k = sendfile(fd, s->file, &s->off, n);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0 && errno == EAGAIN) return 0;
        if (k <= 0) return -1; /* the file is shorter than was said */
        s->moved = true;
        s->left -= (uint64_t)k;
        *quantum -= (size_t)k;
    }
    return 1;
}

/* The next piece of the source, as a chunk (RFC 9112 section 7.1), or as it is for a client of HTTP/1.0. One that is
 * cut lacks the last chunk. -1: it broke. */
static int fill(cp_sending *s) {
    cp_buf *b = &s->bytes;
    char head[CHUNK_HEAD + 1];
    cp_buf_clear(b);
    s->at = 0;
    cp_buf_reserve(b, CP_BODY_PIECE);
    cp_charge_force(&s->charge, b->cap);
    ssize_t n = cp_body_source_read(s->src, b->p + CHUNK_HEAD, PIECE);
    if (n < 0) return -1;
    if (n == 0) {
        s->src->close(cp_take(s->src));
        if (s->chunked) cp_buf_addz(b, "0\r\n\r\n");
        return 0;
    }
    b->n = CHUNK_HEAD + (size_t)n;
    s->at = CHUNK_HEAD;
    if (!s->chunked) return 0;
    size_t len = (size_t)snprintf(head, sizeof head, "%zx\r\n", (size_t)n);
    s->at -= len;
    memcpy(b->p + s->at, head, len);
    cp_buf_add(b, "\r\n", 2);
    return 0;
}

/* To be told by the epoll set when it has: poll(2) and a write that was refused ask for that alike. */
static bool has_room(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    return poll(&p, 1, 0) != 0;
}

static void drop_piece(cp_sending *s) {
    if (!s->src || s->at < s->bytes.n) return;
    cp_buf_free(&s->bytes);
    s->at = 0;
    cp_charge_free(&s->charge);
}

/* 1: the whole reply; 0: the client takes nothing more; 2: the quantum is used up; -1: broken. */
static int push(cp_client *c) {
    cp_sending *s = c->sending;
    size_t quantum = QUANTUM;
    uint64_t began = cp_now_us();
    for (;;) {
        size_t before = s->at + s->body_at;
        int rc = push_bytes(c->fd, cp_buf_str(&s->bytes), &s->at, cp_buf_str(&s->body), &s->body_at);
        s->moved |= s->at + s->body_at != before;
        if (rc > 0 && s->left) rc = push_file(c->fd, s, &quantum);
        if (rc <= 0) return rc;
        if (!s->left && !s->src) return 1;
        if (s->left || quantum < PIECE || cp_now_us() - began > QUANTUM_US) return 2;
        if (!has_room(c->fd)) return 0;
        if (fill(s) < 0) return -1;
        quantum -= PIECE;
    }
}

static bool reply_done(cp_client *c) {
    cp_sending_free(cp_take(c->sending));
    if (c->last) {
        cp_client_end(c);
        return false;
    }
    cp_client_next(c);
    return true;
}

static bool go_on(cp_client *c, int rc) {
    if (rc == 1) return reply_done(c);
    if (rc == 2) cp_crew_offer(c->srv, c);
    else cp_client_close(c); /* short: the client must see that */
    return false;
}

static bool may_block(const cp_client *c) { return c->sending->left || c->sending->src; }

/* ---- how long ---- */

/* Only what the client takes counts: it must not buy time by sending something. The kernel asks for more when a third
 * of its buffer is free; a slow reader is seen to read long before that. */
static void see_progress(cp_client *c, uint64_t now) {
    cp_sending *s = c->sending;
    int unread = 0;
    (void)ioctl(c->fd, SIOCOUTQ, &unread);
    if (s->moved || unread < s->unread) s->took_at = now;
    s->moved = false;
    s->unread = unread;
}

/* Until it is looked at again: its time is over then, or it has taken something meanwhile. */
static uint64_t patience(cp_client *c) {
    uint64_t now = cp_now_ms(), allowed = (uint64_t)c->srv->t->config->stall_timeout;
    see_progress(c, now);
    uint64_t spent = now - c->sending->took_at, left = spent < allowed ? allowed - spent : 1, quarter = allowed / 4 + 1;
    return left < quarter ? left : quarter;
}

cp_mem_kind cp_send_kind(const cp_client *c) {
    const cp_sending *s = c->sending;
    return s->src ? CP_MEM_TRANSFERS : s->charge.bytes ? s->charge.kind : CP_MEM_UNSENT;
}

bool cp_send_patient(cp_client *c, uint64_t allowed_ms) {
    uint64_t now = cp_now_ms();
    see_progress(c, now);
    if (now - c->sending->took_at >= allowed_ms) return false;
    if (!cp_client_rest(c, patience(c))) cp_crew_offer(c->srv, c);
    return true;
}

/* Sends until the client takes nothing more, and lets it rest then. */
static bool send_until_full(cp_client *c) {
    int rc;
    while ((rc = push(c)) == 0) {
        drop_piece(c->sending);
        if (cp_client_rest(c, patience(c))) return false;
    }
    return go_on(c, rc);
}

bool cp_send_here(cp_client *c) { return send_until_full(c); }

bool cp_send_more(cp_client *c) {
    cp_server *srv = c->srv;
    if (!may_block(c)) return send_until_full(c);
    if (c->sending->src || !cp_blocking_begin(srv)) {
        cp_side_send(srv->side, c);
        return false;
    }
    bool ours = send_until_full(c);
    cp_blocking_end(srv);
    return ours;
}

/* ---- the first attempt ---- */

static bool keeps_alive(const cp_client *c, const cp_reply_to *to, const cp_result *res) {
    return to->keep_alive && !c->last && c->fd < c->srv->keep_below && c->body.ended && !(res->source && !to->http11) &&
           !atomic_load_explicit(&c->srv->draining, memory_order_relaxed);
}

static cp_sending *sending_new(cp_result *res, const cp_reply_to *to, cp_str head, bool with_body) {
    cp_sending *s = cp_new(cp_sending);
    s->file = -1;
    s->moved = true; /* its time begins now */
    s->chunked = to->http11;
    cp_buf_add(&s->bytes, head.p, head.n);
    if (to->head_only) return s;
    if (with_body) s->body = cp_take(res->body);
    s->charge = cp_take(res->charge);
    if (res->file_fd > 0) {
        s->file = cp_take(res->file_fd);
        s->off = (off_t)res->file_off;
        s->left = res->file_len;
        s->spilled = cp_take(res->spilled);
    }
    s->src = cp_take(res->source);
    if (s->charge.bytes) return s;
    s->charge.kind = CP_MEM_UNSENT;
    cp_charge_force(&s->charge, s->bytes.n + s->body.n);
    return s;
}

bool cp_send_reply(cp_client *c, cp_reply_to *to, cp_result *res, cp_buf *out) {
    size_t head_at = 0, body_at = 0;
    bool more = (res->file_fd > 0 || res->source) && !to->head_only;
    to->keep_alive = keeps_alive(c, to, res);
    c->last = !to->keep_alive;
    cp_buf_clear(out);
    bool with_body = cp_http_reply_head(out, to, res);
    cp_str head = cp_buf_str(out), body = with_body ? cp_buf_str(&res->body) : (cp_str){0};
    int rc = push_bytes(c->fd, head, &head_at, body, &body_at);
    if (rc < 0 || (rc > 0 && !more)) {
        cp_result_free(res);
        if (rc > 0) return reply_done(c);
        cp_client_close(c);
        return false;
    }
    c->sending = sending_new(res, to, (cp_str){head.p + head_at, head.n - head_at}, with_body);
    c->sending->body_at = body_at;
    cp_result_free(res);
    if (c->judged) cp_client_used(c); /* the reply may take long */
    atomic_store(&c->phase, CP_CLIENT_SEND);
    if (cp_loop_here(c->srv->t->loop) && may_block(c)) {
        cp_crew_offer(c->srv, c);
        return false;
    }
    return cp_send_more(c);
}
