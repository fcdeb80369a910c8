#pragma once
/* Streams of events that are read to their end, whatever the connection does meanwhile. */
#include "cli/cli.h"

enum { CLI_ENOUGH = -1 }; /* what an event function returns when the stream is over for it */

typedef struct cli_follower {
    void *arg;
    /* The request's path; `last` is the id of the last event that came ("": none did). */
    void (*path)(void *arg, const char *last, cp_buf *out);
    /* CLI_OK to go on, CLI_ENOUGH, or an exit status to stop with. */
    int (*event)(void *arg, yyjson_val *ev, const conflux_event *raw);
    const cp_buf *body; /* NULL: none */
    bool again;         /* a lost connection is made again, and the stream asked for behind its last event */
} cli_follower;

/* CLI_OK after CLI_ENOUGH. A stream that just ends has been cut. */
int cli_follow(cli *c, const cli_follower *f);
