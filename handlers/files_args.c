#include "handlers/files_args.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "services/session.h"

/* For "%.*s". */
#define SHOW(s) (int)((s).n < 4096 ? (s).n : 4096), (s).p ? (s).p : ""

cp_str cp_files_body_str(const cp_request *req, const char *key) {
    yyjson_val *v = yyjson_obj_get(req->body, key);
    return yyjson_is_str(v) ? (cp_str){yyjson_get_str(v), yyjson_get_len(v)} : (cp_str){0};
}

bool cp_files_session(const cp_request *req, cp_str *session) {
    *session = cp_files_body_str(req, "sessionId");
    return session->p != NULL;
}

void cp_files_bad_path(cp_err *err, cp_str given, const char *why) {
    if (!given.p) given = CP_STR("undefined");
    cp_fail(err, CP_E_VALIDATION_FAILED, "Invalid path format for '%.*s': %s", SHOW(given), why);
}

/* Asked for only when it matters: finding it out costs a lock. */
static int base_folder(cp_ctx *ctx, bool has_session, cp_str session, char out[CP_PATH_MAX], cp_err *err) {
    if (!has_session) session = CP_STR("default");
    if (cp_str_trim(session).n == 0)
        return cp_fail(err, CP_E_FILESYSTEM_ERROR, "sessionId must not be empty or whitespace");
    if (cp_str_is(session, "__DISABLE_SESSION__")) snprintf(out, CP_PATH_MAX, "%s", ctx->svc->workspace);
    else cp_session_cwd(ctx->svc, session, out);
    return 0;
}

int cp_files_locate(cp_ctx *ctx, bool has_session, cp_str session, cp_files_path *p, cp_err *err) {
    char base[CP_PATH_MAX] = "/";
    bool absolute = p->given.p[0] == '/';
    if (absolute && has_session && cp_str_trim(session).n == 0) absolute = false; /* refused all the same */
    if (!absolute && base_folder(ctx, has_session, session, base, err) < 0) return -1;
    return cp_where_init(&p->where, ctx->svc->files, base, p->given, err);
}

/* ---- errors ---- */

static void context_begin(cp_jw *w, cp_str path, const char *op) {
    cp_jw_obj(w);
    cp_jw_kstr(w, "path", path);
    cp_jw_kz(w, "operation", op);
}

static int answer(cp_result *res, const cp_err *err, const char *op, cp_buf *context) {
    cp_error_result(res, err, op, cp_buf_str(context));
    return 0;
}

int cp_files_error(cp_result *res, const cp_err *err, const char *op, cp_str path) {
    cp_autobuf cp_buf context = {0};
    cp_jw w = cp_jw_on(&context);
    context_begin(&w, path, op);
    if (err->sys) cp_jw_kz(&w, "errno", cp_errno_name(err->sys));
    cp_jw_end_obj(&w);
    return answer(res, err, op, &context);
}

int cp_files_sdk_error(cp_result *res, const cp_err *err, const char *op, cp_str path, const char *what) {
    if (err->sys == EXDEV || err->sys == ENAMETOOLONG || !err->sys) return cp_files_error(res, err, op, path);
    cp_err full;
    cp_autobuf cp_buf context = {0};
    cp_jw w = cp_jw_on(&context);
    context_begin(&w, path, op);
    cp_jw_kz(&w, "stderr", err->msg);
    cp_jw_end_obj(&w);
    cp_fail(&full, CP_E_FILESYSTEM_ERROR, "%s '%.*s': %s", what, SHOW(path), err->msg);
    return answer(res, &full, op, &context);
}

int cp_files_not_found(cp_result *res, const char *op, cp_str path, const char *what) {
    cp_err err;
    cp_fail(&err, CP_E_FILE_NOT_FOUND, "%s: %.*s", what, SHOW(path));
    return cp_files_error(res, &err, op, path);
}

static int refuse_path(cp_result *res, const char *key, cp_str given, const char *why) {
    cp_err err;
    cp_autobuf cp_buf context = {0};
    cp_jw w = cp_jw_on(&context);
    cp_jw_obj(&w);
    cp_jw_key(&w, "validationErrors");
    cp_jw_arr(&w);
    cp_jw_obj(&w);
    cp_jw_kz(&w, "field", key);
    cp_jw_kz(&w, "message", why);
    cp_jw_kz(&w, "code", "INVALID_PATH");
    cp_jw_end_obj(&w);
    cp_jw_end_arr(&w);
    cp_jw_end_obj(&w);
    cp_files_bad_path(&err, given, why);
    answer(res, &err, NULL, &context);
    return -1;
}

static int locate(cp_ctx *ctx, bool has_session, cp_str session, const char *key, const char *op, cp_files_path *p,
                  cp_result *res) {
    cp_err err = {0};
    const char *why = cp_path_problem(p->given);
    if (why) return refuse_path(res, key, p->given, why);
    if (cp_files_locate(ctx, has_session, session, p, &err) == 0) return 0;
    cp_files_error(res, &err, op, p->given);
    return -1;
}

int cp_files_path_arg(cp_ctx *ctx, const cp_request *req, const char *key, const char *op, cp_files_path *out,
                      cp_result *res) {
    cp_str session;
    bool has = cp_files_session(req, &session);
    out->given = cp_files_body_str(req, key);
    return locate(ctx, has, session, key, op, out, res);
}

int cp_files_path_query(cp_ctx *ctx, const cp_request *req, const char *op, cp_buf *text, cp_files_path *out,
                        cp_result *res) {
    cp_err err = {0};
    cp_autobuf cp_buf session = {0};
    int has = cp_request_param(req, "sessionId", &session, &err);
    int got = has < 0 ? -1 : cp_request_param(req, "path", text, &err);
    if (got < 0) {
        cp_error_result(res, &err, NULL, (cp_str){0});
        return -1;
    }
    out->given = got ? cp_buf_str(text) : (cp_str){0};
    return locate(ctx, has > 0, cp_buf_str(&session), "path", op, out, res);
}

/* ---- modes ---- */

int cp_files_mode_text(cp_str text, int64_t *mode, cp_err *err) {
    int64_t v = 0;
    if (cp_str_starts(text, CP_STR("0o"))) text.p += 2, text.n -= 2;
    bool ok = text.n > 0 && text.n <= 5;
    for (size_t i = 0; ok && i < text.n; i++) {
        ok = text.p[i] >= '0' && text.p[i] <= '7';
        v = v * 8 + (text.p[i] - '0');
    }
    if (!ok || v > 07777) return cp_fail_field(err, "mode", "mode must be octal permission bits, such as \"0644\"");
    *mode = v;
    return 0;
}

int cp_files_mode_arg(const cp_request *req, int64_t *mode, cp_err *err) {
    yyjson_val *v = yyjson_obj_get(req->body, "mode");
    if (yyjson_is_str(v)) return cp_files_mode_text((cp_str){yyjson_get_str(v), yyjson_get_len(v)}, mode, err);
    return cp_json_int(req->body, "mode", 0, 07777, mode, err);
}
