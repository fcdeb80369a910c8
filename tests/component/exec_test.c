/* Executions without a session, on a real keeper. Bnnn: shared field cases. */
#include "base/fd.h"
#include "component/services_fixture.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define ARGS(...) .args = (const cp_str[]){__VA_ARGS__}, .nargs = sizeof((const cp_str[]){__VA_ARGS__}) / sizeof(cp_str)

static void shell_results(void **state) {
    (void)state;
    cp_exec_spec s = shell_spec("printf out; printf err >&2; exit 7"); /* B009 */
    run_expect(&s, 7, "out", "err");
    s = shell_spec("nosuchcmd"); /* B006 */
    run_expect(&s, 127, "", "bash: line 1: nosuchcmd: command not found\n");
    s = shell_spec("cat <<'EOF'\nhello\nEOF");
    run_expect(&s, 0, "hello\n", "");
    s = shell_spec("cat");
    run_expect(&s, 0, "", "");
    s = shell_spec("kill -9 $$");
    run_expect(&s, 137, "", "");
}

static void argv_results(void **state) {
    (void)state;
    cp_exec_spec s = {.sessionless = true,
                      .command = CP_STR("printf"),
                      ARGS(CP_STR("printf"), CP_STR("%s-"), CP_STR("a b"), CP_STR("$X"))};
    run_expect(&s, 0, "a b-$X-", "");
}

static void expect_failure(const cp_exec_spec *spec, cp_code code, int sys, const char *in_message,
                           const char *status) {
    struct run r;
    run_begin(&r, spec);
    run_wait(&r);
    assert_int_equal(r.e->state, CP_STATE_FAILED);
    assert_int_equal(r.e->start_err->code, code);
    assert_int_equal(r.e->start_err->sys, sys);
    assert_non_null(strstr(r.e->start_err->msg, in_message));
    assert_string_equal(cp_exec_status(r.e), status);
    run_free(&r);
}

static void exec_failures_are_typed(void **state) {
    (void)state;
    cp_exec_spec s = {.sessionless = true, .command = CP_STR("nosuchcmd"), ARGS(CP_STR("nosuchcmd"))}; /* B006 */
    expect_failure(&s, CP_E_COMMAND_NOT_FOUND, ENOENT, "ENOENT", "failed");
    s = (cp_exec_spec){.sessionless = true, .command = CP_STR("/etc/passwd"), ARGS(CP_STR("/etc/passwd"))};
    expect_failure(&s, CP_E_COMMAND_PERMISSION_DENIED, EACCES, "EACCES", "failed");
    s = (cp_exec_spec){.sessionless = true, .command = CP_STR("true"), ARGS(CP_STR("true")), .cwd = CP_STR("/nope")};
    expect_failure(&s, CP_E_COMMAND_EXECUTION_ERROR, ENOENT, "'/nope'", "failed");
    s = shell_spec("true");
    s.cwd = CP_STR("/nope");
    expect_failure(&s, CP_E_COMMAND_EXECUTION_ERROR, 0, "'/nope'", "error");
    s = shell_spec("set -e; true"); /* not from the pool */
    s.cwd = CP_STR("/nope");
    expect_failure(&s, CP_E_COMMAND_EXECUTION_ERROR, ENOENT, "'/nope'", "error");
}

/* B043: the record stays. */
static void failed_process_is_listed(void **state) {
    (void)state;
    struct run r;
    cp_exec_spec s = {.kind = CP_EXEC_PROCESS, .sessionless = true, .command = CP_STR("/nope"), ARGS(CP_STR("/nope"))};
    run_begin(&r, &s);
    run_wait(&r);
    assert_ptr_equal(cp_exec_find_process(&fx.s, cp_str_of(r.e->process_id)), r.e);
    assert_string_equal(cp_exec_status(r.e), "failed");
    assert_int_equal(r.e->start_err->sys, ENOENT);
    run_free(&r);
}

/* B001: the reply is never ahead of the output. */
static void output_is_whole(void **state) {
    (void)state;
    enum { N = 300, PARALLEL = 16 };
    static struct run r[PARALLEL];
    for (int done = 0; done < N; done += PARALLEL) {
        cp_exec_spec s = shell_spec("echo hello");
        for (int i = 0; i < PARALLEL; i++) run_begin(&r[i], &s);
        for (int i = 0; i < PARALLEL; i++) {
            run_wait(&r[i]);
            cp_autofree char *out = run_output(&r[i], 0);
            assert_string_equal(out, "hello\n");
            assert_int_equal(r[i].e->exit_code, 0);
            run_free(&r[i]);
        }
    }
}

static void big_output_is_whole(void **state) {
    (void)state;
    struct run r;
    cp_exec_spec s = shell_spec("seq 1 200000; seq 1 50000 >&2");
    for (int i = 0; i < 5; i++) {
        run_begin(&r, &s);
        run_wait(&r);
        for (int k = 0; k < 2; k++) {
            cp_autofree char *out = run_output(&r, k);
            char *p = out;
            unsigned long want = 1, last = k ? 50000 : 200000;
            for (; want <= last && strtoul(p, &p, 10) == want && *p == '\n'; p++) want++;
            assert_int_equal(want, last + 1);
            assert_int_equal(*p, 0);
        }
        run_free(&r);
    }
}

/* B003: a descendant that keeps the pipe does not keep the reply; it lives on and meets no SIGPIPE. */
static void grandchild_does_not_hold_the_reply(void **state) {
    (void)state;
    struct run r;
    cp_autobuf cp_buf command = {0};
    cp_buf_addf(&command, "(for i in 1 2 3; do sleep 0.4; echo late || exit; done; echo alive >%s/mark) & echo started",
                fx.dir);
    cp_exec_spec s = shell_spec(cp_buf_z(&command));
    run_begin(&r, &s);
    run_wait(&r);
    cp_autofree char *out = run_output(&r, 0);
    assert_string_equal(out, "started\n");
    assert_int_equal(r.e->exit_code, 0);
    run_free(&r);
    char path[128];
    snprintf(path, sizeof path, "%s/mark", fx.dir);
    fx_until(access(path, F_OK) == 0);
}

/* B009, B103, B039. */
static void timeout_keeps_output(void **state) {
    (void)state;
    struct run r;
    char said[64];
    run_until_timeout(&r, shell_spec(""), "printf partial; trap '' TERM", "sleep 100");
    cp_autofree char *out = run_output(&r, 0);
    cp_autofree char *err = run_output(&r, 1);
    assert_string_equal(out, "partial");
    snprintf(said, sizeof said, "Command timed out after %" PRIu64 "ms", r.e->timeout_ms);
    assert_string_equal(err, said);
    assert_true(r.e->timed_out);
    assert_int_equal(r.e->exit_code, 124);
    assert_int_equal(r.e->signal, SIGKILL);
    run_free(&r);
}

/* B010, B012. */
static void stdin_of_a_command(void **state) {
    (void)state;
    struct run r;
    cp_err err;
    cp_exec_spec s = shell_spec("cat");
    s.stdin_data = CP_STR("given\n");
    run_expect(&s, 0, "given\n", "");

    s = shell_spec("echo hi");
    s.stdin_open = true;
    run_expect(&s, 0, "hi\n", "");

    s = shell_spec("cat");
    s.stdin_open = true;
    run_begin(&r, &s);
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("one "), false, NULL, &err), 0); /* before it has started */
    fx_until(r.starts);
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("two"), true, NULL, &err), 0);
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("three"), false, NULL, &err), -1);
    run_wait(&r);
    cp_autofree char *out = run_output(&r, 0);
    assert_string_equal(out, "one two");
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("late"), false, NULL, &err), -1);
    run_free(&r);

    s.timeout_ms = 100; /* nobody closes it */
    run_begin(&r, &s);
    run_wait(&r);
    assert_true(r.e->timed_out);
    run_free(&r);
}

static void stdin_of_a_durable_child_ends(void **state) {
    (void)state;
    struct run r;
    cp_err err;
    cp_exec_spec s = {.kind = CP_EXEC_PROCESS, .sessionless = true, .command = CP_STR("cat"), .stdin_open = true};
    run_begin(&r, &s);
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("data"), true, NULL, &err), 0);
    run_wait(&r);
    cp_autofree char *out = run_output(&r, 0);
    assert_string_equal(out, "data");
    assert_int_equal(r.e->exit_code, 0);
    run_free(&r);
}

/* Lets the command read its line from the fifo; waits until it has opened it. */
static void open_gate(const char *path) {
    cp_autofd int fd = -1;
    fx_until((fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC)) >= 0);
    assert_int_equal(write(fd, "go\n", 3), 3);
}

static unsigned receipts;
static void on_taken(cp_stdin_ack *a) {
    a->taken = NULL;
    receipts++;
}

/* A receipt comes when the pipe has taken the piece, not when it is queued; the rest of them when nobody will. */
static void stdin_receipts(void **state) {
    (void)state;
    struct run r;
    cp_err err;
    cp_autobuf cp_buf piece = {0};
    cp_stdin_ack acks[3] = {{.taken = on_taken}, {.taken = on_taken}, {.taken = on_taken}};
    char command[600], gate[200];
    snprintf(gate, sizeof gate, "%s/gate", fx.dir);
    assert_int_equal(mkfifo(gate, 0600), 0);
    snprintf(command, sizeof command, "read -r go < '%s'; head -c 500000 | wc -c; exec <&-; read -r go < '%s'", gate,
             gate);
    cp_exec_spec s = shell_spec(command);
    s.stdin_open = true;
    run_begin(&r, &s);
    fx_until(r.starts);
    receipts = 0;
    cp_buf_reserve(&piece, 500000);
    memset(piece.p, 'x', piece.n = 500000);
    assert_int_equal(cp_exec_stdin(r.e, cp_buf_str(&piece), false, &acks[0], &err), 0);
    assert_int_equal(receipts, 0); /* more than a pipe holds */
    open_gate(gate);
    fx_until(receipts == 1);
    assert_int_equal(cp_exec_stdin(r.e, cp_buf_str(&piece), false, &acks[1], &err), 0);
    fx_until(receipts == 2); /* it has closed its input */
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("x"), false, &acks[2], &err), -1);
    assert_int_equal(err.code, CP_E_RESOURCE_BUSY);
    open_gate(gate);
    run_wait(&r);
    cp_autofree char *out = run_output(&r, 0);
    assert_string_equal(out, "500000\n");
    assert_int_equal(receipts, 2);
    run_free(&r);
}

static void stdin_is_bounded(void **state) {
    (void)state;
    struct run r;
    cp_err err;
    cp_exec_spec s = shell_spec("sleep 100");
    s.stdin_open = true;
    run_begin(&r, &s);
    fx_until(r.starts);
    size_t n = 16 << 20;
    cp_autofree char *data = cp_alloc(n);
    assert_int_equal(cp_exec_stdin(r.e, (cp_str){data, n}, false, NULL, &err), 0);
    assert_int_equal(cp_exec_stdin(r.e, (cp_str){data, 1 << 20}, false, NULL, &err), -1);
    assert_int_equal(err.code, CP_E_LIMIT_EXCEEDED);
    assert_int_equal(cp_exec_kill(r.e, SIGKILL, 0, CP_OUTCOME_cancelled, NULL, NULL, &err), 0);
    run_wait(&r);
    assert_int_equal(r.e->outcome, CP_OUTCOME_cancelled);
    run_free(&r);
}

static void stdin_receipts_are_bounded(void **state) {
    (void)state;
    struct run r;
    cp_err err;
    cp_exec_spec s = shell_spec("sleep 100");
    s.stdin_open = true;
    run_begin(&r, &s);
    fx_until(r.starts);
    enum { MOST = 16384 };
    cp_autofree char *full = cp_alloc(1 << 20); /* more than a pipe holds */
    cp_autofree cp_stdin_ack *acks = cp_alloc((MOST + 1) * sizeof *acks);
    for (size_t i = 0; i <= MOST; i++) acks[i] = (cp_stdin_ack){.taken = on_taken};
    receipts = 0;
    assert_int_equal(cp_exec_stdin(r.e, (cp_str){full, 1 << 20}, false, NULL, &err), 0);
    for (size_t i = 0; i < MOST; i++) assert_int_equal(cp_exec_stdin(r.e, CP_STR("x"), false, &acks[i], &err), 0);
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("x"), false, &acks[MOST], &err), -1);
    assert_int_equal(err.code, CP_E_LIMIT_EXCEEDED);
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("x"), false, NULL, &err), 0); /* of bytes there is room */
    assert_int_equal(receipts, 0);
    assert_int_equal(cp_exec_kill(r.e, SIGKILL, 0, CP_OUTCOME_cancelled, NULL, NULL, &err), 0);
    run_wait(&r);
    assert_int_equal(receipts, MOST);
    run_free(&r);
}

static void large_stdin_arrives(void **state) {
    (void)state;
    size_t n = 8 << 20;
    cp_autofree char *data = cp_alloc(n);
    memset(data, 'x', n);
    cp_exec_spec s = shell_spec("wc -c");
    s.stdin_data = (cp_str){data, n};
    run_expect(&s, 0, "8388608\n", "");
    s = shell_spec("true"); /* nobody reads it */
    s.stdin_data = (cp_str){data, n};
    run_expect(&s, 0, "", "");
}

/* B014. */
static void long_script(void **state) {
    (void)state;
    cp_autobuf cp_buf b = {0};
    cp_buf_addc(&b, '#');
    for (int i = 0; i < 1 << 20; i++) cp_buf_addc(&b, 'x');
    cp_buf_addz(&b, "\necho ok $0; env | grep -c CONFLUX; ls /proc/self/fd");
    cp_exec_spec s = shell_spec(cp_buf_z(&b));
    run_expect(&s, 0, "ok bash\n0\n0\n1\n2\n3\n", "");
    s.kind = CP_EXEC_PROCESS;
    run_expect(&s, 0, "ok bash\n0\n0\n1\n2\n3\n", "");
}

/* B109: the cap is no failure. */
static void output_limit(void **state) {
    (void)state;
    struct run r;
    cp_exec_spec s = shell_spec("head -c 104857600 /dev/zero");
    s.max_output = 1 << 20;
    run_begin(&r, &s);
    run_wait(&r);
    assert_int_equal(r.e->exit_code, 0);
    assert_int_equal(cp_output_total(r.e->out[0]), 104857600);
    assert_int_equal(cp_output_kept(r.e->out[0]), 1 << 20);
    assert_true(cp_output_truncated(r.e->out[0]));
    assert_false(cp_output_truncated(r.e->out[1]));
    run_free(&r);
}

/* B110: with an id of its own, what the result leaves out can be fetched. */
static void cut_output_is_kept(void **state) {
    (void)state;
    struct run r;
    cp_exec_spec s = shell_spec("seq 1 500000");
    s.max_output = 4096;
    s.exec_id = CP_STR("cut");
    run_begin(&r, &s);
    run_wait(&r);
    assert_int_equal(r.e->max_output, 4096);
    assert_int_equal(cp_output_total(r.e->out[0]), 3388895);
    cp_autobuf cp_buf b = {0};
    uint64_t at;
    assert_int_equal(cp_output_read(r.e->out[0], 3388888, 100, &b, &at), 7);
    assert_memory_equal(b.p, "500000\n", 7);
    run_free(&r);
}

/* B020. */
static void same_id_runs_once(void **state) {
    (void)state;
    struct run a, b, c;
    cp_err err;
    cp_autobuf cp_buf command = {0};
    cp_buf_addf(&command, "echo x >>%s/once", fx.dir);
    cp_exec_spec s = shell_spec(cp_buf_z(&command));
    s.exec_id = CP_STR("job-1");
    s.fingerprint[0] = 1;
    run_begin(&a, &s);
    run_begin(&b, &s);
    assert_false(a.existing);
    assert_true(b.existing);
    assert_ptr_equal(a.e, b.e);
    run_wait(&a);
    run_wait(&b);
    run_begin(&c, &s); /* also when it has ended */
    assert_ptr_equal(c.e, a.e);
    run_wait(&c);
    run_free(&c);
    s.fingerprint[0] = 2;
    assert_int_equal(run_try(&c, &s, &err), -1);
    assert_int_equal(err.code, CP_E_EXECUTION_CONFLICT);
    run_free(&a);
    run_free(&b);
    s = shell_spec("cat \"$F\"");
    cp_buf_clear(&command);
    cp_buf_addf(&command, "%s/once", fx.dir);
    s.env = &(cp_env_var){CP_STR("F"), cp_buf_str(&command)};
    s.nenv = 1;
    run_expect(&s, 0, "x\n", "");
}

static void process_id_rules(void **state) {
    (void)state;
    struct run a, b;
    cp_err err;
    cp_exec_spec s = {
        .kind = CP_EXEC_PROCESS, .sessionless = true, .command = CP_STR("sleep 100"), .process_id = CP_STR("p")};
    run_begin(&a, &s);
    s.fingerprint[0] = 1;
    assert_int_equal(run_try(&b, &s, &err), -1);
    assert_int_equal(err.code, CP_E_RESOURCE_BUSY);
    fx_until(a.starts);
    assert_int_equal(cp_exec_kill(a.e, SIGKILL, 0, CP_OUTCOME_signal, NULL, NULL, &err), 0);
    run_wait(&a);
    assert_string_equal(cp_exec_status(a.e), "killed");
    s.command = CP_STR("true");
    run_begin(&b, &s); /* an ended one is replaced */
    assert_false(b.existing);
    assert_ptr_equal(cp_exec_find_process(&fx.s, CP_STR("p")), b.e);
    run_wait(&b);
    assert_string_equal(cp_exec_status(b.e), "completed");
    run_free(&a);
    run_free(&b);
}

static void limit_of_processes(void **state) {
    (void)state;
    struct run a, b;
    cp_err err;
    fx.config.max_processes = 1;
    cp_exec_spec s = shell_spec("sleep 100");
    run_begin(&a, &s);
    assert_int_equal(run_try(&b, &s, &err), -1);
    assert_int_equal(err.code, CP_E_LIMIT_EXCEEDED);
    assert_int_equal(cp_exec_kill(a.e, SIGKILL, 0, CP_OUTCOME_cancelled, NULL, NULL, &err), 0);
    run_wait(&a);
    run_free(&a);
    s = shell_spec("true");
    run_expect(&s, 0, "", "");
}

static void history_is_bounded(void **state) {
    (void)state;
    fx.config.history = 3;
    char first[64] = "";
    for (int i = 0; i < 6; i++) {
        struct run r;
        cp_exec_spec s = {.kind = CP_EXEC_PROCESS, .sessionless = true, .command = CP_STR("echo x")};
        run_begin(&r, &s);
        run_wait(&r);
        if (!i) snprintf(first, sizeof first, "%s", r.e->id);
        assert_non_null(cp_exec_find(&fx.s, cp_str_of(r.e->id)));
        run_free(&r);
    }
    assert_null(cp_exec_find(&fx.s, cp_str_of(first)));
    char path[160];
    snprintf(path, sizeof path, "%s/logs/%s.out", fx.dir, first);
    assert_int_equal(access(path, F_OK), -1);
}

/* B116 */
static void nothing_of_the_server_reaches_the_child(void **state) {
    (void)state;
    const char *const commands[] = {"env | grep CONFLUX; ls /proc/self/fd",
                                    "set -e; env | grep CONFLUX || ls /proc/self/fd"};
    for (size_t i = 0; i < CP_COUNT(commands); i++) {
        cp_exec_spec s = shell_spec(commands[i]);
        run_expect(&s, 0, "0\n1\n2\n3\n", "");
    }
    const cp_str args[] = {CP_STR("env")};
    cp_exec_spec s = {.sessionless = true, .args = args, .nargs = 1};
    run_expect(&s, 0, "PATH=/usr/local/bin:/usr/bin:/bin\nHOME=/tmp\nLANG=C.UTF-8\n", "");
}

static void as_another_user(void **state) {
    (void)state;
    struct run r;
    cp_err err;
    cp_exec_spec s = shell_spec("id -un");
    s.user = CP_STR("nobody");
    if (geteuid() != 0) {
        assert_int_equal(run_try(&r, &s, &err), -1);
        assert_int_equal(err.code, CP_E_PERMISSION_DENIED);
        assert_string_equal(err.field, "user");
        return;
    }
    assert_int_equal(chmod(fx.dir, 0755), 0);
    assert_int_equal(chmod(fx.workspace, 0755), 0);
    run_expect(&s, 0, "nobody\n", "");
    s.user = CP_STR("no-such-user");
    run_begin(&r, &s);
    run_wait(&r);
    assert_int_equal(r.e->state, CP_STATE_FAILED);
    assert_string_equal(r.e->start_err->field, "user");
    run_free(&r);
}

static void ids_have_their_form(void **state) {
    (void)state;
    struct run r;
    cp_exec_spec s = {.kind = CP_EXEC_STREAM, .sessionless = true, .command = CP_STR("true")};
    run_begin(&r, &s);
    assert_int_equal(strlen(r.e->process_id), 5 + 13 + 1 + 6);
    assert_memory_equal(r.e->process_id, "proc_", 5);
    assert_int_equal(r.e->process_id[18], '_');
    run_wait(&r);
    assert_true(r.e->max_rss > 0);
    run_free(&r);
}

/* It has not begun, so at most once allows another go. */
static void a_start_that_lacked_something_may_be_repeated(void **state) {
    (void)state;
    struct rlimit all, none;
    struct run r;
    for (int process = 0; process < 2; process++) {
        cp_exec_spec s = shell_spec("echo begun");
        s.exec_id = process ? CP_STR("again-p") : CP_STR("again");
        s.kind = process ? CP_EXEC_PROCESS : CP_EXEC_BUFFERED;
        if (process) s.process_id = CP_STR("again");
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &all), 0);
        none = (struct rlimit){.rlim_cur = 3, .rlim_max = all.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
        run_begin(&r, &s);
        run_wait(&r);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &all), 0);
        assert_int_equal(r.e->state, CP_STATE_FAILED);
        assert_int_equal(r.e->start_err->code, CP_E_TOO_MANY_FILES);
        run_free(&r);
        run_begin(&r, &s);
        assert_false(r.existing);
        run_wait(&r);
        cp_autofree char *out = run_output(&r, 0);
        assert_string_equal(out, "begun\n");
        run_free(&r);
        run_begin(&r, &s);
        assert_true(r.existing);
        run_free(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FX_TEST(shell_results),
        FX_TEST(argv_results),
        FX_TEST(exec_failures_are_typed),
        FX_TEST(failed_process_is_listed),
        FX_TEST(output_is_whole),
        FX_TEST(big_output_is_whole),
        FX_TEST(grandchild_does_not_hold_the_reply),
        FX_TEST(timeout_keeps_output),
        FX_TEST(stdin_of_a_command),
        FX_TEST(stdin_of_a_durable_child_ends),
        FX_TEST(stdin_is_bounded),
        FX_TEST(stdin_receipts_are_bounded),
        FX_TEST(stdin_receipts),
        FX_TEST(large_stdin_arrives),
        FX_TEST(long_script),
        FX_TEST(output_limit),
        FX_TEST(cut_output_is_kept),
        FX_TEST(same_id_runs_once),
        FX_TEST(a_start_that_lacked_something_may_be_repeated),
        FX_TEST(process_id_rules),
        FX_TEST(limit_of_processes),
        FX_TEST(history_is_bounded),
        FX_TEST(nothing_of_the_server_reaches_the_child),
        FX_TEST(as_another_user),
        FX_TEST(ids_have_their_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
