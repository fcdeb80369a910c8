#pragma once
/* Executions: every child that a client asked for, whatever its form (design.md sections 2, 4, 5).
 *
 * kind BUFFERED: one result at the end. STREAM: watched live, listed as a process with a generated id. PROCESS: in the
 * background. STREAM and PROCESS are durable (the keeper holds their fds, logs are files, the registry has a row);
 * BUFFERED is durable when the caller chose an execution id. All run on one of three backends: a session's shell
 * (services/session.c), a pre-started shell used once (services/pool.c), or argv directly (services/exec_spawn.c).
 *
 * Life: cp_exec_start → on_start (pid known; or the failure) → output … → on_end (child reaped AND output drained;
 * exactly once) → kept for history → freed when retention takes it and nobody holds a reference. */
#include "base/mark.h"
#include "base/utf8.h"
#include "services/output.h"
#include "services/services.h"
#include "services/stdin_ack.h"

typedef enum { CP_EXEC_BUFFERED, CP_EXEC_STREAM, CP_EXEC_PROCESS } cp_exec_kind;
typedef enum {
    CP_STATE_STARTING,
    CP_STATE_RUNNING,
    CP_STATE_ENDED,
    CP_STATE_FAILED /* could not start */
} cp_exec_state;

/* wire words in schema/outcomes.def: exited signal timeout output_limit memory_limit cancelled lost */
typedef enum {
#define X(name) CP_OUTCOME_##name,
#include "schema/outcomes.def"
#undef X
    CP_OUTCOME_COUNT
} cp_outcome;
const char *cp_outcome_name(cp_outcome o); /* static storage */

typedef struct cp_env_var {
    cp_str name, value; /* name is [A-Za-z_][A-Za-z0-9_]*: checked by the caller */
} cp_env_var;

/* A request to execute; all strings are borrowed for the call of cp_exec_start. */
typedef struct cp_exec_spec {
    cp_exec_kind kind;
    cp_str command;                /* shell text; or */
    const uint8_t *command_sha256; /* of the command, where the caller has it; else NULL */
    const cp_str *args;            /* argv form (command is then the joined text, for display) */
    size_t nargs;
    bool sessionless;
    cp_str session; /* id of the session (already defaulted) unless sessionless */
    cp_str cwd;     /* empty: the session's, or the workspace */
    const cp_env_var *env;
    size_t nenv;
    cp_str exec_id;          /* caller-chosen; empty: generated */
    cp_str process_id;       /* PROCESS: caller-chosen; empty: generated proc_<ms>_<6 base36> */
    cp_str stdin_data;       /* given to the child, then end of input */
    bool stdin_open;         /* stays open for cp_exec_stdin; else /dev/null when stdin_data is empty */
    uint64_t timeout_ms;     /* 0: none */
    uint64_t max_output;     /* per stream; 0: the configured default; UINT64_MAX: all */
    cp_str user;             /* empty: as configured */
    uint8_t fingerprint[32]; /* of the request, for idempotency by exec_id or process_id */
} cp_exec_spec;

typedef struct cp_exec cp_exec;

/* A command of more bytes than WHOLE is kept, and shown, by its first HEAD bytes (a character of UTF-8 is not cut), its
 * length and its SHA-256. What is durable has the whole of it as a file beside its logs, which counts as one. */
enum { CP_COMMAND_WHOLE = 64 << 10, CP_COMMAND_HEAD = 4096 };
/* So many bytes of it are kept: all, or its head. */
static inline size_t cp_command_head(cp_str text) {
    return text.n <= CP_COMMAND_WHOLE ? text.n : CP_COMMAND_HEAD - cp_utf8_tail(text.p, CP_COMMAND_HEAD);
}

/* Callbacks on the loop, never from inside cp_exec_start. Either may be NULL. */
typedef struct cp_exec_watch cp_exec_watch;
typedef struct cp_exec_watch_ops {
    void (*on_start)(cp_exec_watch *w, cp_exec *e); /* pid known, or state FAILED (then e->start_err is set) */
    void (*on_end)(cp_exec_watch *w, cp_exec *e);   /* after on_start; state ENDED or FAILED */
} cp_exec_watch_ops;

/* Embed in the owner, which sets ops. There may be tens of thousands on one execution: they are told in the order they
 * were added in, as many in one round of the loop as there is time for. */
struct cp_exec_watch {
    const cp_exec_watch_ops *ops;
    cp_link link;    /* exec.c's: with those that have been told as much as it */
    cp_exec *exec;   /* while added; no reference */
    uint32_t number; /* the owner's, where it would be padding */
};

/* Read-only outside services/. */
struct cp_exec {
    cp_services *svc;
    unsigned refs;
    cp_exec_kind kind;
    cp_exec_state state;
    char *id;                   /* execution id */
    char *process_id;           /* NULL for BUFFERED */
    char *session;              /* NULL: sessionless */
    char *command;              /* what was asked for; of a truncated one the beginning, see cp_command_head */
    uint64_t command_length;    /* of the whole, in bytes */
    bool command_truncated;     /* then the whole was longer than `command` */
    uint8_t command_sha256[32]; /* of the whole of a truncated one */
    char *cwd;                  /* where it started, as far as known; else NULL */
    pid_t pid;
    uint64_t pid_start;
    cp_mark mark;                     /* what its processes carry; spawn 0: nothing, or it has not begun */
    int64_t started_wall, ended_wall; /* ms */
    uint64_t started_ms, ended_ms;    /* monotonic */
    uint64_t timeout_ms;
    uint64_t max_output; /* per stream, of the result of a BUFFERED one; its log may hold more (durable) */
    cp_output *out[2];   /* stdout, stderr: never NULL once on_start has come with success */
    cp_outcome outcome;  /* when ENDED */
    int exit_code;       /* what a shell would show: code, or 128 + signal, 124 for a sessionless timeout; -1 none */
    int signal;          /* 0 unless ended by a signal */
    bool timed_out, stopped_by_us, cancelled;
    bool session_ended;     /* the command ended its shell (exit, exec, kill $$): exit_code is the shell's */
    bool session_destroyed; /* the session was deleted under it */
    bool shell_replaced;    /* the shell had to be replaced (busy loop): reported to the client */
    bool durable, chosen_id;
    bool promised; /* somebody was given the id to ask for the result later */
    uint64_t max_rss, cpu_us;
    cp_err *start_err; /* FAILED: typed, errno in ->sys; else NULL */
    uint8_t fingerprint[32];
    struct cp_exec_impl *impl; /* services' own: backend, stdin, timers, lists */
};

void cp_exec_ref(cp_exec *e);
void cp_exec_unref(cp_exec *e);
/* The client has been told to come back for it: its end is an event, whoever chose the id. */
static inline void cp_exec_promise(cp_exec *e) { e->promised = true; }
void cp_exec_watch_add(cp_exec *e, cp_exec_watch *w);
void cp_exec_watch_del(cp_exec_watch *w); /* not added is fine */

/* Begins one. On success *out is a reference that the caller owns and w (may be NULL) is being told. Where exec_id or
 * process_id names an execution that exists with the same fingerprint, that one is returned and *existing is true (w is
 * added to it; its past callbacks come again, asynchronously); with another fingerprint: EXECUTION_CONFLICT (exec_id)
 * or RESOURCE_BUSY (process_id of a running process); an ended process_id with another fingerprint is replaced. -1:
 * limits, shutting down, invalid session; nothing was started. */
int cp_exec_start(cp_services *s, const cp_exec_spec *spec, cp_exec_watch *w, cp_exec **out, bool *existing,
                  cp_err *err);

cp_exec *cp_exec_find(cp_services *s, cp_str exec_id);            /* borrowed; NULL if unknown */
cp_exec *cp_exec_find_process(cp_services *s, cp_str process_id); /* borrowed */
/* In order of start; e is borrowed; fn must not start or free executions. */
void cp_exec_each(cp_services *s, bool (*fn)(void *arg, cp_exec *e), void *arg);
size_t cp_exec_running(const cp_services *s);

/* "running" "completed" "killed" "failed" "error" "starting" (cloudflare-sandbox.md section 6.2, with B050). */
const char *cp_exec_status(const cp_exec *e);

/* Sends data to the child's stdin and/or its end of input. Bytes are queued (bounded: 16 MiB, or 16,384 receipts
 * that have not been given, then LIMIT_EXCEEDED).
 * Ended or closed: RESOURCE_BUSY-like typed error. data is copied. ack may be NULL; given 0 it is taken. */
int cp_exec_stdin(cp_exec *e, cp_str data, bool eof, cp_stdin_ack *ack, cp_err *err);

/* Ends the whole tree: signal (default TERM), grace, KILL; answers when gone or after 2 s more. */
typedef struct cp_kill_result {
    const pid_t *killed;
    size_t nkilled;
    const pid_t *survivors;
    size_t nsurvivors;
} cp_kill_result;
typedef void cp_kill_done(void *arg, cp_exec *e, const cp_kill_result *r);
/* done may be NULL. Already ended: -1 COMMAND_NOT_FOUND. `why` becomes the outcome: CP_OUTCOME_signal for a plain kill,
 * cancelled, timeout. */
int cp_exec_kill(cp_exec *e, int sig, uint64_t grace_ms, cp_outcome why, cp_kill_done *done, void *arg, cp_err *err);
/* One signal, to the leader or the whole tree; the child may survive it. Typed errors: ended, EPERM, bad number. */
int cp_exec_signal(cp_exec *e, int sig, bool tree, cp_err *err);

/* Calls are under way that will give descriptors back soon: a start that lacks some may wait for them. */
bool cp_exec_gives_back(const cp_services *s);
