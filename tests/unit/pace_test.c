/* The pace against a simulated line and peer: how far behind the peer is let fall, and how much of the line is used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "transport/pace.h"

enum { STEP = 64 * 1024, TICK_US = 100, PIECE = 16 * 1024, PROBES = 1 << 16 };

/* Bytes and probes on their way; the peer reads them in order at its rate, and its answers take as long back. */
typedef struct line {
    pace a;
    uint64_t now_us, delay_us;
    double rate, line_rate; /* bytes in a tick: that the peer reads, that the line takes */
    double may_read, may_send;
    uint64_t arrived[1 << 14]; /* sent at each tick, ring of the delay */
    uint64_t there, read;      /* bytes that have come to the peer; that it has read */
    struct {
        uint64_t at; /* in the data */
        uint64_t answered_us;
        char payload[PACE_PROBE];
    } probes[PROBES];
    size_t first, unread, next; /* of probes: not back yet, not read yet, free */
    uint64_t furthest;          /* behind that the peer has been */
    bool mute;
} line;

static void tick(line *l) {
    size_t slots = l->delay_us / TICK_US + 1, slot = l->now_us / TICK_US % slots;
    l->now_us += TICK_US;
    l->there += l->arrived[slot];
    l->arrived[slot] = 0;
    for (l->may_read += l->rate; l->may_read >= 1 && l->read < l->there; l->read++, l->may_read--) {
        uint64_t n = l->there - l->read; /* whole runs rather than bytes */
        if (l->unread != l->next && l->probes[l->unread].at - l->read < n) n = l->probes[l->unread].at - l->read;
        if (n > (uint64_t)l->may_read) n = (uint64_t)l->may_read;
        if (n > 1) l->read += n - 1, l->may_read -= (double)(n - 1);
        while (l->unread != l->next && l->probes[l->unread].at <= l->read + 1)
            l->probes[l->unread++].answered_us = l->now_us + l->delay_us;
    }
    if (l->read == l->there) l->may_read = 0;
    for (; l->first != l->unread && l->probes[l->first].answered_us <= l->now_us; l->first++)
        if (!l->mute) pace_answered(&l->a, (cp_str){l->probes[l->first].payload, PACE_PROBE}, l->now_us);
    for (l->may_send += l->line_rate; l->may_send >= PIECE; l->may_send -= PIECE) {
        if (pace_full(&l->a, 0)) {
            l->may_send = 0;
            break;
        }
        pace_sent(&l->a, PIECE);
        l->arrived[slot] += PIECE;
        if (pace_due(&l->a, STEP)) {
            assert_true(l->next < PROBES);
            l->probes[l->next].at = l->a.sent;
            pace_probe(&l->a, l->now_us, l->probes[l->next++].payload);
        }
    }
    if (l->there - l->read > l->furthest) l->furthest = l->there - l->read;
}

static line *line_new(uint64_t delay_us, double bytes_per_second) {
    line *l = cp_new(line);
    l->now_us = 1000000;
    l->delay_us = delay_us;
    l->rate = bytes_per_second * TICK_US / 1e6;
    l->line_rate = 2 * l->rate + PIECE / 100.0;
    return l;
}

static uint64_t run(line *l, uint64_t ms) {
    uint64_t before = l->read;
    for (uint64_t i = 0; i < ms * 1000 / TICK_US; i++) tick(l);
    return l->read - before;
}

static void a_near_peer_is_never_far_behind(void **state) {
    (void)state;
    static const double rates[] = {1e9, 1e8, 2e7};
    for (size_t i = 0; i < CP_COUNT(rates); i++) {
        line *l = line_new(0, rates[i]);
        run(l, 200); /* until the first answer it may be far behind */
        l->furthest = 0;
        double got = (double)run(l, 500);
        assert_true(got > 0.95 * rates[i] / 2);
        assert_true(l->furthest < 2 * PACE_QUEUE);
        free(l);
    }
}

static void a_long_line_is_filled(void **state) {
    (void)state;
    static const double rates[] = {1e8, 1e7, 1e6};
    for (size_t i = 0; i < CP_COUNT(rates); i++) {
        line *l = line_new(50000, rates[i]); /* a round trip of 100 ms */
        run(l, 4000);
        l->furthest = 0;
        double got = (double)run(l, 2000);
        assert_true(got > 0.95 * rates[i] * 2);
        assert_true(l->furthest < 2 * PACE_QUEUE + (uint64_t)(rates[i] / 10)); /* and no more than a round trip waits */
        free(l);
    }
}

static void a_peer_that_grows_slow_is_followed(void **state) {
    (void)state;
    line *l = line_new(0, 1e9);
    run(l, 100);
    l->rate /= 100;
    run(l, 500);
    l->furthest = 0;
    run(l, 500);
    assert_true(l->furthest < 2 * PACE_QUEUE);
    free(l);
}

static void a_peer_that_grows_fast_is_followed(void **state) {
    (void)state;
    line *l = line_new(50000, 1e6);
    run(l, 3000);
    l->rate *= 100;
    l->line_rate *= 100;
    run(l, 4000);
    assert_true((double)run(l, 1000) > 0.95 * 1e8);
    free(l);
}

static void who_never_answers_is_not_limited(void **state) {
    (void)state;
    pace a = {0};
    pace_sent(&a, (size_t)1 << 40);
    assert_false(pace_full(&a, 0));
}

static void who_stops_answering_is_not_held_up_for_long(void **state) {
    (void)state;
    line *l = line_new(0, 1e9);
    run(l, 100);
    l->mute = true;
    run(l, 10);
    assert_true(pace_full(&l->a, 0));
    uint64_t before = l->a.sent;
    pace_stuck(&l->a); /* notes what was read */
    for (int i = 0; i < 12; i++) {
        assert_true(pace_stuck(&l->a));
        assert_false(pace_full(&l->a, 0));
        run(l, 250);
    }
    assert_true(l->a.sent - before >= (uint64_t)PACE_QUEUE << 11);
    l->mute = false; /* the next answer makes all as it was */
    run(l, 3000);
    assert_int_equal(l->a.grant, 0);
    l->furthest = 0;
    run(l, 100);
    assert_true(l->furthest < 2 * PACE_QUEUE);
    free(l);
}

static void an_answer_that_is_none_of_ours_changes_nothing(void **state) {
    (void)state;
    pace a = {0};
    char probe[PACE_PROBE], old[PACE_PROBE];
    pace_sent(&a, 100000);
    pace_probe(&a, 1000, old);
    pace_sent(&a, 100000);
    pace_probe(&a, 2000, probe);
    pace_answered(&a, (cp_str){probe, PACE_PROBE}, 3000);
    assert_int_equal(a.read, 200000);
    pace before = a;
    uint64_t forged[3] = {UINT64_MAX, 0, 0}; /* more than was sent */
    pace_answered(&a, (cp_str){(char *)forged, sizeof forged}, 4000);
    forged[0] = 200001; /* more than was asked about */
    pace_sent(&a, 50000), before.sent += 50000;
    pace_answered(&a, (cp_str){(char *)forged, sizeof forged}, 4000);
    pace_answered(&a, (cp_str){old, PACE_PROBE}, 4000);       /* less than is known */
    pace_answered(&a, (cp_str){probe, PACE_PROBE}, 4000);     /* twice */
    pace_answered(&a, (cp_str){probe, PACE_PROBE - 1}, 4000); /* cut */
    pace_answered(&a, (cp_str){0}, 4000);                     /* of an ordinary ping */
    assert_memory_equal(&a, &before, sizeof a);
    pace_probe(&a, 5000, probe);
    pace_answered(&a, (cp_str){probe, PACE_PROBE}, 4999); /* from the future */
    assert_int_equal(a.read, 200000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_near_peer_is_never_far_behind),
        cmocka_unit_test(a_long_line_is_filled),
        cmocka_unit_test(a_peer_that_grows_slow_is_followed),
        cmocka_unit_test(a_peer_that_grows_fast_is_followed),
        cmocka_unit_test(who_never_answers_is_not_limited),
        cmocka_unit_test(who_stops_answering_is_not_held_up_for_long),
        cmocka_unit_test(an_answer_that_is_none_of_ours_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
