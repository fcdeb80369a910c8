#include "transport/handshake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* Headers as "Name: value" strings up to NULL; the last one given by a test replaces or joins a good set. */
typedef struct headers {
    const char *list[16];
} headers;

#define KEY          "dGhlIHNhbXBsZSBub25jZQ==" /* of RFC 6455 section 1.3 */
#define KEY_LINE     "Sec-WebSocket-Key: " KEY
#define GOOD_BUT_KEY "Host: a:3000", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"
#define GOOD         GOOD_BUT_KEY, KEY_LINE

static cp_str header(const void *ctx, const char *name, size_t index) {
    const headers *h = ctx;
    for (size_t i = 0; h->list[i]; i++) {
        const char *colon = strchr(h->list[i], ':');
        cp_str have = {h->list[i], (size_t)(colon - h->list[i])};
        if (cp_str_ieq(have, cp_str_of(name)) && index-- == 0) return cp_str_of(colon + 1);
    }
    return (cp_str){0};
}

static int check_as(const char *method, const char *version, const headers *h, cp_ws_verdict *v) {
    cp_ws_request rq = {cp_str_of(method), cp_str_of(version), header, h};
    return cp_ws_check(&rq, NULL, 0, v);
}

#define CHECK(v, ...) check_as("GET", "1.1", &(headers){{__VA_ARGS__}}, (v))

static void accepts(void **state) {
    (void)state;
    cp_ws_verdict v;
    assert_int_equal(CHECK(&v, GOOD), 101);
    assert_string_equal(v.accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_int_equal(v.protocol.n, 0);
    cp_autobuf cp_buf out = {0};
    cp_ws_accept_head(&out, &v, NULL);
    assert_string_equal(cp_buf_z(&out),
                        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                        "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n");
    cp_buf_clear(&out);
    v.protocol = CP_STR("chat");
    cp_ws_accept_head(&out, &v, "X-Trace-Id: 1\r\n");
    assert_string_equal(cp_buf_z(&out),
                        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                        "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"
                        "Sec-WebSocket-Protocol: chat\r\nX-Trace-Id: 1\r\n\r\n");
}

static void accepts_lists_and_cases(void **state) {
    (void)state;
    cp_ws_verdict v;
    assert_int_equal(CHECK(&v, "HOST: a", "upgrade: WebSocket", "connection: keep-alive, Upgrade",
                           "SEC-WEBSOCKET-KEY: " KEY, "sec-websocket-version: 13"),
                     101);
    assert_int_equal(CHECK(&v, "Host: a", "Upgrade: h2c , websocket", "Connection: keep-alive",
                           "Connection: ,,upgrade ,", "Sec-WebSocket-Key:  " KEY " ", "Sec-WebSocket-Version: 13"),
                     101);
    assert_string_equal(v.accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_int_equal(CHECK(&v, GOOD, "Content-Length: 0", "Sec-WebSocket-Extensions: permessage-deflate"), 101);
    assert_int_equal(check_as("GET", "1.2", &(headers){{GOOD}}, &v), 101);
}

static void refuses_requests_that_are_no_upgrade(void **state) {
    (void)state;
    cp_ws_verdict v;
    assert_int_equal(check_as("POST", "1.1", &(headers){{GOOD}}, &v), 405);
    assert_string_equal(v.extra, "Allow: GET\r\n");
    assert_int_equal(check_as("get", "1.1", &(headers){{GOOD}}, &v), 405);
    assert_int_equal(check_as("GET", "1.0", &(headers){{GOOD}}, &v), 400);
    assert_int_equal(check_as("GET", "2.0", &(headers){{GOOD}}, &v), 400);
    assert_int_equal(check_as("GET", "", &(headers){{GOOD}}, &v), 400);
    assert_int_equal(
        CHECK(&v, "Host: a", "Connection: Upgrade", "Sec-WebSocket-Key: " KEY, "Sec-WebSocket-Version: 13"), 426);
    assert_int_equal(CHECK(&v, "Host: a", "Upgrade: websocket", "Sec-WebSocket-Key: " KEY, "Sec-WebSocket-Version: 13"),
                     426);
    assert_int_equal(CHECK(&v, "Host: a", "Upgrade: websockets", "Connection: Upgrade", "Sec-WebSocket-Key: " KEY,
                           "Sec-WebSocket-Version: 13"),
                     426);
    assert_int_equal(CHECK(&v, "Host: a", "Upgrade: websocket", "Connection: Upgraded", "Sec-WebSocket-Key: " KEY,
                           "Sec-WebSocket-Version: 13"),
                     426);
    assert_int_equal(CHECK(&v, GOOD, "Content-Length: 5"), 400);
    assert_int_equal(CHECK(&v, GOOD, "Transfer-Encoding: chunked"), 400);
}

static void refuses_hosts_and_versions(void **state) {
    (void)state;
    cp_ws_verdict v;
    assert_int_equal(
        CHECK(&v, "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: " KEY, "Sec-WebSocket-Version: 13"),
        400);
    assert_int_equal(CHECK(&v, GOOD, "Host: b"), 400);
    static const struct {
        const char *version;
        int status;
    } cases[] = {{"Sec-WebSocket-Version: 12", 426},
                 {"Sec-WebSocket-Version: 013", 426},
                 {"Sec-WebSocket-Version: 8, 13", 426},
                 {"Sec-WebSocket-Version:", 400},
                 {NULL, 400}};
    for (size_t i = 0; i < CP_COUNT(cases); i++) {
        assert_int_equal(CHECK(&v, "Host: a", "Upgrade: websocket", "Connection: Upgrade", KEY_LINE, cases[i].version),
                         cases[i].status);
        assert_non_null(strstr(v.extra, "Sec-WebSocket-Version: 13\r\n"));
    }
    assert_int_equal(CHECK(&v, GOOD, "Sec-WebSocket-Version: 13"), 400);
}

static void refuses_keys(void **state) {
    (void)state;
    static const char *const bad[] = {
        "Sec-WebSocket-Key: Zm9v",                         /* 3 bytes */
        "Sec-WebSocket-Key:",                              /* none */
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ",       /* pads left out */
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQA=",     /* 17 bytes */
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQAA",     /* 18 bytes */
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZ*==",     /* not in the alphabet */
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25j=Q==",     /* pad inside */
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==, xx", /* a list */
        "X: y",                                            /* missing */
    };
    cp_ws_verdict v;
    for (size_t i = 0; i < CP_COUNT(bad); i++) assert_int_equal(CHECK(&v, GOOD_BUT_KEY, bad[i]), 400);
    assert_int_equal(CHECK(&v, GOOD, "Sec-WebSocket-Key: " KEY), 400);
}

static void refusal_head(void **state) {
    (void)state;
    cp_ws_verdict v;
    assert_int_equal(CHECK(&v, "Host: a", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: " KEY,
                           "Sec-WebSocket-Version: 12"),
                     426);
    cp_autobuf cp_buf out = {0};
    cp_ws_refuse_head(&out, &v, "application/json", 17);
    assert_string_equal(cp_buf_z(&out), "HTTP/1.1 426 Upgrade Required\r\nConnection: Upgrade, close\r\n"
                                        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                                        "Content-Type: application/json\r\nContent-Length: 17\r\n\r\n");
}

static void subprotocols(void **state) {
    (void)state;
    static const cp_str have[] = {{"b", 1}, {"stdio.v1", 8}};
    static const struct {
        const char *offer, *want;
    } cases[] = {
        {"Sec-WebSocket-Protocol: stdio.v1, b", "stdio.v1"}, /* the client's order, not ours */
        {"Sec-WebSocket-Protocol: x, b", "b"},
        {"Sec-WebSocket-Protocol: B, STDIO.V1", ""}, /* case-sensitive */
        {"Sec-WebSocket-Protocol: stdio", ""},
        {"Sec-WebSocket-Protocol: ,", ""},
        {"X: y", ""},
    };
    cp_ws_verdict v;
    for (size_t i = 0; i < CP_COUNT(cases); i++) {
        headers h = {{GOOD, cases[i].offer}};
        cp_ws_request rq = {CP_STR("GET"), CP_STR("1.1"), header, &h};
        assert_int_equal(cp_ws_check(&rq, have, CP_COUNT(have), &v), 101);
        assert_true(cp_str_is(v.protocol, cases[i].want));
    }
    headers h = {{GOOD, "Sec-WebSocket-Protocol: x", "Sec-WebSocket-Protocol: y, b"}};
    cp_ws_request rq = {CP_STR("GET"), CP_STR("1.1"), header, &h};
    cp_ws_check(&rq, have, CP_COUNT(have), &v);
    assert_true(cp_str_is(v.protocol, "b"));
    cp_ws_check(&rq, NULL, 0, &v);
    assert_int_equal(v.protocol.n, 0);
}

static void client_request(void **state) {
    (void)state;
    char key[CP_WS_KEY_SIZE + 1];
    cp_ws_key((const uint8_t *)"the sample nonce", key); /* RFC 6455 section 1.3 */
    assert_string_equal(key, KEY);
    cp_autobuf cp_buf out = {0};
    cp_ws_request_head(&out, "localhost:3000", "/ws", key, "Authorization: Bearer t\r\n");
    assert_string_equal(cp_buf_z(&out),
                        "GET /ws HTTP/1.1\r\nHost: localhost:3000\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                        "Sec-WebSocket-Key: " KEY "\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer t\r\n\r\n");
}

#define ANSWER "HTTP/1.1 101 Switching Protocols\r\nupgrade: WebSocket\r\nConnection: x, upgrade\r\n"
#define ACCEPT "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"

static void client_response(void **state) {
    (void)state;
    cp_err err;
    cp_str protocol;
    assert_int_equal(cp_ws_check_response(cp_str_of(ANSWER ACCEPT "\r\n"), KEY, NULL, &err), 0);
    assert_int_equal(cp_ws_check_response(cp_str_of(ANSWER ACCEPT "\r\n"), KEY, &protocol, &err), 0);
    assert_int_equal(protocol.n, 0);
    assert_int_equal(
        cp_ws_check_response(cp_str_of(ANSWER ACCEPT "Sec-WebSocket-Protocol: b\r\n\r\n"), KEY, &protocol, &err), 0);
    assert_true(cp_str_is(protocol, "b"));
    static const char *const bad[] = {
        "",
        "HTTP/1.1\r\n\r\n",
        "HTTP/1.0 101 x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n" ACCEPT "\r\n",
        "HTTP/1.1 200 OK\r\nUpgrade: websocket\r\nConnection: upgrade\r\n" ACCEPT "\r\n",
        "HTTP/1.1 101 x\r\nConnection: upgrade\r\n" ACCEPT "\r\n",
        "HTTP/1.1 101 x\r\nUpgrade: websocket\r\n" ACCEPT "\r\n",
        ANSWER "\r\n",
        ANSWER "Sec-WebSocket-Accept: S3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
        ANSWER ACCEPT "Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n",
        ANSWER ACCEPT "Sec-WebSocket-Protocol: b\r\n\r\n",
        ANSWER "\r\n" ACCEPT,
    };
    for (size_t i = 0; i < CP_COUNT(bad); i++)
        assert_int_equal(cp_ws_check_response(cp_str_of(bad[i]), KEY, NULL, &err), -1);
    cp_ws_check_response(cp_str_of("HTTP/1.1 401 Unauthorized\r\n\r\n"), KEY, NULL, &err);
    assert_string_equal(err.msg, "the upgrade was refused: 401 Unauthorized");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts),
        cmocka_unit_test(accepts_lists_and_cases),
        cmocka_unit_test(refuses_requests_that_are_no_upgrade),
        cmocka_unit_test(refuses_hosts_and_versions),
        cmocka_unit_test(refuses_keys),
        cmocka_unit_test(refusal_head),
        cmocka_unit_test(subprotocols),
        cmocka_unit_test(client_request),
        cmocka_unit_test(client_response),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
