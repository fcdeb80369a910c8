/* What ends executions, or signals them, and what is taken along. Bnnn: shared field cases. */
#include "component/services_fixture.h"

#include <fcntl.h>

#include "base/fd.h"
#include "services/exec_core.h"

struct killed {
    bool done;
    size_t killed, survivors;
};

static void on_killed(void *arg, cp_exec *e, const cp_kill_result *r) {
    (void)e;
    *(struct killed *)arg = (struct killed){true, r->nkilled, r->nsurvivors};
}

/* Is there a process that is `sleep` for so long? */
static bool sleeps(const char *seconds) {
    cp_tree all = {0};
    char want[64], path[64];
    size_t n = (size_t)snprintf(want, sizeof want, "sleep%c%s", 0, seconds) + 1;
    bool found = false;
    assert_int_equal(cp_tree_snapshot(&all), 0);
    for (size_t i = 0; i < all.n && !found; i++) {
        cp_autofree char *words = NULL;
        size_t got = 0;
        snprintf(path, sizeof path, "/proc/%d/cmdline", (int)all.v[i].pid);
        found = cp_read_file(path, 1 << 20, &words, &got) == 0 && got == n && memcmp(words, want, n) == 0;
    }
    cp_tree_free(&all);
    return found;
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
    fx_until(sleeps("1234.5") && sleeps("1234.6"));
    assert_int_equal(cp_exec_kill(r.e, SIGTERM, 5000, CP_OUTCOME_signal, on_killed, &k, &err), 0);
    fx_until(k.done);
    assert_int_equal(r.ends, 1);
    assert_int_equal(k.survivors, 0);
    assert_false(sleeps("1234.5") || sleeps("1234.6"));
    assert_string_equal(cp_exec_status(r.e), "killed");
    assert_int_equal(r.e->signal, SIGTERM);
    assert_int_equal(cp_exec_kill(r.e, SIGTERM, 0, CP_OUTCOME_signal, NULL, NULL, &err), -1); /* B049 */
    assert_int_equal(err.code, CP_E_COMMAND_NOT_FOUND);
    run_free(&r);
}

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
    run_until_timeout(&r, shell_spec(""), DAEMON, "sleep 1000");
    assert_int_equal(r.e->exit_code, 124);
    pid_t daemon = run_pid(&r);
    assert_true(daemon > 1);
    fx_until(kill(daemon, 0) < 0);
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
        assert_false(sleeps("1234.7"));
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
    fx_until(sleeps("1234.8"));
    snprintf(path, sizeof path, "%s/stray", fx.workspace);
    int fd = open(path, O_RDONLY);
    assert_true(read(fd, text, sizeof text - 1) > 0);
    close(fd);
    pid_t pid = (pid_t)strtol(text, NULL, 10);
    cp_proc stray;
    fx_until(cp_proc_read(pid, &stray) && stray.ppid == fx.keeper_pid); /* setsid has left it alone */
    assert_int_equal(cp_exec_kill(r.e, SIGKILL, 0, CP_OUTCOME_signal, NULL, NULL, &err), 0);
    run_wait(&r);
    assert_int_equal(r.e->outcome, CP_OUTCOME_signal);
    assert_int_equal(r.e->signal, SIGKILL);
    fx_until(r.e->impl->released && r.e->impl->acked);
    run_free(&r);
    assert_int_equal(kill(pid, SIGKILL), 0);
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

static void on_drained(void *arg) { *(bool *)arg = true; }

static void nothing_new_while_draining(void **state) {
    (void)state;
    struct run a, b;
    cp_err err;
    bool drained = false;
    cp_exec_spec s = {.kind = CP_EXEC_PROCESS,
                      .sessionless = true,
                      .command = CP_STR("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done")};
    run_begin(&a, &s);
    fx_until(a.starts && cp_output_total(a.e->out[0]));
    cp_services_drain(&fx.s, 30000, on_drained, &drained);
    assert_int_equal(run_try(&b, &s, &err), -1); /* B051 */
    run_wait(&a);
    cp_autofree char *out = run_output(&a, 0);
    assert_string_equal(out, "up\nbye\n");
    fx_until(drained);
    run_free(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FX_TEST(kill_takes_the_tree),
        FX_TEST(kill_finds_daemons),
        FX_TEST(a_timeout_finds_daemons),
        FX_TEST(a_late_start_is_ended),
        FX_TEST(a_kill_in_vain_keeps_the_status),
        FX_TEST(term_is_followed_by_kill),
        FX_TEST(stopped_child_can_be_killed),
        FX_TEST(exit_143_is_no_signal),
        FX_TEST(one_signal),
        FX_TEST(nothing_new_while_draining),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
