#include "handlers/log_match.h"

#include <stdlib.h>
#include <string.h>

int cp_log_match_init(cp_log_match *m, cp_str pattern, bool regex, cp_err *err) {
    *m = (cp_log_match){0};
    if (!pattern.n) return cp_fail_field(err, "pattern", "pattern is required");
    if (pattern.n > CP_MATCH_PATTERN_MAX)
        return cp_fail_field(err, "pattern", "pattern is longer than %d bytes", CP_MATCH_PATTERN_MAX);
    if (memchr(pattern.p, '\n', pattern.n)) return cp_fail_field(err, "pattern", "pattern must be within one line");
    const char *why;
    if (regex && !(m->re = cp_regex_new(pattern, &why)))
        return cp_fail_field(err, "pattern", "pattern is not a valid regular expression: %s", why);
    m->pattern = cp_str_dup(pattern);
    return 0;
}

void cp_log_match_share(cp_log_match *m, const cp_log_match *with) {
    *m = (cp_log_match){.pattern = with->pattern, .re = with->re, .shared = true};
}

void cp_log_match_fini(cp_log_match *m) {
    if (!m->shared) cp_regex_free(m->re);
    if (!m->shared) free(m->pattern);
    cp_buf_free(&m->line);
    *m = (cp_log_match){0};
}

static bool hit_at(const cp_log_match *m, size_t from, size_t n, cp_log_hit *hit) {
    hit->offset = m->line_at + from;
    hit->line = cp_buf_str(&m->line);
    hit->match = (cp_str){m->line.p ? m->line.p + from : NULL, n}; /* an empty line may have no memory */
    return true;
}

static bool search_plain(cp_log_match *m, cp_log_hit *hit) {
    size_t n = strlen(m->pattern);
    size_t from = m->searched >= n ? m->searched - n + 1 : 0;
    const char *p = m->line.n > from ? memmem(m->line.p + from, m->line.n - from, m->pattern, n) : NULL;
    m->searched = m->line.n;
    return p && hit_at(m, (size_t)(p - m->line.p), n, hit);
}

static bool search_regex(cp_log_match *m, bool complete, cp_log_hit *hit) {
    size_t from, to;
    if (!cp_regex_search(m->re, cp_buf_str(&m->line), !complete, &from, &to)) return false;
    if (!complete && to == m->line.n) return false;
    return hit_at(m, from, to - from, hit);
}

static bool search(cp_log_match *m, bool complete, cp_log_hit *hit) {
    return m->re ? search_regex(m, complete, hit) : search_plain(m, hit);
}

static void begin_line(cp_log_match *m, uint64_t at) {
    cp_buf_clear(&m->line);
    m->line_at = at;
    m->searched = 0;
}

/* A line without end must not take memory without end: its older half is forgotten. */
static void bound_line(cp_log_match *m) {
    size_t max = m->re ? CP_MATCH_REGEX_LINE_MAX : CP_MATCH_LINE_MAX;
    if (m->line.n <= max) return;
    size_t forget = m->line.n - max / 2;
    cp_buf_consume(&m->line, forget);
    m->line_at += forget;
    m->searched = m->searched > forget ? m->searched - forget : 0;
}

bool cp_log_match_feed(cp_log_match *m, uint64_t at, cp_str data, bool last, cp_log_hit *hit) {
    size_t step = m->re ? CP_MATCH_REGEX_LINE_MAX / 2 : CP_MATCH_LINE_MAX / 2;
    if (at != m->line_at + m->line.n) begin_line(m, at);
    while (data.n) {
        size_t n = data.n < step ? data.n : step;
        const char *newline = memchr(data.p, '\n', n);
        if (newline) n = (size_t)(newline - data.p);
        cp_buf_add(&m->line, data.p, n);
        size_t taken = newline ? n + 1 : n;
        data.p += taken;
        data.n -= taken;
        if (search(m, newline || (last && !data.n), hit)) return true;
        if (newline) begin_line(m, m->line_at + m->line.n + 1);
        else bound_line(m);
    }
    return last && m->line.n && search(m, true, hit);
}
