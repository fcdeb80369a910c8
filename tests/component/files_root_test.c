/* --file-root: nothing leaves it, by whatever way (field case B083). */
#include "tests/component/files_fixture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>

/* The root is @/w; @/out is outside, with a secret in it. */
static int setup(void **state) {
    if (fx_setup(state) < 0) return -1;
    if (mkdir(fx_path("w"), 0755) < 0 || mkdir(fx_path("out"), 0755) < 0) return -1;
    fx_put("out/secret", "secret", 6, 0644);
    fx_put("w/in", "inside", 6, 0644);
    if (symlink("../out", fx_path("w/up")) < 0 || symlink(fx_path("out"), fx_path("w/abs")) < 0 ||
        symlink("../out/secret", fx_path("w/last")) < 0 || symlink("../out/new", fx_path("w/dangling")) < 0 ||
        symlink("in", fx_path("w/good")) < 0)
        return -1;
    fx_root(fx_path("w"));
    return 0;
}

static void refused(int status) {
    if (status != 403) fail_msg("%d: %.*s", status, (int)fx.res.body.n, fx.res.body.p);
    assert_string_equal(fx_str("code"), "PERMISSION_DENIED");
    assert_null(memmem(fx.res.body.p, fx.res.body.n, "\"secret\"", 8));
}

static void inside_works(void **state) {
    (void)state;
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/w/in\"}"), 200);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/w/good\"}"), 200);
    assert_string_equal(fx_str("content"), "inside");
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/w/a/b/c\",\"content\":\"x\"}"), 200);
    fx_holds("w/a/b/c", "x", 1);
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/w/good\",\"content\":\"through\"}"), 200);
    fx_holds("w/in", "through", 7);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/w/a/../in\"}"), 200);
    assert_int_equal(fx_post("/api/list-files", "{\"path\":\"@/w\",\"options\":{\"recursive\":true}}"), 200);
    assert_int_equal(fx_num("count"), 9); /* in, 5 links, a, a/b, a/b/c */
    assert_int_equal(fx_post("/api/rename", "{\"oldPath\":\"@/w/in\",\"newPath\":\"@/w/a\"}"), 200);
    fx_holds("w/a/in", "through", 7);
    assert_int_equal(fx_post("/api/delete", "{\"path\":\"@/w/a/in\"}"), 200);
    /* The links themselves are inside. */
    assert_int_equal(fx_post("/api/files/stat", "{\"path\":\"@/w/last\"}"), 200);
    assert_string_equal(fx_str("target"), "../out/secret");
    assert_int_equal(fx_post("/api/delete", "{\"path\":\"@/w/last\"}"), 200);
    fx_holds("out/secret", "secret", 6);
    assert_int_equal(fx_post("/api/delete", "{\"path\":\"@/w\"}"), 400);
}

static void every_operation_is_confined(void **state) {
    (void)state;
    static const char *const paths[] = {
        "@/w/up/secret", "@/w/abs/secret",         "@/w/last", "@/w/../out/secret", "@/out/secret",
        "/etc/passwd",   "@/w/x/../../out/secret", "@",        "../out/secret",
    };
    static const char *const routes[] = {"/api/read", "/api/list-files", "/api/files/stat"};
    mkdir(fx_path("w/x"), 0755);
    for (size_t i = 0; i < CP_COUNT(paths); i++) {
        for (size_t k = 0; k < CP_COUNT(routes); k++)
            refused(fx_post(routes[k], "{\"path\":\"%s\"%s}", paths[i],
                            strstr(routes[k], "stat") ? ",\"follow\":true" : ""));
        refused(fx_post("/api/write", "{\"path\":\"%s\",\"content\":\"x\"}", paths[i]));
        refused(fx_post("/api/write", "{\"path\":\"%s\",\"content\":\"x\",\"atomic\":false}", paths[i]));
        refused(fx_post("/api/write", "{\"path\":\"%s\",\"content\":\"x\",\"append\":true}", paths[i]));
        refused(fx_post("/api/files/chmod", "{\"path\":\"%s\",\"mode\":511}", paths[i]));
        refused(fx_post("/api/files/chown", "{\"path\":\"%s\",\"uid\":1}", paths[i]));
        int status = fx_post("/api/exists", "{\"path\":\"%s\"}", paths[i]);
        if (status == 200) assert_false(yyjson_get_bool(fx_get("exists")));
        else refused(status);
    }
    fx_holds("out/secret", "secret", 6);
}

static void parents_and_names_are_confined(void **state) {
    (void)state;
    refused(fx_post("/api/write", "{\"path\":\"@/w/dangling\",\"content\":\"x\"}"));
    refused(fx_post("/api/write", "{\"path\":\"@/w/up/n/e/w\",\"content\":\"x\"}"));
    refused(fx_post("/api/mkdir", "{\"path\":\"@/w/up/d\"}"));
    refused(fx_post("/api/mkdir", "{\"path\":\"@/w/up/d/e\",\"recursive\":true}"));
    refused(fx_post("/api/mkdir", "{\"path\":\"@/w/../out/d\",\"recursive\":true}"));
    refused(fx_post("/api/delete", "{\"path\":\"@/w/up/secret\"}"));
    refused(fx_post("/api/rename", "{\"oldPath\":\"@/w/up/secret\",\"newPath\":\"@/w/got\"}"));
    refused(fx_post("/api/rename", "{\"oldPath\":\"@/w/in\",\"newPath\":\"@/w/up/gone\"}"));
    refused(fx_post("/api/move", "{\"sourcePath\":\"@/w/in\",\"destinationPath\":\"@/w/up\"}"));
    refused(fx_post("/api/move", "{\"sourcePath\":\"@/w/in\",\"destinationPath\":\"@/out/\"}"));
    refused(fx_post("/api/files/copy", "{\"source\":\"@/w/abs/secret\",\"destination\":\"@/w/got\"}"));
    refused(fx_post("/api/files/copy", "{\"source\":\"@/w/in\",\"destination\":\"@/w/up/got\"}"));
    /* A link that is copied stays a link. */
    assert_int_equal(fx_post("/api/files/copy", "{\"source\":\"@/w/last\",\"destination\":\"@/w/copy\"}"), 200);
    refused(fx_post("/api/read", "{\"path\":\"@/w/copy\"}"));
    assert_int_equal(fx_entries("out"), 1);
    assert_true(fx_there("w/in"));
}

static void magic_links_are_refused(void **state) {
    (void)state;
    fx_root("/proc");
    int status = fx_post("/api/read", "{\"path\":\"/proc/self/root/etc/passwd\"}");
    assert_true(status == 403 || status == 500);
    assert_null(fx_get("content"));
}

static void a_root_that_is_none(void **state) {
    (void)state;
    cp_err err = {0};
    assert_null(cp_files_open("/no/such/root", &err));
    assert_non_null(strstr(err.msg, "--file-root /no/such/root"));
    assert_null(cp_files_open(fx_path("w/in"), &err));
}

/* Roots by another name: through a link, and with a slash at the end. */
static void both_spellings_of_the_root(void **state) {
    (void)state;
    char alias[CP_PATH_MAX];
    assert_int_equal(symlink("w", fx_path("alias")), 0);
    snprintf(alias, sizeof alias, "%s/alias/", fx.dir);
    fx_root(alias);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/alias/in\"}"), 200);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/w/in\"}"), 200);
    refused(fx_post("/api/read", "{\"path\":\"@/alias/up/secret\"}"));
}

/* ---- the race ---- */

static atomic_bool stop;

/* w/d is now a folder, now a link to the outside. */
static void *swap(void *arg) {
    (void)arg;
    int dir = open(fx_path("w"), O_PATH | O_CLOEXEC);
    while (!atomic_load(&stop))
        if (syscall(SYS_renameat2, dir, "d", dir, "evil", 2 /* RENAME_EXCHANGE */) < 0) break;
    close(dir);
    return NULL;
}

static void swapping_a_folder_for_a_link(void **state) {
    (void)state;
    pthread_t t;
    unsigned served = 0, denied = 0;
    assert_int_equal(mkdir(fx_path("w/d"), 0755), 0);
    fx_put("w/d/secret", "inside", 6, 0644);
    assert_int_equal(symlink("../out", fx_path("w/evil")), 0);
    atomic_store(&stop, false);
    assert_int_equal(pthread_create(&t, NULL, swap, NULL), 0);
    for (int i = 0; i < 3000; i++) {
        if (fx_post("/api/read", "{\"path\":\"@/w/d/secret\"}") == 200) {
            served++;
            assert_string_equal(fx_str("content"), "inside");
        } else if (fx.res.status == 403) {
            denied++;
        }
        fx_post("/api/write", "{\"path\":\"@/w/d/secret\",\"content\":\"inside\"%s}", i % 2 ? ",\"atomic\":false" : "");
        fx_post("/api/write", "{\"path\":\"@/w/d/n%d/x\",\"content\":\"x\"}", i % 4);
        fx_post("/api/rename", "{\"oldPath\":\"@/w/d/n%d/x\",\"newPath\":\"@/w/d/y\"}", i % 4);
        fx_post("/api/delete", "{\"path\":\"@/w/d/y\"}");
    }
    atomic_store(&stop, true);
    pthread_join(t, NULL);
    assert_true(served > 0 && denied > 0); /* both were met */
    fx_holds("out/secret", "secret", 6);
    assert_int_equal(fx_entries("out"), 1);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, fx_teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        T(inside_works),
        T(every_operation_is_confined),
        T(parents_and_names_are_confined),
        T(magic_links_are_refused),
        T(a_root_that_is_none),
        T(both_spellings_of_the_root),
        T(swapping_a_folder_for_a_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
