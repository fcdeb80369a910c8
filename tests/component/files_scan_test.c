/* POST /api/files/search and /api/files/grep, pulled as a transport does, with a real io pool. */
#include "tests/component/files_fixture.h"

#include "base/clock.h"
#include "component/config_fixture.h"
#include "services/files_walk.h"

#include <errno.h>
#include <stdarg.h>
#include <sys/syscall.h>

/* In place of the C library's: what is called `unreadable` meets the errno that a test has set. */
static const char *unreadable;
static int refusal;

int openat(int dir, const char *path, int flags, ...) {
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    if (unreadable && strcmp(path, unreadable) == 0) return errno = refusal, -1;
    return (int)syscall(SYS_openat, dir, path, flags, mode);
}

static struct {
    cp_reply reply;
    cp_source *src;
    bool woken, sent;
    cp_buf events; /* a JSON array in the making */
    unsigned count;
} st;

static void on_stream(cp_reply *r, cp_source *src) {
    (void)r;
    st.src = src;
}
static void on_send(cp_reply *r, cp_result *res) {
    (void)r;
    fx_forget();
    fx.res = *res;
    fx.doc = yyjson_read(fx.res.body.p, fx.res.body.n, 0);
    st.sent = true;
}
static void on_wake(cp_source *s) {
    (void)s;
    st.woken = true;
}

static int setup(void **state) {
    cp_err err = {0};
    if (fx_setup(state) < 0) return -1;
    config_defaults(&fx.config);
    fx.ctx.loop = cp_loop_new(&err);
    fx.ctx.workers = cp_workers_new(fx.ctx.loop, 2, &err);
    return fx.ctx.workers ? 0 : -1;
}

static int teardown(void **state) {
    cp_buf_free(&st.events);
    cp_workers_free(fx.ctx.workers);
    while (cp_loop_once(fx.ctx.loop, 0) > 0) continue;
    assert_int_equal(fx.ctx.scans, 0);
    cp_loop_free(fx.ctx.loop);
    return fx_teardown(state);
}

static void turn(void) {
    static uint64_t deadline;
    if (!deadline) deadline = cp_now_ms() + 60000;
    assert_true(cp_now_ms() < deadline);
    cp_loop_once(fx.ctx.loop, 1000);
}

/* Asks; until there is a stream or an answer. Members of the body, without path: the folder of the test. */
static void ask(const char *route, const char *members) {
    static const cp_reply_ops ops = {.stream = on_stream, .send = on_send};
    cp_autobuf cp_buf body = {0};
    if (strstr(members, "\"path\"")) cp_buf_addf(&body, "{%s}", members);
    else cp_buf_addf(&body, "{\"path\":\"%s\"%s%s}", fx.dir, *members ? "," : "", members);
    cp_buf_clear(&st.events);
    st.count = 0;
    st.src = NULL;
    st.sent = false;
    st.reply = (cp_reply){.ops = &ops};
    yyjson_doc *doc = yyjson_read(body.p, body.n, 0);
    if (!doc) fail_msg("not JSON: %s", cp_buf_z(&body));
    cp_request req = {.method = CP_POST, .body = yyjson_doc_get_root(doc)};
    fx_route(CP_POST, route)->async(&fx.ctx, &req, &st.reply);
    yyjson_doc_free(doc);
}

static void await(void) {
    while (!st.src && !st.sent) turn();
    if (st.src) st.src->wake = on_wake;
}

static bool pull(void) {
    for (;;) {
        size_t before = st.events.n;
        cp_buf_addc(&st.events, st.count ? ',' : '[');
        cp_event ev = {.w = cp_jw_on(&st.events)};
        st.woken = false;
        cp_pull got = st.src->ops->pull(st.src, 65536, &ev);
        if (got == CP_PULL_EVENT) {
            st.count++;
            return true;
        }
        st.events.n = before;
        if (got == CP_PULL_END) return false;
        while (!st.woken) turn();
    }
}

static void finish(void) {
    await();
    if (!st.src) fail_msg("%s", cp_buf_z(&fx.res.body));
    while (pull()) continue;
    st.src->ops->close(st.src, CP_END_DONE, false);
    cp_buf_addc(&st.events, ']');
    fx_forget();
    fx.doc = yyjson_read(st.events.p, st.events.n, 0);
    assert_non_null(fx.doc);
}

static yyjson_val *event(size_t i) { return yyjson_arr_get(yyjson_doc_get_root(fx.doc), i); }
static const char *str(size_t i, const char *key) {
    const char *s = yyjson_get_str(yyjson_obj_get(event(i), key));
    return s ? s : "(none)";
}
static int64_t num(size_t i, const char *key) { return yyjson_get_sint(yyjson_obj_get(event(i), key)); }
static int64_t total(const char *key) {
    assert_string_equal(str(st.count - 1, "type"), "complete");
    return num(st.count - 1, key);
}

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* The relative paths of all matches, sorted, with a blank after each. */
static void found(const char *want) {
    const char *names[64];
    cp_autobuf cp_buf got = {0};
    size_t n = 0;
    for (size_t i = 0; i + 1 < st.count; i++) names[n++] = str(i, "relativePath");
    qsort(names, n, sizeof *names, by_text);
    for (size_t i = 0; i < n; i++) cp_buf_addf(&got, "%s ", names[i]);
    assert_string_equal(cp_buf_z(&got), want);
    assert_int_equal(total("matches"), n);
}

static void put(const char *name, const char *text) { fx_put(name, text, strlen(text), 0644); }

static void tree(void) {
    static const char *const dirs[] = {"src", "src/deep", ".git", "empty"};
    for (size_t i = 0; i < CP_COUNT(dirs); i++) assert_int_equal(mkdir(fx_path(dirs[i]), 0755), 0);
    put("a.c", "int a;\nint needle;\n");
    put("src/b.c", "needle\n");
    put("src/b.h", "nothing\n");
    put("src/deep/c.c", "x needle y needle\nno\nneedle");
    put(".git/x.c", "needle\n");
    put(".hidden.c", "needle\n");
    assert_int_equal(symlink("..", fx_path("src/deep/loop")), 0);
    assert_int_equal(symlink("a.c", fx_path("link.c")), 0);
}

/* ---- search ---- */

static void by_glob(void **state) {
    (void)state;
    tree();
    ask("/api/files/search", "");
    finish();
    found("a.c empty link.c src src/b.c src/b.h src/deep src/deep/c.c src/deep/loop ");
    ask("/api/files/search", "\"glob\":\"*.c\"");
    finish();
    found("a.c link.c src/b.c src/deep/c.c ");
    ask("/api/files/search", "\"glob\":\"**/*.c\",\"hidden\":true");
    finish();
    found(".git/x.c .hidden.c a.c link.c src/b.c src/deep/c.c ");
    ask("/api/files/search", "\"glob\":\"src/*\"");
    finish();
    found("src/b.c src/b.h src/deep ");
    ask("/api/files/search", "\"glob\":\"src\""); /* the folder, not what is in it */
    finish();
    found("src ");
    assert_string_equal(str(0, "kind"), "directory");
    assert_string_equal(str(0, "absolutePath"), fx_path("src"));
    ask("/api/files/search", "\"glob\":\"?.h\"");
    finish();
    found("src/b.h ");
    assert_int_equal(num(0, "size"), 8);
    assert_false(yyjson_get_bool(yyjson_obj_get(event(1), "truncated")));
}

static void at_most_so_many(void **state) {
    (void)state;
    tree();
    ask("/api/files/search", "\"limit\":3");
    finish();
    assert_int_equal(total("matches"), 3);
    assert_true(yyjson_get_bool(yyjson_obj_get(event(3), "truncated")));
}

static void refusals(void **state) {
    (void)state;
    static const char *const bad[][3] = {
        {"/api/files/search", "\"path\":\"\"", "path"},
        {"/api/files/search", "\"path\":7", "path"},
        {"/api/files/search", "\"glob\":\"[a]\"", "glob"},
        {"/api/files/search", "\"glob\":\"\"", "glob"},
        {"/api/files/search", "\"limit\":0", "limit"},
        {"/api/files/search", "\"limit\":1000001", "limit"},
        {"/api/files/search", "\"pattern\":\"x\"", "pattern"},
        {"/api/files/grep", "\"limit\":1", "pattern"},
        {"/api/files/grep", "\"pattern\":\"\"", "pattern"},
        {"/api/files/grep", "\"pattern\":\"(\",\"regex\":true", "pattern"},
        {"/api/files/grep", "\"pattern\":\"(a)\\\\1\",\"regex\":true", "pattern"},
        {"/api/files/grep", "\"pattern\":\"a\\u0000b\"", "pattern"},
    };
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        ask(bad[i][0], bad[i][1]);
        await();
        assert_null(st.src);
        assert_int_equal(fx.res.status, 400);
        assert_string_equal(fx_str("context.validationErrors.0.field"), bad[i][2]);
    }
    ask("/api/files/search", "\"path\":\"nowhere\"");
    await();
    assert_int_equal(fx.res.status, 404);
    put("f", "x");
    ask("/api/files/search", "\"path\":\"f\"");
    await();
    assert_string_equal(fx_str("code"), "NOT_DIRECTORY");
    ask("/api/files/grep", "\"path\":\"nowhere\",\"pattern\":\"x\"");
    await();
    assert_string_equal(fx_str("code"), "FILE_NOT_FOUND");
    assert_int_equal(mkfifo(fx_path("pipe"), 0600), 0);
    ask("/api/files/grep", "\"path\":\"pipe\",\"pattern\":\"x\"");
    await();
    assert_int_equal(fx.res.status, 500);
}

static void confined(void **state) {
    (void)state;
    tree();
    assert_int_equal(symlink("..", fx_path("src/up")), 0);
    fx_root(fx_path("src"));
    ask("/api/files/search", "\"path\":\"up\"");
    await();
    assert_int_equal(fx.res.status, 403);
    char path[CP_PATH_MAX];
    snprintf(path, sizeof path, "\"path\":\"%s\",\"pattern\":\"needle\"", fx_path("src/up"));
    ask("/api/files/grep", path);
    await();
    assert_int_equal(fx.res.status, 403);
}

static void too_many_at_once(void **state) {
    (void)state;
    fx.config.max_scans = 1;
    ask("/api/files/search", "");
    await();
    cp_source *first = st.src;
    assert_non_null(first);
    ask("/api/files/search", "");
    await();
    assert_int_equal(fx.res.status, 429);
    first->ops->close(first, CP_END_DISCONNECTED, false);
    ask("/api/files/search", "");
    finish();
}

/* Deeper than descriptors are held for is found all the same; a path that is too long is told as skipped. */
static void deep(void **state) {
    (void)state;
    char name[CP_NAME_MAX + 1];
    cp_autofd int at = open(fx.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    memset(name, 'd', CP_NAME_MAX);
    name[CP_NAME_MAX] = 0;
    int told = CP_WALK_PATH_MAX / (CP_NAME_MAX + 1) + 1; /* the last of these has too long a path to be entered */
    for (int i = 0; i < told + 5; i++) {
        assert_int_equal(mkdirat(at, name, 0755), 0);
        int next = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        cp_close(&at);
        at = next;
    }
    ask("/api/files/search", "");
    finish();
    assert_int_equal(total("matches"), told);
    assert_int_equal(total("skipped"), 1);
    assert_int_equal(cp_tree_remove(AT_FDCWD, fx_path(name)), 0); /* by descriptors: nftw cannot */
}

/* More than a job finds: the next is begun when the first one's events are on their way. */
static void many(void **state) {
    (void)state;
    char name[32];
    for (int i = 0; i < 2000; i++) {
        snprintf(name, sizeof name, "file-%d", i);
        put(name, "");
    }
    ask("/api/files/search", "\"glob\":\"file-*\"");
    finish();
    assert_int_equal(total("matches"), 2000);
    assert_int_equal(st.count, 2001);
}

static void given_up_at_any_time(void **state) {
    (void)state;
    char name[32];
    for (int i = 0; i < 2000; i++) {
        snprintf(name, sizeof name, "file-%d", i);
        put(name, "needle\n");
    }
    for (unsigned pulls = 0; pulls < 4000; pulls = pulls * 3 + 1) {
        ask("/api/files/grep", "\"pattern\":\"needle\"");
        if (pulls == 0) { /* before there is a stream */
            assert_false(st.reply.on_cancel(&st.reply, CP_END_CANCELLED, false));
            continue;
        }
        await();
        for (unsigned i = 1; i < pulls && pull(); i++) continue;
        st.src->ops->close(st.src, CP_END_CANCELLED, false);
    }
}

/* ---- grep ---- */

static void lines(void **state) {
    (void)state;
    tree();
    ask("/api/files/grep", "\"pattern\":\"needle\"");
    finish();
    found("a.c src/b.c src/deep/c.c src/deep/c.c ");
    assert_int_equal(total("files"), 4);
    ask("/api/files/grep", "\"pattern\":\"needle\",\"glob\":\"c.c\"");
    finish();
    assert_int_equal(st.count, 3);
    assert_int_equal(num(0, "line"), 1);
    assert_int_equal(num(0, "offset"), 2);
    assert_string_equal(str(0, "text"), "x needle y needle");
    assert_int_equal(num(1, "line"), 3);
    assert_int_equal(num(1, "offset"), 21);
    assert_string_equal(str(1, "text"), "needle");
    ask("/api/files/grep", "\"path\":\"a.c\",\"pattern\":\"int\"");
    finish();
    found("  ");
    assert_string_equal(str(0, "absolutePath"), fx_path("a.c"));
    ask("/api/files/grep", "\"pattern\":\"^(x|int) n.*e;?$\",\"regex\":true,\"hidden\":true");
    finish();
    found("a.c src/deep/c.c ");
    ask("/api/files/grep", "\"pattern\":\"needle\",\"limit\":2");
    finish();
    assert_int_equal(total("matches"), 2);
    assert_true(yyjson_get_bool(yyjson_obj_get(event(2), "truncated")));
}

static void line_ends_and_emptiness(void **state) {
    (void)state;
    put("crlf", "one\r\ntwo\r\n");
    put("none", "");
    put("last", "\n\ntwo");
    ask("/api/files/grep", "\"pattern\":\"two$\",\"regex\":true");
    finish();
    found("crlf last ");
    for (size_t i = 0; i < 2; i++) assert_string_equal(str(i, "text"), "two");
    ask("/api/files/grep", "\"pattern\":\"^$\",\"regex\":true");
    finish();
    found("last last ");
}

static void binary_files_are_left(void **state) {
    (void)state;
    fx_put("bin", "needle\0needle\n", 14, 0644);
    put("txt", "needle\n");
    ask("/api/files/grep", "\"pattern\":\"needle\"");
    finish();
    found("txt ");
    assert_int_equal(total("binary"), 1);
}

/* Over the border of two pieces, and in a line that is longer than any buffer. */
static void long_lines(void **state) {
    (void)state;
    enum { SIZE = 300000 };
    char *text = cp_alloc(SIZE + 1);
    for (size_t i = 0; i < SIZE; i++) text[i] = i % 100 == 99 ? '\n' : 'a';
    memcpy(text + 65536 - 3, "needle", 6); /* piece border */
    fx_put("lines", text, SIZE, 0644);
    ask("/api/files/grep", "\"pattern\":\"needle\"");
    finish();
    found("lines ");
    assert_int_equal(num(0, "offset"), 65533);
    assert_int_equal(num(0, "line"), 65533 / 100 + 1);
    memset(text, 'b', SIZE);
    memcpy(text + 65536 - 3, "needle", 6);
    memcpy(text + 200000, "needle", 6);
    memcpy(text + 200050, "\nneedle", 7);
    fx_put("lines", text, SIZE, 0644);
    ask("/api/files/grep", "\"pattern\":\"needle\"");
    finish();
    found("lines lines ");
    assert_int_equal(num(0, "offset"), 65533); /* once a line */
    assert_true(yyjson_get_bool(yyjson_obj_get(event(0), "cut")));
    assert_int_equal(num(1, "offset"), 200051);
    assert_int_equal(num(1, "line"), 2);
    ask("/api/files/grep", "\"pattern\":\"^n.*e\",\"regex\":true");
    finish();
    found("lines ");
    assert_int_equal(num(0, "line"), 2);
    assert_int_equal(total("longLines"), 2);
    free(text);
}

/* Whoever searches is told that not all has been looked at; what went away meanwhile is nothing to tell. */
static void what_cannot_be_read_is_counted(void **state) {
    (void)state;
    static const struct {
        int sys;
        int64_t skipped;
    } cases[] = {{EMFILE, 1}, {ENFILE, 1}, {ENOMEM, 1}, {EACCES, 1}, {EIO, 1}, {ENOENT, 0}};
    tree();
    unreadable = "b.c";
    for (size_t i = 0; i < CP_COUNT(cases); i++) {
        refusal = cases[i].sys;
        ask("/api/files/grep", "\"pattern\":\"needle\"");
        finish();
        found("a.c src/deep/c.c src/deep/c.c ");
        assert_int_equal(total("skipped"), cases[i].skipped);
    }
    unreadable = "deep"; /* a folder */
    refusal = EMFILE;
    ask("/api/files/search", "\"glob\":\"*.c\"");
    finish();
    found("a.c link.c src/b.c ");
    assert_int_equal(total("skipped"), 1);
    unreadable = NULL;
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(by_glob),
        T(at_most_so_many),
        T(refusals),
        T(confined),
        T(too_many_at_once),
        T(deep),
        T(many),
        T(given_up_at_any_time),
        T(lines),
        T(line_ends_and_emptiness),
        T(binary_files_are_left),
        T(long_lines),
        T(what_cannot_be_read_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
