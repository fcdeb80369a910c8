#pragma once
/* The multiplexed WebSocket: JSON messages in, requests to the router, responses and streams out
 * (protocols/cloudflare-sandbox.md section 4, conflux-additions.md "WebSocket messages"). Loop thread only.
 *
 * What a client sees beside those pages:
 * - A stream event whose source numbers its events carries that number as "eventId" (what SSE sends as id:).
 * - A cancelled stream ends with {"type":"response",…,"status":200,"done":true}; cancelled with "kill": true it ends
 *   with status 499 and a CANCELLED error body, unless the handler says better.
 * - "window" and its credit count the UTF-8 bytes of the "data" strings. With nothing unacknowledged one event is
 * always sent, however small the window.
 * - A "stdin" message with "ack": true is answered by {"type":"stdin","id",…,"bytes":N}, N being the bytes of its data,
 *   when the command's pipe has taken them (or nobody will read them). A sender that bounds what is unacknowledged
 * never meets LIMIT_EXCEEDED, however slowly the command reads.
 * - Pings go out among the data of streams and large responses. Who answers them, as RFC 6455 section 5.5.2 has it, is
 *   not sent more than some hundred kilobytes ahead of its reading, so that an answer has little before it (pace.h).
 * - cancel, stdin and window name a request by the id it was sent with, string or number.
 * - An error with an id ends that request, unless it has "of": "stdin", "window" or another type: then that message was
 *   refused, and the request goes on.
 *
 * Below: what the files of the mux share; outside only cp_ws_mux and the first three functions are used. */
#include "base/ring.h"
#include "transport/backlog.h"
#include "transport/pace.h"
#include "transport/pending.h"
#include "transport/ws.h"

/* Ends at once what is left of connections that have gone: otherwise that is done in rounds of the loop. */
void cp_mux_end_all(cp_transport *t);
/* Some connection has gone whose requests have not all been ended. */
bool cp_mux_ending(const cp_transport *t);
/* Frees the buffers that all connections share; none may be open. */
void cp_mux_free_shared(cp_transport *t);

enum {
    MUX_FRAGMENT = 65535,         /* payload of one frame: what a peer must take before a control frame gets through */
    MUX_CHUNK = 64 * 1024,        /* payload bytes of one stream event */
    MUX_INLINE_PARSE = 64 * 1024, /* larger messages are parsed on the io pool */
    MUX_SLAB_PARSE = 2048,        /* smaller ones without an allocation */
    MUX_SLAB = 32 * 1024,
    MUX_IO_RUNNING = 8,                  /* IO requests of one connection that are with the pool at a time */
    MUX_WAITING_BYTES = 4 * 1024 * 1024, /* of those that wait for that: above, the peer is not read */
    MUX_WAITING_TIGHT = 32 * 1024,       /* the same while memory for requests is short */
    MUX_PARSE_COST = 4,                  /* bytes that parsing takes for one of the text, its text included */
    MUX_TURN = 256 * 1024,               /* streams may send so much between two large responses */
    MUX_QUANTUM = 64 * 1024,             /* deficit round robin: what a stream may send in its turn */
    MUX_HEADERS = 64,
    MUX_ID_MAX = 16 * 1024,            /* whatever the option says: envelope and id must fit a frame */
    MUX_ENVELOPE_MAX = 8 * MUX_ID_MAX, /* every character of an id may be written as \uXXXX */
    MUX_WINDOW_FIRST = 64,             /* loop requests dispatched at a time, to begin with; see mux_request.c */
    MUX_WINDOW_LEAST = 16,
    MUX_WINDOW_MOST = 1 << 20,
    MUX_REPLIES_AHEAD = 16 * 1024 * 1024, /* what the replies of the dispatched ones may come to */
    MUX_STARVED_MS = 10,
    MUX_ADMIT_US = 1000,          /* so long requests that waited are dispatched in one round */
    MUX_DEADLINES_US = 500,       /* so long deadlines that have passed are seen to */
    MUX_ENDING_US = 250,          /* so long the requests of a connection that leaves are ended */
    MUX_PROBE_STREAM = 64 * 1024, /* bytes from one probe of the pace to the next; see pace.h */
    MUX_PROBE_LARGE = 512 * 1024,
    MUX_LARGE_AHEAD = 1024 * 1024, /* so much more of a large response may be unread: most go out without a wait */
    MUX_PACED_MS = 250,            /* a peer that answers no probe for so long may be further behind */
};

struct mux_job;

typedef enum { MUX_IO, MUX_LOOP, MUX_KINDS } mux_kind;

typedef struct mux {
    cp_ws *ws;
    cp_transport *t;
    cp_outbox *out;
    pend_table table;
    cp_timer deadline;
    pend_queue streams;            /* those that may have something to send */
    pend_queue large;              /* responses over one frame, waiting for `sending` to end */
    pend_queue waiting[MUX_KINDS]; /* requests not yet dispatched */
    pend *sending;                 /* the large response whose message is open on the wire */
    pend *cancelling;              /* its on_cancel is running */
    cp_buf parked;                 /* whole frames that wait until no message is open */
    size_t large_bytes;            /* of bodies in `large` and `sending` */
    backlog texts;                 /* of those that wait */
    size_t waiting_docs;           /* bytes of the texts of those that wait and are parsed */
    cp_charge charge;              /* for the texts, the table and what is parked */
    int64_t class_credit[8];
    int64_t turn;        /* what streams may still send before the next large response */
    struct mux_job *job; /* the message being parsed on the pool: nothing is read meanwhile, so order holds */
    uint32_t expand;     /* bytes on the wire for 256 bytes that a stream event was asked for, lately */
    uint32_t last_event; /* size of the last stream event */
    uint32_t running[MUX_KINDS];
    uint32_t window;                  /* most loop requests that may run */
    uint32_t answered, answered_then; /* replies of those; at the last look of `starved` */
    int64_t reply_size;               /* of those, on average */
    cp_timer starved;
    cp_deferred more; /* more of those that wait may be dispatched */
    pace pace;        /* of streams and large responses */
    cp_timer paced;
    pend_queue held; /* answered, with work that goes on: each keeps its place among those that run */
    bool full;       /* too many bytes are owed to the peer: nothing is read */
    bool pulling;    /* a source is writing into the outbox */
    bool admitting;
    bool closing, draining;
    cp_deferred ending; /* requests are ended, in rounds: the connection has gone, or the server is about to leave */
    uint32_t ending_at; /* the bucket whose turn it is */
    cp_link link;       /* among those that end requests */
} mux;

struct cp_mux_shared {
    cp_transport *t;
    size_t parsing;                      /* what those on the pool are expected to take */
    struct mux_job *queue, **queue_tail; /* jobs that wait for the budget */
    cp_link ending;                      /* connections whose requests are being ended */
    cp_buf id, text;                     /* scratch */
    cp_buf body;                         /* memory for the next answer that is made at once */
    size_t slab_used;
    char *slab_last;
    _Alignas(16) char slab[MUX_SLAB];
};
struct cp_mux_shared *mux_shared_of(cp_transport *t);

/* ---- mux_message.c: a message from the peer ---- */

/* The fields of any message; NULL where absent. */
typedef struct mux_msg {
    yyjson_val *root;
    yyjson_val *type, *id, *method, *path, *body, *headers;
    yyjson_val *kill, *eof, *bytes;
    bool more; /* there are other fields too */
} mux_msg;
void mux_read_msg(yyjson_val *root, mux_msg *m);
/* text: the message when doc can be read again from it (doc's memory lasts only for the call), else n 0. twice: what
 * cp_json_unique has said of it. Takes doc. */
void mux_handle(mux *m, yyjson_doc *doc, cp_str text, const cp_err *twice);
void mux_on_message(cp_ws *ws, bool binary, char *p, size_t n);
/* The owner is going: the job frees itself when it is done. */
void mux_job_abandon(mux *m);

size_t mux_id_limit(const mux *m);

/* ---- mux_request.c: requests and what is done to them ---- */

void mux_request(mux *m, const mux_msg *msg, cp_str id, yyjson_doc *doc, cp_str text);
void mux_cancel(mux *m, cp_str id, bool kill);
void mux_on_deadline(cp_timer *timer);
/* Ends a request that has not been answered with this error in its handler's place. false: it stays, because the
 * handler will answer, cannot be stopped, or has answered. */
bool mux_give_up(mux *m, pend *p, cp_end why, bool kill, const cp_err *err);
void mux_lose(mux *m, pend *p);    /* ends p without a word: the connection is lost */
void mux_admit(mux *m);            /* dispatches requests that waited */
void mux_run_now(mux *m, pend *p); /* dispatches one that waits, out of turn: p may be gone afterwards */
void mux_forget_waiting(mux *m, pend *p);
void mux_stops_running(mux *m, pend *p, size_t reply_size);

/* ---- mux_envelope.c: messages that are not parsed ---- */

/* Adds the members "type" and "id" of a message, as they stand there, as an object of their own: as far as the text can
 * be followed, and at most MUX_ENVELOPE_MAX bytes. Any thread. */
void mux_envelope(cp_str text, cp_buf *out);

/* ---- mux_stdin.c: input ---- */

void mux_stdin(mux *m, const mux_msg *msg, cp_str id);
void mux_forget_acks(pend *p); /* when p ends */

/* ---- mux_reply.c: what goes to the peer ---- */

extern const cp_reply_ops mux_reply_ops;
/* One text message with a JSON body that is known to fit a frame. */
void mux_put_response(mux *m, cp_str id, int status, cp_str body);
void mux_put_error(mux *m, cp_str id, const char *code, int status, const char *msg);
void mux_put_err(mux *m, cp_str id, const cp_err *err);
/* The same for a message that never became a request: counted for /metrics. */
void mux_refuse(mux *m, cp_str id, const cp_err *err);
/* A "stdin" or "window" message about request id was refused: the request itself goes on. */
void mux_refuse_message(mux *m, cp_str id, const char *of, const cp_err *err);
void mux_refuse_as(mux *m, cp_str id, const char *code, int status, const char *msg);
void mux_put_taken(mux *m, cp_str id, size_t bytes); /* the receipt for a piece of input */
void mux_put_hello(mux *m, cp_str id);
/* Ends p with this result, of which it takes what it owns; p is gone afterwards or, when large, is being sent. */
void mux_answer(mux *m, pend *p, cp_result *res);
void mux_answer_error(mux *m, pend *p, const cp_err *err);
/* The same for a request that never became pending. */
void mux_answer_now(mux *m, cp_str id, const cp_match *match, uint64_t started_us, cp_result *res);
/* Ends p with this error, but its work, which nothing can stop, goes on: until then it counts as running. */
void mux_answer_held(mux *m, pend *p, const cp_err *err);
/* Unlinks, counts for /metrics, and frees, unless the handler still holds the reply (orphan): then that frees it. */
void mux_end(mux *m, pend *p, int status, bool orphan);
/* Writable: sends what may be sent now. */
void mux_pull(mux *m);
void mux_pong(cp_ws *ws, cp_str payload);
size_t mux_held(const mux *m); /* bytes owed to the peer, outbox included */
void mux_check_full(mux *m);   /* pauses and resumes the reading */

/* ---- mux_stream.c: pulled streams ---- */

void mux_start_stream(mux *m, pend *p, cp_source *src);
bool mux_pull_stream(mux *m); /* one step of the stream whose turn it is; false: none is ready */
void mux_close_source(mux *m, pend *p, cp_end why, bool kill); /* the caller answers */
void mux_window(mux *m, cp_str id, yyjson_val *bytes);
void mux_wake_stream(mux *m, pend *p);
