#include "load/bytes.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/clock.h"
#include "load/http_in.h"
#include "load/load.h"
#include "load/sock.h"
#include "load/ws.h"

enum { BLOCK = 256 << 10, SSE_HEAD = 200, ENDING = 400 };

void bytes_report(const char *name, uint64_t bytes, uint64_t ns, const char *more) {
    printf("{\"scenario\":\"%s\",\"bytes\":%llu,\"seconds\":%.4f,\"MBps\":%.1f%s}\n", name, (unsigned long long)bytes,
           (double)ns / 1e9, (double)bytes * 1e3 / (double)ns, more);
}

void bytes_send(int fd, uint64_t n) {
    static char block[BLOCK];
    if (!block[0]) memset(block, 'A', sizeof block);
    for (; n; n -= n < sizeof block ? n : sizeof block)
        sock_send(fd, block, n < sizeof block ? (size_t)n : sizeof block);
}

/* ---- files ---- */

static void count(void *total, const char *p, size_t n) {
    (void)p;
    *(uint64_t *)total += n;
}

static uint64_t last_byte; /* when it came: waiting in vain for the end is no part of a rate */

/* Reads to the end of one response. False: it was cut, or nothing came for the time of --timeout. */
static bool receive(int fd, http_in *in) {
    static char buf[BLOCK];
    struct timeval patience = {.tv_sec = (time_t)(opt.timeout_ms / 1000), .tv_usec = opt.timeout_ms % 1000 * 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    while (in->state != HTTP_DONE) {
        ssize_t k = read(fd, buf, sizeof buf);
        if (k <= 0) return k == 0 && in->unending;
        last_byte = cp_now_ns();
        errno = 0;
        http_in_feed(in, buf, (size_t)k);
        if (in->status && (in->status < 200 || in->status > 299)) {
            fprintf(stderr, "%.*s\n", (int)(k > 500 ? 500 : k), buf);
            die("not a 200 response");
        }
    }
    return true;
}

static void send_head(int fd, uint64_t length, const char *body) {
    cp_autobuf cp_buf b = {0};
    cp_buf_addf(&b, "%s %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n", opt.method, opt.path, (int)opt.port);
    if (length)
        cp_buf_addf(&b, "Content-Type: %s\r\nContent-Length: %llu\r\n",
                    body ? "application/json" : "application/octet-stream", (unsigned long long)length);
    cp_buf_addf(&b, "\r\n%s", body ? body : "");
    sock_send(fd, b.p, b.n);
}

int bytes_get(void) {
    uint64_t begin = cp_now_ns(), bytes = 0;
    int fd = sock_dial();
    http_in in = {.body = count, .ctx = &bytes};
    opt.method = "GET";
    send_head(fd, 0, NULL);
    if (!receive(fd, &in)) die("the response was cut");
    http_in_fini(&in);
    bytes_report("get", bytes, cp_now_ns() - begin, "");
    return 0;
}

int bytes_put(void) {
    uint64_t begin = cp_now_ns();
    int fd = sock_dial();
    http_in in = {0};
    opt.method = "PUT";
    send_head(fd, (uint64_t)opt.size, NULL);
    bytes_send(fd, (uint64_t)opt.size);
    if (!receive(fd, &in)) die("the response was cut");
    http_in_fini(&in);
    bytes_report("put", (uint64_t)opt.size, cp_now_ns() - begin, "");
    return 0;
}

/* ---- streams ---- */

static int stream_report(const char *name, uint64_t bytes, uint64_t ns, bool complete) {
    bytes_report(name, bytes, ns, complete ? ",\"complete\":true" : ",\"complete\":false");
    return 0;
}

typedef struct stream {
    uint64_t bytes;
    bool complete;
} stream;

static bool stream_message(void *ctx, cp_str m) {
    stream *s = ctx;
    if (!ws_is_stream(m)) return ws_response_id(m).n > 0;
    s->bytes += ws_stdout_bytes(m);
    s->complete |= m.n < ENDING && memmem(m.p, m.n, "\\\"exitCode\\\":0", 14) != NULL;
    return false;
}

int bytes_stream(void) {
    int fd = ws_dial();
    stream s = {0};
    cp_frame_in dec;
    cp_frame_in_init(&dec, CP_FRAME_CLIENT, (size_t)1 << 30);
    cp_autobuf cp_buf out = {0};
    cp_buf body = {.p = (char *)(uintptr_t)opt.body, .n = strlen(opt.body)};
    ws_put_request(&out, "1", "POST", "/api/execute/stream", &body, 0);
    uint64_t begin = cp_now_ns();
    sock_send(fd, out.p, out.n);
    ws_until(fd, &dec, stream_message, &s);
    cp_frame_in_fini(&dec);
    return stream_report("stream", s.bytes, cp_now_ns() - begin, s.complete);
}

/* One event at a time, as far as it has come. */
typedef struct sse {
    cp_buf line;
    uint64_t bytes;
    bool complete; /* an event with --event has come */
} sse;

/* Length of the JSON string that begins at p, its escapes undone. In what we measure \u stands for control characters
 * only: one byte each. */
static uint64_t string_bytes(const char *p, const char *end) {
    uint64_t n = 0;
    for (;;) {
        const char *stop = memchr(p, '"', (size_t)(end - p)), *b;
        if (!stop) stop = end;
        while ((b = memchr(p, '\\', (size_t)(stop - p)))) {
            n += (uint64_t)(b - p) + 1;
            p = b + (b[1] == 'u' ? 6 : 2);
            if (p > stop) break; /* the quote was an escaped one */
        }
        if (p <= stop) return n + (uint64_t)(stop - p);
    }
}

/* --encoding base64: what a string of that stands for. */
static uint64_t data_bytes(cp_str text) {
    uint64_t n = string_bytes(text.p, text.p + text.n);
    if (!opt.encoding) return n;
    return n / 4 * 3 - (n && text.p[n - 1] == '=') - (n > 1 && text.p[n - 2] == '=');
}

static void event(sse *s, cp_str line) {
    static const char data[] = "\"data\":\"";
    size_t head = line.n < SSE_HEAD ? line.n : SSE_HEAD;
    if (memmem(line.p, head, "\"stdout\"", 8)) {
        const char *p = memmem(line.p, line.n, data, sizeof data - 1);
        if (p) s->bytes += data_bytes((cp_str){p + sizeof data - 1, (size_t)(line.p + line.n - p) - (sizeof data - 1)});
    }
    if (opt.event) s->complete |= memmem(line.p, head, opt.event, strlen(opt.event)) != NULL;
}

static void take_lines(void *ctx, const char *p, size_t n) {
    sse *s = ctx;
    for (const char *eol; (eol = memchr(p, '\n', n)); n -= (size_t)(eol + 1 - p), p = eol + 1) {
        cp_buf_add(&s->line, p, (size_t)(eol - p));
        event(s, cp_buf_str(&s->line));
        cp_buf_clear(&s->line);
    }
    cp_buf_add(&s->line, p, n);
}

int bytes_sse(void) {
    uint64_t begin = cp_now_ns();
    int fd = sock_dial();
    sse s = {0};
    http_in in = {.body = take_lines, .ctx = &s};
    send_head(fd, opt.body ? strlen(opt.body) : 0, opt.body);
    bool whole = receive(fd, &in);
    http_in_fini(&in);
    cp_buf_free(&s.line);
    return stream_report("sse", s.bytes, last_byte > begin ? last_byte - begin : 1, whole && s.complete);
}
