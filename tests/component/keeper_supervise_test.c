/* The keeper with a server to look after. This program plays the server as well: given --keeper-fd it connects to the
 * socket that its configuration names, says what happens to it, one message each, and does what it is told. */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "keeper/client.h"
#include "keeper/keeper.h"

enum { DEADLINE_MS = 30000, MESSAGE = 1024, HELD_MAX = 256 };

/* ---- the server ---- */

struct kid {
    struct kid *next;
    cp_child c;
    char key[32];
    int out;
};

static struct {
    cp_loop *loop;
    cp_keeper *keeper;
    cp_io control;
    int fd;
    struct kid *kids;
} s;

static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *fmt, ...) {
    char text[MESSAGE];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    (void)!send(s.fd, text, (size_t)n, MSG_NOSIGNAL);
}

static void kid_spawned(cp_child *c, int sys, const char *step) {
    const struct kid *k = CP_CONTAINER(c, struct kid, c);
    if (sys) say("refused %s %s %s", k->key, step, cp_errno_name(sys));
    else say("spawned %s %d", k->key, (int)c->pid);
}

static void kid_exited(cp_child *c, const cp_exit *x) {
    say("exit %s %d %d", CP_CONTAINER(c, struct kid, c)->key, x->code, x->signal);
}

static struct kid *kid_new(const char *key) {
    struct kid *k = cp_new(struct kid);
    *k = (struct kid){.next = s.kids, .c = {.on_spawn = kid_spawned, .on_exit = kid_exited}, .out = -1};
    snprintf(k->key, sizeof k->key, "%s", key);
    return s.kids = k;
}

static struct kid *kid_get(const char *key) {
    for (struct kid *k = s.kids; k; k = k->next)
        if (strcmp(k->key, key) == 0) return k;
    abort();
}

static void on_held(void *arg, const cp_held *h) {
    (void)arg;
    struct kid *k = kid_new(h->key);
    k->out = h->fds[1];
    if (h->exited) say("held %s %d ended %d %d", h->key, (int)h->pid, h->exit.code, h->exit.signal);
    else say("held %s %d runs", h->key, (int)h->pid);
    cp_keeper_claim(s.keeper, &k->c, h);
}

/* cp_keeper_open has not returned yet when on_held comes, so the claim is made later. */
static struct {
    cp_held h[HELD_MAX];
    char key[HELD_MAX][32];
    int n;
} held;

static void note_held(void *arg, const cp_held *h) {
    (void)arg;
    if (held.n == HELD_MAX) abort();
    held.h[held.n] = *h;
    snprintf(held.key[held.n], sizeof held.key[0], "%s", h->key);
    held.h[held.n].key = held.key[held.n];
    held.n++;
}

static void on_drain(void *arg) {
    (void)arg;
    say("drain");
}
static void on_handover(void *arg) {
    (void)arg;
    say("handover");
}
static void on_lost(void *arg) {
    (void)arg;
    say("lost");
    _exit(0);
}

/* "spawn KEY SCRIPT"; a key that begins with "-" is not durable. */
static void do_spawn(char *rest) {
    char *script = strchr(rest, ' ');
    *script++ = '\0';
    const char *const argv[] = {"sh", "-c", script, NULL}, *const env[] = {"PATH=/usr/bin:/bin", NULL};
    int rw[2];
    cp_err err;
    if (cp_pipe(rw, 0) < 0) abort();
    struct kid *k = kid_new(rest);
    k->out = rw[0];
    cp_spawn spec = {.argv = argv,
                     .env = env,
                     .fds = {-1, rw[1], 2, -1, -1, -1, -1, -1},
                     .hold = {-1, rw[0], -1},
                     .key = *rest == '-' ? NULL : rest};
    if (cp_keeper_spawn(s.keeper, &k->c, &spec, &err) < 0) abort();
    close(rw[1]);
}

/* "read KEY": all of its output to the end. */
static void do_read(const char *key) {
    char text[512] = "";
    ssize_t n = cp_read_full(kid_get(key)->out, text, sizeof text - 1);
    say("output %s %zd %s", key, n, text);
}

static void on_control(cp_io *io, uint32_t events) {
    (void)events;
    char text[MESSAGE] = "";
    ssize_t n = recv(io->fd, text, sizeof text - 1, 0);
    if (n <= 0) _exit(0);
    char *arg = strchr(text, ' ');
    if (arg) *arg++ = '\0';
    if (!arg) abort();
    if (strcmp(text, "ready") == 0) cp_keeper_ready(s.keeper, (uint16_t)strtoul(arg, NULL, 10), NULL);
    else if (strcmp(text, "fail") == 0) cp_keeper_failed(s.keeper, arg), _exit(9);
    else if (strcmp(text, "exit") == 0) _exit((int)strtol(arg, NULL, 10));
    else if (strcmp(text, "spawn") == 0) do_spawn(arg);
    else if (strcmp(text, "read") == 0) do_read(arg);
    else if (strcmp(text, "ack") == 0) cp_keeper_ack(s.keeper, &kid_get(arg)->c), say("acked");
    else abort();
}

static int server_main(void) {
    s.loop = cp_loop_new(NULL);
    cp_keeper_hello hello;
    cp_err err;
    const cp_keeper_events ev = {
        .on_held = note_held, .on_drain = on_drain, .on_handover = on_handover, .on_lost = on_lost};
    s.keeper = cp_keeper_open(s.loop, 3, &ev, &hello, &err);
    if (!s.keeper) return 8;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", cp_buf_z(&hello.config));
    s.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connect(s.fd, (struct sockaddr *)&at, sizeof at) < 0) return 7;
    say("hello %u %u %d %d", hello.generation, hello.port, (int)hello.keeper_pid, (int)getpid());
    for (int i = 0; i < held.n; i++) on_held(NULL, &held.h[i]);
    if (cp_io_add(s.loop, &s.control, s.fd, EPOLLIN, on_control) < 0) return 6;
    return cp_loop_run(s.loop, NULL) < 0;
}

/* ---- the test ---- */

static struct {
    char dir[64], path[80];
    int listener, control, err_pipe;
    int slave;     /* of a terminal: the keeper's stdin */
    rlim_t nofile; /* the keeper's limit; 0: ours */
    pid_t keeper, server;
    unsigned generation, port;
} t;

static const char *self;

static void announce(uint16_t port) { dprintf(2, "listening on %u\n", port); }

/* The terminal becomes stdin and the controlling one. */
static void terminal_in(int slave) {
    setsid();
    dup2(slave, 0);
    ioctl(0, TIOCSCTTY, 0);
}

static void start_keeper_in(cp_keeper_opts opts) {
    int rw[2];
    assert_int_equal(cp_pipe(rw, 0), 0);
    t.keeper = fork();
    if (t.keeper == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(rw[1], 2);
        if (t.slave >= 0) terminal_in(t.slave);
        else dup2(open("/dev/null", O_RDWR | O_CLOEXEC), 0);
        signal(SIGCHLD, SIG_IGN); /* as some parents leave it */
        if (t.nofile) setrlimit(RLIMIT_NOFILE, &(struct rlimit){t.nofile, t.nofile});
        syscall(SYS_close_range, 3u, ~0u, 0u);
        if (!opts.server_path) opts.server_path = self;
        opts.config = cp_str_of(t.path);
        opts.announce = announce;
        opts.grace_ms = 200;
        _exit(cp_keeper_main(&opts));
    }
    close(rw[1]);
    cp_close(&t.err_pipe);
    t.err_pipe = rw[0];
}
#define start_keeper(...) start_keeper_in((cp_keeper_opts){.config = {NULL, 0}, __VA_ARGS__})

static void wait_readable(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, DEADLINE_MS) != 1) fail_msg("nothing came");
}

static char *hear(void) {
    static char text[MESSAGE];
    wait_readable(t.control);
    ssize_t n = recv(t.control, text, sizeof text - 1, 0);
    assert_true(n >= 0);
    text[n] = '\0';
    return text;
}

static void expect(const char *want) { assert_string_equal(hear(), want); }

static void tell(const char *text) { assert_int_equal(send(t.control, text, strlen(text), 0), strlen(text)); }

/* The next server comes up. */
static void meet_server(unsigned generation, unsigned port) {
    cp_close(&t.control);
    wait_readable(t.listener);
    t.control = accept4(t.listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(t.control >= 0);
    int keeper;
    assert_int_equal(sscanf(hear(), "hello %u %u %d %d", &t.generation, &t.port, &keeper, &t.server), 4);
    assert_int_equal(t.generation, generation);
    assert_int_equal(t.port, port);
    assert_int_equal(keeper, t.keeper);
}

static void first_server(void) {
    meet_server(0, 0);
    tell("ready 4242");
}

static pid_t spawn_kid(const char *key, const char *script) {
    char text[MESSAGE];
    snprintf(text, sizeof text, "spawn %s %s", key, script);
    tell(text);
    int pid, n = snprintf(text, sizeof text, "spawned %s ", key);
    const char *answer = hear();
    assert_memory_equal(answer, text, (size_t)n);
    assert_int_equal(sscanf(answer + n, "%d", &pid), 1);
    return pid;
}

/* The exit status of the keeper; *err_text is what it (and CMD) said on stderr. */
static int finish(char err_text[4096]) {
    size_t n = 0;
    for (ssize_t k = 1; k > 0 && n < 4095; n += (size_t)k) {
        wait_readable(t.err_pipe);
        k = read(t.err_pipe, err_text + n, 4095 - n);
        assert_true(k >= 0);
    }
    err_text[n] = '\0';
    int status;
    assert_int_equal(waitpid(t.keeper, &status, 0), t.keeper);
    t.keeper = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void await_gone(pid_t pid) {
    uint64_t end = cp_now_ms() + DEADLINE_MS;
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0) return;
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    if (poll(&p, 1, (int)(end - cp_now_ms())) != 1) fail_msg("process %d lives on", (int)pid);
    close(pidfd);
}

static bool alive(pid_t pid) { return kill(pid, 0) == 0; }

static int setup(void **state) {
    (void)state;
    memset(&t, 0, sizeof t);
    t.control = t.err_pipe = t.slave = -1;
    snprintf(t.dir, sizeof t.dir, "/tmp/keeper_sup.XXXXXX");
    assert_non_null(mkdtemp(t.dir));
    snprintf(t.path, sizeof t.path, "%s/control", t.dir);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", t.path);
    t.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(t.listener, (struct sockaddr *)&at, sizeof at), 0);
    return listen(t.listener, 8);
}

static int teardown(void **state) {
    (void)state;
    if (t.keeper > 0) kill(t.keeper, SIGKILL), waitpid(t.keeper, NULL, 0);
    cp_close(&t.control), cp_close(&t.err_pipe), cp_close(&t.listener);
    char cmd[96];
    snprintf(cmd, sizeof cmd, "rm -rf %s", t.dir);
    return system(cmd);
}

static char text[4096];

static void wait_for_text(const char *want) {
    size_t n = strlen(text);
    while (!strstr(text, want)) {
        wait_readable(t.err_pipe);
        ssize_t k = read(t.err_pipe, text + n, sizeof text - 1 - n);
        if (k <= 0) fail_msg("not said: %s", want);
        text[n += (size_t)k] = '\0';
    }
}

/* ---- start ---- */

static void test_first_start_fails(void **state) {
    (void)state;
    start_keeper(.cmd = NULL);
    meet_server(0, 0);
    tell("fail port 80 is taken");
    assert_int_equal(finish(text), 1);
    assert_string_equal(text, "conflux: port 80 is taken\n");
}

static void test_first_start_dies(void **state) {
    (void)state;
    start_keeper(.cmd = NULL);
    meet_server(0, 0);
    tell("exit 5");
    assert_int_equal(finish(text), 1);
    assert_string_equal(text, "conflux: the server ended before it was ready: exit status 5\n");
}

static void test_no_server_binary(void **state) {
    (void)state;
    start_keeper(.server_path = "/no/such/server");
    assert_int_equal(finish(text), 1);
    assert_string_equal(text, "conflux: cannot start /no/such/server: execve: No such file or directory\n");
}

static void test_first_start_is_silent(void **state) {
    (void)state;
    start_keeper(.start_limit_ms = 200);
    meet_server(0, 0);
    assert_int_equal(finish(text), 1);
    assert_string_equal(text, "conflux: the server does not get ready; killing it\n"
                              "conflux: the server ended before it was ready: signal 9\n");
}

/* ---- restart ---- */

static void test_restart_hands_over(void **state) {
    (void)state;
    start_keeper(.cmd = NULL);
    first_server();
    pid_t mortal = spawn_kid("-mortal", "sleep 1000");
    pid_t living = spawn_kid("living", "echo before; kill -STOP $$; echo after; exit 3");
    pid_t ended = spawn_kid("ended", "echo said; exit 4");
    expect("exit ended 4 0");
    assert_int_equal(kill(t.server, SIGKILL), 0);
    meet_server(1, 4242);
    char want[64];
    snprintf(want, sizeof want, "held living %d runs", (int)living);
    expect(want);
    snprintf(want, sizeof want, "held ended %d ended 4 0", (int)ended);
    expect(want);
    await_gone(mortal);
    assert_true(alive(living));
    tell("ready 4242");
    /* The same key again, as after a crash between the spawn and its record: not run twice. */
    tell("spawn ended echo twice");
    expect("refused ended key EEXIST");
    tell("read ended"); /* of the refused one: nothing */
    hear();
    struct pollfd answer = {.fd = t.control, .events = POLLIN};
    do kill(living, SIGCONT); /* more than once: it may not have stopped yet */
    while (poll(&answer, 1, 20) == 0);
    expect("exit living 3 0");
    tell("read living");
    expect("output living 13 before\nafter\n");
    tell("ack living");
    expect("acked");
    assert_int_equal(kill(t.server, SIGKILL), 0);
    meet_server(2, 4242);
    snprintf(want, sizeof want, "held ended %d ended 4 0", (int)ended);
    expect(want);
    tell("read ended");
    expect("output ended 5 said\n");
    tell("ack ended");
    expect("acked");
    tell("ready 4242");
    assert_int_equal(kill(t.keeper, SIGTERM), 0);
    expect("drain");
    tell("exit 0");
    assert_int_equal(finish(text), 0);
    assert_non_null(strstr(text, "listening on 4242\n"));
    assert_null(strstr(strstr(text, "listening on 4242\n") + 1, "listening"));
}

/* The pid that a child says behind `word`. */
static pid_t hear_pid(const char *word) {
    text[0] = '\0';
    wait_for_text(word);
    wait_for_text(" .\n");
    return (pid_t)strtol(strstr(text, word) + strlen(word), NULL, 10);
}

static void test_trees_of_mortals_die(void **state) {
    (void)state;
    start_keeper(.cmd = NULL);
    first_server();
    (void)spawn_kid("-a", "prlimit --locks=9 -p $$; setsid sleep 1000 & echo in-session $! . >&2; wait");
    pid_t in_session = hear_pid("in-session ");
    (void)spawn_kid("-b", "(setsid sleep 1000 & echo orphan $! . >&2); exec sleep 1000");
    pid_t orphan = hear_pid("orphan ");
    (void)spawn_kid("-c", "(sleep 1000 & prlimit --locks=9 -p $!; echo in-group $! . >&2); exec sleep 1000");
    pid_t in_group = hear_pid("in-group ");
    (void)spawn_kid("-d", "(setsid sleep 1000 & echo background $! . >&2)");
    pid_t background = hear_pid("background ");
    expect("exit -d 0 0");
    (void)spawn_kid("durable", "setsid sleep 1000 & echo stays $! . >&2; wait");
    pid_t stays = hear_pid("stays ");
    assert_int_equal(kill(t.server, SIGKILL), 0);
    meet_server(1, 4242);
    (void)hear(); /* the durable one is held */
    await_gone(in_session);
    await_gone(orphan);
    await_gone(in_group);
    assert_true(alive(background)); /* what started it has ended before, as it should */
    assert_true(alive(stays));
    assert_int_equal(kill(t.keeper, SIGTERM), 0);
    expect("drain");
    tell("exit 0");
    assert_int_equal(finish(text), 0);
}

static void test_silent_server_is_replaced(void **state) {
    (void)state;
    start_keeper(.start_limit_ms = 200);
    first_server();
    text[0] = '\0';
    wait_for_text("listening on 4242\n");
    assert_int_equal(kill(t.server, SIGKILL), 0);
    meet_server(1, 4242);                /* and never says that it is ready */
    int silent = cp_take_fd(&t.control); /* closed, it would end the server */
    meet_server(2, 4242);
    close(silent);
    tell("ready 4242");
    assert_int_equal(kill(t.keeper, SIGTERM), 0);
    expect("drain");
    tell("exit 0");
    assert_int_equal(finish(text), 0);
    assert_non_null(strstr(text, "keeper.start_timeout"));
}

/* A later start that fails does not end the keeper. */
static void test_later_failure_is_retried(void **state) {
    (void)state;
    start_keeper(.cmd = NULL);
    first_server();
    pid_t kid = spawn_kid("kid", "sleep 1000");
    tell("exit 1");
    for (unsigned generation = 1; generation < 4; generation++) {
        meet_server(generation, 4242);
        char want[64];
        snprintf(want, sizeof want, "held kid %d runs", (int)kid);
        expect(want);
        tell("fail no luck");
    }
    meet_server(4, 4242);
    hear();
    tell("ready 4242");
    assert_int_equal(kill(t.keeper, SIGTERM), 0);
    expect("drain");
    tell("exit 0");
    assert_int_equal(finish(text), 0);
    assert_false(alive(kid));
}

/* More than the socket takes at once; in the order of their start, each with its descriptor. */
static void test_many_are_handed_over(void **state) {
    (void)state;
    enum { N = 250 };
    start_keeper(.cmd = NULL);
    first_server();
    pid_t pids[N];
    char key[16], want[64];
    for (int i = 0; i < N; i++) {
        snprintf(key, sizeof key, "k%d", i);
        pids[i] = spawn_kid(key, i % 50 ? "exit 6" : "echo text; exec sleep 1000");
        if (i % 50 == 0) continue;
        snprintf(want, sizeof want, "exit k%d 6 0", i);
        expect(want);
    }
    assert_int_equal(kill(t.server, SIGKILL), 0);
    meet_server(1, 4242);
    for (int i = 0; i < N; i++) {
        snprintf(want, sizeof want, i % 50 ? "held k%d %d ended 6 0" : "held k%d %d runs", i, (int)pids[i]);
        expect(want);
    }
    tell("ready 4242");
    tell("read k249");
    expect("output k249 0 ");
    assert_int_equal(kill(pids[50], SIGTERM), 0);
    expect("exit k50 -1 15");
    tell("read k50");
    expect("output k50 5 text\n");
    assert_int_equal(kill(t.keeper, SIGTERM), 0);
    expect("drain");
    tell("exit 0");
    assert_int_equal(finish(text), 0);
}

static void test_children_limit(void **state) {
    (void)state;
    start_keeper(.children_max = 2);
    first_server();
    (void)spawn_kid("one", "exec sleep 1000");
    (void)spawn_kid("two", "exit 0");
    expect("exit two 0 0");
    tell("spawn three exit 0");
    expect("refused three children EAGAIN"); /* two is not acknowledged */
    tell("ack two");
    expect("acked");
    (void)spawn_kid("four", "exit 0");
    expect("exit four 0 0");
    assert_int_equal(kill(t.keeper, SIGTERM), 0);
    expect("drain");
    tell("exit 0");
    assert_int_equal(finish(text), 0);
}

/* What is held leaves room for what has to be opened to end it all. */
static void test_descriptor_limit(void **state) {
    (void)state;
    t.nofile = 64;
    start_keeper(.cmd = NULL);
    first_server();
    pid_t pids[64];
    int n = 0;
    for (bool refused = false; !refused; n++) {
        char request[64], want[64];
        snprintf(request, sizeof request, "spawn k%d exec sleep 1000", n);
        snprintf(want, sizeof want, "refused k%d fds EMFILE", n);
        tell(request);
        const char *answer = hear();
        refused = strcmp(answer, want) == 0;
        if (!refused && sscanf(answer, "spawned k%*d %d", &pids[n]) != 1) fail_msg("%s", answer);
        assert_true(n < 63);
    }
    n--;
    assert_true(n >= 16);
    assert_int_equal(kill(t.server, SIGKILL), 0);
    meet_server(1, 4242);
    for (int i = 0; i < n; i++) {
        char want[64];
        snprintf(want, sizeof want, "held k%d %d runs", i, (int)pids[i]);
        expect(want);
    }
    assert_int_equal(kill(t.keeper, SIGTERM), 0);
    expect("drain");
    tell("exit 0");
    assert_int_equal(finish(text), 0);
    for (int i = 0; i < n; i++) assert_false(alive(pids[i]));
}

static void test_upgrade(void **state) {
    (void)state;
    start_keeper(.cmd = NULL);
    first_server();
    pid_t kid = spawn_kid("kid", "sleep 1000");
    assert_int_equal(kill(t.keeper, SIGHUP), 0);
    expect("handover");
    tell("exit 0");
    meet_server(1, 4242);
    char want[64];
    snprintf(want, sizeof want, "held kid %d runs", (int)kid);
    expect(want);
    tell("ready 4242");
    assert_int_equal(kill(t.keeper, SIGTERM), 0);
    expect("drain");
    tell("exit 0");
    assert_int_equal(finish(text), 0);
}

/* ---- the end ---- */

static void test_stubborn_trees(void **state) {
    (void)state;
    start_keeper(.cmd = NULL);
    first_server();
    pid_t polite = spawn_kid("polite", "exec sleep 1000");
    pid_t stubborn = spawn_kid(
        "stubborn", "trap '' TERM; (setsid sh -c 'while :; do sleep 1000; done' &) ; while :; do sleep 1000; done");
    assert_int_equal(kill(t.keeper, SIGTERM), 0);
    expect("drain");
    tell("exit 0");
    assert_int_equal(finish(text), 0); /* stderr is at its end: nobody is left who has it */
    assert_false(alive(polite));
    assert_false(alive(stubborn));
}

static void test_second_term_does_not_wait(void **state) {
    (void)state;
    start_keeper(.cmd = NULL);
    first_server();
    assert_int_equal(kill(t.keeper, SIGINT), 0);
    expect("drain"); /* and is ignored */
    pid_t kid = spawn_kid("kid", "trap 'echo termed >&2' TERM; echo up >&2; while :; do sleep 0.01; done");
    text[0] = '\0';
    wait_for_text("up\n");
    assert_int_equal(kill(t.keeper, SIGTERM), 0);
    assert_int_equal(finish(text), 0);
    assert_false(alive(kid));
    assert_null(strstr(text, "termed"));
}

/* ---- CMD ---- */

static void test_cmd_fails(void **state) {
    (void)state;
    start_keeper(.cmd = (const char *const[]){"sh", "-c", "exit 3", NULL});
    first_server();
    expect("drain");
    tell("exit 0");
    assert_int_equal(finish(text), 3);
}

static void test_cmd_killed(void **state) {
    (void)state;
    start_keeper(.cmd = (const char *const[]){"sh", "-c", "kill -KILL $$", NULL});
    first_server();
    expect("drain");
    tell("exit 0");
    assert_int_equal(finish(text), 128 + SIGKILL);
}

static void test_cmd_missing(void **state) {
    (void)state;
    start_keeper(.cmd = (const char *const[]){"no-such-command", NULL});
    first_server();
    expect("drain");
    tell("exit 0");
    assert_int_equal(finish(text), 127);
    assert_non_null(strstr(text, "conflux: cannot run no-such-command: No such file or directory\n"));
}

static void test_cmd_not_executable(void **state) {
    (void)state;
    start_keeper(.cmd = (const char *const[]){"/etc/passwd", NULL});
    first_server();
    expect("drain");
    tell("exit 0");
    assert_int_equal(finish(text), 126);
}

static void test_cmd_signals(void **state) {
    (void)state;
    start_keeper(.cmd = (const char *const[]){"sh", "-c",
                                              "trap 'echo got-usr1 >&2' USR1; trap 'echo got-term >&2; exit 7' TERM; "
                                              "echo cmd-is-up >&2; sleep 1000 & while :; do wait; done",
                                              NULL});
    first_server();
    text[0] = '\0';
    wait_for_text("cmd-is-up\n");
    assert_int_equal(kill(t.keeper, SIGUSR1), 0);
    wait_for_text("got-usr1\n");
    assert_int_equal(kill(t.keeper, SIGTERM), 0);
    expect("drain");
    wait_for_text("got-term\n");
    tell("exit 0");
    assert_int_equal(finish(text), 0); /* it was told to: its status does not count */
}

/* exit 0 keeps the server. */
static void test_cmd_succeeds(void **state) {
    (void)state;
    start_keeper(.cmd = (const char *const[]){"sh", "-c", "echo $PPID >&2", NULL});
    first_server();
    char want[32];
    snprintf(want, sizeof want, "%d\n", (int)t.keeper);
    text[0] = '\0';
    wait_for_text(want);
    (void)spawn_kid("kid", "exit 0");
    expect("exit kid 0 0");
    assert_int_equal(kill(t.keeper, SIGTERM), 0);
    expect("drain");
    tell("exit 0");
    assert_int_equal(finish(text), 0);
}

/* Ctrl-C: the kernel tells the keeper and CMD, which is in its group; the keeper does not tell it a second time. */
static void test_cmd_at_a_terminal(void **state) {
    (void)state;
    char name[64];
    cp_autofd int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    assert_int_equal(ptsname_r(master, name, sizeof name), 0);
    t.slave = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(t.slave >= 0);
    start_keeper(.cmd = (const char *const[]){"sh", "-c",
                                              "trap 'echo got-int >&2' INT; trap 'echo got-term >&2' TERM; "
                                              "echo cmd-is-up >&2; sleep 1000 & while :; do wait; done",
                                              NULL});
    cp_close(&t.slave);
    first_server();
    text[0] = '\0';
    wait_for_text("cmd-is-up\n");
    assert_int_equal(kill(t.keeper, SIGSTOP), 0); /* else two of the same signal might be one to CMD */
    assert_int_equal(write(master, "\003", 1), 1);
    wait_for_text("got-int\n");
    assert_int_equal(kill(t.keeper, SIGCONT), 0);
    expect("drain");
    tell("exit 0");
    wait_for_text("got-term\n");
    assert_null(strstr(strstr(text, "got-int\n") + 1, "got-int\n"));
    assert_int_equal(finish(text), 0);
}

/* ---- the state folder ---- */

static void test_state_folder(void **state) {
    (void)state;
    start_keeper(.state_dir = t.dir);
    first_server();
    pid_t first = t.keeper;
    int first_err = t.err_pipe;
    t.err_pipe = -1;
    start_keeper(.state_dir = t.dir);
    assert_int_equal(finish(text), 1);
    char want[96];
    snprintf(want, sizeof want, "conflux: another conflux (pid %d) uses this state folder\n", (int)first);
    assert_string_equal(text, want);
    t.keeper = first;
    t.err_pipe = first_err;
    /* A keeper that is killed leaves its children; the next one sweeps them, and what they started. */
    pid_t kid = spawn_kid("kid", "(setsid sleep 1000 &); (exec prlimit --locks=9 sleep 1000) & echo up >&2;"
                                 "exec sleep 1000");
    text[0] = '\0';
    wait_for_text("up\n");
    assert_int_equal(kill(t.keeper, SIGKILL), 0);
    assert_int_equal(waitpid(t.keeper, NULL, 0), t.keeper);
    expect("lost");
    assert_true(alive(kid));
    int old_err = t.err_pipe;
    t.err_pipe = -1;
    start_keeper(.state_dir = t.dir);
    first_server();
    wait_readable(old_err); /* at its end: all that had it are gone */
    char rest[64];
    while (read(old_err, rest, sizeof rest) > 0) wait_readable(old_err);
    close(old_err);
    assert_int_equal(kill(t.keeper, SIGTERM), 0);
    expect("drain");
    tell("exit 0");
    assert_int_equal(finish(text), 0);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--keeper-fd") == 0) return server_main();
    static char exe[4096];
    if (readlink("/proc/self/exe", exe, sizeof exe - 1) < 0) return 1;
    self = exe;
    prctl(PR_SET_CHILD_SUBREAPER, 0);
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_first_start_fails),
        T(test_first_start_dies),
        T(test_first_start_is_silent),
        T(test_no_server_binary),
        T(test_restart_hands_over),
        T(test_trees_of_mortals_die),
        T(test_silent_server_is_replaced),
        T(test_later_failure_is_retried),
        T(test_many_are_handed_over),
        T(test_children_limit),
        T(test_descriptor_limit),
        T(test_upgrade),
        T(test_stubborn_trees),
        T(test_second_term_does_not_wait),
        T(test_cmd_fails),
        T(test_cmd_killed),
        T(test_cmd_missing),
        T(test_cmd_not_executable),
        T(test_cmd_signals),
        T(test_cmd_succeeds),
        T(test_cmd_at_a_terminal),
        T(test_state_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
