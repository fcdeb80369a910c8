#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "handlers/log_match.h"
#include "handlers/port_probe.h"

/* Feeds text in pieces of `step` bytes; returns the offset of the match, or -1. */
static long find(const char *pattern, bool regex, const char *text, size_t step, bool end, cp_buf *match) {
    cp_log_match m;
    cp_err err = {0};
    cp_log_hit hit;
    long at = -1;
    size_t n = strlen(text);
    assert_int_equal(cp_log_match_init(&m, cp_str_of(pattern), regex, &err), 0);
    for (size_t i = 0; i < n && at < 0; i += step) {
        size_t k = n - i < step ? n - i : step;
        if (!cp_log_match_feed(&m, i, (cp_str){text + i, k}, end && i + k == n, &hit)) continue;
        at = (long)hit.offset;
        cp_buf_clear(match);
        cp_buf_add(match, hit.match.p, hit.match.n);
    }
    cp_log_match_fini(&m);
    return at;
}

static void plain_text_across_borders(void **state) {
    (void)state;
    cp_autobuf cp_buf m = {0};
    const char *text = "starting\nlistening on 8080\n";
    for (size_t step = 1; step <= strlen(text); step++) {
        assert_int_equal(find("listening on", false, text, step, false, &m), 9);
        assert_true(cp_str_is(cp_buf_str(&m), "listening on"));
    }
    assert_int_equal(find("login: ", false, "login: ", 3, false, &m), 0); /* no newline needed */
    assert_int_equal(find("nothere", false, text, 5, true, &m), -1);
}

static void a_regular_expression_waits_for_its_whole_match(void **state) {
    (void)state;
    cp_autobuf cp_buf m = {0};
    const char *text = "a\nport 8080\nb";
    for (size_t step = 1; step <= strlen(text); step++) {
        assert_int_equal(find("port [0-9]+", true, text, step, false, &m), 2);
        assert_true(cp_str_is(cp_buf_str(&m), "port 8080"));
        assert_int_equal(find("^b$", true, text, step, true, &m), 12);
        assert_int_equal(find("^b$", true, text, step, false, &m), -1);
        assert_int_equal(find("port$", true, text, step, true, &m), -1);
    }
}

static void a_gap_begins_a_line_anew(void **state) {
    (void)state;
    cp_log_match m;
    cp_err err = {0};
    cp_log_hit hit;
    assert_int_equal(cp_log_match_init(&m, CP_STR("abcd"), false, &err), 0);
    assert_false(cp_log_match_feed(&m, 0, CP_STR("ab"), false, &hit));
    assert_false(cp_log_match_feed(&m, 100, CP_STR("cd"), false, &hit));
    assert_true(cp_log_match_feed(&m, 102, CP_STR("abcd"), false, &hit));
    assert_int_equal(hit.offset, 102);
    assert_true(cp_str_is(hit.line, "cdabcd"));
    cp_log_match_fini(&m);
}

static void an_endless_line_is_bounded(void **state) {
    (void)state;
    cp_log_match m;
    cp_err err = {0};
    cp_log_hit hit;
    static char piece[40000];
    memset(piece, 'x', sizeof piece);
    assert_int_equal(cp_log_match_init(&m, CP_STR("needle"), false, &err), 0);
    uint64_t at = 0;
    for (int i = 0; i < 100; i++, at += sizeof piece) {
        assert_false(cp_log_match_feed(&m, at, (cp_str){piece, sizeof piece}, false, &hit));
        assert_true(m.line.n <= CP_MATCH_LINE_MAX);
    }
    assert_false(cp_log_match_feed(&m, at, CP_STR("nee"), false, &hit));
    assert_true(cp_log_match_feed(&m, at + 3, CP_STR("dle"), false, &hit));
    assert_int_equal(hit.offset, at);
    cp_log_match_fini(&m);
}

static void costly_patterns_are_refused(void **state) {
    (void)state;
    static const char *const bad[] = {"", "(a)\\1", "(a{1,50}){1,50}", "a{1000}", "(", "a\nb"};
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        cp_log_match m;
        cp_err err = {0};
        assert_int_equal(cp_log_match_init(&m, cp_str_of(bad[i]), true, &err), -1);
        assert_string_equal(err.field, "pattern");
        cp_log_match_fini(&m);
    }
}

/* X150: the engine writes repetitions out; these would be gigabytes. */
static void patterns_that_grow_are_refused(void **state) {
    (void)state;
    char deep[80] = "", pluses[200] = "a", optional[512] = "(";
    memset(deep, '(', 65);
    memset(deep + 65, 'a', 1);
    memset(pluses + 1, '+', 60);
    for (int i = 0; i < 240; i++) strcat(optional, "a?");
    strcat(optional, "){100}");
    const char *const bad[] = {optional, deep};
    const char *const good[] = {"[+++++++++++++++++]+",
                                "\\++",
                                "[]+a-z[:alpha:]+++++++++++++]",
                                "(ab|c+)*d{100}",
                                "a+b+c+d+e+f+g+h+i+",
                                pluses /* which grow by one each */,
                                "(((((((((((a+)+)+)+)+)+)+)+)+)+)+)+"};
    for (size_t i = 0; i < CP_COUNT(bad) + CP_COUNT(good); i++) {
        cp_log_match m;
        cp_err err = {0};
        bool is_bad = i < CP_COUNT(bad);
        const char *pattern = is_bad ? bad[i] : good[i - CP_COUNT(bad)];
        assert_int_equal(cp_log_match_init(&m, cp_str_of(pattern), true, &err), is_bad ? -1 : 0);
        if (is_bad) assert_string_equal(err.field, "pattern");
        cp_log_match_fini(&m);
    }
}

static void listening_sockets(void **state) {
    (void)state;
    /* lines as the kernel prints them: 0BB8 is 3000; 0A listens, 01 is connected */
    const char *v4 =
        "   0: 0100007F:0BB8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0\n";
    const char *v6 =
        "   1: 00000000000000000000000001000000:0BB8 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 1\n";
    const char *connected = "   2: 0100007F:0BB8 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0\n";
    assert_true(cp_port_line_listens(v4, 3000));
    assert_true(cp_port_line_listens(v6, 3000));
    assert_false(cp_port_line_listens(v4, 3001));
    assert_false(cp_port_line_listens(connected, 3000));
    assert_false(cp_port_line_listens("  sl  local_address rem_address   st\n", 3000));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_text_across_borders),   cmocka_unit_test(a_regular_expression_waits_for_its_whole_match),
        cmocka_unit_test(a_gap_begins_a_line_anew),    cmocka_unit_test(an_endless_line_is_bounded),
        cmocka_unit_test(costly_patterns_are_refused), cmocka_unit_test(patterns_that_grow_are_refused),
        cmocka_unit_test(listening_sockets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
