/* Requests reach the loop in the order in which their bytes came, whichever worker is first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/clock.h"
#include "transport/arrival.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { N = 3 };

typedef struct client {
    cp_arrival a;
    cp_task task;
    int fd[2]; /* server's, client's */
    char name;
} client;

static struct world {
    cp_loop *loop;
    cp_arrivals *q;
    client c[N];
    char ran[16];
    size_t nran;
} w;

static void run(cp_task *task) { w.ran[w.nran++] = CP_CONTAINER(task, client, task)->name; }

static int set_up(void **state) {
    cp_err err;
    (void)state;
    w = (struct world){0};
    w.loop = cp_loop_new(&err);
    w.q = cp_arrivals_new(w.loop, &err);
    assert_non_null(w.q);
    for (int i = 0; i < N; i++) {
        client *c = &w.c[i];
        c->name = (char)('a' + i);
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, c->fd), 0);
        cp_arrival_accept(w.q, &c->a);
        cp_arrival_watch(w.q, &c->a, c->fd[0]);
    }
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    for (int i = 0; i < N; i++) {
        cp_arrival_unwatch(w.q, &w.c[i].a);
        cp_arrival_pass(w.q, &w.c[i].a, true);
        close(w.c[i].fd[0]);
        close(w.c[i].fd[1]);
    }
    cp_loop_once(w.loop, 0);
    cp_arrivals_free(w.q);
    cp_loop_free(w.loop);
    return 0;
}

static void sends(int i) { assert_int_equal(write(w.c[i].fd[1], "x", 1), 1); }

/* Its worker has read the request: nothing is left in the socket. */
static void begins(int i) {
    char c;
    assert_int_equal(read(w.c[i].fd[0], &c, 1), 1);
    cp_arrival_begin(w.q, &w.c[i].a);
}

static void posts(int i) { cp_arrival_post(w.q, &w.c[i].a, &w.c[i].task, run); }

static const char *ran(void) {
    cp_loop_once(w.loop, 0);
    w.ran[w.nran] = '\0';
    return w.ran;
}

static void test_later_waits_for_earlier(void **state) {
    (void)state;
    for (int i = 0; i < N; i++) sends(i);
    begins(2), posts(2);
    begins(1), posts(1);
    assert_string_equal(ran(), "");
    begins(0), posts(0);
    assert_string_equal(ran(), "abc");
}

static void test_bytes_already_read_keep_their_place(void **state) {
    (void)state;
    sends(0), sends(1);
    char c;
    assert_int_equal(read(w.c[0].fd[0], &c, 1), 1); /* read, but its worker has not come to begin */
    begins(1), posts(1);
    assert_string_equal(ran(), "");
    cp_arrival_begin(w.q, &w.c[0].a);
    posts(0);
    assert_string_equal(ran(), "ab");
}

static void test_what_passes_is_not_waited_for(void **state) {
    (void)state;
    sends(0), sends(1);
    begins(1), posts(1);
    begins(0);
    assert_string_equal(ran(), "");
    cp_arrival_pass(w.q, &w.c[0].a, true);
    assert_string_equal(ran(), "b");
}

static void test_body_opens_no_turn(void **state) {
    (void)state;
    sends(0);
    begins(0);
    cp_arrival_pass(w.q, &w.c[0].a, false);
    sends(0); /* more of the body */
    sends(1);
    begins(1), posts(1);
    assert_string_equal(ran(), "b");
    char c;
    assert_int_equal(read(w.c[0].fd[0], &c, 1), 1);
    cp_arrival_end(w.q, &w.c[0].a);
    sends(0), sends(1);
    begins(1), posts(1);
    assert_string_equal(ran(), "b");
    begins(0), posts(0);
    assert_string_equal(ran(), "bab");
}

static void test_silent_connections_are_not_waited_for(void **state) {
    (void)state;
    sends(2);
    begins(2), posts(2);
    assert_string_equal(ran(), "c");
}

static void test_patience_ends(void **state) {
    (void)state;
    sends(0), sends(1);
    begins(1), posts(1);
    uint64_t until = cp_now_ms() + 10000;
    while (!w.nran && cp_now_ms() < until) cp_loop_once(w.loop, 1000);
    assert_string_equal(ran(), "b");
    sends(1);
    begins(1), posts(1); /* nor a second time */
    assert_string_equal(ran(), "bb");
    begins(0), posts(0);
    assert_string_equal(ran(), "bba");
}

static void test_hurry(void **state) {
    (void)state;
    sends(0), sends(1), sends(2);
    begins(1), posts(1);
    begins(2), posts(2);
    cp_arrival_hurry(w.q, &w.c[2].a);
    assert_string_equal(ran(), "c");
    cp_arrival_hurry(w.q, &w.c[2].a);
    begins(0), posts(0);
    assert_string_equal(ran(), "cab");
}

static void test_next_request_while_one_is_served(void **state) {
    (void)state;
    sends(0);
    begins(0), posts(0);
    sends(0), sends(1); /* pipelined, then another client's */
    begins(1), posts(1);
    assert_string_equal(ran(), "a");
    begins(0), posts(0);
    assert_string_equal(ran(), "aab");
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(test_later_waits_for_earlier),
        T(test_bytes_already_read_keep_their_place),
        T(test_what_passes_is_not_waited_for),
        T(test_body_opens_no_turn),
        T(test_silent_connections_are_not_waited_for),
        T(test_patience_ends),
        T(test_hurry),
        T(test_next_request_while_one_is_served),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
