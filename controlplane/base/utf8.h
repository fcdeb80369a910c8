#pragma once
/* UTF-8 (RFC 3629). Pure. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Incremental validator: zero-initialise; feed pieces; state survives piece borders. */
typedef struct cp_utf8 {
    uint32_t state;
} cp_utf8;
bool cp_utf8_feed(cp_utf8 *u, const char *p, size_t n); /* false: invalid (stay invalid) */
bool cp_utf8_complete(const cp_utf8 *u);                /* not inside a sequence */

/* Length of the character that p[0..n), n > 0, begins with: 1..4 and *valid, or else the length of the maximal subpart
 * that one U+FFFD stands for (Unicode, section 3.9, table 3-8): 1..3. */
size_t cp_utf8_next(const char *p, size_t n, bool *valid);

bool cp_utf8_valid(const char *p, size_t n);
/* Length of the valid prefix (ends on a character border). */
size_t cp_utf8_prefix(const char *p, size_t n);
/* Bytes at the end of p[0..n) that begin a valid but unfinished sequence: 0..3. */
size_t cp_utf8_tail(const char *p, size_t n);
