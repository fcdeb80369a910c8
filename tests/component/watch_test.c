/* Streams of file events: what is told, in which order, and what happens at the limits. */
#include "component/watch_fixture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#include "base/metrics.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* "create a" or "create a/", by the path below the workspace. */
static void next_line(client *k, char out[512]) {
    assert_string_equal(next(k), "event");
    const char *path = text(k, "/path"), *below = path + strlen(fx.workspace);
    assert_memory_equal(path, fx.workspace, strlen(fx.workspace));
    assert_int_equal(yyjson_get_len(at(k, "/timestamp")), 24);
    snprintf(out, 512, "%s %s%s", text(k, "/eventType"), *below ? below + 1 : ".",
             yyjson_get_bool(at(k, "/isDirectory")) ? "/" : "");
}

static void expect(client *k, const char *const lines[], size_t n) {
    char line[512];
    for (size_t i = 0; i < n; i++) {
        next_line(k, line);
        assert_string_equal(line, lines[i]);
    }
    assert_string_equal(pull(k), "WAIT");
}
#define EXPECT(k, ...)                                                                                                 \
    expect(k, (const char *const[]){__VA_ARGS__}, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *))

/* In any order, each at least once, and nothing else. */
static void expect_set(client *k, const char *const lines[], size_t n) {
    char line[512];
    uint64_t got = 0;
    while (got != (UINT64_C(1) << n) - 1) {
        next_line(k, line);
        size_t i = 0;
        while (i < n && strcmp(lines[i], line) != 0) i++;
        if (i == n) fail_msg("unexpected: %s", line);
        got |= UINT64_C(1) << i;
    }
}
#define EXPECT_SET(k, ...)                                                                                             \
    expect_set(k, (const char *const[]){__VA_ARGS__}, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *))

static void a_file_comes_changes_and_goes(void **state) {
    (void)state;
    begin(&c, "{\"path\":\"@\"}");
    assert_string_equal(text(&c, "/path"), fx.workspace);
    put("a", "x");
    for (int i = 0; i < 100; i++) put("a", "more");
    EXPECT(&c, "create a", "modify a");
    rename_to("a", "b");
    EXPECT(&c, "move_from a", "move_to b");
    assert_int_equal(chmod(at_path("b"), 0644), 0); /* attrib is not told by default */
    delete_file("b");
    EXPECT(&c, "delete b");
}

static void the_last_word_on_a_path_comes_last(void **state) {
    (void)state;
    begin(&c, "{\"path\":\".\"}");
    put("a", "x");
    delete_file("a");
    put("a", "x");
    EXPECT(&c, "delete a", "create a", "modify a");
}

static void only_what_was_asked_for(void **state) {
    (void)state;
    begin(&c, "{\"path\":\"@\",\"events\":[\"attrib\",\"delete\"]}");
    put("a", "x");
    assert_int_equal(chmod(at_path("a"), 0644), 0);
    EXPECT(&c, "attrib a");
    delete_file("a");
    EXPECT(&c, "delete a");
}

static void a_new_tree_is_told_whole_and_watched(void **state) {
    (void)state;
    begin(&c, "{\"path\":\"@\"}");
    make_dir("a");
    make_dir("a/b");
    make_dir("a/b/c");
    put("a/b/c/f", "x");
    EXPECT_SET(&c, "create a/", "create a/b/", "create a/b/c/", "create a/b/c/f");
    put("a/b/c/f", "y");
    EXPECT(&c, "modify a/b/c/f");
}

/* Folders come into being while their parents are being walked: whatever the interleaving, every file is told. */
static void no_file_is_missed_in_new_folders(void **state) {
    (void)state;
    enum { TREES = 60 };
    bool seen[TREES] = {0};
    unsigned n = 0;
    begin(&c, "{\"path\":\"@\",\"events\":[\"create\"]}");
    pid_t pid = fork();
    if (pid == 0) {
        char name[64];
        for (int i = 0; i < TREES; i++) {
            snprintf(name, sizeof name, "%d", i);
            if (mkdir(at_path(name), 0700) < 0) _exit(1);
            snprintf(name, sizeof name, "%d/a", i);
            if (mkdir(at_path(name), 0700) < 0) _exit(1);
            snprintf(name, sizeof name, "%d/a/b", i);
            if (mkdir(at_path(name), 0700) < 0) _exit(1);
            snprintf(name, sizeof name, "%d/a/b/f", i);
            if (open(at_path(name), O_CREAT | O_WRONLY | O_CLOEXEC, 0600) < 0) _exit(1);
        }
        _exit(0);
    }
    while (n < TREES) {
        char line[512];
        int i, end = 0;
        next_line(&c, line);
        if (sscanf(line, "create %d/a/b/f%n", &i, &end) != 1 || !end) continue;
        n += !seen[i];
        seen[i] = true;
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void not_recursive(void **state) {
    (void)state;
    make_dir("old");
    begin(&c, "{\"path\":\"@\",\"recursive\":false}");
    put("old/f", "x");
    make_dir("new");
    put("new/f", "x");
    EXPECT(&c, "create new/");
}

static void a_renamed_folder_keeps_its_watches(void **state) {
    (void)state;
    make_dir("a");
    make_dir("a/b");
    begin(&c, "{\"path\":\"@\"}");
    rename_to("a", "z");
    put("z/b/f", "x");
    EXPECT(&c, "move_from a/", "move_to z/", "create z/b/f", "modify z/b/f");
    make_dir("a");
    put("a/g", "x");
    EXPECT_SET(&c, "create a/", "create a/g");
}

static void a_folder_that_leaves_is_forgotten(void **state) {
    (void)state;
    char out[128], inside[144];
    snprintf(out, sizeof out, "%s/out", fx.dir);
    make_dir("a");
    begin(&c, "{\"path\":\"@\"}");
    assert_int_equal(rename(at_path("a"), out), 0);
    snprintf(inside, sizeof inside, "%s/f", out);
    cp_autofd int fd = open(inside, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    put("mark", "x");
    EXPECT(&c, "move_from a/", "create mark", "modify mark");
    assert_int_equal(rename(out, at_path("back")), 0);
    EXPECT_SET(&c, "move_to back/", "create back/f");
    put("back/f", "x");
    EXPECT(&c, "modify back/f");
}

/* The end of the replaced folder is told after the new one has its name. */
static void a_folder_moved_over_another_is_watched(void **state) {
    (void)state;
    make_dir("out");
    make_dir("in");
    make_dir("in/a");
    begin(&c, "{\"path\":\"in\"}");
    assert_int_equal(rename(at_path("out"), at_path("in/a")), 0);
    EXPECT(&c, "move_to in/a/");
    put("in/a/f", "x");
    EXPECT(&c, "create in/a/f", "modify in/a/f");
}

static void patterns(void **state) {
    (void)state;
    make_dir("node_modules");
    make_dir(".git");
    begin(&c, "{\"path\":\"@\"}");
    put("node_modules/x", "x");
    make_dir(".git/refs");
    put(".DS_Store", "x");
    put("mark", "x");
    EXPECT(&c, "create mark", "modify mark");
    begin(&c, "{\"path\":\"@\",\"include\":[\"*.ts\"]}");
    make_dir("src");
    put("src/a.js", "x");
    put("src/a.ts", "x");
    next_line(&c, (char[512]){0});
    assert_string_equal(text(&c, "/eventType"), "create");
    assert_non_null(strstr(text(&c, "/path"), "/src/a.ts"));
    begin(&c, "{\"path\":\"@\",\"exclude\":[\"src/**.js\"]}");
    put("src/b.js", "x");
    put(".git/f", "x");
    EXPECT(&c, "create .git/f", "modify .git/f");
}

/* Under its new name what is below a folder is excluded no more. */
static void a_rename_changes_what_patterns_say(void **state) {
    (void)state;
    make_dir("a");
    make_dir("a/skip");
    begin(&c, "{\"path\":\"@\",\"exclude\":[\"a/skip\"]}");
    put("a/skip/f", "x");
    rename_to("a", "b");
    EXPECT(&c, "move_from a/", "move_to b/");
    put("b/skip/f", "x");
    EXPECT(&c, "modify b/skip/f");
}

static void one_file(void **state) {
    (void)state;
    put("f", "x");
    put("g", "x");
    begin(&c, "{\"path\":\"@/f\"}");
    put("g", "x");
    put("f", "x");
    EXPECT(&c, "modify f");
    rename_to("g", "f"); /* as editors save */
    EXPECT(&c, "move_to f");
    put("f", "x");
    EXPECT(&c, "modify f");
}

static void write_file(const char *name, const char *data) {
    cp_where w;
    cp_err err = {0};
    cp_write_spec spec = {.data = cp_str_of(data), .owner = CP_OWNER_KEEP, .atomic = true};
    assert_int_equal(cp_where_init(&w, fx.svc.files, fx.workspace, cp_str_of(name), &err), 0);
    if (cp_file_write(&w, &spec, &err) < 0) fail_msg("%s", err.msg);
}

static void our_own_writes_look_like_writes(void **state) {
    (void)state;
    begin(&c, "{\"path\":\"@\"}");
    write_file("f", "one");
    EXPECT(&c, "create f", "modify f");
    write_file("f", "two");
    EXPECT(&c, "modify f");
}

static void links_are_not_followed(void **state) {
    (void)state;
    char out[128];
    snprintf(out, sizeof out, "%s/out", fx.dir);
    assert_int_equal(mkdir(out, 0700), 0);
    assert_int_equal(symlink(out, at_path("link")), 0);
    begin(&c, "{\"path\":\"@\"}");
    put("link/f", "x");
    assert_int_equal(symlink("out", at_path("late")), 0);
    EXPECT(&c, "create late");
    ask_for(&d, "/api/watch", "{\"path\":\"@/link\"}");
    until(d.res.status);
    assert_int_equal(d.res.status, 403);
    assert_string_equal(text(&d, "/code"), "PERMISSION_DENIED");
}

static void a_removed_root_stops_the_stream(void **state) {
    (void)state;
    make_dir("r");
    cp_autofd int cwd = open(at_path("r"), O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* as a shell that stands in it */
    begin(&c, "{\"path\":\"r\"}");
    put("r/f", "x");
    delete_file("r/f");
    delete_dir("r");
    for (int i = 0; i < 3; i++) assert_string_equal(next(&c), "event");
    assert_string_equal(next(&c), "stopped");
    assert_string_equal(pull(&c), "END");
    ask_for(&c, "/api/watch", "{\"path\":\"r\"}");
    until(c.res.status);
    assert_int_equal(c.res.status, 404);
    assert_true(cwd >= 0);
}

static void the_stream_ends_after_what_came_before(void **state) {
    (void)state;
    char line[512];
    make_dir("r");
    begin(&c, "{\"path\":\"r\"}");
    put("r/f", "x");
    rename_to("r", "q");
    next_line(&c, line);
    assert_string_equal(line, "create r/f");
    next_line(&c, line);
    assert_string_equal(line, "modify r/f");
    assert_string_equal(next(&c), "stopped");
    assert_non_null(strstr(text(&c, "/reason"), "removed"));
    assert_string_equal(pull(&c), "END");
}

static void equal_requests_share_a_watcher(void **state) {
    (void)state;
    char id[64];
    begin(&c, "{\"path\":\"@\",\"exclude\":[\"a\",\"b\"]}");
    snprintf(id, sizeof id, "%s", text(&c, "/watchId"));
    assert_memory_equal(id, "watch-1-", 8);
    begin(&d, "{\"path\":\"@/\",\"exclude\":[\"b\",\"a\",\"b\"],\"recursive\":true}");
    assert_string_equal(text(&d, "/watchId"), id);
    put("f", "x");
    EXPECT(&c, "create f", "modify f");
    EXPECT(&d, "create f", "modify f");
    client_reset(&c);
    put("f", "x");
    EXPECT(&d, "modify f");
    client_reset(&d);
    begin(&c, "{\"path\":\"@\",\"exclude\":[\"a\",\"b\"]}");
    assert_string_not_equal(text(&c, "/watchId"), id);
    begin(&d, "{\"path\":\"@\",\"exclude\":[\"a\"]}");
    assert_string_not_equal(text(&c, "/watchId"), text(&d, "/watchId"));
}

static void given_up_before_it_is_ready(void **state) {
    (void)state;
    ask_for(&c, "/api/watch", "{\"path\":\"@\"}");
    ask_for(&d, "/api/watch", "{\"path\":\"@\"}");
    assert_false(c.reply.on_cancel(&c.reply, CP_END_CANCELLED, false));
    until(d.src);
    assert_string_equal(pull(&d), "watching");
    client_reset(&d);
    ask_for(&c, "/api/watch/check", "{\"path\":\"@\"}");
    assert_false(c.reply.on_cancel(&c.reply, CP_END_DISCONNECTED, false));
    client_reset(&c);
}

/* ---- limits ---- */

static void touch_many(const char *prefix, unsigned n, bool dirs) {
    char name[64];
    for (unsigned i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s%u", prefix, i);
        if (dirs) make_dir(name);
        else close(open(at_path(name), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    }
}

static void a_slow_subscriber_loses_what_is_too_much(void **state) {
    (void)state;
    begin(&c, "{\"path\":\"@\"}");
    touch_many("f", CP_WATCH_PENDING + 500, false);
    for (int i = 0; i < CP_WATCH_PENDING; i++) assert_string_equal(next(&c), "event");
    assert_string_equal(pull(&c), "WAIT");
    put("f0", "x");
    EXPECT(&c, "modify f0");
}

static void too_many_folders(void **state) {
    (void)state;
    touch_many("d", CP_WATCH_FOLDERS, true); /* and the root */
    ask_for(&c, "/api/watch", "{\"path\":\"@\"}");
    until(c.res.status);
    assert_int_equal(c.res.status, 500);
    assert_string_equal(text(&c, "/code"), "WATCH_START_ERROR");
    assert_non_null(strstr(text(&c, "/message"), "8192"));
    begin(&c, "{\"path\":\"@\",\"exclude\":[\"d1*\"]}");
}

static void no_descriptor_left(void **state) {
    (void)state;
    struct rlimit old, none;
    begin(&d, "{\"path\":\"@\"}"); /* the worker thread exists */
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(lowest);
    none = (struct rlimit){(rlim_t)lowest, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    ask_for(&c, "/api/watch", "{\"path\":\"@\",\"recursive\":false}");
    until(c.res.status);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_string_equal(text(&c, "/code"), "LIMIT_EXCEEDED");
    assert_non_null(strstr(text(&c, "/message"), "descriptors"));
    assert_string_equal(text(&c, "/context/path"), fx.workspace);
}

static unsigned queue_limit(void) {
    char *text_ = NULL;
    size_t n;
    assert_int_equal(cp_read_file("/proc/sys/fs/inotify/max_queued_events", 64, &text_, &n), 0);
    unsigned limit = (unsigned)strtoul(text_, NULL, 10);
    free(text_);
    return limit;
}

static void lost_events_are_told(void **state) {
    (void)state;
    char v[128], body[512];
    unsigned limit = queue_limit();
    if (limit > 100000) skip();
    ask_for(&d, "/api/watch/check", "{\"path\":\"@\"}");
    version_of(&d, v);
    begin(&c, "{\"path\":\"@\"}");
    for (unsigned n = 0; n <= limit; n += 2) {
        close(open(at_path("f"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
        delete_file("f");
    }
    const char *type;
    while (strcmp(type = next(&c), "event") == 0) continue;
    assert_string_equal(type, "error");
    assert_non_null(strstr(text(&c, "/error"), "lost"));
    assert_string_equal(pull(&c), "END");
    snprintf(body, sizeof body, "{\"path\":\"@\",\"since\":\"%s\"}", v);
    ask_for(&d, "/api/watch/check", body);
    version_of(&d, v);
    assert_string_equal(text(&d, "/status"), "resync");
}

/* Stands in for the C library's: counts the folders of a walk, and holds it at the third. */
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint added;
static atomic_bool holds;
int inotify_add_watch(int fd, const char *path, uint32_t mask) {
    if (atomic_fetch_add(&added, 1) == 2 && holds) {
        pthread_mutex_lock(&gate);
        pthread_mutex_unlock(&gate);
    }
    return (int)syscall(SYS_inotify_add_watch, fd, path, mask);
}

static void make_folders(void) {
    char name[16];
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "d%d", i);
        make_dir(name);
    }
}

/* X11: a walk whose client has gone ends where it is. */
static void a_walk_that_nobody_waits_for_ends(void **state) {
    (void)state;
    static const char *const routes[] = {"/api/watch", "/api/watch/check"};
    make_folders();
    for (size_t i = 0; i < CP_COUNT(routes); i++) {
        pthread_mutex_lock(&gate);
        added = 0;
        holds = true;
        ask_for(&c, routes[i], "{\"path\":\"@\"}");
        until(added == 3);
        assert_int_equal(cp_metric_values[CP_M_WATCH_WALKS], 1);
        assert_false(c.reply.on_cancel(&c.reply, CP_END_DISCONNECTED, false));
        holds = false;
        pthread_mutex_unlock(&gate);
        until(cp_metric_values[CP_M_WATCH_WALKS] == 0);
        assert_int_equal(added, 3);
        assert_int_equal(cp_metric_values[CP_M_WATCHERS], 0);
    }
    begin(&c, "{\"path\":\"@\"}"); /* who comes next finds nothing in the way */
}

static void hang(cp_work *w) {
    (void)w;
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
}
static void hung(cp_work *w) { (void)w; }

static void a_walk_that_has_not_begun_never_does(void **state) {
    (void)state;
    static cp_work blocks[2]; /* as many as the owner of walks may run at a time */
    pthread_mutex_lock(&gate);
    for (size_t i = 0; i < CP_COUNT(blocks); i++)
        cp_workers_submit_to(fx.svc.workers, CP_LANE_FILES, CP_OWNER_WATCH, &blocks[i], hang, hung);
    added = 0;
    ask_for(&c, "/api/watch", "{\"path\":\"@\"}");
    assert_int_equal(cp_metric_values[CP_M_WATCH_WALKS], 1);
    assert_false(c.reply.on_cancel(&c.reply, CP_END_CANCELLED, false));
    assert_int_equal(cp_metric_values[CP_M_WATCH_WALKS], 0);
    assert_int_equal(cp_metric_values[CP_M_WATCHERS], 0);
    pthread_mutex_unlock(&gate);
    begin(&c, "{\"path\":\"@\"}");
    assert_in_range(added, 1, 2); /* the folder, and the one that it is in */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_file_comes_changes_and_goes),
        TEST(the_last_word_on_a_path_comes_last),
        TEST(only_what_was_asked_for),
        TEST(a_new_tree_is_told_whole_and_watched),
        TEST(no_file_is_missed_in_new_folders),
        TEST(not_recursive),
        TEST(a_renamed_folder_keeps_its_watches),
        TEST(a_folder_that_leaves_is_forgotten),
        TEST(a_folder_moved_over_another_is_watched),
        TEST(patterns),
        TEST(a_rename_changes_what_patterns_say),
        TEST(one_file),
        TEST(our_own_writes_look_like_writes),
        TEST(links_are_not_followed),
        TEST(a_removed_root_stops_the_stream),
        TEST(the_stream_ends_after_what_came_before),
        TEST(equal_requests_share_a_watcher),
        TEST(given_up_before_it_is_ready),
        TEST(a_slow_subscriber_loses_what_is_too_much),
        TEST(too_many_folders),
        TEST(no_descriptor_left),
        TEST(lost_events_are_told),
        TEST(a_walk_that_nobody_waits_for_ends),
        TEST(a_walk_that_has_not_begun_never_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
