/* Process trees, on real processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "services/tree.h"

enum { DEADLINE_MS = 60000, KIDS = 3 };

static void wait_to_die(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
}

/* root ─ child ─ grandchild in a session of its own. Their pids, in this order. */
static void grow(pid_t pids[KIDS]) {
    int rw[2];
    assert_int_equal(cp_pipe(rw, 0), 0);
    pid_t root = fork();
    if (root == 0) {
        setpgid(0, 0);
        pid_t me = getpid();
        (void)!write(rw[1], &me, sizeof me);
        if (fork() == 0) {
            me = getpid();
            (void)!write(rw[1], &me, sizeof me);
            if (fork() == 0) {
                setsid();
                me = getpid();
                (void)!write(rw[1], &me, sizeof me);
            }
        }
        wait_to_die();
    }
    assert_true(root > 0);
    close(rw[1]);
    assert_int_equal(cp_read_full(rw[0], pids, KIDS * sizeof *pids), (ssize_t)(KIDS * sizeof *pids));
    close(rw[0]);
}

static void cut(const pid_t pids[KIDS]) {
    for (int i = KIDS; i-- > 0;) kill(pids[i], SIGKILL);
    assert_int_equal(waitpid(pids[0], NULL, 0), pids[0]);
}

static void reads_one(void **state) {
    (void)state;
    cp_proc p;
    assert_true(cp_proc_read(getpid(), &p));
    assert_int_equal(p.pid, getpid());
    assert_int_equal(p.ppid, getppid());
    assert_int_equal(p.pgid, getpgrp());
    assert_int_equal(p.sid, getsid(0));
    assert_int_equal(p.state, 'R');
    assert_true(p.rss_bytes > 100000);
    assert_false(cp_proc_read(0x7ffffff0, &p));
    assert_true(prctl(PR_SET_NAME, "a) R 1 (b") == 0); /* a name that looks like the fields */
    assert_true(cp_proc_read(getpid(), &p));
    assert_int_equal(p.ppid, getppid());
}

static void collects_all_parents_first(void **state) {
    (void)state;
    pid_t pids[KIDS];
    grow(pids);
    cp_proc root;
    cp_tree all = {0}, t = {0};
    assert_true(cp_proc_read(pids[0], &root));
    assert_int_equal(cp_tree_snapshot(&all), 0);
    cp_tree_collect(&t, &all, root.pid, root.start_time, NULL);
    cp_tree_collect(&t, &all, root.pid, root.start_time, NULL); /* no duplicates */
    assert_int_equal(t.n, KIDS);
    for (int i = 0; i < KIDS; i++) assert_int_equal(t.v[i].pid, pids[i]);
    assert_true(cp_tree_has(&t, pids[2]));
    assert_false(cp_tree_has(&t, getpid()));
    cp_tree_free(&t);
    cp_tree_collect(&t, &all, root.pid, root.start_time + 1, NULL); /* somebody else by now (B049) */
    assert_int_equal(t.n, 0);
    cp_tree_free(&t);
    cp_tree_free(&all);
    cut(pids);
}

/* The leader is gone; what is left of its group is still found. */
static void group_outlives_its_leader(void **state) {
    (void)state;
    int rw[2];
    pid_t kid;
    assert_int_equal(cp_pipe(rw, 0), 0);
    pid_t root = fork();
    if (root == 0) {
        setpgid(0, 0);
        pid_t k = fork();
        if (k == 0) {
            for (;;) pause();
        }
        (void)!write(rw[1], &k, sizeof k);
        wait_to_die();
    }
    assert_int_equal(read(rw[0], &kid, sizeof kid), sizeof kid);
    close(rw[0]);
    close(rw[1]);
    cp_proc p;
    assert_true(cp_proc_read(root, &p));
    kill(root, SIGKILL);
    assert_int_equal(waitpid(root, NULL, 0), root);
    cp_tree all = {0}, t = {0};
    assert_int_equal(cp_tree_snapshot(&all), 0);
    cp_tree_collect(&t, &all, root, p.start_time, NULL);
    assert_int_equal(t.n, 1);
    assert_int_equal(t.v[0].pid, kid);
    assert_int_equal(cp_proc_signal(&t.v[0], SIGKILL), 0);
    uint64_t end = cp_now_ms() + DEADLINE_MS;
    while (cp_proc_alive(&t.v[0])) assert_true(cp_now_ms() < end);
    cp_tree_free(&t);
    cp_tree_free(&all);
}

/* Children that wait, with these marks; their own sessions. */
static pid_t stray(uint64_t hard, uint64_t soft) {
    int rw[2];
    char c;
    assert_int_equal(cp_pipe(rw, 0), 0);
    pid_t pid = fork();
    if (pid == 0) {
        const struct rlimit l = {.rlim_cur = soft, .rlim_max = hard};
        char sleep[] = "sleep", forever[] = "1000", *const argv[] = {sleep, forever, NULL}, *const env[] = {NULL};
        setsid();
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (setrlimit(RLIMIT_LOCKS, &l) == 0) execve("/usr/bin/sleep", argv, env);
        _exit(127);
    }
    close(rw[1]);
    assert_int_equal(read(rw[0], &c, 1), 0); /* the exec has happened */
    close(rw[0]);
    return pid;
}

static void mark_finds_the_strayed(void **state) {
    (void)state;
    const uint64_t spawn = CP_MARK_FLAG | 77 * CP_MARK_SPAWNS | 3;
    const pid_t pids[] = {stray(spawn, spawn), stray(spawn, 5), stray(spawn, 6), stray(spawn - 1, 5), stray(5, 5)};
    const struct {
        cp_mark mark;
        unsigned found; /* bits of pids */
    } cases[] = {{{spawn, 0}, 7},     {{spawn, 5}, 2}, {{spawn, 7}, 0}, {{spawn - 1, 0}, 8},
                 {{spawn - 2, 0}, 0}, {{5, 0}, 0},     {{0, 0}, 0},     {{0, 5}, 0}};
    cp_mark m;
    assert_true(cp_mark_of(pids[0], &m));
    assert_true(m.spawn == spawn && m.command == 0);
    assert_true(cp_mark_of(pids[1], &m));
    assert_true(m.spawn == spawn && m.command == 5);
    assert_false(cp_mark_of(pids[4], &m)); /* a limit, but no mark */
    cp_tree all = {0};
    assert_int_equal(cp_tree_snapshot(&all), 0);
    for (size_t i = 0; i < CP_COUNT(cases); i++) {
        cp_tree t = {0}, by_mark = {0};
        cp_tree_collect(&t, &all, 0x7ffffff0, 1, &cases[i].mark);
        cp_tree_collect_marked(&by_mark, &all, &cases[i].mark, 0, 0);
        assert_int_equal(t.n, (size_t)__builtin_popcount(cases[i].found));
        assert_int_equal(by_mark.n, t.n);
        for (size_t k = 0; k < CP_COUNT(pids); k++) {
            assert_int_equal(cp_tree_has(&t, pids[k]), cases[i].found >> k & 1);
            assert_int_equal(cp_tree_has(&by_mark, pids[k]), cases[i].found >> k & 1);
        }
        cp_tree_free(&t);
        cp_tree_free(&by_mark);
    }
    cp_proc shell;
    cp_tree t = {0};
    assert_true(cp_proc_read(pids[1], &shell));
    cp_tree_collect_marked(&t, &all, &cases[0].mark, pids[1], shell.start_time);
    assert_true(t.n == 2 && !cp_tree_has(&t, pids[1]));
    cp_tree_free(&t);
    cp_tree_free(&all);
    for (size_t k = 0; k < CP_COUNT(pids); k++) {
        kill(pids[k], SIGKILL);
        assert_int_equal(waitpid(pids[k], NULL, 0), pids[k]);
    }
}

static void signals_only_whom_it_knows(void **state) {
    (void)state;
    pid_t pids[KIDS];
    grow(pids);
    cp_proc p, root, wrong;
    assert_true(cp_proc_read(pids[0], &root));
    assert_true(cp_proc_read(pids[1], &p));
    wrong = p;
    wrong.start_time++;
    errno = 0;
    assert_int_equal(cp_proc_signal(&wrong, SIGKILL), -1);
    assert_int_equal(errno, ESRCH);
    assert_true(cp_proc_alive(&p));
    assert_false(cp_proc_alive(&wrong));
    assert_int_equal(cp_proc_signal(&p, SIGKILL), 0);
    uint64_t end = cp_now_ms() + DEADLINE_MS;
    while (cp_proc_alive(&p)) assert_true(cp_now_ms() < end); /* a zombie: its parent does not wait */
    cut(pids);
    assert_int_equal(cp_proc_signal(&root, SIGKILL), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_one),
        cmocka_unit_test(collects_all_parents_first),
        cmocka_unit_test(group_outlives_its_leader),
        cmocka_unit_test(mark_finds_the_strayed),
        cmocka_unit_test(signals_only_whom_it_knows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
