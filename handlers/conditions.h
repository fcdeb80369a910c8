#pragma once
/* What a request asks of the state a file is in, and of its bytes: If-*, Range. Pure, any thread. */
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

/* Is etag, in its quotes, in the list of an If-Match or If-None-Match (RFC 9110 section 13.1)? "*" is. `weak` compares
 * without the W/ mark; without, weak tags match nothing. */
bool cp_etag_listed(cp_str list, const char *etag, bool weak);

typedef enum { CP_RANGE_NONE, CP_RANGE_ONE, CP_RANGE_BAD } cp_range_kind;
/* A Range header over size bytes (RFC 9110 section 14.1.2). NONE: malformed, of another unit or several ranges; the
 * whole is sent, as the standard allows. ONE: *len > 0 bytes from *from. BAD: there are no such bytes. */
cp_range_kind cp_range_parse(cp_str header, uint64_t size, uint64_t *from, uint64_t *len);
