#pragma once
/* A keeper for component tests: a process of its own that serves the socket returned, without a server to supervise. It
 * ends, and kills whatever it has spawned, when the socket is closed. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "keeper/keeper.h"

static cp_keeper_opts keeper_fixture_opts; /* of the next one */

/* The server's end for cp_keeper_open, or -1. Call it before the test starts threads. */
static inline int keeper_fixture_start(pid_t *pid) {
    int sv[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv) < 0) return -1;
    *pid = fork();
    if (*pid < 0) return -1;
    if (*pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        /* Only its own socket: a copy of a pipe of the test would keep that pipe open. */
        if (sv[1] != 3) dup2(sv[1], 3);
        syscall(SYS_close_range, 4u, ~0u, 0u);
        _exit(cp_keeper_run_on(3, &keeper_fixture_opts));
    }
    close(sv[1]);
    return sv[0];
}

/* After cp_keeper_close: waits for the keeper and returns its exit status (0 when all went well), or -1. */
static inline int keeper_fixture_wait(pid_t pid) {
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
