/* Three things from one input: parsing it, also where a key stands twice; writing it as a string, at both levels, and
 * reading that back; base64. */
#include <stdlib.h>

#include "base/json.h"
#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok) {
    if (!ok) abort();
}

/* Whether an object within v has a key twice: each is compared with each. */
static bool key_twice(yyjson_val *v) {
    size_t i, n, j, m;
    yyjson_val *key, *value, *other, *unused;
    if (yyjson_is_arr(v)) {
        yyjson_arr_foreach(v, i, n, value) if (key_twice(value)) return true;
        return false;
    }
    yyjson_obj_foreach(v, i, n, key, value) {
        if (key_twice(value)) return true;
        yyjson_obj_foreach(v, j, m, other, unused) if (other != key && yyjson_equals(other, key)) return true;
    }
    return false;
}

/* A parsed document is written and parsed again: the same, and within the limits still. */
static void parse(cp_str text) {
    cp_err err = {0}, read_err = {0};
    cp_autodoc yyjson_doc *doc = cp_json_parse(text, &err), *any = cp_json_read(text, &read_err);
    require(!any == (err.code == CP_E_PARSE_ERROR || err.code == CP_E_PAYLOAD_TOO_LARGE));
    require(!any || !doc == key_twice(yyjson_doc_get_root(any)));
    require(doc || !any || err.code == CP_E_VALIDATION_FAILED);
    if (!doc) return;
    cp_autobuf cp_buf b = {0};
    cp_jw w = cp_jw_on(&b);
    cp_jw_val(&w, yyjson_doc_get_root(doc));
    cp_autodoc yyjson_doc *again = cp_json_parse(cp_buf_str(&b), &err);
    require(again && yyjson_equals(yyjson_doc_get_root(doc), yyjson_doc_get_root(again)));
}

/* Reads `levels` layers of JSON string off text; what is inside must be want, or at least be valid. */
static void unwrap(cp_str text, int levels, cp_str want, bool lossy) {
    cp_autodoc yyjson_doc *doc = cp_json_parse(text, NULL);
    yyjson_val *v = yyjson_doc_get_root(doc);
    require(yyjson_is_str(v));
    cp_str s = {yyjson_get_str(v), yyjson_get_len(v)};
    if (levels > 1) unwrap(s, levels - 1, want, lossy);
    else require(lossy ? cp_utf8_valid(s.p, s.n) : cp_str_eq(s, want));
}

static void write_and_read_back(cp_str text) {
    for (uint8_t level = 1; level <= 2; level++) {
        cp_autobuf cp_buf b = {0};
        cp_jw w = {.out = &b, .level = level};
        if (level == 2) cp_buf_addc(&b, '"');
        cp_jw_str(&w, text);
        if (level == 2) cp_buf_addc(&b, '"');
        require(w.lossy == !cp_utf8_valid(text.p, text.n));
        unwrap(cp_buf_str(&b), level, text, w.lossy);
    }
}

static void base64(cp_str text) {
    cp_autobuf cp_buf coded = {0}, back = {0};
    cp_base64_encode(&coded, text.p, text.n);
    require(cp_base64_decode(&back, cp_buf_str(&coded)) == 0 && cp_str_eq(cp_buf_str(&back), text));
    cp_buf_clear(&coded);
    cp_buf_clear(&back);
    if (cp_base64_decode(&back, text) < 0) return;
    cp_base64_encode(&coded, back.p, back.n); /* what is accepted is the one text that encode would have written */
    require(cp_str_eq(cp_buf_str(&coded), text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    cp_str text = {(const char *)data, size};
    parse(text);
    write_and_read_back(text);
    base64(text);
    return 0;
}
