/* What a restarted server makes of the children and rows of the one before it. The former server is played by the test:
 * it has spawned a durable child, written its row, and handed its descriptors to the next one. */
#include "component/services_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include "base/fd.h"
#include "component/clock_step.h"
#include "services/events.h"

struct former {
    cp_child child;
    bool spawned, exited;
    cp_exit exit;
    int in, out, err; /* what the keeper would hold */
    char key[64];
};

static void spawned(cp_child *c, int sys, const char *step) {
    (void)step;
    assert_int_equal(sys, 0);
    CP_CONTAINER(c, struct former, child)->spawned = true;
}

static void exited(cp_child *c, const cp_exit *x) {
    struct former *f = CP_CONTAINER(c, struct former, child);
    f->exited = true;
    f->exit = *x;
}

static cp_keeper *keeper(void) {
    static const cp_keeper_events none = {0};
    cp_err err = {0};
    cp_keeper_hello hello;
    int fd = keeper_fixture_start(&fx.keeper_pid);
    cp_keeper *k = cp_keeper_open(fx.loop, fd, &none, &hello, &err);
    assert_non_null(k);
    cp_buf_free(&hello.config);
    return k;
}

static int setup(void **state) {
    (void)state;
    cp_err err = {0};
    fx_loop();
    fx.s.keeper = keeper();
    fx.s.workers = cp_workers_new(fx.loop, 2, &err);
    fx.s.registry = cp_registry_open(fx.loop, fx.dir, &err);
    if (!fx.s.registry) fail_msg("%s", err.msg);
    cp_autobuf cp_buf logs = {0};
    cp_buf_addf(&logs, "%s/logs", fx.dir);
    assert_int_equal(mkdir(cp_buf_z(&logs), 0700), 0);
    return 0;
}

static void write_log(const char *id, const char *text) {
    cp_autobuf cp_buf path = {0};
    cp_buf_addf(&path, "%s/logs/%s.out", fx.dir, id);
    int fd = open(cp_buf_z(&path), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(cp_write_all(fd, text, strlen(text)), 0);
    close(fd);
}

static void write_limited_row(const char *id, const char *state, const struct former *f, uint64_t timeout_ms,
                              uint64_t max_output) {
    cp_exec_row row = {.id = id,
                       .process_id = strncmp(id, "p", 1) == 0 ? id : NULL,
                       .kind = *id == 'p' ? CP_ROW_PROCESS : CP_ROW_BUFFERED,
                       .command = "test",
                       .state = state,
                       .pid = f ? f->child.pid : 0,
                       .pid_start = f ? f->child.start_time : 0,
                       .started_ms = cp_wall_ms() - 5000,
                       .exit_code = -1,
                       .timeout_ms = timeout_ms,
                       .max_output = max_output};
    if (strcmp(state, "ended") == 0) {
        row.ended_ms = row.started_ms + 1500;
        row.outcome = "exited";
        row.exit_code = 3;
        row.total[0] = 5;
    }
    row.fingerprint[0] = 7;
    cp_registry_put_exec(fx.s.registry, &row, NULL);
    assert_int_equal(cp_registry_flush(fx.s.registry, NULL), 0);
}

static void write_row(const char *id, const char *state, const struct former *f) {
    write_limited_row(id, state, f, 0, 0);
}

static void begin(struct former *f, const char *id, const char *script) {
    cp_err err;
    int in[2], out[2], errp[2];
    *f = (struct former){.child = {.on_spawn = spawned, .on_exit = exited}};
    snprintf(f->key, sizeof f->key, "x:%s", id);
    assert_int_equal(cp_pipe(in, 0), 0);
    assert_int_equal(cp_pipe(out, 0), 0);
    assert_int_equal(cp_pipe(errp, 0), 0);
    const char *const argv[] = {"bash", "-c", script, NULL};
    cp_spawn s = {.argv = argv,
                  .env = (const char *const *)fx.s.base_env,
                  .cwd = "/",
                  .fds = {in[0], out[1], errp[1], -1, -1, -1, -1, -1},
                  .hold = {in[1], out[0], errp[0]},
                  .key = f->key};
    assert_int_equal(cp_keeper_spawn(fx.s.keeper, &f->child, &s, &err), 0);
    close(in[0]);
    close(out[1]);
    close(errp[1]);
    f->in = in[1];
    f->out = out[0];
    f->err = errp[0];
    fx_until(f->spawned);
}

static void hand_over(struct former *f) {
    cp_held h = {.tag = f->child.tag,
                 .key = f->key,
                 .pid = f->child.pid,
                 .start_time = f->child.start_time,
                 .mark = f->child.mark,
                 .exited = f->exited,
                 .exit = f->exit,
                 .fds = {f->in, f->out, f->err}};
    cp_keeper_forget(fx.s.keeper, &f->child);
    cp_services_held(&fx.s, &h);
}

static void open_services(void) {
    cp_err err = {0};
    if (cp_services_open(&fx.s, &err) < 0) fail_msg("%s", err.msg);
}

static void watch(struct run *r, const char *id) {
    *r = (struct run){.w = {.ops = &run_watch}};
    r->e = cp_exec_find(&fx.s, cp_str_of(id));
    assert_non_null(r->e);
    cp_exec_ref(r->e);
    cp_exec_watch_add(r->e, &r->w);
}

static void expect_out(const struct run *r, const char *want) {
    cp_autofree char *out = run_output(r, 0);
    assert_string_equal(out, want);
}

static void running_child_goes_on(void **state) {
    (void)state;
    struct former f;
    struct run r;
    begin(&f, "p1", "echo two; read x; echo $x; exit 4");
    write_row("p1", "running", &f);
    write_log("p1", "one\n"); /* what the former server had stored */
    hand_over(&f);
    open_services();
    watch(&r, "p1");
    assert_string_equal(cp_exec_status(r.e), "running");
    assert_ptr_equal(cp_exec_find_process(&fx.s, CP_STR("p1")), r.e);
    assert_int_equal(r.e->pid, f.child.pid);
    fx_until(cp_output_total(r.e->out[0]) == 8);
    assert_int_equal(write(f.in, "three\n", 6), 6);
    run_wait(&r);
    expect_out(&r, "one\ntwo\nthree\n");
    assert_int_equal(r.e->exit_code, 4);
    assert_string_equal(cp_exec_status(r.e), "failed");
    run_free(&r);
}

/* A log that cannot be looked at for want of descriptors would be written over: the next start has another go. */
static void a_start_without_descriptors_harms_nothing(void **state) {
    (void)state;
    struct former f;
    struct run r;
    struct rlimit all, none;
    cp_err err = {0};
    begin(&f, "p1", "echo two; read x; echo $x; exit 4");
    write_row("p1", "running", &f);
    write_log("p1", "one\n");
    struct former again = f;
    again.in = fcntl(f.in, F_DUPFD_CLOEXEC, 0);
    again.out = fcntl(f.out, F_DUPFD_CLOEXEC, 0);
    again.err = fcntl(f.err, F_DUPFD_CLOEXEC, 0);
    hand_over(&f);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &all), 0);
    none = (struct rlimit){.rlim_cur = 3, .rlim_max = all.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_int_equal(cp_services_open(&fx.s, &err), -1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &all), 0);
    assert_int_equal(err.sys, EMFILE);
    assert_non_null(strstr(err.msg, "/logs/p1.out"));
    cp_services_close(&fx.s);
    hand_over(&again);
    open_services();
    watch(&r, "p1");
    fx_until(cp_output_total(r.e->out[0]) == 8);
    assert_int_equal(write(again.in, "three\n", 6), 6);
    run_wait(&r);
    expect_out(&r, "one\ntwo\nthree\n");
    assert_int_equal(r.e->exit_code, 4);
    run_free(&r);
}

/* The rows say that it started 5 s ago. */
static void a_timeout_counts_on(void **state) {
    (void)state;
    struct former late, early;
    struct run r;
    begin(&late, "late", "echo partial; exec sleep 1000");
    begin(&early, "early", "read x; echo $x; exit 4");
    write_limited_row("late", "running", &late, 4000, 3);
    write_limited_row("early", "running", &early, 3600000, 0);
    hand_over(&late);
    hand_over(&early);
    open_services();
    watch(&r, "late");
    run_wait(&r);
    assert_int_equal(r.e->outcome, CP_OUTCOME_timeout);
    assert_true(r.e->timed_out);
    assert_int_equal(r.e->exit_code, 124);
    assert_int_equal(r.e->max_output, 3);
    run_free(&r);
    watch(&r, "early");
    assert_int_equal(r.e->timeout_ms, 3600000);
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("on\n"), true, NULL, NULL), 0);
    run_wait(&r);
    expect_out(&r, "on\n");
    assert_int_equal(r.e->exit_code, 4);
    assert_int_equal(r.e->max_output, (uint64_t)fx.config.max_output);
    run_free(&r);
}

static void ended_child_gets_its_status(void **state) {
    (void)state;
    struct former f;
    struct run r;
    begin(&f, "p2", "echo last words; kill -TERM $$");
    write_row("p2", "running", &f);
    fx_until(f.exited);
    hand_over(&f);
    open_services();
    watch(&r, "p2");
    run_wait(&r);
    expect_out(&r, "last words\n");
    assert_int_equal(r.e->signal, SIGTERM);
    assert_string_equal(cp_exec_status(r.e), "killed");
    run_free(&r);
}

static bool has_log(const char *id) {
    cp_autobuf cp_buf path = {0};
    cp_buf_addf(&path, "%s/logs/%s.out", fx.dir, id);
    return access(cp_buf_z(&path), F_OK) == 0;
}

static void history_is_there(void **state) {
    (void)state;
    struct run r;
    write_row("p3", "ended", NULL);
    write_log("p3", "kept\n");
    write_log("exec_1700000000000_0123abcd", "of a call that no row names");
    write_log("~12-3", "that was being taken away");
    write_log("build", "somebody else's");
    write_log("exec_1700000000000_0123abcde", "somebody else's too");
    open_services();
    watch(&r, "p3");
    run_wait(&r);
    assert_int_equal(r.e->exit_code, 3);
    assert_int_equal(r.e->ended_ms - r.e->started_ms, 1500);
    expect_out(&r, "kept\n");
    assert_true(cp_output_ended(r.e->out[0]));
    run_free(&r);
    assert_false(has_log("exec_1700000000000_0123abcd"));
    assert_false(has_log("~12-3"));
    assert_true(has_log("build"));
    assert_true(has_log("exec_1700000000000_0123abcde"));
}

/* Neither the keeper nor the row knows how it ended: that is what the client is told, and it does not run again. */
static void without_a_child_it_is_lost(void **state) {
    (void)state;
    struct run r, again;
    cp_err err;
    write_row("p4", "running", NULL);
    write_row("job", "intent", NULL);
    open_services();
    watch(&r, "p4");
    run_wait(&r);
    assert_int_equal(r.e->outcome, CP_OUTCOME_lost);
    assert_string_equal(cp_exec_status(r.e), "error");
    assert_int_equal(r.e->exit_code, -1);
    run_free(&r);
    cp_exec_spec s = shell_spec("test");
    s.exec_id = CP_STR("job");
    s.fingerprint[0] = 7;
    assert_int_equal(run_try(&again, &s, &err), 0);
    assert_true(again.existing);
    run_wait(&again);
    assert_int_equal(again.e->outcome, CP_OUTCOME_lost);
    run_free(&again);
}

static void copy_file(const char *from, const char *to) {
    cp_autofd int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(in >= 0 && out >= 0);
    ssize_t n;
    do n = sendfile(out, in, NULL, 1 << 20);
    while (n > 0);
    assert_int_equal(n, 0);
}

/* What a server that was killed now would leave: the running one lets nobody else into its database. */
static int rows_on_disk(void) {
    cp_autobuf cp_buf path = {0}, wal = {0}, from = {0}, from_wal = {0};
    cp_buf_addf(&from, "%s/registry.db", fx.dir);
    cp_buf_addf(&from_wal, "%s-wal", cp_buf_z(&from));
    cp_buf_addf(&path, "%s/copy.db", fx.dir);
    cp_buf_addf(&wal, "%s-wal", cp_buf_z(&path));
    copy_file(cp_buf_z(&from), cp_buf_z(&path));
    copy_file(cp_buf_z(&from_wal), cp_buf_z(&wal));
    sqlite3 *db;
    sqlite3_stmt *st;
    assert_int_equal(sqlite3_open_v2(cp_buf_z(&path), &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT count(*) FROM exec", -1, &st, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(st), SQLITE_ROW);
    int n = sqlite3_column_int(st, 0);
    sqlite3_finalize(st);
    sqlite3_close(db);
    return n;
}

/* A server that dies right after it has said so leaves a child that the next one knows. */
static void recorded_before_it_is_told(void **state) {
    (void)state;
    enum { N = 8 };
    struct run r[N];
    open_services();
    cp_exec_spec s = shell_spec("true");
    s.kind = CP_EXEC_PROCESS;
    for (int i = 0; i < N; i++) {
        run_begin(&r[i], &s);
        fx_until(r[i].starts);
        assert_int_equal(rows_on_disk(), i + 1);
    }
    for (int i = 0; i < N; i++) {
        run_wait(&r[i]);
        run_free(&r[i]);
    }
}

static void child_without_a_row_is_ended(void **state) {
    (void)state;
    struct former f;
    begin(&f, "nobody", "setsid -f sleep 1000; sleep 1000; true");
    pid_t pid = f.child.pid;
    hand_over(&f);
    open_services();
    fx_until(kill(pid, 0) < 0 && errno == ESRCH);
    assert_null(cp_exec_find(&fx.s, CP_STR("nobody")));
}

/* The end is on disk: a server that starts now finds it. */
static void end_is_recorded(void **state) {
    (void)state;
    struct run r;
    open_services();
    cp_exec_spec s = shell_spec("echo out; exit 6");
    s.exec_id = CP_STR("mine");
    run_begin(&r, &s);
    run_wait(&r);
    run_free(&r);
    cp_services_close(&fx.s);
    open_services();
    watch(&r, "mine");
    run_wait(&r);
    assert_int_equal(r.e->exit_code, 6);
    expect_out(&r, "out\n");
    run_free(&r);
}

static int teardown(void **state) {
    clock_step_s = 0;
    return fx_teardown(state);
}

static void on_events(cp_event_sub *sub) { (void)sub; }

/* The first event and the execution `mine` are there. */
static void expect_all_kept(void) {
    cp_event_sub sub = {.on_events = on_events};
    const cp_event_row *ev;
    uint64_t gap;
    assert_non_null(cp_exec_find(&fx.s, CP_STR("mine")));
    cp_event_sub_open_after(&sub, &fx.s, 0);
    assert_int_equal(cp_event_next(&sub, &ev, &gap), CP_EVENT_NEXT);
    cp_event_sub_close(&sub);
}

/* Each end trims the history. */
static void run_another(void) {
    cp_exec_spec s = shell_spec("exit 0");
    s.kind = CP_EXEC_PROCESS;
    run_expect(&s, 0, "", "");
}

static void a_clock_that_is_set_forgets_nothing(void **state) {
    (void)state;
    static const int64_t days[] = {8, 30, -30, 0};
    open_services();
    cp_exec_spec s = shell_spec("echo ran");
    s.exec_id = CP_STR("mine");
    run_expect(&s, 0, "ran\n", "");
    run_another(); /* an event behind the first one, which would stay as the last */
    for (size_t i = 0; i < CP_COUNT(days); i++) {
        clock_step_s = days[i] * 86400;
        run_another();
        expect_all_kept();
        cp_services_close(&fx.s);
        if (i == 1) clock_step_s += 8 * 86400; /* while there is no server */
        open_services();
        expect_all_kept();
    }
}

static void a_timeout_counts_on_when_the_clock_is_set(void **state) {
    (void)state;
    struct former f;
    struct run r;
    begin(&f, "p9", "read x; exit 4");
    write_limited_row("p9", "running", &f, 3600000, 0);
    hand_over(&f);
    clock_step_s = 7200;
    open_services();
    watch(&r, "p9");
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("x\n"), true, NULL, NULL), 0);
    run_wait(&r);
    assert_false(r.e->timed_out);
    assert_int_equal(r.e->exit_code, 4);
    run_free(&r);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(running_child_goes_on),
        T(a_timeout_counts_on),
        T(a_start_without_descriptors_harms_nothing),
        T(ended_child_gets_its_status),
        T(history_is_there),
        T(without_a_child_it_is_lost),
        T(recorded_before_it_is_told),
        T(child_without_a_row_is_ended),
        T(end_is_recorded),
        T(a_clock_that_is_set_forgets_nothing),
        T(a_timeout_counts_on_when_the_clock_is_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
