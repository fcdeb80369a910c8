#pragma once
/* The media type of a file, by its name and else by its first bytes, and whether such a file is text. Pure; any thread.
 */
#include <stdbool.h>

#include "base/buf.h"

enum { CP_MIME_HEAD = 65535 }; /* so many first bytes are enough for cp_mime_of */

/* Never NULL; static storage. name: the last component of the path. head: the first bytes of the file (all of them when
 * `whole`); only looked at when the extension says nothing. */
const char *cp_mime_of(cp_str name, cp_str head, bool whole);
/* By extension alone; NULL when unknown. */
const char *cp_mime_by_name(cp_str name);
/* Content is sent as base64 unless asked otherwise (cloudflare-sandbox.md section 6.3). */
bool cp_mime_binary(const char *type);
