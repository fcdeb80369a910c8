#pragma once
/* Private to the HTTP room. One client connection goes through it like this:
 *
 *   listener.c   accepts it and counts it; source.c counts who it comes from
 *   client.c     its state, and the table of all of them; it rests in one epoll set until something can be done
 *   crew.c       CivetWeb's workers: who of them waits for clients, and which client is next
 *   resident.c   CivetWeb: one connection for each worker that never ends, and the heads that are fed into it
 *   request.c    one request: judged, its body awaited, served, answered
 *   body.c       request bodies;  send.c  replies of any size;  reply.c  their heads
 *   side.c       handlers that block or compute for long, and replies that are made while they are sent, on threads of
 *                their own
 *   call.c       requests that the loop answers;  stream.c  clients that the loop has for good
 *   sweep.c      deadlines;  server.c  opening, draining, closing
 *
 * Whoever has set BUSY in a client's state owns everything else in it: a worker, a side thread, or the loop. */
#include <civetweb.h>
#include <pthread.h>
#include <stdatomic.h>

#include "transport/auth.h"
#include "transport/http/chunk.h"
#include "transport/http/head.h"
#include "transport/http/parse.h"
#include "transport/http/source.h"
#include "transport/transport.h"

typedef struct cp_server cp_server;
typedef struct cp_http_call cp_http_call;
typedef struct cp_client cp_client;
typedef struct cp_crewman cp_crewman;

/* ---- replies ---- */

/* What the head of a reply needs to know of its request. Copyable. */
typedef struct cp_reply_to {
    cp_str origin;
    bool http11, head_only, keep_alive;
    bool cors; /* the origin has passed the gate: no other is ever named to a browser */
} cp_reply_to;

/* Appends status line and headers for a body of `length` bytes; -1: unknown (chunked in 1.1, else up to the close). */
void cp_http_head_write(cp_buf *out, const cp_reply_to *to, int status, const char *type, cp_str extra, int64_t length);
/* Appends the head of a reply. True: res->body belongs behind it. */
bool cp_http_reply_head(cp_buf *out, const cp_reply_to *to, const cp_result *res);
const char *cp_http_reason(int status);

/* ---- clients ---- */

typedef enum {
    CP_CLIENT_HEAD,   /* between requests, or within a head */
    CP_CLIENT_BODY,   /* a head has been judged; its body is awaited */
    CP_CLIENT_SEND,   /* its reply goes out as it takes it */
    CP_CLIENT_LINGER, /* the last reply is out; what it still sends is dropped, so that no reset overtakes the reply */
    CP_CLIENT_CALL,   /* the loop will answer */
    CP_CLIENT_SIDE,   /* a side thread serves it */
    CP_CLIENT_LENT,   /* a stream's or a WebSocket's for good */
} cp_client_phase;

/* The body of the request that the client is sending. */
typedef struct cp_body {
    bool chunked, ended;
    bool broken;      /* malformed, cut or too slow: the connection cannot go on */
    bool bad;         /* malformed */
    bool raw;         /* the handler reads it */
    bool expect;      /* 100 Continue is still owed */
    uint64_t left;    /* of Content-Length */
    uint64_t taken;   /* content so far */
    uint64_t began;   /* cp_now_ms: the allowance of time is counted from here */
    cp_charge charge; /* what it holds of the memory budget */
    cp_chunks chunks;
    size_t lies;  /* bytes of it that lie whole in c->in, behind the head */
    cp_buf text;  /* decoded from chunks */
    size_t given; /* of text, to the handler that reads the body */
} cp_body;

/* A reply that the socket has not taken at once. */
typedef struct cp_sending {
    cp_buf bytes; /* first: the head, or what the socket has left of it; later: pieces of the source */
    size_t at;
    cp_buf body; /* then */
    size_t body_at;
    cp_charge charge; /* of body in the memory budget */
    uint64_t spilled; /* the file is an answer that memory had no room for */
    int file;         /* -1: none */
    off_t off;
    uint64_t left; /* of the file */
    cp_body_source *src;
    bool chunked;
    bool moved;       /* the kernel has taken something since the last look */
    uint64_t took_at; /* cp_now_ms of the look that saw the client, or the kernel for it, take something last */
    int unread;       /* what the client had not taken then, of what the kernel had: bytes */
} cp_sending;

/* States. OPEN: the descriptor is a client's. BUSY: somebody owns it. AGAIN: something has happened since the owner
 * last looked. LOOP: the owner is the loop, and wants to be told. */
enum { CP_STATE_OPEN = 1, CP_STATE_BUSY = 2, CP_STATE_AGAIN = 4, CP_STATE_LOOP = 8 };

struct cp_client {
    cp_server *srv;
    _Atomic uint32_t state;
    _Atomic uint8_t phase;
    int fd;
    uint64_t id; /* of the connection, among the owners of work (base/work.h): every other number, WebSockets have the
                    rest */
    _Atomic uint64_t deadline; /* cp_now_ms at which the sweeper ends its rest; 0 never */
    _Atomic uint64_t since;    /* it has been resting, or busy, since then; SEND: it has taken nothing since then */
    atomic_bool trusted;       /* it has asked for something that is not open to anybody, and was let in */
    /* the owner's */
    bool watched;  /* it is in the epoll set */
    bool writes;   /* …for EPOLLOUT too */
    bool look;     /* there may be unread bytes that no event will tell of */
    bool thorough; /* a short read does not mean that there is nothing more */
    bool judged;   /* the head has been judged and begins in[at] */
    bool last;     /* no further request is served on it */
    bool used;     /* a request has been answered on it */
    cp_buf in;     /* read from the socket; in[at..n) has not been used */
    size_t at;
    cp_head head; /* of the request that begins at in[at] */
    cp_body body;
    cp_sending *sending;
    size_t dropped; /* LINGER: bytes */
    uint64_t began; /* cp_now_ms: of the head, or of the lingering; 0: no byte of the head has come */
    cp_http_call *call;
    cp_source_count *_Atomic source;
    cp_client *next_ready;
    cp_task notice; /* to the loop: the socket wants to be looked at */
    atomic_bool noticed;
};

typedef struct cp_clients cp_clients;

/* The table of all descriptors that may ever be clients. Entries are never freed, so that an event that comes late
 * meets a state and not freed memory. */
cp_clients *cp_clients_new(cp_err *err);
void cp_clients_free(cp_clients *t);
/* The entry of fd, made when it is not there yet; NULL when fd is beyond the table or memory is short. */
cp_client *cp_clients_at(cp_clients *t, int fd);
/* Calls fn for each entry that was ever used. */
void cp_clients_each(cp_clients *t, void (*fn)(cp_client *c, void *arg), void *arg);

/* Makes the caller the owner of a resting client. events: of epoll. False: somebody else owns it (and will look again),
 * or it is closed. */
bool cp_client_take(cp_client *c, uint32_t events);
/* What happens on its socket is seen from now on, also while it is owned. writes: that it takes more, too. */
bool cp_client_watch(cp_client *c, bool writes);
/* The owner gives it back to the epoll set. False: something has come meanwhile; the caller still owns it and looks
 * again. idle_ms: how long it may rest; 0: for ever. */
bool cp_client_rest(cp_client *c, uint64_t idle_ms);
/* Reads what has come into c->in. 1: something; 0: nothing more for now; -1: the end, an error, or no memory. */
int cp_client_read(cp_client *c);
/* Room for the next read, for who can answer when there is no memory: 0, or -1 with LIMIT_EXCEEDED. */
int cp_client_room(cp_client *c, cp_err *err);
/* Before a rest: what it has sent and what is not used yet is held in as little memory as can be, and counted in the
 * budget. -1 with LIMIT_EXCEEDED. */
int cp_client_hold(cp_client *c, cp_err *err);
/* The owner has copied what it needs of the request, whose bytes are given back before it is answered. */
void cp_client_used(cp_client *c);
/* The owner ends the connection. */
void cp_client_close(cp_client *c);
/* The same, after the client has been told and given time to read it. */
void cp_client_end(cp_client *c);
/* A lent descriptor is about to be closed by whoever has it. */
void cp_client_forget(cp_client *c);
/* The descriptor leaves HTTP for good; the entry goes on counting it until cp_client_forget. */
void cp_client_lend(cp_client *c);
/* The request is over: what belonged to it is let go, and what was read beyond it becomes the next. */
void cp_client_next(cp_client *c);
/* Owner, not on a worker: back to rest, or to whoever is free to look at it. */
void cp_client_release(cp_client *c);

/* ---- the crew ---- */

enum { CP_KEEP = 16 * 1024 }; /* scratch memory over this is given back after each request */

/* One of CivetWeb's workers. */
struct cp_crewman {
    cp_server *srv;
    unsigned index;
    int pipe;          /* our end of the resident connection; -1: there is none */
    cp_client *client; /* whose head was fed, or who has just been answered */
    bool fed;          /* CivetWeb has not told of it yet */
    bool broken;       /* the resident connection does not work any more */
    bool ready_first;  /* whose turn it is: clients that wait for a worker, or the epoll set */
    unsigned in_a_row; /* requests of this client without a look at the others */
    _Atomic bool stuck, active;
    _Atomic uint64_t turns;
    uint64_t turns_seen; /* the watchman's */
    cp_http_head head;
    cp_buf out;   /* scratch: the reply */
    cp_buf spare; /* scratch: input of a client that has none of its own */
};

/* w goes on with something else than before: for the watchman. */
static inline void cp_crewman_turn(cp_crewman *w) {
    atomic_store_explicit(&w->turns, atomic_load_explicit(&w->turns, memory_order_relaxed) + 1, memory_order_relaxed);
}

typedef struct cp_crew cp_crew;
/* size: of the crew; at most `awake` of them serve or wait for clients at a time, those that are stuck not counted. */
cp_crew *cp_crew_new(cp_server *srv, unsigned size, unsigned awake);
void cp_crew_free(cp_crew *crew);
void cp_crew_join(cp_crew *crew, cp_crewman *w);
/* The next client for w, owned by it; waits. NULL: the server is closing. */
cp_client *cp_crew_next(cp_crew *crew, cp_crewman *w);
/* Any thread: a client, owned by the caller, that a worker shall look at. */
void cp_crew_offer(cp_server *srv, cp_client *c);
/* Everybody leaves. */
void cp_crew_dismiss(cp_crew *crew);

/* ---- CivetWeb ---- */

/* Starts CivetWeb with one resident connection for each worker, and the workers with their work. */
int cp_residents_open(cp_server *srv, cp_err *err);
/* Ends them all; waits. */
void cp_residents_close(cp_server *srv);
/* Loop: begins again what could not be begun for want of descriptors. False: not all are there, ask again. */
bool cp_residents_mend(cp_server *srv);
/* Feeds the judged head of c to w's CivetWeb. False: w is out of order, and c is offered to the others. */
bool cp_resident_feed(cp_crewman *w, cp_client *c);

/* ---- the listener ---- */

int cp_listener_open(cp_server *srv, uint16_t port, cp_err *err);
/* One connection that waits, owned by the caller; NULL: none, or there was no room for it. */
cp_client *cp_listener_accept(cp_server *srv);
/* Loop thread: nothing is accepted any more. */
void cp_listener_close(cp_server *srv);
/* A descriptor has become free: accepting may go on. Any thread. */
void cp_listener_rearm(cp_server *srv);

/* ---- one request ---- */

/* Worker: goes on with a client that something has happened to. True: a head was fed, CivetWeb shall go on. False: the
 * client rests, is somebody else's, or is closed. */
bool cp_request_advance(cp_crewman *w, cp_client *c);
/* CivetWeb has parsed the head of w->client. */
void cp_request_serve(cp_crewman *w, const struct mg_request_info *ri);
/* CivetWeb would not have it. */
void cp_request_refused(cp_crewman *w, const char *why);
/* Answers and ends the connection: the head cannot be understood, or its time is over. */
void cp_request_refuse_raw(cp_client *c, const cp_err *err, bool http11);

/* ---- bodies ---- */

void cp_body_init(cp_body *b, const cp_http_head *head);
/* Uses what has been read of it. 1: whole; 0: more is needed; -1 with err: too large, malformed, or over the budget. */
int cp_body_collect(cp_client *c, uint64_t max, cp_err *err);
/* The whole body, once collected. */
cp_str cp_body_text(const cp_client *c);
/* Counts what is held for it in the memory budget. -1 with LIMIT_EXCEEDED. */
int cp_body_charge(cp_client *c, cp_err *err);
/* Makes room for the whole of a body of known length, and counts it. False: the budget has none. Moves c->in. */
bool cp_body_reserve(cp_client *c);
/* Of a body that a handler will read: a small one is collected whole before. */
bool cp_body_is_small(const cp_client *c);
/* True when it is there: a small one whole; of a large one the first piece, or its end, or what is wrong with it. */
bool cp_body_begun(cp_client *c);
/* How much longer the client may rest before more of it comes. */
uint64_t cp_body_patience(const cp_client *c);
/* RFC 9110 section 10.1.1. */
void cp_body_continue(cp_client *c);
/* In place of what a handler has answered that met a malformed body. */
void cp_body_say_malformed(cp_client *c, cp_result *res);
/* Gives its memory back, and its share of the budget. */
void cp_body_drop(cp_client *c);
/* A body read piece by piece by a handler that may block (or that is whole already, and never does). */
typedef struct cp_body_stream {
    cp_body_reader reader;
    cp_client *client;
    uint64_t waited_ms;
    _Atomic uint64_t waits_since; /* cp_now_ms, less what it is behind the minimum rate; 0: does not wait */
} cp_body_stream;
void cp_body_stream_init(cp_body_stream *s, cp_client *c);

/* Worker: true when a handler that may block can run here; else there are enough of them, and a side thread is for it.
 * Given back by cp_blocking_end. */
bool cp_blocking_begin(cp_server *srv);
void cp_blocking_end(cp_server *srv);

/* ---- sending ---- */

/* Sends the reply to a request of c, and then goes on with c: next request, end, or a rest until the client takes more.
 * The caller owns c and does not any more when this returns false. out: scratch. res is freed. */
bool cp_send_reply(cp_client *c, cp_reply_to *to, cp_result *res, cp_buf *out);
/* The client takes more. As above. Not on the loop. */
bool cp_send_more(cp_client *c);
/* The same, whatever the workers do. Side thread. */
bool cp_send_here(cp_client *c);
/* Loop: a client that rests within its reply is looked at. True: it rests on. False: it has taken nothing for
 * allowed_ms, and the caller still owns it. */
bool cp_send_patient(cp_client *c, uint64_t allowed_ms);
/* What the reply of a client that rests within it holds. The owner. */
cp_mem_kind cp_send_kind(const cp_client *c);
void cp_sending_free(cp_sending *s);

/* ---- side threads ---- */

typedef struct cp_side cp_side;
cp_side *cp_side_new(cp_server *srv, cp_err *err);
/* Cuts the clients that are waited for, and waits for the handlers. */
void cp_side_free(cp_side *side);
/* Any thread: true when another one would have to wait for a thread. */
bool cp_side_crowded(cp_side *side);
/* Goes on with a reply on a side thread. */
void cp_side_send(cp_side *side, cp_client *c);
/* Serves the request of c on a side thread; takes doc. */
void cp_side_serve(cp_side *side, cp_client *c, const cp_match *m, const cp_request *req, yyjson_doc *doc,
                   const cp_reply_to *to);

/* ---- requests that the loop serves ---- */

/* Worker: the loop owns c from now on. Copies what it needs of req; takes doc. */
void cp_call_start(cp_client *c, const cp_match *m, const cp_request *req, yyjson_doc *doc, const cp_reply_to *to);
/* Loop: something has happened on the socket of c; if its call is waited for, sees whether the client has gone. */
void cp_call_look(cp_client *c);
/* Loop: ends everything that waits. */
void cp_calls_shutdown(cp_server *srv);

/* ---- clients that the loop has for good ---- */

typedef struct cp_http_stream cp_http_stream;
/* Any thread: room for one more of them; -1 with err. Given back by cp_lasting_give. */
int cp_lasting_take(cp_server *srv, cp_err *err);
void cp_lasting_give(cp_server *srv);
/* Loop: streams src to c, which it owns, with room taken. deadline: cp_loop_now time, 0 none. */
void cp_stream_start(cp_client *c, cp_source *src, const cp_reply_to *to, bool kills, uint64_t deadline);
/* The server is leaving: streams end when they have nothing more to say at once. */
void cp_streams_interrupt(cp_server *srv);
void cp_streams_close(cp_server *srv, cp_end why);
/* All that are left only wait for their client to close. */
bool cp_streams_flushed(const cp_server *srv);

/* ---- deadlines ---- */

/* Any thread: a client rests that has a deadline. */
void cp_sweep_wake(cp_server *srv);
void cp_sweep_stop(cp_server *srv);
/* Loop: ends clients that have nothing under way; those that have sent something are served. */
void cp_sweep_idle(cp_server *srv);
/* Any thread, short of room: ends a client from whom nothing comes, or who takes nothing: of those that have not shown
 * that they may come in before the others, then of the address that has the most, the one that has been so for longest.
 * idle_ms: whose last request was answered less than that ago is spared, as he may be about to speak. */
bool cp_sweep_evict(cp_server *srv, uint64_t idle_ms);
/* Connections that the kernel holds until they are accepted. */
unsigned cp_listener_waiting(const cp_server *srv);

/* ---- the whole ---- */

struct cp_server {
    cp_transport *t;
    cp_gate gate;
    int epoll, wake; /* wake: eventfd in the epoll set */
    _Atomic int listener;
    atomic_bool listening; /* it is armed in the epoll set */
    atomic_bool closing;   /* everybody leaves */
    atomic_bool draining;  /* no keep-alive any more */
    unsigned workers;
    int keep_below; /* a connection with a descriptor from here on is for one request: half of the limit is in use */
    unsigned soft_open;  /* beyond as many clients others wait to be accepted, a little */
    atomic_bool admit;   /* one of them need not wait any more */
    atomic_bool starved; /* the last attempt to accept found no descriptor */
    cp_clients *clients;
    cp_sources *sources;
    cp_crew *crew;
    struct cp_residents *residents;
    cp_side *side;
    _Atomic uint64_t last_id;  /* connections so far */
    _Atomic unsigned open;     /* clients */
    _Atomic unsigned blocking; /* workers in handlers that may block */
    cp_http_call *calls;       /* loop */
    cp_timer sweep;            /* loop */
    cp_task sweep_task;
    atomic_bool sweep_posted;
    cp_buf loop_out; /* scratch: replies that the loop sends */
};
