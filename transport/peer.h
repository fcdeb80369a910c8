#pragma once
/* With --child-user and no token: what runs as that user may not call the API, because whoever calls it starts commands
 * and reads files in everybody's name. The kernel knows whose the other end of a connection within this machine is. */
#include "base/err.h"
#include "schema/config.h"

/* 0, or -1 with CHILD_NOT_ALLOWED. fd: a connected TCP socket. An end within this machine that has no owner any more
 * (it was closed behind its request) is nobody who waits for an answer, and is refused. Asks the kernel: microseconds.
 * Any thread. Without --child-user, with a token, or with --allow-child-calls it asks nothing. */
int cp_peer_check(const cp_config *c, int fd, cp_err *err);
