#pragma once
/* Ends the tree of an execution and waits until both are known: who was killed, and how it ended. Loop thread. */
#include "handlers/router.h"
#include "services/exec.h"

/* Called exactly once, on the loop, maybe before cp_exec_end has returned. e and r are borrowed. */
typedef void cp_exec_end_done(void *arg, cp_exec *e, const cp_kill_result *r);
/* -1 when it had ended already; nothing is called then. */
int cp_exec_end(cp_exec *e, int sig, uint64_t grace_ms, cp_outcome why, cp_exec_end_done *done, void *arg, cp_err *err);
/* "killed":[pids],"survivors":[pids] */
void cp_jw_kill(cp_jw *w, const cp_kill_result *r);

typedef enum { CP_DELETE_PROCESS, CP_DELETE_EXECUTION } cp_delete_of;
/* Answers the DELETE of e, with ?signal=&graceMs=: {success, processId or executionId, killed, survivors}, or that it
 * has ended already. A client that goes away does not stop it. */
void cp_exec_delete(cp_ctx *ctx, const cp_request *req, cp_reply *reply, cp_exec *e, cp_delete_of what);
