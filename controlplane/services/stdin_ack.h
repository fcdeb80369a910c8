#pragma once
/* The receipt for a piece of input: asked for with the piece, given when the command's pipe has taken all of it, or
 * when nobody will (the command closed its input or is over). Whoever feeds a command waits for them, so that a slow
 * reader never meets the bound of its queue. Loop thread only. */
#include <stdint.h>

enum { CP_STDIN_ACK_COST = 96 }; /* bytes that one is counted for: with what its owner keeps beside it */

typedef struct cp_stdin_ack {
    struct cp_stdin_ack *next; /* the queue's, with upto */
    uint64_t upto;             /* bytes of input of this command, its last one included */
    /* Exactly once, perhaps before the call that gave the piece returns; the owner frees. Must not feed: the queue is
     * being walked. */
    void (*taken)(struct cp_stdin_ack *ack);
} cp_stdin_ack;
