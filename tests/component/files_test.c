/* The SDK's file routes: bodies, errors and contexts as cloudflare-sandbox.md sections 6.3 and 6.4 and the captures
 * have them. */
#include "tests/component/files_fixture.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/xattr.h>
#include <time.h>

static void write_then_read_text(void **state) {
    (void)state;
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/t.txt\",\"content\":\"h\\u00e9llo\\nworld\\n\"}"), 200);
    assert_string_equal(fx_str("path"), fx_path("t.txt"));
    fx_holds("t.txt", "h\xc3\xa9llo\nworld\n", 13);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/t.txt\"}"), 200);
    assert_string_equal(fx_str("content"), "h\xc3\xa9llo\nworld\n");
    assert_string_equal(fx_str("encoding"), "utf-8");
    assert_string_equal(fx_str("mimeType"), "text/plain");
    assert_int_equal(fx_num("size"), 13);
    assert_false(yyjson_get_bool(fx_get("isBinary")));
    assert_null(fx_get("lossy"));
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/t.txt\",\"encoding\":\"base64\"}"), 200);
    assert_string_equal(fx_str("content"), "aMOpbGxvCndvcmxkCg==");
    assert_true(yyjson_get_bool(fx_get("isBinary")));
}

static void binary_by_extension_and_as_text_on_request(void **state) {
    (void)state;
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/b.bin\",\"content\":\"AAECAwT/\",\"encoding\":\"base64\"}"),
                     200);
    fx_holds("b.bin", "\0\1\2\3\4\xff", 6);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/b.bin\"}"), 200);
    assert_string_equal(fx_str("content"), "AAECAwT/");
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/b.bin\",\"encoding\":\"utf8\"}"), 200);
    assert_memory_equal(fx_str("content"), "\0\1\2\3\4\xef\xbf\xbd", 8);
    assert_true(yyjson_get_bool(fx_get("lossy")));
    assert_string_equal(fx_str("mimeType"), "application/octet-stream");
}

static void bad_base64_is_refused(void **state) {
    (void)state;
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/c\",\"content\":\"not base64 !\",\"encoding\":\"base64\"}"),
                     400);
    assert_string_equal(fx_str("code"), "VALIDATION_FAILED");
    assert_string_equal(fx_str("context.validationErrors.0.field"), "content");
    assert_string_equal(fx_str("context.validationErrors.0.code"), "INVALID_BASE64");
    assert_false(fx_there("c"));
}

/* B079: what was reported as written is there, whatever its size; also through read, in pieces. */
static void every_size_arrives(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 4095, 4096, 18433, 65534, 65535, 65536, 131070, 1 << 20, 5000001};
    for (size_t i = 0; i < CP_COUNT(sizes); i++) {
        cp_autobuf cp_buf data = {0}, json = {0};
        uint8_t want[32], got[32];
        cp_buf_reserve(&data, sizes[i] + 1);
        for (size_t k = 0; k < sizes[i]; k++) data.p[k] = (char)(k * 2654435761u >> 13);
        data.n = sizes[i];
        cp_sha256_of(data.p, data.n, want);
        cp_jw w = cp_jw_on(&json);
        cp_jw_obj(&w);
        cp_jw_kz(&w, "path", fx_path("s.bin"));
        cp_jw_key(&w, "content");
        cp_jw_base64(&w, data.p, data.n);
        cp_jw_kz(&w, "encoding", "base64");
        cp_jw_end_obj(&w);
        assert_int_equal(fx_post_str("/api/write", cp_buf_str(&json)), 200);
        fx_holds("s.bin", data.p, data.n);
        assert_int_equal(fx_post("/api/read", "{\"path\":\"@/s.bin\"}"), 200);
        assert_int_equal(fx_num("size"), sizes[i]);
        yyjson_val *content = fx_get("content");
        cp_autobuf cp_buf back = {0};
        assert_int_equal(cp_base64_decode(&back, (cp_str){yyjson_get_str(content), yyjson_get_len(content)}), 0);
        cp_sha256_of(back.p, back.n, got);
        assert_memory_equal(want, got, 32);
    }
}

/* B082 */
static void all_byte_values_survive(void **state) {
    (void)state;
    static char data[256000];
    cp_autobuf cp_buf back = {0};
    for (size_t i = 0; i < sizeof data; i++) data[i] = (char)i;
    fx_put("all", data, sizeof data, 0644);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/all\"}"), 200);
    assert_string_equal(fx_str("encoding"), "base64");
    yyjson_val *content = fx_get("content");
    assert_int_equal(cp_base64_decode(&back, (cp_str){yyjson_get_str(content), yyjson_get_len(content)}), 0);
    assert_int_equal(back.n, sizeof data);
    assert_memory_equal(back.p, data, sizeof data);
}

/* Characters of three bytes on every border of the pieces that the file is read in. */
static void characters_on_piece_borders(void **state) {
    (void)state;
    cp_autobuf cp_buf text = {0};
    cp_buf_addz(&text, "x");
    for (int i = 0; i < 60000; i++) cp_buf_addz(&text, "€");
    fx_put("euro.txt", text.p, text.n, 0644);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/euro.txt\"}"), 200);
    assert_null(fx_get("lossy"));
    assert_int_equal(yyjson_get_len(fx_get("content")), text.n);
    assert_memory_equal(fx_str("content"), text.p, text.n);
    text.p[text.n - 1] = 'x'; /* the last one is broken: one U+FFFD and the x */
    fx_put("euro.txt", text.p, text.n, 0644);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/euro.txt\"}"), 200);
    assert_true(yyjson_get_bool(fx_get("lossy")));
    assert_int_equal(yyjson_get_len(fx_get("content")), text.n + 1);
}

static void read_errors(void **state) {
    (void)state;
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/missing\"}"), 404);
    assert_string_equal(fx_str("code"), "FILE_NOT_FOUND");
    assert_string_equal(fx_str("context.path"), fx_path("missing"));
    assert_string_equal(fx_str("context.operation"), "file.read");
    assert_string_equal(fx_str("operation"), "file.read");
    assert_non_null(strstr(fx_str("suggestion"), "Ensure the file exists"));
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@\"}"), 404);
    fx_put("f", "x", 1, 0644);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/f/x\"}"), 404);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"\"}"), 400);
    assert_string_equal(fx_str("message"), "Invalid path format for '': Path must be a non-empty string");
    assert_string_equal(fx_str("context.validationErrors.0.code"), "INVALID_PATH");
    assert_string_equal(fx_str("context.validationErrors.0.field"), "path");
    assert_int_equal(fx_post("/api/read", "{}"), 400);
    assert_string_equal(fx_str("message"), "Invalid path format for 'undefined': Path must be a non-empty string");
    assert_int_equal(fx_post("/api/read", "{\"path\":\"/tmp/a\\u0000b\"}"), 400);
    assert_string_equal(fx_str("context.validationErrors.0.message"), "Path contains null bytes");
    assert_int_equal(fx_post("/api/read", "{\"path\":\"/%04096d\"}", 0), 400);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"/%04095d\"}", 0), 400);
    assert_string_equal(fx_str("code"), "NAME_TOO_LONG");
    assert_int_equal(fx_post("/api/read", "{\"path\":\"a\",\"sessionId\":\" \"}"), 500);
    assert_string_equal(fx_str("message"), "sessionId must not be empty or whitespace");
}

/* A pipe without a writer, a device: an answer, never a wait. */
static void read_does_not_hang(void **state) {
    (void)state;
    assert_int_equal(mkfifo(fx_path("fifo"), 0600), 0);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/fifo\"}"), 500);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"/dev/zero\"}"), 500);
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/fifo\",\"content\":\"x\"}"), 500);
    assert_non_null(strstr(fx_str("message"), "ENXIO"));
}

static void proc_files_have_content(void **state) {
    (void)state;
    assert_int_equal(fx_post("/api/read", "{\"path\":\"/proc/self/status\"}"), 200);
    assert_non_null(strstr(fx_str("content"), "Name:"));
    assert_string_equal(fx_str("mimeType"), "text/plain");
    assert_int_equal(fx_num("size"), yyjson_get_len(fx_get("content")));
}

static void too_large(void **state) {
    (void)state;
    fx_put("big", "", 0, 0644);
    assert_int_equal(truncate(fx_path("big"), 33554433), 0);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/big\"}"), 413);
    assert_string_equal(fx_str("code"), "FILE_TOO_LARGE");
    assert_int_equal(fx_num("context.actualSize"), 33554433);
    assert_int_equal(fx_num("context.maxSize"), 33554432);
    assert_int_equal(truncate(fx_path("big"), 33554432), 0);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/big\"}"), 200);
    assert_int_equal(fx_num("size"), 33554432);
}

/* B087: a part of a 10 GiB file. */
static void ranges(void **state) {
    (void)state;
    fx_put("sparse", "head", 4, 0644);
    cp_autofd int fd = open(fx_path("sparse"), O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "tail", 4, 10737418236), 4);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/sparse\",\"limit\":4,\"encoding\":\"utf-8\"}"), 200);
    assert_string_equal(fx_str("content"), "head");
    assert_int_equal(fx_num("size"), 10737418240);
    assert_int_equal(fx_num("offset"), 0);
    assert_int_equal(fx_num("length"), 4);
    assert_int_equal(
        fx_post("/api/read", "{\"path\":\"@/sparse\",\"limit\":4,\"fromEnd\":true,\"encoding\":\"utf-8\"}"), 200);
    assert_string_equal(fx_str("content"), "tail");
    assert_int_equal(fx_num("offset"), 10737418236);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/sparse\",\"offset\":10737418238,\"encoding\":\"utf-8\"}"),
                     200);
    assert_string_equal(fx_str("content"), "il");
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/sparse\",\"offset\":5000000000,\"limit\":1048576}"), 200);
    assert_int_equal(fx_num("length"), 1048576);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/sparse\",\"offset\":99999999999}"), 200);
    assert_int_equal(fx_num("length"), 0);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/sparse\",\"offset\":-1}"), 400);
    assert_string_equal(fx_str("context.validationErrors.0.field"), "offset");
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/sparse\",\"offset\":1}"), 413);
}

/* A range that ends inside a character leaves it to the next range. */
static void range_of_text(void **state) {
    (void)state;
    fx_put("e.txt", "a€b", 5, 0644);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/e.txt\",\"limit\":3}"), 200);
    assert_string_equal(fx_str("content"), "a");
    assert_int_equal(fx_num("length"), 1);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/e.txt\",\"offset\":1,\"limit\":4}"), 200);
    assert_string_equal(fx_str("content"), "€b");
    assert_int_equal(fx_post("/api/read", "{\"path\":\"@/e.txt\",\"offset\":1,\"limit\":1}"), 200);
    assert_string_equal(fx_str("content"), "\xef\xbf\xbd");
    assert_true(yyjson_get_bool(fx_get("lossy")));
    assert_int_equal(fx_num("length"), 1);
}

static void relative_paths(void **state) {
    (void)state;
    snprintf(fx.session_cwd, sizeof fx.session_cwd, "%s/cwd", fx.dir);
    assert_int_equal(fx_post("/api/write", "{\"path\":\"cwd/rel\",\"content\":\"r\"}"), 200);
    fx_holds("cwd/rel", "r", 1);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"rel\",\"sessionId\":\"moved\"}"), 200);
    assert_string_equal(fx_str("path"), "rel");
    assert_int_equal(fx_post("/api/read", "{\"path\":\"../cwd/rel\",\"sessionId\":\"moved\"}"), 200);
    assert_int_equal(fx_post("/api/read", "{\"path\":\"cwd/rel\",\"sessionId\":\"__DISABLE_SESSION__\"}"), 200);
}

/* ---- write ---- */

static void write_creates_parents_and_truncates(void **state) {
    (void)state;
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/n/e/w\",\"content\":\"long content\"}"), 200);
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/n/e/w\",\"content\":\"x\"}"), 200);
    fx_holds("n/e/w", "x", 1);
    assert_int_equal(fx_entries("n/e"), 1);
}

static void write_errors(void **state) {
    (void)state;
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@\",\"content\":\"x\"}"), 500);
    char want[256];
    snprintf(want, sizeof want, "Failed to write file '%s': EISDIR: illegal operation on a directory, open '%s'",
             fx.dir, fx.dir);
    assert_string_equal(fx_str("code"), "FILESYSTEM_ERROR");
    assert_string_equal(fx_str("message"), want);
    assert_string_equal(fx_str("context.stderr"), strstr(want, "EISDIR"));
    assert_string_equal(fx_str("context.operation"), "file.write");
    assert_int_equal(fx_post("/api/write", "{\"path\":\"/proc/nope\",\"content\":\"x\"}"), 500);
    assert_string_equal(fx_str("context.stderr"), "ENOENT: no such file or directory, open '/proc/nope'");
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/x\"}"), 400);
    assert_string_equal(fx_str("context.validationErrors.0.field"), "content");
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/x\",\"content\":\"\",\"mode\":\"0999\"}"), 400);
    assert_false(fx_there("x"));
}

/* X23: a new file is made private and widened at the end; the folder's default ACL says how far. */
static void default_acl(void **state) {
    (void)state;
    enum { USER = 1, GROUP = 4, MASK = 16, OTHER = 32 };
    static const struct acl {
        uint32_t version;
        struct {
            uint16_t tag, perm;
            uint32_t id;
        } e[4];
    } plain = {2, {{USER, 6, ~0u}, {GROUP, 6, ~0u}, {OTHER, 4, ~0u}}},
      mask = {2, {{USER, 7, ~0u}, {GROUP, 7, ~0u}, {MASK, 4, ~0u}, {OTHER, 0, ~0u}}};
    static const char *const how[] = {"", ",\"atomic\":false", ",\"append\":true"};
    assert_int_equal(mkdir(fx_path("acl"), 0755), 0);
    for (int k = 0; k < 2; k++) {
        const struct acl *acl = k ? &mask : &plain;
        if (setxattr(fx_path("acl"), "system.posix_acl_default", acl, k ? 36 : 28, 0) < 0 && errno == EOPNOTSUPP)
            skip();
        for (size_t i = 0; i < 3; i++) {
            char name[32];
            snprintf(name, sizeof name, "acl/%d-%zu", k, i);
            assert_int_equal(fx_post("/api/write", "{\"path\":\"@/%s\",\"content\":\"x\"%s}", name, how[i]), 200);
            assert_int_equal(fx_mode(name), k ? 0640 : 0664);
        }
    }
}

/* B084 */
static void modes_and_owners(void **state) {
    (void)state;
    mode_t old = umask(027);
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/plain\",\"content\":\"\"}"), 200);
    umask(old);
    assert_int_equal(fx_mode("plain"), 0640);
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/m\",\"content\":\"\",\"mode\":\"0755\"}"), 200);
    assert_int_equal(fx_mode("m"), 0755);
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/m\",\"content\":\"x\",\"mode\":384}"), 200);
    assert_int_equal(fx_mode("m"), 0600);
    fx_put("old", "x", 1, 0751);
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/old\",\"content\":\"y\"}"), 200);
    assert_int_equal(fx_mode("old"), 0751);
    if (geteuid() != 0) return;
    struct stat st;
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/o\",\"content\":\"\",\"uid\":1000,\"gid\":1001}"), 200);
    assert_int_equal(stat(fx_path("o"), &st), 0);
    assert_int_equal(st.st_uid, 1000);
    assert_int_equal(st.st_gid, 1001);
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/o\",\"content\":\"again\"}"), 200);
    assert_int_equal(stat(fx_path("o"), &st), 0);
    assert_int_equal(st.st_uid, 1000); /* kept */
    assert_int_equal(st.st_gid, 1001);
}

/* A write replaces a plain file by rename, and leaves links, hard links and devices what they are. */
static void write_keeps_what_the_target_is(void **state) {
    (void)state;
    struct stat a, b;
    fx_put("target", "old", 3, 0644);
    assert_int_equal(symlink("target", fx_path("link")), 0);
    assert_int_equal(symlink("nowhere", fx_path("dangling")), 0);
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/link\",\"content\":\"new\"}"), 200);
    fx_holds("target", "new", 3);
    assert_int_equal(lstat(fx_path("link"), &a), 0);
    assert_true(S_ISLNK(a.st_mode));
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/dangling\",\"content\":\"d\"}"), 200);
    fx_holds("nowhere", "d", 1);

    assert_int_equal(link(fx_path("target"), fx_path("hard")), 0);
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/hard\",\"content\":\"both\"}"), 200);
    fx_holds("target", "both", 4);

    assert_int_equal(fx_post("/api/write", "{\"path\":\"/dev/null\",\"content\":\"x\"}"), 200);
    assert_int_equal(stat("/dev/null", &a), 0);
    assert_true(S_ISCHR(a.st_mode));

    fx_put("inode", "1", 1, 0644);
    assert_int_equal(stat(fx_path("inode"), &a), 0);
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/inode\",\"content\":\"2\",\"atomic\":false}"), 200);
    assert_int_equal(stat(fx_path("inode"), &b), 0);
    assert_int_equal(a.st_ino, b.st_ino);
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/inode\",\"content\":\"3\"}"), 200);
    assert_int_equal(stat(fx_path("inode"), &b), 0);
    assert_int_not_equal(a.st_ino, b.st_ino);
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/inode\",\"content\":\"4\",\"append\":true}"), 200);
    fx_holds("inode", "34", 2);
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/deep/append\",\"content\":\"4\",\"append\":true}"), 200);
    assert_int_equal(symlink("loop", fx_path("loop")), 0);
    assert_int_equal(fx_post("/api/write", "{\"path\":\"@/loop\",\"content\":\"4\"}"), 500);
    assert_non_null(strstr(fx_str("message"), "ELOOP"));
}

/* The disk takes no more (here: the limit on a file's size, which fails a write in the same place): the old file stays,
 * and nothing is left over. */
static void a_failed_write_leaves_nothing(void **state) {
    (void)state;
    struct rlimit old, low;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    fx_put("old", "old", 3, 0644);
    fx_put("hard", "hard", 4, 0644);
    assert_int_equal(mkdir(fx_path("d"), 0755), 0);
    getrlimit(RLIMIT_FSIZE, &old);
    low = old;
    low.rlim_cur = 1000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    int replaced = fx_post("/api/write", "{\"path\":\"@/old\",\"content\":\"%02000d\"}", 0);
    int created = fx_post("/api/write", "{\"path\":\"@/d/new\",\"content\":\"%02000d\"}", 0);
    int in_place = fx_post("/api/write", "{\"path\":\"@/d/n\",\"content\":\"%02000d\",\"atomic\":false}", 0);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, handler);
    assert_int_equal(replaced, 500);
    assert_int_equal(created, 500);
    assert_int_equal(in_place, 500);
    fx_holds("old", "old", 3);
    assert_int_equal(fx_entries("d"), 0);
    assert_int_equal(fx_entries(""), 3);
}

/* ---- delete, mkdir, exists, mv ---- */

static void delete_answers(void **state) {
    (void)state;
    fx_put("f", "x", 1, 0644);
    assert_int_equal(symlink("nowhere", fx_path("l")), 0);
    assert_int_equal(fx_post("/api/delete", "{\"path\":\"@/f\"}"), 200);
    assert_false(fx_there("f"));
    assert_int_equal(fx_post("/api/delete", "{\"path\":\"@/f\"}"), 404);
    assert_string_equal(fx_str("operation"), "file.delete");
    assert_int_equal(fx_post("/api/delete", "{\"path\":\"@/l\"}"), 200);
    assert_int_equal(mkdir(fx_path("d"), 0755), 0);
    assert_int_equal(fx_post("/api/delete", "{\"path\":\"@/d\"}"), 400);
    assert_string_equal(fx_str("code"), "IS_DIRECTORY");
    assert_non_null(strstr(fx_str("message"), "Cannot delete directory with deleteFile() at '"));
    assert_int_equal(fx_post("/api/delete", "{\"path\":\"/\"}"), 400);
}

static void mkdir_answers(void **state) {
    (void)state;
    assert_int_equal(fx_post("/api/mkdir", "{\"path\":\"@/d1\"}"), 200);
    assert_false(yyjson_get_bool(fx_get("recursive")));
    assert_int_equal(fx_post("/api/mkdir", "{\"path\":\"@/d1\"}"), 500);
    assert_string_equal(fx_str("message"), "mkdir operation failed with exit code 1");
    assert_int_equal(fx_num("context.exitCode"), 1);
    char want[256];
    snprintf(want, sizeof want, "mkdir: cannot create directory ‘%s/d1’: File exists", fx.dir);
    assert_string_equal(fx_str("context.stderr"), want);
    assert_true(yyjson_is_obj(fx_get("context.options")));
    assert_null(fx_get("operation"));
    assert_int_equal(fx_post("/api/mkdir", "{\"path\":\"@/d2/d3\"}"), 500);
    assert_non_null(strstr(fx_str("context.stderr"), "No such file or directory"));
    assert_int_equal(fx_post("/api/mkdir", "{\"path\":\"@/d2/d3/\",\"recursive\":true}"), 200);
    assert_true(yyjson_get_bool(fx_get("recursive")));
    assert_int_equal(fx_post("/api/mkdir", "{\"path\":\"@/d2/d3\",\"recursive\":true}"), 200);
    assert_int_equal(fx_post("/api/exists", "{\"path\":\"@/d2/d3\"}"), 200);
    assert_true(yyjson_get_bool(fx_get("exists")));
    fx_put("f", "x", 1, 0644);
    assert_int_equal(fx_post("/api/mkdir", "{\"path\":\"@/f\",\"recursive\":true}"), 500);
    assert_int_equal(fx_post("/api/mkdir", "{\"path\":\"@/f/x\",\"recursive\":true}"), 500);
}

static void exists_follows_links(void **state) {
    (void)state;
    assert_int_equal(symlink("/nope", fx_path("dang")), 0);
    assert_int_equal(fx_post("/api/exists", "{\"path\":\"@/dang\"}"), 200);
    assert_false(yyjson_get_bool(fx_get("exists")));
    assert_int_equal(fx_post("/api/exists", "{\"path\":\"/%04095d\"}", 0), 400);
}

static void mv_answers(void **state) {
    (void)state;
    fx_put("a", "A", 1, 0640);
    assert_int_equal(mkdir(fx_path("d"), 0755), 0);
    assert_int_equal(fx_post("/api/rename", "{\"oldPath\":\"@/a\",\"newPath\":\"@/b\"}"), 200);
    assert_string_equal(fx_str("path"), fx_path("a"));
    assert_string_equal(fx_str("newPath"), fx_path("b"));
    assert_int_equal(fx_post("/api/rename", "{\"oldPath\":\"@/a\",\"newPath\":\"@/c\"}"), 404);
    assert_string_equal(fx_str("operation"), "file.rename");
    char want[256];
    snprintf(want, sizeof want, "Source file not found: %s/a", fx.dir);
    assert_string_equal(fx_str("message"), want);
    assert_int_equal(fx_post("/api/rename", "{\"oldPath\":\"@/b\",\"newPath\":\"@/no/dir/x\"}"), 500);
    assert_string_equal(fx_str("message"), "Rename operation failed with exit code 1");
    assert_int_equal(fx_num("context.exitCode"), 1);
    snprintf(want, sizeof want, "mv: cannot move '%s/b' to '%s/no/dir/x': No such file or directory", fx.dir, fx.dir);
    assert_string_equal(fx_str("context.stderr"), want);
    assert_int_equal(fx_post("/api/rename", "{\"oldPath\":\"\",\"newPath\":\"x\"}"), 500);
    assert_string_equal(fx_str("code"), "SECURITY_VALIDATION_FAILED");
    assert_string_equal(fx_str("context.errors.0"), "Path must be a non-empty string");
    assert_int_equal(fx_post("/api/move", "{\"sourcePath\":\"@/b\",\"destinationPath\":\"@/d/\"}"), 200);
    fx_holds("d/b", "A", 1);
    fx_put("b", "B", 1, 0640);
    assert_int_equal(fx_post("/api/move", "{\"sourcePath\":\"@/b\",\"destinationPath\":\"@/d\"}"), 200);
    fx_holds("d/b", "B", 1); /* replaced */
    assert_int_equal(fx_post("/api/move", "{\"sourcePath\":\"@/d/b\",\"destinationPath\":\"@/d/b\"}"), 500);
    assert_non_null(strstr(fx_str("context.stderr"), "are the same file"));
    assert_int_equal(fx_post("/api/move", "{\"sourcePath\":\"@/d\",\"destinationPath\":\"@/d/sub\"}"), 500);
    assert_int_equal(fx_post("/api/move", "{\"sourcePath\":\"@/d/b\",\"destinationPath\":\"@/nodir/\"}"), 500);
    assert_non_null(strstr(fx_str("context.stderr"), "Not a directory"));
    fx_holds("d/b", "B", 1);
    assert_int_equal(link(fx_path("d/b"), fx_path("h")), 0);
    assert_int_equal(fx_post("/api/move", "{\"sourcePath\":\"@/h\",\"destinationPath\":\"@/d/b\"}"), 200);
    assert_false(fx_there("h")); /* rename(2) would have kept both names */
}

/* Needs a second file system; /dev/shm is one where the tests run. */
static void mv_across_file_systems(void **state) {
    (void)state;
    struct stat here, there, st;
    char shm[] = "/dev/shm/conflux-files-XXXXXX";
    if (!mkdtemp(shm)) skip();
    bool differ = stat(fx.dir, &here) == 0 && stat(shm, &there) == 0 && here.st_dev != there.st_dev;
    if (differ) {
        assert_int_equal(mkdir(fx_path("tree"), 0750), 0);
        assert_int_equal(mkdir(fx_path("tree/sub"), 0700), 0);
        fx_put("tree/sub/f", "content", 7, 0604);
        assert_int_equal(symlink("sub/f", fx_path("tree/link")), 0);
        assert_int_equal(mkfifo(fx_path("tree/pipe"), 0600), 0);
        assert_int_equal(fx_post("/api/move", "{\"sourcePath\":\"@/tree\",\"destinationPath\":\"%s\"}", shm), 200);
        assert_false(fx_there("tree"));
        assert_int_equal(fx_post("/api/move", "{\"sourcePath\":\"%s/tree\",\"destinationPath\":\"@/back\"}", shm), 200);
        fx_holds("back/sub/f", "content", 7);
        assert_int_equal(fx_mode("back/sub/f"), 0604);
        assert_int_equal(fx_mode("back"), 0750);
        assert_int_equal(lstat(fx_path("back/link"), &st), 0);
        assert_true(S_ISLNK(st.st_mode));
        assert_int_equal(lstat(fx_path("back/pipe"), &st), 0);
        assert_true(S_ISFIFO(st.st_mode));
    }
    cp_tree_remove(AT_FDCWD, shm);
    if (!differ) skip();
}

/* ---- list-files ---- */

static yyjson_val *entry(const char *relative) {
    size_t i, n;
    yyjson_val *e;
    yyjson_arr_foreach(fx_get("files"), i, n, e) {
        if (strcmp(yyjson_get_str(yyjson_obj_get(e, "relativePath")), relative) == 0) return e;
    }
    return NULL;
}

static const char *field(yyjson_val *e, const char *key) {
    const char *s = yyjson_get_str(yyjson_obj_get(e, key));
    return s ? s : "(none)";
}

static void list_fields(void **state) {
    (void)state;
    assert_int_equal(mkdir(fx_path("ls"), 0755), 0);
    assert_int_equal(mkdir(fx_path("ls/sub"), 0755), 0);
    fx_put("ls/f.txt", "hi\n", 3, 0640);
    fx_put("ls/.hid", "", 0, 0644);
    fx_put("ls/sub/deep", "x", 1, 0644);
    assert_int_equal(symlink("f.txt", fx_path("ls/ln")), 0);
    struct timespec when[2] = {{1000000000, 0}, {1000000000, 523303189}};
    assert_int_equal(utimensat(AT_FDCWD, fx_path("ls/f.txt"), when, 0), 0);
    setenv("TZ", "UTC", 1);
    tzset();
    assert_int_equal(fx_post("/api/list-files", "{\"path\":\"@/ls/\"}"), 200);
    assert_int_equal(fx_num("count"), 3);
    yyjson_val *f = entry("f.txt");
    assert_string_equal(field(f, "name"), "f.txt");
    assert_string_equal(field(f, "absolutePath"), fx_path("ls/f.txt"));
    assert_string_equal(field(f, "type"), "file");
    assert_string_equal(field(f, "mode"), "rw-r-----");
    assert_string_equal(field(f, "modifiedAt"), "2001-09-09T01:46:40.5233031890");
    assert_int_equal(yyjson_get_int(yyjson_obj_get(f, "size")), 3);
    yyjson_val *perm = yyjson_obj_get(f, "permissions");
    assert_true(yyjson_get_bool(yyjson_obj_get(perm, "writable")));
    assert_false(yyjson_get_bool(yyjson_obj_get(perm, "executable")));
    assert_string_equal(field(entry("ln"), "type"), "symlink");
    assert_int_equal(yyjson_get_int(yyjson_obj_get(entry("ln"), "size")), 5);
    assert_string_equal(field(entry("sub"), "type"), "directory");
}

static void list_hidden_and_recursive(void **state) {
    (void)state;
    assert_int_equal(mkdir(fx_path("d"), 0755), 0);
    assert_int_equal(mkdir(fx_path("d/.git"), 0755), 0);
    assert_int_equal(mkdir(fx_path("d/sub"), 0755), 0);
    fx_put("d/.git/config", "x", 1, 0644);
    fx_put("d/sub/.h", "x", 1, 0644);
    fx_put("d/sub/tab\tnl\n.txt", "x", 1, 0644);
    fx_put("d/bad\xff", "x", 1, 0644);
    assert_int_equal(symlink("..", fx_path("d/sub/up")), 0);
    assert_int_equal(fx_post("/api/list-files", "{\"path\":\"@/d\",\"options\":{\"recursive\":true}}"), 200);
    assert_non_null(entry(".git/config")); /* hidden folders are left out, what is in them is not */
    assert_null(entry(".git"));
    assert_null(entry("sub/.h"));
    assert_non_null(entry("sub/tab\tnl\n.txt"));
    assert_non_null(entry("bad\xef\xbf\xbd"));
    assert_int_equal(fx_num("count"), 5);
    assert_int_equal(
        fx_post("/api/list-files", "{\"path\":\"@/d\",\"options\":{\"recursive\":true,\"includeHidden\":true}}"), 200);
    assert_non_null(entry("sub/.h"));
    assert_int_equal(fx_num("count"), 7);
    assert_int_equal(fx_post("/api/list-files", "{\"path\":\"@/d\",\"options\":{\"includeHidden\":true}}"), 200);
    assert_int_equal(fx_num("count"), 3);
}

static void list_errors(void **state) {
    (void)state;
    assert_int_equal(fx_post("/api/list-files", "{\"path\":\"@/nope\"}"), 404);
    char want[256];
    snprintf(want, sizeof want, "Directory not found: %s/nope", fx.dir);
    assert_string_equal(fx_str("message"), want);
    assert_string_equal(fx_str("operation"), "directory.list");
    fx_put("f", "x", 1, 0644);
    assert_int_equal(fx_post("/api/list-files", "{\"path\":\"@/f\"}"), 400);
    assert_string_equal(fx_str("code"), "NOT_DIRECTORY");
    assert_int_equal(mkdir(fx_path("empty"), 0755), 0);
    assert_int_equal(fx_post("/api/list-files", "{\"path\":\"@/empty\"}"), 200);
    assert_int_equal(fx_num("count"), 0);
    assert_true(yyjson_is_arr(fx_get("files")));
}

static void list_many(void **state) {
    (void)state;
    char name[32];
    assert_int_equal(mkdir(fx_path("many"), 0755), 0);
    cp_autofd int dir = open(fx_path("many"), O_PATH | O_CLOEXEC);
    for (int i = 0; i < 20000; i++) {
        snprintf(name, sizeof name, "f%d", i);
        cp_autofd int fd = openat(dir, name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
    }
    assert_int_equal(fx_post("/api/list-files", "{\"path\":\"@/many\"}"), 200);
    assert_int_equal(fx_num("count"), 20000);
    assert_int_equal(yyjson_arr_size(fx_get("files")), 20000);
}

#define T(f) cmocka_unit_test_setup_teardown(f, fx_setup, fx_teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        T(write_then_read_text),
        T(binary_by_extension_and_as_text_on_request),
        T(bad_base64_is_refused),
        T(every_size_arrives),
        T(all_byte_values_survive),
        T(characters_on_piece_borders),
        T(read_errors),
        T(read_does_not_hang),
        T(proc_files_have_content),
        T(too_large),
        T(ranges),
        T(range_of_text),
        T(relative_paths),
        T(write_creates_parents_and_truncates),
        T(write_errors),
        T(modes_and_owners),
        T(default_acl),
        T(write_keeps_what_the_target_is),
        T(a_failed_write_leaves_nothing),
        T(delete_answers),
        T(mkdir_answers),
        T(exists_follows_links),
        T(mv_answers),
        T(mv_across_file_systems),
        T(list_fields),
        T(list_hidden_and_recursive),
        T(list_errors),
        T(list_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
