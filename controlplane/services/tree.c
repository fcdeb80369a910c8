/* Design notes. A snapshot is one pass over /proc with read(2) into a stack buffer: no stdio, no parsing beyond the
 * fields that are needed. It is not atomic, so whoever kills a tree takes it again before each step and until nothing
 * is left. */
#include "services/tree.h"

#include "base/buf.h"
#include "base/fd.h"
#include "base/proc_stat.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

void cp_tree_free(cp_tree *t) {
    free(t->v);
    *t = (cp_tree){0};
}

void cp_tree_add(cp_tree *t, const cp_proc *p) {
    if (t->n == t->cap) {
        t->cap = t->cap ? t->cap * 2 : 64;
        t->v = cp_realloc(t->v, t->cap * sizeof *t->v);
    }
    t->v[t->n++] = *p;
}

bool cp_tree_has(const cp_tree *t, pid_t pid) {
    for (size_t i = 0; i < t->n; i++)
        if (t->v[i].pid == pid) return true;
    return false;
}

static cp_proc proc_of(pid_t pid, const cp_proc_stat *st) {
    return (cp_proc){.pid = pid,
                     .ppid = st->ppid,
                     .pgid = st->group,
                     .sid = st->session,
                     .state = st->state,
                     .start_time = st->start_time,
                     .cpu_ticks = st->cpu_ticks,
                     .rss_bytes = st->rss_bytes};
}

bool cp_proc_read(pid_t pid, cp_proc *out) {
    cp_proc_stat st;
    if (!cp_proc_stat_read(pid, &st)) return false;
    *out = proc_of(pid, &st);
    return true;
}

static int by_pid(const void *a, const void *b) {
    pid_t x = ((const cp_proc *)a)->pid, y = ((const cp_proc *)b)->pid;
    return (x > y) - (x < y);
}

int cp_tree_snapshot(cp_tree *all) {
    DIR *d = opendir("/proc");
    if (!d) return -1;
    int lack = 0;
    for (struct dirent *e; (errno = 0, e = readdir(d));) {
        uint64_t pid;
        cp_proc_stat st;
        char path[40];
        if (!cp_str_u64(cp_str_of(e->d_name), INT32_MAX, &pid)) continue;
        snprintf(path, sizeof path, "%d/stat", (int)pid);
        if (cp_proc_stat_at(dirfd(d), path, &st)) {
            cp_proc p = proc_of((pid_t)pid, &st);
            cp_tree_add(all, &p);
        } else if (cp_lack(errno)) {
            lack = errno;
        }
    }
    if (cp_lack(errno)) lack = errno; /* readdir's */
    closedir(d);
    if (all->n) qsort(all->v, all->n, sizeof *all->v, by_pid);
    return lack ? (errno = lack, -1) : 0;
}

static const cp_proc *find(const cp_tree *all, pid_t pid) {
    cp_proc key = {.pid = pid};
    return all->n ? bsearch(&key, all->v, all->n, sizeof key, by_pid) : NULL;
}

const cp_mark *cp_proc_mark(cp_proc *p) {
    if (!p->mark_read) (void)cp_mark_of(p->pid, &p->mark);
    p->mark_read = true;
    return &p->mark;
}

static bool carries(cp_proc *p, const cp_mark *mark) {
    return mark && mark->spawn && cp_mark_matches(mark, cp_proc_mark(p));
}

/* Marks in `in` (by index) everything that descends from what is marked. Children may have smaller pids than their
 * parents, so it goes round until nothing changes; two rounds are the rule. */
static void mark_descendants(const cp_tree *all, bool *in) {
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < all->n; i++) {
            if (in[i]) continue;
            const cp_proc *parent = find(all, all->v[i].ppid);
            if (parent && in[parent - all->v]) more = in[i] = true;
        }
    }
}

/* Parents before children: by depth within the set. */
static void add_in_order(cp_tree *out, const cp_tree *all, bool *in) {
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < all->n; i++) {
            if (!in[i]) continue;
            const cp_proc *parent = find(all, all->v[i].ppid);
            if (parent && in[parent - all->v]) continue; /* its turn comes when the parent is out */
            in[i] = false;
            more = true;
            if (!cp_tree_has(out, all->v[i].pid)) cp_tree_add(out, &all->v[i]);
        }
    }
}

void cp_tree_collect(cp_tree *out, cp_tree *all, pid_t root, uint64_t root_start, const cp_mark *mark) {
    if (all->n == 0) return;
    const cp_proc *r = root > 1 ? find(all, root) : NULL;
    bool ours = r && (!root_start || r->start_time == root_start), known = root > 1 && (ours || !r);
    cp_autofree bool *in = cp_alloc(all->n);
    for (size_t i = 0; i < all->n; i++) {
        cp_proc *p = &all->v[i];
        /* While members of a group live its number is not given to a new process: with the leader gone they are still
         * the ones we know, unless the number has a new owner. */
        bool member = known && (p->pgid == root || p->sid == root) && p->start_time >= root_start;
        in[i] = (ours && p == r) || member || carries(p, mark);
    }
    mark_descendants(all, in);
    add_in_order(out, all, in);
}

void cp_tree_collect_marked(cp_tree *out, cp_tree *all, const cp_mark *mark, pid_t except, uint64_t except_start) {
    if (all->n == 0) return;
    cp_autofree bool *in = cp_alloc(all->n);
    for (size_t i = 0; i < all->n; i++) {
        cp_proc *p = &all->v[i];
        in[i] = (p->pid != except || p->start_time != except_start) && carries(p, mark);
    }
    mark_descendants(all, in);
    add_in_order(out, all, in);
}

/* The keeper gives no start time when it could not read it: then the number is all that is known. */
static bool started_with(const cp_proc *now, uint64_t start_time) {
    return !start_time || now->start_time == start_time;
}

static bool still_it(const cp_proc *p) {
    cp_proc now;
    if (cp_proc_read(p->pid, &now)) {
        if (started_with(&now, p->start_time)) return true;
        errno = ESRCH;
    }
    if (!cp_lack(errno)) errno = ESRCH;
    return false;
}

/* Without a pidfd (kernels before 5.3, some sandboxes, no free descriptor) the check comes a few microseconds before
 * the signal, which is as near as a number gets to an identity. */
int cp_proc_signal(const cp_proc *p, int sig) {
    cp_autofd int fd = pidfd_open(p->pid, 0);
    if (fd < 0 && errno != ENOSYS && !cp_lack(errno)) return -1;
    if (!still_it(p)) return -1;
    return fd < 0 ? kill(p->pid, sig) : pidfd_send_signal(fd, sig, NULL, 0);
}

bool cp_proc_alive(const cp_proc *p) {
    cp_proc now;
    if (cp_proc_read(p->pid, &now)) return started_with(&now, p->start_time) && now.state != 'Z' && now.state != 'X';
    return cp_lack(errno) && (kill(p->pid, 0) == 0 || errno == EPERM);
}
