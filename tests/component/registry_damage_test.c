/* X07: whatever happens to the files of the registry, it opens, takes rows and gives them back; what was there before
 * is moved aside, and who has the rows in memory is asked for them. */
#include "base/aside.h"
#include "base/clock.h"
#include "base/fd.h"
#include "component/disk.h"
#include "component/until.h"
#include "registry/registry.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, ROWS = 120, EVENTS = 200 };

static struct {
    char dir[64];
    cp_loop *loop;
    cp_registry *reg;
    int asked;   /* for what is in memory */
    char *whole; /* the file of a registry with rows */
    size_t size;
} fx;

static void path_of(char out[128], const char *name) { snprintf(out, 128, "%s/%s", fx.dir, name); }

static void on_renewed(void *arg) {
    (void)arg;
    fx.asked++;
}

static void open_it(void) {
    cp_err err = {0};
    fx.reg = cp_registry_open(fx.loop, fx.dir, &err);
    if (!fx.reg) fail_msg("%s", err.msg);
    cp_registry_on_renewed(fx.reg, on_renewed, NULL);
}

static void close_it(void) {
    cp_registry_close(fx.reg);
    fx.reg = NULL;
}

/* ---- rows ---- */

static void put_exec(const char *id, const char *command) {
    cp_exec_row row = {.id = id,
                       .process_id = id,
                       .kind = CP_ROW_PROCESS,
                       .command = command,
                       .cwd = "/tmp",
                       .fingerprint = {7},
                       .state = "ended",
                       .pid = 4242,
                       .started_ms = 1700000000000,
                       .ended_ms = 1700000000500,
                       .outcome = "exited"};
    cp_registry_put_exec(fx.reg, &row, NULL);
}

static void put_rows(void) {
    char id[32];
    for (int i = 0; i < ROWS; i++) {
        snprintf(id, sizeof id, "exec_%d", i);
        put_exec(id, "a command of some length, so that a page does not hold all of them at once: 0123456789");
    }
    for (int i = 0; i < EVENTS; i++) {
        cp_event_row ev = {.id = 1700000000000u + (unsigned)i, .type = "process.exited", .exec_id = "exec_1"};
        cp_registry_put_event(fx.reg, &ev, NULL);
    }
    cp_registry_put_session(fx.reg, &(cp_session_row){.id = "s", .cwd = "/usr", .state = "live"}, NULL);
    assert_int_equal(cp_registry_flush(fx.reg, NULL), 0);
}

struct seen {
    int execs, sessions, events;
    bool new_one;
};

static void see_exec(void *arg, const cp_exec_row *r) {
    struct seen *s = arg;
    s->execs++;
    s->new_one |= strcmp(r->id, "new") == 0;
    assert_non_null(r->command);
    assert_null(strchr(r->id, '/'));
}
static void see_session(void *arg, const cp_session_row *r) {
    ((struct seen *)arg)->sessions++;
    assert_non_null(r->id);
}
static void see_event(void *arg, const cp_event_row *r) {
    ((struct seen *)arg)->events++;
    assert_non_null(r->type);
}

static struct seen look(void) {
    struct seen s = {0};
    uint64_t first = 0;
    assert_int_equal(cp_registry_each_exec(fx.reg, see_exec, &s, NULL), 0);
    assert_int_equal(cp_registry_each_session(fx.reg, see_session, &s, NULL), 0);
    assert_int_equal(cp_registry_each_event(fx.reg, &first, see_event, &s, NULL), 0);
    assert_true(first > 1000000000000);
    return s;
}

/* It works, also for the one who opens it next. */
static void expect_service(void) {
    put_exec("new", "echo");
    assert_int_equal(cp_registry_flush(fx.reg, NULL), 0);
    assert_true(cp_registry_healthy(fx.reg));
    assert_true(look().new_one);
    close_it();
    open_it();
    assert_true(look().new_one);
}

/* ---- files ---- */

static int generations(void) {
    int n = 0;
    DIR *d = opendir(fx.dir);
    for (struct dirent *e; (e = readdir(d));) {
        const char *tail = e->d_name + strlen(e->d_name) - 4;
        n += strstr(e->d_name, ".damaged-") && strcmp(tail, "-wal") != 0 && strcmp(tail, "-shm") != 0;
    }
    closedir(d);
    return n;
}

static void empty_folder(void) {
    assert_int_equal(temp_dir_remove(fx.dir), 0);
    assert_int_equal(mkdir(fx.dir, 0700), 0);
}

static void write_file(const char *name, const void *p, size_t n) {
    char path[128];
    path_of(path, name);
    cp_autofd int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(cp_write_all(fd, p, n), 0);
}

static void overwrite(const char *name, off_t at, int byte, size_t n) {
    char path[128], junk[PAGE];
    path_of(path, name);
    memset(junk, byte, sizeof junk);
    cp_autofd int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, junk, n, at), n);
}

static int setup(void **state) {
    char path[128];
    (void)state;
    temp_dir_new(fx.dir, "cp-damage");
    fx.loop = cp_loop_new(NULL);
    fx.asked = 0;
    open_it();
    put_rows();
    close_it();
    path_of(path, "registry.db");
    return cp_read_file(path, 64 << 20, &fx.whole, &fx.size);
}

static int teardown(void **state) {
    (void)state;
    close_it();
    for (int i = 0; i < 3; i++) cp_loop_once(fx.loop, 0);
    cp_loop_free(fx.loop);
    free(fx.whole);
    return temp_dir_remove(fx.dir);
}

/* ---- found at the start ---- */

static const int patterns[] = {0, 0x5a, 0xff};

static void every_page_at_the_start(void **state) {
    (void)state;
    int all = 0, most = 0;
    assert_true(fx.size / PAGE > 10);
    for (size_t page = 0; page < fx.size / PAGE; page++) {
        for (size_t k = 0; k < CP_COUNT(patterns); k++) {
            empty_folder();
            write_file("registry.db", fx.whole, fx.size);
            overwrite("registry.db", (off_t)(page * PAGE), patterns[k], PAGE);
            open_it();
            most += look().execs > ROWS / 2;
            all++;
            expect_service();
            assert_in_range(generations(), 0, 1);
            close_it();
        }
    }
    assert_true(most > all / 2); /* one page of many takes few rows along */
}

static void the_header_byte_by_byte(void **state) {
    (void)state;
    for (int at = 0; at < 100; at += 3) {
        if (at >= 58 && at <= 63) continue; /* the schema's version: that of a newer program is refused */
        empty_folder();
        write_file("registry.db", fx.whole, fx.size);
        overwrite("registry.db", at, 0xa5, 1);
        open_it();
        expect_service();
        close_it();
    }
}

static void rows_that_are_none_of_ours(void **state) {
    (void)state;
    static const char id[] = "exec_3";
    for (char *p = fx.whole; (p = memmem(p, (size_t)(fx.whole + fx.size - p), id, 6)); p++) memcpy(p, "../../", 6);
    write_file("registry.db", fx.whole, fx.size);
    open_it();
    assert_true(look().execs < ROWS);
    expect_service();
}

static void truncated_at_the_start(void **state) {
    (void)state;
    for (size_t n = 0; n < fx.size; n += 3 * PAGE + 17) {
        empty_folder();
        write_file("registry.db", fx.whole, n);
        open_it();
        expect_service();
        close_it();
    }
}

static void other_things_in_its_place(void **state) {
    (void)state;
    static const char *const names[] = {"registry.db", "registry.db-wal", "registry.db-shm"};
    char path[128];
    for (size_t i = 0; i < CP_COUNT(names); i++) {
        for (int what = 0; what < 5; what++) {
            empty_folder();
            write_file("registry.db", fx.whole, fx.size);
            path_of(path, names[i]);
            (void)unlink(path);
            if (what == 0) assert_int_equal(mkdir(path, 0700), 0);
            if (what == 1) write_file(names[i], "no database", 11);
            if (what == 2) assert_int_equal(symlink("nowhere/at/all", path), 0);
            if (what == 3) assert_int_equal(mkfifo(path, 0600), 0);
            if (what == 4) assert_int_equal(mknod(path, S_IFSOCK | 0600, 0), 0);
            open_it();
            if (i == 2 || (i == 1 && what != 1)) assert_int_equal(look().execs, ROWS); /* the database is whole */
            expect_service();
            close_it();
        }
    }
}

/* What a link leads to is nobody's business here. What a second name leads to is read, and stays as it was. */
static void links_in_its_place(void **state) {
    (void)state;
    static const char *const names[] = {"registry.db", "registry.db-wal", "registry.db-shm"};
    char path[128], victim[128], nothing[128];
    path_of(victim, "victim");
    path_of(nothing, "nothing");
    for (size_t i = 0; i < CP_COUNT(names); i++) {
        for (int what = 0; what < 4; what++) {
            cp_autofree char *kept = NULL;
            size_t n;
            struct stat st;
            empty_folder();
            write_file("registry.db", fx.whole, fx.size);
            write_file("victim", fx.whole, fx.size);
            assert_int_equal(chmod(victim, 0644), 0);
            path_of(path, names[i]);
            (void)unlink(path);
            if (what == 0) assert_int_equal(symlink(victim, path), 0);
            if (what == 1) assert_int_equal(symlink(nothing, path), 0);
            if (what == 2) assert_int_equal(link(victim, path), 0);
            if (what == 3) assert_int_equal(symlink(names[i], path), 0);
            open_it();
            if (i > 0 || what == 2) assert_int_equal(look().execs, ROWS);
            expect_service();
            close_it();
            assert_int_equal(lstat(path, &st) == 0 && !S_ISREG(st.st_mode), 0);
            assert_int_equal(access(nothing, F_OK), -1);
            assert_int_equal(stat(victim, &st), 0);
            assert_int_equal(st.st_mode & 07777, 0644);
            assert_int_equal(cp_read_file(victim, 64 << 20, &kept, &n), 0);
            assert_int_equal(n, fx.size);
            assert_memory_equal(kept, fx.whole, n);
        }
    }
}

static void put_generation(const char *time) {
    char name[80];
    snprintf(name, sizeof name, "registry.db.damaged-%s", time);
    write_file(name, "x", 1);
}

/* The clock has been set back: those before it look newer. And what only looks like one of ours stays. */
static void the_one_just_made_is_kept(void **state) {
    (void)state;
    static const char *const future[] = {"2999-01-01T00:00:00.000Z", "2999-01-02T00:00:00.000Z",
                                         "2999-01-03T00:00:00.000Z", "2999-01-04T00:00:00.000Z"};
    char path[128], text[16] = "";
    cp_autofree char *moved = NULL;
    for (size_t i = 0; i < CP_COUNT(future); i++) put_generation(future[i]);
    put_generation("1999-my-own-notes-of-that-year");
    put_generation("1999-01-01T00:00:00.000Z.gz");
    write_file("registry.db", "the newest", 10);
    path_of(path, "registry.db");
    assert_int_equal(cp_move_aside(path, NULL, &moved), 0);
    cp_autofd int fd = open(moved, O_RDONLY | O_CLOEXEC);
    assert_int_equal(read(fd, text, sizeof text), 10);
    assert_int_equal(generations(), CP_ASIDE_KEPT + 2);
}

static void few_generations_are_kept(void **state) {
    (void)state;
    for (int i = 0; i < 2 * CP_ASIDE_KEPT; i++) {
        write_file("registry.db", "no database at all, not even the beginning of one", 49);
        open_it();
        close_it();
    }
    assert_int_equal(generations(), CP_ASIDE_KEPT);
}

/* ---- found while it runs ---- */

/* Whether it is asked for what is in memory; rows that are put then must be there. */
static void expect_mended(void) {
    loop_until(fx.loop, fx.asked);
    put_rows();
    expect_service();
    assert_int_equal(look().execs, ROWS + 1);
    assert_int_equal(look().events, EVENTS);
}

static void every_page_at_run_time(void **state) {
    (void)state;
    for (size_t page = 0; page < fx.size / PAGE; page++) {
        empty_folder();
        write_file("registry.db", fx.whole, fx.size);
        open_it();
        overwrite("registry.db", (off_t)(page * PAGE), 0x5a, PAGE);
        for (int i = 0; i < 3; i++) {
            put_exec("old", "echo");
            assert_int_equal(cp_registry_flush(fx.reg, NULL), 0);
        }
        close_it();
        open_it(); /* which finds what no write has come by */
        expect_service();
        close_it();
    }
}

static void removed(const char *name) {
    char path[128];
    path_of(path, name);
    fx.asked = 0;
    empty_folder();
    open_it();
    put_rows();
    assert_int_equal(unlink(path), 0);
    fx.asked = 0;
}

static void removed_while_it_runs(void **state) {
    (void)state;
    static const char *const names[] = {"registry.db", "registry.db-wal"};
    for (size_t i = 0; i < CP_COUNT(names); i++) {
        removed(names[i]);
        for (cp_event_row ev = {.id = 1, .type = "t"}; !fx.asked; ev.id++) { /* or it would be found within a second */
            cp_registry_put_event(fx.reg, &ev, NULL);
            assert_int_equal(cp_registry_flush(fx.reg, NULL), 0);
            cp_loop_once(fx.loop, 0);
        }
        cp_registry_del_events(fx.reg, 1600000000000);
        for (unsigned k = 0; k < EVENTS; k++)
            cp_registry_keep_event(fx.reg, &(cp_event_row){.id = 1700000000000u + k, .type = "process.exited"});
        put_exec("exec_0", "again");
        expect_service();
        assert_int_equal(look().events, EVENTS);
        close_it();
    }
}

static void folder_removed_while_it_is_idle(void **state) {
    (void)state;
    open_it();
    assert_int_equal(temp_dir_remove(fx.dir), 0);
    expect_mended();
    fx.asked = 0;
    char path[160];
    snprintf(path, sizeof path, "%s.file", fx.dir);
    cp_autofd int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(renameat2(AT_FDCWD, path, AT_FDCWD, fx.dir, RENAME_EXCHANGE), 0); /* a file in its place */
    assert_int_equal(temp_dir_remove(path), 0);
    expect_mended();
    snprintf(path, sizeof path, "rm -f %s.damaged-*", fx.dir);
    assert_int_equal(system(path), 0); /* NOLINT(cert-env33-c): a pattern, and nothing of a client's */
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(every_page_at_the_start),   T(the_header_byte_by_byte),         T(rows_that_are_none_of_ours),
        T(truncated_at_the_start),    T(other_things_in_its_place),       T(links_in_its_place),
        T(the_one_just_made_is_kept), T(few_generations_are_kept),        T(every_page_at_run_time),
        T(removed_while_it_runs),     T(folder_removed_while_it_is_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
