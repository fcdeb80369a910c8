/* What is shipped: the examples run, and each program and library shows and links only what it should. */
#include "component/client_fixture.h"

static char build[256];

/* Standard output of a shell command; its exit status must be 0. */
static const char *output_of(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static const char *output_of(const char *fmt, ...) {
    static char text[65536];
    char command[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(command, sizeof command, fmt, ap);
    va_end(ap);
    FILE *p = popen(command, "re");
    assert_non_null(p);
    text[fread(text, 1, sizeof text - 1, p)] = '\0';
    if (pclose(p) != 0) fail_msg("%s: %s", command, text);
    return text;
}

static void expect(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("no %s in: %s", part, text);
}

static void t_fetch(void **state) {
    (void)state;
    expect(output_of("%s/examples/fetch %s", build, srv.url), "\"stdout\":\"hello\"");
}

static void t_stream(void **state) {
    (void)state;
    const char *text = output_of("%s/examples/stream %s 'printf \"a\"; exit 4'", build, srv.url);
    expect(text, "\"type\":\"stdout\",\"data\":\"a\"");
    expect(text, "\"type\":\"complete\",\"exitCode\":4");
}

static void t_callbacks(void **state) {
    (void)state;
    static const char *const modes[] = {"auto", "websocket", "http"};
    for (size_t i = 0; i < 3; i++) {
        const char *text = output_of("%s/examples/callbacks %s %s 2>&1", build, srv.url, modes[i]);
        expect(text, "100 calls, 0 failed");
        expect(text, i == 2 ? "now connected by http" : "now connected by websocket");
    }
}

/* Nothing but the interface: what is ours inside must not meet what a program has of the same name. */
static void t_names(void **state) {
    (void)state;
    static const char count[] =
        "nm %s %s | awk '$2 == \"T\" || $2 == \"D\" || $2 == \"B\" || $2 == \"R\" {print $3}' | grep -v '^__' | ";
    const char *const libraries[][2] = {{"-D --defined-only", "libconflux.so"}, {"-g --defined-only", "libconflux.a"}};
    for (size_t i = 0; i < 2; i++) {
        char path[300], command[700];
        snprintf(path, sizeof path, "%s/transport/client/%s", build, libraries[i][1]);
        int n = snprintf(command, sizeof command, count, libraries[i][0], path);
        snprintf(command + n, sizeof command - (size_t)n, "grep -vc '^conflux_' || true");
        assert_string_equal(output_of("%s", command), "0\n");
        snprintf(command + n, sizeof command - (size_t)n, "grep -c '^conflux_'");
        assert_true(strtol(output_of("%s", command), NULL, 10) > 20);
    }
}

/* libcurl and OpenSSL cost a program megabytes: they are for clients. */
static void t_server_links_no_curl(void **state) {
    (void)state;
    static const char *const programs[] = {"conflux", "conflux-server"};
    for (size_t i = 0; i < 2; i++) {
        const char *text = output_of("ldd %s/%s", build, programs[i]);
        expect(text, "libc.so");
        if (strstr(text, "libcurl") || strstr(text, "libssl") || strstr(text, "libconflux")) fail_msg("%s", text);
    }
}

static int start(void **state) {
    const char *bin = getenv("CONFLUX_BIN");
    snprintf(build, sizeof build, "%s", bin ? bin : "./conflux");
    *strrchr(build, '/') = '\0';
    return srv_start(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_fetch),
        cmocka_unit_test(t_stream),
        cmocka_unit_test(t_callbacks),
        cmocka_unit_test(t_names),
        cmocka_unit_test(t_server_links_no_curl),
    };
    return cmocka_run_group_tests(tests, start, srv_stop);
}
