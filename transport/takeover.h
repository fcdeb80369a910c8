#pragma once
/* Taking a connection's socket out of CivetWeb's hands. Any thread. */
#include <stdint.h>

#include "base/err.h"

typedef struct cp_fds cp_fds;

/* What CivetWeb tells of a connection: enough to find its socket. */
typedef struct cp_peer {
    const char *addr; /* numeric, as in mg_request_info.remote_addr */
    uint16_t remote_port, local_port;
} cp_peer;

/* wildcard: we listen on all local addresses. NULL on failure. */
cp_fds *cp_fds_new(bool wildcard, cp_err *err);
void cp_fds_free(cp_fds *f);

/* The descriptor of the connection, borrowed from CivetWeb, and claimed: later scans pass over it until
 * cp_fds_release. -1 when it cannot be told, with err. */
int cp_fds_claim(cp_fds *f, const cp_peer *peer, cp_err *err);
/* Call while fd is still open. -1 is fine. */
void cp_fds_release(cp_fds *f, int fd);

/* Moves the socket behind the claimed fd to a new descriptor, non-blocking and close-on-exec, which the caller owns and
 * which is claimed in its turn (cp_fds_close ends it); CivetWeb keeps /dev/null under the old number. -1 with err. */
int cp_fds_take(cp_fds *f, int fd, cp_err *err);
void cp_fds_close(cp_fds *f, int *fd);

/* The listening socket on this port, borrowed; -1 when there is none. */
int cp_fds_listener(uint16_t port);
