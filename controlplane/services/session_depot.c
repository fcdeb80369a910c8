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

#include <errno.h>
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

/* The message at the front, which stays there. One of another version counts as none, and so does one whose
 * descriptors do not all find room: errno is EMFILE then. */
static bool take(int depot, struct session_deposit *d) {
    union control c;
    struct message m;
    int fds[SESSION_DEPOSIT_FDS];
    size_t have = 0, at = 0;
    struct iovec v = {&m, sizeof m};
    struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = c.space, .msg_controllen = sizeof c.space};
    ssize_t n = depot < 0 ? -1 : recvmsg(depot, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_PEEK);
    struct cmsghdr *rights = n >= 0 ? CMSG_FIRSTHDR(&h) : NULL;
    if (rights && rights->cmsg_type == SCM_RIGHTS) {
        have = (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(fds, CMSG_DATA(rights), have * sizeof(int));
    }
    bool cut = n >= 0 && (h.msg_flags & MSG_CTRUNC);
    bool good = !cut && n == (ssize_t)sizeof m && m.version == VERSION && memchr(m.d.id, 0, sizeof m.d.id);
    if (good) *d = m.d;
    for (int i = 0; good && i < SESSION_DEPOSIT_FDS; i++) d->fds[i] = (m.mask >> i & 1) && at < have ? fds[at++] : -1;
    while (at < have) cp_close(&fds[at++]);
    errno = cut ? EMFILE : 0;
    return good;
}

/* The message at the front without its descriptors: that needs none. */
static bool look(int depot, struct session_deposit *d) {
    struct message m;
    ssize_t n = depot < 0 ? -1 : recv(depot, &m, sizeof m, MSG_DONTWAIT | MSG_PEEK);
    if (n != (ssize_t)sizeof m || m.version != VERSION) return false;
    *d = m.d;
    return true;
}

static void discard(int depot) {
    struct message m;
    (void)!recv(depot, &m, sizeof m, MSG_DONTWAIT);
}

/* From the front to the back, without some of its descriptors; it is there before it leaves the front. */
static bool move_on(int depot, unsigned without) {
    struct session_deposit d;
    if (!take(depot, &d)) return false;
    for (int k = 0; k < SESSION_DEPOSIT_FDS; k++)
        if (without >> k & 1) cp_close(&d.fds[k]);
    bool kept = session_depot_put(depot, &d);
    session_deposit_close(&d);
    if (kept) discard(depot);
    return kept;
}

bool session_depot_drop(int depot, const struct session_deposit *which) {
    struct session_deposit d;
    for (int i = 0; i < SESSION_DEPOT_MAX && look(depot, &d); i++) {
        if (d.seq == which->seq && (d.status < 0) == (which->status < 0)) {
            discard(depot);
            return true;
        }
        if (!move_on(depot, 0)) return false;
    }
    return false;
}

bool session_depot_release(int depot, uint64_t seq, unsigned which) {
    struct session_deposit d;
    for (int i = 0; i < SESSION_DEPOT_MAX && look(depot, &d); i++) {
        bool hit = d.seq == seq && d.status < 0;
        if (!move_on(depot, hit ? which : 0)) return false;
        if (hit) break;
    }
    return true;
}

size_t session_depot_list(int depot, struct session_deposit out[SESSION_DEPOT_MAX]) {
    size_t n = 0;
    int lack = 0;
    while (n < SESSION_DEPOT_MAX) {
        if (!take(depot, &out[n])) {
            lack = errno;
            break;
        }
        bool again = n && out[n].seq == out[0].seq && out[n].status == out[0].status;
        if (again || !session_depot_put(depot, &out[n])) {
            session_deposit_close(&out[n]);
            break;
        }
        n++;
        discard(depot);
    }
    errno = lack;
    return n;
}
