#pragma once
/* What CivetWeb has parsed, judged again: it lets through request heads that a proxy in front may read differently
 * (request smuggling). Pure. Worker threads. */
#include <civetweb.h>

#include "handlers/request.h"

/* Longest header list: CivetWeb drops what comes after its array is full, a Content-Length as well. */
enum { CP_MAX_HEADERS = MG_MAX_HEADERS - 1 };

typedef struct cp_http_head {
    cp_method method;
    cp_str method_name;
    cp_str target; /* path as sent; "*" */
    cp_str query;
    cp_str host, origin;
    bool http11;
    bool keep_alive; /* the client's wish */
    bool chunked;
    bool expect; /* 100-continue */
    bool has_length;
    uint64_t length;
    size_t nheaders;
    cp_header headers[CP_MAX_HEADERS]; /* last: not cleared for each request */
} cp_http_head;

/* Fills head from CivetWeb's view; everything is borrowed from the connection's buffer. -1 with err (INVALID_REQUEST,
 * HEADERS_TOO_LARGE) when the request must be refused and its connection closed; head is good for a reply even then. */
int cp_http_parse(const struct mg_request_info *ri, cp_http_head *head, cp_err *err);

/* Value of the index-th header of that name; {NULL,0}. */
cp_str cp_http_header(const cp_http_head *head, const char *name, size_t index);
/* True when a comma-separated header (all its lines) holds this word, case-insensitively. */
bool cp_http_has_word(const cp_http_head *head, const char *name, const char *word);
