/* What commands in a session shell do and see, and what they cannot do to it. Bnnn: shared field cases. */
#include "component/session_fixture.h"

/* ---- state ---- */

static void state_is_kept(void **state) {
    (void)state;
    expect("a", "cd /tmp; export E=1; v=2; f(){ echo fn:$1; }; set -o pipefail", 0, "", "");
    expect("a", "echo $E $v; f x; pwd; bash -c 'echo [$E$v]'; set -o | grep pipefail", 0,
           "1 2\nfn:x\n/tmp\n[1]\npipefail       \ton\n", "");
    expect("a", "set -- p q; IFS=xyz", 0, "", "");
    expect("a", "echo $# \"$2\"; printf '%q' \"$IFS\"", 0, "2 q\nxyz", "");
    expect("b", "echo [$E$v]; [ \"$PWD\" = \"$HOME\" ] || echo elsewhere", 0, "[]\nelsewhere\n", ""); /* B062 */
    expect("a", "(exit 7)", 7, "", "");
    expect("a", "echo $?", 0, "7\n", "");
    expect("a", "echo $?", 0, "0\n", "");
}

static void results(void **state) {
    (void)state;
    expect("a", "printf out; printf err >&2; (exit 7)", 7, "out", "err");
    expect("a", "printf abc", 0, "abc", ""); /* B059 */
    expect("a", "printf '\\n\\n'", 0, "\n\n", "");
    expect("a", "cat; read x; echo \"r=$?\"", 0, "r=1\n", "");
    expect("a", "", 0, "", "");
    expect("a", "for i in 1 2\ndo\n echo \"n$i\"\ndone # comment", 0, "n1\nn2\n", "");
    expect("a", "bash -c 'kill -9 $$'", 137, "", NULL);
    expect("a", "nosuch_cmd", 127, "", NULL);
    expect("a", "echo \"h\303\251llo \342\206\222 \\$x 'q' \\\"d\\\"\"", 0, "h\303\251llo \342\206\222 $x 'q' \"d\"\n",
           "");
    expect("a", "break; echo after", 0, "after\n", NULL);
    expect("a", "return 5; echo after", 0, "after\n", NULL);
    expect("a", "for i in 1 2 3; do echo $i; break 99; done; echo after", 0, "1\nafter\n", NULL);
}

static void only_standard_descriptors(void **state) {
    (void)state;
    expect("fd", "true", 0, "", "");
    expect("fd", "ls /proc/self/fd | tr '\\n' ' '", 0, "0 1 2 3 ", ""); /* 3: ls reads the folder itself */
    expect("fd", "env | grep -ci -e conflux -e ^_=/ ; compgen -v | grep -ci conflux", 0, "1\n1\n", "");
    expect("fd", "[ -t 0 ] || readlink /proc/self/fd/0", 0, "/dev/null\n", "");
}

static void unbalanced_text_is_an_error_of_the_command(void **state) {
    (void)state;
    expect("a", "cat <<'EOF' >f\nhello\nEOF\nwc -l <f", 0, "1\n", ""); /* B053 */
    expect("a", "echo \"unterminated", 2, "", NULL);
    expect("a", "echo ok", 0, "ok\n", "");
    expect("a", "cat <<X\nopen", 0, "open\n", NULL);
    expect("a", "if true; then", 2, "", NULL);
    expect("a", "echo }; }", 2, "", NULL);
    expect("a", "echo ok", 0, "ok\n", "");
}

static void a_script_of_a_mebibyte(void **state) {
    (void)state;
    cp_autobuf cp_buf text = {0};
    cp_buf_addz(&text, "#");
    while (text.n < 1 << 20) cp_buf_addz(&text, "padding ");
    cp_buf_addz(&text, "\necho ok"); /* B014 */
    expect("a", cp_buf_z(&text), 0, "ok\n", "");
    expect("a", "echo small", 0, "small\n", "");
}

static void big_output_is_whole(void **state) {
    (void)state;
    struct run r;
    cp_exec_spec s = in_session("a", "seq 1 200000; seq 1 200000 >&2");
    run_begin(&r, &s);
    run_wait(&r);
    assert_int_equal(cp_output_total(r.e->out[0]), 1288895);
    assert_int_equal(cp_output_total(r.e->out[1]), 1288895);
    run_free(&r);
}

/* ---- options and traps of the client ---- */

static void shell_ends(void **state) {
    (void)state;
    expect("a", "export GONE=1; cd /tmp", 0, "", "");
    expect_end("a", "echo before; exit 3", 3, "before\n"); /* B054 */
    expect("a", "echo [$GONE]; [ $PWD = /tmp ] || echo start", 0, "[]\nstart\n", "");
    expect_end("a", "exec echo hi", 0, "hi\n"); /* B055 */
    expect("a", "echo ok", 0, "ok\n", "");
    expect("a", "set -e", 0, "", ""); /* B056 */
    expect_end("a", "false; echo x", 1, "");
    expect_end("a", "kill -9 $$", 137, "");
    expect("a", "trap 'echo LEAK' EXIT", 0, "", ""); /* B057 */
    expect("a", "echo clean", 0, "clean\n", "");
    expect_end("a", "exit 4", 4, "");
    expect("a", "set -u", 0, "", "");
    expect("a", "echo fine", 0, "fine\n", "");
    expect_end("a", "echo $nope", 1, "");
    expect("a", "set -t", 0, "", NULL);
}

static void options_do_not_leak_into_ours(void **state) {
    (void)state;
    expect("x", "set -x", 0, "", "");
    expect("x", "echo hi", 0, "hi\n", "+++ echo hi\n");
    expect("v", "set -v", 0, "", "");
    expect("v", "echo hi", 0, "hi\n", "echo hi\n");
    expect("f", "set -f", 0, "", "");
    expect("f", "echo *", 0, "*\n", "");
    expect("p", "set -o posix", 0, "", "");
    expect("p", "echo \"unterminated", 2, "", NULL);
    expect("p", "echo ok", 0, "ok\n", "");
    expect("d", "trap 'echo DBG' DEBUG", 0, "", "");
    expect("d", "echo hi", 0, "DBG\nhi\n", "");
    expect("r", "trap 'echo ERR' ERR", 0, "", "");
    expect("r", "false", 1, "ERR\n", "");
    expect("r", "true", 0, "", "");
    expect("e", "set -e", 0, "", "");
    expect("e", "if false; then :; fi; false || echo on", 0, "on\n", "");
    expect("al", "shopt -s expand_aliases; alias builtin=: eval=: printf=: mapfile=: echo='echo aliased'", 0, "", "");
    expect("al", "echo hi", 0, "aliased hi\n", "");
    expect("fn", "eval(){ :; }; printf(){ :; }; mapfile(){ :; }; export(){ :; }; cd(){ builtin cd \"$@\" && echo in; }",
           0, "", "");
    expect("fn", "cd /tmp", 0, "in\n", "");
    expect("out", "exec 1>&-", 0, "", "");
    expect("out", "echo hi", 0, "hi\n", "");
    expect("out", "exec >/dev/null 2>&1 <&-; echo lost", 0, "", "");
    expect("out", "echo hi; cat", 0, "hi\n", "");
    expect("out", "ulimit -f 0", 0, "", "");
    expect("out", "echo hi", 0, "hi\n", "");
    expect("out", "mkdir d; cd d; rmdir ../d", 0, "", "");
    expect("out", "echo here", 0, "here\n", "");
    expect("out", "readonly PWD OLDPWD LANG; PATH=/nope", 0, "", "");
    expect("out", "echo here", 0, "here\n", "");
}

/* The shell reads our lines and does not run them; without a deadline too the request is answered. */
static void a_shell_that_runs_nothing_is_ended(void **state) {
    (void)state;
    expect_end("a", "set -n", 137, "");
    expect("a", "echo ok", 0, "ok\n", "");
    expect_end("a", "shopt -s extdebug; trap false DEBUG", 137, "");
    expect("a", "echo ok", 0, "ok\n", "");
    expect_end("a", "builtin(){ :; }", 137, "");
    expect("a", "echo ok", 0, "ok\n", "");
    expect_end("a", "enable -n eval mapfile printf", 137, "");
    expect("a", "echo ok", 0, "ok\n", "");
}

static void job_control_and_timeouts_of_the_client(void **state) {
    (void)state;
    expect("a", "set -m; TMOUT=1", 0, "", "");
    expect("a", "/bin/true | cat; sleep 300 & echo on", 0, "on\n", NULL);
    expect_background(CP_EXEC_PROCESS, "a", "echo bg; exit 2", 2, "bg\n");
    expect_timeout("a", "sleep 300", 200, false);
    expect("a", "jobs %1 >/dev/null && echo alive; kill %1", 0, "alive\n", NULL);
}

/* ---- per command ---- */

static void env_and_cwd_of_one_command(void **state) {
    (void)state;
    const cp_env_var env[] = {{CP_STR("A"), CP_STR("1")}, {CP_STR("B"), CP_STR("q'uo te\n$x")}};
    cp_exec_spec s = in_session("a", "bash -c 'printf %s \"$A-$B\"'; A=changed; unset B");
    s.env = env;
    s.nenv = 2;
    run_expect(&s, 0, "1-q'uo te\n$x", "");
    expect("a", "echo [$A$B]", 0, "[]\n", "");
    expect("a", "export A=old; B=plain", 0, "", "");
    run_expect(&s, 0, "1-q'uo te\n$x", "");
    expect("a", "echo $A $B; declare -p A B", 0, "old plain\ndeclare -x A=\"old\"\ndeclare -- B=\"plain\"\n", "");
    s = in_session("a", "pwd; cd /; (exit 4)");
    s.cwd = CP_STR("/tmp");
    expect("a", "cd /usr/lib; cd /usr", 0, "", "");
    run_expect(&s, 4, "/tmp\n", "");
    expect("a", "echo $?; pwd; echo $OLDPWD", 0, "4\n/usr\n/usr/lib\n", "");
    s = in_session("a", "echo ran");
    s.cwd = CP_STR("/no/it's");
    run_expect(&s, 1, "", "Failed to change directory to '/no/it's'\n");
    expect("a", "pwd", 0, "/usr\n", "");
    s.cwd = CP_STR("lib");
    s.command = CP_STR("pwd");
    run_expect(&s, 0, "/usr/lib\n", "");
}

/* What a shell makes of our quoting is what went in: every byte but NUL. */
static void every_byte_survives(void **state) {
    (void)state;
    char all[256] = "";
    for (int i = 0; i < 255; i++) all[i] = (char)(i + 1);
    const cp_env_var env = {CP_STR("Q"), {all, 255}};
    cp_exec_spec s = in_session("a", "printf %s \"$Q\"");
    s.env = &env;
    s.nenv = 1;
    run_expect(&s, 0, all, "");
    cp_autobuf cp_buf heredoc = {0};
    cp_buf_addf(&heredoc, "cat <<'END OF TEXT'\n%s\nEND OF TEXT", all);
    cp_buf_addz(&heredoc, "\n");
    cp_autobuf cp_buf want = {0};
    cp_buf_addf(&want, "%s\n", all);
    expect("a", cp_buf_z(&heredoc), 0, cp_buf_z(&want), "");
}

static void stdin_of_a_command(void **state) {
    (void)state;
    cp_exec_spec s = in_session("a", "cat; echo end");
    s.stdin_data = CP_STR("given\n");
    run_expect(&s, 0, "given\nend\n", "");
    s.command = CP_STR("echo not read");
    run_expect(&s, 0, "not read\n", "");
    struct run r;
    s = in_session("a", "read x; echo \"<$x>\"; cat");
    s.stdin_open = true;
    run_begin(&r, &s);
    fx_until(r.starts);
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("one\ntwo"), true, NULL, NULL), 0);
    run_wait(&r);
    cp_autofree char *out = run_output(&r, 0);
    assert_string_equal(out, "<one>\ntwo");
    run_free(&r);
    s.exec_id = CP_STR("kept"); /* the depot has its input, too */
    s.stdin_open = false;
    s.stdin_data = CP_STR("1\n2");
    run_expect(&s, 0, "<1>\n2", "");
    s.exec_id = (cp_str){0};
    s.stdin_data = (cp_str){0};
    s.stdin_open = true;
    s.kind = CP_EXEC_PROCESS;
    run_begin(&r, &s);
    fx_until(r.starts);
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("one\n"), false, NULL, NULL), 0);
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("two"), true, NULL, NULL), 0);
    run_wait(&r);
    cp_autofree char *bg = run_output(&r, 0);
    assert_string_equal(bg, "<one>\ntwo");
    run_free(&r);
    expect("a", "echo ok", 0, "ok\n", "");
}

/* ---- order ---- */

static void one_after_another(void **state) { /* B060 */
    (void)state;
    enum { N = 20 };
    static struct run r[N], other;
    char text[N][64];
    cp_exec_spec wait = in_session("busy", "read x <> fifo_that_nobody_writes");
    expect("busy", "mkfifo fifo_that_nobody_writes", 0, "", "");
    run_begin(&other, &wait);
    for (int i = 0; i < N; i++) {
        snprintf(text[i], sizeof text[i], "L=${L}%c; for i in 1 2 3; do echo %d.$i; done", 'a' + i, i);
        cp_exec_spec s = in_session("a", text[i]);
        run_begin(&r[i], &s);
    }
    for (int i = 0; i < N; i++) {
        char want[64];
        run_wait(&r[i]);
        snprintf(want, sizeof want, "%d.1\n%d.2\n%d.3\n", i, i, i);
        cp_autofree char *out = run_output(&r[i], 0);
        assert_string_equal(out, want);
        run_free(&r[i]);
    }
    expect("a", "echo $L", 0, "abcdefghijklmnopqrst\n", "");
    assert_int_equal(other.ends, 0);
    delete_("busy", false);
    run_wait(&other);
    run_free(&other);
}

static void background_jobs_do_not_hold_the_reply(void **state) { /* B005 */
    (void)state;
    expect("a", "sleep 300 & echo started; pid=$!", 0, "started\n", "");
    expect("a", "echo hi", 0, "hi\n", "");
    expect("a", "kill -0 $pid && echo alive; kill $pid; wait $pid 2>/dev/null; echo $?", 0, "alive\n143\n", NULL);
    expect("b", "wait; jobs; echo [$!]", 0, "[]\n", "");
}

/* ---- streams and processes ---- */

static void processes_inherit_and_end_truly(void **state) {
    (void)state;
    expect("a", "cd /tmp; export SX=9; v=2; f(){ echo fn; }; trap 'echo LEAK' EXIT", 0, "", "");
    expect_background(CP_EXEC_STREAM, "a", "pwd; echo $SX $v; f", 0, "/tmp\n9 2\nfn\n");
    expect_background(CP_EXEC_PROCESS, "a", "cd /usr; export NOPE=1; echo a; exit 3", 3, "a\n");
    expect("a", "pwd; echo [$NOPE]", 0, "/tmp\n[]\n", "");
    expect_background(CP_EXEC_PROCESS, "a", "exec echo hi", 0, "hi\n");
    expect_background(CP_EXEC_PROCESS, "a", "kill -9 $BASHPID", 137, "");
    expect_background(CP_EXEC_PROCESS, "a", "echo \"unterminated", 2, "");
    expect_background(CP_EXEC_PROCESS, "a", "trap 'echo bye' EXIT; ls /proc/self/fd | tr '\\n' ' '", 0,
                      "0 1 2 3 bye\n");
    expect("a", "(exit 5)", 5, "", "");
    expect_background(CP_EXEC_PROCESS, "a", "echo $?", 0, "5\n");
    cp_exec_spec s = in_session("a", "echo ran");
    s.kind = CP_EXEC_STREAM;
    s.cwd = CP_STR("/nope");
    run_expect(&s, 1, "", "Failed to change directory to '/nope'\n");
    const cp_env_var env = {CP_STR("OPT"), CP_STR("o")};
    s = in_session("a", "bash -c 'echo $OPT'");
    s.kind = CP_EXEC_STREAM;
    s.env = &env;
    s.nenv = 1;
    run_expect(&s, 0, "o\n", "");
    expect("a", "echo [$OPT]; jobs; wait; echo [$!]", 0, "[]\n[]\n", "");
}

static void session_is_free_while_a_process_runs(void **state) {
    (void)state;
    struct run p;
    cp_exec_spec s = in_session("a", "read x; echo got $x");
    s.kind = CP_EXEC_PROCESS;
    s.stdin_open = true;
    run_begin(&p, &s);
    expect("a", "echo free", 0, "free\n", "");
    assert_int_equal(p.e->state, CP_STATE_RUNNING);
    assert_true(p.e->pid > 1);
    assert_int_equal(cp_exec_stdin(p.e, CP_STR("it\n"), false, NULL, NULL), 0);
    run_wait(&p);
    cp_autofree char *out = run_output(&p, 0);
    assert_string_equal(out, "got it\n");
    run_free(&p);
}

/* What the reference hangs on: many streams in cold sessions. */
static void streams_in_cold_sessions(void **state) {
    (void)state;
    enum { N = 30 };
    static struct run r[N];
    for (int i = 0; i < N; i++) {
        char session[16], text[64];
        snprintf(session, sizeof session, "cold%d", i % 5);
        snprintf(text, sizeof text, "echo s%d; sleep 0.05; echo e%d", i, i);
        cp_exec_spec s = in_session(session, text);
        s.kind = CP_EXEC_STREAM;
        run_begin(&r[i], &s);
    }
    for (int i = 0; i < N; i++) {
        char want[32];
        run_wait(&r[i]);
        snprintf(want, sizeof want, "s%d\ne%d\n", i, i);
        if (r[i].e->state == CP_STATE_FAILED) fail_msg("%s", r[i].e->start_err->msg);
        cp_autofree char *out = run_output(&r[i], 0);
        assert_string_equal(out, want);
        run_free(&r[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FX_TEST(state_is_kept),
        FX_TEST(results),
        FX_TEST(only_standard_descriptors),
        FX_TEST(unbalanced_text_is_an_error_of_the_command),
        FX_TEST(a_script_of_a_mebibyte),
        FX_TEST(big_output_is_whole),
        FX_TEST(shell_ends),
        FX_TEST(options_do_not_leak_into_ours),
        FX_TEST(a_shell_that_runs_nothing_is_ended),
        FX_TEST(env_and_cwd_of_one_command),
        FX_TEST(every_byte_survives),
        FX_TEST(stdin_of_a_command),
        FX_TEST(one_after_another),
        FX_TEST(background_jobs_do_not_hold_the_reply),
        FX_TEST(processes_inherit_and_end_truly),
        FX_TEST(session_is_free_while_a_process_runs),
        FX_TEST(streams_in_cold_sessions),
        FX_TEST(job_control_and_timeouts_of_the_client),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
