/* Timeouts, cancels and deletion: the command ends with all that it has started, the shell where it can goes on. Bnnn:
 * shared field cases. */
#include "component/session_fixture.h"

#include <sys/socket.h>
#include <sys/wait.h>

/* ---- timeouts ---- */

static void a_timeout_ends_the_command_only(void **state) { /* B016 */
    (void)state;
    expect("a", "sleep 300 & pid=$!; f(){ echo f; }; v=1", 0, "", "");
    expect_timeout("a", "sleep 300; echo not reached", 200, false);
    expect("a", "f; echo $v; kill -0 $pid && echo alive; kill $pid", 0, "f\n1\nalive\n", NULL);
    expect_timeout("a", "while :; do :; done", 200, false);
    expect("a", "f; echo $v", 0, "f\n1\n", "");
    expect_timeout("a", "g(){ while :; do :; done; }; g; while :; do :; done", 200, false);
    expect("a", "f; echo $v", 0, "f\n1\n", "");
    expect_timeout("a", "while :; do /bin/true; done", 200, false);
    expect("a", "echo $v", 0, "1\n", "");
    expect_timeout("a", "wait & sleep 300 | cat", 200, false);
    expect_timeout("a", "kill -STOP $$", 200, false);
    expect("a", "f; echo $v", 0, "f\n1\n", "");
}

static void a_shell_that_cannot_be_interrupted_is_replaced(void **state) {
    (void)state;
    expect("a", "cd /tmp; export E='a b' F=1; v=1; mkfifo $HOME/../tmp/fx.$$; p=/tmp/fx.$$; export p", 0, "", "");
    expect_timeout("a", "export E=later; read x <$p", 200, true);
    expect("a", "echo \"$E\" $F [$v]; pwd; rm $p", 0, "a b 1 []\n/tmp\n", "");
    expect_timeout("a", "trap '' RTMAX-7; while :; do :; done", 200, true);
    expect("a", "echo \"$E\"; pwd; E=last", 0, "a b\n/tmp\n", "");
    fx_until(session("a")->exports_fresh && strstr(cp_buf_z(&session("a")->exports), "\"last\"")); /* told while idle */
    struct run r;
    cp_exec_spec s = in_session("a", "trap '' RTMAX-7; while :; do :; done");
    run_begin(&r, &s);
    fx_until(r.starts);
    assert_int_equal(cp_exec_kill(r.e, SIGTERM, 100, CP_OUTCOME_cancelled, NULL, NULL, NULL), 0);
    run_wait(&r);
    assert_int_equal(r.e->outcome, CP_OUTCOME_cancelled);
    assert_true(r.e->shell_replaced);
    run_free(&r);
    expect("a", "echo $E", 0, "last\n", "");
}

static void a_queued_command_has_a_deadline(void **state) {
    (void)state;
    struct run first;
    cp_exec_spec s = in_session("a", "sleep 300");
    run_begin(&first, &s);
    fx_until(first.starts);
    expect_timeout("a", "echo not reached", 100, false);
    assert_int_equal(first.ends, 0);
    assert_int_equal(cp_exec_kill(first.e, SIGTERM, 1000, CP_OUTCOME_cancelled, NULL, NULL, NULL), 0);
    run_wait(&first);
    assert_int_equal(first.e->outcome, CP_OUTCOME_cancelled);
    assert_false(first.e->session_ended);
    run_free(&first);
    expect("a", "echo ok", 0, "ok\n", "");
}

static void default_timeout_of_a_session(void **state) {
    (void)state;
    struct answer a;
    create(&(cp_session_spec){.id = CP_STR("t"), .command_timeout_ms = 100}, &a);
    expect_timeout("t", "sleep 300", 0, false);
    expect("t", "echo ok", 0, "ok\n", "");
}

static cp_proc daemon_of(struct run *r, const char *session, const char *command, cp_exec_kind kind) {
    cp_exec_spec s = in_session(session, command);
    s.kind = kind;
    s.timeout_ms = kind == CP_EXEC_BUFFERED ? 60000 : 0;
    run_begin(r, &s);
    cp_proc p = run_said_pid(r);
    fx_until(cp_proc_read(p.pid, &p) && p.ppid == fx.keeper_pid);
    return p;
}

static void killed(void *arg, cp_exec *e, const cp_kill_result *r) {
    (void)e;
    assert_int_equal(r->nsurvivors, 0);
    *(size_t *)arg = r->nkilled;
}

static size_t kill_and_wait(struct run *r) {
    size_t n = 0;
    assert_int_equal(cp_exec_kill(r->e, SIGTERM, 1000, CP_OUTCOME_cancelled, killed, &n, NULL), 0);
    fx_until(n);
    run_wait(r);
    run_free(r);
    return n;
}

static void daemons_die_with_their_command(void **state) {
    (void)state;
    struct run before, fg, bg;
    cp_proc earlier = daemon_of(&before, "a", "v=1; " DAEMON, CP_EXEC_BUFFERED);
    cp_proc b = daemon_of(&bg, "a", DAEMON "; sleep 1000", CP_EXEC_PROCESS);
    cp_proc f = daemon_of(&fg, "a", DAEMON "; sleep 1000", CP_EXEC_BUFFERED);
    assert_int_equal(kill_and_wait(&fg), 2); /* the daemon and the sleep: not the shell, nor anything of another */
    assert_false(cp_proc_alive(&f));
    assert_true(cp_proc_alive(&earlier) && cp_proc_alive(&b));
    assert_int_equal(kill_and_wait(&bg), 3); /* with the subshell */
    assert_false(cp_proc_alive(&b));
    assert_true(cp_proc_alive(&earlier));
    expect("a", "echo $v", 0, "1\n", "");
    struct run timed;
    cp_exec_spec s = in_session("a", "(" DAEMON "); trap '' TERM; sleep 1000");
    s.timeout_ms = 500;
    run_begin(&timed, &s);
    cp_proc t = run_said_pid(&timed);
    run_wait(&timed);
    fx_until(!cp_proc_alive(&t));
    run_free(&timed);
    run_wait(&before);
    run_free(&before);
    delete_("a", false);
    fx_until(!cp_proc_alive(&earlier));
}

/* Its number is in a limit that belongs to the client: whoever sets it is known by descent, as far as that goes. */
static void a_command_may_set_the_limit(void **state) {
    (void)state;
    static const char *const ways[] = {"ulimit -Sx 7", "ulimit -Sx hard", "ulimit -x 9", "enable -n ulimit"};
    for (size_t i = 0; i < CP_COUNT(ways); i++) {
        struct run other, r;
        char command[128];
        cp_proc o = daemon_of(&other, "a", DAEMON "; sleep 1000", CP_EXEC_PROCESS);
        snprintf(command, sizeof command, "%s; (sleep 1000 & echo $!); sleep 1000", ways[i]);
        cp_proc p = daemon_of(&r, "a", command, CP_EXEC_BUFFERED);
        cp_proc shell = {.pid = r.e->pid, .start_time = r.e->pid_start};
        assert_int_equal(kill_and_wait(&r), 2);
        assert_false(cp_proc_alive(&p));
        assert_true(cp_proc_alive(&o) && cp_proc_alive(&shell));
        assert_true(kill_and_wait(&other) >= 2);
        assert_true(cp_proc_alive(&shell));
        (void)cp_proc_signal(&o, SIGKILL); /* where it could not be marked */
    }
}

/* Also of a shell that has ended, or was found by a restarted server. */
static void deletion_finds_daemons(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct run first, second;
        cp_proc a = daemon_of(&first, "a", DAEMON, CP_EXEC_BUFFERED);
        run_wait(&first);
        run_free(&first);
        expect_end("a", "exit 3", 3, "");
        if (i) {
            cp_proc b = daemon_of(&second, "a", DAEMON, CP_EXEC_BUFFERED);
            run_wait(&second);
            run_free(&second);
            if (i == 2) restart("a");
            delete_("a", false);
            fx_until(!cp_proc_alive(&b));
        } else {
            delete_("a", false);
        }
        fx_until(!cp_proc_alive(&a));
    }
    struct run kept;
    cp_proc k = daemon_of(&kept, "a", DAEMON, CP_EXEC_BUFFERED);
    run_wait(&kept);
    run_free(&kept);
    delete_("a", true);
    assert_true(cp_proc_alive(&k));
}

/* In a session of its own whose leader has ended: says back what it is told, as long as it lives. */
static void echo(int fd) {
    char byte;
    setsid();
    if (fork() == 0)
        while (read(fd, &byte, 1) == 1 && write(fd, &byte, 1) == 1) continue;
    _exit(0);
}

/* The shell has ended long ago, and its number has been given anew. */
static void deletion_spares_strangers(void **state) {
    (void)state;
    int fd[2];
    char byte = 'x';
    expect_end("a", "exit 3", 3, "");
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
    pid_t leader = fork();
    if (leader == 0) {
        close(fd[0]);
        echo(fd[1]);
    }
    close(fd[1]);
    assert_int_equal(waitpid(leader, NULL, 0), leader);
    session("a")->child.pid = leader;
    delete_("a", false);
    assert_int_equal(write(fd[0], &byte, 1), 1);
    assert_int_equal(read(fd[0], &byte, 1), 1); /* not the end: it has not been killed */
    close(fd[0]);
}

/* With --child-user the shell cannot enter the state folder, so its own is elsewhere. */
static int setup_child_user(void **state) {
    (void)state;
    if (geteuid() != 0) return 0;
    fx_loop();
    static char user[] = "nobody";
    fx.config.child_user = user;
    fx_open();
    return 0;
}

static int teardown_child_user(void **state) {
    (void)state;
    if (geteuid() != 0) return 0;
    cp_autofree char *base = cp_str_dup(cp_str_of(fx.s.sessions->base));
    fx.s.draining = true; /* the folders go, too */
    fx_close();
    assert_int_equal(rmdir(base), 0);
    return 0;
}

static void as_another_user(void **state) {
    (void)state;
    if (geteuid() != 0) skip();
    cp_exec_spec s = in_session("u", "id -un; pwd; v=1"); /* the workspace is closed to it: the home folder */
    run_expect(&s, 0, "nobody\n/tmp\n", "");
    expect("u", "echo $v; cat", 0, "1\n", "");
    expect_background(CP_EXEC_PROCESS, "u", "id -un; exit 3", 3, "nobody\n");
    expect_timeout("u", "sleep 300", 100, false);
    struct run r;
    cp_proc p = daemon_of(&r, "u", DAEMON "; sleep 1000", CP_EXEC_BUFFERED);
    assert_int_equal(kill_and_wait(&r), 2);
    assert_false(cp_proc_alive(&p));
    delete_("u", false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FX_TEST(a_timeout_ends_the_command_only),
        FX_TEST(daemons_die_with_their_command),
        FX_TEST(a_command_may_set_the_limit),
        FX_TEST(deletion_finds_daemons),
        FX_TEST(deletion_spares_strangers),
        FX_TEST(a_shell_that_cannot_be_interrupted_is_replaced),
        FX_TEST(a_queued_command_has_a_deadline),
        FX_TEST(default_timeout_of_a_session),
        cmocka_unit_test_setup_teardown(as_another_user, setup_child_user, teardown_child_user),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
