#pragma once
/* A piece of one stream's log by offset: /api/execution/{id}/logs, and /api/process/{id}/logs with parameters. */
#include "handlers/router.h"
#include "services/exec.h"

/* Does the query use the offset form? */
bool cp_exec_log_wanted(const cp_request *req);
/* Answers {success, stream, from, data, encoding, next, total, dropped, ended, timestamp}. Loop thread. */
void cp_exec_log(const cp_request *req, cp_exec *e, cp_reply *reply);
