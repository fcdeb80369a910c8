/* GET and PUT /api/files/raw, stat, chmod, chown, copy (conflux-additions.md, "Files"). */
#include "tests/component/files_fixture.h"

enum { MAX_HEADERS = 4 };

/* Headers as "Name: value" strings, NULL at the end. */
static size_t headers_of(const char *const *lines, cp_header out[MAX_HEADERS]) {
    size_t n = 0;
    for (; lines && lines[n]; n++) {
        const char *colon = strchr(lines[n], ':');
        out[n] = (cp_header){{lines[n], (size_t)(colon - lines[n])}, cp_str_of(colon + 2)};
    }
    return n;
}

static int get(const char *query, const char *const *lines) {
    cp_header headers[MAX_HEADERS];
    cp_request req = {.method = CP_GET, .path = CP_STR("/api/files/raw"), .query = cp_str_of(query)};
    req.nheaders = headers_of(lines, headers);
    req.headers = headers;
    return fx_serve(fx_route(CP_GET, "/api/files/raw"), &req);
}
#define H(...) ((const char *const[]){__VA_ARGS__, NULL})

/* A body that comes in pieces of `step` bytes and may break off. */
typedef struct fake_body {
    cp_body_reader reader;
    const char *p;
    size_t n, at, step;
    bool broken;
} fake_body;

static ssize_t fake_read(cp_body_reader *b, void *p, size_t n) {
    fake_body *f = CP_CONTAINER(b, fake_body, reader);
    size_t left = f->n - f->at;
    if (!left) return f->broken ? -1 : 0;
    if (n > f->step) n = f->step;
    if (n > left) n = left;
    memcpy(p, f->p + f->at, n);
    f->at += n;
    return (ssize_t)n;
}

static int put_body(const char *query, const char *const *lines, fake_body *body) {
    cp_header headers[MAX_HEADERS];
    cp_request req = {.method = CP_PUT, .path = CP_STR("/api/files/raw"), .query = cp_str_of(query)};
    req.nheaders = headers_of(lines, headers);
    req.headers = headers;
    body->reader.read = fake_read;
    req.raw = &body->reader;
    return fx_serve(fx_route(CP_PUT, "/api/files/raw"), &req);
}

static int put(const char *query, const char *const *lines, const char *data, size_t n) {
    fake_body body = {.p = data, .n = n, .step = 1000, .reader.length = (int64_t)n};
    return put_body(query, lines, &body);
}

static const char *query(const char *name) {
    static char q[CP_PATH_MAX];
    snprintf(q, sizeof q, "path=%s", fx_path(name));
    return q;
}

/* Value of a response header; static storage. */
static const char *header(const char *name) {
    static char value[256];
    const char *at = strstr(cp_buf_z(&fx.res.headers), name);
    if (!at) return "(none)";
    at += strlen(name) + 2;
    snprintf(value, sizeof value, "%.*s", (int)strcspn(at, "\r"), at);
    return value;
}

static void get_sends_the_file(void **state) {
    (void)state;
    char byte[4];
    fx_put("p.png", "0123456789", 10, 0644);
    assert_int_equal(get(query("p.png"), NULL), 200);
    assert_string_equal(fx.res.type, "image/png");
    assert_int_equal(fx.res.file_len, 10);
    assert_int_equal(pread(fx.res.file_fd, byte, 4, 0), 4);
    assert_memory_equal(byte, "0123", 4);
    assert_string_equal(header("Accept-Ranges"), "bytes");
    assert_string_equal(header("Content-Security-Policy"), "sandbox");
    assert_int_equal(get("path=%2Fproc%2Fself%2Fstatus", NULL), 200);
    assert_string_equal(header("Content-Security-Policy"), "sandbox");
    fx_drain();
    assert_non_null(memmem(fx.res.body.p, fx.res.body.n, "Name:", 5));
}

static void check_range(const char *range, int status, uint64_t from, uint64_t len, const char *content_range) {
    char line[128];
    snprintf(line, sizeof line, "Range: %s", range);
    int got = get(query("r"), H(line));
    if (got != status) fail_msg("%s: %d", range, got);
    if (status == 416) assert_int_equal(fx_num("httpStatus"), 416);
    else assert_true(fx.res.file_off == from && fx.res.file_len == len);
    assert_string_equal(header("Content-Range"), content_range);
}

static void get_ranges(void **state) {
    (void)state;
    fx_put("r", "0123456789", 10, 0644);
    check_range("bytes=2-4", 206, 2, 3, "bytes 2-4/10");
    check_range("bytes=2-", 206, 2, 8, "bytes 2-9/10");
    check_range("bytes=-3", 206, 7, 3, "bytes 7-9/10");
    check_range("bytes=-30", 206, 0, 10, "bytes 0-9/10");
    check_range("bytes=0-100", 206, 0, 10, "bytes 0-9/10");
    check_range("bytes=9-18446744073709551615", 206, 9, 1, "bytes 9-9/10");
    check_range("bytes=10-", 416, 0, 0, "bytes */10");
    check_range("bytes=-0", 416, 0, 0, "bytes */10");
    check_range("bytes=0-1,4-5", 200, 0, 10, "(none)");
    check_range("bytes=4-2", 200, 0, 10, "(none)");
    check_range("bytes=x-", 200, 0, 10, "(none)");
    check_range("bytes=-", 200, 0, 10, "(none)");
    check_range("lines=1-2", 200, 0, 10, "(none)");
    fx_put("r", "", 0, 0644);
    check_range("bytes=0-", 416, 0, 0, "bytes */0");
    assert_int_equal(get(query("r"), NULL), 200);
    assert_int_equal(fx.res.file_len, 0);
}

static void get_conditions(void **state) {
    (void)state;
    char etag[128], line[160], weak[160];
    fx_put("e", "abc", 3, 0644);
    assert_int_equal(get(query("e"), NULL), 200);
    snprintf(etag, sizeof etag, "%s", header("ETag"));
    snprintf(line, sizeof line, "If-None-Match: \"x\", %s", etag);
    snprintf(weak, sizeof weak, "If-None-Match: W/%s", etag);
    assert_int_equal(get(query("e"), H(line)), 304);
    assert_string_equal(header("ETag"), etag);
    assert_int_equal(fx.res.file_fd, 0);
    assert_int_equal(get(query("e"), H(weak)), 304);
    snprintf(line, sizeof line, "If-Range: %s", etag);
    assert_int_equal(get(query("e"), H("Range: bytes=1-1", line)), 206);
    assert_int_equal(get(query("e"), H("Range: bytes=1-1", "If-Range: \"old\"")), 200);
    fx_put("e", "abcd", 4, 0644);
    assert_int_equal(get(query("e"), H(weak)), 200);
}

static void get_errors(void **state) {
    (void)state;
    assert_int_equal(get(query("none"), NULL), 404);
    assert_int_equal(get(query(""), NULL), 400);
    assert_string_equal(fx_str("code"), "IS_DIRECTORY");
    assert_int_equal(get("", NULL), 400);
    assert_string_equal(fx_str("context.validationErrors.0.field"), "path");
    assert_int_equal(get("path=%zz", NULL), 400);
    assert_int_equal(get("path=a&bogus=1", NULL), 400);
    assert_string_equal(fx_str("context.validationErrors.0.field"), "bogus");
}

static void put_stores(void **state) {
    (void)state;
    static char data[300001];
    char digest[65], etag[128];
    uint8_t raw[32];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (char)(i * 31);
    cp_sha256_of(data, sizeof data, raw);
    cp_sha256_hex(raw, digest);
    assert_int_equal(put(query("u"), H("X-Checksum-Sha256: "), data, sizeof data), 200);
    assert_int_equal(fx_num("size"), sizeof data);
    assert_string_equal(fx_str("sha256"), digest);
    assert_true(yyjson_get_bool(fx_get("created")));
    snprintf(etag, sizeof etag, "%s", fx_str("etag"));
    fx_holds("u", data, sizeof data);
    assert_int_equal(get(query("u"), NULL), 200);
    assert_string_equal(header("ETag"), etag);
    fake_body chunked = {.p = "new", .n = 3, .step = 1, .reader.length = -1};
    assert_int_equal(put_body(query("u"), NULL, &chunked), 200);
    assert_null(fx_get("sha256")); /* it costs time: only who asks gets it */
    assert_false(yyjson_get_bool(fx_get("created")));
    fx_holds("u", "new", 3);
    assert_int_equal(put(query("zero"), NULL, "", 0), 200);
    fx_holds("zero", "", 0);
}

/* B088: a body that ends early leaves nothing, and the old file as it was. */
static void put_leaves_nothing_over(void **state) {
    (void)state;
    fake_body shorter = {.p = "abc", .n = 3, .step = 9, .reader.length = 10};
    fake_body broken = {.p = "abc", .n = 3, .step = 9, .reader.length = 3, .broken = true};
    assert_int_equal(put_body(query("new"), NULL, &shorter), 400);
    assert_int_equal(put_body(query("new"), NULL, &broken), 400);
    assert_int_equal(put(query("new"), H("X-Checksum-Sha256: 00"), "abc", 3), 422);
    assert_string_equal(fx_str("code"), "CHECKSUM_MISMATCH");
    assert_int_equal(fx_entries(""), 0);
    fx_put("old", "old", 3, 0600);
    shorter.at = 0;
    assert_int_equal(put_body(query("old"), NULL, &shorter), 400);
    fx_holds("old", "old", 3);
    assert_int_equal(fx_entries(""), 1);
}

static void put_checks(void **state) {
    (void)state;
    /* SHA-256 of "abc": FIPS 180-4 example. */
    static const char *const sum =
        "X-Checksum-Sha256: BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD";
    char line[160];
    assert_int_equal(put(query("c"), H(sum), "abc", 3), 200);
    snprintf(line, sizeof line, "If-Match: %s", fx_str("etag"));
    assert_int_equal(put(query("c"), H("If-Match: \"other\""), "x", 1), 412);
    assert_int_equal(put(query("c"), H("If-None-Match: *"), "x", 1), 412);
    fx_holds("c", "abc", 3);
    assert_int_equal(put(query("c"), H(line), "def", 3), 200);
    assert_int_equal(put(query("c"), H(line), "ghi", 3), 412);
    assert_int_equal(put(query("absent"), H("If-Match: *"), "x", 1), 412);
    assert_int_equal(put(query("absent"), H("If-None-Match: *"), "x", 1), 200);
}

static void put_options(void **state) {
    (void)state;
    struct stat st;
    char q[CP_PATH_MAX];
    assert_int_equal(put(query("a/b"), NULL, "x", 1), 404);
    snprintf(q, sizeof q, "path=%s/a/b&parents=1&mode=0751", fx.dir);
    assert_int_equal(put(q, NULL, "x", 1), 200);
    assert_int_equal(stat(fx_path("a/b"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0751);
    assert_int_equal(put(query("a/b"), NULL, "y", 1), 200);
    assert_int_equal(stat(fx_path("a/b"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0751); /* kept */
    snprintf(q, sizeof q, "path=%s/a/b&mode=rwx", fx.dir);
    assert_int_equal(put(q, NULL, "x", 1), 400);
    assert_string_equal(fx_str("context.validationErrors.0.field"), "mode");
    assert_int_equal(put(query("a"), NULL, "x", 1), 400);
    assert_string_equal(fx_str("code"), "IS_DIRECTORY");
    assert_int_equal(mkfifo(fx_path("fifo"), 0600), 0);
    assert_int_equal(put(query("fifo"), NULL, "x", 1), 500);
    assert_int_equal(fx_entries(""), 2);
}

/* ---- stat, chmod, chown ---- */

static void stat_tells(void **state) {
    (void)state;
    fx_put("f", "abc", 3, 0640);
    struct stat st;
    assert_int_equal(stat(fx_path("f"), &st), 0);
    assert_int_equal(symlink("f", fx_path("l")), 0);
    assert_int_equal(fx_post("/api/files/stat", "{\"path\":\"@/f\"}"), 200);
    assert_string_equal(fx_str("type"), "file");
    assert_string_equal(fx_str("mode"), "0640");
    assert_int_equal(fx_num("size"), 3);
    assert_int_equal(fx_num("ino"), st.st_ino);
    assert_int_equal(fx_num("nlink"), 1);
    assert_int_equal(fx_num("mtimeMs"), st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000);
    assert_int_equal(fx_post("/api/files/stat", "{\"path\":\"@/l\"}"), 200);
    assert_string_equal(fx_str("type"), "symlink");
    assert_string_equal(fx_str("target"), "f");
    assert_int_equal(fx_post("/api/files/stat", "{\"path\":\"@/l\",\"follow\":true}"), 200);
    assert_string_equal(fx_str("type"), "file");
    assert_int_equal(fx_post("/api/files/stat", "{\"path\":\"@/none\"}"), 404);
    assert_string_equal(fx_str("context.errno"), "ENOENT");
    assert_int_equal(fx_post("/api/files/stat", "{\"path\":\"@/f\",\"flow\":true}"), 400);
    assert_string_equal(fx_str("context.validationErrors.0.field"), "flow");
}

static void chmod_changes(void **state) {
    (void)state;
    assert_int_equal(mkdir(fx_path("d"), 0755), 0);
    assert_int_equal(mkdir(fx_path("d/s"), 0755), 0);
    fx_put("d/s/f", "", 0, 0644);
    fx_put("outside", "", 0, 0644);
    assert_int_equal(symlink("../outside", fx_path("d/l")), 0);
    assert_int_equal(fx_post("/api/files/chmod", "{\"path\":\"@/d\",\"mode\":\"0700\"}"), 200);
    assert_int_equal(fx_mode("d"), 0700);
    assert_int_equal(fx_mode("d/s"), 0755);
    assert_int_equal(fx_post("/api/files/chmod", "{\"path\":\"@/d\",\"mode\":488,\"recursive\":true}"), 200);
    assert_int_equal(fx_mode("d"), 0750);
    assert_int_equal(fx_mode("d/s/f"), 0750);
    assert_int_equal(fx_mode("outside"), 0644); /* links are not followed on the way down */
    assert_int_equal(fx_post("/api/files/chmod", "{\"path\":\"@/d/l\",\"mode\":\"600\"}"), 200);
    assert_int_equal(fx_mode("outside"), 0600); /* the path itself is */
    assert_int_equal(fx_post("/api/files/chmod", "{\"path\":\"@/d\"}"), 400);
    assert_string_equal(fx_str("context.validationErrors.0.field"), "mode");
    assert_int_equal(fx_post("/api/files/chmod", "{\"path\":\"@/d\",\"mode\":4096}"), 400);
}

static void chown_changes(void **state) {
    (void)state;
    struct stat st;
    assert_int_equal(mkdir(fx_path("d"), 0755), 0);
    fx_put("d/f", "", 0, 0644);
    assert_int_equal(fx_post("/api/files/chown", "{\"path\":\"@/d\"}"), 400);
    if (geteuid() != 0) skip();
    assert_int_equal(fx_post("/api/files/chown", "{\"path\":\"@/d\",\"uid\":1234,\"recursive\":true}"), 200);
    assert_int_equal(stat(fx_path("d/f"), &st), 0);
    assert_int_equal(st.st_uid, 1234);
    assert_int_equal(st.st_gid, getegid());
}

/* ---- copy ---- */

static void copy_files(void **state) {
    (void)state;
    static char data[700000];
    memset(data, 'd', sizeof data);
    fx_put("a", data, sizeof data, 0750);
    assert_int_equal(mkdir(fx_path("d"), 0755), 0);
    assert_int_equal(fx_post("/api/files/copy", "{\"source\":\"@/a\",\"destination\":\"@/b\"}"), 200);
    assert_int_equal(fx_num("bytes"), sizeof data);
    fx_holds("b", data, sizeof data);
    assert_int_equal(fx_mode("b"), 0750);
    assert_int_equal(fx_post("/api/files/copy", "{\"source\":\"@/a\",\"destination\":\"@/d\"}"), 200);
    assert_true(fx_there("d/a"));
    fx_put("b", "other", 5, 0644);
    assert_int_equal(fx_post("/api/files/copy", "{\"source\":\"@/a\",\"destination\":\"@/b\"}"), 409);
    assert_string_equal(fx_str("code"), "FILE_EXISTS");
    fx_holds("b", "other", 5);
    assert_int_equal(fx_post("/api/files/copy", "{\"source\":\"@/a\",\"destination\":\"@/b\",\"overwrite\":true}"),
                     200);
    fx_holds("b", data, sizeof data);
    assert_int_equal(fx_post("/api/files/copy", "{\"source\":\"@/none\",\"destination\":\"@/x\"}"), 404);
    assert_string_equal(fx_str("context.path"), fx_path("none"));
    assert_int_equal(fx_post("/api/files/copy", "{\"source\":\"@/a\",\"destination\":\"@/no/x\"}"), 404);
    assert_int_equal(fx_post("/api/files/copy", "{\"source\":\"/proc/self/status\",\"destination\":\"@/proc\"}"), 200);
    assert_true(fx_num("bytes") > 0);
}

static void copy_trees(void **state) {
    (void)state;
    struct stat st;
    assert_int_equal(mkdir(fx_path("t"), 0750), 0);
    assert_int_equal(mkdir(fx_path("t/s"), 0755), 0);
    fx_put("t/s/f", "x", 1, 0600);
    assert_int_equal(symlink("s/f", fx_path("t/l")), 0);
    assert_int_equal(fx_post("/api/files/copy", "{\"source\":\"@/t\",\"destination\":\"@/u\"}"), 400);
    assert_string_equal(fx_str("code"), "IS_DIRECTORY");
    assert_int_equal(fx_post("/api/files/copy", "{\"source\":\"@/t\",\"destination\":\"@/u\",\"recursive\":true}"),
                     200);
    fx_holds("u/s/f", "x", 1);
    assert_int_equal(fx_mode("u"), 0750);
    assert_int_equal(lstat(fx_path("u/l"), &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    /* Into itself: refused, and nothing is left of the try. */
    assert_int_equal(fx_post("/api/files/copy", "{\"source\":\"@/t\",\"destination\":\"@/t/s\",\"recursive\":true}"),
                     500);
    assert_int_equal(fx_entries("t/s"), 1);
    /* Over what is there: merged. */
    fx_put("t/s/f", "new", 3, 0600);
    fx_put("u/keep", "k", 1, 0600);
    assert_int_equal(rename(fx_path("u"), fx_path("in")), 0);
    assert_int_equal(mkdir(fx_path("o"), 0755), 0);
    assert_int_equal(rename(fx_path("in"), fx_path("o/t")), 0);
    assert_int_equal(fx_post("/api/files/copy",
                             "{\"source\":\"@/t\",\"destination\":\"@/o\",\"recursive\":true,\"overwrite\":true}"),
                     200);
    fx_holds("o/t/s/f", "new", 3);
    fx_holds("o/t/keep", "k", 1);
}

/* Holes are not filled. */
static void copy_sparse(void **state) {
    (void)state;
    struct stat st;
    fx_put("s", "head", 4, 0644);
    cp_autofd int fd = open(fx_path("s"), O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "tail", 4, 4294967296), 4);
    assert_int_equal(ftruncate(fd, 10737418240), 0);
    assert_int_equal(fx_post("/api/files/copy", "{\"source\":\"@/s\",\"destination\":\"@/c\"}"), 200);
    assert_int_equal(stat(fx_path("c"), &st), 0);
    assert_int_equal(st.st_size, 10737418240);
    assert_true(st.st_blocks * 512 < 1 << 20);
    char tail[4];
    cp_autofd int copy = open(fx_path("c"), O_RDONLY | O_CLOEXEC);
    assert_int_equal(pread(copy, tail, 4, 4294967296), 4);
    assert_memory_equal(tail, "tail", 4);
}

#define T(f) cmocka_unit_test_setup_teardown(f, fx_setup, fx_teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        T(get_sends_the_file),      T(get_ranges), T(get_conditions), T(get_errors),  T(put_stores),
        T(put_leaves_nothing_over), T(put_checks), T(put_options),    T(stat_tells),  T(chmod_changes),
        T(chown_changes),           T(copy_files), T(copy_trees),     T(copy_sparse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
