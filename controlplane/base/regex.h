#pragma once
/* POSIX extended regular expressions in time linear in the text, whatever the pattern: patterns come from clients. */
#include "base/buf.h"

typedef struct cp_regex cp_regex;

enum {
    CP_REGEX_PROGRAM = 2000, /* instructions that a pattern may come to, its bounds {…} written out */
    CP_REGEX_BOUND = 255,    /* the largest {n} */
};

/* Compiles; NULL with a reason (static storage) when the pattern is not valid, or larger than the above once its bounds
 * are written out. Bytes are matched, as in the C locale. Known beside POSIX, as in GNU's: \w \W \s \S \b \B \< \>.
 * Not known: back references, which no linear engine has. The owner frees. */
cp_regex *cp_regex_new(cp_str pattern, const char **why);
void cp_regex_free(cp_regex *re);

/* The leftmost match, and of those the longest: text[*from, *to). "^" is the beginning of the text, "$" its end unless
 * `open_end`. One thread at a time: what was learnt about the pattern is kept in it, at most a quarter of a megabyte.
 */
bool cp_regex_search(cp_regex *re, cp_str text, bool open_end, size_t *from, size_t *to);
