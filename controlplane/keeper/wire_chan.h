#pragma once
/* One end of the keeper socket: whole records with their descriptors, non-blocking, with a queue for what the other end
 * does not take yet. One thread. The owner watches fd for reading, and for writing while cp_chan_queued is not 0. Only
 * the queue takes memory from the heap. */
#include "base/buf.h"
#include "base/err.h"
#include "keeper/wire.h"

typedef struct cp_chan {
    int fd;
    struct cp_chan_out *head, **tail;
    size_t queued;
    char tx[CP_WIRE_MAX]; /* the record being encoded */
    char rx[CP_WIRE_MAX]; /* the record last received */
} cp_chan;

/* Takes fd and makes it non-blocking. */
void cp_chan_init(cp_chan *c, int fd);
void cp_chan_fini(cp_chan *c); /* closes the socket and what is queued; a second call is fine */
static inline bool cp_chan_is_open(const cp_chan *c) { return c->fd >= 0; }
static inline size_t cp_chan_queued(const cp_chan *c) { return c->queued; }

/* Sends or queues m with m->nfds borrowed descriptors (duplicated when queued). -1 with errno: EMSGSIZE, a record over
 * CP_WIRE_MAX; EPIPE or ECONNRESET, the other end is gone; EMFILE, ENOMEM, no room in the queue: nothing has been sent,
 * come again. */
int cp_chan_send(cp_chan *c, const cp_wire *m, const int *fds);
/* Sends what is queued, as far as it goes. -1 with errno: the other end is gone. *later: the kernel counts too many
 * descriptors under way (ETOOMANYREFS), which no poll event announces the end of: come again in a few milliseconds. */
int cp_chan_flush(cp_chan *c, bool *later);

typedef enum { CP_CHAN_EMPTY, CP_CHAN_GOT, CP_CHAN_CLOSED, CP_CHAN_BAD } cp_chan_result;
/* Receives one record; its strings stay valid until the next call. fds[0..m->nfds) are the caller's, close-on-exec; -1
 * where the process had no room for one. BAD (err says why): the other end breaks the protocol. */
cp_chan_result cp_chan_recv(cp_chan *c, cp_wire *m, int fds[CP_WIRE_FDS], cp_err *err);
