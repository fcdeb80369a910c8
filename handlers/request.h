#pragma once
/* What a transport hands to the router: one request, and the sink that its answer goes back through. A handler knows
 * neither which transport it serves nor any socket. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/budget.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/loop.h"
#include "base/spool.h"
#include "base/work.h"
#include "services/stdin_ack.h"

typedef enum {
    CP_GET,
    CP_POST,
    CP_PUT,
    CP_DELETE,
    CP_HEAD,
    CP_OPTIONS,
    CP_METHOD_COUNT,
    CP_METHOD_UNKNOWN = -1
} cp_method;
cp_method cp_method_of(cp_str name); /* case-sensitive; CP_METHOD_UNKNOWN */

typedef struct cp_header {
    cp_str name, value;
} cp_header;

enum { CP_MAX_PARAMS = 2 };

/* Borrowed by the handler for the time of the call only: what must last is copied. */
typedef struct cp_request {
    cp_method method;
    cp_str path;  /* without the query; not URL-decoded */
    cp_str query; /* raw, without '?' */
    const cp_header *headers;
    size_t nheaders;
    yyjson_val *body;       /* parsed JSON, NULL when there is none */
    const cp_err *body_err; /* set when the body is missing or not JSON: the router turns it into the route's error */
    cp_str params[CP_MAX_PARAMS]; /* {id} captures, not URL-decoded */
    bool mux;                     /* came over the multiplexed WebSocket */
    bool gathered;                /* the answer goes into another: no file and no source, the body is all */
    uint8_t priority;             /* 0..7, 3 by default */
    uint64_t deadline_ms;         /* relative, 0 none */
    bool kill_on_disconnect;      /* onDisconnect: "kill" */
    bool respond_async;           /* Prefer: respond-async */
    /* Set by a transport that counts what is held: whenever on_cancel returns true, except after CP_END_DISCONNECTED,
     * the reply stays until the handler has answered, though the client may have had its answer already. */
    bool reply_keeps;
    uint64_t trace;             /* request number, for logs */
    uint64_t client;            /* its connection, in the queues of base/work.h; CP_OWNER_ANYONE: not known */
    cp_str trace_id;            /* X-Trace-Id */
    struct cp_body_reader *raw; /* HTTP only, on routes with CP_R_RAW_BODY: the body as a stream of bytes */
} cp_request;

/* Whose turn its work takes. Of a transport that does not say which connection it is, each request is an owner. */
static inline uint64_t cp_request_owner(const cp_request *r) {
    return r->client || !r->trace ? r->client : CP_OWNER_CLIENTS + r->trace * 2 + 1;
}

/* Value of a header (case-insensitive name); {NULL,0} if absent. */
cp_str cp_request_header(const cp_request *r, const char *name);
/* Raw query value; false if absent. cp_query_decode undoes %XX and '+'; -1 when malformed or when it holds a NUL. */
bool cp_request_query(const cp_request *r, const char *name, cp_str *raw);
int cp_query_decode(cp_str raw, cp_buf *out);
/* Decoded query value into *out (cleared); 1 present, 0 absent, -1 malformed with err->field = name. */
int cp_request_param(const cp_request *r, const char *name, cp_buf *out, cp_err *err);
int cp_request_param_u64(const cp_request *r, const char *name, uint64_t max, uint64_t *out,
                         cp_err *err); /* as above */

/* Refuses query names that are not in the NULL-terminated list (our own routes): -1 with err->field. */
int cp_request_only(const cp_request *r, const char *const names[], cp_err *err);
/* One heap block with copies of all strings; body, body_err and raw stay borrowed. The owner frees it with free(). */
cp_request *cp_request_keep(const cp_request *r);

/* Raw request body, on the calling worker thread; blocks. */
typedef struct cp_body_reader {
    int64_t length; /* Content-Length, -1 chunked */
    /* > 0 bytes, 0 end, -1 the client went away, stalled or broke the framing. */
    ssize_t (*read)(struct cp_body_reader *b, void *p, size_t n);
} cp_body_reader;

/* What a body is read into: no more than it says it is, and counted in the memory budget. Zero is none. */
typedef struct cp_piece {
    char *p;
    size_t n;
    cp_charge charge;
} cp_piece;
/* -1 with LIMIT_EXCEEDED: the budget, or the system, has no memory for it. */
int cp_piece_take(cp_piece *piece, const cp_body_reader *body, cp_err *err);
void cp_piece_free(cp_piece *piece);
#define cp_autopiece __attribute__((cleanup(cp_piece_free)))

enum { CP_BODY_PIECE = 64 * 1024 /* bytes of a body that are held at once while it is read or made */ };

/* A body that is made while it is sent, on a thread: its length is not known before. HTTP only. */
typedef struct cp_body_source {
    /* > 0 bytes, 0 end, -1: what has been sent is not the whole, and the client must see that. Blocks. */
    ssize_t (*read)(struct cp_body_source *b, void *p, size_t n);
    void (*close)(struct cp_body_source *b); /* once; frees it */
    bool files; /* the router's: it reads files for the client, and does so as the user of --child-user */
} cp_body_source;
/* The next bytes of it, as read says; on a worker thread. The only way to read one. */
ssize_t cp_body_source_read(cp_body_source *b, void *p, size_t n);

/* A complete answer. Zero-initialised it is an empty 0; cp_result_free releases it. */
typedef struct cp_result {
    int status;
    const char *type; /* content type; NULL: application/json */
    cp_buf body;      /* owned */
    cp_buf headers;   /* further "Name: value\r\n" lines; HTTP only */
    int file_fd;      /* > 0: the body is file_len bytes of this fd from file_off (owned); HTTP only, unless spilled */
    uint64_t file_off, file_len;
    uint64_t spilled;       /* > 0: file_fd is an answer that memory had no room for (base/spool.h); over every door */
    cp_charge charge;       /* what body is counted as in the memory budget, when it is; the piece of a source */
    cp_body_source *source; /* not NULL: the body comes from it (owned); HTTP only */
} cp_result;
void cp_result_free(cp_result *r);
/* Makes what was spooled the body, and the spool empty. May write to a file. -1: the spool is freed. */
int cp_result_spooled(cp_result *r, cp_spool *spool, cp_err *err);

/* ---- streams ---- */

typedef enum { CP_END_DONE, CP_END_CANCELLED, CP_END_DISCONNECTED, CP_END_DEADLINE, CP_END_SHUTDOWN } cp_end;

/* One event being written by a source: JSON goes to w (the transport has set the escape level), id to id (SSE id:,
 * empty: none). */
typedef struct cp_event {
    cp_jw w;
    char id[64];
} cp_event;

typedef enum { CP_PULL_EVENT, CP_PULL_WAIT, CP_PULL_END, CP_PULL_FAIL } cp_pull;

/* A stream of events that a transport pulls from. Embed in the owner. The transport calls pull when its socket can take
 * more: EVENT: exactly one JSON object was written; WAIT: nothing now, the source will call cp_source_wake; END: over;
 * FAIL: over, because what it read from broke (the WebSocket says STREAM_ERROR; SSE just ends).
 * close is called exactly once, after END or when the stream is given up, and frees the source. */
typedef struct cp_source {
    const struct cp_source_ops *ops;
    void (*wake)(struct cp_source *s); /* the transport's */
    void *sink;                        /* the transport's */
} cp_source;
typedef struct cp_source_ops {
    /* budget: about how many payload bytes the event may carry (≤ 64 KiB). */
    cp_pull (*pull)(cp_source *s, size_t budget, cp_event *ev);
    void (*close)(cp_source *s, cp_end why, bool kill);
    /* Input for the child behind the stream ({"type":"stdin"}), then perhaps its end. NULL: takes none. 0: ack, unless
     * it is NULL, will be given, perhaps has been. -1 with err: it never is. */
    int (*on_stdin)(cp_source *s, cp_str data, bool eof, cp_stdin_ack *ack, cp_err *err);
} cp_source_ops;
static inline void cp_source_wake(cp_source *s) {
    if (s->wake) s->wake(s);
}

/* ---- the sink ---- */

typedef struct cp_reply cp_reply;
typedef struct cp_reply_ops {
    void (*send)(cp_reply *r, cp_result *res);
    void (*stream)(cp_reply *r, cp_source *src);
} cp_reply_ops;

/* Owned by the transport. Loop thread only. Ends exactly once, by cp_reply_send or cp_reply_stream (or by the transport
 * after on_cancel); it must not be touched afterwards. */
struct cp_reply {
    const cp_reply_ops *ops;
    /* Set by an asynchronous handler before it returns. Called at most once, when the client cancels, goes away or its
     * deadline passes before the reply has ended. `kill`: the client asked that the work be ended too. Return true: the
     * handler will still answer (CANCELLED only; the transport waits); false: the transport answers in its place and
     * the reply is gone. After CP_END_DISCONNECTED the reply is gone in either case. */
    bool (*on_cancel)(cp_reply *r, cp_end why, bool kill);
    /* As cp_source_ops.on_stdin, while the reply has not ended. Set by the handler; NULL: takes none. */
    int (*on_stdin)(cp_reply *r, cp_str data, bool eof, cp_stdin_ack *ack, cp_err *err);
    void *handler; /* the handler's */
};
static inline void cp_reply_send(cp_reply *r, cp_result *res) { r->ops->send(r, res); }     /* takes what res owns */
static inline void cp_reply_stream(cp_reply *r, cp_source *src) { r->ops->stream(r, src); } /* takes src */
