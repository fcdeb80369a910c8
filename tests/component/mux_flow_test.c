/* What flows through the multiplexed WebSocket, and who waits for whom: frames, windows, priorities, slow readers
 * (conflux-additions.md "WebSocket messages"). */
#include "component/mux_fixture.h"

/* ---- streams ---- */

/* Takes frames apart: the largest payload of a frame, and whether another message began inside one. */
typedef struct scan {
    size_t largest, frames;
} scan;

static void scan_frames(const char *p, size_t n, scan *s) {
    size_t at = 0;
    while (at + 2 <= n) {
        const uint8_t *h = (const uint8_t *)p + at;
        size_t len = h[1] & 127, head = 2;
        if (len == 126) len = (size_t)h[2] << 8 | h[3], head = 4;
        if (len == 127) {
            len = 0;
            for (int i = 0; i < 8; i++) len = len << 8 | h[2 + i];
            head = 10;
        }
        if (len > s->largest) s->largest = len;
        s->frames++;
        at += head + len;
    }
    assert_int_equal(at, n);
}

static void frames_are_at_most_64k(void **state) {
    fixture *x = *state;
    client_text(x->c, "{\"type\":\"request\",\"id\":1,\"method\":\"POST\",\"path\":\"/stream?n=1000000&unit=1\"}");
    client_text(x->c, "{\"type\":\"request\",\"id\":2,\"path\":\"/sized?n=1000000\"}");
    client_text(x->c, "{\"type\":\"request\",\"id\":3,\"path\":\"/sized?n=65536\"}");
    client_text(x->c, "{\"type\":\"request\",\"id\":4,\"path\":\"/sized?n=65470\"}");
    for (int quiet = 0; quiet < 50;) {
        cp_loop_once(x->h->t.loop, 1);
        quiet = client_read(x->c) ? 0 : quiet + 1;
    }
    scan s = {0};
    scan_frames(x->c->got.p, x->c->got.n, &s);
    assert_in_range(s.largest, 60000, 65536);
    size_t text = 0, bodies = 0, ends = 0;
    while (ends < 4) {
        cp_autofree char *got = client_message(x->c);
        if (strstr(got, "\"type\":\"stream\"")) {
            text += output_bytes(got);
        } else {
            for (char *p = strstr(got, "\"body\""); p && *p; p++) bodies += *p == 'b';
            ends++;
        }
    }
    assert_int_equal(text, 1000000);
    assert_int_equal(bodies, 1000000 + 65536 + 65470 + 3); /* and the b of "body" */
}

static void stream_end_failure_and_ids(void **state) {
    fixture *x = *state;
    client_text(x->c, "{\"type\":\"request\",\"id\":1,\"method\":\"POST\",\"path\":\"/stream?n=2&number=1\"}");
    expect_message(x->c, "{\"type\":\"stream\",\"id\":1,\"data\":\"{\\\"type\\\":\\\"stdout\\\",\\\"data\\\":"
                         "\\\"ab\\\"}\",\"eventId\":\"2-0\"}");
    expect_message(x->c, "{\"type\":\"response\",\"id\":1,\"status\":200,\"done\":true}");
    assert_int_equal(feeders.f[0]->why, CP_END_DONE);
    client_text(x->c, "{\"type\":\"request\",\"id\":2,\"method\":\"POST\",\"path\":\"/stream?fail=1\"}");
    expect_start(x->c, "{\"type\":\"error\",\"id\":2,\"code\":\"STREAM_ERROR\",\"message\":");
    client_text(x->c, "{\"type\":\"request\",\"id\":3,\"method\":\"POST\",\"path\":\"/stream?open=1\"}");
    WAIT_FOR(x->h, feeders.n == 3);
    settle(x->h);
    feeders.f[2]->left = 1;
    cp_source_wake(&feeders.f[2]->src);
    expect_start(x->c, "{\"type\":\"stream\",\"id\":3,");
}

/* At most so many bytes of "data" strings are unacknowledged. */
static void window(void **state) {
    fixture *x = *state;
    enum { N = 50000 };
    client_text(
        x->c,
        "{\"type\":\"request\",\"id\":1,\"method\":\"POST\",\"path\":\"/stream?n=1000000&unit=1\",\"window\":50000}");
    uint64_t seen = 0, acked = 0;
    for (;;) {
        for (int quiet = 0; quiet < 5;) {
            cp_loop_once(x->h->t.loop, 1);
            quiet = client_read(x->c) ? 0 : quiet + 1;
        }
        bool ended = false;
        while (x->c->at < x->c->got.n) {
            cp_frame_event ev;
            size_t used;
            cp_frame_next(&x->c->in, x->c->got.p + x->c->at, x->c->got.n - x->c->at, &used, &ev);
            x->c->at += used;
            if (ev.kind != CP_FRAME_MESSAGE) continue;
            yyjson_doc *doc = yyjson_read(ev.payload.p, ev.payload.n, 0);
            yyjson_val *root = yyjson_doc_get_root(doc), *data = yyjson_obj_get(root, "data");
            if (data) seen += yyjson_get_len(data);
            ended |= yyjson_equals_str(yyjson_obj_get(root, "type"), "response");
            yyjson_doc_free(doc);
        }
        x->c->at = x->c->got.n = 0;
        assert_true(seen - acked <= N);
        if (ended) break;
        assert_true(seen > acked);
        client_textf(x->c, "{\"type\":\"window\",\"id\":1,\"bytes\":%llu}", (unsigned long long)(seen - acked));
        acked = seen;
    }
    assert_true(seen >= 1500000); /* each newline is two bytes */
    client_text(x->c, "{\"type\":\"window\",\"id\":1,\"bytes\":-1}");
    expect_start(x->c, "{\"type\":\"error\",\"id\":1,\"of\":\"window\",\"code\":\"VALIDATION_FAILED\"");
}

/* ---- fairness ---- */

static uint64_t share(const feeder *f) { return f->sent; }

static void streams_share_by_priority(void **state) {
    fixture *x = *state;
    client_text(x->c,
                "{\"type\":\"request\",\"id\":1,\"method\":\"POST\",\"path\":\"/stream?n=1000000000\",\"priority\":2}");
    client_text(x->c,
                "{\"type\":\"request\",\"id\":2,\"method\":\"POST\",\"path\":\"/stream?n=1000000000\",\"priority\":2}");
    client_text(x->c,
                "{\"type\":\"request\",\"id\":3,\"method\":\"POST\",\"path\":\"/stream?n=1000000000\",\"priority\":4}");
    WAIT_FOR(x->h, feeders.n == 3); /* what one has sent before the others were there is no share */
    uint64_t had[3];
    for (int i = 0; i < 3; i++) had[i] = share(feeders.f[i]);
    for (uint64_t total = 0; total < 20000000;) {
        cp_loop_once(x->h->t.loop, 1);
        x->c->got.n = 0;
        if (client_read(x->c)) total += x->c->got.n;
    }
    x->c->got.n = 0;
    uint64_t a = share(feeders.f[0]) - had[0], b = share(feeders.f[1]) - had[1], c = share(feeders.f[2]) - had[2];
    assert_true(a > 500000 && b > 500000); /* nobody starves */
    assert_true(a < b + 300000 && b < a + 300000);
    assert_true(c > 2 * (a + b)); /* four times the two of the lower class together */
}

static void small_replies_pass_streams(void **state) {
    fixture *x = *state;
    client_text(x->c, "{\"type\":\"request\",\"id\":1,\"method\":\"POST\",\"path\":\"/stream?n=1000000000\"}");
    WAIT_FOR(x->h, feeders.n == 1 && feeders.f[0]->sent > 0);
    settle(x->h); /* the peer reads nothing: the stream has stopped */
    uint64_t ahead = feeders.f[0]->sent;
    client_text(x->c, "{\"type\":\"request\",\"id\":2,\"path\":\"/ok\"}");
    uint64_t before = 0;
    for (;;) {
        cp_autofree char *got = client_message(x->c);
        if (strncmp(got, "{\"type\":\"response\"", 18) == 0) break;
        before += strlen(got);
    }
    assert_true(before < ahead + 512 * 1024); /* what was sent already, and little more */
}

/* B094: whoever reads nothing is not read, costs little, and disturbs nobody. */
static void slow_reader(void **state) {
    fixture *x = *state;
    enum { ALL = 3000 };
    cp_autobuf cp_buf all = {0};
    char text[100];
    uint8_t mask[4] = {1, 2, 3, 4};
    for (int i = 0; i < ALL; i++) {
        int n = snprintf(text, sizeof text, "{\"type\":\"request\",\"id\":%d,\"path\":\"/%s?n=19000\"}", i,
                         i % 2 ? "file" : "sized");
        cp_frame_put(&all, CP_OP_TEXT, true, text, (size_t)n, mask);
    }
    size_t at = 0;
    for (int quiet = 0; quiet < 50;) {
        ssize_t n = at < all.n ? send(x->c->fd, all.p + at, all.n - at, MSG_NOSIGNAL) : -1;
        if (n > 0) at += (size_t)n;
        quiet = n > 0 ? 0 : quiet + 1;
        cp_loop_once(x->h->t.loop, 1);
    }
    cp_autobuf cp_buf json = {0};
    write_pending(x->h, &json);
    yyjson_doc *doc = yyjson_read(json.p, json.n, 0);
    yyjson_val *first = yyjson_arr_get_first(yyjson_doc_get_root(doc));
    assert_in_range(yyjson_get_uint(yyjson_obj_get(first, "queuedBytes")), 100000, 2 << 20);
    yyjson_doc_free(doc);

    client *other = client_new(x->h, &cp_ws_mux);
    client_text(other, "{\"type\":\"request\",\"id\":1,\"path\":\"/ok\"}");
    expect_start(other, "{\"type\":\"response\",\"id\":1,\"status\":200");
    client_free(other);

    for (int answers = 0; answers < ALL; answers++) { /* it reads at last: everything comes */
        if (at < all.n) {
            ssize_t n = send(x->c->fd, all.p + at, all.n - at, MSG_NOSIGNAL);
            if (n > 0) at += (size_t)n;
        }
        cp_autofree char *got = client_message(x->c);
        assert_true(strlen(got) > 19000);
    }
}

/* The same with requests whose handlers answer whenever they like: they are dispatched as their replies can be held. */
static void slow_reader_of_late_replies(void **state) {
    fixture *x = *state;
    enum { ALL = 3000, SIZE = 19000 };
    static char reply[SIZE + 1];
    memset(reply, 'r', SIZE);
    reply[0] = reply[SIZE - 1] = '"';
    cp_autobuf cp_buf all = {0};
    char text[100];
    uint8_t mask[4] = {1, 2, 3, 4};
    for (int i = 0; i < ALL; i++) {
        int n =
            snprintf(text, sizeof text, "{\"type\":\"request\",\"id\":%d,\"method\":\"POST\",\"path\":\"/hold\"}", i);
        cp_frame_put(&all, CP_OP_TEXT, true, text, (size_t)n, mask);
    }
    size_t at = 0;
    unsigned answered = 0;
    for (int quiet = 0; quiet < 50;) {
        ssize_t n = at < all.n ? send(x->c->fd, all.p + at, all.n - at, MSG_NOSIGNAL) : -1;
        if (n > 0) at += (size_t)n;
        quiet = n > 0 || answered < held.n ? 0 : quiet + 1;
        while (answered < held.n) answer(held.reply[answered++], reply);
        cp_loop_once(x->h->t.loop, 1);
    }
    assert_true((size_t)held.n * SIZE < 24 << 20);
    for (int got = 0; got < ALL; got++) {
        while (answered < held.n) answer(held.reply[answered++], reply);
        if (at < all.n) {
            ssize_t n = send(x->c->fd, all.p + at, all.n - at, MSG_NOSIGNAL);
            if (n > 0) at += (size_t)n;
        }
        if (answered == (unsigned)got) WAIT_FOR(x->h, held.n > answered);
        while (answered < held.n) answer(held.reply[answered++], reply);
        cp_autofree char *message = client_message(x->c);
        assert_true(strlen(message) > SIZE);
    }
    assert_int_equal(held.n, ALL);
}

/* Input for a request that still waits for its turn brings the turn. */
static void stdin_for_a_waiting_request(void **state) {
    fixture *x = *state;
    for (int i = 0; i < MUX_WINDOW_FIRST; i++)
        client_textf(x->c, "{\"type\":\"request\",\"id\":%d,\"method\":\"POST\",\"path\":\"/hold\"}", i);
    client_text(x->c, "{\"type\":\"request\",\"id\":\"w\",\"method\":\"POST\",\"path\":\"/hold\"}");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":\"w\",\"data\":\"now\",\"eof\":true}");
    client_text(x->c, "{\"type\":\"request\",\"id\":\"v\",\"method\":\"POST\",\"path\":\"/hold\"}");
    WAIT_FOR(x->h, held.eof);
    assert_string_equal(held.input, "now");
    client_text(x->c, "{\"type\":\"cancel\",\"id\":\"v\"}");
    expect_start(x->c, "{\"type\":\"response\",\"id\":\"v\",\"status\":499");
}

static void large_responses_do_not_starve_small_ones(void **state) {
    fixture *x = *state;
    for (int i = 0; i < 3; i++)
        client_textf(x->c, "{\"type\":\"request\",\"id\":\"L%d\",\"path\":\"/sized?n=300000\"}", i);
    client_text(x->c, "{\"type\":\"request\",\"id\":\"s\",\"method\":\"POST\",\"path\":\"/hold\"}");
    WAIT_FOR(x->h, held.n == 1);
    answer(held.reply[0], "1");
    expect_start(x->c, "{\"type\":\"response\",\"id\":\"L0\"");
    expect_start(x->c, "{\"type\":\"response\",\"id\":\"s\"");
    expect_start(x->c, "{\"type\":\"response\",\"id\":\"L1\"");
    expect_start(x->c, "{\"type\":\"response\",\"id\":\"L2\"");
}

/* ---- how far behind in reading a peer may be ---- */

typedef struct reading {
    uint64_t deadline;
    uint64_t bytes; /* of text messages */
    bool ended;
    size_t probes, answered;
    char probe[PACE_PROBE]; /* the newest */
} reading;

static void answer_probe(fixture *x, reading *r) {
    client_frame(x->c, CP_OP_PONG, true, r->probe, sizeof r->probe);
    r->answered++;
}

/* One round: reads what has come, and answers the first `most` probes. False: nothing had. */
static bool read_on(fixture *x, reading *r, size_t most) {
    cp_frame_event ev;
    size_t used;
    assert_true(cp_now_ms() < r->deadline);
    cp_loop_once(x->h->t.loop, 1);
    if (!client_read(x->c)) return false;
    while (cp_frame_next(&x->c->in, x->c->got.p + x->c->at, x->c->got.n - x->c->at, &used, &ev) != CP_FRAME_NEED_MORE) {
        x->c->at += used;
        if (ev.kind == CP_FRAME_MESSAGE) {
            r->bytes += ev.payload.n;
            r->ended |= cp_str_starts(ev.payload, CP_STR("{\"type\":\"response\""));
        } else if (ev.kind == CP_FRAME_PING && ev.payload.n == PACE_PROBE) {
            memcpy(r->probe, ev.payload.p, PACE_PROBE);
            r->probes++;
            if (r->answered < most) answer_probe(x, r);
        }
    }
    x->c->at = x->c->got.n = 0;
    return true;
}

static void a_stream_stops_at_what_the_peer_has_not_read(void **state) {
    fixture *x = *state;
    reading r = {.deadline = cp_now_ms() + PATIENCE_MS};
    client_text(x->c, "{\"type\":\"request\",\"id\":1,\"method\":\"POST\",\"path\":\"/stream?n=1000000000\"}");
    while (!r.answered) read_on(x, &r, 1); /* the others it "has not read" */
    const pace *ahead = &((const mux *)cp_ws_data(x->h->t.ws_head))->pace;
    for (int i = 0; i < 20; i++) {
        while (read_on(x, &r, 1) || !pace_full(ahead, 0)) {
        }
        /* on a slow machine MUX_PACED_MS may have raised the limit; over it is no more than the event that met it */
        assert_false(pace_full(ahead, 2 * MUX_CHUNK));
        assert_true(r.probes > r.answered && !r.ended);
        answer_probe(x, &r);
    }
    client_text(x->c, "{\"type\":\"request\",\"id\":2,\"path\":\"/sized?n=900000\"}"); /* goes out whole */
    while (!r.ended) read_on(x, &r, 0);
}

static void who_answers_no_probe_gets_all(void **state) {
    fixture *x = *state;
    for (size_t answers = 0; answers < 2; answers++) { /* never; then at first only */
        reading r = {.deadline = cp_now_ms() + PATIENCE_MS};
        client_text(x->c, "{\"type\":\"request\",\"id\":1,\"method\":\"POST\",\"path\":\"/stream?n=8000000\"}");
        client_text(x->c, "{\"type\":\"request\",\"id\":2,\"path\":\"/sized?n=8000000\"}");
        while (r.bytes < 16000000) read_on(x, &r, answers);
        assert_int_equal(r.answered, answers);
        assert_true(r.ended);
        assert_true(r.probes > 8);
    }
}

/* X11: however much one connection asks for in one write, others are served in between. */
static void take_turns(fixture *x, const char *method) {
    enum { MANY = 400 };
    cp_autobuf cp_buf all = {0};
    client *other = client_new(x->h, &cp_ws_mux);
    char text[128];
    memset(&burnt, 0, sizeof burnt);
    for (int i = 0; i < MANY; i++) {
        int n = snprintf(text, sizeof text, "{\"type\":\"request\",\"id\":%d,\"method\":\"%s\",\"path\":\"/burn\"}", i,
                         method);
        cp_frame_put(&all, CP_OP_TEXT, true, text, (size_t)n, (const uint8_t[4]){1, 2, 3, 4});
    }
    client_write(x->c, all.p, all.n);
    client_textf(other, "{\"type\":\"request\",\"id\":1,\"method\":\"%s\",\"path\":\"/burn?other=1\"}", method);
    WAIT_FOR(x->h, burnt.n == MANY + 1);
    assert_true(burnt.other_at && burnt.other_at < MANY / 2);
    client_free(other);
}
static void others_are_served_in_between(void **state) {
    take_turns(*state, "GET");
    take_turns(*state, "POST");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(others_are_served_in_between),
        TEST(frames_are_at_most_64k),
        TEST(stream_end_failure_and_ids),
        TEST(window),
        TEST(streams_share_by_priority),
        TEST(small_replies_pass_streams),
        TEST(slow_reader),
        TEST(slow_reader_of_late_replies),
        TEST(stdin_for_a_waiting_request),
        TEST(large_responses_do_not_starve_small_ones),
        TEST(a_stream_stops_at_what_the_peer_has_not_read),
        TEST(who_answers_no_probe_gets_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
