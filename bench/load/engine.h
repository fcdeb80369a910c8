#pragma once
/* The engine drives operations through a door, closed loop (a slot begins the next operation when its last has ended)
 * or open loop (operations are due at a fixed rate, whatever has become of earlier ones; each counts from the moment it
 * was due, so that a stall of the server shows in all operations that it held up).
 *
 * A door is a way to a server: it knows how a request is put on a connection and where the answer is in what comes
 * back. A slot is a place for one operation in flight; it stays on its connection. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "load/http_in.h"
#include "transport/frame.h"

typedef struct conn conn;

typedef struct slot {
    conn *c;
    uint64_t intended; /* when the operation was due */
    uint64_t op, step;
    unsigned index; /* among the slots of its connection */
    unsigned left;  /* answers still to come in this step */
} slot;

typedef struct door {
    const char *name;
    bool one_slot;  /* a connection carries one operation at a time */
    bool reconnect; /* a connection that the server has closed is opened again */
    bool per_op;    /* each operation has a connection of its own */
    void (*open)(conn *c);
    void (*put)(conn *c, slot *s, unsigned nth); /* appends the nth of opt.burst requests of the slot's step */
    void (*take)(conn *c, char *p, size_t n, uint64_t now);
    bool (*ended)(conn *c, uint64_t now); /* the server has closed: true when that ended a response; may be NULL */
    void (*begin_beside)(conn *c);        /* the stream of --beside */
    void (*end_beside)(conn *c);
} door;

struct conn {
    const door *door;
    int fd; /* -1: not open */
    bool want_out;
    unsigned nslots;
    slot *slots;
    cp_buf out;
    size_t sent; /* of out */
    /* What the door keeps. */
    cp_frame_in ws;
    http_in http;
    cp_buf *made; /* requests that are always the same, per slot and nth */
    struct {
        uint64_t head, due; /* echo: the order in which slots were put; bytes of an answer that have come */
        unsigned *order;
    } fifo;
    struct {
        cp_buf head;   /* mux: what has come of the head of a frame; whole while its bytes are taken */
        uint64_t left; /* of them */
    } mux;
    bool beside_open;
    uint64_t owed; /* credit for the stream beside, not given back yet */
};

extern const door *const doors[]; /* ends with NULL */

/* For doors: one answer of this slot has come. */
void engine_reply(slot *s, uint64_t now);
/* For doors: the slot of a connection's single operation, when one is in flight, else NULL. */
slot *engine_single(conn *c);
/* For doors: bytes of the stream beside have come. */
void engine_beside(uint64_t bytes);
/* For doors: sends what is in c->out as far as it goes. */
void engine_flush(conn *c);

/* Scenario "calls". */
int engine_run(void);
