/* Design notes. Workers accept, one connection at a time, by a level-triggered watcher in the epoll set of all clients.
 * When no descriptor is left to accept with, the watcher would fire without end: it is disarmed until one is free.
 *
 * At --max-connections the connection that has been idle longest makes room, taken from the address that has the most.
 * If none is idle, a new connection is good for one request all the same (something has to be able to end what there
 * is); beyond a few of those it is told so and closed. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/host.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/work.h"
#include "transport/http/http.h"

enum { BACKLOG = 4096, SPARED_MS = 1000, EXTRA = 64 /* connections beyond the limit, for a request each */ };

/* ---- opening ---- */

static int resolve(const char *host, struct sockaddr_storage *addr, socklen_t *n, cp_err *err) {
    char name[256];
    cp_str bare = cp_host_unbracket(cp_str_of(host));
    if (bare.n == 0 || bare.n >= sizeof name)
        return cp_fail(err, CP_E_VALIDATION_FAILED, "host \"%s\" is not an address", host);
    snprintf(name, sizeof name, "%.*s", (int)bare.n, bare.p);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list, *a;
    int rc = getaddrinfo(name, "0", &hints, &list);
    if (rc != 0)
        return cp_fail(err, CP_E_VALIDATION_FAILED, "host \"%s\" is not an address: %s", host, gai_strerror(rc));
    for (a = list; a && a->ai_family != AF_INET;) a = a->ai_next;
    if (!a) a = list; /* a name may be both: IPv4, as users expect of localhost */
    if (!a || a->ai_addrlen > sizeof *addr) {
        freeaddrinfo(list);
        return cp_fail(err, CP_E_VALIDATION_FAILED, "host \"%s\" is not an address", host);
    }
    memcpy(addr, a->ai_addr, a->ai_addrlen);
    *n = a->ai_addrlen;
    freeaddrinfo(list);
    return 0;
}

static void set_port(struct sockaddr_storage *addr, uint16_t port) {
    if (addr->ss_family == AF_INET) ((struct sockaddr_in *)addr)->sin_port = htons(port);
    else ((struct sockaddr_in6 *)addr)->sin6_port = htons(port);
}

static uint16_t port_of(int fd) {
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n) < 0) return 0;
    return ntohs(a.ss_family == AF_INET ? ((struct sockaddr_in *)&a)->sin_port
                                        : ((struct sockaddr_in6 *)&a)->sin6_port);
}

static void set_int(int fd, int level, int name, int value) { (void)setsockopt(fd, level, name, &value, sizeof value); }

/* What an accepted socket inherits. A client that has gone without a word (a lost host, a dropped NAT entry) is found
 * by the kernel while nothing is on its way to it. */
static void set_options(int fd, bool v6) {
    set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (v6) set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, 60); /* s */
    set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, 20);
    set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

static int arm(cp_server *srv, int op, uint32_t events) {
    struct epoll_event ev = {.events = events, .data.u64 = (uint64_t)atomic_load(&srv->listener)};
    return epoll_ctl(srv->epoll, op, atomic_load(&srv->listener), &ev);
}

static int listen_on(const char *host, uint16_t port, cp_err *err) {
    struct sockaddr_storage addr = {0};
    socklen_t n = 0;
    if (resolve(host, &addr, &n, err) < 0) return -1;
    set_port(&addr, port);
    cp_autofd int fd = socket(addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return cp_fail_sys(err, CP_E_INTERNAL_ERROR, errno, "cannot listen on %s:%u", host, (unsigned)port);
    set_options(fd, addr.ss_family == AF_INET6);
    if (bind(fd, (struct sockaddr *)&addr, n) == 0 && listen(fd, BACKLOG) == 0) return cp_take_fd(&fd);
    if (errno == EADDRINUSE)
        return cp_fail(err, CP_E_PORT_IN_USE, "cannot listen on %s:%u: the port is in use", host, (unsigned)port);
    return cp_fail_sys(err, CP_E_INTERNAL_ERROR, errno, "cannot listen on %s:%u", host, (unsigned)port);
}

/* Who has connected since the former server ended waits in the socket that it listened on. */
int cp_listener_open(cp_server *srv, uint16_t port, cp_err *err) {
    cp_autofd int fd =
        srv->t->inherited > 0 ? cp_take_fd(&srv->t->inherited) : listen_on(srv->t->config->host, port, err);
    if (fd < 0) return -1;
    srv->gate.port = port_of(fd);
    atomic_store(&srv->listener, cp_take_fd(&fd));
    if (arm(srv, EPOLL_CTL_ADD, EPOLLIN) < 0) return cp_fail_sys(err, CP_E_INTERNAL_ERROR, errno, "epoll");
    atomic_store(&srv->listening, true);
    return 0;
}

void cp_listener_close(cp_server *srv) {
    int fd = atomic_exchange(&srv->listener, -1);
    atomic_store(&srv->listening, false);
    cp_close(&fd);
}

/* For a socket that listens, tcpi_unacked is the length of its queue. */
unsigned cp_listener_waiting(const cp_server *srv) {
    struct tcp_info info = {0};
    socklen_t n = sizeof info;
    int fd = atomic_load(&srv->listener);
    return fd >= 0 && getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) == 0 ? info.tcpi_unacked : 0;
}

/* ---- accepting ---- */

void cp_listener_rearm(cp_server *srv) {
    if (atomic_load_explicit(&srv->listening, memory_order_relaxed) || atomic_load(&srv->listener) < 0) return;
    if (!atomic_exchange(&srv->listening, true)) (void)arm(srv, EPOLL_CTL_MOD, EPOLLIN);
}

/* `listening` is cleared last: who rearms sets it first, so that it never says true of a watcher that is disarmed. */
static bool disarm(cp_server *srv) {
    (void)arm(srv, EPOLL_CTL_MOD, 0);
    if (!atomic_exchange(&srv->listening, false)) return false;
    cp_sweep_wake(srv); /* it may be somebody else who closes something: it tries again */
    return true;
}

static void out_of_descriptors(cp_server *srv, int why) {
    if (disarm(srv) && !atomic_exchange(&srv->starved, true))
        cp_log(CP_LOG_WARN, "http.accept", "nothing can be accepted until something is closed",
               CP_KVZ("error", strerror(why)));
}

/* Under a low limit of open files many clients at once would leave no descriptor for what they ask for. So they take
 * turns: they wait in the kernel's queue until somebody else has gone, or until the sweeper lets one more in. Always
 * false with a limit that is large enough. */
static bool shall_wait(cp_server *srv) {
    if (atomic_load(&srv->open) < srv->soft_open || atomic_exchange(&srv->admit, false) ||
        cp_sweep_evict(srv, SPARED_MS))
        return false;
    (void)disarm(srv);
    if (atomic_load(&srv->open) < srv->soft_open) cp_listener_rearm(srv); /* somebody has gone just now */
    return true;
}

static void refuse(int fd) {
    static const char sorry[] =
        "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nContent-Length: 62\r\n"
        "Connection: close\r\n\r\n"
        "{\"code\":\"LIMIT_EXCEEDED\",\"message\":\"Too many connections\"     }";
    (void)!send(fd, sorry, sizeof sorry - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(fd, SHUT_WR);
}

static int accept_one(cp_server *srv, struct sockaddr_storage *peer) {
    socklen_t n = sizeof *peer;
    int fd = accept4(atomic_load(&srv->listener), (struct sockaddr *)peer, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0 || !(cp_no_fd(errno) || errno == ENOMEM || errno == ENOBUFS)) return fd;
    int why = errno;
    if (cp_sweep_evict(srv, 0)) {
        fd = accept4(atomic_load(&srv->listener), (struct sockaddr *)peer, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) return fd;
    }
    out_of_descriptors(srv, why);
    return -1;
}

static cp_client *begin(cp_server *srv, int fd, cp_source_count *source) {
    cp_client *c = cp_clients_at(srv->clients, fd);
    if (!c) return NULL;
    c->srv = srv;
    c->fd = fd;
    c->id = CP_OWNER_CLIENTS + 2 * atomic_fetch_add_explicit(&srv->last_id, 1, memory_order_relaxed) + 1;
    c->watched = c->writes = c->judged = c->last = c->thorough = c->used = false;
    c->look = true;
    c->at = c->began = 0;
    c->head = (cp_head){0};
    c->body = (cp_body){.charge.kind = CP_MEM_BODIES};
    c->call = NULL;
    atomic_store(&c->phase, CP_CLIENT_HEAD);
    atomic_store(&c->trusted, false);
    atomic_store(&c->source, source);
    atomic_store(&c->since, cp_now_ms());
    atomic_store(&c->deadline, 0);
    cp_metric_add(CP_M_CONNECTIONS, 1);
    atomic_store(&c->state, CP_STATE_OPEN | CP_STATE_BUSY);
    return c;
}

cp_client *cp_listener_accept(cp_server *srv) {
    struct sockaddr_storage peer;
    if (shall_wait(srv)) return NULL;
    cp_autofd int fd = accept_one(srv, &peer);
    if (fd < 0) return NULL;
    const cp_config *cfg = srv->t->config;
    unsigned most = (unsigned)cfg->max_connections, open = atomic_fetch_add(&srv->open, 1);
    bool over = open >= most && !cp_sweep_evict(srv, 0);
    cp_source_count *source =
        open < most + EXTRA ? cp_source_add(srv->sources, &peer, (unsigned)cfg->source_connections) : NULL;
    cp_client *c = source ? begin(srv, fd, source) : NULL;
    if (!c) {
        cp_source_drop(srv->sources, source);
        atomic_fetch_sub(&srv->open, 1);
        refuse(fd);
        return NULL;
    }
    c->last = over;
    if (atomic_load_explicit(&srv->starved, memory_order_relaxed)) atomic_store(&srv->starved, false);
    (void)cp_take_fd(&fd); /* the client's */
    return c;
}
