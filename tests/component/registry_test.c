/* The registry on a temporary folder: rows survive, order holds, failures are told, damage is moved aside. */
#include "base/clock.h"
#include "component/disk.h"
#include "registry/registry.h"

#include <fcntl.h>
#include <setjmp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

struct fixture {
    char dir[64];
    cp_loop *loop;
    cp_registry *reg;
};

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    temp_dir_new(f->dir, "cp-registry");
    f->loop = cp_loop_new(NULL);
    f->reg = cp_registry_open(f->loop, f->dir, NULL);
    *state = f;
    return f->reg ? 0 : -1;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    cp_registry_close(f->reg);
    cp_loop_free(f->loop);
    assert_int_equal(temp_dir_remove(f->dir), 0);
    free(f);
    return 0;
}

static void reopen(struct fixture *f) {
    cp_err err;
    cp_registry_close(f->reg);
    f->reg = cp_registry_open(f->loop, f->dir, &err);
    assert_non_null(f->reg);
}

static const cp_exec_row sample = {
    .id = "exec_1",
    .process_id = "proc_1",
    .kind = CP_ROW_PROCESS,
    .session = NULL,
    .command = "echo 'x'; exit 7",
    .cwd = "/tmp",
    .fingerprint = {1, 2, 3, [31] = 9},
    .state = "ended",
    .pid = 4242,
    .pid_start = 987654321,
    .started_ms = 1700000000000,
    .ended_ms = 1700000000500,
    .outcome = "exited",
    .exit_code = 7,
    .signal = 0,
    .total = {100, 5000000000},
    .dropped = {0, 4000000000},
    .max_rss = 1 << 20,
    .cpu_us = 1500,
    .error = NULL,
    .stopped_by_us = true,
    .truncated = {false, true},
    .timeout_ms = 86400000,
    .max_output = UINT64_MAX,
    .command_length = 70000, /* of which `command` is the head */
    .command_sha256 = {5, [31] = 6},
};

static void check_sample(void *arg, const cp_exec_row *r) {
    ++*(int *)arg;
    assert_string_equal(r->id, "exec_1");
    assert_string_equal(r->process_id, "proc_1");
    assert_int_equal(r->kind, CP_ROW_PROCESS);
    assert_null(r->session);
    assert_string_equal(r->command, "echo 'x'; exit 7");
    assert_string_equal(r->cwd, "/tmp");
    assert_memory_equal(r->fingerprint, sample.fingerprint, 32);
    assert_string_equal(r->state, "ended");
    assert_int_equal(r->pid, 4242);
    assert_int_equal(r->pid_start, 987654321);
    assert_int_equal(r->started_ms, 1700000000000);
    assert_int_equal(r->ended_ms, 1700000000500);
    assert_string_equal(r->outcome, "exited");
    assert_int_equal(r->exit_code, 7);
    assert_int_equal(r->total[1], 5000000000);
    assert_int_equal(r->dropped[1], 4000000000);
    assert_int_equal(r->max_rss, 1 << 20);
    assert_int_equal(r->cpu_us, 1500);
    assert_null(r->error);
    assert_true(r->stopped_by_us);
    assert_false(r->timed_out);
    assert_false(r->truncated[0]);
    assert_true(r->truncated[1]);
    assert_int_equal(r->timeout_ms, 86400000);
    assert_true(r->max_output == UINT64_MAX);
    assert_int_equal(r->command_length, 70000);
    assert_memory_equal(r->command_sha256, sample.command_sha256, 32);
}

static void test_exec_round_trip(void **state) {
    struct fixture *f = *state;
    cp_exec_row first = sample;
    first.state = "intent";
    first.exit_code = -1;
    cp_registry_put_exec(f->reg, &first, NULL);
    cp_registry_put_exec(f->reg, &sample, NULL); /* replaces */
    reopen(f);
    int n = 0;
    assert_int_equal(cp_registry_each_exec(f->reg, check_sample, &n, NULL), 0);
    assert_int_equal(n, 1);
    cp_registry_del_exec(f->reg, "exec_1");
    reopen(f);
    n = 0;
    assert_int_equal(cp_registry_each_exec(f->reg, check_sample, &n, NULL), 0);
    assert_int_equal(n, 0);
}

struct order {
    char seen[64];
    size_t n;
};

static void note_id(void *arg, const cp_exec_row *r) {
    struct order *o = arg;
    o->seen[o->n++] = r->id[0];
}

static void test_rows_come_in_order_of_start(void **state) {
    struct fixture *f = *state;
    const char *const ids[] = {"c", "a", "b"};
    for (int i = 0; i < 3; i++) {
        cp_exec_row r = sample;
        r.id = ids[i];
        r.started_ms = 1000 + i;
        cp_registry_put_exec(f->reg, &r, NULL);
    }
    reopen(f);
    struct order o = {0};
    assert_int_equal(cp_registry_each_exec(f->reg, note_id, &o, NULL), 0);
    assert_string_equal(o.seen, "cab");
}

struct rewrite {
    cp_registry *reg;
    int seen;
};

static void rewrite_row(void *arg, const cp_exec_row *r) {
    struct rewrite *w = arg;
    w->seen++;
    assert_int_equal(r->pid, 4321);
    cp_exec_row again = *r;
    again.pid = 1234;
    cp_registry_put_exec(w->reg, &again, NULL);
}

static void test_rows_written_during_the_scan_come_once(void **state) {
    struct fixture *f = *state;
    enum { ROWS = 1000 };
    for (int i = 0; i < ROWS; i++) {
        char id[16];
        snprintf(id, sizeof id, "exec_%d", i);
        cp_exec_row r = sample;
        r.id = id;
        r.pid = 4321;
        cp_registry_put_exec(f->reg, &r, NULL);
    }
    struct rewrite w = {.reg = f->reg};
    assert_int_equal(cp_registry_each_exec(f->reg, rewrite_row, &w, NULL), 0);
    assert_int_equal(w.seen, ROWS);
    assert_int_equal(cp_registry_flush(f->reg, NULL), 0);
}

struct waiter {
    cp_reg_done done;
    int *counter, at;
    bool failed;
};

static void on_done(cp_reg_done *d) {
    struct waiter *w = CP_CONTAINER(d, struct waiter, done);
    w->at = ++*w->counter;
    w->failed = d->failed;
}

static void run_until(struct fixture *f, const int *counter, int want) {
    uint64_t deadline = cp_now_ms() + 20000;
    while (*counter < want && cp_now_ms() < deadline) cp_loop_once(f->loop, 100);
    assert_int_equal(*counter, want);
}

static void test_completions_come_in_order(void **state) {
    struct fixture *f = *state;
    int counter = 0;
    struct waiter w[100] = {0};
    char ids[100][8];
    for (int i = 0; i < 100; i++) {
        snprintf(ids[i], sizeof ids[i], "e%d", i);
        cp_exec_row r = sample;
        r.id = ids[i];
        w[i].counter = &counter;
        w[i].done.fn = on_done;
        cp_registry_put_exec(f->reg, &r, &w[i].done);
    }
    run_until(f, &counter, 100);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(w[i].at, i + 1);
        assert_false(w[i].failed);
    }
}

/* A row that the schema refuses (id missing) fails alone: its neighbours in the same batch are committed. */
static void test_one_bad_row_does_not_take_its_neighbours(void **state) {
    struct fixture *f = *state;
    int counter = 0;
    struct waiter w[3] = {0};
    for (int i = 0; i < 3; i++) {
        cp_exec_row r = sample;
        r.id = i == 0 ? "before" : i == 1 ? "bad" : "later";
        if (i == 1) r.command = NULL;
        w[i].counter = &counter;
        w[i].done.fn = on_done;
        cp_registry_put_exec(f->reg, &r, &w[i].done);
    }
    run_until(f, &counter, 3);
    assert_false(w[0].failed);
    assert_true(w[1].failed);
    assert_false(w[2].failed);
    assert_int_equal(w[1].done.err.code, CP_E_INTERNAL_ERROR);
    struct order o = {0};
    reopen(f);
    assert_int_equal(cp_registry_each_exec(f->reg, note_id, &o, NULL), 0);
    assert_string_equal(o.seen, "bl");
}

static void check_session(void *arg, const cp_session_row *r) {
    ++*(int *)arg;
    assert_string_equal(r->id, "s");
    assert_string_equal(r->cwd, "/usr");
    assert_string_equal(r->state, "live");
    assert_int_equal(r->created_ms, 5);
    assert_int_equal(r->pid, 77);
    assert_int_equal(r->pid_start, 88);
}

static void test_session_round_trip(void **state) {
    struct fixture *f = *state;
    cp_session_row row = {.id = "s", .cwd = "/usr", .state = "live", .created_ms = 5, .pid = 77, .pid_start = 88};
    cp_registry_put_session(f->reg, &row, NULL);
    reopen(f);
    int n = 0;
    assert_int_equal(cp_registry_each_session(f->reg, check_session, &n, NULL), 0);
    assert_int_equal(n, 1);
    cp_registry_del_session(f->reg, "s");
    reopen(f);
    assert_int_equal(cp_registry_each_session(f->reg, check_session, &n, NULL), 0);
    assert_int_equal(n, 1);
}

static void db_path(struct fixture *f, char out[128]) { snprintf(out, 128, "%s/registry.db", f->dir); }

static void check_older(void *arg, const cp_exec_row *r) {
    ++*(int *)arg;
    assert_string_equal(r->id, "exec_1");
    assert_int_equal(r->cpu_us, 1500);
    assert_int_equal(r->timeout_ms, 0);
    assert_int_equal(r->max_output, 0);
}

/* Schema 1 had neither timeout nor limit, nor the length of a command. */
static void test_older_schema_is_migrated(void **state) {
    struct fixture *f = *state;
    char path[128];
    sqlite3 *db;
    int n = 0;
    cp_registry_put_exec(f->reg, &sample, NULL);
    cp_registry_close(f->reg);
    snprintf(path, sizeof path, "%s/registry.db", f->dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db,
                                  "ALTER TABLE exec DROP COLUMN timeout_ms; ALTER TABLE exec DROP COLUMN max_output;"
                                  "ALTER TABLE exec DROP COLUMN command_length;"
                                  "ALTER TABLE exec DROP COLUMN command_sha256;"
                                  "DROP TABLE event; DROP TABLE event_log;"
                                  "PRAGMA user_version=1",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    sqlite3_close(db);
    f->reg = cp_registry_open(f->loop, f->dir, NULL);
    assert_non_null(f->reg);
    assert_int_equal(cp_registry_each_exec(f->reg, check_older, &n, NULL), 0);
    assert_int_equal(n, 1);
}

static void count_event(void *arg, const cp_event_row *row) {
    assert_string_equal(row->type, "t");
    ++*(int *)arg;
}
static void count_exec(void *arg, const cp_exec_row *row) {
    (void)row;
    ++*(int *)arg;
}
static int events_there(struct fixture *f) {
    uint64_t first = 0;
    int n = 0;
    assert_int_equal(cp_registry_each_event(f->reg, &first, count_event, &n, NULL), 0);
    assert_true(first > 1000000000000); /* milliseconds since 1970 */
    return n;
}

/* The second event's id exists: neither it nor the row that it came with is written, their neighbours are. */
static void test_a_group_is_all_or_nothing(void **state) {
    struct fixture *f = *state;
    cp_event_row ev = {.id = 5, .type = "t"};
    cp_exec_row other = sample;
    int execs = 0;
    other.id = "other";
    cp_registry_put_event(f->reg, &ev, NULL);
    assert_int_equal(cp_registry_flush(f->reg, NULL), 0);
    cp_registry_begin(f->reg);
    cp_registry_put_exec(f->reg, &sample, NULL);
    cp_registry_put_event(f->reg, &ev, NULL);
    cp_registry_end(f->reg);
    cp_registry_put_exec(f->reg, &other, NULL);
    (void)cp_registry_flush(f->reg, NULL);
    ev.id = 6; /* a commit that succeeds: healthy again */
    cp_registry_put_event(f->reg, &ev, NULL);
    assert_int_equal(cp_registry_flush(f->reg, NULL), 0);
    assert_int_equal(events_there(f), 2);
    assert_int_equal(cp_registry_each_exec(f->reg, count_exec, &execs, NULL), 0);
    assert_int_equal(execs, 1);
    cp_registry_del_events(f->reg, 6);
    assert_int_equal(events_there(f), 1);
}

static void test_newer_schema_is_refused(void **state) {
    struct fixture *f = *state;
    char path[128];
    db_path(f, path);
    cp_registry_close(f->reg);
    f->reg = NULL;
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version=9999", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    cp_err err;
    assert_null(cp_registry_open(f->loop, f->dir, &err));
    assert_int_equal(err.code, CP_E_NOT_SUPPORTED);
    assert_non_null(strstr(err.msg, "9999"));
}

static void test_damaged_database_is_moved_aside(void **state) {
    struct fixture *f = *state;
    char path[128];
    db_path(f, path);
    cp_registry_close(f->reg);
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_true(fd >= 0);
    char junk[4096];
    memset(junk, 'j', sizeof junk);
    assert_int_equal(write(fd, junk, sizeof junk), sizeof junk);
    close(fd);
    f->reg = cp_registry_open(f->loop, f->dir, NULL);
    assert_non_null(f->reg);
    assert_true(cp_registry_healthy(f->reg));
    cp_registry_put_exec(f->reg, &sample, NULL);
    reopen(f);
    int n = 0;
    assert_int_equal(cp_registry_each_exec(f->reg, check_sample, &n, NULL), 0);
    assert_int_equal(n, 1);
}

/* The index of the -wal lies in memory: there is no file of it that somebody could cut short under our feet, and nobody
 * else gets in meanwhile. */
static void test_nobody_else_gets_in(void **state) {
    struct fixture *f = *state;
    char path[128], shm[140];
    db_path(f, path);
    snprintf(shm, sizeof shm, "%s-shm", path);
    sqlite3 *db;
    int counter = 0;
    struct waiter w = {.counter = &counter, .done.fn = on_done};
    cp_registry_put_exec(f->reg, &sample, &w.done);
    run_until(f, &counter, 1);
    assert_int_equal(access(shm, F_OK), -1);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "SELECT count(*) FROM exec", NULL, NULL, NULL), SQLITE_BUSY);
    sqlite3_close(db);
    cp_registry_put_exec(f->reg, &sample, &w.done);
    run_until(f, &counter, 2);
    assert_false(w.failed);
}

static void put_with_event(struct fixture *f, const char *id, uint64_t event, struct waiter *w) {
    cp_exec_row row = sample;
    cp_event_row ev = {.id = event, .type = "t"};
    row.id = id;
    cp_registry_begin(f->reg);
    cp_registry_put_event(f->reg, &ev, NULL);
    cp_registry_put_exec(f->reg, &row, &w->done);
    cp_registry_end(f->reg);
}

/* A start is refused at once; rows with events and deletions wait for each other and for the disk. */
static void test_what_the_disk_does_not_take_waits_in_order(void **state) {
    struct fixture *f = *state;
    int told = 0, execs = 0;
    struct waiter a = {.counter = &told, .done.fn = on_done}, ask = a, b = a;
    cp_exec_row row = sample;
    disk_full(true);
    put_with_event(f, "a", 1, &a);
    cp_registry_del_exec(f->reg, "a"); /* before the row it would delete nothing */
    cp_registry_put_exec(f->reg, &row, &ask.done);
    run_until(f, &told, 1);
    assert_true(ask.failed);
    put_with_event(f, "b", 2, &b);
    assert_int_equal(cp_registry_flush(f->reg, NULL), -1);
    assert_false(cp_registry_healthy(f->reg));
    assert_int_equal(told, 1);
    disk_full(false);
    run_until(f, &told, 3); /* by itself */
    assert_false(a.failed || b.failed);
    assert_int_equal(a.at, 2);
    assert_int_equal(b.at, 3);
    assert_int_equal(cp_registry_flush(f->reg, NULL), 0);
    assert_int_equal(events_there(f), 2);
    assert_int_equal(cp_registry_each_exec(f->reg, count_exec, &execs, NULL), 0);
    assert_int_equal(execs, 1);
}

/* With a start that the disk takes, all that waited before it is there too. */
static void test_a_start_brings_on_a_try(void **state) {
    struct fixture *f = *state;
    int told = 0;
    struct waiter a = {.counter = &told, .done.fn = on_done}, ask = a;
    disk_full(true);
    put_with_event(f, "a", 1, &a);
    for (int i = 0; i < 8; i++) assert_int_equal(cp_registry_flush(f->reg, NULL), -1); /* the next one by itself: 5 s */
    disk_full(false);
    cp_registry_put_exec(f->reg, &sample, &ask.done);
    assert_int_equal(cp_registry_flush(f->reg, NULL), 0);
    run_until(f, &told, 2);
    assert_false(a.failed || ask.failed);
    assert_int_equal(a.at, 1);
}

/* A server that is started again while the disk is full has to know what there is. */
static void test_a_full_disk_can_be_read(void **state) {
    struct fixture *f = *state;
    int told = 0, execs = 0;
    struct waiter a = {.counter = &told, .done.fn = on_done}, b = a;
    put_with_event(f, "a", 1, &a);
    run_until(f, &told, 1);
    disk_full(true);
    put_with_event(f, "b", 2, &b);
    assert_int_equal(cp_registry_each_exec(f->reg, count_exec, &execs, NULL), 0);
    assert_int_equal(execs, 1);
    assert_int_equal(events_there(f), 1);
    disk_full(false);
    run_until(f, &told, 2);
    assert_int_equal(events_there(f), 2);
}

static void test_a_close_gives_up_what_waits(void **state) {
    struct fixture *f = *state;
    int told = 0;
    struct waiter a = {.counter = &told, .done.fn = on_done};
    disk_full(true);
    put_with_event(f, "a", 1, &a);
    assert_int_equal(cp_registry_flush(f->reg, NULL), -1);
    cp_registry_close(f->reg);
    disk_full(false);
    run_until(f, &told, 1);
    assert_true(a.failed);
    f->reg = cp_registry_open(f->loop, f->dir, NULL);
    assert_int_equal(events_there(f), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(test_exec_round_trip),
        T(test_rows_come_in_order_of_start),
        T(test_rows_written_during_the_scan_come_once),
        T(test_completions_come_in_order),
        T(test_one_bad_row_does_not_take_its_neighbours),
        T(test_session_round_trip),
        T(test_older_schema_is_migrated),
        T(test_a_group_is_all_or_nothing),
        T(test_newer_schema_is_refused),
        T(test_damaged_database_is_moved_aside),
        T(test_nobody_else_gets_in),
        T(test_what_the_disk_does_not_take_waits_in_order),
        T(test_a_full_disk_can_be_read),
        T(test_a_start_brings_on_a_try),
        T(test_a_close_gives_up_what_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
