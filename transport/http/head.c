#include "transport/http/head.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/uio.h>

static int bad(cp_err *err, const char *why) {
    return cp_fail(err, CP_E_INVALID_REQUEST, "Malformed request: %s", why);
}

static int too_large(cp_err *err) {
    return cp_fail(err, CP_E_HEADERS_TOO_LARGE, "The request head is larger than %d bytes", (int)CP_HEAD_MAX);
}

/* ---- where it ends ---- */

/* Looks at the lines that have become whole. 1: the empty line has come. Every line must end in CR LF: a bare LF, which
 * some take for the end of a line and some do not, is refused as soon as it is seen. */
static int find_end(cp_head *h, const char *p, size_t n, cp_err *err) {
    for (;;) {
        const char *lf = memchr(p + h->scanned, '\n', n - h->scanned);
        if (!lf) return 0;
        size_t begin = h->scanned, at = (size_t)(lf - p);
        if (at == begin || p[at - 1] != '\r') return bad(err, "a line does not end in CR LF");
        h->scanned = at + 1;
        if (at - 1 != begin) continue;                /* not empty */
        if (begin == h->begin) h->begin = h->scanned; /* before the request line: RFC 9112 section 2.2 */
        else h->end = h->scanned;
        if (h->end) return 1;
    }
}

/* ---- the request line ---- */

/* RFC 9110 section 5.6.2. */
static bool is_tchar(unsigned char c) {
    static const char extra[] = "!#$%&'*+-.^_`|~";
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c && strchr(extra, c));
}

static bool is_token(cp_str s) {
    for (size_t i = 0; i < s.n; i++)
        if (!is_tchar((unsigned char)s.p[i])) return false;
    return s.n > 0;
}

/* Takes what stands before the next blank off the front of *line. */
static bool take_word(cp_str *line, cp_str *word) {
    const char *blank = memchr(line->p, ' ', line->n);
    if (!blank) return false;
    *word = (cp_str){line->p, (size_t)(blank - line->p)};
    line->n -= word->n + 1;
    line->p = blank + 1;
    return word->n > 0;
}

static bool has_nul(cp_str path) { return memmem(path.p, path.n, "%00", 3) != NULL; }

/* An absolute target is the path behind its authority; which host that names is checked nowhere, as with Host when a
 * token or a wider address is configured. */
static int take_target(cp_head *h, cp_str uri, cp_err *err) {
    for (size_t i = 0; i < uri.n; i++)
        if ((unsigned char)uri.p[i] <= ' ' || (unsigned char)uri.p[i] >= 0x7f)
            return bad(err, "the target holds an invalid character");
    h->origin_form = uri.p[0] == '/';
    const char *q = memchr(uri.p, '?', uri.n);
    h->query = q ? (cp_str){q + 1, (size_t)(uri.p + uri.n - q - 1)} : (cp_str){NULL, 0};
    if (q) uri.n = (size_t)(q - uri.p);
    if (cp_str_is(uri, "*")) {
        if (q || !cp_str_is(h->method, "OPTIONS")) return bad(err, "* is a target for OPTIONS only");
    } else if (!h->origin_form) {
        const char *authority = memmem(uri.p, uri.n, "://", 3), *end = uri.p + uri.n;
        const char *path = authority ? memchr(authority + 3, '/', (size_t)(end - authority - 3)) : NULL;
        if (!path) return bad(err, "the target is neither a path nor a URL");
        uri = (cp_str){path, (size_t)(end - path)};
    }
    h->target = uri;
    return has_nul(uri) ? bad(err, "the path holds a NUL") : 0;
}

static int request_line(cp_head *h, cp_str line, cp_err *err) {
    cp_str target;
    if (!take_word(&line, &h->method) || !take_word(&line, &target) || !is_token(h->method))
        return bad(err, "the request line is not METHOD TARGET VERSION");
    h->http11 = cp_str_is(line, "HTTP/1.1");
    if (!h->http11 && !cp_str_is(line, "HTTP/1.0")) return bad(err, "the version is neither HTTP/1.1 nor HTTP/1.0");
    h->fed_method = cp_method_of(h->method) == CP_METHOD_UNKNOWN ? CP_STR("GET") : h->method;
    return take_target(h, target, err);
}

/* ---- header lines ---- */

static bool is_own(cp_str name) {
    static const cp_str names[] = {CP_STR("Connection"), CP_STR("Content-Length"), CP_STR("Transfer-Encoding"),
                                   CP_STR("Upgrade")};
    for (size_t i = 0; i < CP_COUNT(names); i++)
        if (cp_str_ieq(name, names[i])) return true;
    return false;
}

static bool is_value(cp_str s) {
    for (size_t i = 0; i < s.n; i++)
        if (((unsigned char)s.p[i] < ' ' && s.p[i] != '\t') || s.p[i] == 0x7f) return false;
    return true;
}

static int header_line(cp_head *h, cp_str line, cp_err *err) {
    const char *colon = memchr(line.p, ':', line.n);
    if (line.p[0] == ' ' || line.p[0] == '\t') return bad(err, "a folded header line");
    if (!colon) return bad(err, "a header line without a colon");
    cp_str name = {line.p, (size_t)(colon - line.p)}, value = {colon + 1, line.n - name.n - 1};
    if (!is_token(name)) return bad(err, "a header name holds an invalid character");
    if (!is_value(value)) return bad(err, "a header value holds a control character");
    if (!is_own(name)) {
        h->nlines++;
        return 0;
    }
    if (h->nown == CP_HEAD_OWN) return bad(err, "a header that frames the message is repeated too often");
    h->own[h->nown] = (cp_header){name, cp_str_trim(value)};
    h->cut[h->nown++] = (cp_str){line.p, line.n + 2};
    return 0;
}

/* Every line of it ends in CR LF: find_end has seen to that. */
static int read_lines(cp_head *h, const char *p, cp_err *err) {
    size_t count = 0;
    for (size_t at = h->begin; at + 2 < h->end;) {
        const char *lf = memchr(p + at, '\n', h->end - at);
        cp_str line = {p + at, (size_t)(lf - 1 - (p + at))};
        if (count > CP_HEAD_LINES)
            return cp_fail(err, CP_E_HEADERS_TOO_LARGE, "more than %d header lines", (int)CP_HEAD_LINES);
        if ((count++ == 0 ? request_line : header_line)(h, line, err) < 0) return -1;
        at += line.n + 2;
    }
    return 1;
}

/* A bare CR within a line would be a control character of a name or a value, and is refused with these. */
int cp_head_scan(cp_head *h, const char *p, size_t n, cp_err *err) {
    int whole = find_end(h, p, n, err);
    if (whole < 0) return -1;
    if ((h->end ? h->end : n) - h->begin > CP_HEAD_MAX) return too_large(err);
    if (h->begin > CP_HEAD_MAX) return bad(err, "nothing but empty lines");
    return whole ? read_lines(h, p, err) : 0;
}

/* ---- what CivetWeb gets ---- */

static struct iovec piece(const char *p, size_t n) {
    return (struct iovec){.iov_base = (void *)(uintptr_t)p, .iov_len = n};
}

static struct iovec piece_of(cp_str s) { return piece(s.p, s.n); }

int cp_head_pieces(const cp_head *h, const char *p, struct iovec out[CP_HEAD_PIECES]) {
    static const cp_str version = CP_STR(" HTTP/1.1\r\n");
    int k = 0;
    size_t at = h->begin;
    if (!h->origin_form || !h->http11 || h->fed_method.p != h->method.p) {
        const char *end = h->query.p ? h->query.p + h->query.n : h->target.p + h->target.n;
        const char *line_end = memchr(end, '\n', h->end - (size_t)(end - p));
        out[k++] = piece_of(h->fed_method);
        out[k++] = piece(" ", 1);
        out[k++] = cp_str_is(h->target, "*") ? piece("/", 1) : piece(h->target.p, (size_t)(end - h->target.p));
        out[k++] = piece_of(version);
        at = (size_t)(line_end + 1 - p);
    }
    for (size_t i = 0; i < h->nown; i++) {
        size_t cut = (size_t)(h->cut[i].p - p);
        if (cut > at) out[k++] = piece(p + at, cut - at);
        at = cut + h->cut[i].n;
    }
    out[k++] = piece(p + at, h->end - at);
    return k;
}
