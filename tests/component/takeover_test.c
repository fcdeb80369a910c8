/* Sockets leaving CivetWeb, WebSocket upgrades, and what happens when workers get scarce. */
#include "http_fixture.h"

#include <sys/resource.h>

#include "base/metrics.h"

#define UPGRADE                                                                                                        \
    "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"                           \
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"

/* ---- finding sockets ---- */

static int listen_on(const char *addr, uint16_t *port) {
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t n = sizeof a;
    inet_pton(AF_INET, addr, &a.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, n), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static int dial_from(const char *addr, uint16_t port, uint16_t *own) {
    struct sockaddr_in me = {.sin_family = AF_INET, .sin_port = htons(*own), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    socklen_t n = sizeof me;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    inet_pton(AF_INET, addr, &to.sin_addr);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    assert_int_equal(bind(fd, (struct sockaddr *)&me, n), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    getsockname(fd, (struct sockaddr *)&me, &n);
    *own = ntohs(me.sin_port);
    return fd;
}

/* The same client address and port towards two of our addresses: neither is taken for the other. */
static void twins_are_told_apart_or_refused(void **state) {
    (void)state;
    uint16_t port, own = 0;
    cp_err err;
    int listener = listen_on("0.0.0.0", &port);
    int one = dial_from("127.0.0.1", port, &own), a = accept(listener, NULL, NULL);
    cp_fds *f = cp_fds_new(true, &err);
    cp_peer peer = {"127.0.0.1", own, port};
    assert_int_equal(cp_fds_claim(f, &peer, &err), a);
    int two = dial_from("127.0.0.2", port, &own), b = accept(listener, NULL, NULL);
    assert_int_equal(cp_fds_claim(f, &peer, &err), b);
    assert_int_equal(cp_fds_claim(f, &peer, &err), -1); /* both are spoken for */
    cp_fds_release(f, a);
    cp_fds_release(f, b);
    assert_int_equal(cp_fds_claim(f, &peer, &err), -1); /* which of the two cannot be told */
    assert_int_equal(err.code, CP_E_RESOURCE_BUSY);
    cp_fds_free(f);
    close(one), close(two), close(a), close(b), close(listener);
}

static void a_taken_socket_survives_the_old_number(void **state) {
    (void)state;
    uint16_t port, own = 0;
    cp_err err;
    char c = 0;
    int listener = listen_on("127.0.0.1", &port), client = dial_from("127.0.0.1", port, &own);
    int a = accept(listener, NULL, NULL);
    cp_fds *f = cp_fds_new(false, &err);
    cp_peer peer = {"127.0.0.1", own, port};
    assert_int_equal(cp_fds_claim(f, &peer, &err), a);
    int taken = cp_fds_take(f, a, &err);
    assert_true(taken >= 0 && taken != a);
    assert_true(fcntl(taken, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(a, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(taken, F_GETFL) & O_NONBLOCK);
    assert_int_equal(shutdown(a, SHUT_RDWR), -1); /* as CivetWeb will do */
    close(a);
    cp_fds_release(f, a);
    assert_int_equal(write(taken, "x", 1), 1);
    assert_int_equal(read(client, &c, 1), 1);
    cp_fds_close(f, &taken);
    assert_int_equal(read(client, &c, 1), 0);
    cp_fds_free(f);
    close(client), close(listener);
}

static void the_listener_is_found(void **state) {
    (void)state;
    uint16_t port;
    int listener = listen_on("127.0.0.1", &port);
    assert_int_equal(cp_fds_listener(port), listener);
    close(listener);
    assert_int_equal(cp_fds_listener(port), -1);
}

/* ---- WebSocket upgrades ---- */

static int echo_up(void **state) {
    fixture *f = *state = fx_prepare();
    f->cfg.debug_echo = true;
    f->cfg.max_connections = 50;
    fx_start(f);
    return 0;
}

static int open_echo(const fixture *f) {
    int fd = dial(f);
    put(fd, "GET /ws/echo HTTP/1.1\r\n" H UPGRADE "\r\n");
    response r = get_for(fd, true);
    assert_int_equal(r.status, 101);
    assert_true(cp_str_is(header_of(&r, "Sec-WebSocket-Accept"), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")); /* RFC 6455, 1.3 */
    free_response(&r);
    return fd;
}

static void echo_once(int fd) {
    static const unsigned char hello[] = {0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58};
    cp_buf b = {0};
    assert_int_equal(write(fd, hello, sizeof hello), sizeof hello);
    while (b.n < 7 && more(fd, &b)) {
    }
    assert_int_equal(b.n, 7);
    assert_memory_equal(b.p, "\x81\x05Hello", 7);
    cp_buf_free(&b);
}

/* More sockets than workers, no descriptor left behind. */
static void upgrades_hold_no_worker(void **state) {
    fixture *f = *state;
    enum { N = 40 }; /* workers: 16 */
    int fds[N];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) fds[i] = open_echo(f);
        for (int i = N - 1; i >= 0; i--) echo_once(fds[i]);
        assert_int_equal(ask(f, "GET /api/ping HTTP/1.1\r\n" H "\r\n", NULL), 200);
        WAIT_FOR(f->t.nconns == N);
        for (int i = 0; i < N; i++) close(fds[i]);
        WAIT_FOR(f->t.nconns == 0);
    }
}

static void connections_are_limited(void **state) {
    fixture *f = *state;
    int fds[50];
    for (int i = 0; i < 50; i++) fds[i] = open_echo(f);
    WAIT_FOR(f->t.nconns == 50);
    assert_int_equal(ask(f, "GET /ws/echo HTTP/1.1\r\n" H UPGRADE "\r\n", "LIMIT_EXCEEDED"), 429);
    assert_int_equal(ask(f, "GET /stream?n=1 HTTP/1.1\r\n" H "\r\n", "LIMIT_EXCEEDED"), 429);
    assert_int_equal(ask(f, "GET /api/ping HTTP/1.1\r\n" H "\r\n", NULL), 200);
    for (int i = 0; i < 50; i++) close(fds[i]);
    WAIT_FOR(f->t.nconns == 0);
}

static void bad_upgrades(void **state) {
    fixture *f = *state;
    assert_int_equal(ask(f, "GET /ws HTTP/1.1\r\n" H "\r\n", "UNKNOWN_ERROR"), 404);
    assert_int_equal(ask(f, "GET /ws/echo HTTP/1.1\r\n" H "\r\n", "UNKNOWN_ERROR"), 404);
    assert_int_equal(ask(f, "GET /api/ping HTTP/1.1\r\n" H UPGRADE "\r\n", "UNKNOWN_ERROR"), 404);
    assert_int_equal(ask(f,
                         "GET /ws HTTP/1.1\r\n" H "Connection: Upgrade\r\nUpgrade: websocket\r\n"
                         "Sec-WebSocket-Version: 13\r\n\r\n",
                         NULL),
                     400);
    int fd = dial(f);
    put(fd, "GET /ws HTTP/1.1\r\n" H "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 8\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n");
    response r = get(fd);
    assert_int_equal(r.status, 426);
    assert_true(cp_str_is(header_of(&r, "Sec-WebSocket-Version"), "13"));
    free_response(&r);
    close(fd);
}

/* ---- scarce workers ---- */

static int crowd_up(void **state) {
    struct rlimit lim;
    getrlimit(RLIMIT_NOFILE, &lim);
    lim.rlim_cur = lim.rlim_max < 8192 ? lim.rlim_max : 8192;
    setrlimit(RLIMIT_NOFILE, &lim);
    fixture *f = *state = fx_prepare();
    f->cfg.http_workers = 64;
    f->cfg.keepalive = 600000;
    f->cfg.header_timeout = 600000; /* nothing but shedding ends them */
    fx_start(f);
    return 0;
}

enum { CROWD = 1000 };

/* When the request after them is answered, all of them have come to a worker: what is busy then, only the crowd is. */
static void disperse(const fixture *f, const int *fds, int n) {
    for (int i = 0; i < n; i++) close(fds[i]);
    assert_int_equal(ask(f, "GET /healthz HTTP/1.1\r\n" H "\r\n", NULL), 200);
    WAIT_FOR(cp_metric_values[CP_M_HTTP_WORKERS_BUSY] == 0);
}

static void a_silent_crowd_does_not_stop_the_service(void **state) {
    fixture *f = *state;
    static int fds[CROWD];
    for (int i = 0; i < CROWD; i++) fds[i] = dial(f);
    assert_int_equal(ask(f, "GET /healthz HTTP/1.1\r\n" H "\r\n", NULL), 200);
    assert_int_equal(ask(f, "POST /now?exec HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}", "exec"), 200);
    disperse(f, fds, CROWD);
}

/* The kernel does not keep those that have begun to speak: each gets a worker, and is shed. */
static void a_crowd_that_stops_within_a_head_does_not_stop_the_service(void **state) {
    fixture *f = *state;
    enum { STAMMERERS = 150 };
    static int fds[STAMMERERS];
    for (int i = 0; i < STAMMERERS; i++) {
        fds[i] = dial(f);
        put(fds[i], "G");
    }
    assert_int_equal(ask(f, "GET /healthz HTTP/1.1\r\n" H "\r\n", NULL), 200);
    assert_true(cp_metric_values[CP_M_HTTP_SHED] > 0);
    disperse(f, fds, STAMMERERS);
}

static void an_idle_crowd_does_not_stop_the_service(void **state) {
    fixture *f = *state;
    static int fds[CROWD];
    int told = 0;
    for (int i = 0; i < CROWD; i++) {
        fds[i] = dial(f);
        put(fds[i], "GET /api/ping HTTP/1.1\r\n" H "\r\n");
        response r = get(fds[i]);
        assert_int_equal(r.status, 200);
        told += r.closes;
        free_response(&r);
    }
    assert_true(told >= CROWD - 32 - 1); /* half the workers may be kept by idle ones */
    assert_int_equal(ask(f, "GET /healthz HTTP/1.1\r\n" H "\r\n", NULL), 200);
    assert_int_equal(ask(f, "POST /now?exec HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}", "exec"), 200);
    disperse(f, fds, CROWD);
}

/* Three times as many waiting requests as workers: each is handed over, and each gets its answer. */
static cp_reply *_Atomic replies[200];
static _Atomic int nreplies;

static void answer_all(void *arg) {
    (void)arg;
    for (int i = 0; i < nreplies; i++) {
        cp_result res = {.status = 200};
        cp_buf_addf(&res.body, "{\"n\":%d}", i);
        cp_reply_send(replies[i], &res);
    }
}

static void waiting_requests_are_handed_over(void **state) {
    fixture *f = *state;
    enum { N = 192 };
    static int fds[N];
    for (int i = 0; i < N; i++) {
        fds[i] = dial(f);
        put(fds[i], "POST /later HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}");
        WAIT_FOR(held_reply);
        replies[nreplies++] = held_reply;
        held_reply = NULL;
    }
    assert_int_equal(ask(f, "GET /healthz HTTP/1.1\r\n" H "\r\n", NULL), 200);
    run_on_loop(f, answer_all, NULL);
    for (int i = 0; i < N; i++) {
        response r = get(fds[i]);
        assert_int_equal(r.status, 200);
        assert_true(r.complete);
        free_response(&r);
        close(fds[i]);
    }
    WAIT_FOR(f->t.nconns == 0);
}

/* ---- life cycle ---- */

static void a_port_in_use_is_named(void **state) {
    fixture *f = *state;
    uint16_t bound;
    cp_err err = {0};
    cp_transport other = {.loop = f->t.loop, .router = f->t.router, .config = f->t.config, .ctx = f->t.ctx};
    char want[40];
    snprintf(want, sizeof want, "127.0.0.1:%u", f->port);
    assert_int_equal(cp_server_open(&other, f->port, &bound, &err), -1);
    assert_int_equal(err.code, CP_E_PORT_IN_USE);
    assert_non_null(strstr(err.msg, want));
}

static void no_ipv6_is_said_clearly(void **state) {
    (void)state;
    if (mg_check_feature(MG_FEATURES_IPV6)) skip();
    fixture *f = fx_prepare();
    uint16_t bound;
    cp_err err = {0};
    static char ipv6[] = "::1";
    f->cfg.host = ipv6;
    f->t.config = &f->cfg;
    f->t.loop = cp_loop_new(&err);
    assert_int_equal(cp_server_open(&f->t, 0, &bound, &err), -1);
    assert_int_equal(err.code, CP_E_NOT_SUPPORTED);
    assert_non_null(strstr(err.msg, "IPv6"));
    cp_loop_free(f->t.loop);
    free(f);
}

static int slots_in(const fixture *f, cp_slot_state state) {
    cp_server *srv = f->t.server;
    int n = 0;
    pthread_mutex_lock(&srv->mu);
    for (unsigned i = 0; i < srv->nslots; i++) {
        pthread_mutex_lock(&srv->slots[i]->mu);
        n += srv->slots[i]->fd >= 0 && srv->slots[i]->state == state;
        pthread_mutex_unlock(&srv->slots[i]->mu);
    }
    pthread_mutex_unlock(&srv->mu);
    return n;
}

static void stop_fn(void *arg) { cp_server_stop_accepting(arg); }

static void draining_refuses_connections_and_finishes_requests(void **state) {
    fixture *f = *state;
    int waiting = dial(f), idle = dial(f), begun = dial(f);
    put(idle, "GET /api/ping HTTP/1.1\r\n" H "\r\n");
    response pong = get(idle);
    assert_true(pong.status == 200 && !pong.closes);
    free_response(&pong);
    put(begun, "G");
    put(waiting, "POST /later HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}");
    WAIT_FOR(held_reply);
    WAIT_FOR(slots_in(f, CP_SLOT_IDLE) == 1 && slots_in(f, CP_SLOT_SILENT) == 1);
    run_on_loop(f, stop_fn, &f->t);
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(f->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), -1);
    assert_int_equal(errno, ECONNREFUSED);
    close(fd);
    assert_true(at_end(idle));
    assert_true(at_end(begun));
    answer_held(f, "{\"done\":1}");
    response r = get(waiting);
    assert_true(r.status == 200 && r.closes);
    free_response(&r);
    close(waiting), close(idle), close(begun);
}

int main(void) {
    const struct CMUnitTest plain[] = {
        cmocka_unit_test(twins_are_told_apart_or_refused),
        cmocka_unit_test(a_taken_socket_survives_the_old_number),
        cmocka_unit_test(the_listener_is_found),
        cmocka_unit_test(no_ipv6_is_said_clearly),
    };
    const struct CMUnitTest echo[] = {
        cmocka_unit_test(upgrades_hold_no_worker),
        cmocka_unit_test(connections_are_limited),
        cmocka_unit_test(bad_upgrades),
        cmocka_unit_test(a_port_in_use_is_named),
        cmocka_unit_test(draining_refuses_connections_and_finishes_requests),
    };
    const struct CMUnitTest crowd[] = {
        cmocka_unit_test(a_silent_crowd_does_not_stop_the_service),
        cmocka_unit_test(a_crowd_that_stops_within_a_head_does_not_stop_the_service),
        cmocka_unit_test(an_idle_crowd_does_not_stop_the_service),
        cmocka_unit_test(waiting_requests_are_handed_over),
    };
    return cmocka_run_group_tests(plain, NULL, NULL) + cmocka_run_group_tests(echo, echo_up, fx_down) +
           cmocka_run_group_tests(crowd, crowd_up, fx_down);
}
