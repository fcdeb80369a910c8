#include "handlers/log_match.h"

#include <stdlib.h>
#include <string.h>

/* glibc's engine takes exponential time for back references; and it makes a tree of the pattern in which + and {…} are
 * copies of what they repeat: each of "a++++++…" doubles it. It runs on the loop here. */
enum { NODES_MAX = 2048, NESTING_MAX = 64 };

/* How large that tree becomes, at most. */
typedef struct tree_size {
    uint64_t last[NESTING_MAX], whole[NESTING_MAX]; /* the last atom, and all before it, of each open group */
    size_t depth;
} tree_size;

static void atom(tree_size *t, uint64_t n) {
    t->whole[t->depth] += t->last[t->depth];
    t->last[t->depth] = n;
}

static void repeat(tree_size *t, uint64_t times) {
    uint64_t n = t->last[t->depth] * times + 1;
    t->last[t->depth] = n < NODES_MAX ? n : NODES_MAX + 1;
}

/* The bytes of a bracket expression that begins at i (POSIX XBD 9.3.5); the rest of the pattern when it has no end. */
static size_t bracket(const char *p, size_t i) {
    size_t k = i + 1;
    if (p[k] == '^') k++;
    if (p[k] == ']') k++;
    while (p[k] && p[k] != ']') {
        char kind = p[k] == '[' ? p[k + 1] : 0;
        const char *end = kind == ':' || kind == '.' || kind == '=' ? strstr(p + k + 2, (char[]){kind, ']', 0}) : NULL;
        k = end ? (size_t)(end + 2 - p) : k + 1;
    }
    return k - i + (p[k] != 0);
}

/* The most that a bound lets something be repeated; "{3,}" is "{3}" and a star. *n: its bytes. */
static uint64_t bound(const char *p, size_t *n) {
    char *end;
    uint64_t most = strtoul(p + 1, &end, 10);
    if (*end == ',') {
        uint64_t second = strtoul(end + 1, &end, 10);
        most = second > most ? second : most + 1;
    }
    *n = (size_t)(end - p) + (*end == '}');
    return most ? most : 1;
}

static bool open_group(tree_size *t) {
    if (t->depth + 1 == NESTING_MAX) return false;
    t->depth++;
    t->last[t->depth] = t->whole[t->depth] = 0;
    return true;
}

static void close_group(tree_size *t) {
    if (!t->depth) return;
    uint64_t n = t->last[t->depth] + t->whole[t->depth] + 1;
    t->depth--;
    atom(t, n);
}

static int check_size(const char *p, cp_err *err) {
    tree_size t = {.depth = 0};
    for (size_t i = 0, n; p[i]; i += n) {
        n = 1;
        switch (p[i]) {
        case '[': n = bracket(p, i), atom(&t, 1); break;
        case '\\': n = 1 + (p[i + 1] != 0), atom(&t, 1); break;
        case '(':
            if (!open_group(&t))
                return cp_fail_field(err, "pattern", "pattern has more than %d groups in each other", NESTING_MAX);
            break;
        case ')': close_group(&t); break;
        case '+': repeat(&t, 2); break;
        case '{': repeat(&t, bound(p + i, &n)); break;
        case '*':
        case '?': repeat(&t, 1); break;
        default: atom(&t, 1);
        }
        if (t.last[t.depth] + t.whole[t.depth] > NODES_MAX)
            return cp_fail_field(err, "pattern", "pattern is too large once its repetitions are written out");
    }
    return 0;
}

static int check_regex(cp_str p, cp_err *err) {
    unsigned bounds = 0;
    for (size_t i = 0; i < p.n; i++) {
        if (p.p[i] == '\\' && i + 1 < p.n) {
            i++;
            if (p.p[i] >= '1' && p.p[i] <= '9')
                return cp_fail_field(err, "pattern", "pattern must not use back references");
        } else if (p.p[i] == '{' && ++bounds > 1) {
            return cp_fail_field(err, "pattern", "pattern may use one {…} bound only");
        } else if (p.p[i] == '{' && strtoul(p.p + i + 1, NULL, 10) > 100) {
            return cp_fail_field(err, "pattern", "pattern repeats more than 100 times");
        }
    }
    return check_size(p.p, err);
}

int cp_log_match_init(cp_log_match *m, cp_str pattern, bool regex, cp_err *err) {
    *m = (cp_log_match){0};
    if (!pattern.n) return cp_fail_field(err, "pattern", "pattern is required");
    if (pattern.n > CP_MATCH_PATTERN_MAX)
        return cp_fail_field(err, "pattern", "pattern is longer than %d bytes", CP_MATCH_PATTERN_MAX);
    if (memchr(pattern.p, '\n', pattern.n)) return cp_fail_field(err, "pattern", "pattern must be within one line");
    cp_autofree char *text = cp_str_dup(pattern);
    if (regex) {
        if (check_regex((cp_str){text, pattern.n}, err) < 0) return -1;
        int rc = regcomp(&m->re, text, REG_EXTENDED);
        char why[128];
        if (rc) regerror(rc, &m->re, why, sizeof why);
        if (rc) return cp_fail_field(err, "pattern", "pattern is not a valid regular expression: %s", why);
    }
    m->pattern = cp_take(text);
    m->regex = regex;
    return 0;
}

void cp_log_match_fini(cp_log_match *m) {
    if (m->regex) regfree(&m->re);
    free(m->pattern);
    cp_buf_free(&m->line);
    *m = (cp_log_match){0};
}

static bool hit_at(const cp_log_match *m, size_t from, size_t n, cp_log_hit *hit) {
    hit->offset = m->line_at + from;
    hit->line = cp_buf_str(&m->line);
    hit->match = (cp_str){m->line.p + from, n};
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
    regmatch_t r = {.rm_so = 0, .rm_eo = (regoff_t)m->line.n};
    if (regexec(&m->re, cp_buf_z(&m->line), 1, &r, REG_STARTEND | (complete ? 0 : REG_NOTEOL)) != 0) return false;
    if (!complete && (size_t)r.rm_eo == m->line.n) return false;
    return hit_at(m, (size_t)r.rm_so, (size_t)(r.rm_eo - r.rm_so), hit);
}

static bool search(cp_log_match *m, bool complete, cp_log_hit *hit) {
    return m->regex ? search_regex(m, complete, hit) : search_plain(m, hit);
}

static void begin_line(cp_log_match *m, uint64_t at) {
    cp_buf_clear(&m->line);
    m->line_at = at;
    m->searched = 0;
}

/* A line without end must not take memory without end: its older half is forgotten. */
static void bound_line(cp_log_match *m) {
    size_t max = m->regex ? CP_MATCH_REGEX_LINE_MAX : CP_MATCH_LINE_MAX;
    if (m->line.n <= max) return;
    size_t forget = m->line.n - max / 2;
    cp_buf_consume(&m->line, forget);
    m->line_at += forget;
    m->searched = m->searched > forget ? m->searched - forget : 0;
}

bool cp_log_match_feed(cp_log_match *m, uint64_t at, cp_str data, bool last, cp_log_hit *hit) {
    size_t step = m->regex ? CP_MATCH_REGEX_LINE_MAX / 2 : CP_MATCH_LINE_MAX / 2;
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
