#pragma once
/* A request that waits for an execution to end and answers with its result: buffered execute, and
 * GET /api/execution/{id}?waitMs=. Loop thread. */
#include "handlers/exec_result.h"

typedef struct cp_call cp_call;

typedef struct cp_call_opts {
    cp_exec_view view;
    bool kill_on_cancel, kill_on_disconnect;
    bool detaches; /* after detach_ms the answer is 202 with the execution's id */
    uint64_t detach_ms;
} cp_call_opts;

cp_call *cp_call_new(cp_ctx *ctx, cp_reply *reply, const cp_call_opts *o);
/* The watch to start the execution with. */
cp_exec_watch *cp_call_watch(cp_call *c);
/* It has begun (or was found): takes the reference. From here on the call answers and frees itself. */
void cp_call_run(cp_call *c, cp_exec *e);
/* As cp_call_run, for an execution that another request has started, and that may be over. */
void cp_call_attach(cp_call *c, cp_exec *e);
void cp_call_drop(cp_call *c); /* it did not begin: the caller answers */

/* 202 {success, executionId, status} with a Location. `detached`: says so. */
void cp_exec_accepted(cp_reply *reply, cp_exec *e, bool detached);
