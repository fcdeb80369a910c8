/* Design notes. A killed server is not reaped while one of its threads hangs in the kernel: in a file system that does
 * not answer, not even KILL ends a wait. Nor does its socket close, since that thread still has all descriptors. What
 * tells of its death all the same is its life line, a pipe whose other end belongs to one thread alone (client_life.c).
 * LIFE_LIMIT_MS after the end of that one the server counts as ended, and what is left of it is reaped whenever it
 * goes.
 *
 * It has the listening socket too. So every server lends us that, and the next one listens on the same: who connects
 * in between waits for it. */
#include "keeper/core.h"

#include "base/fd.h"
#include "base/log.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

static void on_time(cp_timer *t) {
    keeper *k = CP_CONTAINER(t, keeper, life_timer);
    if (!k->server) return;
    cp_log(CP_LOG_ERROR, "keeper.server_hangs",
           "the server has been killed, but a thread of it hangs in the kernel; going on without it",
           CP_KVI("pid", k->server));
    supervise_left(k);
}

/* Nothing is ever written to it. */
static void on_end(cp_io *io, uint32_t events) {
    (void)events;
    keeper *k = CP_CONTAINER(io, keeper, life_io);
    life_forget(k);
    cp_timer_start(k->loop, &k->life_timer, LIFE_LIMIT_MS, on_time);
}

void life_watch(keeper *k, int fd) {
    life_forget(k);
    if (cp_io_add(k->loop, &k->life_io, fd, 0, on_end) == 0) return; /* the end is told unasked */
    cp_log(CP_LOG_ERROR, "keeper.watch", "cannot watch the server's life line", CP_KVZ("errno", cp_errno_name(errno)));
    cp_close(&fd);
}

void life_forget(keeper *k) {
    cp_timer_stop(k->loop, &k->life_timer);
    if (!k->life_io.slot) return;
    int fd = k->life_io.fd;
    cp_io_del(k->loop, &k->life_io);
    cp_close(&fd);
}

void listener_keep(keeper *k, int fd) {
    cp_close(&k->listener);
    k->listener = fd;
}

void listener_end(keeper *k) {
    if (k->listener >= 0) (void)shutdown(k->listener, SHUT_RDWR); /* for everybody who has it */
    cp_close(&k->listener);
}
