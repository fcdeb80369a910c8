/* Raw limits for bytes: through a pipe, through a loopback socket, and files by dd with a socket for its standard input
 * or output (--file, --size), which is what a file server can hope for. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "load/bytes.h"
#include "load/load.h"
#include "load/raw.h"
#include "load/sock.h"

enum { BLOCK = 64 << 10 };

static _Noreturn void feed(int fd) {
    static char block[BLOCK];
    while (write(fd, block, sizeof block) > 0) continue;
    _exit(0);
}

/* Reads for the time of the window what a child writes. */
static int throughput(const char *name, int from, int to) {
    pid_t pid = fork();
    if (pid < 0) die("fork");
    if (pid == 0) {
        signal(SIGPIPE, SIG_DFL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(from);
        feed(to);
    }
    close(to);
    uint64_t begin = cp_now_ns(), end = begin + (uint64_t)opt.seconds_ms * 1000000, bytes = 0;
    static char buf[256 << 10];
    for (ssize_t k; cp_now_ns() < end && (k = read(from, buf, sizeof buf)) > 0;) bytes += (uint64_t)k;
    bytes_report(name, bytes, cp_now_ns() - begin, "");
    close(from);
    waitpid(pid, NULL, 0);
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
    pid_t pid = fork();
    if (pid < 0) die("fork");
    if (pid) {
        *peer = sock_dial();
        close(listener);
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(sock_accept(listener, 0), fd);
    execlp("dd", "dd", a, b, "bs=1M", "status=none", (char *)NULL);
    _exit(127);
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
