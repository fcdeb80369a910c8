/* X16: the keeper lives through a lack of memory: a spawn is refused by name, and nothing that has to be told is lost.
 * The keeper is a fork of this program, so its malloc is the one below. Under a sanitizer that is not ours to make;
 * there the same way is walked with all the memory that it wants. */
#include "component/keeper_client_fixture.h"

#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>

static struct lack {
    atomic_int keeper;     /* whose: its pid */
    atomic_long countdown; /* the one after so many fails; below 0: none */
    atomic_bool all;
    atomic_ulong failed;
} * lack;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FAILS 1
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

static bool fails(void) {
    if (!lack || lack->keeper != getpid() || (!lack->all && lack->countdown-- != 0)) return false;
    lack->failed++;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t n) { return fails() ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return fails() ? NULL : __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return fails() ? NULL : __libc_realloc(p, n); }
#else
#define FAILS 0
#endif

static int setup_lack(void **state) {
    lack->countdown = -1;
    lack->all = false;
    lack->failed = 0;
    int rc = setup(state);
    lack->keeper = t.pid;
    return rc;
}
#undef TEST
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup_lack, teardown)

/* Each allocation of a spawn fails in turn: by name in its table, with a long environment, on the PATH. */
static void test_each_in_turn(void **state) {
    (void)state;
    static char big[100 * 1024] = "BIG=";
    memset(big + 4, 'x', sizeof big - 5);
    const char *const env[] = {"PATH=/nowhere:/usr/bin:/bin", big, NULL};
    unsigned refused = 0;
    for (long i = 0;; i++) {
        struct kid k;
        lack->failed = 0;
        lack->countdown = i;
        run(&k, &SPEC(.argv = ARGV("true"), .env = env, .key = "key", HOLD_NONE));
        lack->countdown = -1;
        if (k.sys) assert_int_equal(k.sys, ENOMEM), assert_string_equal(k.step, "memory"), refused++;
        else assert_int_equal(k.x.code, 0), cp_keeper_ack(t.keeper, &k.c);
        if (!lack->failed) break;
    }
    assert_true(refused >= 3 || !FAILS);
}

/* Whatever ends while there is no memory at all, and nobody reads what the keeper says of it. */
static void test_nothing_is_lost(void **state) {
    (void)state;
    enum { N = 600 };
    static struct kid kids[N];
    int in[2];
    assert_int_equal(cp_pipe(in, 0), 0);
    cp_spawn s = SPEC(.argv = ARGV("cat"));
    s.fds[0] = in[0];
    for (int i = 0; i < N; i++) start(&kids[i], &s);
    for (int i = 0; i < N; i++) await(&kids[i].spawned);
    close(in[0]);
    lack->all = true;
    close(in[1]);
    for (int i = 0; i < N; i++) { /* dead and reaped, all of them, before the first record is read */
        int pidfd = (int)syscall(SYS_pidfd_open, kids[i].c.pid, 0);
        if (pidfd < 0) continue;
        struct pollfd p = {.fd = pidfd, .events = POLLIN};
        assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
        close(pidfd);
    }
    for (int i = 0; i < N; i++) {
        await(&kids[i].exited);
        assert_int_equal(kids[i].x.code, 0);
    }
    if (FAILS) expect_failure(&SPEC(.argv = ARGV("true")), ENOMEM, "memory");
    lack->all = false;
    struct kid k;
    run(&k, &SPEC(.argv = SH("exit 3")));
    assert_int_equal(k.x.code, 3);
}

/* Its end comes without any memory, and is that of what it has started. */
static void test_end(void **state) {
    (void)state;
    struct kid k;
    start(&k, &SPEC(.argv = SH("trap '' TERM; sleep 1000")));
    await(&k.spawned);
    int pidfd = (int)syscall(SYS_pidfd_open, k.c.pid, 0);
    lack->all = true;
    cp_keeper_close(t.keeper);
    t.keeper = NULL;
    assert_int_equal(keeper_fixture_wait(t.pid), 0);
    t.pid = 0;
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 0), 1);
    close(pidfd);
}

/* One spawn asks for as much as the kernel would take, not for more. */
static void test_one_spawn_is_bounded(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    static const char *many[N + 1]; /* a million empty arguments: eight times their size in pointers */
    struct kid k;
    many[0] = "true";
    for (int i = 1; i < N; i++) many[i] = "";
    run(&k, &SPEC(.argv = many));
    assert_int_equal(k.sys, E2BIG);
    run(&k, &SPEC(.argv = ARGV("true")));
    assert_int_equal(k.x.code, 0);
}

int main(void) {
    lack = mmap(NULL, sizeof *lack, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (lack == MAP_FAILED) return 1;
    const struct CMUnitTest tests[] = {
        TEST(test_each_in_turn),
        TEST(test_nothing_is_lost),
        TEST(test_end),
        TEST(test_one_spawn_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
