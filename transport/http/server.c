/* Opening, draining and closing of the HTTP side. */
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/fd.h"
#include "transport/http/http.h"

/* Before the socket of a WebSocket is closed. */
static void forget(cp_transport *t, int fd) {
    if (!t->server) return;
    cp_client *c = cp_clients_at(t->server->clients, fd);
    if (c) cp_client_forget(c);
}

enum { ITS_OWN = 30, FEWEST = 8 };

/* Idle connections must not take the descriptors that commands need. The kernel gives the lowest free number, so a high
 * one says that many are in use. */
static int half_of_descriptors(void) {
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) < 0 || r.rlim_cur > INT_MAX) return INT_MAX;
    return (int)(r.rlim_cur / 2);
}

static unsigned processors(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? (unsigned)CPU_COUNT(&set) : 1;
}

static void server_free(cp_server *srv) {
    cp_listener_close(srv);
    cp_close(&srv->epoll);
    cp_close(&srv->wake);
    cp_clients_free(srv->clients);
    cp_sources_free(srv->sources);
    cp_crew_free(srv->crew);
    cp_buf_free(&srv->loop_out);
    free(srv);
}

static int open_epoll(cp_server *srv, cp_err *err) {
    srv->epoll = epoll_create1(EPOLL_CLOEXEC);
    srv->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event ev = {.events = EPOLLIN | EPOLLET, .data.u64 = (uint64_t)srv->wake};
    if (srv->epoll >= 0 && srv->wake >= 0 && epoll_ctl(srv->epoll, EPOLL_CTL_ADD, srv->wake, &ev) == 0) return 0;
    return cp_fail_sys(err, CP_E_INTERNAL_ERROR, errno, "epoll");
}

/* The listener comes last: nobody is let in before everything is there. But its port is what most often cannot be had,
 * and is asked for first. */
static int open_parts(cp_server *srv, uint16_t port, cp_err *err) {
    srv->sources = cp_sources_new();
    srv->clients = cp_clients_new(err);
    if (!srv->clients || open_epoll(srv, err) < 0 || cp_listener_open(srv, port, err) < 0) return -1;
    srv->crew = cp_crew_new(srv, srv->workers, processors());
    srv->side = cp_side_new(srv, err);
    return srv->side ? cp_residents_open(srv, err) : -1;
}

int cp_server_open(cp_transport *t, uint16_t port, uint16_t *bound, cp_err *err) {
    cp_server *srv = cp_new(cp_server);
    srv->t = t;
    srv->gate.config = t->config;
    srv->workers = (unsigned)t->config->http_workers;
    srv->keep_below = half_of_descriptors();
    srv->soft_open = srv->keep_below > FEWEST + ITS_OWN ? (unsigned)(srv->keep_below - ITS_OWN) : FEWEST;
    srv->epoll = srv->wake = -1;
    atomic_store(&srv->listener, -1);
    if (open_parts(srv, port, err) < 0) {
        atomic_store(&srv->closing, true);
        if (srv->crew) cp_crew_dismiss(srv->crew);
        cp_residents_close(srv);
        cp_side_free(srv->side);
        server_free(srv);
        return -1;
    }
    t->server = srv;
    t->forget = forget;
    *bound = srv->gate.port;
    return 0;
}

int cp_server_listener(const cp_transport *t) { return t->server ? atomic_load(&t->server->listener) : -1; }

void cp_server_stop_accepting(cp_transport *t) {
    cp_server *srv = t->server;
    if (!srv || atomic_exchange(&srv->draining, true)) return;
    t->draining = true;
    cp_listener_close(srv);
    cp_sweep_idle(srv);
}

/* Is somebody served, or does an answer still go out? */
static void see_busy(cp_client *c, void *arg) {
    uint32_t s = atomic_load(&c->state);
    cp_client_phase phase = atomic_load(&c->phase);
    if (!(s & CP_STATE_OPEN) || phase == CP_CLIENT_LENT || phase == CP_CLIENT_LINGER) return;
    if (s & CP_STATE_BUSY || phase != CP_CLIENT_HEAD) *(bool *)arg = true;
}

bool cp_server_quiet(const cp_transport *t) {
    bool busy = false;
    if (!t->server) return true;
    cp_clients_each(t->server->clients, see_busy, &busy);
    return !busy && cp_streams_flushed(t->server);
}

void cp_server_end_requests(cp_transport *t) {
    if (!t->server) return;
    cp_calls_shutdown(t->server);
    cp_streams_interrupt(t->server);
}

static void close_open(cp_client *c, void *arg) {
    (void)arg;
    if (atomic_load(&c->state) & CP_STATE_OPEN && atomic_load(&c->phase) != CP_CLIENT_LENT) cp_client_close(c);
}

/* Threads first: when they are gone, all that is left is the loop's. */
void cp_server_close(cp_transport *t) {
    cp_server *srv = t->server;
    if (!srv) return;
    cp_server_stop_accepting(t);
    cp_calls_shutdown(srv);
    atomic_store(&srv->closing, true);
    cp_crew_dismiss(srv->crew);
    cp_residents_close(srv);
    cp_side_free(srv->side);
    cp_loop_once(t->loop, 0); /* what the last of them have posted */
    cp_calls_shutdown(srv);
    cp_streams_close(srv, CP_END_SHUTDOWN);
    cp_sweep_stop(srv);
    cp_clients_each(srv->clients, close_open, NULL);
    t->server = NULL;
    server_free(srv);
}
