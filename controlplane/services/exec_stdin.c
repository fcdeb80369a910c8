/* The child's standard input: a bounded queue in front of a non-blocking pipe. A child that closes it, or never reads
 * it, is no error: what nobody reads is dropped quietly, as a shell pipeline does, and its receipts are given. */
#include "base/fd.h"
#include "services/exec_core.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

/* What the memory budget knows of: input that waits, and receipts. */
static size_t held(const struct cp_exec_impl *i) { return i->in.n + i->nin_acks * CP_STDIN_ACK_COST; }

static void give_acks(struct cp_exec_impl *i, uint64_t upto) {
    for (cp_stdin_ack *a; (a = i->in_acks) && a->upto <= upto;) {
        i->in_acks = a->next;
        i->nin_acks--;
        a->taken(a);
    }
}

static void close_pipe(cp_exec *e) {
    struct cp_exec_impl *i = e->impl;
    cp_io_del(e->svc->loop, &i->in_io);
    cp_close(&i->in_fd);
    cp_buf_free(&i->in);
    cp_charge_free(&i->in_charge);
    i->in_off = 0;
    i->in_open = false;
    give_acks(i, UINT64_MAX);
}

void cp_exec_stdin_stop(cp_exec *e) { close_pipe(e); }

static void hold_closed(cp_child *c) { close_pipe(CP_CONTAINER(c, cp_exec_child, child)->e); }

/* Other copies go first, or the child never meets the end of its input. */
static void finish(cp_exec *e) {
    struct cp_exec_impl *i = e->impl;
    cp_io_del(e->svc->loop, &i->in_io);
    if (i->in_closing) return;
    i->in_closing = true;
    i->in_open = false;
    if (i->backend && i->backend->stdin_ends) i->backend->stdin_ends(e);
    if (!i->child || cp_keeper_close_hold(e->svc->keeper, &i->child->child, 0, hold_closed) < 0) close_pipe(e);
}

static void on_writable(cp_io *io, uint32_t events);

static void pump(cp_exec *e) {
    struct cp_exec_impl *i = e->impl;
    if (i->in_fd < 0 || i->in_closing) return;
    while (i->in_off < i->in.n) {
        ssize_t k = write(i->in_fd, i->in.p + i->in_off, i->in.n - i->in_off);
        if (k > 0) {
            i->in_off += (size_t)k;
        } else if (errno == EAGAIN) {
            break;
        } else if (errno != EINTR) { /* EPIPE: nobody reads any more */
            i->in_off = i->in.n;
            i->in_eof = true;
        }
    }
    /* Moving the rest to the front each time would be quadratic for a slow reader of a long queue. */
    if (i->in_off >= i->in.n / 2) {
        cp_buf_consume(&i->in, i->in_off);
        i->in_off = 0;
        if (!i->in.n) cp_buf_free(&i->in);
    }
    give_acks(i, i->in_fed - (i->in.n - i->in_off));
    cp_charge_force(&i->in_charge, held(i));
    if (i->in.n > i->in_off) {
        if (!i->in_io.slot && cp_io_add(e->svc->loop, &i->in_io, i->in_fd, EPOLLOUT, on_writable) < 0) finish(e);
    } else if (i->in_eof) {
        finish(e);
    } else {
        cp_io_del(e->svc->loop, &i->in_io);
    }
}

static void on_writable(cp_io *io, uint32_t events) {
    (void)events;
    pump(CP_CONTAINER(io, struct cp_exec_impl, in_io)->self);
}

void cp_exec_attach_stdin(cp_exec *e, int fd) {
    if (e->impl->has_exit) {
        cp_close(&fd);
        return;
    }
    e->impl->in_fd = fd;
    pump(e);
}

static void add_ack(struct cp_exec_impl *i, cp_stdin_ack *ack) {
    *ack = (cp_stdin_ack){.upto = i->in_fed, .taken = ack->taken};
    if (i->in_acks) i->in_acks_tail->next = ack;
    else i->in_acks = ack;
    i->in_acks_tail = ack;
    i->nin_acks++;
}

int cp_exec_stdin(cp_exec *e, cp_str data, bool eof, cp_stdin_ack *ack, cp_err *err) {
    struct cp_exec_impl *i = e->impl;
    if (i->has_exit || e->state == CP_STATE_ENDED || e->state == CP_STATE_FAILED)
        return cp_fail(err, CP_E_RESOURCE_BUSY, "the command has ended");
    if (!i->in_open || i->in_eof) return cp_fail(err, CP_E_RESOURCE_BUSY, "stdin is not open");
    if (i->in.n - i->in_off + data.n > CP_STDIN_QUEUE)
        return cp_fail(err, CP_E_LIMIT_EXCEEDED, "%zu bytes of stdin wait to be read", i->in.n - i->in_off);
    if (ack && i->nin_acks >= CP_STDIN_ACKS)
        return cp_fail(err, CP_E_LIMIT_EXCEEDED, "%zu receipts for stdin are outstanding", i->nin_acks);
    i->in_charge.kind = CP_MEM_STDIN;
    if (cp_charge_set(&i->in_charge, held(i) + data.n + (ack ? CP_STDIN_ACK_COST : 0), err) < 0) return -1;
    if (cp_room(&i->in, data.n, err) < 0) {
        cp_charge_force(&i->in_charge, held(i));
        return -1;
    }
    cp_buf_add(&i->in, data.p, data.n);
    i->in_fed += data.n;
    if (ack) add_ack(i, ack);
    if (eof) i->in_eof = true;
    pump(e);
    return 0;
}
