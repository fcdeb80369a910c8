#pragma once
/* What an execution printed and how it ended, as an answer. Loop thread only. */
#include "handlers/router.h"
#include "services/exec.h"

/* How the one who asked wants to see it. */
typedef struct cp_exec_view {
    bool session_given; /* repeat sessionId */
    bool plain;         /* nothing of conflux-additions.md was asked for: NULs of session output vanish */
    bool base64;
} cp_exec_view;

/* The output of an execution, taken out of its logs: in slices on the loop, so that 64 MiB do not hold it up. */
typedef struct cp_gathered {
    cp_exec *exec;
    cp_exec_view view;
    cp_buf text[2];
    uint64_t total[2];
    bool truncated[2]; /* text is not all of it */
    cp_err unread;     /* not CP_OK: because the log could not be read at this moment; it has more */
} cp_gathered;
/* Makes the answer from it; runs on the io pool when the output is long. */
typedef void cp_gather_build(cp_gathered *g, cp_result *res);
/* On the loop, maybe before cp_gather has returned; takes what res owns. */
typedef void cp_gather_done(void *arg, cp_result *res);
void cp_gather(cp_ctx *ctx, cp_exec *e, cp_exec_view view, cp_gather_build *build, cp_gather_done *done, void *arg);

/* -1 with the error, if one that is over has ended otherwise than by its own end. */
int cp_exec_how_it_failed(const cp_exec *e, cp_err *err);
/* Builds the answer of execute for an execution that has ended: the result, or the error that it ended with. */
void cp_exec_result_build(cp_gathered *g, cp_result *res);
/* {success, stdout, stderr} of a process; an error when its log cannot be read: there is no flag for half of it. */
void cp_exec_logs_build(cp_gathered *g, cp_result *res);

static inline bool cp_exec_over(const cp_exec *e) { return e->state == CP_STATE_ENDED || e->state == CP_STATE_FAILED; }
/* "error" and "errno" of one that could not be started. */
void cp_jw_start_error(cp_jw *w, const cp_exec *e);
/* "SIGTERM"; a number for one that has no name. */
void cp_jw_signal(cp_jw *w, const char *key, int sig);
/* "usage":{maxRssBytes,cpuMs}; nothing where it is not known. */
void cp_jw_usage(cp_jw *w, const cp_exec *e);
