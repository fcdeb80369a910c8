/* GET /api/usage: processor, memory and disk of the container, once, or with stream=1 every intervalMs. Samples are
 * taken on the io pool (a file system may be slow to answer); the next one's time begins when the last has been sent,
 * so a slow client gets fewer. */
#include "services/usage.h"

#include <stdlib.h>

#include "base/clock.h"
#include "handlers/families.h"
#include "handlers/reply.h"

#define OP "usage"

enum { INTERVAL_MS = 1000, INTERVAL_MIN = 100, INTERVAL_MAX = 60000 };

typedef struct watcher {
    cp_source src;
    cp_work work;
    cp_timer timer;
    uint64_t client;
    cp_ctx *ctx;
    cp_reply *reply; /* once: until it is answered */
    cp_usage now;    /* the job's while `working` */
    uint64_t at_us;  /* when it was taken */
    bool stream, working, closed, due;
    uint64_t interval, last_cpu, last_us; /* last_us 0: none yet */
} watcher;

static void put_limit(cp_jw *w, const char *key, double limit) {
    cp_jw_key(w, key);
    if (limit > 0) cp_jw_f64(w, limit);
    else cp_jw_null(w);
}

static void put_cpu(const watcher *u, cp_jw *w) {
    const cp_usage *now = &u->now;
    cp_jw_key(w, "cpu");
    cp_jw_obj(w);
    cp_jw_kz(w, "source", cp_usage_source_name(now->cpu_source));
    cp_jw_ku64(w, "usageMs", now->cpu_us / 1000);
    cp_jw_ku64(w, "cores", now->cores);
    put_limit(w, "coreLimit", now->core_limit);
    if (u->last_us && u->at_us > u->last_us && now->cpu_us >= u->last_cpu) {
        cp_jw_key(w, "percent"); /* 100: one core */
        cp_jw_f64(w, (double)(now->cpu_us - u->last_cpu) * 100 / (double)(u->at_us - u->last_us));
    }
    cp_jw_end_obj(w);
}

static void put_memory(const cp_usage *now, cp_jw *w) {
    cp_jw_key(w, "memory");
    cp_jw_obj(w);
    cp_jw_kz(w, "source", cp_usage_source_name(now->memory_source));
    cp_jw_ku64(w, "usedBytes", now->memory_used);
    cp_jw_key(w, "limitBytes");
    if (now->memory_limit) cp_jw_u64(w, now->memory_limit);
    else cp_jw_null(w);
    cp_jw_ku64(w, "totalBytes", now->memory_total);
    cp_jw_end_obj(w);
}

static void put_members(const watcher *u, cp_jw *w) {
    put_cpu(u, w);
    put_memory(&u->now, w);
    if (!u->now.has_disk) return;
    cp_jw_key(w, "disk");
    cp_jw_obj(w);
    cp_jw_kz(w, "path", u->ctx->svc->workspace);
    cp_jw_ku64(w, "totalBytes", u->now.disk_total);
    cp_jw_ku64(w, "usedBytes", u->now.disk_used);
    cp_jw_ku64(w, "freeBytes", u->now.disk_free);
    cp_jw_end_obj(w);
}

/* ---- samples ---- */

static void sample_run(cp_work *work) {
    watcher *u = CP_CONTAINER(work, watcher, work);
    cp_usage_read("", u->ctx->svc->workspace, &u->now);
    u->at_us = cp_now_us();
}

static void answer(watcher *u) {
    cp_result res = {0};
    cp_jw w = cp_success_begin(&res);
    put_members(u, &w);
    cp_success_end(&w);
    cp_reply_send(cp_take(u->reply), &res);
}

static void sample_done(cp_work *work) {
    watcher *u = CP_CONTAINER(work, watcher, work);
    u->working = false;
    u->due = true;
    if (!u->closed && u->stream) {
        cp_source_wake(&u->src);
        return;
    }
    if (!u->closed) answer(u);
    free(u);
}

static void sample(watcher *u) {
    u->working = true;
    cp_workers_submit_to(u->ctx->workers, CP_LANE_FILES, u->client, &u->work, sample_run, sample_done);
}

static void on_time(cp_timer *t) { sample(CP_CONTAINER(t, watcher, timer)); }

/* ---- the stream ---- */

static cp_pull usage_pull(cp_source *src, size_t budget, cp_event *ev) {
    (void)budget;
    watcher *u = CP_CONTAINER(src, watcher, src);
    if (!u->due) return CP_PULL_WAIT;
    cp_jw_obj(&ev->w);
    cp_jw_kz(&ev->w, "type", "usage");
    put_members(u, &ev->w);
    cp_jw_know(&ev->w);
    cp_jw_end_obj(&ev->w);
    u->due = false;
    u->last_cpu = u->now.cpu_us;
    u->last_us = u->at_us;
    cp_timer_start(u->ctx->loop, &u->timer, u->interval, on_time);
    return CP_PULL_EVENT;
}

static void give_up(watcher *u) {
    cp_timer_stop(u->ctx->loop, &u->timer);
    u->closed = true;
    u->src.wake = NULL;
    if (!u->working || cp_workers_withdraw(&u->work)) free(u);
}

static void usage_close(cp_source *src, cp_end why, bool kill) {
    (void)why, (void)kill;
    give_up(CP_CONTAINER(src, watcher, src));
}

static bool usage_cancel(cp_reply *reply, cp_end why, bool kill) {
    (void)why, (void)kill;
    give_up(reply->handler);
    return false;
}

/* ---- the request ---- */

static int read_args(const cp_request *req, watcher *u, cp_err *err) {
    static const char *const known[] = {"stream", "intervalMs", NULL};
    uint64_t stream = 0;
    u->interval = INTERVAL_MS;
    if (cp_request_only(req, known, err) < 0 || cp_request_param_u64(req, "stream", 1, &stream, err) < 0 ||
        cp_request_param_u64(req, "intervalMs", INTERVAL_MAX, &u->interval, err) < 0)
        return -1;
    if (u->interval < INTERVAL_MIN)
        return cp_fail_field(err, "intervalMs", "intervalMs must be from %d to %d", INTERVAL_MIN, INTERVAL_MAX);
    u->stream = stream == 1;
    return 0;
}

static void usage(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    static const cp_source_ops ops = {.pull = usage_pull, .close = usage_close};
    cp_err err = {0};
    watcher *u = cp_new(watcher);
    u->ctx = ctx;
    u->client = cp_request_owner(req);
    if (read_args(req, u, &err) < 0) {
        free(u);
        cp_reply_error(reply, &err, NULL, (cp_str){0});
        return;
    }
    u->src.ops = &ops;
    if (!u->stream) {
        u->reply = reply;
        reply->handler = u;
        reply->on_cancel = usage_cancel;
    }
    sample(u);
    if (u->stream) cp_reply_stream(reply, &u->src);
}

const cp_route cp_usage_routes[] = {
    {CP_GET, "/api/usage", CP_R_LOOP | CP_R_LASTS, OP, NULL, usage,
     "Processor, memory and disk of the container; stream=1: again and again"},
};
const size_t cp_usage_nroutes = CP_COUNT(cp_usage_routes);
