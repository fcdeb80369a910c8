/* One WebSocket: connecting by libcurl, the upgrade, being up, the end. */
#include "transport/client/client_impl.h"

#include "base/fd.h"
#include "base/id.h"
#include "transport/handshake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEAD_MAX = 16 * 1024, MISSED_MAX = 3 };

static void on_socket(cp_io *io, uint32_t events);
static void on_ping_time(cp_timer *t);

/* ---- ends ---- */

static void end_curl(link_conn *l) {
    if (l->pump.multi && l->easy) pump_remove(&l->pump, l->easy);
    if (l->easy) curl_easy_cleanup(l->easy);
    l->easy = NULL;
    pump_fini(&l->pump);
}

static void bury(cp_deferred *d) {
    link_conn *l = CP_CONTAINER(d, link_conn, bury);
    end_curl(l);
    link_send_fini(l);
    cp_frame_in_fini(&l->in);
    cp_buf_free(&l->head);
    free(l->input);
    free(l);
}

/* Freed when the round is over: whoever calls may still be working on it. */
static void die(link_conn *l) {
    cp_loop *loop = l->eng->loop;
    l->state = LINK_DEAD;
    cp_io_del(loop, &l->io);
    cp_close(&l->fd);
    cp_timer_stop(loop, &l->deadline);
    cp_timer_stop(loop, &l->ping);
    cp_loop_undefer(loop, &l->flush);
    cp_loop_defer(loop, &l->bury, bury);
}

void link_fail(link_conn *l, const conflux_error *err) {
    if (l->state == LINK_DEAD) return;
    trace(l->eng, "- websocket %llu lost: %s", (unsigned long long)l->number, err->message);
    link_lost(l, err);
    die(l);
}

void link_close(link_conn *l, unsigned code) {
    if (l->state == LINK_DEAD) return;
    if (l->state == LINK_UP) {
        char payload[2] = {(char)(code >> 8), (char)code};
        link_put_control(l, CP_OP_CLOSE, (cp_str){payload, 2});
        link_flush(l, NULL); /* what the socket does not take at once does not matter any more */
        trace(l->eng, "- websocket %llu closed", (unsigned long long)l->number);
    }
    die(l);
}

static void on_too_late(cp_timer *t) {
    link_conn *l = CP_CONTAINER(t, link_conn, deadline);
    conflux_error err;
    bool upgrading = l->state == LINK_UPGRADING, may_fall_back = l->eng->set.o.mode == CONFLUX_AUTO;
    /* With a connection but no answer, something between us does not let the upgrade through. */
    fail(&err, upgrading && may_fall_back ? CONFLUX_E_UPGRADE : CONFLUX_E_CONNECT_TIMEOUT, "%s in time",
         upgrading ? "no answer to the WebSocket upgrade" : "no connection");
    link_fail(l, &err);
}

/* In auto mode HTTP must still have a chance before those who wait give up. */
static uint32_t patience(const settings *s) {
    return s->o.mode == CONFLUX_AUTO ? s->o.connect_timeout_ms / 2 : s->o.connect_timeout_ms;
}

/* ---- up ---- */

static void on_ping_time(cp_timer *t) {
    link_conn *l = CP_CONTAINER(t, link_conn, ping);
    conflux_error err;
    l->missed = l->heard ? 0 : l->missed + 1;
    l->heard = false;
    if (l->missed >= MISSED_MAX) {
        fail(&err, CONFLUX_E_CONNECTION_LOST, "nothing is heard of the server any more");
        link_fail(l, &err);
        return;
    }
    if (l->missed) {
        link_put_control(l, CP_OP_PING, CP_STR(""));
        link_wake(l);
    }
    cp_timer_start(l->eng->loop, t, l->eng->set.o.ping_interval_ms, on_ping_time);
}

static void up(link_conn *l) {
    cp_loop *loop = l->eng->loop;
    l->state = LINK_UP;
    cp_timer_stop(loop, &l->deadline);
    cp_timer_start(loop, &l->ping, l->eng->set.o.ping_interval_ms, on_ping_time);
    cp_frame_in_init(&l->in, CP_FRAME_CLIENT, (size_t)l->eng->set.o.max_answer);
    cp_buf hello = {0};
    cp_buf_addz(&hello, "{\"type\":\"hello\"}");
    link_message(l, NULL, &hello);
    trace(l->eng, "+ websocket %llu open", (unsigned long long)l->number);
    link_opened(l);
}

/* ---- the upgrade ---- */

static int refused(cp_str head, conflux_error *err) {
    char text[4] = {0};
    if (head.n > 12) memcpy(text, head.p + 9, 3);
    int status = (int)strtol(text, NULL, 10);
    conflux_kind kind = status == 401 || status == 403 ? CONFLUX_E_UNAUTHORIZED : CONFLUX_E_UPGRADE;
    fail(err, kind, "the server answered the WebSocket upgrade with status %d", status);
    err->status = status;
    return -1;
}

static int read_head(link_conn *l, conflux_error *err) {
    cp_err why;
    char *end;
    while (!(end = l->head.n ? memmem(l->head.p, l->head.n, "\r\n\r\n", 4) : NULL)) {
        if (l->head.n > HEAD_MAX) return fail(err, CONFLUX_E_UPGRADE, "the answer to the upgrade is too long");
        ssize_t n = link_recv(l, l->input, LINK_INPUT, err);
        if (n <= 0) return (int)n;
        cp_buf_add(&l->head, l->input, (size_t)n);
    }
    size_t n = (size_t)(end - l->head.p) + 4;
    cp_str head = {l->head.p, n};
    if (!cp_str_starts(head, CP_STR("HTTP/1.1 101"))) return refused(head, err);
    if (cp_ws_check_response(head, l->key, NULL, &why) < 0) return fail(err, CONFLUX_E_UPGRADE, "%s", why.msg);
    up(l);
    return link_feed(l, l->head.p + n, l->head.n - n, err);
}

static void send_upgrade(link_conn *l) {
    const settings *s = &l->eng->set;
    uint8_t nonce[16];
    cp_random(nonce, sizeof nonce);
    cp_ws_key(nonce, l->key);
    cp_autobuf cp_buf target = {0}, extra = {0};
    cp_buf_addf(&target, "%s/ws", s->prefix);
    cp_buf_addf(&extra, "User-Agent: libconflux/" CONFLUX_VERSION "\r\n%s%s", s->auth ? s->auth : "",
                s->auth ? "\r\n" : "");
    cp_ws_request_head(&l->wire, s->host, cp_buf_z(&target), l->key, cp_buf_z(&extra));
    explicit_bzero(extra.p, extra.n);
    l->begun = l->wire.n;
}

static void on_socket(cp_io *io, uint32_t events) {
    link_conn *l = CP_CONTAINER(io, link_conn, io);
    conflux_error err;
    int rc = 0;
    if (events & EPOLLOUT) rc = link_flush(l, &err);
    if (rc == 0 && events & ~(uint32_t)EPOLLOUT) rc = l->state == LINK_UP ? link_read(l, &err) : read_head(l, &err);
    if (rc < 0) link_fail(l, &err);
}

/* ---- connecting ---- */

static int take_socket(link_conn *l, conflux_error *err) {
    curl_socket_t fd = CURL_SOCKET_BAD;
    curl_easy_getinfo(l->easy, CURLINFO_ACTIVESOCKET, &fd);
    /* A descriptor of our own: libcurl's may still be in its watches, and a plain socket outlives libcurl's handle. */
    l->fd = fd == CURL_SOCKET_BAD ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (l->fd < 0) return fail(err, CONFLUX_E_SYSTEM, "no descriptor for the connection");
    if (!l->eng->set.tls) end_curl(l);
    if (cp_io_add(l->eng->loop, &l->io, l->fd, EPOLLIN | EPOLLRDHUP, on_socket) < 0)
        return fail(err, CONFLUX_E_SYSTEM, "the connection cannot be watched");
    return 0;
}

static void on_connected(pump *p, CURL *easy, CURLcode rc) {
    link_conn *l = CP_CONTAINER(p, link_conn, pump);
    conflux_error err;
    (void)easy;
    if (l->state == LINK_DEAD) return; /* it was closed in this very round */
    if (rc) {
        fail_curl(&err, rc, l->easy, l->curl_error);
        if (err.kind == CONFLUX_E_CONNECTION_LOST) err.kind = CONFLUX_E_CONNECT;
        link_fail(l, &err);
        return;
    }
    if (take_socket(l, &err) < 0) {
        link_fail(l, &err);
        return;
    }
    l->state = LINK_UPGRADING;
    send_upgrade(l);
    if (link_flush(l, &err) < 0) link_fail(l, &err);
}

link_conn *link_open(engine *e, conflux_error *err) {
    link_conn *l = cp_new(link_conn);
    l->eng = e;
    l->fd = -1;
    l->number = ++e->next_link;
    l->max_message = CC_MAX_MESSAGE;
    l->max_pending = CC_MAX_PENDING;
    l->input = cp_alloc(LINK_INPUT);
    link_send_init(l);
    if (pump_init(&l->pump, e->loop, on_connected, err) < 0) {
        bury(&l->bury);
        return NULL;
    }
    l->easy = curl_easy_init();
    settings_apply(&e->set, l->easy, l->curl_error);
    curl_easy_setopt(l->easy, CURLOPT_URL, e->set.origin);
    curl_easy_setopt(l->easy, CURLOPT_CONNECT_ONLY, 1L);
    curl_easy_setopt(l->easy, CURLOPT_HTTPPROXYTUNNEL, 1L);
    cp_timer_start(e->loop, &l->deadline, patience(&e->set), on_too_late);
    trace(e, "+ websocket %llu connecting", (unsigned long long)l->number);
    if (pump_add(&l->pump, l->easy, err) < 0) {
        curl_easy_cleanup(cp_take(l->easy));
        die(l);
        return NULL;
    }
    return l;
}
