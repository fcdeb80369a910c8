#include "base/json.h"

#include "base/clock.h"
#include "base/escape.h"

/* A comma if one is due, and room for `more` bytes; returns where to write. */
static inline char *begin(cp_jw *w, size_t more) {
    cp_buf_reserve(w->out, more + 1);
    char *o = w->out->p + w->out->n;
    if (w->comma) *o++ = ',';
    return o;
}

static inline void end(cp_jw *w, char *o) {
    w->out->n = (size_t)(o - w->out->p);
    w->comma = true;
}

static inline char *put_quote(const cp_jw *w, char *o) {
    if (w->level == 2) *o++ = '\\';
    *o++ = '"';
    return o;
}

static inline char *put(char *o, const char *p, size_t n) {
    memcpy(o, p, n);
    return o + n;
}

static void open_with(cp_jw *w, char c) {
    char *o = begin(w, 1);
    *o++ = c;
    end(w, o);
    w->comma = false;
}

static void close_with(cp_jw *w, char c) {
    cp_buf_addc(w->out, c);
    w->comma = true;
}

void cp_jw_obj(cp_jw *w) { open_with(w, '{'); }
void cp_jw_end_obj(cp_jw *w) { close_with(w, '}'); }
void cp_jw_arr(cp_jw *w) { open_with(w, '['); }
void cp_jw_end_arr(cp_jw *w) { close_with(w, ']'); }

void cp_jw_key(cp_jw *w, const char *key) {
    size_t n = strlen(key);
    char *o = begin(w, n + 5);
    o = put_quote(w, o);
    o = put(o, key, n);
    o = put_quote(w, o);
    *o++ = ':';
    end(w, o);
    w->comma = false;
}

void cp_jw_str(cp_jw *w, cp_str s) {
    end(w, put_quote(w, begin(w, 2)));
    if (!cp_escape(w->out, s, w->level)) w->lossy = true;
    cp_buf_reserve(w->out, 2);
    end(w, put_quote(w, w->out->p + w->out->n));
}

void cp_jw_z(cp_jw *w, const char *z) {
    if (!z) {
        cp_jw_null(w);
        return;
    }
    cp_jw_str(w, cp_str_of(z));
}

static void literal(cp_jw *w, const char *p, size_t n) { end(w, put(begin(w, n), p, n)); }

static void number(cp_jw *w, bool negative, uint64_t v) {
    char tmp[24];
    size_t i = sizeof tmp;
    do tmp[--i] = (char)('0' + v % 10);
    while (v /= 10);
    if (negative) tmp[--i] = '-';
    literal(w, tmp + i, sizeof tmp - i);
}

void cp_jw_u64(cp_jw *w, uint64_t v) { number(w, false, v); }
void cp_jw_i64(cp_jw *w, int64_t v) { number(w, v < 0, v < 0 ? 0 - (uint64_t)v : (uint64_t)v); }

void cp_jw_bool(cp_jw *w, bool v) { v ? literal(w, "true", 4) : literal(w, "false", 5); }
void cp_jw_null(cp_jw *w) { literal(w, "null", 4); }

/* Whole numbers without a fraction, as JavaScript does; yyjson writes the shortest text that reads back the same,
 * whatever the locale; NaN and infinities, for which JSON has no text, are null. */
void cp_jw_f64(cp_jw *w, double v) {
    if (v > -0x1p53 && v < 0x1p53 && v == (double)(int64_t)v) {
        cp_jw_i64(w, (int64_t)v);
        return;
    }
    yyjson_val val = {.tag = YYJSON_TYPE_NUM | YYJSON_SUBTYPE_REAL, .uni.f64 = v};
    cp_jw_val(w, &val);
}

void cp_jw_raw(cp_jw *w, cp_str json) {
    if (w->level == 1) {
        literal(w, json.p, json.n);
        return;
    }
    end(w, begin(w, 0));
    if (!cp_escape(w->out, json, 1)) w->lossy = true;
}

void cp_jw_val(cp_jw *w, yyjson_val *v) {
    size_t n;
    cp_autofree char *text = yyjson_val_write(v, YYJSON_WRITE_NOFLAG, &n);
    if (text) cp_jw_raw(w, (cp_str){text, n});
    else cp_jw_null(w);
}

void cp_jw_base64(cp_jw *w, const void *p, size_t n) {
    end(w, put_quote(w, begin(w, 2)));
    cp_base64_encode(w->out, p, n);
    cp_buf_reserve(w->out, 2);
    end(w, put_quote(w, w->out->p + w->out->n));
}

void cp_jw_iso(cp_jw *w, int64_t wall_ms) {
    char *o = put_quote(w, begin(w, CP_ISO_LEN + 5));
    cp_iso(wall_ms, o);
    end(w, put_quote(w, o + CP_ISO_LEN));
}

void cp_jw_kstr(cp_jw *w, const char *key, cp_str s) {
    cp_jw_key(w, key);
    cp_jw_str(w, s);
}

void cp_jw_kz(cp_jw *w, const char *key, const char *z) {
    cp_jw_key(w, key);
    cp_jw_z(w, z);
}

void cp_jw_ku64(cp_jw *w, const char *key, uint64_t v) {
    cp_jw_key(w, key);
    cp_jw_u64(w, v);
}

void cp_jw_ki64(cp_jw *w, const char *key, int64_t v) {
    cp_jw_key(w, key);
    cp_jw_i64(w, v);
}

void cp_jw_kbool(cp_jw *w, const char *key, bool v) {
    cp_jw_key(w, key);
    cp_jw_bool(w, v);
}

void cp_jw_know(cp_jw *w) {
    cp_jw_key(w, "timestamp");
    cp_jw_iso(w, cp_wall_ms());
}
