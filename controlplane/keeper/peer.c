/* Design notes. What has to be told of a child it owes until the socket or the queue has taken it, so that no lack of
 * memory or of descriptors loses it; while something is owed, no request is read.
 *
 * The handover is pulled: while the socket takes records, the next durable child is told; so nothing piles up for a
 * server that is slow to start. A child that ends before its turn is told as ended; one that ends after it gets an exit
 * record like any other, which may come before held_end. A child is `told` once the present server has heard of it, by
 * its own spawn or by held. */
#include "keeper/core.h"

#include "base/fd.h"
#include "base/log.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { FLUSH_RETRY_MS = 2 };

static void on_peer(cp_io *io, uint32_t events);

/* false: not now, there is no room to queue it. What is for a server that is gone is dropped: its exit starts another,
 * which is told everything anew. */
static bool send_record(keeper *k, const cp_wire *m, const int *fds) {
    return cp_chan_send(&k->chan, m, fds) == 0 || errno == EPIPE || errno == ECONNRESET;
}

static bool hold_back(keeper *k) {
    return cp_chan_queued(&k->chan) > QUEUE_PAUSE || k->owed.type || k->owing || start_busy(k);
}

void peer_watch(keeper *k) {
    if (!k->chan_io.slot) return;
    k->paused = hold_back(k);
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
            bool another = c->generation != k->generation; /* else the server has asked for it itself */
            if (c->key && another && !c->told && !tell_held(k, c)) return false;
            k->books.telling = TAILQ_NEXT(c, all);
        } else if (send_record(k, &(cp_wire){.type = CP_WIRE_held_end}, NULL)) {
            k->telling = false;
        } else {
            return false;
        }
    }
    return true;
}

/* ---- what is owed ---- */

static void flush_soon(keeper *k);

/* What a child owes, in order. c may be gone afterwards. */
static void pay(keeper *k, child *c) {
    cp_wire refused = {.type = CP_WIRE_spawned, .spawned = {.tag = c->tag, .sys = c->sys, .step = c->step}};
    cp_wire spawned = {.type = CP_WIRE_spawned};
    spawned.spawned = (cp_wire_rec_spawned){
        .tag = c->tag, .pid = c->pid, .start_time = c->start_time, .spawn = c->mark.spawn, .command = c->mark.command};
    cp_wire exited = {.type = CP_WIRE_exited, .exited = {.tag = c->tag}};
    CP_WIRE_SET_EXIT(&exited.exited, &c->exit);
    const struct {
        uint8_t bit;
        const cp_wire *m;
    } debts[] = {{OWES_REFUSED, &refused}, {OWES_SPAWNED, &spawned}, {OWES_EXITED, &exited}};
    bool over = c->owes & OWES_REFUSED || (c->owes & OWES_EXITED && !c->key);
    for (size_t i = 0; i < CP_COUNT(debts); i++) {
        if (!(c->owes & debts[i].bit)) continue;
        if (!send_record(k, debts[i].m, NULL)) {
            k->owing = true;
            flush_soon(k);
            return;
        }
        c->owes &= (uint8_t)~debts[i].bit;
    }
    if (over) books_remove(&k->books, c);
}

static void pay_all(keeper *k) {
    if (k->owed.type && send_record(k, &k->owed, NULL)) k->owed = (cp_wire){0};
    if (!k->owing) return;
    k->owing = false;
    for (child *c = TAILQ_FIRST(&k->books.all), *next; c; c = next) {
        next = TAILQ_NEXT(c, all);
        if (c->owes) pay(k, c);
    }
}

static void owe(keeper *k, child *c, uint8_t what) {
    c->owes |= what;
    pay(k, c);
    peer_watch(k);
}

void peer_tell_spawned(keeper *k, child *c) {
    cp_proc_stat st;
    c->told = true;
    if (!c->start_time && !c->exited && cp_proc_stat_read(c->pid, &st))
        c->start_time = st.start_time; /* no descriptor before */
    owe(k, c, OWES_SPAWNED);
}

void peer_tell_refused(keeper *k, child *c, int sys, uint8_t step) {
    c->sys = sys;
    c->step = step;
    if (c->pid && !c->exited) books_no_pid(&k->books, c);
    owe(k, c, OWES_REFUSED);
}

void peer_tell_exit(keeper *k, child *c) { owe(k, c, OWES_EXITED); }

void peer_answer(keeper *k, const cp_wire *m) {
    if (!send_record(k, m, NULL)) {
        k->owed = *m;
        flush_soon(k);
    }
    peer_watch(k);
}

void peer_refuse(keeper *k, uint64_t tag, int sys, uint8_t step) {
    peer_answer(k, &(cp_wire){.type = CP_WIRE_spawned, .spawned = {.tag = tag, .sys = sys, .step = step}});
}

void peer_send(keeper *k, const cp_wire *m) {
    if (cp_chan_is_open(&k->chan) && !send_record(k, m, NULL))
        cp_log(CP_LOG_ERROR, "keeper.send", "an order to the server is lost", CP_KVZ("errno", cp_errno_name(errno)));
}

/* ---- the socket ---- */

static void flush_later(cp_timer *t) {
    keeper *k = CP_CONTAINER(t, keeper, flush_timer);
    if (k->chan_io.slot) on_peer(&k->chan_io, EPOLLOUT);
}

static void flush_soon(keeper *k) {
    if (!cp_timer_active(&k->flush_timer)) cp_timer_start(k->loop, &k->flush_timer, FLUSH_RETRY_MS, flush_later);
}

static void lost(keeper *k) {
    peer_close(k);
    supervise(k, EV_EOF);
}

static void flush(keeper *k) {
    bool later = false;
    pay_all(k);
    if (cp_chan_flush(&k->chan, &later) < 0) {
        lost(k); /* seen here, not by reading, when we were not reading */
        return;
    }
    if (!tell_more(k) || later) {
        cp_timer_start(k->loop, &k->flush_timer, FLUSH_RETRY_MS, flush_later);
        (void)cp_io_mod(k->loop, &k->chan_io, k->paused ? 0 : EPOLLIN);
    } else {
        peer_watch(k);
    }
}

static void broken(keeper *k, const char *why) {
    cp_log(CP_LOG_ERROR, "keeper.protocol", "the server breaks the keeper protocol", CP_KVZ("why", why));
    lost(k);
}

/* false: the socket is closed. */
static bool receive(keeper *k) {
    for (int i = 0; i < RECORDS_PER_ROUND && !hold_back(k); i++) {
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
    int fds[] = {config, k->listener};
    cp_wire m = {.type = CP_WIRE_hello, .nfds = (uint8_t)(config < 0 ? 0 : 1 + (k->listener >= 0))};
    m.hello = (cp_wire_rec_hello){.generation = k->generation, .port = k->port, .keeper_pid = getpid()};
    if (!send_record(k, &m, fds))
        cp_log(CP_LOG_ERROR, "keeper.send", "no greeting for the server", CP_KVZ("errno", cp_errno_name(errno)));
}

/* The one before has died with what it was still to be told; a durable child's end is told by held. */
static void forgive(keeper *k) {
    k->owed = (cp_wire){0};
    k->owing = false;
    for (child *c = TAILQ_FIRST(&k->books.all), *next; c; c = next) {
        next = TAILQ_NEXT(c, all);
        bool over = c->owes & OWES_REFUSED || (c->exited && !c->key);
        c->told = false;
        c->owes = 0;
        if (over) books_remove(&k->books, c);
    }
}

void peer_open(keeper *k, int fd) {
    cp_chan_init(&k->chan, fd);
    if (cp_io_add(k->loop, &k->chan_io, fd, EPOLLIN, on_peer) < 0) {
        cp_log(CP_LOG_ERROR, "keeper.watch", "cannot watch the server's socket", CP_KVZ("errno", cp_errno_name(errno)));
        return;
    }
    forgive(k);
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
        if (m.type == CP_WIRE_ack || m.type == CP_WIRE_close_hold) (void)request_handle(k, &m, fds);
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
