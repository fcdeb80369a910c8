/* Sessions come, go and are limited. Bnnn: shared field cases. */
#include "component/session_fixture.h"

#include <fcntl.h>
#include <sys/resource.h>

/* ---- creation and deletion ---- */

static void created_with_cwd_and_env(void **state) { /* B063 */
    (void)state;
    struct answer a;
    const cp_env_var env[] = {{CP_STR("A"), CP_STR("1")}, {CP_STR("LANG"), CP_STR("xx")}};
    create(&(cp_session_spec){.id = CP_STR("s"), .cwd = CP_STR("/tmp"), .env = env, .nenv = 2}, &a);
    expect("s", "pwd; echo $A $LANG $LC_ALL", 0, "/tmp\n1 C.UTF-8 C.UTF-8\n", "");
    expect_end("s", "cd /; A=2; exit 1", 1, "");
    expect("s", "pwd; echo $A", 0, "/tmp\n1\n", "");
    cp_err err = {0};
    assert_int_equal(cp_session_create(&fx.s, &(cp_session_spec){.id = CP_STR("s")}, answered, &a, &err), -1);
    assert_int_equal(err.code, CP_E_SESSION_ALREADY_EXISTS);
    create(&(cp_session_spec){.id = CP_STR("h"), .cwd = CP_STR("/no/such/dir")}, &a);
    expect("h", "[ \"$PWD\" = \"$HOME\" ] && echo same", 0, "same\n", "");
    create(&(cp_session_spec){0}, &a);
    assert_int_equal(strlen(a.id), strlen("session_") + 13 + 1 + 12);
    assert_int_equal(strncmp(a.id, "session_", 8), 0);
    delete_("s", false);
    create(&(cp_session_spec){.id = CP_STR("s")}, &a);
    expect("s", "echo [$A]; [ $PWD = /tmp ] || echo start", 0, "[]\nstart\n", "");
}

static void cwd_is_known(void **state) {
    (void)state;
    char cwd[4096];
    cp_session_cwd(&fx.s, CP_STR("unknown"), cwd);
    assert_string_equal(cwd, fx.workspace);
    expect("a", "cd /usr", 0, "", "");
    cp_session_cwd(&fx.s, CP_STR("a"), cwd);
    assert_string_equal(cwd, "/usr");
    cp_exec_spec s = in_session("a", "cd /");
    s.cwd = CP_STR("/tmp");
    run_expect(&s, 0, "", "");
    cp_session_cwd(&fx.s, CP_STR("a"), cwd);
    assert_string_equal(cwd, "/usr");
    s = in_session("b", "pwd");
    s.cwd = CP_STR("/tmp");
    run_expect(&s, 0, "/tmp\n", "");
    expect("b", "pwd", 0, "/tmp\n", "");
}

static void an_id_is_free_at_once(void **state) { /* B061 */
    (void)state;
    struct answer gone[100] = {{0}}, made[100] = {{0}};
    for (int i = 0; i < 100; i++) {
        cp_err err = {0};
        if (cp_session_create(&fx.s, &(cp_session_spec){.id = CP_STR("same")}, answered, &made[i], &err) < 0)
            fail_msg("%s", err.msg);
        if (i % 2) fx_until(made[i].calls);
        if (cp_session_delete(&fx.s, CP_STR("same"), false, answered, &gone[i], &err) < 0) fail_msg("%s", err.msg);
        assert_false(cp_session_exists(&fx.s, CP_STR("same")));
    }
    for (int i = 0; i < 100; i++) {
        fx_until(gone[i].calls && made[i].calls);
        assert_int_equal(made[i].failed, i % 2 == 0);
    }
    assert_int_equal(folders(), 0);
    cp_err err;
    assert_int_equal(cp_session_delete(&fx.s, CP_STR("same"), false, answered, &gone[0], &err), -1);
    assert_int_equal(err.code, CP_E_INTERNAL_ERROR);
}

static void deletion_ends_what_is_pending(void **state) { /* B099 */
    (void)state;
    enum { N = 20 };
    static struct run r[N], p, stream;
    cp_exec_spec s = in_session("a", "sleep 3000");
    s.kind = CP_EXEC_PROCESS;
    run_begin(&p, &s);
    s.kind = CP_EXEC_STREAM;
    run_begin(&stream, &s);
    fx_until(p.starts && stream.starts);
    s.kind = CP_EXEC_BUFFERED;
    for (int i = 0; i < N; i++) run_begin(&r[i], &s);
    fx_until(r[0].starts);
    delete_("a", false);
    for (int i = 0; i < N; i++) {
        run_wait(&r[i]);
        assert_true(r[i].e->session_destroyed);
        assert_int_equal(r[i].e->state, i ? CP_STATE_FAILED : CP_STATE_ENDED);
        if (i) assert_int_equal(r[i].e->start_err->code, CP_E_SESSION_DESTROYED);
        run_free(&r[i]);
    }
    run_wait(&p);
    assert_int_equal(p.e->signal, SIGKILL);
    assert_false(p.e->session_destroyed);
    run_free(&p);
    run_wait(&stream);
    assert_true(stream.e->session_destroyed);
    run_free(&stream);
}

static void deletion_can_keep_processes(void **state) {
    (void)state;
    struct run p;
    cp_exec_spec s = in_session("a", "read x; echo $x");
    s.kind = CP_EXEC_PROCESS;
    s.stdin_open = true;
    run_begin(&p, &s);
    fx_until(p.starts);
    delete_("a", true);
    assert_int_equal(p.e->state, CP_STATE_RUNNING);
    assert_int_equal(cp_exec_stdin(p.e, CP_STR("kept\n"), true, NULL, NULL), 0);
    run_wait(&p);
    cp_autofree char *out = run_output(&p, 0);
    assert_string_equal(out, "kept\n");
    assert_int_equal(p.e->exit_code, 0);
    run_free(&p);
}

static void limits(void **state) {
    (void)state;
    struct answer a;
    cp_err err = {0};
    fx.config.max_sessions = 2;
    create(&(cp_session_spec){.id = CP_STR("1")}, &a);
    create(&(cp_session_spec){.id = CP_STR("2")}, &a);
    assert_int_equal(cp_session_create(&fx.s, &(cp_session_spec){.id = CP_STR("3")}, answered, &a, &err), -1);
    assert_int_equal(err.code, CP_E_LIMIT_EXCEEDED);
    struct run r;
    cp_exec_spec s = in_session("3", "true");
    run_begin(&r, &s);
    run_wait(&r);
    assert_int_equal(r.e->state, CP_STATE_FAILED);
    assert_int_equal(r.e->start_err->code, CP_E_LIMIT_EXCEEDED);
    run_free(&r);
    expect_end("1", "exit 1", 1, ""); /* one without a shell gives its place up */
    create(&(cp_session_spec){.id = CP_STR("3")}, &a);
    assert_false(cp_session_exists(&fx.s, CP_STR("1")));
}

static void a_queue_is_bounded(void **state) {
    (void)state;
    static struct run r[CP_SESSION_QUEUE + 2];
    fx.config.max_processes = 2 * CP_SESSION_QUEUE;
    cp_exec_spec s = in_session("a", "sleep 3000");
    run_begin(&r[0], &s);
    fx_until(r[0].starts);
    for (int i = 1; i < CP_SESSION_QUEUE + 2; i++) run_begin(&r[i], &s);
    run_wait(&r[CP_SESSION_QUEUE + 1]);
    assert_int_equal(r[CP_SESSION_QUEUE + 1].e->start_err->code, CP_E_LIMIT_EXCEEDED);
    assert_int_equal(r[CP_SESSION_QUEUE].starts, 0);
    delete_("a", false);
    for (int i = 0; i < CP_SESSION_QUEUE + 2; i++) {
        run_wait(&r[i]);
        run_free(&r[i]);
    }
}

/* For a moment the server has no descriptor left. */
static void without_descriptors_it_says_so(void **state) {
    (void)state;
    struct rlimit all, none;
    struct run r;
    cp_exec_spec s = in_session("poor", "echo rich");
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &all), 0);
    none = (struct rlimit){.rlim_cur = 3, .rlim_max = all.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    run_begin(&r, &s);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &all), 0);
    run_wait(&r);
    assert_int_equal(r.e->state, CP_STATE_FAILED);
    assert_int_equal(r.e->start_err->code, CP_E_TOO_MANY_FILES);
    run_free(&r);
    expect("poor", "echo rich", 0, "rich\n", "");
}

/* It has been typed when they run out: that its subshell reports, and is the session's, takes none to see. */
static void without_descriptors_a_subshell_is_known(void **state) {
    (void)state;
    struct rlimit all, none;
    struct run r;
    int taken[64], n = 0;
    expect("poor", "true", 0, "", "");
    cp_exec_spec s = in_session("poor", "read x; echo $x");
    s.kind = CP_EXEC_PROCESS;
    s.stdin_open = true;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &all), 0);
    run_begin(&r, &s);
    /* Not below what is open: that is what an unprivileged process may have under way in sockets, too (unix(7)). */
    none = (struct rlimit){.rlim_cur = 64, .rlim_max = all.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    while (n < 64 && (taken[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) n++;
    assert_true(n > 0 && n < 64);
    fx_until(r.starts);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &all), 0);
    while (n) close(taken[--n]);
    assert_int_equal(r.e->state, CP_STATE_RUNNING);
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("kept\n"), true, NULL, NULL), 0);
    run_wait(&r);
    cp_autofree char *out = run_output(&r, 0);
    assert_string_equal(out, "kept\n");
    run_free(&r);
}

/* ---- what a session holds ---- */

static char *letters(size_t n) {
    char *z = cp_alloc(n + 1);
    memset(z, 'v', n);
    return z;
}

static void variables_are_counted(void **state) {
    (void)state;
    struct answer a;
    cp_err err = {0};
    cp_autofree char *value = letters(100000);
    cp_env_var env[] = {{CP_STR("A"), {value, 100000}}, {CP_STR("B"), {value, 100000}}};
    cp_session_spec s = {.id = CP_STR("one"), .env = env, .nenv = 2};
    cp_budget_open(1200000); /* a quarter of it is for sessions: one of these */
    create(&s, &a);
    s.id = CP_STR("two");
    assert_int_equal(cp_session_create(&fx.s, &s, answered, &a, &err), -1);
    assert_int_equal(err.code, CP_E_LIMIT_EXCEEDED);
    assert_string_equal(err.field, "env");
    assert_false(cp_session_exists(&fx.s, CP_STR("two")));
    create(&(cp_session_spec){.id = CP_STR("small")}, &a);
    delete_("one", false);
    fx_until(cp_budget_held(CP_MEM_SESSIONS) < 100000);
    create(&s, &a);
    cp_budget_open(1 << 30);
}

/* What there is no room for is not taken down; what was before stays. */
static void exports_are_counted(void **state) {
    (void)state;
    struct cp_session *s;
    expect("a", "export A=first", 0, "", "");
    s = session("a");
    fx_until(s->exports_fresh && strstr(cp_buf_z(&s->exports), "first"));
    size_t before = cp_budget_held(CP_MEM_SESSIONS);
    cp_budget_open(1200000);
    expect("a", "export A=second B=$(printf %0500000d 0)", 0, "", "");
    expect("a", "true", 0, "", ""); /* the shell has written all of it when it is asked again */
    fx_until(s->exports_fresh && !s->exports_new.text.n && !s->exports_new.too_long);
    assert_non_null(strstr(cp_buf_z(&s->exports), "first"));
    assert_true(cp_budget_held(CP_MEM_SESSIONS) <= before);
    cp_budget_open(1 << 30);
    expect("a", "true", 0, "", "");
    fx_until(s->exports.n > 500000);
    assert_non_null(strstr(cp_buf_z(&s->exports), "second"));
    assert_true(cp_budget_held(CP_MEM_SESSIONS) > 500000);
}

static void a_long_record_is_let_go(void **state) {
    (void)state;
    struct stat st;
    cp_autofree char *comment = letters(300000);
    cp_autobuf cp_buf command = {0};
    cp_buf_addf(&command, "# %s\necho ran", comment);
    for (int k = 0; k < 2; k++) {
        cp_exec_spec s = in_session("a", cp_buf_z(&command));
        s.kind = k ? CP_EXEC_PROCESS : CP_EXEC_BUFFERED;
        run_expect(&s, 0, "ran\n", "");
        fx_until(!session("a")->current);
        assert_int_equal(fstat(session("a")->record, &st), 0);
        assert_int_equal(st.st_size, 0);
    }
}

/* X01: a client makes the queue as long as it likes, and a lack fails all of it: that takes no stack for each. */
static void a_full_queue_that_cannot_begin(void **state) {
    (void)state;
    enum { N = 9000 };
    struct rlimit had;
    char fifo[160];
    static struct run r[N + 1];
    cp_exec_spec first = in_session("q", "read x <fifo"), s = in_session("q", "true");
    fx.config.max_processes = 2 * N;
    expect("q", "mkfifo fifo", 0, "", "");
    snprintf(fifo, sizeof fifo, "%s/fifo", fx.workspace);
    cp_autofd int writer = open(fifo, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    assert_true(writer >= 0);
    run_begin(&r[N], &first);
    fx_until(session("q")->current && session("q")->current->exec == r[N].e);
    for (size_t i = 0; i < N; i++) run_begin(&r[i], &s);
    assert_int_equal(session("q")->waiting, N);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &had), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){16, had.rlim_max}), 0);
    assert_int_equal(write(writer, "\n", 1), 1);
    for (size_t i = 0; i < N; i++) run_wait(&r[i]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &had), 0);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(r[i].e->state, CP_STATE_FAILED);
        assert_int_equal(r[i].e->start_err->code, CP_E_LIMIT_EXCEEDED);
        run_free(&r[i]);
    }
    run_wait(&r[N]);
    run_free(&r[N]);
    expect("q", "echo served", 0, "served\n", "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FX_TEST(created_with_cwd_and_env),
        FX_TEST(cwd_is_known),
        FX_TEST(an_id_is_free_at_once),
        FX_TEST(deletion_ends_what_is_pending),
        FX_TEST(without_descriptors_it_says_so),
        FX_TEST(without_descriptors_a_subshell_is_known),
        FX_TEST(deletion_can_keep_processes),
        FX_TEST(limits),
        FX_TEST(a_queue_is_bounded),
        FX_TEST(a_full_queue_that_cannot_begin),
        FX_TEST(variables_are_counted),
        FX_TEST(exports_are_counted),
        FX_TEST(a_long_record_is_let_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
