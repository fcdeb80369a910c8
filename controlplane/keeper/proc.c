#include "keeper/core.h"

#include "base/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ENVIRON_MAX = 8 << 20, SWEEP_ROUNDS = 50, SWEEP_WAIT_MS = 1000 };

bool proc_read(pid_t pid, proc_stat *out) {
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    cp_autofd int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (n <= 0) return false;
    text[n] = '\0';
    const char *p = strrchr(text, ')'); /* the name before it may hold anything, spaces and parentheses included */
    int ppid;
    unsigned long long start;
    if (!p || sscanf(p + 1, " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                     &out->state, &ppid, &start) != 3)
        return false;
    out->ppid = ppid;
    out->start_time = start;
    return true;
}

struct proc {
    pid_t pid, ppid;
    bool ours;
};

static int by_pid(const void *a, const void *b) {
    pid_t x = ((const struct proc *)a)->pid, y = ((const struct proc *)b)->pid;
    return (x > y) - (x < y);
}

/* Calls fn for each process there is. */
static void each_process(void (*fn)(pid_t pid, void *arg), void *arg) {
    DIR *d = opendir("/proc");
    if (!d) return;
    for (const struct dirent *e; (e = readdir(d));) {
        uint64_t pid;
        if (cp_str_u64(cp_str_of(e->d_name), INT32_MAX, &pid) && pid > 0) fn((pid_t)pid, arg);
    }
    closedir(d);
}

static void collect(pid_t pid, void *arg) {
    proc_stat st;
    if (!proc_read(pid, &st)) return;
    struct proc p = {.pid = pid, .ppid = st.ppid};
    cp_buf_add(arg, &p, sizeof p);
}

void proc_kill_descendants(int sig) {
    cp_autobuf cp_buf b = {0};
    each_process(collect, &b);
    struct proc *v = (void *)b.p;
    size_t n = b.n / sizeof *v;
    if (!n) return;
    qsort(v, n, sizeof *v, by_pid);
    pid_t self = getpid();
    for (bool more = true; more;) { /* one round per generation, mostly fewer: pids ascend */
        more = false;
        for (size_t i = 0; i < n; i++) {
            const struct proc *parent = bsearch(&(struct proc){.pid = v[i].ppid}, v, n, sizeof *v, by_pid);
            if (v[i].ours || v[i].pid == self || (v[i].ppid != self && !(parent && parent->ours))) continue;
            v[i].ours = more = true;
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (!v[i].ours) continue;
        kill(v[i].pid, sig);
        if (sig == SIGTERM) kill(v[i].pid, SIGCONT); /* a stopped one would not see it */
    }
}

struct sweep {
    char needle[48];
    unsigned found;
};

static void kill_marked(pid_t pid, void *arg) {
    struct sweep *s = arg;
    if (pid == getpid()) return;
    /* The pidfd first: what is killed is what was looked at, even if the number is given to somebody else meanwhile. */
    cp_autofd int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0) return;
    char path[40];
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    cp_autofree char *env = NULL;
    size_t n = 0;
    if (cp_read_file(path, ENVIRON_MAX, &env, &n) < 0 || !memmem(env, n, s->needle, strlen(s->needle))) return;
    s->found++;
    if (syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0) < 0) return;
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    (void)poll(&p, 1, SWEEP_WAIT_MS);
}

void proc_sweep_mark(const char *mark) {
    struct sweep s;
    snprintf(s.needle, sizeof s.needle, "CONFLUX_MARK=%s.", mark);
    for (int round = 0; round < SWEEP_ROUNDS; round++) { /* again: one may have forked while we looked */
        s.found = 0;
        each_process(kill_marked, &s);
        if (!s.found) return;
    }
}
