/* Design notes. CivetWeb 1.15 tells nobody the descriptor of a connection, so it is looked for: the scan asks
 * getpeername and getsockname of every number that no other connection has claimed. A claim lasts while CivetWeb has
 * the number open (from init_connection to connection_close, before it closes), or while we have it open. Claims make
 * the scan short and, which matters more, unmistakable: when we listen on all addresses, two clients behind one NAT may
 * have the same address and port towards two of our addresses, and CivetWeb does not tell which of ours was meant. The
 * one that is being served has been claimed; if a second one still waits in CivetWeb's queue, nothing is claimed and
 * the caller refuses.
 *
 * A plain dup would not do: CivetWeb calls shutdown() before it closes, which cuts every copy. So /dev/null is put
 * under its number with dup3, in one step, so that no other thread can be given the number in between. shutdown,
 * setsockopt, poll and recv on it fail or answer at once, which CivetWeb takes for a client that is gone.
 *
 * Ruled out: defining accept() in the executable (relies on symbol binding), /proc/self/fd (2.9 ms at 5,000 sockets).
 */
#include "transport/takeover.h"

#include "base/buf.h"
#include "base/fd.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

struct cp_fds {
    pthread_mutex_t mu; /* guards claimed, nwords */
    uint64_t *claimed;
    size_t nwords;
    int table; /* size of the kernel's table when last asked */
    int devnull;
    bool wildcard;
};

/* Taken sockets are moved up here, which leaves the low numbers, where the scan begins, to CivetWeb. */
enum { TAKEN_FROM = 1024 };

cp_fds *cp_fds_new(bool wildcard, cp_err *err) {
    cp_fds *f = cp_new(cp_fds);
    f->wildcard = wildcard;
    f->devnull = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (f->devnull < 0) {
        cp_fail_sys(err, CP_E_INTERNAL_ERROR, errno, "/dev/null");
        free(f);
        return NULL;
    }
    pthread_mutex_init(&f->mu, NULL);
    return f;
}

void cp_fds_free(cp_fds *f) {
    if (!f) return;
    cp_close(&f->devnull);
    pthread_mutex_destroy(&f->mu);
    free(f->claimed);
    free(f);
}

/* ---- claims; from here to find() all with f->mu held ---- */

static bool is_claimed(const cp_fds *f, int fd) {
    size_t w = (size_t)fd / 64;
    return w < f->nwords && (f->claimed[w] >> (fd % 64) & 1);
}

static void claim(cp_fds *f, int fd) {
    size_t w = (size_t)fd / 64;
    if (w >= f->nwords) {
        size_t n = (w + 1) * 2;
        f->claimed = cp_realloc(f->claimed, n * sizeof *f->claimed);
        memset(f->claimed + f->nwords, 0, (n - f->nwords) * sizeof *f->claimed);
        f->nwords = n;
    }
    f->claimed[w] |= UINT64_C(1) << (fd % 64);
}

static void unclaim(cp_fds *f, int fd) {
    size_t w = (size_t)fd / 64;
    if (w < f->nwords) f->claimed[w] &= ~(UINT64_C(1) << (fd % 64));
}

/* ---- the scan ---- */

typedef union any_addr {
    struct sockaddr sa;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
    struct sockaddr_storage room;
} any_addr;

static uint16_t port_of(const any_addr *a) {
    if (a->sa.sa_family == AF_INET) return ntohs(a->in.sin_port);
    return a->sa.sa_family == AF_INET6 ? ntohs(a->in6.sin6_port) : 0;
}

static bool local_port_is(int fd, uint16_t port) {
    any_addr a;
    socklen_t n = sizeof a;
    return getsockname(fd, &a.sa, &n) == 0 && port_of(&a) == port;
}

static bool same_host(const any_addr *a, const any_addr *want) {
    if (a->sa.sa_family != want->sa.sa_family) return false;
    if (a->sa.sa_family == AF_INET) return a->in.sin_addr.s_addr == want->in.sin_addr.s_addr;
    return memcmp(&a->in6.sin6_addr, &want->in6.sin6_addr, sizeof a->in6.sin6_addr) == 0;
}

static bool is_connection(int fd, const any_addr *want, const cp_peer *peer) {
    any_addr a;
    socklen_t n = sizeof a;
    if (getpeername(fd, &a.sa, &n) < 0) return false; /* EBADF, ENOTSOCK, ENOTCONN */
    return port_of(&a) == peer->remote_port && same_host(&a, want) && local_port_is(fd, peer->local_port);
}

/* No descriptor has a number this high: the size of the kernel's table, which only ever grows. */
static int table_size(void) {
    cp_autofree char *text = NULL;
    size_t n;
    const char *at = NULL;
    if (cp_read_file("/proc/self/status", 65536, &text, &n) == 0) at = strstr(text, "FDSize:");
    if (at) return (int)strtol(at + sizeof "FDSize:" - 1, NULL, 10);
    struct rlimit lim;
    return getrlimit(RLIMIT_NOFILE, &lim) == 0 && lim.rlim_cur < 1 << 20 ? (int)lim.rlim_cur : 1 << 20;
}

static bool parse_addr(const char *text, any_addr *out) {
    memset(out, 0, sizeof *out);
    out->sa.sa_family = strchr(text, ':') ? AF_INET6 : AF_INET;
    if (out->sa.sa_family == AF_INET) return inet_pton(AF_INET, text, &out->in.sin_addr) == 1;
    return inet_pton(AF_INET6, text, &out->in6.sin6_addr) == 1;
}

static int scan(const cp_fds *f, const any_addr *want, const cp_peer *peer, int *matches) {
    int found = -1;
    *matches = 0;
    for (int fd = 0; fd < f->table; fd++) {
        if (is_claimed(f, fd) || !is_connection(fd, want, peer)) continue;
        found = fd;
        if (++*matches > 1 || !f->wildcard) break;
    }
    return found;
}

/* Bound to one address the four numbers are unique: the first match will do, and the size of the table (20 µs to ask
 * for) matters only when there is none. */
static int find(cp_fds *f, const any_addr *want, const cp_peer *peer, int *matches) {
    int fd = -1;
    *matches = 0;
    if (!f->wildcard) fd = scan(f, want, peer, matches);
    if (*matches) return fd;
    f->table = table_size();
    return scan(f, want, peer, matches);
}

int cp_fds_claim(cp_fds *f, const cp_peer *peer, cp_err *err) {
    any_addr want;
    int matches;
    if (!parse_addr(peer->addr, &want))
        return cp_fail(err, CP_E_INTERNAL_ERROR, "cannot read the peer address %s", peer->addr);
    pthread_mutex_lock(&f->mu);
    int fd = find(f, &want, peer, &matches);
    if (matches == 1) claim(f, fd);
    pthread_mutex_unlock(&f->mu);
    if (matches == 1) return fd;
    return cp_fail(err, CP_E_RESOURCE_BUSY, "%s of %s port %u", matches ? "more than one connection" : "no connection",
                   peer->addr, (unsigned)peer->remote_port);
}

void cp_fds_release(cp_fds *f, int fd) {
    if (fd < 0) return;
    pthread_mutex_lock(&f->mu);
    unclaim(f, fd);
    pthread_mutex_unlock(&f->mu);
}

/* ---- taking ---- */

static int move_up(int fd) {
    int nf = fcntl(fd, F_DUPFD_CLOEXEC, TAKEN_FROM);
    if (nf < 0 && errno == EINVAL) nf = fcntl(fd, F_DUPFD_CLOEXEC, 3); /* the limit is lower than that */
    return nf;
}

int cp_fds_take(cp_fds *f, int fd, cp_err *err) {
    pthread_mutex_lock(&f->mu);
    cp_autofd int nf = move_up(fd);
    int saved = errno;
    if (nf >= 0 && (cp_nonblock(nf) < 0 || dup3(f->devnull, fd, O_CLOEXEC) < 0)) {
        saved = errno;
        cp_close(&nf);
    }
    if (nf >= 0) claim(f, nf);
    pthread_mutex_unlock(&f->mu);
    if (nf < 0) return cp_fail_sys(err, CP_E_LIMIT_EXCEEDED, saved, "cannot take the connection over");
    return cp_take_fd(&nf);
}

void cp_fds_close(cp_fds *f, int *fd) {
    if (*fd < 0) return;
    pthread_mutex_lock(&f->mu);
    unclaim(f, *fd);
    cp_close(fd);
    pthread_mutex_unlock(&f->mu);
}

int cp_fds_listener(uint16_t port) {
    for (int fd = 0, end = table_size(); fd < end; fd++) {
        int yes = 0;
        socklen_t n = sizeof yes;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &yes, &n) == 0 && yes && local_port_is(fd, port)) return fd;
    }
    return -1;
}
