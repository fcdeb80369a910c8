/* Liveness, readiness and metrics (conflux-additions.md, "The rest"). */
#include <stdlib.h>
#include <sys/statvfs.h>

#include "base/budget.h"
#include "handlers/families.h"
#include "handlers/reply.h"
#include "services/nofile.h"

/* Below this the registry and the output logs cannot be written for long. */
#define MIN_FREE_BYTES (16u << 20)

static int healthz(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    (void)ctx, (void)req, (void)err;
    cp_jw w = cp_success_begin(res);
    cp_jw_kz(&w, "status", "healthy");
    cp_jw_kz(&w, "version", CONFLUX_VERSION);
    cp_success_end(&w);
    return 0;
}

/* ---- readiness ----
 *
 * What is asked of the disk of the state folder may wait for it as long as it likes, so a thread asks: once for all who
 * want to know at that time. When it has not answered in LOOK_MS the disk counts as one that takes nothing, and until
 * it answers everybody is told so at once. */

enum { LOOK_MS = 2000 };

struct cp_ready_call {
    cp_ready_call *next, **link; /* link: what points to it */
    cp_ctx *ctx;
    cp_reply *reply;
};

static bool disk_has_room(const char *dir) {
    struct statvfs v;
    return dir && statvfs(dir, &v) == 0 && (uint64_t)v.f_bavail * v.f_frsize >= MIN_FREE_BYTES;
}

/* The one place that may answer 503: probes want the retry that the SDK would make of it. */
static void answer_ready(const cp_ctx *ctx, cp_reply *reply, bool disk) {
    cp_err none;
    const struct {
        const char *name;
        bool ok;
    } checks[] = {
        {"started", ctx->ready},
        {"accepting", !ctx->svc->draining},
        {"keeper", ctx->svc->keeper != NULL},
        {"registry", ctx->svc->registry && cp_registry_healthy(ctx->svc->registry)},
        {"disk", disk},
        {"descriptors", cp_nofile_room(CP_NOFILE_START, &none) == 0},
    };
    bool ready = true;
    for (size_t i = 0; i < CP_COUNT(checks); i++) ready &= checks[i].ok;
    cp_result res = {.status = ready ? 200 : 503};
    cp_jw w = cp_jw_on(&res.body);
    cp_jw_obj(&w);
    cp_jw_kbool(&w, "success", ready);
    cp_jw_kz(&w, "status", ready ? "ready" : "not ready");
    cp_jw_key(&w, "checks");
    cp_jw_obj(&w);
    for (size_t i = 0; i < CP_COUNT(checks); i++) cp_jw_kbool(&w, checks[i].name, checks[i].ok);
    cp_jw_end_obj(&w);
    cp_success_end(&w);
    cp_reply_send(reply, &res);
}

static void leave(cp_ready_call *c) {
    *c->link = c->next;
    if (c->next) c->next->link = c->link;
}

static void answer_all(cp_ctx *ctx, bool disk) {
    for (cp_ready_call *c; (c = ctx->disk.calls);) {
        leave(c);
        c->reply->on_cancel = NULL;
        answer_ready(ctx, c->reply, disk);
        free(c);
    }
}

static void look_run(cp_work *w) {
    cp_disk_look *d = CP_CONTAINER(w, cp_disk_look, work);
    d->room = disk_has_room(CP_CONTAINER(d, cp_ctx, disk)->svc->state_dir);
}

static void look_done(cp_work *w) {
    cp_disk_look *d = CP_CONTAINER(w, cp_disk_look, work);
    cp_ctx *ctx = CP_CONTAINER(d, cp_ctx, disk);
    cp_timer_stop(ctx->loop, &d->patience);
    d->looking = d->stuck = false;
    answer_all(ctx, d->room);
}

static void look_is_stuck(cp_timer *t) {
    cp_disk_look *d = CP_CONTAINER(t, cp_disk_look, patience);
    d->stuck = true;
    answer_all(CP_CONTAINER(d, cp_ctx, disk), false);
}

static bool ready_cancel(cp_reply *reply, cp_end why, bool kill) {
    (void)why, (void)kill;
    cp_ready_call *c = reply->handler;
    leave(c);
    free(c);
    return false;
}

static void readyz(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    (void)req;
    cp_disk_look *d = &ctx->disk;
    if (d->stuck) {
        answer_ready(ctx, reply, false);
        return;
    }
    cp_ready_call *c = cp_new(cp_ready_call);
    *c = (cp_ready_call){.next = d->calls, .link = &d->calls, .ctx = ctx, .reply = reply};
    if (c->next) c->next->link = &c->next;
    d->calls = c;
    reply->handler = c;
    reply->on_cancel = ready_cancel;
    if (d->looking) return;
    d->looking = true;
    cp_timer_start(ctx->loop, &d->patience, LOOK_MS, look_is_stuck);
    cp_workers_submit_to(ctx->workers, CP_LANE_COMPUTE, CP_OWNER_UPKEEP, &d->work, look_run, look_done);
}

static int metrics(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    (void)req, (void)err;
    res->status = 200;
    res->type = "text/plain; version=0.0.4; charset=utf-8";
    cp_metrics_write(&res->body);
    cp_budget_metrics(&res->body);
    cp_router_metrics(ctx->router, &res->body);
    return 0;
}

const cp_route cp_health_routes[] = {
    {CP_GET, "/healthz", CP_R_INLINE | CP_R_OPEN, "healthz", healthz, NULL, "Liveness"},
    {CP_GET, "/readyz", CP_R_LOOP | CP_R_OPEN, "readyz", NULL, readyz, "Readiness, with what is missing"},
    {CP_GET, "/metrics", CP_R_IO | CP_R_COMPUTE, "metrics", metrics, NULL, "Prometheus text"},
};
const size_t cp_health_nroutes = CP_COUNT(cp_health_routes);
