/* A pre-started shell behaves as `bash -c`: both are run and compared. */
#include "component/services_fixture.h"

#include <fcntl.h>

#include "base/fd.h"
#include "services/tree.h"

/* `bash -c` by this test's own hands, with the same environment, folder and descriptors. */
static int plain_bash(const char *command, char **out, char **err) {
    int o[2], e[2];
    assert_int_equal(cp_pipe(o, 0), 0);
    assert_int_equal(cp_pipe(e, 0), 0);
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDONLY);
        dup2(null, 0);
        dup2(o[1], 1);
        dup2(e[1], 2);
        syscall(SYS_close_range, 3u, ~0u, 0u);
        if (chdir(fx.workspace) < 0) _exit(126);
        setpgid(0, 0);
        execle("/bin/bash", "bash", "-c", command, NULL, fx.s.base_env);
        _exit(126);
    }
    close(o[1]);
    close(e[1]);
    char **to[] = {out, err};
    int fds[] = {o[0], e[0]};
    for (int k = 0; k < 2; k++) {
        cp_buf b = {0};
        for (ssize_t n;; b.n += (size_t)n) {
            cp_buf_reserve(&b, 65536);
            if ((n = read(fds[k], b.p + b.n, 65536)) <= 0) break;
        }
        (void)cp_buf_z(&b);
        *to[k] = b.p;
        close(fds[k]);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void same(const char *command) {
    cp_autofree char *out = NULL;
    cp_autofree char *err = NULL;
    int code = plain_bash(command, &out, &err);
    struct run r;
    cp_exec_spec s = shell_spec(command);
    run_begin(&r, &s);
    run_wait(&r);
    cp_autofree char *o = run_output(&r, 0);
    cp_autofree char *e = run_output(&r, 1);
    /* The one thing that differs: the name of the place of a syntax error. */
    for (char *at; (at = strstr(e, "bash: eval: "));) {
        memcpy(at, "bash: -c: ", 10);
        memmove(at + 10, at + 12, strlen(at + 12) + 1);
    }
    if (strcmp(o, out) != 0 || code != r.e->exit_code || strcmp(e, err) != 0)
        fail_msg("%s\n--- bash -c: %d\n%s%s--- pool: %d\n%s%s", command, code, out, err, r.e->exit_code, o, e);
    run_free(&r);
}

static void like_bash_c(void **state) {
    (void)state;
    const char *const commands[] = {
        "echo \"$-|$0|$#|$BASHOPTS|$SHELLOPTS|$BASH_SUBSHELL\"",
        "env | sort | grep -v '^_='; declare -p | cut -d= -f1 | grep -v ' _$' | sort",
        "ls /proc/self/fd; readlink /proc/self/fd/0; pwd; echo $PWD",
        "[ $$ = $BASHPID ] && [ $$ = $(ps -o pgid= -p $$ | tr -d ' ') ] && echo same",
        "echo $LINENO\necho $LINENO; nosuch",
        "nosuchcmd; echo $?",
        "exit 3",
        "exec echo replaced",
        "exec nosuchprogram",
        "trap 'echo bye' EXIT; exit 4",
        "trap 'echo err' ERR; false; echo $?",
        "kill -9 $$",
        "kill -TERM $$",
        "set -e; false; echo no",
        "set -x; echo traced",
        "set -o pipefail; false | true",
        "set -u; echo $nothing",
        "echo 'unbalanced",
        "fi",
        "echo a\nfi\necho b",
        "cat <<X\nunfinished",
        "cat <<'X'\n$HOME\nX\necho done",
        "return 5; echo after",
        "${nothing?message}; echo y",
        "read x; echo \"[$x] $?\"",
        "exec 5>/dev/null; ls /proc/self/fd | wc -l",
        "sleep 0.1 & wait; echo $?",
        "echo $SECONDS $OPTIND; getopts ab x -a; echo $x $OPTIND",
        "echo a >&2; echo b; false",
        "f() { echo in f \"$@\"; return 6; }; f 1 2",
        "printf 'no newline'",
        "cd /; cd - >/dev/null; pwd; env | grep -c ^OLDPWD",
        "ulimit -n; umask",
        "REPLY=x; echo $REPLY; CONFLUX_X=y; echo $CONFLUX_X",
        "(exit 9)",
        "echo \"$BASH_EXECUTION_STRING\"; unset BASH_EXECUTION_STRING; echo ok",
        "shopt -s extglob; echo ok",
        "caller; echo ${#FUNCNAME[@]} ${BASH_SOURCE[0]}",
        "type cd; hash; jobs; history",
        "#only a comment",
    };
    for (size_t i = 0; i < CP_COUNT(commands); i++) same(commands[i]);
}

static void env_and_folder(void **state) {
    (void)state;
    cp_exec_spec s =
        shell_spec("echo \"$A|$B\"; bash -c 'echo \"$A\"'; pwd; echo \"${OLDPWD-unset}\"; cd /; env | grep ^OLDPWD");
    const cp_env_var env[] = {{CP_STR("A"), CP_STR("it's \"$x\" \\ `id`\n*")}, {CP_STR("B"), CP_STR("")}};
    s.env = env;
    s.nenv = 2;
    s.cwd = CP_STR("/usr/lib");
    run_expect(&s, 0, "it's \"$x\" \\ `id`\n*|\nit's \"$x\" \\ `id`\n*\n/usr/lib\nunset\nOLDPWD=/usr/lib\n", NULL);
    s.cwd = CP_STR("/usr/./lib/../lib");
    s.command = CP_STR("pwd");
    run_expect(&s, 0, "/usr/lib\n", "");
    /* what a shell only heeds when it starts */
    const cp_env_var path = {CP_STR("PATH"), CP_STR("/nowhere")};
    s = shell_spec("echo $PATH; ls");
    s.env = &path;
    s.nenv = 1;
    run_expect(&s, 127, "/nowhere\n", "bash: line 1: ls: command not found\n");
    s = shell_spec("echo hi; set -u");
    s.env = &path;
    s.nenv = 1;
    run_expect(&s, 0, "hi\n", "");
}

static void each_shell_is_used_once(void **state) {
    (void)state;
    cp_exec_spec s = shell_spec("LEAK=1; cd /; trap 'echo leak' EXIT; alias ls=x; f() { :; }; exec 2>&1 >/dev/null");
    for (int i = 0; i < 6; i++) run_expect(&s, 0, "", NULL);
    s = shell_spec("echo \"[$LEAK]\"; pwd; trap; declare -F");
    cp_autobuf cp_buf want = {0};
    cp_buf_addf(&want, "[]\n%s\n", fx.workspace);
    for (int i = 0; i < 6; i++) run_expect(&s, 0, cp_buf_z(&want), "");
}

static unsigned waiting_shells(pid_t keeper) {
    cp_tree all = {0};
    assert_int_equal(cp_tree_snapshot(&all), 0);
    unsigned n = 0;
    for (size_t i = 0; i < all.n; i++) n += all.v[i].ppid == keeper;
    cp_tree_free(&all);
    return n;
}

static void dead_shells_are_replaced(void **state) {
    (void)state;
    cp_tree all = {0};
    /* All of them: one that started after the others were killed would be there for good. */
    fx_until(waiting_shells(fx.keeper_pid) == (unsigned)fx.config.pool_size);
    assert_int_equal(cp_tree_snapshot(&all), 0);
    for (size_t i = 0; i < all.n; i++)
        if (all.v[i].ppid == fx.keeper_pid) (void)cp_proc_signal(&all.v[i], SIGKILL);
    cp_tree_free(&all);
    fx_until(waiting_shells(fx.keeper_pid) == 0);
    cp_exec_spec s = shell_spec("echo ok");
    for (int i = 0; i < 3; i++) run_expect(&s, 0, "ok\n", "");
}

static void without_a_pool(void **state) {
    (void)state;
    cp_exec_spec s = shell_spec("echo ok; exit 2");
    fx.config.pool_size = 0;
    for (int i = 0; i < 6; i++) run_expect(&s, 2, "ok\n", "");
}

/* A handover does not wait for commands: the teardown closes the services under this one. */
static void closed_while_in_use(void **state) {
    (void)state;
    struct run r;
    cp_exec_spec s = shell_spec("sleep 1000");
    run_begin(&r, &s);
    fx_until(r.starts);
    run_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FX_TEST(like_bash_c),
        FX_TEST(env_and_folder),
        FX_TEST(each_shell_is_used_once),
        FX_TEST(dead_shells_are_replaced),
        FX_TEST(without_a_pool),
        FX_TEST(closed_while_in_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
