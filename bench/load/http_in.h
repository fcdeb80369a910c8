#pragma once
/* What a server answers over HTTP/1.1, taken in pieces: Content-Length, chunks, or all that comes until it closes.
 * Pure. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

typedef enum { HTTP_HEAD, HTTP_BODY, HTTP_CHUNK_HEAD, HTTP_CHUNK, HTTP_CHUNK_END, HTTP_TRAILER, HTTP_DONE } http_state;

typedef struct http_in {
    http_state state;
    int status;
    bool close;    /* the connection ends with this response */
    bool unending; /* the body is what comes until the connection ends */
    uint64_t left; /* of the body or the chunk */
    cp_buf line;   /* the head; the line that is being collected */
    /* Bytes of the body as they come; may be NULL. */
    void (*body)(void *ctx, const char *p, size_t n);
    void *ctx;
} http_in;

/* Ready for the next response; keeps body, ctx and memory. */
void http_in_next(http_in *h);
void http_in_fini(http_in *h);
/* Takes up to the end of the response; the number of bytes taken. state says whether that was reached. Dies of what is
 * no HTTP. */
size_t http_in_feed(http_in *h, const char *p, size_t n);
