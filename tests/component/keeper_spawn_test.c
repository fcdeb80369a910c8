/* What a child of the keeper starts with, and how its end or failure is told. */
#include "component/keeper_client_fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "keeper/spawn.h"

/* The output of a command, which must exit 0; heap. */
static char *output_of(cp_spawn s, struct kid *k) {
    int rw[2];
    assert_int_equal(cp_pipe(rw, 0), 0);
    s.fds[1] = rw[1];
    start(k, &s);
    close(rw[1]);
    await(&k->spawned);
    if (k->sys) fail_msg("%s: %s", k->step, strerror(k->sys));
    cp_buf out = {0};
    for (;;) {
        cp_buf_reserve(&out, 4096);
        ssize_t n = read(rw[0], out.p + out.n, 4096);
        assert_true(n >= 0);
        if (n == 0) break;
        out.n += (size_t)n;
    }
    close(rw[0]);
    await(&k->exited);
    assert_int_equal(k->x.code, 0);
    (void)cp_buf_z(&out);
    return out.p;
}

static void write_file(const char *path, const char *text, mode_t mode) {
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, mode);
    assert_true(fd >= 0);
    assert_int_equal(cp_write_all(fd, text, strlen(text)), 0);
    close(fd);
}

static void test_statuses(void **state) {
    (void)state;
    struct kid k;
    run(&k, &SPEC(.argv = ARGV("true")));
    assert_int_equal(k.sys, 0);
    assert_int_equal(k.x.code, 0);
    assert_int_equal(k.x.signal, 0);
    assert_true(k.c.pid > 1);
    assert_true(k.c.start_time > 0);
    assert_true(k.x.max_rss >= 100 * 1024 && k.x.max_rss < (1u << 30));
    run(&k, &SPEC(.argv = ARGV("false")));
    assert_int_equal(k.x.code, 1);
    run(&k, &SPEC(.argv = SH("exit 255")));
    assert_int_equal(k.x.code, 255);
    run(&k, &SPEC(.argv = SH("kill -TERM $$")));
    assert_int_equal(k.x.code, -1);
    assert_int_equal(k.x.signal, SIGTERM);
    assert_false(k.x.core);
    run(&k, &SPEC(.argv = SH("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done")));
    assert_int_equal(k.x.code, 0);
    assert_true(k.x.cpu_us > 1000);
}

static void test_failures(void **state) {
    (void)state;
    char plain[128], path_env[160];
    snprintf(plain, sizeof plain, "%s/plain", t.dir);
    write_file(plain, "echo\n", 0644);
    snprintf(path_env, sizeof path_env, "PATH=/nonexistent:%s:/bin", t.dir);
    const char *const env[] = {path_env, NULL};
    expect_failure(&SPEC(.argv = ARGV("no-such-program-anywhere")), ENOENT, "execve");
    expect_failure(&SPEC(.argv = ARGV("")), ENOENT, "execve");
    expect_failure(&SPEC(.argv = ARGV("/no/such/program")), ENOENT, "execve");
    expect_failure(&SPEC(.argv = ARGV(plain)), EACCES, "execve");
    expect_failure(&SPEC(.argv = ARGV("plain"), .env = env), EACCES, "execve");
    expect_failure(&SPEC(.argv = ARGV("true"), .cwd = "/etc/passwd"), ENOTDIR, "chdir");
    expect_failure(&SPEC(.argv = ARGV("true"), .cwd = "/no/such/directory"), ENOENT, "chdir");
    cp_err err;
    struct kid k = {0};
    assert_int_equal(cp_keeper_spawn(t.keeper, &k.c, &SPEC(.argv = (const char *const[]){NULL}), &err), -1);
    assert_int_equal(err.code, CP_E_INVALID_COMMAND);
}

/* What is denied early on the PATH does not hide what is allowed later; a script without #! is run by sh. */
static void test_path_lookup(void **state) {
    (void)state;
    char path[128], env0[200];
    snprintf(path, sizeof path, "%s/a", t.dir);
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(path, sizeof path, "%s/b", t.dir);
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(path, sizeof path, "%s/a/tool", t.dir);
    write_file(path, "echo denied\n", 0644);
    snprintf(path, sizeof path, "%s/b/tool", t.dir);
    write_file(path, "echo \"tool $1 $#\"\n", 0755);
    snprintf(env0, sizeof env0, "PATH=%s/a:%s/b:/usr/bin:/bin", t.dir, t.dir);
    const char *const env[] = {env0, NULL}, *const no_path[] = {"A=b", NULL}, *const here[] = {"PATH=", NULL};
    struct kid k;
    cp_autofree char *one = output_of(SPEC(.argv = ARGV("tool", "x y", "z"), .env = env), &k);
    assert_string_equal(one, "tool x y 2\n");
    cp_autofree char *two = output_of(SPEC(.argv = ARGV("echo", "default path"), .env = no_path), &k);
    assert_string_equal(two, "default path\n");
    snprintf(path, sizeof path, "%s/b", t.dir);
    cp_autofree char *three = output_of(SPEC(.argv = ARGV("tool", "1"), .env = here, .cwd = path), &k);
    assert_string_equal(three, "tool 1 1\n");
}

static void test_env_and_cwd(void **state) {
    (void)state;
    struct kid k;
    cp_autofree char *out = output_of(SPEC(.argv = SH("pwd; echo \"$FOO\""), .cwd = t.dir), &k);
    char want[128];
    snprintf(want, sizeof want, "%s\nbar baz\n", t.dir);
    assert_string_equal(out, want);
    const char *const env[] = {"A=1", "PATH=/bin", NULL};
    cp_autofree char *env_out = output_of(SPEC(.argv = ARGV("env"), .env = env), &k);
    assert_string_equal(env_out, "A=1\nPATH=/bin\n"); /* nothing of ours */
    cp_autofree char *root = output_of(SPEC(.argv = ARGV("pwd")), &k);
    assert_string_equal(root, "/\n");
}

/* Told to the server, carried by the child and by what has left it, whoever it runs as; one for each spawn, unless an
 * earlier one is asked for. */
static void test_marks(void **state) {
    (void)state;
    struct kid a, b, c, d;
    cp_mark m;
    cp_autofree char *pid = output_of(SPEC(.argv = SH("setsid -f sh -c 'echo $$; exec sleep 1000 >/dev/null 2>&1'"),
                                           .set_user = geteuid() == 0, .uid = 65534, .gid = 65534),
                                      &a);
    assert_true(cp_mark_is(a.c.mark.spawn));
    assert_int_equal(a.c.mark.command, 0);
    cp_autofree char *own = output_of(SPEC(.argv = SH("grep 'Max file locks' /proc/self/limits")), &b);
    char want[128];
    snprintf(want, sizeof want, "Max file locks            %-20llu %-20llu locks     \n",
             (unsigned long long)b.c.mark.spawn, (unsigned long long)b.c.mark.spawn);
    assert_string_equal(own, want);
    assert_int_not_equal(a.c.mark.spawn, b.c.mark.spawn);
    assert_int_equal(cp_mark_keeper(a.c.mark.spawn), cp_mark_keeper(b.c.mark.spawn));
    run(&c, &SPEC(.argv = SH(":"), .mark = a.c.mark.spawn));
    assert_int_equal(c.c.mark.spawn, a.c.mark.spawn);
    run(&d, &SPEC(.argv = SH(":"), .mark = a.c.mark.spawn ^ CP_MARK_SPAWNS)); /* another keeper's */
    assert_int_equal(cp_mark_keeper(d.c.mark.spawn), cp_mark_keeper(a.c.mark.spawn));
    assert_int_not_equal(d.c.mark.spawn, a.c.mark.spawn);
    pid_t daemon = (pid_t)strtol(pid, NULL, 10);
    assert_true(daemon > 1 && cp_mark_of(daemon, &m) && m.spawn == a.c.mark.spawn && m.command == 0);
    assert_int_equal(kill(daemon, SIGKILL), 0);
    assert_false(cp_mark_of(getpid(), &m));
    assert_int_equal(m.spawn, 0);
}

static void test_descriptors(void **state) {
    (void)state;
    struct kid k;
    cp_autofree char *out = output_of(SPEC(.argv = ARGV("ls", "/proc/self/fd")), &k);
    assert_string_equal(out, "0\n1\n2\n3\n"); /* 3 is ls reading the folder */
    cp_spawn s = SPEC(.argv = SH("for i in 7 6 5 4 3 0; do cat <&$i; done"));
    for (int i = 0; i < 8; i++) {
        if (i == 1 || i == 2) continue;
        char text[8];
        snprintf(text, sizeof text, "fd%d ", i);
        s.fds[i] = cp_memfd("t", text, 4);
        assert_true(s.fds[i] >= 0);
    }
    cp_autofree char *all = output_of(s, &k);
    assert_string_equal(all, "fd7 fd6 fd5 fd4 fd3 fd0 ");
    for (int i = 0; i < 8; i++)
        if (i != 1 && i != 2) close(s.fds[i]);
}

/* Two descriptors that change places. */
static void test_descriptors_swapped(void **state) {
    (void)state;
    int saved4 = dup(4), saved5 = dup(5), rw[2];
    cp_autofd int a = cp_memfd("a", "A", 1), b = cp_memfd("b", "B", 1);
    assert_int_equal(cp_pipe(rw, 0), 0);
    a = fcntl(a, F_DUPFD_CLOEXEC, 20);
    b = fcntl(b, F_DUPFD_CLOEXEC, 20);
    int out = fcntl(rw[1], F_DUPFD_CLOEXEC, 20), in = fcntl(rw[0], F_DUPFD_CLOEXEC, 20);
    spawner sp;
    assert_int_equal(spawner_init(&sp), 0);
    int devnull = sp.devnull;
    sp.devnull = fcntl(devnull, F_DUPFD_CLOEXEC, 20);
    close(devnull);
    dup3(a, 4, O_CLOEXEC);
    dup3(b, 5, O_CLOEXEC);
    char *argv[] = {NULL, (char *)(uintptr_t) "sh", (char *)(uintptr_t) "-c", (char *)(uintptr_t) "cat <&4; cat <&5",
                    NULL},
         *env[] = {NULL};
    spawn_job w = {.spec = {.argv = argv + 1, .env = env, .fds = {-1, out, 2, -1, 5, 4, -1, -1}}};
    assert_true(spawn_begin(&sp, &w));
    int status;
    assert_int_equal(waitpid(w.pid, &status, 0), w.pid);
    assert_int_equal(spawn_look(&w), SPAWN_DONE);
    spawn_end(&sp, &w);
    char got[3] = "";
    assert_int_equal(read(in, got, 2), 2);
    assert_string_equal(got, "BA");
    if (saved4 >= 0) dup3(saved4, 4, O_CLOEXEC), close(saved4);
    if (saved5 >= 0) dup3(saved5, 5, O_CLOEXEC), close(saved5);
    close(out), close(in);
    spawner_fini(&sp);
}

static void test_signals(void **state) {
    (void)state;
    struct kid k;
    cp_autofree char *out = output_of(SPEC(.argv = ARGV("cat", "/proc/self/status")), &k);
    assert_non_null(strstr(out, "SigBlk:\t0000000000000000\n"));
    assert_non_null(strstr(out, "SigIgn:\t0000000000000000\n"));
    assert_non_null(strstr(out, "SigCgt:\t0000000000000000\n"));
}

static void test_limit_restored(void **state) {
    (void)state;
    struct rlimit lim;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &lim), 0);
    struct kid k;
    cp_autofree char *out = output_of(SPEC(.argv = SH("ulimit -Sn")), &k);
    assert_int_equal(strtoull(out, NULL, 10), lim.rlim_cur);
}

static void test_groups(void **state) {
    (void)state;
    struct kid k;
    int pid, ppid, pgid, sid;
    cp_autofree char *one = output_of(SPEC(.argv = ARGV("cat", "/proc/self/stat")), &k);
    assert_int_equal(sscanf(one, "%d (cat) R %d %d %d", &pid, &ppid, &pgid, &sid), 4);
    assert_int_equal(pid, k.c.pid);
    assert_int_equal(ppid, t.pid);
    assert_int_equal(pgid, pid);
    assert_int_equal(sid, getsid(0));
    cp_autofree char *two = output_of(SPEC(.argv = ARGV("cat", "/proc/self/stat"), .own_session = true), &k);
    assert_int_equal(sscanf(two, "%d (cat) R %d %d %d", &pid, &ppid, &pgid, &sid), 4);
    assert_int_equal(pgid, pid);
    assert_int_equal(sid, pid);
}

static void test_user(void **state) {
    (void)state;
    if (geteuid() != 0) skip();
    struct kid k;
    cp_spawn s = SPEC(.argv = SH("id -u; id -g; id -G"), .set_user = true, .uid = 65534, .gid = 65533);
    cp_autofree char *out = output_of(s, &k);
    assert_string_equal(out, "65534\n65533\n65533\n");
    char closed_dir[128];
    snprintf(closed_dir, sizeof closed_dir, "%s/closed", t.dir);
    assert_int_equal(mkdir(closed_dir, 0700), 0);
    s.cwd = closed_dir;
    expect_failure(&s, EACCES, "chdir");
}

static void test_big_argv(void **state) {
    (void)state;
    enum { N = 16, EACH = 65535 };
    cp_autofree char *big = cp_alloc(EACH + 1);
    memset(big, 'x', EACH);
    const char *argv[4 + N + 1] = {"sh", "-c", "printf %s \"$@\" | wc -c", "sh"};
    for (int i = 0; i < N; i++) argv[4 + i] = big;
    struct kid k;
    cp_autofree char *out = output_of(SPEC(.argv = argv), &k);
    assert_int_equal(strtol(out, NULL, 10), N * EACH);
    /* The kernel's own limit for one string comes back as an errno; ours for all of them is refused at once. */
    cp_autofree char *huge = cp_alloc(5 << 20);
    memset(huge, 'y', (5 << 20) - 1);
    cp_err err;
    assert_int_equal(cp_keeper_spawn(t.keeper, &k.c, &SPEC(.argv = ARGV("true", huge)), &err), -1);
    assert_int_equal(err.code, CP_E_PAYLOAD_TOO_LARGE);
    huge[200 * 1024] = '\0';
    expect_failure(&SPEC(.argv = ARGV("true", huge)), E2BIG, "execve");
}

/* A terminal on stdin becomes the controlling one of a child with a session of its own. */
static void test_terminal(void **state) {
    (void)state;
    cp_autofd int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    char name[64];
    assert_true(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    assert_int_equal(ptsname_r(master, name, sizeof name), 0);
    cp_autofd int tty = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(tty >= 0);
    struct kid k;
    cp_spawn s = SPEC(.argv = SH("tty >/dev/tty"), .own_session = true);
    s.fds[0] = tty;
    run(&k, &s);
    assert_int_equal(k.x.code, 0);
    char got[80] = "", want[80];
    assert_true(read(master, got, sizeof got - 1) > 0);
    snprintf(want, sizeof want, "%s\r\n", name);
    assert_string_equal(got, want);
}

int main(void) {
    /* Children must not see these, nor the mask. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    const struct CMUnitTest tests[] = {
        TEST(test_statuses),
        TEST(test_failures),
        TEST(test_path_lookup),
        TEST(test_env_and_cwd),
        TEST(test_marks),
        TEST(test_descriptors),
        TEST(test_descriptors_swapped),
        TEST(test_signals),
        TEST(test_limit_restored),
        TEST(test_groups),
        TEST(test_user),
        TEST(test_big_argv),
        TEST(test_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
