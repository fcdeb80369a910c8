#include "transport/auth.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/sha.h"

static char app[] = "https://app.example", tool[] = "http://127.0.0.1:9999", dev[] = "dev.example", null[] = "null";
static char *origins[] = {app, tool};
static char *hosts[] = {dev};
static char loopback[] = "127.0.0.1", wide[] = "0.0.0.0";

static cp_config config(bool token, char *host) {
    cp_config c = {0};
    c.host = host;
    c.allow_origin = (cp_strlist){origins, 2};
    c.allow_host = (cp_strlist){hosts, 1};
    c.has_token = token;
    cp_sha256_of("s3cret", 6, c.token_sha256);
    return c;
}

static cp_code check(const cp_config *c, const char *name, const char *value, bool open, bool upgrade) {
    cp_gate g = {.config = c, .port = 3000};
    cp_header h[2] = {{CP_STR("Host"), CP_STR("localhost:3000")}, {cp_str_of(name), cp_str_of(value)}};
    cp_err err = {0};
    size_t skip = cp_str_ieq(cp_str_of(name), CP_STR("Host")); /* the tested one alone */
    return cp_gate_check(&g, h + skip, 2 - skip, open, upgrade, &err) < 0 ? err.code : CP_OK;
}

static void origin_is_ours_or_listed(void **state) {
    (void)state;
    static const struct {
        const char *origin;
        bool ok;
    } cases[] = {
        {"http://127.0.0.1:3000", true},
        {"http://localhost:3000", true},
        {"http://[::1]:3000", true},
        {"https://app.example", true},
        {"HTTPS://APP.example", true},
        {"http://127.0.0.1:9999", true},
        {"http://127.0.0.1:3001", false},
        {"http://127.0.0.1", false},
        {"https://127.0.0.1:3000", false},
        {"null", false},
        {"", false},
        {"http://app.example", false},
        {"https://app.example.evil", false},
        {"https://app.example:443", false},
        {"http://localhost:3000.evil", false},
        {"http://127.0.0.1:3000, https://evil", false},
    };
    for (int token = 0; token < 2; token++) {
        cp_config c = config(token, token ? wide : loopback);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            assert_int_equal(check(&c, "Origin", cases[i].origin, true, false),
                             cases[i].ok ? CP_OK : CP_E_ORIGIN_NOT_ALLOWED);
    }
}

static void a_second_origin_does_not_hide(void **state) {
    (void)state;
    cp_config c = config(false, loopback);
    cp_gate g = {.config = &c, .port = 3000};
    cp_header h[] = {{CP_STR("Origin"), CP_STR("https://app.example")},
                     {CP_STR("origin"), CP_STR("https://evil.example")}};
    cp_err err;
    assert_int_equal(cp_gate_check(&g, h, 2, true, false, &err), -1);
}

/* X144: what a page loads without asking carries no Origin. */
static void what_foreign_pages_load_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *site, *mode, *dest, *origin;
        cp_code want;
    } cases[] = {
        {"cross-site", "no-cors", "script", NULL, CP_E_ORIGIN_NOT_ALLOWED},
        {"cross-site", "no-cors", "image", NULL, CP_E_ORIGIN_NOT_ALLOWED},
        {"same-site", "no-cors", "style", NULL, CP_E_ORIGIN_NOT_ALLOWED},
        {"Cross-Site", "navigate", "iframe", NULL, CP_E_ORIGIN_NOT_ALLOWED},
        {"cross-site", NULL, NULL, NULL, CP_E_ORIGIN_NOT_ALLOWED},
        {"cross-site", "cors", "empty", "https://evil.example", CP_E_ORIGIN_NOT_ALLOWED},
        {"cross-site", "cors", "empty", "https://app.example", CP_OK},
        {"cross-site", "navigate", "document", NULL, CP_OK},
        {"same-origin", "no-cors", "script", NULL, CP_OK},
        {"none", "navigate", "document", NULL, CP_OK},
    };
    cp_config c = config(false, loopback);
    cp_gate g = {.config = &c, .port = 3000};
    for (size_t i = 0; i < CP_COUNT(cases); i++) {
        cp_err err = {0};
        cp_header h[5] = {{CP_STR("Host"), CP_STR("localhost:3000")},
                          {CP_STR("sec-fetch-site"), cp_str_of(cases[i].site)}};
        size_t n = 2;
        if (cases[i].mode) h[n++] = (cp_header){CP_STR("Sec-Fetch-Mode"), cp_str_of(cases[i].mode)};
        if (cases[i].dest) h[n++] = (cp_header){CP_STR("Sec-Fetch-Dest"), cp_str_of(cases[i].dest)};
        if (cases[i].origin) h[n++] = (cp_header){CP_STR("Origin"), cp_str_of(cases[i].origin)};
        assert_int_equal(cp_gate_check(&g, h, n, false, false, &err) < 0 ? err.code : CP_OK, cases[i].want);
    }
}

static void null_cannot_be_listed(void **state) {
    (void)state;
    static char *list[] = {null};
    cp_config c = config(false, loopback);
    c.allow_origin = (cp_strlist){list, 1};
    assert_int_equal(check(&c, "Origin", "null", true, false), CP_E_ORIGIN_NOT_ALLOWED);
}

static void host_on_loopback(void **state) {
    (void)state;
    static const struct {
        const char *host;
        bool ok;
    } cases[] = {
        {"127.0.0.1", true},
        {"127.0.0.1:3000", true},
        {"192.168.1.7:80", true},
        {"localhost", true},
        {"LOCALHOST:3000", true},
        {"localhost.", true},
        {"[::1]:3000", true},
        {"sandbox", true},
        {"sandbox:3000", true},
        {"dev.example", true},
        {"DEV.example:8080", true},
        {"evil.example", false},
        {"evil.example:3000", false},
        {"127.0.0.1.evil.example", false},
        {"localhost.evil", false},
        {"dev.example.evil", false},
        {"1.2.3", false},
        {"sandbox.", false},
        {"", false},
        {"[::1", false},
        {"[evil.example]", false},
        {"a:b:c", false},
        {":80", false},
    };
    cp_config c = config(false, loopback);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(check(&c, "Host", cases[i].host, false, false), cases[i].ok ? CP_OK : CP_E_HOST_NOT_ALLOWED);
    /* A token tells our clients from others, and a wider address is used by names. */
    cp_config with_token = config(true, loopback), public = config(false, wide);
    assert_int_equal(check(&with_token, "Host", "evil.example", true, false), CP_OK);
    assert_int_equal(check(&public, "Host", "evil.example", false, false), CP_OK);
}

static void token_by_header(void **state) {
    (void)state;
    cp_config c = config(true, loopback);
    assert_int_equal(check(&c, "Authorization", "Bearer s3cret", false, false), CP_OK);
    assert_int_equal(check(&c, "authorization", "bearer  s3cret", false, false), CP_OK);
    assert_int_equal(check(&c, "Authorization", "Bearer s3cre", false, false), CP_E_UNAUTHORIZED);
    assert_int_equal(check(&c, "Authorization", "Bearer s3cret2", false, false), CP_E_UNAUTHORIZED);
    assert_int_equal(check(&c, "Authorization", "Bearer ", false, false), CP_E_UNAUTHORIZED);
    assert_int_equal(check(&c, "Authorization", "Basic s3cret", false, false), CP_E_UNAUTHORIZED);
    assert_int_equal(check(&c, "Authorization", "s3cret", false, false), CP_E_UNAUTHORIZED);
    assert_int_equal(check(&c, "X-Token", "s3cret", false, false), CP_E_UNAUTHORIZED);
    assert_int_equal(check(&c, "x-access-token", "s3cret", false, false), CP_OK); /* X161 */
    assert_int_equal(check(&c, "X-Access-Token", "s3cre", false, false), CP_E_UNAUTHORIZED);
    assert_int_equal(check(&c, "X-Access-Token", "", false, false), CP_E_UNAUTHORIZED);
    assert_int_equal(check(&c, "X-Token", "s3cret", true, false), CP_OK);
    cp_config open = config(false, loopback);
    assert_int_equal(check(&open, "Authorization", "Bearer some-session", false, false), CP_OK);
}

static void token_by_subprotocol_on_upgrades_only(void **state) {
    (void)state;
    cp_config c = config(true, loopback);
    assert_int_equal(check(&c, "Sec-WebSocket-Protocol", "conflux, bearer.s3cret", false, true), CP_OK);
    assert_int_equal(check(&c, "Sec-WebSocket-Protocol", "bearer.s3cret", false, true), CP_OK);
    assert_int_equal(check(&c, "Sec-WebSocket-Protocol", "conflux, bearer.s3cret", false, false), CP_E_UNAUTHORIZED);
    assert_int_equal(check(&c, "Sec-WebSocket-Protocol", "conflux, bearer.wrong", false, true), CP_E_UNAUTHORIZED);
    assert_int_equal(check(&c, "Sec-WebSocket-Protocol", "conflux", false, true), CP_E_UNAUTHORIZED);
    assert_int_equal(check(&c, "Sec-WebSocket-Protocol", ",,bearer.,", false, true), CP_E_UNAUTHORIZED);
}

static void the_token_is_kept_from_handlers(void **state) {
    (void)state;
    for (int token = 0; token < 2; token++) {
        cp_config c = config(token, loopback);
        cp_gate g = {.config = &c, .port = 3000};
        cp_header h[] = {{CP_STR("AUTHORIZATION"), CP_STR("Bearer s3cret")},
                         {CP_STR("X-Session-Id"), CP_STR("a")},
                         {CP_STR("Sec-WebSocket-Protocol"), CP_STR("bearer.s3cret")}};
        size_t n = cp_gate_strip(&g, h, 3);
        assert_int_equal(n, token ? 1 : 3);
        if (token) assert_true(cp_str_is(h[0].name, "X-Session-Id"));
    }
}

static void cors_lines(void **state) {
    (void)state;
    cp_buf b = {0};
    cp_cors_headers((cp_str){0}, &b);
    assert_string_equal(cp_buf_z(&b), "Access-Control-Allow-Origin: *\r\nVary: Origin\r\n"
                                      "Access-Control-Allow-Methods: GET, POST, PUT, DELETE, OPTIONS\r\n"
                                      "Access-Control-Allow-Headers: Content-Type, Authorization, X-Access-Token, "
                                      "X-Session-Id, X-Sandbox-Id, X-Trace-Id\r\n");
    cp_buf_clear(&b);
    cp_cors_headers(CP_STR("https://app.example"), &b);
    assert_memory_equal(b.p, "Access-Control-Allow-Origin: https://app.example\r\n", 50);
    cp_buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(origin_is_ours_or_listed),
        cmocka_unit_test(a_second_origin_does_not_hide),
        cmocka_unit_test(what_foreign_pages_load_is_refused),
        cmocka_unit_test(null_cannot_be_listed),
        cmocka_unit_test(host_on_loopback),
        cmocka_unit_test(token_by_header),
        cmocka_unit_test(token_by_subprotocol_on_upgrades_only),
        cmocka_unit_test(the_token_is_kept_from_handlers),
        cmocka_unit_test(cors_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
