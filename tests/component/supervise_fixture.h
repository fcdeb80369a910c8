#pragma once
/* A keeper with a server to look after. The test program plays the server as well: given --keeper-fd it connects to the
 * socket that its configuration names, says what happens to it, one message each, and does what it is told. */
#include "component/disk.h"
#include "component/until.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "keeper/client.h"
#include "keeper/keeper.h"

enum { MESSAGE = 1024, HELD_MAX = 256 };

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

__attribute__((format(printf, 1, 2))) static inline void say(const char *fmt, ...) {
    char text[MESSAGE];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    (void)!send(s.fd, text, (size_t)n, MSG_NOSIGNAL);
}

static inline void kid_spawned(cp_child *c, int sys, const char *step) {
    const struct kid *k = CP_CONTAINER(c, struct kid, c);
    if (sys) say("refused %s %s %s", k->key, step, cp_errno_name(sys));
    else say("spawned %s %d", k->key, (int)c->pid);
}

static inline void kid_exited(cp_child *c, const cp_exit *x) {
    say("exit %s %d %d", CP_CONTAINER(c, struct kid, c)->key, x->code, x->signal);
}

static inline struct kid *kid_new(const char *key) {
    struct kid *k = cp_new(struct kid);
    *k = (struct kid){.next = s.kids, .c = {.on_spawn = kid_spawned, .on_exit = kid_exited}, .out = -1};
    snprintf(k->key, sizeof k->key, "%s", key);
    return s.kids = k;
}

static inline struct kid *kid_get(const char *key) {
    for (struct kid *k = s.kids; k; k = k->next)
        if (strcmp(k->key, key) == 0) return k;
    abort();
}

static inline void on_held(void *arg, const cp_held *h) {
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

static inline void note_held(void *arg, const cp_held *h) {
    (void)arg;
    if (held.n == HELD_MAX) abort();
    held.h[held.n] = *h;
    snprintf(held.key[held.n], sizeof held.key[0], "%s", h->key);
    held.h[held.n].key = held.key[held.n];
    held.n++;
}

static inline void on_drain(void *arg) {
    (void)arg;
    say("drain");
}
static inline void on_handover(void *arg) {
    (void)arg;
    say("handover");
}
static inline void on_lost(void *arg) {
    (void)arg;
    say("lost");
    _exit(0);
}

/* "spawn KEY SCRIPT"; a key that begins with "-" is not durable. */
static inline void do_spawn(char *rest) {
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
static inline void do_read(const char *key) {
    char text[512] = "";
    ssize_t n = cp_read_full(kid_get(key)->out, text, sizeof text - 1);
    say("output %s %zd %s", key, n, text);
}

static inline void on_control(cp_io *io, uint32_t events) {
    (void)events;
    char text[MESSAGE] = "";
    ssize_t n = recv(io->fd, text, sizeof text - 1, 0);
    if (n <= 0) _exit(0);
    char *arg = strchr(text, ' ');
    if (arg) *arg++ = '\0';
    if (!arg) abort();
    if (strcmp(text, "ready") == 0) cp_keeper_ready(s.keeper, (uint16_t)strtoul(arg, NULL, 10), -1, NULL);
    else if (strcmp(text, "fail") == 0) cp_keeper_failed(s.keeper, arg), _exit(9);
    else if (strcmp(text, "exit") == 0) _exit((int)strtol(arg, NULL, 10));
    else if (strcmp(text, "spawn") == 0) do_spawn(arg);
    else if (strcmp(text, "read") == 0) do_read(arg);
    else if (strcmp(text, "ack") == 0) cp_keeper_ack(s.keeper, &kid_get(arg)->c), say("acked");
    else abort();
}

static inline int server_main(void) {
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

static inline void announce(uint16_t port) { dprintf(2, "listening on %u\n", port); }

/* The terminal becomes stdin and the controlling one. */
static inline void terminal_in(int slave) {
    setsid();
    dup2(slave, 0);
    ioctl(0, TIOCSCTTY, 0);
}

static inline void start_keeper_in(cp_keeper_opts opts) {
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

static inline void wait_readable(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, PATIENCE_MS) != 1) fail_msg("nothing came");
}

static inline char *hear(void) {
    static char text[MESSAGE];
    wait_readable(t.control);
    ssize_t n = recv(t.control, text, sizeof text - 1, 0);
    assert_true(n >= 0);
    text[n] = '\0';
    return text;
}

static inline void expect(const char *want) { assert_string_equal(hear(), want); }

static inline void tell(const char *text) { assert_int_equal(send(t.control, text, strlen(text), 0), strlen(text)); }

/* The next server comes up. */
static inline void meet_server(unsigned generation, unsigned port) {
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

static inline void first_server(void) {
    meet_server(0, 0);
    tell("ready 4242");
}

static inline pid_t spawn_kid(const char *key, const char *script) {
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
static inline int finish(char err_text[4096]) {
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

static inline void await_gone(pid_t pid) {
    uint64_t end = cp_now_ms() + PATIENCE_MS;
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0) return;
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    if (poll(&p, 1, (int)(end - cp_now_ms())) != 1) fail_msg("process %d lives on", (int)pid);
    close(pidfd);
}

static inline bool alive(pid_t pid) { return kill(pid, 0) == 0; }

static inline int setup(void **state) {
    (void)state;
    memset(&t, 0, sizeof t);
    t.control = t.err_pipe = t.slave = -1;
    temp_dir_new(t.dir, "keeper_sup");
    snprintf(t.path, sizeof t.path, "%s/control", t.dir);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", t.path);
    t.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(t.listener, (struct sockaddr *)&at, sizeof at), 0);
    return listen(t.listener, 8);
}

static inline int teardown(void **state) {
    (void)state;
    if (t.keeper > 0) kill(t.keeper, SIGKILL), waitpid(t.keeper, NULL, 0);
    cp_close(&t.control), cp_close(&t.err_pipe), cp_close(&t.listener);
    return temp_dir_remove(t.dir);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static char text[4096];

static inline void wait_for_text(const char *want) {
    size_t n = strlen(text);
    while (!strstr(text, want)) {
        wait_readable(t.err_pipe);
        ssize_t k = read(t.err_pipe, text + n, sizeof text - 1 - n);
        if (k <= 0) fail_msg("not said: %s", want);
        text[n += (size_t)k] = '\0';
    }
}

/* It is told to end, its server to go: everything ends as it should. */
static inline void end_well(void) {
    assert_int_equal(kill(t.keeper, SIGTERM), 0);
    expect("drain");
    tell("exit 0");
    assert_int_equal(finish(text), 0);
}

/* The first thing in main. As the server it does not come back. */
static inline void supervise_begin(int argc, char **argv) {
    static char exe[4096];
    if (argc > 1 && strcmp(argv[1], "--keeper-fd") == 0) exit(server_main());
    if (readlink("/proc/self/exe", exe, sizeof exe - 1) < 0) exit(1);
    self = exe;
    prctl(PR_SET_CHILD_SUBREAPER, 0);
}
