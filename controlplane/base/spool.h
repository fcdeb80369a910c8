#pragma once
/* An answer of any size while it is made: in memory as far as the memory budget has room, else in a file without a name
 * in the state folder (mode 0600), which the kernel removes with its last descriptor. What all such files hold is
 * bounded too (--spill-total); beyond that the answer is refused.
 *
 * The maker appends to `mem` and calls cp_spool_settle after each piece, so that no more than a piece is ever
 * uncounted. One thread at a time; settle may write to a file: not for the loop, unless the caller accepts that. */
#include "base/budget.h"

typedef struct cp_spool {
    cp_buf mem;       /* appended to by the maker: all of it, or what is not in the file yet */
    cp_charge charge; /* for mem; the maker sets its kind */
    int fd;           /* > 0: the file (owned) */
    uint64_t filed;   /* bytes in the file, counted against the total */
} cp_spool;

/* Once, before the first is settled: the folder, and how much files may hold in all. */
void cp_spool_setup(const char *dir, uint64_t total);
/* Where files must have a name for a moment: removes those of servers that were killed in it. How many. Any thread;
 * one that another server has just made is none the worse for it. */
unsigned cp_spool_sweep(void);

/* Before a large piece is appended: room for `more` bytes in mem. Where the system has no memory, what is there goes to
 * a file first. -1 as cp_spool_settle. */
int cp_spool_room(cp_spool *s, size_t more, cp_err *err);
/* Counts what has been appended; moves it to a file where memory has no room. -1: LIMIT_EXCEEDED, or what the file
 * system said (NO_SPACE, FILESYSTEM_ERROR, TOO_MANY_FILES); the spool is then only good for cp_spool_free. */
int cp_spool_settle(cp_spool *s, cp_err *err);
/* The last settle: afterwards all is in mem or all is in the file. */
int cp_spool_end(cp_spool *s, cp_err *err);
/* True when memory has room for all that is there: then cp_spool_end touches no file. */
bool cp_spool_fits(cp_spool *s);
void cp_spool_free(cp_spool *s); /* gives everything back; zeroed is fine */
/* A file that left its spool (fd taken, filed noted) has been closed. */
void cp_spool_forget(uint64_t filed);
