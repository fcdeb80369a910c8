#pragma once
/* Inside the client only. */
#include "keeper/client.h"
#include "keeper/wire_chan.h"

enum {
    CLIENT_BUCKETS = 1024,
    CLIENT_QUEUE_MAX = 4096, /* records that the keeper has not taken yet: then no spawn and no adoption is added */
};

/* A held child that nobody has claimed yet: its exit waits here. */
struct unclaimed {
    struct unclaimed *next;
    uint64_t tag;
    bool exited;
    cp_exit exit;
    cp_keeper *keeper; /* set with deferred: claimed, the exit is about to be delivered */
    cp_deferred deferred;
};

/* A close_hold under way. child is not touched once done is NULL. */
struct closing {
    struct closing *next;
    uint64_t tag;
    uint8_t which;
    cp_child *child;
    void (*done)(cp_child *c);
};

struct cp_keeper {
    cp_loop *loop;
    cp_keeper_events ev;
    cp_chan chan;
    cp_io io;
    cp_timer flush_timer;
    cp_deferred lost, orders;
    bool drain, handover;
    bool *gone; /* set when closed from inside a callback */
    uint32_t generation;
    uint64_t last_tag;
    struct unclaimed *unclaimed;
    struct closing *closing, **closing_tail; /* in the order in which the keeper answers */
    cp_child *table[CLIENT_BUCKETS];
};

void client_enter(cp_keeper *k, cp_child *c);
uint64_t client_next_tag(cp_keeper *k);
/* Refuses when the keeper is gone. */
int client_send(cp_keeper *k, const cp_wire *m, const int *fds, cp_err *err);
/* For what asks for something new: refuses when the queue is long as well. */
int client_ask(cp_keeper *k, const cp_wire *m, const int *fds, cp_err *err);
