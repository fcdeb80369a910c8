/* The error body, in the member order of cloudflare-sandbox.md section 1.1. */
#include "handlers/reply.h"

static void validation_errors(cp_jw *w, const cp_err *err) {
    cp_jw_key(w, "validationErrors");
    cp_jw_arr(w);
    cp_jw_obj(w);
    cp_jw_kz(w, "field", err->field);
    cp_jw_kz(w, "message", err->msg);
    cp_jw_kz(w, "code", err->code == CP_E_VALIDATION_FAILED ? "INVALID_VALUE" : cp_code_name(err->code));
    cp_jw_end_obj(w);
    cp_jw_end_arr(w);
}

static void context(cp_jw *w, const cp_err *err, cp_str ctx_json) {
    if (ctx_json.n) {
        cp_jw_raw(w, ctx_json);
        return;
    }
    cp_jw_obj(w);
    if (err->sys) cp_jw_kz(w, "errno", cp_errno_name(err->sys));
    if (err->field[0]) validation_errors(w, err);
    cp_jw_end_obj(w);
}

void cp_error_begin(cp_jw *w, const cp_err *err) {
    cp_jw_obj(w);
    cp_jw_kz(w, "code", cp_code_name(err->code));
    cp_jw_kz(w, "message", err->msg);
    cp_jw_key(w, "context");
}

void cp_error_end(cp_jw *w, const cp_err *err, const char *op, int status) {
    const char *hint = cp_code_suggestion(err->code);
    if (op) cp_jw_kz(w, "operation", op);
    cp_jw_ki64(w, "httpStatus", status);
    cp_jw_know(w);
    if (hint) cp_jw_kz(w, "suggestion", hint);
    cp_jw_end_obj(w);
}

void cp_error_result(cp_result *res, const cp_err *err, const char *op, cp_str ctx_json) {
    if (!res->status) res->status = cp_code_http(err->code);
    cp_buf_clear(&res->body);
    cp_jw w = cp_jw_on(&res->body);
    cp_error_begin(&w, err);
    context(&w, err, ctx_json);
    cp_error_end(&w, err, op, res->status);
}

void cp_reply_error(cp_reply *reply, const cp_err *err, const char *op, cp_str ctx_json) {
    cp_result res = {0};
    cp_error_result(&res, err, op, ctx_json);
    cp_reply_send(reply, &res);
}

cp_jw cp_success_begin(cp_result *res) {
    res->status = 200;
    cp_jw w = cp_jw_on(&res->body);
    cp_jw_obj(&w);
    cp_jw_kbool(&w, "success", true);
    return w;
}

void cp_success_end(cp_jw *w) {
    cp_jw_know(w);
    cp_jw_end_obj(w);
}
