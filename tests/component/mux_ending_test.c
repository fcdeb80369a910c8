/* X11: what ends ten thousand requests of a connection at once is done in rounds of the loop, so that others have their
 * turn; and each ends exactly once, whatever becomes of the connection meanwhile. */
#include "component/mux_fixture.h"

enum { MANY = 12, MORE = 200 };

static void hold_some(fixture *x, unsigned n, const char *more) {
    held.slow = true;
    for (unsigned i = 0; i < n; i++)
        client_textf(x->c, "{\"type\":\"request\",\"id\":%u,\"method\":\"POST\",\"path\":\"/hold\"%s}", i, more);
    WAIT_FOR(x->h, held.n == n);
}
static void hold_many(fixture *x, const char *more) { hold_some(x, MANY, more); }

/* At most `most` of n are ended in a round. */
static void expect_rounds(harness *h, unsigned n, unsigned most) {
    for (unsigned before = held.cancelled; held.cancelled < n; before = held.cancelled) {
        assert_int_equal(cp_loop_once(h->t.loop, 1000), 0);
        assert_true(held.cancelled <= before + most);
    }
}

static void the_requests_of_a_lost_connection_end_in_rounds(void **state) {
    fixture *x = *state;
    hold_many(x, ",\"onDisconnect\":\"kill\"");
    cp_close(&x->c->fd);
    WAIT_FOR(x->h, held.cancelled);
    assert_int_equal(x->h->t.nconns, 0); /* the connection itself is gone at once */
    assert_true(cp_mux_ending(&x->h->t));
    expect_rounds(x->h, MANY, 1);
    assert_int_equal(held.why, CP_END_DISCONNECTED);
    assert_true(held.kill);
    WAIT_FOR(x->h, !cp_mux_ending(&x->h->t));
    assert_int_equal(cp_metric_values[CP_M_PENDING], 0);
}

/* Handlers that have not been told yet do as before: answer, stream, take input, say that input was taken. */
static void who_is_not_told_yet_may_answer(void **state) {
    fixture *x = *state;
    hold_many(x, "");
    client_text(x->c, "{\"type\":\"request\",\"id\":\"s\",\"method\":\"POST\",\"path\":\"/stream?open=1\"}");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":0,\"data\":\"x\",\"ack\":true}");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":11,\"data\":\"x\",\"ack\":true}");
    WAIT_FOR(x->h, feeders.n == 1 && held.nacks == 2);
    settle(x->h);
    cp_close(&x->c->fd);
    WAIT_FOR(x->h, held.cancelled);
    unsigned answered = 0;
    for (unsigned i = 0; i < MANY; i++) {
        if (!held.reply[i] || answered == MANY / 2) continue;
        answer(held.reply[i], "1");
        held.reply[i] = NULL;
        answered++;
    }
    if (!feeders.f[0]->closed) cp_source_wake(&feeders.f[0]->src);
    for (unsigned i = 0; i < 2; i++) held.acks[i]->taken(held.acks[i]);
    WAIT_FOR(x->h, !cp_mux_ending(&x->h->t));
    assert_int_equal(answered + held.cancelled, MANY);
    assert_true(feeders.f[0]->closed);
    assert_int_equal(feeders.f[0]->why, CP_END_DISCONNECTED);
}

static void set_true(void *arg) { *(bool *)arg = true; }

/* It sees to those together that the table of requests has in one place: a few, whatever their number. */
static void a_drain_ends_requests_in_rounds(void **state) {
    fixture *x = *state;
    enum { TOGETHER = 20 };
    hold_some(x, MORE, "");
    bool done = false;
    cp_ws_drain_all(&x->h->t, PATIENCE_MS, set_true, &done);
    assert_true(held.cancelled <= TOGETHER);
    expect_rounds(x->h, MORE, TOGETHER);
    for (int i = 0; i < MORE; i++) expect_start(x->c, "{\"type\":\"response\",\"id\":");
    assert_int_equal(held.why, CP_END_SHUTDOWN);
    free(client_message(x->c)); /* the close frame: NULL */
    cp_close(&x->c->fd);
    WAIT_FOR(x->h, done);
}

/* The drain is over only when the handlers know, also of connections that went on the way. */
static void a_drain_waits_for_those_that_have_gone(void **state) {
    fixture *x = *state;
    hold_many(x, "");
    bool done = false;
    cp_ws_drain_all(&x->h->t, PATIENCE_MS, set_true, &done);
    cp_close(&x->c->fd);
    WAIT_FOR(x->h, done);
    assert_int_equal(held.cancelled, MANY);
    assert_false(cp_mux_ending(&x->h->t));
}

static void a_drain_that_has_no_time_left_ends_all(void **state) {
    fixture *x = *state;
    hold_many(x, "");
    bool done = false;
    cp_ws_drain_all(&x->h->t, 0, set_true, &done);
    WAIT_FOR(x->h, done);
    assert_int_equal(held.cancelled, MANY);
}

static void deadlines_are_seen_to_in_rounds(void **state) {
    fixture *x = *state;
    hold_many(x, ",\"deadlineMs\":300");
    expect_rounds(x->h, MANY, 1);
    for (int i = 0; i < MANY; i++) {
        cp_autofree char *got = client_message(x->c);
        assert_non_null(strstr(got, "\"code\":\"DEADLINE_EXCEEDED\""));
    }
    assert_int_equal(held.why, CP_END_DEADLINE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(the_requests_of_a_lost_connection_end_in_rounds),
        TEST(who_is_not_told_yet_may_answer),
        TEST(a_drain_ends_requests_in_rounds),
        TEST(a_drain_waits_for_those_that_have_gone),
        TEST(a_drain_that_has_no_time_left_ends_all),
        TEST(deadlines_are_seen_to_in_rounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
