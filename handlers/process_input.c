/* Signals and standard input (conflux-additions.md, "Processes"). Our own routes: unknown fields are refused. */
#include <signal.h>
#include <string.h>
#include <strings.h>

#include "handlers/exec_result.h"
#include "handlers/process.h"
#include "handlers/reply.h"

int cp_signal_of(cp_str text, const char *field, int *sig, cp_err *err) {
    uint64_t number;
    cp_str name = text;
    if (cp_str_u64(text, (uint64_t)SIGRTMAX, &number) && number > 0) {
        *sig = (int)number;
        return 0;
    }
    if (name.n > 3 && strncasecmp(name.p, "SIG", 3) == 0) name = (cp_str){name.p + 3, name.n - 3};
    for (int i = 1; i < SIGRTMIN; i++) {
        const char *abbrev = sigabbrev_np(i);
        if (!abbrev || !cp_str_ieq(name, cp_str_of(abbrev))) continue;
        *sig = i;
        return 0;
    }
    return cp_fail_field(err, field, "%s must be the name or the number of a signal", field);
}

static int read_signal(yyjson_val *body, int *sig, bool *tree, cp_err *err) {
    static const char *const known[] = {"signal", "tree", "priority", "deadlineMs", "onDisconnect", NULL};
    yyjson_val *v = yyjson_obj_get(body, "signal");
    if (cp_json_only(body, known, err) < 0 || cp_json_bool(body, "tree", tree, err) < 0) return -1;
    if (yyjson_is_uint(v) && yyjson_get_uint(v) > 0 && yyjson_get_uint(v) <= (uint64_t)SIGRTMAX) {
        *sig = (int)yyjson_get_uint(v);
        return 0;
    }
    if (yyjson_is_str(v)) return cp_signal_of((cp_str){yyjson_get_str(v), yyjson_get_len(v)}, "signal", sig, err);
    return cp_fail_field(err, "signal", "signal must be the name or the number of a signal");
}

void cp_process_signal(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    int sig;
    bool tree = false;
    cp_err err = {0};
    cp_exec *e = cp_process_find(ctx, req, reply);
    if (!e) return;
    if (read_signal(req->body, &sig, &tree, &err) < 0 || cp_exec_signal(e, sig, tree, &err) < 0) {
        cp_reply_error(reply, &err, NULL, (cp_str){0});
        return;
    }
    cp_result res = {0};
    cp_jw w = cp_success_begin(&res);
    cp_jw_kz(&w, "processId", e->process_id);
    cp_jw_signal(&w, "signal", sig);
    cp_success_end(&w);
    cp_reply_send(reply, &res);
}

static int read_stdin(yyjson_val *body, cp_buf *decoded, cp_str *data, bool *eof, cp_err *err) {
    static const char *const known[] = {"data", "encoding", "eof", "priority", "deadlineMs", "onDisconnect", NULL};
    static const char *const encodings[] = {"text", "utf-8", "base64", NULL};
    int encoding = 0;
    if (cp_json_only(body, known, err) < 0 || cp_json_str(body, "data", false, data, err) < 0 ||
        cp_json_enum(body, "encoding", encodings, &encoding, err) < 0 || cp_json_bool(body, "eof", eof, err) < 0)
        return -1;
    if (!data->p && !*eof) return cp_fail_field(err, "data", "data is required (or eof)");
    if (encoding < 2) return 0;
    if (cp_room(decoded, data->n, err) < 0) return -1;
    if (cp_base64_decode(decoded, *data) < 0) return cp_fail_field(err, "data", "data is not valid base64");
    *data = cp_buf_str(decoded);
    return 0;
}

void cp_process_stdin(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    cp_autobuf cp_buf decoded = {0};
    cp_str data = {0};
    bool eof = false;
    cp_err err = {0};
    cp_exec *e = cp_process_find(ctx, req, reply);
    if (!e) return;
    if (read_stdin(req->body, &decoded, &data, &eof, &err) < 0 || cp_exec_stdin(e, data, eof, NULL, &err) < 0) {
        cp_reply_error(reply, &err, NULL, (cp_str){0});
        return;
    }
    cp_result res = {0};
    cp_jw w = cp_success_begin(&res);
    cp_jw_kz(&w, "processId", e->process_id);
    cp_jw_ku64(&w, "bytes", data.n);
    cp_jw_kbool(&w, "eof", eof);
    cp_success_end(&w);
    cp_reply_send(reply, &res);
}
