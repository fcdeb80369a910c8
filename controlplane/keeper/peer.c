/* Design notes. The handover is pulled: while the socket takes records, the next durable child is told; so nothing
 * piles up for a server that is slow to start. A child that ends before its turn is told as ended; one that ends after
 * it gets an exit record like any other, which may come before held_end. A child is `told` once the present server has
 * heard of it, by its own spawn or by held. */
#include "keeper/core.h"

#include "base/fd.h"
#include "base/log.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { FLUSH_RETRY_MS = 2 };

static void on_peer(cp_io *io, uint32_t events);

static bool send_record(keeper *k, const cp_wire *m, const int *fds) {
    return cp_chan_send(&k->chan, m, fds) == 0 || errno == EPIPE || errno == ECONNRESET;
}

/* Sends to a server that is gone are dropped: its exit starts another, which is told everything anew. */
void peer_send(keeper *k, const cp_wire *m, const int *fds) {
    if (cp_chan_is_open(&k->chan) && !send_record(k, m, fds))
        cp_log(CP_LOG_ERROR, "keeper.send", "a record for the server is lost", CP_KVZ("errno", cp_errno_name(errno)));
}

static void watch(keeper *k) {
    if (!k->chan_io.slot) return;
    k->paused = cp_chan_queued(&k->chan) > QUEUE_PAUSE;
    uint32_t in = k->paused ? 0 : EPOLLIN, out = cp_chan_queued(&k->chan) ? EPOLLOUT : 0;
    (void)cp_io_mod(k->loop, &k->chan_io, in | out);
}

/* false: no descriptor is free for the queue. */
static bool tell_held(keeper *k, child *c) {
    int fds[3];
    cp_wire m = {.type = CP_WIRE_held};
    m.held = (cp_wire_rec_held){.tag = c->tag,
                                .pid = c->pid,
                                .start_time = c->start_time,
                                .spawn = c->mark.spawn,
                                .command = c->mark.command,
                                .key = cp_str_of(c->key),
                                .exited = c->exited};
    CP_WIRE_SET_EXIT(&m.held, &c->exit);
    for (int i = 0; i < 3; i++) {
        if (c->hold[i] < 0) continue;
        m.held.hold |= (uint8_t)(1 << i);
        fds[m.nfds++] = c->hold[i];
    }
    c->told = send_record(k, &m, fds);
    return c->told;
}

/* false: come again later. */
static bool tell_more(keeper *k) {
    while (k->telling && !cp_chan_queued(&k->chan)) {
        child *c = k->books.telling;
        if (c) {
            if (c->key && !c->told && !tell_held(k, c)) return false;
            k->books.telling = TAILQ_NEXT(c, all);
        } else {
            k->telling = false;
            peer_send(k, &(cp_wire){.type = CP_WIRE_held_end}, NULL);
        }
    }
    return true;
}

static void flush_later(cp_timer *t) {
    keeper *k = CP_CONTAINER(t, keeper, flush_timer);
    if (k->chan_io.slot) on_peer(&k->chan_io, EPOLLOUT);
}

static void lost(keeper *k) {
    peer_close(k);
    supervise(k, EV_EOF);
}

static void flush(keeper *k) {
    bool later = false;
    if (cp_chan_flush(&k->chan, &later) < 0) {
        lost(k); /* seen here, not by reading, when we were not reading */
        return;
    }
    if (!tell_more(k) || later) {
        cp_timer_start(k->loop, &k->flush_timer, FLUSH_RETRY_MS, flush_later);
        (void)cp_io_mod(k->loop, &k->chan_io, k->paused ? 0 : EPOLLIN);
    } else {
        watch(k);
    }
}

static void broken(keeper *k, const char *why) {
    cp_log(CP_LOG_ERROR, "keeper.protocol", "the server breaks the keeper protocol", CP_KVZ("why", why));
    lost(k);
}

/* false: the socket is closed. */
static bool receive(keeper *k) {
    for (int i = 0; i < RECORDS_PER_ROUND && cp_chan_queued(&k->chan) <= QUEUE_PAUSE; i++) {
        cp_wire m;
        cp_err err;
        int fds[CP_WIRE_FDS];
        cp_chan_result got = cp_chan_recv(&k->chan, &m, fds, &err);
        if (got == CP_CHAN_EMPTY) break;
        if (got == CP_CHAN_CLOSED) {
            lost(k);
            return false;
        }
        bool ok = got == CP_CHAN_GOT && request_handle(k, &m, fds);
        for (size_t f = 0; got == CP_CHAN_GOT && f < m.nfds; f++) cp_close(&fds[f]);
        if (!ok) {
            broken(k, got == CP_CHAN_GOT ? "unexpected record" : err.msg);
            return false;
        }
        if (!cp_chan_is_open(&k->chan)) return false;
    }
    return true;
}

static void on_peer(cp_io *io, uint32_t events) {
    keeper *k = CP_CONTAINER(io, keeper, chan_io);
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR) && !receive(k)) return;
    flush(k);
}

static void say_hello(keeper *k) {
    cp_autofd int config = cp_memfd("conflux-config", k->opts->config.p, k->opts->config.n);
    cp_wire m = {.type = CP_WIRE_hello, .nfds = config >= 0};
    m.hello = (cp_wire_rec_hello){.generation = k->generation, .port = k->port, .keeper_pid = getpid()};
    peer_send(k, &m, &config);
}

void peer_open(keeper *k, int fd) {
    cp_chan_init(&k->chan, fd);
    if (cp_io_add(k->loop, &k->chan_io, fd, EPOLLIN, on_peer) < 0) {
        cp_log(CP_LOG_ERROR, "keeper.watch", "cannot watch the server's socket", CP_KVZ("errno", cp_errno_name(errno)));
        return;
    }
    child *c;
    TAILQ_FOREACH(c, &k->books.all, all) c->told = false;
    k->books.telling = TAILQ_FIRST(&k->books.all);
    k->telling = true;
    say_hello(k);
    flush(k);
}

void peer_last_words(keeper *k) {
    cp_wire m;
    cp_err err;
    int fds[CP_WIRE_FDS];
    while (cp_chan_recv(&k->chan, &m, fds, &err) == CP_CHAN_GOT) {
        if (m.type == CP_WIRE_ack) (void)request_handle(k, &m, fds);
        for (size_t f = 0; f < m.nfds; f++) cp_close(&fds[f]);
    }
}

void peer_close(keeper *k) {
    cp_timer_stop(k->loop, &k->flush_timer);
    cp_io_del(k->loop, &k->chan_io);
    cp_chan_fini(&k->chan);
    k->chan.fd = -1;
    k->telling = false;
}

void peer_tell_spawned(keeper *k, const child *c) {
    cp_wire m = {.type = CP_WIRE_spawned};
    m.spawned = (cp_wire_rec_spawned){
        .tag = c->tag, .pid = c->pid, .start_time = c->start_time, .spawn = c->mark.spawn, .command = c->mark.command};
    peer_send(k, &m, NULL);
    watch(k);
}

void peer_refuse(keeper *k, uint64_t tag, int sys, uint8_t step) {
    cp_wire m = {.type = CP_WIRE_spawned, .spawned = {.tag = tag, .sys = sys, .step = step}};
    peer_send(k, &m, NULL);
    watch(k);
}

void peer_tell_exit(keeper *k, const child *c) {
    cp_wire m = {.type = CP_WIRE_exited, .exited = {.tag = c->tag}};
    CP_WIRE_SET_EXIT(&m.exited, &c->exit);
    peer_send(k, &m, NULL);
    watch(k);
}
