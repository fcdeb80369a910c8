/* The load program: one thread, epoll, one scenario per run, one JSON line on stdout.
 *
 *   load echo-server                          raw epoll echo on a free port (prints the port), until stdin closes
 *   load echo  --port P --inflight K          64-byte messages against it: the raw limit for a request
 *   load spawn --inflight K                   posix_spawn loop of `bash -c true` with two pipes: the raw limit for a
 * command load ws    --port P --inflight K --method M --path T [--body JSON]    requests on one multiplexed WebSocket
 *   load http  --port P --conns N --method M --path T [--body JSON]       keep-alive connections, one request each
 *   load stream --port P --body JSON          one stream on a WebSocket: bytes of the child per second
 *   load idle  --port P --conns N             opens N WebSockets, prints "open", holds them until stdin closes
 *
 * Common: --seconds S (3), --warmup S (0.3). --pace MS (ws, one in flight): a request begins MS after the one before it
 * began, so that what is measured is the latency of a call and not the rate at which the machine can start programs.
 * Only loopback is ever addressed. A response that is not 200 ends the run with an error: a fast failure is no result.
 */
#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/id.h"
#include "transport/frame.h"
#include "transport/handshake.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static struct options {
    int port, inflight, conns, pace;
    double seconds, warmup;
    const char *method, *path, *body;
} opt = {.inflight = 1, .conns = 1, .seconds = 3, .warmup = 0.3, .method = "GET", .path = "/api/ping"};

static _Noreturn void die(const char *what) {
    fprintf(stderr, "load: %s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

/* ---- results ---- */

static struct results {
    uint64_t begin, end; /* measured window, ns; end 0: warming up */
    uint64_t *lat;
    size_t n, cap;
    uint64_t bytes;
} res;

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void note(uint64_t started, uint64_t now) {
    if (now < res.begin || started < res.begin) return;
    if (res.n == res.cap) {
        res.cap = res.cap ? res.cap * 2 : 1 << 16;
        res.lat = cp_realloc(res.lat, res.cap * sizeof *res.lat);
    }
    res.lat[res.n++] = now - started;
}

static void report(const char *name, uint64_t now) {
    double secs = (double)(now - res.begin) / 1e9;
    if (!res.n) die("nothing was measured");
    qsort(res.lat, res.n, sizeof *res.lat, by_value);
    printf("{\"scenario\":\"%s\",\"ops\":%zu,\"opsPerSec\":%.1f,\"p50us\":%.1f,\"p99us\":%.1f,\"maxus\":%.1f}\n", name,
           res.n, (double)res.n / secs, (double)res.lat[res.n / 2] / 1e3, (double)res.lat[res.n * 99 / 100] / 1e3,
           (double)res.lat[res.n - 1] / 1e3);
}

static void begin_window(void) {
    res.begin = cp_now_ns() + (uint64_t)(opt.warmup * 1e9);
    res.end = res.begin + (uint64_t)(opt.seconds * 1e9);
}

/* ---- sockets ---- */

static int dial(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)opt.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) < 0) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void send_all(int fd, const char *p, size_t n) {
    while (n) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k < 0 && (errno == EAGAIN || errno == EINTR)) {
            poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
            continue;
        }
        if (k < 0) die("send");
        p += k;
        n -= (size_t)k;
    }
}

static int dial_ws(void) {
    int fd = dial();
    uint8_t nonce[16];
    char key[CP_WS_KEY_SIZE + 1], host[32], head[2048];
    cp_random(nonce, sizeof nonce);
    cp_ws_key(nonce, key);
    snprintf(host, sizeof host, "127.0.0.1:%d", opt.port);
    cp_autobuf cp_buf b = {0};
    cp_ws_request_head(&b, host, "/ws", key, NULL);
    send_all(fd, b.p, b.n);
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

/* ---- raw limits ---- */

static int echo_server(void) {
    int ls = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    if (bind(ls, (struct sockaddr *)&a, sizeof a) < 0 || listen(ls, 128) < 0 ||
        getsockname(ls, (struct sockaddr *)&a, &len) < 0)
        die("listen");
    printf("%d\n", ntohs(a.sin_port));
    fflush(stdout);
    int ep = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = ls};
    epoll_ctl(ep, EPOLL_CTL_ADD, ls, &ev);
    ev.data.fd = 0;
    epoll_ctl(ep, EPOLL_CTL_ADD, 0, &ev);
    static char buf[256 * 1024];
    for (;;) {
        struct epoll_event evs[64];
        int n = epoll_wait(ep, evs, 64, -1);
        for (int i = 0; i < n; i++) {
            int fd = evs[i].data.fd;
            if (fd == 0) return 0;
            if (fd == ls) {
                int one = 1, c = accept4(ls, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
                setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                ev = (struct epoll_event){.events = EPOLLIN, .data.fd = c};
                epoll_ctl(ep, EPOLL_CTL_ADD, c, &ev);
                continue;
            }
            ssize_t k = read(fd, buf, sizeof buf);
            if (k <= 0) close(fd);
            else send_all(fd, buf, (size_t)k);
        }
    }
}

enum { ECHO_SIZE = 64 };

static int echo(void) {
    int fd = dial();
    uint64_t *started = cp_alloc((size_t)opt.inflight * sizeof *started), now;
    static char out[1024 * ECHO_SIZE], in[256 * 1024];
    size_t have = 0, next = 0;
    begin_window();
    for (int i = 0; i < opt.inflight; i++) started[i] = cp_now_ns();
    send_all(fd, out, (size_t)opt.inflight * ECHO_SIZE);
    do {
        ssize_t k = read(fd, in, sizeof in);
        if (k <= 0) die("read");
        have += (size_t)k;
        now = cp_now_ns();
        size_t done = have / ECHO_SIZE;
        have %= ECHO_SIZE;
        for (size_t i = 0; i < done; i++, next = (next + 1) % (size_t)opt.inflight) {
            note(started[next], now);
            started[next] = now;
        }
        if (done) send_all(fd, out, done * ECHO_SIZE);
    } while (now < res.end);
    report("echo", now);
    return 0;
}

/* A command as any server must run it: bash with a pipe for stdout and one for stderr, read to the end, reaped. */
struct spawned {
    pid_t pid;
    int out, err;
    uint64_t started;
};

static struct spawned spawn_one(void) {
    int o[2], e[2];
    if (cp_pipe(o, 0) < 0 || cp_pipe(e, 0) < 0) die("pipe");
    posix_spawn_file_actions_t fa;
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_adddup2(&fa, o[1], 1);
    posix_spawn_file_actions_adddup2(&fa, e[1], 2);
    char bash[] = "bash", dash_c[] = "-c", command[] = "true", *argv[] = {bash, dash_c, command, NULL};
    struct spawned s = {.out = o[0], .err = e[0], .started = cp_now_ns()};
    if (posix_spawnp(&s.pid, "bash", &fa, NULL, argv, environ) != 0) die("posix_spawn");
    posix_spawn_file_actions_destroy(&fa);
    close(o[1]);
    close(e[1]);
    return s;
}

static int spawn_loop(void) {
    struct spawned *v = cp_alloc((size_t)opt.inflight * sizeof *v);
    uint64_t now;
    begin_window();
    for (int i = 0; i < opt.inflight; i++) v[i] = spawn_one();
    do {
        int status;
        pid_t pid = wait(&status);
        now = cp_now_ns();
        for (int i = 0; i < opt.inflight; i++) {
            if (v[i].pid != pid) continue;
            char c;
            if (read(v[i].out, &c, 1) != 0 || read(v[i].err, &c, 1) != 0) die("unexpected output");
            close(v[i].out);
            close(v[i].err);
            note(v[i].started, now);
            v[i] = spawn_one();
            break;
        }
    } while (now < res.end);
    report("spawn", now);
    while (wait(NULL) > 0) {
    }
    return 0;
}

/* ---- requests on one WebSocket ---- */

static void make_request(cp_buf *out, unsigned id) {
    static const uint8_t mask[4] = {0x12, 0x34, 0x56, 0x78};
    char text[4096];
    int n = snprintf(text, sizeof text, "{\"type\":\"request\",\"id\":\"%u\",\"method\":\"%s\",\"path\":\"%s\"%s%s}",
                     id, opt.method, opt.path, opt.body ? ",\"body\":" : "", opt.body ? opt.body : "");
    if (n < 0 || (size_t)n >= sizeof text) die("request too long");
    cp_frame_put(out, CP_OP_TEXT, true, text, (size_t)n, mask);
}

/* A slot asks the same each time: its frame is made once, so that what is measured is the server. */
static void put_request(cp_buf *out, unsigned id) {
    static cp_buf frames[1024];
    if (!frames[id].n) make_request(&frames[id], id);
    cp_buf_add(out, frames[id].p, frames[id].n);
}

static const char *after(cp_str s, const char *key) {
    const char *p = memmem(s.p, s.n < 200 ? s.n : 200, key, strlen(key));
    return p ? p + strlen(key) : NULL;
}

/* The id of a response; dies unless its status is 200. */
static unsigned response_id(cp_str m) {
    const char *id = after(m, "\"id\":\""), *status = after(m, "\"status\":");
    if (!id || !status || atol(status) != 200) {
        errno = 0;
        fprintf(stderr, "%.*s\n", (int)(m.n > 500 ? 500 : m.n), m.p);
        die("not a 200 response");
    }
    return (unsigned)strtoul(id, NULL, 10);
}

/* Waits until the next request is due, and lets it begin then. */
static void pace(uint64_t *started) {
    int64_t left = (int64_t)(*started + (uint64_t)opt.pace * 1000000 - cp_now_ns());
    if (left > 0) poll(NULL, 0, (int)(left / 1000000));
    *started = cp_now_ns();
}

static int ws_requests(void) {
    int fd = dial_ws();
    cp_frame_in dec;
    cp_frame_in_init(&dec, CP_FRAME_CLIENT, (size_t)1 << 30);
    unsigned slots = (unsigned)opt.inflight;
    uint64_t *started = cp_alloc(slots * sizeof *started), now = cp_now_ns();
    cp_buf out = {0};
    static char in[1 << 20];
    begin_window();
    for (unsigned i = 0; i < slots; i++) {
        started[i] = now;
        put_request(&out, i);
    }
    do {
        if (opt.pace) pace(started);
        send_all(fd, out.p, out.n);
        cp_buf_clear(&out);
        ssize_t k = read(fd, in, sizeof in);
        if (k <= 0) die("read");
        now = cp_now_ns();
        cp_frame_event ev;
        for (size_t at = 0, used; cp_frame_next(&dec, in + at, (size_t)k - at, &used, &ev) != CP_FRAME_NEED_MORE;) {
            at += used;
            if (ev.kind == CP_FRAME_PING)
                cp_frame_put(&out, CP_OP_PONG, true, ev.payload.p, ev.payload.n, (const uint8_t[4]){1, 2, 3, 4});
            if (ev.kind == CP_FRAME_CLOSE || ev.kind == CP_FRAME_ERROR) die("closed");
            if (ev.kind != CP_FRAME_MESSAGE) continue;
            unsigned id = response_id(ev.payload);
            note(started[id % slots], now);
            res.bytes += ev.payload.n;
            started[id % slots] = now;
            put_request(&out, id);
        }
    } while (now < res.end);
    report("ws", now);
    return 0;
}

/* ---- one stream ---- */

/* Bytes of the child in one stream message: the text between \"data\":\" and \",\"timestamp, where a newline travels
 * as \\n. The streams that we measure hold no other escape. */
static uint64_t child_bytes(cp_str m) {
    static const char head[] = "\\\"data\\\":\\\"", tail[] = "\\\",\\\"timestamp";
    if (!memmem(m.p, m.n < 160 ? m.n : 160, "stdout", 6)) return 0;
    const char *b = memmem(m.p, m.n < 240 ? m.n : 240, head, sizeof head - 1);
    if (!b) return 0;
    b += sizeof head - 1;
    size_t n = m.n - (size_t)(b - m.p), skip = n > 120 ? n - 120 : 0;
    const char *e = memmem(b + skip, n - skip, tail, sizeof tail - 1);
    if (!e) return 0;
    uint64_t escapes = 0;
    for (const char *p = b; (p = memchr(p, '\\', (size_t)(e - p))); p++) escapes++;
    return (uint64_t)(e - b) - escapes;
}

static int stream(void) {
    int fd = dial_ws();
    cp_frame_in dec;
    cp_frame_in_init(&dec, CP_FRAME_CLIENT, (size_t)1 << 30);
    cp_buf out = {0};
    opt.method = "POST";
    opt.path = "/api/execute/stream";
    put_request(&out, 1);
    uint64_t begin = cp_now_ns(), bytes = 0;
    send_all(fd, out.p, out.n);
    static char in[1 << 20];
    bool complete = false;
    for (;;) {
        ssize_t k = read(fd, in, sizeof in);
        if (k <= 0) die("read");
        cp_frame_event ev;
        for (size_t at = 0, used; cp_frame_next(&dec, in + at, (size_t)k - at, &used, &ev) != CP_FRAME_NEED_MORE;) {
            at += used;
            if (ev.kind != CP_FRAME_MESSAGE) continue;
            if (ev.payload.n > 16 && memcmp(ev.payload.p, "{\"type\":\"stream\"", 16) == 0) {
                bytes += child_bytes(ev.payload);
                complete |= ev.payload.n < 400 && memmem(ev.payload.p, ev.payload.n, "\\\"exitCode\\\":0", 14) != NULL;
                continue;
            }
            response_id(ev.payload);
            double secs = (double)(cp_now_ns() - begin) / 1e9;
            printf("{\"scenario\":\"stream\",\"bytes\":%llu,\"seconds\":%.3f,\"MBps\":%.1f,\"complete\":%s}\n",
                   (unsigned long long)bytes, secs, (double)bytes / 1e6 / secs, complete ? "true" : "false");
            return complete ? 0 : 1;
        }
    }
}

/* ---- HTTP keep-alive ---- */

struct http_conn {
    int fd;
    uint64_t started;
    size_t have, need; /* need: whole response, 0 while the head is incomplete */
    cp_buf in;
};

static void http_send(struct http_conn *c, const cp_buf *rq) {
    c->have = c->need = 0;
    cp_buf_clear(&c->in);
    c->started = cp_now_ns();
    send_all(c->fd, rq->p, rq->n);
}

/* True when the response is whole. */
static bool http_read(struct http_conn *c) {
    cp_buf_reserve(&c->in, 64 * 1024);
    ssize_t k = read(c->fd, c->in.p + c->in.n, c->in.cap - c->in.n);
    if (k < 0 && errno == EAGAIN) return false;
    if (k <= 0) die("read");
    c->in.n += (size_t)k;
    if (!c->need) {
        const char *end = memmem(c->in.p, c->in.n, "\r\n\r\n", 4);
        if (!end) return false;
        if (memcmp(c->in.p, "HTTP/1.1 200", 12) != 0) die("not a 200 response");
        const char *cl = memmem(c->in.p, c->in.n, "Content-Length: ", 16);
        if (!cl) die("no Content-Length");
        c->need = (size_t)(end + 4 - c->in.p) + strtoul(cl + 16, NULL, 10);
    }
    return c->in.n >= c->need;
}

static int http_requests(void) {
    cp_buf rq = {0};
    size_t body = opt.body ? strlen(opt.body) : 0;
    cp_buf_addf(&rq, "%s %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n", opt.method, opt.path, opt.port);
    if (opt.body) cp_buf_addf(&rq, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body);
    cp_buf_addf(&rq, "\r\n%s", opt.body ? opt.body : "");
    struct http_conn *v = cp_alloc((size_t)opt.conns * sizeof *v);
    int ep = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < opt.conns; i++) {
        v[i].fd = dial();
        cp_nonblock(v[i].fd);
        struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &v[i]};
        epoll_ctl(ep, EPOLL_CTL_ADD, v[i].fd, &ev);
    }
    begin_window();
    for (int i = 0; i < opt.conns; i++) http_send(&v[i], &rq);
    uint64_t now;
    do {
        struct epoll_event evs[64];
        int n = epoll_wait(ep, evs, 64, 1000);
        now = cp_now_ns();
        for (int i = 0; i < n; i++) {
            struct http_conn *c = evs[i].data.ptr;
            if (!http_read(c)) continue;
            note(c->started, now);
            http_send(c, &rq);
        }
    } while (now < res.end);
    report("http", now);
    return 0;
}

static int idle(void) {
    struct rlimit r;
    getrlimit(RLIMIT_NOFILE, &r);
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
    for (int i = 0; i < opt.conns; i++) dial_ws();
    puts("open");
    fflush(stdout);
    char c;
    return read(0, &c, 1) < 0;
}

/* ---- options ---- */

static const struct scenario {
    const char *name;
    int (*run)(void);
} scenarios[] = {
    {"echo-server", echo_server}, {"echo", echo},     {"spawn", spawn_loop}, {"ws", ws_requests},
    {"http", http_requests},      {"stream", stream}, {"idle", idle},
};

static int whole(const char *v, int max) {
    uint64_t n;
    if (!v || !cp_str_u64(cp_str_of(v), (uint64_t)max, &n)) die("a number is expected");
    return (int)n;
}

static void parse(char **argv) {
    for (; *argv; argv += 2) {
        const char *name = argv[0], *v = argv[1];
        if (!v) die("an option needs a value");
        if (strcmp(name, "--port") == 0) opt.port = whole(v, 65535);
        else if (strcmp(name, "--inflight") == 0) opt.inflight = whole(v, 1024);
        else if (strcmp(name, "--conns") == 0) opt.conns = whole(v, 20000);
        else if (strcmp(name, "--pace") == 0) opt.pace = whole(v, 60000);
        else if (strcmp(name, "--seconds") == 0) opt.seconds = strtod(v, NULL);
        else if (strcmp(name, "--warmup") == 0) opt.warmup = strtod(v, NULL);
        else if (strcmp(name, "--method") == 0) opt.method = v;
        else if (strcmp(name, "--path") == 0) opt.path = v;
        else if (strcmp(name, "--body") == 0) opt.body = v;
        else die("unknown option");
    }
}

int main(int argc, char **argv) {
    errno = 0;
    for (size_t i = 0; argc > 1 && i < CP_COUNT(scenarios); i++) {
        if (strcmp(argv[1], scenarios[i].name) != 0) continue;
        parse(argv + 2);
        return scenarios[i].run();
    }
    fputs("usage: load echo-server|echo|spawn|ws|http|stream|idle [options] (see the head of bench/load.c)\n", stderr);
    return 2;
}
