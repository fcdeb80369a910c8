#pragma once
/* What the files of the client library share. Design notes.
 *
 * An `engine` is one thread with an event loop, and what it owns: the WebSockets (`link`), libcurl's transfers, the
 * table of calls in flight, and the state of connecting (dial.c). A conflux_client is a handle on an engine; sharing is
 * several handles on one. Other threads only post messages; what they may touch besides is atomic or under a mutex.
 *
 * A call begins as CALL_NEW (posted), waits in the engine (WAITING: no connection yet) or in a link or for its turn
 * over HTTP (QUEUED), is SENT, and is OVER exactly once: call_end is the only way there. It has a reference for the
 * engine until it is over and one for the caller's handle.
 *
 * libcurl makes every connection, also those of WebSockets (CONNECT_ONLY): names, addresses tried in parallel, proxies,
 * TLS and its verification are then the same for both transports, and are nothing of ours. */
#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/loop.h"
#include "transport/client/include/conflux/client.h"
#include "transport/frame.h"

enum {
    CC_PRIORITIES = 8,
    CC_NORMAL = 3,
    CC_WIRE_FULL =
        64 * 1024, /* written to a socket at once: what comes later with a higher priority waits for no more */
    CC_ID_MAX = 128,
    CC_EVENT_ID_MAX = 64,
    CC_MAX_MESSAGE = 16 << 20, /* until the server says what it takes */
    CC_MAX_PENDING = 10000,
};

typedef struct engine engine;
typedef struct link_conn link_conn;
typedef struct http_call http_call;
typedef struct ending ending;

/* ---- error.c ---- */

int fail(conflux_error *err, conflux_kind kind, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* What a transfer that ended with this code means. text: libcurl's own, may be empty. */
void fail_curl(conflux_error *err, CURLcode rc, CURL *easy, const char *text);
/* An error body of the server. */
void fail_server(conflux_error *err, int status, const char *body, size_t n);

/* ---- pump.c: a libcurl multi handle on a loop ---- */

typedef struct pump {
    cp_loop *loop;
    CURLM *multi;
    cp_timer timer;
    cp_deferred reap;
    void (*done)(struct pump *p, CURL *easy, CURLcode rc);
    struct pump_watch *watches;
} pump;

int pump_init(pump *p, cp_loop *loop, void (*done)(pump *, CURL *, CURLcode), conflux_error *err);
void pump_fini(pump *p); /* all easy handles must have been removed */
int pump_add(pump *p, CURL *easy, conflux_error *err);
void pump_remove(pump *p, CURL *easy);

/* ---- options.c ---- */

typedef struct settings {
    conflux_options o; /* the pointers in it are ours */
    char *base;        /* "https://host:port/prefix", without a slash at the end */
    char *origin;      /* "https://host:port" */
    char *prefix;      /* "/prefix" or "" */
    char *host;        /* for the Host header */
    char *auth;        /* "Authorization: Bearer …", or NULL */
    bool tls, loopback;
} settings;

int settings_init(settings *s, const conflux_options *o, conflux_error *err);
void settings_fini(settings *s);
bool settings_equal(const settings *a, const settings *b); /* may they share connections? */
/* What every transfer needs: TLS, proxies, descriptors. error: CURL_ERROR_SIZE bytes. */
void settings_apply(const settings *s, CURL *easy, char *error);

/* ---- call.c ---- */

typedef enum { CALL_NEW, CALL_WAITING, CALL_QUEUED, CALL_SENT, CALL_OVER } call_state;

typedef struct out_msg out_msg;

struct conflux_call {
    atomic_int refs;
    engine *eng;
    conflux_client *client;
    conflux_handlers handlers;
    uint64_t id;
    /* the request */
    char *method, *path, *content_type, *execution_id;
    char *about;      /* the execution that the body or the path names; empty: what the body has is no id */
    char http_id[24]; /* one of ours, for a command that goes over HTTP without any */
    cp_buf body;
    struct curl_slist *headers; /* "Name: value" */
    uint32_t timeout, idle, connect_timeout;
    uint8_t priority;
    bool stream, idempotent, over_http, kill_on_disconnect;
    bool base64;       /* its body asks for output in this encoding */
    bool cancel_kills; /* what a cancel that does not say does to its command */
    /* the engine's */
    call_state state;
    link_conn *link;
    http_call *http;
    cp_timer timer;
    uint64_t started, heard; /* cp_loop_now */
    uint64_t sent_end;       /* of the link's bytes, where the request ends */
    bool answered;           /* an event came */
    struct conflux_call *hash_next, *queue_next;
    cp_task task;
    /* flow control: bytes handed to on_event and not consumed; consumed, and not told to the sender yet */
    uint64_t unconsumed, owed;
    atomic_size_t consumed; /* told by other threads, for `credit` to pick up */
    atomic_bool crediting, over;
    atomic_int mode; /* what carries it; AUTO before that is known */
    cp_task credit;
    out_msg *early, **early_tail; /* stdin that came before the request was sent */
    /* input that the server has not acknowledged */
    pthread_mutex_t mu;
    pthread_cond_t room;
    size_t stdin_owed, stdin_pieces; /* bytes; pieces, an end without bytes included */
};

typedef struct call_queue {
    struct conflux_call *head, **tail;
} call_queue;

void queue_init(call_queue *q);
void queue_push(call_queue *q, conflux_call *c);
conflux_call *queue_pop(call_queue *q); /* NULL when empty */
void queue_drop(call_queue *q, conflux_call *c);
void queue_unpop(call_queue *q, conflux_call *c); /* back to the front */

void call_ref(conflux_call *c);
void call_unref(conflux_call *c);
/* The end: resp (what it holds is freed afterwards) or err, whose retry_safe and the like are filled in here. */
void call_end(conflux_call *c, conflux_response *resp, const conflux_error *err);
/* The end because its client goes. */
void call_abandon(conflux_call *c, const conflux_error *err);
void call_event(conflux_call *c, const conflux_event *ev);
void call_placed(conflux_call *c, conflux_mode mode); /* it has a connection; QUEUED */
bool call_unsent(const conflux_call *c);
void call_arm(conflux_call *c); /* the timer, by its state */
/* Copies and checks; NULL with *err. One reference, the caller's. call.c keeps it apart from sending. */
conflux_call *call_new(conflux_client *client, const conflux_request *rq, bool stream, conflux_error *err);
void call_launch(conflux_call *c, const conflux_handlers *h);
/* A copy of JSON text that is an object, with "key":value pairs (each with a comma behind) put in front. */
void json_insert(cp_buf *out, cp_str object, cp_str pairs);
/* The server acknowledged a piece of n bytes; UINT64_MAX: it will acknowledge no more. */
void call_stdin_taken(conflux_call *c, uint64_t n);
size_t call_stdin_pending(conflux_call *c); /* bytes that it has not acknowledged */
void msg_free(out_msg *m);

/* ---- table.c: calls in flight, by id ---- */

typedef struct call_table {
    conflux_call **slots;
    size_t n, cap; /* cap: a power of two */
} call_table;

void table_add(call_table *t, conflux_call *c);
void table_remove(call_table *t, conflux_call *c);
conflux_call *table_find(const call_table *t, uint64_t id);
/* A snapshot with a reference to each; the caller unrefs them and frees the array. For walks during which calls end. */
conflux_call **table_all(const call_table *t, size_t *n);
void table_fini(call_table *t);

/* ---- link.c: a WebSocket ---- */

/* A message for a request that has been sent, or for none; control messages go before calls. */
struct out_msg {
    out_msg *next;
    conflux_call *call; /* stdin: whose it is; else NULL */
    cp_buf json;
};

typedef enum { LINK_CONNECTING, LINK_UPGRADING, LINK_UP, LINK_DEAD } link_state;

enum { LINK_INPUT = 64 * 1024 }; /* bytes of a read */

struct link_conn {
    engine *eng;
    link_conn *next;
    uint64_t number; /* for the log */
    link_state state;
    pump pump;
    CURL *easy;
    char curl_error[CURL_ERROR_SIZE];
    int fd;
    cp_io io;
    cp_timer deadline, ping;
    cp_deferred flush;
    cp_deferred bury;
    char key[32];
    cp_buf head; /* the upgrade's answer so far */
    cp_frame_in in;
    char *input;      /* LINK_INPUT bytes */
    unsigned missed;  /* pings that nothing came after */
    bool heard, ours; /* ours: it has said hello, so it is a Conflux */
    uint64_t max_message;
    size_t max_pending, load, sent; /* calls assigned; calls sent */
    call_queue calls[CC_PRIORITIES];
    out_msg *out, **out_tail;
    /* What is being written. Never appended to before it is gone: a TLS write that is repeated must be the same. */
    cp_buf wire;
    size_t wire_off;
    uint64_t begun, written; /* bytes put into wire, and taken by the socket, since the start */
    cp_buf scratch;
    uint8_t masks[256];
    unsigned masks_used;
};

/* Begins to connect; link_opened or link_failed follows, never before this returns. NULL with *err. */
link_conn *link_open(engine *e, conflux_error *err);
void link_add_call(link_conn *l, conflux_call *c); /* takes the call into its queue */
void link_drop_call(link_conn *l, conflux_call *c);
/* A JSON object with this call's id; moved. Not sent if the call has ended by then. c NULL: sent in any case. */
void link_message(link_conn *l, conflux_call *c, cp_buf *json);
/* Closes (politely with a code, when it is up) and frees; says nothing to anybody. */
void link_close(link_conn *l, unsigned code);

/* link_send.c */
void link_send_init(link_conn *l);
void link_send_fini(link_conn *l);
void link_wake(link_conn *l);
void link_put_control(link_conn *l, unsigned opcode, cp_str payload);
int link_flush(link_conn *l, conflux_error *err);

/* link_read.c */
int link_read(link_conn *l, conflux_error *err);
int link_feed(link_conn *l, char *data, size_t n, conflux_error *err);
/* link_message.c: a text or binary message. */
int link_receive(link_conn *l, cp_str text, conflux_error *err);
/* link_io.c: bytes of the socket, through TLS where there is. Count; 0 for none now; -1 with *err (the end included) */
ssize_t link_recv(link_conn *l, char *p, size_t n, conflux_error *err);
ssize_t link_send(link_conn *l, const char *p, size_t n, conflux_error *err);
void link_fail(link_conn *l, const conflux_error *err);

/* ---- http.c ---- */

int http_init(engine *e, conflux_error *err);
void http_next(cp_deferred *d); /* those that wait for their turn */
void http_fini(engine *e);
void http_add_call(engine *e, conflux_call *c);
void http_drop_call(engine *e, conflux_call *c); /* it is over or moves elsewhere */
void http_credit(conflux_call *c);               /* its consumer takes more */
bool http_sent(const conflux_call *c);           /* have bytes of it gone out? */
/* GET /api/ping; dial_probed follows unless it is stopped. */
int http_probe(engine *e, conflux_error *err);
void http_probe_stop(engine *e);
/* DELETE path, by itself; ending_answered follows unless it is freed. NULL with *err. */
http_call *http_delete(engine *e, ending *x, const char *path, uint32_t timeout_ms, conflux_error *err);
void http_free(http_call *h);

/* ---- ending.c: commands that are ended over HTTP ---- */

void ending_begin(engine *e, const char *id);
void ending_answered(ending *x, int status, cp_str body); /* status 0: there was no answer */
void endings_leave(cp_task *t); /* the last user has gone: stops the loop when all have been heard, or soon */
void endings_fini(engine *e);

/* ---- sse.c: server-sent events. Pure ---- */

typedef struct sse {
    cp_buf line, data;
    char id[CC_EVENT_ID_MAX];
    bool has_id, has_data, after_cr;
    size_t max;
    void (*emit)(void *arg, const conflux_event *ev);
    void *arg;
} sse;

void sse_init(sse *s, size_t max, void (*emit)(void *, const conflux_event *), void *arg);
int sse_feed(sse *s, const char *p, size_t n); /* -1: a line or event over max */
void sse_fini(sse *s);

/* ---- dial.c: being connected ---- */

typedef enum { DIAL_IDLE, DIAL_LINK, DIAL_PROBE, DIAL_PAUSE } dial_phase;

typedef struct dialer {
    dial_phase phase;
    link_conn *link;  /* being opened */
    cp_timer pause;   /* until the next attempt */
    cp_timer upgrade; /* HTTP in auto mode: until WebSocket is tried again */
    uint32_t backoff; /* the delay after the next failure; 0: at once */
    bool was_connected;
    conflux_error cause; /* of the last failure */
} dialer;

void dial_init(engine *e);
void dial_stop(engine *e);
void dial_need(engine *e);                                /* somebody wants a connection, or another one */
void dial_worked(engine *e);                              /* a connection has proved itself: the backoff begins anew */
void link_opened(link_conn *l);                           /* called by link.c */
void link_lost(link_conn *l, const conflux_error *err);   /* by link.c: frees the link */
void dial_lost_http(engine *e, const conflux_error *err); /* by http.c: nobody is there any more */
void dial_probed(engine *e, const conflux_error *err);    /* by http.c; NULL: it was answered */

/* ---- engine.c ---- */

typedef struct waiter {
    pthread_mutex_t mu;
    pthread_cond_t cond;
    bool done;
    int rc;
    conflux_error err;
    struct waiter *next; /* of those in conflux_connect, with their deadline */
    cp_timer deadline;
    struct conflux_client *client;
} waiter;

struct conflux_client {
    engine *eng;
    conflux_client *next; /* the engine's list: loop thread only */
    conflux_options o;    /* callbacks and deadlines of this handle */
    bool wants;           /* loop thread: it wants to be connected */
    atomic_bool closing;
    waiter *connecting; /* those who wait in conflux_connect */
    atomic_int state, mode;
};

struct engine {
    atomic_int refs; /* handles and calls */
    engine *next;    /* the list of those that may be shared */
    int users;       /* handles; under that list's mutex */
    settings set;
    cp_loop *loop;
    pthread_t thread;
    pthread_mutex_t mu; /* guards closed, against posts to a loop that has ended */
    bool closed;
    atomic_uint_fast64_t next_id;
    /* loop thread */
    conflux_client *clients;
    call_table calls;
    call_queue waiting[CC_PRIORITIES];
    conflux_mode active; /* what carries calls now; AUTO: nothing */
    link_conn *links;    /* those that are up */
    size_t nlinks;
    uint64_t next_link;
    dialer dial;
    conflux_state told; /* what the handles that want it know */
    conflux_mode told_mode;
    pump http;
    call_queue http_waiting[CC_PRIORITIES];
    size_t http_running;
    cp_deferred http_next;
    http_call *spare;
    size_t nspare;
    http_call *probe;
    ending *endings;
    bool leaving;
    cp_task leave_task;
    cp_timer leave;
};

void client_want(conflux_client *c); /* client.c: it wants to be connected from now on */
engine *engine_get(const conflux_options *o, conflux_error *err);
void engine_put(engine *e); /* a handle goes; the last one ends the thread */
void engine_ref(engine *e);
void engine_unref(engine *e);
bool engine_here(void); /* is this some engine's thread? */
/* False: the loop has ended, fn will not run. */
bool engine_post(engine *e, cp_task *task, void (*fn)(cp_task *));
/* Runs fn on the loop and waits until *w is done. False as above. */
bool engine_run(engine *e, waiter *w, void (*fn)(cp_task *), cp_task *task);
void engine_route(engine *e, conflux_call *c); /* onto a link, HTTP, or into the queue */
void engine_route_waiting(engine *e);
/* Tells the handles; cause may be NULL. */
void engine_tell(engine *e, conflux_state state, conflux_mode mode, const conflux_error *cause, uint32_t retry_in);
void engine_tell_client(conflux_client *c, const conflux_status *s);
void engine_settle(engine *e, const conflux_error *err);         /* those in conflux_connect: NULL for connected */
void client_settle(conflux_client *c, const conflux_error *err); /* client.c: those of one handle */
/* Ends all calls that wait for a connection. */
void engine_fail_waiting(engine *e, const conflux_error *err);
bool engine_wanted(const engine *e);
void trace(engine *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool tracing(const engine *e);

void waiter_init(waiter *w);
void waiter_finish(waiter *w, int rc, const conflux_error *err);
void waiter_wait(waiter *w);
void waiter_fini(waiter *w);
