#pragma once
/* The one writer of a connection: a bounded queue of bytes towards a socket (design.md section 3). Loop thread only.
 *
 * Bytes are appended to a chunk list and sent with writev when the loop's round ends (cp_loop_defer), so that many
 * small replies make one system call; the socket has TCP_NODELAY and TCP_NOTSENT_LOWAT, so that little sits in the
 * kernel ahead of an urgent reply. Streams are not queued here: when the outbox is below its low-water mark it asks its
 * owner (on_room) to pull.
 *
 * Chunks come from a free list of the process (there is one loop), and an empty outbox holds none: an idle connection
 * costs the struct and nothing else. */
#include "base/budget.h"
#include "base/buf.h"
#include "base/loop.h"

typedef struct cp_outbox cp_outbox;

/* LOW: two full frames go out in one system call, which wakes the peer half as often (a fifth more reads of 1 MB). */
enum { CP_OUTBOX_LOW = 128 * 1024, CP_OUTBOX_HIGH = 1024 * 1024 };
/* Each outbox is bounded, but there may be 10,000 of them: what they hold in all is charged to the memory budget. While
 * that is short (cp_outbox_tight) an outbox takes one thing at a time, and who takes nothing is sent away soon. */
enum { CP_OUTBOX_SHORT_STALL_MS = 2000 };
extern bool cp_outbox_tight; /* the loop's */

/* Callbacks run from the loop, never from inside a call that appends. Each may call cp_outbox_fini and free the owner.
 */
typedef struct cp_outbox_events {
    void *arg;
    void (*on_room)(void *arg);  /* queued < CP_OUTBOX_LOW and the socket takes bytes: pull until !cp_outbox_has_room */
    void (*on_error)(void *arg); /* the socket is broken, what was queued is gone: owner closes; called once */
    void (*on_empty)(void *arg); /* everything queued has been given to the kernel; may be NULL */
} cp_outbox_events;

/* Embed in the connection; the fields are the outbox's own. */
struct cp_outbox {
    cp_loop *loop;
    cp_io *io;
    cp_outbox_events on;
    struct cp_chunk *head, *tail;
    size_t queued;
    size_t mark;             /* length of the tail at cp_outbox_tail */
    struct cp_chunk *before; /* the tail was added by it, and this was the tail */
    uint64_t took_at;
    cp_deferred flush;
    bool *gone; /* set while a callback runs: says that it has called cp_outbox_fini */
    bool blocked, broken;
};

/* io: the owner's watcher of the socket, registered before the first byte is queued. The outbox switches EPOLLOUT in
 * io->events on while the socket takes nothing and off again; the owner's callback passes EPOLLOUT on to
 * cp_outbox_writable and changes other events only with io->events & EPOLLOUT kept. Sets the socket options on fd. */
void cp_outbox_init(cp_outbox *o, cp_loop *loop, cp_io *io, int fd, cp_outbox_events on);
/* Drops what is queued. The fd is the owner's. */
void cp_outbox_fini(cp_outbox *o);
void cp_outbox_writable(cp_outbox *o);

/* The buffer to append to, with `room` bytes free (it may grow beyond). The caller appends to it and then calls
 * cp_outbox_commit, with no other outbox call in between. This is the path without a copy or an allocation. */
cp_buf *cp_outbox_tail(cp_outbox *o, size_t room);
void cp_outbox_commit(cp_outbox *o);
void cp_outbox_add(cp_outbox *o, const void *p, size_t n); /* copies */
void cp_outbox_add_buf(cp_outbox *o, cp_buf *b);           /* moves: b is empty afterwards */

/* A body that is queued piece by piece, with frame heads in between, without being copied. new takes what b and charge
 * hold. Each piece holds a reference until it is sent; release drops the maker's.
 * Or one that lies in a file (base/spool.h): nothing of it is held, its pieces are read into the queue. */
typedef struct cp_outbox_body {
    cp_buf buf;
    cp_charge charge;
    int fd; /* > 0: the file (owned) */
    uint64_t size;
    uint64_t filed; /* what the file counts for */
    unsigned refs;
} cp_outbox_body;
cp_outbox_body *cp_outbox_body_of_file(int fd, uint64_t size);
/* Copies a piece of a body in a file to the end of b. -1: it cannot be read. May wait for the disk. */
int cp_outbox_body_read(const cp_outbox_body *body, uint64_t off, size_t n, cp_buf *b);
cp_outbox_body *cp_outbox_body_new(cp_buf *b, cp_charge *charge);
void cp_outbox_body_release(cp_outbox_body *body);
void cp_outbox_add_piece(cp_outbox *o, cp_outbox_body *body, size_t off, size_t n);

/* Gives back the memory that is kept for the chunks of later. Loop thread. */
void cp_outbox_trim(void);

/* Asks for on_room at the end of this round if there is room: a source has something to send. */
void cp_outbox_wake(cp_outbox *o);

/* Above it a peer's requests are not read. */
static inline size_t cp_outbox_high(void) { return cp_outbox_tight ? 16 * 1024 : CP_OUTBOX_HIGH; }
static inline size_t cp_outbox_queued(const cp_outbox *o) { return o->queued; }
static inline bool cp_outbox_blocked(const cp_outbox *o) { return o->blocked; }
static inline bool cp_outbox_has_room(const cp_outbox *o) {
    return o->queued < (cp_outbox_tight ? 1 : CP_OUTBOX_LOW) && !o->blocked && !o->broken;
}
/* How long a socket may take nothing before its connection is given up: `ms` normally, little while memory for
 * what is unsent is short. */
uint64_t cp_outbox_stall_limit(uint64_t ms);
/* Milliseconds since the socket last took a byte, 0 when nothing is queued: for the stall timeout. */
uint64_t cp_outbox_stalled_ms(const cp_outbox *o);
