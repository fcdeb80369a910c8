#pragma once
/* A WebSocket connection that the loop owns: codec, pings, liveness, close handshake. What the messages mean is the
 * endpoint's: the mux (mux.h), the echo of --debug-echo, and later doors. Loop thread only. */
#include "transport/frame.h"
#include "transport/outbox.h"
#include "transport/transport.h"

typedef struct cp_ws cp_ws;

/* What a kind of endpoint does. open may refuse by returning a close code (0: fine). No callback may free the
 * connection; it ends by cp_ws_close. */
typedef struct cp_ws_endpoint {
    const char *name;
    int (*open)(cp_ws *ws);                                     /* sets ws_data */
    void (*message)(cp_ws *ws, bool binary, char *p, size_t n); /* p is writable and borrowed for the call */
    void (*pong)(cp_ws *ws, cp_str payload);                    /* may be NULL */
    void (*writable)(cp_ws *ws);                                /* the outbox has room again: pull */
    void (*close)(cp_ws *ws, uint16_t code);                    /* once; frees ws_data; nothing can be sent any more */
    void (*pending)(cp_ws *ws, cp_buf *rows);                   /* takes down what /api/pending shows; may be NULL */
    /* Writes the row at *at of what pending took down, perhaps after the connection's end, and moves *at on. */
    void (*pending_row)(cp_transport *t, const cp_buf *rows, size_t *at, cp_jw *w);
    /* The server is ending: finish what can be finished now. NULL: nothing to do. */
    void (*drain)(cp_ws *ws);
    /* True while something is left that has not been put into the outbox: a close waits for it, and a peer that answers
     * no ping is slow, not dead. NULL: never. */
    bool (*busy)(cp_ws *ws);
    size_t (*held)(cp_ws *ws); /* bytes of replies waiting outside the outbox, for /api/pending; may be NULL */
} cp_ws_endpoint;
extern const cp_ws_endpoint cp_ws_mux, cp_ws_echo;

/* Takes fd: connected, non-blocking, the 101 has been sent on it. Counts it in t->nconns. Takes *sent, too: frames that
 * have been read already; NULL: none. */
void cp_ws_adopt(cp_transport *t, int fd, const cp_ws_endpoint *ep, const struct sockaddr_storage *peer, cp_buf *sent);

void cp_ws_set_data(cp_ws *ws, void *data);
void *cp_ws_data(const cp_ws *ws);
cp_outbox *cp_ws_outbox(cp_ws *ws);
cp_transport *cp_ws_transport(cp_ws *ws);
uint64_t cp_ws_id(const cp_ws *ws); /* connection number, for logs and /api/pending */
/* Queues one whole message (CP_OP_TEXT or CP_OP_BINARY) as one frame; copies. Dropped once the close has begun. */
void cp_ws_send(cp_ws *ws, unsigned opcode, const void *p, size_t n);
/* Within the message callback: makes its payload the caller's (out must be empty), mostly without a copy. */
void cp_ws_take(cp_ws *ws, cp_buf *out);
/* Starts the close handshake; what is queued, and what the endpoint is busy with, goes out first. */
void cp_ws_close(cp_ws *ws, uint16_t code, const char *reason);
/* The connection is lost, as if the peer had gone: for a message that can neither be ended nor given up. Its endpoint's
 * close comes later, from the loop. */
void cp_ws_lose(cp_ws *ws, const char *why);
bool cp_ws_open(const cp_ws *ws); /* no close has begun: messages are delivered and sent */
/* No further messages are delivered until resumed; takes effect at once, also between two messages that arrived
 * together. The endpoint's reasons (a message being parsed, too much in flight) are its own to keep apart. A full
 * outbox pauses by itself. While paused the peer's silence is not held against it. */
void cp_ws_pause(cp_ws *ws, bool paused);
/* Closes all with 1001 after their queues are flushed; done when none is left, or after timeout_ms, when those that
 * are left are cut. Runs done from the loop, never from inside the call. */
void cp_ws_drain_all(cp_transport *t, uint64_t timeout_ms, void (*done)(void *arg), void *arg);
/* Cuts every connection and frees what the module keeps for the loop. */
void cp_ws_close_all(cp_transport *t);
/* GET /api/pending: the elements of the "connections" array, over all WebSockets: one after another, each as it is when
 * its turn comes; those that come meanwhile are left out. A row is the beginning of a connection or one of its
 * requests; false: there is none, and all that has been begun has been ended. */
typedef struct cp_ws_pending cp_ws_pending;
cp_ws_pending *cp_ws_pending_open(cp_transport *t);
bool cp_ws_pending_row(cp_ws_pending *p, cp_jw *w);
void cp_ws_pending_close(cp_ws_pending *p);
