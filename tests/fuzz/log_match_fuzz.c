/* A pattern in a log: the same line is found whole and in pieces, and for plain text it is the first place where the
 * pattern stands within a line. Input: a byte of how, one that chooses the cuts, pattern, newline, the log. */
#include "handlers/log_match.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LOG_MAX = 1500 /* no line is forgotten */, BEGIN = 1000 /* where the log's offsets begin */ };

static void require(bool ok) {
    if (!ok) abort();
}

typedef struct found {
    bool hit;
    uint64_t offset, line_at;
} found;

static found feed(cp_str pattern, bool regex, cp_str log, size_t piece) {
    cp_log_match m;
    cp_log_hit hit;
    found f = {0};
    if (cp_log_match_init(&m, pattern, regex, NULL) < 0) return f;
    for (size_t at = 0; at < log.n && !f.hit; at += piece) {
        size_t n = log.n - at < piece ? log.n - at : piece;
        f.hit = cp_log_match_feed(&m, BEGIN + at, (cp_str){log.p + at, n}, at + n == log.n, &hit);
    }
    if (f.hit) {
        f.offset = hit.offset - BEGIN;
        f.line_at = m.line_at - BEGIN;
        require(f.offset <= log.n && hit.match.n <= log.n - f.offset);
        require(!hit.match.n || memcmp(log.p + f.offset, hit.match.p, hit.match.n) == 0);
        require(!hit.match.n || !memchr(hit.match.p, '\n', hit.match.n));
        require(hit.match.n <= hit.line.n);
        require(!hit.line.n || (hit.match.p >= hit.line.p && hit.match.p <= hit.line.p + hit.line.n - hit.match.n));
    }
    cp_log_match_fini(&m);
    return f;
}

static void check_plain(cp_str pattern, cp_str log, const found *f) {
    size_t at = 0, z = strnlen(pattern.p, pattern.n); /* a pattern ends at a NUL */
    while (at < log.n && (log.n - at < z || memcmp(log.p + at, pattern.p, z) != 0)) at++;
    require(f->hit == (at < log.n));
    require(!f->hit || f->offset == at);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 3) return 0;
    cp_str rest = {(const char *)data + 2, size - 2};
    const char *nl = memchr(rest.p, '\n', rest.n);
    bool regex = data[0] & 1;
    if (!nl) return 0;
    cp_str pattern = {rest.p, (size_t)(nl - rest.p)}, log = {nl + 1, rest.n - pattern.n - 1};
    if (log.n > LOG_MAX || !pattern.n || !pattern.p[0]) return 0;
    cp_err err = {0};
    cp_log_match m;
    if (cp_log_match_init(&m, pattern, regex, &err) < 0) {
        require(err.code == CP_E_VALIDATION_FAILED && strcmp(err.field, "pattern") == 0);
        return 0;
    }
    cp_log_match_fini(&m);
    found whole = feed(pattern, regex, log, log.n + 1), pieces = feed(pattern, regex, log, 1 + data[1] % 40);
    require(whole.hit == pieces.hit);
    require(!whole.hit || whole.line_at == pieces.line_at);
    if (regex) return 0;
    require(!whole.hit || whole.offset == pieces.offset);
    check_plain(pattern, log, &whole);
    return 0;
}
