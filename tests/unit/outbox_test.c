/* The outbox over a socket pair: what comes out is what went in, in order, and the callbacks come when they should. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "transport/outbox.h"

typedef struct rig {
    cp_loop *loop;
    cp_io io;
    cp_outbox out;
    int fd, peer;
    unsigned rooms, errors, empties;
    size_t to_pull; /* on_room appends blocks until so much has been given */
    size_t pulled, largest;
    bool fini_in_room, gone;
} rig;

static void on_io(cp_io *io, uint32_t events) {
    rig *r = CP_CONTAINER(io, rig, io);
    if (events & EPOLLOUT) cp_outbox_writable(&r->out);
}

static void on_room(void *arg) {
    rig *r = arg;
    static char block[10000];
    r->rooms++;
    if (r->fini_in_room) {
        cp_outbox_fini(&r->out);
        r->gone = true;
        return;
    }
    while (cp_outbox_has_room(&r->out) && r->pulled < r->to_pull) {
        cp_outbox_add(&r->out, block, sizeof block);
        r->pulled += sizeof block;
        if (cp_outbox_queued(&r->out) > r->largest) r->largest = cp_outbox_queued(&r->out);
    }
}
static void on_error(void *arg) { ((rig *)arg)->errors++; }
static void on_empty(void *arg) { ((rig *)arg)->empties++; }

static int setup(void **state) {
    rig *r = cp_new(rig);
    int sv[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv), 0);
    r->fd = sv[0];
    r->peer = sv[1];
    r->loop = cp_loop_new(NULL);
    cp_io_add(r->loop, &r->io, r->fd, EPOLLIN, on_io);
    cp_outbox_init(&r->out, r->loop, &r->io, r->fd,
                   (cp_outbox_events){.arg = r, .on_room = on_room, .on_error = on_error, .on_empty = on_empty});
    *state = r;
    return 0;
}

static int teardown(void **state) {
    rig *r = *state;
    if (!r->gone) cp_outbox_fini(&r->out);
    cp_io_del(r->loop, &r->io);
    cp_close(&r->fd);
    cp_close(&r->peer);
    cp_loop_free(r->loop);
    free(r);
    return 0;
}

/* Reads what comes until `n` bytes are there. */
static void expect_bytes(rig *r, const char *want, size_t n) {
    char got[65536];
    uint64_t until = cp_now_ms() + 20000;
    while (n) {
        ssize_t k = read(r->peer, got, n < sizeof got ? n : sizeof got);
        if (k < 0) {
            assert_int_equal(errno, EAGAIN);
            assert_true(cp_now_ms() < until);
            cp_loop_once(r->loop, 5);
            continue;
        }
        assert_true(k > 0);
        if (want) {
            assert_memory_equal(got, want, (size_t)k);
            want += k;
        }
        n -= (size_t)k;
    }
}

static void everything_in_order(void **state) {
    rig *r = *state;
    cp_autobuf cp_buf want = {0};
    for (int i = 0; i < 300; i++) { /* every kind of append, of sizes around those of chunks */
        size_t n = (size_t)(i * 911) % 40000 + 1;
        cp_buf b = {0};
        for (size_t k = 0; k < n; k++) cp_buf_addc(&b, (char)(i + (int)k * 13));
        cp_buf_add(&want, b.p, b.n);
        if (i % 4 == 0) {
            cp_outbox_add(&r->out, b.p, b.n);
        } else if (i % 4 == 1) {
            cp_outbox_add_buf(&r->out, &b);
            assert_null(b.p);
        } else if (i % 4 == 2) {
            cp_buf *tail = cp_outbox_tail(&r->out, n / 2 + 1); /* and grows beyond */
            cp_buf_add(tail, b.p, b.n);
            cp_outbox_commit(&r->out);
        } else {
            cp_outbox_body *body = cp_outbox_body_new(&b, &(cp_charge){0});
            cp_outbox_add_piece(&r->out, body, 0, n / 3);
            cp_outbox_add_piece(&r->out, body, n / 3, n - n / 3);
            cp_outbox_body_release(body);
        }
        cp_buf_free(&b);
    }
    assert_int_equal(cp_outbox_queued(&r->out), want.n);
    assert_int_equal(r->rooms, 0); /* nothing runs inside an append */
    expect_bytes(r, want.p, want.n);
    while (!r->empties) cp_loop_once(r->loop, 5);
    assert_int_equal(cp_outbox_queued(&r->out), 0);
    assert_null(r->out.head);
    assert_int_equal(r->io.events, EPOLLIN);
}

static void nothing_committed_keeps_nothing(void **state) {
    rig *r = *state;
    cp_outbox_tail(&r->out, 100);
    cp_outbox_commit(&r->out);
    assert_null(r->out.head);
    assert_int_equal(cp_outbox_queued(&r->out), 0);
}

static void pulls_only_while_there_is_room(void **state) {
    rig *r = *state;
    r->to_pull = 10000000;
    cp_outbox_wake(&r->out);
    for (int i = 0; i < 50; i++) cp_loop_once(r->loop, 1); /* the peer reads nothing */
    assert_true(cp_outbox_blocked(&r->out));
    assert_int_equal(r->io.events, EPOLLIN | EPOLLOUT);
    assert_true(r->pulled < 2000000);
    assert_true(r->largest < CP_OUTBOX_LOW + 10000);
    expect_bytes(r, NULL, r->to_pull);
    while (!r->empties) cp_loop_once(r->loop, 5);
    assert_int_equal(r->pulled, r->to_pull);
}

static void stall_is_measured(void **state) {
    rig *r = *state;
    assert_int_equal(cp_outbox_stalled_ms(&r->out), 0);
    cp_buf big = {0};
    cp_buf_reserve(&big, 4 << 20);
    memset(big.p, 0, 4 << 20);
    big.n = 4 << 20;
    cp_outbox_add_buf(&r->out, &big);
    while (cp_outbox_stalled_ms(&r->out) < 30) cp_loop_once(r->loop, 5);
    expect_bytes(r, NULL, 1 << 20);
    while (cp_outbox_stalled_ms(&r->out) >= 30) cp_loop_once(r->loop, 5); /* bytes are being taken again */
}

static void broken_socket_is_told_once(void **state) {
    rig *r = *state;
    cp_close(&r->peer);
    cp_outbox_add(&r->out, "x", 1);
    while (!r->errors) cp_loop_once(r->loop, 5);
    cp_outbox_add(&r->out, "y", 1);
    for (int i = 0; i < 5; i++) cp_loop_once(r->loop, 1);
    assert_int_equal(r->errors, 1);
    assert_int_equal(cp_outbox_queued(&r->out), 0);
}

static void owner_may_end_in_a_callback(void **state) {
    rig *r = *state;
    r->fini_in_room = true;
    cp_outbox_add(&r->out, "x", 1);
    cp_loop_once(r->loop, 1);
    assert_true(r->gone);
    assert_int_equal(r->rooms, 1);
}

/* What all hold is charged; when that is much, each takes less and has less patience. */
static void memory_is_charged_and_patience_is_short_without_it(void **state) {
    rig *r = *state;
    enum { PIECE = 1 << 20 };
    cp_budget_open(4 * PIECE); /* half of it for what is unsent */
    for (int i = 0; i < 5; i++) {
        cp_buf b = {0};
        cp_buf_reserve(&b, PIECE / 2);
        b.n = b.cap;
        memset(b.p, 'p', b.n);
        cp_outbox_add_buf(&r->out, &b);
        if (i == 2) assert_int_equal(cp_outbox_stall_limit(300000), 300000);
    }
    assert_true(cp_budget_held(CP_MEM_UNSENT) > 2 * PIECE);
    assert_int_equal(cp_outbox_stall_limit(300000), CP_OUTBOX_SHORT_STALL_MS);
    assert_int_equal(cp_outbox_stall_limit(100), 100);
    assert_false(cp_outbox_has_room(&r->out));
    cp_outbox_fini(&r->out);
    assert_int_equal(cp_outbox_stall_limit(300000), 300000);
    assert_true(cp_budget_held(CP_MEM_UNSENT) <= 65536);
    cp_budget_open(1 << 30);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

/* X10: room that was asked for and not used is given back, whatever lies in front of it: ten thousand connections with
 * quiet streams behind an event that was not taken yet. */
static void room_that_is_not_used_costs_nothing(void **state) {
    rig *r = *state;
    enum { MANY = 10000, EVENT = 7000, ROOM = 16000 };
    static char event[EVENT];
    cp_outbox *all = cp_alloc(MANY * sizeof *all);
    for (int i = 0; i < MANY; i++) {
        cp_outbox_init(&all[i], r->loop, &r->io, r->fd, r->out.on);
        cp_outbox_add(&all[i], event, sizeof event);
    }
    uint64_t before = cp_budget_held(CP_MEM_UNSENT);
    for (int i = 0; i < MANY; i++) {
        for (int k = 0; k < 2; k++) {
            assert_non_null(cp_outbox_tail(&all[i], ROOM)->p);
            cp_outbox_commit(&all[i]);
        }
        assert_int_equal(cp_outbox_queued(&all[i]), EVENT);
    }
    cp_outbox_add(&all[0], event, sizeof event); /* the budget is told with bytes that are queued */
    assert_true(cp_budget_held(CP_MEM_UNSENT) < before + 256 * 1024);
    for (int i = 0; i < MANY; i++) cp_outbox_fini(&all[i]);
    free(all);
}

static void what_follows_room_that_was_not_used_is_in_order(void **state) {
    rig *r = *state;
    static char block[12000], want[2 * sizeof block];
    memset(block, 'x', sizeof block);
    memset(want, 'x', sizeof want);
    cp_outbox_add(&r->out, block, sizeof block);
    cp_outbox_tail(&r->out, 90 * 1024);
    cp_outbox_commit(&r->out);
    cp_outbox_add(&r->out, block, sizeof block);
    assert_int_equal(cp_outbox_queued(&r->out), sizeof want);
    expect_bytes(r, want, sizeof want);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(everything_in_order),
        TEST(nothing_committed_keeps_nothing),
        TEST(pulls_only_while_there_is_room),
        TEST(stall_is_measured),
        TEST(broken_socket_is_told_once),
        TEST(owner_may_end_in_a_callback),
        TEST(room_that_is_not_used_costs_nothing),
        TEST(what_follows_room_that_was_not_used_is_in_order),
        TEST(memory_is_charged_and_patience_is_short_without_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
