/* The output log on real pipes and files. */
#include "component/output_fixture.h"

static void both_kinds_keep_all(void **state) {
    (void)state;
    const uint64_t sizes[] = {0, 1, 65536, 256 * 1024 - 1, 256 * 1024, 3 * MIB + 7};
    for (size_t i = 0; i < CP_COUNT(sizes); i++) {
        for (int kind = CP_OUT_MEMORY; kind <= CP_OUT_FILE; kind++) {
            int w;
            t.ended = 0;
            cp_output *o = open_kind((cp_out_kind)kind, UINT64_MAX, false, &w);
            feed(w, 0, sizes[i]);
            close(w);
            until(t.ended);
            assert_int_equal(t.ended, 1);
            assert_true(cp_output_ended(o));
            assert_int_equal(cp_output_total(o), sizes[i]);
            assert_int_equal(cp_output_dropped(o), 0);
            expect_bytes(o, 0, sizes[i]);
            /* A spill leaves no name; a log without bytes makes no file. */
            assert_int_equal(access(t.path, F_OK), kind == CP_OUT_FILE && sizes[i] ? 0 : -1);
            cp_output_unlink(o);
            assert_int_equal(access(t.path, F_OK), -1);
            cp_output_free(o);
        }
    }
}

static void limit_keeps_the_first(void **state) {
    (void)state;
    for (int kind = CP_OUT_MEMORY; kind <= CP_OUT_FILE; kind++) {
        const uint64_t budgets[] = {10, 100000, 300000};
        for (size_t i = 0; i < CP_COUNT(budgets); i++) {
            int w;
            t.ended = 0;
            cp_output *o = open_kind((cp_out_kind)kind, budgets[i], true, &w);
            feed(w, 0, 5 * MIB);
            close(w);
            until(t.ended);
            assert_int_equal(cp_output_total(o), 5 * MIB);
            assert_int_equal(cp_output_kept(o), budgets[i]);
            assert_int_equal(cp_output_first(o), 0);
            assert_int_equal(cp_output_dropped(o), 5 * MIB - budgets[i]);
            assert_true(cp_output_truncated(o));
            expect_bytes(o, 0, budgets[i]);
            cp_output_unlink(o);
            cp_output_free(o);
        }
    }
}

static void exactly_the_limit_is_not_truncated(void **state) {
    (void)state;
    for (int kind = CP_OUT_MEMORY; kind <= CP_OUT_FILE; kind++) {
        int w;
        t.ended = 0;
        cp_output *o = open_kind((cp_out_kind)kind, 100000, true, &w);
        feed(w, 0, 100000);
        close(w);
        until(t.ended);
        assert_false(cp_output_truncated(o));
        expect_bytes(o, 0, 100000);
        cp_output_unlink(o);
        cp_output_free(o);
    }
}

static uint64_t disk_bytes(void) {
    struct stat st;
    assert_int_equal(stat(t.path, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

/* B111: the newest bytes are kept, the disk holds no more than the budget, and what is gone is counted. */
static void oldest_are_dropped(void **state) {
    (void)state;
    int w;
    cp_output *o = open_kind(CP_OUT_FILE, 4 * MIB, false, &w);
    feed(w, 0, 40 * MIB);
    close(w);
    until(t.ended && cp_output_kept(o) <= 4 * MIB);
    assert_int_equal(cp_output_total(o), 40 * MIB);
    assert_true(cp_output_kept(o) >= 3 * MIB);
    assert_int_equal(cp_output_first(o), cp_output_dropped(o));
    assert_int_equal(cp_output_dropped(o) + cp_output_kept(o), cp_output_total(o));
    expect_bytes(o, cp_output_first(o), 40 * MIB);
    assert_true(disk_bytes() <= 4 * MIB + 64 * 1024);
    cp_autobuf cp_buf b = {0};
    uint64_t at;
    assert_true(cp_output_read(o, 0, 10, &b, &at) == 10);
    assert_int_equal(at, cp_output_first(o));
    assert_int_equal(cp_output_read(o, 40 * MIB + 100, 10, &b, &at), 0); /* B031 */
    cp_output_free(o);
}

static void smallest_budget(void **state) {
    (void)state;
    int w;
    cp_output *o = open_kind(CP_OUT_FILE, 65536, false, &w);
    feed(w, 0, 2 * MIB);
    close(w);
    until(t.ended && cp_output_kept(o) <= 65536);
    assert_true(cp_output_kept(o) >= 32768);
    expect_bytes(o, cp_output_first(o), 2 * MIB);
    cp_output_free(o);
}

struct reader {
    cp_cursor c;
    int wakes;
};

static void on_wake(cp_cursor *c) { CP_CONTAINER(c, struct reader, c)->wakes++; }

/* A live stream: the writer waits, nothing that the reader has not seen is lost; when it leaves, the child goes on. */
static void blocking_reader_holds_the_child(void **state) {
    (void)state;
    int w;
    struct reader r = {0};
    cp_output *o = open_kind(CP_OUT_FILE, 4 * MIB, false, &w);
    cp_cursor_open(&r.c, o, 0, true, on_wake);
    uint64_t sent = 0;
    uint64_t deadline = cp_now_ms() + PATIENCE_MS;
    while (cp_output_total(o) < 4 * MIB) {
        sent += feed_once(w, sent, 65536);
        assert_true(cp_now_ms() < deadline);
        assert_int_equal(cp_loop_once(t.loop, 1), 0);
    }
    for (int i = 0; i < 20; i++) { /* more is offered, and stays in the pipe */
        sent += feed_once(w, sent, 65536);
        assert_int_equal(cp_loop_once(t.loop, 1), 0);
    }
    assert_int_equal(cp_output_total(o), 4 * MIB);
    assert_int_equal(cp_output_dropped(o), 0);
    assert_true(r.wakes > 0);
    expect_bytes(o, 0, 4 * MIB);
    cp_cursor_advance(&r.c, 4 * MIB);
    uint64_t end = sent + MIB;
    feed(w, sent, MIB);
    until(cp_output_total(o) == end);
    assert_true(cp_output_first(o) <= 4 * MIB); /* nothing that it has not seen is dropped */
    cp_cursor_close(&r.c);
    feed(w, end, 20 * MIB);
    close(w);
    until(t.ended);
    assert_int_equal(cp_output_total(o), end + 20 * MIB);
    expect_bytes(o, cp_output_first(o), cp_output_total(o));
    cp_output_free(o);
}

static void cursors_are_told_of_news_only(void **state) {
    (void)state;
    for (int kind = CP_OUT_MEMORY; kind <= CP_OUT_FILE; kind++) {
        int w;
        struct reader r = {0}, late = {0};
        t.ended = 0;
        cp_output *o = open_kind((cp_out_kind)kind, UINT64_MAX, false, &w);
        cp_cursor_open(&r.c, o, 0, false, on_wake);
        for (int i = 0; i < 3; i++) cp_loop_once(t.loop, 0);
        assert_int_equal(r.wakes, 0);
        feed(w, 0, 10);
        until(r.wakes == 1);
        cp_cursor_open(&late.c, o, 3, false, on_wake); /* there is something for it already */
        assert_int_equal(late.wakes, 0);
        until(late.wakes == 1);
        cp_cursor_advance(&r.c, 10);
        for (int i = 0; i < 3; i++) cp_loop_once(t.loop, 0);
        assert_int_equal(r.wakes, 1);
        close(w);
        until(t.ended);
        assert_int_equal(r.wakes, 2);
        cp_cursor_close(&r.c);
        cp_cursor_close(&r.c);
        cp_cursor_close(&late.c);
        cp_output_unlink(o);
        cp_output_free(o);
    }
}

/* The pipe has a writer still: what is in it counts, the writer lives on. */
static void finish_takes_what_is_there(void **state) {
    (void)state;
    for (int kind = CP_OUT_MEMORY; kind <= CP_OUT_FILE; kind++) {
        int w;
        struct reader r = {0};
        t.ended = 0;
        cp_output *o = open_kind((cp_out_kind)kind, 100, false, &w);
        cp_cursor_open(&r.c, o, 0, true, on_wake); /* a reader that is not served must not keep the end away */
        size_t n = feed_once(w, 0, 50000);
        cp_output_finish(o);
        until(t.ended);
        assert_int_equal(cp_output_total(o), n);
        expect_bytes(o, cp_output_first(o), n);
        cp_cursor_close(&r.c);
        cp_output_unlink(o);
        cp_output_free(o);
        feed(w, 0, 4 * MIB); /* neither SIGPIPE nor a full pipe */
        close(w);
    }
}

static void own_words_come_last(void **state) {
    (void)state;
    for (int kind = CP_OUT_MEMORY; kind <= CP_OUT_FILE; kind++) {
        int w;
        t.ended = 0;
        cp_output *o = open_kind((cp_out_kind)kind, 1000, false, &w);
        cp_output_append(o, CP_STR("bye"));
        assert_int_equal(write(w, "hello ", 6), 6);
        close(w);
        until(t.ended);
        cp_autobuf cp_buf b = {0};
        uint64_t at;
        assert_int_equal(cp_output_read(o, 0, 100, &b, &at), 9);
        assert_memory_equal(b.p, "hello bye", 9);
        cp_output_unlink(o);
        cp_output_free(o);
    }
}

static void no_pipe_is_an_end(void **state) {
    (void)state;
    cp_err err;
    cp_output_opts opts = {t.loop, t.workers, CP_OUT_FILE, t.path, 1000, false};
    cp_output *o = cp_output_new(&opts, &err);
    assert_int_equal(cp_output_attach(o, -1, on_end, &t.ended, &err), 0);
    assert_int_equal(t.ended, 0);
    until(t.ended == 1);
    assert_int_equal(cp_output_total(o), 0);
    cp_output_free(o);
}

/* A restarted server: the file is the truth, its holes included; writing goes on where it stopped. */
static void reopened_log_goes_on(void **state) {
    (void)state;
    int w, rw[2];
    cp_err err;
    cp_output *o = open_kind(CP_OUT_FILE, 2 * MIB, false, &w);
    feed(w, 0, 6 * MIB);
    close(w);
    until(t.ended && cp_output_kept(o) <= 2 * MIB);
    uint64_t first = cp_output_first(o);
    cp_output_free(o);
    cp_output_opts opts = {t.loop, t.workers, CP_OUT_FILE, t.path, 2 * MIB, false};
    o = cp_output_reopen(&opts, 0, &err); /* the row is older than the holes */
    assert_non_null(o);
    assert_int_equal(cp_output_total(o), 6 * MIB);
    assert_int_equal(cp_output_first(o), first);
    assert_false(cp_output_ended(o));
    assert_int_equal(cp_pipe(rw, 0), 0);
    t.ended = 0;
    assert_int_equal(cp_output_attach(o, rw[0], on_end, &t.ended, &err), 0);
    feed(rw[1], 6 * MIB, 100);
    close(rw[1]);
    until(t.ended);
    expect_bytes(o, cp_output_first(o), 6 * MIB + 100);
    cp_output_free(o);
    unlink(t.path);
    o = cp_output_reopen(&opts, 0, &err); /* the file is gone */
    assert_int_equal(cp_output_total(o), 0);
    cp_output_finish(o);
    cp_output_free(o);
}

/* A log that began anew inside a block, whose server died before it wrote down where. */
static void zeros_before_the_first_byte_are_no_output(void **state) {
    (void)state;
    enum { BLOCK = 4096, AT = 2 * BLOCK + 700, N = 3000 };
    for (int mode = 0600; mode <= 0700; mode += 0100) { /* 0700: cut again behind it */
        cp_err err;
        uint64_t at;
        cp_autofd int fd = open(t.path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        assert_int_equal(fchmod(fd, (mode_t)mode), 0);
        cp_autobuf cp_buf text = {0};
        for (int i = 0; i < N; i++) cp_buf_addc(&text, i == N / 2 ? 0 : 'x');
        assert_int_equal(pwrite(fd, text.p, N, AT), N);
        cp_output_opts opts = {t.loop, t.workers, CP_OUT_FILE, t.path, MIB, false};
        for (uint64_t known = 0; known <= 2 * BLOCK + 300; known += 2 * BLOCK + 300) {
            cp_output *o = cp_output_reopen(&opts, known, &err);
            assert_int_equal(cp_output_first(o), AT);
            assert_int_equal(cp_output_total(o), AT + N);
            cp_autobuf cp_buf got = {0};
            assert_int_equal(cp_output_read(o, 0, MIB, &got, &at), N);
            assert_int_equal(at, AT);
            assert_memory_equal(got.p, text.p, N);
            cp_output_finish(o);
            cp_output_free(o);
        }
    }
}

/* What a crash leaves of a log that was cut and goes on is told apart by the hole between the two parts. */
static void a_cut_log_goes_on_behind_a_hole_that_shows(void **state) {
    (void)state;
    enum { BLOCK = 4096, KEPT = 2 * BLOCK };
    int rw[2];
    cp_err err;
    cp_autobuf cp_buf text = {0};
    cp_autofd int fd = open(t.path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    for (int i = 0; i < KEPT; i++) cp_buf_addc(&text, 'x');
    assert_int_equal(pwrite(fd, text.p, KEPT, 0), KEPT);
    assert_int_equal(ftruncate(fd, KEPT + 700), 0);
    assert_int_equal(fchmod(fd, 0700), 0);
    cp_output_opts opts = {t.loop, t.workers, CP_OUT_FILE, t.path, MIB, false};
    cp_output *o = cp_output_reopen(&opts, 0, &err);
    assert_int_equal(cp_pipe(rw, 0), 0);
    assert_int_equal(cp_output_attach(o, rw[0], on_end, &t.ended, &err), 0);
    assert_int_equal(cp_nonblock(rw[1]), 0);
    feed_once(rw[1], KEPT + 700, 100);
    until(cp_output_total(o) == KEPT + 800);
    assert_int_equal(cp_output_first(o), 0);
    assert_int_equal(cp_output_end(o), KEPT);
    feed_once(rw[1], KEPT + 800, BLOCK);
    until(cp_output_total(o) == KEPT + 800 + BLOCK);
    feed_once(rw[1], KEPT + 800 + BLOCK, 100);
    close(rw[1]);
    until(t.ended);
    assert_int_equal(cp_output_first(o), KEPT + 800 + BLOCK);
    assert_int_equal(cp_output_kept(o), 100);
    cp_output_free(o);
}

/* A disk that takes nothing ends neither the child nor the log. */
static void full_disk(void **state) {
    (void)state;
    int w, rw[2];
    cp_err err;
    assert_int_equal(cp_pipe(rw, 0), 0);
    cp_output_opts opts = {t.loop, t.workers, CP_OUT_FILE, "/proc/nonexistent/log",
                           MIB,    false}; /* where no folder can be made */
    cp_output *o = cp_output_new(&opts, &err);
    assert_int_equal(cp_output_attach(o, rw[0], on_end, &t.ended, &err), 0);
    w = rw[1];
    assert_int_equal(cp_nonblock(w), 0);
    feed(w, 0, 2 * MIB);
    close(w);
    until(t.ended);
    assert_int_equal(cp_output_total(o), 2 * MIB);
    assert_int_equal(cp_output_dropped(o), 2 * MIB);
    cp_output_free(o);
}

static uint64_t read_some(cp_output *o, uint64_t from, uint64_t *at) {
    cp_autobuf cp_buf text = {0};
    return cp_output_read(o, from, MIB, &text, at);
}

/* What was thrown away behind the kept bytes is known to whoever opens the log again, whatever the registry knew, and
 * what still comes does not take the place of it. */
static void cut_log_survives_its_server(void **state) {
    (void)state;
    enum { KEPT = 5000 };
    int w;
    cp_err err;
    uint64_t at;
    cp_output *o = open_kind(CP_OUT_FILE, KEPT, true, &w);
    feed(w, 0, 100000);
    until(cp_output_total(o) == 100000);
    assert_int_equal(cp_output_end(o), KEPT);
    cp_output_free(o); /* as a crash does: nothing is written down at this moment */
    close(w);
    for (int i = 0; i < 2; i++) {
        cp_output_opts opts = {t.loop, t.workers, CP_OUT_FILE, t.path, KEPT, true};
        o = cp_output_reopen(&opts, 0, &err);
        assert_int_equal(cp_output_total(o), 100000 + i * 3000);
        assert_int_equal(cp_output_end(o), KEPT);
        assert_int_equal(cp_output_kept(o), KEPT);
        assert_int_equal(read_some(o, 0, &at), KEPT);
        assert_int_equal(read_some(o, KEPT, &at), 0);
        int rw[2];
        assert_int_equal(cp_pipe(rw, 0), 0);
        assert_int_equal(cp_output_attach(o, rw[0], on_end, &t.ended, &err), 0);
        assert_int_equal(cp_nonblock(rw[1]), 0);
        feed_once(rw[1], 100000 + i * 3000, 3000);
        close(rw[1]);
        until(t.ended == i + 1);
        assert_int_equal(cp_output_total(o), 103000 + i * 3000);
        assert_int_equal(cp_output_end(o), KEPT);
        cp_output_free(o);
    }
}

/* What is thrown away is written down: as long as no descriptor is free for that, it stays in the pipe. */
static void nothing_is_thrown_away_uncounted(void **state) {
    (void)state;
    enum { KEPT = 5000 };
    struct rlimit all;
    int w, rw[2], taken[64], n = 0;
    cp_err err;
    cp_output *o = open_kind(CP_OUT_FILE, KEPT, true, &w);
    feed(w, 0, 100000);
    until(cp_output_total(o) == 100000);
    cp_output_free(o);
    close(w);
    cp_output_opts opts = {t.loop, t.workers, CP_OUT_FILE, t.path, KEPT, true};
    o = cp_output_reopen(&opts, 0, &err);
    assert_int_equal(cp_pipe(rw, 0), 0);
    assert_int_equal(cp_output_attach(o, rw[0], on_end, &t.ended, &err), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &all), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){64, all.rlim_max}), 0);
    while (n < 64 && (taken[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) n++;
    assert_true(n > 0 && n < 64);
    assert_int_equal(cp_nonblock(rw[1]), 0);
    feed_once(rw[1], 100000, 3000);
    for (int i = 0; i < 20; i++) cp_loop_once(t.loop, 0);
    assert_int_equal(cp_output_total(o), 100000);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &all), 0);
    while (n) close(taken[--n]);
    until(cp_output_total(o) == 103000);
    cp_output_free(o);
    close(rw[1]);
}

/* The lowest free number is out of bounds. */
static void no_more_fds(const struct rlimit *had) {
    int lowest = dup(0);
    close(lowest);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)lowest, had->rlim_max}), 0);
}

/* Without a free descriptor nothing is lost: the child waits, and so does who reads. */
static void no_descriptor_is_waited_for(void **state) {
    (void)state;
    int w;
    uint64_t at;
    struct rlimit had;
    cp_output *o = open_kind(CP_OUT_FILE, MIB, false, &w);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &had), 0);
    no_more_fds(&had);
    feed_once(w, 0, 1000);
    until(cp_output_waits(o));
    assert_int_equal(cp_output_total(o), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &had), 0);
    until(cp_output_total(o) == 1000);
    close(w);
    until(t.ended);
    assert_int_equal(cp_output_dropped(o), 0);
    no_more_fds(&had);
    assert_int_equal(read_some(o, 0, &at), 0);
    assert_true(cp_output_waits(o));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &had), 0);
    assert_int_equal(read_some(o, 0, &at), 1000);
    cp_output_free(o);
}

static void freed_while_a_job_runs(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++) {
        int w;
        cp_output *o = open_kind(CP_OUT_FILE, MIB, false, &w);
        feed_once(w, 0, 65536);
        cp_loop_once(t.loop, 0);
        cp_output_unlink(o);
        cp_output_free(o);
        close(w);
    }
    for (int i = 0; i < 20; i++) cp_loop_once(t.loop, 10);
    assert_int_equal(t.ended, 0);
    assert_int_equal(access(t.path, F_OK), -1);
}

static void close_on_end(void *arg) {
    cp_output **o = arg;
    cp_output_free(*o);
    *o = NULL;
}

static void may_be_freed_at_its_end(void **state) {
    (void)state;
    cp_err err;
    cp_output_opts opts = {t.loop, t.workers, CP_OUT_MEMORY, t.path, MIB, false};
    cp_output *o = cp_output_new(&opts, &err);
    int rw[2];
    assert_int_equal(cp_pipe(rw, 0), 0);
    assert_int_equal(cp_output_attach(o, rw[0], close_on_end, &o, &err), 0);
    close(rw[1]);
    until(!o);
}

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static void hang(cp_work *w) {
    (void)w;
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
}
static void let_go(cp_work *w) { (void)w; }

/* X37: how long a file takes to go is no matter of the loop's, and its name is free at once. */
static void what_is_taken_away_goes_off_the_loop(void **state) {
    (void)state;
    static cp_work work[2];
    int w;
    cp_output *o = open_kind(CP_OUT_FILE, UINT64_MAX, false, &w);
    feed(w, 0, MIB);
    close(w);
    until(t.ended);
    pthread_mutex_lock(&gate);
    for (int i = 0; i < 2; i++)
        cp_workers_submit_to(t.workers, CP_LANE_OUTPUT, CP_OWNER_UPKEEP, &work[i], hang, let_go);
    cp_output_unlink(o);
    cp_output_free(o);
    assert_int_equal(access(t.path, F_OK), -1);
    t.ended = 0;
    o = open_kind(CP_OUT_FILE, UINT64_MAX, false, &w); /* another of the same name */
    feed(w, 0, 1000);
    close(w);
    until(t.ended);
    pthread_mutex_unlock(&gate);
    expect_bytes(o, 0, 1000);
    cp_output_unlink(o);
    cp_output_free(o); /* the tear-down finds the folder empty */
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(both_kinds_keep_all),
        T(limit_keeps_the_first),
        T(exactly_the_limit_is_not_truncated),
        T(oldest_are_dropped),
        T(smallest_budget),
        T(blocking_reader_holds_the_child),
        T(cursors_are_told_of_news_only),
        T(finish_takes_what_is_there),
        T(own_words_come_last),
        T(no_pipe_is_an_end),
        T(reopened_log_goes_on),
        T(zeros_before_the_first_byte_are_no_output),
        T(a_cut_log_goes_on_behind_a_hole_that_shows),
        T(what_is_taken_away_goes_off_the_loop),
        T(full_disk),
        T(cut_log_survives_its_server),
        T(nothing_is_thrown_away_uncounted),
        T(no_descriptor_is_waited_for),
        T(freed_while_a_job_runs),
        T(may_be_freed_at_its_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
