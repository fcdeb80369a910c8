/* The whole HTTP side, CivetWeb's parser included, over loopback connections. The same bytes get the same answers in
 * one piece and in many; every answer is well-formed; the connection ends when the client has shut its side down; and
 * nothing of the request that another client sent just before shows in them.
 *
 * Input: a first line of which each byte is the size of a piece, counted from '0' (they are taken in turns); the rest
 * goes over the connection. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "component/config_fixture.h"
#include "component/router_stub.h"
#include "transport/http/http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 4096, PIECES_MAX = 1024, SILENCE_MS = 30000 };

#define MARK "mArK-81c5"

static void require(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "http_fuzz: %s\n", what);
    abort();
}

/* ---- what is served ---- */

static void say(cp_result *res, const cp_request *req) {
    res->status = 200;
    cp_jw w = cp_jw_on(&res->body);
    cp_jw_obj(&w);
    cp_jw_kstr(&w, "path", req->path);
    cp_jw_kstr(&w, "query", req->query);
    cp_jw_kbool(&w, "auth", cp_request_header(req, "authorization").p != NULL);
    cp_jw_end_obj(&w);
}

static int h_ping(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    (void)ctx, (void)err;
    say(res, req);
    return 0;
}

static int h_echo(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    (void)ctx;
    if (!req->body) return cp_fail(err, CP_E_INTERNAL_ERROR, "no body: %s", req->body_err ? req->body_err->msg : "-");
    res->status = 200;
    cp_jw w = cp_jw_on(&res->body);
    cp_jw_val(&w, req->body);
    return 0;
}

static int h_file(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    (void)ctx, (void)req, (void)err;
    res->status = 206;
    res->type = "application/octet-stream";
    res->file_fd = cp_memfd("file", "0123456789", 10);
    res->file_off = 2;
    res->file_len = 5;
    return 0;
}

static int h_raw(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    (void)ctx;
    char buf[256];
    ssize_t n;
    size_t total = 0;
    while ((n = req->raw->read(req->raw, buf, sizeof buf)) > 0) total += (size_t)n;
    if (n < 0) return cp_fail(err, CP_E_OPERATION_INTERRUPTED, "cut after %zu", total);
    res->status = 200;
    cp_buf_addf(&res->body, "{\"bytes\":%zu}", total);
    return 0;
}

static void h_now(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    cp_result res = {0};
    (void)ctx;
    say(&res, req);
    cp_reply_send(reply, &res);
}

const cp_route test_routes[] = {
    {.method = CP_GET, .pattern = "/api/ping", .flags = CP_R_INLINE, .op = "ping", .sync = h_ping},
    {.method = CP_GET, .pattern = "/healthz", .flags = CP_R_INLINE | CP_R_OPEN, .op = "health", .sync = h_ping},
    {.method = CP_POST, .pattern = "/echo", .flags = CP_R_IO, .op = "echo", .sync = h_echo},
    {.method = CP_GET, .pattern = "/file", .flags = CP_R_IO, .op = "file", .sync = h_file},
    {.method = CP_PUT, .pattern = "/raw", .flags = CP_R_IO | CP_R_RAW_BODY, .op = "raw", .sync = h_raw},
    {.method = CP_POST, .pattern = "/now", .flags = CP_R_LOOP, .op = "now", .async = h_now},
};
const size_t test_nroutes = CP_COUNT(test_routes);

struct cp_router {
    cp_ctx ctx;
};

bool cp_router_allow(cp_router *r, cp_str path, char out[64]) {
    (void)r;
    bool known = cp_str_is(path, "/echo");
    if (known) snprintf(out, 64, "POST, OPTIONS");
    return known;
}

void cp_router_call(cp_router *r, const cp_match *m, cp_request *req, cp_result *res) {
    cp_err err = {0};
    if (m->route->sync(&r->ctx, req, res, &err) == 0) return;
    cp_result_free(res);
    cp_error_result(res, &err, m->route->op, (cp_str){0});
}

void cp_router_dispatch(cp_router *r, const cp_match *m, cp_request *req, yyjson_doc *doc, cp_reply *reply) {
    m->route->async(&r->ctx, req, reply);
    yyjson_doc_free(doc);
}

void cp_router_count(cp_router *r, unsigned index, int status, uint64_t us) {
    (void)r, (void)index, (void)status, (void)us;
}

/* ---- the server: one for the whole process, which ends with it ---- */

static cp_config config;
static cp_router router;
static cp_transport transport;
static uint16_t port;

static void *loop_main(void *arg) {
    cp_err err;
    (void)arg;
    cp_loop_run(transport.loop, &err);
    return NULL;
}

static void serve(void) {
    cp_err err = {0};
    pthread_t thread;
    cp_log_setup(2, CP_LOG_ERROR, false);
    config_defaults(&config);
    config.http_workers = 4;
    transport.router = &router;
    transport.config = &config;
    transport.ctx = &router.ctx;
    transport.loop = cp_loop_new(&err);
    require(transport.loop && cp_server_open(&transport, 0, &port, &err) == 0, err.msg);
    require(pthread_create(&thread, NULL, loop_main, NULL) == 0, "a thread");
}

/* ---- the client ---- */

/* libFuzzer's clock is a signal: calls are interrupted by it. */
static bool comes(int fd, short what) {
    struct pollfd p = {.fd = fd, .events = what};
    int n;
    do n = poll(&p, 1, SILENCE_MS);
    while (n < 0 && errno == EINTR);
    return n == 1;
}

/* From one address after the other: a port is not free again as soon as its connection has ended. */
static int dial(void) {
    static uint32_t turn;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000001 + turn++ % 200)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    require(fd >= 0, "a socket");
    (void)setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    require(bind(fd, (struct sockaddr *)&from, sizeof from) == 0, "an address");
    int rc = connect(fd, (struct sockaddr *)&to, sizeof to);
    if (rc < 0 && errno == EINTR) rc = comes(fd, POLLOUT) ? 0 : -1; /* it goes on by itself */
    require(rc == 0, strerror(errno));
    return fd;
}

static bool put(int fd, const char *p, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t k = send(fd, p + done, n - done, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false; /* it has ended the connection: what it said is read all the same */
        done += (size_t)k;
    }
    return true;
}

static void read_all(int fd, cp_buf *out) {
    ssize_t n;
    do {
        require(comes(fd, POLLIN), "the connection does not end");
        cp_buf_reserve(out, 65536);
        do n = read(fd, out->p + out->n, 65536);
        while (n < 0 && errno == EINTR);
        if (n > 0) out->n += (size_t)n;
    } while (n > 0);
}

/* sizes.n == 0: in one piece. */
static void ask(cp_str sizes, cp_str bytes, cp_buf *out) {
    int fd = dial();
    size_t at = 0;
    for (size_t i = 0; at < bytes.n; i++) {
        size_t n = bytes.n - at, want = sizes.n ? (size_t)(unsigned char)sizes.p[i % sizes.n] - '0' : n;
        if (want == 0 || want > n) want = sizes.n && n && want == 0 ? 1 : n;
        if (i >= PIECES_MAX) want = n;
        if (!put(fd, bytes.p + at, want)) break;
        at += want;
    }
    shutdown(fd, SHUT_WR);
    read_all(fd, out);
    close(fd);
}

static void ask_marked(void) {
    static const cp_str request = CP_STR("GET /api/ping?" MARK " HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: " MARK
                                         "\r\nCookie: " MARK "\r\n\r\nGET /api/ping?" MARK);
    cp_autobuf cp_buf out = {0};
    ask((cp_str){0}, request, &out);
    require(memmem(out.p, out.n, MARK "\",\"auth\":true", sizeof MARK + 12), "the marked request is served");
}

/* ---- what is answered ---- */

static bool has(cp_str s, const char *what) { return s.n && memmem(s.p, s.n, what, strlen(what)); }
static bool begins(cp_str s, const char *what) { return s.n >= strlen(what) && !memcmp(s.p, what, strlen(what)); }

static cp_str header(cp_str head, const char *name) {
    const char *p = memmem(head.p, head.n, name, strlen(name)), *end;
    if (!p) return (cp_str){0};
    p += strlen(name);
    end = memmem(p, (size_t)(head.p + head.n - p), "\r\n", 2);
    return (cp_str){p, (size_t)(end - p)};
}

static void check_head(cp_str head) {
    size_t at = 0, line = 0;
    while (at < head.n - 2) {
        const char *lf = memchr(head.p + at, '\n', head.n - at);
        size_t n = (size_t)(lf - head.p) - at;
        require(n > 1 && head.p[at + n - 1] == '\r', "a line of an answer ends in CR LF");
        if (line++) require(memmem(head.p + at, n, ": ", 2) != NULL, "a header line of an answer");
        at += n + 1;
    }
}

/* Takes one answer off the front of *s, and appends it to `kept` without its Date. False: it is a 101. */
static bool take(cp_str *s, bool heads, cp_buf *kept) {
    require(begins(*s, "HTTP/1.1 ") && s->n > 13 && s->p[12] == ' ', "a status line");
    const char *end = memmem(s->p, s->n, "\r\n\r\n", 4);
    require(end != NULL, "an answer has a whole head");
    cp_str head = {s->p, (size_t)(end + 4 - s->p)}, length = header(head, "\r\nContent-Length: ");
    cp_str date = header(head, "\r\nDate: ");
    int status = atoi(s->p + 9);
    uint64_t n = 0;
    check_head(head);
    *s = (cp_str){s->p + head.n, s->n - head.n};
    if (status < 200) return status != 101; /* a 100 depends on how much has come already */
    require(date.p != NULL && !has((cp_str){date.p, (size_t)(end - date.p)}, "\r\nDate: "), "an answer has one Date");
    bool none = status == 204 || status == 304 || (heads && (s->n == 0 || begins(*s, "HTTP/1.1 ")));
    if (!none) require(cp_str_u64(length, 1 << 20, &n) && n <= s->n, "an answer is as long as it says");
    cp_buf_add(kept, head.p, (size_t)(date.p - head.p));
    cp_buf_add(kept, date.p + date.n, (size_t)(end + 4 - date.p) - date.n + n);
    *s = (cp_str){s->p + n, s->n - n};
    return true;
}

static void hide_times(cp_buf *b) {
    static const char key[] = "\"timestamp\":\"";
    size_t at = 0, n = sizeof key - 1;
    for (char *p; at < b->n && (p = memmem(b->p + at, b->n - at, key, n)); at += n) {
        at = (size_t)(p - b->p);
        for (size_t i = at + n; i < b->n && b->p[i] != '"'; i++) b->p[i] = '-';
    }
}

/* False: it has become a WebSocket, whose frames are told from what came with its request by the pieces. */
static bool take_all(cp_str answers, cp_str input, cp_buf *kept) {
    bool heads = has(input, "HEAD"), http = true;
    while (http && answers.n) http = take(&answers, heads, kept);
    hide_times(kept);
    return http;
}

static bool names_authorization(cp_str s) {
    for (size_t i = 0; i + 13 <= s.n; i++)
        if (cp_str_ieq((cp_str){s.p + i, 13}, CP_STR("authorization"))) return true;
    return false;
}

static void check_secret(cp_str answers, cp_str input) {
    if (!has(input, MARK)) require(!has(answers, MARK), "another client's request shows in an answer");
    if (has(answers, "\"auth\":true"))
        require(names_authorization(input) || has(input, "auth"), "a request is served with another's Authorization");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    cp_str input = {(const char *)data, size};
    const char *nl = size ? memchr(data, '\n', size) : NULL;
    cp_autobuf cp_buf whole = {0}, pieces = {0}, said = {0}, said_slowly = {0};
    if (!nl || size > INPUT_MAX) return 0;
    if (!port) serve();
    cp_str sizes = {input.p, (size_t)(nl - input.p)}, bytes = {nl + 1, size - (size_t)(nl + 1 - input.p)};
    ask_marked();
    ask((cp_str){0}, bytes, &whole);
    ask_marked();
    ask(sizes.n ? sizes : CP_STR("1"), bytes, &pieces);
    check_secret(cp_buf_str(&whole), bytes);
    check_secret(cp_buf_str(&pieces), bytes);
    bool http = take_all(cp_buf_str(&whole), bytes, &said);
    bool http_slowly = take_all(cp_buf_str(&pieces), bytes, &said_slowly);
    require(http == http_slowly, "a WebSocket opens however its request came");
    if (cp_str_eq(cp_buf_str(&said), cp_buf_str(&said_slowly))) return 0;
    fprintf(stderr, "in one piece:\n%.*s\nin pieces:\n%.*s\n", (int)said.n, said.p, (int)said_slowly.n, said_slowly.p);
    require(false, "the pieces make no difference");
    return 0;
}
