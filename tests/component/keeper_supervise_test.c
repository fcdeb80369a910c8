/* The keeper with a server to look after: how it starts, and how all of it ends. */
#include "component/supervise_fixture.h"

#include <sys/ptrace.h>

static char tail[4096];

/* ---- start ---- */

static void test_first_start_fails(void **state) {
    (void)state;
    start_keeper(.cmd = NULL);
    meet_server(0, 0);
    tell("fail port 80 is taken");
    assert_int_equal(finish(text), 1);
    assert_string_equal(text, "conflux: port 80 is taken\n");
}

static void test_first_start_dies(void **state) {
    (void)state;
    start_keeper(.cmd = NULL);
    meet_server(0, 0);
    tell("exit 5");
    assert_int_equal(finish(text), 1);
    assert_string_equal(text, "conflux: the server ended before it was ready: exit status 5\n");
}

static void test_no_server_binary(void **state) {
    (void)state;
    start_keeper(.server_path = "/no/such/server");
    assert_int_equal(finish(text), 1);
    assert_string_equal(text, "conflux: cannot start /no/such/server: execve: No such file or directory\n");
}

static void test_first_start_is_silent(void **state) {
    (void)state;
    start_keeper(.start_limit_ms = 10000); /* as long as a server may take to say its first word */
    meet_server(0, 0);
    assert_int_equal(finish(text), 1);
    assert_string_equal(text, "conflux: the server does not get ready; killing it\n"
                              "conflux: the server ended before it was ready: signal 9\n");
}

/* ---- the end ---- */

static void test_stubborn_trees(void **state) {
    (void)state;
    start_keeper(.cmd = NULL);
    first_server();
    pid_t polite = spawn_kid("polite", "exec sleep 1000");
    pid_t stubborn = spawn_kid(
        "stubborn", "trap '' TERM; (setsid sh -c 'while :; do sleep 1000; done' &) ; while :; do sleep 1000; done");
    assert_int_equal(kill(t.keeper, SIGTERM), 0);
    expect("drain");
    tell("exit 0");
    assert_int_equal(finish(text), 0); /* stderr is at its end: nobody is left who has it */
    assert_false(alive(polite));
    assert_false(alive(stubborn));
}

static void test_second_term_does_not_wait(void **state) {
    (void)state;
    start_keeper(.cmd = NULL);
    first_server();
    assert_int_equal(kill(t.keeper, SIGINT), 0);
    expect("drain"); /* and is ignored */
    pid_t kid = spawn_kid("kid", "trap 'echo termed >&2' TERM; echo up >&2; while :; do sleep 0.01; done");
    text[0] = '\0';
    wait_for_text("up\n");
    assert_int_equal(kill(t.keeper, SIGTERM), 0);
    assert_int_equal(finish(text), 0);
    assert_false(alive(kid));
    assert_null(strstr(text, "termed"));
}

/* While another process traces it, a server that is killed is not reaped: as if it sat in the kernel (state D). */
static void unkillable(void (*hurry)(void), unsigned kill_limit_ms) {
    start_keeper(.kill_limit_ms = kill_limit_ms);
    first_server();
    pid_t kid = spawn_kid("kid", "exec sleep 1000"), server = t.server;
    text[0] = '\0';
    if (ptrace(PTRACE_SEIZE, server, 0, 0) < 0) {
        end_well();
        skip();
    }
    assert_int_equal(kill(t.keeper, SIGTERM), 0);
    expect("drain");
    assert_int_equal(kill(t.keeper, SIGTERM), 0);
    siginfo_t dead;
    assert_int_equal(waitid(P_PID, (id_t)server, &dead, WEXITED | WNOWAIT | __WALL), 0);
    hurry();
    assert_int_equal(finish(tail), 0);
    assert_true(strstr(tail, "event=keeper.server_stuck") || strstr(text, "event=keeper.server_stuck"));
    await_gone(kid); /* it has had its KILL */
    assert_int_equal(waitpid(server, NULL, __WALL), server);
}

static void wait_for_deadline(void) {}
static void term_again(void) {
    assert_int_equal(kill(t.keeper, SIGTERM), 0);
    wait_for_text("event=keeper.server_stuck");
    assert_int_equal(kill(t.keeper, SIGTERM), 0);
}

/* X15: a server that cannot be killed does not keep the keeper: a deadline ends it. */
static void test_x15_unkillable_server_has_a_deadline(void **state) {
    (void)state;
    unkillable(wait_for_deadline, 100);
}

/* X15: and so does whoever asks again. */
static void test_x15_unkillable_server_and_another_term(void **state) {
    (void)state;
    unkillable(term_again, 3600 * 1000);
}

/* ---- the state folder ---- */

/* A keeper for the folder that the present one has is refused with these words. */
static void another_is_refused(const char *words) {
    pid_t first = t.keeper;
    int first_err = t.err_pipe;
    char want[160];
    t.err_pipe = -1;
    start_keeper(.state_dir = t.dir);
    assert_int_equal(finish(text), 1);
    snprintf(want, sizeof want, "conflux: another conflux%s uses the state folder %s\n", words, t.dir);
    assert_string_equal(text, want);
    t.keeper = first;
    t.err_pipe = first_err;
}

static void name_in_folder(char out[128], const char *name) {
    assert_in_range(snprintf(out, 128, "%s/%s", t.dir, name), 1, 127);
}

/* Whichever of its files somebody has removed: the mark alone, the lock on the folder alone. */
static void test_state_folder_without_its_files(void **state) {
    (void)state;
    char lock[128], mark[128], words[40];
    start_keeper(.state_dir = t.dir);
    first_server();
    pid_t kid = spawn_kid("kid", "exec sleep 1000");
    name_in_folder(lock, "keeper.lock");
    name_in_folder(mark, "keeper.mark");
    snprintf(words, sizeof words, " (pid %d)", (int)t.keeper);
    assert_int_equal(unlink(lock), 0);
    another_is_refused(words);
    assert_int_equal(unlink(mark), 0);
    another_is_refused("");
    assert_true(alive(kid));
    end_well();
}

/* The lock is on another folder then: the mark tells. */
static void test_state_folder_that_was_moved(void **state) {
    (void)state;
    char from[128], to[128], other[160], words[40];
    start_keeper(.state_dir = t.dir);
    first_server();
    pid_t kid = spawn_kid("kid", "exec sleep 1000");
    snprintf(words, sizeof words, " (pid %d)", (int)t.keeper);
    snprintf(other, sizeof other, "%s/sub", t.dir);
    assert_int_equal(mkdir(other, 0700), 0);
    name_in_folder(from, "keeper.mark");
    name_in_folder(to, "sub/keeper.mark");
    assert_int_equal(rename(from, to), 0);
    char whole[sizeof t.dir];
    memcpy(whole, t.dir, sizeof whole);
    snprintf(t.dir, sizeof t.dir, "%.*s/sub", (int)sizeof t.dir - 8, whole);
    another_is_refused(words);
    memcpy(t.dir, whole, sizeof whole);
    assert_true(alive(kid));
    end_well();
}

/* What stands in the place of its files is moved aside; what it leads to stays as it was. */
static void test_state_folder_with_strange_things(void **state) {
    (void)state;
    static const char *const names[] = {"keeper.lock", "keeper.mark"};
    enum { LINK, DANGLING, HARD, PIPE, FOLDER, LOOP, SOCKET, KINDS };
    char victim[128], nothing[128], path[128], kept[16];
    name_in_folder(victim, "victim");
    name_in_folder(nothing, "nothing");
    for (int kind = 0; kind < KINDS; kind++) {
        FILE *f = fopen(victim, "we");
        assert_non_null(f);
        assert_true(fputs("not ours\n", f) >= 0);
        assert_int_equal(fclose(f), 0);
        for (int i = 0; i < 2; i++) {
            name_in_folder(path, names[i]);
            (void)unlink(path);
            if (kind == LINK) assert_int_equal(symlink(victim, path), 0);
            if (kind == DANGLING) assert_int_equal(symlink(nothing, path), 0);
            if (kind == HARD) assert_int_equal(link(victim, path), 0);
            if (kind == PIPE) assert_int_equal(mkfifo(path, 0600), 0);
            if (kind == FOLDER) assert_int_equal(mkdir(path, 0700), 0);
            if (kind == LOOP) assert_int_equal(symlink(names[i], path), 0);
            if (kind == SOCKET) assert_int_equal(mknod(path, S_IFSOCK | 0600, 0), 0);
        }
        start_keeper(.state_dir = t.dir);
        first_server();
        end_well();
        assert_int_equal(access(nothing, F_OK), -1);
        cp_autofd int fd = open(victim, O_RDONLY | O_CLOEXEC);
        assert_int_equal(read(fd, kept, sizeof kept), 9);
        assert_memory_equal(kept, "not ours\n", 9);
        const char *told = strstr(text, "state.aside");
        assert_non_null(told);
        assert_non_null(strstr(told + 1, "state.aside"));
    }
}

static void test_state_folder(void **state) {
    (void)state;
    char words[40];
    start_keeper(.state_dir = t.dir);
    first_server();
    snprintf(words, sizeof words, " (pid %d)", (int)t.keeper);
    another_is_refused(words);
    /* A keeper that is killed leaves its children; the next one sweeps them, and what they started. */
    pid_t kid = spawn_kid("kid", "(setsid sleep 1000 &); (exec prlimit --locks=9 sleep 1000) & echo up >&2;"
                                 "exec sleep 1000");
    text[0] = '\0';
    wait_for_text("up\n");
    assert_int_equal(kill(t.keeper, SIGKILL), 0);
    assert_int_equal(waitpid(t.keeper, NULL, 0), t.keeper);
    expect("lost");
    assert_true(alive(kid));
    int old_err = t.err_pipe;
    t.err_pipe = -1;
    start_keeper(.state_dir = t.dir);
    first_server();
    wait_readable(old_err); /* at its end: all that had it are gone */
    char rest[64];
    while (read(old_err, rest, sizeof rest) > 0) wait_readable(old_err);
    close(old_err);
    end_well();
}

int main(int argc, char **argv) {
    supervise_begin(argc, argv);
    const struct CMUnitTest tests[] = {
        TEST(test_first_start_fails),
        TEST(test_first_start_dies),
        TEST(test_first_start_is_silent),
        TEST(test_no_server_binary),
        TEST(test_stubborn_trees),
        TEST(test_second_term_does_not_wait),
        TEST(test_x15_unkillable_server_has_a_deadline),
        TEST(test_x15_unkillable_server_and_another_term),
        TEST(test_state_folder),
        TEST(test_state_folder_without_its_files),
        TEST(test_state_folder_that_was_moved),
        TEST(test_state_folder_with_strange_things),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
