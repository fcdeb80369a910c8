#pragma once
/* What CivetWeb has parsed of the head that it was fed, together with what head.c has set aside: the request as the
 * rest of the room sees it. Pure. Worker threads. */
#include <civetweb.h>

#include "handlers/request.h"
#include "transport/http/head.h"

enum { CP_MAX_HEADERS = CP_HEAD_LINES };

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
    uint64_t length;
    size_t nheaders;
    cp_header headers[CP_MAX_HEADERS]; /* last: not cleared for each request */
} cp_http_head;

/* Fills *out from CivetWeb's view and from h; everything is borrowed from either's buffer. -1 with err
 * (INVALID_REQUEST, INTERNAL_ERROR) when the request must be refused and its connection closed; *out is good for a
 * reply even then. */
int cp_http_parse(const cp_head *h, const struct mg_request_info *ri, cp_http_head *out, cp_err *err);

/* Value of the index-th header of that name; {NULL,0}. */
cp_str cp_http_header(const cp_http_head *head, const char *name, size_t index);
/* True when a comma-separated header (all its lines) holds this word, case-insensitively. */
bool cp_http_has_word(const cp_http_head *head, const char *name, const char *word);
