#pragma once
/* The keeper: the process that is started (PID 1 in a container), design.md section 2. It starts the server, spawns and
 * reaps every child, holds what durable children need to outlive the server, and ends everything in order.
 *
 * Signals to the keeper:
 *   TERM INT QUIT   shut down: forwarded to CMD; the server drains (10 s, then KILL); the process trees get TERM, after
 *                   the grace KILL. A second one goes straight to KILL; what not even that ends is left after 5 s,
 *                   or at a third. Exit status 0.
 *   HUP             always the upgrade of the server, never forwarded: HANDOVER (5 s, then KILL), then the server's
 *                   path is started anew, on the same port, with all that is held.
 *   USR1 USR2 WINCH forwarded to CMD.
 *
 * CMD inherits stdio. Where stdin is a terminal it stays in the keeper's process group, so that it may read from it;
 * then what the terminal sends (Ctrl-C) reaches it from the kernel and is not forwarded a second time. */
#include <stdint.h>

#include "base/buf.h"

typedef struct cp_keeper_opts {
    const char *server_path;         /* the conflux-server binary */
    cp_str config;                   /* opaque; given to each server at its start */
    const char *const *cmd;          /* serve -- CMD…; NULL: none */
    const char *state_dir;           /* exists; holds keeper.lock and keeper.mark. NULL: no lock, no sweep */
    void (*announce)(uint16_t port); /* once, when the first server is ready; NULL: nobody wants to know */
    unsigned grace_ms;               /* between TERM and KILL of the trees at the end; 0: 2000 */
    unsigned start_limit_ms;         /* from the start of a server to its READY, then KILL; 0: 30000 */
    unsigned kill_limit_ms;          /* how long the end waits for what has had KILL (state D); 0: 5000 */
    unsigned spawn_limit_ms; /* from a spawn to its execve; then it is killed, and refused with ETIMEDOUT; 0: 10000 */
    unsigned starts_max;     /* spawns under way, or given up and not gone yet; 0: 512. More are refused with EAGAIN */
    unsigned children_max;   /* running, or durable and not acknowledged; 0: 8192. More are refused with EAGAIN */
} cp_keeper_opts;

/* Runs until shut down. Blocks signals, makes the process a subreaper and waits for every child it has: for a process
 * that does nothing else. Returns the exit status of the program: 0; 1 when the first start failed (the reason is on
 * stderr); the status of a failed CMD (128 + signal; 126, 127 when it could not be run). */
int cp_keeper_main(const cp_keeper_opts *opts);

/* The keeper without a server of its own: serves the one who has the other end of the SEQPACKET socket fd (taken) until
 * that one closes it, then kills and reaps all children. Of opts only limits count. No signal but SIGCHLD is touched.
 * 0, or 1 when it could not start. */
int cp_keeper_run_on(int fd, const cp_keeper_opts *opts);
