/* inet_diag(7): the socket with their address and ours the other way round, which is theirs when it is in this network
 * namespace. Commands are in it; whoever comes from another one is not found, and has an address that is not ours. */
#include "transport/peer.h"

#include "base/act.h"
#include "base/fd.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct ends {
    int family;
    uint16_t ours, theirs; /* ports, in network order */
    uint8_t our_ip[16], their_ip[16];
} ends;

static void take(const struct sockaddr_storage *a, uint8_t ip[16], uint16_t *port) {
    const struct sockaddr_in *v4 = (const void *)a;
    const struct sockaddr_in6 *v6 = (const void *)a;
    *port = a->ss_family == AF_INET ? v4->sin_port : v6->sin6_port;
    if (a->ss_family == AF_INET) memcpy(ip, &v4->sin_addr, 4);
    else memcpy(ip, &v6->sin6_addr, 16);
}

static bool ends_of(int fd, ends *e) {
    struct sockaddr_storage us = {0}, them = {0};
    socklen_t n = sizeof us, m = sizeof them;
    *e = (ends){0};
    if (getsockname(fd, (struct sockaddr *)&us, &n) < 0 || getpeername(fd, (struct sockaddr *)&them, &m) < 0)
        return false;
    if (us.ss_family != AF_INET && us.ss_family != AF_INET6) return false;
    e->family = us.ss_family;
    take(&us, e->our_ip, &e->ours);
    take(&them, e->their_ip, &e->theirs);
    return true;
}

/* A v4 address in v6 form belongs to a v4 socket at the other end, or to a v6 socket in the same form: both are asked.
 */
static bool mapped(const ends *e) {
    static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};
    return e->family == AF_INET6 && memcmp(e->their_ip, prefix, sizeof prefix) == 0;
}

static ends unmapped(const ends *e) {
    ends v4 = {.family = AF_INET, .ours = e->ours, .theirs = e->theirs};
    memcpy(v4.our_ip, e->our_ip + 12, 4);
    memcpy(v4.their_ip, e->their_ip + 12, 4);
    return v4;
}

static bool within(const ends *e) {
    ends v4 = mapped(e) ? unmapped(e) : *e;
    static const uint8_t loop6[16] = {[15] = 1};
    if (v4.family == AF_INET && v4.their_ip[0] == 127) return true;
    if (v4.family == AF_INET6 && memcmp(v4.their_ip, loop6, 16) == 0) return true;
    return memcmp(v4.their_ip, v4.our_ip, 16) == 0;
}

/* 1: *uid owns their end; 0: there is no such socket, or it has no owner any more; -1: the kernel does not say. */
static int owner(int nl, const ends *e, uid_t *uid) {
    struct {
        struct nlmsghdr h;
        struct inet_diag_req_v2 r;
    } ask = {.h = {.nlmsg_len = sizeof ask, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST}};
    ask.r.sdiag_family = (uint8_t)e->family;
    ask.r.sdiag_protocol = IPPROTO_TCP;
    ask.r.idiag_states = ~0u;
    ask.r.id.idiag_sport = e->theirs;
    ask.r.id.idiag_dport = e->ours;
    memcpy(ask.r.id.idiag_src, e->their_ip, 16);
    memcpy(ask.r.id.idiag_dst, e->our_ip, 16);
    ask.r.id.idiag_cookie[0] = ask.r.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    if (send(nl, &ask, sizeof ask, 0) != (ssize_t)sizeof ask) return -1;
    _Alignas(struct nlmsghdr) char answer[4096];
    ssize_t n = recv(nl, answer, sizeof answer, 0);
    struct nlmsghdr *h = (void *)answer; /* NLMSG_DATA casts its const away */
    if (n < (ssize_t)sizeof *h || !NLMSG_OK(h, (size_t)n)) return -1;
    if (h->nlmsg_type == NLMSG_ERROR) return ((struct nlmsgerr *)NLMSG_DATA(h))->error == -ENOENT ? 0 : -1;
    if (h->nlmsg_type != SOCK_DIAG_BY_FAMILY) return -1;
    const struct inet_diag_msg *m = NLMSG_DATA(h);
    *uid = m->idiag_uid;
    return m->idiag_inode != 0;
}

static int find(const ends *e, uid_t *uid) {
    cp_autofd int nl = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (nl < 0) return -1;
    int got = owner(nl, e, uid);
    if (got != 0 || !mapped(e)) return got;
    ends v4 = unmapped(e);
    return owner(nl, &v4, uid);
}

int cp_peer_check(const cp_config *c, int fd, cp_err *err) {
    uid_t child, uid = 0;
    ends e;
    if (c->has_token || c->allow_child_calls || !cp_act_user(&child) || child == geteuid()) return 0;
    if (!ends_of(fd, &e)) return 0; /* it has gone */
    int got = find(&e, &uid);
    bool refused = got > 0 ? uid == child : within(&e);
    if (!refused) return 0;
    return cp_fail(err, CP_E_CHILD_NOT_ALLOWED,
                   got > 0 ? "Commands may not call this server: it has no token and runs them as another user"
                           : "Whose connection this is cannot be told, and it comes from this machine");
}
