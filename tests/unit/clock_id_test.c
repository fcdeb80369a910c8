#include "base/clock.h"
#include "base/id.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <string.h>

/* Expected values: date -u -d @SECONDS. */
static void iso(void **state) {
    (void)state;
    static const struct {
        int64_t ms;
        const char *text;
    } rows[] = {
        {0, "1970-01-01T00:00:00.000Z"},
        {951782399999, "2000-02-28T23:59:59.999Z"},
        {951782400000, "2000-02-29T00:00:00.000Z"},
        {1700000000007, "2023-11-14T22:13:20.007Z"},
        {1700000000999, "2023-11-14T22:13:20.999Z"},
        {-1, "1969-12-31T23:59:59.999Z"},
        {-1000, "1969-12-31T23:59:59.000Z"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char out[CP_ISO_LEN + 1];
        cp_iso(rows[i].ms, out);
        assert_string_equal(out, rows[i].text);
    }
}

static void clocks_agree_in_their_units(void **state) {
    (void)state;
    uint64_t ms = cp_now_ms(), us = cp_now_us(), ns = cp_now_ns();
    assert_true(us / 1000 >= ms && ns / 1000 >= us);
    assert_true(cp_wall_ms() > 1600000000000);
}

static bool only(const char *z, size_t n, const char *alphabet) { return strlen(z) == n && strspn(z, alphabet) == n; }

static void ids_have_their_alphabet_and_length(void **state) {
    (void)state;
    char a[101], b[101];
    for (size_t n = 0; n <= 100; n += 25) {
        cp_random_base36(a, n);
        assert_true(only(a, n, "0123456789abcdefghijklmnopqrstuvwxyz"));
        cp_random_hex(a, n);
        assert_true(only(a, n, "0123456789abcdef"));
    }
    cp_random_hex(a, 100);
    cp_random_hex(b, 100);
    assert_string_not_equal(a, b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(iso),
        cmocka_unit_test(clocks_agree_in_their_units),
        cmocka_unit_test(ids_have_their_alphabet_and_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
