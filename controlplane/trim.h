#pragma once
/* Gives memory that was used and freed back to the system once the server has become quiet. */
#include "base/work.h"

enum {
    CP_TRIM_ARENAS =
        2, /* of malloc, one lock each; a few hundred threads that allocate now and then would get one each */
    CP_TRIM_KEPT = 4 << 20, /* bytes: freed blocks up to this are kept for the next one, until the server is quiet */
};

typedef struct cp_trim {
    cp_loop *loop;
    cp_workers *workers;
    cp_timer timer;
    cp_work work;
    uint64_t cpu_us; /* of the process, at the last look */
    uint64_t least; /* fewest resident bytes that were seen: what remains above it may be in use, or may be freed yet */
    uint64_t trimmed_us;  /* as cpu_us, at the last trim */
    unsigned looks, wait; /* looks since the last trim; one more is worth its time after so many */
    bool working;
} cp_trim;

/* Tells malloc what it may keep. Before the first thread. */
void cp_trim_configure(void);
/* Loop thread; t is the owner's and lives as long as the loop. */
void cp_trim_start(cp_trim *t, cp_loop *loop, cp_workers *workers);
