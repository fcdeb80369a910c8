#include "load/engine.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "load/load.h"
#include "load/request.h"
#include "load/sock.h"

enum { READ_SIZE = 256 << 10, EVENTS = 64, LOST_MAX = 10000 };

static struct {
    const door *door;
    int ep;
    conn *conns;
    slot **idle; /* stack of slots without an operation; used in the open loop only */
    size_t nidle, nslots, nconns;
    double interval;   /* ns between operations; 0: closed loop */
    uint64_t begin;    /* when the first operation was due */
    uint64_t ops;      /* begun */
    uint64_t ended;    /* slots that begin no more */
    uint64_t requests; /* that a Worker pays for: HTTP requests, upgrades included */
    uint64_t opened;   /* connections */
    uint64_t lost;     /* connections that broke under an operation, which was then sent again */
    uint64_t beside, beside_begin;
    bool sending; /* operations still begin */
} e;

/* ---- connections ---- */

static void conn_open(conn *c) {
    e.door->open(c);
    e.opened++;
    e.requests += !e.door->one_slot || e.door->per_op;
    c->want_out = false;
    sock_watch(e.ep, EPOLL_CTL_ADD, c->fd, EPOLLIN, c);
}

static void conn_drop(conn *c) {
    sock_drop(&c->fd);
    cp_buf_clear(&c->out);
    c->sent = 0;
}

void engine_flush(conn *c) {
    while (c->fd >= 0 && c->sent < c->out.n) {
        ssize_t k = send(c->fd, c->out.p + c->sent, c->out.n - c->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0 && errno != EAGAIN && !e.door->reconnect) die("send");
        if (k <= 0) break; /* what broke is told by the read */
        c->sent += (size_t)k;
    }
    bool more = c->sent < c->out.n;
    if (!more) {
        cp_buf_clear(&c->out);
        c->sent = 0;
    }
    if (more != c->want_out && c->fd >= 0)
        sock_watch(e.ep, EPOLL_CTL_MOD, c->fd, more ? EPOLLIN | EPOLLOUT : EPOLLIN, c);
    c->want_out = more;
}

/* ---- operations ---- */

static void put_step(slot *s) {
    conn *c = s->c;
    if (c->fd < 0) conn_open(c);
    s->left = (unsigned)opt.burst;
    e.requests += e.door->one_slot && !e.door->per_op;
    for (unsigned i = 0; i < (unsigned)opt.burst; i++) e.door->put(c, s, i);
}

static void begin(slot *s, uint64_t intended) {
    s->intended = intended;
    s->op = e.ops++;
    s->step = 0;
    put_step(s);
}

static uint64_t due_next(void) { return e.begin + (uint64_t)((double)e.ops * e.interval); }

/* Begins what is due, as far as slots are free. What finds none is not forgotten: it stays due since then. */
static void begin_due(uint64_t now) {
    conn *unsent = NULL;
    for (uint64_t due; e.nidle && (due = due_next()) <= now && due < win.end;) {
        slot *s = e.idle[--e.nidle];
        if (unsent && unsent != s->c) engine_flush(unsent);
        begin(s, due);
        unsent = s->c; /* what is due together is sent together, as in the closed loop */
    }
    if (unsent) engine_flush(unsent);
}

void engine_reply(slot *s, uint64_t now) {
    if (s->left == 0) die("an answer that nobody asked for");
    if (--s->left) return;
    if (++s->step < (uint64_t)opt.steps) {
        put_step(s);
        return;
    }
    window_note(s->intended, now);
    if (e.door->per_op) conn_drop(s->c);
    if (e.interval > 0) e.idle[e.nidle++] = s;
    else if (e.sending && (!opt.ops || e.ops < (uint64_t)opt.ops)) begin(s, now);
    else e.ended++;
}

slot *engine_single(conn *c) { return c->slots[0].left ? &c->slots[0] : NULL; }

void engine_beside(uint64_t bytes) {
    if (!e.beside_begin) e.beside_begin = cp_now_ns();
    e.beside += bytes;
}

/* ---- the loop ---- */

static void broken(conn *c, const char *what) {
    if (!e.door->reconnect) die(what);
    if (e.door->ended && e.door->ended(c, cp_now_ns())) return;
    slot *s = engine_single(c);
    conn_drop(c);
    if (!s) return; /* an idle connection: opened again for the next operation */
    errno = 0;
    if (++e.lost > LOST_MAX) die("the server keeps closing connections");
    put_step(s);
}

static void serve(conn *c, int flags) {
    static char in[READ_SIZE];
    ssize_t k = recv(c->fd, in, sizeof in, flags);
    if (k < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (k > 0) e.door->take(c, in, (size_t)k, cp_now_ns());
    else broken(c, k < 0 ? "read" : "closed by the server");
    engine_flush(c);
}

/* One connection in a closed loop: nobody has to say which, so a call costs one write and one read, as in the client
 * that a user would write. */
static void serve_only(conn *c) {
    if (c->want_out) {
        struct pollfd p = {.fd = c->fd, .events = POLLIN | POLLOUT};
        if (poll(&p, 1, -1) > 0 && (p.revents & POLLOUT)) engine_flush(c);
        serve(c, MSG_DONTWAIT);
        return;
    }
    serve(c, 0);
}

static void serve_many(uint64_t wait_ns) {
    struct epoll_event evs[EVENTS];
    struct timespec wait = {.tv_sec = (time_t)(wait_ns / 1000000000), .tv_nsec = (long)(wait_ns % 1000000000)};
    int n = epoll_pwait2(e.ep, evs, EVENTS, &wait, NULL);
    for (int i = 0; i < n; i++) {
        conn *c = evs[i].data.ptr;
        if (c->fd < 0) continue;
        if (evs[i].events & EPOLLOUT) engine_flush(c);
        if (evs[i].events & ~(uint32_t)EPOLLOUT) serve(c, MSG_DONTWAIT);
    }
}

/* Until the window has ended; what takes longer than that is measured once. */
static void run_closed(void) {
    bool only = e.nconns == 1 && !e.door->reconnect && !e.door->per_op;
    for (size_t i = 0; i < e.nconns; i++) {
        for (unsigned j = 0; j < e.conns[i].nslots; j++)
            if (!opt.ops || e.ops < (uint64_t)opt.ops) begin(&e.conns[i].slots[j], cp_now_ns());
            else e.ended++;
        engine_flush(&e.conns[i]);
    }
    while (e.ended < e.nslots && (cp_now_ns() < win.end || !win.latency.count)) {
        if (only) serve_only(&e.conns[0]);
        else serve_many(100000000);
        errno = 0;
        if (!win.latency.count && cp_now_ns() > win.end + (uint64_t)opt.timeout_ms * 1000000) die("no answer in time");
    }
    e.sending = false;
}

static uint64_t until(uint64_t when, uint64_t now) { return when > now ? when - now : 0; }

/* What was due and has no answer when patience ends had to wait at least so long. */
static void count_missed(uint64_t now) {
    for (size_t i = 0; i < e.nconns; i++)
        for (unsigned j = 0; j < e.conns[i].nslots; j++)
            if (e.conns[i].slots[j].left) win.missed += window_note(e.conns[i].slots[j].intended, now);
    for (uint64_t due; (due = due_next()) < win.end; e.ops++) win.missed += window_note(due, now);
}

static void run_open(void) {
    for (size_t i = 0; i < e.nconns; i++)
        for (unsigned j = 0; j < e.conns[i].nslots; j++) e.idle[e.nidle++] = &e.conns[i].slots[j];
    uint64_t now = e.begin = cp_now_ns(), patience = win.end + (uint64_t)opt.timeout_ms * 1000000, due;
    do {
        begin_due(now);
        due = due_next();
        bool may_begin = due < win.end && e.nidle;
        serve_many(may_begin ? until(due, now) : until(patience, now));
        now = cp_now_ns();
    } while (now < patience && (due < win.end || e.nidle < e.nslots));
    e.sending = false;
    count_missed(now);
}

/* ---- set-up ---- */

static const door *find_door(const char *name) {
    for (const door *const *d = doors; *d; d++)
        if (strcmp((*d)->name, name) == 0) return *d;
    errno = 0;
    die("no such door");
}

static void make_slots(conn *c, size_t n) {
    c->nslots = (unsigned)n;
    c->slots = cp_alloc(n * sizeof *c->slots);
    c->made = cp_alloc(n * (size_t)opt.burst * sizeof *c->made);
    c->fifo.order = cp_alloc(n * (size_t)opt.burst * sizeof *c->fifo.order);
    for (unsigned i = 0; i < n; i++) c->slots[i] = (slot){.c = c, .index = i};
}

static void set_up(void) {
    e.door = find_door(opt.door);
    if (e.door->one_slot && opt.burst > 1) die("this door carries one request at a time: use --steps");
    /* Each operation in flight has a connection of its own where a connection carries one at a time. */
    e.nconns = (size_t)(e.door->one_slot ? opt.inflight : opt.conns);
    size_t each = e.door->one_slot ? 1 : (size_t)opt.inflight;
    e.nslots = e.nconns * each;
    e.interval = opt.rate > 0 ? 1e9 / opt.rate : 0;
    e.idle = cp_alloc(e.nslots * sizeof *e.idle);
    e.conns = cp_alloc(e.nconns * sizeof *e.conns);
    e.ep = epoll_create1(EPOLL_CLOEXEC);
    e.sending = true;
    request_prepare();
    for (size_t i = 0; i < e.nconns; i++) {
        e.conns[i] = (conn){.door = e.door, .fd = -1};
        make_slots(&e.conns[i], each);
        if (!e.door->per_op) conn_open(&e.conns[i]);
    }
}

static void report(uint64_t beside_ns) {
    char more[200];
    int n = snprintf(more, sizeof more, ",\"begun\":%llu,\"connections\":%llu,\"requests\":%llu,\"lost\":%llu",
                     (unsigned long long)e.ops, (unsigned long long)e.opened, (unsigned long long)e.requests,
                     (unsigned long long)e.lost);
    if (opt.beside && beside_ns)
        snprintf(more + n, sizeof more - (size_t)n, ",\"besideMBps\":%.1f", (double)e.beside * 1e3 / (double)beside_ns);
    window_report(opt.door, more);
}

int engine_run(void) {
    prctl(PR_SET_TIMERSLACK, 1); /* 50 us otherwise, which an open loop would add to what it measures */
    sock_raise_limit();
    set_up();
    if (opt.beside && !e.door->begin_beside) die("no stream beside calls through this door");
    if (opt.beside) e.door->begin_beside(&e.conns[0]);
    window_open();
    if (e.interval > 0) run_open();
    else run_closed();
    uint64_t beside_ns = e.beside_begin ? cp_now_ns() - e.beside_begin : 0;
    if (opt.beside) e.door->end_beside(&e.conns[0]);
    report(beside_ns);
    return 0;
}
