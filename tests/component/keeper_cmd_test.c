/* The CMD that the keeper runs beside the server. */
#include "component/supervise_fixture.h"

static void test_cmd_fails(void **state) {
    (void)state;
    start_keeper(.cmd = (const char *const[]){"sh", "-c", "exit 3", NULL});
    first_server();
    expect("drain");
    tell("exit 0");
    assert_int_equal(finish(text), 3);
}

static void test_cmd_killed(void **state) {
    (void)state;
    start_keeper(.cmd = (const char *const[]){"sh", "-c", "kill -KILL $$", NULL});
    first_server();
    expect("drain");
    tell("exit 0");
    assert_int_equal(finish(text), 128 + SIGKILL);
}

static void test_cmd_missing(void **state) {
    (void)state;
    start_keeper(.cmd = (const char *const[]){"no-such-command", NULL});
    first_server();
    expect("drain");
    tell("exit 0");
    assert_int_equal(finish(text), 127);
    assert_non_null(strstr(text, "conflux: cannot run no-such-command: No such file or directory\n"));
}

static void test_cmd_not_executable(void **state) {
    (void)state;
    start_keeper(.cmd = (const char *const[]){"/etc/passwd", NULL});
    first_server();
    expect("drain");
    tell("exit 0");
    assert_int_equal(finish(text), 126);
}

static void test_cmd_signals(void **state) {
    (void)state;
    start_keeper(.cmd = (const char *const[]){"sh", "-c",
                                              "trap 'echo got-usr1 >&2' USR1; trap 'echo got-term >&2; exit 7' TERM; "
                                              "echo cmd-is-up >&2; sleep 1000 & while :; do wait; done",
                                              NULL});
    first_server();
    text[0] = '\0';
    wait_for_text("cmd-is-up\n");
    assert_int_equal(kill(t.keeper, SIGUSR1), 0);
    wait_for_text("got-usr1\n");
    assert_int_equal(kill(t.keeper, SIGTERM), 0);
    expect("drain");
    wait_for_text("got-term\n");
    tell("exit 0");
    assert_int_equal(finish(text), 0); /* it was told to: its status does not count */
}

/* exit 0 keeps the server. */
static void test_cmd_succeeds(void **state) {
    (void)state;
    start_keeper(.cmd = (const char *const[]){"sh", "-c", "echo $PPID >&2", NULL});
    first_server();
    char want[32];
    snprintf(want, sizeof want, "%d\n", (int)t.keeper);
    text[0] = '\0';
    wait_for_text(want);
    (void)spawn_kid("kid", "exit 0");
    expect("exit kid 0 0");
    end_well();
}

/* Ctrl-C: the kernel tells the keeper and CMD, which is in its group; the keeper does not tell it a second time. */
static void test_cmd_at_a_terminal(void **state) {
    (void)state;
    char name[64];
    cp_autofd int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    assert_int_equal(ptsname_r(master, name, sizeof name), 0);
    t.slave = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(t.slave >= 0);
    start_keeper(.cmd = (const char *const[]){"sh", "-c",
                                              "trap 'echo got-int >&2' INT; trap 'echo got-term >&2' TERM; "
                                              "echo cmd-is-up >&2; sleep 1000 & while :; do wait; done",
                                              NULL});
    cp_close(&t.slave);
    first_server();
    text[0] = '\0';
    wait_for_text("cmd-is-up\n");
    assert_int_equal(kill(t.keeper, SIGSTOP), 0); /* else two of the same signal might be one to CMD */
    assert_int_equal(write(master, "\003", 1), 1);
    wait_for_text("got-int\n");
    assert_int_equal(kill(t.keeper, SIGCONT), 0);
    expect("drain");
    tell("exit 0");
    wait_for_text("got-term\n");
    assert_null(strstr(strstr(text, "got-int\n") + 1, "got-int\n"));
    assert_int_equal(finish(text), 0);
}

int main(int argc, char **argv) {
    supervise_begin(argc, argv);
    const struct CMUnitTest tests[] = {
        TEST(test_cmd_fails),   TEST(test_cmd_killed),   TEST(test_cmd_missing),       TEST(test_cmd_not_executable),
        TEST(test_cmd_signals), TEST(test_cmd_succeeds), TEST(test_cmd_at_a_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
