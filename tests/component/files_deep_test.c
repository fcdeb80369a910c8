/* Trees of any depth (X01) and folders of any size (X38). The handlers run on a thread with as little stack as a worker
 * has, and with few descriptors. */
#include "component/files_fixture.h"

#include <pthread.h>
#include <sys/resource.h>

#include "services/archive.h"
#include "services/files_walk.h"

/* Sanitizers keep more on the stack. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { STACK = 1024 * 1024 };
#else
enum { STACK = 112 * 1024 };
#endif
enum {
    DEEP = 2100 /* twice that is over PATH_MAX */,
    LESS = 150 /* more than descriptors */,
    WIDE = 20,
    SIBLINGS = 40,
    FREE_FDS = 40
};

/* ---- on a small stack ---- */

typedef struct call {
    const char *path, *json;
    int status;
} call;

static void *run(void *arg) {
    call *c = arg;
    c->status = fx_post(c->path, "%s", c->json);
    return NULL;
}

static int on_small_stack(void *(*fn)(void *), void *arg) {
    pthread_t t;
    pthread_attr_t attr;
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, STACK), 0);
    assert_int_equal(pthread_create(&t, &attr, fn, arg), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    return pthread_attr_destroy(&attr);
}

static int post(const char *path, const char *json) {
    call c = {.path = path, .json = json};
    on_small_stack(run, &c);
    return c.status;
}

/* ---- trees ---- */

static struct rlimit before;
static int depth; /* of the tree, and how many entries it has */
static unsigned entries;

/* However many the test program has open: a few more. */
static void few_descriptors(void) {
    struct rlimit r;
    cp_autofd int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    r = before;
    r.rlim_cur = (rlim_t)lowest + FREE_FDS;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &r), 0);
}

/* In memory where there is such a file system: trees like these take a disk its time. */
static int setup(void **state) {
    char shm[] = "/dev/shm/conflux-deep.XXXXXX";
    fx_setup(state);
    if (mkdtemp(shm)) {
        assert_int_equal(rmdir(fx.dir), 0);
        memcpy(fx.dir, shm, sizeof shm);
    }
    few_descriptors();
    return 0;
}

static int teardown(void **state) {
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    (void)cp_tree_remove(AT_FDCWD, fx_path("t")); /* by descriptors: nftw cannot */
    (void)cp_tree_remove(AT_FDCWD, fx_path("copy"));
    (void)cp_tree_remove(AT_FDCWD, fx_path("low"));
    (void)cp_tree_remove(AT_FDCWD, fx_path("high"));
    return fx_teardown(state);
}

static void touch(int dir, const char *name) {
    cp_autofd int fd = openat(dir, name, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
}

/* t/d/d/d/…, with SIBLINGS files beside each of the upper ones: those folders are left and come back to. */
static void grow(int levels) {
    char name[16];
    depth = levels;
    entries = (unsigned)levels + WIDE * SIBLINGS + 1;
    assert_int_equal(mkdir(fx_path("t"), 0755), 0);
    cp_autofd int at = open(fx_path("t"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; i < levels; i++) {
        for (int k = 0; i < WIDE && k < SIBLINGS; k++) {
            snprintf(name, sizeof name, "f%d", k);
            touch(at, name);
            if (k == SIBLINGS / 2) assert_int_equal(mkdirat(at, "d", 0755), 0);
        }
        if (i >= WIDE) assert_int_equal(mkdirat(at, "d", 0755), 0);
        int next = openat(at, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        cp_close(&at);
        at = next;
    }
    touch(at, "end");
}

/* Counts what is there in `name`, and the depth of the file "end"; its mode. */
static void measure(const char *name, unsigned *count, unsigned *deepest, mode_t *mode) {
    cp_walk_entry e;
    cp_autowalk cp_walk *w = cp_walk_at(AT_FDCWD, fx_path(name));
    assert_non_null(w);
    for (*count = 0; cp_walk_next(w, &e);) {
        if (e.left) continue;
        ++*count;
        if (strcmp(e.name, "end") != 0) continue;
        *deepest = (unsigned)(strlen(e.relative) - 3) / 2;
        *mode = e.st.st_mode;
    }
    assert_int_equal(cp_walk_failed(w), 0);
}

static void is_whole(const char *name, mode_t want) {
    unsigned count, deepest = 0;
    mode_t mode = 0;
    measure(name, &count, &deepest, &mode);
    assert_int_equal(count, entries);
    assert_int_equal(deepest, depth);
    assert_int_equal(mode & 0777, want);
}

static void deep_change_and_copy(void **state) {
    (void)state;
    grow(DEEP);
    assert_int_equal(post("/api/files/chmod", "{\"path\":\"@/t\",\"mode\":\"0750\",\"recursive\":true}"), 200);
    is_whole("t", 0750);
    char chown[128];
    snprintf(chown, sizeof chown, "{\"path\":\"@/t\",\"uid\":%u,\"recursive\":true}", geteuid());
    assert_int_equal(post("/api/files/chown", chown), 200);
    assert_int_equal(post("/api/files/copy", "{\"source\":\"@/t\",\"destination\":\"@/copy\",\"recursive\":true}"),
                     200);
    is_whole("copy", 0750);
    assert_int_equal(post("/api/files/copy", "{\"source\":\"@/t/.\",\"destination\":\"@/copy\",\"recursive\":true,"
                                             "\"overwrite\":true}"),
                     200);
    is_whole("copy", 0750);
    assert_int_equal(cp_tree_remove(AT_FDCWD, fx_path("copy")), 0);
    assert_false(fx_there("copy"));
}

/* Needs a second file system, as mv_across_file_systems in files_test.c. */
static void deep_move(void **state) {
    (void)state;
    struct stat here, there;
    char other[] = "/tmp/conflux-deep-XXXXXX", json[256];
    assert_non_null(mkdtemp(other));
    bool differ = stat(fx.dir, &here) == 0 && stat(other, &there) == 0 && here.st_dev != there.st_dev;
    if (differ) {
        grow(DEEP);
        snprintf(json, sizeof json, "{\"sourcePath\":\"@/t\",\"destinationPath\":\"%s\"}", other);
        assert_int_equal(post("/api/move", json), 200);
        assert_false(fx_there("t"));
        snprintf(json, sizeof json, "{\"sourcePath\":\"%s/t\",\"destinationPath\":\"@\"}", other);
        assert_int_equal(post("/api/move", json), 200);
        is_whole("t", 0644);
    }
    cp_tree_remove(AT_FDCWD, other);
    if (!differ) skip();
}

static void deep_list(void **state) {
    (void)state;
    size_t i, n, at[WIDE] = {0}, folders = 0;
    yyjson_val *e;
    grow(DEEP);
    assert_int_equal(post("/api/list-files", "{\"path\":\"@/t\",\"options\":{\"recursive\":true}}"), 200);
    assert_int_equal(fx_num("count"), entries);
    assert_null(fx_get("skipped"));
    yyjson_arr_foreach(fx_get("files"), i, n, e) {
        const char *relative = yyjson_get_str(yyjson_obj_get(e, "relativePath"));
        const char *name = yyjson_get_str(yyjson_obj_get(e, "name"));
        if (*name == 'f') at[(strlen(relative) - strlen(name)) / 2] |= (size_t)1 << atoi(name + 1);
        folders += *name == 'd';
    }
    for (i = 0; i < WIDE; i++) assert_int_equal(at[i], ((size_t)1 << SIBLINGS) - 1);
    assert_int_equal(folders, depth);
}

static void *pack_and_unpack(void *arg) {
    static char piece[65536];
    cp_where from, to;
    cp_err err = {0};
    ssize_t n;
    *(bool *)arg = false;
    if (cp_where_init(&from, fx.svc.files, fx.dir, CP_STR("t"), &err) < 0 ||
        cp_where_init(&to, fx.svc.files, fx.dir, CP_STR("copy"), &err) < 0)
        return NULL;
    cp_pack *p = cp_pack_open(&from, true, &err);
    cp_unpack *u = p ? cp_unpack_open(&to, &(cp_unpack_limits){UINT64_MAX, UINT64_MAX}, &err) : NULL;
    while (u && (n = cp_pack_read(p, piece, sizeof piece, &err)) > 0)
        if (cp_unpack_feed(u, (cp_str){piece, (size_t)n}, &err) < 0) break;
    cp_unpack_report report;
    *(bool *)arg = u && !err.code && cp_unpack_finish(u, &report, &err) == 0 && report.entries == entries;
    cp_unpack_close(u);
    cp_pack_close(p);
    return NULL;
}

/* What we pack, we unpack. */
static void deep_archive(void **state) {
    (void)state;
    bool ok;
    grow(DEEP);
    on_small_stack(pack_and_unpack, &ok);
    assert_true(ok);
    is_whole("copy", 0644);
}

/* ---- races ---- */

#define TWELVE "d/d/d/d/d/d/d/d/d/d/d/d"

/* The folder that the walk is far below is moved away, so that ".." leads elsewhere: its parent is found by name. With
 * `link`, a folder above that is replaced by a link to elsewhere: there is no way back, and the link is none. */
static unsigned walk_while_moved(bool link, int *failed) {
    cp_walk_entry e;
    unsigned told = 0;
    grow(LESS);
    assert_int_equal(mkdir(fx_path("elsewhere"), 0755), 0);
    fx_put("elsewhere/stranger", "", 0, 0644);
    cp_autowalk cp_walk *w = cp_walk_at(AT_FDCWD, fx_path("t"));
    while (cp_walk_next(w, &e)) {
        assert_string_not_equal(e.name, "stranger");
        told += !e.left;
        if (strcmp(e.name, "end") != 0) continue;
        assert_int_equal(rename(fx_path("t/" TWELVE), fx_path("low")), 0);
        if (!link) continue;
        assert_int_equal(rename(fx_path("t/d/d"), fx_path("high")), 0);
        assert_int_equal(symlink("../../elsewhere", fx_path("t/d/d")), 0);
    }
    *failed = cp_walk_failed(w);
    return told;
}

static void moved_away(void **state) {
    (void)state;
    int failed;
    unsigned told = walk_while_moved(false, &failed);
    assert_int_equal(told, entries);
    assert_int_equal(failed, 0);
}

static void replaced_by_a_link(void **state) {
    (void)state;
    int failed;
    unsigned told = walk_while_moved(true, &failed);
    assert_true(told < entries);
    assert_true(failed == ELOOP || failed == ENOTDIR);
    assert_int_equal(cp_tree_remove(AT_FDCWD, fx_path("t")), 0);
    assert_true(fx_there("elsewhere/stranger"));
}

/* Entries come and go in a folder that the walk has left for a deep one: what stays is told once. */
static void changed_meanwhile(void **state) {
    (void)state;
    cp_walk_entry e;
    uint64_t seen = 0;
    char name[16];
    grow(LESS);
    cp_autowalk cp_walk *w = cp_walk_at(AT_FDCWD, fx_path("t"));
    while (cp_walk_next(w, &e)) {
        if (strcmp(e.relative, "d/d/d/d/d/d/d/d/d/d/d/d/d") == 0 && !e.left) {
            for (int k = 0; k < SIBLINGS; k++) {
                snprintf(name, sizeof name, "t/f%d", k);
                if (k % 2) assert_int_equal(unlink(fx_path(name)), 0);
                snprintf(name, sizeof name, "t/n%d", k);
                fx_put(name, "", 0, 0644);
            }
        }
        if (e.relative[0] != 'f') continue;
        uint64_t bit = (uint64_t)1 << atoi(e.name + 1);
        assert_false(seen & bit);
        seen |= bit;
    }
    assert_int_equal(cp_walk_failed(w), 0);
    for (int k = 0; k < SIBLINGS; k += 2) assert_true(seen >> k & 1);
}

/* ---- long lists ---- */

/* Page by page, as one answer: every entry once, also where a folder goes on far below another. */
static void list_in_pages(void **state) {
    (void)state;
    enum { PAGE = 97 };
    uint64_t count = 0, pages = 0;
    cp_autobuf cp_buf next = {0};
    uint64_t seen[WIDE] = {0}, folders = 0;
    size_t i, n;
    yyjson_val *e;
    grow(LESS);
    do {
        cp_autobuf cp_buf json = {0};
        cp_buf_addf(&json, "{\"path\":\"%s/t\",\"options\":{\"recursive\":true,\"limit\":%d", fx.dir, PAGE);
        if (next.n) cp_buf_addf(&json, ",\"after\":\"%s\"", cp_buf_z(&next));
        cp_buf_addz(&json, "}}");
        assert_int_equal(fx_post_str("/api/list-files", cp_buf_str(&json)), 200);
        assert_true(fx_num("count") <= PAGE);
        yyjson_arr_foreach(fx_get("files"), i, n, e) {
            const char *relative = yyjson_get_str(yyjson_obj_get(e, "relativePath"));
            const char *name = yyjson_get_str(yyjson_obj_get(e, "name"));
            uint64_t *at = &seen[(strlen(relative) - strlen(name)) / 2 % WIDE];
            folders += *name == 'd';
            if (*name != 'f') continue;
            assert_false(*at >> atoi(name + 1) & 1);
            *at |= (uint64_t)1 << atoi(name + 1);
        }
        count += (uint64_t)fx_num("count");
        pages++;
        cp_buf_clear(&next);
        if (yyjson_get_bool(fx_get("truncated"))) cp_buf_addz(&next, fx_str("next"));
    } while (next.n);
    assert_int_equal(count, entries);
    assert_int_equal(folders, depth);
    assert_int_equal(pages, (entries + PAGE - 1) / PAGE);
}

static void list_limits(void **state) {
    (void)state;
    static const char *const bad[] = {"", "Li4v", "L2E=", "MC4wL2E=", "MC8uLg==", "MC8vYQ==", "eC9h", "MC9hL2I=", "*"};
    char json[256];
    assert_int_equal(mkdir(fx_path("t"), 0755), 0);
    fx_put("t/a", "", 0, 0644);
    fx_put("t/b", "", 0, 0644);
    assert_int_equal(fx_post("/api/list-files", "{\"path\":\"@/t\",\"options\":{\"limit\":2}}"), 200);
    assert_int_equal(fx_num("count"), 2);
    assert_false(yyjson_get_bool(fx_get("truncated")));
    assert_null(fx_get("next"));
    assert_int_equal(fx_post("/api/list-files", "{\"path\":\"@/t\",\"options\":{\"limit\":1}}"), 200);
    assert_true(yyjson_get_bool(fx_get("truncated")));
    snprintf(json, sizeof json, "{\"path\":\"%s/t\",\"options\":{\"after\":\"%s\"}}", fx.dir, fx_str("next"));
    char first[16];
    snprintf(first, sizeof first, "%s", fx_str("files.0.name"));
    assert_int_equal(unlink(fx_path(*first == 'a' ? "t/a" : "t/b")), 0); /* gone meanwhile: passed over */
    assert_int_equal(fx_post("/api/list-files", "%s", json), 200);
    assert_int_equal(fx_num("count"), 1);
    assert_string_not_equal(fx_str("files.0.name"), first);
    assert_null(fx_get("truncated"));
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        assert_int_equal(fx_post("/api/list-files", "{\"path\":\"@/t\",\"options\":{\"after\":\"%s\"}}", bad[i]), 400);
        assert_string_equal(fx_str("code"), "VALIDATION_FAILED");
    }
    assert_int_equal(fx_post("/api/list-files", "{\"path\":\"@/t\",\"options\":{\"limit\":0}}"), 400);
}

/* Where it must be gathered, a long one is refused; over HTTP it is made while it is sent. */
static void long_list(void **state) {
    (void)state;
    char name[CP_NAME_MAX + 1];
    memset(name, 'x', CP_NAME_MAX);
    name[CP_NAME_MAX] = 0;
    assert_int_equal(mkdir(fx_path("t"), 0755), 0);
    cp_autofd int dir = open(fx_path("t"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; i < 2000; i++) { /* 1.8 MB of answer */
        snprintf(name, 16, "%06d", i);
        name[6] = 'x';
        touch(dir, name);
    }
    cp_autobuf cp_buf json = {0};
    cp_buf_addf(&json, "{\"path\":\"%s/t\"}", fx.dir);
    yyjson_doc *doc = yyjson_read(json.p, json.n, 0);
    cp_request req = {.method = CP_POST, .path = CP_STR("/api/list-files"), .body = yyjson_doc_get_root(doc)};
    cp_err err = {0};
    fx_forget();
    assert_int_equal(fx_route(CP_POST, "/api/list-files")->sync(&fx.ctx, &req, &fx.res, &err), 0);
    assert_non_null(fx.res.source); /* nothing of it is held but a piece */
    assert_int_equal(fx.res.body.n, 0);
    fx.res.source->close(cp_take(fx.res.source));
    assert_int_equal(fx_serve(fx_route(CP_POST, "/api/list-files"), &req), 200);
    assert_int_equal(fx_num("count"), 2000);
    yyjson_doc_free(doc);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        T(deep_change_and_copy), T(deep_move),         T(deep_list),     T(deep_archive), T(moved_away),
        T(replaced_by_a_link),   T(changed_meanwhile), T(list_in_pages), T(list_limits),  T(long_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
