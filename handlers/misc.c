/* Small fixed answers: greeting, ping, version, commands, pending. */
#include <stdlib.h>

#include "handlers/families.h"
#include "handlers/reply.h"
#include "handlers/rows.h"

static int greeting(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    (void)ctx, (void)req, (void)err;
    res->status = 200;
    res->type = "text/plain; charset=utf-8";
    cp_buf_addz(&res->body, "Hello from Conflux " CONFLUX_VERSION "\n");
    return 0;
}

static int ping(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    (void)ctx, (void)req, (void)err;
    cp_jw w = cp_success_begin(res);
    cp_jw_kz(&w, "status", "healthy");
    cp_success_end(&w);
    return 0;
}

/* The SDK warns when this differs from its own version: an image that is a drop-in sets SANDBOX_VERSION. */
static int version(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    (void)ctx, (void)req, (void)err;
    const char *pinned = getenv("SANDBOX_VERSION");
    cp_jw w = cp_success_begin(res);
    cp_jw_kz(&w, "version", pinned && *pinned ? pinned : CONFLUX_VERSION);
    cp_success_end(&w);
    return 0;
}

static int commands(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    (void)ctx, (void)req, (void)err;
    cp_jw w = cp_success_begin(res);
    cp_jw_key(&w, "availableCommands");
    cp_jw_arr(&w);
    cp_jw_end_arr(&w);
    cp_jw_ku64(&w, "count", 0);
    cp_success_end(&w);
    return 0;
}

typedef struct pending_rows {
    cp_rows rows;
    cp_ctx *ctx;
    struct cp_ws_pending *walk;
} pending_rows;

static bool pending_row(cp_rows *r, cp_jw *w) {
    const pending_rows *p = CP_CONTAINER(r, pending_rows, rows);
    return p->walk && p->ctx->pending->row(p->walk, w);
}

static void pending_free(cp_rows *r) {
    pending_rows *p = CP_CONTAINER(r, pending_rows, rows);
    if (p->walk) p->ctx->pending->close(p->walk);
    free(p);
}

static void pending(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    static const cp_rows_ops ops = {.key = "connections", .row = pending_row, .free = pending_free};
    (void)req;
    pending_rows *p = cp_new(pending_rows);
    p->ctx = ctx;
    if (ctx->pending) p->walk = ctx->pending->open(ctx->pending_arg);
    cp_rows_answer(&p->rows, &ops, ctx, reply);
}

const cp_route cp_misc_routes[] = {
    {CP_GET, "/", CP_R_INLINE | CP_R_OPEN, "greeting", greeting, NULL,
     "A line of text; answers as soon as the server does"},
    {CP_GET, "/api/ping", CP_R_INLINE, "ping", ping, NULL, "Is the server there?"},
    {CP_GET, "/api/version", CP_R_INLINE, "version", version, NULL, "The server's version"},
    {CP_GET, "/api/commands", CP_R_INLINE, "commands", commands, NULL, "An empty list: what the client's type wants"},
    {CP_GET, "/api/pending", CP_R_LOOP, "pending", NULL, pending, "Requests in flight, by connection"},
};
const size_t cp_misc_nroutes = CP_COUNT(cp_misc_routes);
