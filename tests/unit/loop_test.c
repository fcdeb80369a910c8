#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/loop.h"
#include "base/metrics.h"
#include "base/turn.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "component/touched.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static cp_loop *loop;

/* In place of the C library's: the next `refusals` watches are refused, as the kernel does without memory. */
static int refusals, refusal, tries;

int epoll_ctl(int ep, int op, int fd, struct epoll_event *ev) {
    tries += op == EPOLL_CTL_ADD;
    if (op == EPOLL_CTL_ADD && refusals > 0) {
        refusals--;
        errno = refusal;
        return -1;
    }
    return (int)syscall(SYS_epoll_ctl, ep, op, fd, ev);
}

static int set_up(void **state) {
    (void)state;
    loop = cp_loop_new(NULL);
    return loop ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    cp_loop_free(loop);
    return 0;
}

/* Rounds until *n reaches want. */
static void run_until(const int *n, int want) {
    for (uint64_t deadline = cp_now_ms() + 10000; *n < want;) {
        assert_true(cp_now_ms() < deadline);
        assert_int_equal(cp_loop_once(loop, 100), 0);
    }
}

/* ---- watchers ---- */

struct watcher {
    cp_io io;
    int r, w;
    int events;
    uint32_t last;
    struct watcher *victim; /* removed when this one fires */
    bool replace;           /* … and a new watcher takes its place, perhaps its slot and fd */
};

static void on_io(cp_io *io, uint32_t events) {
    struct watcher *s = CP_CONTAINER(io, struct watcher, io);
    s->events++;
    s->last = events;
    if (!s->victim) return;
    struct watcher *v = s->victim;
    s->victim = NULL;
    cp_io_del(loop, &v->io);
    if (!s->replace) return;
    cp_close(&v->r);
    cp_close(&v->w);
    int rw[2];
    assert_int_equal(cp_pipe(rw, O_NONBLOCK), 0);
    v->r = rw[0], v->w = rw[1];
    assert_int_equal(cp_io_add(loop, &v->io, v->r, EPOLLIN, on_io), 0);
}

static void watch(struct watcher *s) {
    int rw[2];
    *s = (struct watcher){0};
    assert_int_equal(cp_pipe(rw, O_NONBLOCK), 0);
    s->r = rw[0], s->w = rw[1];
    assert_int_equal(cp_io_add(loop, &s->io, s->r, EPOLLIN, on_io), 0);
}

static void unwatch(struct watcher *s) {
    cp_io_del(loop, &s->io);
    cp_close(&s->r);
    cp_close(&s->w);
}

static void events_arrive_and_stop(void **state) {
    (void)state;
    struct watcher a;
    watch(&a);
    cp_loop_once(loop, 0);
    assert_int_equal(a.events, 0);
    assert_int_equal(cp_write_all(a.w, "x", 1), 0);
    cp_loop_once(loop, 0);
    cp_loop_once(loop, 0); /* level-triggered */
    assert_int_equal(a.events, 2);
    assert_int_equal(a.last, EPOLLIN);
    assert_int_equal(cp_io_mod(loop, &a.io, 0), 0);
    cp_loop_once(loop, 0);
    assert_int_equal(a.events, 2);
    assert_int_equal(cp_io_mod(loop, &a.io, EPOLLIN), 0);
    cp_loop_once(loop, 0);
    assert_int_equal(a.events, 3);
    cp_io_del(loop, &a.io);
    cp_io_del(loop, &a.io);
    cp_loop_once(loop, 0);
    assert_int_equal(a.events, 3);
    assert_int_equal(cp_io_mod(loop, &a.io, EPOLLIN), -1);
    unwatch(&a);
}

static void add_tells_what_epoll_refuses(void **state) {
    (void)state;
    cp_io io = {0};
    assert_int_equal(cp_io_add(loop, &io, -1, EPOLLIN, on_io), -1);
    assert_int_equal(errno, EBADF);
    assert_int_equal(io.slot, 0);
    cp_autofd int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    assert_int_equal(cp_io_add(loop, &io, file, EPOLLIN, on_io), -1);
    assert_int_equal(errno, EPERM);
}

static void a_watch_that_the_kernel_refuses_comes_late(void **state) {
    (void)state;
    struct watcher a, b;
    refusals = 3;
    refusal = ENOMEM;
    watch(&a);
    refusal = ENOSPC;
    watch(&b);
    assert_int_equal(cp_io_mod(loop, &a.io, 0), 0); /* what is asked of it meanwhile holds when it comes */
    assert_int_equal(cp_io_mod(loop, &a.io, EPOLLIN), 0);
    assert_int_equal(cp_write_all(a.w, "x", 1), 0);
    assert_int_equal(cp_write_all(b.w, "x", 1), 0);
    run_until(&a.events, 1);
    run_until(&b.events, 1);
    assert_int_equal(refusals, 0);
    assert_int_equal(a.last, EPOLLIN);
    unwatch(&a);
    unwatch(&b);
}

static void a_late_watch_may_be_removed(void **state) {
    (void)state;
    struct watcher a, b;
    refusals = 1;
    refusal = ENOMEM;
    watch(&a);
    unwatch(&a);
    refusals = 1;
    watch(&b); /* in the same place */
    tries = 0;
    assert_int_equal(cp_write_all(b.w, "x", 1), 0);
    run_until(&b.events, 1);
    assert_int_equal(tries, 1);
    unwatch(&b);
}

/* Both are ready in one round; whichever comes first removes the other, whose event has been fetched already. */
static void a_removed_watcher_gets_no_stale_event(void **state) {
    (void)state;
    for (int replace = 0; replace < 2; replace++) {
        struct watcher a, b;
        watch(&a);
        watch(&b);
        a.victim = &b, b.victim = &a;
        a.replace = b.replace = replace;
        assert_int_equal(cp_write_all(a.w, "x", 1), 0);
        assert_int_equal(cp_write_all(b.w, "x", 1), 0);
        cp_loop_once(loop, 0);
        assert_int_equal(a.events + b.events, 1);
        unwatch(&a);
        unwatch(&b);
    }
}

static void a_watcher_may_remove_itself(void **state) {
    (void)state;
    struct watcher a;
    watch(&a);
    a.victim = &a;
    assert_int_equal(cp_write_all(a.w, "x", 1), 0);
    cp_loop_once(loop, 0);
    cp_loop_once(loop, 0);
    assert_int_equal(a.events, 1);
    unwatch(&a);
}

static struct watcher many[300];
static void on_io_add_many(cp_io *io, uint32_t events) {
    on_io(io, events);
    for (size_t i = 1; i < CP_COUNT(many); i++) watch(&many[i]);
}

static void the_table_grows_while_callbacks_run(void **state) {
    (void)state;
    watch(&many[0]);
    many[0].io.fn = on_io_add_many;
    assert_int_equal(cp_write_all(many[0].w, "x", 1), 0);
    cp_loop_once(loop, 0);
    many[0].io.fn = on_io;
    for (size_t i = 1; i < CP_COUNT(many); i++) assert_int_equal(cp_write_all(many[i].w, "x", 1), 0);
    cp_loop_once(loop, 0);
    cp_loop_once(loop, 0); /* more than one round fetches */
    for (size_t i = 0; i < CP_COUNT(many); i++) {
        assert_true(many[i].events > 0);
        unwatch(&many[i]);
    }
}

/* ---- timers ---- */

struct alarm {
    cp_timer t;
    int fired;
    struct alarm *stops; /* stopped when this one fires */
    int again;           /* restarts left, without delay */
};

static uint64_t last_at;
static int fired;

static void on_timer(cp_timer *t) {
    struct alarm *a = CP_CONTAINER(t, struct alarm, t);
    assert_false(cp_timer_active(t));
    assert_true(t->at <= cp_loop_now(loop));
    assert_true(t->at >= last_at);
    last_at = t->at;
    a->fired++;
    fired++;
    if (a->stops) cp_timer_stop(loop, &a->stops->t);
    if (a->again && a->again--) cp_timer_start(loop, t, 0, on_timer);
}

static void timers_fire_in_order(void **state) {
    (void)state;
    struct alarm a[100] = {0};
    fired = 0, last_at = 0;
    for (unsigned i = 0; i < 100; i++) cp_timer_start(loop, &a[i].t, i * 37 % 20, on_timer);
    for (unsigned i = 0; i < 100; i += 3) cp_timer_stop(loop, &a[i].t);
    for (unsigned i = 1; i < 100; i += 3) cp_timer_start(loop, &a[i].t, i * 11 % 15, on_timer); /* restart */
    run_until(&fired, 66);
    cp_loop_once(loop, 0);
    for (unsigned i = 0; i < 100; i++) assert_int_equal(a[i].fired, i % 3 != 0);
}

/* a and b are both due: the first stops the other, and itself, and one that is not due. */
static void timers_stop_each_other(void **state) {
    (void)state;
    struct alarm a = {0}, b = {0}, c = {0};
    fired = 0, last_at = 0;
    a.stops = &b, b.stops = &a;
    cp_timer_start(loop, &a.t, 1, on_timer);
    cp_timer_start(loop, &b.t, 1, on_timer);
    cp_timer_start(loop, &c.t, 60000, on_timer);
    run_until(&fired, 1);
    cp_loop_once(loop, 0);
    assert_int_equal(a.fired + b.fired, 1);
    assert_false(cp_timer_active(&a.t) || cp_timer_active(&b.t));
    assert_true(cp_timer_active(&c.t));
    cp_timer_stop(loop, &c.t);
    cp_timer_stop(loop, &c.t);
}

static void a_timer_without_delay_does_not_keep_events_out(void **state) {
    (void)state;
    struct alarm a = {.again = 1000000};
    struct watcher io;
    watch(&io);
    fired = 0, last_at = 0;
    cp_timer_start(loop, &a.t, 0, on_timer);
    assert_int_equal(cp_write_all(io.w, "x", 1), 0);
    run_until(&io.events, 5);
    assert_true(a.fired >= 4 && a.fired <= 6);
    cp_timer_stop(loop, &a.t);
    unwatch(&io);
}

static void an_endless_delay_does_not_wrap(void **state) {
    (void)state;
    struct alarm a = {0};
    cp_timer_start(loop, &a.t, UINT64_MAX, on_timer);
    cp_loop_once(loop, 0);
    assert_int_equal(a.fired, 0);
    cp_timer_stop(loop, &a.t);
}

/* ---- messages ---- */

enum { POSTERS = 4, POSTS = 2000 };
struct post {
    cp_task task;
    int thread, seq;
};
static struct post posts[POSTERS][POSTS];
static int next_seq[POSTERS], received;

static void on_post(cp_task *task) {
    struct post *p = CP_CONTAINER(task, struct post, task);
    assert_true(cp_loop_here(loop));
    assert_int_equal(p->seq, next_seq[p->thread]++);
    received++;
}

static void *poster(void *arg) {
    struct post *p = arg;
    for (int i = 0; i < POSTS; i++) {
        p[i].seq = i;
        cp_loop_post(loop, &p[i].task, on_post);
    }
    return NULL;
}

static void posts_of_a_thread_stay_in_order(void **state) {
    (void)state;
    pthread_t th[POSTERS];
    received = 0;
    for (int t = 0; t < POSTERS; t++) {
        next_seq[t] = 0;
        for (int i = 0; i < POSTS; i++) posts[t][i].thread = t;
        assert_int_equal(pthread_create(&th[t], NULL, poster, posts[t]), 0);
    }
    run_until(&received, POSTERS * POSTS);
    for (int t = 0; t < POSTERS; t++) pthread_join(th[t], NULL);
}

static void on_repost(cp_task *task) {
    struct post *p = CP_CONTAINER(task, struct post, task);
    received++;
    if (p->seq-- > 0) cp_loop_post(loop, task, on_repost);
}

/* A post in a task's own callback, when the wake-up has been taken already, must wake again. */
static void a_task_may_post_itself_again(void **state) {
    (void)state;
    struct post p = {.seq = 5};
    received = 0;
    cp_loop_post(loop, &p.task, on_repost);
    run_until(&received, 6);
}

static void on_stop(cp_task *task) {
    (void)task;
    cp_loop_stop(loop);
}

static void *stopper(void *arg) {
    cp_loop_post(loop, arg, on_stop);
    return NULL;
}

static void run_ends_when_told(void **state) {
    (void)state;
    cp_task task;
    pthread_t th;
    assert_int_equal(pthread_create(&th, NULL, stopper, &task), 0);
    assert_int_equal(cp_loop_run(loop, NULL), 0);
    pthread_join(th, NULL);
    assert_int_equal(cp_loop_run(loop, NULL), 0); /* stays stopped */
}

/* ---- deferred ---- */

struct later {
    cp_deferred d;
    int ran, again;
    struct later *drops;
};
static char order[16];

static void on_deferred(cp_deferred *d) {
    struct later *x = CP_CONTAINER(d, struct later, d);
    x->ran++;
    received++;
    if (x->drops) cp_loop_undefer(loop, &x->drops->d);
    if (x->again && x->again--) cp_loop_defer(loop, d, on_deferred);
}

static void deferred_runs_once_a_round(void **state) {
    (void)state;
    struct later a = {0}, b = {0};
    cp_loop_defer(loop, &a.d, on_deferred);
    cp_loop_defer(loop, &a.d, on_deferred);
    cp_loop_defer(loop, &b.d, on_deferred);
    cp_loop_undefer(loop, &b.d);
    cp_loop_undefer(loop, &b.d);
    cp_loop_once(loop, -1); /* does not wait: there is something to do */
    cp_loop_once(loop, 0);
    assert_int_equal(a.ran, 1);
    assert_int_equal(b.ran, 0);
}

static void deferred_may_drop_others_and_itself_come_again(void **state) {
    (void)state;
    struct later a = {.again = 2}, b = {0}, c = {0}, d = {0};
    a.drops = &b, c.drops = &d;
    cp_loop_defer(loop, &a.d, on_deferred);
    cp_loop_defer(loop, &b.d, on_deferred);
    cp_loop_defer(loop, &c.d, on_deferred);
    cp_loop_defer(loop, &d.d, on_deferred);
    cp_loop_once(loop, 0);
    assert_int_equal(a.ran, 1); /* its second turn waits for the next round */
    assert_int_equal(b.ran + d.ran, 0);
    assert_int_equal(c.ran, 1);
    cp_loop_defer(loop, &d.d, on_deferred); /* behind a: the tail of the list is right after the drops */
    c.drops = NULL;
    cp_loop_once(loop, -1);
    assert_int_equal(a.ran, 2);
    assert_int_equal(d.ran, 1);
    cp_loop_once(loop, -1);
    assert_int_equal(a.ran, 3);
}

/* A connection has some of them, and there are thousands of connections: one leaves without a look at the others. */
static void one_of_many_is_dropped_at_once(void **state) {
    (void)state;
    enum { MANY = 1000 };
    received = 0;
    touched_open(MANY);
    for (size_t i = 0; i < MANY; i++) cp_loop_defer(loop, &((struct later *)touched_at(i))->d, on_deferred);
    for (size_t i = 1; i < MANY; i += 2) {
        struct later *x = touched_at(i * 7919 % MANY);
        touched_arm();
        cp_loop_undefer(loop, &x->d);
        assert_true(touched_count() <= 3); /* and its neighbours */
    }
    cp_loop_once(loop, 0);
    assert_int_equal(received, MANY / 2);
    for (size_t i = 0; i < MANY; i++) assert_int_equal(((struct later *)touched_at(i))->ran, i % 2 == 0);
    touched_close();
}

static void add_letter(char c) {
    size_t n = strlen(order);
    if (n + 1 < sizeof order) order[n] = c;
}
static void io_letter(cp_io *io, uint32_t events) {
    (void)events;
    add_letter('i');
    cp_io_mod(loop, io, 0);
}
static void timer_letter(cp_timer *t) {
    (void)t;
    add_letter('t');
}
static void deferred_letter(cp_deferred *d) {
    (void)d;
    add_letter('d');
}

static void a_round_is_events_then_timers_then_deferred(void **state) {
    (void)state;
    struct watcher a;
    cp_timer t = {0};
    cp_deferred d = {0};
    memset(order, 0, sizeof order);
    watch(&a);
    a.io.fn = io_letter;
    assert_int_equal(cp_write_all(a.w, "x", 1), 0);
    cp_timer_start(loop, &t, 0, timer_letter);
    cp_loop_defer(loop, &d, deferred_letter);
    cp_loop_once(loop, 0);
    assert_string_equal(order, "itd");
    unwatch(&a);
}

/* ---- turns: a build that measures them counts those that keep the thread ---- */

static int64_t slow_turns(void) { return atomic_load(&cp_metric_values[CP_M_SLOW_TURNS]); }

static void block_a_while(cp_timer *t) {
    (void)t;
    (void)poll(NULL, 0, 2 * CP_TURN_SLOW_MS);
}

static void compute_a_while(cp_timer *t) {
    (void)t;
    struct timespec now, begin;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    while ((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 < 2 * CP_TURN_SLOW_MS);
}

static void a_long_turn_is_counted(void **state) {
    (void)state;
    void (*const ways[])(cp_timer *) = {block_a_while, compute_a_while};
    for (size_t i = 0; i < CP_COUNT(ways); i++) {
        cp_timer t = {0};
        int64_t before = slow_turns();
        cp_timer_start(loop, &t, 0, ways[i]);
        while (cp_timer_active(&t)) assert_int_equal(cp_loop_once(loop, 100), 0);
#ifdef CONFLUX_TURNS
        assert_int_equal(slow_turns(), before + 1);
#else
        assert_int_equal(slow_turns(), before);
#endif
    }
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(void) {
    unsetenv("CONFLUX_TURN_MS"); /* turns are measured here */
    const struct CMUnitTest tests[] = {
        T(events_arrive_and_stop),
        T(add_tells_what_epoll_refuses),
        T(a_watch_that_the_kernel_refuses_comes_late),
        T(a_late_watch_may_be_removed),
        T(a_removed_watcher_gets_no_stale_event),
        T(a_watcher_may_remove_itself),
        T(the_table_grows_while_callbacks_run),
        T(timers_fire_in_order),
        T(timers_stop_each_other),
        T(a_timer_without_delay_does_not_keep_events_out),
        T(an_endless_delay_does_not_wrap),
        T(posts_of_a_thread_stay_in_order),
        T(a_task_may_post_itself_again),
        T(run_ends_when_told),
        T(deferred_runs_once_a_round),
        T(deferred_may_drop_others_and_itself_come_again),
        T(one_of_many_is_dropped_at_once),
        T(a_round_is_events_then_timers_then_deferred),
        T(a_long_turn_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
