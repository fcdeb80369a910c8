#pragma once
/* One table of routes for every door. The router matches, checks, dispatches, and is the only place that turns an error
 * into a reply. The route tables are static: cp_router_match is for any thread. */
#include "base/metrics.h"
#include "handlers/request.h"
#include "services/services.h"

typedef struct cp_router cp_router;

/* What GET /readyz asks of the disk of the state folder, on a thread (health.c). Loop thread. */
typedef struct cp_ready_call cp_ready_call;
typedef struct cp_disk_look {
    cp_work work;
    cp_timer patience;
    cp_ready_call *calls; /* that wait for the answer */
    bool looking, stuck;  /* a thread asks; and it has been at it for too long */
    bool room;            /* the thread's answer */
} cp_disk_look;

/* GET /api/pending: the elements of the "connections" array, piece by piece. Loop thread. */
typedef struct cp_pending_ops {
    struct cp_ws_pending *(*open)(void *arg);
    bool (*row)(struct cp_ws_pending *p, cp_jw *w); /* false: that was all, and every element is complete */
    void (*close)(struct cp_ws_pending *p);
} cp_pending_ops;

/* What handlers see of the program. */
typedef struct cp_ctx {
    cp_loop *loop;
    cp_workers *workers;
    cp_services *svc;
    const cp_config *config;
    cp_router *router;
    const cp_pending_ops *pending; /* what only the transport can answer; set by app.c */
    void *pending_arg;
    bool ready;        /* /readyz */
    unsigned scans;    /* searches under way; loop */
    unsigned patterns; /* waits for a regular expression; loop */
    cp_disk_look disk; /* loop */
} cp_ctx;

typedef enum {
    CP_R_INLINE = 1, /* sync handler that never blocks: runs where the request is (loop or worker) */
    CP_R_IO = 2,     /* sync handler that may block: on the HTTP worker, or the io pool */
    CP_R_LOOP = 4,   /* async handler on the loop */
    CP_R_LASTS = 8,  /* may stream or wait long: HTTP hands the socket to the loop before dispatch */
    CP_R_OPEN = 16,  /* needs no token */
    CP_R_BODY =
        32, /* needs a JSON object: missing or unparsable is 500 INTERNAL_ERROR "Failed to parse request body: …" */
    CP_R_BODY_400 = 64,  /* same, but 400 VALIDATION_FAILED */
    CP_R_RAW_BODY = 128, /* HTTP: the body is given as a stream (request.raw); not over the mux: 501 */
    CP_R_HTTP_ONLY = 256,
    CP_R_COMPUTE = 1024, /* with IO: waits for nothing, but takes a processor for a while */
    CP_R_ENDS = 512      /* gives descriptors back: is served while nothing that takes some is (services/nofile.h) */
} cp_route_flags;

typedef struct cp_route {
    cp_method method;
    const char *pattern; /* "/api/process/{id}/logs": {…} matches one segment; exact segments win */
    unsigned flags;
    const char *op; /* operation name in errors and logs: "file.read" */
    int (*sync)(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err); /* INLINE, IO */
    void (*async)(cp_ctx *ctx, const cp_request *req, cp_reply *reply);           /* LOOP */
    const char *summary;                                                          /* one line, for OpenAPI and docs */
} cp_route;

cp_router *cp_router_new(cp_ctx *ctx, cp_err *err); /* indexes every table; a clash is an error */
void cp_router_free(cp_router *r);

typedef struct cp_match {
    const cp_route *route; /* NULL: none */
    bool method_unknown;   /* 405 instead of 404: the path has other methods, or nobody has this one */
    bool is_head;          /* HEAD served by the GET route: the transport drops the body */
    unsigned index;        /* for metrics */
    cp_str params[CP_MAX_PARAMS];
} cp_match;
/* Never fails; a `match.route == NULL` is answered with cp_router_refuse. OPTIONS on a known path matches none: the
 * transport answers it (204 with Allow and CORS). */
cp_match cp_router_match(cp_router *r, cp_method method, cp_str path);
/* "GET, POST" for a path, into out; false when no route knows the path. */
bool cp_router_allow(cp_router *r, cp_str path, char out[64]);

/* Serves a request whose route is INLINE or IO on the calling thread; always fills res. */
void cp_router_call(cp_router *r, const cp_match *m, cp_request *req, cp_result *res);
/* Loop thread: serves any request; the answer goes to reply, maybe before this returns. IO routes go to the io pool
 * (what they need of req is kept alive: the caller passes ownership of `doc`, the document that req->body lives in, and
 * req's strings must be inside doc or static or copied: see cp_request_keep). */
void cp_router_dispatch(cp_router *r, const cp_match *m, cp_request *req, yyjson_doc *doc, cp_reply *reply);

/* The error body of cloudflare-sandbox.md section 1.1. ctx_json: the context object as JSON text, {NULL,0}: {} (plus
 * validationErrors when err names a field). Status is err's, or `status` when not 0. */
void cp_error_result(cp_result *res, const cp_err *err, const char *op, cp_str ctx_json);
void cp_reply_error(cp_reply *reply, const cp_err *err, const char *op, cp_str ctx_json);
void cp_router_refuse(const cp_match *m, cp_result *res);            /* 404 or 405 */
const cp_route *cp_router_route(const cp_router *r, unsigned index); /* of a match; NULL: of one that had none */
/* Counts a finished request for /metrics, under the index of its match. Any thread. */
void cp_router_count(cp_router *r, unsigned index, int status, uint64_t us);
void cp_router_metrics(cp_router *r, cp_buf *out);
