#pragma once
/* The output of one stream of a child: an append-only log with offsets, and cursors that pull from it (design.md
 * section 4). Loop thread only.
 *
 * Kinds. MEMORY: for buffered results; the loop reads the pipe itself; spills into a file at 256 KiB. FILE: for durable
 * children; the pipe is spliced into a file by the io pool, so a crash loses nothing: the file's size is the truth.
 *
 * Budget. At most `budget` bytes are kept. While a blocking cursor is attached the child waits instead of losing bytes
 * that this cursor has not read; otherwise the oldest bytes are dropped, and counted. received + dropped = written. */
#include <stdbool.h>
#include <stdint.h>

#include "base/budget.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/heap.h"
#include "base/loop.h"
#include "base/ring.h"
#include "base/work.h"

typedef struct cp_output cp_output;

typedef enum { CP_OUT_MEMORY, CP_OUT_FILE } cp_out_kind;

typedef struct cp_output_opts {
    cp_loop *loop;
    cp_workers *workers;
    cp_out_kind kind;
    const char *path;    /* FILE: the file; MEMORY: where a spill goes (unlinked at once) */
    uint64_t budget;     /* bytes kept; UINT64_MAX: all */
    bool stop_at_budget; /* keep the FIRST budget bytes: the rest is read, counted and thrown away (maxOutputBytes) */
} cp_output_opts;

cp_output *cp_output_new(const cp_output_opts *o, cp_err *err);
/* Opens the log of a former server again. The file is the truth: its size tells what was written (the oldest bytes are
 * holes in it, so offsets in the file are offsets of the stream); `dropped` is what the registry knew, at least so much
 * of the beginning is gone (with stop_at_budget: of the end). Of a missing file all that is known
 * to have been written is dropped. No fd is attached; until
 * one is, or cp_output_finish is called, the log has not ended. NULL when a lack that passes (of descriptors, memory)
 * keeps it from being looked at: without its size the next bytes would be written over it. Blocks for a few system
 * calls on a local file. */
cp_output *cp_output_reopen(const cp_output_opts *o, uint64_t dropped, cp_err *err);
/* The same where it is known that `total` bytes had been written. */
cp_output *cp_output_reopen_known(const cp_output_opts *o, uint64_t dropped, uint64_t total, cp_err *err);
void cp_output_free(cp_output *o); /* no cursor may be open; closes what is attached; the file stays (see unlink) */
void cp_output_unlink(
    cp_output *o); /* removes the file's name at once, and the file off the loop, when the last cursor has closed */

/* Removes a file by its name at once, and what is in it off the loop: a log's, or one beside the logs. */
void cp_output_remove(cp_workers *workers, const char *path);

/* Takes the read end of a pipe and begins to drain it. on_end(arg): no writer is left and all has been stored. */
/* For a FIFO: a writer must exist by now, since a read end without one looks the same as the end. fd is owned from here
 * on, on failure too. */
int cp_output_attach(cp_output *o, int fd, void (*on_end)(void *arg), void *arg, cp_err *err);
/* Drains what is in the pipe at this moment, then declares the log ended (on_end comes, asynchronously), though writers
 * may live on: from then on the pipe is read in the background and thrown away so that they meet neither SIGPIPE nor a
 * full pipe (a grandchild that outlives the command). */
void cp_output_finish(cp_output *o);
/* Appends bytes of our own ("Command timed out after …"). Only before the end. */
void cp_output_append(cp_output *o, cp_str s);

uint64_t cp_output_total(const cp_output *o); /* bytes written so far */
uint64_t cp_output_first(const cp_output *o); /* offset of the oldest byte kept */
uint64_t
cp_output_dropped(const cp_output *o); /* bytes not there: the oldest (== first), or the newest with stop_at_budget */
uint64_t cp_output_kept(const cp_output *o); /* bytes that are there: total - dropped */
uint64_t cp_output_end(const cp_output *o);  /* offset behind the newest byte kept; the rest up to total is dropped */
bool cp_output_ended(const cp_output *o);
bool cp_output_truncated(const cp_output *o); /* stop_at_budget reached */

/* Copies up to max bytes from offset `from` to the end of *out. Returns the number of bytes, 0 when there is nothing
 * (yet), or when no descriptor is free (cp_output_waits): cursors are woken to try again. *at gets the offset where the
 * data begin: > from when older bytes were dropped. Waits for the disk: on the loop cp_output_get and cp_cursor_read
 * stand in its place. */
size_t cp_output_read(cp_output *o, uint64_t from, size_t max, cp_buf *out, uint64_t *at);
bool cp_output_waits(const cp_output *o); /* for a descriptor: a read that gave nothing has to come again */

/* Reading without waiting for the disk. Embed in the reader, which sets done, and has nothing else to do with it. */
typedef struct cp_fetch {
    void (*done)(struct cp_fetch *f); /* loop thread, with nobody up the stack: the disk has answered, ask again */
    struct out_fetch *job;            /* a thread reads */
    bool came;                        /* it has: n bytes from `at` on are at p */
    uint64_t at;
    size_t n;
    char *p;
    int sys;
    cp_charge charge;
} cp_fetch;
/* As cp_output_read, but 0 also when the disk has to be asked (cp_fetch_waits): then done is called, and the same
 * question is answered. The output has to outlive the fetch, or cp_fetch_cancel comes first. */
size_t cp_output_get(cp_output *o, cp_fetch *f, uint64_t from, size_t max, cp_buf *out, uint64_t *at);
static inline bool cp_fetch_waits(const cp_fetch *f) { return f->job != NULL; }
void cp_fetch_cancel(cp_fetch *f); /* done will not be called; idle is fine */

/* A cursor. Embed in the owner. There may be tens of thousands on one output: none of these calls looks at the others.
 */
typedef struct cp_cursor {
    cp_output *o;
    uint64_t at;                       /* next offset wanted; the owner moves it by cp_cursor_advance */
    bool blocking;                     /* the child waits for this reader */
    void (*wake)(struct cp_cursor *c); /* new bytes or the end; coalesced, level-triggered: comes again after advance
                                          only for something new */
    cp_link link;                      /* output's: with those that have heard all, or those that are to be told */
    cp_heap_item pace;                 /* output's: among the blocking ones */
    cp_fetch fetch;
} cp_cursor;
void cp_cursor_open(cp_cursor *c, cp_output *o, uint64_t from, bool blocking, void (*wake)(cp_cursor *));
void cp_cursor_advance(cp_cursor *c, uint64_t to);
void cp_cursor_close(cp_cursor *c); /* not open is fine */
/* cp_output_get from where the cursor stands; it is woken when the disk has answered. */
size_t cp_cursor_read(cp_cursor *c, size_t max, cp_buf *out, uint64_t *at);
bool cp_cursor_waits(const cp_cursor *c); /* a read that gave nothing may give something yet */

/* Reads a pipe (taken, non-blocking) that nobody wants to hear, and throws it away until no writer is left. */
void cp_output_drain(cp_loop *loop, int fd);
/* Such pipes, and those of outputs that ended while writers lived on (cp_output_finish), are drained for as long as the
 * loop runs; this closes those of `loop`. Shutdown and tests. */
void cp_output_drains_close(cp_loop *loop);
