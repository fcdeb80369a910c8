/* Executions without a session, on a real keeper. Bnnn: shared field cases. */
#include "component/services_fixture.h"

#include <fcntl.h>

#include "base/fd.h"
#include "services/exec_core.h"
#include "services/tree.h"

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
    assert_int_equal(r.e->start_err.code, code);
    assert_int_equal(r.e->start_err.sys, sys);
    assert_non_null(strstr(r.e->start_err.msg, in_message));
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
    assert_int_equal(r.e->start_err.sys, ENOENT);
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
    cp_exec_spec s = shell_spec("printf partial; trap '' TERM; sleep 100");
    s.timeout_ms = 200;
    run_begin(&r, &s);
    run_wait(&r);
    cp_autofree char *out = run_output(&r, 0);
    cp_autofree char *err = run_output(&r, 1);
    assert_string_equal(out, "partial");
    assert_string_equal(err, "Command timed out after 200ms");
    assert_true(r.e->timed_out);
    assert_int_equal(r.e->exit_code, 124);
    assert_int_equal(r.e->outcome, CP_OUTCOME_timeout);
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
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("one "), false, &err), 0); /* before it has started */
    fx_until(r.starts);
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("two"), true, &err), 0);
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("three"), false, &err), -1);
    run_wait(&r);
    cp_autofree char *out = run_output(&r, 0);
    assert_string_equal(out, "one two");
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("late"), false, &err), -1);
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
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("data"), true, &err), 0);
    run_wait(&r);
    cp_autofree char *out = run_output(&r, 0);
    assert_string_equal(out, "data");
    assert_int_equal(r.e->exit_code, 0);
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
    assert_int_equal(cp_exec_stdin(r.e, (cp_str){data, n}, false, &err), 0);
    assert_int_equal(cp_exec_stdin(r.e, (cp_str){data, 1 << 20}, false, &err), -1);
    assert_int_equal(err.code, CP_E_LIMIT_EXCEEDED);
    assert_int_equal(cp_exec_kill(r.e, SIGKILL, 0, CP_OUTCOME_cancelled, NULL, NULL, &err), 0);
    run_wait(&r);
    assert_int_equal(r.e->outcome, CP_OUTCOME_cancelled);
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

struct killed {
    bool done;
    size_t killed, survivors;
};

static void on_killed(void *arg, cp_exec *e, const cp_kill_result *r) {
    (void)e;
    *(struct killed *)arg = (struct killed){true, r->nkilled, r->nsurvivors};
}

static bool running(const char *needle) {
    char command[256];
    snprintf(command, sizeof command, "pgrep -f '^%s$' >/dev/null", needle);
    return system(command) == 0;
}

/* B038, B040. */
static void kill_takes_the_tree(void **state) {
    (void)state;
    struct run r;
    struct killed k = {0};
    cp_err err;
    cp_exec_spec s = {.kind = CP_EXEC_PROCESS,
                      .sessionless = true,
                      .command = CP_STR("setsid sleep 1234.5 & setsid bash -c 'sleep 1234.6; :' & echo up; wait")};
    run_begin(&r, &s);
    fx_until(running("sleep 1234.5") && running("sleep 1234.6"));
    assert_int_equal(cp_exec_kill(r.e, SIGTERM, 5000, CP_OUTCOME_signal, on_killed, &k, &err), 0);
    fx_until(k.done);
    assert_int_equal(r.ends, 1);
    assert_int_equal(k.survivors, 0);
    assert_false(running("sleep 1234.5") || running("sleep 1234.6"));
    assert_string_equal(cp_exec_status(r.e), "killed");
    assert_int_equal(r.e->signal, SIGTERM);
    assert_int_equal(cp_exec_kill(r.e, SIGTERM, 0, CP_OUTCOME_signal, NULL, NULL, &err), -1); /* B049 */
    assert_int_equal(err.code, CP_E_COMMAND_NOT_FOUND);
    run_free(&r);
}

/* Says its pid when it has a session of its own and, soon, no parent. */
#define DAEMON      "setsid -f sh -c 'echo $$; exec sleep 1000'"
#define DEAF_DAEMON "setsid -f sh -c 'trap \"\" TERM; echo $$; exec sleep 1000'"

/* In all forms. The root of the second dies of TERM, long before the daemon is killed. */
static void kill_finds_daemons(void **state) {
    (void)state;
    const cp_str args[] = {CP_STR("env"), CP_STR("-i"), CP_STR("/bin/bash"), CP_STR("-c"),
                           CP_STR(DAEMON "; sleep 1000")};
    const cp_exec_spec specs[] = {
        {.kind = CP_EXEC_PROCESS, .command = CP_STR(DAEMON "; sleep 1000")},
        {.kind = CP_EXEC_STREAM, .command = CP_STR(DEAF_DAEMON "; exec sleep 1000")},
        {.kind = CP_EXEC_BUFFERED, .command = CP_STR("(" DAEMON "); sleep 1000; :")},
        {.kind = CP_EXEC_BUFFERED, .args = args, .nargs = CP_COUNT(args)},
        {.kind = CP_EXEC_PROCESS,
         .command = CP_STR(DAEMON "; sleep 1000"),
         .cwd = CP_STR("/"),
         .user = cp_str_of(geteuid() == 0 ? "nobody" : "")},
    };
    for (size_t i = 0; i < CP_COUNT(specs); i++) {
        struct run r;
        struct killed k = {0};
        cp_err err;
        cp_exec_spec s = specs[i];
        s.sessionless = true;
        run_begin(&r, &s);
        cp_proc p = run_said_pid(&r);
        fx_until(cp_proc_read(p.pid, &p) && p.ppid == fx.keeper_pid);
        assert_int_equal(cp_exec_kill(r.e, SIGTERM, 200, CP_OUTCOME_signal, on_killed, &k, &err), 0);
        fx_until(k.done);
        assert_true(k.killed >= 2);
        assert_int_equal(k.survivors, 0);
        assert_false(cp_proc_alive(&p));
        run_wait(&r);
        run_free(&r);
    }
}

static void a_timeout_finds_daemons(void **state) {
    (void)state;
    struct run r;
    cp_exec_spec s = shell_spec(DAEMON "; sleep 1000");
    s.timeout_ms = 500;
    run_begin(&r, &s);
    cp_proc p = run_said_pid(&r);
    run_wait(&r);
    assert_int_equal(r.e->exit_code, 124);
    fx_until(!cp_proc_alive(&p));
    run_free(&r);
}

/* The keeper does not answer for a while: the client has its reply in time, and what is started after that does not
 * live on. */
static void a_late_start_is_ended(void **state) {
    (void)state;
    const cp_str args[] = {CP_STR("sleep"), CP_STR("1234.7")}, ids[] = {CP_STR(""), CP_STR("late")};
    for (size_t i = 0; i < CP_COUNT(ids); i++) {
        struct run r;
        cp_exec_spec s = {.sessionless = true, .command = CP_STR("sleep 1234.7"), .timeout_ms = 50, .exec_id = ids[i]};
        s.args = args;
        s.nargs = CP_COUNT(args);
        assert_int_equal(kill(fx.keeper_pid, SIGSTOP), 0);
        run_begin(&r, &s);
        run_wait(&r);
        assert_int_equal(r.e->outcome, CP_OUTCOME_timeout);
        assert_int_equal(kill(fx.keeper_pid, SIGCONT), 0);
        fx_until(r.e->impl->released); /* the keeper has reported its end */
        assert_false(running("sleep 1234.7"));
        run_free(&r);
    }
}

/* A stray that has no mark any more holds the output when the time of a kill is up: the status is known all the same.
 */
static void a_kill_in_vain_keeps_the_status(void **state) {
    (void)state;
    struct run r;
    cp_err err;
    char path[128], text[32] = {0};
    cp_exec_spec s = {
        .kind = CP_EXEC_PROCESS,
        .sessionless = true,
        .command = CP_STR("setsid -f prlimit --locks=9 bash -c 'echo $$ >stray; exec sleep 1234.8'; sleep 1000")};
    fx.config.drain_window = 3600000;
    run_begin(&r, &s);
    fx_until(running("sleep 1234.8"));
    assert_int_equal(cp_exec_kill(r.e, SIGKILL, 0, CP_OUTCOME_signal, NULL, NULL, &err), 0);
    run_wait(&r);
    assert_int_equal(r.e->outcome, CP_OUTCOME_signal);
    assert_int_equal(r.e->signal, SIGKILL);
    fx_until(r.e->impl->released && r.e->impl->acked);
    run_free(&r);
    snprintf(path, sizeof path, "%s/stray", fx.workspace);
    int fd = open(path, O_RDONLY);
    assert_true(read(fd, text, sizeof text - 1) > 0);
    close(fd);
    assert_int_equal(kill((pid_t)strtol(text, NULL, 10), SIGKILL), 0);
}

/* B039. */
static void term_is_followed_by_kill(void **state) {
    (void)state;
    struct run r;
    struct killed k = {0};
    cp_err err;
    cp_exec_spec s = {
        .kind = CP_EXEC_PROCESS, .sessionless = true, .command = CP_STR("trap '' TERM; echo up; sleep 100; sleep 100")};
    run_begin(&r, &s);
    fx_until(r.starts && cp_output_total(r.e->out[0]));
    assert_int_equal(cp_exec_kill(r.e, SIGTERM, 100, CP_OUTCOME_cancelled, on_killed, &k, &err), 0);
    fx_until(k.done);
    assert_int_equal(r.e->signal, SIGKILL);
    assert_int_equal(r.e->outcome, CP_OUTCOME_cancelled);
    assert_true(r.e->cancelled);
    run_free(&r);
}

static void stopped_child_can_be_killed(void **state) {
    (void)state;
    struct run r;
    cp_err err;
    struct killed k = {0};
    cp_exec_spec s = {.kind = CP_EXEC_PROCESS, .sessionless = true, .command = CP_STR("kill -STOP $$; true")};
    run_begin(&r, &s);
    cp_proc p;
    fx_until(r.starts && cp_proc_read(r.e->pid, &p) && p.state == 'T');
    assert_int_equal(cp_exec_kill(r.e, SIGTERM, 5000, CP_OUTCOME_signal, on_killed, &k, &err), 0);
    fx_until(k.done);
    assert_int_equal(r.e->signal, SIGTERM);
    run_free(&r);
}

/* B050: the wait status is the truth. */
static void exit_143_is_no_signal(void **state) {
    (void)state;
    struct run r;
    cp_exec_spec s = {.kind = CP_EXEC_PROCESS, .sessionless = true, .command = CP_STR("exit 143")};
    run_begin(&r, &s);
    run_wait(&r);
    assert_string_equal(cp_exec_status(r.e), "failed");
    assert_int_equal(r.e->signal, 0);
    assert_int_equal(r.e->exit_code, 143);
    run_free(&r);
}

static void one_signal(void **state) {
    (void)state;
    struct run r;
    cp_err err;
    cp_exec_spec s = {.kind = CP_EXEC_PROCESS,
                      .sessionless = true,
                      .command = CP_STR("trap 'echo got; exit 5' USR1; echo up; while :; do sleep 0.01; done")};
    run_begin(&r, &s);
    fx_until(r.starts && cp_output_total(r.e->out[0]) == 3);
    assert_int_equal(cp_exec_signal(r.e, 0, false, &err), -1);
    assert_string_equal(err.field, "signal");
    assert_int_equal(cp_exec_signal(r.e, 9999, false, &err), -1);
    assert_int_equal(cp_exec_signal(r.e, SIGUSR1, false, &err), 0);
    run_wait(&r);
    assert_int_equal(r.e->exit_code, 5);
    assert_int_equal(cp_exec_signal(r.e, SIGUSR1, false, &err), -1);
    assert_int_equal(err.code, CP_E_COMMAND_NOT_FOUND);
    run_free(&r);
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
    assert_string_equal(r.e->start_err.field, "user");
    run_free(&r);
}

static void on_drained(void *arg) { ((struct killed *)arg)->done = true; }

static void nothing_new_while_draining(void **state) {
    (void)state;
    struct run a, b;
    cp_err err;
    struct killed k = {0};
    cp_exec_spec s = {.kind = CP_EXEC_PROCESS,
                      .sessionless = true,
                      .command = CP_STR("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done")};
    run_begin(&a, &s);
    fx_until(a.starts && cp_output_total(a.e->out[0]));
    cp_services_drain(&fx.s, 30000, on_drained, &k);
    assert_int_equal(run_try(&b, &s, &err), -1); /* B051 */
    run_wait(&a);
    cp_autofree char *out = run_output(&a, 0);
    assert_string_equal(out, "up\nbye\n");
    fx_until(k.done);
    run_free(&a);
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

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, fx_setup, fx_teardown)
    const struct CMUnitTest tests[] = {
        T(shell_results),
        T(argv_results),
        T(exec_failures_are_typed),
        T(failed_process_is_listed),
        T(output_is_whole),
        T(big_output_is_whole),
        T(grandchild_does_not_hold_the_reply),
        T(timeout_keeps_output),
        T(stdin_of_a_command),
        T(stdin_of_a_durable_child_ends),
        T(stdin_is_bounded),
        T(large_stdin_arrives),
        T(long_script),
        T(output_limit),
        T(cut_output_is_kept),
        T(same_id_runs_once),
        T(process_id_rules),
        T(kill_takes_the_tree),
        T(kill_finds_daemons),
        T(a_timeout_finds_daemons),
        T(a_late_start_is_ended),
        T(a_kill_in_vain_keeps_the_status),
        T(term_is_followed_by_kill),
        T(stopped_child_can_be_killed),
        T(exit_143_is_no_signal),
        T(one_signal),
        T(limit_of_processes),
        T(history_is_bounded),
        T(nothing_of_the_server_reaches_the_child),
        T(as_another_user),
        T(nothing_new_while_draining),
        T(ids_have_their_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
