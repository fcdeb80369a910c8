/* What a session's foreground command with an id of its own leaves to the next server, should this one die: the read
 * ends of its output and our placeholders, with the numbers that its report and its files go by. They lie as messages
 * in a socket that is connected to itself, which the keeper holds with the shell: a queue that outlives us, of bytes
 * and descriptors, that needs nothing of the keeper but to be held.
 *
 * A command is put in before it is typed. When it has reported, its status is put in behind it and the first message
 * taken out (the placeholders with it, so that the output ends); what is out has been put in before, so there is no
 * moment at which nothing is there. Those of commands whose end is on disk are taken out before the next is put in. */
#include "services/session_impl.h"

#include "base/fd.h"

#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct message {
    uint32_t version;
    uint32_t mask; /* of d.fds */
    struct session_deposit d;
};
enum { VERSION = 1 };

/* The kernel finds a name; others cannot send to a socket that has a peer. */
int session_depot_open(void) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    socklen_t n = sizeof a;
    cp_autofd int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a.sun_family) < 0 ||
        getsockname(fd, (struct sockaddr *)&a, &n) < 0 || connect(fd, (struct sockaddr *)&a, n) < 0)
        return -1;
    return cp_take_fd(&fd);
}

union control {
    struct cmsghdr h;
    char space[CMSG_SPACE(sizeof(int) * SESSION_DEPOSIT_FDS)];
};

bool session_depot_put(int depot, const struct session_deposit *d) {
    int fds[SESSION_DEPOSIT_FDS];
    size_t n = 0;
    union control c = {0};
    struct message m = {.version = VERSION, .d = *d};
    for (int i = 0; i < SESSION_DEPOSIT_FDS; i++) {
        if (d->fds[i] < 0) continue;
        m.mask |= 1u << i;
        fds[n++] = d->fds[i];
    }
    struct iovec v = {&m, sizeof m};
    struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1};
    if (n) {
        h.msg_control = c.space;
        h.msg_controllen = CMSG_SPACE(n * sizeof(int));
        c.h =
            (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(n * sizeof(int))};
        memcpy(CMSG_DATA(&c.h), fds, n * sizeof(int));
    }
    return sendmsg(depot, &h, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof m;
}

void session_deposit_close(struct session_deposit *d) {
    for (int i = 0; i < SESSION_DEPOSIT_FDS; i++) cp_close(&d->fds[i]);
}

/* The message at the front; with MSG_PEEK it stays there. One of another version counts as none. */
static bool take(int depot, int flags, struct session_deposit *d) {
    union control c;
    struct message m;
    int fds[SESSION_DEPOSIT_FDS];
    size_t have = 0, at = 0;
    struct iovec v = {&m, sizeof m};
    struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = c.space, .msg_controllen = sizeof c.space};
    ssize_t n = depot < 0 ? -1 : recvmsg(depot, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | flags);
    struct cmsghdr *rights = n >= 0 ? CMSG_FIRSTHDR(&h) : NULL;
    if (rights && rights->cmsg_type == SCM_RIGHTS) {
        have = (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(fds, CMSG_DATA(rights), have * sizeof(int));
    }
    bool good = n == (ssize_t)sizeof m && m.version == VERSION && memchr(m.d.id, 0, sizeof m.d.id);
    if (good) *d = m.d;
    for (int i = 0; good && i < SESSION_DEPOSIT_FDS; i++) d->fds[i] = (m.mask >> i & 1) && at < have ? fds[at++] : -1;
    while (at < have) cp_close(&fds[at++]);
    return good;
}

bool session_depot_drop(int depot, const struct session_deposit *which) {
    for (int i = 0; i < SESSION_DEPOT_MAX; i++) {
        struct session_deposit d, front;
        if (!take(depot, MSG_PEEK, &d)) return false;
        bool hit = d.seq == which->seq && (d.status < 0) == (which->status < 0);
        bool kept = hit || session_depot_put(depot, &d); /* to the back, before it leaves the front */
        session_deposit_close(&d);
        if (!kept || !take(depot, 0, &front)) return false;
        session_deposit_close(&front);
        if (hit) return true;
    }
    return false;
}

size_t session_depot_list(int depot, struct session_deposit out[SESSION_DEPOT_MAX]) {
    size_t n = 0;
    struct session_deposit d;
    while (n < SESSION_DEPOT_MAX && take(depot, MSG_PEEK, &out[n])) {
        bool again = n && out[n].seq == out[0].seq && out[n].status == out[0].status;
        if (again || !session_depot_put(depot, &out[n])) {
            session_deposit_close(&out[n]);
            break;
        }
        n++;
        if (take(depot, 0, &d)) session_deposit_close(&d);
    }
    return n;
}
