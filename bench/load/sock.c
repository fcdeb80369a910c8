#include "load/sock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "load/load.h"

static struct sockaddr_in loopback(int64_t port) {
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int no_delay(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static int dial(int flags) {
    struct sockaddr_in a = loopback(opt.port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0), rcvbuf = (int)opt.rcvbuf;
    if (rcvbuf && setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof rcvbuf) < 0) die("SO_RCVBUF");
    if (fd < 0 || (connect(fd, (struct sockaddr *)&a, sizeof a) < 0 && errno != EINPROGRESS)) die("connect");
    return no_delay(fd);
}

int sock_dial(void) { return dial(0); }
int sock_begin(void) { return dial(SOCK_NONBLOCK); }

int sock_listen(uint16_t *port) {
    struct sockaddr_in a = loopback(0);
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, 1024) < 0 ||
        getsockname(fd, (struct sockaddr *)&a, &len) < 0)
        die("listen");
    *port = ntohs(a.sin_port);
    return fd;
}

int sock_accept(int listener, int flags) {
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | flags);
    if (fd < 0) die("accept");
    return no_delay(fd);
}

void sock_send(int fd, const void *p, size_t n) {
    for (const char *at = p; n;) {
        ssize_t k = send(fd, at, n, MSG_NOSIGNAL);
        if (k < 0 && (errno == EAGAIN || errno == EINTR)) {
            poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
            continue;
        }
        if (k < 0) die("send");
        at += k;
        n -= (size_t)k;
    }
}

void sock_drop(int *fd) {
    struct linger now = {.l_onoff = 1};
    if (*fd >= 0) setsockopt(*fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    cp_close(fd);
}

void sock_raise_limit(void) {
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) < 0) return;
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
}

void sock_watch(int ep, int op, int fd, uint32_t events, void *p) {
    struct epoll_event ev = {.events = events, .data.ptr = p};
    if (epoll_ctl(ep, op, fd, &ev) < 0) die("epoll_ctl");
}
