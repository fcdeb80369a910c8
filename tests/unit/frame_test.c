#include "transport/frame.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Bytes of a literal that may hold NULs. */
#define B(lit) "" lit, sizeof(lit) - 1

enum { MAX = 1 << 20 };

/* One line per event: kind, code, payload, the payload as "<n bytes>" when it is long. */
static void trace_event(cp_buf *t, const cp_frame_event *ev) {
    static const char *const names[] = {"", "MESSAGE", "ping", "pong", "close", "ERROR"};
    if (ev->kind == CP_FRAME_MESSAGE) cp_buf_addz(t, ev->opcode == CP_OP_TEXT ? "text" : "binary");
    else cp_buf_addz(t, names[ev->kind]);
    if (ev->code) cp_buf_addf(t, " %u", ev->code);
    if (ev->kind != CP_FRAME_ERROR && ev->payload.n > 300) {
        uint32_t sum = 0;
        for (size_t i = 0; i < ev->payload.n; i++) sum = sum * 31 + (uint8_t)ev->payload.p[i];
        cp_buf_addf(t, " <%zu bytes, %08x>", ev->payload.n, sum);
    } else if (ev->kind != CP_FRAME_ERROR && ev->payload.n) {
        cp_buf_addc(t, ' ');
        cp_buf_add(t, ev->payload.p, ev->payload.n);
    }
    cp_buf_addc(t, '\n');
}

/* Each input is a heap block of its exact size, so that the sanitizer sees any step outside. */
static void feed(cp_frame_in *d, const char *p, size_t n, cp_buf *trace) {
    char *in = malloc(n ? n : 1);
    assert_non_null(in);
    if (n) memcpy(in, p, n);
    cp_frame_event ev;
    for (size_t at = 0, used;; at += used) {
        cp_frame_kind kind = cp_frame_next(d, in + at, n - at, &used, &ev);
        assert_int_equal(kind, ev.kind);
        assert_true(used <= n - at);
        if (kind == CP_FRAME_NEED_MORE) {
            assert_int_equal(used, n - at);
            break;
        }
        assert_non_null(ev.payload.p);
        if (kind == CP_FRAME_MESSAGE) {
            assert_non_null(ev.data);
            if (ev.payload.n) assert_ptr_equal(ev.data, ev.payload.p);
        } else {
            assert_null(ev.data);
        }
        trace_event(trace, &ev);
    }
    free(in);
}

/* Pieces of `first`, then of `rest` bytes. */
static char *run(cp_frame_role role, size_t max, const char *p, size_t n, size_t first, size_t rest) {
    cp_frame_in d;
    cp_buf trace = {0};
    cp_frame_in_init(&d, role, max);
    for (size_t at = 0, piece = first; at < n; at += piece, piece = rest) {
        if (piece > n - at) piece = n - at;
        feed(&d, p + at, piece, &trace);
    }
    cp_frame_in_fini(&d);
    return (char *)(uintptr_t)cp_buf_z(&trace);
}

static void expect_cut(cp_frame_role role, size_t max, const char *p, size_t n, const char *want, size_t a, size_t b) {
    char *got = run(role, max, p, n, a, b);
    if (strcmp(got, want) != 0) print_error("in pieces of %zu, then %zu bytes:\n", a, b);
    assert_string_equal(got, want);
    free(got);
}

/* The same events whole, byte by byte, and cut in two at every place. */
static void expect(cp_frame_role role, size_t max, const char *p, size_t n, const char *want) {
    expect_cut(role, max, p, n, want, n, n);
    expect_cut(role, max, p, n, want, 1, 1);
    for (size_t at = 1; at < n && n < 1000; at++) expect_cut(role, max, p, n, want, at, n);
}

static void server(const char *p, size_t n, const char *want) { expect(CP_FRAME_SERVER, MAX, p, n, want); }
static void client(const char *p, size_t n, const char *want) { expect(CP_FRAME_CLIENT, MAX, p, n, want); }

/* A frame built without the encoder under test. The mask is byte by byte; form 0 is minimal. */
static void add_frame(cp_buf *b, unsigned first, const char *p, size_t n, size_t claim, unsigned form) {
    static const uint8_t mask[4] = {0x37, 0xfa, 0x21, 0x3d};
    if (!form) form = claim > 65535 ? 64 : claim > 125 ? 16 : 7;
    cp_buf_addc(b, (char)first);
    cp_buf_addc(b, (char)(0x80 | (form == 64 ? 127 : form == 16 ? 126 : claim)));
    for (unsigned bits = form == 7 ? 0 : form; bits; bits -= 8) cp_buf_addc(b, (char)((uint64_t)claim >> (bits - 8)));
    cp_buf_add(b, mask, 4);
    for (size_t i = 0; i < n; i++) cp_buf_addc(b, (char)((uint8_t)p[i] ^ mask[i & 3]));
}

static void add(cp_buf *b, unsigned first, const char *p, size_t n) { add_frame(b, first, p, n, n, 0); }

static void one(unsigned first, const char *p, size_t n, const char *want) {
    cp_autobuf cp_buf b = {0};
    add(&b, first, p, n);
    server(b.p, b.n, want);
}

/* RFC 6455 section 5.7, to the byte. */
static void rfc_examples(void **state) {
    (void)state;
    client(B("\x81\x05\x48\x65\x6c\x6c\x6f"), "text Hello\n");
    server(B("\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58"), "text Hello\n");
    client(B("\x01\x03\x48\x65\x6c\x80\x02\x6c\x6f"), "text Hello\n");
    client(B("\x89\x05\x48\x65\x6c\x6c\x6f"), "ping Hello\n");
    server(B("\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58"), "pong Hello\n");

    cp_autobuf cp_buf b = {0};
    char body[65536];
    for (size_t i = 0; i < sizeof body; i++) body[i] = (char)(i * 7);
    cp_buf_add(&b, "\x82\x7e\x01\x00", 4);
    cp_buf_add(&b, body, 256);
    cp_frame_event ev;
    size_t used;
    cp_frame_in d;
    cp_frame_in_init(&d, CP_FRAME_CLIENT, MAX);
    assert_int_equal(cp_frame_next(&d, b.p, b.n, &used, &ev), CP_FRAME_MESSAGE);
    assert_int_equal(ev.payload.n, 256);
    assert_memory_equal(ev.payload.p, body, 256);

    cp_buf_clear(&b);
    cp_buf_add(&b, "\x82\x7f\x00\x00\x00\x00\x00\x01\x00\x00", 10);
    cp_buf_add(&b, body, 65536);
    assert_int_equal(cp_frame_next(&d, b.p, b.n, &used, &ev), CP_FRAME_MESSAGE);
    assert_int_equal(used, 65546);
    assert_int_equal(ev.opcode, CP_OP_BINARY);
    assert_int_equal(ev.payload.n, 65536);
    assert_memory_equal(ev.payload.p, body, 65536);
    cp_frame_in_fini(&d);
}

/* A whole frame is handed out where it lies: no copy, no allocation. */
static void in_place(void **state) {
    (void)state;
    char in[] = "\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58\x89\x80\x01\x02\x03\x04";
    cp_frame_in d;
    cp_frame_event ev;
    size_t used;
    cp_frame_in_init(&d, CP_FRAME_SERVER, MAX);
    assert_int_equal(cp_frame_next(&d, in, sizeof in - 1, &used, &ev), CP_FRAME_MESSAGE);
    assert_ptr_equal(ev.payload.p, in + 6);
    assert_int_equal(used, 11);
    assert_int_equal(cp_frame_held(&d), 0);
    cp_autobuf cp_buf mine = {0};
    cp_frame_take(&d, &ev, &mine);
    assert_ptr_not_equal(mine.p, in + 6);
    assert_true(cp_str_is(cp_buf_str(&mine), "Hello"));
    assert_int_equal(cp_frame_next(&d, in + 11, 6, &used, &ev), CP_FRAME_PING);
    assert_int_equal(used, 6);
    cp_frame_in_fini(&d);
}

/* What is held grows with what came, is moved out by take, and is given back by the next call. */
static void memory_follows_bytes(void **state) {
    (void)state;
    cp_autobuf cp_buf b = {0};
    char body[5000] = {0};
    add_frame(&b, 0x82, body, sizeof body, MAX, 64);
    cp_frame_in d;
    cp_frame_event ev;
    size_t used;
    cp_frame_in_init(&d, CP_FRAME_SERVER, MAX);
    cp_frame_next(&d, b.p, 14, &used, &ev);
    assert_int_equal(cp_frame_held(&d), 0);
    cp_frame_next(&d, b.p + 14, b.n - 14, &used, &ev);
    assert_in_range(cp_frame_held(&d), 5000, 10000);
    cp_frame_in_fini(&d);
    assert_int_equal(cp_frame_held(&d), 0);

    cp_frame_in_init(&d, CP_FRAME_CLIENT, MAX);
    char half[] = "\x02\x02"
                  "ab\x80\x02"
                  "cd\x02\x02"
                  "ef\x80\x02gh";
    cp_autobuf cp_buf mine = {0};
    assert_int_equal(cp_frame_next(&d, half, 8, &used, &ev), CP_FRAME_MESSAGE);
    const char *at = ev.payload.p;
    cp_frame_take(&d, &ev, &mine);
    assert_ptr_equal(mine.p, at);
    assert_true(cp_str_is(cp_buf_str(&mine), "abcd"));
    assert_int_equal(cp_frame_held(&d), 0);
    assert_int_equal(cp_frame_next(&d, half + 8, 8, &used, &ev), CP_FRAME_MESSAGE);
    assert_true(cp_str_is(ev.payload, "efgh"));
    assert_true(cp_frame_held(&d) > 0);
    cp_frame_next(&d, half, 0, &used, &ev);
    assert_int_equal(cp_frame_held(&d), 0);
    cp_frame_in_fini(&d);
}

static void lengths(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 125, 126, 127, 128, 300, 4096, 4097, 65535, 65536, 100000};
    char *body = malloc(100000);
    assert_non_null(body);
    for (size_t i = 0; i < 100000; i++) body[i] = (char)('a' + i % 26);
    for (size_t i = 0; i < CP_COUNT(sizes); i++) {
        cp_autobuf cp_buf b = {0}, want = {0};
        add(&b, 0x81, body, sizes[i]);
        add(&b, 0x82, body, sizes[i]);
        trace_event(&want, &(cp_frame_event){CP_FRAME_MESSAGE, CP_OP_TEXT, 0, NULL, {body, sizes[i]}});
        trace_event(&want, &(cp_frame_event){CP_FRAME_MESSAGE, CP_OP_BINARY, 0, NULL, {body, sizes[i]}});
        expect_cut(CP_FRAME_SERVER, MAX, b.p, b.n, cp_buf_z(&want), b.n, b.n);
        expect_cut(CP_FRAME_SERVER, MAX, b.p, b.n, cp_buf_z(&want), 997, 997);
        expect_cut(CP_FRAME_SERVER, MAX, b.p, b.n, cp_buf_z(&want), 1, 1);
    }
    free(body);
}

/* Where a field of the head contradicts section 5.2, the frame is refused at that byte. */
static void bad_heads(void **state) {
    (void)state;
    for (unsigned rsv = 0x10; rsv <= 0x70; rsv += 0x10) {
        one(0x81 | rsv, B("Hello"), "ERROR 1002\n");
        one(0x89 | rsv, B(""), "ERROR 1002\n");
        one(0x88 | rsv, B("\x03\xe8"), "ERROR 1002\n");
    }
    for (unsigned op = 3; op <= 15; op++)
        if (op < 8 || op > 10) one(0x80 | op, B("pay"), "ERROR 1002\n");
    for (unsigned op = 8; op <= 10; op++) one(op, B(""), "ERROR 1002\n");

    char big[200] = {0};
    one(0x89, big, 125, "ping "); /* 125 zero bytes end the C string of the trace */
    one(0x89, big, 126, "ERROR 1002\n");
    one(0x88, big, 126, "ERROR 1002\n");

    server(B("\x81\x05Hello"), "ERROR 1002\n");
    server(B("\x81\x05"), "ERROR 1002\n");
    client(B("\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58"), "ERROR 1002\n");
    server(B("\xc1"), "ERROR 1002\n");
}

static void length_forms(void **state) {
    (void)state;
    static const struct {
        size_t n;
        unsigned form;
    } forms[] = {{0, 16}, {5, 16}, {125, 16}, {5, 64}, {126, 64}, {65535, 64}};
    for (size_t i = 0; i < CP_COUNT(forms); i++) {
        cp_autobuf cp_buf b = {0};
        add_frame(&b, 0x82, "", 0, forms[i].n, forms[i].form);
        server(b.p, b.n, "ERROR 1002\n");
    }
    server(B("\x82\xff\x80\0\0\0\0\0\0\0"), "ERROR 1002\n");
    server(B("\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff"), "ERROR 1002\n");
    server(B("\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff"), "ERROR 1009\n");
}

static void fragments(void **state) {
    (void)state;
    client(B("\x02\x01"
             "a\x89\x01"
             "1\x00\x01"
             "b\x8a\x01"
             "2\x80\x01"
             "c"),
           "ping 1\npong 2\nbinary abc\n");
    client(B("\x01\x00\x00\x00\x80\x00"), "text\n");
    client(B("\x01\x00\x00\x03mid\x80\x00"), "text mid\n");
    client(B("\x01\x01"
             "a\x80\x00\x81\x01z"),
           "text a\ntext z\n");
    client(B("\x80\x01x"), "ERROR 1002\n");
    client(B("\x00\x01x"), "ERROR 1002\n");
    client(B("\x01\x01"
             "a\x81\x01"
             "b"),
           "ERROR 1002\n");
    client(B("\x01\x01"
             "a\x02\x01"
             "b"),
           "ERROR 1002\n");
    client(B("\x81\x01"
             "a\x80\x01"
             "b"),
           "text a\nERROR 1002\n");
    client(B("\x01\x01"
             "a\x88\x02\x03\xe8\x80\x01"
             "b"),
           "close 1000\n");

    cp_autobuf cp_buf b = {0};
    char x[1000], zs[1000];
    memset(x, 'x', sizeof x);
    for (size_t i = 0; i < sizeof zs; i++) add(&b, i == 0 ? 0x02 : i == 999 ? 0x80 : 0x00, "x", 1);
    cp_autobuf cp_buf want = {0};
    trace_event(&want, &(cp_frame_event){CP_FRAME_MESSAGE, CP_OP_BINARY, 0, NULL, {x, sizeof x}});
    server(b.p, b.n, cp_buf_z(&want));
}

/* A limit of 10 bytes: whole, claimed only, and summed over fragments. */
static void limits(void **state) {
    (void)state;
    expect(CP_FRAME_CLIENT, 10,
           B("\x82\x0a"
             "0123456789"),
           "binary 0123456789\n");
    expect(CP_FRAME_CLIENT, 10, B("\x82\x0b"), "ERROR 1009\n");
    expect(CP_FRAME_CLIENT, 10, B("\x02\x0b"), "ERROR 1009\n");
    expect(CP_FRAME_CLIENT, 10, B("\x82\x7f\0\0\0\0\x40\0\0\0"), "ERROR 1009\n");
    expect(CP_FRAME_CLIENT, 10,
           B("\x02\x06"
             "012345\x80\x04"
             "6789"),
           "binary 0123456789\n");
    expect(CP_FRAME_CLIENT, 10,
           B("\x02\x06"
             "012345\x80\x05"),
           "ERROR 1009\n");
    expect(CP_FRAME_CLIENT, 10,
           B("\x02\x06"
             "012345\x89\x0c"
             "Hello, world\x80\x04"
             "6789"),
           "ping Hello, world\nbinary 0123456789\n");
    expect(CP_FRAME_CLIENT, 0, B("\x81\x00\x81\x01"), "text\nERROR 1009\n");
}

static void utf8(void **state) {
    (void)state;
    static const char *const bad[] = {"\xff",
                                      "a\x80",
                                      "\xc0\xaf",
                                      "\xe0\x80\xaf",
                                      "\xf0\x80\x80\xaf",
                                      "\xed\xa0\x80",
                                      "\xf4\x90\x80\x80",
                                      "\xe2\x82",
                                      "\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80 edited"};
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        cp_autobuf cp_buf want = {0};
        one(0x81, bad[i], strlen(bad[i]), "ERROR 1007\n");
        cp_buf_addf(&want, "binary %s\n", bad[i]);
        one(0x82, bad[i], strlen(bad[i]), cp_buf_z(&want));
    }
    one(0x81, B("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"), "text \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\n");
    client(B("\x01\x01\xf0\x00\x01\x9f\x89\x00\x00\x01\x98\x80\x01\x80"), "ping\ntext \xf0\x9f\x98\x80\n");
    client(B("\x01\x02\xe2\x82\x80\x00"), "ERROR 1007\n");
    /* one message cut short says nothing of the next */
    client(B("\x82\x01\xe2\x81\x02ok"), "binary \xe2\ntext ok\n");
}

/* The bad byte ends it although neither the frame nor the message is complete. */
static void utf8_fails_early(void **state) {
    (void)state;
    client(B("\x81\x7e\x40\x00good\xff"), "ERROR 1007\n");
    client(B("\x01\x05good\xff"), "ERROR 1007\n");
    client(B("\x01\x02\xf4\x90"), "ERROR 1007\n");
    client(B("\x01\x01\xf4\x00\x01\x90"), "ERROR 1007\n");

    cp_autobuf cp_buf b = {0};
    char body[9000];
    memset(body, 'a', sizeof body);
    body[8191] = '\xc3'; /* a character across the border of two blocks */
    body[8192] = '\xa9';
    add(&b, 0x81, body, sizeof body);
    cp_autobuf cp_buf want = {0};
    trace_event(&want, &(cp_frame_event){CP_FRAME_MESSAGE, CP_OP_TEXT, 0, NULL, {body, sizeof body}});
    server(b.p, b.n, cp_buf_z(&want));
    body[8192] = 'a';
    cp_buf_clear(&b);
    add_frame(&b, 0x81, body, 8193, 9000, 16);
    server(b.p, b.n, "ERROR 1007\n");
}

static void close_frames(void **state) {
    (void)state;
    client(B("\x88\x00"), "close 1005\n");
    client(B("\x88\x01\x03"), "ERROR 1002\n");
    client(B("\x88\x05\x03\xe8"
             "bye"),
           "close 1000 bye\n");
    client(B("\x88\x05\x03\xe8\xce\xba\xff"), "ERROR 1007\n");
    client(B("\x88\x03\x03\xe8\xce"), "ERROR 1007\n");
    client(B("\x88\x03\x03\xed\xce"), "ERROR 1002\n");
    client(B("\x81\x03"
             "bye\x88\x02\x03\xe8"),
           "text bye\nclose 1000\n");
    /* nothing after it is looked at */
    client(B("\x88\x02\x03\xe8\x88\x02\x03\xe9"), "close 1000\n");
    client(B("\x88\x02\x03\xe8\xff\xff\xff"), "close 1000\n");
    client(B("\xff\x81\x01z\x88\x00"), "ERROR 1002\n");
}

/* RFC 6455 section 7.4 and the registry, each of the 65,536 codes. */
static void close_codes(void **state) {
    (void)state;
    static const unsigned ok[] = {1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014};
    for (unsigned code = 0; code < 65536; code++) {
        bool want = code >= 3000 && code < 5000;
        for (size_t i = 0; i < CP_COUNT(ok); i++) want |= ok[i] == code;
        assert_int_equal(cp_frame_close_code_ok(code), want);
        char in[] = {'\x88', 2, (char)(code >> 8), (char)code};
        cp_frame_in d;
        cp_frame_event ev;
        size_t used;
        cp_frame_in_init(&d, CP_FRAME_CLIENT, MAX);
        assert_int_equal(cp_frame_next(&d, in, sizeof in, &used, &ev), want ? CP_FRAME_CLOSE : CP_FRAME_ERROR);
        assert_int_equal(ev.code, want ? code : 1002);
    }
}

static void encoder_heads(void **state) {
    (void)state;
    static const struct {
        uint64_t len;
        const char *head;
        size_t n;
    } cases[] = {
        {0, B("\x82\x00")},
        {125, B("\x82\x7d")},
        {126, B("\x82\x7e\x00\x7e")},
        {65535, B("\x82\x7e\xff\xff")},
        {65536, B("\x82\x7f\0\0\0\0\0\x01\0\0")},
        {UINT64_C(0x0123456789abcdef), B("\x82\x7f\x01\x23\x45\x67\x89\xab\xcd\xef")},
    };
    char out[CP_FRAME_HEAD_MAX];
    for (size_t i = 0; i < CP_COUNT(cases); i++) {
        assert_int_equal(cp_frame_head(out, CP_OP_BINARY, true, cases[i].len, NULL), cases[i].n);
        assert_memory_equal(out, cases[i].head, cases[i].n);
    }
    assert_int_equal(cp_frame_head(out, CP_OP_CONT, false, 126, (const uint8_t *)"\1\2\3\4"), 8);
    assert_memory_equal(out, "\x00\xfe\x00\x7e\1\2\3\4", 8);

    cp_autobuf cp_buf b = {0};
    cp_frame_put(&b, CP_OP_TEXT, true, "Hello", 5, (const uint8_t *)"\x37\xfa\x21\x3d");
    cp_frame_put(&b, CP_OP_TEXT, false, "Hel", 3, NULL);
    cp_frame_put(&b, CP_OP_CONT, true, "lo", 2, NULL);
    assert_int_equal(b.n, 20);
    assert_memory_equal(b.p, "\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58\x01\x03Hel\x80\x02lo", 20);
}

static void encoder_close(void **state) {
    (void)state;
    char out[CP_FRAME_CLOSE_MAX], reason[200];
    assert_int_equal(cp_frame_close(out, 1000, CP_STR("bye"), NULL), 7);
    assert_memory_equal(out,
                        "\x88\x05\x03\xe8"
                        "bye",
                        7);
    assert_int_equal(cp_frame_close(out, CP_CLOSE_NO_STATUS, CP_STR("bye"), NULL), 2);
    assert_memory_equal(out, "\x88\x00", 2);
    assert_int_equal(cp_frame_close(out, 1000, (cp_str){0}, (const uint8_t *)"\1\2\3\4"), 8);
    assert_memory_equal(out, "\x88\x82\1\2\3\4\x02\xea", 8);

    memset(reason, 'r', sizeof reason);
    assert_int_equal(cp_frame_close(out, 4999, (cp_str){reason, sizeof reason}, NULL), 127);
    assert_memory_equal(out, "\x88\x7d\x13\x87", 4);
    memcpy(reason + 121, "\xe2\x82\xac", 3); /* would be cut after two of its three bytes */
    assert_int_equal(cp_frame_close(out, 4999, (cp_str){reason, sizeof reason}, NULL), 2 + 2 + 121);
}

/* Each length, place and alignment that the wide loops and their tails can meet, against the definition. */
static void masking(void **state) {
    (void)state;
    static const uint8_t key[4] = {0x80, 0x01, 0xfe, 0x37};
    char src[80], dst[80], want[80];
    for (size_t i = 0; i < sizeof src; i++) src[i] = (char)(i * 41 + 3);
    for (size_t at = 0; at < 16; at++)
        for (size_t n = 0; n + at <= 80; n++)
            for (size_t off = 0; off < 5; off++) {
                memcpy(dst, src, sizeof dst);
                memcpy(want, src, sizeof want);
                for (size_t i = 0; i < n; i++) want[at + i] = (char)((uint8_t)src[at + i] ^ key[(off + i) % 4]);
                cp_frame_mask(dst + at, dst + at, n, key, off);
                assert_memory_equal(dst, want, sizeof dst);
            }
}

/* One byte outside ASCII, wherever it is, must be seen: the wide pass decides whether UTF-8 is checked at all. */
static void no_byte_escapes_the_check(void **state) {
    (void)state;
    char text[70];
    for (size_t n = 1; n <= sizeof text; n++)
        for (size_t at = 0; at < n; at++) {
            cp_autobuf cp_buf b = {0};
            memset(text, 'a', sizeof text);
            text[at] = '\x80';
            add(&b, 0x81, text, n);
            expect_cut(CP_FRAME_SERVER, MAX, b.p, b.n, "ERROR 1007\n", b.n, b.n);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rfc_examples),
        cmocka_unit_test(in_place),
        cmocka_unit_test(memory_follows_bytes),
        cmocka_unit_test(lengths),
        cmocka_unit_test(bad_heads),
        cmocka_unit_test(length_forms),
        cmocka_unit_test(fragments),
        cmocka_unit_test(limits),
        cmocka_unit_test(utf8),
        cmocka_unit_test(utf8_fails_early),
        cmocka_unit_test(close_frames),
        cmocka_unit_test(close_codes),
        cmocka_unit_test(encoder_heads),
        cmocka_unit_test(encoder_close),
        cmocka_unit_test(masking),
        cmocka_unit_test(no_byte_escapes_the_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
