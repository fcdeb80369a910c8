/* Design notes. CivetWeb parses in place: it writes a NUL over the separator behind each part and keeps pointers. What
 * it has swallowed on the way can still be read off the bytes between the parts, and that is how we notice it: "Name:
 * value\r\n"  name NUL blanks value NUL NUL next-name      (CR and LF overwritten) "Name : value"     name NUL NUL …
 * (blank before the colon) "Name: value\n"    value NUL next-name                          (bare LF) "Name: v\r\n more"
 * the list ends early and a blank follows      (obs-fold; CivetWeb drops all later headers) After the last header of a
 * good head stand the CR of the empty line and a NUL that CivetWeb put over its LF. Which two blanks end the request
 * line cannot be told: both are NUL. */
#include "transport/http_parse.h"

#include <string.h>

cp_str cp_http_header(const cp_http_head *head, const char *name, size_t index) {
    cp_str want = cp_str_of(name);
    for (size_t i = 0; i < head->nheaders; i++)
        if (cp_str_ieq(head->headers[i].name, want) && index-- == 0) return head->headers[i].value;
    return (cp_str){0};
}

static bool list_has(cp_str list, cp_str word) {
    while (list.n) {
        const char *comma = memchr(list.p, ',', list.n);
        size_t n = comma ? (size_t)(comma - list.p) : list.n;
        if (cp_str_ieq(cp_str_trim((cp_str){list.p, n}), word)) return true;
        list.p += n + !!comma;
        list.n -= n + !!comma;
    }
    return false;
}

bool cp_http_has_word(const cp_http_head *head, const char *name, const char *word) {
    cp_str value;
    for (size_t i = 0; (value = cp_http_header(head, name, i)).p; i++)
        if (list_has(value, cp_str_of(word))) return true;
    return false;
}

/* RFC 9110 section 5.6.2. */
static bool is_token(cp_str s) {
    static const char extra[] = "!#$%&'*+-.^_`|~";
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        bool alnum = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!alnum && (!c || !strchr(extra, c))) return false;
    }
    return s.n > 0;
}

static int bad(cp_err *err, const char *why) {
    return cp_fail(err, CP_E_INVALID_REQUEST, "Malformed request: %s", why);
}

/* ---- the bytes between the parts ---- */

static bool colon_follows_name(const struct mg_header *h) {
    const char *p = h->name + strlen(h->name) + 1;
    while (p < h->value && (*p == ' ' || *p == '\t')) p++;
    return p == h->value;
}

static const char *line_end(const char *part) { return part + strlen(part); }

static int check_lines(const struct mg_request_info *ri, cp_err *err) {
    const char *end = line_end(ri->http_version);
    for (int i = 0; i < ri->num_headers; i++) {
        const struct mg_header *h = &ri->http_headers[i];
        if (h->name != end + 2) return bad(err, "a line does not end in CR LF");
        if (!colon_follows_name(h)) return bad(err, "blank before a colon");
        end = line_end(h->value);
    }
    /* Without headers CivetWeb has skipped the empty line too, blanks and all. */
    if (ri->num_headers == 0) return 0;
    if (end[1] != '\0' || end[2] != '\r' || end[3] != '\0')
        return bad(err, "a folded, misspelt or badly ended header line");
    return 0;
}

static void copy_headers(const struct mg_request_info *ri, cp_http_head *head) {
    for (int i = 0; i < ri->num_headers && i < CP_MAX_HEADERS; i++) {
        cp_header *h = &head->headers[head->nheaders++];
        h->name = cp_str_of(ri->http_headers[i].name);
        h->value = cp_str_trim(cp_str_of(ri->http_headers[i].value));
    }
    head->origin = cp_http_header(head, "Origin", 0);
}

static int check_names(const cp_http_head *head, cp_err *err) {
    for (size_t i = 0; i < head->nheaders; i++)
        if (!is_token(head->headers[i].name)) return bad(err, "a header name holds an invalid character");
    return 0;
}

/* ---- what the headers mean ---- */

static int check_host(cp_http_head *head, cp_err *err) {
    head->host = cp_http_header(head, "Host", 0);
    if (head->http11 && !head->host.p) return bad(err, "the Host header is missing");
    if (cp_http_header(head, "Host", 1).p) return bad(err, "more than one Host header");
    return 0;
}

/* CivetWeb's strtoll takes "5abc" and "+5", and of two lengths the first. Equal repetitions are refused too: RFC 9112
 * section 6.3 allows it, and nothing that we know sends them. */
static int check_framing(cp_http_head *head, cp_err *err) {
    cp_str length = cp_http_header(head, "Content-Length", 0);
    cp_str coding = cp_http_header(head, "Transfer-Encoding", 0);
    if (length.p && coding.p) return bad(err, "both Content-Length and Transfer-Encoding");
    if (cp_http_header(head, "Content-Length", 1).p) return bad(err, "more than one Content-Length");
    if (cp_http_header(head, "Transfer-Encoding", 1).p) return bad(err, "more than one Transfer-Encoding");
    if (coding.p && !cp_str_ieq(coding, CP_STR("chunked"))) return bad(err, "Transfer-Encoding other than chunked");
    if (coding.p && !head->http11) return bad(err, "Transfer-Encoding in HTTP/1.0");
    head->chunked = coding.p != NULL;
    head->has_length = length.p != NULL;
    if (length.p && !cp_str_u64(length, INT64_MAX, &head->length)) return bad(err, "Content-Length is not a number");
    return 0;
}

static int check_expect(cp_http_head *head, cp_err *err) {
    cp_str expect = cp_http_header(head, "Expect", 0);
    if (!expect.p) return 0;
    if (!cp_str_ieq(expect, CP_STR("100-continue"))) return bad(err, "Expect other than 100-continue");
    head->expect = head->http11;
    return 0;
}

static bool has_nul(cp_str path) {
    for (size_t i = 0; i + 2 < path.n; i++)
        if (memcmp(path.p + i, "%00", 3) == 0) return true;
    return false;
}

/* An absolute target is the path behind its authority; which host that names is checked nowhere, as with Host when a
 * token or a wider address is configured. */
static int check_target(const struct mg_request_info *ri, cp_http_head *head, cp_err *err) {
    cp_str uri = cp_str_of(ri->request_uri);
    const char *q = memchr(uri.p, '?', uri.n); /* still there when CivetWeb has not dispatched the request */
    if (q) head->query = (cp_str){q + 1, (size_t)(uri.p + uri.n - q - 1)};
    else head->query = cp_str_of(ri->query_string);
    if (q) uri.n = (size_t)(q - uri.p);
    if (uri.p[0] != '/' && !cp_str_is(uri, "*")) {
        const char *authority = memmem(uri.p, uri.n, "://", 3);
        const char *end = uri.p + uri.n;
        const char *path = authority ? memchr(authority + 3, '/', (size_t)(end - authority - 3)) : NULL;
        if (!path) return bad(err, "the target is neither a path nor a URL");
        uri = (cp_str){path, (size_t)(end - path)};
    }
    head->target = uri;
    if (cp_str_is(uri, "*") && head->method != CP_OPTIONS) return bad(err, "* is a target for OPTIONS only");
    return has_nul(uri) ? bad(err, "the path holds a NUL") : 0;
}

/* As CivetWeb will decide: a Connection header that does not name keep-alive ends the connection. */
static void check_connection(cp_http_head *head) {
    cp_str first = cp_http_header(head, "Connection", 0);
    bool wish = first.p ? list_has(first, CP_STR("keep-alive")) : head->http11;
    head->keep_alive = wish && !cp_http_has_word(head, "Connection", "close");
}

int cp_http_parse(const struct mg_request_info *ri, cp_http_head *head, cp_err *err) {
    memset(head, 0, offsetof(cp_http_head, headers));
    head->method_name = cp_str_of(ri->request_method);
    head->method = cp_method_of(head->method_name);
    head->target = CP_STR("/");
    head->http11 = strcmp(ri->http_version, "1.1") == 0;
    copy_headers(ri, head);
    if (ri->num_headers > CP_MAX_HEADERS)
        return cp_fail(err, CP_E_HEADERS_TOO_LARGE, "more than %d header lines", CP_MAX_HEADERS);
    if (check_lines(ri, err) < 0 || check_names(head, err) < 0) return -1;
    check_connection(head);
    if (check_host(head, err) < 0 || check_framing(head, err) < 0 || check_expect(head, err) < 0) return -1;
    return check_target(ri, head, err);
}
