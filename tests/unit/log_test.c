#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* A socket that keeps message borders: what one write(2) wrote is what one read returns. */
static int sock[2];

static int set_up(void **state) {
    (void)state;
    return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sock);
}

static int tear_down(void **state) {
    (void)state;
    cp_close(&sock[0]);
    cp_close(&sock[1]);
    return 0;
}

/* The next line, without its newline; behind the timestamp it begins with. "" when there is none. */
static const char *line(const char *before_ts) {
    static char buf[CP_LOG_LINE_MAX + 1];
    ssize_t n = read(sock[0], buf, sizeof buf);
    if (n < 0) return "";
    assert_true(n > 0 && n <= CP_LOG_LINE_MAX);
    assert_int_equal(buf[n - 1], '\n');
    buf[n - 1] = '\0';
    assert_null(strchr(buf, '\n'));
    size_t skip = strlen(before_ts);
    assert_int_equal(strncmp(buf, before_ts, skip), 0);
    assert_int_equal(buf[skip + 10], 'T');
    assert_int_equal(buf[skip + 23], 'Z');
    return buf + skip + 24;
}

static void logfmt(void **state) {
    (void)state;
    cp_log_setup(sock[1], CP_LOG_DEBUG, false);
    cp_log(CP_LOG_INFO, "server.start", "listening", CP_KVI("port", 3000), CP_KVZ("host", "127.0.0.1"));
    assert_string_equal(line("ts="), " level=info event=server.start msg=listening port=3000 host=127.0.0.1");
    cp_log(CP_LOG_ERROR, "x.y", "two words", CP_KVZ("e", ""), CP_KVZ("q", "a\"b\\c"), CP_KVZ("nl", "a\nb"),
           CP_KVZ("eq", "k=v"), CP_KVS("nul", CP_STR("a\0b")), CP_KVZ("u", "\xC3\xA9"), CP_KVZ("bad", "\xFF"));
    assert_string_equal(line("ts="), " level=error event=x.y msg=\"two words\" e=\"\" q=\"a\\\"b\\\\c\" nl=\"a\\nb\" "
                                     "eq=\"k=v\" nul=\"a\\u0000b\" u=\"\xC3\xA9\" bad=\"\xEF\xBF\xBD\"");
    cp_log(CP_LOG_WARN, "plain", "none");
    assert_string_equal(line("ts="), " level=warn event=plain msg=none");
}

static void json_lines(void **state) {
    (void)state;
    cp_log_setup(sock[1], CP_LOG_DEBUG, true);
    cp_log(CP_LOG_DEBUG, "a.b", "say \"hi\"", CP_KVI("n", -1), CP_KVZ("t", "\t"));
    assert_string_equal(
        line("{\"ts\":\""),
        "\",\"level\":\"debug\",\"event\":\"a.b\",\"msg\":\"say \\\"hi\\\"\",\"n\":\"-1\",\"t\":\"\\t\"}");
}

static void levels_filter(void **state) {
    (void)state;
    cp_log_setup(sock[1], CP_LOG_WARN, false);
    assert_false(cp_log_on(CP_LOG_INFO));
    assert_true(cp_log_on(CP_LOG_WARN));
    cp_log(CP_LOG_INFO, "a", "b");
    cp_log_write(CP_LOG_DEBUG, "a", "b", NULL, 0);
    assert_string_equal(line("ts="), "");
}

static void lines_are_bounded(void **state) {
    (void)state;
    char big[20000];
    memset(big, 'v', sizeof big);
    for (int json = 0; json < 2; json++) {
        cp_log_setup(sock[1], CP_LOG_INFO, json);
        cp_log(CP_LOG_INFO, "a", "b", CP_KVS("one", ((cp_str){big, sizeof big})), CP_KVZ("after", "x"));
        const char *got = line(json ? "{\"ts\":\"" : "ts=");
        size_t vs = 0;
        for (const char *c = got; *c; c++) vs += *c == 'v';
        assert_int_equal(vs, CP_LOG_VALUE_MAX + 2); /* "level" and "event" have one each */
        assert_non_null(strstr(got, json ? ",\"after\":\"x\"}" : " after=x"));
        memset(big, '\x01', sizeof big);
        cp_str s = {big, sizeof big};
        cp_log(CP_LOG_INFO, "a", "b", CP_KVS("one", s), CP_KVS("two", s), CP_KVZ("after", "x"));
        got = line(json ? "{\"ts\":\"" : "ts=");
        assert_null(strstr(got, "two"));
        assert_non_null(strstr(got, "after"));
        assert_non_null(strstr(got, json ? ",\"truncated\":\"true\"}" : " truncated=true"));
        memset(big, 'v', sizeof big);
    }
}

/* The log goes on when its reader does, and says how much he missed; the pipe itself stays as it was. */
static void stalled_reader(void **state) {
    (void)state;
    int rw[2];
    enum { LINES = 2000 }; /* of over 1000 bytes: more than a pipe takes */
    static char text[CP_LOG_VALUE_MAX], all[1 << 20];
    memset(text, 'x', sizeof text);
    assert_int_equal(cp_pipe(rw, 0), 0);
    cp_log_setup(rw[1], CP_LOG_INFO, false);
    for (int i = 0; i < LINES; i++) cp_log(CP_LOG_INFO, "a", "b", CP_KVS("v", ((cp_str){text, sizeof text})));
    assert_int_equal(fcntl(rw[1], F_GETFL) & O_NONBLOCK, 0);
    assert_int_equal(fcntl(rw[0], F_SETFL, O_NONBLOCK), 0);
    size_t lines = 0;
    ssize_t n;
    while ((n = read(rw[0], all, sizeof all)) > 0)
        for (ssize_t i = 0; i < n; i++) lines += all[i] == '\n';
    assert_true(lines > 0 && lines < LINES);
    cp_log(CP_LOG_INFO, "c", "again");
    n = read(rw[0], all, sizeof all - 1);
    assert_true(n > 0);
    all[n] = '\0';
    char want[64];
    snprintf(want, sizeof want, " count=%zu\n", LINES - lines);
    assert_non_null(strstr(all, "event=log.dropped "));
    assert_non_null(strstr(all, want));
    assert_non_null(strstr(all, "event=c msg=again\n"));
    cp_log_setup(STDERR_FILENO, CP_LOG_INFO, false);
    cp_close(&rw[0]);
    cp_close(&rw[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(logfmt, set_up, tear_down),
        cmocka_unit_test_setup_teardown(json_lines, set_up, tear_down),
        cmocka_unit_test_setup_teardown(levels_filter, set_up, tear_down),
        cmocka_unit_test_setup_teardown(lines_are_bounded, set_up, tear_down),
        cmocka_unit_test(stalled_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
