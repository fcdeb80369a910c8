/* Of a message that is not parsed (the memory budget has no room for it, or it goes beyond a limit of JSON): which
 * request it was about. Whoever waits for that id must hear of the refusal. Reads the text once, and takes no memory
 * that grows with it. */
#include "transport/mux.h"

typedef struct scan {
    const char *p, *end;
} scan;

static void skip_space(scan *s) {
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\r' || *s->p == '\t')) s->p++;
}

static bool skip_char(scan *s, char c) {
    skip_space(s);
    if (s->p == s->end || *s->p != c) return false;
    s->p++;
    return true;
}

/* From one quotation mark behind the other. */
static bool skip_string(scan *s) {
    if (!skip_char(s, '"')) return false;
    for (; s->p < s->end; s->p++) {
        if (*s->p == '"') return s->p++, true;
        if (*s->p == '\\' && ++s->p == s->end) return false;
    }
    return false;
}

/* Brackets are counted, not matched: nobody takes the text for valid. */
static bool skip_value(scan *s) {
    size_t depth = 0;
    skip_space(s);
    while (s->p < s->end) {
        char c = *s->p;
        if (c == '"') {
            if (!skip_string(s)) return false;
            if (!depth) return true;
            continue;
        }
        bool closes = c == '}' || c == ']';
        if (!depth && (closes || c == ',')) return true;
        s->p++;
        if (c == '{' || c == '[') depth++;
        else if (closes && --depth == 0) return true;
    }
    return false;
}

static cp_str between(const char *from, const scan *s) { return (cp_str){from, (size_t)(s->p - from)}; }

void mux_envelope(cp_str text, cp_buf *out) {
    scan s = {text.p, text.p + text.n};
    cp_buf_addc(out, '{');
    bool more = skip_char(&s, '{');
    while (more) {
        skip_space(&s);
        const char *from = s.p;
        if (!skip_string(&s)) break;
        cp_str key = between(from, &s);
        if (!skip_char(&s, ':') || !skip_value(&s)) break;
        more = skip_char(&s, ',');
        if (!cp_str_eq(key, CP_STR("\"id\"")) && !cp_str_eq(key, CP_STR("\"type\""))) continue;
        cp_str member = between(from, &s);
        if (more) member.n--; /* the comma */
        if (out->n + member.n > MUX_ENVELOPE_MAX) break;
        if (out->n > 1) cp_buf_addc(out, ',');
        cp_buf_add(out, member.p, member.n);
    }
    cp_buf_addc(out, '}');
}
