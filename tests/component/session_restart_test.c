/* The shell under a session when it has died, or when the server has. */
#include "component/session_fixture.h"

#include <fcntl.h>
#include <sys/ioctl.h>

/* The server has not been told yet that the shell is gone: the command runs all the same. */
static void a_shell_that_died_while_idle(void **state) {
    (void)state;
    expect("a", "v=1", 0, "", "");
    cp_proc shell = {.pid = session("a")->child.pid, .start_time = session("a")->child.start_time};
    assert_int_equal(cp_proc_signal(&shell, SIGKILL), 0);
    for (uint64_t end = cp_now_ms() + PATIENCE_MS; cp_proc_alive(&shell);) assert_true(cp_now_ms() < end);
    expect("a", "echo [$v]", 0, "[]\n", "");
}

static void an_idle_shell_outlives_the_server(void **state) {
    (void)state;
    struct answer a;
    const cp_env_var env = {CP_STR("A"), CP_STR("1")};
    char cwd[4096];
    create(&(cp_session_spec){.id = CP_STR("s"), .env = &env, .nenv = 1}, &a);
    expect("s", "v=2; cd /tmp", 0, "", "");
    restart("s");
    cp_session_cwd(&fx.s, CP_STR("s"), cwd);
    assert_string_equal(cwd, "/tmp");
    expect("s", "echo $v $A; pwd", 0, "2 1\n/tmp\n", "");
    expect_background(CP_EXEC_PROCESS, "s", "echo $v", 0, "2\n");
    expect_end("s", "exit 3", 3, "");
    expect("s", "echo [$v] $A", 0, "[] 1\n", "");
    assert_int_equal(folders(), 1);
}

static void a_busy_shell_is_awaited_by_the_next_server(void **state) {
    (void)state;
    struct run r;
    char fifo[160];
    snprintf(fifo, sizeof fifo, "%s/gate", fx.workspace);
    expect("s", "mkfifo gate", 0, "", "");
    cp_exec_spec s = in_session("s", "read v <gate; seq 1 100000; echo heard by nobody; seq 1 100000 >&2");
    run_begin(&r, &s);
    fx_until(r.starts);
    run_free(&r);
    restart("s");
    s = in_session("s", "echo $v");
    run_begin(&r, &s);
    cp_autofd int gate = open(fifo, O_WRONLY | O_CLOEXEC);
    assert_true(gate >= 0);
    assert_int_equal(r.starts, 0);
    assert_int_equal(write(gate, "7\n", 2), 2);
    run_wait(&r);
    cp_autofree char *out = run_output(&r, 0);
    assert_string_equal(out, "7\n");
    run_free(&r);
}

static unsigned named_fifos(void) {
    struct stat dir, st;
    unsigned n = 0;
    assert_int_equal(stat(fx.dir, &dir), 0);
    for (int fd = 0; fd < 1024; fd++) n += fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode) && st.st_dev == dir.st_dev;
    return n;
}

/* The FIFOs of commands that are over are read by the next server only until it knows that they are. */
static void a_restart_leaves_no_descriptor(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) expect("s", "echo out; echo err >&2", 0, "out\n", "err\n");
    restart("s");
    expect("s", "echo out", 0, "out\n", "");
    unsigned before = named_fifos();
    for (int i = 0; i < 8; i++) { /* of each a pair is left */
        restart("s");
        expect("s", "echo out", 0, "out\n", "");
    }
    fx_until(named_fifos() < before + 8); /* what a session holds varies a little */
}

/* What the former server had typed and the shell has not come to yet: every FIFO in it still has another end. */
static void a_shell_behind_its_server_is_not_left_waiting(void **state) {
    (void)state;
    for (int background = 0; background < 2; background++) {
        struct run r;
        cp_autobuf cp_buf exports = {0};
        cp_exec_spec s = in_session("s", "cat; seq 1 100000");
        expect("s", "v=1", 0, "", "");
        cp_proc shell = {.pid = session("s")->child.pid, .start_time = session("s")->child.start_time};
        assert_int_equal(cp_proc_signal(&shell, SIGSTOP), 0);
        s.kind = background ? CP_EXEC_STREAM : CP_EXEC_BUFFERED;
        s.stdin_open = true;
        run_begin(&r, &s);
        fx_until(session("s")->current && session("s")->current->exec == r.e);
        cp_script_exports(&exports, session("s")->path);
        assert_int_equal(session_type(session("s"), cp_buf_str(&exports)), 0);
        run_free(&r);
        restart("s");
        assert_int_equal(cp_proc_signal(&shell, SIGCONT), 0);
        expect("s", "echo [$v]", 0, "[1]\n", "");
    }
}

/* A shell that is telling its server what it exports has more to say than the FIFO holds. The server dies: that is no
 * reason for the shell to. */
static void a_shell_that_speaks_to_nobody_lives(void **state) {
    (void)state;
    int unread = 1;
    cp_autobuf cp_buf exports = {0};
    expect("s", "v=1; export A=$(seq 1 15000) B=$(seq 1 15000)", 0, "", "");
    cp_proc shell = {.pid = session("s")->child.pid};
    assert_true(session_exports_open(session("s")));
    cp_script_exports(&exports, session("s")->path);
    assert_int_equal(session_type(session("s"), cp_buf_str(&exports)), 0);
    for (uint64_t end = cp_now_ms() + PATIENCE_MS; unread || shell.state != 'S';) { /* it waits: nobody reads */
        assert_true(cp_now_ms() < end && cp_proc_read(shell.pid, &shell));
        assert_int_equal(ioctl(session("s")->script, FIONREAD, &unread), 0);
    }
    restart("s");
    expect("s", "echo [$v]", 0, "[1]\n", "");
    assert_int_equal(session("s")->child.pid, shell.pid);
}

/* With an id of its own a command has its result and every byte, whether it ends after the restart or has reported. */
static void a_command_with_an_id_is_gone_on_with(void **state) {
    (void)state;
    struct run r;
    char fifo[160];
    cp_err err = {0};
    cp_autobuf cp_buf want = {0};
    fx.s.registry = cp_registry_open(fx.loop, fx.dir, &err);
    assert_non_null(fx.s.registry);
    snprintf(fifo, sizeof fifo, "%s/gate", fx.workspace);
    expect("s", "mkfifo gate", 0, "", "");
    cp_exec_spec s = in_session("s", "echo begun; read v <gate; seq 1 100000; echo err >&2; (exit 7)");
    s.exec_id = CP_STR("keep");
    run_begin(&r, &s);
    fx_until(cp_output_total(r.e->out[0]) == 6); /* no job of the pool is under way: a crash would have ended it */
    run_free(&r);
    for (int i = 0; i < 3; i++) restart("s");
    r = (struct run){.w = {.ops = &run_watch}};
    r.e = cp_exec_find(&fx.s, CP_STR("keep"));
    assert_non_null(r.e);
    assert_int_equal(r.e->state, CP_STATE_RUNNING);
    cp_exec_ref(r.e);
    cp_exec_watch_add(r.e, &r.w);
    cp_autofd int gate = open(fifo, O_WRONLY | O_CLOEXEC);
    assert_true(gate >= 0);
    assert_int_equal(write(gate, "5\n", 2), 2);
    run_wait(&r);
    cp_buf_addz(&want, "begun\n");
    for (int i = 1; i <= 100000; i++) cp_buf_addf(&want, "%d\n", i);
    cp_autofree char *out = run_output(&r, 0), *errors = run_output(&r, 1);
    assert_string_equal(out, cp_buf_z(&want));
    assert_string_equal(errors, "err\n");
    assert_int_equal(r.e->exit_code, 7);
    assert_int_equal(r.e->outcome, CP_OUTCOME_exited);
    run_free(&r);
    expect("s", "echo $v", 0, "5\n", "");
}

/* Its end is the client's to give, to whichever server there is. */
static void open_stdin_goes_on(void **state) {
    (void)state;
    struct run r;
    cp_err err = {0};
    fx.s.registry = cp_registry_open(fx.loop, fx.dir, &err);
    assert_non_null(fx.s.registry);
    cp_exec_spec s = in_session("s", "read x; echo \"<$x>\"; cat; cat; (exit 3)");
    s.exec_id = CP_STR("fed");
    s.stdin_open = true;
    run_begin(&r, &s);
    fx_until(r.starts);
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("one\n"), false, NULL, NULL), 0);
    fx_until(cp_output_total(r.e->out[0]) == 6);
    run_free(&r);
    restart("s");
    r = (struct run){.w = {.ops = &run_watch}};
    r.e = cp_exec_find(&fx.s, CP_STR("fed"));
    assert_non_null(r.e);
    cp_exec_ref(r.e);
    cp_exec_watch_add(r.e, &r.w);
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("two"), true, NULL, NULL), 0);
    run_wait(&r);
    cp_autofree char *out = run_output(&r, 0);
    assert_string_equal(out, "<one>\ntwo");
    assert_int_equal(r.e->exit_code, 3);
    run_free(&r);
}

static void what_cannot_be_revived_is_let_go(void **state) {
    (void)state;
    expect("s", "v=1", 0, "", "");
    const struct cp_session *s = session("s");
    cp_proc shell = {.pid = s->child.pid, .start_time = s->child.start_time};
    char key[64];
    snprintf(key, sizeof key, "s:%s:s", s->token);
    cp_held dead = {
        .tag = s->child.tag, .key = key, .pid = shell.pid, .start_time = shell.start_time, .fds = {-1, -1, -1}};
    cp_err err = {0};
    cp_services_close(&fx.s);
    cp_services_held(&fx.s, &dead);
    if (cp_services_open(&fx.s, &err) < 0) fail_msg("%s", err.msg);
    assert_false(cp_session_exists(&fx.s, CP_STR("s")));
    assert_int_equal(folders(), 0);
    fx_until(!cp_proc_alive(&shell));
    expect("s", "echo [$v]", 0, "[]\n", "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FX_TEST(a_shell_that_died_while_idle),
        FX_TEST(an_idle_shell_outlives_the_server),
        FX_TEST(a_busy_shell_is_awaited_by_the_next_server),
        FX_TEST(a_shell_that_speaks_to_nobody_lives),
        FX_TEST(a_restart_leaves_no_descriptor),
        FX_TEST(a_shell_behind_its_server_is_not_left_waiting),
        FX_TEST(a_command_with_an_id_is_gone_on_with),
        FX_TEST(open_stdin_goes_on),
        FX_TEST(what_cannot_be_revived_is_let_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
