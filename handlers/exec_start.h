#pragma once
/* Starts a process or a stream and answers when it has begun. Loop thread. */
#include "handlers/exec_args.h"

/* A background process: {processId, pid, command}. Also execute with background: true. */
void cp_exec_start_process(cp_ctx *ctx, const cp_exec_args *a, cp_reply *reply);
/* A stream of events once the command has begun; what fails before is an ordinary error. */
void cp_exec_start_stream(cp_ctx *ctx, const cp_exec_args *a, cp_reply *reply);
/* Refuses a start for want of descriptors; not the repetition of one, which starts nothing. */
int cp_exec_admit(const cp_ctx *ctx, const cp_exec_args *a, cp_err *err);
