/* tar by its own codec, and packing and unpacking a folder. That other programs read and write the same is in
 * tests/e2e/archive.test.mjs. */
#include "tests/component/files_fixture.h"

#include "base/budget.h"
#include "services/archive.h"
#include "services/tar.h"

/* ---- the codec ---- */

typedef struct seen {
    cp_buf text; /* "type path>link mode mtime size:content;" */
} seen;

static int on_entry(void *arg, const cp_tar_entry *e, cp_err *err) {
    (void)err;
    seen *s = arg;
    cp_buf_addf(&s->text, "%c ", e->type);
    cp_buf_addz(&s->text, e->path);
    cp_buf_addf(&s->text, ">%s %o %lld %llu:", e->link, e->mode, (long long)e->mtime, (unsigned long long)e->size);
    return 0;
}
static int on_data(void *arg, cp_str bytes, cp_err *err) {
    (void)err;
    cp_buf_add(&((seen *)arg)->text, bytes.p, bytes.n);
    return 0;
}
static int on_end(void *arg, cp_err *err) {
    (void)err;
    cp_buf_addc(&((seen *)arg)->text, ';');
    return 0;
}
static const cp_untar_ops ops = {.entry = on_entry, .data = on_data, .entry_end = on_end};

static int read_in_pieces(cp_str tar, size_t piece, seen *s, cp_err *err) {
    cp_untar u = {.ops = &ops, .arg = s};
    int rc = 0;
    cp_buf_clear(&s->text);
    for (size_t at = 0; rc == 0 && at < tar.n; at += piece) {
        /* A copy of its own, so that reading too far is seen. */
        size_t n = tar.n - at < piece ? tar.n - at : piece;
        cp_autofree char *part = cp_realloc(NULL, n);
        memcpy(part, tar.p + at, n);
        rc = cp_untar_feed(&u, (cp_str){part, n}, err);
    }
    if (rc == 0) rc = cp_untar_finish(&u, err);
    cp_untar_free(&u);
    return rc;
}

static void add(cp_buf *tar, char type, const char *path, const char *link, const char *content) {
    size_t n = content ? strlen(content) : 0;
    cp_tar_put(tar, &(cp_tar_entry){.type = type, .path = path, .link = link, .size = n, .mode = 0644, .mtime = 1000});
    cp_buf_add(tar, content ? content : "", n);
    cp_tar_pad(tar, n);
}

static void round_trip(void **state) {
    (void)state;
    char name[300], want[2000];
    cp_err err;
    cp_autobuf cp_buf tar = {0};
    seen s = {0};
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    add(&tar, CP_TAR_FILE, "a", NULL, "content");
    add(&tar, CP_TAR_DIR, "d/", NULL, NULL);
    add(&tar, CP_TAR_SYMLINK, "l", name, NULL);
    add(&tar, CP_TAR_FILE, name, NULL, "");
    cp_tar_end(&tar);
    assert_int_equal(tar.n % CP_TAR_BLOCK, 0);
    snprintf(want, sizeof want, "0 a> 644 1000 7:content;5 d/> 644 1000 0:;2 l>%s 644 1000 0:;0 %s> 644 1000 0:;", name,
             name);
    static const size_t pieces[] = {1, 7, 511, 512, 513, 100000};
    for (size_t i = 0; i < CP_COUNT(pieces); i++) {
        assert_int_equal(read_in_pieces(cp_buf_str(&tar), pieces[i], &s, &err), 0);
        assert_string_equal(cp_buf_z(&s.text), want);
    }
    for (size_t cut = 0; cut + 2 * CP_TAR_BLOCK <= tar.n; cut += 100) {
        assert_int_equal(read_in_pieces((cp_str){tar.p, cut}, 4096, &s, &err), -1);
        assert_int_equal(err.code, CP_E_ARCHIVE_INVALID);
    }
    cp_buf_free(&s.text);
}

/* Where ustar has no room: over 8 GiB, before 1970, an id over 2 097 151. */
static void big_numbers(void **state) {
    (void)state;
    cp_autobuf cp_buf tar = {0};
    cp_tar_put(&tar, &(cp_tar_entry){
                         .type = CP_TAR_FILE, .path = "big", .size = UINT64_C(10) << 30, .mtime = -5, .uid = 3000000});
    assert_non_null(memmem(tar.p, tar.n, "20 size=10737418240\n", 20));
    assert_non_null(memmem(tar.p, tar.n, "12 mtime=-5\n", 12));
    assert_non_null(memmem(tar.p, tar.n, "15 uid=3000000\n", 15));
    seen s = {0};
    cp_untar u = {.ops = &ops, .arg = &s};
    assert_int_equal(cp_untar_feed(&u, cp_buf_str(&tar), NULL), 0);
    assert_string_equal(cp_buf_z(&s.text), "0 big> 0 0 10737418240:");
    cp_untar_free(&u);
    cp_buf_free(&s.text);
}

/* A pax header written by hand before an entry. */
static int with_pax(const char *records, seen *s, cp_err *err) {
    cp_autobuf cp_buf tar = {0};
    size_t n = strlen(records);
    cp_tar_put(&tar, &(cp_tar_entry){.type = 'x', .path = "pax", .size = n});
    cp_buf_add(&tar, records, n);
    cp_tar_pad(&tar, n);
    add(&tar, CP_TAR_FILE, "f", NULL, "x");
    cp_tar_end(&tar);
    return read_in_pieces(cp_buf_str(&tar), 600, s, err);
}

static void pax_headers(void **state) {
    (void)state;
    seen s = {0};
    cp_err err;
    assert_int_equal(with_pax("12 path=a/b\n", &s, &err), 0);
    assert_string_equal(cp_buf_z(&s.text), "0 a/b> 644 1000 1:x;");
    assert_int_equal(with_pax("10 size=1\n15 comment=a b\n", &s, &err), 0);
    static const char *const bad[] = {
        "x",
        "12 path=a/b",
        "13 path=a/b\n",
        "11 path=a/b\n",
        "0 path\n",
        "7 path\n",
        "-12 path=a/b\n",
        "4 =\n9\n",
        "9999999 path=a/b\n",
        "12 size=-1\n",
        "11 size=x\n",
        "22 GNU.sparse.major=1\n",
        " 12 path=a\n",
    };
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        if (with_pax(bad[i], &s, &err) == 0) fail_msg("taken: %s", bad[i]);
        assert_int_equal(err.code, CP_E_ARCHIVE_INVALID);
    }
    cp_buf_free(&s.text);
}

/* ---- unpacking ---- */

static const cp_unpack_limits plenty = {.entries = 1000, .bytes = 1 << 20};

/* Into the folder "in"; the code, or CP_OK. */
static cp_code unpack(cp_buf *tar, const cp_unpack_limits *limits) {
    cp_err err = {0};
    cp_where w;
    cp_unpack_report report;
    cp_tar_end(tar);
    assert_int_equal(cp_where_init(&w, fx.svc.files, fx.dir, CP_STR("in"), &err), 0);
    cp_unpack *u = cp_unpack_open(&w, limits, &err);
    assert_non_null(u);
    int rc = cp_unpack_feed(u, cp_buf_str(tar), &err);
    if (rc == 0) rc = cp_unpack_finish(u, &report, &err);
    cp_unpack_close(u);
    cp_buf_free(tar);
    return rc < 0 ? err.code : CP_OK;
}

static unsigned leftovers(void) {
    unsigned n = 0;
    cp_autodir DIR *d = opendir(fx_path("in"));
    for (struct dirent *e; (e = cp_dir_next(d));) n += strncmp(e->d_name, ".conflux-", 9) == 0;
    return n;
}

static void unsafe_names(void **state) {
    (void)state;
    static const char *const bad[] = {"/abs", "../out", "a/../../out", "..", "a/..", "./../out", ""};
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        cp_buf tar = {0};
        add(&tar, CP_TAR_FILE, bad[i], NULL, "x");
        assert_int_equal(unpack(&tar, &plenty), CP_E_ARCHIVE_UNSAFE);
    }
    assert_int_equal(fx_entries("."), 1); /* "in" alone */
    assert_false(fx_there("abs"));
    cp_buf tar = {0};
    add(&tar, CP_TAR_DIR, "./", NULL, NULL);
    add(&tar, CP_TAR_FILE, ".//x/./y", NULL, "ok");
    add(&tar, CP_TAR_FILE, "..name", NULL, "ok");
    assert_int_equal(unpack(&tar, &plenty), CP_OK);
    fx_holds("in/x/y", "ok", 2);
    fx_holds("in/..name", "ok", 2);
}

static void unsafe_links(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"l", "/etc"}, {"l", ".."}, {"l", "../out"}, {"a/l", "../.."}, {"l", "a/../.."}, {"a/b/l", "x/../y"}, {"l", ""},
    };
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        cp_buf tar = {0};
        add(&tar, CP_TAR_SYMLINK, bad[i][0], bad[i][1], NULL);
        assert_int_equal(unpack(&tar, &plenty), CP_E_ARCHIVE_UNSAFE);
    }
    static const char *const good[][2] = {
        {"l", "x"}, {"a/b/l", "../../x"}, {"a/m", "./../l"}, {"dangling", "no/where"}};
    for (size_t i = 0; i < CP_COUNT(good); i++) {
        cp_buf tar = {0};
        add(&tar, CP_TAR_SYMLINK, good[i][0], good[i][1], NULL);
        assert_int_equal(unpack(&tar, &plenty), CP_OK);
    }
    static const char *const hard[] = {"/etc/passwd", "../secret", "out/secret", "nothing"};
    assert_int_equal(symlink("..", fx_path("in/out")), 0);
    fx_put("secret", "s", 1, 0644);
    for (size_t i = 0; i < CP_COUNT(hard); i++) {
        cp_buf tar = {0};
        add(&tar, CP_TAR_HARDLINK, "h", hard[i], NULL);
        assert_int_not_equal(unpack(&tar, &plenty), CP_OK);
        assert_false(fx_there("in/h"));
    }
    assert_int_equal(leftovers(), 0);
}

/* A link that is there, whoever made it, is not written through, as a folder nor as a file. */
static void links_are_not_followed(void **state) {
    (void)state;
    assert_int_equal(mkdir(fx_path("in"), 0755), 0);
    assert_int_equal(mkdir(fx_path("out"), 0755), 0);
    fx_put("out/f", "old", 3, 0644);
    assert_int_equal(symlink("../out", fx_path("in/d")), 0);
    assert_int_equal(symlink("../out/f", fx_path("in/f")), 0);
    cp_buf tar = {0};
    add(&tar, CP_TAR_FILE, "d/x", NULL, "new");
    assert_int_equal(unpack(&tar, &plenty), CP_E_ARCHIVE_UNSAFE);
    add(&tar, CP_TAR_DIR, "d", NULL, NULL);
    assert_int_equal(unpack(&tar, &plenty), CP_E_ARCHIVE_UNSAFE);
    add(&tar, CP_TAR_FILE, "f", NULL, "new");
    assert_int_equal(unpack(&tar, &plenty), CP_OK);
    fx_holds("out/f", "old", 3);
    fx_holds("in/f", "new", 3);
    assert_int_equal(fx_entries("out"), 1);
    add(&tar, CP_TAR_SYMLINK, "e", "sub", NULL); /* one archive: link, then through it */
    add(&tar, CP_TAR_FILE, "e/x", NULL, "new");
    assert_int_equal(unpack(&tar, &plenty), CP_E_ARCHIVE_UNSAFE);
}

static void other_kinds(void **state) {
    (void)state;
    for (const char *type = "346SVDM"; *type; type++) {
        cp_buf tar = {0};
        add(&tar, *type, "dev", NULL, NULL);
        assert_int_equal(unpack(&tar, &plenty), CP_E_ARCHIVE_UNSAFE);
        assert_false(fx_there("in/dev"));
    }
}

static void files_links_and_modes(void **state) {
    (void)state;
    cp_buf tar = {0};
    struct stat st;
    cp_tar_put(&tar, &(cp_tar_entry){.type = CP_TAR_FILE, .path = "set", .mode = 06755, .mtime = 12345});
    cp_tar_put(&tar, &(cp_tar_entry){.type = CP_TAR_DIR, .path = "ro/", .mode = 0555});
    add(&tar, CP_TAR_FILE, "ro/f", NULL, "x");
    add(&tar, CP_TAR_FILE, "f", NULL, "content");
    add(&tar, CP_TAR_HARDLINK, "h", "f", NULL);
    add(&tar, CP_TAR_HARDLINK, "h", "f", NULL);
    add(&tar, CP_TAR_FILE, "f", NULL, "again");
    assert_int_equal(unpack(&tar, &plenty), CP_OK);
    assert_int_equal(fx_mode("in/set"), 0755); /* no set-id bits */
    assert_int_equal(stat(fx_path("in/set"), &st), 0);
    assert_int_equal(st.st_mtim.tv_sec, 12345);
    fx_holds("in/ro/f", "x", 1);
    fx_holds("in/h", "content", 7);
    fx_holds("in/f", "again", 5);
    assert_int_equal(leftovers(), 0);
    add(&tar, CP_TAR_FILE, "ro", NULL, "x");
    assert_int_equal(unpack(&tar, &plenty), CP_E_IS_DIRECTORY);
    add(&tar, CP_TAR_DIR, "f", NULL, NULL);
    assert_int_equal(unpack(&tar, &plenty), CP_E_NOT_DIRECTORY);
    assert_int_equal(leftovers(), 0);
}

static void limits(void **state) {
    (void)state;
    cp_buf tar = {0};
    add(&tar, CP_TAR_FILE, "a", NULL, "12345");
    add(&tar, CP_TAR_FILE, "b", NULL, "12345");
    assert_int_equal(unpack(&tar, &(cp_unpack_limits){.entries = 2, .bytes = 10}), CP_OK);
    add(&tar, CP_TAR_FILE, "a", NULL, "12345");
    add(&tar, CP_TAR_FILE, "c", NULL, "123456");
    assert_int_equal(unpack(&tar, &(cp_unpack_limits){.entries = 2, .bytes = 10}), CP_E_PAYLOAD_TOO_LARGE);
    add(&tar, CP_TAR_FILE, "a", NULL, "");
    add(&tar, CP_TAR_FILE, "c", NULL, "");
    assert_int_equal(unpack(&tar, &(cp_unpack_limits){.entries = 1, .bytes = 10}), CP_E_PAYLOAD_TOO_LARGE);
    assert_false(fx_there("in/c"));
    add(&tar, CP_TAR_FILE, "huge", NULL, NULL);
    cp_buf_clear(&tar);
    cp_tar_put(&tar, &(cp_tar_entry){.type = CP_TAR_FILE, .path = "huge", .size = INT64_MAX});
    assert_int_equal(unpack(&tar, &plenty), CP_E_PAYLOAD_TOO_LARGE);
}

static void a_full_disk(void **state) {
    (void)state;
    cp_buf tar = {0};
    add(&tar, CP_TAR_FILE, "f", NULL, "content");
    disk_full(true);
    cp_code got = unpack(&tar, &plenty);
    disk_full(false);
    assert_int_equal(got, CP_E_FILE_TOO_LARGE); /* what a limit of file size says in place of ENOSPC */
    assert_int_equal(fx_entries("in"), 0);
}

/* ---- packing ---- */

static void pack(const char *path, bool gzip, size_t piece, cp_buf *out) {
    cp_err err = {0};
    cp_where w;
    ssize_t n;
    assert_int_equal(cp_where_init(&w, fx.svc.files, fx.dir, cp_str_of(path), &err), 0);
    cp_pack *p = cp_pack_open(&w, gzip, &err);
    if (!p) fail_msg("%s", err.msg);
    do {
        cp_buf_reserve(out, piece);
        n = cp_pack_read(p, out->p + out->n, piece, &err);
        if (n > 0) out->n += (size_t)n;
    } while (n > 0);
    assert_int_equal(n, 0);
    cp_pack_close(p);
}

/* Open archives, until the budget has no room: how many, and what has refused the last. All are closed. */
static unsigned open_until_refused(bool gzip, cp_err *err) {
    cp_pack *open[1024];
    cp_where w;
    unsigned n = 0;
    assert_int_equal(cp_where_init(&w, fx.svc.files, fx.dir, CP_STR("many"), err), 0);
    while (n < CP_COUNT(open) && (open[n] = cp_pack_open(&w, gzip, err))) n++;
    size_t held = cp_budget_held(CP_MEM_TRANSFERS);
    assert_in_range(held, 11 << 20, 24 << 20);
    for (unsigned i = 0; i < n; i++) cp_pack_close(open[i]);
    return n;
}

static void what_archives_hold_is_in_the_memory_budget(void **state) {
    (void)state;
    cp_err err = {0};
    cp_unpack_limits limits = {.entries = 10, .bytes = 10};
    cp_where w;
    assert_int_equal(mkdir(fx_path("many"), 0755), 0);
    cp_budget_open(24 << 20);
    unsigned zipped = open_until_refused(true, &err);
    assert_int_equal(err.code, CP_E_LIMIT_EXCEEDED);
    assert_non_null(strstr(err.msg, "uploads and downloads"));
    assert_in_range(zipped, 40, 120); /* 265 KB each, and 137 KB when half is in use */
    unsigned plain = open_until_refused(false, &err);
    assert_in_range(plain, 2 * zipped, 600);
    assert_int_equal(cp_budget_held(CP_MEM_TRANSFERS), 0);

    cp_budget_force(CP_MEM_TRANSFERS, 12 << 20);
    assert_int_equal(cp_where_init(&w, fx.svc.files, fx.dir, CP_STR("in"), &err), 0);
    cp_unpack *u = cp_unpack_open(&w, &limits, &err);
    assert_non_null(u);
    err.code = CP_OK;
    assert_int_equal(cp_unpack_feed(u, (cp_str){"\x1f\x8b", 2}, &err), -1);
    assert_int_equal(err.code, CP_E_LIMIT_EXCEEDED);
    cp_unpack_close(u);
    cp_budget_release(CP_MEM_TRANSFERS, 12 << 20);
    assert_int_equal(cp_budget_held(CP_MEM_TRANSFERS), 0);
    cp_budget_open(SIZE_MAX / 2);
}

static void packs_and_unpacks(void **state) {
    (void)state;
    enum { SIZE = 200000 };
    char *data = cp_alloc(SIZE);
    for (size_t i = 0; i < SIZE; i++) data[i] = (char)(i * 7 + i / 300);
    assert_int_equal(mkdir(fx_path("from"), 0755), 0);
    assert_int_equal(mkdir(fx_path("from/d"), 0700), 0);
    fx_put("from/d/big", data, SIZE, 0640);
    fx_put("from/empty", "", 0, 0644);
    assert_int_equal(symlink("d/big", fx_path("from/l")), 0);
    assert_int_equal(mkfifo(fx_path("from/pipe"), 0600), 0);
    fx_put("from/.conflux-0123456789abcdef.tmp", "half an upload", 14, 0600);
    fx_put("from/.conflux", "hidden", 6, 0600);
    static const size_t pieces[] = {1000, 65536, 1 << 20};
    for (size_t i = 0; i < 2 * CP_COUNT(pieces); i++) {
        cp_buf tar = {0};
        pack("from", i % 2, pieces[i / 2], &tar);
        assert_int_equal(unpack(&tar, &plenty), CP_OK);
        fx_holds("in/d/big", data, SIZE);
        assert_int_equal(fx_mode("in/d"), 0700);
        assert_int_equal(fx_mode("in/d/big"), 0640);
        assert_int_equal(fx_entries("in"), 4); /* the pipe and the upload are left out */
        fx_holds("in/.conflux", "hidden", 6);
        assert_int_equal(temp_dir_remove(fx_path("in")), 0);
    }
    free(data);
}

static void what_cannot_be_packed(void **state) {
    (void)state;
    cp_err err = {0};
    cp_where w;
    char buf[4096];
    fx_put("f", "0123456789", 10, 0644);
    assert_int_equal(cp_where_init(&w, fx.svc.files, fx.dir, CP_STR("f"), &err), 0);
    cp_pack *p = cp_pack_open(&w, false, &err);
    assert_int_equal(cp_pack_read(p, buf, 512, &err), 512);
    assert_int_equal(truncate(fx_path("f"), 5), 0);
    assert_int_equal(cp_pack_read(p, buf, sizeof buf, &err), -1);
    assert_int_equal(err.code, CP_E_RESOURCE_BUSY);
    cp_pack_close(p);
    assert_int_equal(cp_where_init(&w, fx.svc.files, fx.dir, CP_STR("none"), &err), 0);
    assert_null(cp_pack_open(&w, false, &err));
    assert_int_equal(err.code, CP_E_FILE_NOT_FOUND);
    assert_int_equal(mkdir(fx_path("root"), 0755), 0);
    assert_int_equal(symlink("..", fx_path("root/up")), 0);
    fx_root(fx_path("root"));
    assert_int_equal(cp_where_init(&w, fx.svc.files, fx_path("root"), CP_STR("up"), &err), 0);
    assert_null(cp_pack_open(&w, false, &err));
    assert_int_equal(err.sys, EXDEV);
    assert_null(cp_unpack_open(&w, &plenty, &err));
    assert_int_equal(err.sys, EXDEV);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, fx_setup, fx_teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(big_numbers),
        cmocka_unit_test(pax_headers),
        T(unsafe_names),
        T(unsafe_links),
        T(links_are_not_followed),
        T(other_kinds),
        T(files_links_and_modes),
        T(limits),
        T(a_full_disk),
        T(what_archives_hold_is_in_the_memory_budget),
        T(packs_and_unpacks),
        T(what_cannot_be_packed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
