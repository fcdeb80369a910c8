#pragma once
/* An output log with a real pipe in front and a real file behind it; what is written tells its offset. */
#pragma GCC diagnostic ignored "-Wunused-function" /* not every test uses all of it */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "component/disk.h"
#include "component/until.h"
#include "services/output.h"

enum { MIB = 1 << 20 };

static struct {
    cp_loop *loop;
    cp_workers *workers;
    char dir[64], path[96];
    int ended;
} t;

static int setup(void **state) {
    (void)state;
    cp_err err;
    (void)signal(SIGPIPE, SIG_IGN);
    temp_dir_new(t.dir, "output_test");
    snprintf(t.path, sizeof t.path, "%s/log", t.dir);
    t.loop = cp_loop_new(&err);
    t.workers = cp_workers_new(t.loop, 2, &err);
    t.ended = 0;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    cp_output_drains_close(t.loop);
    cp_workers_free(t.workers);
    for (int i = 0; i < 5; i++) cp_loop_once(t.loop, 0);
    cp_loop_free(t.loop);
    unlink(t.path);
    assert_int_equal(rmdir(t.dir), 0);
    return 0;
}

#define until(condition) loop_until(t.loop, condition)

static void on_end(void *arg) { ++*(int *)arg; }

static cp_output *open_kind(cp_out_kind kind, uint64_t budget, bool stop, int *w) {
    cp_err err;
    cp_output_opts o = {t.loop, t.workers, kind, t.path, budget, stop};
    cp_output *out = cp_output_new(&o, &err);
    int rw[2];
    assert_int_equal(cp_pipe(rw, 0), 0);
    assert_int_equal(cp_output_attach(out, rw[0], on_end, &t.ended, &err), 0);
    assert_int_equal(cp_nonblock(rw[1]), 0);
    *w = rw[1];
    return out;
}

/* Byte i of every test stream. The period is prime, so a shift of any block shows. */
static char byte_at(uint64_t i) { return (char)('!' + i % 89); }

/* Writes what the pipe takes now; the number of bytes. */
static size_t feed_once(int w, uint64_t from, size_t n) {
    char buf[65536];
    if (n > sizeof buf) n = sizeof buf;
    for (size_t i = 0; i < n; i++) buf[i] = byte_at(from + i);
    ssize_t k = write(w, buf, n);
    assert_true(k >= 0 || errno == EAGAIN);
    return k > 0 ? (size_t)k : 0;
}

static void feed(int w, uint64_t from, uint64_t n) {
    uint64_t end = cp_now_ms() + PATIENCE_MS;
    for (uint64_t done = 0; done < n;) {
        size_t left = n - done < MIB ? (size_t)(n - done) : MIB;
        size_t k = feed_once(w, from + done, left);
        done += k;
        assert_true(cp_now_ms() < end);
        assert_int_equal(cp_loop_once(t.loop, k ? 0 : 10), 0);
    }
}

static void expect_bytes(cp_output *o, uint64_t from, uint64_t to) {
    while (from < to) {
        cp_autobuf cp_buf b = {0};
        uint64_t at;
        size_t n = cp_output_read(o, from, to - from < MIB ? (size_t)(to - from) : MIB, &b, &at);
        assert_true(n > 0);
        assert_int_equal(at, from);
        for (size_t i = 0; i < n; i++)
            if (b.p[i] != byte_at(from + i)) fail_msg("byte %llu", (unsigned long long)(from + i));
        from += n;
    }
}
