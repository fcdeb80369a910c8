#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include "transport/client/client_impl.h"

#include <cmocka.h>

static cp_buf got;

static void note(void *arg, const conflux_event *ev) {
    (void)arg;
    assert_int_equal(ev->len, strlen(ev->data));
    cp_buf_addf(&got, "[%s|%s]", ev->id ? ev->id : "", ev->data);
}

/* The same events come of it wherever the input is cut. */
static void expect(const char *text, const char *events) {
    size_t n = strlen(text);
    for (size_t step = 1; step <= n + 1; step++) {
        sse s;
        sse_init(&s, 1000, note, NULL);
        cp_buf_clear(&got);
        for (size_t i = 0; i < n; i += step) assert_int_equal(sse_feed(&s, text + i, i + step < n ? step : n - i), 0);
        if (n == 0) assert_int_equal(sse_feed(&s, text, 0), 0);
        assert_string_equal(cp_buf_z(&got), events);
        sse_fini(&s);
    }
    cp_buf_free(&got);
}

/* What the standard's own examples give (HTML, section 9.2.6, "interpreting an event stream"). */
static void t_standard(void **state) {
    (void)state;
    expect("data: YHOO\ndata: +2\ndata: 10\n\n", "[|YHOO\n+2\n10]");
    expect(": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
           "[1|first event][|second event][| third event]");
    expect("data\n\ndata\ndata\n\ndata:", "[|][|\n]");
    expect("data:test\n\ndata: test\n\n", "[|test][|test]");
}

static void t_line_ends(void **state) {
    (void)state;
    expect("data: a\r\n\r\ndata: b\r\rdata: c\n\n", "[|a][|b][|c]");
    expect("id: 5-0\r\ndata: {\"a\":1}\r\n\r\n", "[5-0|{\"a\":1}]");
}

static void t_skipped(void **state) {
    (void)state;
    expect("", "");
    expect("\n\n: comment\n\nevent: x\nretry: 5\n\nid: 7\n\n", "");
    expect("data: not finished", "");
}

static void t_limit(void **state) {
    (void)state;
    sse s;
    char line[1100];
    memset(line, 'x', sizeof line);
    sse_init(&s, 1000, note, NULL);
    assert_int_equal(sse_feed(&s, "data: ", 6), 0);
    assert_int_equal(sse_feed(&s, line, sizeof line), -1);
    sse_fini(&s);
    sse_init(&s, 1000, note, NULL); /* many short lines of one event */
    int rc = 0;
    for (int i = 0; i < 400 && rc == 0; i++) rc = sse_feed(&s, "data: abc\n", 10);
    assert_int_equal(rc, -1);
    sse_fini(&s);
    cp_buf_free(&got);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_standard),
        cmocka_unit_test(t_line_ends),
        cmocka_unit_test(t_skipped),
        cmocka_unit_test(t_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
