#pragma once
/* What the domain services share. One instance per server; everything is loop thread only unless a header says so. */
#include "base/loop.h"
#include "base/work.h"
#include "keeper/client.h"
#include "registry/registry.h"
#include "schema/config.h"

struct cp_execs;
struct cp_sessions;
struct cp_pool;
struct cp_files;
struct cp_watches;
struct cp_events;
struct cp_uploads;
struct cp_leftovers;
struct cp_strays;

typedef struct cp_services {
    cp_loop *loop;
    cp_workers *workers;
    cp_keeper *keeper;
    cp_registry *registry;
    const cp_config *config;
    const char *state_dir;  /* exists, 0700 */
    const char *workspace;  /* absolute, exists */
    char **base_env;        /* NULL-terminated environment for children: the server's own, without CONFLUX_* secrets */
    struct cp_execs *execs; /* services/exec.c */
    struct cp_sessions *sessions;   /* services/session.c */
    struct cp_pool *pool;           /* services/pool.c: pre-started shells */
    struct cp_files *files;         /* services/files.c: cp_files_open(config->file_root), before any request */
    struct cp_watches *watches;     /* services/watch.c: made when first needed */
    struct cp_events *events;       /* services/events.c */
    struct cp_uploads *uploads;     /* services/upload.c; NULL without files */
    struct cp_leftovers *leftovers; /* services/leftovers.c; NULL without files */
    struct cp_strays *strays;       /* services/stray.c: made when first needed */
    unsigned generation;            /* how often the keeper has started this server again */
    bool draining;                  /* refuse new work */
} cp_services;

/* Opens events, execs, pool, sessions in this order on a struct whose other fields are set, re-adopts what the keeper
 * held (cp_services_held is called for each during cp_keeper_open, before this) and agrees it with the registry. */
int cp_services_open(cp_services *s, cp_err *err);
/* Remembers a held child until cp_services_open; takes its descriptors. Keys "x:<execution id>" are the executions',
 * those that begin with "s:" go to cp_sessions_held. svc may be otherwise empty. */
void cp_services_held(cp_services *s, const cp_held *h);
/* Shutdown: refuses new work, sends TERM to all trees, KILL to what is left near the end of limit_ms. done when nothing
 * runs or the time is up. */
void cp_services_drain(cp_services *s, uint64_t limit_ms, void (*done)(void *arg), void *arg);
/* Frees everything; the loop must not be running. Durable children stay with the keeper. */
void cp_services_close(cp_services *s);
