#include "load/ws.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/id.h"
#include "load/load.h"
#include "load/sock.h"
#include "transport/handshake.h"

int ws_dial(void) {
    int fd = sock_dial();
    uint8_t nonce[16];
    char key[CP_WS_KEY_SIZE + 1], host[32], head[2048];
    cp_random(nonce, sizeof nonce);
    cp_ws_key(nonce, key);
    snprintf(host, sizeof host, "127.0.0.1:%d", (int)opt.port);
    cp_autobuf cp_buf b = {0};
    cp_ws_request_head(&b, host, "/ws", key, NULL);
    sock_send(fd, b.p, b.n);
    size_t n = 0;
    while (n < sizeof head - 1) {
        if (read(fd, head + n, 1) != 1) die("handshake");
        head[++n] = '\0';
        if (n >= 4 && memcmp(head + n - 4, "\r\n\r\n", 4) == 0) break;
    }
    cp_str protocol;
    cp_err err;
    if (cp_ws_check_response((cp_str){head, n}, key, &protocol, &err) < 0) {
        errno = 0;
        die(err.msg);
    }
    return fd;
}

static const uint8_t mask[4] = {0x12, 0x34, 0x56, 0x78};

void ws_put_pong(cp_buf *out, cp_str payload) { cp_frame_put(out, CP_OP_PONG, true, payload.p, payload.n, mask); }

void ws_put(cp_buf *out, const char *p, size_t n) { cp_frame_put(out, CP_OP_TEXT, true, p, n, mask); }

void ws_put_request(cp_buf *out, const char *id, const char *method, const char *path, const cp_buf *body,
                    int64_t credit) {
    static cp_buf text;
    cp_buf_clear(&text);
    cp_buf_addf(&text, "{\"type\":\"request\",\"id\":\"%s\",\"method\":\"%s\",\"path\":\"%s\"", id, method, path);
    if (credit) cp_buf_addf(&text, ",\"window\":%lld", (long long)credit);
    if (body) {
        cp_buf_addz(&text, ",\"body\":");
        cp_buf_add(&text, body->p, body->n);
    }
    cp_buf_addc(&text, '}');
    ws_put(out, text.p, text.n);
}

void ws_until(int fd, cp_frame_in *d, bool (*take)(void *ctx, cp_str message), void *ctx) {
    static char in[256 << 10];
    static cp_buf pong;
    for (;;) {
        ssize_t k = read(fd, in, sizeof in);
        if (k <= 0) die("the WebSocket ended");
        cp_frame_event ev;
        for (size_t at = 0, used; cp_frame_next(d, in + at, (size_t)k - at, &used, &ev) != CP_FRAME_NEED_MORE;) {
            at += used;
            if (ev.kind == CP_FRAME_PING) {
                cp_buf_clear(&pong);
                ws_put_pong(&pong, ev.payload);
                sock_send(fd, pong.p, pong.n);
            }
            if (ev.kind == CP_FRAME_MESSAGE && take(ctx, ev.payload)) return;
        }
    }
}

static const char *after(cp_str s, const char *key) {
    const char *p = memmem(s.p, s.n < 200 ? s.n : 200, key, strlen(key));
    return p ? p + strlen(key) : NULL;
}

cp_str ws_response_id(cp_str m) {
    const char *id = after(m, "\"id\":\""), *status = after(m, "\"status\":"), *end;
    if (!id || !status || atol(status) != 200 || !(end = memchr(id, '"', (size_t)(m.p + m.n - id)))) {
        errno = 0;
        fprintf(stderr, "%.*s\n", (int)(m.n > 500 ? 500 : m.n), m.p);
        die("not a 200 response");
    }
    return (cp_str){id, (size_t)(end - id)};
}

/* The data are the last member, or the last but the event's id. Of the escapes in it each stands for one byte. */
uint64_t ws_stream_cost(cp_str m) {
    static const char event_id[] = "\",\"eventId\":\"";
    const char *p = after(m, "\"data\":\""), *end = m.p + m.n - 2;
    if (!p || p > end) return 0;
    size_t n = (size_t)(end - p), skip = n > 120 ? n - 120 : 0;
    const char *more = memmem(p + skip, n - skip, event_id, sizeof event_id - 1);
    if (more) end = more;
    uint64_t cost = (uint64_t)(end - p);
    for (; p < end && (p = memchr(p, '\\', (size_t)(end - p))); p += 2) cost--;
    return cost;
}

/* The text between \"data\":\" and \",\"timestamp, where a newline travels as \\n. The streams that we measure hold no
 * other escape. */
uint64_t ws_stdout_bytes(cp_str m) {
    static const char head[] = "\\\"data\\\":\\\"", tail[] = "\\\",\\\"timestamp";
    if (!memmem(m.p, m.n < 160 ? m.n : 160, "stdout", 6)) return 0;
    const char *b = memmem(m.p, m.n < 240 ? m.n : 240, head, sizeof head - 1);
    if (!b) return 0;
    b += sizeof head - 1;
    size_t n = m.n - (size_t)(b - m.p), skip = n > 120 ? n - 120 : 0;
    const char *e = memmem(b + skip, n - skip, tail, sizeof tail - 1);
    if (!e) return 0;
    uint64_t escapes = 0;
    for (const char *p = b; (p = memchr(p, '\\', (size_t)(e - p))); p++) {
        escapes += p[1] == '\\' ? 2 : 1;
        p += p[1] == '\\';
    }
    return (uint64_t)(e - b) - escapes;
}
