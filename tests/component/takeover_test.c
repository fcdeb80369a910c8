/* Many clients and few workers: WebSocket upgrades, crowds that are silent, slow or idle, limits, and the life cycle.
 */
#include "http_fixture.h"

#include <sys/resource.h>

#include "base/metrics.h"

#define UPGRADE                                                                                                        \
    "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"                           \
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"

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

/* ---- crowds ---- */

static int crowd_up(void **state) {
    struct rlimit lim;
    getrlimit(RLIMIT_NOFILE, &lim);
    lim.rlim_cur = lim.rlim_max < 16384 ? lim.rlim_max : 16384;
    setrlimit(RLIMIT_NOFILE, &lim);
    fixture *f = *state = fx_prepare();
    f->cfg.http_workers = 4;
    f->cfg.keepalive = 600000;
    f->cfg.header_timeout = 600000; /* nothing ends them */
    fx_start(f);
    return 0;
}

enum { CROWD = 1000 };

static void disperse(const fixture *f, const int *fds, int n) {
    for (int i = 0; i < n; i++) close(fds[i]);
    WAIT_FOR(atomic_load(&f->t.server->open) == 0);
}

static void serves(const fixture *f) {
    assert_int_equal(ask(f, "GET /healthz HTTP/1.1\r\n" H "\r\n", NULL), 200);
    assert_int_equal(ask(f, "POST /now?exec HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}", "exec"), 200);
}

/* X141: who has begun to speak and does not go on, within the head or within a body, keeps nobody waiting. */
static void a_crowd_that_stops_anywhere_does_not_stop_the_service(void **state) {
    static const char *const beginnings[] = {"",
                                             "G",
                                             "GET /api/ping HTTP/1.1\r\n" H "X: ",
                                             "POST /echo HTTP/1.1\r\n" H "Content-Length: 100\r\n\r\n{",
                                             "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n5\r\n{",
                                             "PUT /raw HTTP/1.1\r\n" H "Content-Length: 100\r\n\r\nx"};
    fixture *f = *state;
    static int fds[CROWD];
    for (int i = 0; i < CROWD; i++) {
        fds[i] = dial(f);
        put(fds[i], beginnings[(size_t)i % CP_COUNT(beginnings)]);
    }
    serves(f);
    WAIT_FOR(atomic_load(&f->t.server->open) == CROWD);
    assert_int_equal(seen_calls, 1); /* healthz */
    disperse(f, fds, CROWD);
}

static void an_idle_crowd_is_kept_and_does_not_stop_the_service(void **state) {
    fixture *f = *state;
    static int fds[CROWD];
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < CROWD; i++) {
            if (round == 0) fds[i] = dial(f);
            put(fds[i], "GET /api/ping HTTP/1.1\r\n" H "\r\n");
            response r = get(fds[i]);
            assert_true(r.status == 200 && !r.closes);
            free_response(&r);
        }
    serves(f);
    disperse(f, fds, CROWD);
}

/* Each holds its reply, and nobody else. */
static void slow_readers_do_not_stop_the_service(void **state) {
    fixture *f = *state;
    enum { N = 20 };
    int fds[N];
    for (int i = 0; i < N; i++) {
        fds[i] = dial(f);
        put(fds[i], "GET /big HTTP/1.1\r\n" H "\r\n");
    }
    WAIT_FOR(clients_in(f, CP_CLIENT_SEND) == N);
    serves(f);
    for (int i = 0; i < N; i++) {
        response r = get(fds[i]);
        assert_true(r.complete && r.body.n == BIG);
        free_response(&r);
    }
    disperse(f, fds, N);
}

/* Handlers that block, more than there are workers: the rest of the service does not notice. */
static void blocked_handlers_do_not_stop_the_service(void **state) {
    fixture *f = *state;
    enum { N = 12 };
    int fds[N], gate[2];
    assert_int_equal(pipe(gate), 0);
    blocked_on = gate[0];
    for (int i = 0; i < N; i++) {
        fds[i] = dial(f);
        put(fds[i], "GET /blocks HTTP/1.1\r\n" H "\r\n");
    }
    WAIT_FOR(seen_calls == N);
    seen_calls = 0;
    for (int i = 0; i < 20; i++) serves(f);
    close(gate[1]); /* all see the end */
    for (int i = 0; i < N; i++) {
        response r = get(fds[i]);
        assert_int_equal(r.status, 200);
        free_response(&r);
    }
    close(gate[0]);
    disperse(f, fds, N);
}

/* A large raw body is read on a side thread; when all are taken, who keeps them waiting has to go. */
static void a_crowd_of_slow_uploads_is_cut(void **state) {
    fixture *f = *state;
    enum { N = 40 };
    int fds[N];
    for (int i = 0; i < N; i++) {
        fds[i] = dial(f);
        put(fds[i], "PUT /raw HTTP/1.1\r\n" H "Content-Length: 1000000\r\n\r\nx");
    }
    serves(f);
    cp_buf b = {0};
    cp_buf_addf(&b, "PUT /raw HTTP/1.1\r\n" H "Content-Length: 1000000\r\n\r\n");
    for (int i = 0; i < 1000000; i++) cp_buf_addc(&b, 'x');
    assert_int_equal(ask(f, cp_buf_z(&b), "\"bytes\":1000000"), 200);
    cp_buf_free(&b);
    disperse(f, fds, N);
}

/* Fifty times as many waiting requests as workers: each gets its answer. */
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

static void waiting_requests_hold_no_worker(void **state) {
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

/* Both by its address and, since "::" takes IPv4 too, by an IPv4 one. */
static void ipv6_is_served(void **state) {
    (void)state;
    fixture *f = fx_prepare();
    static char any[] = "[::]";
    f->cfg.host = any;
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0) { /* a kernel without IPv6 */
        if (fd >= 0) close(fd);
        free(f);
        skip();
    }
    fx_start(f);
    close(fd);
    fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    a.sin6_port = htons(f->port);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    put(fd, "GET /api/ping HTTP/1.1\r\nHost: [::1]\r\n\r\n");
    response r = get(fd);
    assert_int_equal(r.status, 200);
    free_response(&r);
    close(fd);
    assert_int_equal(ask(f, "GET /api/ping HTTP/1.1\r\n" H "\r\n", NULL), 200);
    fx_stop(f);
}

static void a_bad_address_is_named(void **state) {
    (void)state;
    static const char *const hosts[] = {"", "256.1.1.1", "no such host", "::g"};
    for (size_t i = 0; i < CP_COUNT(hosts); i++) {
        fixture *f = fx_prepare();
        cp_err err = {0};
        uint16_t bound;
        char *host = cp_str_dup(cp_str_of(hosts[i]));
        f->cfg.host = host;
        f->t.config = &f->cfg;
        f->t.loop = cp_loop_new(&err);
        assert_int_equal(cp_server_open(&f->t, 0, &bound, &err), -1);
        assert_int_equal(err.code, CP_E_VALIDATION_FAILED);
        assert_non_null(strstr(err.msg, hosts[i]));
        cp_loop_free(f->t.loop);
        free(host);
        free(f);
    }
}

/* ---- limits ---- */

static int few_up(void **state) {
    fixture *f = *state = fx_prepare();
    f->cfg.max_connections = 20;
    f->cfg.source_connections = 0;
    fx_start(f);
    return 0;
}

static int dial_as(const fixture *f, const char *own) {
    struct sockaddr_in me = {.sin_family = AF_INET}, to = {.sin_family = AF_INET, .sin_port = htons(f->port)};
    inet_pton(AF_INET, own, &me.sin_addr);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&me, sizeof me), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* At the limit the longest idle one of the address that has the most makes room: another's is not touched. */
static void room_is_made_by_the_greediest(void **state) {
    fixture *f = *state;
    int fds[20], other = dial_as(f, "127.0.0.2");
    put(other, "GET /api/ping HTTP/1.1\r\n" H "\r\n");
    response r = get(other);
    free_response(&r);
    for (int i = 0; i < 19; i++) fds[i] = dial_as(f, "127.0.0.3");
    WAIT_FOR(clients_in(f, CP_CLIENT_HEAD) == 20);
    for (int i = 0; i < 10; i++) assert_int_equal(ask(f, "GET /api/ping HTTP/1.1\r\n" H "\r\n", NULL), 200);
    put(other, "GET /api/ping HTTP/1.1\r\n" H "\r\n");
    r = get(other);
    assert_int_equal(r.status, 200);
    free_response(&r);
    assert_true(at_end(fds[0]));
    for (int i = 0; i < 19; i++) close(fds[i]);
    close(other);
    WAIT_FOR(atomic_load(&f->t.server->open) == 0);
}

static void one_address_has_its_own_limit(void **state) {
    fixture *f = *state;
    f->cfg.source_connections = 3;
    int fds[3], other;
    for (int i = 0; i < 3; i++) fds[i] = dial_as(f, "127.0.0.2");
    WAIT_FOR(atomic_load(&f->t.server->open) == 3);
    int over = dial_as(f, "127.0.0.2");
    response r = get(over);
    assert_true(r.status == 429 && r.closes && r.complete && body_has(&r, "LIMIT_EXCEEDED"));
    free_response(&r);
    close(over);
    other = dial_as(f, "127.0.0.3");
    put(other, "GET /api/ping HTTP/1.1\r\n" H "\r\n");
    r = get(other);
    assert_int_equal(r.status, 200);
    free_response(&r);
    close(fds[0]);
    WAIT_FOR(atomic_load(&f->t.server->open) == 3);
    fds[0] = dial_as(f, "127.0.0.2");
    put(fds[0], "GET /api/ping HTTP/1.1\r\n" H "\r\n");
    r = get(fds[0]);
    assert_int_equal(r.status, 200);
    free_response(&r);
    for (int i = 0; i < 3; i++) close(fds[i]);
    close(other);
    f->cfg.source_connections = 0;
    WAIT_FOR(atomic_load(&f->t.server->open) == 0);
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
    WAIT_FOR(clients_in(f, CP_CLIENT_HEAD) == 2);
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
        cmocka_unit_test(ipv6_is_served),
        cmocka_unit_test(a_bad_address_is_named),
    };
    const struct CMUnitTest echo[] = {
        cmocka_unit_test_setup(upgrades_hold_no_worker, fx_again),
        cmocka_unit_test_setup(connections_are_limited, fx_again),
        cmocka_unit_test_setup(bad_upgrades, fx_again),
        cmocka_unit_test_setup(a_port_in_use_is_named, fx_again),
        cmocka_unit_test_setup(draining_refuses_connections_and_finishes_requests, fx_again),
    };
    const struct CMUnitTest few[] = {
        cmocka_unit_test_setup(room_is_made_by_the_greediest, fx_again),
        cmocka_unit_test_setup(one_address_has_its_own_limit, fx_again),
    };
    const struct CMUnitTest crowd[] = {
        cmocka_unit_test_setup(a_crowd_that_stops_anywhere_does_not_stop_the_service, fx_again),
        cmocka_unit_test_setup(an_idle_crowd_is_kept_and_does_not_stop_the_service, fx_again),
        cmocka_unit_test_setup(slow_readers_do_not_stop_the_service, fx_again),
        cmocka_unit_test_setup(blocked_handlers_do_not_stop_the_service, fx_again),
        cmocka_unit_test_setup(a_crowd_of_slow_uploads_is_cut, fx_again),
        cmocka_unit_test_setup(waiting_requests_hold_no_worker, fx_again),
    };
    return cmocka_run_group_tests(plain, NULL, NULL) + cmocka_run_group_tests(echo, echo_up, fx_down) +
           cmocka_run_group_tests(few, few_up, fx_down) + cmocka_run_group_tests(crowd, crowd_up, fx_down);
}
