#pragma once
/* The inside of a WebSocket connection, for ws.c (its life) and ws_list.c (all of them). */
#include "transport/ws.h"

typedef enum {
    WS_OPEN,
    WS_FLUSHING, /* a close is wanted: first everything goes out */
    WS_CLOSING,  /* our close frame is on its way or sent; the peer's is awaited */
    WS_LINGER,   /* both are done with each other: the rest goes out, our side is shut, the peer's end is awaited */
} ws_state;

struct cp_ws {
    cp_ws *prev, *next;
    cp_transport *t;
    const cp_ws_endpoint *ep;
    void *data;
    uint64_t id;
    cp_io io;
    cp_outbox out;
    cp_frame_in in;
    const cp_frame_event *ev; /* while the endpoint's message callback runs */
    cp_buf rest;              /* what was read and not decoded when the reading paused */
    cp_deferred resume;
    cp_timer timer;
    cp_charge collecting; /* for an unfinished message, and for `rest` */
    uint64_t probe_at;    /* when liveness is looked at next */
    char *close_reason;   /* for FLUSHING */
    uint16_t close_code;
    uint8_t state;
    uint8_t unanswered; /* pings sent since the last byte came */
    bool rested;        /* half an interval has passed since the last ping was answered */
    bool paused;        /* by the endpoint */
    bool full;          /* outbox above its high-water mark */
    bool ended;         /* the endpoint's close has been called */
    bool shut;
    union {
        sa_family_t family;
        struct sockaddr_in in4;
        struct sockaddr_in6 in6;
    } peer;
};

enum {
    WS_READ = 64 * 1024,
};

struct cp_ws_shared {
    cp_transport *t;
    uint64_t last_id;
    cp_timer drain;
    cp_deferred drained;
    void (*drain_done)(void *arg); /* NULL when no drain is on */
    void *drain_arg;
    uint64_t turn_until; /* cp_now_us: of the connection that is being served */
    cp_buf spare;        /* memory for the next rest */
    char read[WS_READ];  /* all connections read into this; only what is left over is kept by each */
};

/* Takes it out of the world at once: the peer sees an end or a reset. Frees ws. */
void cp_ws_cut(cp_ws *ws);
struct cp_ws_shared *cp_ws_shared_of(cp_transport *t);
/* Tells a drain that a connection has gone, or the last of its requests. */
void cp_ws_left(cp_transport *t);
/* "addr:port", "[addr]:port" or "local". */
const char *cp_ws_peer(const cp_ws *ws, char out[64]);
