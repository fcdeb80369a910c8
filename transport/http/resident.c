/* Design notes. CivetWeb runs a worker for each connection, and a worker for each client would be too many. So it gets
 * one connection for each worker, for good: the residents. We hold the other ends. When a client's head is whole, its
 * bytes go into the pipe of the worker that has found it; CivetWeb reads them, parses them and calls begin_request,
 * where the client is answered on its own descriptor; in end_request the worker looks for the next client. Since a pipe
 * never holds anything but one head, nothing that CivetWeb has buffered can reach another request.
 *
 * CivetWeb has to listen for its connections. It is told to do so on a loopback port, but as soon as it does, a Unix
 * socket of ours is put under the number of its listening socket: pipes are faster by half, and nobody else can
 * connect. Once the residents are there, an eventfd that says nothing takes its place: the door is closed. It is opened
 * again when a resident is lost, which happens when CivetWeb refuses a head that we have let through, or has no memory
 * for it. Where there are no descriptors for another one, the sweeper tries again until there are.
 *
 * A resident proves itself by a first request, whose target is a random number. A connection that does not know it is
 * closed. That it works at all with the CivetWeb at hand is seen when the server starts: without residents it ends. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "transport/http/http.h"
#include "transport/http/stack.h"

enum { PROVE_MS = 10000, PROBE_STACK = 64 * 1024 };

typedef struct cp_residents {
    cp_server *srv;
    struct mg_context *mg;
    pthread_mutex_t mu; /* guards all below */
    pthread_cond_t proved_cond;
    int door;   /* CivetWeb's listening descriptor: ours to put things under */
    int quiet;  /* eventfd under it while it is closed */
    int knock;  /* the Unix socket while it is open; -1 */
    int before; /* what was under the door before; -1 */
    struct sockaddr_un addr;
    socklen_t addr_n;
    unsigned proved, awaited; /* residents that work; that have been begun */
    uint64_t key[2];
    int *pipes;  /* of residents that have not proved themselves: by index; -1 */
    bool *lacks; /* by index: there is none, and could not be */
    unsigned nmen;
    cp_crewman **men;
    bool closing;
} residents;

/* mg_start reports on the thread that calls it. */
static _Thread_local cp_err *starting;

static residents *residents_of(const struct mg_connection *conn) { return mg_get_user_data(mg_get_context(conn)); }
static cp_crewman *man_of(const struct mg_connection *conn) { return mg_get_thread_pointer(conn); }

/* ---- the door ---- */

/* Ends a poll that sleeps on this file. */
static void wake(int fd) {
    if (fd >= 0 && shutdown(fd, SHUT_RDWR) < 0 && errno == ENOTSOCK) (void)!write(fd, &(uint64_t){1}, sizeof(uint64_t));
}

/* CivetWeb polls the number. A poll that is under way sleeps on the file that was there when it began; when it is woken
 * it looks at the one that is there now, and sleeps on, on the old file, if that has nothing to tell. So whoever wants
 * it to see the new file has something ready there first, and then both old files are woken: the last, and the one
 * before, on which it may still be asleep. */
static int put_under(residents *r, int fd) {
    cp_autofd int last = fcntl(r->door, F_DUPFD_CLOEXEC, 3);
    if (last < 0 || dup3(fd, r->door, O_CLOEXEC) < 0) return -1;
    wake(r->before);
    wake(last);
    cp_close(&r->before);
    r->before = cp_take_fd(&last);
    return 0;
}

/* The socket behind the door, not yet under it. */
static int listen_behind(residents *r) {
    cp_autofd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    r->addr = (struct sockaddr_un){.sun_family = AF_UNIX};
    r->addr_n = sizeof r->addr;
    /* bound to nothing but a family: the kernel chooses an abstract name */
    if (fd < 0 || bind(fd, (struct sockaddr *)&r->addr, sizeof(sa_family_t)) < 0 || listen(fd, 4096) < 0) return -1;
    if (getsockname(fd, (struct sockaddr *)&r->addr, &r->addr_n) < 0) return -1;
    r->knock = cp_take_fd(&fd);
    return 1;
}

/* With fd waiting behind it. Nothing is left half open. */
static int open_door(residents *r, int fd) {
    int opens = r->knock < 0 ? listen_behind(r) : 0;
    if (opens < 0) return -1;
    if (connect(fd, (struct sockaddr *)&r->addr, r->addr_n) == 0 && (!opens || put_under(r, r->knock) == 0)) return 0;
    if (opens) cp_close(&r->knock);
    return -1;
}

static void close_door(residents *r) {
    if (r->knock < 0) return;
    (void)put_under(r, r->quiet);
    (void)!read(r->quiet, &(uint64_t){0}, sizeof(uint64_t)); /* woken as the one before, it would speak for ever */
    cp_close(&r->knock);
}

/* ---- residents ---- */

/* The connection that a worker of CivetWeb will serve: which one, its first request tells. */
static int begin_one(residents *r, unsigned index, cp_err *err) {
    char hello[128];
    cp_autofd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int n = snprintf(hello, sizeof hello, "GET /%016llx%016llx/%u HTTP/1.1\r\nHost: localhost\r\n\r\n",
                     (unsigned long long)r->key[0], (unsigned long long)r->key[1], index);
    /* the number that CivetWeb accepts with: without one it would try again without a pause */
    cp_autofd int spare = fd < 0 ? -1 : fcntl(r->quiet, F_DUPFD_CLOEXEC, 3);
    r->lacks[index] = true;
    if (spare < 0 || open_door(r, fd) < 0 || send(fd, hello, (size_t)n, MSG_NOSIGNAL) != n)
        return cp_fail_sys(err, CP_E_INTERNAL_ERROR, errno, "cannot connect to our own CivetWeb");
    r->lacks[index] = false;
    r->pipes[index] = cp_take_fd(&fd);
    r->awaited++;
    return 0;
}

static int index_of(const residents *r, const struct mg_request_info *ri) {
    char want[48];
    int n =
        snprintf(want, sizeof want, "/%016llx%016llx/", (unsigned long long)r->key[0], (unsigned long long)r->key[1]);
    uint64_t index;
    if (strncmp(ri->request_uri, want, (size_t)n) != 0) return -1;
    if (!cp_str_u64(cp_str_of(ri->request_uri + n), r->srv->workers - 1, &index)) return -1;
    return (int)index;
}

/* The first request of a connection. */
static bool prove(residents *r, cp_crewman *w, const struct mg_request_info *ri) {
    pthread_mutex_lock(&r->mu);
    int index = w->pipe < 0 ? index_of(r, ri) : -1;
    bool ours = index >= 0 && r->pipes[index] >= 0;
    if (ours) {
        w->pipe = cp_take_fd(&r->pipes[index]);
        w->index = (unsigned)index;
        r->proved++;
        if (r->proved == r->awaited) close_door(r);
        pthread_cond_broadcast(&r->proved_cond);
    }
    pthread_mutex_unlock(&r->mu);
    return ours;
}

/* Another one for a worker that has lost his: the connection is CivetWeb's to close, and it has begun to. */
static void replace(residents *r, cp_crewman *w) {
    cp_err err = {0};
    pthread_mutex_lock(&r->mu);
    cp_close(&w->pipe);
    r->proved--;
    r->awaited--;
    w->broken = false;
    bool leaving = r->closing || atomic_load(&r->srv->closing); /* it ended because everybody leaves */
    int rc = leaving ? 0 : begin_one(r, w->index, &err);
    pthread_mutex_unlock(&r->mu);
    if (rc == 0) return;
    cp_log(CP_LOG_WARN, "http.resident", "a worker waits for its connection", CP_KVZ("error", err.msg));
    cp_sweep_wake(r->srv);
}

/* CivetWeb has closed it without a word to us. */
static bool hung_up(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return fd >= 0 && poll(&p, 1, 0) == 1;
}

static bool mend_one(residents *r, unsigned index) {
    cp_err err;
    if (hung_up(r->pipes[index])) {
        cp_close(&r->pipes[index]);
        r->awaited--;
        r->lacks[index] = true;
    }
    return !r->lacks[index] || begin_one(r, index, &err) == 0;
}

bool cp_residents_mend(cp_server *srv) {
    residents *r = srv->residents;
    if (!r) return true;
    pthread_mutex_lock(&r->mu);
    bool whole = r->closing || atomic_load(&srv->closing) || r->proved == srv->workers;
    for (unsigned i = 0; i < srv->workers && !whole; i++)
        if (!mend_one(r, i)) break;
    pthread_mutex_unlock(&r->mu);
    return whole;
}

bool cp_resident_feed(cp_crewman *w, cp_client *c) {
    struct iovec pieces[CP_HEAD_PIECES];
    struct msghdr m = {.msg_iov = pieces};
    m.msg_iovlen = (size_t)cp_head_pieces(&c->head, c->in.p + c->at, pieces);
    size_t want = 0;
    for (size_t i = 0; i < m.msg_iovlen; i++) want += pieces[i].iov_len;
    w->client = c;
    w->fed = true;
    ssize_t n;
    do n = sendmsg(w->pipe, &m, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n == (ssize_t)want) return true;
    w->client = NULL;
    w->fed = false;
    w->broken = true; /* whatever part of it was taken is no request */
    cp_log(CP_LOG_WARN, "http.resident", "CivetWeb does not take a head", CP_KVI("errno", n < 0 ? errno : 0));
    if (atomic_load(&c->phase) == CP_CLIENT_HEAD) c->head = (cp_head){0};
    cp_crew_offer(w->srv, c);
    return false;
}

/* ---- CivetWeb's callbacks ---- */

static void *on_init_thread(const struct mg_context *ctx, int type) {
    if (type != 1) return NULL;
    residents *r = mg_get_user_data(ctx);
    cp_crewman *w = cp_new(cp_crewman);
    w->srv = r->srv;
    w->pipe = -1;
    pthread_mutex_lock(&r->mu);
    if (r->nmen < r->srv->workers) r->men[r->nmen++] = w;
    pthread_mutex_unlock(&r->mu);
    cp_stack_trim();
    return w;
}

static int on_begin_request(struct mg_connection *conn) {
    residents *r = residents_of(conn);
    cp_crewman *w = man_of(conn);
    const struct mg_request_info *ri = mg_get_request_info(conn);
    if (w->client) {
        w->fed = false;
        cp_request_serve(w, ri);
    } else if (prove(r, w, ri)) {
        cp_crew_join(r->srv->crew, w);
    } else {
        mg_disable_connection_keep_alive(conn);
    }
    return 200; /* never passed on to CivetWeb's own handlers */
}

/* The worker looks for its next client here: until it returns, CivetWeb waits for nothing. */
static void on_end_request(const struct mg_connection *conn, int status) {
    (void)status;
    cp_crewman *w = man_of(conn);
    if (w->pipe < 0) return;
    if (w->fed) cp_request_refused(w, "it could not be dispatched"); /* memory is short */
    cp_client *c = cp_take(w->client);
    do {
        if (!c && !w->broken) c = cp_crew_next(w->srv->crew, w);
        if (!c) {
            shutdown(w->pipe, SHUT_RDWR); /* CivetWeb finds the end of the connection */
            return;
        }
    } while (!cp_request_advance(w, cp_take(c)));
}

static int on_http_error(struct mg_connection *conn, int status, const char *msg) {
    (void)status;
    cp_crewman *w = man_of(conn);
    if (w->client) cp_request_refused(w, msg);
    return 0;
}

static void on_connection_close(const struct mg_connection *conn) {
    cp_crewman *w = man_of(conn);
    if (w->client) cp_request_refused(w, "it could not be understood");
    if (w->pipe >= 0) replace(residents_of(conn), w);
    cp_stack_trim();
}

/* The first message tells the cause, the later ones what it led to. */
static int on_log(const struct mg_connection *conn, const char *msg) {
    (void)conn;
    if (!starting) cp_log(CP_LOG_DEBUG, "http.civetweb", msg);
    else if (!starting->msg[0]) cp_fail(starting, CP_E_INTERNAL_ERROR, "%s", msg);
    return 1;
}

/* ---- starting ---- */

typedef struct probe {
    pthread_mutex_t mu;
    pthread_cond_t cond;
    bool over;
} probe;

static void *probe_main(void *arg) {
    probe *p = arg;
    pthread_mutex_lock(&p->mu);
    while (!p->over) pthread_cond_wait(&p->cond, &p->mu);
    pthread_mutex_unlock(&p->mu);
    return NULL;
}

/* How many of `want` threads can be started now: CivetWeb goes on with fewer without telling, and a worker that is not
 * there would be waited for. */
static unsigned threads_that_start(unsigned want) {
    probe p = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    cp_autofree pthread_t *threads = cp_alloc(want * sizeof *threads);
    unsigned n = 0;
    while (n < want && cp_thread_start(&threads[n], PROBE_STACK, probe_main, &p) == 0) n++;
    pthread_mutex_lock(&p.mu);
    p.over = true;
    pthread_cond_broadcast(&p.cond);
    pthread_mutex_unlock(&p.mu);
    for (unsigned i = 0; i < n; i++) pthread_join(threads[i], NULL);
    return n;
}

enum { SPARE_THREADS = 4 /* CivetWeb's own, the io pool's first ones */, LEAST_WORKERS = 2 };

static int fit_threads(cp_server *srv, cp_err *err) {
    unsigned can = threads_that_start(srv->workers + SPARE_THREADS);
    if (can >= srv->workers + SPARE_THREADS) return 0;
    if (can < LEAST_WORKERS + SPARE_THREADS)
        return cp_fail(
            err, CP_E_LIMIT_EXCEEDED,
            "only %u threads can be started, at least %d are needed: the limit of processes and threads is too "
            "low (ulimit -u, or the pids limit of the container)",
            can, LEAST_WORKERS + SPARE_THREADS);
    cp_log(CP_LOG_WARN, "server.threads", "the limit of processes and threads is low: there are fewer HTTP workers",
           CP_KVI("wanted", srv->workers), CP_KVI("workers", can - SPARE_THREADS));
    srv->workers = can - SPARE_THREADS;
    return 0;
}

/* The listening socket on this port, borrowed; -1 when there is none. */
static int find_listener(uint16_t port) {
    for (int fd = 0; fd < 65536; fd++) {
        struct sockaddr_in a = {0};
        socklen_t n = sizeof a, m = sizeof(int);
        int yes = 0;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &yes, &m) == 0 && yes &&
            getsockname(fd, (struct sockaddr *)&a, &n) == 0 && a.sin_family == AF_INET && ntohs(a.sin_port) == port)
            return fd;
    }
    return -1;
}

static int start_civetweb(residents *r, cp_err *err) {
    static const struct mg_callbacks callbacks = {
        .begin_request = on_begin_request,
        .end_request = on_end_request,
        .log_message = on_log,
        .connection_close = on_connection_close,
        .http_error = on_http_error,
        .init_thread = on_init_thread,
    };
    char workers[16];
    snprintf(workers, sizeof workers, "%u", r->srv->workers);
    const char *options[] = {"listening_ports", "127.0.0.1:0", "num_threads", workers, "enable_keep_alive", "yes",
                             /* a head lies in the pipe when it is read; a resident's first request comes at once */
                             "keep_alive_timeout_ms", "10000", "request_timeout_ms", "10000",
                             /* decoding would turn %2F into a separator and end the path at %00 */
                             "decode_url", "no", "enable_directory_listing", "no", "enable_auth_domain_check", "no",
                             /* else it answers preflights itself, to anybody */
                             "access_control_allow_methods", "", NULL};
    cp_err why = {0};
    struct mg_server_port bound;
    starting = &why;
    r->mg = mg_start(&callbacks, r, options);
    starting = NULL;
    if (!r->mg)
        return cp_fail(err, CP_E_INTERNAL_ERROR, "CivetWeb does not start: %s",
                       why.msg[0] ? why.msg : "unknown reason");
    if (mg_get_server_ports(r->mg, 1, &bound) < 1 || (r->door = find_listener((uint16_t)bound.port)) < 0)
        return cp_fail(err, CP_E_INTERNAL_ERROR, "CivetWeb's listening socket cannot be found");
    return 0;
}

static int await_all(residents *r, cp_err *err) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until); /* that of the condition: whoever sets the clock shortens nothing */
    until.tv_sec += PROVE_MS / 1000;
    int rc = 0;
    pthread_mutex_lock(&r->mu);
    while (rc == 0 && r->proved < r->srv->workers) rc = pthread_cond_timedwait(&r->proved_cond, &r->mu, &until);
    unsigned proved = r->proved;
    pthread_mutex_unlock(&r->mu);
    if (proved == r->srv->workers) return 0;
    return cp_fail(err, CP_E_INTERNAL_ERROR, "this CivetWeb (%s) serves only %u of %u connections of ours",
                   mg_version(), proved, r->srv->workers);
}

static int begin_all(residents *r, cp_err *err) {
    int rc = 0;
    pthread_mutex_lock(&r->mu);
    for (unsigned i = 0; i < r->srv->workers && rc == 0; i++) rc = begin_one(r, i, err);
    pthread_mutex_unlock(&r->mu);
    return rc;
}

int cp_residents_open(cp_server *srv, cp_err *err) {
    if (fit_threads(srv, err) < 0) return -1;
    residents *r = srv->residents = cp_new(residents);
    r->srv = srv;
    r->door = r->knock = r->before = -1;
    r->quiet = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r->pipes = cp_alloc(srv->workers * sizeof *r->pipes);
    r->lacks = cp_alloc(srv->workers * sizeof *r->lacks);
    r->men = cp_alloc(srv->workers * sizeof(cp_crewman *));
    for (unsigned i = 0; i < srv->workers; i++) r->pipes[i] = -1;
    pthread_mutex_init(&r->mu, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&r->proved_cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
    cp_random(r->key, sizeof r->key);
    mg_init_library(0);
    if (r->quiet < 0) return cp_fail_sys(err, CP_E_INTERNAL_ERROR, errno, "eventfd");
    return start_civetweb(r, err) < 0 || begin_all(r, err) < 0 || await_all(r, err) < 0 ? -1 : 0;
}

static void crewman_free(cp_crewman *w) {
    cp_close(&w->pipe);
    cp_buf_free(&w->out);
    cp_buf_free(&w->spare);
    free(w);
}

/* CivetWeb's accepting thread looks at its stop flag when its poll ends: the eventfd speaks, so that it does at once.
 */
void cp_residents_close(cp_server *srv) {
    residents *r = srv->residents;
    if (!r) return;
    pthread_mutex_lock(&r->mu);
    r->closing = true;
    for (unsigned i = 0; i < srv->workers; i++) cp_close(&r->pipes[i]);
    close_door(r);
    pthread_mutex_unlock(&r->mu);
    wake(r->quiet); /* ready, from now on */
    wake(r->before);
    if (r->mg) mg_stop(r->mg);
    for (unsigned i = 0; i < r->nmen; i++) crewman_free(r->men[i]);
    cp_close(&r->quiet);
    cp_close(&r->knock);
    cp_close(&r->before);
    pthread_cond_destroy(&r->proved_cond);
    pthread_mutex_destroy(&r->mu);
    free(r->pipes);
    free(r->lacks);
    free(r->men);
    free(r);
    srv->residents = NULL;
}
