/* The keeper through its client: spawning, reaping, holding, adopting. A keeper that supervises a server:
 * keeper_supervise_test. */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "component/keeper_fixture.h"
#include "keeper/client.h"
#include "keeper/spawn.h"
#include "keeper/wire_chan.h"

enum { DEADLINE_MS = 60000 };

static struct {
    cp_loop *loop;
    cp_keeper *keeper;
    pid_t pid;
    bool lost;
    char dir[64];
} t;

struct kid {
    cp_child c;
    bool spawned, exited, closed;
    int sys;
    char step[16];
    cp_exit x;
};

static void spawned(cp_child *c, int sys, const char *step) {
    struct kid *k = CP_CONTAINER(c, struct kid, c);
    assert_false(k->spawned);
    k->spawned = true;
    k->sys = sys;
    snprintf(k->step, sizeof k->step, "%s", step);
}

static void exited(cp_child *c, const cp_exit *x) {
    struct kid *k = CP_CONTAINER(c, struct kid, c);
    assert_true(k->spawned);
    assert_false(k->exited);
    k->exited = true;
    k->x = *x;
}

static void closed(cp_child *c) { CP_CONTAINER(c, struct kid, c)->closed = true; }

static void await(const bool *what) {
    uint64_t end = cp_now_ms() + DEADLINE_MS;
    while (!*what) {
        assert_true(cp_now_ms() < end);
        assert_int_equal(cp_loop_once(t.loop, 1000), 0);
    }
}

static void on_lost(void *arg) {
    (void)arg;
    t.lost = true;
}

static int setup(void **state) {
    (void)state;
    snprintf(t.dir, sizeof t.dir, "/tmp/keeper_test.XXXXXX");
    assert_non_null(mkdtemp(t.dir));
    t.lost = false;
    int fd = keeper_fixture_start(&t.pid);
    assert_true(fd >= 0);
    cp_err err;
    t.loop = cp_loop_new(&err);
    cp_keeper_hello hello;
    t.keeper = cp_keeper_open(t.loop, fd, &(cp_keeper_events){.on_lost = on_lost}, &hello, &err);
    assert_non_null(t.keeper);
    assert_int_equal(hello.generation, 0);
    assert_int_equal(hello.port, 0);
    assert_int_equal(hello.keeper_pid, t.pid);
    cp_buf_free(&hello.config);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    cp_keeper_close(t.keeper);
    cp_loop_free(t.loop);
    if (t.pid) assert_int_equal(keeper_fixture_wait(t.pid), 0);
    char cmd[96];
    snprintf(cmd, sizeof cmd, "rm -rf %s", t.dir);
    return system(cmd);
}

static const char *const plain_env[] = {"PATH=/usr/bin:/bin", "FOO=bar baz", NULL};

#define SPEC(...)  ((cp_spawn){.fds = {-1, 1, 2, -1, -1, -1, -1, -1}, __VA_ARGS__})
#define HOLD_NONE  .hold = {-1, -1, -1}
#define ARGV(...)  ((const char *const[]){__VA_ARGS__, NULL})
#define SH(script) ARGV("sh", "-c", script)

static void start(struct kid *k, const cp_spawn *s) {
    cp_err err;
    *k = (struct kid){.c = {.on_spawn = spawned, .on_exit = exited}};
    cp_spawn full = *s;
    if (!full.env) full.env = plain_env;
    if (cp_keeper_spawn(t.keeper, &k->c, &full, &err) < 0) fail_msg("%s", err.msg);
    assert_false(k->spawned);
}

/* Runs to the end; k has the outcome. */
static void run(struct kid *k, const cp_spawn *s) {
    start(k, s);
    await(&k->spawned);
    if (k->sys == 0) await(&k->exited);
}

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

/* ---- */

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

static void expect_failure(const cp_spawn *s, int sys, const char *step) {
    struct kid k;
    run(&k, s);
    assert_int_equal(k.sys, sys);
    assert_string_equal(k.step, step);
    assert_false(k.exited);
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
    int sys = 0;
    uint8_t step = 0;
    pid_t pid = spawner_run(&sp, &(spawn_spec){.argv = argv + 1, .env = env, .fds = {-1, out, 2, -1, 5, 4, -1, -1}},
                            &sys, &step);
    assert_true(pid > 0);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
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

/* cat ends when the keeper's copy of its stdin and ours are closed, in this order. */
static void test_hold(void **state) {
    (void)state;
    int in[2], out[2];
    assert_int_equal(cp_pipe(in, 0) | cp_pipe(out, 0), 0);
    struct kid k;
    cp_spawn s = SPEC(.argv = ARGV("cat"), .key = "cat", .hold = {in[1], out[0], -1});
    s.fds[0] = in[0];
    s.fds[1] = out[1];
    start(&k, &s);
    close(in[0]), close(out[1]);
    await(&k.spawned);
    assert_int_equal(k.sys, 0);
    assert_int_equal(write(in[1], "hi", 2), 2);
    assert_int_equal(cp_keeper_close_hold(t.keeper, &k.c, 0, closed), 0);
    await(&k.closed);
    assert_false(k.exited);
    close(in[1]);
    await(&k.exited);
    assert_int_equal(k.x.code, 0);
    char got[8];
    assert_int_equal(read(out[0], got, sizeof got), 2);
    /* The keeper still holds the read end, also after the exit. */
    char path[64], name[64];
    bool held = false;
    struct stat st;
    assert_int_equal(fstat(out[0], &st), 0);
    snprintf(name, sizeof name, "pipe:[%llu]", (unsigned long long)st.st_ino);
    for (int fd = 0; fd < 256; fd++) {
        char link[64] = "";
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)t.pid, fd);
        if (readlink(path, link, sizeof link - 1) > 0 && strcmp(link, name) == 0) held = true;
    }
    assert_true(held);
    close(out[0]);
    cp_keeper_ack(t.keeper, &k.c);
}

static void test_key_is_unique(void **state) {
    (void)state;
    int in[2];
    assert_int_equal(cp_pipe(in, 0), 0);
    struct kid k;
    cp_spawn s = SPEC(.argv = ARGV("cat"), .key = "same", HOLD_NONE);
    s.fds[0] = in[0];
    start(&k, &s);
    await(&k.spawned);
    assert_int_equal(k.sys, 0);
    expect_failure(&SPEC(.argv = ARGV("true"), .key = "same", HOLD_NONE), EEXIST, "key");
    close(in[0]), close(in[1]);
    await(&k.exited);
    expect_failure(&SPEC(.argv = ARGV("true"), .key = "same", HOLD_NONE), EEXIST, "key");
    cp_keeper_ack(t.keeper, &k.c);
    struct kid again;
    run(&again, &SPEC(.argv = ARGV("true"), .key = "same", HOLD_NONE));
    assert_int_equal(again.sys, 0);
}

/* ---- no zombie is left behind ---- */

static int children_of_keeper(void) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)t.pid, (int)t.pid);
    cp_autofree char *text = NULL;
    size_t n = 0;
    assert_int_equal(cp_read_file(path, 1 << 20, &text, &n), 0);
    int count = 0;
    for (size_t i = 0; i < n; i++) count += text[i] == ' ';
    return count;
}

static void test_burst(void **state) {
    (void)state;
    enum { N = 1000 };
    static struct kid kids[N];
    for (int i = 0; i < N; i++) start(&kids[i], &SPEC(.argv = i % 10 ? ARGV("true") : ARGV("/no/such/program")));
    for (int i = 0; i < N; i++) {
        await(&kids[i].spawned);
        if (i % 10 == 0) {
            assert_int_equal(kids[i].sys, ENOENT);
            continue;
        }
        assert_int_equal(kids[i].sys, 0);
        await(&kids[i].exited);
        assert_int_equal(kids[i].x.code, 0);
    }
    assert_int_equal(children_of_keeper(), 0);
}

/* While the keeper does not read, requests wait in the client up to its limit; then all are served. */
static void test_queue_limit(void **state) {
    (void)state;
    enum { MORE = 8000 };
    static struct kid kids[MORE];
    assert_int_equal(kill(t.pid, SIGSTOP), 0);
    cp_err err = {0};
    int n = 0;
    for (; n < MORE; n++) {
        kids[n] = (struct kid){.c = {.on_spawn = spawned, .on_exit = exited}};
        if (cp_keeper_spawn(t.keeper, &kids[n].c, &SPEC(.argv = ARGV("/no/such")), &err) < 0) break;
    }
    assert_int_equal(err.code, CP_E_LIMIT_EXCEEDED);
    assert_true(n >= 4096);
    assert_int_equal(kill(t.pid, SIGCONT), 0);
    for (int i = 0; i < n; i++) {
        await(&kids[i].spawned);
        assert_int_equal(kids[i].sys, ENOENT);
    }
}

/* ---- a peer that misbehaves ---- */

struct peer {
    cp_chan chan;
    pid_t pid;
};

static cp_chan_result peer_hear(struct peer *p, cp_wire *m) {
    int fds[CP_WIRE_FDS];
    cp_err err;
    cp_chan_result got = cp_chan_recv(&p->chan, m, fds, &err);
    for (size_t i = 0; got == CP_CHAN_GOT && i < m->nfds; i++) close(fds[i]);
    return got;
}

static void peer_await(struct peer *p, cp_wire_type want) {
    for (cp_wire m;;) {
        struct pollfd pfd = {.fd = p->chan.fd, .events = POLLIN};
        assert_int_equal(poll(&pfd, 1, DEADLINE_MS), 1);
        cp_chan_result got = peer_hear(p, &m);
        assert_int_equal(got, CP_CHAN_GOT);
        if (m.type == want) return;
    }
}

static void peer_start(struct peer *p) {
    int fd = keeper_fixture_start(&p->pid);
    assert_true(fd >= 0);
    cp_chan_init(&p->chan, fd);
    peer_await(p, CP_WIRE_held_end);
}

/* The keeper does not read on for one who does not read its answers, and loses nothing. */
static void test_slow_peer(void **state) {
    (void)state;
    enum { N = 5000 };
    struct peer p;
    peer_start(&p);
    bool later;
    for (uint64_t i = 0; i < N; i++)
        assert_int_equal(cp_chan_send(&p.chan, &(cp_wire){.type = CP_WIRE_close_hold, .close_hold = {i, 0}}, NULL), 0);
    struct pollfd out = {.fd = p.chan.fd, .events = POLLOUT};
    while (cp_chan_queued(&p.chan) && poll(&out, 1, 200) == 1) assert_int_equal(cp_chan_flush(&p.chan, &later), 0);
    assert_true(cp_chan_queued(&p.chan) > N / 2);
    for (uint64_t i = 0; i < N;) {
        struct pollfd in = {.fd = p.chan.fd, .events = (short)(POLLIN | (cp_chan_queued(&p.chan) ? POLLOUT : 0))};
        assert_int_equal(poll(&in, 1, DEADLINE_MS), 1);
        assert_int_equal(cp_chan_flush(&p.chan, &later), 0);
        for (cp_wire m; peer_hear(&p, &m) == CP_CHAN_GOT; i++) {
            assert_int_equal(m.type, CP_WIRE_closed);
            assert_int_equal(m.closed.tag, i);
        }
    }
    cp_chan_fini(&p.chan);
    assert_int_equal(keeper_fixture_wait(p.pid), 0);
}

/* It goes away while the keeper is not reading. */
static void test_slow_peer_goes(void **state) {
    (void)state;
    struct peer p;
    peer_start(&p);
    for (uint64_t i = 0; i < 5000; i++)
        assert_int_equal(cp_chan_send(&p.chan, &(cp_wire){.type = CP_WIRE_close_hold, .close_hold = {i, 0}}, NULL), 0);
    struct pollfd out = {.fd = p.chan.fd, .events = POLLOUT};
    bool later;
    while (poll(&out, 1, 200) == 1) assert_int_equal(cp_chan_flush(&p.chan, &later), 0);
    cp_chan_fini(&p.chan);
    assert_int_equal(keeper_fixture_wait(p.pid), 0);
}

static void expect_cut(const char *bytes, size_t n) {
    struct peer p;
    cp_wire m;
    peer_start(&p);
    assert_int_equal(send(p.chan.fd, bytes, n, 0), n);
    struct pollfd in = {.fd = p.chan.fd, .events = POLLIN};
    assert_int_equal(poll(&in, 1, DEADLINE_MS), 1);
    assert_int_equal(peer_hear(&p, &m), CP_CHAN_CLOSED);
    cp_chan_fini(&p.chan);
    assert_int_equal(keeper_fixture_wait(p.pid), 0);
}

static void test_protocol_errors(void **state) {
    (void)state;
    expect_cut("garbage!", 8);
    expect_cut("\x02\x00\x10\x00\x02\x00\x00\x00\x00\x00", 10); /* another version */
    expect_cut("\x01\x00\x07\x00\x00\x00\x00\x00", 8);          /* drain is the keeper's to say */
    expect_cut("\x01\x00\x15\x01\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
               16); /* a descriptor that is not there */
}

static void test_keeper_of_another_version(void **state) {
    (void)state;
    int sv[2];
    cp_err err;
    cp_keeper_hello hello;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
    assert_int_equal(send(sv[0], "\x07\x00 whatever", 11, 0), 11);
    assert_null(cp_keeper_open(t.loop, sv[1], &(cp_keeper_events){.on_lost = on_lost}, &hello, &err));
    assert_string_equal(err.msg, "keeper protocol: the other end speaks version 7, this one version 1");
    close(sv[0]);
    assert_false(t.lost);
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

/* ---- adoption ---- */

/* Starts a shell that leaves a background subshell, which waits for a line on descriptor 3 and exits with `code`. With
 * `stay` the shell itself waits for a line on descriptor 4 before it ends. */
static pid_t orphan(struct kid *shell, int go[2], int stay[2], int code) {
    char script[160];
    int out[2];
    assert_int_equal(cp_pipe(out, 0) | cp_pipe(go, 0), 0);
    if (stay) assert_int_equal(cp_pipe(stay, 0), 0);
    snprintf(script, sizeof script, "( exec 1>&2 4<&-; read x <&3; exit %d ) & echo $!; %s", code,
             stay ? "read y <&4" : "");
    cp_spawn s = SPEC(.argv = SH(script));
    s.fds[1] = out[1];
    s.fds[3] = go[0];
    if (stay) s.fds[4] = stay[0];
    start(shell, &s);
    close(out[1]), close(go[0]);
    if (stay) close(stay[0]);
    await(&shell->spawned);
    char line[32] = "";
    ssize_t n = read(out[0], line, sizeof line - 1);
    assert_true(n > 0 && line[n - 1] == '\n');
    close(out[0]);
    return (pid_t)strtol(line, NULL, 10);
}

static void test_adopt(void **state) {
    (void)state;
    struct kid shell, k = {.c = {.on_spawn = spawned, .on_exit = exited}};
    int go[2];
    cp_err err;
    k.c.pid = orphan(&shell, go, NULL, 42);
    await(&shell.exited);
    assert_int_equal(cp_keeper_adopt(t.keeper, &k.c, "orphan", NULL, &err), 0);
    await(&k.spawned);
    assert_int_equal(k.sys, 0);
    assert_true(k.c.start_time > 0);
    assert_int_equal(write(go[1], "\n", 1), 1);
    await(&k.exited);
    assert_int_equal(k.x.code, 42);
    close(go[1]);
    cp_keeper_ack(t.keeper, &k.c);
}

static void test_adopt_waits_for_the_parent(void **state) {
    (void)state;
    struct kid shell, k = {.c = {.on_spawn = spawned, .on_exit = exited}};
    int go[2], stay[2];
    cp_err err;
    k.c.pid = orphan(&shell, go, stay, 43);
    assert_int_equal(cp_keeper_adopt(t.keeper, &k.c, NULL, NULL, &err), 0);
    struct kid other; /* a round trip later, the answer has not come: its parent lives */
    run(&other, &SPEC(.argv = ARGV("true")));
    assert_false(k.spawned);
    close(stay[1]);
    await(&k.spawned);
    assert_int_equal(k.sys, 0);
    close(go[1]);
    await(&k.exited);
    assert_int_equal(k.x.code, 43);
    await(&shell.exited);
    assert_int_equal(children_of_keeper(), 0);
}

static void test_adopt_nobody(void **state) {
    (void)state;
    struct kid k = {.c = {.on_spawn = spawned, .on_exit = exited}};
    cp_err err;
    k.c.pid = 0x3fffff; /* over pid_max */
    assert_int_equal(cp_keeper_adopt(t.keeper, &k.c, NULL, NULL, &err), 0);
    await(&k.spawned);
    assert_int_equal(k.sys, ESRCH);
    assert_string_equal(k.step, "adopt");
    /* A start time that is another's. */
    k = (struct kid){.c = {.on_spawn = spawned, .on_exit = exited, .pid = t.pid, .start_time = 1}};
    assert_int_equal(cp_keeper_adopt(t.keeper, &k.c, NULL, NULL, &err), 0);
    await(&k.spawned);
    assert_int_equal(k.sys, ESRCH);
}

/* ---- ends ---- */

static void test_forget(void **state) {
    (void)state;
    struct kid k, other;
    start(&k, &SPEC(.argv = ARGV("true")));
    cp_keeper_forget(t.keeper, &k.c);
    memset(&k, 0xee, sizeof k);
    run(&other, &SPEC(.argv = ARGV("true")));
    assert_int_equal(other.x.code, 0);
    assert_int_equal(k.c.pid, (pid_t)0xeeeeeeee);
}

/* A child that was told to ignore everything dies with the keeper. */
static void test_close_kills(void **state) {
    (void)state;
    struct kid k;
    int out[2];
    assert_int_equal(cp_pipe(out, 0), 0);
    cp_spawn s = SPEC(.argv = SH("trap '' TERM HUP; (trap '' TERM; while :; do sleep 100; done) & echo up; wait"),
                      .key = "k", HOLD_NONE);
    s.fds[1] = out[1];
    start(&k, &s);
    close(out[1]);
    await(&k.spawned);
    char got[8];
    assert_int_equal(read(out[0], got, sizeof got), 3);
    cp_keeper_close(cp_take(t.keeper));
    assert_int_equal(keeper_fixture_wait(cp_take(t.pid)), 0);
    assert_int_equal(read(out[0], got, sizeof got), 0); /* nobody has it open any more */
    close(out[0]);
}

static void test_keeper_lost(void **state) {
    (void)state;
    assert_int_equal(kill(t.pid, SIGKILL), 0);
    assert_int_equal(keeper_fixture_wait(cp_take(t.pid)), -1);
    await(&t.lost);
    struct kid k = {0};
    cp_err err;
    assert_int_equal(cp_keeper_spawn(t.keeper, &k.c, &SPEC(.argv = ARGV("true")), &err), -1);
}

int main(void) {
    /* Children must not see these, nor the mask. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_statuses),
        T(test_failures),
        T(test_path_lookup),
        T(test_env_and_cwd),
        T(test_marks),
        T(test_descriptors),
        T(test_descriptors_swapped),
        T(test_signals),
        T(test_limit_restored),
        T(test_groups),
        T(test_user),
        T(test_big_argv),
        T(test_hold),
        T(test_key_is_unique),
        T(test_burst),
        T(test_queue_limit),
        T(test_adopt),
        T(test_adopt_waits_for_the_parent),
        T(test_adopt_nobody),
        T(test_slow_peer),
        T(test_slow_peer_goes),
        T(test_protocol_errors),
        T(test_keeper_of_another_version),
        T(test_terminal),
        T(test_forget),
        T(test_close_kills),
        T(test_keeper_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
