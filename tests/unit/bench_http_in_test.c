#include "load/http_in.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "load/load.h"
#include "load/request.h"

load_options opt;

static void keep(void *ctx, const char *p, size_t n) { cp_buf_add(ctx, p, n); }

/* Fed in pieces of every size; the body, and how many bytes were taken. */
static void check(const char *response, const char *body, size_t taken, http_state end, bool close) {
    size_t n = strlen(response);
    for (size_t piece = 1; piece <= n; piece++) {
        cp_autobuf cp_buf got = {0};
        http_in h = {.body = keep, .ctx = &got};
        size_t at = 0;
        while (at < n && h.state != HTTP_DONE) at += http_in_feed(&h, response + at, n - at < piece ? n - at : piece);
        assert_int_equal(at, taken);
        assert_int_equal(h.state, end);
        assert_int_equal(h.status, 200);
        assert_int_equal(h.close, close);
        assert_string_equal(cp_buf_z(&got), body);
        http_in_fini(&h);
    }
}

static void length(void **state) {
    (void)state;
    static const char r[] = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nA: b\r\n\r\nhello";
    check(r, "hello", sizeof r - 1, HTTP_DONE, false);
    check("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP", "hello", 43, HTTP_DONE, false);
    check("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", "", 57, HTTP_DONE, true);
}

static void chunks(void **state) {
    (void)state;
    static const char r[] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                            "5\r\nhello\r\nB;x=y\r\n, you there\r\n0\r\nT: r\r\n\r\n";
    check(r, "hello, you there", sizeof r - 1, HTTP_DONE, false);
}

static void until_the_end(void **state) {
    (void)state;
    static const char r[] = "HTTP/1.1 200 OK\r\n\r\nall of it\r\n";
    check(r, "all of it\r\n", sizeof r - 1, HTTP_BODY, true);
}

static void templates(void **state) {
    (void)state;
    cp_autobuf cp_buf b = {0};
    opt.steps = 3;
    opt.step_size = 78;
    opt.body = "{\"o\":$OFFSET,\"l\":$LAST,\"d\":\"$DATA\",\"p\":\"$1\"}";
    request_prepare();
    assert_false(request_fixed());
    request_body(&b, 0, 2);
    char line[77] = {0};
    memset(line, 'A', 76);
    cp_autobuf cp_buf want = {0};
    cp_buf_addf(&want, "{\"o\":156,\"l\":true,\"d\":\"%s\\nA\",\"p\":\"$1\"}", line);
    assert_string_equal(cp_buf_z(&b), cp_buf_z(&want));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(length),
        cmocka_unit_test(chunks),
        cmocka_unit_test(until_the_end),
        cmocka_unit_test(templates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
