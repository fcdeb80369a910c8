/* Design notes. A chunk is a buffer of its own (grown, moved in, or from the free list) or a piece of a shared body.
 * queued is the sum of what is unsent in all chunks; blocked means that the kernel has refused bytes since EPOLLOUT was
 * last seen, and exactly then EPOLLOUT is watched. All sending happens in flush, which is deferred to the end of the
 * round: an append can therefore never run a callback of its caller. */
#include "transport/outbox.h"

#include "base/metrics.h"
#include "base/spool.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    SMALL = 16 * 1024,    /* replies */
    BIG = 96 * 1024,      /* an event of 64 KiB and the room that cp_escape wants ahead */
    BIG_MAX = 256 * 1024, /* grown beyond: not kept */
    KEEP_SMALL = 16,      /* free chunks kept */
    KEEP_BIG = 4,
    IOVS = 64,
    NOTSENT_LOWAT = 128 * 1024,
    ROUND_BYTES = 512 * 1024 /* one connection's share of a loop round */
};

typedef struct cp_chunk {
    struct cp_chunk *next;
    cp_buf b;             /* owned bytes, unless body */
    size_t off;           /* of the next byte to send, in b or from p */
    cp_outbox_body *body; /* piece of a shared body: p[0..n) */
    const char *p;
    size_t n;
    size_t counted; /* memory of b, as it is in held_in_all */
} chunk;

static struct {
    chunk *list;
    unsigned n;
} free_small, free_big;

bool cp_outbox_tight;
static size_t held_in_all; /* memory of all chunks in use; bodies are charged by whoever made them */
static size_t charged;     /* what the budget knows of it */

/* The budget is told in steps: a chunk comes and goes with each reply. And when nothing is left. */
static void tell_budget(void) {
    enum { STEP = 64 * 1024 };
    if (held_in_all > charged + STEP) cp_budget_force(CP_MEM_UNSENT, held_in_all - charged);
    else if (held_in_all + STEP < charged || (charged && !held_in_all))
        cp_budget_release(CP_MEM_UNSENT, charged - held_in_all);
    else return;
    charged = held_in_all;
    cp_outbox_tight = cp_budget_tight(CP_MEM_UNSENT);
}

static void count(chunk *c) {
    size_t now = c->b.cap + sizeof *c;
    held_in_all += now - c->counted;
    c->counted = now;
}

/* ---- chunks ---- */

static chunk *chunk_take(size_t room) {
    bool small = room <= SMALL;
    chunk *c = small ? free_small.list : free_big.list;
    if (c) {
        if (small) free_small.list = c->next, free_small.n--;
        else free_big.list = c->next, free_big.n--;
        c->next = NULL;
    } else {
        c = cp_new(chunk);
        c->b.cap = small ? SMALL : BIG;
        c->b.p = cp_realloc(NULL, c->b.cap);
    }
    cp_buf_reserve(&c->b, room);
    return c;
}

static void chunk_give(chunk *c) {
    if (c->body) cp_outbox_body_release(c->body);
    held_in_all -= c->counted;
    bool small = c->b.cap == SMALL, big = c->b.cap >= BIG && c->b.cap <= BIG_MAX;
    if (small ? free_small.n < KEEP_SMALL : big && free_big.n < KEEP_BIG) {
        cp_buf b = {.p = c->b.p, .cap = c->b.cap};
        *c = (chunk){.b = b, .next = small ? free_small.list : free_big.list};
        if (small) free_small.list = c, free_small.n++;
        else free_big.list = c, free_big.n++;
        return;
    }
    cp_buf_free(&c->b);
    free(c);
}

static void free_list(chunk **list, unsigned *n) {
    for (chunk *c; (c = *list); free(c)) {
        *list = c->next;
        cp_buf_free(&c->b);
    }
    *n = 0;
}

void cp_outbox_trim(void) {
    free_list(&free_small.list, &free_small.n);
    free_list(&free_big.list, &free_big.n);
}

static inline size_t chunk_left(const chunk *c) { return (c->body ? c->n : c->b.n) - c->off; }

static void append(cp_outbox *o, chunk *c) {
    count(c);
    if (o->tail) o->tail->next = c;
    else o->head = c;
    o->tail = c;
}

static void drop_all(cp_outbox *o) {
    while (o->head) {
        chunk *c = o->head;
        o->head = c->next;
        chunk_give(c);
    }
    o->tail = NULL;
    o->queued = 0;
    tell_budget();
}

/* ---- life ---- */

void cp_outbox_init(cp_outbox *o, cp_loop *loop, cp_io *io, int fd, cp_outbox_events on) {
    *o = (cp_outbox){.loop = loop, .io = io, .on = on};
    int one = 1, lowat = NOTSENT_LOWAT; /* both fail harmlessly on a Unix socket */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &lowat, sizeof lowat);
}

void cp_outbox_fini(cp_outbox *o) {
    if (o->gone) *o->gone = true;
    cp_loop_undefer(o->loop, &o->flush);
    drop_all(o);
}

uint64_t cp_outbox_stalled_ms(const cp_outbox *o) {
    uint64_t now = cp_loop_now(o->loop);
    return o->queued && now > o->took_at ? now - o->took_at : 0;
}

uint64_t cp_outbox_stall_limit(uint64_t ms) {
    return cp_outbox_tight && ms > CP_OUTBOX_SHORT_STALL_MS ? CP_OUTBOX_SHORT_STALL_MS : ms;
}

/* ---- sending ---- */

static void taken(cp_outbox *o, size_t n) {
    cp_metric_add(CP_M_BYTES_OUT, (int64_t)n);
    o->took_at = cp_loop_now(o->loop);
    o->queued -= n;
    for (chunk *c; n && (c = o->head);) {
        size_t left = chunk_left(c);
        if (n < left) {
            c->off += n;
            break;
        }
        n -= left;
        o->head = c->next;
        if (!o->head) o->tail = NULL;
        chunk_give(c);
    }
    tell_budget();
}

static void watch_writable(cp_outbox *o, bool on) {
    o->blocked = on;
    cp_io_mod(o->loop, o->io, on ? o->io->events | EPOLLOUT : o->io->events & ~(uint32_t)EPOLLOUT);
}

static const char *chunk_at(const chunk *c) { return (c->body ? c->p : c->b.p) + c->off; }

/* sendmsg rather than writev: a peer that has gone must not raise SIGPIPE. The one small reply that mostly goes out is
 * cheaper sent without a vector. Returns bytes taken, or -1 with errno. */
static ssize_t send_some(cp_outbox *o, size_t *offered) {
    if (!o->head->next) {
        *offered = chunk_left(o->head);
        return send(o->io->fd, chunk_at(o->head), *offered, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    struct iovec iov[IOVS];
    struct msghdr m = {.msg_iov = iov};
    for (chunk *c = o->head; c && m.msg_iovlen < IOVS; c = c->next) {
        iov[m.msg_iovlen++] = (struct iovec){(void *)(uintptr_t)chunk_at(c), chunk_left(c)};
        *offered += chunk_left(c);
    }
    return sendmsg(o->io->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static bool call(cp_outbox *o, void (*fn)(void *arg)) {
    bool gone = false, *outer = o->gone;
    o->gone = &gone;
    fn(o->on.arg);
    if (gone) {
        if (outer) *outer = true;
        return false;
    }
    o->gone = outer;
    return true;
}

static void fail(cp_outbox *o) {
    o->broken = true;
    drop_all(o);
    watch_writable(o, false);
    call(o, o->on.on_error);
}

static void flush(cp_deferred *d) {
    cp_outbox *o = CP_CONTAINER(d, cp_outbox, flush);
    for (size_t sent = 0; !o->blocked && !o->broken;) {
        if (cp_outbox_has_room(o) && !call(o, o->on.on_room)) return;
        if (!o->queued) {
            if (o->on.on_empty) call(o, o->on.on_empty);
            return;
        }
        if (sent >= ROUND_BYTES) {
            cp_outbox_wake(o);
            return;
        }
        size_t offered = 0;
        ssize_t n = send_some(o, &offered);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS) {
            fail(o);
            return;
        }
        if (n > 0) taken(o, (size_t)n), sent += (size_t)n;
        if (n < 0 || (size_t)n < offered) watch_writable(o, true);
    }
}

void cp_outbox_writable(cp_outbox *o) {
    if (!o->blocked) return;
    watch_writable(o, false);
    cp_outbox_wake(o);
}

void cp_outbox_wake(cp_outbox *o) {
    if (!o->blocked && !o->broken) cp_loop_defer(o->loop, &o->flush, flush);
}

/* ---- appending ---- */

static void added(cp_outbox *o, size_t n) {
    if (!o->queued) o->took_at = cp_loop_now(o->loop);
    o->queued += n;
    tell_budget();
    if (o->broken) drop_all(o);
    cp_outbox_wake(o);
}

cp_buf *cp_outbox_tail(cp_outbox *o, size_t room) {
    chunk *c = o->tail;
    if (!c || c->body || c->b.cap - c->b.n < room) {
        c = chunk_take(room);
        o->before = o->tail;
        append(o, c);
    }
    o->mark = c->b.n;
    return &c->b;
}

/* The tail was added for what did not come. */
static void drop_tail(cp_outbox *o) {
    chunk_give(o->tail);
    o->tail = o->before;
    if (o->tail) o->tail->next = NULL;
    else o->head = NULL;
}

void cp_outbox_commit(cp_outbox *o) {
    size_t n = o->tail->b.n - o->mark;
    if (!o->tail->b.n) {
        drop_tail(o);
        return;
    }
    count(o->tail);
    if (n) added(o, n);
    else if (!o->queued) drop_all(o);
}

void cp_outbox_add(cp_outbox *o, const void *p, size_t n) {
    if (!n) return;
    cp_buf_add(cp_outbox_tail(o, n), p, n);
    cp_outbox_commit(o);
}

void cp_outbox_add_buf(cp_outbox *o, cp_buf *b) {
    if (b->n <= SMALL / 4) { /* cheaper copied than held */
        cp_outbox_add(o, b->p, b->n);
        cp_buf_free(b);
        return;
    }
    chunk *c = cp_new(chunk);
    c->b = cp_take(*b);
    append(o, c);
    added(o, c->b.n);
}

cp_outbox_body *cp_outbox_body_new(cp_buf *b, cp_charge *charge) {
    cp_outbox_body *body = cp_new(cp_outbox_body);
    body->size = b->n;
    body->buf = cp_take(*b);
    body->charge = cp_take(*charge);
    body->refs = 1;
    return body;
}

cp_outbox_body *cp_outbox_body_of_file(int fd, uint64_t size) {
    cp_outbox_body *body = cp_new(cp_outbox_body);
    body->fd = fd;
    body->size = body->filed = size;
    body->refs = 1;
    return body;
}

int cp_outbox_body_read(const cp_outbox_body *body, uint64_t off, size_t n, cp_buf *b) {
    cp_buf_reserve(b, n);
    for (size_t got = 0; got < n;) {
        ssize_t k = pread(body->fd, b->p + b->n, n - got, (off_t)(off + got));
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return -1;
        b->n += (size_t)k;
        got += (size_t)k;
    }
    return 0;
}

void cp_outbox_body_release(cp_outbox_body *body) {
    if (--body->refs) return;
    cp_buf_free(&body->buf);
    cp_charge_free(&body->charge);
    if (body->fd > 0) close(body->fd);
    cp_spool_forget(body->filed);
    free(body);
}

void cp_outbox_add_piece(cp_outbox *o, cp_outbox_body *body, size_t off, size_t n) {
    if (!n) return;
    chunk *c = cp_new(chunk);
    body->refs++;
    c->body = body;
    c->p = body->buf.p + off;
    c->n = n;
    append(o, c);
    added(o, n);
}
