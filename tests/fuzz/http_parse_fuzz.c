/* A request head as CivetWeb leaves it behind: what is accepted is a request that any other parser reads the same way.
 */
#include <ctype.h>
#include <stdlib.h>

#include "base/buf.h"
#include "transport/http_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- what CivetWeb does: parses in place, NULs over the separators, lenient where http_parse.c must be strict ---- */

/* A word and the blanks behind it; line: the last of its line. */
static char *word(char **at, bool line) {
    char *begin = *at, *p = begin;
    while (isgraph((unsigned char)*p)) p++;
    if (p == begin || (line ? *p != '\r' && *p != '\n' : *p != ' ')) return NULL;
    do *p++ = '\0';
    while (isspace((unsigned char)*p));
    *at = p;
    return begin;
}

static bool header(char **at, struct mg_header *h) {
    char *p = *at;
    while (*p > ' ' && *p < 127 && *p != ':') p++;
    while (*p == ' ') *p++ = '\0';
    if (*p != ':') return false;
    *p = '\0';
    h->name = *at;
    do p++;
    while (*p == ' ' || *p == '\t');
    h->value = p;
    while (*p && *p != '\r' && *p != '\n') p++;
    if (*p == '\r') {
        *p++ = '\0';
        if (*p != '\n') return false;
    }
    if (*p) *p++ = '\0';
    *at = p;
    return true;
}

/* text ends in the CR of the empty line and a NUL over its LF. */
static bool civetweb(char *text, struct mg_request_info *ri) {
    char *at = text;
    ri->request_method = word(&at, false);
    if (!ri->request_method || !(ri->request_uri = word(&at, false))) return false;
    char *version = word(&at, true);
    if (!version || strncmp(version, "HTTP/", 5) != 0) return false;
    ri->http_version = version + 5;
    while (ri->num_headers<MG_MAX_HEADERS && * at> ' ' && *at < 127) {
        if (!header(&at, &ri->http_headers[ri->num_headers])) return false;
        ri->num_headers++;
    }
    char *query = strchr(ri->request_uri, '?');
    if (query && ri->request_uri[0] == '/') {
        *query = '\0';
        ri->query_string = query + 1;
    }
    return true;
}

/* ---- what must hold ---- */

static void require(bool ok) {
    if (!ok) abort();
}

static bool clean(cp_str s) {
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] == '\r' || s.p[i] == '\n' || s.p[i] == '\0') return false;
    return true;
}

static size_t lines_named(const cp_http_head *head, const char *name) {
    size_t n = 0;
    while (cp_http_header(head, name, n).p) n++;
    return n;
}

/* Counted in the bytes as they came, where nothing has been cut out. */
static size_t count_lf(const uint8_t *data, size_t size) {
    size_t n = 0;
    for (size_t i = 0; i < size; i++) n += data[i] == '\n';
    return n;
}

static void check(const cp_http_head *head, const char *text, const uint8_t *data, size_t size) {
    require(head->nheaders <= CP_MAX_HEADERS);
    require(head->target.n && (head->target.p[0] == '/' || (head->target.n == 1 && head->method == CP_OPTIONS)));
    require(clean(head->target) && clean(head->query));
    for (size_t i = 0; i < head->nheaders; i++)
        require(head->headers[i].name.n && clean(head->headers[i].name) && clean(head->headers[i].value));
    require(!(head->chunked && head->has_length));
    require(lines_named(head, "Content-Length") == head->has_length);
    require(lines_named(head, "Transfer-Encoding") == head->chunked);
    require(!head->http11 || head->host.p);
    if (!head->nheaders) return;
    /* No line has been swallowed. What two blanks end the request line cannot be told any more. */
    size_t from = (size_t)(head->headers[0].name.p - text);
    require(count_lf(data + from, size - from) == head->nheaders + 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static cp_http_head head;
    struct mg_request_info ri = {0};
    cp_err err;
    if (size < 4 || size > 16384 || memmem(data, size, "\r\n\r\n", 4) != data + size - 4 || memchr(data, 0, size))
        return 0;
    char *text = cp_alloc(size + 1);
    memcpy(text, data, size);
    text[size - 1] = '\0';
    if (civetweb(text, &ri) && cp_http_parse(&ri, &head, &err) == 0) check(&head, text, data, size);
    free(text);
    return 0;
}
