#include "keeper/core.h"

#include "base/clock.h"
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

enum { SWEEP_ROUNDS = 10, SWEEP_WAIT_MS = 2000 };

static int by_pid(const void *a, const void *b) {
    pid_t x = ((const proc *)a)->pid, y = ((const proc *)b)->pid;
    return (x > y) - (x < y);
}

static bool collect(proc_table *t, pid_t pid) {
    proc p = {.pid = pid};
    if (!cp_proc_stat_read(pid, &p.st)) return !cp_lack(errno);
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 256;
        proc *v = realloc(t->v, cap * sizeof *v);
        if (!v) return false;
        t->v = v;
        t->cap = cap;
    }
    t->v[t->n++] = p;
    return true;
}

void proc_table_read(proc_table *t) {
    DIR *d = opendir("/proc");
    *t = (proc_table){.short_of_memory = !d};
    if (!d) return;
    for (const struct dirent *e; (e = readdir(d));) {
        uint64_t pid;
        if (cp_str_u64(cp_str_of(e->d_name), INT32_MAX, &pid) && pid > 0 && !collect(t, (pid_t)pid))
            t->short_of_memory = true;
    }
    closedir(d);
    if (t->n) qsort(t->v, t->n, sizeof *t->v, by_pid);
}

void proc_table_free(proc_table *t) {
    free(t->v);
    *t = (proc_table){0};
}

proc *proc_find(const proc_table *t, pid_t pid) {
    return t->n ? bsearch(&(proc){.pid = pid}, t->v, t->n, sizeof *t->v, by_pid) : NULL;
}

void proc_signal(const proc *p, int sig) {
    /* The pidfd first: what is signalled is what was looked at, even if the number is somebody else's by now. */
    cp_autofd int pidfd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    cp_proc_stat now;
    int sys = pidfd < 0 ? errno : 0;
    bool seen = pidfd >= 0 && cp_proc_stat_read(p->pid, &now);
    if (seen ? now.start_time != p->st.start_time : pidfd >= 0 && !cp_lack(errno)) return;
    if (pidfd >= 0) syscall(SYS_pidfd_send_signal, pidfd, sig, NULL, 0);
    else if (sys != ESRCH) kill(p->pid, sig); /* no descriptor is free, or a kernel before 5.3 */
}

bool proc_kill_descendants(int sig) {
    autotable proc_table t;
    proc_table_read(&t);
    pid_t self = getpid();
    for (bool more = true; more;) { /* one round per generation, mostly fewer: pids ascend */
        more = false;
        for (size_t i = 0; i < t.n; i++) {
            const proc *parent = proc_find(&t, t.v[i].st.ppid);
            if (t.v[i].chosen || t.v[i].pid == self || (t.v[i].st.ppid != self && !(parent && parent->chosen)))
                continue;
            t.v[i].chosen = more = true;
        }
    }
    for (size_t i = 0; i < t.n; i++) {
        if (!t.v[i].chosen) continue;
        proc_signal(&t.v[i], sig);
        if (sig == SIGTERM) proc_signal(&t.v[i], SIGCONT); /* a stopped one would not see it */
    }
    return !t.short_of_memory;
}

/* ---- sweep ---- */

/* The marked ones, their groups and sessions, and what descends from any of these: one may have set the limit that the
 * mark is in. */
static size_t choose_marked(proc_table *t, uint64_t number) {
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++) {
        cp_mark m;
        t->v[i].chosen = t->v[i].pid != getpid() && t->v[i].st.state != 'Z' && cp_mark_of(t->v[i].pid, &m) &&
                         mark_is_of(number, m.spawn);
        n += t->v[i].chosen;
    }
    for (bool more = n > 0; more;) {
        more = false;
        for (size_t i = 0; i < t->n; i++) {
            proc *p = &t->v[i];
            if (p->chosen || p->pid == getpid() || p->st.state == 'Z') continue;
            const proc *kin[] = {proc_find(t, p->st.ppid), proc_find(t, p->st.group), proc_find(t, p->st.session)};
            for (size_t k = 0; k < CP_COUNT(kin) && !p->chosen; k++) p->chosen = kin[k] && kin[k]->chosen;
            n += p->chosen;
            more |= p->chosen;
        }
    }
    return n;
}

static void await_gone(const proc *p, uint64_t until) {
    cp_proc_stat st;
    cp_autofd int pidfd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    uint64_t now = cp_now_ms();
    if (pidfd < 0 || now >= until || !cp_proc_stat_read(p->pid, &st) || st.start_time != p->st.start_time) return;
    (void)poll(&(struct pollfd){.fd = pidfd, .events = POLLIN}, 1, (int)(until - now));
}

unsigned proc_sweep_mark(uint64_t number) {
    unsigned killed = 0;
    for (int round = 0; round < SWEEP_ROUNDS; round++) { /* again: one may have forked while we looked */
        autotable proc_table t;
        proc_table_read(&t);
        if (!choose_marked(&t, number)) return killed;
        for (size_t i = 0; i < t.n; i++)
            if (t.v[i].chosen) proc_signal(&t.v[i], SIGKILL), killed++;
        uint64_t until = cp_now_ms() + SWEEP_WAIT_MS;
        for (size_t i = 0; i < t.n; i++)
            if (t.v[i].chosen) await_gone(&t.v[i], until);
    }
    return killed;
}
