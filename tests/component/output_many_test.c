/* X11: tens of thousands of readers of one log. What one of them does costs the same however many there are, and what
 * is said to all is said in rounds of the loop. */
#include "component/output_fixture.h"
#include "component/touched.h"

enum { MANY = 2000 };

/* Of the others: two neighbours in the list, the first and the last, and at each level of the heap two on the way up
 * and two on the way down. */
enum { FEW = 4 + 4 * 11 };

static size_t told;
static bool takes_a_millisecond; /* whoever is told */
static void on_wake(cp_cursor *c) {
    uint64_t until = cp_now_us() + 1000;
    (void)c;
    told++;
    while (takes_a_millisecond && cp_now_us() < until) continue;
}

static cp_output *open_many(int *w) {
    cp_output *o = open_kind(CP_OUT_MEMORY, UINT64_MAX, false, w);
    touched_open(MANY);
    told = 0;
    for (size_t i = 0; i < MANY; i++) cp_cursor_open(touched_at(i), o, 0, true, on_wake);
    return o;
}

static void close_many(cp_output *o, int w) {
    for (size_t i = 0; i < MANY; i++) cp_cursor_close(touched_at(i));
    touched_close();
    close(w);
    until(t.ended);
    cp_output_free(o);
}

#define expect_few(what)                                                                                               \
    do {                                                                                                               \
        touched_arm();                                                                                                 \
        what;                                                                                                          \
        assert_true(touched_count() <= FEW);                                                                           \
    } while (0)

static void one_reader_looks_at_few_others(void **state) {
    (void)state;
    int w;
    cp_output *o = open_many(&w);
    feed(w, 0, 1000);
    until(told == MANY);
    for (size_t i = 0; i < 100; i++) { /* one after the other, as they take it from their sockets */
        cp_cursor *c = touched_at(i * 7919 % MANY);
        expect_few(cp_cursor_advance(c, 500 + i));
        expect_few(cp_cursor_advance(c, 1000));
    }
    for (size_t i = 0; i < 100; i++) expect_few(cp_cursor_close(touched_at(i * 7919 % MANY)));
    for (size_t i = 0; i < 100; i++) expect_few(cp_cursor_open(touched_at(i * 7919 % MANY), o, 1000, true, on_wake));
    close_many(o, w);
}

static void news_are_read_without_a_look_at_those_who_wait(void **state) {
    (void)state;
    int w;
    cp_output *o = open_many(&w);
    cp_loop_once(t.loop, 0);
    assert_int_equal(write(w, "a line\n", 7), 7);
    takes_a_millisecond = true;
    touched_arm();
    while (!told) cp_loop_once(t.loop, 0);
    takes_a_millisecond = false;
    assert_true(touched_count() <= FEW); /* who was told, with which the time of this round was up, and neighbours */
    assert_int_equal(told, 1);
    assert_int_equal(cp_output_total(o), 7);
    until(told == MANY);
    close_many(o, w);
}

/* The others have their turn between those who are told. */
static struct slow {
    cp_cursor c;
    unsigned told;
} slow[8];

static void take_a_millisecond(cp_cursor *c) {
    uint64_t until = cp_now_us() + 1000;
    CP_CONTAINER(c, struct slow, c)->told++;
    while (cp_now_us() < until) continue;
}

static unsigned told_of_slow(void) {
    unsigned n = 0;
    for (size_t i = 0; i < CP_COUNT(slow); i++) n += slow[i].told;
    return n;
}

static void news_are_told_in_rounds(void **state) {
    (void)state;
    int w;
    memset(slow, 0, sizeof slow);
    cp_output *o = open_kind(CP_OUT_MEMORY, UINT64_MAX, false, &w);
    for (size_t i = 0; i < CP_COUNT(slow); i++) cp_cursor_open(&slow[i].c, o, 0, true, take_a_millisecond);
    feed(w, 0, 10);
    for (unsigned before = told_of_slow(); told_of_slow() < CP_COUNT(slow); before = told_of_slow()) {
        assert_int_equal(cp_loop_once(t.loop, 1000), 0);
        assert_true(told_of_slow() <= before + 1);
    }
    for (size_t i = 0; i < CP_COUNT(slow); i++) assert_int_equal(slow[i].told, 1); /* each once */
    for (int i = 0; i < 3; i++) cp_loop_once(t.loop, 0);
    assert_int_equal(told_of_slow(), CP_COUNT(slow));
    close(w);
    until(t.ended); /* the owner hears of it however long it takes to tell the readers */
    assert_true(told_of_slow() < 2 * CP_COUNT(slow));
    cp_cursor_close(&slow[CP_COUNT(slow) - 1].c); /* of one that is still to be told */
    until(told_of_slow() == 2 * CP_COUNT(slow) - 1);
    for (size_t i = 0; i < CP_COUNT(slow); i++) cp_cursor_close(&slow[i].c);
    cp_output_free(o);
}

/* The child waits for the slowest, whichever that is. */
static void the_slowest_holds_the_child(void **state) {
    (void)state;
    enum { N = 50, BUDGET = 1 * MIB };
    int w;
    static cp_cursor c[N];
    told = 0;
    cp_output *o = open_kind(CP_OUT_FILE, BUDGET, false, &w);
    for (size_t i = 0; i < N; i++) cp_cursor_open(&c[i], o, 0, i != 7, on_wake);
    uint64_t sent = 0, slowest = 0;
    for (size_t k = 0; k < N; k++) { /* one after another goes on, and the last of them lets the child go on */
        while (cp_output_total(o) < slowest + BUDGET) {
            sent += feed_once(w, sent, 65536);
            cp_loop_once(t.loop, 1);
        }
        for (int i = 0; i < 5; i++) {
            sent += feed_once(w, sent, 65536);
            cp_loop_once(t.loop, 1);
            assert_int_equal(cp_output_total(o), slowest + BUDGET);
        }
        assert_true(cp_output_first(o) <= slowest);
        size_t last = k * 31 % N;
        for (size_t i = 0; i < N; i++)
            if (i != last) cp_cursor_advance(&c[i], slowest + 4096);
        if (last == 7) { /* for that one nobody waits */
            slowest += 4096;
            continue;
        }
        for (int i = 0; i < 3; i++) cp_loop_once(t.loop, 1);
        assert_int_equal(cp_output_total(o), slowest + BUDGET);
        cp_cursor_advance(&c[last], slowest + 4096);
        slowest += 4096;
    }
    for (size_t i = 0; i < N; i++) cp_cursor_close(&c[i]);
    close(w);
    until(t.ended);
    cp_output_free(o);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(one_reader_looks_at_few_others),
        T(news_are_read_without_a_look_at_those_who_wait),
        T(news_are_told_in_rounds),
        T(the_slowest_holds_the_child),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
