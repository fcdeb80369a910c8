/* libconflux: a client of the Conflux control plane, over HTTP or over one multiplexed WebSocket.
 *
 *     conflux_options o = {.url = "http://127.0.0.1:3000", .token = getenv("CONFLUX_TOKEN")};
 *     conflux_error err;
 *     conflux_client *c = conflux_client_new(&o, &err);
 *     conflux_request rq = {.path = "/api/execute", .body = "{\"command\":\"uname -a\"}"};
 *     conflux_response rs;
 *     if (conflux_fetch(c, &rq, &rs, &err) == 0) puts(rs.body), conflux_response_free(&rs);
 *     conflux_client_free(c);
 *
 * Threads. A client has one internal thread, which owns its connections and runs every callback. All functions may be
 * called from any thread at any time unless they say otherwise. Those that wait (conflux_client_new, _client_free,
 * _connect, _disconnect, _fetch, _batch, _resume, _stream_next, _stream_free, _call_stdin) must not be called from a
 * callback: they would wait for themselves. They fail with CONFLUX_E_DEADLOCK instead. A callback that takes long holds
 * up all calls of its client.
 *
 * Errors. Functions that can fail return 0 (or what they say) on success and -1 on failure, with *err filled in; err
 * may be NULL. An answer of the server with an error status is a success of the transport: see conflux_check.
 *
 * Memory. Everything passed in is copied unless said otherwise. Memory that has run out ends the program. All structs
 * that are passed in may be zero-initialised: zero is the default of every field. Times are milliseconds. */
#ifndef CONFLUX_CLIENT_H
#define CONFLUX_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
#ifdef __cplusplus
extern "C" {
#endif

typedef struct conflux_client conflux_client;
typedef struct conflux_call conflux_call;
typedef struct conflux_stream conflux_stream;

typedef enum conflux_mode {
    CONFLUX_AUTO = 0,  /* WebSocket; HTTP while the upgrade fails */
    CONFLUX_WEBSOCKET, /* any number of calls on one connection (or on a small pool) */
    CONFLUX_HTTP,      /* a connection for each call in flight, kept for the next */
} conflux_mode;

typedef enum conflux_state {
    CONFLUX_DISCONNECTED = 0,
    CONFLUX_CONNECTING,
    CONFLUX_CONNECTED,
    CONFLUX_RECONNECTING, /* the connection was lost; new calls wait for the next one */
} conflux_state;

#define CONFLUX_NO_TIMEOUT UINT32_MAX

/* ---- errors ---- */

typedef enum conflux_kind {
    CONFLUX_OK = 0,
    CONFLUX_E_ARGUMENT,        /* the caller's fault: an option or a request that cannot be sent */
    CONFLUX_E_CONNECT,         /* nobody answers at that address */
    CONFLUX_E_CONNECT_TIMEOUT, /* no connection in time */
    CONFLUX_E_TLS,             /* no trust: certificate, host name, or protocol */
    CONFLUX_E_UPGRADE,         /* the server answers, but does not speak WebSocket there */
    CONFLUX_E_UNAUTHORIZED,    /* the token is wrong or missing, or the host or origin is not allowed */
    CONFLUX_E_REQUEST_TIMEOUT, /* no answer in time; a command without an execution id was told to end */
    CONFLUX_E_IDLE_TIMEOUT,    /* a stream was silent for too long */
    CONFLUX_E_CONNECTION_LOST, /* with the answer still to come: look at retry_safe and resumable */
    CONFLUX_E_CANCELLED,       /* by conflux_call_cancel, conflux_disconnect or conflux_client_free */
    CONFLUX_E_TOO_LARGE,       /* a request or an answer over a limit */
    CONFLUX_E_PROTOCOL,        /* the server's words make no sense */
    CONFLUX_E_SERVER,          /* the server's own error: status and code say which (conflux_check) */
    CONFLUX_E_UNSUPPORTED,     /* not over this transport */
    CONFLUX_E_DEADLOCK,        /* a waiting function was called from a callback */
    CONFLUX_E_SYSTEM,          /* this machine lacks something: descriptors, threads */
} conflux_kind;

typedef struct conflux_error {
    conflux_kind kind;
    /* The same request may be sent again without doing anything twice: it was never sent whole, or it changes nothing
     * (GET, HEAD), or it carries an execution id, or the caller said idempotent, or the server refused it unstarted. */
    int retry_safe;
    int resumable;          /* it carries an execution id: conflux_resume or conflux_stream_resume get the rest */
    int status;             /* the HTTP status that the server gave; 0 if none */
    char code[64];          /* the server's error code, "FILE_NOT_FOUND"; "" if none */
    char execution_id[132]; /* of the request; "" if none */
    char message[512];      /* one sentence for people; holds no secret */
} conflux_error;

/* "CONNECTION_LOST" for CONFLUX_E_CONNECTION_LOST. Static storage. */
const char *conflux_kind_name(conflux_kind kind);
const char *conflux_mode_name(conflux_mode mode);    /* "auto", "websocket", "http" */
const char *conflux_state_name(conflux_state state); /* "connected" … */

/* ---- clients ---- */

/* What a state callback is told. Everything is borrowed for the length of the call. */
typedef struct conflux_status {
    conflux_state state;
    conflux_mode mode;          /* what carries calls now; CONFLUX_AUTO while nothing does */
    const conflux_error *cause; /* why the connection was lost or refused; NULL if nothing is wrong */
    uint32_t retry_in_ms;       /* RECONNECTING: until the next attempt; 0: at once */
} conflux_status;

typedef struct conflux_options {
    const char *url;             /* http, https, ws or wss; a path in it is put in front of every request's */
    const char *token;           /* sent as a bearer token; NULL: none */
    conflux_mode mode;           /* default: auto */
    const char *ca_file;         /* PEM file of authorities to trust; NULL: the system's */
    int insecure;                /* https, wss: accept any certificate */
    uint32_t connect_timeout_ms; /* 30,000; also how long a call waits for a connection */
    uint32_t request_timeout_ms; /* 120,000: until the answer, of a stream until its first event */
    uint32_t idle_timeout_ms;    /* 300,000: between two events of a stream */
    uint32_t ping_interval_ms;   /* 15,000: a WebSocket on which nothing is heard for three of these is lost */
    uint32_t backoff_ms;         /* 250: reconnecting at once, then after this, then doubling … */
    uint32_t backoff_max_ms;     /* 30,000: … up to this; from the start again when a connection has worked */
    uint32_t upgrade_retry_ms;   /* 30,000: after a fall back to HTTP, until WebSocket is tried again (auto) */
    uint32_t connections;        /* 1: WebSockets in the pool; another is opened when all have calls in flight */
    uint32_t http_connections;   /* 64: buffered calls in flight over HTTP; more wait, by priority. Streams add to it */
    uint64_t window;             /* 1 MiB: bytes of a stream that may be on their way or waiting to be consumed */
    uint64_t max_answer;         /* 256 MiB: largest answer taken into memory */
    int share;                   /* use the connections of another client with the same options, if there is one */
    /* State changes, on the internal thread. */
    void (*on_state)(void *arg, conflux_client *client, const conflux_status *status);
    /* Debug log of the message flow, one line each without a newline: never tokens, header values, queries, bodies.
     * On the internal thread. */
    void (*on_log)(void *arg, const char *line);
    void *arg; /* of both */
} conflux_options;

/* A client; nothing is connected yet. NULL with *err: bad options, or no thread can be started. Does not block. */
conflux_client *conflux_client_new(const conflux_options *options, conflux_error *err);

/* Disconnects, waits until the last callback has returned and the server has heard which commands were cancelled (over
 * HTTP; 2 s at most), and frees. Calls and streams of the client must not be used afterwards, except to be freed. NULL
 * is fine. From a callback: does nothing. */
void conflux_client_free(conflux_client *client);

/* Connects and waits for it: a WebSocket that is open, or (HTTP) a ping that was answered. 0 at once when connected.
 * -1: CONNECT, CONNECT_TIMEOUT, TLS, UPGRADE, UNAUTHORIZED: then nothing goes on in the background. Optional: the first
 * call connects as well. From then on a lost connection is made again until conflux_disconnect. */
int conflux_connect(conflux_client *client, conflux_error *err);

/* Ends the calls of this client with CANCELLED and closes its connections (those that it shares: when the last sharer
 * does). Waits until that is done. Running commands go on. A later call connects anew. */
int conflux_disconnect(conflux_client *client, conflux_error *err);

int conflux_is_connected(const conflux_client *client); /* 1 or 0; never blocks */
conflux_state conflux_get_state(const conflux_client *client);
/* What carries calls now: WEBSOCKET or HTTP; while not connected the mode that was asked for. Never blocks. */
conflux_mode conflux_get_mode(const conflux_client *client);

/* ---- requests and answers ---- */

typedef struct conflux_header {
    const char *name, *value;
} conflux_header;

typedef struct conflux_request {
    const char *method; /* NULL: POST with a body, else GET */
    const char *path;   /* with its query: "/api/read" */
    /* JSON text, checked before it is sent; NULL: none. body_len 0: up to the NUL. */
    const char *body;
    size_t body_len;
    /* Not NULL: the body is raw bytes of this type, and the request goes over HTTP whatever the mode is. */
    const char *content_type;
    const conflux_header *headers;
    size_t nheaders;
    /* 1 to 128 characters of [A-Za-z0-9_.:-]: put into the body as executionId, so that at most one start is made of
     * it and it can be resumed. NULL: none. */
    const char *execution_id;
    uint32_t timeout_ms;      /* 0: the client's */
    uint32_t idle_timeout_ms; /* streams; 0: the client's */
    int priority;             /* -3 (last) to 4 (first) */
    int idempotent;           /* sending it twice does no harm: errors then say retry_safe */
    int over_http;            /* this one over HTTP, whatever the mode is (what the server serves over HTTP only) */
    int kill_on_disconnect;   /* the command ends when the connection is lost (default: it goes on) */
} conflux_request;

typedef struct conflux_response {
    int status;    /* HTTP status */
    char *body;    /* always ends in a NUL that body_len does not count; NULL when there is none */
    char *headers; /* HTTP: the head as received; NULL over WebSocket */
    size_t body_len;
    conflux_mode mode; /* what carried it: WEBSOCKET or HTTP */
} conflux_response;

void conflux_response_free(conflux_response *response); /* what it holds, not the struct; may be empty */

/* 0 for a status below 400; else -1 with kind SERVER and the server's status, code and message in *err. */
int conflux_check(const conflux_response *response, conflux_error *err);

/* Sends a request and waits for the whole answer. 0: *response is the caller's to free, whatever its status. -1: there
 * is no answer. */
int conflux_fetch(conflux_client *client, const conflux_request *request, conflux_response *response,
                  conflux_error *err);

/* Sends n requests together and waits for all. responses[i] and errs[i] (kind OK for success) are filled in for each.
 * Returns how many have an answer, or -1 (DEADLOCK). */
int conflux_batch(conflux_client *client, const conflux_request *requests, size_t n, conflux_response *responses,
                  conflux_error *errs);

/* The result of an execution by its id, running or ended, however it was started: waits up to timeout_ms (0: the
 * client's request timeout) for its end, over lost connections too. As conflux_fetch; 404: the server does not know it.
 */
int conflux_resume(conflux_client *client, const char *execution_id, uint32_t timeout_ms, conflux_response *response,
                   conflux_error *err);

/* ---- streams ---- */

typedef struct conflux_event {
    const char *data; /* JSON text; pieces of the body when the answer is no event stream. A NUL follows */
    size_t len;
    const char *id; /* where to resume from; NULL if the event has none */
} conflux_event;

/* Starts a request whose answer is a stream of events. With an execution id, events carry offsets (from=0 is added to
 * the query unless it is there), so that the stream can be resumed. NULL: it could not be started; what the server says
 * of it comes from conflux_stream_next. Does not wait. */
conflux_stream *conflux_fetch_stream(conflux_client *client, const conflux_request *request, conflux_error *err);

/* Waits for the next event: 1, *event is valid until the next call with this stream. 0: the stream has ended as it
 * should. -1: it failed: SERVER, CONNECTION_LOST, IDLE_TIMEOUT … One thread at a time. Events that nobody takes are
 * held up to the window; then the sender waits. */
int conflux_stream_next(conflux_stream *stream, conflux_event *event, conflux_error *err);

/* After a lost connection: goes on behind the last event that conflux_stream_next gave. Only for a stream with an
 * execution id. The server says `start` once more; output is neither lost nor repeated. */
int conflux_stream_resume(conflux_stream *stream, conflux_error *err);

/* Input of the command; see conflux_call_stdin. */
int conflux_stream_stdin(conflux_stream *stream, const void *data, size_t n, int eof, conflux_error *err);
/* How much of that input the command is not known to have taken. When it is 0 after a lost connection, input can go on
 * with what follows once the stream is resumed; otherwise nobody knows from which byte on. Never blocks. */
size_t conflux_stream_stdin_pending(const conflux_stream *stream);

/* Ends it from another thread: kill 0 leaves the command running, else it is ended with its whole tree. What is queued
 * can still be read; then conflux_stream_next says CANCELLED, or the server's own end. */
void conflux_stream_cancel(conflux_stream *stream, int kill);

/* Cancels what has not ended (the command goes on) and frees. NULL is fine. Not while another thread uses it. */
void conflux_stream_free(conflux_stream *stream);

/* ---- calls with callbacks ---- */

typedef struct conflux_handlers {
    /* Each event of a stream; NULL: the answer is buffered whole, for on_done. *event is borrowed. */
    void (*on_event)(void *arg, conflux_call *call, const conflux_event *event);
    /* Exactly once, last: response, or NULL and error. Both are borrowed; the callee may keep response->body by setting
     * it to NULL. */
    void (*on_done)(void *arg, conflux_call *call, conflux_response *response, const conflux_error *error);
    void *arg;
    /* Events count as consumed only when conflux_call_consumed says so (default: when on_event returns). */
    int manual_consume;
} conflux_handlers;

/* Starts a call and returns; the callbacks come on the internal thread, perhaps before this returns. NULL with *err:
 * ARGUMENT only, and then no callback comes. The caller owns the handle and frees it, at any time. Never blocks. */
conflux_call *conflux_start(conflux_client *client, const conflux_request *request, const conflux_handlers *handlers,
                            conflux_error *err);
/* Cancels: kill 0 leaves the command of a stream running, else it ends with its whole tree. on_done follows, with the
 * answer if it was on its way already. A buffered call's command ends in both cases; "onCancel" in the body says
 * otherwise. Over HTTP too: a command without an execution id is given one there. Does nothing when it is over. */
void conflux_call_cancel(conflux_call *call, int kill);
/* n bytes of events were consumed (manual_consume): the sender may send as many more. */
void conflux_call_consumed(conflux_call *call, size_t n);
/* Input for a command that was started with "stdin":"open". Waits while the command has 1 MiB or 4,096 pieces of it
 * still to take. -1: UNSUPPORTED over HTTP, or the call is over (its end says why). */
int conflux_call_stdin(conflux_call *call, const void *data, size_t n, int eof, conflux_error *err);
void conflux_call_free(conflux_call *call); /* the handle, not the call, which goes on. NULL is fine */

#ifdef __cplusplus
}
#endif
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
