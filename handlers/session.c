/* /api/session (cloudflare-sandbox.md sections 2, 6.1). */
#include "services/session.h"

#include <stdlib.h>
#include <string.h>

#include "handlers/exec_args.h"
#include "handlers/families.h"
#include "handlers/reply.h"
#include "handlers/rows.h"
#include "services/nofile.h"

enum { MAX_ID = 255, MAX_CWD = 4096 };

/* A creation or deletion under way. */
typedef struct change {
    cp_reply *reply; /* NULL: the client has gone; the work goes on */
    char *id;
} change;

static change *change_new(cp_reply *reply, cp_str id) {
    change *c = cp_new(change);
    c->reply = reply;
    c->id = cp_str_dup(id);
    return c;
}

static void change_free(change *c) {
    free(c->id);
    free(c);
}

static bool on_cancel(cp_reply *reply, cp_end why, bool kill) {
    (void)why, (void)kill;
    ((change *)reply->handler)->reply = NULL;
    return false;
}

static void attach(cp_reply *reply, change *c) {
    reply->handler = c;
    reply->on_cancel = on_cancel;
}

static void refuse(cp_reply *reply, const cp_err *err) { cp_reply_error(reply, err, NULL, (cp_str){0}); }

static int read_text(yyjson_val *body, const char *key, bool required, size_t max, cp_str *out, cp_err *err) {
    if (cp_json_str(body, key, required, out, err) < 0) return -1;
    if (out->n && memchr(out->p, 0, out->n)) return cp_fail_field(err, key, "%s must not contain a NUL byte", key);
    if (out->n > max) return cp_fail_field(err, key, "%s is longer than %zu bytes", key, max);
    return 0;
}

/* ---- create ---- */

static void placement(cp_jw *w) {
    cp_jw_key(w, "containerPlacementId");
    cp_jw_z(w, getenv("CLOUDFLARE_PLACEMENT_ID")); /* null when unset */
}

static void create_failed(cp_reply *reply, const cp_err *err, const char *id) {
    if (err->code != CP_E_SESSION_ALREADY_EXISTS) {
        refuse(reply, err);
        return;
    }
    cp_autobuf cp_buf context = {0};
    cp_jw w = cp_jw_on(&context);
    cp_jw_obj(&w);
    cp_jw_kz(&w, "sessionId", id);
    placement(&w);
    cp_jw_end_obj(&w);
    cp_reply_error(reply, err, NULL, cp_buf_str(&context));
}

static void created(void *arg, const cp_err *err, const char *id) {
    change *c = arg;
    cp_reply *reply = c->reply;
    if (reply && err) {
        create_failed(reply, err, id ? id : c->id);
    } else if (reply) {
        cp_result res = {0};
        cp_jw w = cp_success_begin(&res);
        cp_jw_key(&w, "data");
        cp_jw_obj(&w);
        cp_jw_kz(&w, "id", id);
        cp_jw_end_obj(&w);
        placement(&w);
        cp_success_end(&w);
        cp_reply_send(reply, &res);
    }
    change_free(c);
}

static int read_spec(const cp_ctx *ctx, yyjson_val *body, cp_session_spec *spec, cp_env_var **env, cp_err *err) {
    int64_t timeout = 0;
    if (read_text(body, "id", false, MAX_ID, &spec->id, err) < 0 ||
        read_text(body, "cwd", false, MAX_CWD, &spec->cwd, err) < 0 ||
        cp_json_int(body, "commandTimeoutMs", 0, CP_MAX_WAIT_MS, &timeout, err) < 0 ||
        cp_env_read(ctx, body, true, env, &spec->nenv, err) < 0)
        return -1;
    if (spec->id.n && cp_str_trim(spec->id).n == 0)
        return cp_fail_field(err, "id", "id must not be empty or whitespace");
    if (cp_str_is(spec->id, CP_SESSIONLESS)) return cp_fail_field(err, "id", "this id stands for no session");
    spec->env = *env;
    spec->command_timeout_ms = (uint64_t)timeout;
    return 0;
}

/* A missing or unreadable body is an empty one, as in the reference. */
static void create(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    cp_session_spec spec = {0};
    cp_autofree cp_env_var *env = NULL;
    cp_err err = {0};
    yyjson_val *body = yyjson_is_obj(req->body) ? req->body : NULL;
    if ((body && read_spec(ctx, body, &spec, &env, &err) < 0) || cp_nofile_room(CP_NOFILE_START, &err) < 0) {
        refuse(reply, &err);
        return;
    }
    change *c = change_new(reply, spec.id);
    attach(reply, c);
    if (cp_session_create(ctx->svc, &spec, created, c, &err) == 0) return;
    reply->on_cancel = NULL;
    create_failed(reply, &err, c->id);
    change_free(c);
}

/* ---- list ---- */

typedef struct session_rows {
    cp_rows rows;
    cp_buf ids; /* each with its NUL */
    size_t at;
} session_rows;

static void take_down(void *arg, const char *id) { cp_buf_add(arg, id, strlen(id) + 1); }

static void list_begin(cp_rows *r) {
    cp_session_each(r->ctx->svc, take_down, &CP_CONTAINER(r, session_rows, rows)->ids);
}

static bool list_row(cp_rows *r, cp_jw *w) {
    session_rows *l = CP_CONTAINER(r, session_rows, rows);
    if (l->at == l->ids.n) return false;
    cp_str id = cp_str_of(l->ids.p + l->at);
    l->at += id.n + 1;
    cp_jw_str(w, id);
    return true;
}

static void list_free(cp_rows *r) {
    session_rows *l = CP_CONTAINER(r, session_rows, rows);
    cp_buf_free(&l->ids);
    free(l);
}

static void list(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    static const cp_rows_ops ops = {.key = "data", .begin = list_begin, .row = list_row, .free = list_free};
    (void)req;
    cp_rows_answer(&cp_new(session_rows)->rows, &ops, ctx, reply);
}

/* ---- delete ---- */

static void deleted(void *arg, const cp_err *err, const char *id) {
    change *c = arg;
    (void)id;
    if (c->reply && err) {
        refuse(c->reply, err);
    } else if (c->reply) {
        cp_result res = {0};
        cp_jw w = cp_success_begin(&res);
        cp_jw_kz(&w, "sessionId", c->id);
        cp_success_end(&w);
        cp_reply_send(c->reply, &res);
    }
    change_free(c);
}

static void delete_failed(cp_reply *reply, const cp_err *err, const char *id) {
    cp_autobuf cp_buf context = {0};
    cp_jw w = cp_jw_on(&context);
    cp_jw_obj(&w);
    cp_jw_kz(&w, "sessionId", id);
    if (err->code == CP_E_INTERNAL_ERROR) cp_jw_kz(&w, "originalError", "Session not found");
    cp_jw_end_obj(&w);
    cp_reply_error(reply, err, NULL, cp_buf_str(&context));
}

static void delete (cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    cp_str id = {0};
    bool keep = false;
    cp_err err = {0};
    if (read_text(req->body, "sessionId", true, MAX_ID, &id, &err) < 0 ||
        (!id.n && cp_fail_field(&err, "sessionId", "sessionId is required") < 0) ||
        cp_json_bool(req->body, "keep", &keep, &err) < 0) {
        refuse(reply, &err);
        return;
    }
    change *c = change_new(reply, id);
    attach(reply, c);
    if (cp_session_delete(ctx->svc, id, keep, deleted, c, &err) == 0) return;
    reply->on_cancel = NULL;
    delete_failed(reply, &err, c->id);
    change_free(c);
}

const cp_route cp_session_routes[] = {
    {CP_POST, "/api/session/create", CP_R_LOOP, "session.create", NULL, create, "Creates a session"},
    {CP_GET, "/api/session/list", CP_R_LOOP, "session.list", NULL, list, "The ids of all sessions, oldest first"},
    {CP_POST, "/api/session/delete", CP_R_LOOP | CP_R_LASTS | CP_R_ENDS | CP_R_BODY_400, "session.delete", NULL, delete,
     "Ends a session and what runs in it"},
};
const size_t cp_session_nroutes = CP_COUNT(cp_session_routes);
