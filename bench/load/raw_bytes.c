/* Raw limits for bytes: through a pipe, through a loopback socket, and files by dd with a socket for its standard input
 * or output (--file, --size), which is what a file server can hope for. */
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/thread.h"
#include "load/bytes.h"
#include "load/load.h"
#include "load/raw.h"
#include "load/sock.h"

enum { BLOCK = 64 << 10 };

/* Until its reader closes; SIGPIPE is blocked in threads of ours. */
static void *feed(void *arg) {
    static char block[BLOCK];
    int fd = *(int *)arg;
    while (write(fd, block, sizeof block) > 0) continue;
    return NULL;
}

/* Reads for the time of the window what another thread writes. */
static int throughput(const char *name, int from, int to) {
    pthread_t writer;
    errno = cp_thread_start(&writer, 64 << 10, feed, &to);
    if (errno) die("thread");
    uint64_t begin = cp_now_ns(), end = begin + (uint64_t)opt.seconds_ms * 1000000, bytes = 0;
    static char buf[256 << 10];
    for (ssize_t k; cp_now_ns() < end && (k = read(from, buf, sizeof buf)) > 0;) bytes += (uint64_t)k;
    bytes_report(name, bytes, cp_now_ns() - begin, "");
    close(from);
    pthread_join(writer, NULL);
    close(to);
    return 0;
}

int raw_pipe(void) {
    int p[2];
    if (cp_pipe(p, 0) < 0) die("pipe");
    return throughput("pipe", p[0], p[1]);
}

int raw_socket(void) {
    uint16_t port;
    int listener = sock_listen(&port);
    opt.port = port;
    int from = sock_dial(), to = sock_accept(listener, 0);
    return throughput("socket", from, to);
}

/* dd with the other end of *peer for its standard input (0) or output (1). */
static pid_t dd(int fd, const char *a, const char *b, int *peer) {
    uint16_t port;
    int listener = sock_listen(&port);
    opt.port = port;
    *peer = sock_dial();
    int end = sock_accept(listener, 0);
    pid_t pid = raw_start((const char *const[]){"dd", a, b, "bs=1M", "status=none", NULL}, fd == 0 ? end : -1,
                          fd == 1 ? end : -1, -1);
    close(end);
    close(listener);
    return pid;
}

static void reap(pid_t pid) {
    int status;
    if (waitpid(pid, &status, 0) != pid || status != 0) die("dd");
}

int raw_dd_get(void) {
    char from[4200];
    snprintf(from, sizeof from, "if=%s", opt.file);
    uint64_t begin = cp_now_ns(), bytes = 0;
    int fd;
    pid_t pid = dd(1, from, "iflag=fullblock", &fd);
    static char buf[256 << 10];
    for (ssize_t k; (k = read(fd, buf, sizeof buf)) > 0;) bytes += (uint64_t)k;
    bytes_report("dd-get", bytes, cp_now_ns() - begin, "");
    reap(pid);
    return 0;
}

/* With the fsync that a server owes before it answers. */
int raw_dd_put(void) {
    char to[4200];
    snprintf(to, sizeof to, "of=%s", opt.file);
    uint64_t begin = cp_now_ns();
    int fd;
    pid_t pid = dd(0, to, "conv=fsync", &fd);
    bytes_send(fd, (uint64_t)opt.size);
    shutdown(fd, SHUT_WR);
    reap(pid);
    bytes_report("dd-put", (uint64_t)opt.size, cp_now_ns() - begin, "");
    return 0;
}
