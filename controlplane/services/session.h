#pragma once
/* Sessions: a long-lived bash that runs commands one after another and keeps cwd, variables, functions and options
 * (design.md section 5, cloudflare-sandbox.md section 6.1). Loop thread only, except cp_session_cwd. */
#include "services/exec.h"

typedef struct cp_session_spec {
    cp_str id;  /* empty: generated session_<ms>_<12 hex> */
    cp_str cwd; /* empty: the workspace; a missing folder: $HOME */
    const cp_env_var *env;
    size_t nenv;
    uint64_t command_timeout_ms; /* default for commands that name none; 0: none */
} cp_session_spec;

int cp_sessions_open(cp_services *s, cp_err *err); /* called by cp_services_open */
void cp_sessions_close(cp_services *s);
void cp_sessions_put_all(cp_services *s); /* the rows of all, into a registry that has been begun anew */
/* A shell of a former server (key "s:…"), before cp_sessions_open; takes the descriptors. */
void cp_sessions_held(cp_services *s, const cp_held *h);
/* Whether one of these has been at this execution: then cp_sessions_open goes on with it. */
bool cp_session_inherits(cp_services *s, const char *exec_id);
/* False: descriptors were lacking to take all that the shells have kept. */
bool cp_sessions_held_whole(const cp_services *s);

/* Creates one; done(arg, err NULL or failure, id) on the loop, asynchronously, when its shell is ready. A live id:
 * -1 SESSION_ALREADY_EXISTS; a dead one is replaced. LIMIT_EXCEEDED over the limit. */
typedef void cp_session_done(void *arg, const cp_err *err, const char *id);
int cp_session_create(cp_services *s, const cp_session_spec *spec, cp_session_done *done, void *arg, cp_err *err);
/* Ends it: pending commands end at once (SESSION_DESTROYED), background processes are killed unless keep. done when
 * the shell is gone; the id can be created again as soon as this has returned. Unknown: -1 (INTERNAL_ERROR per the
 * page). */
int cp_session_delete(cp_services *s, cp_str id, bool keep, cp_session_done *done, void *arg, cp_err *err);
/* Ids in the order of creation; the strings are borrowed for the call. */
void cp_session_each(cp_services *s, void (*fn)(void *arg, const char *id), void *arg);
bool cp_session_exists(cp_services *s, cp_str id);
/* Any thread: the session's working folder as of its last completed command (the workspace when unknown) into
 * out[4096]. */
void cp_session_cwd(cp_services *s, cp_str id, char out[4096]);
