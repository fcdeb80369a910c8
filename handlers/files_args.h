#pragma once
/* What the file handlers share: the paths of a request, and their errors. */
#include "handlers/reply.h"
#include "services/files.h"

/* A path of the request: as it was given, and where it is. */
typedef struct cp_files_path {
    cp_str given;
    cp_where where;
} cp_files_path;

/* Fields that any operation accepts, for lists of known fields. */
#define CP_FILES_COMMON "sessionId", "priority", "deadlineMs", "onDisconnect"

/* The path in body[key], relative to the session's folder. 0, or -1 when res holds the error already. */
int cp_files_path_arg(cp_ctx *ctx, const cp_request *req, const char *key, const char *op, cp_files_path *out,
                      cp_result *res);
/* The same from the query (path=, sessionId=); text keeps the decoded path. */
int cp_files_path_query(cp_ctx *ctx, const cp_request *req, const char *op, cp_buf *text, cp_files_path *out,
                        cp_result *res);
/* The pieces of it, for handlers that answer bad paths in their own way. body_str: {NULL,0} when it is not a string. */
cp_str cp_files_body_str(const cp_request *req, const char *key);
int cp_files_locate(cp_ctx *ctx, bool has_session, cp_str session, cp_files_path *p, cp_err *err);
bool cp_files_session(const cp_request *req, cp_str *session); /* false: the request names none */
void cp_files_bad_path(cp_err *err, cp_str given, const char *why);

/* Permission bits: a number (0o755 in JavaScript) or octal text ("0755"); absent: *mode as it is. */
int cp_files_mode_arg(const cp_request *req, int64_t *mode, cp_err *err);
int cp_files_mode_text(cp_str text, int64_t *mode, cp_err *err);

/* Error answers; all return 0, so that a handler ends with `return`. Context {path, operation}, and errno or stderr. */
int cp_files_error(cp_result *res, const cp_err *err, const char *op, cp_str path);
/* On the SDK's routes: FILESYSTEM_ERROR "<what> '<path>': <errno text>" for all but what has a code of its own there.
 */
int cp_files_sdk_error(cp_result *res, const cp_err *err, const char *op, cp_str path, const char *what);
int cp_files_not_found(cp_result *res, const char *op, cp_str path, const char *what); /* "<what>: <path>" */
