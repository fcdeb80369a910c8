/* Origin, Host and token over the wire, on every kind of route, before a body is read. */
#include "http_fixture.h"

static const struct {
    const char *method, *path;
    bool upgrade, open;
} kinds[] = {
    {"GET", "/api/ping", false, false}, {"POST", "/echo", false, false},     {"PUT", "/raw", false, false},
    {"POST", "/later", false, false},   {"GET", "/stream", false, false},    {"GET", "/file", false, false},
    {"GET", "/nowhere", false, false},  {"GET", "/healthz", false, true},    {"OPTIONS", "/echo", false, true},
    {"PATCH", "/echo", false, false},   {"HEAD", "/api/ping", false, false}, {"GET", "/ws", true, false},
    {"GET", "/api/ws", true, false},    {"GET", "/ws/echo", true, false},
};

/* The body is announced and never sent: an answer shows that it was not waited for. */
static response try(const fixture *f, size_t kind, const char *headers) {
    int fd = dial(f);
    bool body = kinds[kind].method[0] == 'P';
    putf(fd, "%s %s HTTP/1.1\r\n%s%s%s\r\n", kinds[kind].method, kinds[kind].path, headers,
         body ? "Content-Length: 100000\r\n" : "",
         kinds[kind].upgrade ? "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                               "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                             : "");
    response r = get_for(fd, strcmp(kinds[kind].method, "HEAD") == 0);
    close(fd);
    return r;
}

static void refused_everywhere(const fixture *f, const char *headers, int status, const char *code, bool spare_open) {
    for (size_t i = 0; i < CP_COUNT(kinds); i++) {
        if (spare_open && kinds[i].open) continue;
        response r = try(f, i, headers);
        if (r.status != status) fail_msg("%s %s: %d for %s", kinds[i].method, kinds[i].path, r.status, headers);
        if (strcmp(kinds[i].method, "HEAD") != 0) assert_true(body_has(&r, code));
        if (status == 401) assert_true(cp_str_is(header_of(&r, "WWW-Authenticate"), "Bearer"));
        free_response(&r);
    }
    assert_int_equal(seen_calls, 0);
}

static void foreign_pages_are_refused(void **state) {
    fixture *f = *state;
    refused_everywhere(f, "Host: 127.0.0.1\r\nOrigin: https://evil.example\r\n", 403, "ORIGIN_NOT_ALLOWED", false);
    refused_everywhere(f, "Host: 127.0.0.1\r\nOrigin: null\r\n", 403, "ORIGIN_NOT_ALLOWED", false);
    refused_everywhere(f, "Host: rebound.example\r\n", 403, "HOST_NOT_ALLOWED", false);
}

static void our_own_page_may_call(void **state) {
    fixture *f = *state;
    char own[100], line[200], req[400];
    snprintf(own, sizeof own, "http://localhost:%u", f->port);
    snprintf(line, sizeof line, "Host: localhost:%u\r\nOrigin: %s\r\n", f->port, own);
    response r = try(f, 0, line);
    assert_int_equal(r.status, 200);
    assert_true(cp_str_is(header_of(&r, "Access-Control-Allow-Origin"), own));
    assert_true(cp_str_is(header_of(&r, "Vary"), "Origin"));
    free_response(&r);
    snprintf(req, sizeof req, "OPTIONS /echo HTTP/1.1\r\n%sAccess-Control-Request-Method: POST\r\n\r\n", line);
    assert_int_equal(ask(f, req, NULL), 204);
}

static int token_up(void **state) {
    fixture *f = *state = fx_prepare();
    f->cfg.has_token = true;
    f->cfg.debug_echo = true;
    cp_sha256_of("s3cret", 6, f->cfg.token_sha256);
    fx_start(f);
    return 0;
}
static int up(void **state) {
    fixture *f = *state = fx_prepare();
    f->cfg.debug_echo = true;
    fx_start(f);
    return 0;
}

static void without_the_token_nothing_but_what_is_open(void **state) {
    fixture *f = *state;
    refused_everywhere(f, "Host: a\r\n", 401, "UNAUTHORIZED", true);
    refused_everywhere(f, "Host: a\r\nAuthorization: Bearer wrong\r\n", 401, "UNAUTHORIZED", true);
    refused_everywhere(f, "Host: a\r\nAuthorization: Bearer s3cret\r\nOrigin: https://evil.example\r\n", 403,
                       "ORIGIN_NOT_ALLOWED", false);
    assert_int_equal(ask(f, "GET /api/ping?token=s3cret HTTP/1.1\r\nHost: a\r\n\r\n", "UNAUTHORIZED"), 401);
    assert_int_equal(ask(f, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", "\"auth\":false"), 200);
}

static void with_the_token_it_names_no_session(void **state) {
    assert_int_equal(
        ask(*state, "GET /api/ping HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer s3cret\r\n\r\n", "\"auth\":false"),
        200);
}

static void a_browser_socket_brings_it_as_subprotocol(void **state) {
    response r = try(*state, CP_COUNT(kinds) - 1, "Host: a\r\nSec-WebSocket-Protocol: conflux, bearer.s3cret\r\n");
    assert_int_equal(r.status, 101);
    assert_true(cp_str_is(header_of(&r, "Sec-WebSocket-Protocol"), "conflux"));
    free_response(&r);
}

static void without_a_token_it_names_a_session(void **state) {
    assert_int_equal(
        ask(*state, "GET /api/ping HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x\r\n\r\n", "\"auth\":true"), 200);
}

int main(void) {
    const struct CMUnitTest open[] = {
        cmocka_unit_test(foreign_pages_are_refused),
        cmocka_unit_test(our_own_page_may_call),
        cmocka_unit_test(without_a_token_it_names_a_session),
    };
    const struct CMUnitTest token[] = {
        cmocka_unit_test(without_the_token_nothing_but_what_is_open),
        cmocka_unit_test(with_the_token_it_names_no_session),
        cmocka_unit_test(a_browser_socket_brings_it_as_subprotocol),
    };
    return cmocka_run_group_tests(open, up, fx_down) + cmocka_run_group_tests(token, token_up, fx_down);
}
