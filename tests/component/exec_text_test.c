/* The text of a command: run whole, kept by its head (services/exec_text.c). */
#include "base/budget.h"
#include "base/fd.h"
#include "base/sha.h"
#include "component/services_fixture.h"
#include "services/exec_core.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum { LONG = 300000 };

/* Owner frees: a comment of LONG bytes, in which a character lies across the end of the head; then the command. */
static char *long_text(const char *command) {
    cp_buf b = {0};
    cp_buf_addc(&b, '#');
    while (b.n < CP_COMMAND_HEAD - 1) cp_buf_addc(&b, 'x');
    cp_buf_addz(&b, "é");
    while (b.n < LONG) cp_buf_addc(&b, 'y');
    cp_buf_addf(&b, "\n%s", command);
    (void)cp_buf_z(&b);
    return b.p;
}

static void file_of(const char *id, char path[160]) { snprintf(path, 160, "%s/logs/%s.cmd", fx.dir, id); }
static bool has_file(const char *id) {
    char path[160];
    file_of(id, path);
    return access(path, F_OK) == 0;
}

static size_t files(void) {
    char command[160], n[24] = "";
    snprintf(command, sizeof command, "ls %s/logs | grep -c cmd", fx.dir);
    FILE *f = popen(command, "r"); /* NOLINT(bugprone-command-processor) */
    assert_non_null(fgets(n, sizeof n, f));
    pclose(f);
    return strtoul(n, NULL, 10);
}

static void expect_head(const cp_exec *e, const char *text) {
    uint8_t sha[32];
    cp_sha256_of(text, strlen(text), sha);
    assert_true(e->command_truncated);
    assert_int_equal(strlen(e->command), CP_COMMAND_HEAD - 1);
    assert_memory_equal(e->command, text, CP_COMMAND_HEAD - 1);
    assert_int_equal(e->command_length, strlen(text));
    assert_memory_equal(e->command_sha256, sha, sizeof sha);
}

static void expect_file(const char *id, const char *text) {
    char path[160];
    cp_autofree char *got = NULL;
    size_t n;
    file_of(id, path);
    assert_int_equal(cp_read_file(path, 1 << 20, &got, &n), 0);
    assert_int_equal(n, strlen(text));
    assert_memory_equal(got, text, n);
}

static void head_of_a_text(void **state) {
    (void)state;
    cp_buf b = {0};
    for (size_t i = 0; i < CP_COMMAND_WHOLE + 1; i++) cp_buf_addc(&b, 'x');
    assert_int_equal(cp_command_head((cp_str){b.p, CP_COMMAND_WHOLE}), CP_COMMAND_WHOLE);
    assert_int_equal(cp_command_head(cp_buf_str(&b)), CP_COMMAND_HEAD);
    static const char *const characters[] = {"\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"};
    for (size_t k = 0; k < CP_COUNT(characters); k++) {
        size_t n = strlen(characters[k]);
        for (size_t cut = 1; cut <= n; cut++) { /* so much of it lies before the end of the head */
            memset(b.p, 'x', b.n);
            memcpy(b.p + CP_COMMAND_HEAD - cut, characters[k], n);
            assert_int_equal(cp_command_head(cp_buf_str(&b)), cut == n ? CP_COMMAND_HEAD : CP_COMMAND_HEAD - cut);
        }
    }
    cp_buf_free(&b);
}

static void every_backend_runs_all_of_it(void **state) {
    (void)state;
    cp_autofree char *text = long_text("echo \"ran ${#BASH_EXECUTION_STRING}\"; sleep 1000");
    const struct {
        cp_exec_kind kind;
        const char *session, *id;
    } ways[] = {
        {CP_EXEC_BUFFERED, NULL, NULL}, {CP_EXEC_BUFFERED, NULL, "b"}, {CP_EXEC_STREAM, NULL, NULL},
        {CP_EXEC_PROCESS, NULL, NULL},  {CP_EXEC_BUFFERED, "s", NULL}, {CP_EXEC_BUFFERED, "s", "bs"},
        {CP_EXEC_PROCESS, "s", NULL},
    };
    for (size_t i = 0; i < CP_COUNT(ways); i++) {
        struct run r;
        cp_exec_spec s = {.kind = ways[i].kind, .command = cp_str_of(text), .session = cp_str_of(ways[i].session)};
        s.sessionless = !ways[i].session;
        s.exec_id = cp_str_of(ways[i].id);
        run_begin(&r, &s);
        fx_until(r.starts && cp_output_total(r.e->out[0]) > 0);
        expect_head(r.e, text);
        assert_int_equal(cp_budget_held(CP_MEM_COMMANDS), 0); /* while it runs */
        assert_int_equal(has_file(r.e->id), r.e->durable);
        if (r.e->durable) expect_file(r.e->id, text);
        assert_int_equal(cp_exec_kill(r.e, SIGKILL, 0, CP_OUTCOME_cancelled, NULL, NULL, NULL), 0);
        run_wait(&r);
        run_free(&r);
    }
}

static void what_waits_is_counted(void **state) {
    (void)state;
    struct run first, r[4];
    cp_err err = {0};
    cp_autofree char *text = long_text("echo ran");
    cp_budget_open(1 << 21); /* half of it is for commands: three of these */
    cp_exec_spec s = {.command = CP_STR("read x; echo $x"), .session = CP_STR("s"), .stdin_open = true};
    run_begin(&first, &s);
    fx_until(first.starts);
    s = (cp_exec_spec){.command = cp_str_of(text), .session = CP_STR("s")};
    for (int i = 0; i < 3; i++) run_begin(&r[i], &s);
    assert_int_equal(cp_budget_held(CP_MEM_COMMANDS), 3 * strlen(text));
    assert_int_equal(run_try(&r[3], &s, &err), -1);
    assert_int_equal(err.code, CP_E_LIMIT_EXCEEDED);
    assert_string_equal(err.field, "command");
    cp_autofree char *value = long_text("");
    cp_env_var var = {CP_STR("V"), {value, 131000}};
    cp_exec_spec with_env = {.command = CP_STR("true"), .sessionless = true, .env = &var, .nenv = 1};
    err = (cp_err){0};
    cp_budget_open(1 << 20);
    assert_int_equal(run_try(&r[3], &with_env, &err), -1);
    assert_string_equal(err.field, "env");
    cp_budget_open(1 << 30);
    assert_int_equal(cp_exec_stdin(first.e, CP_STR("go\n"), true, NULL, &err), 0);
    run_wait(&first);
    run_free(&first);
    for (int i = 0; i < 3; i++) {
        run_wait(&r[i]);
        cp_autofree char *out = run_output(&r[i], 0);
        assert_string_equal(out, "ran\n");
        run_free(&r[i]);
    }
    assert_int_equal(cp_budget_held(CP_MEM_COMMANDS), 0);
}

static void it_counts_with_the_logs_and_goes_with_them(void **state) {
    (void)state;
    enum { N = 5 };
    char ids[N][64];
    cp_autofree char *text = long_text("true");
    fx.config.log_total = 1000000; /* three of them */
    for (int i = 0; i < N; i++) {
        struct run r;
        cp_exec_spec s = {.kind = CP_EXEC_PROCESS, .sessionless = true, .command = cp_str_of(text)};
        run_begin(&r, &s);
        run_wait(&r);
        snprintf(ids[i], sizeof ids[i], "%s", r.e->id);
        run_free(&r);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(cp_exec_find(&fx.s, cp_str_of(ids[i])) != NULL, i >= N - 3);
        assert_int_equal(has_file(ids[i]), i >= N - 3);
    }
    fx_until(files() == 3);
}

/* Ended by its deadline, or by somebody, while its text is still on the way to the disk. */
static void one_that_ends_before_it_has_begun(void **state) {
    (void)state;
    struct run r;
    cp_autofree char *text = long_text("echo ran");
    cp_exec_spec s = {.kind = CP_EXEC_PROCESS, .sessionless = true, .command = cp_str_of(text)};
    run_begin(&r, &s);
    assert_int_equal(cp_exec_kill(r.e, SIGKILL, 0, CP_OUTCOME_cancelled, NULL, NULL, NULL), 0);
    run_wait(&r);
    fx_until(cp_budget_held(CP_MEM_COMMANDS) == 0);
    fx_until(files() == (has_file(r.e->id) ? 1 : 0));
    run_free(&r);
}

static void without_room_it_does_not_start(void **state) {
    (void)state;
    struct run r;
    struct rlimit all, little;
    cp_autofree char *text = long_text("echo ran");
    cp_exec_spec s = {.kind = CP_EXEC_PROCESS, .sessionless = true, .command = cp_str_of(text)};
    s.process_id = CP_STR("p");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &all), 0);
    little = (struct rlimit){.rlim_cur = 100000, .rlim_max = all.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    run_begin(&r, &s);
    run_wait(&r);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &all), 0);
    assert_int_equal(r.e->state, CP_STATE_FAILED);
    assert_int_equal(r.e->start_err->code, CP_E_NO_SPACE);
    run_free(&r);
    assert_int_equal(files(), 0);
    run_begin(&r, &s); /* it has not begun: another go */
    run_wait(&r);
    assert_int_equal(r.e->exit_code, 0);
    expect_file(r.e->id, text);
    run_free(&r);
}

/* ---- over a restart ---- */

static int setup_with_registry(void **state) {
    (void)state;
    cp_err err = {0};
    fx_loop();
    fx.s.registry = cp_registry_open(fx.loop, fx.dir, &err);
    if (!fx.s.registry) fail_msg("%s", err.msg);
    fx_open();
    return 0;
}

static void restart(void) {
    cp_err err = {0};
    cp_services_close(&fx.s);
    assert_int_equal(cp_registry_flush(fx.s.registry, NULL), 0);
    if (cp_services_open(&fx.s, &err) < 0) fail_msg("%s", err.msg);
}

static void longest_row(void *arg, const cp_exec_row *row) {
    size_t n = strlen(row->command);
    if (n > *(size_t *)arg) *(size_t *)arg = n;
}

static size_t longest_command(void) {
    size_t n = 0;
    assert_int_equal(cp_registry_flush(fx.s.registry, NULL), 0);
    assert_int_equal(cp_registry_each_exec(fx.s.registry, longest_row, &n, NULL), 0);
    return n;
}

static void the_next_server_has_the_same(void **state) {
    (void)state;
    struct run r;
    cp_autofree char *text = long_text("exit 6");
    cp_exec_spec s = {.sessionless = true, .command = cp_str_of(text), .exec_id = CP_STR("mine"), .fingerprint = {4}};
    run_begin(&r, &s);
    run_wait(&r);
    run_free(&r);
    assert_int_equal(longest_command(), CP_COMMAND_HEAD - 1);
    restart();
    run_begin(&r, &s);
    assert_true(r.existing);
    run_wait(&r);
    expect_head(r.e, text);
    expect_file("mine", text);
    assert_int_equal(r.e->exit_code, 6);
    run_free(&r);
    fx.config.log_total = 100000; /* it still counts */
    s.exec_id = CP_STR("next");
    s.command = CP_STR("true");
    run_begin(&r, &s);
    run_wait(&r);
    run_free(&r);
    assert_null(cp_exec_find(&fx.s, CP_STR("mine")));
    assert_false(has_file("mine"));
}

/* A row of a server that kept texts whole. */
static void a_former_kind_of_row_is_shortened(void **state) {
    (void)state;
    cp_autofree char *text = long_text("true");
    cp_exec_row row = {.id = "old", .process_id = "old", .kind = CP_ROW_PROCESS, .command = text, .state = "ended"};
    row.outcome = "exited";
    row.started_ms = cp_wall_ms() - 1000;
    row.ended_ms = cp_wall_ms();
    cp_registry_put_exec(fx.s.registry, &row, NULL);
    restart();
    cp_exec *e = cp_exec_find(&fx.s, CP_STR("old"));
    assert_non_null(e);
    expect_head(e, text);
    expect_file("old", text);
    assert_int_equal(longest_command(), CP_COMMAND_HEAD - 1);
    restart();
    expect_head(cp_exec_find(&fx.s, CP_STR("old")), text);
}

/* What runs on though its row was lost. */
static void a_text_is_read_from_its_file(void **state) {
    (void)state;
    char path[160];
    cp_autofree char *text = long_text("true");
    cp_exec *e = cp_exec_make(&fx.s, "lost", CP_EXEC_PROCESS);
    assert_false(cp_exec_text_load(e));
    file_of("lost", path);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    fclose(f);
    assert_true(cp_exec_text_load(e));
    expect_head(e, text);
    assert_int_equal(e->impl->text_bytes, strlen(text));
    cp_exec_unref(e);
}

static void a_text_that_no_row_names_is_swept(void **state) {
    (void)state;
    static const char *const names[] = {"exec_1700000000000_0123abcd", "~1-0", "notes"};
    for (size_t i = 0; i < CP_COUNT(names); i++) {
        char path[160];
        file_of(names[i], path);
        FILE *f = fopen(path, "we");
        assert_non_null(f);
        fclose(f);
    }
    restart();
    for (size_t i = 0; i < CP_COUNT(names); i++) assert_int_equal(has_file(names[i]), i == 2); /* not of ours */
}

int main(void) {
#define R(f) cmocka_unit_test_setup_teardown(f, setup_with_registry, fx_teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head_of_a_text),
        FX_TEST(every_backend_runs_all_of_it),
        FX_TEST(what_waits_is_counted),
        FX_TEST(it_counts_with_the_logs_and_goes_with_them),
        FX_TEST(one_that_ends_before_it_has_begun),
        FX_TEST(without_room_it_does_not_start),
        R(the_next_server_has_the_same),
        R(a_former_kind_of_row_is_shortened),
        R(a_text_is_read_from_its_file),
        R(a_text_that_no_row_names_is_swept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
