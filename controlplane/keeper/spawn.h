#pragma once
/* One child by a vfork-style clone, see spawn.c. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

enum { SPAWN_FDS = 8 };

typedef enum { SPAWN_GROUP, SPAWN_SESSION, SPAWN_SAME_GROUP } spawn_group;

/* All borrowed for the call. */
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
} spawn_spec;

typedef struct spawner {
    char *stack;
    int devnull;
    rlim_t nofile;    /* the soft limit that children get: what the keeper was started with */
    int max_fds;      /* what the keeper has now: numbers below */
    uint64_t ignored; /* signals (bit number - 1) whose disposition is not the default one */
} spawner;

/* Notes what the keeper was started with, then raises its own descriptor limit. 0, or -1 with errno. */
int spawner_init(spawner *s);
void spawner_fini(spawner *s);

/* The pid, or -1 with *sys and *step (CP_STEP_…). Blocks this thread until the child has called execve or failed. */
pid_t spawner_run(const spawner *s, const spawn_spec *spec, int *sys, uint8_t *step);
