/* Chunked upload (conflux-additions.md, "Files"), by its handlers, with servers that come and go. */
#include "tests/component/files_fixture.h"

#include <pthread.h>
#include <time.h>

#include "base/age.h"
#include "component/clock_step.h"
#include "component/config_fixture.h"
#include "services/upload.h"

static char state_dir[64];

static bool swept;
static void nothing(cp_work *w) { (void)w; }
static void passed(cp_work *w) {
    (void)w;
    swept = true;
}

/* It has swept when this returns: no test changes the limits under it. */
static void server_starts(void) {
    cp_work barrier;
    fx.svc.uploads = cp_uploads_open(&fx.svc);
    swept = false;
    cp_workers_submit_to(fx.svc.workers, CP_LANE_FILES, CP_OWNER_UPKEEP, &barrier, nothing, passed);
    while (!swept) assert_true(cp_loop_once(fx.svc.loop, 1000) >= 0);
}

static void server_ends(void) {
    cp_uploads_close(fx.svc.uploads);
    cp_workers_free(fx.svc.workers);
    while (cp_loop_once(fx.svc.loop, 0) > 0) continue;
}

static int setup(void **state) {
    cp_err err = {0};
    if (fx_setup(state) < 0) return -1;
    config_defaults(&fx.config);
    temp_dir_new(state_dir, "conflux-uploads");
    fx.svc.state_dir = state_dir;
    fx.svc.loop = cp_loop_new(&err);
    fx.svc.workers = cp_workers_new(fx.svc.loop, 1, &err);
    server_starts();
    return 0;
}

static int teardown(void **state) {
    server_ends();
    cp_loop_free(fx.svc.loop);
    assert_int_equal(temp_dir_remove(state_dir), 0);
    return fx_teardown(state);
}

static void server_restarts(void) {
    cp_err err = {0};
    server_ends();
    fx.svc.workers = cp_workers_new(fx.svc.loop, 1, &err);
    server_starts();
}

static int put(const char *id, const char *name, int offset, const char *text, bool final) {
    return fx_post("/api/write",
                   "{\"path\":\"@/%s\",\"content\":\"%s\",\"uploadId\":\"%s\",\"offset\":%d,\"final\":%s}", name, text,
                   id, offset, final ? "true" : "false");
}

static int get(const char *id) {
    cp_request req = {.method = CP_GET, .params = {cp_str_of(id)}};
    return fx_serve(fx_route(CP_GET, "/api/files/upload/{uploadId}"), &req);
}

static bool flag(const char *path) { return yyjson_get_bool(fx_get(path)); }

/* Names in the folder of the files that no list shows: the temporary files. */
static unsigned temporaries(void) {
    unsigned n = 0;
    cp_autodir DIR *d = opendir(fx.dir);
    for (struct dirent *e; (e = cp_dir_next(d));) n += strncmp(e->d_name, ".conflux-", 9) == 0;
    return n;
}

static void temporary_path(char out[CP_PATH_MAX]) {
    cp_autodir DIR *d = opendir(fx.dir);
    for (struct dirent *e; (e = cp_dir_next(d));)
        if (strncmp(e->d_name, ".conflux-", 9) == 0) snprintf(out, CP_PATH_MAX, "%s/%s", fx.dir, e->d_name);
}

static void aged(const char *path, time_t seconds) {
    struct timespec t[2] = {{.tv_sec = time(NULL) - seconds}, {.tv_sec = time(NULL) - seconds}};
    assert_int_equal(utimensat(AT_FDCWD, path, t, 0), 0);
}

static void in_pieces(void **state) {
    (void)state;
    assert_int_equal(put("u1", "new/f", 0, "hello ", false), 200);
    assert_int_equal(fx_num("size"), 6);
    assert_false(flag("complete"));
    assert_false(fx_there("new/f"));
    assert_int_equal(put("u1", "new/f", 6, "world", true), 200);
    assert_int_equal(fx_num("size"), 11);
    assert_true(flag("complete"));
    fx_holds("new/f", "hello world", 11);
    assert_int_equal(fx_entries("new"), 1);
    assert_int_equal(get("u1"), 200);
    assert_true(flag("complete"));
    assert_string_equal(fx_str("path"), fx_path("new/f"));
}

static void the_old_file_until_the_last_piece(void **state) {
    (void)state;
    fx_put("f", "old", 3, 0640);
    assert_int_equal(put("u", "f", 0, "new ", false), 200);
    fx_holds("f", "old", 3);
    assert_int_equal(put("u", "f", 4, "text", true), 200);
    fx_holds("f", "new text", 8);
    assert_int_equal(fx_mode("f"), 0640);
}

static void another_offset_is_told_the_size(void **state) {
    (void)state;
    assert_int_equal(put("u", "f", 5, "x", false), 409);
    assert_int_equal(fx_num("context.size"), 0);
    assert_string_equal(fx_str("context.path"), fx_path("f"));
    assert_int_equal(put("u", "f", 0, "abc", false), 200);
    const int wrong[] = {0, 1, 4, 2000000000};
    for (size_t i = 0; i < CP_COUNT(wrong); i++) {
        assert_int_equal(put("u", "f", wrong[i], "zzz", false), 409);
        assert_string_equal(fx_str("code"), "OFFSET_CONFLICT");
        assert_int_equal(fx_num("context.size"), 3);
        assert_string_equal(fx_str("context.uploadId"), "u");
    }
    assert_int_equal(put("u", "f", 3, "def", true), 200);
    fx_holds("f", "abcdef", 6);
}

static void the_last_piece_may_come_again(void **state) {
    (void)state;
    assert_int_equal(put("u", "f", 0, "abc", false), 200);
    assert_int_equal(put("u", "f", 3, "de", true), 200);
    assert_int_equal(put("u", "f", 3, "de", true), 200);
    assert_int_equal(fx_num("size"), 5);
    assert_int_equal(put("u", "f", 0, "abc", false), 409);
    assert_true(flag("context.complete"));
    assert_int_equal(put("u", "f", 5, "more", true), 409);
    fx_holds("f", "abcde", 5);
}

static void over_a_restart(void **state) {
    (void)state;
    assert_int_equal(put("u", "f", 0, "one ", false), 200);
    server_restarts();
    assert_int_equal(get("u"), 200);
    assert_int_equal(fx_num("size"), 4);
    assert_false(flag("complete"));
    assert_int_equal(put("u", "f", 4, "two", true), 200);
    server_restarts();
    assert_int_equal(get("u"), 200);
    assert_true(flag("complete"));
    assert_int_equal(fx_num("size"), 7);
    fx_holds("f", "one two", 7);
}

/* Killed in the middle of a piece: what is in the file counts, not what was acknowledged. */
static void the_file_is_the_state(void **state) {
    (void)state;
    char temp[CP_PATH_MAX] = "";
    assert_int_equal(put("u", "f", 0, "abc", false), 200);
    temporary_path(temp);
    cp_autofd int fd = open(temp, O_WRONLY | O_APPEND | O_CLOEXEC);
    assert_int_equal(write(fd, "de", 2), 2);
    assert_int_equal(put("u", "f", 3, "defg", false), 409);
    assert_int_equal(fx_num("context.size"), 5);
    assert_int_equal(put("u", "f", 5, "fg", true), 200);
    fx_holds("f", "abcdefg", 7);
}

static void fields_are_checked(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"\"offset\":0", "offset"},
        {"\"final\":true", "final"},
        {"\"uploadId\":\"a/b\",\"offset\":0", "uploadId"},
        {"\"uploadId\":\"\",\"offset\":0", "uploadId"},
        {"\"uploadId\":\"u\"", "offset"},
        {"\"uploadId\":\"u\",\"offset\":-1", "offset"},
        {"\"uploadId\":\"u\",\"offset\":0,\"append\":true", "append"},
        {"\"uploadId\":\"u\",\"offset\":0,\"atomic\":false", "atomic"},
        {"\"uploadId\":\"u\",\"offset\":0,\"final\":1", "final"},
    };
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        assert_int_equal(fx_post("/api/write", "{\"path\":\"@/f\",\"content\":\"x\",%s}", bad[i][0]), 400);
        assert_string_equal(fx_str("context.validationErrors.0.field"), bad[i][1]);
    }
    assert_int_equal(put("u", "f", 0, "x", false), 200);
    assert_int_equal(put("u", "other", 1, "x", false), 400);
    assert_string_equal(fx_str("context.validationErrors.0.field"), "uploadId");
    assert_int_equal(get("nobody"), 404);
    assert_string_equal(fx_str("code"), "UPLOAD_NOT_FOUND");
    assert_int_equal(get("..%2Fx"), 404);
}

static void confined_to_the_root(void **state) {
    (void)state;
    assert_int_equal(mkdir(fx_path("in"), 0755), 0);
    assert_int_equal(symlink("../", fx_path("in/up")), 0);
    fx_root(fx_path("in"));
    assert_int_equal(put("u", "out", 0, "x", true), 403);
    assert_int_equal(put("u", "in/up/out", 0, "x", true), 403);
    assert_false(fx_there("out"));
    assert_int_equal(put("u", "in/f", 0, "x", true), 200);
    fx_holds("in/f", "x", 1);
}

static void a_full_disk_leaves_nothing_or_what_was_there(void **state) {
    (void)state;
    disk_full(true);
    int status = put("u", "f", 0, "abcdef", true);
    disk_full(false);
    assert_int_equal(status, 500);
    assert_string_equal(fx_str("code"), "NO_SPACE");
    assert_false(fx_there("f"));
    assert_int_equal(temporaries(), 0);
    assert_int_equal(get("u"), 404);
    assert_int_equal(put("v", "f", 0, "abc", false), 200);
    disk_full(true);
    assert_true(put("v", "f", 3, "def", true) >= 400);
    disk_full(false);
    assert_int_equal(get("v"), 200);
    assert_int_equal(fx_num("size"), 3);
    assert_int_equal(put("v", "f", 3, "def", true), 200);
    fx_holds("f", "abcdef", 6);
}

/* Eight at once with the same piece, over and over: it is taken once, the others are told the size. */
enum { RACERS = 8, ROUNDS = 20 };

typedef struct racer {
    pthread_t thread;
    pthread_barrier_t *go;
    int taken, told;
} racer;

static void *race(void *arg) {
    racer *r = arg;
    cp_where w;
    cp_err err = {0};
    cp_upload_state st;
    if (cp_where_init(&w, fx.svc.files, fx.dir, CP_STR("raced"), &err) < 0) return NULL;
    for (uint64_t i = 0; i < ROUNDS; i++) {
        cp_upload_piece piece = {.id = CP_STR("race"),
                                 .given = CP_STR("raced"),
                                 .offset = 4 * i,
                                 .data = CP_STR("abcd"),
                                 .final = i == ROUNDS - 1,
                                 .owner = CP_OWNER_KEEP};
        pthread_barrier_wait(r->go);
        if (cp_upload_put(fx.svc.uploads, &w, &piece, &st, &err) == 0) r->taken++;
        else if (err.code == CP_E_OFFSET_CONFLICT && st.size == 4 * (i + 1)) r->told++;
    }
    return NULL;
}

static void at_once(void **state) {
    (void)state;
    racer racers[RACERS] = {0};
    pthread_barrier_t go;
    int taken = 0, told = 0;
    pthread_barrier_init(&go, NULL, RACERS);
    for (size_t i = 0; i < RACERS; i++) {
        racers[i].go = &go;
        assert_int_equal(pthread_create(&racers[i].thread, NULL, race, &racers[i]), 0);
    }
    for (size_t i = 0; i < RACERS; i++) {
        pthread_join(racers[i].thread, NULL);
        taken += racers[i].taken;
        told += racers[i].told;
    }
    pthread_barrier_destroy(&go);
    /* The last piece may come again: all eight are answered alike. */
    assert_int_equal(taken, ROUNDS - 1 + RACERS);
    assert_int_equal(told, (ROUNDS - 1) * (RACERS - 1));
    struct stat st;
    assert_int_equal(stat(fx_path("raced"), &st), 0);
    assert_int_equal(st.st_size, 4 * ROUNDS);
    assert_int_equal(temporaries(), 0);
}

/* No folder can be made for the records: refused, and well as soon as one can. */
static void a_state_folder_without_room(void **state) {
    (void)state;
    const char *there = fx.svc.state_dir;
    fx.svc.state_dir = "/proc/self/no-such-folder";
    assert_int_equal(put("u", "f", 0, "x", true), 500);
    assert_int_equal(get("u"), 500);
    fx.svc.state_dir = there;
    assert_int_equal(put("u", "f", 0, "x", true), 200);
}

/* What stood in the place of the folder, or of a record, is out of the way; what was known is not any more. */
static void a_file_in_the_place_of_the_records(void **state) {
    (void)state;
    char path[80], record[90];
    snprintf(path, sizeof path, "%s/uploads", state_dir);
    snprintf(record, sizeof record, "%s/u-u", path);
    assert_int_equal(put("u", "f", 0, "x", false), 200);
    assert_int_equal(rename(path, fx_path("elsewhere")), 0);
    cp_autofd int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_int_equal(get("u"), 404);
    assert_int_equal(put("u", "f", 1, "y", true), 409);
    assert_int_equal(put("u", "f", 0, "x", false), 200);
    assert_int_equal(unlink(record), 0);
    assert_int_equal(mkdir(record, 0700), 0);
    assert_int_equal(put("u", "f", 0, "xy", true), 200);
    struct stat st;
    assert_int_equal(stat(fx_path("f"), &st), 0);
    assert_int_equal(st.st_size, 2);
}

static void too_many(void **state) {
    (void)state;
    char temp[CP_PATH_MAX] = "";
    fx.config.max_uploads = 2;
    assert_int_equal(put("u1", "f1", 0, "x", false), 200);
    temporary_path(temp);
    assert_int_equal(put("u2", "f2", 0, "x", false), 200);
    assert_int_equal(put("u3", "f3", 0, "x", false), 429);
    assert_string_equal(fx_str("code"), "LIMIT_EXCEEDED");
    assert_int_equal(put("u1", "f1", 1, "y", false), 200); /* those that are there go on */
    aged(temp, CP_UPLOAD_IDLE_S + 1);
    assert_int_equal(put("u3", "f3", 0, "x", false), 200); /* in the place of the one that was left */
    assert_int_equal(get("u1"), 404);
    assert_int_equal(get("u2"), 200);
    assert_int_equal(temporaries(), 2);
}

static void too_many_bytes(void **state) {
    (void)state;
    fx.config.upload_bytes = 8;
    assert_int_equal(put("u1", "f1", 0, "12345", false), 200);
    assert_int_equal(put("u2", "f2", 0, "6789", false), 429);
    assert_int_equal(put("u1", "f1", 5, "678", true), 200);
    assert_int_equal(put("u2", "f2", 0, "6789", false), 200); /* what is published does not count */
}

static void abandoned_ones_go(void **state) {
    (void)state;
    char temp[CP_PATH_MAX] = "";
    assert_int_equal(put("u", "f", 0, "x", false), 200);
    temporary_path(temp);
    aged(temp, fx.config.upload_age - 60);
    cp_uploads_sweep(fx.svc.uploads, 0, 0);
    assert_int_equal(get("u"), 200);
    aged(temp, fx.config.upload_age + 1);
    server_restarts();
    server_restarts(); /* the first one's sweep has run when it has ended */
    assert_int_equal(get("u"), 404);
    assert_int_equal(temporaries(), 0);
}

/* The system's clock is set: what has just been moved is not idle for that. */
static void a_clock_that_is_set(void **state) {
    (void)state;
    cp_age_look();
    assert_int_equal(put("u", "f", 0, "x", false), 200);
    clock_step_s = fx.config.upload_age + 60;
    cp_uploads_sweep(fx.svc.uploads, 0, 0);
    bool kept = get("u") == 200;
    clock_step_s = 0;
    assert_true(kept);
    assert_int_equal(put("u", "f", 1, "y", true), 200);
}

static void record_of(char out[CP_PATH_MAX], const char *name) {
    snprintf(out, CP_PATH_MAX, "%s/uploads/%s", fx.svc.state_dir, name);
}

static void write_mine(const char *name) {
    char path[CP_PATH_MAX];
    record_of(path, name);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs("mine", f) >= 0);
    assert_int_equal(fclose(f), 0);
    aged(path, fx.config.upload_age + 1);
}

/* Files in the folder of the records that are none stay, whatever they are called, and so does what a link leads to. An
 * upload whose record would have such a name moves it aside. */
static void what_is_no_record_stays(void **state) {
    (void)state;
    static const char *const names[] = {"photo.jpg", "u-photo", "u-"};
    char path[CP_PATH_MAX], link[CP_PATH_MAX];
    struct stat st;
    assert_int_equal(put("first", "f", 0, "x", true), 200);
    for (size_t i = 0; i < CP_COUNT(names); i++) write_mine(names[i]);
    record_of(path, "photo.jpg");
    record_of(link, "u-link");
    assert_int_equal(symlink(path, link), 0);
    cp_uploads_sweep(fx.svc.uploads, 0, 0);
    for (size_t i = 0; i < CP_COUNT(names); i++) {
        record_of(path, names[i]);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size, 4);
    }
    assert_int_equal(lstat(link, &st), 0);
    assert_int_equal(get("photo"), 404);
    assert_int_equal(put("photo", "f2", 0, "x", false), 200);
    assert_int_equal(put("link", "f3", 0, "x", false), 200);
    assert_int_equal(get("photo"), 200);
    unsigned kept = 0;
    record_of(path, "");
    cp_autodir DIR *d = opendir(path);
    for (struct dirent *e; (e = cp_dir_next(d));) kept += strstr(e->d_name, ".damaged-") != NULL;
    assert_int_equal(kept, 2);
    record_of(path, "photo.jpg");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 4);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(in_pieces),
        T(the_old_file_until_the_last_piece),
        T(another_offset_is_told_the_size),
        T(the_last_piece_may_come_again),
        T(over_a_restart),
        T(the_file_is_the_state),
        T(fields_are_checked),
        T(confined_to_the_root),
        T(a_full_disk_leaves_nothing_or_what_was_there),
        T(at_once),
        T(a_state_folder_without_room),
        T(a_file_in_the_place_of_the_records),
        T(too_many),
        T(too_many_bytes),
        T(abandoned_ones_go),
        T(what_is_no_record_stays),
        T(a_clock_that_is_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
