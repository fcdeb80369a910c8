#pragma once
/* The services on a real keeper and a temporary state folder, for component tests. One instance; no registry unless the
 * test opens one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "component/config_fixture.h"
#include "component/disk.h"
#include "component/keeper_fixture.h"
#include "component/until.h"
#include "services/exec.h"
#include "services/session.h"
#include "services/tree.h"

static struct fixture {
    cp_services s;
    cp_config config;
    cp_loop *loop;
    pid_t keeper_pid;
    char dir[64], workspace[96];
} fx;

static inline void fx_held(void *arg, const cp_held *h) { cp_services_held(arg, h); }

static inline void fx_loop(void) {
    static char path[] = "PATH=/usr/local/bin:/usr/bin:/bin", home[] = "HOME=/tmp", lang[] = "LANG=C.UTF-8";
    static char *env[] = {path, home, lang, NULL};
    cp_err err;
    config_defaults(&fx.config);
    fx.config.kill_grace = 1000;
    temp_dir_new(fx.dir, "services_test");
    snprintf(fx.workspace, sizeof fx.workspace, "%s/work", fx.dir);
    assert_int_equal(mkdir(fx.workspace, 0700), 0);
    fx.loop = cp_loop_new(&err);
    fx.s = (cp_services){
        .loop = fx.loop, .config = &fx.config, .state_dir = fx.dir, .workspace = fx.workspace, .base_env = env};
}

static inline void fx_open(void) {
    cp_err err = {0};
    cp_keeper_hello hello;
    cp_keeper_events ev = {.arg = &fx.s, .on_held = fx_held};
    int fd = keeper_fixture_start(&fx.keeper_pid);
    assert_true(fd >= 0);
    fx.s.keeper = cp_keeper_open(fx.loop, fd, &ev, &hello, &err);
    assert_non_null(fx.s.keeper);
    cp_buf_free(&hello.config);
    fx.s.workers = cp_workers_new(fx.loop, 2, &err);
    if (cp_services_open(&fx.s, &err) < 0) fail_msg("%s", err.msg);
}

static inline void fx_close(void) {
    fx.s.draining = true; /* the records of sessions go with them */
    cp_services_close(&fx.s);
    cp_registry_close(fx.s.registry);
    cp_workers_free(fx.s.workers);
    for (int i = 0; i < 5; i++) cp_loop_once(fx.loop, 0); /* what the workers have posted */
    cp_keeper_close(fx.s.keeper);
    assert_int_equal(keeper_fixture_wait(fx.keeper_pid), 0);
    cp_loop_free(fx.loop);
    assert_int_equal(temp_dir_remove(fx.dir), 0);
}

static inline int fx_setup(void **state) {
    (void)state;
    fx_loop();
    fx_open();
    return 0;
}

static inline int fx_teardown(void **state) {
    (void)state;
    fx_close();
    return 0;
}

#define fx_until(condition) loop_until(fx.loop, condition)

#define FX_TEST(f) cmocka_unit_test_setup_teardown(f, fx_setup, fx_teardown)

/* One execution that a test watches. */
struct run {
    cp_exec_watch w;
    cp_exec *e;
    int starts, ends;
    bool existing;
};

static inline void run_on_start(cp_exec_watch *w, cp_exec *e) {
    struct run *r = CP_CONTAINER(w, struct run, w);
    assert_ptr_equal(e, w->exec);
    r->starts++;
}

static inline void run_on_end(cp_exec_watch *w, cp_exec *e) {
    struct run *r = CP_CONTAINER(w, struct run, w);
    assert_true(e->state == CP_STATE_ENDED || e->state == CP_STATE_FAILED);
    assert_int_equal(r->starts, 1);
    r->ends++;
}

static const cp_exec_watch_ops run_watch = {run_on_start, run_on_end};

static inline int run_try(struct run *r, const cp_exec_spec *spec, cp_err *err) {
    *r = (struct run){.w = {.ops = &run_watch}};
    int rc = cp_exec_start(&fx.s, spec, &r->w, &r->e, &r->existing, err);
    assert_int_equal(r->starts, 0);
    return rc;
}

static inline void run_begin(struct run *r, const cp_exec_spec *spec) {
    cp_err err = {0};
    if (run_try(r, spec, &err) < 0) fail_msg("%s", err.msg);
}

static inline void run_wait(struct run *r) {
    fx_until(r->ends);
    assert_int_equal(r->ends, 1);
}

static inline void run_free(struct run *r) {
    cp_exec_watch_del(&r->w);
    cp_exec_unref(r->e);
    r->e = NULL;
}

/* All of a stream as a string; owner frees. */
static inline char *run_output(const struct run *r, int which) {
    cp_buf b = {0};
    uint64_t at, from = 0;
    while (cp_output_read(r->e->out[which], from, 1 << 20, &b, &at)) from = at + (b.n - from);
    (void)cp_buf_z(&b);
    return b.p;
}

/* The pid that the output begins with. */
static inline pid_t run_pid(const struct run *r) {
    cp_autofree char *text = run_output(r, 0);
    return (pid_t)strtol(text, NULL, 10);
}

/* What the command has said is a pid; waits for it. */
static inline cp_proc run_said_pid(struct run *r) {
    cp_proc p;
    fx_until(cp_output_total(r->e->out[0]) > 1);
    assert_true(cp_proc_read(run_pid(r), &p));
    return p;
}

/* Runs `before`, then `after` until it times out. Tries it with longer and longer timeouts until `before` came to its
 * end in time, as it does at once on a machine that is not busy. The timeout that did is in r->e->timeout_ms. */
static inline void run_until_timeout(struct run *r, cp_exec_spec spec, const char *before, const char *after) {
    cp_autobuf cp_buf command = {0};
    char mark[sizeof fx.dir + 16];
    snprintf(mark, sizeof mark, "%s/in-time", fx.dir);
    cp_buf_addf(&command, "%s; : >%s; %s", before, mark, after);
    spec.command = cp_str_of(cp_buf_z(&command));
    for (spec.timeout_ms = 200;; spec.timeout_ms *= 2, run_free(r)) {
        run_begin(r, &spec);
        run_wait(r);
        assert_int_equal(r->e->outcome, CP_OUTCOME_timeout);
        if (unlink(mark) == 0) return;
        assert_true(spec.timeout_ms < 60000);
    }
}

static inline void run_expect(const cp_exec_spec *spec, int code, const char *out, const char *err) {
    struct run r;
    run_begin(&r, spec);
    run_wait(&r);
    cp_autofree char *o = run_output(&r, 0);
    cp_autofree char *e = run_output(&r, 1);
    if (err) assert_string_equal(e, err);
    assert_string_equal(o, out);
    assert_int_equal(r.e->exit_code, code);
    run_free(&r);
}

static inline cp_exec_spec shell_spec(const char *command) {
    return (cp_exec_spec){.kind = CP_EXEC_BUFFERED, .command = cp_str_of(command), .sessionless = true};
}

/* Commands that leave a process with a session of its own and, soon, no parent. It says its pid before the command goes
 * on: what comes later than --drain-window after a command's end is thrown away. */
#define DAEMON_THAT(prelude) "{ : \"$(setsid -f sh -c '" prelude "echo $$ >&3; exec sleep 1000 >&3 3>&-')\"; } 3>&1"
#define DAEMON               DAEMON_THAT("")
#define DEAF_DAEMON          DAEMON_THAT("trap \"\" TERM; ")
