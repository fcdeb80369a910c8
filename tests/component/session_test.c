/* Session shells on a real keeper. Bnnn: shared field cases. */
#include "component/services_fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include "base/fd.h"
#include "services/session_impl.h"

static cp_exec_spec in_session(const char *session, const char *command) {
    return (cp_exec_spec){.kind = CP_EXEC_BUFFERED, .session = cp_str_of(session), .command = cp_str_of(command)};
}

static void expect(const char *session, const char *command, int code, const char *out, const char *err) {
    cp_exec_spec s = in_session(session, command);
    run_expect(&s, code, out, err);
}

/* Ends with the shell gone: SESSION_TERMINATED on the wire. */
static void expect_end(const char *session, const char *command, int code, const char *out) {
    struct run r;
    cp_exec_spec s = in_session(session, command);
    run_begin(&r, &s);
    run_wait(&r);
    cp_autofree char *o = run_output(&r, 0);
    assert_true(r.e->session_ended);
    assert_int_equal(r.e->exit_code, code);
    assert_string_equal(o, out);
    run_free(&r);
}

/* Begins, times out after `ms`, ends; the outcome says so. */
static void expect_timeout(const char *session, const char *command, uint64_t ms, bool replaced) {
    struct run r;
    cp_exec_spec s = in_session(session, command);
    s.timeout_ms = ms;
    run_begin(&r, &s);
    run_wait(&r);
    assert_int_equal(r.e->outcome, CP_OUTCOME_timeout);
    assert_true(r.e->timed_out);
    assert_false(r.e->session_ended);
    assert_int_equal(r.e->shell_replaced, replaced);
    run_free(&r);
}

struct answer {
    int calls;
    bool failed;
    cp_code code;
    char id[256];
};

static void answered(void *arg, const cp_err *err, const char *id) {
    struct answer *a = arg;
    a->calls++;
    a->failed = err != NULL;
    if (err) a->code = err->code;
    snprintf(a->id, sizeof a->id, "%s", id);
}

static void create(const cp_session_spec *spec, struct answer *a) {
    cp_err err = {0};
    *a = (struct answer){0};
    if (cp_session_create(&fx.s, spec, answered, a, &err) < 0) fail_msg("%s", err.msg);
    assert_int_equal(a->calls, 0);
    fx_until(a->calls);
    assert_false(a->failed);
}

static void delete_(const char *id, bool keep) {
    struct answer a = {0};
    cp_err err = {0};
    if (cp_session_delete(&fx.s, cp_str_of(id), keep, answered, &a, &err) < 0) fail_msg("%s", err.msg);
    fx_until(a.calls);
    assert_false(a.failed);
}

static void restart(const char *id);

static struct cp_session *session(const char *id) {
    struct cp_session *s = session_find(&fx.s, cp_str_of(id));
    assert_non_null(s);
    return s;
}

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
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("one\ntwo"), true, NULL), 0);
    run_wait(&r);
    cp_autofree char *out = run_output(&r, 0);
    assert_string_equal(out, "<one>\ntwo");
    run_free(&r);
    s.kind = CP_EXEC_PROCESS;
    run_begin(&r, &s);
    fx_until(r.starts);
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("one\n"), false, NULL), 0);
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("two"), true, NULL), 0);
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

static void expect_background(cp_exec_kind kind, const char *session, const char *command, int code, const char *out) {
    cp_exec_spec s = in_session(session, command);
    s.kind = kind;
    run_expect(&s, code, out, NULL);
}

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
    assert_int_equal(cp_exec_stdin(p.e, CP_STR("it\n"), false, NULL), 0);
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
        if (r[i].e->state == CP_STATE_FAILED) fail_msg("%s", r[i].e->start_err.msg);
        cp_autofree char *out = run_output(&r[i], 0);
        assert_string_equal(out, want);
        run_free(&r[i]);
    }
}

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

/* Says its pid when it has a session of its own and, soon, no parent. */
#define DAEMON "setsid -f sh -c 'echo $$; exec sleep 1000'"

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

/* ---- creation and deletion ---- */

static void created_with_cwd_and_env(void **state) { /* B063 */
    (void)state;
    struct answer a;
    const cp_env_var env[] = {{CP_STR("A"), CP_STR("1")}, {CP_STR("LANG"), CP_STR("xx")}};
    create(&(cp_session_spec){.id = CP_STR("s"), .cwd = CP_STR("/tmp"), .env = env, .nenv = 2}, &a);
    expect("s", "pwd; echo $A $LANG $LC_ALL", 0, "/tmp\n1 C.UTF-8 C.UTF-8\n", "");
    expect_end("s", "cd /; A=2; exit 1", 1, "");
    expect("s", "pwd; echo $A", 0, "/tmp\n1\n", "");
    cp_err err = {0};
    assert_int_equal(cp_session_create(&fx.s, &(cp_session_spec){.id = CP_STR("s")}, answered, &a, &err), -1);
    assert_int_equal(err.code, CP_E_SESSION_ALREADY_EXISTS);
    create(&(cp_session_spec){.id = CP_STR("h"), .cwd = CP_STR("/no/such/dir")}, &a);
    expect("h", "[ \"$PWD\" = \"$HOME\" ] && echo same", 0, "same\n", "");
    create(&(cp_session_spec){0}, &a);
    assert_int_equal(strlen(a.id), strlen("session_") + 13 + 1 + 12);
    assert_int_equal(strncmp(a.id, "session_", 8), 0);
    delete_("s", false);
    create(&(cp_session_spec){.id = CP_STR("s")}, &a);
    expect("s", "echo [$A]; [ $PWD = /tmp ] || echo start", 0, "[]\nstart\n", "");
}

static void cwd_is_known(void **state) {
    (void)state;
    char cwd[4096];
    cp_session_cwd(&fx.s, CP_STR("unknown"), cwd);
    assert_string_equal(cwd, fx.workspace);
    expect("a", "cd /usr", 0, "", "");
    cp_session_cwd(&fx.s, CP_STR("a"), cwd);
    assert_string_equal(cwd, "/usr");
    cp_exec_spec s = in_session("a", "cd /");
    s.cwd = CP_STR("/tmp");
    run_expect(&s, 0, "", "");
    cp_session_cwd(&fx.s, CP_STR("a"), cwd);
    assert_string_equal(cwd, "/usr");
    s = in_session("b", "pwd");
    s.cwd = CP_STR("/tmp");
    run_expect(&s, 0, "/tmp\n", "");
    expect("b", "pwd", 0, "/tmp\n", "");
}

static int folders(void) {
    char path[160];
    snprintf(path, sizeof path, "%s/sessions", fx.dir);
    DIR *d = opendir(path);
    int n = -2;
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static void an_id_is_free_at_once(void **state) { /* B061 */
    (void)state;
    struct answer gone[100] = {{0}}, made[100] = {{0}};
    for (int i = 0; i < 100; i++) {
        cp_err err = {0};
        if (cp_session_create(&fx.s, &(cp_session_spec){.id = CP_STR("same")}, answered, &made[i], &err) < 0)
            fail_msg("%s", err.msg);
        if (i % 2) fx_until(made[i].calls);
        if (cp_session_delete(&fx.s, CP_STR("same"), false, answered, &gone[i], &err) < 0) fail_msg("%s", err.msg);
        assert_false(cp_session_exists(&fx.s, CP_STR("same")));
    }
    for (int i = 0; i < 100; i++) {
        fx_until(gone[i].calls && made[i].calls);
        assert_int_equal(made[i].failed, i % 2 == 0);
    }
    assert_int_equal(folders(), 0);
    cp_err err;
    assert_int_equal(cp_session_delete(&fx.s, CP_STR("same"), false, answered, &gone[0], &err), -1);
    assert_int_equal(err.code, CP_E_INTERNAL_ERROR);
}

static void deletion_ends_what_is_pending(void **state) { /* B099 */
    (void)state;
    enum { N = 20 };
    static struct run r[N], p, stream;
    cp_exec_spec s = in_session("a", "sleep 3000");
    s.kind = CP_EXEC_PROCESS;
    run_begin(&p, &s);
    s.kind = CP_EXEC_STREAM;
    run_begin(&stream, &s);
    fx_until(p.starts && stream.starts);
    s.kind = CP_EXEC_BUFFERED;
    for (int i = 0; i < N; i++) run_begin(&r[i], &s);
    fx_until(r[0].starts);
    delete_("a", false);
    for (int i = 0; i < N; i++) {
        run_wait(&r[i]);
        assert_true(r[i].e->session_destroyed);
        assert_int_equal(r[i].e->state, i ? CP_STATE_FAILED : CP_STATE_ENDED);
        if (i) assert_int_equal(r[i].e->start_err.code, CP_E_SESSION_DESTROYED);
        run_free(&r[i]);
    }
    run_wait(&p);
    assert_int_equal(p.e->signal, SIGKILL);
    assert_false(p.e->session_destroyed);
    run_free(&p);
    run_wait(&stream);
    assert_true(stream.e->session_destroyed);
    run_free(&stream);
}

/* For a moment the server has no descriptor left. */
static void without_descriptors_it_says_so(void **state) {
    (void)state;
    struct rlimit all, none;
    struct run r;
    cp_exec_spec s = in_session("poor", "echo rich");
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &all), 0);
    none = (struct rlimit){.rlim_cur = 3, .rlim_max = all.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    run_begin(&r, &s);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &all), 0);
    run_wait(&r);
    assert_int_equal(r.e->state, CP_STATE_FAILED);
    assert_int_equal(r.e->start_err.code, CP_E_TOO_MANY_FILES);
    run_free(&r);
    expect("poor", "echo rich", 0, "rich\n", "");
}

/* It has been typed when they run out: that its subshell reports, and is the session's, takes none to see. */
static void without_descriptors_a_subshell_is_known(void **state) {
    (void)state;
    struct rlimit all, none;
    struct run r;
    expect("poor", "true", 0, "", "");
    cp_exec_spec s = in_session("poor", "read x; echo $x");
    s.kind = CP_EXEC_PROCESS;
    s.stdin_open = true;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &all), 0);
    none = (struct rlimit){.rlim_cur = 3, .rlim_max = all.rlim_max};
    run_begin(&r, &s);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    fx_until(r.starts);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &all), 0);
    assert_int_equal(r.e->state, CP_STATE_RUNNING);
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("kept\n"), true, NULL), 0);
    run_wait(&r);
    cp_autofree char *out = run_output(&r, 0);
    assert_string_equal(out, "kept\n");
    run_free(&r);
}

static void deletion_can_keep_processes(void **state) {
    (void)state;
    struct run p;
    cp_exec_spec s = in_session("a", "read x; echo $x");
    s.kind = CP_EXEC_PROCESS;
    s.stdin_open = true;
    run_begin(&p, &s);
    fx_until(p.starts);
    delete_("a", true);
    assert_int_equal(p.e->state, CP_STATE_RUNNING);
    assert_int_equal(cp_exec_stdin(p.e, CP_STR("kept\n"), true, NULL), 0);
    run_wait(&p);
    cp_autofree char *out = run_output(&p, 0);
    assert_string_equal(out, "kept\n");
    assert_int_equal(p.e->exit_code, 0);
    run_free(&p);
}

static void limits(void **state) {
    (void)state;
    struct answer a;
    cp_err err = {0};
    fx.config.max_sessions = 2;
    create(&(cp_session_spec){.id = CP_STR("1")}, &a);
    create(&(cp_session_spec){.id = CP_STR("2")}, &a);
    assert_int_equal(cp_session_create(&fx.s, &(cp_session_spec){.id = CP_STR("3")}, answered, &a, &err), -1);
    assert_int_equal(err.code, CP_E_LIMIT_EXCEEDED);
    struct run r;
    cp_exec_spec s = in_session("3", "true");
    run_begin(&r, &s);
    run_wait(&r);
    assert_int_equal(r.e->state, CP_STATE_FAILED);
    assert_int_equal(r.e->start_err.code, CP_E_LIMIT_EXCEEDED);
    run_free(&r);
    expect_end("1", "exit 1", 1, ""); /* one without a shell gives its place up */
    create(&(cp_session_spec){.id = CP_STR("3")}, &a);
    assert_false(cp_session_exists(&fx.s, CP_STR("1")));
}

static void a_queue_is_bounded(void **state) {
    (void)state;
    static struct run r[CP_SESSION_QUEUE + 2];
    fx.config.max_processes = 2 * CP_SESSION_QUEUE;
    cp_exec_spec s = in_session("a", "sleep 3000");
    run_begin(&r[0], &s);
    fx_until(r[0].starts);
    for (int i = 1; i < CP_SESSION_QUEUE + 2; i++) run_begin(&r[i], &s);
    run_wait(&r[CP_SESSION_QUEUE + 1]);
    assert_int_equal(r[CP_SESSION_QUEUE + 1].e->start_err.code, CP_E_LIMIT_EXCEEDED);
    assert_int_equal(r[CP_SESSION_QUEUE].starts, 0);
    delete_("a", false);
    for (int i = 0; i < CP_SESSION_QUEUE + 2; i++) {
        run_wait(&r[i]);
        run_free(&r[i]);
    }
}

/* ---- the shell under it ---- */

/* The server has not been told yet that the shell is gone: the command runs all the same. */
static void a_shell_that_died_while_idle(void **state) {
    (void)state;
    expect("a", "v=1", 0, "", "");
    cp_proc shell = {.pid = session("a")->child.pid, .start_time = session("a")->child.start_time};
    assert_int_equal(cp_proc_signal(&shell, SIGKILL), 0);
    for (uint64_t end = cp_now_ms() + FX_DEADLINE_MS; cp_proc_alive(&shell);) assert_true(cp_now_ms() < end);
    expect("a", "echo [$v]", 0, "[]\n", "");
}

/* A server that ends and the next one, as the keeper would see it. */
static void restart(const char *id) {
    const struct cp_session *s = session(id);
    char key[64];
    snprintf(key, sizeof key, "s:%s:%s", s->token, id);
    cp_held h = {.tag = s->child.tag,
                 .key = key,
                 .pid = s->child.pid,
                 .start_time = s->child.start_time,
                 .mark = s->child.mark,
                 .fds = {dup(s->script), dup(s->status), dup(s->depot)}};
    cp_err err = {0};
    cp_services_close(&fx.s);
    cp_services_held(&fx.s, &h);
    if (cp_services_open(&fx.s, &err) < 0) fail_msg("%s", err.msg);
    assert_true(cp_session_exists(&fx.s, cp_str_of(id)));
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
    for (uint64_t end = cp_now_ms() + FX_DEADLINE_MS; unread || shell.state != 'S';) { /* it waits: nobody reads */
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
    r = (struct run){.w = {.on_start = run_on_start, .on_end = run_on_end}};
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

static void job_control_and_timeouts_of_the_client(void **state) {
    (void)state;
    expect("a", "set -m; TMOUT=1", 0, "", "");
    expect("a", "/bin/true | cat; sleep 300 & echo on", 0, "on\n", NULL);
    expect_background(CP_EXEC_PROCESS, "a", "echo bg; exit 2", 2, "bg\n");
    expect_timeout("a", "sleep 300", 200, false);
    expect("a", "jobs %1 >/dev/null && echo alive; kill %1", 0, "alive\n", NULL);
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

#define TEST(f) cmocka_unit_test_setup_teardown(f, fx_setup, fx_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(state_is_kept),
        TEST(results),
        TEST(only_standard_descriptors),
        TEST(unbalanced_text_is_an_error_of_the_command),
        TEST(a_script_of_a_mebibyte),
        TEST(big_output_is_whole),
        TEST(shell_ends),
        TEST(options_do_not_leak_into_ours),
        TEST(a_shell_that_runs_nothing_is_ended),
        TEST(env_and_cwd_of_one_command),
        TEST(every_byte_survives),
        TEST(stdin_of_a_command),
        TEST(one_after_another),
        TEST(background_jobs_do_not_hold_the_reply),
        TEST(processes_inherit_and_end_truly),
        TEST(session_is_free_while_a_process_runs),
        TEST(streams_in_cold_sessions),
        TEST(a_timeout_ends_the_command_only),
        TEST(daemons_die_with_their_command),
        TEST(a_command_may_set_the_limit),
        TEST(deletion_finds_daemons),
        TEST(a_shell_that_cannot_be_interrupted_is_replaced),
        TEST(a_queued_command_has_a_deadline),
        TEST(default_timeout_of_a_session),
        TEST(created_with_cwd_and_env),
        TEST(cwd_is_known),
        TEST(an_id_is_free_at_once),
        TEST(deletion_ends_what_is_pending),
        TEST(without_descriptors_it_says_so),
        TEST(without_descriptors_a_subshell_is_known),
        TEST(deletion_can_keep_processes),
        TEST(limits),
        TEST(a_queue_is_bounded),
        TEST(a_shell_that_died_while_idle),
        TEST(an_idle_shell_outlives_the_server),
        TEST(a_busy_shell_is_awaited_by_the_next_server),
        TEST(a_shell_that_speaks_to_nobody_lives),
        TEST(a_restart_leaves_no_descriptor),
        TEST(a_shell_behind_its_server_is_not_left_waiting),
        TEST(a_command_with_an_id_is_gone_on_with),
        TEST(what_cannot_be_revived_is_let_go),
        TEST(job_control_and_timeouts_of_the_client),
        cmocka_unit_test_setup_teardown(as_another_user, setup_child_user, teardown_child_user),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
