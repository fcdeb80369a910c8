/* Design notes. The keeper's hello carries the resolved options and, at a restart, the listening socket of the former
 * server and the durable children it holds. Layers open bottom-up (loop, keeper, registry, workers, services, router,
 * transport) and close top-down.
 *
 * Drain (SIGTERM): stop accepting, end the children by their kind, let the connections have their last replies, flush
 * the registry, exit. Handover (SIGHUP): requests under way are told that they are interrupted, durable children stay.
 * Without the keeper: as a drain, in a hurry. Each step has a deadline.
 *
 * Closing is opening backwards, and nothing is freed under a thread that may still touch it: the pool is stopped and
 * what it runs has ended, CivetWeb's workers hold no connection and get none, then the services go, and the registry
 * last. What hangs (a file system that does not answer) is not waited for beyond WORK_MS: then nothing but the registry
 * is closed. The process leaves by _exit: CivetWeb's own stop takes more than a second and has nothing left to do. */
#include "app.h"

#include "base/budget.h"
#include "base/log.h"
#include "base/spool.h"
#include "config.h"
#include "handlers/router.h"
#include "services/files.h"
#include "services/nofile.h"
#include "services/services.h"
#include "transport/transport.h"
#include "transport/ws.h"
#include "trim.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    CHILDREN_MS = 4000,      /* to end the children; both together stay under the keeper's DRAIN_LIMIT_MS */
    CHILDREN_LOST_MS = 1000, /* their exits will not be told */
    PARTING_MS = 3000,       /* from then on, for the last bytes to all clients */
    PATIENCE_MS = 1000,      /* of these, before what has not ended by itself is interrupted */
    PARTING_POLL_MS = 5,
    WORK_MS = 1000, /* for what the pool runs, when all clients have gone */
};

struct app {
    cp_loop *loop;
    cp_keeper *keeper;
    cp_keeper_hello hello;
    cp_config config;
    cp_registry *registry;
    cp_workers *workers;
    cp_services services;
    cp_ctx ctx;
    cp_router *router;
    cp_transport transport;
    char **base_env;
    bool leaving, handover, lost;
    cp_timer parting;
    cp_trim trim;
    uint64_t interrupt_at, part_by; /* cp_loop_now */
    bool ws_closed;
    int status;
};

/* ---- leaving ---- */

static void on_ws_closed(void *arg) { ((struct app *)arg)->ws_closed = true; }

/* Looked at, not told: workers write their replies on their own, and nobody counts the bytes that the kernel has. */
static void part(cp_timer *t) {
    struct app *a = CP_CONTAINER(t, struct app, parting);
    uint64_t now = cp_loop_now(a->loop);
    if (now >= a->interrupt_at) cp_server_end_requests(&a->transport);
    if ((a->ws_closed && cp_server_quiet(&a->transport)) || now >= a->part_by) cp_loop_stop(a->loop);
    else cp_timer_start(a->loop, t, PARTING_POLL_MS, part);
}

static void part_with_clients(void *arg) {
    struct app *a = arg;
    uint64_t now = cp_loop_now(a->loop);
    a->interrupt_at = now + (a->handover || a->lost ? 0 : PATIENCE_MS);
    a->part_by = now + PARTING_MS;
    cp_ws_drain_all(&a->transport, PARTING_MS, on_ws_closed, a);
    cp_timer_start(a->loop, &a->parting, 0, part);
}

static void leave(struct app *a) {
    if (a->leaving) return;
    a->leaving = true;
    a->ctx.ready = false;
    a->transport.draining = true;
    cp_server_stop_accepting(&a->transport);
    if (a->handover) part_with_clients(a);
    else cp_services_drain(&a->services, a->lost ? CHILDREN_LOST_MS : CHILDREN_MS, part_with_clients, a);
}

static void on_drain(void *arg) { leave(arg); }

static void on_handover(void *arg) {
    struct app *a = arg;
    a->handover = !a->leaving;
    leave(a);
}

/* Without its keeper nobody would reap the children: end everything. */
static void on_lost(void *arg) {
    struct app *a = arg;
    if (!a->leaving) cp_log(CP_LOG_ERROR, "keeper.lost", "the keeper is gone: ending all children and the server");
    a->status = 1;
    a->lost = true;
    leave(a);
}

static void on_held(void *arg, const cp_held *h) {
    struct app *a = arg;
    cp_services_held(&a->services, h);
}

/* ---- the environment of children: ours, without what configures the server ---- */

static char **children_env(void) {
    size_t n = 0, k = 0;
    while (environ[n]) n++;
    char **env = cp_alloc((n + 1) * sizeof *env);
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], "CONFLUX_", 8) != 0) env[k++] = cp_str_dup(cp_str_of(environ[i]));
    return env;
}

static void free_env(char **env) {
    for (size_t i = 0; env && env[i]; i++) free(env[i]);
    free(env);
}

/* ---- opening, bottom-up ---- */

static int open_base(struct app *a, int keeper_fd, cp_err *err) {
    static const cp_keeper_events proto = {
        .on_held = on_held, .on_drain = on_drain, .on_handover = on_handover, .on_lost = on_lost};
    cp_keeper_events ev = proto;
    ev.arg = a;
    a->loop = cp_loop_new(err);
    if (!a->loop) return -1;
    a->keeper = cp_keeper_open(a->loop, keeper_fd, &ev, &a->hello, err);
    if (!a->keeper) return -1;
    if (cp_config_decode(&a->config, cp_buf_str(&a->hello.config), err) < 0) return -1;
    cp_config_start_log(&a->config);
    cp_budget_open((uint64_t)a->config.memory_budget);
    cp_spool_setup(a->config.state, (uint64_t)a->config.spill_total);
    cp_metric_set(CP_M_KEEPER_RESTARTS, a->hello.generation);
    return 0;
}

static int open_services(struct app *a, cp_err *err) {
    if (cp_nofile_fit(&a->config, err) < 0) return -1;
    a->registry = cp_registry_open(a->loop, a->config.state, err);
    if (!a->registry) return -1;
    a->workers = cp_workers_new(a->loop, (unsigned)a->config.io_threads, err);
    if (!a->workers) return -1;
    a->base_env = children_env();
    cp_services *s = &a->services;
    s->loop = a->loop;
    s->workers = a->workers;
    s->keeper = a->keeper;
    s->registry = a->registry;
    s->config = &a->config;
    s->state_dir = a->config.state;
    s->workspace = a->config.workspace;
    s->base_env = a->base_env;
    s->generation = a->hello.generation;
    s->files = cp_files_open(a->config.file_root, err);
    return s->files ? cp_services_open(s, err) : -1;
}

static struct cp_ws_pending *pending_open(void *arg) { return cp_ws_pending_open(arg); }

static int open_doors(struct app *a, uint16_t *bound, cp_err *err) {
    static const cp_pending_ops pending_ops = {pending_open, cp_ws_pending_row, cp_ws_pending_close};
    a->ctx = (cp_ctx){.loop = a->loop,
                      .workers = a->workers,
                      .svc = &a->services,
                      .config = &a->config,
                      .pending = &pending_ops,
                      .pending_arg = &a->transport};
    a->router = cp_router_new(&a->ctx, err);
    if (!a->router) return -1;
    a->ctx.router = a->router;
    cp_transport *t = &a->transport;
    t->loop = a->loop;
    t->ctx = &a->ctx;
    t->router = a->router;
    t->config = &a->config;
    t->workers = a->workers;
    t->inherited = a->hello.listener;
    uint16_t port = a->hello.port ? a->hello.port : (uint16_t)a->config.port;
    return cp_server_open(t, port, bound, err);
}

/* Many connections and processes: the soft limit up to the hard one. Children get the original back from the keeper. */
static void raise_nofile(void) {
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) < 0) return;
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
}

static int open_all(struct app *a, int keeper_fd, cp_err *err) {
    uint16_t bound = 0;
    if (open_base(a, keeper_fd, err) < 0 || open_services(a, err) < 0 || open_doors(a, &bound, err) < 0) return -1;
    a->ctx.ready = true;
    cp_trim_start(&a->trim, a->loop, a->workers);
    cp_log(CP_LOG_INFO, "server.ready", "listening", CP_KVZ("host", a->config.host), CP_KVI("port", bound),
           CP_KVI("generation", a->hello.generation), CP_KVZ("version", CONFLUX_VERSION));
    return cp_keeper_ready(a->keeper, bound, cp_server_listener(&a->transport), err);
}

/* ---- closing, top-down ---- */

static void close_all(struct app *a) {
    bool still = cp_workers_stop(a->workers, WORK_MS) && cp_server_quiet(&a->transport);
    if (still) {
        (void)cp_loop_once(a->loop, 0); /* what has ended is told while there is somebody to tell */
        cp_services_close(&a->services);
    } else {
        cp_log(CP_LOG_WARN, "server.left_work", "work is still running and is left where it is");
    }
    cp_registry_close(a->registry);
    if (still) free_env(a->base_env);
}

int cp_app_run(int keeper_fd) {
    (void)signal(SIGXFSZ, SIG_IGN); /* with a limit on the size of files (ulimit -f) a write fails, and no more */
    cp_trim_configure();
    raise_nofile();
    struct app *a = cp_new(struct app);
    cp_err err = {0};
    if (open_all(a, keeper_fd, &err) < 0) {
        if (!a->keeper || cp_keeper_failed(a->keeper, err.msg) < 0) fprintf(stderr, "conflux: %s\n", err.msg);
        _exit(1);
    }
    if (cp_loop_run(a->loop, &err) < 0) {
        cp_log(CP_LOG_ERROR, "server.loop", err.msg);
        a->status = 1;
    }
    close_all(a);
    fflush(NULL);
    _exit(a->status);
}
