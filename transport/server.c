/* CivetWeb's life cycle: it accepts, parses request heads and runs a worker for each connection; everything is answered
 * from begin_request, which runs before it looks at files, handlers or its own WebSocket code. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/http.h"
#include "transport/stack.h"

/* ---- CivetWeb's callbacks ---- */

/* mg_start reports on the thread that calls it. */
static _Thread_local cp_err *starting;

static cp_server *server_of(const struct mg_connection *conn) { return mg_get_user_data(mg_get_context(conn)); }
static cp_slot *slot_of(const struct mg_connection *conn) { return mg_get_thread_pointer(conn); }

static void *on_init_thread(const struct mg_context *ctx, int type) {
    if (type != 1) return NULL;
    cp_server *srv = mg_get_user_data(ctx);
    cp_slot *s = cp_slot_new(srv);
    pthread_mutex_lock(&srv->mu);
    srv->slots = cp_realloc(srv->slots, (srv->nslots + 1) * sizeof *srv->slots);
    srv->slots[srv->nslots++] = s;
    pthread_mutex_unlock(&srv->mu);
    cp_stack_trim();
    return s;
}

/* mg_get_request_info answers NULL until a request has begun, though the peer is filled in from the start. What it
 * returns is a member of the connection: its distance, seen once (the self-test is the first request), holds for all.
 * If ever it does not, it is not relied on any more, and sockets are looked for when their first request has come. */
enum { DISTANCE_UNKNOWN = 0, DISTANCE_VARIES = -1 };

static const struct mg_request_info *early_info(const cp_server *srv, const struct mg_connection *conn) {
    long d = atomic_load_explicit(&srv->info_distance, memory_order_relaxed);
    return d > 0 ? (const struct mg_request_info *)(const void *)((const char *)conn + d) : NULL;
}

static void learn_distance(cp_server *srv, const struct mg_connection *conn) {
    long d = (const char *)mg_get_request_info(conn) - (const char *)conn;
    long known = atomic_load_explicit(&srv->info_distance, memory_order_relaxed);
    if (known == d) return;
    if (known != DISTANCE_UNKNOWN || d <= 0) d = DISTANCE_VARIES;
    atomic_store_explicit(&srv->info_distance, d, memory_order_relaxed);
}

static int on_init_connection(const struct mg_connection *conn, void **data) {
    *data = NULL;
    slot_of(conn)->answered = false;
    cp_slot_open(slot_of(conn), early_info(server_of(conn), conn));
    return 0;
}

static int on_begin_request(struct mg_connection *conn) {
    learn_distance(server_of(conn), conn);
    cp_http_serve(conn, slot_of(conn));
    return 200; /* never passed on to CivetWeb's own handlers */
}

static void on_end_request(const struct mg_connection *conn, int status) {
    (void)status;
    cp_slot *s = slot_of(conn);
    s->answered = false;
    if (s->turn) cp_slot_pass(s, true);
    if (cp_take(s->body)) cp_arrival_end(s->srv->arrivals, &s->arrival);
    cp_slot_enter(s, CP_SLOT_IDLE);
}

static int on_http_error(struct mg_connection *conn, int status, const char *msg) {
    cp_slot *s = slot_of(conn);
    if (!s->answered) cp_http_refused(conn, s, status, msg);
    return 0;
}

/* "*" and absolute targets end here without having been dispatched: CivetWeb would close without a reply. */
static bool undispatched(const struct mg_request_info *ri) {
    return ri && ri->request_uri && ri->request_method && ri->http_version && !ri->local_uri;
}

static void on_connection_close(const struct mg_connection *conn) {
    cp_slot *s = slot_of(conn);
    struct mg_connection *writable = (struct mg_connection *)(uintptr_t)conn; /* as all other callbacks get it */
    if (!s->answered && undispatched(mg_get_request_info(conn))) cp_http_serve(writable, s);
    cp_slot_close(s);
    cp_stack_trim();
}

static void on_connection_closed(const struct mg_connection *conn) {
    cp_server *srv = server_of(conn);
    if (!atomic_load(&srv->selftest_key)) return;
    pthread_mutex_lock(&srv->mu);
    srv->selftest_closed = true;
    pthread_cond_broadcast(&srv->selftest_cond);
    pthread_mutex_unlock(&srv->mu);
}

/* The first message tells the cause, the later ones what it led to. */
static int on_log(const struct mg_connection *conn, const char *msg) {
    (void)conn;
    if (!starting) cp_log(CP_LOG_DEBUG, "http.civetweb", msg);
    else if (!starting->msg[0]) cp_fail(starting, CP_E_INTERNAL_ERROR, "%s", msg);
    return 1;
}

/* ---- options ---- */

typedef struct options {
    char listen[300], workers[16], keepalive[24], timeout[24];
    const char *list[40];
    size_t n;
} options;

static void option(options *o, const char *name, const char *value) {
    o->list[o->n++] = name;
    o->list[o->n++] = value;
}

static bool plain_host(const char *host) {
    return host[0] && strlen(host) < 256 &&
           host[strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-:[]")] == 0;
}

static int listen_spec(const char *host, uint16_t port, char *out, size_t n, cp_err *err) {
    if (!plain_host(host)) return cp_fail(err, CP_E_VALIDATION_FAILED, "host \"%s\" is not an address", host);
    bool v6 = strchr(host, ':') != NULL;
    if (v6 && !mg_check_feature(MG_FEATURES_IPV6))
        return cp_fail(err, CP_E_NOT_SUPPORTED, "cannot listen on %s: the CivetWeb library is built without IPv6",
                       host);
    snprintf(out, n, v6 && host[0] != '[' ? "[%s]:%u" : "%s:%u", host, (unsigned)port);
    return 0;
}

static int fill_options(options *o, const cp_config *cfg, uint16_t port, cp_err *err) {
    if (listen_spec(cfg->host, port, o->listen, sizeof o->listen, err) < 0) return -1;
    snprintf(o->workers, sizeof o->workers, "%lld", (long long)cfg->http_workers);
    snprintf(o->keepalive, sizeof o->keepalive, "%lld", (long long)cfg->keepalive);
    snprintf(o->timeout, sizeof o->timeout, "%lld", (long long)cfg->header_timeout);
    option(o, "listening_ports", o->listen);
    option(o, "num_threads", o->workers);
    option(o, "enable_keep_alive", "yes");
    option(o, "keep_alive_timeout_ms", o->keepalive);
    option(o, "request_timeout_ms", o->timeout);
    option(o, "tcp_nodelay", "1"); /* without: 23 requests a second */
    option(o, "decode_url", "no"); /* decoding would turn %2F into a separator and end the path at %00 */
    option(o, "enable_directory_listing", "no");
    option(o, "enable_auth_domain_check", "no");
    option(o, "access_control_allow_methods", ""); /* else it answers preflights itself, to anybody */
    option(o, "listen_backlog", "4096");
    option(o, "connection_queue", "64");
    return 0;
}

/* ---- start ---- */

static bool is_wildcard(const char *host) {
    return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0 || strcmp(host, "[::]") == 0;
}

static int start_failed(const options *o, const cp_err *why, cp_err *err) {
    const char *reason = why->msg[0] ? why->msg : "unknown reason";
    if (strstr(reason, strerror(EADDRINUSE)))
        return cp_fail(err, CP_E_PORT_IN_USE, "cannot listen on %s: the port is in use", o->listen);
    return cp_fail(err, CP_E_INTERNAL_ERROR, "cannot listen on %s: %s", o->listen, reason);
}

static int start(cp_server *srv, uint16_t port, cp_err *err) {
    static const struct mg_callbacks callbacks = {
        .begin_request = on_begin_request,
        .end_request = on_end_request,
        .log_message = on_log,
        .connection_close = on_connection_close,
        .connection_closed = on_connection_closed,
        .http_error = on_http_error,
        .init_thread = on_init_thread,
        .init_connection = on_init_connection,
    };
    options o = {.n = 0};
    cp_err why = {0};
    if (fill_options(&o, srv->t->config, port, err) < 0) return -1;
    starting = &why;
    srv->mg = mg_start(&callbacks, srv, o.list);
    starting = NULL;
    if (!srv->mg) return start_failed(&o, &why, err);
    struct mg_server_port bound;
    if (mg_get_server_ports(srv->mg, 1, &bound) < 1)
        return cp_fail(err, CP_E_INTERNAL_ERROR, "cannot tell the port that %s has become", o.listen);
    srv->gate.port = (uint16_t)bound.port;
    return 0;
}

/* A connection that says nothing needs no worker: the kernel keeps it until its first bytes come (or, after as long as
 * a head may take, hands it over all the same). Where it does not know how, silent ones are shed under pressure. */
static void defer_accept(const cp_server *srv) {
    int fd = cp_fds_listener(srv->gate.port), seconds = (int)(srv->t->config->header_timeout / 1000);
    if (seconds < 1) seconds = 1;
    if (fd >= 0) (void)setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds);
}

/* ---- self-test ---- */

static const char selftest_path[] = "/.conflux-selftest/";

bool cp_selftest_take(cp_slot *s) {
    cp_server *srv = s->srv;
    uint64_t key = atomic_load_explicit(&srv->selftest_key, memory_order_relaxed);
    if (!key) return false;
    char want[64];
    snprintf(want, sizeof want, "%s%016llx", selftest_path, (unsigned long long)key);
    if (!cp_str_is(s->head.target, want)) return false;
    cp_err err;
    int fd = cp_slot_take(s, NULL, &err);
    s->answered = true;
    pthread_mutex_lock(&srv->mu);
    srv->selftest_fd = fd;
    pthread_cond_broadcast(&srv->selftest_cond);
    pthread_mutex_unlock(&srv->mu);
    return true;
}

enum { SELFTEST_MS = 10000 };

static int selftest_connect(const cp_server *srv, cp_err *err) {
    struct sockaddr_in6 any;
    socklen_t n = sizeof any;
    cp_autofd int fd = -1;
    int listener = cp_fds_listener(srv->gate.port);
    if (listener < 0 || getsockname(listener, (struct sockaddr *)&any, &n) < 0)
        return cp_fail(err, CP_E_INTERNAL_ERROR, "the listening socket cannot be found");
    struct sockaddr *addr = (struct sockaddr *)&any; /* 0.0.0.0 and :: reach ourselves on Linux */
    fd = socket(addr->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, addr, n) < 0)
        return cp_fail_sys(err, CP_E_INTERNAL_ERROR, errno, "cannot connect to our own port");
    return cp_take_fd(&fd);
}

/* Waits until the socket has been taken and CivetWeb has closed what it holds for it. */
static int selftest_wait(cp_server *srv) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += SELFTEST_MS / 1000;
    int rc = 0;
    pthread_mutex_lock(&srv->mu);
    while (rc == 0 && !(srv->selftest_fd >= 0 && srv->selftest_closed))
        rc = pthread_cond_timedwait(&srv->selftest_cond, &srv->mu, &until);
    int fd = srv->selftest_fd;
    srv->selftest_fd = -1;
    pthread_mutex_unlock(&srv->mu);
    return fd;
}

static bool readable(int fd, int ms) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, ms) == 1;
}

static bool passes(int from, int to, char c) {
    char got = 0;
    return send(from, &c, 1, MSG_NOSIGNAL) == 1 && readable(to, SELFTEST_MS) && read(to, &got, 1) == 1 && got == c;
}

static const char *selftest_talk(cp_server *srv, int client) {
    char c;
    int fd = selftest_wait(srv);
    if (fd < 0) return "the connection was not handed over";
    bool both_ways = passes(client, fd, 'a') && passes(fd, client, 'b');
    bool open = !readable(client, 0);
    cp_taken_close(srv, &fd);
    if (!both_ways) return "bytes do not pass";
    if (!open) return "the connection ended together with CivetWeb's side of it";
    return readable(client, SELFTEST_MS) && read(client, &c, 1) == 0 ? NULL : "the connection does not end";
}

/* One connection through our own listener is taken over. What may go wrong is not an error of ours but another
 * CivetWeb: one that keeps its sockets differently must not serve. */
static int selftest(cp_server *srv, cp_err *err) {
    uint64_t key;
    char request[160];
    do cp_random(&key, sizeof key);
    while (!key);
    cp_autofd int client = selftest_connect(srv, err);
    if (client < 0) return cp_wrap(err, "self-test");
    atomic_store(&srv->selftest_key, key);
    int n = snprintf(request, sizeof request, "GET %s%016llx HTTP/1.1\r\nHost: localhost\r\n\r\n", selftest_path,
                     (unsigned long long)key);
    const char *why = send(client, request, (size_t)n, MSG_NOSIGNAL) == n ? selftest_talk(srv, client) : "send failed";
    atomic_store(&srv->selftest_key, 0);
    return why ? cp_fail(err, CP_E_INTERNAL_ERROR, "this CivetWeb (%s) does not let go of its sockets: %s",
                         mg_version(), why)
               : 0;
}

/* ---- open and close ---- */

static void server_free(cp_server *srv) {
    if (srv->mg) mg_stop(srv->mg);
    for (unsigned i = 0; i < srv->nslots; i++) cp_slot_free(srv->slots[i]);
    free(srv->slots);
    cp_arrivals_free(srv->arrivals);
    cp_fds_free(srv->fds);
    pthread_cond_destroy(&srv->selftest_cond);
    pthread_mutex_destroy(&srv->mu);
    free(srv);
}

/* The sockets of WebSockets stay claimed (takeover.h) until they are closed. */
static void forget(cp_transport *t, int fd) {
    if (t->server) cp_fds_release(t->server->fds, fd);
}

int cp_server_open(cp_transport *t, uint16_t port, uint16_t *bound, cp_err *err) {
    cp_server *srv = cp_new(cp_server);
    srv->t = t;
    srv->gate.config = t->config;
    srv->workers = (unsigned)t->config->http_workers;
    srv->selftest_fd = -1;
    pthread_mutex_init(&srv->mu, NULL);
    pthread_cond_init(&srv->selftest_cond, NULL);
    mg_init_library(0);
    srv->fds = cp_fds_new(is_wildcard(t->config->host), err);
    srv->arrivals = cp_arrivals_new(t->loop, err);
    if (!srv->fds || !srv->arrivals || start(srv, port, err) < 0 || selftest(srv, err) < 0) {
        server_free(srv);
        return -1;
    }
    defer_accept(srv);
    t->server = srv;
    t->forget = forget;
    *bound = srv->gate.port;
    return 0;
}

/* Busy workers finish: with `draining` set they do not wait for another request. wake: those that are parked look up.
 */
static void shut_idle(cp_server *srv, bool wake) {
    pthread_mutex_lock(&srv->mu);
    for (unsigned i = 0; i < srv->nslots; i++) {
        cp_slot *s = srv->slots[i];
        pthread_mutex_lock(&s->mu);
        if (s->fd >= 0 && (s->state == CP_SLOT_IDLE || s->state == CP_SLOT_SILENT)) shutdown(s->fd, SHUT_RDWR);
        if (wake && s->wakefd >= 0) (void)!write(s->wakefd, &(uint64_t){1}, sizeof(uint64_t));
        pthread_mutex_unlock(&s->mu);
    }
    pthread_mutex_unlock(&srv->mu);
}

/* CivetWeb has no call for this. Its accept loop polls the number of the listening socket; an eventfd that never fires
 * is put under it, and the socket itself is shut down first through a copy, so that a poll that is already waiting ends
 * and connects are refused at once. */
void cp_server_stop_accepting(cp_transport *t) {
    cp_server *srv = t->server;
    if (!srv || atomic_exchange(&srv->draining, true)) return;
    t->draining = true;
    int fd = cp_fds_listener(srv->gate.port);
    cp_autofd int quiet = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    cp_autofd int copy = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (copy >= 0 && quiet >= 0 && dup3(quiet, fd, O_CLOEXEC) >= 0) shutdown(copy, SHUT_RDWR);
    shut_idle(srv, false);
}

bool cp_server_quiet(const cp_transport *t) {
    const cp_server *srv = t->server;
    return !srv || (atomic_load(&srv->held) == 0 && cp_http_conns_flushed(srv));
}

void cp_server_end_requests(cp_transport *t) {
    if (!t->server) return;
    cp_http_calls_shutdown(t->server);
    cp_http_conns_interrupt(t->server);
}

/* Takes up to two seconds: CivetWeb's threads look at their stop flag that often. A program that is about to exit may
 * leave this out and _exit after it has drained. */
void cp_server_close(cp_transport *t) {
    cp_server *srv = t->server;
    if (!srv) return;
    cp_server_stop_accepting(t);
    atomic_store(&srv->closing, true);
    cp_supervise_stop(srv);
    cp_http_calls_shutdown(srv);
    shut_idle(srv, true);
    mg_stop(cp_take(srv->mg));
    cp_loop_once(t->loop, 0); /* what the last workers have posted */
    cp_http_conns_close(srv, CP_END_SHUTDOWN);
    cp_supervise_stop(srv);
    t->server = NULL;
    server_free(srv);
}
