/* The multiplexed WebSocket from outside: messages in, messages out (protocols/cloudflare-sandbox.md section 4,
 * conflux-additions.md "WebSocket messages"). */
#include "component/mux_fixture.h"

/* ---- the page's rules ---- */

static void not_json(void **state) {
    client *c = ((fixture *)*state)->c;
    const char *const bad[] = {"{x", "", "{\"type\":\"request\"", "nul"};
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        client_text(c, bad[i]);
        expect_message(
            c, "{\"type\":\"error\",\"code\":\"PARSE_ERROR\",\"message\":\"Invalid JSON message\",\"status\":400}");
    }
}

static void not_a_request(void **state) {
    client *c = ((fixture *)*state)->c;
    const char *const bad[] = {"[]",
                               "null",
                               "5",
                               "\"s\"",
                               "{}",
                               "{\"type\":\"foo\",\"id\":\"a\"}",
                               "{\"type\":\"cancel\"}",
                               "{\"type\":\"cancel\",\"id\":true}",
                               "{\"type\":7,\"id\":\"a\"}"};
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        client_text(c, bad[i]);
        expect_message(c, "{\"type\":\"error\",\"code\":\"INVALID_REQUEST\",\"message\":\"Message must be a valid "
                          "WSRequest\",\"status\":400}");
    }
}

static void ids_come_back_as_they_were(void **state) {
    client *c = ((fixture *)*state)->c;
    const char *const ids[] = {"\"x\"", "7",    "-1.5", "\"日本\"",  "\"a b \\\"q\\\"\\n\"",
                               "null",  "true", "[1]",  "{\"a\":1}", "\"\""};
    char want[200];
    for (size_t i = 0; i < CP_COUNT(ids); i++) {
        client_textf(c, "{\"type\":\"request\",\"id\":%s,\"method\":\"GET\",\"path\":\"/ok\"}", ids[i]);
        snprintf(want, sizeof want,
                 "{\"type\":\"response\",\"id\":%s,\"status\":200,\"body\":{\"ok\":true},\"done\":true}", ids[i]);
        expect_message(c, want);
    }
    client_text(c, "{\"type\":\"request\",\"method\":\"GET\",\"path\":\"/ok\"}");
    expect_message(c, "{\"type\":\"response\",\"status\":200,\"body\":{\"ok\":true},\"done\":true}");
}

static void methods_and_paths(void **state) {
    client *c = ((fixture *)*state)->c;
    client_text(c, "{\"type\":\"request\",\"id\":1,\"method\":\"get\",\"path\":\"/ok?session=s#frag\"}");
    expect_message(c, "{\"type\":\"response\",\"id\":1,\"status\":200,\"body\":{\"ok\":true,\"query\":\"session=s\"},"
                      "\"done\":true}");
    client_text(c, "{\"type\":\"request\",\"id\":1,\"method\":\"GET\",\"path\":\"/nope\"}");
    expect_start(c, "{\"type\":\"response\",\"id\":1,\"status\":404,\"body\":{\"code\":\"UNKNOWN_ERROR\"");
    client_text(c, "{\"type\":\"request\",\"id\":1,\"method\":\"PATCH\",\"path\":\"/ok\"}");
    expect_start(c, "{\"type\":\"response\",\"id\":1,\"status\":405,");
    const char *const bad[] = {"", ",\"path\":\"ok\"", ",\"path\":5", ",\"path\":\"\""};
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        client_textf(c, "{\"type\":\"request\",\"id\":\"np\",\"method\":\"GET\"%s}", bad[i]);
        expect_start(c, "{\"type\":\"error\",\"id\":\"np\",\"code\":\"INTERNAL_ERROR\",");
    }
    client_text(c, "{\"type\":\"request\",\"id\":\"h\",\"method\":\"HEAD\",\"path\":\"/ok\"}");
    expect_start(c, "{\"type\":\"error\",\"id\":\"h\",\"code\":\"INTERNAL_ERROR\",");
}

static void bodies_and_headers(void **state) {
    client *c = ((fixture *)*state)->c;
    client_text(c, "{\"type\":\"request\",\"id\":1,\"method\":\"GET\",\"path\":\"/text\"}");
    expect_message(c, "{\"type\":\"response\",\"id\":1,\"status\":200,\"done\":true}");
    client_text(c, "{\"type\":\"request\",\"id\":1,\"method\":\"POST\",\"path\":\"/ok\"}");
    expect_start(c, "{\"type\":\"response\",\"id\":1,\"status\":500,\"body\":{\"code\":\"INTERNAL_ERROR\"");
    client_text(c, "{\"type\":\"request\",\"id\":1,\"method\":\"GET\",\"path\":\"/ok\",\"body\":{\"a\":1},"
                   "\"headers\":{\"X-Session-Id\":\"s1\",\"n\":5}}");
    expect_message(
        c, "{\"type\":\"response\",\"id\":1,\"status\":200,\"body\":{\"ok\":true,\"session\":\"s1\"},\"done\":true}");
    client_text(c, "{\"type\":\"request\",\"id\":1,\"method\":\"PUT\",\"path\":\"/raw\",\"body\":{}}");
    expect_start(c, "{\"type\":\"response\",\"id\":1,\"status\":501,\"body\":{\"code\":\"NOT_SUPPORTED\"");
    client_frame(c, CP_OP_BINARY, true, "{\"type\":\"request\",\"id\":2,\"path\":\"/ok\"}", 39);
    cp_frame_event ev = client_next(c);
    assert_int_equal(ev.kind, CP_FRAME_MESSAGE);
    assert_int_equal(ev.opcode, CP_OP_TEXT);
}

static void options_are_checked(void **state) {
    client *c = ((fixture *)*state)->c;
    const char *const bad[] = {"\"priority\":8", "\"priority\":\"x\"", "\"deadlineMs\":-1", "\"window\":0",
                               "\"onDisconnect\":\"stop\""};
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        client_textf(c, "{\"type\":\"request\",\"id\":1,\"method\":\"GET\",\"path\":\"/ok\",%s}", bad[i]);
        expect_start(c, "{\"type\":\"response\",\"id\":1,\"status\":400,\"body\":{\"code\":\"VALIDATION_FAILED\"");
    }
}

static void hello(void **state) {
    fixture *x = *state;
    x->h->config.ping_interval = 1500;
    client_text(x->c, "{\"type\":\"hello\"}");
    expect_start(x->c, "{\"type\":\"hello\",\"version\":\"" CONFLUX_VERSION
                       "\",\"pingSeconds\":1.5,\"limits\":{\"maxMessageBytes\":16777216,\"maxPending\":10000,");
}

/* ---- limits ---- */

static void id_limit(void **state) {
    client *c = ((fixture *)*state)->c;
    char id[600], want[700];
    memset(id, 'z', sizeof id);
    id[510] = 0; /* and two quotes: 512 */
    client_textf(c, "{\"type\":\"request\",\"id\":\"%s\",\"path\":\"/ok\"}", id);
    snprintf(want, sizeof want, "{\"type\":\"response\",\"id\":\"%s\",\"status\":200,", id);
    expect_start(c, want);
    id[510] = 'z', id[511] = 0;
    client_textf(c, "{\"type\":\"request\",\"id\":\"%s\",\"path\":\"/ok\"}", id);
    snprintf(want, sizeof want, "{\"type\":\"error\",\"id\":\"%s\",\"code\":\"LIMIT_EXCEEDED\",", id);
    expect_start(c, want);
}

static void duplicate_id(void **state) {
    fixture *x = *state;
    client_text(x->c, "{\"type\":\"request\",\"id\":\"a\",\"method\":\"POST\",\"path\":\"/hold\"}");
    client_text(x->c, "{\"type\":\"request\",\"id\":\"\\u0061\",\"method\":\"POST\",\"path\":\"/hold\"}");
    expect_start(x->c, "{\"type\":\"error\",\"id\":\"a\",\"code\":\"DUPLICATE_REQUEST_ID\",");
    assert_int_equal(counted.total, 1); /* refusals show in /metrics */
    assert_int_equal(held.n, 1);
    /* another type is another id; the first may be used again when it has ended */
    client_text(x->c, "{\"type\":\"request\",\"id\":[\"a\"],\"method\":\"GET\",\"path\":\"/ok\"}");
    expect_start(x->c, "{\"type\":\"response\",\"id\":[\"a\"],\"status\":200");
    answer(held.reply[0], "1");
    expect_message(x->c, "{\"type\":\"response\",\"id\":\"a\",\"status\":200,\"body\":1,\"done\":true}");
    client_text(x->c, "{\"type\":\"request\",\"id\":\"a\",\"method\":\"GET\",\"path\":\"/ok\"}");
    expect_start(x->c, "{\"type\":\"response\",\"id\":\"a\",\"status\":200");
}

static void ten_thousand_pending(void **state) {
    fixture *x = *state;
    for (int i = 0; i < 10000; i++)
        client_textf(x->c, "{\"type\":\"request\",\"id\":%d,\"method\":\"POST\",\"path\":\"/hold\"}", i);
    WAIT_FOR(x->h, held.n == 10000);
    assert_int_equal(cp_metric_values[CP_M_PENDING], 10000);
    client_text(x->c, "{\"type\":\"request\",\"id\":\"more\",\"method\":\"GET\",\"path\":\"/ok\"}");
    expect_start(x->c, "{\"type\":\"error\",\"id\":\"more\",\"code\":\"LIMIT_EXCEEDED\",");
    for (int i = 0; i < 10000; i++) answer(held.reply[(i * 7919) % 10000], "0"); /* 7919 is prime: each once */
    static bool seen[10000];
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < 10000; i++) {
        cp_autofree char *got = client_message(x->c);
        int id = -1;
        assert_int_equal(sscanf(got, "{\"type\":\"response\",\"id\":%d,\"status\":200,", &id), 1);
        assert_in_range(id, 0, 9999);
        assert_false(seen[id]);
        seen[id] = true;
    }
}

static void message_limit(void **state) {
    fixture *x = *state;
    size_t n = (16 << 20) + 1;
    cp_autobuf cp_buf big = {0};
    cp_buf_reserve(&big, n);
    memset(big.p, ' ', n);
    big.n = n;
    client_frame(x->c, CP_OP_TEXT, true, big.p, big.n);
    expect_close(x->c, CP_CLOSE_TOO_BIG);
}

static void json_limits(void **state) {
    fixture *x = *state;
    cp_autobuf cp_buf deep = {0}, wide = {0};
    for (int i = 0; i < 65; i++) cp_buf_addc(&deep, '[');
    for (int i = 0; i < 65; i++) cp_buf_addc(&deep, ']');
    client_frame(x->c, CP_OP_TEXT, true, deep.p, deep.n);
    expect_start(x->c, "{\"type\":\"error\",\"code\":\"PAYLOAD_TOO_LARGE\",");
    cp_buf_addc(&wide, '[');
    for (int i = 0; i < 1000000; i++) cp_buf_add(&wide, "1,", 2);
    cp_buf_add(&wide, "1]", 2);
    client_frame(x->c, CP_OP_TEXT, true, wide.p, wide.n);
    expect_start(x->c, "{\"type\":\"error\",\"code\":\"PAYLOAD_TOO_LARGE\",");
}

/* What there is no room to parse, or is beyond a limit of JSON, is refused to the one who waits for it, wherever in the
 * message its id stands. */
static void what_is_not_parsed_is_refused_by_its_id(void **state) {
    fixture *x = *state;
    cp_autobuf cp_buf wide = {0}, deep = {0};
    cp_buf_addz(&wide, "\"}{\\\"\",[\"]\"");
    for (int i = 0; i < 100000; i++) cp_buf_addz(&wide, ",1");
    cp_buf_addz(&wide, "]");
    for (int i = 0; i < 65; i++) cp_buf_addc(&deep, '[');
    for (int i = 0; i < 65; i++) cp_buf_addc(&deep, ']');
    const char *const big = cp_buf_z(&wide), *const nested = cp_buf_z(&deep);
    const struct {
        const char *before, *body, *after, *want;
    } cases[] = {
        {"{\"type\":\"request\",\"id\":\"a\",\"path\":\"/ok\",\"body\":[", big, "]}",
         "{\"type\":\"error\",\"id\":\"a\",\"code\":\"LIMIT_EXCEEDED\","},
        {"{\"body\":{\"id\":1,\"b\":[", big, "]} , \"type\" : \"request\", \"id\" : \"\\u0062\"\n}",
         "{\"type\":\"error\",\"id\":\"b\",\"code\":\"LIMIT_EXCEEDED\","},
        {"{\"type\":\"stdin\",\"data\":[", big, "],\"id\":7}",
         "{\"type\":\"error\",\"id\":7,\"of\":\"stdin\",\"code\":\"LIMIT_EXCEEDED\","},
        {"{\"id\":\"a\",\"body\":[", big, "],\"id\":\"b\"}", "{\"type\":\"error\",\"code\":\"LIMIT_EXCEEDED\","},
        {"[", big, ",{\"id\":\"a\"}]", "{\"type\":\"error\",\"code\":\"LIMIT_EXCEEDED\","},
        {"{\"type\":\"request\",\"id\":\"c\",\"body\":", nested, ",\"path\":\"/ok\"}",
         "{\"type\":\"error\",\"id\":\"c\",\"code\":\"PAYLOAD_TOO_LARGE\","},
    };
    cp_budget_open(1 << 20);
    for (size_t i = 0; i < CP_COUNT(cases); i++) {
        cp_autobuf cp_buf text = {0};
        cp_buf_addf(&text, "%s%s%s", cases[i].before, cases[i].body, cases[i].after);
        client_frame(x->c, CP_OP_TEXT, true, text.p, text.n);
        expect_start(x->c, cases[i].want);
    }
    cp_budget_open(1 << 30);
    client_text(x->c, "{\"type\":\"request\",\"id\":1,\"method\":\"GET\",\"path\":\"/ok\"}");
    expect_message(x->c, "{\"type\":\"response\",\"id\":1,\"status\":200,\"body\":{\"ok\":true},\"done\":true}");
}

/* Messages that are nearly right, in every order: nothing breaks, and the connection goes on. */
static void mutated_messages(void **state) {
    fixture *x = *state;
    static const char *const seeds[] = {
        "{\"type\":\"request\",\"id\":\"a\",\"method\":\"POST\",\"path\":\"/"
        "hold?x=1\",\"body\":{\"a\":[1,2]},\"priority\":5}",
        "{\"type\":\"request\",\"id\":7,\"method\":\"POST\",\"path\":\"/"
        "stream?n=5&open=1\",\"window\":9,\"deadlineMs\":9}",
        "{\"type\":\"request\",\"id\":null,\"method\":\"GET\",\"path\":\"/file?n=9\",\"headers\":{\"a\":\"b\"}}",
        "{\"type\":\"cancel\",\"id\":\"a\",\"kill\":true}",
        "{\"type\":\"stdin\",\"id\":\"a\",\"data\":\"eA==\",\"encoding\":\"base64\",\"eof\":true}",
        "{\"type\":\"window\",\"id\":7,\"bytes\":5}",
        "{\"type\":\"hello\",\"id\":[{}]}",
    };
    uint32_t random = 12345;
    for (int i = 0; i < 3000; i++) {
        char text[300];
        int n = snprintf(text, sizeof text, "%s", seeds[(random >> 16) % CP_COUNT(seeds)]);
        for (int k = (int)(random >> 28) % 4; k > 0; k--) {
            random = random * 1664525 + 1013904223;
            text[(random >> 8) % (unsigned)n] = "\"{}[]:,5ax\\ "[(random >> 20) % 12];
        }
        random = random * 1664525 + 1013904223;
        client_frame(x->c, CP_OP_BINARY, true, text, (size_t)n);
        if (feeders.n == CP_COUNT(feeders.f) || held.n == CP_COUNT(held.reply)) break;
        client_read(x->c);
        x->c->got.n = 0;
    }
    /* Messages have their turns: answers to the last ones may come before this one's. */
    static const char want[] = "{\"type\":\"response\",\"id\":\"still here\",\"status\":200";
    client_text(x->c, "{\"type\":\"request\",\"id\":\"still here\",\"path\":\"/ok\"}");
    WAIT_FOR(x->h, (client_read(x->c), memmem(x->c->got.p, x->c->got.n, want, sizeof want - 1) != NULL));
}

/* ---- cancel, deadline, loss ---- */

static void cancel_of_a_running_request(void **state) {
    fixture *x = *state;
    client_text(x->c, "{\"type\":\"cancel\",\"id\":\"nothing\"}");
    client_text(x->c, "{\"type\":\"request\",\"id\":7,\"method\":\"POST\",\"path\":\"/hold\"}");
    client_text(x->c, "{\"type\":\"cancel\",\"id\":7,\"kill\":true}");
    expect_start(x->c, "{\"type\":\"response\",\"id\":7,\"status\":499,\"body\":{\"code\":\"CANCELLED\"");
    assert_int_equal(held.why, CP_END_CANCELLED);
    assert_true(held.kill);

    held.will_answer = true; /* the handler will tell how it ended; a second cancel and a loss reach it no more */
    client_text(x->c, "{\"type\":\"request\",\"id\":8,\"method\":\"POST\",\"path\":\"/hold\"}");
    client_text(x->c, "{\"type\":\"cancel\",\"id\":8}");
    client_text(x->c, "{\"type\":\"cancel\",\"id\":8}");
    WAIT_FOR(x->h, held.cancelled == 2);
    settle(x->h);
    assert_int_equal(held.cancelled, 2);
    assert_false(held.kill);
    answer(held.reply[1], "\"ended\"");
    expect_message(x->c, "{\"type\":\"response\",\"id\":8,\"status\":200,\"body\":\"ended\",\"done\":true}");
}

static void cancel_of_a_stream(void **state) {
    fixture *x = *state;
    client_text(x->c, "{\"type\":\"request\",\"id\":\"s\",\"method\":\"POST\",\"path\":\"/stream?n=3&open=1\"}");
    expect_message(
        x->c, "{\"type\":\"stream\",\"id\":\"s\",\"data\":\"{\\\"type\\\":\\\"stdout\\\",\\\"data\\\":\\\"abc\\\"}\"}");
    client_text(x->c, "{\"type\":\"cancel\",\"id\":\"s\"}");
    expect_message(x->c, "{\"type\":\"response\",\"id\":\"s\",\"status\":200,\"done\":true}");
    assert_true(feeders.f[0]->closed);
    assert_int_equal(feeders.f[0]->why, CP_END_CANCELLED);
    assert_false(feeders.f[0]->kill);
    client_text(x->c, "{\"type\":\"request\",\"id\":\"s\",\"method\":\"POST\",\"path\":\"/stream?open=1\"}");
    client_text(x->c, "{\"type\":\"cancel\",\"id\":\"s\",\"kill\":true}");
    expect_start(x->c, "{\"type\":\"response\",\"id\":\"s\",\"status\":499,\"body\":{\"code\":\"CANCELLED\"");
    assert_true(feeders.f[1]->kill);
}

static void deadline(void **state) {
    fixture *x = *state;
    client_text(x->c, "{\"type\":\"request\",\"id\":1,\"method\":\"POST\",\"path\":\"/hold\",\"deadlineMs\":30}");
    client_text(x->c,
                "{\"type\":\"request\",\"id\":2,\"method\":\"POST\",\"path\":\"/stream?open=1\",\"deadlineMs\":20}");
    client_text(x->c, "{\"type\":\"request\",\"id\":3,\"method\":\"POST\",\"path\":\"/hold\",\"deadlineMs\":10000000}");
    expect_start(x->c, "{\"type\":\"response\",\"id\":2,\"status\":408,\"body\":{\"code\":\"DEADLINE_EXCEEDED\"");
    expect_start(x->c, "{\"type\":\"response\",\"id\":1,\"status\":408,\"body\":{\"code\":\"DEADLINE_EXCEEDED\"");
    assert_int_equal(held.why, CP_END_DEADLINE);
    assert_int_equal(feeders.f[0]->why, CP_END_DEADLINE);
    assert_int_equal(held.cancelled, 1);

    held.deaf = true; /* a handler that cannot be told answers later, into the void */
    client_text(x->c, "{\"type\":\"request\",\"id\":4,\"method\":\"POST\",\"path\":\"/hold\",\"deadlineMs\":10}");
    expect_start(x->c, "{\"type\":\"response\",\"id\":4,\"status\":408");
    answer(held.reply[2], "1");
    client_text(x->c, "{\"type\":\"request\",\"id\":4,\"path\":\"/ok\"}");
    expect_start(x->c, "{\"type\":\"response\",\"id\":4,\"status\":200");
}

static void connection_loss(void **state) {
    fixture *x = *state;
    client_text(x->c,
                "{\"type\":\"request\",\"id\":1,\"method\":\"POST\",\"path\":\"/hold\",\"onDisconnect\":\"kill\"}");
    client_text(x->c, "{\"type\":\"request\",\"id\":2,\"method\":\"POST\",\"path\":\"/stream?open=1\"}");
    WAIT_FOR(x->h, held.n == 1);
    held.deaf = true;
    client_text(x->c, "{\"type\":\"request\",\"id\":3,\"method\":\"POST\",\"path\":\"/hold\"}");
    for (int i = 0; i < 20; i++) client_textf(x->c, "{\"type\":\"request\",\"id\":\"io%d\",\"path\":\"/file?n=9\"}", i);
    WAIT_FOR(x->h, held.n == 2);
    client_free(cp_take(x->c));
    WAIT_FOR(x->h, x->h->t.nconns == 0);
    assert_int_equal(held.cancelled, 1);
    assert_int_equal(held.why, CP_END_DISCONNECTED);
    assert_true(held.kill);
    assert_true(feeders.f[0]->closed);
    assert_false(feeders.f[0]->kill);
    answer(held.reply[1], "1"); /* the one that could not be told */
}

/* ---- order ---- */

/* A message that is parsed on the pool is followed by those that need it. */
static void order_behind_a_large_message(void **state) {
    fixture *x = *state;
    cp_autobuf cp_buf big = {0};
    cp_buf_addz(&big, "{\"type\":\"request\",\"id\":\"big\",\"method\":\"POST\",\"path\":\"/hold\",\"body\":{\"x\":\"");
    for (int i = 0; i < 3000000; i++) cp_buf_addc(&big, 'x');
    cp_buf_addz(&big, "\"}}");
    client_frame(x->c, CP_OP_TEXT, true, big.p, big.n);
    client_text(x->c, "{\"type\":\"stdin\",\"id\":\"big\",\"data\":\"in\"}");
    client_text(x->c, "{\"type\":\"request\",\"id\":\"after\",\"path\":\"/ok\"}");
    client_text(x->c, "{\"type\":\"cancel\",\"id\":\"big\"}");
    expect_start(x->c, "{\"type\":\"response\",\"id\":\"after\",\"status\":200");
    expect_start(x->c, "{\"type\":\"response\",\"id\":\"big\",\"status\":499");
    assert_string_equal(held.input, "in");
}

static void large_request_round_trip(void **state) {
    fixture *x = *state;
    cp_autobuf cp_buf big = {0}, want = {0};
    cp_buf_addz(&big, "{\"type\":\"request\",\"id\":\"big\",\"method\":\"POST\",\"path\":\"/echo\",\"body\":");
    size_t from = big.n;
    cp_buf_addz(&big, "{\"x\":\"");
    for (int i = 0; i < 10 << 20; i++) cp_buf_addc(&big, (char)('a' + i % 26));
    cp_buf_addz(&big, "\"}}");
    cp_buf_addz(&want, "{\"type\":\"response\",\"id\":\"big\",\"status\":200,\"body\":");
    cp_buf_add(&want, big.p + from, big.n - from - 1);
    cp_buf_addz(&want, ",\"done\":true}");
    client_frame(x->c, CP_OP_TEXT, true, big.p, big.n);
    cp_autofree char *got = client_message(x->c);
    assert_int_equal(strlen(got), want.n);
    assert_memory_equal(got, want.p, want.n);
}

/* ---- stdin ---- */

static void give_ack(unsigned i) { held.acks[i]->taken(held.acks[i]); }

static void stdin_receipts(void **state) {
    fixture *x = *state;
    client_text(x->c, "{\"type\":\"request\",\"id\":\"a\",\"method\":\"POST\",\"path\":\"/hold\"}");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":\"a\",\"data\":\"now\",\"ack\":true}");
    expect_message(x->c, "{\"type\":\"stdin\",\"id\":\"a\",\"bytes\":3}");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":\"a\",\"data\":\"no receipt\"}");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":\"a\",\"data\":\"bad\",\"ack\":true}");
    expect_start(x->c, "{\"type\":\"error\",\"id\":\"a\",\"of\":\"stdin\",\"code\":\"PROCESS_ERROR\"");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":\"a\",\"data\":\"eA==\",\"encoding\":\"base64\",\"ack\":true}");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":\"a\",\"data\":\"later\",\"ack\":true}");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":\"a\",\"data\":\"too late\",\"ack\":true}");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":\"a\",\"data\":\"x\",\"ack\":1}");
    expect_start(x->c, "{\"type\":\"error\",\"id\":\"a\",\"of\":\"stdin\",\"code\":\"VALIDATION_FAILED\"");
    assert_int_equal(held.nacks, 3);
    give_ack(1);
    expect_message(x->c, "{\"type\":\"stdin\",\"id\":\"a\",\"bytes\":5}");
    give_ack(0);
    expect_message(x->c, "{\"type\":\"stdin\",\"id\":\"a\",\"bytes\":1}");
    answer(held.reply[0], "{}");
    give_ack(2); /* its request is over: the next message is the answer, and nothing follows */
    expect_start(x->c, "{\"type\":\"response\",\"id\":\"a\"");
    client_text(x->c, "{\"type\":\"request\",\"id\":\"b\",\"method\":\"POST\",\"path\":\"/hold\"}");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":\"b\",\"data\":\"left\",\"ack\":true}");
    WAIT_FOR(x->h, held.nacks == 4);
    client_free(cp_take(x->c));
    WAIT_FOR(x->h, x->h->t.nconns == 0);
    give_ack(3); /* the command outlives the connection */
}

static void stdin_messages(void **state) {
    fixture *x = *state;
    client_text(x->c, "{\"type\":\"request\",\"id\":1,\"method\":\"POST\",\"path\":\"/hold\"}");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":1,\"data\":\"aGVsbG8=\",\"encoding\":\"base64\",\"eof\":true}");
    WAIT_FOR(x->h, held.eof);
    assert_string_equal(held.input, "hello");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":1,\"data\":\"%%\",\"encoding\":\"base64\"}");
    expect_start(x->c, "{\"type\":\"error\",\"id\":1,\"of\":\"stdin\",\"code\":\"VALIDATION_FAILED\"");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":1}");
    expect_start(x->c, "{\"type\":\"error\",\"id\":1,\"of\":\"stdin\",\"code\":\"VALIDATION_FAILED\"");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":1,\"data\":\"bad\"}");
    expect_message(x->c, "{\"type\":\"error\",\"id\":1,\"of\":\"stdin\",\"code\":\"PROCESS_ERROR\",\"message\":\"stdin "
                         "is closed\",\"status\":500}");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":2,\"data\":\"x\"}");
    expect_start(x->c, "{\"type\":\"error\",\"id\":2,\"of\":\"stdin\",\"code\":\"NOT_FOUND\"");
    client_text(x->c, "{\"type\":\"request\",\"id\":3,\"method\":\"POST\",\"path\":\"/stream?open=1\"}");
    client_text(x->c, "{\"type\":\"stdin\",\"id\":3,\"data\":\"x\"}");
    expect_start(x->c, "{\"type\":\"error\",\"id\":3,\"of\":\"stdin\",\"code\":\"NOT_SUPPORTED\"");
}

/* ---- inspection and drain ---- */

static void pending_can_be_inspected(void **state) {
    fixture *x = *state;
    client_text(x->c, "{\"type\":\"request\",\"id\":\"r\",\"method\":\"POST\",\"path\":\"/hold\"}");
    client_text(x->c, "{\"type\":\"request\",\"id\":5,\"method\":\"POST\",\"path\":\"/stream?n=2&open=1\"}");
    expect_start(x->c, "{\"type\":\"stream\"");
    cp_autobuf cp_buf json = {0};
    write_pending(x->h, &json);
    const char *text = cp_buf_z(&json);
    assert_non_null(strstr(text, "[{\"connection\":1,\"peer\":\"local\",\"kind\":\"websocket\""));
    assert_non_null(strstr(text, "{\"id\":\"r\",\"route\":\"POST /hold\",\"state\":\"running\",\"ageMs\":"));
    assert_non_null(strstr(text, "{\"id\":5,\"route\":\"POST /stream\",\"state\":\"streaming\",\"ageMs\":"));
}

static void set_true(void *arg) { *(bool *)arg = true; }

/* B097: everything that is there goes out, then the close frame. A stream that would go on is said to be interrupted.
 */
static void drain(void **state) {
    fixture *x = *state;
    client_text(x->c, "{\"type\":\"request\",\"id\":1,\"method\":\"POST\",\"path\":\"/hold\"}");
    client_text(x->c, "{\"type\":\"request\",\"id\":2,\"method\":\"POST\",\"path\":\"/stream?n=5000000&open=1\"}");
    client_text(x->c, "{\"type\":\"request\",\"id\":4,\"method\":\"POST\",\"path\":\"/stream?open=1\"}");
    client_text(x->c, "{\"type\":\"request\",\"id\":3,\"path\":\"/sized?n=2000000\"}");
    WAIT_FOR(x->h, feeders.n == 2);
    settle(x->h);
    bool done = false;
    cp_ws_drain_all(&x->h->t, PATIENCE_MS, set_true, &done);
    bool ended[5] = {0};
    size_t streamed = 0;
    for (char *got; (got = client_message(x->c)); free(got)) {
        int id = 0;
        if (sscanf(got, "{\"type\":\"response\",\"id\":%d", &id) == 1) ended[id] = id == 1 || id == 3;
        if (sscanf(got, "{\"type\":\"error\",\"id\":%d", &id) == 1)
            ended[id] = (id == 2 || id == 4) && strstr(got, "\"code\":\"OPERATION_INTERRUPTED\"");
        if (strstr(got, "\"type\":\"stream\"")) streamed += output_bytes(got);
    }
    assert_true(ended[1] && ended[2] && ended[3] && ended[4]);
    assert_int_equal(streamed, 5000000);
    assert_int_equal(held.why, CP_END_SHUTDOWN);
    assert_int_equal(feeders.f[1]->why, CP_END_SHUTDOWN);
    cp_close(&x->c->fd);
    WAIT_FOR(x->h, done);
    assert_int_equal(x->h->t.nconns, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(not_json),
        TEST(not_a_request),
        TEST(ids_come_back_as_they_were),
        TEST(methods_and_paths),
        TEST(bodies_and_headers),
        TEST(options_are_checked),
        TEST(hello),
        TEST(id_limit),
        TEST(duplicate_id),
        TEST(ten_thousand_pending),
        TEST(message_limit),
        TEST(json_limits),
        TEST(what_is_not_parsed_is_refused_by_its_id),
        TEST(mutated_messages),
        TEST(cancel_of_a_running_request),
        TEST(cancel_of_a_stream),
        TEST(deadline),
        TEST(connection_loss),
        TEST(order_behind_a_large_message),
        TEST(large_request_round_trip),
        TEST(stdin_messages),
        TEST(stdin_receipts),
        TEST(pending_can_be_inspected),
        TEST(drain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
