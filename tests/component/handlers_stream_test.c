/* execute/stream and /api/execution/{id}/stream over scripted services. */
#include "handlers_fake.h"

static void a_stream_from_start_to_complete(void **state) {
    (void)state;
    stream("{\"command\":\"x y\"}");
    assert_null(c.src);
    cp_exec *e = fake_begin(fake_newest());
    assert_string_equal(pull(&c), "start");
    assert_string_equal(text(&c, "/command"), "x y");
    assert_int_equal(yyjson_obj_size(yyjson_doc_get_root(c.doc)), 3); /* exactly the page's fields */
    assert_string_equal(pull(&c), "WAIT");
    fake_say(e, 0, "one\n");
    fake_say(e, 1, "two\n");
    assert_true(c.wakes > 0);
    assert_string_equal(pull(&c), "stdout");
    assert_string_equal(text(&c, "/data"), "one\n");
    assert_int_equal(yyjson_obj_size(yyjson_doc_get_root(c.doc)), 3);
    assert_string_equal(c.ev.id, "");
    assert_string_equal(pull(&c), "stderr");
    assert_string_equal(pull(&c), "WAIT");
    fake_exit(e, 0, 0);
    assert_string_equal(pull(&c), "complete");
    assert_int_equal(num(&c, "/exitCode"), 0);
    assert_int_equal(yyjson_obj_size(yyjson_doc_get_root(c.doc)), 3);
    assert_string_equal(pull(&c), "END");
}

static void characters_are_not_cut(void **state) {
    (void)state;
    stream("{\"command\":\"x\"}");
    cp_exec *e = fake_begin(fake_newest());
    pull(&c);
    fake_print(e, 0, "a\xe2\x82", 3);
    assert_string_equal(pull(&c), "stdout");
    assert_string_equal(text(&c, "/data"), "a");
    assert_string_equal(pull(&c), "WAIT");
    fake_print(e, 0, "\xac\xf0\x9f", 3);
    assert_string_equal(pull(&c), "stdout");
    assert_string_equal(text(&c, "/data"), "\xe2\x82\xac");
    assert_string_equal(pull(&c), "WAIT");
    fake_exit(e, 1, 0);
    assert_string_equal(pull(&c), "stdout");
    assert_string_equal(text(&c, "/data"), "\xef\xbf\xbd"); /* what never became a character */
    assert_string_equal(pull(&c), "complete");
}

static void nothing_is_lost_and_both_get_their_turn(void **state) {
    (void)state;
    stream("{\"command\":\"x\"}");
    cp_exec *e = fake_begin(fake_newest());
    cp_buf sent[2] = {{0}}, got[2] = {{0}};
    for (int i = 0; i < 200000; i++) cp_buf_addf(&sent[i & 1], "%d\xe2\x82\xac\n", i);
    size_t at_[2] = {0};
    bool over = false;
    const char *type;
    pull(&c);
    while (strcmp(type = pull(&c), "complete") != 0) {
        if (type[0] == 's') {
            int k = strcmp(type, "stderr") == 0;
            assert_true(yyjson_get_len(at(&c, "/data")) <= 65536);
            cp_buf_add(&got[k], text(&c, "/data"), yyjson_get_len(at(&c, "/data")));
            continue;
        }
        for (int k = 0; k < 2; k++) {
            size_t n = sent[k].n - at_[k];
            ssize_t w = n ? write(e->impl->write_fd[k], sent[k].p + at_[k], n < 30001 ? n : 30001) : 0;
            if (w > 0) at_[k] += (size_t)w;
        }
        if (!over && at_[0] == sent[0].n && at_[1] == sent[1].n) over = true, fake_exit(e, 0, 0);
        fake_loop();
    }
    for (int k = 0; k < 2; k++) {
        assert_int_equal(got[k].n, sent[k].n);
        assert_memory_equal(got[k].p, sent[k].p, sent[k].n);
        cp_buf_free(&got[k]), cp_buf_free(&sent[k]);
    }
}

static void offsets_and_resume(void **state) {
    (void)state;
    stream("{\"command\":\"x\",\"from\":0,\"executionId\":\"r\"}");
    cp_exec *e = fake_begin(fake_newest());
    assert_string_equal(pull(&c), "start");
    assert_string_equal(text(&c, "/executionId"), "r");
    fake_say(e, 0, "hello");
    fake_say(e, 1, "!");
    assert_string_equal(pull(&c), "stdout");
    assert_int_equal(num(&c, "/offset"), 0);
    assert_string_equal(c.ev.id, "5-0");
    assert_string_equal(pull(&c), "stderr");
    assert_string_equal(c.ev.id, "5-1");
    const cp_header last = {CP_STR("Last-Event-ID"), CP_STR("2-1")};
    ask_with(&c, CP_GET, "/api/execution/r/stream?from=0", NULL, (ask_opts){.headers = &last, .nheaders = 1});
    assert_string_equal(pull(&c), "start");
    assert_string_equal(pull(&c), "stdout");
    assert_string_equal(text(&c, "/data"), "llo");
    assert_int_equal(num(&c, "/offset"), 2);
    assert_string_equal(pull(&c), "WAIT");
    fake_exit(e, 0, 15);
    assert_string_equal(pull(&c), "complete");
    assert_int_equal(num(&c, "/exitCode"), 143);
    assert_int_equal(num(&c, "/offsets/stdout"), 5);
    assert_string_equal(text(&c, "/signal"), "SIGTERM");
    static const char *const bad[] = {"-1", "1-", "x", "1-2-3", ""};
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        char target[64];
        snprintf(target, sizeof target, "/api/execution/r/stream?from=%s", bad[i]);
        ask(&c, CP_GET, target, NULL);
        expect(400, "VALIDATION_FAILED");
        assert_string_equal(text(&c, "/context/validationErrors/0/field"), "from");
    }
}

static void base64_pieces_can_be_joined(void **state) {
    (void)state;
    stream("{\"command\":\"x\",\"encoding\":\"base64\"}");
    cp_exec *e = fake_begin(fake_newest());
    char data[50000];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (char)(i * 7);
    fake_print(e, 0, data, sizeof data);
    fake_exit(e, 0, 0);
    cp_autobuf cp_buf joined = {0}, want = {0};
    cp_base64_encode(&want, data, sizeof data);
    pull(&c);
    while (strcmp(pull(&c), "stdout") == 0) cp_buf_addz(&joined, text(&c, "/data"));
    assert_true(cp_str_eq(cp_buf_str(&joined), cp_buf_str(&want)));
}

static void a_session_that_dies_leaves_no_exit_code(void **state) {
    (void)state;
    stream("{\"command\":\"x\"}");
    cp_exec *e = fake_begin(fake_newest());
    e->session_destroyed = true;
    fake_exit(e, 0, 9);
    pull(&c);
    assert_string_equal(pull(&c), "complete");
    assert_null(at(&c, "/exitCode"));
}

static void streams_detach_unless_told_otherwise(void **state) {
    (void)state;
    static const struct {
        const char *body;
        cp_end why;
        bool kill, dies;
    } cases[] = {
        {"{\"command\":\"x\"}", CP_END_CANCELLED, false, false},
        {"{\"command\":\"x\"}", CP_END_DISCONNECTED, false, false},
        {"{\"command\":\"x\"}", CP_END_CANCELLED, true, true},
        {"{\"command\":\"x\",\"onCancel\":\"kill\"}", CP_END_CANCELLED, false, true},
        {"{\"command\":\"x\",\"onCancel\":\"kill\"}", CP_END_DISCONNECTED, false, false},
        {"{\"command\":\"x\",\"onDisconnect\":\"kill\"}", CP_END_DISCONNECTED, false, true},
        {"{\"command\":\"x\",\"onDisconnect\":\"kill\"}", CP_END_SHUTDOWN, false, false},
    };
    for (size_t i = 0; i < CP_COUNT(cases); i++) {
        stream(cases[i].body);
        cp_exec *e = fake_begin(fake_newest());
        pull(&c);
        c.src->ops->close(c.src, cases[i].why, cases[i].kill);
        c.src = NULL;
        assert_int_equal(e->impl->killed_with, cases[i].dies ? SIGTERM : 0);
        fake_exit(e, 0, 0);
    }
}

static void a_stream_that_cannot_start_is_an_error(void **state) {
    (void)state;
    stream("{\"command\":\"x\",\"cwd\":\"/nope\"}");
    fake_fail(fake_newest(), CP_E_COMMAND_EXECUTION_ERROR, ENOENT);
    expect(500, "STREAM_START_ERROR");
    assert_string_equal(text(&c, "/context/errno"), "ENOENT");
    stream("{\"command\":\"x\"}");
    cp_exec *e = fake_newest();
    assert_false(c.reply.on_cancel(&c.reply, CP_END_CANCELLED, false)); /* before it has begun */
    fake_exit(fake_begin(e), 0, 0);
    assert_null(c.src);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_stream_from_start_to_complete),
        TEST(characters_are_not_cut),
        TEST(nothing_is_lost_and_both_get_their_turn),
        TEST(offsets_and_resume),
        TEST(base64_pieces_can_be_joined),
        TEST(a_session_that_dies_leaves_no_exit_code),
        TEST(streams_detach_unless_told_otherwise),
        TEST(a_stream_that_cannot_start_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
