/* The keeper through its client: holding, reaping, adopting, and peers that misbehave. What a child is given:
 * keeper_spawn_test. */
#include "component/keeper_client_fixture.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/stat.h>

#include "keeper/wire_chan.h"

static void closed(cp_child *c) { CP_CONTAINER(c, struct kid, c)->closed = true; }

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

/* As many as the client takes; each is refused by the keeper later. */
static int fill_queue(struct kid *kids, int most) {
    cp_err err = {0};
    int n = 0;
    assert_int_equal(kill(t.pid, SIGSTOP), 0);
    for (; n < most; n++) {
        kids[n] = (struct kid){.c = {.on_spawn = spawned, .on_exit = exited}};
        if (cp_keeper_spawn(t.keeper, &kids[n].c, &SPEC(.argv = ARGV("/no/such")), &err) < 0) break;
    }
    assert_int_equal(err.code, CP_E_LIMIT_EXCEEDED);
    return n;
}

static void empty_queue(struct kid *kids, int n) {
    assert_int_equal(kill(t.pid, SIGCONT), 0);
    for (int i = 0; i < n; i++) await(&kids[i].spawned);
}

/* X08: however long the queue, what ends something goes into it. */
static void test_x08_acks_and_closes_always_go(void **state) {
    (void)state;
    enum { MORE = 8000 };
    static struct kid kids[MORE];
    struct kid k, again;
    int in[2];
    assert_int_equal(cp_pipe(in, 0), 0);
    cp_spawn s = SPEC(.argv = ARGV("cat"), .key = "cat", .hold = {in[1], -1, -1});
    s.fds[0] = in[0];
    start(&k, &s);
    close(in[0]);
    await(&k.spawned);
    int n = fill_queue(kids, MORE);
    assert_int_equal(cp_keeper_close_hold(t.keeper, &k.c, 0, closed), 0);
    close(in[1]);
    empty_queue(kids, n);
    await(&k.closed);
    await(&k.exited); /* it has met the end of its input */
    n = fill_queue(kids, MORE);
    cp_keeper_ack(t.keeper, &k.c);
    empty_queue(kids, n);
    run(&again, &SPEC(.argv = ARGV("true"), .key = "cat", HOLD_NONE));
    assert_int_equal(again.sys, 0); /* the name is free: the keeper has forgotten it */
    cp_keeper_ack(t.keeper, &again.c);
}

/* ---- spawns that hang ---- */

enum { STARTS = 40 };

static int setup_starts(void **state, unsigned limit_ms) {
    keeper_fixture_opts.starts_max = STARTS;
    keeper_fixture_opts.spawn_limit_ms = limit_ms;
    return setup(state);
}
static int setup_few_starts(void **state) { return setup_starts(state, 3600 * 1000); }
static int setup_short_starts(void **state) { return setup_starts(state, 50); }

static int teardown_starts(void **state) {
    keeper_fixture_opts = (cp_keeper_opts){0};
    return teardown(state);
}

/* A program under a lease of ours: who executes it waits until we give it up. */
static int lease(char path[128]) {
    cp_autofree char *text = NULL;
    size_t n = 0;
    snprintf(path, 128, "%s/leased", t.dir);
    assert_int_equal(cp_read_file("/bin/true", 1 << 22, &text, &n), 0);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0755);
    assert_true(fd >= 0 && cp_write_all(fd, text, n) == 0);
    signal(SIGIO, SIG_IGN);
    assert_int_equal(fcntl(fd, F_SETLEASE, F_WRLCK), 0);
    return fd;
}

/* X03: they hold nobody up, are as many as there may be, and end with the keeper. */
static void test_x03_spawns_that_hang(void **state) {
    (void)state;
    struct kid kids[STARTS], k;
    char path[128];
    int fd = lease(path);
    for (int i = 0; i < STARTS / 2; i++) start(&kids[i], &SPEC(.argv = ARGV(path)));
    run(&k, &SPEC(.argv = SH("exit 7")));
    assert_int_equal(k.x.code, 7);
    run(&k, &SPEC(.argv = ARGV("/no/such/program")));
    assert_int_equal(k.sys, ENOENT);
    for (int i = STARTS / 2; i < STARTS; i++) start(&kids[i], &SPEC(.argv = ARGV(path)));
    expect_failure(&SPEC(.argv = ARGV("true")), EAGAIN, "children");
    for (int i = 0; i < STARTS; i++) assert_false(kids[i].spawned);
    cp_keeper_close(t.keeper);
    t.keeper = NULL;
    assert_int_equal(keeper_fixture_wait(t.pid), 0);
    t.pid = 0;
    close(fd);
}

/* On a busy machine any start may take longer than this keeper allows. */
static void run_in_time(struct kid *k, const cp_spawn *spec) {
    do run(k, spec);
    while (k->sys == ETIMEDOUT);
}

/* X03: at the deadline they are given up, and there is room again. */
static void test_x03_spawns_that_are_given_up(void **state) {
    (void)state;
    struct kid kids[STARTS], k;
    char path[128];
    int fd = lease(path);
    start(&kids[0], &SPEC(.argv = ARGV(path), .key = "k", HOLD_NONE));
    for (int i = 1; i < STARTS; i++) start(&kids[i], &SPEC(.argv = ARGV(path)));
    for (int i = 0; i < STARTS; i++) {
        await(&kids[i].spawned);
        assert_int_equal(kids[i].sys, ETIMEDOUT);
        assert_string_equal(kids[i].step, "execve");
    }
    run_in_time(&k, &SPEC(.argv = ARGV("true"), .key = "k", HOLD_NONE));
    assert_int_equal(k.sys, 0);
    cp_keeper_ack(t.keeper, &k.c);
    run_in_time(&k, &SPEC(.argv = ARGV("true")));
    assert_int_equal(children_of_keeper(), 0);
    close(fd);
}

/* X03: the key of one that is under way is taken. */
static void test_x03_key_of_one_that_hangs(void **state) {
    (void)state;
    struct kid k;
    char path[128];
    int fd = lease(path);
    start(&k, &SPEC(.argv = ARGV(path), .key = "k", HOLD_NONE));
    expect_failure(&SPEC(.argv = ARGV("true"), .key = "k", HOLD_NONE), EEXIST, "key");
    assert_int_equal(fcntl(fd, F_SETLEASE, F_UNLCK), 0);
    await(&k.spawned);
    assert_int_equal(k.sys, ETXTBSY); /* it is open for writing */
    close(fd);
    run(&k, &SPEC(.argv = ARGV(path), .key = "k", HOLD_NONE));
    assert_int_equal(k.sys, 0);
    cp_keeper_ack(t.keeper, &k.c);
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
        assert_int_equal(poll(&pfd, 1, PATIENCE_MS), 1);
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
        assert_int_equal(poll(&in, 1, PATIENCE_MS), 1);
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
    assert_int_equal(poll(&in, 1, PATIENCE_MS), 1);
    assert_int_equal(peer_hear(&p, &m), CP_CHAN_CLOSED);
    cp_chan_fini(&p.chan);
    assert_int_equal(keeper_fixture_wait(p.pid), 0);
}

static void test_protocol_errors(void **state) {
    (void)state;
    expect_cut("garbage!", 8);
    expect_cut("\x03\x00\x10\x00\x02\x00\x00\x00\x00\x00", 10); /* another version */
    expect_cut("\x02\x00\x07\x00\x00\x00\x00\x00", 8);          /* drain is the keeper's to say */
    expect_cut("\x02\x00\x15\x01\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
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
    assert_string_equal(err.msg, "keeper protocol: the other end speaks version 7, this one version 2");
    close(sv[0]);
    assert_false(t.lost);
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
    const struct CMUnitTest tests[] = {
        TEST(test_hold),
        TEST(test_key_is_unique),
        TEST(test_burst),
        TEST(test_queue_limit),
        TEST(test_x08_acks_and_closes_always_go),
        cmocka_unit_test_setup_teardown(test_x03_spawns_that_hang, setup_few_starts, teardown_starts),
        cmocka_unit_test_setup_teardown(test_x03_spawns_that_are_given_up, setup_short_starts, teardown_starts),
        TEST(test_x03_key_of_one_that_hangs),
        TEST(test_adopt),
        TEST(test_adopt_waits_for_the_parent),
        TEST(test_adopt_nobody),
        TEST(test_slow_peer),
        TEST(test_slow_peer_goes),
        TEST(test_protocol_errors),
        TEST(test_keeper_of_another_version),
        TEST(test_forget),
        TEST(test_close_kills),
        TEST(test_keeper_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
