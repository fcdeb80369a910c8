#pragma once
/* The chunked coding (RFC 9112 section 7.1), decoded as it comes. Pure. Extensions and trailer fields are read and
 * dropped; those of one chunk, and all of the trailer, are at most 16 KiB. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cp_chunks {
    uint8_t state;
    bool ended;     /* the last chunk and the trailer have been read */
    uint8_t digits; /* of the size so far */
    uint32_t extra; /* bytes of this chunk's extensions, or of the trailer, so far */
    uint32_t line;  /* bytes of the trailer line so far */
    uint64_t left;  /* of the chunk */
} cp_chunks;

/* Consumes p[0..n) up to the end of the body and moves its content to out[0..room), which may be p itself. *used:
 * bytes consumed. Returns the content bytes written, or -1 when it is malformed. Stops early when `room` is full. Start
 * with *c zeroed. */
ptrdiff_t cp_chunks_read(cp_chunks *c, const char *p, size_t n, char *out, size_t room, size_t *used);
