#include "base/json.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

/* ---- writer ---- */

static void commas_stand_where_they_belong(void **state) {
    (void)state;
    cp_autobuf cp_buf b = {0};
    cp_jw w = cp_jw_on(&b);
    cp_jw_obj(&w);
    cp_jw_kz(&w, "a", "x");
    cp_jw_key(&w, "b");
    cp_jw_arr(&w);
    cp_jw_u64(&w, 1);
    cp_jw_obj(&w);
    cp_jw_end_obj(&w);
    cp_jw_arr(&w);
    cp_jw_end_arr(&w);
    cp_jw_null(&w);
    cp_jw_end_arr(&w);
    cp_jw_kbool(&w, "c", true);
    cp_jw_kstr(&w, "d", CP_STR(""));
    cp_jw_kz(&w, "e", NULL);
    cp_jw_key(&w, "f");
    cp_jw_raw(&w, CP_STR("{\"q\":[1]}"));
    cp_jw_ki64(&w, "g", -5);
    cp_jw_kstr(&w, "h", (cp_str){0});
    cp_jw_end_obj(&w);
    assert_string_equal(cp_buf_z(&b), "{\"a\":\"x\",\"b\":[1,{},[],null],\"c\":true,\"d\":\"\",\"e\":null,"
                                      "\"f\":{\"q\":[1]},\"g\":-5,\"h\":\"\"}");
    assert_false(w.lossy);
}

static void numbers(void **state) {
    (void)state;
    cp_autobuf cp_buf b = {0};
    cp_jw w = cp_jw_on(&b);
    cp_jw_u64(&w, UINT64_MAX);
    cp_jw_i64(&w, INT64_MIN);
    cp_jw_i64(&w, INT64_MAX);
    cp_jw_f64(&w, 3.0);
    cp_jw_f64(&w, 0.1);
    cp_jw_f64(&w, -2.5);
    cp_jw_f64(&w, __builtin_nan(""));
    cp_jw_f64(&w, __builtin_inf());
    assert_string_equal(cp_buf_z(&b),
                        "18446744073709551615,-9223372036854775808,9223372036854775807,3,0.1,-2.5,null,null");
}

static void level_2_by_hand(void **state) {
    (void)state;
    cp_autobuf cp_buf b = {0};
    cp_jw w = {.out = &b, .level = 2};
    cp_jw_obj(&w);
    cp_jw_kstr(&w, "d", CP_STR("a\n\"\\\x01\xC3\xA9"));
    cp_jw_end_obj(&w);
    assert_string_equal(cp_buf_z(&b), "{\\\"d\\\":\\\"a\\\\n\\\\\\\"\\\\\\\\\\\\u0001\xC3\xA9\\\"}");
}

/* What a reader of JSON gets back from text; level 2 is read twice. Owner frees. */
static char *read_back(cp_str json, int level, size_t *n) {
    cp_autobuf cp_buf text = {0};
    if (level == 2) cp_buf_addc(&text, '"');
    cp_buf_add(&text, json.p, json.n);
    if (level == 2) cp_buf_addc(&text, '"');
    cp_err err = {0};
    cp_autodoc yyjson_doc *doc = cp_json_parse(cp_buf_str(&text), &err);
    if (!doc) fail_msg("level %d: %s in %.*s", level, err.msg, (int)json.n, json.p);
    yyjson_val *v = yyjson_doc_get_root(doc);
    assert_true(yyjson_is_str(v));
    cp_str s = {yyjson_get_str(v), yyjson_get_len(v)};
    if (level == 2) return read_back(s, 1, n);
    *n = s.n;
    return cp_str_dup(s);
}

static void expect_round_trip(cp_str in, cp_str want, bool lossy) {
    for (uint8_t level = 1; level <= 2; level++) {
        cp_autobuf cp_buf b = {0};
        cp_jw w = {.out = &b, .level = level};
        cp_jw_str(&w, in);
        assert_int_equal(w.lossy, lossy);
        for (size_t i = 0; i < b.n; i++) assert_true((unsigned char)b.p[i] >= 0x20);
        size_t n;
        cp_autofree char *back = read_back(cp_buf_str(&b), level, &n);
        assert_int_equal(n, want.n);
        assert_memory_equal(back, want.p, n);
    }
}

static void every_ascii_byte_at_every_place(void **state) {
    (void)state;
    char text[40];
    for (int c = 0; c < 128; c++)
        for (size_t n = 1; n <= sizeof text; n += 3)
            for (size_t at = 0; at < n; at += 2) {
                memset(text, 'p', n);
                text[at] = (char)c;
                expect_round_trip((cp_str){text, n}, (cp_str){text, n}, false);
            }
}

static void mixtures_across_blocks(void **state) {
    (void)state;
    static const char *const parts[] = {
        "y\n",         "\xF0\x9F\x98\x80", "\"",           "plain text of some length, more than sixteen",
        "\\\\\\",      "\xC3\xA9",         "\x01\x02\x03", "\t",
        "\xE2\x82\xAC"};
    cp_autobuf cp_buf text = {0};
    unsigned seed = 7;
    for (int round = 0; round < 60; round++) {
        cp_buf_clear(&text);
        size_t want = round * 331;
        while (text.n < want) {
            seed = seed * 1103515245u + 12345u;
            cp_buf_addz(&text, parts[seed / 65536u % CP_COUNT(parts)]);
        }
        expect_round_trip(cp_buf_str(&text), cp_buf_str(&text), false);
    }
}

static void all_escapes_need_the_most_room(void **state) {
    (void)state;
    cp_autobuf cp_buf text = {0};
    for (int i = 0; i < 20000; i++) cp_buf_addc(&text, '\x1f');
    expect_round_trip(cp_buf_str(&text), cp_buf_str(&text), false);
    cp_buf_clear(&text);
    for (int i = 0; i < 20000; i++) cp_buf_addc(&text, '\xFF');
    cp_autobuf cp_buf want = {0};
    for (int i = 0; i < 20000; i++) cp_buf_addz(&want, "\xEF\xBF\xBD");
    expect_round_trip(cp_buf_str(&text), cp_buf_str(&want), true);
}

#define FFFD "\xEF\xBF\xBD"
static void invalid_utf8_becomes_fffd(void **state) {
    (void)state;
    expect_round_trip(CP_STR("a\xFFz"), CP_STR("a" FFFD "z"), true);
    expect_round_trip(CP_STR("\xE2\x82"), CP_STR(FFFD), true); /* one for a maximal subpart */
    expect_round_trip(CP_STR("\xE2\x82(\xE2\x82\xAC"), CP_STR(FFFD "(\xE2\x82\xAC"), true);
    expect_round_trip(CP_STR("\xED\xA0\x80"), CP_STR(FFFD FFFD FFFD), true);
    expect_round_trip(CP_STR("0123456789abcdef0123\xF0\x9F\x98"), CP_STR("0123456789abcdef0123" FFFD), true);
}

static void lossy_is_sticky(void **state) {
    (void)state;
    cp_autobuf cp_buf b = {0};
    cp_jw w = cp_jw_on(&b);
    cp_jw_str(&w, CP_STR("\xFF"));
    cp_jw_str(&w, CP_STR("fine"));
    assert_true(w.lossy);
}

static void raw_and_values_are_escaped_at_level_2(void **state) {
    (void)state;
    static const char json[] = "{\"k\":[\"a\\nb\",1.5,null,true,-3]}";
    cp_autodoc yyjson_doc *doc = cp_json_parse(cp_str_of(json), NULL);
    for (int way = 0; way < 2; way++) {
        cp_autobuf cp_buf b = {0};
        cp_buf_addz(&b, "\"");
        cp_jw w = {.out = &b, .level = 2};
        if (way == 0) cp_jw_raw(&w, cp_str_of(json));
        else cp_jw_val(&w, yyjson_doc_get_root(doc));
        cp_buf_addz(&b, "\"");
        size_t n;
        cp_autofree char *back = read_back(cp_buf_str(&b), 1, &n);
        assert_string_equal(back, json);
    }
}

static void timestamps(void **state) {
    (void)state;
    cp_autobuf cp_buf b = {0};
    cp_jw w = cp_jw_on(&b);
    cp_jw_iso(&w, 1700000000007);
    w.level = 2;
    cp_jw_iso(&w, 0);
    assert_string_equal(cp_buf_z(&b), "\"2023-11-14T22:13:20.007Z\",\\\"1970-01-01T00:00:00.000Z\\\"");
    cp_buf_clear(&b);
    w = cp_jw_on(&b);
    cp_jw_know(&w);
    assert_int_equal(b.n, sizeof "\"timestamp\":\"1970-01-01T00:00:00.000Z\"" - 1);
}

/* ---- base64: RFC 4648 section 10, and a plain second encoder ---- */

static void base64_vectors(void **state) {
    (void)state;
    static const char *const rows[][2] = {{"", ""},
                                          {"f", "Zg=="},
                                          {"fo", "Zm8="},
                                          {"foo", "Zm9v"},
                                          {"foob", "Zm9vYg=="},
                                          {"fooba", "Zm9vYmE="},
                                          {"foobar", "Zm9vYmFy"}};
    for (size_t i = 0; i < CP_COUNT(rows); i++) {
        cp_autobuf cp_buf e = {0}, d = {0};
        cp_base64_encode(&e, rows[i][0], strlen(rows[i][0]));
        assert_string_equal(cp_buf_z(&e), rows[i][1]);
        assert_int_equal(cp_base64_decode(&d, cp_str_of(rows[i][1])), 0);
        assert_string_equal(cp_buf_z(&d), rows[i][0]);
    }
}

static char plain_digit(const unsigned char *p, size_t n, size_t digit) {
    unsigned v = 0;
    for (size_t bit = digit * 6; bit < digit * 6 + 6; bit++)
        v = v << 1 | (bit / 8 < n ? p[bit / 8] >> (7 - bit % 8) & 1u : 0);
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[v];
}

static void base64_of_all_lengths(void **state) {
    (void)state;
    unsigned char in[300];
    for (size_t i = 0; i < sizeof in; i++) in[i] = (unsigned char)(i * 167 + 13);
    cp_autobuf cp_buf e = {0}, d = {0};
    for (size_t n = 0; n <= sizeof in; n++) {
        cp_buf_clear(&e);
        cp_base64_encode(&e, in, n);
        assert_int_equal(e.n, (n + 2) / 3 * 4);
        for (size_t i = 0; i < e.n; i++) assert_int_equal(e.p[i], i * 6 < n * 8 ? plain_digit(in, n, i) : '=');
        cp_buf_clear(&d);
        assert_int_equal(cp_base64_decode(&d, cp_buf_str(&e)), 0);
        assert_int_equal(d.n, n);
        assert_true(n == 0 || memcmp(d.p, in, n) == 0);
    }
}

static void base64_decode_is_strict(void **state) {
    (void)state;
    static const char *const bad[] = {"Z",        "Zg",       "Zg=",  "Zm9v\n",  "Zm9\n",      " m9v",
                                      "Zh==",     "Zm9=",     "====", "Z===",    "=m9v",       "Zm=v",
                                      "Zg==Zg==", "Zm9vZ-9v", "Zm9_", "Zm9vYg=", "Zm\xC3\xA9", "Zm9v===="};
    cp_autobuf cp_buf d = {0};
    cp_buf_addz(&d, "kept");
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        assert_int_equal(cp_base64_decode(&d, cp_str_of(bad[i])), -1);
        assert_string_equal(cp_buf_z(&d), "kept");
    }
    for (int c = 0; c < 256; c++) {
        char text[8] = {'A', 'A', 'A', 'A', 'A', 'A', 'A', 'A'};
        text[c % 4] = (char)c;
        bool in_alphabet =
            (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' || c == '/';
        cp_autobuf cp_buf one = {0};
        assert_int_equal(cp_base64_decode(&one, (cp_str){text, 8}), in_alphabet ? 0 : -1);
    }
}

static void base64_values(void **state) {
    (void)state;
    cp_autobuf cp_buf b = {0};
    cp_jw w = cp_jw_on(&b);
    cp_jw_arr(&w);
    cp_jw_base64(&w, "foo", 3);
    w.level = 2;
    cp_jw_base64(&w, "f", 1);
    assert_string_equal(cp_buf_z(&b), "[\"Zm9v\",\\\"Zg==\\\"");
}

/* ---- parsing ---- */

static cp_code parse_code(cp_str text, cp_err *err) {
    *err = (cp_err){0};
    cp_autodoc yyjson_doc *doc = cp_json_parse(text, err);
    return doc ? CP_OK : err->code;
}

static void parse_errors_tell_the_position_and_not_the_text(void **state) {
    (void)state;
    cp_err err;
    assert_int_equal(parse_code(CP_STR("{\"secret\":\"hunter2\"; }"), &err), CP_E_PARSE_ERROR);
    assert_non_null(strstr(err.msg, "at position 19"));
    assert_null(strstr(err.msg, "hunter2"));
    static const char *const bad[] = {"",        " ",   "{",        "[1,]",        "{\"a\":1,}",    "nul",
                                      "01",      "'a'", "[1] 2",    "{\"a\" 1}",   "\"\xFF\"",      "\"\xED\xA0\x80\"",
                                      "// c\n1", "NaN", "\"a\nb\"", "\"\\ud800\"", "\xEF\xBB\xBF[]"};
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        assert_int_equal(parse_code(cp_str_of(bad[i]), &err), CP_E_PARSE_ERROR);
        assert_non_null(strstr(err.msg, ", at position "));
    }
}

static void nest(cp_buf *b, size_t n, const char *open, char close) {
    for (size_t i = 0; i < n; i++) cp_buf_addz(b, open);
    cp_buf_addz(b, "1");
    for (size_t i = 0; i < n; i++) cp_buf_addc(b, close);
}

static void depth_is_bounded(void **state) {
    (void)state;
    cp_err err;
    static const struct {
        const char *open;
        char close;
    } rows[] = {{"[", ']'}, {"{\"a\":", '}'}};
    for (size_t r = 0; r < 2; r++)
        for (size_t extra = 0; extra < 2; extra++) {
            cp_autobuf cp_buf b = {0};
            nest(&b, CP_JSON_MAX_DEPTH + extra, rows[r].open, rows[r].close);
            assert_int_equal(parse_code(cp_buf_str(&b), &err), extra ? CP_E_PAYLOAD_TOO_LARGE : CP_OK);
        }
    cp_autobuf cp_buf flat = {0}; /* many openers, but never deep; brackets in strings are not structure */
    cp_buf_addz(&flat, "[");
    for (int i = 0; i < 100; i++) cp_buf_addz(&flat, "[{}],\"[[[[[\\\"[[[[{{{{,,\\\\\",");
    cp_buf_addz(&flat, "[]]");
    assert_int_equal(parse_code(cp_buf_str(&flat), &err), CP_OK);
    cp_autobuf cp_buf open = {0}; /* not closed, not JSON: refused for the depth, before anything is allocated */
    for (int i = 0; i < 1000; i++) cp_buf_addc(&open, '[');
    assert_int_equal(parse_code(cp_buf_str(&open), &err), CP_E_PAYLOAD_TOO_LARGE);
}

static void number_of_values_is_bounded(void **state) {
    (void)state;
    cp_err err;
    cp_autobuf cp_buf b = {0};
    cp_buf_addc(&b, '['); /* the array is a value, too */
    for (int i = 0; i < CP_JSON_MAX_VALUES - 2; i++) cp_buf_addz(&b, "1,");
    cp_buf_addz(&b, "1]");
    assert_int_equal(parse_code(cp_buf_str(&b), &err), CP_OK);
    b.n -= 1;
    cp_buf_addz(&b, ",1]");
    assert_int_equal(parse_code(cp_buf_str(&b), &err), CP_E_PAYLOAD_TOO_LARGE);
    cp_buf_clear(&b);
    cp_buf_addc(&b, '"'); /* commas in a string are none */
    for (int i = 0; i < CP_JSON_MAX_VALUES + 9; i++) cp_buf_addz(&b, ",");
    cp_buf_addz(&b, "\\\"\"");
    assert_int_equal(parse_code(cp_buf_str(&b), &err), CP_OK);
}

/* ---- getters ---- */

static const char doc_text[] = "{\"s\":\"a\\u0000b\",\"n\":null,\"t\":true,\"i\":42,\"d\":3.0,\"f\":1.5,\"neg\":-7,"
                               "\"big\":18446744073709551615,\"e\":1e300,\"o\":{},\"a\":[],\"w\":\"two\"}";

static void getters_take_what_fits(void **state) {
    (void)state;
    cp_autodoc yyjson_doc *doc = cp_json_parse(cp_str_of(doc_text), NULL);
    yyjson_val *o = yyjson_doc_get_root(doc), *v = NULL;
    cp_err err = {0};
    cp_str s = {0};
    assert_int_equal(cp_json_str(o, "s", true, &s, &err), 0);
    assert_true(cp_str_eq(s, CP_STR("a\0b")));
    bool t = false;
    assert_int_equal(cp_json_bool(o, "t", &t, &err), 0);
    assert_true(t);
    int64_t i = 0;
    assert_int_equal(cp_json_int(o, "i", 0, 42, &i, &err), 0);
    assert_int_equal(i, 42);
    assert_int_equal(cp_json_int(o, "d", 0, 3, &i, &err), 0);
    assert_int_equal(i, 3);
    assert_int_equal(cp_json_int(o, "neg", -7, 0, &i, &err), 0);
    assert_int_equal(i, -7);
    assert_int_equal(cp_json_obj(o, "o", &v, &err), 0);
    assert_true(yyjson_is_obj(v));
    assert_int_equal(cp_json_arr(o, "a", &v, &err), 0);
    assert_true(yyjson_is_arr(v));
    static const char *const words[] = {"one", "two", NULL};
    int k = -1;
    assert_int_equal(cp_json_enum(o, "w", words, &k, &err), 0);
    assert_int_equal(k, 1);
}

static void absent_and_null_keep_the_default(void **state) {
    (void)state;
    cp_autodoc yyjson_doc *doc = cp_json_parse(cp_str_of(doc_text), NULL);
    yyjson_val *o = yyjson_doc_get_root(doc);
    static const char *const words[] = {"one", NULL};
    static const char *const keys[] = {"n", "absent"};
    for (size_t r = 0; r < 2; r++) {
        cp_err err = {0};
        cp_str s = CP_STR("kept");
        bool t = true;
        int64_t i = 9;
        int k = 5;
        yyjson_val *v = o;
        assert_int_equal(cp_json_str(o, keys[r], false, &s, &err), 0);
        assert_int_equal(cp_json_bool(o, keys[r], &t, &err), 0);
        assert_int_equal(cp_json_int(o, keys[r], 0, 1, &i, &err), 0);
        assert_int_equal(cp_json_enum(o, keys[r], words, &k, &err), 0);
        assert_int_equal(cp_json_obj(o, keys[r], &v, &err), 0);
        assert_int_equal(cp_json_arr(o, keys[r], &v, &err), 0);
        assert_true(cp_str_is(s, "kept") && t && i == 9 && k == 5 && v == o);
        assert_int_equal(cp_json_str(o, keys[r], true, &s, &err), -1);
        assert_int_equal(err.code, CP_E_VALIDATION_FAILED);
        assert_string_equal(err.field, keys[r]);
    }
}

#define REFUSED(key, call)                                                                                             \
    do {                                                                                                               \
        cp_err err = {0};                                                                                              \
        assert_int_equal(call, -1);                                                                                    \
        assert_int_equal(err.code, CP_E_VALIDATION_FAILED);                                                            \
        assert_string_equal(err.field, key);                                                                           \
    } while (0)

static void getters_refuse_what_does_not_fit(void **state) {
    (void)state;
    cp_autodoc yyjson_doc *doc = cp_json_parse(cp_str_of(doc_text), NULL);
    yyjson_val *o = yyjson_doc_get_root(doc), *v;
    cp_str s;
    bool t;
    int64_t i;
    int k;
    static const char *const words[] = {"one", "three", NULL};
    REFUSED("i", cp_json_str(o, "i", false, &s, &err));
    REFUSED("s", cp_json_bool(o, "s", &t, &err));
    REFUSED("i", cp_json_bool(o, "i", &t, &err));
    REFUSED("s", cp_json_int(o, "s", 0, 9, &i, &err));
    REFUSED("i", cp_json_int(o, "i", 0, 41, &i, &err));
    REFUSED("i", cp_json_int(o, "i", 43, 99, &i, &err));
    REFUSED("f", cp_json_int(o, "f", 0, 9, &i, &err));
    REFUSED("big", cp_json_int(o, "big", INT64_MIN, INT64_MAX, &i, &err));
    REFUSED("e", cp_json_int(o, "e", INT64_MIN, INT64_MAX, &i, &err));
    REFUSED("a", cp_json_obj(o, "a", &v, &err));
    REFUSED("o", cp_json_arr(o, "o", &v, &err));
    REFUSED("w", cp_json_enum(o, "w", words, &k, &err));
    REFUSED("i", cp_json_enum(o, "i", words, &k, &err));
}

static void only_names_the_unknown_key(void **state) {
    (void)state;
    cp_autodoc yyjson_doc *doc = cp_json_parse(CP_STR("{\"a\":1,\"typo\":2}"), NULL);
    yyjson_val *o = yyjson_doc_get_root(doc);
    static const char *const some[] = {"a", "b", NULL};
    static const char *const all[] = {"typo", "a", NULL};
    REFUSED("typo", cp_json_only(o, some, &err));
    assert_int_equal(cp_json_only(o, all, NULL), 0);
}

/* {"k0":0,…}, and then the last key once more. */
static void many_keys(cp_buf *b, unsigned n, bool again) {
    cp_buf_addc(b, '{');
    for (unsigned i = 0; i < n; i++) cp_buf_addf(b, "\"k%u\":0,", i);
    cp_buf_addf(b, "\"k%u\":0}", again ? n - 1 : n);
}

static void a_key_that_stands_twice_is_named(void **state) {
    (void)state;
    static const char *const texts[] = {"{\"twice\":1,\"b\":2,\"twice\":3}",
                                        "[{\"b\":{\"twice\":1,\"\\u0074wice\":1}}]",
                                        "{\"a\":[1,{\"x\":1},{\"twice\":1,\"twice\":1}],\"b\":1}",
                                        "{\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,\"i\":1,"
                                        "\"j\":1,\"k\":1,\"l\":1,\"m\":1,\"n\":1,"
                                        "\"o\":1,\"p\":1,\"q\":1,\"twice\":1,\"r\":1,\"twice\":1}"};
    cp_err err = {0};
    for (size_t i = 0; i < CP_COUNT(texts); i++) {
        assert_null(cp_json_parse(cp_str_of(texts[i]), &err));
        assert_int_equal(err.code, CP_E_VALIDATION_FAILED);
        assert_string_equal(err.field, "twice");
    }
    cp_autodoc yyjson_doc *doc = cp_json_parse(CP_STR("[{\"a\":{\"a\":1}},{\"a\":\"a\"},{\"\":1,\"A\":2}]"), &err);
    assert_non_null(doc);
}

static void a_hundred_thousand_keys_are_looked_through(void **state) {
    (void)state;
    cp_err err = {0};
    cp_autobuf cp_buf unique = {0}, twice = {0};
    many_keys(&unique, 100000, false);
    many_keys(&twice, 100000, true);
    cp_autodoc yyjson_doc *doc = cp_json_parse(cp_buf_str(&unique), &err);
    assert_non_null(doc);
    assert_null(cp_json_parse(cp_buf_str(&twice), &err));
    assert_string_equal(err.field, "k99999");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commas_stand_where_they_belong),
        cmocka_unit_test(numbers),
        cmocka_unit_test(level_2_by_hand),
        cmocka_unit_test(every_ascii_byte_at_every_place),
        cmocka_unit_test(mixtures_across_blocks),
        cmocka_unit_test(all_escapes_need_the_most_room),
        cmocka_unit_test(invalid_utf8_becomes_fffd),
        cmocka_unit_test(lossy_is_sticky),
        cmocka_unit_test(raw_and_values_are_escaped_at_level_2),
        cmocka_unit_test(timestamps),
        cmocka_unit_test(base64_vectors),
        cmocka_unit_test(base64_of_all_lengths),
        cmocka_unit_test(base64_decode_is_strict),
        cmocka_unit_test(base64_values),
        cmocka_unit_test(parse_errors_tell_the_position_and_not_the_text),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(number_of_values_is_bounded),
        cmocka_unit_test(getters_take_what_fits),
        cmocka_unit_test(absent_and_null_keep_the_default),
        cmocka_unit_test(getters_refuse_what_does_not_fit),
        cmocka_unit_test(only_names_the_unknown_key),
        cmocka_unit_test(a_key_that_stands_twice_is_named),
        cmocka_unit_test(a_hundred_thousand_keys_are_looked_through),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
