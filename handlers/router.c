#include "handlers/router.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/act.h"
#include "base/turn.h"
#include "handlers/families.h"
#include "handlers/route_index.h"

/* Statuses that are counted by name; the rest is "other". */
static const uint16_t counted[] = {200, 201, 202, 204, 206, 304, 400, 401, 403, 404, 405, 408, 409,
                                   410, 412, 413, 416, 422, 429, 431, 499, 500, 501, 502, 503};

typedef struct route_stats {
    _Atomic uint64_t status[CP_COUNT(counted) + 1]; /* last: other */
    cp_hist latency;
} route_stats;

struct cp_router {
    cp_ctx *ctx;
    cp_route_index *index;
    route_stats *stats; /* one per route, and the last for requests without one */
    unsigned left_jobs; /* file work whose client has gone, and that has not ended; loop */
    size_t left_bytes;
};

cp_router *cp_router_new(cp_ctx *ctx, cp_err *err) {
#define X(family) cp_##family##_routes,
    const cp_route *const tables[] = {CP_FAMILIES(X)};
#undef X
#define X(family) cp_##family##_nroutes,
    const size_t counts[] = {CP_FAMILIES(X)};
#undef X
    cp_route_index *index = cp_route_index_new(tables, counts, CP_COUNT(tables), err);
    if (!index) return NULL;
    cp_router *r = cp_new(cp_router);
    r->ctx = ctx;
    r->index = index;
    r->stats = cp_alloc((cp_route_index_count(index) + 1) * sizeof *r->stats);
    return r;
}

void cp_router_free(cp_router *r) {
    if (!r) return;
    cp_route_index_free(r->index);
    free(r->stats);
    free(r);
}

cp_match cp_router_match(cp_router *r, cp_method method, cp_str path) {
    cp_match m = {.index = (unsigned)cp_route_index_count(r->index)};
    if (method == CP_METHOD_UNKNOWN) {
        m.method_unknown = true;
        return m;
    }
    m.is_head = method == CP_HEAD;
    int i = cp_route_index_find(r->index, m.is_head ? CP_GET : method, path, m.params);
    m.method_unknown = i < 0 && cp_route_index_methods(r->index, path);
    if (i < 0) return m;
    m.route = cp_route_index_at(r->index, (size_t)i);
    m.index = (unsigned)i;
    return m;
}

const cp_route *cp_router_route(const cp_router *r, unsigned index) {
    return index < cp_route_index_count(r->index) ? cp_route_index_at(r->index, index) : NULL;
}

bool cp_router_allow(cp_router *r, cp_str path, char out[64]) {
    static const struct {
        unsigned need;
        const char *name;
    } words[] = {{1u << CP_GET, "GET"}, {1u << CP_GET, "HEAD"},      {1u << CP_POST, "POST"},
                 {1u << CP_PUT, "PUT"}, {1u << CP_DELETE, "DELETE"}, {~0u, "OPTIONS"}};
    unsigned bits = cp_route_index_methods(r->index, path);
    out[0] = 0;
    if (!bits) return false;
    char *end = out;
    for (size_t i = 0; i < CP_COUNT(words); i++) {
        if (!(bits & words[i].need)) continue;
        if (end != out) end = stpcpy(end, ", ");
        end = stpcpy(end, words[i].name);
    }
    return true;
}

void cp_router_refuse(const cp_match *m, cp_result *res) {
    cp_err err;
    if (m->method_unknown) {
        cp_fail(&err, CP_E_METHOD_NOT_ALLOWED, "The method is not one that this endpoint serves");
    } else {
        cp_fail(&err, CP_E_UNKNOWN_ERROR, "The requested endpoint was not found");
        res->status = 404;
    }
    cp_error_result(res, &err, NULL, (cp_str){0});
}

/* ---- checks before a handler ---- */

static int check_body(const cp_route *route, const cp_request *req, cp_err *err) {
    const cp_err *why = req->body_err;
    /* Said on every route: the limits protect the server, not the handler; and a key that stands twice means two
     * things. */
    if (why && why->code != CP_E_PARSE_ERROR && why->code != CP_E_INTERNAL_ERROR) {
        *err = *why;
        return -1;
    }
    if (!(route->flags & (CP_R_BODY | CP_R_BODY_400))) return 0;
    if (req->body && yyjson_is_obj(req->body)) return 0;
    if (route->flags & CP_R_BODY_400) return cp_fail(err, CP_E_VALIDATION_FAILED, "Invalid request body");
    if (req->body) return cp_fail(err, CP_E_VALIDATION_FAILED, "The request body must be a JSON object");
    return cp_fail(err, CP_E_INTERNAL_ERROR, "Failed to parse request body: %s",
                   why ? why->msg : "Unexpected end of JSON input");
}

static int check(const cp_match *m, const cp_request *req, cp_err *err) {
    if (req->mux && m->route->flags & (CP_R_HTTP_ONLY | CP_R_RAW_BODY))
        return cp_fail(err, CP_E_NOT_SUPPORTED, "This endpoint is served over HTTP only");
    return check_body(m->route, req, err);
}

/* ---- serving ---- */

/* What is held of it while it is sent; the source counts its own. */
static int count_piece(cp_result *res, cp_err *err) {
    res->charge.kind = CP_MEM_TRANSFERS;
    return cp_charge_set(&res->charge, CP_BODY_PIECE, err);
}

/* A handler that fails leaves the error to us. Bad input is told without the operation, as the reference does. */
static void serve_sync(cp_router *r, const cp_route *route, const cp_request *req, cp_result *res) {
    cp_err err = {0};
    bool files = route->flags & CP_R_IO;
    int rc = files ? cp_act_begin(&err) : 0;
    if (rc == 0) {
        rc = route->sync(r->ctx, req, res, &err);
        if (files) cp_act_end();
        if (res->source) res->source->files = files; /* the rest of the work is done while the answer is sent */
        if (rc == 0 && res->source) rc = count_piece(res, &err);
    }
    if (rc == 0) return;
    cp_result_free(res);
    cp_error_result(res, &err, err.code == CP_E_VALIDATION_FAILED ? NULL : route->op, (cp_str){0});
}

/* Counts a body in the memory budget. One that memory has no room for goes to a file, and where that has none either
 * the answer is the error. It may write to that file: not for the loop. */
static void count_result(cp_result *r) {
    cp_err err = {0};
    if (r->body.n <= CP_BUDGET_SMALL || r->charge.bytes) return;
    cp_spool spool = {.mem = cp_take(r->body), .charge.kind = CP_MEM_RESULTS};
    if (cp_result_spooled(r, &spool, &err) == 0) return;
    cp_result_free(r);
    cp_error_result(r, &err, NULL, (cp_str){0});
}

void cp_router_call(cp_router *r, const cp_match *m, cp_request *req, cp_result *res) {
    cp_err err = {0};
    memcpy(req->params, m->params, sizeof req->params);
    if (!m->route) {
        cp_router_refuse(m, res);
    } else if (check(m, req, &err) < 0) {
        cp_error_result(res, &err, NULL, (cp_str){0});
    } else if (!m->route->sync) {
        cp_fail(&err, CP_E_INTERNAL_ERROR, "This endpoint is served by the event loop");
        cp_error_result(res, &err, m->route->op, (cp_str){0});
    } else {
        serve_sync(r, m->route, req, res);
        if (m->route->flags & CP_R_IO) count_result(res);
    }
}

/* A blocking handler on the io pool, for a request that came to the loop.
 *
 * What a client gives up is taken back when it has not begun. What has begun is held by its thread: a transport that
 * counts goes on counting it. What a client leaves behind when its connection is lost is still done (it may have been
 * sent with no wish for an answer), but only so much of it may wait: who leaves and comes again gains nothing. */
typedef struct io_job {
    cp_work work;
    cp_router *router;
    const cp_route *route;
    cp_request *req;
    yyjson_doc *doc;
    cp_reply *reply; /* NULL: nobody wants the answer */
    bool left;       /* the client has gone: counted in the router's left_jobs */
    cp_result res;
} io_job;

enum { LEFT_JOBS_MAX = 1024, LEFT_BYTES_MAX = 64 << 20 };

static void io_free(io_job *j) {
    if (j->left) {
        j->router->left_jobs--;
        j->router->left_bytes -= j->doc ? yyjson_doc_get_read_size(j->doc) : 0;
    }
    cp_result_free(&j->res);
    yyjson_doc_free(j->doc);
    free(j->req);
    free(j);
}

static void io_run(cp_work *w) {
    io_job *j = CP_CONTAINER(w, io_job, work);
    serve_sync(j->router, j->route, j->req, &j->res);
    count_result(&j->res);
}

static void io_done(cp_work *w) {
    io_job *j = CP_CONTAINER(w, io_job, work);
    if (j->reply) {
        cp_reply_send(j->reply, &j->res);
        j->res = (cp_result){0};
    }
    io_free(j);
}

/* The client has gone. False: too much of that kind waits already. */
static bool leave_behind(io_job *j) {
    cp_router *r = j->router;
    size_t bytes = j->doc ? yyjson_doc_get_read_size(j->doc) : 0;
    if (r->left_jobs >= LEFT_JOBS_MAX || r->left_bytes + bytes > LEFT_BYTES_MAX) return false;
    j->left = true;
    r->left_jobs++;
    r->left_bytes += bytes;
    return true;
}

static bool io_cancel(cp_reply *reply, cp_end why, bool kill) {
    (void)kill;
    io_job *j = reply->handler;
    bool gone = why == CP_END_DISCONNECTED;
    if (!(gone && leave_behind(j)) && cp_workers_withdraw(&j->work)) {
        io_free(j);
        return false;
    }
    if (!gone && j->req->reply_keeps) return true;
    j->reply = NULL;
    return false;
}

static cp_lane lane_of(const cp_route *route) { return route->flags & CP_R_COMPUTE ? CP_LANE_COMPUTE : CP_LANE_FILES; }

static void dispatch_io(cp_router *r, const cp_route *route, const cp_request *req, yyjson_doc *doc, cp_reply *reply) {
    io_job *j = cp_new(io_job);
    j->router = r;
    j->route = route;
    j->req = cp_request_keep(req);
    j->doc = doc;
    j->reply = reply;
    reply->handler = j;
    reply->on_cancel = io_cancel;
    cp_workers_submit_to(r->ctx->workers, lane_of(route), cp_request_owner(req), &j->work, io_run, io_done);
}

static void send_error(cp_reply *reply, const cp_err *err) { cp_reply_error(reply, err, NULL, (cp_str){0}); }

void cp_router_dispatch(cp_router *r, const cp_match *m, cp_request *req, yyjson_doc *doc_taken, cp_reply *reply) {
    cp_autodoc yyjson_doc *doc = doc_taken;
    cp_err err = {0};
    cp_result res = {0};
    memcpy(req->params, m->params, sizeof req->params);
    if (m->route) cp_turn_note(m->route->pattern);
    if (!m->route) {
        cp_router_refuse(m, &res);
        cp_reply_send(reply, &res);
    } else if (check(m, req, &err) < 0) {
        send_error(reply, &err);
    } else if (m->route->flags & CP_R_LOOP) {
        m->route->async(r->ctx, req, reply);
    } else if (m->route->flags & CP_R_IO && cp_workers_full(r->ctx->workers, lane_of(m->route))) {
        cp_fail(&err, CP_E_LIMIT_EXCEEDED, "More than %d operations wait", CP_WORK_WAITING_MAX);
        send_error(reply, &err);
    } else if (m->route->flags & CP_R_IO) {
        dispatch_io(r, m->route, req, cp_take(doc), reply);
    } else {
        serve_sync(r, m->route, req, &res);
        cp_reply_send(reply, &res);
    }
}

/* ---- metrics ---- */

void cp_router_count(cp_router *r, unsigned index, int status, uint64_t us) {
    route_stats *s = &r->stats[index];
    size_t i = 0;
    while (i < CP_COUNT(counted) && counted[i] != status) i++;
    atomic_fetch_add_explicit(&s->status[i], 1, memory_order_relaxed);
    cp_hist_add(&s->latency, us);
}

/* Routes are told apart by method and pattern; an unknown path must not become a label (unbounded). */
static void labels(const cp_router *r, size_t i, char out[160]) {
    static const char *const methods[CP_METHOD_COUNT] = {"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"};
    if (i == cp_route_index_count(r->index)) {
        snprintf(out, 160, "route=\"none\"");
        return;
    }
    const cp_route *route = cp_route_index_at(r->index, i);
    snprintf(out, 160, "method=\"%s\",route=\"%s\"", methods[route->method], route->pattern);
}

static bool write_counts(const route_stats *s, const char *label, cp_buf *out) {
    bool any = false;
    for (size_t i = 0; i <= CP_COUNT(counted); i++) {
        uint64_t n = atomic_load_explicit(&s->status[i], memory_order_relaxed);
        if (!n) continue;
        any = true;
        cp_buf_addf(out, "conflux_requests_total{%s,status=\"", label);
        if (i < CP_COUNT(counted)) cp_buf_addu(out, counted[i]);
        else cp_buf_addz(out, "other");
        cp_buf_addf(out, "\"} %llu\n", (unsigned long long)n);
    }
    return any;
}

void cp_router_metrics(cp_router *r, cp_buf *out) {
    char label[160];
    cp_autobuf cp_buf hist = {0};
    cp_metric_head(out, "conflux_requests_total", "counter", "Requests answered, by route and status");
    for (size_t i = 0; i <= cp_route_index_count(r->index); i++) {
        labels(r, i, label);
        if (write_counts(&r->stats[i], label, out))
            cp_hist_write(&hist, "conflux_request_seconds", label, &r->stats[i].latency);
    }
    cp_metric_head(out, "conflux_request_seconds", "histogram", "Time from request to the end of its reply, by route");
    cp_buf_add(out, hist.p, hist.n);
}
