/* Lists as long as clients make them, and answers that nobody wants any more: over the real router. */
#include "component/handlers_fake.h"

#include "base/metrics.h"

enum { ROWS = 10000 };

static void add_processes(size_t n) {
    for (size_t i = 0; i < n; i++) {
        cp_exec *e;
        bool existing;
        cp_err err = {0};
        const cp_exec_spec spec = {.kind = CP_EXEC_PROCESS, .command = CP_STR("sleep 1000"), .sessionless = true};
        assert_int_equal(cp_exec_start(&fake.svc, &spec, NULL, &e, &existing, &err), 0);
        cp_exec_unref(e);
    }
}

static void expect_rows(client *k) {
    char id[32];
    size_t i, n;
    yyjson_val *row, *rows = at(k, "/processes");
    assert_int_equal(k->res.status, 200);
    assert_int_equal(yyjson_arr_size(rows), ROWS);
    yyjson_arr_foreach(rows, i, n, row) {
        snprintf(id, sizeof id, "p%zu", i);
        assert_string_equal(yyjson_get_str(yyjson_obj_get(row, "id")), id);
    }
}

/* X11: no turn of the loop builds a long list as a whole. Whoever asks for little is answered before. */
static void a_long_list_lets_others_have_their_turn(void **state) {
    (void)state;
    client ping = {.reply = {.ops = &client_ops}};
    add_processes(ROWS);
    ask(&c, CP_GET, "/api/process/list", NULL);
    assert_int_equal(c.res.status, 0);
    ask(&ping, CP_GET, "/api/ping", NULL);
    assert_int_equal(ping.res.status, 200);
    cp_loop_once(fake.loop, 0);
    assert_int_equal(c.res.status, 0); /* the second round was not the last either */
    add_processes(5);                  /* too late to be among them */
    while (!c.res.status) cp_loop_once(fake.loop, 1000);
    expect_rows(&c);
    client_reset(&ping);
}

/* Each holds what it has written: a few are built at a time, and all are answered in the end, in order of asking. */
static void many_lists_wait_for_one_another(void **state) {
    (void)state;
    static client k[12];
    add_processes(ROWS);
    for (size_t i = 0; i < CP_COUNT(k); i++) {
        k[i] = (client){.reply = {.ops = &client_ops}};
        ask(&k[i], CP_GET, "/api/process/list", NULL);
        assert_int_equal(k[i].res.status, 0);
    }
    assert_int_equal(fake.execs[ROWS - 1]->refs,
                     1 + 4); /* those whose turn has come hold each row that they will write */
    while (!k[CP_COUNT(k) - 1].res.status) cp_loop_once(fake.loop, 1000);
    for (size_t i = 0; i < CP_COUNT(k); i++) {
        while (!k[i].res.status) cp_loop_once(fake.loop, 1000);
        expect_rows(&k[i]);
        client_reset(&k[i]);
    }
}

static void a_list_that_nobody_wants_is_dropped(void **state) {
    (void)state;
    static client k[6];
    add_processes(ROWS);
    for (size_t i = 0; i < CP_COUNT(k); i++) {
        k[i] = (client){.reply = {.ops = &client_ops}};
        ask(&k[i], CP_GET, "/api/process/list", NULL);
    }
    for (size_t i = 0; i < CP_COUNT(k); i++) /* some wait, some are being built */
        assert_false(k[i].reply.on_cancel(&k[i].reply, i % 2 ? CP_END_CANCELLED : CP_END_DISCONNECTED, false));
    ask(&c, CP_GET, "/api/process/list?limit=1", NULL);
    while (!c.res.status) cp_loop_once(fake.loop, 1000);
    assert_int_equal(yyjson_arr_size(at(&c, "/processes")), 1);
    for (size_t i = 0; i < CP_COUNT(k); i++) assert_int_equal(k[i].res.status, 0);
    for (size_t i = 0; i < ROWS; i++) assert_int_equal(fake.execs[i]->refs, 1);
}

/* The status is the one that a row has when it is written: no other comes through the filter. */
static void a_filter_is_true_of_every_row(void **state) {
    (void)state;
    add_processes(ROWS);
    ask(&c, CP_GET, "/api/process/list?status=starting", NULL);
    assert_int_equal(c.res.status, 0);
    for (size_t i = 0; i < ROWS; i++) {
        fake.execs[i]->state = CP_STATE_ENDED;
        fake.execs[i]->exit_code = 0;
    }
    while (!c.res.status) cp_loop_once(fake.loop, 1000);
    size_t n = yyjson_arr_size(at(&c, "/processes"));
    assert_in_range(n, 1, ROWS - 1);
    for (size_t i = 0; i < n; i++) {
        char pointer[48];
        snprintf(pointer, sizeof pointer, "/processes/%zu/status", i);
        assert_string_equal(text(&c, pointer), "starting");
    }
}

static void sessions_are_listed_in_order(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        char id[8];
        snprintf(id, sizeof id, "s%d", i);
        fake.sessions[fake.nsessions++] = strdup(id);
    }
    ask(&c, CP_GET, "/api/session/list", NULL);
    assert_int_equal(c.res.status, 200); /* a short one is there at once */
    assert_int_equal(yyjson_arr_size(at(&c, "/data")), 8);
    assert_string_equal(text(&c, "/data/0"), "s0");
    assert_string_equal(text(&c, "/data/7"), "s7");
}

/* ---- what is made of the output of a command ---- */

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static cp_work blocks[64];
static void hang(cp_work *w) {
    (void)w;
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
}
static void hung(cp_work *w) { (void)w; }

/* Holds every thread of the lane that answers are made in. */
static void hang_lane(void) {
    pthread_mutex_lock(&gate);
    for (unsigned i = 0; i < CP_COUNT(blocks); i++)
        cp_workers_submit_to(fake.workers, CP_LANE_COMPUTE, 1000 + i, &blocks[i], hang, hung);
}

static cp_exec *start_printer(size_t n) {
    cp_exec *e;
    bool existing;
    cp_err err = {0};
    const cp_exec_spec spec = {
        .kind = CP_EXEC_PROCESS, .command = CP_STR("printer"), .sessionless = true, .process_id = CP_STR("p")};
    assert_int_equal(cp_exec_start(&fake.svc, &spec, NULL, &e, &existing, &err), 0);
    cp_exec_unref(e);
    fake_begin(e);
    cp_autofree char *text = cp_alloc(n);
    memset(text, 'x', n);
    fake_print(e, 0, text, n);
    fake_exit(e, 0, 0);
    while (e->state != CP_STATE_ENDED) cp_loop_once(fake.loop, 1000);
    return e;
}

/* X11: work for a client that cancels or goes is taken back, and what waits is never begun. */
static void answers_that_nobody_wants_are_not_made(void **state) {
    (void)state;
    static client k[20];
    cp_exec *e = start_printer(1 << 20);
    hang_lane();
    for (size_t i = 0; i < CP_COUNT(k); i++) {
        k[i] = (client){.reply = {.ops = &client_ops}};
        ask(&k[i], CP_GET, "/api/process/p/logs", NULL);
        assert_int_equal(k[i].res.status, 0);
    }
    assert_int_equal(cp_metric_values[CP_M_GATHERS], CP_COUNT(k));
    for (size_t i = 0; i < CP_COUNT(k); i++) /* some wait for a thread, some for their turn */
        assert_false(k[i].reply.on_cancel(&k[i].reply, i % 2 ? CP_END_CANCELLED : CP_END_DISCONNECTED, false));
    for (int i = 0; i < 10; i++) cp_loop_once(fake.loop, 0); /* one whose turn has just come ends itself */
    assert_int_equal(cp_metric_values[CP_M_GATHERS], 0);
    assert_int_equal(e->refs, 1);
    pthread_mutex_unlock(&gate);
    ask(&c, CP_GET, "/api/process/p/logs", NULL);
    expect_soon(200, NULL);
    assert_int_equal(yyjson_get_len(at(&c, "/stdout")), 1 << 20);
    assert_int_equal(cp_metric_values[CP_M_GATHERS], 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_long_list_lets_others_have_their_turn),
        TEST(many_lists_wait_for_one_another),
        TEST(a_list_that_nobody_wants_is_dropped),
        TEST(a_filter_is_true_of_every_row),
        TEST(sessions_are_listed_in_order),
        TEST(answers_that_nobody_wants_are_not_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
