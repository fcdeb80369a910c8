#include "handlers/exec_args.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/budget.h"
#include "base/sha.h"
#include "base/utf8.h"
#include "handlers/exec_fingerprint.h"
#include "handlers/exec_result.h"

enum { MAX_EXEC_ID = 128, MAX_PROCESS_ID = 255, MAX_SESSION_ID = 255, MAX_CWD = 4096 };
#define MAX_SAFE_INTEGER 9007199254740991 /* what a JavaScript number holds exactly */

/* The kernel's bounds (execve(2)): of one string, and of all that a program starts with. */
enum { STRING_MAX = 128 * 1024, TOTAL_LEAST = 128 * 1024, TOTAL_MOST = 6 << 20, TOTAL_MARGIN = 8 * 1024 };

void cp_exec_args_free(cp_exec_args *a) {
    cp_buf_free(&a->command);
    cp_buf_free(&a->stdin_data);
    cp_buf_free(&a->session);
    free(a->args);
    free(a->env);
    *a = (cp_exec_args){0};
}

static cp_code code_for(cp_args_for what) {
    return what == CP_ARGS_EXECUTE ? CP_E_COMMAND_EXECUTION_ERROR : CP_E_STREAM_START_ERROR;
}

static int no_nul(cp_str s, const char *field, cp_err *err) {
    return s.n && memchr(s.p, 0, s.n) ? cp_fail_field(err, field, "%s must not contain a NUL byte", field) : 0;
}

static int read_str(yyjson_val *body, const char *key, size_t max, cp_str *out, cp_err *err) {
    if (cp_json_str(body, key, false, out, err) < 0 || no_nul(*out, key, err) < 0) return -1;
    if (out->n > max) return cp_fail_field(err, key, "%s is longer than %zu bytes", key, max);
    return 0;
}

/* ---- what to run ---- */

static size_t total_max(void) {
    struct rlimit r;
    rlim_t quarter = getrlimit(RLIMIT_STACK, &r) == 0 && r.rlim_cur != RLIM_INFINITY ? r.rlim_cur / 4 : TOTAL_MOST;
    size_t most = quarter > TOTAL_MOST ? TOTAL_MOST : quarter < TOTAL_LEAST ? TOTAL_LEAST : (size_t)quarter;
    return most - TOTAL_MARGIN;
}

/* Each costs its pointer too. */
static size_t cost(size_t string) { return string + 1 + sizeof(char *); }

/* Before anything is held for each of them: there may be millions in one request. */
static int check_count(size_t n, const char *field, cp_err *err) {
    size_t most = total_max() / cost(0);
    if (n <= most) return 0;
    return cp_fail_field(err, field, "%s has %zu members, the system takes fewer than %zu", field, n, most);
}

static int join_args(cp_exec_args *a, size_t n, cp_err *err) {
    size_t length = n;
    for (size_t i = 0; i < n; i++) length += a->args[i].n;
    if (cp_room(&a->command, length, err) < 0) return -1;
    for (size_t i = 0; i < n; i++) {
        if (i) cp_buf_addc(&a->command, ' ');
        cp_buf_add(&a->command, a->args[i].p, a->args[i].n);
    }
    return 0;
}

static int read_args(cp_exec_args *a, yyjson_val *list, cp_err *err) {
    size_t i, n;
    yyjson_val *v;
    char field[32];
    if (yyjson_arr_size(list) == 0) return cp_fail_field(err, "args", "args must name a program");
    if (check_count(yyjson_arr_size(list), "args", err) < 0) return -1;
    if (!(a->args = cp_try_array(yyjson_arr_size(list), sizeof *a->args, err))) return -1;
    yyjson_arr_foreach(list, i, n, v) {
        snprintf(field, sizeof field, "args[%zu]", i);
        if (!yyjson_is_str(v)) return cp_fail_field(err, field, "%s must be a string", field);
        a->args[i] = (cp_str){yyjson_get_str(v), yyjson_get_len(v)};
        if (no_nul(a->args[i], field, err) < 0) return -1;
        if (a->args[i].n >= STRING_MAX)
            return cp_fail_field(err, field, "%s has %zu bytes, the system takes %d for one argument", field,
                                 a->args[i].n, STRING_MAX - 1);
    }
    if (a->args[0].n == 0) return cp_fail_field(err, "args[0]", "the program's name must not be empty");
    if (join_args(a, yyjson_arr_size(list), err) < 0) return -1;
    a->spec.args = a->args;
    a->spec.nargs = yyjson_arr_size(list);
    a->spec.command = cp_buf_str(&a->command);
    a->additions = true;
    return 0;
}

static int read_command(cp_exec_args *a, yyjson_val *body, cp_args_for what, cp_err *err) {
    yyjson_val *list = NULL;
    cp_str command = {0};
    if (cp_json_arr(body, "args", &list, err) < 0 || cp_json_str(body, "command", false, &command, err) < 0) return -1;
    if (list && command.p) return cp_fail_field(err, "args", "command and args exclude each other");
    if (list) return read_args(a, list, err);
    if (!command.p) return cp_fail_field(err, "command", "command is required (or args)");
    if (no_nul(command, "command", err) < 0) return -1;
    if (what != CP_ARGS_EXECUTE && cp_str_trim(command).n == 0)
        return cp_fail(err, CP_E_INVALID_COMMAND, "Invalid command: empty command provided");
    a->spec.command = command;
    return 0;
}

/* ---- in which surroundings ---- */

static size_t cost_of_base(const cp_ctx *ctx) {
    size_t n = 0;
    for (char **v = ctx->svc->base_env; v && *v; v++) n += cost(strlen(*v));
    return n;
}

/* What a shell can export, which is what a session's shell does with it. */
static bool shell_name(cp_str s) {
    if (s.p[0] >= '0' && s.p[0] <= '9') return false;
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_')) return false;
    }
    return true;
}

static int check_name(cp_str name, const char *field, bool shell, cp_err *err) {
    if (!name.n) return cp_fail_field(err, field, "a name in env must not be empty");
    if (memchr(name.p, 0, name.n) || memchr(name.p, '=', name.n))
        return cp_fail_field(err, field, "a name in env must not contain = or a NUL byte");
    if (shell && !shell_name(name))
        return cp_fail_field(
            err, field, "Invalid environment variable name: %.*s (in a session: letters, digits and _, no digit first)",
            (int)(name.n < 100 ? name.n : 100), name.p);
    return 0;
}

static int read_env_var(cp_str name, yyjson_val *val, bool shell, cp_env_var *out, cp_err *err) {
    char field[64];
    snprintf(field, sizeof field, "env.%.*s", (int)cp_utf8_prefix(name.p, name.n < 50 ? name.n : 50), name.p);
    if (check_name(name, field, shell, err) < 0) return -1;
    if (!yyjson_is_str(val)) return cp_fail_field(err, field, "%s must be a string", field);
    *out = (cp_env_var){name, {yyjson_get_str(val), yyjson_get_len(val)}};
    if (no_nul(out->value, field, err) < 0) return -1;
    if (name.n + 1 + out->value.n + 1 <= STRING_MAX) return 0;
    return cp_fail_field(err, field, "%s: name and value come to %zu bytes, the system takes %d for one variable",
                         field, name.n + 1 + out->value.n, STRING_MAX - 1);
}

static int check_total(const cp_ctx *ctx, size_t own, const char *field, cp_err *err) {
    size_t all = own + cost_of_base(ctx), most = total_max();
    if (all <= most) return 0;
    return cp_fail_field(
        err, field, "arguments and environment come to %zu bytes with what every command gets, the system takes %zu",
        all, most);
}

int cp_env_read(const cp_ctx *ctx, yyjson_val *body, bool shell, cp_env_var **out, size_t *count, cp_err *err) {
    yyjson_val *env = NULL, *key, *val;
    size_t i, n, own = 0;
    if (cp_json_obj(body, "env", &env, err) < 0) return -1;
    if (!env || yyjson_obj_size(env) == 0) return 0;
    if (check_count(yyjson_obj_size(env), "env", err) < 0) return -1;
    if (!(*out = cp_try_array(yyjson_obj_size(env), sizeof **out, err))) return -1;
    yyjson_obj_foreach(env, i, n, key, val) {
        cp_str name = {yyjson_get_str(key), yyjson_get_len(key)};
        if (yyjson_is_null(val)) continue;
        cp_env_var *v = &(*out)[*count];
        if (read_env_var(name, val, shell, v, err) < 0) return -1;
        own += cost(v->name.n + 1 + v->value.n);
        (*count)++;
    }
    return check_total(ctx, own, "env", err);
}

/* Without a session nothing but the kernel looks at a name: programs are started with it, shells too. */
static int read_env(cp_exec_args *a, const cp_ctx *ctx, yyjson_val *body, cp_err *err) {
    if (cp_env_read(ctx, body, !a->args && !a->spec.sessionless, &a->env, &a->spec.nenv, err) < 0) return -1;
    a->spec.env = a->env;
    size_t own = 0;
    for (size_t i = 0; i < a->spec.nargs; i++) own += cost(a->args[i].n);
    if (!own) return 0;
    for (size_t i = 0; a->env && i < a->spec.nenv; i++) own += cost(a->env[i].name.n + 1 + a->env[i].value.n);
    return check_total(ctx, own, "args", err);
}

/* Header and query forms, in the order of cloudflare-sandbox.md section 1. With a token, Authorization authenticates
 * and never names a session. */
static int session_elsewhere(cp_exec_args *a, const cp_ctx *ctx, const cp_request *req, cp_str *id, cp_err *err) {
    static const char *const names[] = {"session", "sessionId"};
    cp_str auth = cp_request_header(req, "Authorization");
    if (!ctx->config->has_token && auth.n > 7 && cp_str_ieq((cp_str){auth.p, 7}, CP_STR("Bearer "))) {
        *id = (cp_str){auth.p + 7, auth.n - 7};
        return 0;
    }
    *id = cp_request_header(req, "X-Session-Id");
    for (size_t i = 0; !id->n && i < CP_COUNT(names); i++) {
        if (cp_request_param(req, names[i], &a->session, err) < 0) return -1;
        *id = cp_buf_str(&a->session);
    }
    return 0;
}

static int read_session(cp_exec_args *a, const cp_ctx *ctx, const cp_request *req, cp_args_for what, cp_err *err) {
    cp_str id = {0};
    if (cp_json_str(req->body, "sessionId", false, &id, err) < 0) return -1;
    if (!id.n && what != CP_ARGS_START && session_elsewhere(a, ctx, req, &id, err) < 0) return -1;
    a->session_given = id.n > 0;
    if (!id.n) id = CP_STR("default");
    if (cp_str_trim(id).n == 0) return cp_fail(err, code_for(what), "sessionId must not be empty or whitespace");
    if (no_nul(id, "sessionId", err) < 0) return -1;
    if (id.n > MAX_SESSION_ID)
        return cp_fail_field(err, "sessionId", "sessionId is longer than %d bytes", MAX_SESSION_ID);
    a->spec.sessionless = cp_str_is(id, CP_SESSIONLESS);
    a->spec.session = id;
    return 0;
}

/* ---- ids ---- */

static bool exec_id_ok(cp_str s) {
    if (!s.n || s.n > MAX_EXEC_ID) return false;
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || memchr("_.:-", c, 4)))
            return false;
    }
    return true;
}

static int read_ids(cp_exec_args *a, yyjson_val *body, cp_args_for what, cp_err *err) {
    cp_str *id = &a->spec.exec_id;
    if (cp_json_str(body, "executionId", false, id, err) < 0) return -1;
    if (id->p && !exec_id_ok(*id))
        return cp_fail_field(err, "executionId", "executionId must be 1 to %d characters of A-Z a-z 0-9 _ . : -",
                             MAX_EXEC_ID);
    a->additions |= id->p != NULL;
    if (what != CP_ARGS_START) return 0;
    id = &a->spec.process_id;
    if (read_str(body, "processId", MAX_PROCESS_ID, id, err) < 0) return -1;
    for (size_t i = 0; i < id->n; i++)
        if ((unsigned char)id->p[i] < ' ' || id->p[i] == 0x7f || id->p[i] == '/')
            return cp_fail_field(err, "processId", "processId must not contain control characters or a slash");
    return 0;
}

/* ---- input and output ---- */

static int read_stdin(cp_exec_args *a, yyjson_val *body, cp_err *err) {
    static const char *const encodings[] = {"text", "base64", NULL};
    int encoding = -1;
    cp_str text = {0};
    if (cp_json_str(body, "stdin", false, &text, err) < 0) return -1;
    if (cp_json_enum(body, "stdinEncoding", encodings, &encoding, err) < 0) return -1;
    if (!text.p) return encoding < 0 ? 0 : cp_fail_field(err, "stdinEncoding", "stdinEncoding needs stdin");
    a->additions = true;
    if (encoding < 0 && cp_str_is(text, "open")) {
        a->spec.stdin_open = true;
    } else if (encoding == 1) {
        if (cp_room(&a->stdin_data, text.n, err) < 0) return -1;
        if (cp_base64_decode(&a->stdin_data, text) < 0) return cp_fail_field(err, "stdin", "stdin is not valid base64");
        a->spec.stdin_data = cp_buf_str(&a->stdin_data);
    } else {
        a->spec.stdin_data = text;
    }
    return 0;
}

static int read_output(cp_exec_args *a, yyjson_val *body, cp_args_for what, cp_err *err) {
    static const char *const encodings[] = {"utf-8", "utf8", "base64", NULL};
    static const char *const cancels[] = {"detach", "kill", NULL};
    int encoding = -1, cancel = what == CP_ARGS_EXECUTE && !a->background;
    int64_t max = 0;
    /* The SDK sends its own encoding option to process/start, where the reference ignores it. */
    if (cp_json_enum(body, "encoding", encodings, &encoding, err) < 0 && what != CP_ARGS_START) return -1;
    if (cp_json_enum(body, "onCancel", cancels, &cancel, err) < 0) return -1;
    if (cp_json_int(body, "maxOutputBytes", 1, MAX_SAFE_INTEGER, &max, err) < 0) return -1;
    a->base64 = encoding == 2;
    a->kill_on_cancel = cancel == 1;
    a->spec.max_output = (uint64_t)max;
    a->additions |= encoding == 2 || max || yyjson_obj_get(body, "onCancel");
    return 0;
}

static int read_life(cp_exec_args *a, const cp_request *req, cp_err *err) {
    static const char *const policies[] = {"continue", "kill", NULL};
    int disconnect = 0;
    int64_t timeout = 0, detach = -1;
    if (cp_json_int(req->body, "timeoutMs", 0, CP_MAX_WAIT_MS, &timeout, err) < 0) return -1;
    if (cp_json_int(req->body, "detachAfterMs", 0, CP_MAX_WAIT_MS, &detach, err) < 0) return -1;
    if (cp_json_bool(req->body, "background", &a->background, err) < 0) return -1;
    if (cp_json_enum(req->body, "onDisconnect", policies, &disconnect, err) < 0) return -1;
    a->spec.timeout_ms = (uint64_t)timeout;
    a->detach_after = detach >= 0;
    a->detach_after_ms = detach >= 0 ? (uint64_t)detach : 0;
    a->kill_on_disconnect = req->kill_on_disconnect || disconnect == 1;
    a->additions |= detach >= 0 || req->respond_async || a->kill_on_disconnect;
    return 0;
}

static int refuse_unsupported(yyjson_val *body, cp_err *err) {
    static const char *const later[] = {"limits", "isolation"};
    for (size_t i = 0; i < CP_COUNT(later); i++) {
        yyjson_val *v = yyjson_obj_get(body, later[i]);
        if (!v || yyjson_is_null(v)) continue;
        cp_fail(err, CP_E_NOT_SUPPORTED, "%s is not supported by this server", later[i]);
        snprintf(err->field, sizeof err->field, "%s", later[i]);
        return -1;
    }
    return 0;
}

/* ---- offsets ---- */

int cp_offsets_parse(cp_str text, uint64_t from[2], cp_err *err) {
    const char *dash = text.n ? memchr(text.p, '-', text.n) : NULL;
    cp_str first = {text.p, dash ? (size_t)(dash - text.p) : text.n};
    cp_str second = dash ? (cp_str){dash + 1, text.n - first.n - 1} : first;
    if (cp_str_u64(first, MAX_SAFE_INTEGER, &from[0]) && cp_str_u64(second, MAX_SAFE_INTEGER, &from[1])) return 0;
    return cp_fail_field(err, "from", "from must be <stdout>-<stderr> or one offset for both");
}

static int offsets_of_body(yyjson_val *v, uint64_t from[2], cp_err *err) {
    if (yyjson_is_str(v)) return cp_offsets_parse((cp_str){yyjson_get_str(v), yyjson_get_len(v)}, from, err);
    if (yyjson_is_uint(v) && yyjson_get_uint(v) <= MAX_SAFE_INTEGER) {
        from[0] = from[1] = yyjson_get_uint(v);
        return 0;
    }
    return cp_fail_field(err, "from", "from must be <stdout>-<stderr> or one offset for both");
}

int cp_offsets_of(const cp_request *req, uint64_t from[2], bool *given, cp_err *err) {
    cp_autobuf cp_buf text = {0};
    yyjson_val *field = yyjson_is_obj(req->body) ? yyjson_obj_get(req->body, "from") : NULL;
    cp_str last = cp_request_header(req, "Last-Event-ID");
    int got = cp_request_param(req, "from", &text, err);
    *given = got > 0 || last.p || (field && !yyjson_is_null(field));
    if (got < 0) return -1;
    if (!*given) return 0;
    /* A client that reconnects sends the same query again, and where it stopped in the header. */
    if (last.p) return cp_offsets_parse(last, from, err);
    if (got > 0) return cp_offsets_parse(cp_buf_str(&text), from, err);
    return offsets_of_body(field, from, err);
}

/* Once, for the fingerprint and for what is kept of the command. */
static void digest_command(cp_exec_args *a) {
    cp_str command = a->spec.command;
    if (cp_command_head(command) == command.n) return;
    cp_sha256_of(command.p, command.n, a->command_sha256);
    a->spec.command_sha256 = a->command_sha256;
}

int cp_exec_args_read(cp_exec_args *a, const cp_ctx *ctx, const cp_request *req, cp_args_for what, cp_err *err) {
    static const cp_exec_kind kinds[] = {CP_EXEC_BUFFERED, CP_EXEC_STREAM, CP_EXEC_PROCESS};
    yyjson_val *body = req->body;
    *a = (cp_exec_args){0};
    if (read_command(a, body, what, err) < 0 || read_session(a, ctx, req, what, err) < 0 ||
        read_env(a, ctx, body, err) < 0 || read_ids(a, body, what, err) < 0 || read_stdin(a, body, err) < 0 ||
        read_life(a, req, err) < 0 || read_output(a, body, what, err) < 0 || refuse_unsupported(body, err) < 0 ||
        read_str(body, "cwd", MAX_CWD, &a->spec.cwd, err) < 0 ||
        read_str(body, "user", MAX_CWD, &a->spec.user, err) < 0)
        return -1;
    if (what == CP_ARGS_STREAM && cp_offsets_of(req, a->from, &a->has_from, err) < 0) return -1;
    a->additions |= a->spec.user.n > 0 || a->has_from;
    a->spec.kind = what == CP_ARGS_EXECUTE && a->background ? CP_EXEC_PROCESS : kinds[what];
    if (a->spec.kind == CP_EXEC_PROCESS && cp_str_trim(a->spec.command).n == 0)
        return cp_fail(err, CP_E_INVALID_COMMAND, "Invalid command: empty command provided");
    digest_command(a);
    return cp_exec_fingerprint(&a->spec, err);
}

/* Of a request (a), or of an execution (e); the other is NULL. */
static void refuse(cp_reply *reply, const cp_exec_args *a, const cp_exec *e, const cp_err *err) {
    if (err->code != CP_E_COMMAND_EXECUTION_ERROR && err->code != CP_E_STREAM_START_ERROR) {
        cp_reply_error(reply, err, NULL, (cp_str){0});
        return;
    }
    cp_autobuf cp_buf context = {0};
    cp_jw w = cp_jw_on(&context);
    cp_jw_obj(&w);
    if (e) cp_jw_command(&w, e);
    else if (a->spec.command.p) cp_jw_command_text(&w, a->spec.command, a->spec.command_sha256);
    cp_jw_kz(&w, "stderr", err->msg);
    if (err->sys) cp_jw_kz(&w, "errno", cp_errno_name(err->sys));
    cp_jw_end_obj(&w);
    cp_reply_error(reply, err, NULL, cp_buf_str(&context));
}

void cp_exec_args_refuse(cp_reply *reply, const cp_exec_args *a, const cp_err *err) { refuse(reply, a, NULL, err); }
void cp_exec_refuse(cp_reply *reply, const cp_exec *e, const cp_err *err) { refuse(reply, NULL, e, err); }
