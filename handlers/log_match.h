#pragma once
/* Finds a pattern in a log that arrives in pieces. Line by line, whatever the pieces' borders. Pure. */
#include "base/buf.h"
#include "base/err.h"
#include "base/regex.h"

enum { CP_MATCH_PATTERN_MAX = 512, CP_MATCH_LINE_MAX = 64 << 10, CP_MATCH_REGEX_LINE_MAX = 4 << 10 };

typedef struct cp_log_match {
    char *pattern;
    cp_regex *re;     /* NULL: plain text */
    bool shared;      /* pattern and re are another's */
    cp_buf line;      /* the line that has begun, as far as it is known */
    uint64_t line_at; /* offset of its first byte */
    size_t searched;  /* bytes of it that hold no match (plain text) */
} cp_log_match;

typedef struct cp_log_hit {
    uint64_t offset;    /* of the match */
    cp_str line, match; /* borrowed until the next feed */
} cp_log_hit;

/* Plain text, or a POSIX extended regular expression. Fails (field "pattern") on a pattern that is empty, too long, or
 * not valid; base/regex.h says what is known. */
int cp_log_match_init(cp_log_match *m, cp_str pattern, bool regex, cp_err *err);
/* A second one for the same pattern, fed by the same thread, and ended first. */
void cp_log_match_share(cp_log_match *m, const cp_log_match *with);
void cp_log_match_fini(cp_log_match *m);
/* Bytes that begin at this offset (a gap: the line begins anew). `last`: nothing follows them. True: *hit is filled and
 * the rest was not looked at. Plain text is found as soon as it is there. A regular expression that would match up to
 * the very end of an unfinished line waits for more: it might match more. */
bool cp_log_match_feed(cp_log_match *m, uint64_t at, cp_str data, bool last, cp_log_hit *hit);
