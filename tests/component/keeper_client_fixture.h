#pragma once
/* A keeper through its client, and children that note what is told of them. A keeper that supervises a server:
 * supervise_fixture.h. */
#include "component/disk.h"
#include "component/keeper_fixture.h"
#include "component/until.h"

#include <sys/resource.h>

#include "base/fd.h"
#include "keeper/client.h"

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

static inline void spawned(cp_child *c, int sys, const char *step) {
    struct kid *k = CP_CONTAINER(c, struct kid, c);
    assert_false(k->spawned);
    k->spawned = true;
    k->sys = sys;
    snprintf(k->step, sizeof k->step, "%s", step);
}

static inline void exited(cp_child *c, const cp_exit *x) {
    struct kid *k = CP_CONTAINER(c, struct kid, c);
    assert_true(k->spawned);
    assert_false(k->exited);
    k->exited = true;
    k->x = *x;
}

static inline void await(const bool *what) { loop_until(t.loop, *what); }

static inline void on_lost(void *arg) {
    (void)arg;
    t.lost = true;
}

static inline int setup(void **state) {
    (void)state;
    temp_dir_new(t.dir, "keeper_test");
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
    struct rlimit nofile; /* as a server does: each request that waits has descriptors */
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &nofile), 0);
    nofile.rlim_cur = nofile.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &nofile), 0);
    return 0;
}

static inline int teardown(void **state) {
    (void)state;
    cp_keeper_close(t.keeper);
    cp_loop_free(t.loop);
    if (t.pid) assert_int_equal(keeper_fixture_wait(t.pid), 0);
    return temp_dir_remove(t.dir);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static const char *const plain_env[] = {"PATH=/usr/bin:/bin", "FOO=bar baz", NULL};

#define SPEC(...)  ((cp_spawn){.fds = {-1, 1, 2, -1, -1, -1, -1, -1}, __VA_ARGS__})
#define HOLD_NONE  .hold = {-1, -1, -1}
#define ARGV(...)  ((const char *const[]){__VA_ARGS__, NULL})
#define SH(script) ARGV("sh", "-c", script)

static inline void start(struct kid *k, const cp_spawn *s) {
    cp_err err;
    *k = (struct kid){.c = {.on_spawn = spawned, .on_exit = exited}};
    cp_spawn full = *s;
    if (!full.env) full.env = plain_env;
    if (cp_keeper_spawn(t.keeper, &k->c, &full, &err) < 0) fail_msg("%s", err.msg);
    assert_false(k->spawned);
}

/* Runs to the end; k has the outcome. */
static inline void run(struct kid *k, const cp_spawn *s) {
    start(k, s);
    await(&k->spawned);
    if (k->sys == 0) await(&k->exited);
}

static inline void expect_failure(const cp_spawn *s, int sys, const char *step) {
    struct kid k;
    run(&k, s);
    assert_int_equal(k.sys, sys);
    assert_string_equal(k.step, step);
    assert_false(k.exited);
}
