/* Reaping everything that ends: the server, CMD, children, and orphans that came to us as their subreaper (or as PID
 * 1), of which nobody needs to hear, no more than of a child whose execve failed. No other code in this process
 * waits. */
#include "keeper/core.h"

#include <errno.h>
#include <sys/resource.h>
#include <sys/wait.h>

static uint64_t micros(struct timeval t) { return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_usec; }

static cp_exit exit_of(int status, const struct rusage *ru) {
    return (cp_exit){.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                     .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                     .core = WIFSIGNALED(status) && WCOREDUMP(status),
                     .max_rss = (uint64_t)ru->ru_maxrss * 1024,
                     .cpu_us = micros(ru->ru_utime) + micros(ru->ru_stime)};
}

static void ended(keeper *k, child *c, const cp_exit *x) {
    if (c->adopt_by) { /* ours between two looks at its parent */
        c->adopt_by = 0;
        k->books.adopting--;
        peer_tell_spawned(k, c);
    }
    books_exited(&k->books, c, x);
    bool known = c->told && !c->acked && (c->key || c->generation == k->generation);
    if (known) peer_tell_exit(k, c);
    else if (!c->key) books_remove(&k->books, c);
}

void reap_children(keeper *k) {
    for (;;) {
        int status;
        struct rusage ru;
        pid_t pid = wait4(-1, &status, WNOHANG, &ru);
        if (pid < 0 && errno == EINTR) continue;
        if (pid <= 0) {
            bool none = pid < 0 && errno == ECHILD;
            adopt_check(k);
            if (none) supervise(k, EV_EMPTY);
            return;
        }
        start_reaped(k, pid);
        if (supervise_reaped(k, pid, status)) continue;
        child *c = books_by_pid(&k->books, pid);
        cp_exit x = exit_of(status, &ru);
        if (c) ended(k, c, &x);
    }
}
