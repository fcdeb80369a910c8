/* X11: tens of thousands of clients that wait for one process. Each is told once, in rounds of the loop, and nobody
 * looks at those that know already. */
#include "component/services_fixture.h"
#include "component/touched.h"

#include <signal.h>

enum { MANY = 1000 };

static size_t starts, ends;

static void on_start(cp_exec_watch *w, cp_exec *e) {
    (void)w, (void)e;
    starts++;
}
static void on_end(cp_exec_watch *w, cp_exec *e) {
    (void)w, (void)e;
    ends++;
}
static const cp_exec_watch_ops counts = {on_start, on_end};

static void begin_long(struct run *r) {
    cp_exec_spec s = shell_spec("exec sleep 1000");
    s.kind = CP_EXEC_PROCESS;
    run_begin(r, &s);
    fx_until(r->starts);
    starts = ends = 0;
}

static void end_long(struct run *r) {
    cp_err err;
    if (r->e->state == CP_STATE_RUNNING) assert_int_equal(cp_exec_signal(r->e, SIGKILL, true, &err), 0);
    run_wait(r);
    run_free(r);
}

static void add(cp_exec *e, cp_exec_watch *w) {
    w->ops = &counts;
    cp_exec_watch_add(e, w);
}

static void who_comes_is_told_without_a_look_at_the_others(void **state) {
    (void)state;
    struct run r;
    begin_long(&r);
    touched_open(MANY);
    for (size_t i = 0; i < MANY - 1; i++) add(r.e, touched_at(i));
    fx_until(starts == MANY - 1);
    touched_arm();
    add(r.e, touched_at(MANY - 1));
    fx_until(starts == MANY);
    for (int i = 0; i < 3; i++) cp_loop_once(fx.loop, 0);
    assert_true(touched_count() <= 3); /* and the first and last of the list */
    touched_arm();
    cp_exec_watch_del(touched_at(MANY / 2));
    assert_true(touched_count() <= 3);
    end_long(&r);
    fx_until(ends == MANY - 1);
    assert_int_equal(starts, MANY);
    for (size_t i = 0; i < MANY; i++) cp_exec_watch_del(touched_at(i));
    touched_close();
}

/* Who hears of the end takes a while, and goes, and takes another with him. */
static struct slow {
    cp_exec_watch w;
    struct slow *with;
    unsigned ends;
} slow[9];

static void take_a_millisecond(cp_exec_watch *w, cp_exec *e) {
    struct slow *s = CP_CONTAINER(w, struct slow, w);
    uint64_t until = cp_now_us() + 1000;
    (void)e;
    s->ends++;
    ends++;
    cp_exec_watch_del(&s->w);
    if (s->with) cp_exec_watch_del(&s->with->w);
    while (cp_now_us() < until) continue;
}

static void an_end_is_told_in_rounds(void **state) {
    (void)state;
    static const cp_exec_watch_ops ops = {.on_end = take_a_millisecond};
    struct run r;
    begin_long(&r);
    memset(slow, 0, sizeof slow);
    for (size_t i = 0; i < CP_COUNT(slow); i++) {
        slow[i].w.ops = &ops;
        cp_exec_watch_add(r.e, &slow[i].w);
    }
    slow[2].with = &slow[3];
    for (int i = 0; i < 3; i++) cp_loop_once(fx.loop, 0);
    cp_err err;
    assert_int_equal(cp_exec_signal(r.e, SIGKILL, true, &err), 0);
    for (size_t before = 0; ends < CP_COUNT(slow) - 1; before = ends) {
        assert_int_equal(cp_loop_once(fx.loop, 1000), 0);
        assert_true(ends <= before + 1);
    }
    for (size_t i = 0; i < CP_COUNT(slow); i++) assert_int_equal(slow[i].ends, i != 3);
    end_long(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FX_TEST(who_comes_is_told_without_a_look_at_the_others),
        FX_TEST(an_end_is_told_in_rounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
