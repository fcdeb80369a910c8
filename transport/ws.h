#pragma once
/* A WebSocket connection that the loop owns: codec, pings, liveness, close handshake. What the messages mean is the
 * endpoint's: the mux (mux.h), the echo of --debug-echo, and later doors. Loop thread only. */
#include "transport/frame.h"
#include "transport/outbox.h"
#include "transport/transport.h"

typedef struct cp_ws cp_ws;

/* What a kind of endpoint does. open may refuse by returning a close code (0: fine). */
typedef struct cp_ws_endpoint {
    const char *name;
    int (*open)(cp_ws *ws);                                        /* sets ws_data */
    void (*message)(cp_ws *ws, bool binary, char *p, size_t n);    /* p is writable and borrowed for the call */
    void (*writable)(cp_ws *ws);                                   /* the outbox has room again: pull */
    void (*close)(cp_ws *ws, uint16_t code);                       /* once; frees ws_data; nothing can be sent any more */
    void (*pending)(cp_ws *ws, cp_jw *w);                          /* for /api/pending: array entries; may be NULL */
} cp_ws_endpoint;
extern const cp_ws_endpoint cp_ws_mux, cp_ws_echo;

/* Takes fd: connected, non-blocking, the 101 has been sent on it. */
void cp_ws_adopt(cp_transport *t, int fd, const cp_ws_endpoint *ep, const struct sockaddr_storage *peer);

void cp_ws_set_data(cp_ws *ws, void *data);
void *cp_ws_data(const cp_ws *ws);
cp_outbox *cp_ws_outbox(cp_ws *ws);
cp_transport *cp_ws_transport(cp_ws *ws);
uint64_t cp_ws_id(const cp_ws *ws);        /* connection number, for logs and /api/pending */
/* Starts the close handshake; what is queued goes out first. */
void cp_ws_close(cp_ws *ws, uint16_t code, const char *reason);
/* No further messages are read until resumed (outbox over its high-water mark). */
void cp_ws_pause(cp_ws *ws, bool paused);
/* Closes all with 1001 after their queues are flushed; done when none is left or deadline. */
void cp_ws_drain_all(cp_transport *t, uint64_t deadline_ms, void (*done)(void *arg), void *arg);
/* GET /api/pending: the "connections" array over all WebSockets. */
void cp_ws_pending_json(cp_transport *t, cp_jw *w);
