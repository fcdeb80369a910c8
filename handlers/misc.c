/* Small fixed answers: greeting, ping, version, commands, pending. */
#include <stdlib.h>

#include "handlers/families.h"
#include "handlers/reply.h"

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

static void pending(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    (void)req;
    cp_result res = {0};
    cp_jw w = cp_success_begin(&res);
    cp_jw_key(&w, "connections");
    if (ctx->pending_json) {
        ctx->pending_json(ctx->pending_arg, &w);
    } else {
        cp_jw_arr(&w);
        cp_jw_end_arr(&w);
    }
    cp_success_end(&w);
    cp_reply_send(reply, &res);
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
