/* Timeouts, cancels and deletion: the command ends with all that it has started, the shell where it can goes on. Bnnn:
 * shared field cases. */
#include "component/session_fixture.h"

#include <sys/socket.h>
#include <sys/wait.h>

#include "services/exec_core.h"

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

/* How many processes of a command have become `sleep`. */
static size_t sleeps(struct run *r) {
    size_t found = 0;
    char path[64];
    cp_tree t = {0};
    r->e->impl->backend->collect(r->e, &t);
    for (size_t i = 0; i < t.n; i++) {
        snprintf(path, sizeof path, "/proc/%d/comm", (int)t.v[i].pid);
        cp_autofree char *name = NULL;
        size_t n;
        found += cp_read_file(path, 64, &name, &n) == 0 && strcmp(name, "sleep\n") == 0;
    }
    cp_tree_free(&t);
    return found;
}

/* Wherever the shell stands in it. Each would write to $mark when it went on, or cut or make it. */
static void nothing_more_of_a_list_is_run(void **state) {
    (void)state;
    static const char *const lists[] = {
        "sleep 300; echo x >$mark",
        "sleep 300\n\n{ echo x; } >$mark",
        "sleep 300 || echo x >$mark",
        "! sleep 300 && echo x >$mark",
        "sleep 300 | cat; (echo x >$mark)",
        "if sleep 300; then echo x >$mark; else echo y >$mark; fi; echo z >$mark",
        "for i in 1 2; do sleep 300; echo x; done >&2; for i in 1; do echo; done >$mark",
        "while sleep 300; do :; done; : >$mark",
        "until sleep 300; do echo x >$mark; done",
        "x=$(sleep 300); echo x >$mark",
        "case $(sleep 300) in '') echo x >$mark;; esac",
        "eval 'sleep 300; echo x >$mark'; echo y >$mark",
        "sleep 300 & wait; echo x >$mark",
        "read -r x < <(sleep 300); echo x >$mark",
        "sleep 300; for i in 1; do break; done >$mark",
        "g() { sleep 300; echo x >$mark; }; g; { echo y; } >$mark",
        "g() { sleep 300; }; g || { echo x; } >$mark; echo y >$mark",
        "g() { sleep 300; }; if g; then echo x >$mark; else echo y >$mark; fi",
        "g() { sleep 300; }; until g; do echo x >$mark; done",
        "g() { local v=3; while :; do sleep 300; done >&2; }; h() { local v=2; for i in 1 2; do g; done; echo x "
        ">$mark; }; "
        "while :; do h; echo y >$mark; done; echo z >$mark",
        "g() { trap 'echo ret' RETURN; sleep 300; echo x >$mark; }; g; (echo y) >$mark",
        "g() { if [[ $1 = 0 ]]; then sleep 300; else g $(($1 - 1)); fi; echo x >$mark; }; g 40; : >$mark",
        "g() { eval 'sleep 300; : >$mark'; : >$mark; }; eval 'g; : >$mark'",
        "echo 'sleep 300; : >$mark' >$mark.sh; . $mark.sh; : >$mark; rm $mark.sh",
    };
    expect("a", "f(){ echo f; }; v=1; sleep 300 & job=$!; mark=$(mktemp -u)", 0, "", "");
    for (size_t i = 0; i < CP_COUNT(lists); i++) {
        struct run r;
        cp_exec_spec s = in_session("a", lists[i]);
        run_begin(&r, &s);
        fx_until(sleeps(&r));
        assert_int_equal(cp_exec_kill(r.e, SIGTERM, 5000, CP_OUTCOME_cancelled, NULL, NULL, NULL), 0);
        run_wait(&r);
        assert_int_equal(r.e->outcome, CP_OUTCOME_cancelled);
        assert_false(r.e->shell_replaced);
        run_free(&r);
        expect("a", "f; echo $v; [[ -e $mark ]] || kill -0 $job && echo alone; trap -p WINCH RETURN", 0,
               "f\n1\nalone\n", "");
    }
    expect("a", "kill $job; rm -f $mark.sh", 0, "", NULL);
}

/* Outside of a loop bash reports a `break` and goes on, and so do we. Killed, nothing more of it is run: the shell is
 * replaced at once. */
static void a_stray_break_is_only_reported(void **state) {
    (void)state;
    struct run r;
    cp_exec_spec s = in_session("a", "break; echo on; continue; echo on");
    run_begin(&r, &s);
    run_wait(&r);
    cp_autofree char *out = run_output(&r, 0), *err = run_output(&r, 1);
    assert_string_equal(out, "on\non\n");
    assert_non_null(strstr(err, "break: only meaningful in"));
    assert_non_null(strstr(err, "continue: only meaningful in"));
    run_free(&r);
    expect("a", "export mark=$(mktemp -u); cd /tmp", 0, "", "");
    s = in_session("a", "sleep 300; break; echo x >$mark");
    run_begin(&r, &s);
    fx_until(sleeps(&r));
    assert_int_equal(cp_exec_kill(r.e, SIGTERM, 5000, CP_OUTCOME_cancelled, NULL, NULL, NULL), 0);
    run_wait(&r);
    assert_true(r.e->shell_replaced);
    run_free(&r);
    expect("a", "pwd; [[ $mark && ! -e $mark ]] && echo none", 0, "/tmp\nnone\n", "");
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
    cp_exec_spec s = in_session("t", "echo ok");
    s.timeout_ms = 60000;
    run_expect(&s, 0, "ok\n", "");
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

/* Once as many of its processes have become `sleep`. */
static size_t kill_and_wait(struct run *r, size_t sleeping) {
    size_t n = 0;
    fx_until(sleeps(r) >= sleeping);
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
    assert_int_equal(kill_and_wait(&fg, 2), 2); /* the daemon and the sleep: not the shell, nor anything of another */
    assert_false(cp_proc_alive(&f));
    assert_true(cp_proc_alive(&earlier) && cp_proc_alive(&b));
    assert_int_equal(kill_and_wait(&bg, 2), 3); /* with the subshell */
    assert_false(cp_proc_alive(&b));
    assert_true(cp_proc_alive(&earlier));
    expect("a", "echo $v", 0, "1\n", "");
    struct run timed;
    run_until_timeout(&timed, in_session("a", ""), "(" DAEMON "); trap '' TERM", "sleep 1000");
    pid_t t = run_pid(&timed);
    assert_true(t > 1);
    fx_until(kill(t, 0) < 0);
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
        assert_int_equal(kill_and_wait(&r, 2), 2);
        assert_false(cp_proc_alive(&p));
        assert_true(cp_proc_alive(&o) && cp_proc_alive(&shell));
        assert_true(kill_and_wait(&other, 1) >= 2);
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
    assert_int_equal(access(base, F_OK), -1);
    assert_int_equal(errno, ENOENT);
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
    assert_int_equal(kill_and_wait(&r, 2), 2);
    assert_false(cp_proc_alive(&p));
    delete_("u", false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FX_TEST(a_timeout_ends_the_command_only),
        FX_TEST(nothing_more_of_a_list_is_run),
        FX_TEST(a_stray_break_is_only_reported),
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
