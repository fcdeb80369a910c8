#include "keeper/wire_chan.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

struct cp_chan_out {
    struct cp_chan_out *next;
    int fds[CP_WIRE_FDS];
    uint8_t nfds;
    size_t n;
    char bytes[];
};

union control {
    struct cmsghdr head;
    char space[CMSG_SPACE(CP_WIRE_FDS * sizeof(int))];
};

static void close_fds(int *fds, size_t n) {
    for (size_t i = 0; i < n; i++) cp_close(&fds[i]);
}

void cp_chan_init(cp_chan *c, int fd) {
    c->fd = fd;
    c->head = NULL;
    c->tail = &c->head;
    c->queued = 0;
    (void)cp_nonblock(fd);
}

static void drop_head(cp_chan *c) {
    struct cp_chan_out *o = c->head;
    c->head = o->next;
    if (!c->head) c->tail = &c->head;
    c->queued--;
    close_fds(o->fds, o->nfds);
    free(o);
}

void cp_chan_fini(cp_chan *c) {
    while (c->head) drop_head(c);
    cp_close(&c->fd);
}

/* 0, or -1 with errno. A record goes whole or not at all. */
static int transmit(int sock, cp_str bytes, const int *fds, size_t nfds) {
    union control control = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes.p, .iov_len = bytes.n};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (nfds) {
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
        struct cmsghdr *h = &control.head;
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(nfds * sizeof(int));
        memcpy(CMSG_DATA(h), fds, nfds * sizeof(int));
    }
    ssize_t n;
    do n = sendmsg(sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -1 : 0;
}

static bool would_block(int sys) { return sys == EAGAIN || sys == ENOBUFS || sys == ETOOMANYREFS; }

static int enqueue(cp_chan *c, cp_str record, const int *fds, size_t nfds) {
    struct cp_chan_out *o = malloc(sizeof *o + record.n);
    if (!o) return -1;
    o->next = NULL;
    for (o->nfds = 0; o->nfds < nfds; o->nfds++) {
        o->fds[o->nfds] = fcntl(fds[o->nfds], F_DUPFD_CLOEXEC, 0);
        if (o->fds[o->nfds] >= 0) continue;
        int sys = errno;
        close_fds(o->fds, o->nfds);
        free(o);
        errno = sys;
        return -1;
    }
    o->n = record.n;
    memcpy(o->bytes, record.p, record.n);
    *c->tail = o;
    c->tail = &o->next;
    c->queued++;
    return 0;
}

int cp_chan_send(cp_chan *c, const cp_wire *m, const int *fds) {
    if (c->fd < 0) {
        errno = EPIPE;
        return -1;
    }
    if (cp_wire_size(m) > CP_WIRE_MAX) {
        errno = EMSGSIZE;
        return -1;
    }
    cp_buf record = {.p = c->tx, .cap = sizeof c->tx}; /* which does not grow: the size is known */
    cp_wire_encode(&record, m);
    if (!c->head) {
        if (transmit(c->fd, cp_buf_str(&record), fds, m->nfds) == 0) return 0;
        if (!would_block(errno)) return -1;
    }
    return enqueue(c, cp_buf_str(&record), fds, m->nfds);
}

int cp_chan_flush(cp_chan *c, bool *later) {
    *later = false;
    while (c->head) {
        struct cp_chan_out *o = c->head;
        if (transmit(c->fd, (cp_str){o->bytes, o->n}, o->fds, o->nfds) < 0) {
            if (!would_block(errno)) return -1;
            *later = errno != EAGAIN;
            return 0;
        }
        drop_head(c);
    }
    return 0;
}

static size_t received_fds(struct msghdr *msg, int fds[CP_WIRE_FDS]) {
    size_t n = 0;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(msg); h; h = CMSG_NXTHDR(msg, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
        n = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(fds, CMSG_DATA(h), n * sizeof(int));
    }
    return n;
}

cp_chan_result cp_chan_recv(cp_chan *c, cp_wire *m, int fds[CP_WIRE_FDS], cp_err *err) {
    if (c->fd < 0) return CP_CHAN_CLOSED;
    union control control;
    struct iovec iov = {.iov_base = c->rx, .iov_len = CP_WIRE_MAX};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t n;
    /* ECONNRESET comes once, when the other end has died with records unread, and ahead of what it has sent before. */
    do n = recvmsg(c->fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (n < 0 && (errno == EINTR || errno == ECONNRESET));
    if (n < 0) return errno == EAGAIN ? CP_CHAN_EMPTY : CP_CHAN_CLOSED;
    if (n == 0) return CP_CHAN_CLOSED;
    for (size_t i = 0; i < CP_WIRE_FDS; i++) fds[i] = -1;
    size_t got = received_fds(&msg, fds);
    if (msg.msg_flags & MSG_TRUNC)
        cp_fail(err, CP_E_INTERNAL_ERROR, "keeper protocol: record over %d bytes", CP_WIRE_MAX);
    else if (cp_wire_decode(m, (cp_str){c->rx, (size_t)n}, err) == 0) {
        /* Fewer than announced: this process is at its descriptor limit; the kernel dropped the rest (MSG_CTRUNC). */
        if (got == m->nfds || (got < m->nfds && (msg.msg_flags & MSG_CTRUNC))) return CP_CHAN_GOT;
        cp_fail(err, CP_E_INTERNAL_ERROR, "keeper protocol: %zu descriptors where %u are announced", got, m->nfds);
    }
    close_fds(fds, got);
    return CP_CHAN_BAD;
}
