/* Design notes. Children are found by tag, which the client gives out: the generation of the server in the upper bits,
 * so that a tag is never used again over restarts. The table holds a child from its spawn to its exit. What the keeper
 * says about a tag that is not in it (forgotten, or a held child not yet claimed) is dropped, except the exit of an
 * unclaimed one, which waits for the claim. */
#include "keeper/client.h"

#include "base/clock.h"
#include "base/fd.h"
#include "keeper/client_impl.h"
#include "keeper/wire_chan.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OPEN_LIMIT_MS = 10000, FLUSH_RETRY_MS = 2, CONFIG_MAX = 16 << 20, RECORDS_PER_ROUND = 64 };

static void on_keeper(cp_io *io, uint32_t events);

/* ---- table ---- */

static cp_child **bucket(cp_keeper *k, uint64_t tag) { return &k->table[tag % CLIENT_BUCKETS]; }

void client_enter(cp_keeper *k, cp_child *c) {
    cp_child **b = bucket(k, c->tag);
    c->hnext = *b;
    *b = c;
}

static cp_child *find(cp_keeper *k, uint64_t tag) {
    cp_child *c = *bucket(k, tag);
    while (c && c->tag != tag) c = c->hnext;
    return c;
}

static void leave(cp_keeper *k, const cp_child *c) {
    for (cp_child **p = bucket(k, c->tag); *p; p = &(*p)->hnext) {
        if (*p != c) continue;
        *p = c->hnext;
        return;
    }
}

uint64_t client_next_tag(cp_keeper *k) { return ((uint64_t)k->generation + 1) << 40 | ++k->last_tag; }

static struct unclaimed *take_unclaimed(cp_keeper *k, uint64_t tag) {
    for (struct unclaimed **p = &k->unclaimed, *u; (u = *p); p = &u->next) {
        if (u->tag != tag) continue;
        *p = u->next;
        return u;
    }
    return NULL;
}

static struct unclaimed *find_unclaimed(const cp_keeper *k, uint64_t tag) {
    struct unclaimed *u = k->unclaimed;
    while (u && u->tag != tag) u = u->next;
    return u;
}

/* ---- the keeper is gone ---- */

static void run_lost(cp_deferred *d) {
    cp_keeper *k = CP_CONTAINER(d, cp_keeper, lost);
    if (k->ev.on_lost) k->ev.on_lost(k->ev.arg);
}

static void lost(cp_keeper *k) {
    if (!cp_chan_is_open(&k->chan)) return;
    cp_timer_stop(k->loop, &k->flush_timer);
    cp_io_del(k->loop, &k->io);
    cp_chan_fini(&k->chan);
    k->chan.fd = -1;
    cp_loop_defer(k->loop, &k->lost, run_lost); /* not in the middle of somebody's spawn */
}

/* ---- sending ---- */

static void flush_later(cp_timer *t) {
    cp_keeper *k = CP_CONTAINER(t, cp_keeper, flush_timer);
    on_keeper(&k->io, EPOLLOUT);
}

static void watch(cp_keeper *k, bool later) {
    if (!k->io.slot) return;
    if (later) cp_timer_start(k->loop, &k->flush_timer, FLUSH_RETRY_MS, flush_later);
    (void)cp_io_mod(k->loop, &k->io, EPOLLIN | (cp_chan_queued(&k->chan) && !later ? EPOLLOUT : 0));
}

int client_send(cp_keeper *k, const cp_wire *m, const int *fds, cp_err *err) {
    if (!cp_chan_is_open(&k->chan)) return cp_fail(err, CP_E_INTERNAL_ERROR, "the keeper is gone");
    if (cp_chan_send(&k->chan, m, fds) < 0) {
        int sys = errno;
        if (sys == EPIPE || sys == ECONNRESET) lost(k);
        if (sys == EMFILE || sys == ENFILE) return cp_fail_sys(err, CP_E_TOO_MANY_FILES, sys, "keeper");
        return cp_fail_sys(err, CP_E_INTERNAL_ERROR, sys, "keeper");
    }
    watch(k, false);
    return 0;
}

int client_ask(cp_keeper *k, const cp_wire *m, const int *fds, cp_err *err) {
    if (cp_chan_queued(&k->chan) >= CLIENT_QUEUE_MAX)
        return cp_fail(err, CP_E_LIMIT_EXCEEDED, "%d requests wait for the keeper", CLIENT_QUEUE_MAX);
    return client_send(k, m, fds, err);
}

/* ---- receiving ---- */

static void on_spawned(cp_keeper *k, const cp_wire_rec_spawned *r) {
    cp_child *c = find(k, r->tag);
    if (!c) return;
    if (r->sys) {
        leave(k, c);
    } else {
        c->pid = r->pid;
        c->start_time = r->start_time;
        c->mark = (cp_mark){r->spawn, r->command};
    }
    if (c->on_spawn) c->on_spawn(c, r->sys, r->sys ? cp_wire_step_name(r->step) : "");
}

static void on_exited(cp_keeper *k, const cp_wire_rec_exited *r) {
    cp_exit x = CP_WIRE_GET_EXIT(r);
    cp_child *c = find(k, r->tag);
    if (c) {
        leave(k, c);
        if (c->on_exit) c->on_exit(c, &x);
        return;
    }
    struct unclaimed *u = find_unclaimed(k, r->tag);
    if (!u) return;
    u->exited = true;
    u->exit = x;
}

static void on_closed(cp_keeper *k, const cp_wire_rec_closed *r) {
    for (struct closing **p = &k->closing, *w; (w = *p); p = &w->next) {
        if (w->tag != r->tag || w->which != r->which) continue;
        *p = w->next;
        if (!*p) k->closing_tail = p;
        cp_child *c = w->child;
        void (*done)(cp_child *) = w->done;
        free(w);
        if (done) done(c);
        return;
    }
}

static void run_orders(cp_deferred *d) {
    cp_keeper *k = CP_CONTAINER(d, cp_keeper, orders);
    bool drain = cp_take(k->drain), handover = cp_take(k->handover);
    if (drain) { /* the end comes before an upgrade */
        if (k->ev.on_drain) k->ev.on_drain(k->ev.arg);
    } else if (handover && k->ev.on_handover) {
        k->ev.on_handover(k->ev.arg);
    }
}

/* Deferred: one may come while cp_keeper_open still reads, when the server is not up yet. */
static void order(cp_keeper *k, bool *which) {
    *which = true;
    cp_loop_defer(k->loop, &k->orders, run_orders);
}

static void on_held(cp_keeper *k, const cp_wire *m, int *fds) {
    const cp_wire_rec_held *r = &m->held;
    cp_autofree char *key = cp_str_dup(r->key);
    cp_held h = {.tag = r->tag,
                 .key = key,
                 .pid = r->pid,
                 .start_time = r->start_time,
                 .mark = {r->spawn, r->command},
                 .exited = r->exited != 0,
                 .exit = CP_WIRE_GET_EXIT(r),
                 .fds = {-1, -1, -1}};
    for (int i = 0, at = 0; i < 3; i++)
        if (r->hold >> i & 1 && at < m->nfds) h.fds[i] = cp_take_fd(&fds[at++]);
    if (!h.exited) {
        struct unclaimed *u = cp_new(struct unclaimed);
        *u = (struct unclaimed){.next = k->unclaimed, .tag = h.tag};
        k->unclaimed = u;
    }
    if (k->ev.on_held) k->ev.on_held(k->ev.arg, &h);
    else
        for (int i = 0; i < 3; i++) cp_close(&h.fds[i]);
}

static void handle(cp_keeper *k, const cp_wire *m, int *fds) {
    switch (m->type) {
    case CP_WIRE_spawned: on_spawned(k, &m->spawned); break;
    case CP_WIRE_exited: on_exited(k, &m->exited); break;
    case CP_WIRE_closed: on_closed(k, &m->closed); break;
    case CP_WIRE_held: on_held(k, m, fds); break;
    case CP_WIRE_drain: order(k, &k->drain); break;
    case CP_WIRE_handover: order(k, &k->handover); break;
    default: break; /* hello and held_end: cp_keeper_open */
    }
    for (size_t i = 0; i < m->nfds; i++) cp_close(&fds[i]);
}

static void on_keeper(cp_io *io, uint32_t events) {
    cp_keeper *k = CP_CONTAINER(io, cp_keeper, io);
    /* A callback may lose the keeper or close it altogether: `k` is looked at again only while the watcher lives. */
    for (int i = 0; events & (EPOLLIN | EPOLLHUP | EPOLLERR) && i < RECORDS_PER_ROUND; i++) {
        cp_wire m;
        cp_err err;
        int fds[CP_WIRE_FDS];
        cp_chan_result got = cp_chan_recv(&k->chan, &m, fds, &err);
        if (got == CP_CHAN_EMPTY) break;
        if (got != CP_CHAN_GOT) {
            lost(k);
            return;
        }
        bool gone = false;
        k->gone = &gone;
        handle(k, &m, fds);
        if (gone) return;
        k->gone = NULL;
        if (!cp_chan_is_open(&k->chan)) return;
    }
    bool later = false;
    if (cp_chan_flush(&k->chan, &later) < 0) lost(k);
    else watch(k, later);
}

/* ---- opening ---- */

/* One record, waiting for it. */
static int await(cp_keeper *k, uint64_t deadline, cp_wire *m, int fds[CP_WIRE_FDS], cp_err *err) {
    for (;;) {
        cp_chan_result got = cp_chan_recv(&k->chan, m, fds, err);
        if (got == CP_CHAN_GOT) return 0;
        if (got == CP_CHAN_BAD) return -1;
        if (got == CP_CHAN_CLOSED) return cp_fail(err, CP_E_INTERNAL_ERROR, "the keeper has closed the socket");
        uint64_t now = cp_now_ms();
        if (now >= deadline) return cp_fail(err, CP_E_INTERNAL_ERROR, "the keeper does not answer");
        struct pollfd p = {.fd = k->chan.fd, .events = POLLIN};
        (void)poll(&p, 1, (int)(deadline - now));
    }
}

static int read_config(int fd, cp_buf *out, cp_err *err) {
    struct stat st;
    if (fstat(fd, &st) < 0 || st.st_size > CONFIG_MAX)
        return cp_fail(err, CP_E_INTERNAL_ERROR, "the keeper sent no configuration");
    cp_buf_reserve(out, (size_t)st.st_size + 1);
    while (out->n < (size_t)st.st_size) {
        /* By offset: the position belongs to the keeper's copy as well. */
        ssize_t n = pread(fd, out->p + out->n, (size_t)st.st_size - out->n, (off_t)out->n);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return cp_fail_sys(err, CP_E_INTERNAL_ERROR, errno, "configuration from the keeper");
        out->n += (size_t)n;
    }
    return 0;
}

static int take_hello(cp_keeper *k, uint64_t deadline, cp_keeper_hello *hello, cp_err *err) {
    cp_wire m;
    int fds[CP_WIRE_FDS];
    if (await(k, deadline, &m, fds, err) < 0) return -1;
    int rc = -1;
    if (m.type != CP_WIRE_hello || m.nfds < 1 || m.nfds > 2 || fds[0] < 0) {
        cp_fail(err, CP_E_INTERNAL_ERROR, "the keeper does not say hello");
    } else {
        *hello = (cp_keeper_hello){
            .generation = m.hello.generation, .port = m.hello.port, .keeper_pid = m.hello.keeper_pid, .listener = -1};
        k->generation = m.hello.generation;
        if (m.nfds == 2 && fds[1] < 0) rc = cp_fail(err, CP_E_TOO_MANY_FILES, "no room for the listening socket");
        else rc = read_config(fds[0], &hello->config, err);
        if (m.nfds == 2) hello->listener = cp_take_fd(&fds[1]);
    }
    for (size_t i = 0; i < m.nfds; i++) cp_close(&fds[i]);
    return rc;
}

static int take_held(cp_keeper *k, uint64_t deadline, cp_err *err) {
    for (;;) {
        cp_wire m;
        int fds[CP_WIRE_FDS];
        if (await(k, deadline, &m, fds, err) < 0) return -1;
        if (m.type == CP_WIRE_held_end) return 0;
        bool missing = false;
        for (size_t i = 0; i < m.nfds; i++) missing |= fds[i] < 0;
        handle(k, &m, fds);
        if (missing) return cp_fail(err, CP_E_TOO_MANY_FILES, "no room for the descriptors that the keeper holds");
    }
}

cp_keeper *cp_keeper_open(cp_loop *loop, int fd, const cp_keeper_events *ev, cp_keeper_hello *hello, cp_err *err) {
    cp_keeper *k = cp_new(cp_keeper);
    k->loop = loop;
    k->ev = *ev;
    *hello = (cp_keeper_hello){.listener = -1};
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    cp_chan_init(&k->chan, fd);
    uint64_t deadline = cp_now_ms() + OPEN_LIMIT_MS;
    if (take_hello(k, deadline, hello, err) == 0 && take_held(k, deadline, err) == 0) {
        if (cp_io_add(loop, &k->io, fd, EPOLLIN, on_keeper) == 0) return k;
        cp_fail_sys(err, CP_E_INTERNAL_ERROR, errno, "cannot watch the keeper's socket");
    }
    cp_buf_free(&hello->config);
    cp_close(&hello->listener);
    cp_keeper_close(k);
    return NULL;
}

void cp_keeper_close(cp_keeper *k) {
    if (!k) return;
    if (k->gone) *k->gone = true;
    cp_timer_stop(k->loop, &k->flush_timer);
    cp_loop_undefer(k->loop, &k->lost);
    cp_loop_undefer(k->loop, &k->orders);
    cp_io_del(k->loop, &k->io);
    cp_chan_fini(&k->chan);
    for (struct unclaimed *u; (u = k->unclaimed);) {
        k->unclaimed = u->next;
        cp_loop_undefer(k->loop, &u->deferred);
        free(u);
    }
    for (struct closing *w; (w = k->closing);) {
        k->closing = w->next;
        free(w);
    }
    free(k);
}

int cp_keeper_ready(cp_keeper *k, uint16_t port, int listener, cp_err *err) {
    return client_send(k, &(cp_wire){.type = CP_WIRE_ready, .nfds = listener >= 0, .ready = {port}}, &listener, err);
}

int cp_keeper_failed(cp_keeper *k, const char *reason) {
    cp_str text = cp_str_of(reason);
    if (text.n > 4096) text.n = 4096;
    return client_send(k, &(cp_wire){.type = CP_WIRE_failed, .failed = {text}}, NULL, NULL);
}

/* ---- owners ---- */

static void run_claimed(cp_deferred *d) {
    struct unclaimed *u = CP_CONTAINER(d, struct unclaimed, deferred);
    cp_keeper *k = u->keeper;
    cp_child *c = find(k, u->tag);
    (void)take_unclaimed(k, u->tag);
    cp_exit x = u->exit;
    free(u);
    if (!c) return;
    leave(k, c);
    if (c->on_exit) c->on_exit(c, &x);
}

void cp_keeper_claim(cp_keeper *k, cp_child *c, const cp_held *h) {
    c->tag = h->tag;
    c->pid = h->pid;
    c->start_time = h->start_time;
    c->mark = h->mark;
    if (h->exited) return;
    client_enter(k, c);
    struct unclaimed *u = find_unclaimed(k, h->tag);
    if (!u) return;
    if (u->exited) { /* ended since it was handed over; never called back from inside the claim */
        u->keeper = k;
        cp_loop_defer(k->loop, &u->deferred, run_claimed);
    } else {
        free(take_unclaimed(k, h->tag));
    }
}

int cp_keeper_close_hold(cp_keeper *k, cp_child *c, int which, void (*done)(cp_child *c)) {
    cp_wire m = {.type = CP_WIRE_close_hold, .close_hold = {c->tag, (uint8_t)which}};
    if (client_send(k, &m, NULL, NULL) < 0) return -1;
    struct closing *w = cp_new(struct closing);
    *w = (struct closing){.tag = c->tag, .which = (uint8_t)which, .child = c, .done = done};
    if (!k->closing) k->closing_tail = &k->closing;
    *k->closing_tail = w;
    k->closing_tail = &w->next;
    return 0;
}

void cp_keeper_ack(cp_keeper *k, cp_child *c) {
    (void)client_send(k, &(cp_wire){.type = CP_WIRE_ack, .ack = {c->tag}}, NULL, NULL);
}

void cp_keeper_forget(cp_keeper *k, cp_child *c) {
    if (find(k, c->tag) == c) leave(k, c);
    for (struct closing *w = k->closing; w; w = w->next)
        if (w->child == c) w->done = NULL;
}
