#pragma once
/* How long ago something was whose time of the wall clock was noted. The wall clock may be set while the machine runs;
 * a difference of two of its readings then says nothing. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* Reads what servers before this one have noted of this boot, and notes there what comes. A start's; blocks. */
void cp_age_open(const char *path);
/* Has the clock been set since the last look? Then it is written down: a few short calls on the file. Any thread. */
void cp_age_look(void);
/* Milliseconds since then, at least 0. What is older than this boot is judged by the clock as it was when it was first
 * seen, unless it was in its future. Looks first. Any thread. */
int64_t cp_age_ms(int64_t wall_ms);

/* ---- the pure part ---- */

enum { CP_AGE_SPANS = 32 };
/* As long as the clock was not set, "wall clock minus time since boot" stays what it was. */
typedef struct cp_age_span {
    int64_t from, to, offset; /* ms; since boot, the first two */
} cp_age_span;
typedef struct cp_ages {
    cp_age_span v[CP_AGE_SPANS]; /* in order; the first reaches back to the boot, and before it */
    unsigned n;
} cp_ages;
/* A reading of both clocks. True: the wall clock has been set, or this is the first. */
bool cp_ages_note(cp_ages *a, int64_t boot_ms, int64_t wall_ms);
int64_t cp_ages_of(const cp_ages *a, int64_t wall_ms); /* as of the last reading */
void cp_ages_encode(const cp_ages *a, const char *boot, cp_buf *out);
/* False, and none: it is of another boot, or no such text. */
bool cp_ages_decode(cp_ages *a, const char *boot, const char *text);
