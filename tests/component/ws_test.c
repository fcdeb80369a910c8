/* The life of a WebSocket connection: codec errors, close handshake, liveness, slow peers (design.md section 3). */
#include "ws_harness.h"

#include "transport/ws_impl.h"

const cp_route test_routes[] = {{CP_GET, "/none", CP_R_INLINE, "none", NULL, NULL, NULL}};
const size_t test_nroutes = 1;

/* ---- an endpoint that notes what happens to it ---- */

static struct {
    unsigned messages, closed, bytes;
    uint16_t code;
    int refuse;
    bool busy, pause_each;
    cp_ws *ws;
} noted;

static int note_open(cp_ws *ws) {
    noted.ws = ws;
    return noted.refuse;
}
static void note_message(cp_ws *ws, bool binary, char *p, size_t n) {
    (void)binary, (void)p;
    noted.messages++;
    noted.bytes += (unsigned)n;
    if (noted.pause_each) cp_ws_pause(ws, true);
}
static void note_close(cp_ws *ws, uint16_t code) {
    (void)ws;
    noted.closed++;
    noted.code = code;
}
static bool note_busy(cp_ws *ws) {
    (void)ws;
    return noted.busy;
}
static const cp_ws_endpoint note = {
    .name = "note", .open = note_open, .message = note_message, .close = note_close, .busy = note_busy};

static int setup(void **state) {
    memset(&noted, 0, sizeof noted);
    *state = harness_new();
    return 0;
}

static int teardown(void **state) {
    harness_free(*state);
    assert_int_equal(cp_metric_values[CP_M_WEBSOCKETS], 0);
    assert_int_equal(cp_metric_values[CP_M_CONNECTIONS], 0);
    return 0;
}

static void echoes(void **state) {
    client *c = client_new(*state, &cp_ws_echo);
    static const size_t sizes[] = {0, 1, 125, 126, 65535, 65536, 1 << 20};
    cp_autobuf cp_buf b = {0};
    for (size_t i = 0; i < (1 << 20); i++) cp_buf_addc(&b, (char)(i * 7));
    for (size_t i = 0; i < CP_COUNT(sizes); i++) {
        client_frame(c, CP_OP_BINARY, true, b.p, sizes[i]);
        cp_frame_event ev = client_next(c);
        assert_int_equal(ev.kind, CP_FRAME_MESSAGE);
        assert_int_equal(ev.opcode, CP_OP_BINARY);
        assert_int_equal(ev.payload.n, sizes[i]);
        if (sizes[i]) assert_memory_equal(ev.payload.p, b.p, sizes[i]);
    }
    client_frame(c, CP_OP_TEXT, false, "fr", 2);
    client_frame(c, CP_OP_PING, true, "p", 1);
    client_frame(c, CP_OP_CONT, true, "ag", 2);
    assert_int_equal(client_next(c).kind, CP_FRAME_PONG);
    expect_message(c, "frag");
    client_free(c);
}

static void peer_closes(void **state) {
    harness *h = *state;
    client *c = client_new(h, &note);
    client_text(c, "last");
    client_frame(c, CP_OP_CLOSE, true, "\x0f\xa1go", 4); /* 4001 */
    client_text(c, "too late");
    expect_close(c, 4001);
    expect_end(c);
    assert_int_equal(noted.messages, 1);
    assert_int_equal(noted.closed, 1);
    assert_int_equal(noted.code, 4001);
    client_free(c);
    WAIT_FOR(h, h->t.nconns == 0);
}

static void we_close(void **state) {
    harness *h = *state;
    client *c = client_new(h, &note);
    noted.busy = true; /* something is still to be sent */
    cp_ws_close(noted.ws, CP_CLOSE_POLICY, "why not");
    assert_false(cp_ws_open(noted.ws));
    client_text(c, "ignored");
    settle(h);
    client_read(c);
    assert_int_equal(c->got.n, 0);
    cp_ws_send(noted.ws, CP_OP_TEXT, "rest", 4);
    noted.busy = false;
    expect_message(c, "rest");
    cp_frame_event ev = client_next(c);
    assert_int_equal(ev.kind, CP_FRAME_CLOSE);
    assert_int_equal(ev.code, CP_CLOSE_POLICY);
    assert_int_equal(ev.payload.n, 7);
    assert_int_equal(noted.closed, 1);
    assert_int_equal(noted.messages, 0);
    settle(h);
    assert_int_equal(h->t.nconns, 1); /* the peer's close is awaited */
    client_frame(c, CP_OP_CLOSE, true, "\x03\xf0", 2);
    expect_end(c);
    client_free(c);
    WAIT_FOR(h, h->t.nconns == 0);
}

static void close_is_not_awaited_for_ever(void **state) {
    harness *h = *state;
    client *c = client_new(h, &note);
    cp_ws_close(noted.ws, CP_CLOSE_NORMAL, "");
    expect_close(c, CP_CLOSE_NORMAL);
    WAIT_FOR(h, h->t.nconns == 0); /* though the client says nothing */
    client_free(c);
}

static void faults_have_their_codes(void **state) {
    harness *h = *state;
    static const struct {
        const char *bytes;
        size_t n;
        unsigned code;
    } cases[] = {
        {"\x81\x02hi", 4, CP_CLOSE_PROTOCOL},                 /* unmasked */
        {"\xc1\x80\0\0\0\0", 6, CP_CLOSE_PROTOCOL},           /* RSV1 */
        {"\x83\x80\0\0\0\0", 6, CP_CLOSE_PROTOCOL},           /* opcode 3 */
        {"\x81\x81\0\0\0\0\xff", 7, CP_CLOSE_BAD_DATA},       /* not UTF-8 */
        {"\x88\x81\0\0\0\0\x03", 7, CP_CLOSE_PROTOCOL},       /* close of one byte */
        {"\x82\xff\0\0\0\0\x40\0\0\0", 10, CP_CLOSE_TOO_BIG}, /* claims 1 GiB */
    };
    for (size_t i = 0; i < CP_COUNT(cases); i++) {
        client *c = client_new(h, &note);
        client_write(c, cases[i].bytes, cases[i].n);
        expect_close(c, cases[i].code);
        expect_end(c);
        client_free(c);
    }
    assert_int_equal(noted.messages, 0);
    WAIT_FOR(h, h->t.nconns == 0);
}

static void endpoint_refuses(void **state) {
    harness *h = *state;
    noted.refuse = CP_CLOSE_GOING_AWAY;
    client *c = client_new(h, &note);
    expect_close(c, CP_CLOSE_GOING_AWAY);
    assert_int_equal(noted.closed, 0);
    client_free(c);
    WAIT_FOR(h, h->t.nconns == 0);
}

static void loss_without_close(void **state) {
    harness *h = *state;
    client *c = client_new(h, &note);
    client_free(c);
    WAIT_FOR(h, h->t.nconns == 0);
    assert_int_equal(noted.closed, 1);
    assert_int_equal(noted.code, 1006);
}

/* B093: a peer that answers no ping is gone; one that answers stays. */
static void silent_peer_is_dead(void **state) {
    harness *h = *state;
    h->config.ping_interval = 60;
    client *dead = client_new(h, &note);
    WAIT_FOR(h, h->t.nconns == 0);
    assert_int_equal(noted.code, 1006);
    unsigned pings = 0;
    while (client_next(dead).kind == CP_FRAME_PING) pings++;
    assert_int_equal(pings, 2);
    client_free(dead);

    client *alive = client_new(h, &note);
    for (pings = 0; pings < 8; pings++) {
        assert_int_equal(client_next(alive).kind, CP_FRAME_PING);
        client_frame(alive, CP_OP_PONG, true, "", 0);
    }
    assert_int_equal(h->t.nconns, 1);
    client_free(alive);
}

/* B090: any byte is life, be it of a message that is not whole. */
static void slow_sender_is_alive(void **state) {
    harness *h = *state;
    h->config.ping_interval = 60;
    client *c = client_new(h, &note);
    client_write(c, "\x82\xfe\x01\x00\0\0\0\0", 8);
    for (unsigned pings = 0, sent = 0; sent < 256;) {
        if (pings < 8 && client_next(c).kind == CP_FRAME_PING) pings++;
        unsigned n = pings < 8 ? 1 : 256 - sent;
        char zero[256] = {0};
        client_write(c, zero, n);
        sent += n;
    }
    WAIT_FOR(h, noted.messages == 1);
    assert_int_equal(noted.bytes, 256);
    client_free(c);
}

/* While output is blocked the peer is slow: no ping counts, and the stall timeout ends it. */
static void stalled_peer(void **state) {
    harness *h = *state;
    h->config.ping_interval = 50;
    h->config.stall_timeout = 400;
    client *c = client_new(h, &note);
    cp_autobuf cp_buf big = {0};
    cp_buf_reserve(&big, 4 << 20);
    memset(big.p, 'x', 4 << 20);
    uint64_t begin = cp_loop_now(h->t.loop);
    cp_ws_send(noted.ws, CP_OP_BINARY, big.p, 4 << 20);
    WAIT_FOR(h, noted.closed);
    assert_int_equal(noted.code, CP_CLOSE_POLICY);
    assert_true(cp_loop_now(h->t.loop) - begin >= 400); /* not by the pings, which would be 100 ms */
    expect_close(c, CP_CLOSE_POLICY);                   /* it reads after all: the message, then the reason */
    client_free(c);
    WAIT_FOR(h, h->t.nconns == 0);
}

/* Order holds over pauses, also between messages that came together. */
static void pause_between_messages(void **state) {
    harness *h = *state;
    noted.pause_each = true;
    client *c = client_new(h, &note);
    cp_autobuf cp_buf all = {0};
    uint8_t mask[4] = {1, 2, 3, 4};
    for (int i = 0; i < 100; i++) cp_frame_put(&all, CP_OP_TEXT, true, "abc", 3, mask);
    client_write(c, all.p, all.n);
    for (unsigned i = 1; i <= 100; i++) {
        WAIT_FOR(h, noted.messages == i);
        settle(h);
        assert_int_equal(noted.messages, i);
        cp_ws_pause(noted.ws, false);
    }
    client_free(c);
}

/* Above its high-water mark the outbox stops the reading; below the low one it goes on. */
static void full_outbox_stops_reading(void **state) {
    harness *h = *state;
    client *c = client_new(h, &cp_ws_echo);
    static char block[60000];
    cp_autobuf cp_buf frame = {0};
    uint8_t mask[4] = {1, 2, 3, 4};
    cp_frame_put(&frame, CP_OP_BINARY, true, block, sizeof block, mask);
    size_t sent = 0, messages = 0;
    for (int quiet = 0; quiet < 50;) { /* whole frames as long as the server takes them */
        size_t at = sent % frame.n;
        ssize_t n = send(c->fd, frame.p + at, frame.n - at, MSG_NOSIGNAL);
        if (n > 0) sent += (size_t)n;
        quiet = n > 0 ? 0 : quiet + 1;
        cp_loop_once(h->t.loop, 1);
        if (sent > 64 << 20) fail_msg("the server reads without end");
    }
    assert_in_range(cp_outbox_queued(cp_ws_outbox(h->t.ws_head)), CP_OUTBOX_HIGH, CP_OUTBOX_HIGH + 2 * sizeof block);
    size_t rest = sent % frame.n;
    if (rest) { /* reading on makes room for the rest of the frame */
        while (rest < frame.n) {
            client_read(c);
            ssize_t n = send(c->fd, frame.p + rest, frame.n - rest, MSG_NOSIGNAL);
            if (n > 0) rest += (size_t)n;
            cp_loop_once(h->t.loop, 1);
        }
        sent += frame.n - sent % frame.n;
    }
    while (messages < sent / frame.n) {
        cp_frame_event ev = client_next(c);
        assert_int_equal(ev.kind, CP_FRAME_MESSAGE);
        assert_int_equal(ev.payload.n, sizeof block);
        messages++;
    }
    client_free(c);
}

/* The sum of what has arrived of unfinished messages is bounded; whoever crosses the bound goes. */
static void unfinished_messages_are_bounded(void **state) {
    harness *h = *state;
    client *a = client_new(h, &note), *b = client_new(h, &note);
    cp_budget_open(6 << 20); /* unfinished messages may take the half of it */
    static char block[1 << 20];
    client_frame(a, CP_OP_BINARY, false, block, sizeof block);
    client_frame(b, CP_OP_BINARY, false, block, sizeof block);
    settle(h);
    assert_int_equal(h->t.nconns, 2);
    for (int i = 0; i < 4; i++) client_frame(b, CP_OP_CONT, false, block, sizeof block);
    expect_close(b, 1013);
    client_frame(a, CP_OP_CONT, true, block, sizeof block);
    WAIT_FOR(h, noted.messages == 1);
    assert_int_equal(noted.bytes, 2 << 20);
    client_free(a);
    client_free(b);
    WAIT_FOR(h, h->t.nconns == 0);
    assert_int_equal(cp_budget_held(CP_MEM_BODIES), 0);
    cp_budget_open(1 << 30);
}

static void set_true(void *arg) { *(bool *)arg = true; }

static void drain_cuts_at_its_deadline(void **state) {
    harness *h = *state;
    client *c = client_new(h, &note);
    noted.busy = true;
    bool done = false;
    cp_ws_drain_all(&h->t, 50, set_true, &done);
    assert_false(done);
    WAIT_FOR(h, done);
    assert_int_equal(h->t.nconns, 0);
    client_free(c);
    done = false;
    cp_ws_drain_all(&h->t, 50, set_true, &done); /* nobody is there */
    assert_false(done);
    WAIT_FOR(h, done);
}

/* An idle connection keeps no buffer. */
static void idle_connections_are_cheap(void **state) {
    harness *h = *state;
    client *c = client_new(h, &cp_ws_echo);
    client_text(c, "x");
    expect_message(c, "x");
    settle(h);
    static char block[1 << 20];
    client_frame(c, CP_OP_BINARY, false, block, sizeof block);
    client_frame(c, CP_OP_CONT, true, block, sizeof block);
    assert_int_equal(client_next(c).payload.n, 2 << 20);
    settle(h);
    cp_ws *ws = h->t.ws_head;
    assert_null(cp_ws_outbox(ws)->head);
    assert_int_equal(cp_frame_held(&ws->in), 0);
    assert_int_equal(ws->rest.cap, 0);
    client_free(c);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(echoes),
        TEST(peer_closes),
        TEST(we_close),
        TEST(close_is_not_awaited_for_ever),
        TEST(faults_have_their_codes),
        TEST(endpoint_refuses),
        TEST(loss_without_close),
        TEST(silent_peer_is_dead),
        TEST(slow_sender_is_alive),
        TEST(stalled_peer),
        TEST(pause_between_messages),
        TEST(full_outbox_stops_reading),
        TEST(unfinished_messages_are_bounded),
        TEST(drain_cuts_at_its_deadline),
        TEST(idle_connections_are_cheap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
