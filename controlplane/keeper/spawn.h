#pragma once
/* One child by a clone that borrows our memory, see spawn.c. Nothing here blocks. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "base/buf.h"

enum { SPAWN_FDS = 8, SPAWN_STACKS_KEPT = 32 };

typedef enum { SPAWN_GROUP, SPAWN_SESSION, SPAWN_SAME_GROUP } spawn_group;

/* What is pointed to is borrowed until the spawn is over; the descriptors only for the call that begins it. */
typedef struct spawn_spec {
    const char *file; /* a path; NULL: argv[0], looked up on the PATH of env when it has no slash */
    char **argv;      /* argv[-1] is scratch (a script without #! is run as /bin/sh FILE ARGS…) */
    char **env;
    const char *cwd;    /* NULL: where the keeper is */
    int fds[SPAWN_FDS]; /* the child's descriptors; -1: /dev/null for 0..2, closed above */
    spawn_group group;
    uint64_t mark; /* base/mark.h; 0: none */
    bool set_user;
    uid_t uid;
    gid_t gid;
    const gid_t *groups;
    size_t ngroups;
    int reserve; /* descriptor numbers, from max_fds down, that its pipe keeps out of */
} spawn_spec;

typedef struct spawner {
    void *stacks[SPAWN_STACKS_KEPT]; /* that are free */
    size_t nstacks;
    int devnull;
    rlim_t nofile;    /* the soft limit that children get: what the keeper was started with */
    int max_fds;      /* what the keeper has now: numbers below */
    uint64_t ignored; /* signals (bit number - 1) whose disposition is not the default one */
} spawner;

/* One spawn under way: the memory that the child runs on until it is its program. Zero-initialise, fill spec; from
 * spawn_begin on nobody but the child changes what it reads. */
typedef struct spawn_job {
    spawn_spec spec;
    pid_t pid; /* from spawn_begin on */
    int fd;    /* at its end when the child is its program or is gone; to be watched for reading, the spawn's */
    const spawner *s;
    void *stack;
    int fds[SPAWN_FDS];
    int end;            /* the child's end of fd's pipe; ours is closed */
    const char *search; /* PATH, or NULL when file is a path already */
    const char *file;
    char *candidate;       /* room for any PATH element, '/', file */
    volatile int sys;      /* written by the child: why it failed */
    volatile uint8_t step; /* what it is at (CP_STEP_…), or failed at */
} spawn_job;

/* Notes what the keeper was started with, then raises its own descriptor limit. 0, or -1 with errno. */
int spawner_init(spawner *s);
void spawner_fini(spawner *s);

/* Starts the child: its pid is known at once, whether it becomes its program later, by fd. false: w->sys and w->step
 * say why there is no child, and nothing is to be freed. */
bool spawn_begin(spawner *s, spawn_job *w);

typedef enum { SPAWN_UNDER_WAY, SPAWN_DONE, SPAWN_FAILED } spawn_state;
/* FAILED: w->sys and w->step say why; the child has called exit, or is about to. */
spawn_state spawn_look(const spawn_job *w);
/* Only when it is not under way, or the child has been reaped: else it runs on what is freed here. */
void spawn_end(spawner *s, spawn_job *w);
