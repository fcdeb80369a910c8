#pragma once
/* What the handlers of /api/process share. Loop thread. */
#include "handlers/router.h"
#include "services/exec.h"

/* By the first {…} of the path. NULL: PROCESS_NOT_FOUND has been answered. */
cp_exec *cp_process_find(cp_ctx *ctx, const cp_request *req, cp_reply *reply);
/* The process object of get, list and wait. */
void cp_jw_process(cp_jw *w, const cp_exec *e);
/* Calls done(arg, e) once e is not between its last breath and its end (exited, output not drained yet): at once for
 * most. While it waits the reply's on_cancel is the wait's. done is not called when the reply is gone. */
typedef void cp_settled_done(cp_ctx *ctx, cp_exec *e, cp_reply *reply, void *arg);
void cp_process_settled(cp_ctx *ctx, cp_exec *e, cp_reply *reply, cp_settled_done *done, void *arg);

void cp_process_wait(cp_ctx *ctx, const cp_request *req, cp_reply *reply);   /* process_wait.c */
void cp_process_signal(cp_ctx *ctx, const cp_request *req, cp_reply *reply); /* process_input.c */
void cp_process_stdin(cp_ctx *ctx, const cp_request *req, cp_reply *reply);
void cp_process_list(cp_ctx *ctx, const cp_request *req, cp_reply *reply);   /* process_list.c */
void cp_process_delete(cp_ctx *ctx, const cp_request *req, cp_reply *reply); /* process_kill.c */
void cp_process_kill_all(cp_ctx *ctx, const cp_request *req, cp_reply *reply);
/* A signal by name, with or without SIG, or by number. */
int cp_signal_of(cp_str text, const char *field, int *sig, cp_err *err);
/* Answers a wait that came to nothing (`word`: what it was for); of a process that is over with the end of its output.
 * Loop thread. */
void cp_process_not_ready(cp_reply *reply, cp_exec *e, const cp_err *err, const char *word, unsigned timeout_ms);
