/* Design notes. A client is owned by whoever has set BUSY; who finds it BUSY sets AGAIN and goes away, and the owner
 * looks once more before it lets the client rest. The epoll set is edge-triggered and a descriptor is added to it once:
 * no system call a request. An edge tells only of what is new, so who has not read to the end of what there was
 * remembers that in `look`. A short read is the end of it, unless the end of input may have come by the same edge
 * (`thorough`): then reading goes on until the socket says that there is nothing more.
 *
 * A descriptor's number is used again as soon as it is closed. An event that was fetched before then meets the next
 * client of that number: it is looked at once for nothing. Entries of the table are therefore never freed, and closing
 * clears the state before the descriptor. */
#include "transport/http/http.h"

#include "base/clock.h"
#include "base/fd.h"
#include "base/metrics.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    BLOCK = 64,             /* entries that are made together */
    BLOCKS_MAX = 1 << 14,   /* a million descriptors */
    READ_STEP = 16 * 1024,  /* of one recv, at the least */
    BODY_STEP = 256 * 1024, /* of one recv, at the most */
    SMALL = 512,
};

struct cp_clients {
    pthread_mutex_t mu; /* for making blocks */
    unsigned nblocks;
    cp_client *_Atomic blocks[];
};

cp_clients *cp_clients_new(cp_err *err) {
    struct rlimit r = {0};
    (void)getrlimit(RLIMIT_NOFILE, &r);
    uint64_t n = r.rlim_cur / BLOCK + 1;
    if (n > BLOCKS_MAX) n = BLOCKS_MAX;
    cp_clients *t = calloc(1, sizeof *t + n * sizeof *t->blocks);
    if (!t) {
        cp_fail_sys(err, CP_E_INTERNAL_ERROR, ENOMEM, "the table of connections");
        return NULL;
    }
    t->nblocks = (unsigned)n;
    pthread_mutex_init(&t->mu, NULL);
    return t;
}

static void free_entry(cp_client *c, void *arg) {
    (void)arg;
    cp_buf_free(&c->in);
    cp_buf_free(&c->body.text);
    cp_sending_free(c->sending);
}

void cp_clients_free(cp_clients *t) {
    if (!t) return;
    cp_clients_each(t, free_entry, NULL);
    for (unsigned i = 0; i < t->nblocks; i++) free(atomic_load(&t->blocks[i]));
    pthread_mutex_destroy(&t->mu);
    free(t);
}

static cp_client *make_block(cp_clients *t, unsigned i) {
    pthread_mutex_lock(&t->mu);
    cp_client *b = atomic_load(&t->blocks[i]);
    if (!b && (b = calloc(BLOCK, sizeof *b))) {
        for (unsigned k = 0; k < BLOCK; k++) b[k].fd = (int)(i * BLOCK + k);
        atomic_store_explicit(&t->blocks[i], b, memory_order_release);
    }
    pthread_mutex_unlock(&t->mu);
    return b;
}

cp_client *cp_clients_at(cp_clients *t, int fd) {
    unsigned i = (unsigned)fd / BLOCK;
    if (fd < 0 || i >= t->nblocks) return NULL;
    cp_client *b = atomic_load_explicit(&t->blocks[i], memory_order_acquire);
    if (!b) b = make_block(t, i);
    return b ? b + fd % BLOCK : NULL;
}

void cp_clients_each(cp_clients *t, void (*fn)(cp_client *c, void *arg), void *arg) {
    for (unsigned i = 0; i < t->nblocks; i++) {
        cp_client *b = atomic_load_explicit(&t->blocks[i], memory_order_acquire);
        for (unsigned k = 0; b && k < BLOCK; k++) fn(b + k, arg);
    }
}

/* ---- owning ---- */

static void look_at(cp_task *t) {
    cp_client *c = CP_CONTAINER(t, cp_client, notice);
    atomic_store(&c->noticed, false);
    cp_call_look(c);
}

bool cp_client_take(cp_client *c, uint32_t events) {
    uint32_t s = atomic_load_explicit(&c->state, memory_order_acquire), to;
    do {
        if (!(s & CP_STATE_OPEN)) return false;
        to = s & CP_STATE_BUSY ? s | CP_STATE_AGAIN : s | CP_STATE_BUSY;
    } while (!atomic_compare_exchange_weak_explicit(&c->state, &s, to, memory_order_acq_rel, memory_order_acquire));
    if (!(s & CP_STATE_BUSY)) {
        c->look = true;
        if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) c->thorough = true;
        return true;
    }
    if (s & CP_STATE_LOOP && !atomic_exchange(&c->noticed, true)) cp_loop_post(c->srv->t->loop, &c->notice, look_at);
    return false;
}

bool cp_client_watch(cp_client *c, bool writes) {
    if (c->watched && (c->writes || !writes)) return true;
    struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.u64 = (uint64_t)c->fd};
    if (writes) ev.events |= EPOLLOUT;
    if (epoll_ctl(c->srv->epoll, c->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd, &ev) < 0) return false;
    c->watched = true;
    c->writes = writes;
    return true;
}

/* Many may rest within a head: what they hold is no more than what they have sent. */
static void compact(cp_client *c) {
    if (c->at) cp_buf_consume(&c->in, c->at);
    c->at = 0;
    if (c->in.n == 0) cp_buf_free(&c->in);
    if (atomic_load(&c->phase) == CP_CLIENT_BODY || c->in.cap < 2 * c->in.n + SMALL) return;
    cp_buf small = {0};
    cp_buf_add(&small, c->in.p, c->in.n);
    cp_buf_free(&c->in);
    c->in = small;
}

int cp_client_hold(cp_client *c, cp_err *err) {
    compact(c);
    if (!c->judged) return cp_charge_set(&c->body.charge, c->in.cap, err);
    return cp_body_charge(c, err);
}

bool cp_client_rest(cp_client *c, uint64_t idle_ms) {
    uint64_t now = cp_now_ms();
    compact(c);
    if (!cp_client_watch(c, atomic_load(&c->phase) == CP_CLIENT_SEND)) { /* nothing would ever tell of it */
        cp_client_close(c);
        return true;
    }
    if (c->look && atomic_load(&c->phase) != CP_CLIENT_SEND) return false;
    uint64_t since = atomic_load(&c->phase) == CP_CLIENT_SEND ? c->sending->took_at : now;
    atomic_store_explicit(&c->since, since, memory_order_relaxed);
    atomic_store_explicit(&c->deadline, idle_ms ? now + idle_ms : 0, memory_order_relaxed);
    cp_server *srv = c->srv;
    uint32_t s = atomic_load(&c->state), to;
    do to = s & CP_STATE_AGAIN ? s & ~(uint32_t)CP_STATE_AGAIN : s & ~(uint32_t)CP_STATE_BUSY;
    while (!atomic_compare_exchange_weak(&c->state, &s, to));
    if (s & CP_STATE_AGAIN) {
        c->thorough = c->look = true;
        return false;
    }
    if (idle_ms) cp_sweep_wake(srv);
    return true;
}

void cp_client_release(cp_client *c) {
    bool idle = atomic_load(&c->phase) == CP_CLIENT_HEAD && c->in.n == c->at && !c->last;
    if (!idle || !cp_client_rest(c, (uint64_t)c->srv->t->config->keepalive)) cp_crew_offer(c->srv, c);
}

/* ---- reading ---- */

/* A body of known length is read to its end and no further: it needs no more memory than it says. */
static size_t read_room(const cp_client *c) {
    size_t have = c->in.n - c->at, room = have < BODY_STEP ? have : BODY_STEP;
    size_t whole = c->judged && !c->body.chunked && c->body.left < SIZE_MAX / 2 ? c->head.end + c->body.left : 0;
    if (room < READ_STEP) room = READ_STEP;
    return whole > have && whole - have < room ? whole - have : room;
}

int cp_client_room(cp_client *c, cp_err *err) { return cp_room(&c->in, read_room(c), err); }

int cp_client_read(cp_client *c) {
    if (cp_client_room(c, NULL) < 0) return -1;
    size_t room = c->in.cap - c->in.n;
    if (room > BODY_STEP) room = BODY_STEP;
    ssize_t n;
    do n = recv(c->fd, c->in.p + c->in.n, room, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    c->look = n > 0 && (c->thorough || (size_t)n == room);
    if (n < 0 && errno == EAGAIN) {
        c->thorough = false;
        return 0;
    }
    if (n <= 0) return -1;
    c->in.n += (size_t)n;
    return 1;
}

/* ---- ending ---- */

static void forget(cp_client *c) {
    cp_server *srv = c->srv;
    cp_source_drop(srv->sources, atomic_exchange(&c->source, NULL));
    atomic_store(&c->state, 0);
    atomic_fetch_sub(&srv->open, 1);
    cp_metric_add(CP_M_CONNECTIONS, -1);
}

void cp_client_forget(cp_client *c) {
    cp_listener_rearm(c->srv);
    forget(c);
}

static void let_go(cp_client *c) {
    cp_body_drop(c);
    cp_buf_free(&c->in);
    c->at = 0;
    cp_sending_free(cp_take(c->sending));
    atomic_store(&c->deadline, 0);
}

void cp_client_close(cp_client *c) {
    cp_server *srv = c->srv;
    int fd = c->fd;
    let_go(c);
    forget(c); /* the number is still taken: nobody is given it before the next line */
    close(fd);
    cp_listener_rearm(srv);
}

void cp_client_end(cp_client *c) {
    bool read_all =
        c->in.n == c->at && !c->look && (!c->judged || c->body.ended) && !(atomic_load(&c->state) & CP_STATE_AGAIN);
    shutdown(c->fd, SHUT_WR);
    let_go(c);
    if (read_all) {
        cp_client_close(c);
        return;
    }
    atomic_store(&c->phase, CP_CLIENT_LINGER);
    c->dropped = 0;
    c->began = cp_now_ms();
    c->look = true;
    cp_client_release(c);
}

void cp_client_lend(cp_client *c) {
    if (c->watched) (void)epoll_ctl(c->srv->epoll, EPOLL_CTL_DEL, c->fd, &(struct epoll_event){0});
    c->watched = false;
    let_go(c);
    atomic_store(&c->phase, CP_CLIENT_LENT);
    atomic_fetch_and(&c->state, ~(uint32_t)CP_STATE_LOOP);
}

void cp_client_used(cp_client *c) {
    c->at += c->head.end + c->body.lies;
    c->head = (cp_head){0};
    cp_body_drop(c);
    compact(c);
    cp_charge_force(&c->body.charge, c->in.cap); /* of the next request */
}

void cp_client_next(cp_client *c) {
    if (c->judged) {
        c->at += c->head.end + c->body.lies;
        cp_body_drop(c);
    }
    c->judged = false;
    c->used = true;
    c->began = 0;
    c->head = (cp_head){0};
    atomic_store(&c->phase, CP_CLIENT_HEAD);
}
