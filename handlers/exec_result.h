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

/* An answer that holds the output of an execution, while it is made. */
typedef struct cp_gathered {
    cp_exec *exec;
    cp_exec_view view;
    uint64_t total[2];
    uint64_t missing[2]; /* bytes before, in and behind the text that are not there */
    bool truncated[2];   /* the text is not all of it */
    bool lossy;          /* a text was not UTF-8, or lost NULs */
    cp_err unread;       /* not CP_OK: because the log could not be read at this moment; it has more */
    cp_err failed;       /* not CP_OK: how the execution failed, when the answer is that error */
} cp_gathered;
/* What stands around the texts ("stdout", "stderr"), which lie between begin and end. On the loop or on the io pool. */
typedef struct cp_gather_form {
    bool (*begin)(cp_gathered *g, cp_result *res, cp_jw *w); /* sets the status; false: without texts */
    void (*end)(cp_gathered *g, cp_result *res, cp_jw *w);
    bool exact; /* the texts of a session are what was printed, not what the reference makes of them */
    /* Not NULL: called before end; true: the answer is no answer, and *res has been made in its place. */
    bool (*refuse)(const cp_gathered *g, cp_result *res);
} cp_gather_form;
extern const cp_gather_form cp_gather_exec; /* of execute: the result, or the error that the execution ended with */
/* {success, stdout, stderr} of a process, and {dropped: {stdout, stderr}} when bytes are missing; an error when its log
 * cannot be read. */
extern const cp_gather_form cp_gather_logs;
typedef struct cp_gathering cp_gathering;
/* On the loop, maybe before cp_gather_start has returned; takes what res owns. The gathering is over by then. */
typedef void cp_gather_done(void *arg, cp_result *res);
/* Makes an answer from what an execution has printed so far, in pieces, in constant memory (base/spool.h): it costs
 * what the memory budget has room for. A few long ones are made at a time, the others wait. Started at once by its
 * owner, who has it until done. Loop thread. */
cp_gathering *cp_gather_new(cp_ctx *ctx, cp_exec *e, cp_exec_view view, const cp_gather_form *form,
                            cp_gather_done *done, void *arg);
void cp_gather_start(cp_gathering *g);
/* Nobody wants it any more: done is not called, and no further piece is made. NULL is fine. Loop thread. */
void cp_gather_cancel(cp_gathering *g);

/* -1 with the error, if one that is over has ended otherwise than by its own end. */
int cp_exec_how_it_failed(const cp_exec *e, cp_err *err);
static inline bool cp_exec_over(const cp_exec *e) { return e->state == CP_STATE_ENDED || e->state == CP_STATE_FAILED; }
/* "command", and where that is only its head: commandLength (bytes), commandSha256 and commandTruncated of the whole.
 */
void cp_jw_command(cp_jw *w, const cp_exec *e);
/* The same of a text. sha256: of the text, or NULL. */
void cp_jw_command_text(cp_jw *w, cp_str text, const uint8_t *sha256);
/* "error" and "errno" of one that could not be started. */
void cp_jw_start_error(cp_jw *w, const cp_exec *e);
/* "SIGTERM"; a number for one that has no name. */
void cp_jw_signal(cp_jw *w, const char *key, int sig);
/* "usage":{maxRssBytes,cpuMs}; nothing where it is not known. */
void cp_jw_usage(cp_jw *w, const cp_exec *e);
