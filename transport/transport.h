#pragma once
/* What the parts of the transport share. One instance per server.
 *
 * Threads: CivetWeb's workers run server.c, http.c and auth.c; everything that a connection does after it has been
 * taken over (ws.c, mux.c, outbox.c, http_loop.c) is loop thread only. A worker hands a connection over by posting a
 * task. */
#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "handlers/router.h"

struct cp_ws;
struct cp_server;

typedef struct cp_transport {
    cp_loop *loop;
    cp_ctx *ctx;
    cp_router *router;
    const cp_config *config;
    cp_workers *workers;
    struct cp_server *server;         /* server.c */
    struct cp_ws *ws_head;            /* ws.c: every WebSocket connection */
    struct cp_ws_shared *ws_shared;   /* ws.c: what they share; freed by cp_ws_close_all */
    struct cp_mux_shared *mux_shared; /* mux.c: likewise */
    int inherited;               /* the listening socket of a former server, taken over at the opening; <= 0: none */
    _Atomic unsigned nconns;     /* connections that the loop owns, for the limit */
    _Atomic uint64_t next_trace; /* request numbers */
    bool draining;
    void (*forget)(struct cp_transport *t, int fd); /* before a WebSocket's socket is closed; NULL: nothing to do */
    struct cp_http_stream *http_head;               /* http/stream.c: every client that is streamed to */
} cp_transport;

/* Opens the listening socket and starts CivetWeb. *port gets what is listened on. */
int cp_server_open(cp_transport *t, uint16_t port, uint16_t *bound, cp_err *err);
int cp_server_listener(const cp_transport *t); /* the socket that it listens on, borrowed; -1: it does not any more */
/* Stops accepting new connections and requests (drain). */
void cp_server_stop_accepting(cp_transport *t);
/* Loop thread, after stop_accepting: is every reply on its way out? No worker has a request, the loop has no HTTP
 * connection that is not just waiting for its client to close. */
bool cp_server_quiet(const cp_transport *t);
/* Loop thread: ends the HTTP requests that still wait with a typed error, and streams. */
void cp_server_end_requests(cp_transport *t);
void cp_server_close(cp_transport *t);
