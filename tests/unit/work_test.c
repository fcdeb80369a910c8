#include "base/buf.h"
#include "base/clock.h"
#include "base/work.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

static cp_loop *loop;
static cp_workers *pool;
static int done_count;

enum { THREADS = 3, JOBS = 2000 };
struct job {
    cp_work work;
    int id;
    int ran, done; /* not atomic: the pool's hand-overs are what orders them, TSan checks */
    bool off_loop;
    pthread_t thread;
};
static struct job jobs[JOBS];

static int set_up(void **state) {
    (void)state;
    done_count = 0;
    memset(jobs, 0, sizeof jobs);
    loop = cp_loop_new(NULL);
    pool = cp_workers_new(loop, THREADS, NULL);
    return loop && pool ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    cp_workers_free(pool);
    cp_loop_free(loop);
    return 0;
}

static void drain(int want) {
    for (uint64_t deadline = cp_now_ms() + 20000; done_count < want;) {
        assert_true(cp_now_ms() < deadline);
        assert_int_equal(cp_loop_once(loop, 100), 0);
    }
}

static void job_run(cp_work *w) {
    struct job *j = CP_CONTAINER(w, struct job, work);
    j->ran++;
    j->off_loop = !cp_loop_here(loop);
    j->thread = pthread_self();
}

static void job_done(cp_work *w) {
    struct job *j = CP_CONTAINER(w, struct job, work);
    assert_true(cp_loop_here(loop));
    assert_int_equal(j->ran, ++j->done);
    done_count++;
}

static void every_job_runs_off_the_loop_and_is_done_on_it(void **state) {
    (void)state;
    for (int i = 0; i < JOBS; i++) cp_workers_submit(pool, &jobs[i].work, job_run, job_done);
    drain(JOBS);
    for (int i = 0; i < JOBS; i++) assert_true(jobs[i].ran == 1 && jobs[i].done == 1 && jobs[i].off_loop);
}

static void done_may_submit_again(cp_work *w) {
    job_done(w);
    if (done_count < 200) cp_workers_submit(pool, w, job_run, done_may_submit_again);
}

static void work_can_be_submitted_again_in_done(void **state) {
    (void)state;
    cp_workers_submit(pool, &jobs[0].work, job_run, done_may_submit_again);
    drain(200);
    assert_int_equal(jobs[0].ran, 200);
}

/* THREADS jobs that all wait for each other: they end only if each has a thread of its own. */
static pthread_barrier_t barrier;
static void meet(cp_work *w) {
    pthread_barrier_wait(&barrier);
    job_run(w);
}

static void jobs_run_side_by_side(void **state) {
    (void)state;
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int round = 1; round <= 20; round++) {
        for (int i = 0; i < THREADS; i++) cp_workers_submit(pool, &jobs[i].work, meet, job_done);
        drain(round * THREADS);
    }
    pthread_barrier_destroy(&barrier);
}

static int started_order[JOBS], started;
static void note_start(cp_work *w) {
    job_run(w);
    started_order[started++] = CP_CONTAINER(w, struct job, work)->id;
}

static void first_in_first_out(void **state) {
    (void)state;
    cp_workers *one = cp_workers_new(loop, 1, NULL);
    started = 0;
    for (int i = 0; i < JOBS; i++) {
        jobs[i].id = i;
        cp_workers_submit(one, &jobs[i].work, note_start, job_done);
    }
    drain(JOBS);
    cp_workers_free(one);
    for (int i = 0; i < JOBS; i++) assert_int_equal(started_order[i], i);
}

static void free_lets_queued_work_run(void **state) {
    (void)state;
    for (int i = 0; i < JOBS; i++) cp_workers_submit(pool, &jobs[i].work, job_run, job_done);
    cp_workers_free(pool);
    pool = NULL;
    for (int i = 0; i < JOBS; i++) assert_int_equal(jobs[i].ran, 1);
    drain(JOBS);
}

static void *submitter(void *arg) {
    struct job *j = arg;
    for (int i = 0; i < JOBS / 4; i++) cp_workers_submit(pool, &j[i].work, job_run, job_done);
    return NULL;
}

static void any_thread_may_submit(void **state) {
    (void)state;
    pthread_t th[4];
    for (int t = 0; t < 4; t++) assert_int_equal(pthread_create(&th[t], NULL, submitter, jobs + t * (JOBS / 4)), 0);
    drain(JOBS);
    for (int t = 0; t < 4; t++) pthread_join(th[t], NULL);
}

static sigset_t mask_seen;
static void look_at_mask(cp_work *w) {
    job_run(w);
    pthread_sigmask(SIG_SETMASK, NULL, &mask_seen);
}

static void pool_threads_take_no_signals(void **state) {
    (void)state;
    cp_workers_submit(pool, &jobs[0].work, look_at_mask, job_done);
    drain(1);
    assert_true(sigismember(&mask_seen, SIGTERM) && sigismember(&mask_seen, SIGCHLD) &&
                sigismember(&mask_seen, SIGHUP));
}

static void an_unused_pool_is_freed(void **state) {
    (void)state;
    cp_workers_free(cp_workers_new(loop, 8, NULL));
    cp_workers_free(NULL);
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(void) {
    const struct CMUnitTest tests[] = {
        T(every_job_runs_off_the_loop_and_is_done_on_it),
        T(work_can_be_submitted_again_in_done),
        T(jobs_run_side_by_side),
        T(first_in_first_out),
        T(free_lets_queued_work_run),
        T(any_thread_may_submit),
        T(pool_threads_take_no_signals),
        T(an_unused_pool_is_freed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
