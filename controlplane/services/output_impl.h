#pragma once
/* Inside of an output, shared by output.c (log, cursors), output_pump.c (pipe to log) and output_fetch.c. Nobody else
 * includes this. */
#include <sys/epoll.h>

#include "services/output.h"

enum {
    CP_OUT_SPILL = 256 * 1024,       /* a memory log over this moves to a file */
    CP_OUT_SLICE = 64 * 1024,        /* read by the loop from one pipe before others get their turn */
    CP_OUT_JOB = 1024 * 1024,        /* spliced by one job of the io pool */
    CP_OUT_WINDOW = 8 * 1024 * 1024, /* how far a child may run ahead of the slowest blocking cursor */
    CP_OUT_HELD = 1024 * 1024,       /* the same where the log takes nothing and bytes pass through memory */
    CP_OUT_AGAIN_MS = 2000,          /* a log that took nothing: until the next attempt to store */
    CP_OUT_RETRY_MS = 50,            /* no descriptor was free: until the next attempt */
    CP_OUT_ROUND_US = 500,           /* so long cursors are told of news in one round of the loop */
};

/* One job of the io pool: open the file, write what a spill brings, punch, splice. Filled by the loop, run by a pool
 * thread (which touches nothing else of the output but path, spill and the two descriptors), harvested by the loop. */
struct out_job {
    cp_work work;
    bool running;
    bool open_file;                /* in */
    bool spill;                    /* in: write o->mem to the file first */
    uint64_t punch_from, punch_to; /* in: a hole to make; empty when equal */
    uint64_t forget_to;            /* in: a log begins anew here; what is before it goes. 0: none does */
    uint64_t at;                   /* in: where spliced bytes go */
    size_t max;                    /* in: bytes to splice at most; 0 none */
    size_t moved;                  /* out */
    bool eof, drained;             /* out: no writer left; the pipe was empty */
    bool punch_failed;             /* out */
    bool cut;                      /* out: the file was shorter than what had been stored */
    bool again;                    /* in: the log took nothing before; it begins anew where these bytes go */
    int file;                      /* out, when open_file */
    int sys;                       /* out: errno of a failed open or write: the disk takes no more */
};

struct cp_output {
    cp_output_opts opts;
    char *path;
    cp_buf mem; /* the log while it is in memory */
    int file;   /* the log when it is in a file; -1: not open (nothing was written yet, or nobody looks) */
    bool in_file;
    bool unlinked;      /* the file has no name: the descriptor is all there is */
    uint64_t first;     /* offset of the oldest byte kept */
    uint64_t stored;    /* end of what is kept, as an offset */
    uint64_t discarded; /* read after `stored` and thrown away */
    uint64_t reading;   /* reads begin here: first, or the end of the hole that is being punched */
    bool no_punch;      /* the file system makes no holes: everything is kept */
    bool full;          /* nothing more is stored: stop_at_budget reached or the disk is full */
    bool forget;        /* the log has begun anew, and its file still holds what was before */
    uint64_t again_at;  /* cp_loop_now, when the disk is tried again */
    cp_buf held;        /* what blocking cursors have still to read of the discarded bytes: the last of them */
    bool gap;           /* the file has grown by `discarded`: a hole behind what is kept, which survives a crash */

    cp_io io;
    int pipe;
    bool readable; /* the pipe may hold bytes (edge-triggered, so this is our memory of it) */
    bool wide;     /* the pipe has been enlarged */
    bool eof;
    bool finishing; /* cp_output_finish: take what is there, then end */
    bool counted;   /* finish_left is known */
    size_t finish_left;
    bool ended, told;
    cp_buf tail; /* bytes of our own, stored at the end */
    void (*on_end)(void *arg);
    void *arg;

    cp_link idle, due; /* the cursors that have been told all, and those to which there is something to say */
    cp_heap blocking;  /* those that the child waits for, by where they stand */
    cp_deferred later, more;
    cp_timer retry;
    bool telling, free_asked;
    struct out_job job;
};

void cp_output_kick(cp_output *o);                         /* continues to drain where that is possible now */
void cp_output_grown(cp_output *o);                        /* there is news for the cursors */
void cp_output_lose_before(cp_output *o, uint64_t before); /* what was stored before cannot be read any more */
uint64_t cp_output_block(int fd);    /* bytes: what the file system keeps or gives up as a whole */
void cp_output_settle(cp_output *o); /* ends the log when all is in; frees it when that was asked for */
void cp_output_retry(cp_output *o);  /* no descriptor was free: draining and reading go on in a moment */
int cp_output_create(const cp_output *o, int flags); /* opens the file, which it makes; fd or -1 */
bool cp_output_can_count(cp_output *o);     /* false: no descriptor is free to write down what would be thrown away */
bool cp_output_watched(const cp_output *o); /* by a blocking cursor */
uint64_t cp_output_slowest(const cp_output *o); /* where the slowest of those stands; UINT64_MAX: there is none */
void cp_output_hold(cp_output *o, const char *p, size_t n); /* discards these bytes, and keeps them for such cursors */
void cp_output_gap(cp_output *o); /* writes down, in the file, how much has been thrown away behind what is kept */
/* output_fetch.c reads without waiting. */
void cp_output_lose(cp_output *o, int sys); /* what was stored cannot be read any more (errno, or 0: it is too short) */
void cp_output_rest(cp_output *o);          /* closes the file that nobody needs open */
void cp_output_wake(cp_cursor *c);
/* How many bytes may be taken from the pipe now: 0 when blocking cursors hold it back. */
uint64_t cp_output_room(const cp_output *o);
