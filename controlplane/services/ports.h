#pragma once
/* Who listens: TCP sockets of /proc/net, and the processes that hold them. Blocking (it looks at the descriptors of all
 * processes), any thread. */
#include <netinet/in.h>

#include "base/err.h"
#include "services/tree.h"

enum { CP_PORT_CHAIN = 16 };

typedef struct cp_port {
    uint16_t port;
    bool v6;
    char address[INET6_ADDRSTRLEN];
    uint64_t inode;
    /* Who has it open: of several (a server and its workers) the eldest, then its parents. n 0: nobody that we may look
     * at, or a process of another pid namespace. */
    cp_proc chain[CP_PORT_CHAIN];
    unsigned n;
    char name[16]; /* of chain[0] */
    cp_mark mark;
} cp_port;

typedef struct cp_ports {
    cp_port *v;
    size_t n, cap;
} cp_ports;

/* By port, IPv4 first. */
int cp_ports_read(cp_ports *out, cp_err *err);
/* Adds the listening sockets of a /proc/net/tcp or tcp6. Pure. */
void cp_ports_parse(cp_ports *out, const char *text, bool v6);
void cp_ports_free(cp_ports *p);
