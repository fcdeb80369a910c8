/* The log of events: order, exactly once, the gap, retention, and what a restart on the same registry makes of it. */
#include "component/services_fixture.h"

#include "services/events.h"

enum { SEEN_MAX = 16384 };

struct viewer {
    cp_event_sub sub;
    unsigned woken;
    size_t n;
    uint64_t ids[SEEN_MAX];
    char last_type[32], last_session[64], last_process[64];
    uint64_t gap_to;
};
static struct viewer one, two;

static void woken(cp_event_sub *sub) { CP_CONTAINER(sub, struct viewer, sub)->woken++; }

/* Takes all that is there. */
static size_t take(struct viewer *v) {
    const cp_event_row *ev;
    cp_event_got got;
    uint64_t gap_to;
    while ((got = cp_event_next(&v->sub, &ev, &gap_to)) != CP_EVENT_NONE) {
        if (got == CP_EVENT_GAP) {
            v->gap_to = gap_to;
            continue;
        }
        assert_true(v->n < SEEN_MAX);
        assert_true(!v->n || ev->id > v->ids[v->n - 1]);
        v->ids[v->n++] = ev->id;
        snprintf(v->last_type, sizeof v->last_type, "%s", ev->type);
        snprintf(v->last_session, sizeof v->last_session, "%s", ev->session ? ev->session : "");
        snprintf(v->last_process, sizeof v->last_process, "%s", ev->process_id ? ev->process_id : "");
    }
    return v->n;
}

static void view(struct viewer *v) {
    *v = (struct viewer){.sub = {.on_events = woken}};
    cp_event_sub_open(&v->sub, &fx.s);
}
static void view_after(struct viewer *v, uint64_t id) {
    *v = (struct viewer){.sub = {.on_events = woken}};
    cp_event_sub_open_after(&v->sub, &fx.s, id);
}

static void publish(const char *session) {
    cp_event_publish(&fx.s, &(cp_event_row){.type = CP_EVENT_SESSION_CREATED, .session = session});
}

static int setup(void **state) {
    (void)state;
    cp_err err = {0};
    fx_loop();
    fx.s.registry = cp_registry_open(fx.loop, fx.dir, &err);
    if (!fx.s.registry) fail_msg("%s", err.msg);
    fx_open();
    return 0;
}

static void restart(void) {
    cp_err err = {0};
    cp_services_close(&fx.s);
    fx.s.generation++;
    if (cp_services_open(&fx.s, &err) < 0) fail_msg("%s", err.msg);
}

static void each_subscriber_sees_each_once(void **state) {
    (void)state;
    char name[16];
    view(&one);
    view(&two);
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "s%d", i);
        publish(name);
        if (i % 7 == 0) assert_int_equal(cp_loop_once(fx.loop, 0), 0), take(&one);
    }
    fx_until(take(&one) == 100 && take(&two) == 100);
    assert_memory_equal(one.ids, two.ids, 100 * sizeof one.ids[0]);
    assert_string_equal(one.last_session, "s99");
    assert_string_equal(one.last_type, "session.created");
    assert_int_equal(one.gap_to, 0);
    uint64_t half = one.ids[49];
    cp_event_sub_close(&one.sub);
    view_after(&one, half); /* exclusive */
    assert_int_equal(take(&one), 50);
    assert_int_equal(one.ids[0], two.ids[50]);
    cp_event_sub_close(&one.sub);
    view_after(&one, 0); /* from the beginning: nothing has been dropped */
    assert_int_equal(take(&one), 100);
    assert_int_equal(one.gap_to, 0);
    cp_event_sub_close(&one.sub);
    cp_event_sub_close(&two.sub);
}

static void what_is_seen_is_on_disk(void **state) {
    (void)state;
    view(&one);
    publish("a");
    assert_int_equal(take(&one), 0);
    assert_int_equal(one.woken, 0);
    fx_until(one.woken);
    assert_int_equal(take(&one), 1);
    cp_event_sub_close(&one.sub);
}

static void an_id_of_the_future_waits(void **state) {
    (void)state;
    view(&two);
    publish("a");
    fx_until(take(&two) == 1);
    view_after(&one, two.ids[0] + 2);
    for (int i = 0; i < 3; i++) publish("later");
    fx_until(take(&two) == 4);
    assert_int_equal(take(&one), 1);
    assert_int_equal(one.ids[0], two.ids[0] + 3);
    cp_event_sub_close(&one.sub);
    cp_event_sub_close(&two.sub);
}

static void the_gap_is_declared(void **state) {
    (void)state;
    enum { MORE = 300 };
    view(&two);
    view_after(&one, 1);
    assert_int_equal(take(&one), 0);
    uint64_t first = one.gap_to + 1; /* a client that knew another log */
    for (int i = 0; i < CP_EVENTS_KEPT; i++) publish("x");
    fx_until(take(&two) == CP_EVENTS_KEPT); /* in one go more might be committed than is kept before it can look */
    for (int i = 0; i < MORE; i++) publish("x");
    fx_until(take(&two) == CP_EVENTS_KEPT + MORE);
    assert_int_equal(two.gap_to, 0);
    assert_int_equal(two.ids[0], first);
    cp_event_sub_close(&one.sub);
    view_after(&one, 0);
    assert_int_equal(take(&one), CP_EVENTS_KEPT);
    assert_int_equal(one.gap_to, first + MORE - 1);
    assert_int_equal(one.ids[0], first + MORE);
    cp_event_sub_close(&one.sub);
    cp_event_sub_close(&two.sub);
    restart(); /* the table has been trimmed in steps: no more than one is too many */
    view_after(&one, first + MORE + 5);
    fx_until(take(&one) == CP_EVENTS_KEPT - 6 + 1);
    assert_string_equal(one.last_type, "server.restarted");
    cp_event_sub_close(&one.sub);
}

static void old_ones_go_but_the_last(void **state) {
    (void)state;
    view(&two);
    for (int i = 0; i < 5; i++) publish("x");
    fx_until(take(&two) == 5);
    fx.config.history_age = -3600; /* all of them are too old */
    view_after(&one, 0);
    assert_int_equal(take(&one), 1);
    assert_int_equal(one.ids[0], two.ids[4]);
    assert_int_equal(one.gap_to, two.ids[3]);
    cp_event_sub_close(&one.sub);
    cp_event_sub_close(&two.sub);
    restart(); /* the table was not trimmed yet */
    view_after(&one, two.ids[4]);
    fx_until(take(&one) == 1);
    assert_int_equal(one.ids[0], two.ids[4] + 1);
    cp_event_sub_close(&one.sub);
}

/* Ids go on, and a subscriber that reconnects with what it saw last gets the rest. */
static void a_restart_goes_on(void **state) {
    (void)state;
    struct run r;
    cp_exec_spec s = shell_spec("exit 3");
    s.kind = CP_EXEC_PROCESS;
    s.process_id = CP_STR("p");
    view(&one);
    run_begin(&r, &s);
    run_wait(&r);
    run_free(&r);
    fx_until(take(&one) == 2);
    assert_string_equal(one.last_type, "process.exited");
    assert_string_equal(one.last_process, "p");
    uint64_t seen = one.ids[1];
    cp_event_sub_close(&one.sub);
    publish("unseen");
    restart();
    view_after(&one, seen);
    fx_until(take(&one) == 2);
    assert_string_equal(one.last_type, "server.restarted");
    assert_int_equal(one.ids[0], seen + 1);
    assert_int_equal(one.ids[1], seen + 2);
    cp_event_sub_close(&one.sub);
    restart(); /* what has been told is not told again */
    view_after(&one, seen + 2);
    fx_until(take(&one) == 1);
    assert_string_equal(one.last_type, "server.restarted");
    cp_event_sub_close(&one.sub);
}

static cp_exec_row left_behind(const char *state) {
    return (cp_exec_row){.id = "left",
                         .process_id = "left",
                         .kind = CP_ROW_PROCESS,
                         .command = "true",
                         .state = state,
                         .pid = 1 << 22,
                         .started_ms = cp_wall_ms(),
                         .exit_code = -1};
}

/* Its end was not told by the server that is gone, so it is now, once. */
static void an_end_without_a_server_is_told(void **state) {
    (void)state;
    cp_exec_row row = left_behind("running");
    cp_services_close(&fx.s);
    cp_registry_put_exec(fx.s.registry, &row, NULL);
    cp_err err = {0};
    assert_int_equal(cp_services_open(&fx.s, &err), 0);
    view_after(&one, 0);
    fx_until(take(&one) == 1);
    assert_string_equal(one.last_type, "process.exited");
    assert_string_equal(one.last_process, "left");
    uint64_t seen = one.ids[0];
    cp_event_sub_close(&one.sub);
    restart();
    view_after(&one, seen);
    fx_until(take(&one) == 1);
    assert_string_equal(one.last_type, "server.restarted");
    cp_event_sub_close(&one.sub);
}

static void the_end_of_a_promised_call_is_told(void **state) {
    (void)state;
    struct run r;
    cp_exec_spec s = shell_spec("true");
    view(&one);
    run_expect(&s, 0, "", ""); /* plain: no event */
    run_begin(&r, &s);
    cp_exec_promise(r.e);
    run_wait(&r);
    run_free(&r);
    s.exec_id = CP_STR("chosen");
    run_expect(&s, 0, "", "");
    fx_until(take(&one) == 2);
    assert_string_equal(one.last_type, "execution.ended");
    cp_event_sub_close(&one.sub);
}

static void session_done(void *arg, const cp_err *err, const char *id) {
    (void)id;
    assert_null(err);
    ++*(int *)arg;
}

static void sessions_come_and_go_once(void **state) {
    (void)state;
    int done = 0;
    cp_err err;
    cp_session_spec spec = {.id = CP_STR("s")};
    view(&one);
    assert_int_equal(cp_session_create(&fx.s, &spec, session_done, &done, &err), 0);
    fx_until(done == 1);
    fx_until(take(&one) == 1);
    assert_string_equal(one.last_type, "session.created");
    assert_string_equal(one.last_session, "s");
    cp_exec_spec s = shell_spec("exit 3"); /* the shell ends, the session stays */
    s.sessionless = false;
    s.session = CP_STR("s");
    struct run r;
    run_begin(&r, &s);
    run_wait(&r);
    run_free(&r);
    assert_int_equal(cp_session_delete(&fx.s, CP_STR("s"), false, session_done, &done, &err), 0);
    fx_until(done == 2);
    fx_until(take(&one) == 2);
    assert_string_equal(one.last_type, "session.ended");
    cp_event_sub_close(&one.sub);
}

/* What is dropped is told before the end at the latest, and adds up. */
static void dropped_output_is_told(void **state) {
    (void)state;
    const cp_event_row *ev;
    uint64_t sum = 0, gap;
    bool ended = false;
    struct run r;
    fx.config.log_budget = 1 << 20;
    cp_exec_spec s = shell_spec("head -c 20000000 /dev/zero; echo x >&2");
    s.kind = CP_EXEC_PROCESS;
    view(&one);
    run_begin(&r, &s);
    run_wait(&r);
    uint64_t dropped = cp_output_dropped(r.e->out[0]);
    assert_true(dropped > 0);
    while (!ended) {
        cp_event_got got = cp_event_next(&one.sub, &ev, &gap);
        if (got == CP_EVENT_NONE) assert_int_equal(cp_loop_once(fx.loop, 1000), 0);
        if (got != CP_EVENT_NEXT) continue;
        if (strcmp(ev->type, "process.output_dropped") == 0) {
            assert_string_equal(ev->stream, "stdout");
            sum += ev->bytes;
        }
        ended = strcmp(ev->type, "process.exited") == 0;
    }
    assert_int_equal(sum, dropped);
    cp_event_sub_close(&one.sub);
    run_free(&r);
}

/* Not seen while they are not on disk; then all of them, in order, without a hole. */
static void a_full_disk_delays_events(void **state) {
    (void)state;
    view(&one);
    publish("before");
    fx_until(take(&one) == 1);
    disk_full(true);
    for (int i = 0; i < 50; i++) publish("full");
    assert_int_equal(cp_registry_flush(fx.s.registry, NULL), -1);
    publish("full");
    assert_int_equal(cp_registry_flush(fx.s.registry, NULL), -1);
    fx_until(!cp_loop_once(fx.loop, 0));
    assert_int_equal(take(&one), 1);
    disk_full(false);
    publish("after");
    fx_until(take(&one) == 53);
    for (size_t i = 0; i < one.n; i++) assert_int_equal(one.ids[i], one.ids[0] + i);
    assert_string_equal(one.last_session, "after");
    assert_int_equal(one.gap_to, 0);
    uint64_t seen = one.ids[52];
    cp_event_sub_close(&one.sub);
    restart();
    view_after(&one, seen - 52);
    fx_until(take(&one) == 53);
    assert_int_equal(one.gap_to, 0);
    assert_string_equal(one.last_type, "server.restarted");
    cp_event_sub_close(&one.sub);
}

/* The row of the end and its event wait together: else a restarted server would tell the end once more. */
static void an_end_on_a_full_disk_is_told_once(void **state) {
    (void)state;
    struct run r;
    cp_exec_spec s = shell_spec("read x; exit 3");
    s.kind = CP_EXEC_PROCESS;
    s.process_id = CP_STR("p");
    s.stdin_open = true;
    view(&one);
    run_begin(&r, &s);
    fx_until(take(&one) == 1);
    disk_full(true);
    assert_int_equal(cp_exec_stdin(r.e, CP_STR("\n"), true, NULL, NULL), 0);
    run_wait(&r);
    assert_int_equal(r.e->exit_code, 3);
    assert_int_equal(cp_registry_flush(fx.s.registry, NULL), -1);
    assert_int_equal(take(&one), 1);
    disk_full(false);
    fx_until(take(&one) == 2);
    assert_string_equal(one.last_type, "process.exited");
    assert_int_equal(one.gap_to, 0);
    run_free(&r);
    uint64_t seen = one.ids[1];
    cp_event_sub_close(&one.sub);
    restart();
    view_after(&one, seen);
    fx_until(take(&one) == 1);
    assert_string_equal(one.last_type, "server.restarted");
    assert_int_equal(one.ids[0], seen + 1);
    const cp_exec *e = cp_exec_find_process(&fx.s, CP_STR("p"));
    assert_non_null(e);
    assert_int_equal(e->exit_code, 3);
    cp_event_sub_close(&one.sub);
}

/* What is beyond the bound is a gap for whoever follows, and for whoever asks a later server. */
static void what_cannot_wait_is_a_gap(void **state) {
    (void)state;
    enum { MORE = 100 };
    view(&one);
    publish("before");
    fx_until(take(&one) == 1);
    uint64_t before = one.ids[0];
    disk_full(true);
    for (int i = 0; i < CP_REGISTRY_WAITING + MORE; i++) publish("full");
    assert_int_equal(cp_registry_flush(fx.s.registry, NULL), -1);
    disk_full(false);
    fx_until(take(&one) == CP_REGISTRY_WAITING + 1);
    assert_int_equal(one.gap_to, before + MORE);
    assert_int_equal(one.ids[1], before + MORE + 1);
    assert_int_equal(one.ids[CP_REGISTRY_WAITING], before + MORE + CP_REGISTRY_WAITING);
    cp_event_sub_close(&one.sub);
    view(&one);
    publish("later");
    fx_until(take(&one) == 1);
    assert_int_equal(one.ids[0], before + MORE + CP_REGISTRY_WAITING + 1);
    cp_event_sub_close(&one.sub);
}

/* The ids of a table say what was never written: told after a restart too, and an id inside of the gap leads behind it.
 */
static void a_hole_in_the_table_is_a_gap(void **state) {
    (void)state;
    view(&one);
    publish("a");
    fx_until(take(&one) == 1);
    uint64_t a = one.ids[0];
    cp_event_sub_close(&one.sub);
    cp_registry_put_event(fx.s.registry, &(cp_event_row){.id = a + 10, .type = "session.created"}, NULL);
    restart();
    for (uint64_t from = a; from < a + 10; from += 3) {
        view_after(&one, from);
        fx_until(take(&one) == 2);
        assert_int_equal(one.gap_to, from < a + 9 ? a + 9 : 0);
        assert_int_equal(one.ids[0], a + 10);
        cp_event_sub_close(&one.sub);
    }
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, fx_teardown)
    const struct CMUnitTest tests[] = {
        T(each_subscriber_sees_each_once),  T(what_is_seen_is_on_disk),
        T(an_id_of_the_future_waits),       T(the_gap_is_declared),
        T(old_ones_go_but_the_last),        T(a_restart_goes_on),
        T(an_end_without_a_server_is_told), T(the_end_of_a_promised_call_is_told),
        T(sessions_come_and_go_once),       T(dropped_output_is_told),
        T(a_full_disk_delays_events),       T(an_end_on_a_full_disk_is_told_once),
        T(what_cannot_wait_is_a_gap),       T(a_hole_in_the_table_is_a_gap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
