/* The command line's options, its configuration file, and what it lets onto a terminal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/args.h"
#include "cli/say.h"
#include "cli/settings.h"

#include <stdlib.h>
#include <string.h>

static cli_args args;
static cp_err err;

static int read_args(const char *command, const char *const argv[]) {
    cli_args_free(&args);
    err = (cp_err){0};
    return cli_args_read(&args, cli_command_find(command), (char **)(uintptr_t)argv, &err);
}
#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void refuses(const char *command, const char *const argv[], const char *part) {
    assert_int_equal(read_args(command, argv), -1);
    if (!strstr(err.msg, part)) fail_msg("no \"%s\" in: %s", part, err.msg);
}

/* ---- options ---- */

static void t_forms(void **state) {
    (void)state;
    assert_int_equal(read_args("ps", ARGS("--status", "running", "-sS", "--limit=3", "--json", "-v")), 0);
    assert_string_equal(args.value[CLI_OPT_status], "running");
    assert_string_equal(args.value[CLI_OPT_session], "S");
    assert_string_equal(args.value[CLI_OPT_limit], "3");
    assert_true(cli_flag(&args, CLI_OPT_json));
    assert_true(cli_flag(&args, CLI_OPT_verbose));
    assert_false(cli_flag(&args, CLI_OPT_insecure));
    assert_int_equal(read_args("ls", ARGS("-lar", "x", "-s", "T", "y")), 0);
    assert_true(cli_flag(&args, CLI_OPT_details) && cli_flag(&args, CLI_OPT_hidden));
    assert_true(cli_flag(&args, CLI_OPT_recursive));
    assert_int_equal(args.noperands, 2);
    assert_string_equal(args.operands[1], "y");
    assert_null(args.operands[2]);
    assert_int_equal(read_args("ls", ARGS("--", "-l", "--json")), 0);
    assert_int_equal(args.noperands, 2);
    assert_false(cli_flag(&args, CLI_OPT_json));
    assert_int_equal(read_args("ls", ARGS("-")), 0);
    assert_int_equal(args.noperands, 1);
}

static void t_leading(void **state) {
    (void)state;
    assert_int_equal(read_args("exec", ARGS("-e", "A=1", "-e", "B", "ls", "-l", "--", "--json")), 0);
    assert_int_equal(args.noperands, 4);
    assert_string_equal(args.operands[2], "--");
    assert_false(cli_flag(&args, CLI_OPT_json));
    assert_int_equal(args.nenv, 2);
    assert_string_equal(args.env[0], "A=1");
    assert_string_equal(args.env[1], "B");
    assert_int_equal(read_args("exec", ARGS("--", "-x")), 0);
    assert_string_equal(args.operands[0], "-x");
}

/* The same long name with and without a value, by command. */
static void t_same_name(void **state) {
    (void)state;
    assert_int_equal(read_args("exec", ARGS("--stream", "cmd")), 0);
    assert_true(cli_flag(&args, CLI_OPT_beside));
    assert_int_equal(args.noperands, 1);
    assert_int_equal(read_args("logs", ARGS("--stream", "stderr", "id")), 0);
    assert_string_equal(args.value[CLI_OPT_stream_of], "stderr");
    assert_int_equal(read_args("kill", ARGS("--all")), 0);
    assert_true(cli_flag(&args, CLI_OPT_every));
    assert_int_equal(read_args("ls", ARGS("--all")), 0);
    assert_true(cli_flag(&args, CLI_OPT_hidden));
}

static void t_refused(void **state) {
    (void)state;
    refuses("ps", ARGS("--nope"), "no option --nope (see conflux ps --help)");
    refuses("ps", ARGS("--follow"), "no option --follow");
    refuses("ps", ARGS("-Z"), "no option -Z");
    refuses("ps", ARGS("-\033"), "no option -?");
    refuses("ps", ARGS("--limit"), "--limit needs a value: N");
    refuses("ps", ARGS("-s"), "-s needs a value: ID");
    refuses("ps", ARGS("--json=yes"), "--json takes no value");
    refuses("ps", ARGS("--mode", "web"), "--mode takes auto|websocket|http, not \"web\"");
    refuses("ps", ARGS("--mode", "auto|websocket"), "--mode takes");
    refuses("ps", ARGS("x"), "unexpected argument \"x\"");
    refuses("logs", ARGS("a", "b"), "usage: conflux logs [options] ID");
    refuses("signal", ARGS("id"), "usage: conflux signal [options] ID SIGNAL");
    assert_int_equal(read_args("signal", ARGS("--help")), 0);
}

static void t_durations(void **state) {
    static const struct {
        const char *text;
        uint64_t ms;
    } good[] = {{"5", 5000},  {"0", 0},       {"1.5", 1500},   {"500ms", 500},
                {"2s", 2000}, {"2m", 120000}, {"1h", 3600000}, {"0.25h", 900000}};
    static const char *const bad[] = {"", "-1", "soon", "5x", "5 s", "1e9", "inf", "nan", ".5", "8000h", "5s5"};
    (void)state;
    for (size_t i = 0; i < CP_COUNT(good); i++) {
        uint64_t ms = 77;
        assert_int_equal(cli_duration(good[i].text, "it", &ms, &err), 0);
        assert_int_equal(ms, good[i].ms);
    }
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        uint64_t ms = 77;
        if (cli_duration(bad[i], "it", &ms, &err) == 0) fail_msg("\"%s\" is no time", bad[i]);
        assert_int_equal(ms, 77);
    }
}

/* Every command is found, and no letter or name means two things in one command. */
static void t_table(void **state) {
    (void)state;
    for (size_t c = 0; c < CLI_NCOMMANDS; c++) {
        const cli_command *cmd = &cli_commands[c];
        assert_ptr_equal(cli_command_find(cmd->name), cmd);
        for (size_t i = 0; i < CLI_NOPTIONS; i++) {
            const cli_option *o = &cli_options[i];
            if (!cli_has(cmd, i)) continue;
            assert_ptr_equal(cli_option_find(cmd, o->name, strlen(o->name)), o);
            if (o->letter) assert_ptr_equal(cli_option_letter(cmd, o->letter), o);
        }
    }
    assert_null(cli_command_find("serve"));
    assert_null(cli_command_find(""));
}

/* ---- settings ---- */

static int lines(cli_settings *s, const char *text) {
    for (const char *p = text, *end; *p; p = *end ? end + 1 : end) {
        end = strchrnul(p, '\n');
        if (cli_settings_line(s, (cp_str){p, (size_t)(end - p)}, &err) < 0) return -1;
    }
    return 0;
}

static void t_config(void **state) {
    cli_settings s = {0};
    (void)state;
    assert_int_equal(lines(&s, "# comment\n\n  url=http://x:1 \r\n\ttoken = a = b\nmode = http\ninsecure = true\n"
                               "connect-timeout = 250ms\ncacert = /with blank/ca.pem\n"),
                     0);
    assert_string_equal(s.url, "http://x:1");
    assert_string_equal(s.token, "a = b");
    assert_string_equal(s.mode, "http");
    assert_string_equal(s.cacert, "/with blank/ca.pem");
    assert_true(s.insecure);
    assert_int_equal(s.connect_timeout_ms, 250);
    cli_settings_free(&s);
}

static void t_config_precedence(void **state) {
    cli_settings s = {.url = strdup("http://flag"), .connect_timeout_ms = 7};
    (void)state;
    assert_int_equal(lines(&s, "url = http://file\nconnect-timeout = 9\ntoken-file = /t\ntoken = late\n"), 0);
    assert_string_equal(s.url, "http://flag");
    assert_int_equal(s.connect_timeout_ms, 7);
    assert_string_equal(s.token_file, "/t"); /* token and file are one setting: the first counts */
    assert_null(s.token);
    cli_settings_free(&s);
}

static void t_config_refused(void **state) {
    static const char *const bad[] = {
        "nonsense", "colour = blue", "url =", "= x", "insecure = perhaps", "connect-timeout = soon"};
    (void)state;
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        cli_settings s = {0};
        if (cli_settings_line(&s, cp_str_of(bad[i]), &err) == 0) fail_msg("\"%s\" is no setting", bad[i]);
        cli_settings_free(&s);
    }
}

static void t_token_is_wiped(void **state) {
    char token[] = "secret-token", flag[] = "--token";
    cli_settings s;
    (void)state;
    setenv("XDG_CONFIG_HOME", "/nonexistent", 1);
    setenv("CONFLUX_TOKEN", "another-secret", 1);
    const char *in_environment = getenv("CONFLUX_TOKEN");
    assert_int_equal(read_args("ps", ARGS(flag, token)), 0);
    assert_int_equal(cli_settings_read(&s, &args, &err), 0);
    assert_string_equal(s.token, "secret-token");
    for (size_t i = 0; i < sizeof token; i++) assert_int_equal(token[i], 0);
    assert_null(getenv("CONFLUX_TOKEN"));
    assert_int_equal(in_environment[0], 0);
    assert_string_equal(s.url, CLI_DEFAULT_URL);
    assert_string_equal(s.mode, "auto");
    cli_settings_free(&s);
}

/* ---- what is printed ---- */

static void cleaned(const char *in, const char *out) {
    cp_buf b = {0};
    cli_clean(&b, cp_str_of(in));
    assert_string_equal(cp_buf_z(&b), out);
    cp_buf_free(&b);
}

static void t_clean(void **state) {
    (void)state;
    cleaned("plain ü € 𝄞", "plain ü € 𝄞");
    cleaned("a\033[31mb\007", "a\\x1b[31mb\\x07");
    cleaned("tab\tline\nback\\slash\x7f", "tab\\tline\\nback\\\\slash\\x7f");
    cleaned("\xc2\x9b"
            "31m",
            "\\u{9b}31m"); /* CSI as one character */
    cleaned("\x9b"
            "31m\xff\xe2\x82",
            "\\x9b31m\\xff\\xe2\\x82"); /* no UTF-8 */
    cleaned("\xe2\x80\xae"
            "drow",
            "\\u{202e}drow"); /* right to left */
}

static void t_clean_json(void **state) {
    cp_buf b = {0};
    (void)state;
    cli_clean_json(&b, CP_STR("{\"a\":\"\x7f\xc2\x9b\xe2\x80\xaeü\\u001b\"}\n"));
    assert_string_equal(cp_buf_z(&b), "{\"a\":\"\\u007f\\u009b\\u202eü\\u001b\"}\n");
    cp_buf_free(&b);
}

static void t_bytes(void **state) {
    static const struct {
        uint64_t n;
        const char *text;
    } cases[] = {{0, "0 B"},        {1023, "1023 B"},     {1024, "1.0 KiB"},
                 {1536, "1.5 KiB"}, {1 << 20, "1.0 MiB"}, {UINT64_MAX, "16.0 EiB"}};
    char out[24];
    (void)state;
    for (size_t i = 0; i < CP_COUNT(cases); i++) {
        cli_bytes(out, cases[i].n);
        assert_string_equal(out, cases[i].text);
    }
}

static void t_rows(void **state) {
    cli_table t = {0};
    cp_buf b = {0};
    (void)state;
    cli_table_row(&t, (const char *[]){"ID", "NAME"}, 2);
    cli_table_row(&t, (const char *[]){"1", "long\033name"}, 2);
    cli_table_row(&t, (const char *[]){"ü234", ""}, 2);
    cli_table_put(&t, 12, &b);
    assert_string_equal(cp_buf_z(&b), "ID    NAME\n1     long\\x\nü234  -\n");
    assert_null(t.cells);
    cp_buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_forms),          cmocka_unit_test(t_leading),
        cmocka_unit_test(t_same_name),      cmocka_unit_test(t_refused),
        cmocka_unit_test(t_durations),      cmocka_unit_test(t_table),
        cmocka_unit_test(t_config),         cmocka_unit_test(t_config_precedence),
        cmocka_unit_test(t_config_refused), cmocka_unit_test(t_token_is_wiped),
        cmocka_unit_test(t_clean),          cmocka_unit_test(t_clean_json),
        cmocka_unit_test(t_bytes),          cmocka_unit_test(t_rows),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cli_args_free(&args);
    return failed;
}
