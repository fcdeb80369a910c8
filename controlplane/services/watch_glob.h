#pragma once
/* The text rules of file watching (cloudflare-sandbox.md section 3.5). Pure. */
#include <stdbool.h>

#include "base/buf.h"
#include "services/path.h"

enum { CP_GLOB_MAX = 255 /* bytes of a pattern */ };

/* False: blank, a NUL, or one of [ ] { }, which are not part of the syntax. */
bool cp_glob_supported(cp_str pattern);
/* "*" stands for any characters but a slash, "**" for any, "?" for one that is no slash. The pattern is found where it
 * begins at the path's begin or behind a slash, and ends at its end or before a slash. So what matches a folder matches
 * everything below it. The pattern is at most CP_GLOB_MAX bytes. Time grows with pattern × path, never worse. */
bool cp_glob_match(cp_str pattern, cp_str path);
/* The same, but it must end at the path's end: what is below a folder that matches does not. */
bool cp_glob_match_whole(cp_str pattern, cp_str path);

/* The absolute path that `path` names from base, by text alone: "." and ".." are folded, slashes collapse, none at the
 * end. -1 when it does not fit. */
int cp_watch_resolve(const char *base, cp_str path, char out[CP_PATH_MAX]);

/* Temporary names of our own writes (cp_temp_name): what is written beside its target and renamed is told to clients as
 * if it had been written in place. */
typedef enum { CP_STAGED_NOT, CP_STAGED_NEW, CP_STAGED_REPLACES } cp_staged;
cp_staged cp_watch_staged(cp_str name);
