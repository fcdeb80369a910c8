#include "base/buf.h"
#include "base/clock.h"
#include "base/work.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

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

/* ---- owners, lanes, and work that hangs ---- */

/* Jobs that hang until they are let go. */
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static atomic_int hanging;
static void hang(cp_work *w) {
    atomic_fetch_add(&hanging, 1);
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    job_run(w);
}

static void hang_all(int from, int n, uint64_t owner) {
    for (int i = from; i < from + n; i++)
        cp_workers_submit_to(pool, CP_LANE_FILES, owner, &jobs[i].work, hang, job_done);
}

static void one_owner_whose_work_hangs_does_not_keep_others_out(void **state) {
    (void)state;
    pthread_mutex_lock(&gate);
    hang_all(0, 100, 7);
    for (int i = 0; i < 50; i++) {
        cp_workers_submit_to(pool, CP_LANE_FILES, 8, &jobs[100 + i].work, job_run, job_done);
        drain(i + 1);
    }
    for (int k = 0; k < CP_LANES; k++) {
        if (k == CP_LANE_FILES) continue;
        cp_workers_submit_to(pool, (cp_lane)k, 7, &jobs[200 + k].work, job_run, job_done);
    }
    drain(50 + CP_LANES - 1);
    pthread_mutex_unlock(&gate);
    drain(150 + CP_LANES - 1);
}

static pthread_mutex_t second_gate = PTHREAD_MUTEX_INITIALIZER;
static void hang_longer(cp_work *w) {
    pthread_mutex_lock(&second_gate);
    pthread_mutex_unlock(&second_gate);
    job_run(w);
}

/* Of all the eight threads that a pool of one may have, one is let go, and begins one piece after another. */
static void owners_take_turns(void **state) {
    (void)state;
    cp_workers *one = cp_workers_new(loop, 1, NULL);
    started = 0;
    pthread_mutex_lock(&gate);
    pthread_mutex_lock(&second_gate);
    for (int i = 0; i < JOBS; i++) jobs[i].id = i;
    for (int i = 0; i < 8; i++)
        cp_workers_submit_to(one, CP_LANE_FILES, (uint64_t)(10 + i), &jobs[i].work, i ? hang_longer : hang, job_done);
    for (int i = 10; i < 1010; i++) cp_workers_submit_to(one, CP_LANE_FILES, 1, &jobs[i].work, note_start, job_done);
    for (int i = 1010; i < 1013; i++) cp_workers_submit_to(one, CP_LANE_FILES, 2, &jobs[i].work, note_start, job_done);
    pthread_mutex_unlock(&gate);
    drain(1 + 1000 + 3);
    pthread_mutex_unlock(&second_gate);
    drain(8 + 1000 + 3);
    cp_workers_free(one);
    static const int first[] = {10, 1010, 11, 1011, 12, 1012, 13, 14};
    for (size_t i = 0; i < CP_COUNT(first); i++) assert_int_equal(started_order[i], first[i]);
}

/* Work that takes 20 ms of a processor, and how much of it runs at once. */
static atomic_uint computing, most_computing;
static void compute(cp_work *w) {
    struct timespec t;
    unsigned now = atomic_fetch_add(&computing, 1) + 1, most = atomic_load(&most_computing);
    while (now > most && !atomic_compare_exchange_weak(&most_computing, &most, now)) continue;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    for (uint64_t until = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000 + 20, ms = 0; ms < until;) {
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        ms = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
    }
    atomic_fetch_sub(&computing, 1);
    job_run(w);
}

/* Twenty-four owners: were they thought to hang, each would have a thread. */
static void work_that_computes_gets_no_threads_beyond_those_of_its_lane(void **state) {
    (void)state;
    atomic_store(&most_computing, 0);
    for (int i = 0; i < 24; i++)
        cp_workers_submit_to(pool, CP_LANE_FILES, (uint64_t)(10 + i), &jobs[i].work, compute, job_done);
    drain(24);
    assert_in_range(atomic_load(&most_computing), 1, 2 * THREADS); /* 3; more if one is late to be seen to compute */
}

static void work_that_hangs_in_a_lane_for_bulk_keeps_no_other_owner_waiting(void **state) {
    (void)state;
    for (cp_lane lane = CP_LANE_BODIES; lane <= CP_LANE_BULK; lane++) {
        int done = done_count;
        pthread_mutex_lock(&gate);
        atomic_store(&hanging, 0);
        for (int i = 0; i < 24; i++)
            cp_workers_submit_to(pool, lane, (uint64_t)(10 + i), &jobs[done + i].work, hang, job_done);
        for (uint64_t deadline = cp_now_ms() + 20000; atomic_load(&hanging) < 24; sched_yield())
            assert_true(cp_now_ms() < deadline);
        pthread_mutex_unlock(&gate);
        drain(done + 24);
    }
}

static int threads(void) {
    char line[128];
    int n = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "Threads:", 8) == 0) n = (int)strtol(line + 8, NULL, 10);
    if (f) fclose(f);
    return n;
}

static void threads_end_when_there_is_nothing_to_do(void **state) {
    (void)state;
    int before = threads();
    pthread_mutex_lock(&gate);
    atomic_store(&hanging, 0);
    for (int i = 0; i < 12; i++)
        cp_workers_submit_to(pool, i % 2 ? CP_LANE_FILES : CP_LANE_BULK, (uint64_t)(10 + i), &jobs[i].work, hang,
                             job_done);
    while (atomic_load(&hanging) < 12) sched_yield();
    assert_true(threads() >= before + 11);
    pthread_mutex_unlock(&gate);
    drain(12);
    /* The lane of files keeps two, of which one was there. */
    for (uint64_t deadline = cp_now_ms() + 60000; threads() > before + 1; cp_loop_once(loop, 50))
        assert_true(cp_now_ms() < deadline);
    cp_workers_submit_to(pool, CP_LANE_BULK, 9, &jobs[12].work, job_run, job_done); /* they come again */
    drain(13);
}

static void what_has_not_begun_can_be_withdrawn(void **state) {
    (void)state;
    cp_work idle = {0};
    assert_false(cp_workers_withdraw(&idle));
    pthread_mutex_lock(&gate);
    hang_all(0, THREADS + 10, 1);
    for (int i = THREADS; i < THREADS + 10; i += 2) assert_true(cp_workers_withdraw(&jobs[i].work));
    assert_false(cp_workers_withdraw(&jobs[THREADS].work));
    pthread_mutex_unlock(&gate);
    drain(THREADS + 5);
    for (int i = 0; i < THREADS + 10; i++) assert_int_equal(jobs[i].ran, i < THREADS || (i - THREADS) % 2 ? 1 : 0);
    assert_false(cp_workers_withdraw(&jobs[0].work));
}

static void a_pool_with_work_that_hangs_is_stopped_in_time(void **state) {
    (void)state;
    pthread_mutex_lock(&gate);
    atomic_store(&hanging, 0);
    hang_all(0, THREADS * 2, 1);
    while (atomic_load(&hanging) < THREADS) sched_yield();
    assert_false(cp_workers_stop(pool, 50));
    pthread_mutex_unlock(&gate);
    assert_true(cp_workers_stop(pool, 20000));
    drain(THREADS);
    for (int i = 0; i < THREADS * 2; i++) assert_int_equal(jobs[i].ran, i < THREADS);
}

static void more_than_may_wait_is_told(void **state) {
    (void)state;
    struct job *many = cp_alloc((CP_WORK_WAITING_MAX + THREADS) * sizeof *many);
    pthread_mutex_lock(&gate);
    assert_false(cp_workers_full(pool, CP_LANE_FILES));
    for (int i = 0; i < CP_WORK_WAITING_MAX + THREADS; i++)
        cp_workers_submit_to(pool, CP_LANE_FILES, 1, &many[i].work, hang, job_done);
    assert_true(cp_workers_full(pool, CP_LANE_FILES));
    assert_false(cp_workers_full(pool, CP_LANE_OUTPUT));
    pthread_mutex_unlock(&gate);
    drain(CP_WORK_WAITING_MAX + THREADS);
    assert_false(cp_workers_full(pool, CP_LANE_FILES));
    free(many);
}

/* Nobody is told of its end: it frees itself. */
static atomic_int freed;
static void free_itself(cp_work *w) {
    free(CP_CONTAINER(w, struct job, work));
    atomic_fetch_add(&freed, 1);
}

static void work_without_done_may_free_itself(void **state) {
    (void)state;
    atomic_store(&freed, 0);
    for (int i = 0; i < 100; i++)
        cp_workers_submit_to(pool, CP_LANE_OUTPUT, CP_OWNER_UPKEEP, &cp_new(struct job)->work, free_itself, NULL);
    cp_workers_free(pool);
    pool = NULL;
    assert_int_equal(atomic_load(&freed), 100);
}

/* ---- a thread that is ready, and has no processor ---- */

static _Atomic pid_t tids[2];
static int leash[2]; /* a pipe: what keeps a thread in its signal handler */
static atomic_bool held;

static void be_held(int signal) {
    (void)signal;
    int saved = errno;
    atomic_store(&held, true);
    (void)!read(leash[0], &(char){0}, 1);
    errno = saved;
}

static void meet_and_take_signals(cp_work *w) {
    struct job *j = CP_CONTAINER(w, struct job, work);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    atomic_store(&tids[j->id], gettid());
    pthread_barrier_wait(&barrier);
    job_run(w);
}

/* Both workers wait for work. */
static bool waits(pid_t tid) {
    char path[64], call[16] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", (int)tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    (void)!read(fd, call, sizeof call - 1);
    close(fd);
    return strtol(call, NULL, 10) == SYS_futex && call[0] != 'r';
}

static void who_gets_no_processor_keeps_neither_the_loop_nor_work_waiting(void **state) {
    (void)state;
    assert_int_equal(pipe2(leash, O_CLOEXEC), 0);
    atomic_store(&held, false);
    struct sigaction old, act = {.sa_handler = be_held, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &act, &old);
    pthread_barrier_init(&barrier, NULL, 2);
    for (int i = 0; i < 2; i++) {
        jobs[i].id = i;
        cp_workers_submit_to(pool, CP_LANE_OUTPUT, CP_OWNER_UPKEEP, &jobs[i].work, meet_and_take_signals, job_done);
    }
    drain(2);
    for (uint64_t deadline = cp_now_ms() + 20000; !waits(tids[0]) || !waits(tids[1]); sched_yield())
        assert_true(cp_now_ms() < deadline);
    assert_int_equal(tgkill(getpid(), tids[0], SIGUSR1), 0);
    for (uint64_t deadline = cp_now_ms() + 20000; !atomic_load(&held); sched_yield())
        assert_true(cp_now_ms() < deadline);
    alarm(60); /* a submit that waits for that thread never returns */
    for (int i = 2; i < 10; i++) {
        cp_workers_submit_to(pool, CP_LANE_OUTPUT, CP_OWNER_UPKEEP, &jobs[i].work, job_run, job_done);
        drain(i + 1);
        assert_true(pthread_equal(jobs[i].thread, jobs[1].thread));
    }
    alarm(0);
    assert_int_equal(write(leash[1], "", 1), 1);
    cp_workers_free(pool);
    pool = NULL;
    sigaction(SIGUSR1, &old, NULL);
    pthread_barrier_destroy(&barrier);
    close(leash[0]);
    close(leash[1]);
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
        T(one_owner_whose_work_hangs_does_not_keep_others_out),
        T(owners_take_turns),
        T(work_that_computes_gets_no_threads_beyond_those_of_its_lane),
        T(work_that_hangs_in_a_lane_for_bulk_keeps_no_other_owner_waiting),
        T(threads_end_when_there_is_nothing_to_do),
        T(what_has_not_begun_can_be_withdrawn),
        T(a_pool_with_work_that_hangs_is_stopped_in_time),
        T(more_than_may_wait_is_told),
        T(work_without_done_may_free_itself),
        T(who_gets_no_processor_keeps_neither_the_loop_nor_work_waiting),
        T(an_unused_pool_is_freed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
