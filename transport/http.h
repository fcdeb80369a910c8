#pragma once
/* Private to the HTTP side of the transport: server.c (CivetWeb's life cycle), slot.c (workers and pressure), http.c
 * (one request on its worker), http_body.c, http_reply.c, http_call.c (requests that the loop serves), http_conn.c
 * (sockets that the loop owns).
 *
 * A request takes one of three ways:
 *   worker  INLINE and IO routes: read, served and answered where CivetWeb calls us.
 *   parked  LOOP routes: the loop serves, the worker waits for the result and writes it, so that the connection stays
 *           with CivetWeb and lives on. When the client hangs up, or workers get scarce, the worker gives the socket to
 *           the loop and leaves (http_call.c).
 *   taken   LASTS routes and WebSockets: the socket is taken out of CivetWeb before anything is dispatched. */
#include <civetweb.h>
#include <pthread.h>
#include <stdatomic.h>

#include "transport/arrival.h"
#include "transport/auth.h"
#include "transport/http_parse.h"
#include "transport/takeover.h"
#include "transport/transport.h"

typedef struct cp_server cp_server;
typedef struct cp_http_call cp_http_call;

/* ---- slots: one per CivetWeb worker ---- */

typedef enum {
    CP_SLOT_FREE,   /* waits for a connection */
    CP_SLOT_SILENT, /* a connection that has not sent a request yet */
    CP_SLOT_BUSY,   /* serves a request */
    CP_SLOT_IDLE,   /* keep-alive, waits for the next request */
} cp_slot_state;

typedef struct cp_slot {
    cp_server *srv;
    pthread_mutex_t mu; /* guards the next four against the loop, which may shut the socket */
    cp_slot_state state;
    int fd;            /* CivetWeb's, claimed; -1 when free, unknown or taken */
    uint64_t since;    /* cp_now_ms of the last change of state, or of the last call of cp_slot_deadline */
    uint64_t deadline; /* body or file in transit: cut at this time; 0 none */
    pid_t tid;         /* of the worker */
    /* the rest is the worker's own */
    int wakefd;    /* eventfd: the loop has something for a parked worker; -1 until needed */
    bool answered; /* the current request has had its reply */
    bool turn;     /* the current request has begun its turn and neither taken nor passed it (arrival.h) */
    bool body;     /* it has passed, and bytes of its body may still come */
    cp_http_head head;
    cp_buf out, in; /* scratch */
    cp_arrival arrival;
} cp_slot;

enum { CP_SLOT_KEEP = 64 * 1024 }; /* scratch memory over this is given back after each request */

cp_slot *cp_slot_new(cp_server *srv);
void cp_slot_free(cp_slot *s);
/* A connection begins; finds its socket, if it can be told already (ri may be NULL). */
void cp_slot_open(cp_slot *s, const struct mg_request_info *ri);
bool cp_slot_find(cp_slot *s, const struct mg_request_info *ri); /* another try */
void cp_slot_enter(cp_slot *s, cp_slot_state state);
void cp_slot_close(cp_slot *s);
/* The turn of the request that is being served: given back, with what is left of its body to come or not. */
void cp_slot_pass(cp_slot *s, bool body_done);
/* From now on the loop cuts the connection when the worker has not finished in time; 0: finished. */
void cp_slot_deadline(cp_slot *s, uint64_t ms_from_now);
/* Takes the socket away from CivetWeb: new descriptor, owned by the caller, counted as a connection. -1 with err.
 * route: what it is taken for; NULL: none. */
int cp_slot_take(cp_slot *s, const cp_route *route, cp_err *err);

/* Loop thread: the end of a taken socket; and its hand-over to somebody who counts connections himself. */
void cp_taken_close(cp_server *srv, int *fd);
void cp_taken_give(cp_server *srv); /* who calls t->forget at the end */

/* More than half of the workers are held. */
bool cp_server_half_busy(const cp_server *srv);
/* Any thread: there may be something to watch. The supervisor's timer runs while there is. */
void cp_supervise(cp_server *srv);
void cp_supervise_stop(cp_server *srv);

struct cp_server {
    cp_transport *t;
    struct mg_context *mg;
    cp_fds *fds;
    cp_arrivals *arrivals;
    cp_gate gate;
    unsigned workers;
    _Atomic unsigned held;       /* slots that are not free */
    _Atomic uint64_t body_bytes; /* memory that bodies in transit hold, beyond what each slot keeps */
    _Atomic unsigned transfers;  /* slots with a deadline */
    atomic_bool closing;         /* cp_server_close has begun: parked workers leave */
    atomic_bool draining;        /* no keep-alive any more */
    pthread_mutex_t mu;          /* guards slots, nslots */
    cp_slot **slots;
    unsigned nslots;
    cp_timer tick; /* the supervisor's; loop thread */
    cp_task tick_task;
    atomic_bool tick_posted; /* the task is queued or the timer runs */
    cp_http_call *parked;    /* loop thread: calls with a waiting worker */
    unsigned nparked;
    _Atomic long info_distance;    /* server.c */
    _Atomic uint64_t selftest_key; /* 0 when it does not run */
    int selftest_fd;               /* the socket that it took; guarded by mu, as the next */
    bool selftest_closed;          /* CivetWeb has closed its side */
    pthread_cond_t selftest_cond;  /* one of the two has changed */
};

/* ---- one request on its worker ---- */

/* begin_request and, for targets that CivetWeb does not dispatch, connection_close. */
void cp_http_serve(struct mg_connection *conn, cp_slot *s);
/* The self-test's request, if it is one (server.c). */
bool cp_selftest_take(cp_slot *s);
/* CivetWeb could not understand the request. */
void cp_http_refused(struct mg_connection *conn, cp_slot *s, int status, const char *why);

/* ---- replies ---- */

/* What the head of a reply needs to know of its request. Copyable. */
typedef struct cp_reply_to {
    cp_str origin;
    bool http11, head_only, keep_alive;
    bool cors; /* the origin has passed the gate: no other is ever named to a browser */
} cp_reply_to;

/* Appends status line and headers for a body of `length` bytes; -1: unknown (chunked in 1.1, else up to the close). */
void cp_http_head_write(cp_buf *out, const cp_reply_to *to, int status, const char *type, cp_str extra, int64_t length);
/* Appends the whole reply but a file body. */
void cp_http_reply_write(cp_buf *out, const cp_reply_to *to, const cp_result *res);
const char *cp_http_reason(int status);

/* ---- body ---- */

typedef struct cp_body {
    cp_body_reader reader; /* for handlers */
    struct mg_connection *conn;
    cp_slot *slot;
    uint64_t left; /* Content-Length only */
    uint64_t taken;
    uint64_t waited_ms; /* for the client, in all */
    bool chunked, ended, broken;
    bool expect;    /* 100 Continue is still owed */
    size_t charged; /* bytes of the server's body budget */
} cp_body;

void cp_body_init(cp_body *b, struct mg_connection *conn, cp_slot *s);
/* Reads the whole body, at most max bytes, into *out. 0, or -1 with err: PAYLOAD_TOO_LARGE, or OPERATION_INTERRUPTED
 * when the client went away, stalled or broke the framing. */
int cp_body_read_all(cp_body *b, uint64_t max, cp_buf *out, cp_err *err);
/* The text has been used: memory that was counted against the budget is given back. */
void cp_body_settle(cp_body *b, cp_buf *text);
/* True when CivetWeb would find nothing left to drain. */
bool cp_body_done(const cp_body *b);

/* ---- requests that the loop serves ---- */

/* Prepares a call: copies what it needs of req. doc is taken. */
cp_http_call *cp_http_call_new(cp_server *srv, const cp_match *m, const cp_request *req, yyjson_doc *doc,
                               const cp_reply_to *to);
/* Worker: false when there is no descriptor to be woken by. */
bool cp_http_can_park(cp_slot *s);
/* Worker: serves with the worker parked. 1: *res is the answer, to be written by the worker; 0: the socket has left. */
int cp_http_call_park(cp_http_call *c, cp_slot *s, cp_result *res);
/* Worker: gives the call to the loop with its socket. */
void cp_http_call_hand(cp_http_call *c, int fd);
/* Loop: asks parked workers to hand their sockets over. */
void cp_http_calls_unpark(cp_server *srv);
/* Loop: ends everything that is parked. */
void cp_http_calls_shutdown(cp_server *srv);

/* The socket's side of a call, loop thread. */
void cp_http_call_gone(cp_http_call *c, cp_end why); /* the client went away: c is freed */
void cp_http_call_interrupt(cp_http_call *c);        /* the server is leaving: c is answered and freed */
bool cp_http_call_kills(const cp_http_call *c);      /* onDisconnect: "kill" */
bool cp_http_call_lasts(const cp_http_call *c); /* its route may stream: a client that hangs up is not waited for */
uint64_t cp_http_call_deadline(const cp_http_call *c); /* cp_loop_now time, 0 none */

/* ---- sockets that the loop owns ---- */

typedef struct cp_http_loop cp_http_conn;

/* Takes fd. call may be NULL. */
cp_http_conn *cp_http_conn_new(cp_server *srv, int fd, cp_http_call *call, const cp_reply_to *to);
void cp_http_conn_send(cp_http_conn *c, cp_result *res); /* takes what res owns; ends the connection */
/* takes src; deadline: cp_loop_now time, 0 none */
void cp_http_conn_stream(cp_http_conn *c, cp_source *src, uint64_t deadline);
void cp_http_conn_close(cp_http_conn *c);
/* The client has shut its write side down. A buffered reply is still delivered (c->call decides what else it means). */
void cp_http_conn_half(cp_http_conn *c);
/* Any thread: sends these bytes (taken), reads and drops what the client still sends, so that it gets to see them
 * before a reset would wipe them out, and closes. */
void cp_http_conn_linger(cp_server *srv, int fd, cp_buf *bytes);
/* The server is leaving: answers those that wait, ends streams when they have nothing more to say at once. */
void cp_http_conns_interrupt(cp_server *srv);
void cp_http_conns_close(cp_server *srv, cp_end why);
/* All that are left only wait for their client to close. */
bool cp_http_conns_flushed(const cp_server *srv);
