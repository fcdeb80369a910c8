/* The record of temporaries under way (services/files_temps.c), with servers that are killed: a child of the test does
 * what a server does, and ends by SIGKILL. */
#include "tests/component/files_fixture.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "services/watch_glob.h"

static char state_dir[64];
static char temp[40]; /* the name of the temporary */
static int dir = -1;  /* of the targets: "d" in the test's folder */

static int setup(void **state) {
    if (fx_setup(state) < 0) return -1;
    temp_dir_new(state_dir, "conflux-temps");
    assert_int_equal(mkdir(fx_path("d"), 0700), 0);
    dir = open(fx_path("d"), O_PATH | O_DIRECTORY | O_CLOEXEC);
    cp_temp_name(temp);
    return 0;
}

static int teardown(void **state) {
    cp_close(&dir);
    assert_int_equal(temp_dir_remove(state_dir), 0);
    return fx_teardown(state);
}

static void make_file(void) {
    cp_autofd int fd = openat(dir, temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) _exit(2);
}
static void fill_file(void) {
    cp_autofd int fd = openat(dir, temp, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || cp_write_all(fd, "half", 4) < 0) _exit(2);
}
static void make_link(void) {
    if (symlinkat("nowhere", dir, temp) < 0) _exit(2);
}
static void make_fifo(void) {
    if (mknodat(dir, temp, S_IFIFO | 0600, 0) < 0) _exit(2);
}
static void make_socket(void) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    cp_autofd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(a.sun_path, sizeof a.sun_path, "%s/d/%s", fx.dir, temp);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0) _exit(2);
}
static void make_folder(void) {
    if (mkdirat(dir, temp, 0700) < 0) _exit(2);
}
/* The inner one is closed to its owner, as the copy of such a folder is. */
static void fill_folder(void) {
    char path[128];
    snprintf(path, sizeof path, "%s/in", temp);
    if (mkdirat(dir, path, 0700) < 0) _exit(2);
    snprintf(path, sizeof path, "%s/in/file", temp);
    cp_autofd int fd = openat(dir, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    snprintf(path, sizeof path, "%s/in/link", temp);
    if (fd < 0 || symlinkat("/", dir, path) < 0) _exit(2);
    snprintf(path, sizeof path, "%s/in", temp);
    if (fchmodat(dir, path, 0, 0) < 0) _exit(2);
}
static void nothing(void) {}

/* NULL for a step: killed before it. */
static void killed_server(void (*make)(void), bool told, void (*fill)(void)) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        cp_temp p;
        cp_temp_begin(&p, cp_temps_new(state_dir), dir, temp);
        if (!p.in) _exit(3);
        make();
        if (told) cp_temp_made(&p, dir, temp);
        fill();
        raise(SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static unsigned records(void) {
    unsigned n = 0;
    cp_autodir DIR *d = opendir(state_dir);
    assert_non_null(d);
    for (struct dirent *e; (e = cp_dir_next(d));) n += strncmp(e->d_name, "temps-", 6) == 0;
    return n;
}

static cp_temps_swept sweep(void) {
    cp_temps_swept t;
    cp_temps_sweep(state_dir, &t);
    return t;
}

static void swept(unsigned removed, unsigned failed) {
    cp_temps_swept t = sweep();
    assert_int_equal(t.removed, removed);
    assert_int_equal(t.failed, failed);
    assert_int_equal(records(), failed ? 1 : 0);
}

static void test_every_kind(void **state) {
    (void)state;
    static const struct {
        void (*make)(void);
        bool told;
        void (*fill)(void);
        unsigned there;
    } kinds[] = {
        {nothing, false, nothing, 0},        {make_file, false, nothing, 1},   {make_file, true, nothing, 1},
        {make_file, true, fill_file, 1},     {make_link, false, nothing, 1},   {make_link, true, nothing, 1},
        {make_fifo, false, nothing, 1},      {make_fifo, true, nothing, 1},    {make_socket, false, nothing, 1},
        {make_socket, true, nothing, 1},     {make_folder, false, nothing, 1}, {make_folder, true, nothing, 1},
        {make_folder, true, fill_folder, 1},
    };
    for (size_t i = 0; i < CP_COUNT(kinds); i++) {
        killed_server(kinds[i].make, kinds[i].told, kinds[i].fill);
        assert_int_equal(fx_entries("d"), kinds[i].there);
        assert_int_equal(records(), 1);
        swept(kinds[i].there, 0);
        assert_int_equal(fx_entries("d"), 0);
    }
}

/* What has the name, or lies on the way, is something else by now. */
static void test_not_what_was_made(void **state) {
    (void)state;
    const char *at = fx_path("d/x");
    char path[CP_PATH_MAX];
    snprintf(path, sizeof path, "%s/d/%s", fx.dir, temp);

    killed_server(make_file, true, nothing);
    fx_put("d/x", "not ours", 8, 0600);
    assert_int_equal(rename(at, path), 0);
    swept(0, 0);
    assert_int_equal(fx_entries("d"), 1);
    assert_int_equal(unlink(path), 0);

    killed_server(make_folder, true, nothing);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    swept(0, 0);
    assert_int_equal(rmdir(path), 0);

    killed_server(nothing, false, nothing); /* before it was known by more than its name: what has content stays */
    fx_put("d/x", "not ours", 8, 0600);
    assert_int_equal(rename(at, path), 0);
    swept(0, 0);
    assert_int_equal(unlink(path), 0);
    killed_server(nothing, false, nothing);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path + strlen(path), 8, "/x");
    assert_int_equal(mkdir(path, 0700), 0);
    swept(0, 0);
    assert_int_equal(rmdir(path), 0);
}

/* The folder of the temporary is exchanged for a link to where somebody wants something removed. */
static void test_no_link_on_the_way(void **state) {
    (void)state;
    char name[64];
    killed_server(make_file, true, fill_file);
    assert_int_equal(rename(fx_path("d"), fx_path("e")), 0);
    assert_int_equal(symlink("e", fx_path("d")), 0);
    swept(0, 0);
    snprintf(name, sizeof name, "e/%s", temp);
    fx_holds(name, "half", 4);
    assert_int_equal(unlink(fx_path("d")), 0);
    assert_int_equal(rename(fx_path("e"), fx_path("d")), 0);
}

static void test_folder_gone(void **state) {
    (void)state;
    killed_server(make_file, true, nothing);
    assert_int_equal(unlinkat(dir, temp, 0), 0);
    swept(0, 0);
    killed_server(make_file, true, nothing);
    assert_int_equal(unlinkat(dir, temp, 0), 0);
    assert_int_equal(rmdir(fx_path("d")), 0);
    swept(0, 0);
}

/* Also while it drains, and the next one is there already. */
static void test_living_server(void **state) {
    (void)state;
    cp_temp p = {0};
    cp_temps *t = cp_temps_new(state_dir);
    assert_int_equal(records(), 0);
    cp_temp_begin(&p, t, dir, temp);
    make_file();
    cp_temp_made(&p, dir, temp);
    cp_temps_swept s = sweep();
    assert_int_equal(s.removed + s.failed, 0);
    assert_int_equal(fx_entries("d"), 1);
    assert_int_equal(records(), 1);
    cp_temps_free(t); /* with work that hangs: left to the next start */
    swept(1, 0);
    assert_int_equal(fx_entries("d"), 0);
}

static void test_ended_in_order(void **state) {
    (void)state;
    cp_temp p = {0};
    cp_temps *t = cp_temps_new(state_dir);
    cp_temp_begin(&p, t, dir, temp);
    make_file();
    cp_temp_made(&p, dir, temp);
    assert_int_equal(renameat(dir, temp, dir, "target"), 0);
    cp_temp_end(&p);
    cp_temp_end(&p);
    assert_int_equal(records(), 1);
    cp_temps_free(t);
    assert_int_equal(records(), 0);
    assert_true(fx_there("d/target"));
}

/* Who may not remove it says so, and the next start does. */
static void test_removal_fails(void **state) {
    (void)state;
    bool root = geteuid() == 0;
    if (root) {
        assert_int_equal(chmod(fx.dir, 0755), 0);
        assert_int_equal(chown(fx_path("d"), 65534, 65534), 0);
        assert_int_equal(chown(state_dir, 65534, 65534), 0);
        assert_int_equal(seteuid(65534), 0);
    }
    killed_server(make_folder, true, fill_folder);
    assert_int_equal(chmod(fx_path("d"), 0500), 0);
    swept(0, 1);
    assert_int_equal(fx_entries("d"), 1);
    swept(0, 1);
    assert_int_equal(chmod(fx_path("d"), 0700), 0);
    swept(1, 0);
    assert_int_equal(fx_entries("d"), 0);
    if (root) assert_int_equal(seteuid(0), 0);
}

static void test_more_than_slots(void **state) {
    (void)state;
    cp_temps *t = cp_temps_new(state_dir);
    cp_temp *p = cp_alloc((CP_TEMPS_MAX + 1) * sizeof *p);
    for (unsigned i = 0; i <= CP_TEMPS_MAX; i++) {
        cp_temp_begin(&p[i], t, dir, temp);
        assert_ptr_equal(p[i].in, i < CP_TEMPS_MAX ? t : NULL);
    }
    cp_temp_end(&p[CP_TEMPS_MAX]);
    unsigned slot = p[7].slot;
    cp_temp_end(&p[7]);
    cp_temp_begin(&p[7], t, dir, temp);
    assert_ptr_equal(p[7].in, t);
    assert_int_equal(p[7].slot, slot);
    for (unsigned i = 0; i < CP_TEMPS_MAX; i++) cp_temp_end(&p[i]);
    free(p);
    cp_temps_free(t);
    assert_int_equal(records(), 0);
}

/* The state folder's disk is full, or somebody has removed the record: the work goes on. */
static void test_record_fails(void **state) {
    (void)state;
    cp_temp p;
    cp_temps *t = cp_temps_new(state_dir);
    disk_full(true);
    errno = 7;
    cp_temp_begin(&p, t, dir, temp);
    assert_int_equal(errno, 7);
    disk_full(false);
    assert_null(p.in);
    cp_temp_made(&p, dir, temp);
    cp_temp_end(&p);
    cp_temp_begin(&p, t, dir, temp);
    assert_ptr_equal(p.in, t);
    cp_temp_end(&p);
    assert_int_equal(temp_dir_remove(state_dir), 0);
    cp_temp_begin(&p, t, dir, temp);
    assert_null(p.in);
    assert_int_equal(mkdir(state_dir, 0700), 0);
    cp_temp_begin(&p, t, dir, temp);
    assert_ptr_equal(p.in, t);
    assert_int_equal(records(), 1);
    cp_temp_end(&p);
    cp_temps_free(t);
}

/* A power cut may leave anything in it. */
static void test_damaged_record(void **state) {
    (void)state;
    char bytes[4096];
    for (unsigned i = 0; i < 100; i++) {
        killed_server(make_file, true, fill_file);
        cp_autodir DIR *d = opendir(state_dir);
        struct dirent *e = cp_dir_next(d);
        assert_non_null(e);
        cp_autofd int fd = openat(dirfd(d), e->d_name, O_RDWR | O_CLOEXEC);
        ssize_t n = pread(fd, bytes, sizeof bytes, 0);
        assert_true(n > 100);
        bytes[i] ^= 1;
        assert_int_equal(pwrite(fd, bytes, (size_t)n, 0), n);
        swept(0, 0);
        assert_int_equal(fx_entries("d"), 1);
        assert_int_equal(unlinkat(dir, temp, 0), 0);
    }
}

/* Somebody else's file, under a name that one of ours might have. */
static void test_not_a_record(void **state) {
    (void)state;
    static const char *const names[] = {"temps-0123456789abcdef", "temps-my-own-writings"};
    cp_autodir DIR *d = opendir(state_dir);
    for (size_t i = 0; i < CP_COUNT(names); i++) {
        cp_autofd int fd = openat(dirfd(d), names[i], O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_int_equal(write(fd, "mine", 4), 4);
    }
    (void)sweep();
    for (size_t i = 0; i < CP_COUNT(names); i++) assert_int_equal(unlinkat(dirfd(d), names[i], 0), 0);
}

/* Its path is longer than a call takes: found by walking down. */
static void test_deep(void **state) {
    (void)state;
    int first = dir;
    char part[201];
    memset(part, 'x', 200);
    part[200] = 0;
    for (int i = 0; i < 60; i++) {
        assert_int_equal(mkdirat(dir, part, 0700), 0);
        int next = openat(dir, part, O_PATH | O_DIRECTORY | O_CLOEXEC);
        assert_true(next >= 0);
        if (dir != first) close(dir);
        dir = next;
    }
    killed_server(make_file, true, fill_file);
    struct stat st;
    assert_int_equal(fstatat(dir, temp, &st, 0), 0);
    swept(1, 0);
    assert_int_equal(fstatat(dir, temp, &st, 0), -1);
    assert_int_equal(errno, ENOENT);
    close(dir);
    dir = first;
    assert_int_equal(cp_tree_remove(dir, part), 0);
}

/* The operations record what they make: none of them leaves a slot behind. */
static void test_operations_give_back(void **state) {
    (void)state;
    cp_temps *t = cp_temps_new(state_dir);
    cp_files_record(fx.svc.files, t);
    fx_put("d/old", "old", 3, 0600);
    assert_int_equal(mkdir(fx_path("d/sub"), 0700), 0);
    fx_put("d/sub/a", "a", 1, 0600);
    assert_int_equal(symlink("a", fx_path("d/sub/l")), 0);
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/d/old\",\"content\":\"new\"}"), 200);
    assert_int_equal(records(), 1);
    assert_int_equal(fx_post("/api/files/copy", "{\"source\":\"@/d\",\"destination\":\"@/e\",\"recursive\":true}"),
                     200);
    assert_int_equal(mkdir(fx_path("f"), 0700), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(fx_post("/api/files/copy",
                                 "{\"source\":\"@/d\",\"destination\":\"@/f\",\"recursive\":true,\"overwrite\":true}"),
                         200);
    assert_int_not_equal(
        fx_post("/api/files/copy", "{\"source\":\"@/d\",\"destination\":\"@/d/x\",\"recursive\":true}"), 200);
    cp_files_record(fx.svc.files, NULL);
    cp_temps_free(t); /* which keeps it while something is under way */
    assert_int_equal(records(), 0);
    fx_holds("f/d/sub/a", "a", 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
        T(test_every_kind),           T(test_not_what_was_made), T(test_no_link_on_the_way), T(test_folder_gone),
        T(test_living_server),        T(test_ended_in_order),    T(test_removal_fails),      T(test_more_than_slots),
        T(test_record_fails),         T(test_damaged_record),    T(test_not_a_record),       T(test_deep),
        T(test_operations_give_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
