/* An epoll echo: the raw limit for a request. */
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "load/load.h"
#include "load/raw.h"
#include "load/sock.h"

enum { BUFFER = 256 << 10, EVENTS = 64 };

static void echo(int fd) {
    static char buf[BUFFER];
    ssize_t k = read(fd, buf, sizeof buf);
    if (k <= 0) close(fd);
    else sock_send(fd, buf, (size_t)k);
}

int raw_echo_server(void) {
    uint16_t port;
    int listener = sock_listen(&port), ep = epoll_create1(EPOLL_CLOEXEC);
    sock_raise_limit();
    printf("%d\n", port);
    fflush(stdout);
    sock_watch(ep, EPOLL_CTL_ADD, listener, EPOLLIN, (void *)(intptr_t)listener);
    sock_watch(ep, EPOLL_CTL_ADD, 0, EPOLLIN, NULL);
    for (;;) {
        struct epoll_event evs[EVENTS];
        int n = epoll_wait(ep, evs, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            int fd = (int)(intptr_t)evs[i].data.ptr;
            if (fd == 0) return 0;
            if (fd != listener) {
                echo(fd);
                continue;
            }
            int c = sock_accept(listener, SOCK_NONBLOCK);
            sock_watch(ep, EPOLL_CTL_ADD, c, EPOLLIN, (void *)(intptr_t)c);
        }
    }
}
