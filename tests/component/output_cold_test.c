/* An output log on a disk that has to bring what is read, and takes its time. */
#include "component/output_fixture.h"

#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/uio.h>

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

/* Stand in for the C library's: the page cache has nothing while `cold`, and the disk waits for the gate while `stuck`,
 * but for whoever must not wait. */
static atomic_bool cold, stuck;
static atomic_uint disk_reads;
static pthread_t loop_thread;

ssize_t preadv2(int fd, const struct iovec *io, int n, off_t at, int flags) {
    if (!(flags & RWF_NOWAIT) || !cold) return syscall(SYS_preadv2, fd, io, n, at, 0, flags);
    errno = EAGAIN;
    return -1;
}

ssize_t pread(int fd, void *p, size_t n, off_t at) {
    if (n < 4096) return syscall(SYS_pread64, fd, p, n, at); /* not of a log: base/turn.c looks at itself */
    if (cold && pthread_equal(pthread_self(), loop_thread)) fail_msg("the loop reads from the disk");
    atomic_fetch_add(&disk_reads, 1);
    if (stuck) {
        pthread_mutex_lock(&gate);
        pthread_mutex_unlock(&gate);
    }
    return syscall(SYS_pread64, fd, p, n, at);
}

static void disk_is(bool cold_now, bool stuck_now) {
    loop_thread = pthread_self();
    cold = cold_now;
    stuck = stuck_now;
}

typedef struct tail {
    cp_cursor c;
    unsigned wakes;
    cp_buf got;
    uint64_t missed;
} tail;

static void on_wake(cp_cursor *c) { CP_CONTAINER(c, tail, c)->wakes++; }

/* Reads what there is now. */
static void read_on(tail *r) {
    uint64_t at;
    for (size_t n; (n = cp_cursor_read(&r->c, 60000, &r->got, &at));) {
        r->missed += at - r->c.at;
        cp_cursor_advance(&r->c, at + n);
    }
}

static void tail_close(tail *r) {
    cp_cursor_close(&r->c);
    cp_buf_free(&r->got);
}

static cp_output *written_log(uint64_t n) {
    int w;
    cp_output *o = open_kind(CP_OUT_FILE, UINT64_MAX, false, &w);
    feed(w, 0, n);
    close(w);
    until(t.ended);
    return o;
}

/* X37: what the disk has to bring is read by a thread. The loop goes on, and every byte comes once, in order. */
static void a_cold_log_is_read_off_the_loop(void **state) {
    (void)state;
    tail r = {0};
    cp_output *o = written_log(MIB + 7);
    disk_is(true, true);
    pthread_mutex_lock(&gate);
    cp_cursor_open(&r.c, o, 0, true, on_wake);
    until(r.wakes == 1);
    unsigned before = disk_reads;
    read_on(&r);
    assert_int_equal(r.got.n, 0);
    assert_true(cp_cursor_waits(&r.c));
    until(disk_reads > before); /* a thread hangs in it, and the loop turns */
    cp_loop_once(t.loop, 0);
    assert_int_equal(r.wakes, 1);
    pthread_mutex_unlock(&gate);
    disk_is(true, false);
    for (unsigned seen = 0; r.got.n < MIB + 7;) {
        until(r.wakes > seen + 1);
        seen++;
        read_on(&r);
    }
    assert_int_equal(r.got.n, MIB + 7);
    assert_int_equal(r.missed, 0);
    for (size_t i = 0; i < r.got.n; i++) assert_int_equal(r.got.p[i], byte_at(i));
    disk_is(false, false);
    tail_close(&r);
    cp_output_free(o);
}

/* A hole that is punched under a reader must not be taken for bytes. */
static void what_is_dropped_under_a_reader_is_not_read(void **state) {
    (void)state;
    int w;
    tail r = {0};
    cp_output *o = open_kind(CP_OUT_FILE, 64 << 10, false, &w);
    feed(w, 0, 64 << 10);
    until(cp_output_total(o) == 64 << 10);
    disk_is(true, true);
    pthread_mutex_lock(&gate);
    cp_cursor_open(&r.c, o, 0, false, on_wake);
    until(r.wakes == 1);
    unsigned before = disk_reads;
    read_on(&r);
    until(disk_reads > before);
    feed(w, 64 << 10, MIB); /* drops what is being read */
    until(cp_output_total(o) == MIB + (64 << 10) && cp_output_first(o) > 64 << 10);
    disk_is(true, false);
    pthread_mutex_unlock(&gate);
    close(w);
    until(t.ended);
    while (r.c.at < cp_output_total(o)) {
        unsigned seen = r.wakes;
        read_on(&r);
        if (r.c.at < cp_output_total(o)) until(r.wakes > seen);
    }
    assert_true(r.missed >= MIB - (64 << 10));
    assert_int_equal(r.got.n + r.missed, cp_output_total(o));
    for (size_t i = 0; i < r.got.n; i++) assert_int_equal(r.got.p[i], byte_at(cp_output_total(o) - r.got.n + i));
    disk_is(false, false);
    tail_close(&r);
    cp_output_free(o);
}

/* Reader and log go while a thread hangs in the read. */
static void a_reader_that_goes_leaves_its_read_behind(void **state) {
    (void)state;
    tail r = {0};
    cp_output *o = written_log(MIB);
    disk_is(true, true);
    pthread_mutex_lock(&gate);
    cp_cursor_open(&r.c, o, 0, true, on_wake);
    until(r.wakes == 1);
    unsigned before = disk_reads;
    read_on(&r);
    until(disk_reads > before);
    tail_close(&r);
    cp_output_unlink(o);
    cp_output_free(o);
    pthread_mutex_unlock(&gate);
    disk_is(false, false);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_cold_log_is_read_off_the_loop),
        T(what_is_dropped_under_a_reader_is_not_read),
        T(a_reader_that_goes_leaves_its_read_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
