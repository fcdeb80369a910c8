/* Options: precedence, refusals that name the option, and the text from keeper to server. */
#include "config.h"

#include "base/sha.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void clear_env(void) {
    unsetenv("CONFLUX_PORT");
    unsetenv("CONFLUX_TOKEN");
    unsetenv("CONFLUX_ALLOW_ORIGIN");
    setenv("CONFLUX_CONFIG", "/dev/null", 1);
}

enum { MAX_ARGS = 16 };

static int load(cp_config *cfg, cp_err *err, const char *const argv[MAX_ARGS]) {
    char *args[MAX_ARGS], **cmd;
    cp_run run;
    memcpy(args, argv, sizeof args);
    *cfg = (cp_config){0};
    return cp_config_load(cfg, args, &cmd, &run, err);
}
#define LOAD(cfg, err, ...) load(cfg, err, (const char *[MAX_ARGS]){__VA_ARGS__})

static void test_defaults(void **state) {
    (void)state;
    clear_env();
    cp_config c;
    cp_err err;
    assert_int_equal(LOAD(&c, &err), 0);
    assert_string_equal(c.host, "127.0.0.1");
    assert_int_equal(c.port, 3000);
    assert_int_equal(c.max_message, 16 << 20);
    assert_false(c.insecure);
    assert_false(c.has_token);
    assert_int_equal(c.allow_origin.n, 0);
    cp_config_free(&c);
}

static void write_file(char path[], const char *text) {
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static void test_flag_beats_environment_beats_file_beats_default(void **state) {
    (void)state;
    clear_env();
    char path[] = "/tmp/cp-config-XXXXXX";
    write_file(path, "# a comment\nport = 1001\n keep-alive=7k \nlog-level = debug\n");
    cp_config c;
    cp_err err;
    assert_int_equal(LOAD(&c, &err, "--config", path), 0);
    assert_int_equal(c.port, 1001);
    assert_int_equal(c.keepalive, 7168);
    assert_string_equal(c.log_level, "debug");
    cp_config_free(&c);
    setenv("CONFLUX_PORT", "1002", 1);
    assert_int_equal(LOAD(&c, &err, "--config", path), 0);
    assert_int_equal(c.port, 1002);
    cp_config_free(&c);
    assert_int_equal(LOAD(&c, &err, "--config", path, "--port=1003"), 0);
    assert_int_equal(c.port, 1003);
    cp_config_free(&c);
    unlink(path);
}

static void test_lists_repeat_and_split(void **state) {
    (void)state;
    clear_env();
    cp_config c;
    cp_err err;
    assert_int_equal(LOAD(&c, &err, "--allow-origin", "https://a", "--allow-origin", "https://b"), 0);
    assert_int_equal(c.allow_origin.n, 2);
    assert_string_equal(c.allow_origin.v[1], "https://b");
    cp_config_free(&c);
    setenv("CONFLUX_ALLOW_ORIGIN", "https://x, https://y,", 1);
    assert_int_equal(LOAD(&c, &err), 0);
    assert_int_equal(c.allow_origin.n, 2);
    assert_string_equal(c.allow_origin.v[0], "https://x");
    assert_string_equal(c.allow_origin.v[1], "https://y");
    cp_config_free(&c);
}

static void refused(const char *needle, const char *const argv[MAX_ARGS]) {
    cp_config c;
    cp_err err = {0};
    assert_int_equal(load(&c, &err, argv), -1);
    if (!strstr(err.msg, needle)) fail_msg("\"%s\" does not name %s", err.msg, needle);
    cp_config_free(&c);
}
#define REFUSED(needle, ...) refused(needle, (const char *[MAX_ARGS]){__VA_ARGS__})

static void test_bad_options_are_named(void **state) {
    (void)state;
    clear_env();
    REFUSED("--nonsense", "--nonsense");
    REFUSED("port", "--port", "65536");
    REFUSED("port", "--port", "12x");
    REFUSED("port", "--port=-1");
    REFUSED("--port", "--port");
    REFUSED("insecure", "--insecure=maybe");
    REFUSED("stray", "stray");
    REFUSED("behind --", "--");
    REFUSED("/no/such/file", "--config", "/no/such/file");
    REFUSED("/no/such/token", "--token-file", "/no/such/token");
    setenv("CONFLUX_PORT", "abc", 1);
    REFUSED("CONFLUX_PORT", "--insecure");
    clear_env();
    char path[] = "/tmp/cp-config-XXXXXX";
    write_file(path, "\nprot = 3\n");
    REFUSED(":2: unknown option prot", "--config", path);
    unlink(path);
}

static void test_command_behind_dashes(void **state) {
    (void)state;
    clear_env();
    cp_config c = {0};
    cp_err err;
    char **cmd;
    cp_run run;
    char insecure[] = "--insecure", dashes[] = "--", sleep_[] = "sleep", port[] = "--port";
    char *argv[] = {insecure, dashes, sleep_, port, NULL};
    assert_int_equal(cp_config_load(&c, argv, &cmd, &run, &err), 0);
    assert_string_equal(cmd[0], "sleep");
    assert_string_equal(cmd[1], "--port");
    assert_null(cmd[2]);
    cp_config_free(&c);
}

/* SHA-256("correct horse battery"), computed with sha256sum. */
static const char token[] = "correct horse battery";

static void test_token_is_hashed_and_wiped(void **state) {
    (void)state;
    clear_env();
    uint8_t want[32];
    cp_sha256_of(token, strlen(token), want);
    setenv("CONFLUX_TOKEN", token, 1);
    char *where = getenv("CONFLUX_TOKEN");
    cp_config c;
    cp_err err;
    assert_int_equal(LOAD(&c, &err), 0);
    assert_true(c.has_token);
    assert_memory_equal(c.token_sha256, want, 32);
    assert_null(getenv("CONFLUX_TOKEN"));
    for (size_t i = 0; i < strlen(token); i++) assert_int_equal(where[i], 0);
    cp_config_free(&c);
    char path[] = "/tmp/cp-token-XXXXXX";
    write_file(path, "correct horse battery\nsecond line\n");
    assert_int_equal(LOAD(&c, &err, "--token-file", path), 0);
    assert_memory_equal(c.token_sha256, want, 32);
    cp_config_free(&c);
    unlink(path);
    setenv("CONFLUX_TOKEN", "short", 1);
    REFUSED("CONFLUX_TOKEN", "--insecure");
    clear_env();
}

static void test_open_address_needs_a_token(void **state) {
    (void)state;
    clear_env();
    cp_config c;
    cp_err err;
    assert_int_equal(LOAD(&c, &err, "--host", "0.0.0.0"), 0);
    assert_int_equal(cp_config_resolve(&c, &err), -1);
    assert_non_null(strstr(err.msg, "--insecure"));
    cp_config_free(&c);
    char dir[] = "/tmp/cp-config-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char state_dir[64], work[64];
    snprintf(state_dir, sizeof state_dir, "%s/a/state", dir);
    snprintf(work, sizeof work, "%s/work", dir);
    assert_int_equal(LOAD(&c, &err, "--host", "0.0.0.0", "--insecure", "--state", state_dir, "--workspace", work), 0);
    assert_int_equal(cp_config_resolve(&c, &err), 0);
    struct stat st;
    assert_int_equal(stat(state_dir, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_string_equal(c.workspace, work);
    cp_config_free(&c);
    rmdir(work);
    rmdir(state_dir);
    snprintf(state_dir, sizeof state_dir, "%s/a", dir);
    rmdir(state_dir);
    rmdir(dir);
}

static void test_text_round_trip(void **state) {
    (void)state;
    clear_env();
    setenv("CONFLUX_TOKEN", token, 1);
    cp_config a, b = {0};
    cp_err err;
    assert_int_equal(LOAD(&a, &err, "--workspace", "/odd\\dir\nname", "--allow-host", "h1", "--allow-host", "h2",
                          "--insecure", "--max-body", "2G"),
                     0);
    cp_buf text = {0};
    cp_config_encode(&a, &text);
    assert_null(strstr(cp_buf_z(&text), "horse"));
    assert_int_equal(cp_config_decode(&b, cp_buf_str(&text), &err), 0);
    assert_string_equal(b.workspace, "/odd\\dir\nname");
    assert_int_equal(b.allow_host.n, 2);
    assert_string_equal(b.allow_host.v[1], "h2");
    assert_true(b.insecure);
    assert_int_equal(b.max_body, (int64_t)2 << 30);
    assert_true(b.has_token);
    assert_memory_equal(a.token_sha256, b.token_sha256, 32);
    cp_buf_free(&text);
    cp_config_free(&a);
    cp_config_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_flag_beats_environment_beats_file_beats_default),
        cmocka_unit_test(test_lists_repeat_and_split),
        cmocka_unit_test(test_bad_options_are_named),
        cmocka_unit_test(test_command_behind_dashes),
        cmocka_unit_test(test_token_is_hashed_and_wiped),
        cmocka_unit_test(test_open_address_needs_a_token),
        cmocka_unit_test(test_text_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
