#pragma once
/* How long one turn of a loop keeps its thread from everybody else, and by what. Only in a build with CONFLUX_TURNS
 * (the debug presets and torture): there a turn over CP_TURN_SLOW_MS is logged as loop.turn and counted. The thread of
 * the loop only.
 *
 * What counts is the time from the first callback of a turn to its end, without the time that the thread was ready to
 * run and waited for a processor (/proc: schedstat). So a call that blocks counts, and a machine that is busy with
 * other things does not. Where the kernel does not tell that time, only the processor time of the thread counts. */
#include <stdint.h>

enum { CP_TURN_SLOW_MS = 5 }; /* CONFLUX_TURN_MS in the environment says otherwise */

#ifdef CONFLUX_TURNS
typedef struct cp_turns {
    int schedstat;              /* descriptor, or -1 */
    uint64_t slow_ns;           /* a turn of so long is logged */
    uint64_t wall, waited, cpu; /* ns, at the beginning of the turn */
    uint64_t at;                /* wall, when the last callback had returned */
    const char *longest;        /* the callback that took longest in this turn */
    uint64_t longest_ns;
} cp_turns;

void cp_turns_open(cp_turns *t);
void cp_turns_close(cp_turns *t);
void cp_turn_begin(cp_turns *t);
void cp_turn_ran(cp_turns *t, const char *what); /* a callback has returned; static text */
void cp_turn_end(cp_turns *t);
/* Inside a callback: what it is about, where its name does not tell. Static text, or one that lives as long as the
 * loop. */
void cp_turn_note(const char *what);
#else
static inline void cp_turn_note(const char *what) { (void)what; }
#endif
