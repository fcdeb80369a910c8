#pragma once
/* The text of a JSON string (RFC 8259 section 7) from bytes, without the quotes. Pure; needs no JSON library, so that
 * logs can use it too.
 *
 * level 1 escapes once. level 2 gives the level-1 text escaped again, for JSON that stands inside a JSON string: a
 * newline is \\n on the wire (two backslashes), a quote \\\" . Valid UTF-8 is copied; each maximal subpart of what is
 * not becomes U+FFFD. */
#include <stdbool.h>

#include "base/buf.h"

/* Room for the escaped text of n bytes at level 1, whatever they are. */
#define CP_ESCAPED_MAX(n) (7 * (n) + 32768)

/* Appends; false when something was not valid UTF-8. */
bool cp_escape(cp_buf *out, cp_str s, int level);
