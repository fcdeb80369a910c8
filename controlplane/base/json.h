#pragma once
/* JSON: a streaming writer (this file), and bounded parsing with typed getters on top of yyjson.
 *
 * Writer. Appends to a cp_buf; commas are put where they belong. At level 2 everything it writes is escaped once more,
 * so that the text can stand inside a JSON string: that is how a stream event travels in the multiplexed WebSocket
 * ({"type":"stream","data":"<event as JSON text>"}), built in one pass.
 * Strings are bytes; what is not valid UTF-8 becomes U+FFFD (WHATWG "maximal subpart" practice), never raw. */
#include <stdbool.h>
#include <stdint.h>
#include <yyjson.h>

#include "base/buf.h"
#include "base/err.h"

typedef struct cp_jw {
    cp_buf *out;
    uint8_t level; /* 1 or 2 */
    bool comma;    /* a value has been written at this place */
    bool lossy;    /* some string was not valid UTF-8; sticky */
} cp_jw;

static inline cp_jw cp_jw_on(cp_buf *out) { return (cp_jw){.out = out, .level = 1}; }

void cp_jw_obj(cp_jw *w);     /* { */
void cp_jw_end_obj(cp_jw *w); /* } */
void cp_jw_arr(cp_jw *w);
void cp_jw_end_arr(cp_jw *w);
void cp_jw_key(cp_jw *w, const char *key); /* plain ASCII key without escapes */
void cp_jw_str(cp_jw *w, cp_str s);
void cp_jw_z(cp_jw *w, const char *z);
void cp_jw_u64(cp_jw *w, uint64_t v);
void cp_jw_i64(cp_jw *w, int64_t v);
void cp_jw_f64(cp_jw *w, double v);
void cp_jw_bool(cp_jw *w, bool v);
void cp_jw_null(cp_jw *w);
void cp_jw_raw(cp_jw *w, cp_str json);   /* a value that is JSON text already (escaped once more at level 2) */
void cp_jw_val(cp_jw *w, yyjson_val *v); /* a parsed value */
void cp_jw_base64(cp_jw *w, const void *p, size_t n); /* a string value */
void cp_jw_iso(cp_jw *w, int64_t wall_ms);            /* a timestamp string */

/* "key":value in one call. */
void cp_jw_kstr(cp_jw *w, const char *key, cp_str s);
void cp_jw_kz(cp_jw *w, const char *key, const char *z);
void cp_jw_ku64(cp_jw *w, const char *key, uint64_t v);
void cp_jw_ki64(cp_jw *w, const char *key, int64_t v);
void cp_jw_kbool(cp_jw *w, const char *key, bool v);
void cp_jw_know(cp_jw *w); /* "timestamp":"<now>" */

/* Parsing. Strict, UTF-8 checked, not recursive. Limits are checked before the parser allocates: nesting depth and an
 * upper bound of the number of values (counted as separators outside strings). */
#define CP_JSON_MAX_DEPTH  64
#define CP_JSON_MAX_VALUES 1000000
/* NULL on failure: PARSE_ERROR (message names the position), PAYLOAD_TOO_LARGE (depth, values), LIMIT_EXCEEDED (the
 * memory budget, which counts the document as long as it lives) or what cp_json_unique says. Owner frees with
 * yyjson_doc_free. Any thread. */
yyjson_doc *cp_json_parse(cp_str text, cp_err *err);
/* The same but for cp_json_unique: for who asks that himself, or has asked. */
yyjson_doc *cp_json_read(cp_str text, cp_err *err);
/* Refuses a document in which an object has the same key twice: one reader takes the first, another the last, and what
 * stands in front of us to filter requests need not read as we do. -1: VALIDATION_FAILED with err->field = the key (or
 * LIMIT_EXCEEDED). No more than n log n for n keys, whatever they are; no memory for objects of up to 16. */
int cp_json_unique(yyjson_doc *doc, cp_err *err);
/* As cp_json_read with the caller's memory, which must outlive the document (NULL: the heap). An allocator that has run
 * out fails as INTERNAL_ERROR. */
yyjson_doc *cp_json_parse_with(cp_str text, const yyjson_alc *alc, cp_err *err);
static inline void cp_autodoc_(yyjson_doc **d) { yyjson_doc_free(*d); }
#define cp_autodoc __attribute__((cleanup(cp_autodoc_)))

/* Typed getters on an object. Absent or null: *out keeps its value and 0 is returned, unless `required`.
 * A wrong type or range: -1 with VALIDATION_FAILED and err->field = key. Strings are borrowed from the document. */
int cp_json_str(yyjson_val *obj, const char *key, bool required, cp_str *out, cp_err *err);
int cp_json_bool(yyjson_val *obj, const char *key, bool *out, cp_err *err);
/* Whole number (a double with an integral value counts) within [min, max]. */
int cp_json_int(yyjson_val *obj, const char *key, int64_t min, int64_t max, int64_t *out, cp_err *err);
int cp_json_obj(yyjson_val *obj, const char *key, yyjson_val **out, cp_err *err);
int cp_json_arr(yyjson_val *obj, const char *key, yyjson_val **out, cp_err *err);
/* One of a NULL-terminated list of words; *out is the index. */
int cp_json_enum(yyjson_val *obj, const char *key, const char *const words[], int *out, cp_err *err);
/* Refuses keys that are not in the NULL-terminated list (our own routes). */
int cp_json_only(yyjson_val *obj, const char *const keys[], cp_err *err);

/* Base64 (RFC 4648 section 4). Appends. decode is strict: length a multiple of 4, padding, no white space, unused bits
 * zero; -1 when malformed, and then out is as it was. */
void cp_base64_encode(cp_buf *out, const void *p, size_t n);
int cp_base64_decode(cp_buf *out, cp_str text);
