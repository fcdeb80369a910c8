#pragma once
/* Typed arguments of execute, execute/stream and process/start, decoded from JSON once (cloudflare-sandbox.md section
 * 2, conflux-additions.md). */
#include "handlers/router.h"
#include "services/exec.h"

typedef enum { CP_ARGS_EXECUTE, CP_ARGS_STREAM, CP_ARGS_START } cp_args_for;

typedef struct cp_exec_args {
    cp_exec_spec spec;  /* borrows from the request and from the fields below */
    bool session_given; /* the reply repeats it */
    bool additions;     /* the request used something of conflux-additions.md */
    bool base64;        /* how output leaves */
    bool background;    /* execute only: as process/start */
    bool kill_on_cancel;
    bool kill_on_disconnect;
    bool detach_after; /* detach_after_ms was given */
    uint64_t detach_after_ms;
    bool has_from; /* streams: offsets were asked for */
    uint64_t from[2];
    cp_buf command, stdin_data, session; /* owned */
    cp_str *args;                        /* owned */
    cp_env_var *env;                     /* owned */
    uint8_t command_sha256[32];          /* of a command that is too long to be kept whole */
} cp_exec_args;

/* 0 or -1; err names the field. cp_exec_args_free in either case. */
int cp_exec_args_read(cp_exec_args *a, const cp_ctx *ctx, const cp_request *req, cp_args_for what, cp_err *err);
void cp_exec_args_free(cp_exec_args *a);
static inline void cp_autoargs_(cp_exec_args *a) { cp_exec_args_free(a); }
#define cp_autoargs __attribute__((cleanup(cp_autoargs_)))

/* Errors of execution carry {command, stderr} as context; input errors the usual one. */
void cp_exec_args_refuse(cp_reply *reply, const cp_exec_args *a, const cp_err *err);
void cp_exec_refuse(cp_reply *reply, const cp_exec *e, const cp_err *err); /* the same for one that there is */

/* The member `env`, for every route that has one: *out is a heap array (owner frees, maybe NULL), null values are left
 * out. A name is anything without = and NUL; `shell`: what a shell can export, because a session's does. Name, value
 * and the whole are no longer than the kernel takes. -1: VALIDATION_FAILED that names env.NAME (or env). */
int cp_env_read(const cp_ctx *ctx, yyjson_val *body, bool shell, cp_env_var **out, size_t *n, cp_err *err);

/* "<stdout>-<stderr>" or one number for both. */
int cp_offsets_parse(cp_str text, uint64_t from[2], cp_err *err);
/* From the query, a Last-Event-ID header or (with a body) the field `from`. *given false when there is none. */
int cp_offsets_of(const cp_request *req, uint64_t from[2], bool *given, cp_err *err);

#define CP_SESSIONLESS "__DISABLE_SESSION__"
/* The longest wait, timeout or delay that a request may name. */
#define CP_MAX_WAIT_MS 2147483647
