#include "transport/http/parse.h"

#include <stdio.h>
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

static int bad(cp_err *err, const char *why) {
    return cp_fail(err, CP_E_INVALID_REQUEST, "Malformed request: %s", why);
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

/* RFC 9112 section 9.3. */
static void check_connection(cp_http_head *head) {
    bool wish = head->http11 || cp_http_has_word(head, "Connection", "keep-alive");
    head->keep_alive = wish && !cp_http_has_word(head, "Connection", "close");
}

/* CivetWeb was given this head and no other: if it tells of another, nothing that it says is believed. */
static bool same(const cp_head *h, const struct mg_request_info *ri) {
    cp_str uri = cp_str_of(ri->local_uri_raw), query = cp_str_of(ri->query_string);
    bool star = cp_str_is(h->target, "*");
    return cp_str_eq(cp_str_of(ri->request_method), h->fed_method) && cp_str_eq(uri, star ? CP_STR("/") : h->target) &&
           cp_str_eq(query, h->query) && ri->num_headers >= 0 && (size_t)ri->num_headers == h->nlines;
}

static void copy_headers(const cp_head *h, const struct mg_request_info *ri, cp_http_head *out) {
    for (int i = 0; i < ri->num_headers; i++)
        out->headers[out->nheaders++] =
            (cp_header){cp_str_of(ri->http_headers[i].name), cp_str_trim(cp_str_of(ri->http_headers[i].value))};
    for (size_t i = 0; i < h->nown; i++) out->headers[out->nheaders++] = h->own[i];
    out->origin = cp_http_header(out, "Origin", 0);
}

int cp_http_parse(const cp_head *h, const struct mg_request_info *ri, cp_http_head *out, cp_err *err) {
    memset(out, 0, offsetof(cp_http_head, headers));
    out->method_name = h->method;
    out->method = cp_method_of(h->method);
    out->target = h->target;
    out->query = h->query;
    out->http11 = h->http11;
    if (!same(h, ri)) return cp_fail(err, CP_E_INTERNAL_ERROR, "The request head was not understood");
    copy_headers(h, ri, out);
    check_connection(out);
    if (check_host(out, err) < 0 || check_framing(out, err) < 0) return -1;
    return check_expect(out, err);
}
