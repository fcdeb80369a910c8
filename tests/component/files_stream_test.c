/* POST /api/read/stream (cloudflare-sandbox.md section 3.3), pulled as a transport does, with a real io pool. */
#include "tests/component/files_fixture.h"

#include "base/clock.h"

static struct {
    cp_reply reply;
    cp_source *src;
    bool woken;
    cp_buf events; /* a JSON array in the making */
    unsigned count;
} st;

static void on_stream(cp_reply *r, cp_source *src) {
    (void)r;
    st.src = src;
}
static void on_wake(cp_source *s) {
    (void)s;
    st.woken = true;
}

static int setup(void **state) {
    cp_err err = {0};
    if (fx_setup(state) < 0) return -1;
    fx.ctx.loop = cp_loop_new(&err);
    fx.ctx.workers = cp_workers_new(fx.ctx.loop, 2, &err);
    return fx.ctx.workers ? 0 : -1;
}

static int teardown(void **state) {
    cp_buf_free(&st.events);
    cp_workers_free(fx.ctx.workers);
    while (cp_loop_once(fx.ctx.loop, 0) > 0) {
    }
    cp_loop_free(fx.ctx.loop);
    return fx_teardown(state);
}

static void start(const char *body) {
    static const cp_reply_ops ops = {.stream = on_stream};
    cp_buf_clear(&st.events);
    st.count = 0;
    st.src = NULL;
    st.reply = (cp_reply){.ops = &ops};
    yyjson_doc *doc = yyjson_read(body, strlen(body), 0);
    cp_request req = {.method = CP_POST, .body = yyjson_doc_get_root(doc)};
    fx_route(CP_POST, "/api/read/stream")->async(&fx.ctx, &req, &st.reply);
    yyjson_doc_free(doc);
    assert_non_null(st.src);
    st.src->wake = on_wake;
}

static void start_path(const char *name) {
    char body[CP_PATH_MAX + 32];
    snprintf(body, sizeof body, "{\"path\":\"%s\"}", fx_path(name));
    start(body);
}

/* The next event goes to the list; false at the end. Waits while the source says so. */
static bool pull(void) {
    uint64_t deadline = cp_now_ms() + 30000;
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
        while (!st.woken) {
            assert_true(cp_now_ms() < deadline);
            cp_loop_once(fx.ctx.loop, 1000);
        }
    }
}

static void finish(void) {
    while (pull()) {
    }
    st.src->ops->close(st.src, CP_END_DONE, false);
    cp_buf_addc(&st.events, ']');
    yyjson_doc_free(fx.doc);
    fx.doc = yyjson_read(st.events.p, st.events.n, 0);
    assert_non_null(fx.doc);
}

static yyjson_val *event(size_t i) { return yyjson_arr_get(yyjson_doc_get_root(fx.doc), i); }
static const char *str(size_t i, const char *key) {
    const char *s = yyjson_get_str(yyjson_obj_get(event(i), key));
    return s ? s : "(none)";
}
static int64_t num(size_t i, const char *key) { return yyjson_get_sint(yyjson_obj_get(event(i), key)); }

/* The chunks' data put together, decoded when binary. */
static void joined(cp_buf *out, bool base64) {
    for (size_t i = 1; i + 1 < st.count; i++) {
        assert_string_equal(str(i, "type"), "chunk");
        yyjson_val *v = yyjson_obj_get(event(i), "data");
        cp_str s = {yyjson_get_str(v), yyjson_get_len(v)};
        if (base64) assert_int_equal(cp_base64_decode(out, s), 0);
        else cp_buf_add(out, s.p, s.n);
    }
}

static void text(void **state) {
    (void)state;
    fx_put("t.txt", "h\xc3\xa9llo\n", 7, 0644);
    start_path("t.txt");
    finish();
    assert_int_equal(st.count, 3);
    assert_string_equal(str(0, "type"), "metadata");
    assert_string_equal(str(0, "mimeType"), "text/plain");
    assert_string_equal(str(0, "encoding"), "utf-8");
    assert_int_equal(num(0, "size"), 7);
    assert_false(yyjson_get_bool(yyjson_obj_get(event(0), "isBinary")));
    assert_string_equal(str(1, "data"), "h\xc3\xa9llo\n");
    assert_string_equal(str(2, "type"), "complete");
    assert_int_equal(num(2, "bytesRead"), 7);
    assert_null(yyjson_obj_get(event(2), "lossy"));
}

static void binary_in_pieces_of_65535(void **state) {
    (void)state;
    static char data[200000];
    cp_autobuf cp_buf back = {0};
    for (size_t i = 0; i < sizeof data; i++) data[i] = (char)(i * 7 + i / 256);
    fx_put("s.bin", data, sizeof data, 0644);
    start_path("s.bin");
    finish();
    assert_int_equal(st.count, 6);
    assert_int_equal(yyjson_get_len(yyjson_obj_get(event(1), "data")), 65535 / 3 * 4);
    joined(&back, true);
    assert_int_equal(back.n, sizeof data);
    assert_memory_equal(back.p, data, sizeof data);
    assert_int_equal(num(5, "bytesRead"), sizeof data);
}

static void characters_across_pieces(void **state) {
    (void)state;
    cp_autobuf cp_buf want = {0}, got = {0};
    cp_buf_addz(&want, "ab");
    for (int i = 0; i < 60000; i++) cp_buf_addz(&want, "\xF0\x9F\x9A\x80");
    fx_put("e.txt", want.p, want.n, 0644);
    start_path("e.txt");
    finish();
    joined(&got, false);
    assert_int_equal(got.n, want.n);
    assert_memory_equal(got.p, want.p, want.n);
    assert_int_equal(num(st.count - 1, "bytesRead"), want.n);
    assert_null(yyjson_obj_get(event(st.count - 1), "lossy"));
    fx_put("e.txt", want.p, want.n - 1, 0644); /* ends inside a character */
    start_path("e.txt");
    finish();
    cp_buf_clear(&got);
    joined(&got, false);
    assert_memory_equal(got.p + got.n - 3, "\xef\xbf\xbd", 3);
    assert_true(yyjson_get_bool(yyjson_obj_get(event(st.count - 1), "lossy")));
}

static void empty(void **state) {
    (void)state;
    fx_put("empty", "", 0, 0644);
    start_path("empty");
    finish();
    assert_int_equal(st.count, 2);
    assert_string_equal(str(0, "mimeType"), "inode/x-empty");
    assert_int_equal(num(1, "bytesRead"), 0);
}

static void one_error_event(const char *want) {
    finish();
    assert_int_equal(st.count, 1);
    assert_string_equal(str(0, "type"), "error");
    assert_string_equal(str(0, "error"), want);
}

static void errors_are_one_event(void **state) {
    (void)state;
    char want[256];
    snprintf(want, sizeof want, "File not found: %s/missing", fx.dir);
    start_path("missing");
    one_error_event(want);
    snprintf(want, sizeof want, "File not found: %s/", fx.dir);
    start_path("");
    one_error_event(want);
    start("{\"path\":\"\"}");
    one_error_event("Invalid path format for '': Path must be a non-empty string");
    start("{}");
    one_error_event("Invalid path format for 'undefined': Path must be a non-empty string");
    assert_int_equal(mkfifo(fx_path("fifo"), 0600), 0);
    start_path("fifo");
    finish();
    assert_int_equal(st.count, 1);
}

/* What is appended after the start is not sent; what is cut off is not waited for. */
static void a_file_that_changes(void **state) {
    (void)state;
    static char data[300000];
    cp_autobuf cp_buf got = {0};
    memset(data, 'x', sizeof data);
    fx_put("g.txt", data, sizeof data, 0644);
    start_path("g.txt");
    assert_true(pull()); /* metadata */
    fx_put("more", data, 1, 0644);
    cp_autofd int fd = open(fx_path("g.txt"), O_WRONLY | O_APPEND | O_CLOEXEC);
    assert_int_equal(cp_write_all(fd, data, sizeof data), 0);
    finish();
    joined(&got, false);
    assert_int_equal(got.n, sizeof data);
    start_path("g.txt");
    assert_true(pull());
    assert_int_equal(truncate(fx_path("g.txt"), 10), 0);
    finish();
    cp_buf_clear(&got);
    joined(&got, false);
    assert_int_equal(num(0, "size"), 2 * sizeof data);
    assert_string_equal(str(st.count - 1, "type"), "complete");
    assert_int_equal(num(st.count - 1, "bytesRead"), got.n);
    assert_true(got.n < 2 * sizeof data);
}

static void proc_files(void **state) {
    (void)state;
    cp_autobuf cp_buf got = {0};
    start("{\"path\":\"/proc/self/status\"}");
    finish();
    joined(&got, false);
    assert_non_null(memmem(got.p, got.n, "Name:", 5));
    assert_int_equal(num(0, "size"), got.n);
}

/* Given up before, between and while reading: the source frees itself once. */
static void given_up(void **state) {
    (void)state;
    static char data[300000];
    fx_put("s.bin", data, sizeof data, 0644);
    start_path("s.bin");
    st.src->ops->close(st.src, CP_END_CANCELLED, false);
    for (int after = 1; after < 5; after++) {
        start_path("s.bin");
        for (int i = 0; i < after; i++) assert_true(pull());
        st.src->ops->close(st.src, CP_END_DISCONNECTED, false);
    }
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        T(text),
        T(binary_in_pieces_of_65535),
        T(characters_across_pieces),
        T(empty),
        T(errors_are_one_event),
        T(a_file_that_changes),
        T(proc_files),
        T(given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
