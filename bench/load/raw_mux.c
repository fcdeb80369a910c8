/* The raw limit for calls beside a stream: one connection, one thread, a command whose output is copied from its pipe
 * to the socket in frames, and calls that are answered between two of them. TCP_NOTSENT_LOWAT as any server must set it
 * that does not want a call to queue behind megabytes in the kernel. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "load/load.h"
#include "load/raw.h"
#include "load/sock.h"

enum { CHUNK = 64 << 10, LOWAT = 128 << 10 };

typedef struct raw_mux {
    int fd, pipe;
    pid_t pid;
    cp_buf in, out;
} raw_mux;

static void start(raw_mux *m, const char *command, size_t n) {
    int p[2];
    cp_autofree char *line = cp_str_dup((cp_str){command, n});
    if (cp_pipe(p, 0) < 0) die("pipe");
    m->pid = raw_start((const char *const[]){"bash", "-c", line, NULL}, -1, p[1], -1);
    cp_close(&p[1]);
    m->pipe = p[0];
}

static void answer(raw_mux *m) {
    raw_head h;
    for (size_t n; m->in.n >= sizeof h; cp_buf_consume(&m->in, n)) {
        memcpy(&h, m->in.p, sizeof h);
        n = sizeof h + h.length;
        if (m->in.n < n) return;
        if (h.id == 0) start(m, m->in.p + sizeof h, h.length);
        else cp_buf_add(&m->out, m->in.p, n);
    }
}

static bool take_calls(raw_mux *m) {
    cp_buf_reserve(&m->in, CHUNK);
    ssize_t k = recv(m->fd, m->in.p + m->in.n, CHUNK, MSG_DONTWAIT);
    if (k <= 0) return false;
    m->in.n += (size_t)k;
    answer(m);
    return true;
}

static void take_output(raw_mux *m) {
    cp_buf_reserve(&m->out, sizeof(raw_head) + CHUNK);
    ssize_t k = read(m->pipe, m->out.p + m->out.n + sizeof(raw_head), CHUNK);
    if (k <= 0) {
        cp_close(&m->pipe);
        return;
    }
    raw_head h = {.length = (unsigned)k, .id = 0};
    memcpy(m->out.p + m->out.n, &h, sizeof h);
    m->out.n += sizeof h + (size_t)k;
}

static void give(raw_mux *m) {
    ssize_t k = send(m->fd, m->out.p, m->out.n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (k > 0) cp_buf_consume(&m->out, (size_t)k);
}

static void serve(raw_mux *m) {
    for (;;) {
        struct pollfd p[] = {{.fd = m->fd, .events = m->out.n ? POLLIN | POLLOUT : POLLIN},
                             {.fd = m->out.n ? -1 : m->pipe, .events = POLLIN}};
        if (poll(p, 2, -1) < 0) die("poll");
        if (p[0].revents & (POLLIN | POLLHUP | POLLERR) && !take_calls(m)) return;
        if (p[1].revents) take_output(m);
        if (m->out.n) give(m);
    }
}

static void end(raw_mux *m) {
    if (m->pid > 0) {
        kill(m->pid, SIGKILL);
        waitpid(m->pid, NULL, 0);
    }
    cp_close(&m->pipe);
    cp_close(&m->fd);
    cp_buf_free(&m->in);
    cp_buf_free(&m->out);
}

int raw_mux_server(void) {
    uint16_t port;
    int listener = sock_listen(&port), lowat = LOWAT;
    printf("%d\n", port);
    fflush(stdout);
    for (;;) {
        struct pollfd p[] = {{.fd = 0, .events = POLLIN}, {.fd = listener, .events = POLLIN}};
        if (poll(p, 2, -1) < 0) die("poll");
        if (p[0].revents) return 0;
        raw_mux m = {.fd = sock_accept(listener, 0), .pipe = -1};
        setsockopt(m.fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &lowat, sizeof lowat);
        serve(&m);
        end(&m);
    }
}
