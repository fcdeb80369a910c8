/* POST /api/watch and /api/watch/check (cloudflare-sandbox.md section 3.5). */
#include "services/watch.h"

#include <stdlib.h>

#include "handlers/families.h"
#include "handlers/reply.h"
#include "services/files.h"
#include "services/watch_glob.h"

typedef struct watch_args {
    cp_watch_spec spec;
    char path[CP_PATH_MAX];
    cp_str include[CP_WATCH_GLOBS], exclude[CP_WATCH_GLOBS];
    cp_buf context; /* of the error */
} watch_args;

/* ---- arguments ---- */

/* The error's context shows the members of the body that are at fault. */
static int invalid(watch_args *a, yyjson_val *body, const char *key, const char *other, const char *message,
                   cp_err *err) {
    const char *const keys[] = {key, other};
    cp_jw w = cp_jw_on(&a->context);
    cp_jw_obj(&w);
    for (size_t i = 0; i < CP_COUNT(keys); i++) {
        yyjson_val *v = keys[i] ? yyjson_obj_get(body, keys[i]) : NULL;
        if (!v) continue;
        cp_jw_key(&w, keys[i]);
        cp_jw_val(&w, v);
    }
    cp_jw_end_obj(&w);
    return cp_fail(err, CP_E_VALIDATION_FAILED, "%s", message);
}

static void path_context(cp_buf *out, const char *path) {
    cp_jw w = cp_jw_on(out);
    cp_jw_obj(&w);
    cp_jw_kz(&w, "path", path);
    cp_jw_end_obj(&w);
}

static void outside_context(cp_buf *out, cp_str path, const char *resolved, const char *root) {
    cp_jw w = cp_jw_on(out);
    cp_jw_obj(&w);
    cp_jw_kstr(&w, "path", path);
    cp_jw_kz(&w, "resolvedPath", resolved);
    cp_jw_kz(&w, "workspaceRoot", root);
    cp_jw_end_obj(&w);
}

static int bad_pattern(watch_args *a, yyjson_val *body, const char *key, cp_str pattern, cp_err *err) {
    cp_jw w = cp_jw_on(&a->context);
    cp_jw_obj(&w);
    cp_jw_kstr(&w, "pattern", pattern);
    cp_jw_key(&w, key);
    cp_jw_val(&w, yyjson_obj_get(body, key));
    cp_jw_end_obj(&w);
    return cp_fail(err, CP_E_VALIDATION_FAILED,
                   "%s contains unsupported glob syntax. Supported tokens: *, **, ? and path separators", key);
}

static int read_patterns(watch_args *a, yyjson_val *body, const char *key, cp_str *out, size_t *n, cp_err *err) {
    yyjson_val *v = yyjson_obj_get(body, key), *item;
    size_t i, max;
    char text[96];
    if (!v) return 0;
    snprintf(text, sizeof text, "%s must be an array of strings", key);
    if (!yyjson_is_arr(v)) return invalid(a, body, key, NULL, text, err);
    yyjson_arr_foreach(v, i, max, item) if (!yyjson_is_str(item)) return invalid(a, body, key, NULL, text, err);
    snprintf(text, sizeof text, "%s may hold %d patterns of %d bytes", key, CP_WATCH_GLOBS, CP_GLOB_MAX);
    if (yyjson_arr_size(v) > CP_WATCH_GLOBS) return invalid(a, body, NULL, NULL, text, err);
    yyjson_arr_foreach(v, i, max, item) {
        cp_str pattern = {yyjson_get_str(item), yyjson_get_len(item)};
        if (pattern.n > CP_GLOB_MAX) return invalid(a, body, NULL, NULL, text, err);
        if (!cp_glob_supported(pattern)) return bad_pattern(a, body, key, pattern, err);
        out[(*n)++] = pattern;
    }
    return 0;
}

static int read_globs(watch_args *a, yyjson_val *body, cp_err *err) {
    static const cp_str defaults[] = {{".git", 4}, {"node_modules", 12}, {".DS_Store", 9}};
    if (yyjson_arr_size(yyjson_obj_get(body, "include")) && yyjson_arr_size(yyjson_obj_get(body, "exclude")))
        return invalid(a, body, "include", "exclude",
                       "include and exclude cannot be used together. Use include to whitelist patterns, or exclude to "
                       "blacklist patterns.",
                       err);
    if (read_patterns(a, body, "include", a->include, &a->spec.ninclude, err) < 0 ||
        read_patterns(a, body, "exclude", a->exclude, &a->spec.nexclude, err) < 0)
        return -1;
    a->spec.include = a->include;
    a->spec.exclude = a->exclude;
    if (a->spec.ninclude || a->spec.nexclude) return 0;
    a->spec.exclude = defaults;
    a->spec.nexclude = CP_COUNT(defaults);
    return 0;
}

static int read_events(watch_args *a, yyjson_val *body, cp_err *err) {
    static const char message[] = "events must be an array of create, modify, delete, move_from, move_to and attrib";
    yyjson_val *v = yyjson_obj_get(body, "events"), *item;
    size_t i, max;
    a->spec.events = 0;
    if (v && !yyjson_is_arr(v)) return invalid(a, body, "events", NULL, message, err);
    yyjson_arr_foreach(v, i, max, item) {
        int type = 0;
        while (type < CP_WATCH_TYPES && !yyjson_equals_str(item, cp_watch_type_names[type])) type++;
        if (type == CP_WATCH_TYPES) return invalid(a, body, "events", NULL, message, err);
        a->spec.events |= 1u << type;
    }
    if (!a->spec.events) a->spec.events = CP_WATCH_EVENTS_DEFAULT;
    return 0;
}

static int read_path(watch_args *a, const cp_services *svc, cp_str given, cp_err *err) {
    char root[CP_PATH_MAX];
    cp_str path = cp_str_trim(given);
    cp_where where;
    if (memchr(path.p, 0, path.n)) return cp_fail(err, CP_E_VALIDATION_FAILED, "path contains invalid null bytes");
    if (cp_watch_resolve("/", cp_str_of(svc->workspace), root) < 0 || cp_watch_resolve(root, path, a->path) < 0)
        return cp_fail(err, CP_E_VALIDATION_FAILED, "Path too long (max %d characters)", CP_PATH_MAX);
    a->spec.path = a->path;
    bool inside = cp_path_inside(root, a->path);
    if (inside && svc->files) inside = cp_where_init(&where, svc->files, root, cp_str_of(a->path), NULL) == 0;
    if (inside) return 0;
    outside_context(&a->context, given, a->path, root);
    return cp_fail(err, CP_E_PERMISSION_DENIED, "path must be inside %s", root);
}

static int read_args(watch_args *a, const cp_ctx *ctx, const cp_request *req, cp_err *err) {
    yyjson_val *body = req->body;
    cp_str path = {0};
    if (!body)
        return cp_fail(err, CP_E_VALIDATION_FAILED, "Failed to parse request body: %s",
                       req->body_err ? req->body_err->msg : "Unexpected end of JSON input");
    if (!yyjson_is_obj(body)) return cp_fail(err, CP_E_VALIDATION_FAILED, "Request body must be a JSON object");
    yyjson_val *v = yyjson_obj_get(body, "path");
    if (yyjson_is_str(v)) path = (cp_str){yyjson_get_str(v), yyjson_get_len(v)};
    if (!cp_str_trim(path).n)
        return invalid(a, body, "path", NULL, "path is required and must be a non-empty string", err);
    if (read_globs(a, body, err) < 0) return -1;
    v = yyjson_obj_get(body, "recursive");
    if (v && !yyjson_is_bool(v))
        return invalid(a, body, "recursive", NULL, "recursive must be a boolean when provided", err);
    a->spec.recursive = !v || yyjson_get_bool(v);
    if (read_events(a, body, err) < 0) return -1;
    return read_path(a, ctx->svc, path, err);
}

/* A watcher that could not be started. Links may have led outside. */
static void refuse_start(cp_reply *reply, const cp_err *err, const char *path, const char *workspace) {
    cp_autobuf cp_buf context = {0};
    if (err->code == CP_E_PERMISSION_DENIED) outside_context(&context, cp_str_of(path), path, workspace);
    else path_context(&context, path);
    cp_reply_error(reply, err, NULL, cp_buf_str(&context));
}

/* ---- the stream ---- */

typedef enum { AT_START, AT_EVENTS, AT_END } phase;

typedef struct watch_source {
    cp_source base;
    cp_watch_sub sub;
    cp_reply *reply; /* until the watches exist */
    const char *workspace;
    char *path;
    char id[48];
    phase phase;
} watch_source;

static void source_free(watch_source *s) {
    cp_watch_close(&s->sub);
    free(s->path);
    free(s);
}

static cp_pull put(cp_event *ev, const char *type, const char *key, const char *value) {
    cp_jw_obj(&ev->w);
    cp_jw_kz(&ev->w, "type", type);
    cp_jw_kz(&ev->w, key, value);
    return CP_PULL_EVENT;
}

static cp_pull put_watching(watch_source *s, cp_event *ev) {
    put(ev, "watching", "path", s->path);
    cp_jw_kz(&ev->w, "watchId", s->id);
    cp_jw_end_obj(&ev->w);
    s->phase = AT_EVENTS;
    return CP_PULL_EVENT;
}

static cp_pull put_event(cp_event *ev, const cp_watch_event *e) {
    put(ev, "event", "eventType", cp_watch_type_names[e->type]);
    cp_jw_kstr(&ev->w, "path", (cp_str){e->path, e->n});
    cp_jw_kbool(&ev->w, "isDirectory", e->is_dir);
    cp_jw_key(&ev->w, "timestamp");
    cp_jw_iso(&ev->w, e->wall_ms);
    cp_jw_end_obj(&ev->w);
    return CP_PULL_EVENT;
}

static cp_pull put_end(watch_source *s, cp_event *ev) {
    put(ev, s->sub.failed ? "error" : "stopped", s->sub.failed ? "error" : "reason", s->sub.end_text);
    cp_jw_end_obj(&ev->w);
    s->phase = AT_END;
    return CP_PULL_EVENT;
}

static cp_pull pull(cp_source *base, size_t budget, cp_event *ev) {
    (void)budget;
    watch_source *s = CP_CONTAINER(base, watch_source, base);
    if (s->phase == AT_START) return put_watching(s, ev);
    if (s->phase == AT_END) return CP_PULL_END;
    const cp_watch_event *e = cp_watch_next(&s->sub);
    if (e) return put_event(ev, e);
    return s->sub.ended ? put_end(s, ev) : CP_PULL_WAIT;
}

static void on_close(cp_source *base, cp_end why, bool kill) {
    (void)why, (void)kill;
    source_free(CP_CONTAINER(base, watch_source, base));
}

static void begin(watch_source *s) {
    static const cp_source_ops ops = {.pull = pull, .close = on_close};
    cp_reply *reply = cp_take(s->reply);
    s->base.ops = &ops;
    snprintf(s->id, sizeof s->id, "%s", cp_watch_id(&s->sub));
    reply->on_cancel = NULL;
    cp_reply_stream(reply, &s->base);
}

static void on_ready(cp_watch_sub *sub, const cp_err *err) {
    watch_source *s = CP_CONTAINER(sub, watch_source, sub);
    if (!err) {
        begin(s);
        return;
    }
    s->reply->on_cancel = NULL;
    refuse_start(s->reply, err, s->path, s->workspace);
    source_free(s);
}

static void on_events(cp_watch_sub *sub) { cp_source_wake(&CP_CONTAINER(sub, watch_source, sub)->base); }

static bool watch_cancel(cp_reply *reply, cp_end why, bool kill) {
    (void)why, (void)kill;
    source_free(reply->handler);
    return false;
}

static void watch(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    watch_args a = {0};
    cp_err err = {0};
    if (read_args(&a, ctx, req, &err) < 0) {
        cp_reply_error(reply, &err, NULL, cp_buf_str(&a.context));
        cp_buf_free(&a.context);
        return;
    }
    watch_source *s = cp_new(watch_source);
    s->sub.on_ready = on_ready;
    s->sub.on_events = on_events;
    s->reply = reply;
    s->workspace = ctx->svc->workspace;
    s->path = cp_str_dup(cp_str_of(a.path));
    reply->handler = s;
    reply->on_cancel = watch_cancel;
    int rc = cp_watch_open(ctx->svc, &a.spec, &s->sub, &err);
    if (rc < 0) on_ready(&s->sub, &err);
    else if (rc > 0) begin(s);
}

/* ---- the check ---- */

typedef struct check_call {
    cp_watch_check check;
    cp_reply *reply;
    const char *workspace;
    char *path;
    char *since; /* NULL: not asked for */
} check_call;

static void check_free(check_call *c) {
    free(c->path);
    free(c->since);
    free(c);
}

/* "<watch id>:<count>" */
static bool parse_version(cp_str since, cp_str *id, uint64_t *count) {
    const char *colon = since.n ? memrchr(since.p, ':', since.n) : NULL;
    if (!colon || colon == since.p) return false;
    *id = (cp_str){since.p, (size_t)(colon - since.p)};
    return cp_str_u64((cp_str){colon + 1, since.n - id->n - 1}, (UINT64_C(1) << 53) - 1, count);
}

static int read_since(watch_args *a, yyjson_val *body, char **out, cp_err *err) {
    yyjson_val *v = yyjson_obj_get(body, "since");
    cp_str since = {0}, id;
    uint64_t count;
    if (!v) return 0;
    if (yyjson_is_str(v)) since = (cp_str){yyjson_get_str(v), yyjson_get_len(v)};
    if (!cp_str_trim(since).n)
        return invalid(a, body, "since", NULL, "since must be a non-empty string when provided", err);
    if (memchr(since.p, 0, since.n)) return invalid(a, body, "since", NULL, "since contains invalid null bytes", err);
    if (!parse_version(since, &id, &count))
        return invalid(a, body, "since", NULL, "since must be a version returned by checkChanges()", err);
    *out = cp_str_dup(since);
    return 0;
}

typedef struct verdict {
    const char *status, *reason;
    bool newer;
} verdict;

static verdict judge(const check_call *c) {
    cp_str id = {0};
    uint64_t count = 0;
    if (c->check.lost) return (verdict){"resync", "restarted", false};
    if (!c->since || !parse_version(cp_str_of(c->since), &id, &count)) return (verdict){"unchanged", NULL, false};
    if (!cp_str_is(id, c->check.watch_id))
        return (verdict){"resync", c->check.created ? "expired" : "restarted", false};
    return (verdict){count == c->check.count ? "unchanged" : "changed", NULL, count > c->check.count};
}

static void refuse_newer(const check_call *c, const char *version) {
    cp_err err;
    cp_autobuf cp_buf context = {0};
    cp_jw w = cp_jw_on(&context);
    cp_jw_obj(&w);
    cp_jw_kz(&w, "since", c->since);
    cp_jw_kz(&w, "currentVersion", version);
    cp_jw_end_obj(&w);
    cp_fail(&err, CP_E_VALIDATION_FAILED, "since refers to a newer version than the current watch state");
    cp_reply_error(c->reply, &err, NULL, cp_buf_str(&context));
}

static void check_done(cp_watch_check *check, const cp_err *err) {
    check_call *c = CP_CONTAINER(check, check_call, check);
    c->reply->on_cancel = NULL;
    if (err) {
        refuse_start(c->reply, err, c->path, c->workspace);
        check_free(c);
        return;
    }
    char version[80];
    verdict v = judge(c);
    snprintf(version, sizeof version, "%s:%llu", check->watch_id, (unsigned long long)check->count);
    if (v.newer) {
        refuse_newer(c, version);
    } else {
        cp_result res = {0};
        cp_jw w = cp_success_begin(&res);
        cp_jw_kz(&w, "status", v.status);
        if (v.reason) cp_jw_kz(&w, "reason", v.reason);
        cp_jw_kz(&w, "version", version);
        cp_success_end(&w);
        cp_reply_send(c->reply, &res);
    }
    check_free(c);
}

static bool check_cancel(cp_reply *reply, cp_end why, bool kill) {
    (void)why, (void)kill;
    check_call *c = reply->handler;
    cp_watch_check_cancel(&c->check);
    check_free(c);
    return false;
}

static void check(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    watch_args a = {0};
    cp_err err = {0};
    cp_autofree char *since = NULL;
    if (read_args(&a, ctx, req, &err) < 0 || read_since(&a, req->body, &since, &err) < 0) {
        cp_reply_error(reply, &err, NULL, cp_buf_str(&a.context));
        cp_buf_free(&a.context);
        return;
    }
    check_call *c = cp_new(check_call);
    c->check.done = check_done;
    c->reply = reply;
    c->workspace = ctx->svc->workspace;
    c->path = cp_str_dup(cp_str_of(a.path));
    c->since = cp_take(since);
    reply->handler = c;
    reply->on_cancel = check_cancel;
    cp_watch_check_start(ctx->svc, &a.spec, &c->check);
}

const cp_route cp_watch_routes[] = {
    {CP_POST, "/api/watch", CP_R_LOOP | CP_R_LASTS, "watch", NULL, watch,
     "What happens to the files below a path, live"},
    {CP_POST, "/api/watch/check", CP_R_LOOP | CP_R_LASTS, "watch.check", NULL, check,
     "Has anything below a path changed since a version?"},
};
const size_t cp_watch_nroutes = CP_COUNT(cp_watch_routes);
