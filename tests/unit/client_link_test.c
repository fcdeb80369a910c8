/* One WebSocket of the client library, on a loop of the test's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "transport/client/client_impl.h"

#include <cmocka.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

/* The kernel makes the connections that nobody accepts. */
static int listen_on_loopback(uint16_t *port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, n), 0);
    assert_int_equal(listen(fd, 64), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

typedef struct closer {
    cp_deferred d;
    link_conn *l;
    int after; /* looks of libcurl */
    bool closed;
} closer;

/* Whoever still watches one of them hears of it. */
static void close_connections(int listener) {
    for (int fd; (fd = accept(listener, NULL, NULL)) >= 0;) close(fd);
}

/* Before libcurl's ends are looked for in this round. */
static void close_it(cp_deferred *d) {
    closer *c = CP_CONTAINER(d, closer, d);
    if (!c->l->pump.reap.queued || c->after-- > 0) return;
    link_close(c->l, 1000);
    c->closed = true;
}

static void t_closed_in_the_round_in_which_it_connects(void **state) {
    (void)state;
    enum { ROUNDS = 10 };
    uint16_t port;
    char url[64];
    cp_err loop_err;
    conflux_error err;
    int listener = listen_on_loopback(&port);
    snprintf(url, sizeof url, "http://127.0.0.1:%u", port);
    const conflux_options o = {.url = url, .mode = CONFLUX_WEBSOCKET};
    engine e = {.loop = cp_loop_new(&loop_err)};
    assert_int_equal(settings_init(&e.set, &o, &err), 0);
    bool connected = false;
    for (int after = 0; !connected; after++) { /* each time one look later, until it has connected before */
        closer c = {.l = link_open(&e, &err), .after = after};
        assert_non_null(c.l);
        while (!c.closed && !connected) {
            cp_loop_defer(e.loop, &c.d, close_it);
            assert_int_equal(cp_loop_once(e.loop, 10000), 0);
            if (!c.closed) connected = c.l->state == LINK_UPGRADING;
        }
        if (!c.closed) link_close(c.l, 1000);
        cp_loop_undefer(e.loop, &c.d);
        assert_int_equal(cp_loop_once(e.loop, 0), 0); /* it is freed */
        close_connections(listener);
        for (int i = 0; i < ROUNDS; i++) assert_int_equal(cp_loop_once(e.loop, 0), 0); /* nothing of it is left there */
    }
    settings_fini(&e.set);
    cp_loop_free(e.loop);
    close(listener);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(t_closed_in_the_round_in_which_it_connects)};
    curl_global_init(CURL_GLOBAL_DEFAULT);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    curl_global_cleanup();
    return rc;
}
