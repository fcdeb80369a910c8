/* A server that dies or is replaced: what the next one is given, and what ends with it. */
#include "component/supervise_fixture.h"

#include <dirent.h>

static void test_restart_hands_over(void **state) {
    (void)state;
    start_keeper(.cmd = NULL);
    first_server();
    pid_t mortal = spawn_kid("-mortal", "sleep 1000");
    pid_t living = spawn_kid("living", "echo before; kill -STOP $$; echo after; exit 3");
    pid_t ended = spawn_kid("ended", "echo said; exit 4");
    expect("exit ended 4 0");
    assert_int_equal(kill(t.server, SIGKILL), 0);
    meet_server(1, 4242);
    char want[64];
    snprintf(want, sizeof want, "held living %d runs", (int)living);
    expect(want);
    snprintf(want, sizeof want, "held ended %d ended 4 0", (int)ended);
    expect(want);
    await_gone(mortal);
    assert_true(alive(living));
    tell("ready 4242");
    /* The same key again, as after a crash between the spawn and its record: not run twice. */
    tell("spawn ended echo twice");
    expect("refused ended key EEXIST");
    tell("read ended"); /* of the refused one: nothing */
    hear();
    struct pollfd answer = {.fd = t.control, .events = POLLIN};
    do kill(living, SIGCONT); /* more than once: it may not have stopped yet */
    while (poll(&answer, 1, 20) == 0);
    expect("exit living 3 0");
    tell("read living");
    expect("output living 13 before\nafter\n");
    tell("ack living");
    expect("acked");
    assert_int_equal(kill(t.server, SIGKILL), 0);
    meet_server(2, 4242);
    snprintf(want, sizeof want, "held ended %d ended 4 0", (int)ended);
    expect(want);
    tell("read ended");
    expect("output ended 5 said\n");
    tell("ack ended");
    expect("acked");
    tell("ready 4242");
    end_well();
    assert_non_null(strstr(text, "listening on 4242\n"));
    assert_null(strstr(strstr(text, "listening on 4242\n") + 1, "listening"));
}

/* The pid that a child says behind `word`. */
static pid_t hear_pid(const char *word) {
    text[0] = '\0';
    wait_for_text(word);
    wait_for_text(" .\n");
    return (pid_t)strtol(strstr(text, word) + strlen(word), NULL, 10);
}

static size_t descriptors_of(pid_t pid) {
    char path[40];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    size_t n = 0;
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* X09: an acknowledgement that comes before the end is remembered. */
static void test_x09_acked_before_its_end(void **state) {
    (void)state;
    start_keeper(.cmd = NULL);
    first_server();
    size_t before = descriptors_of(t.keeper);
    spawn_kid("unwanted", "exec sleep 1000");
    wait_until(descriptors_of(t.keeper) == before + 1);
    tell("ack unwanted");
    expect("acked");
    pid_t other = spawn_kid("unwanted", "exec sleep 1000"); /* its name is free: the keeper has heard it */
    wait_until(descriptors_of(t.keeper) == before + 1);     /* what the other one has it hold, once it is started */
    tell("exit 3");
    meet_server(1, 4242);
    char want[80];
    snprintf(want, sizeof want, "held unwanted %d runs", (int)other);
    expect(want); /* and no other */
    tell("ready 4242");
    tell("ack unwanted");
    expect("acked");
    end_well();
}

static void test_trees_of_mortals_die(void **state) {
    (void)state;
    start_keeper(.cmd = NULL);
    first_server();
    (void)spawn_kid("-a", "prlimit --locks=9 -p $$; setsid sleep 1000 & echo in-session $! . >&2; wait");
    pid_t in_session = hear_pid("in-session ");
    (void)spawn_kid("-b", "(setsid sleep 1000 & echo orphan $! . >&2); exec sleep 1000");
    pid_t orphan = hear_pid("orphan ");
    (void)spawn_kid("-c", "(sleep 1000 & prlimit --locks=9 -p $!; echo in-group $! . >&2); exec sleep 1000");
    pid_t in_group = hear_pid("in-group ");
    (void)spawn_kid("-d", "(setsid sleep 1000 & echo background $! . >&2)");
    pid_t background = hear_pid("background ");
    expect("exit -d 0 0");
    (void)spawn_kid("durable", "setsid sleep 1000 & echo stays $! . >&2; wait");
    pid_t stays = hear_pid("stays ");
    assert_int_equal(kill(t.server, SIGKILL), 0);
    meet_server(1, 4242);
    (void)hear(); /* the durable one is held */
    await_gone(in_session);
    await_gone(orphan);
    await_gone(in_group);
    assert_true(alive(background)); /* what started it has ended before, as it should */
    assert_true(alive(stays));
    end_well();
}

static void test_silent_server_is_replaced(void **state) {
    (void)state;
    start_keeper(.start_limit_ms = 3000); /* those that do say so must be able to, on a busy machine */
    first_server();
    text[0] = '\0';
    wait_for_text("listening on 4242\n");
    assert_int_equal(kill(t.server, SIGKILL), 0);
    meet_server(1, 4242);                /* and never says that it is ready */
    int silent = cp_take_fd(&t.control); /* closed, it would end the server */
    meet_server(2, 4242);
    close(silent);
    tell("ready 4242");
    end_well();
    assert_non_null(strstr(text, "keeper.start_timeout"));
}

/* A later start that fails does not end the keeper. */
static void test_later_failure_is_retried(void **state) {
    (void)state;
    start_keeper(.cmd = NULL);
    first_server();
    pid_t kid = spawn_kid("kid", "sleep 1000");
    tell("exit 1");
    for (unsigned generation = 1; generation < 4; generation++) {
        meet_server(generation, 4242);
        char want[64];
        snprintf(want, sizeof want, "held kid %d runs", (int)kid);
        expect(want);
        tell("fail no luck");
    }
    meet_server(4, 4242);
    hear();
    tell("ready 4242");
    end_well();
    assert_false(alive(kid));
}

/* More than the socket takes at once; in the order of their start, each with its descriptor. */
static void test_many_are_handed_over(void **state) {
    (void)state;
    enum { N = 250 };
    start_keeper(.cmd = NULL);
    first_server();
    pid_t pids[N];
    char key[16], want[64];
    for (int i = 0; i < N; i++) {
        snprintf(key, sizeof key, "k%d", i);
        pids[i] = spawn_kid(key, i % 50 ? "exit 6" : "echo text; exec sleep 1000");
        if (i % 50 == 0) continue;
        snprintf(want, sizeof want, "exit k%d 6 0", i);
        expect(want);
    }
    assert_int_equal(kill(t.server, SIGKILL), 0);
    meet_server(1, 4242);
    for (int i = 0; i < N; i++) {
        snprintf(want, sizeof want, i % 50 ? "held k%d %d ended 6 0" : "held k%d %d runs", i, (int)pids[i]);
        expect(want);
    }
    tell("ready 4242");
    tell("read k249");
    expect("output k249 0 ");
    assert_int_equal(kill(pids[50], SIGTERM), 0);
    expect("exit k50 -1 15");
    tell("read k50");
    expect("output k50 5 text\n");
    end_well();
}

static void test_children_limit(void **state) {
    (void)state;
    start_keeper(.children_max = 2);
    first_server();
    (void)spawn_kid("one", "exec sleep 1000");
    (void)spawn_kid("two", "exit 0");
    expect("exit two 0 0");
    tell("spawn three exit 0");
    expect("refused three children EAGAIN"); /* two is not acknowledged */
    tell("ack two");
    expect("acked");
    (void)spawn_kid("four", "exit 0");
    expect("exit four 0 0");
    end_well();
}

/* What is held leaves room for what has to be opened to end it all. */
static void test_descriptor_limit(void **state) {
    (void)state;
    t.nofile = 64;
    start_keeper(.cmd = NULL);
    first_server();
    pid_t pids[64];
    int n = 0;
    for (bool refused = false; !refused; n++) {
        char request[64], want[64];
        snprintf(request, sizeof request, "spawn k%d exec sleep 1000", n);
        snprintf(want, sizeof want, "refused k%d fds EMFILE", n);
        tell(request);
        const char *answer = hear();
        refused = strcmp(answer, want) == 0;
        if (!refused && sscanf(answer, "spawned k%*d %d", &pids[n]) != 1) fail_msg("%s", answer);
        assert_true(n < 63);
    }
    n--;
    assert_true(n >= 16);
    assert_int_equal(kill(t.server, SIGKILL), 0);
    meet_server(1, 4242);
    for (int i = 0; i < n; i++) {
        char want[64];
        snprintf(want, sizeof want, "held k%d %d runs", i, (int)pids[i]);
        expect(want);
    }
    end_well();
    for (int i = 0; i < n; i++) assert_false(alive(pids[i]));
}

static void test_upgrade(void **state) {
    (void)state;
    start_keeper(.cmd = NULL);
    first_server();
    pid_t kid = spawn_kid("kid", "sleep 1000");
    assert_int_equal(kill(t.keeper, SIGHUP), 0);
    expect("handover");
    tell("exit 0");
    meet_server(1, 4242);
    char want[64];
    snprintf(want, sizeof want, "held kid %d runs", (int)kid);
    expect(want);
    tell("ready 4242");
    end_well();
}

int main(int argc, char **argv) {
    supervise_begin(argc, argv);
    const struct CMUnitTest tests[] = {
        TEST(test_restart_hands_over),        TEST(test_trees_of_mortals_die),
        TEST(test_silent_server_is_replaced), TEST(test_later_failure_is_retried),
        TEST(test_many_are_handed_over),      TEST(test_children_limit),
        TEST(test_descriptor_limit),          TEST(test_upgrade),
        TEST(test_x09_acked_before_its_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
