/* Query strings: application/x-www-form-urlencoded, first value wins. Names are compared as they stand: all of ours are
 * plain ASCII words. */
#include <string.h>

#include "handlers/request.h"

/* Takes the next "name=value" off the front of *rest; false at the end. A name without '=' has an empty value. */
static bool next_pair(cp_str *rest, cp_str *name, cp_str *value) {
    while (rest->n && *rest->p == '&') rest->p++, rest->n--;
    if (!rest->n) return false;
    const char *amp = memchr(rest->p, '&', rest->n);
    cp_str pair = {rest->p, amp ? (size_t)(amp - rest->p) : rest->n};
    rest->p += pair.n;
    rest->n -= pair.n;
    const char *eq = memchr(pair.p, '=', pair.n);
    *name = (cp_str){pair.p, eq ? (size_t)(eq - pair.p) : pair.n};
    *value = eq ? (cp_str){eq + 1, pair.n - name->n - 1} : (cp_str){pair.p + pair.n, 0};
    return true;
}

bool cp_request_query(const cp_request *r, const char *name, cp_str *raw) {
    cp_str rest = r->query, key, value;
    while (next_pair(&rest, &key, &value)) {
        if (!cp_str_is(key, name)) continue;
        *raw = value;
        return true;
    }
    return false;
}

static int hex(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

int cp_query_decode(cp_str raw, cp_buf *out) {
    size_t before = out->n;
    for (size_t i = 0; i < raw.n; i++) {
        char c = raw.p[i];
        if (c == '+') {
            c = ' ';
        } else if (c == '%') {
            int hi = raw.n - i > 2 ? hex(raw.p[i + 1]) : -1, lo = hi < 0 ? -1 : hex(raw.p[i + 2]);
            if (lo < 0) goto malformed;
            c = (char)(hi << 4 | lo);
            i += 2;
        }
        if (!c) goto malformed;
        cp_buf_addc(out, c);
    }
    return 0;
malformed:
    out->n = before;
    return -1;
}

int cp_request_param(const cp_request *r, const char *name, cp_buf *out, cp_err *err) {
    cp_str raw;
    cp_buf_clear(out);
    if (!cp_request_query(r, name, &raw)) return 0;
    if (cp_query_decode(raw, out) < 0) return cp_fail_field(err, name, "%s is not correctly percent-encoded", name);
    return 1;
}

int cp_request_param_u64(const cp_request *r, const char *name, uint64_t max, uint64_t *out, cp_err *err) {
    cp_autobuf cp_buf text = {0};
    int got = cp_request_param(r, name, &text, err);
    if (got <= 0) return got;
    if (!cp_str_u64(cp_buf_str(&text), max, out))
        return cp_fail_field(err, name, "%s must be a whole number from 0 to %llu", name, (unsigned long long)max);
    return 1;
}

int cp_request_only(const cp_request *r, const char *const names[], cp_err *err) {
    cp_str rest = r->query, key, value;
    while (next_pair(&rest, &key, &value)) {
        size_t i = 0;
        while (names[i] && !cp_str_is(key, names[i])) i++;
        if (names[i]) continue;
        cp_fail_field(err, "", "unknown query parameter");
        size_t n = key.n < sizeof err->field - 1 ? key.n : sizeof err->field - 1;
        memcpy(err->field, key.p, n);
        err->field[n] = 0;
        return -1;
    }
    return 0;
}
