#pragma once
/* The output of an execution as a stream of events, pulled by the transport. Loop thread. */
#include "handlers/router.h"
#include "services/exec.h"

typedef struct cp_exec_source_opts {
    bool process; /* events of process/{id}/stream; else those of execute/stream */
    bool base64;
    bool ids;     /* the start event names execution and process (requests that use our additions) */
    bool offsets; /* events carry offsets; lost bytes are announced */
    uint64_t from[2];
    bool kill_on_cancel, kill_on_disconnect;
} cp_exec_source_opts;

/* e has started or ended; the source takes a reference of its own. */
cp_source *cp_exec_source_new(cp_ctx *ctx, cp_exec *e, const cp_exec_source_opts *o);
