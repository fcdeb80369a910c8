#include "base/metrics.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

static void fixed_metrics(void **state) {
    (void)state;
    cp_metric_add(CP_M_SPAWNS, 2);
    cp_metric_add(CP_M_SPAWNS, 3);
    cp_metric_set(CP_M_SESSIONS, 7);
    cp_metric_add(CP_M_SESSIONS, -1);
    cp_autobuf cp_buf b = {0};
    cp_metrics_write(&b);
    const char *text = cp_buf_z(&b);
    assert_non_null(strstr(text, "# HELP conflux_spawns_total Children started\n"
                                 "# TYPE conflux_spawns_total counter\nconflux_spawns_total 5\n"));
    assert_non_null(strstr(text, "# TYPE conflux_sessions gauge\nconflux_sessions 6\n"));
    size_t lines = 0;
    for (size_t i = 0; i < b.n; i++) lines += b.p[i] == '\n';
    assert_int_equal(lines, 3 * CP_M_COUNT);
}

static uint64_t number_after(const char *text, const char *what) {
    const char *at = strstr(text, what);
    if (!at) fail_msg("no %s", what);
    return strtoull(at + strlen(what), NULL, 10);
}

static void buckets_are_cumulative(void **state) {
    (void)state;
    cp_hist h = {0};
    cp_hist_add(&h, 0);
    cp_hist_add(&h, 50); /* a bound belongs to its bucket */
    cp_hist_add(&h, 51);
    cp_hist_add(&h, 1000000);
    cp_hist_add(&h, 60000000);
    cp_hist_add(&h, 60000001);
    cp_autobuf cp_buf b = {0};
    cp_hist_write(&b, "req", "route=\"/x\"", &h);
    const char *text = cp_buf_z(&b);
    assert_int_equal(number_after(text, "req_bucket{route=\"/x\",le=\"0.00005\"} "), 2);
    assert_int_equal(number_after(text, "req_bucket{route=\"/x\",le=\"0.0001\"} "), 3);
    assert_int_equal(number_after(text, "req_bucket{route=\"/x\",le=\"0.5\"} "), 3);
    assert_int_equal(number_after(text, "req_bucket{route=\"/x\",le=\"1\"} "), 4);
    assert_int_equal(number_after(text, "req_bucket{route=\"/x\",le=\"60\"} "), 5);
    assert_int_equal(number_after(text, "req_bucket{route=\"/x\",le=\"+Inf\"} "), 6);
    assert_int_equal(number_after(text, "req_count{route=\"/x\"} "), 6);
    assert_non_null(strstr(text, "req_sum{route=\"/x\"} 121.000102\n"));
}

static void bounds_rise(void **state) {
    (void)state;
    cp_hist h = {0};
    cp_autobuf cp_buf b = {0};
    cp_hist_write(&b, "q", "", &h);
    const char *at = cp_buf_z(&b);
    double last = 0;
    unsigned n = 0;
    for (; (at = strstr(at, "{le=\"")); n++) {
        double le = strtod(at + 5, NULL);
        assert_true(le > last);
        last = le;
        at++;
    }
    assert_int_equal(n, CP_HIST_BUCKETS + 1);
    assert_non_null(strstr(b.p, "\nq_sum 0.000000\nq_count 0\n"));
}

static void help_is_escaped(void **state) {
    (void)state;
    cp_autobuf cp_buf b = {0};
    cp_metric_head(&b, "m", "gauge", "a\\b\nc");
    assert_string_equal(cp_buf_z(&b), "# HELP m a\\\\b\\nc\n# TYPE m gauge\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixed_metrics),
        cmocka_unit_test(buckets_are_cumulative),
        cmocka_unit_test(bounds_rise),
        cmocka_unit_test(help_is_escaped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
