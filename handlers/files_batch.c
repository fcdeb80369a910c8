/* POST /api/files/batch: many small operations in one request. An operation is what a request on the WebSocket is,
 * {path, body} (method POST), and its result what the response would be, {status, body}: one has not to be learnt
 * beside the other. One after another, in order; one that fails does not keep the rest from being run. */
#include "handlers/families.h"
#include "handlers/files_impl.h"

#define OP "file.batch"

/* The routes of this family that answer at once; not this one again. */
static const cp_route *find_route(cp_str path) {
    for (size_t i = 0; i < cp_files_nroutes; i++) {
        const cp_route *r = &cp_files_routes[i];
        bool fits = r->method == CP_POST && r->sync && r->sync != cp_files_batch && !(r->flags & CP_R_RAW_BODY);
        if (fits && cp_str_is(path, r->pattern)) return r;
    }
    return NULL;
}

static int read_operation(yyjson_val *v, const cp_route **route, yyjson_val **body, cp_err *err) {
    static const char *const known[] = {"method", "path", "body", NULL};
    cp_str path = {0}, method = CP_STR("POST");
    *body = NULL;
    if (!yyjson_is_obj(v)) return cp_fail_field(err, "operations", "each operation must be an object");
    if (cp_json_only(v, known, err) < 0 || cp_json_str(v, "method", false, &method, err) < 0 ||
        cp_json_str(v, "path", true, &path, err) < 0 || cp_json_obj(v, "body", body, err) < 0)
        return -1;
    *route = cp_str_is(method, "POST") ? find_route(path) : NULL;
    if (!*route) return cp_fail_field(err, "path", "path must be a file operation that answers at once, by POST");
    return *body ? 0 : cp_fail_field(err, "body", "body is required");
}

static void run(cp_ctx *ctx, const cp_request *req, yyjson_val *v, cp_result *res) {
    cp_err err = {0};
    const cp_route *route = NULL;
    cp_request one = *req;
    one.gathered = true;
    if (read_operation(v, &route, &one.body, &err) == 0) {
        one.path = cp_str_of(route->pattern);
        if (route->sync(ctx, &one, res, &err) == 0) return;
    }
    cp_result_free(res);
    cp_error_result(res, &err, err.code == CP_E_VALIDATION_FAILED || !route ? NULL : route->op, (cp_str){0});
}

static void not_run(const cp_config *c, cp_result *res) {
    cp_err err;
    cp_fail(&err, CP_E_PAYLOAD_TOO_LARGE,
            "Not run: the results before this one have reached %lld bytes (--batch-bytes)", (long long)c->batch_bytes);
    cp_error_result(res, &err, OP, (cp_str){0});
}

int cp_files_batch(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    static const char *const known[] = {"operations", CP_FILES_COMMON, NULL};
    yyjson_val *list = NULL, *v;
    size_t i, max, failed = 0, limit = (size_t)ctx->config->batch_bytes;
    if (cp_json_only(req->body, known, err) < 0 || cp_json_arr(req->body, "operations", &list, err) < 0) return -1;
    if (!list) return cp_fail_field(err, "operations", "operations is required");
    if (yyjson_arr_size(list) > (size_t)ctx->config->max_batch)
        return cp_fail(err, CP_E_PAYLOAD_TOO_LARGE, "A batch has %lld operations at most (--max-batch)",
                       (long long)ctx->config->max_batch);
    cp_jw w = cp_success_begin(res);
    cp_jw_key(&w, "results");
    cp_jw_arr(&w);
    yyjson_arr_foreach(list, i, max, v) {
        cp_result one = {0};
        if (res->body.n < limit) run(ctx, req, v, &one);
        else not_run(ctx->config, &one);
        failed += one.status >= 400;
        cp_jw_obj(&w);
        cp_jw_ki64(&w, "status", one.status);
        cp_jw_key(&w, "body");
        cp_jw_raw(&w, cp_buf_str(&one.body));
        cp_jw_end_obj(&w);
        cp_result_free(&one);
    }
    cp_jw_end_arr(&w);
    cp_jw_ku64(&w, "failed", failed);
    cp_success_end(&w);
    return 0;
}
