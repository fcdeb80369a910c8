/* Design notes. CivetWeb gives each connection, idle ones included, a worker of its own: a few hundred silent sockets
 * stop the service. Each worker has a slot that says what its connection does. When workers get scarce above a half:
 * replies end their connections and parked workers hand their sockets to the loop, above three quarters: connections
 * that have been silent or idle for a while are shut, the longest first, and if there are not enough of these,
 * transfers whose client keeps us waiting. The supervisor is a timer on the loop that runs only while there is
 * something to watch; it also enforces the deadlines of bodies in transit. It shuts sockets, it never closes them: the
 * descriptor is CivetWeb's, valid while the slot holds it, and the slot's mutex keeps connection_close from letting go
 * of it meanwhile. */
#include "transport/http.h"

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/metrics.h"
#include "services/nofile.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    TICK_MS = 50,
    IDLE_MS = 250,    /* idle after a reply for less is not shut */
    SILENT_MS = 1000, /* silent since it connected: a busy client may take a while from connect to send */
    SLOW_MS = 1000,   /* nor is a transfer whose last step began later than that */
};

cp_slot *cp_slot_new(cp_server *srv) {
    cp_slot *s = cp_new(cp_slot);
    s->srv = srv;
    s->fd = s->wakefd = -1;
    s->tid = gettid();
    pthread_mutex_init(&s->mu, NULL);
    return s;
}

void cp_slot_free(cp_slot *s) {
    pthread_mutex_destroy(&s->mu);
    cp_close(&s->wakefd);
    cp_buf_free(&s->out);
    cp_buf_free(&s->in);
    free(s);
}

bool cp_server_half_busy(const cp_server *srv) {
    return atomic_load_explicit(&srv->held, memory_order_relaxed) > srv->workers / 2;
}

static unsigned three_quarters(const cp_server *srv) { return srv->workers - srv->workers / 4; }

/* ---- the worker's side ---- */

static void tick_start(cp_task *task);

void cp_supervise(cp_server *srv) {
    if (!atomic_exchange(&srv->tick_posted, true)) cp_loop_post(srv->t->loop, &srv->tick_task, tick_start);
}

static bool nothing_unread(const cp_slot *s) {
    int unread = 0;
    return ioctl(s->fd, FIONREAD, &unread) < 0 || unread == 0;
}

/* Once the server drains no request is waited for; one that has come is served. Whoever sees the other's change, the
 * drainer or the worker, shuts the socket: both hold s->mu. */
static void leave_if_draining(const cp_slot *s) {
    if (s->fd < 0 || s->state == CP_SLOT_BUSY || !atomic_load(&s->srv->draining)) return;
    if (nothing_unread(s)) shutdown(s->fd, SHUT_RDWR);
}

bool cp_slot_find(cp_slot *s, const struct mg_request_info *ri) {
    cp_err err;
    cp_peer peer = {ri->remote_addr, (uint16_t)ri->remote_port, (uint16_t)ri->server_port};
    int fd = cp_fds_claim(s->srv->fds, &peer, &err);
    if (fd < 0) cp_log(CP_LOG_DEBUG, "http.accept", "socket not found", CP_KVZ("error", err.msg)); /* reset already */
    pthread_mutex_lock(&s->mu);
    s->fd = fd;
    leave_if_draining(s);
    pthread_mutex_unlock(&s->mu);
    if (fd >= 0) cp_arrival_watch(s->srv->arrivals, &s->arrival, fd);
    return fd >= 0;
}

void cp_slot_open(cp_slot *s, const struct mg_request_info *ri) {
    cp_arrival_accept(s->srv->arrivals, &s->arrival);
    unsigned held = 1 + atomic_fetch_add(&s->srv->held, 1);
    cp_metric_add(CP_M_HTTP_WORKERS_BUSY, 1);
    cp_slot_enter(s, CP_SLOT_SILENT);
    if (ri) cp_slot_find(s, ri);
    if (held > three_quarters(s->srv)) cp_supervise(s->srv);
}

void cp_slot_enter(cp_slot *s, cp_slot_state state) {
    uint64_t now = cp_now_ms();
    pthread_mutex_lock(&s->mu);
    s->state = state;
    s->since = now;
    leave_if_draining(s);
    pthread_mutex_unlock(&s->mu);
}

void cp_slot_pass(cp_slot *s, bool body_done) {
    s->turn = false;
    s->body = !body_done;
    cp_arrival_pass(s->srv->arrivals, &s->arrival, body_done);
}

void cp_slot_close(cp_slot *s) {
    cp_arrival_unwatch(s->srv->arrivals, &s->arrival);
    cp_slot_pass(s, true);
    pthread_mutex_lock(&s->mu);
    int fd = s->fd;
    bool open = s->state != CP_SLOT_FREE;
    s->fd = -1;
    s->state = CP_SLOT_FREE;
    pthread_mutex_unlock(&s->mu);
    cp_fds_release(s->srv->fds, fd);
    if (!open) return;
    atomic_fetch_sub(&s->srv->held, 1);
    cp_metric_add(CP_M_HTTP_WORKERS_BUSY, -1);
}

void cp_slot_deadline(cp_slot *s, uint64_t ms_from_now) {
    uint64_t at = ms_from_now ? cp_now_ms() + ms_from_now : 0;
    pthread_mutex_lock(&s->mu);
    int change = !!at - !!s->deadline;
    s->deadline = at;
    if (at) s->since = cp_now_ms();
    pthread_mutex_unlock(&s->mu);
    if (!change) return;
    atomic_fetch_add(&s->srv->transfers, (unsigned)change);
    if (change > 0) cp_supervise(s->srv);
}

int cp_slot_take(cp_slot *s, const cp_route *route, cp_err *err) {
    cp_transport *t = s->srv->t;
    bool ends = route && route->flags & CP_R_ENDS;
    if (!ends && cp_nofile_room(t->config, CP_NOFILE_CONNECTION, err) < 0) return -1;
    if (atomic_fetch_add(&t->nconns, 1) >= (unsigned)t->config->max_connections) {
        atomic_fetch_sub(&t->nconns, 1);
        return cp_fail(err, CP_E_LIMIT_EXCEEDED, "Too many connections");
    }
    cp_arrival_unwatch(s->srv->arrivals, &s->arrival); /* what is watched is the socket, whatever its number */
    int fd = cp_fds_take(s->srv->fds, s->fd, err);
    if (fd < 0) {
        atomic_fetch_sub(&t->nconns, 1);
        return -1;
    }
    cp_metric_add(CP_M_CONNECTIONS, 1);
    pthread_mutex_lock(&s->mu);
    int old = s->fd;
    s->fd = -1; /* /dev/null now: nothing to shut */
    pthread_mutex_unlock(&s->mu);
    cp_fds_release(s->srv->fds, old);
    return fd;
}

void cp_taken_give(cp_server *srv) {
    atomic_fetch_sub(&srv->t->nconns, 1);
    cp_metric_add(CP_M_CONNECTIONS, -1);
}

void cp_taken_close(cp_server *srv, int *fd) {
    if (*fd < 0) return;
    atomic_fetch_sub(&srv->t->nconns, 1);
    cp_metric_add(CP_M_CONNECTIONS, -1);
    cp_fds_close(srv->fds, fd);
}

/* ---- the supervisor, loop thread ---- */

static void shut(cp_slot *s) {
    shutdown(s->fd, SHUT_RDWR);
    s->deadline = s->deadline ? UINT64_MAX : 0; /* the worker takes it back; not shut twice */
}

static void cut_overdue(cp_server *srv, uint64_t now) {
    for (unsigned i = 0; i < srv->nslots; i++) {
        cp_slot *s = srv->slots[i];
        pthread_mutex_lock(&s->mu);
        if (s->deadline && s->deadline <= now && s->fd >= 0) shut(s);
        pthread_mutex_unlock(&s->mu);
    }
}

typedef struct idler {
    cp_slot *slot;
    uint64_t since;
} idler;

static int longest_first(const void *a, const void *b) {
    uint64_t x = ((const idler *)a)->since, y = ((const idler *)b)->since;
    return (x > y) - (x < y);
}

typedef bool sheddable(const cp_slot *s, uint64_t now);

/* Is it the client that lets its worker wait? On a machine with more to do than processors, a worker may not have come
 * to read the request that lies there, or to begin the one that it has read: then it is runnable, not asleep. */
static bool waits_for_client(const cp_slot *s) {
    char path[64], text[512], *after_name;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)s->tid);
    cp_autofd int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : cp_read_full(fd, text, sizeof text - 1);
    if (n <= 0) return true;
    text[n] = '\0';
    after_name = strrchr(text, ')');
    if (after_name && strncmp(after_name, ") S", 3) != 0) return false;
    return nothing_unread(s);
}

static bool is_idle(const cp_slot *s, uint64_t now) {
    uint64_t quiet = now - s->since;
    bool long_enough =
        (s->state == CP_SLOT_SILENT && quiet >= SILENT_MS) || (s->state == CP_SLOT_IDLE && quiet >= IDLE_MS);
    return s->fd >= 0 && long_enough && waits_for_client(s);
}

/* In the middle of a body or a file, and waiting for its client. */
static bool is_slow(const cp_slot *s, uint64_t now) {
    return s->fd >= 0 && s->deadline && s->deadline != UINT64_MAX && now - s->since >= SLOW_MS && waits_for_client(s);
}

static size_t find_idlers(cp_server *srv, idler *list, uint64_t now, sheddable *may_be_shed) {
    size_t n = 0;
    for (unsigned i = 0; i < srv->nslots; i++) {
        cp_slot *s = srv->slots[i];
        pthread_mutex_lock(&s->mu);
        if (may_be_shed(s, now)) list[n++] = (idler){s, s->since};
        pthread_mutex_unlock(&s->mu);
    }
    return n;
}

/* Between the look and the shutdown the connection may have begun a request: looked at again. */
static size_t shed(cp_server *srv, size_t excess, uint64_t now, sheddable *may_be_shed) {
    cp_autofree idler *list = cp_alloc(srv->nslots * sizeof *list);
    size_t n = find_idlers(srv, list, now, may_be_shed);
    qsort(list, n, sizeof *list, longest_first);
    for (size_t i = 0; i < n && excess; i++) {
        cp_slot *s = list[i].slot;
        pthread_mutex_lock(&s->mu);
        if (may_be_shed(s, now) && s->since == list[i].since) {
            shut(s);
            s->since = now; /* it counts as fresh until CivetWeb has noticed */
            excess--;
            cp_metric_add(CP_M_HTTP_SHED, 1);
        }
        pthread_mutex_unlock(&s->mu);
    }
    return excess;
}

static void watch(cp_server *srv);

static void tick(cp_timer *timer) {
    cp_server *srv = CP_CONTAINER(timer, cp_server, tick);
    uint64_t now = cp_now_ms();
    unsigned held = atomic_load(&srv->held), limit = three_quarters(srv);
    pthread_mutex_lock(&srv->mu);
    if (atomic_load(&srv->transfers)) cut_overdue(srv, now);
    size_t excess = held > limit ? held - limit : 0;
    if (excess) excess = shed(srv, excess, now, is_idle);
    if (excess) shed(srv, excess, now, is_slow);
    pthread_mutex_unlock(&srv->mu);
    if (cp_server_half_busy(srv) && srv->parked) cp_http_calls_unpark(srv);
    watch(srv);
}

/* tick_posted is true while the task is queued or the timer runs. It goes down before the conditions are read: a worker
 * that makes one true afterwards posts again. */
static void watch(cp_server *srv) {
    atomic_store(&srv->tick_posted, false);
    unsigned held = atomic_load(&srv->held);
    bool busy = held > three_quarters(srv) || atomic_load(&srv->transfers) || (held > srv->workers / 2 && srv->parked);
    if (!busy || atomic_load(&srv->closing)) return;
    if (atomic_exchange(&srv->tick_posted, true)) return; /* the task is on its way again */
    cp_timer_start(srv->t->loop, &srv->tick, TICK_MS, tick);
}

static void tick_start(cp_task *task) { watch(CP_CONTAINER(task, cp_server, tick_task)); }

void cp_supervise_stop(cp_server *srv) { cp_timer_stop(srv->t->loop, &srv->tick); }
