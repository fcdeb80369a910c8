/* Ages while the wall clock is set. Both clocks are given; the time since boot is the truth. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/age.h"

enum { SECOND = 1000, HOUR = 3600 * SECOND };
#define DAY   (INT64_C(24) * HOUR)
#define EPOCH INT64_C(1700000000000) /* wall clock at boot */

static cp_ages ages;

static int setup(void **state) {
    (void)state;
    ages = (cp_ages){0};
    assert_true(cp_ages_note(&ages, 0, EPOCH));
    return 0;
}

/* Both clocks at `boot`, the wall clock `set` away from where it was at boot. */
static void at(int64_t boot, int64_t set) { (void)cp_ages_note(&ages, boot, EPOCH + boot + set); }
static void age_is(int64_t boot_then, int64_t set_then, int64_t age) {
    assert_int_equal(cp_ages_of(&ages, EPOCH + boot_then + set_then), age);
}

static void without_a_step(void **state) {
    (void)state;
    at(HOUR, 0);
    age_is(HOUR, 0, 0);
    age_is(0, 0, HOUR);
    age_is(-5 * DAY, 0, 5 * DAY + HOUR); /* of a boot before */
    age_is(2 * HOUR, 0, 0);              /* in the future */
    assert_int_equal(ages.n, 1);
}

static void forward(void **state) {
    (void)state;
    at(HOUR, 0);
    at(HOUR + 10 * SECOND, 8 * DAY);
    at(2 * HOUR, 8 * DAY);
    age_is(HOUR, 0, HOUR);
    age_is(HOUR + 5 * SECOND, 0, HOUR - 5 * SECOND);       /* before the step, after the last look */
    age_is(HOUR + 5 * SECOND, 8 * DAY, HOUR - 5 * SECOND); /* after it, before the next look */
    age_is(HOUR + HOUR / 2, 8 * DAY, HOUR / 2);
    age_is(-DAY, 0, DAY + 2 * HOUR);
}

static void back(void **state) {
    (void)state;
    at(3 * HOUR, 0);
    at(3 * HOUR + SECOND, -2 * HOUR);
    at(4 * HOUR, -2 * HOUR);
    age_is(3 * HOUR, 0, HOUR);
    age_is(3 * HOUR + HOUR / 2, -2 * HOUR, HOUR / 2);
    age_is(HOUR / 2, 0, 3 * HOUR + HOUR / 2);
    /* Read twice by the wall clock: too young, never too old. */
    age_is(HOUR + HOUR / 2, 0, HOUR / 2);
}

/* The clock of a machine without a battery, until the network has told the time. */
static void a_clock_that_was_wrong_at_boot(void **state) {
    (void)state;
    at(10 * SECOND, 0);
    at(20 * SECOND, 900 * DAY);
    at(HOUR, 900 * DAY);
    age_is(-DAY, 900 * DAY, DAY + HOUR); /* from before the boot, by the right clock */
    age_is(5 * SECOND, 0, HOUR - 5 * SECOND);
}

static void a_clock_that_is_led(void **state) {
    (void)state;
    for (int i = 0; i <= 1000; i++) at((int64_t)i * 10 * SECOND, (int64_t)i * 5);
    assert_int_equal(ages.n, 1);
}

static void set_again_and_again(void **state) {
    (void)state;
    for (int i = 1; i <= 3 * CP_AGE_SPANS; i++) at((int64_t)i * HOUR, (int64_t)i * DAY);
    assert_int_equal(ages.n, CP_AGE_SPANS);
    int last = 3 * CP_AGE_SPANS;
    age_is((int64_t)(last - 5) * HOUR, (int64_t)(last - 5) * DAY, 5 * HOUR);
}

static void as_text(void **state) {
    (void)state;
    cp_ages read;
    at(HOUR, 0);
    at(2 * HOUR, -DAY);
    cp_autobuf cp_buf text = {0};
    cp_ages_encode(&ages, "a-boot", &text);
    assert_true(cp_ages_decode(&read, "a-boot", cp_buf_z(&text)));
    assert_int_equal(read.n, 2);
    assert_memory_equal(read.v, ages.v, 2 * sizeof *read.v);
    assert_false(cp_ages_decode(&read, "another", cp_buf_z(&text)));
    assert_int_equal(read.n, 0);
    for (size_t n = 0; n < text.n; n++) { /* cut anywhere: whole lines, or none */
        cp_autobuf cp_buf part = {0};
        cp_buf_add(&part, text.p, n);
        bool whole = n > 12 && text.p[n - 1] == '\n';
        assert_int_equal(cp_ages_decode(&read, "a-boot", cp_buf_z(&part)), whole);
    }
    static const char *const none[] = {
        "", "boot", "boot a-boot", "boot a-boot\nx", "boot a-boot\n1 2\n", "boot a-boot\n1 2 3 4\n"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) assert_false(cp_ages_decode(&read, "a-boot", none[i]));
}

int main(void) {
#define T(f) cmocka_unit_test_setup(f, setup)
    const struct CMUnitTest tests[] = {
        T(without_a_step),      T(forward), T(back), T(a_clock_that_was_wrong_at_boot), T(a_clock_that_is_led),
        T(set_again_and_again), T(as_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
