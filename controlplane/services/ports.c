#include "services/ports.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"

enum { LISTEN = 0x0A, TABLE_MAX = 64 << 20 };

/* The kernel prints each 32-bit word of an address in the machine's byte order (proc_net_tcp(5)). */
static bool parse_address(const char *hex, bool v6, char out[INET6_ADDRSTRLEN]) {
    uint32_t words[4];
    unsigned n = v6 ? 4 : 1;
    for (unsigned i = 0; i < n; i++)
        if (sscanf(hex + 8 * (size_t)i, "%8" SCNx32, &words[i]) != 1) return false;
    return inet_ntop(v6 ? AF_INET6 : AF_INET, words, out, INET6_ADDRSTRLEN) != NULL;
}

static void parse_line(cp_ports *out, const char *line, bool v6) {
    char address[33];
    unsigned port, state;
    unsigned long long inode;
    if (sscanf(line, " %*u: %32[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*x:%*x %*x:%*x %*x %*u %*u %llu", address, &port,
               &state, &inode) != 4)
        return;
    cp_port p = {.port = (uint16_t)port, .v6 = v6, .inode = inode};
    if (state != LISTEN || port > 65535 || strlen(address) != (v6 ? 32 : 8)) return;
    if (!parse_address(address, v6, p.address)) return;
    if (out->n == out->cap) out->v = cp_realloc(out->v, (out->cap = out->cap ? 2 * out->cap : 16) * sizeof *out->v);
    out->v[out->n++] = p;
}

void cp_ports_parse(cp_ports *out, const char *text, bool v6) {
    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        parse_line(out, line, v6); /* the heading fits no format */
    }
}

/* -1: for lack of descriptors or memory it cannot be looked at. */
static int read_table(cp_ports *out, const char *path, bool v6) {
    cp_autofree char *text = NULL;
    size_t n;
    if (cp_read_file(path, TABLE_MAX, &text, &n) < 0) return cp_lack(errno) ? -1 : 0; /* no IPv6: no file */
    cp_ports_parse(out, text, v6);
    return 0;
}

/* ---- owners ---- */

static int by_inode(const void *a, const void *b) {
    uint64_t x = ((const cp_port *)a)->inode, y = ((const cp_port *)b)->inode;
    return (x > y) - (x < y);
}

static int by_port(const void *a, const void *b) {
    const cp_port *x = a, *y = b;
    if (x->port != y->port) return x->port < y->port ? -1 : 1;
    return x->v6 != y->v6 ? x->v6 - y->v6 : strcmp(x->address, y->address);
}

/* Whose a port is that both have: the elder's. Ours is ours, though the keeper has it too. */
static bool goes_before(const cp_proc *a, const cp_proc *b) {
    pid_t own = getpid();
    if (a->pid == own || b->pid == own) return a->pid == own;
    return a->start_time != b->start_time ? a->start_time < b->start_time : a->pid < b->pid;
}

static void claim(cp_ports *all, const char *link, const cp_proc *proc) {
    unsigned long long inode;
    cp_port key = {0};
    if (sscanf(link, "socket:[%llu]", &inode) != 1) return;
    key.inode = inode;
    cp_port *p = bsearch(&key, all->v, all->n, sizeof key, by_inode);
    if (!p || (p->n && !goes_before(proc, &p->chain[0]))) return;
    p->chain[0] = *proc;
    p->n = 1;
}

static int claim_all(cp_ports *all, const cp_proc *proc) {
    char path[40], link[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)proc->pid);
    DIR *d = opendir(path); /* not ours to look at: nobody's */
    if (!d) return cp_lack(errno) ? -1 : 0;
    for (struct dirent *e; (e = readdir(d));) {
        ssize_t n = readlinkat(dirfd(d), e->d_name, link, sizeof link - 1);
        if (n <= 0) continue;
        link[n] = 0;
        claim(all, link, proc);
    }
    closedir(d);
    return 0;
}

static void read_name(cp_port *p) {
    char path[40];
    cp_autofree char *text = NULL;
    size_t n;
    snprintf(path, sizeof path, "/proc/%d/comm", (int)p->chain[0].pid);
    if (cp_read_file(path, 4096, &text, &n) < 0) return;
    text[strcspn(text, "\n")] = 0;
    snprintf(p->name, sizeof p->name, "%s", text);
}

static void describe(cp_port *p) {
    if (!p->n) return;
    read_name(p);
    p->mark = *cp_proc_mark(&p->chain[0]);
    while (p->n < CP_PORT_CHAIN && p->chain[p->n - 1].ppid > 0 &&
           cp_proc_read(p->chain[p->n - 1].ppid, &p->chain[p->n]))
        p->n++;
}

static int find_owners(cp_ports *out) {
    cp_tree procs = {0};
    int rc = cp_tree_snapshot(&procs);
    for (size_t i = 0; i < procs.n && rc == 0; i++) rc = claim_all(out, &procs.v[i]);
    cp_tree_free(&procs);
    return rc;
}

static int cannot_look(cp_err *err) {
    return cp_fail_sys(err, cp_no_fd(errno) ? CP_E_TOO_MANY_FILES : CP_E_INTERNAL_ERROR, errno, "/proc");
}

int cp_ports_read(cp_ports *out, cp_err *err) {
    if (read_table(out, "/proc/self/net/tcp", false) < 0 || read_table(out, "/proc/self/net/tcp6", true) < 0)
        return cannot_look(err);
    if (!out->n) return 0;
    qsort(out->v, out->n, sizeof *out->v, by_inode);
    if (find_owners(out) < 0) return cannot_look(err);
    for (size_t i = 0; i < out->n; i++) describe(&out->v[i]);
    qsort(out->v, out->n, sizeof *out->v, by_port);
    return 0;
}

void cp_ports_free(cp_ports *p) {
    free(p->v);
    *p = (cp_ports){0};
}
