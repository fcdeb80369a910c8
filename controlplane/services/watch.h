#pragma once
/* Watching files: who asks for the same path with the same options shares one watcher (an inotify instance and the
 * folders it watches). Loop thread only. */
#include "base/ring.h"
#include "services/services.h"

typedef enum {
    CP_WATCH_CREATE,
    CP_WATCH_MODIFY,
    CP_WATCH_DELETE,
    CP_WATCH_MOVE_FROM,
    CP_WATCH_MOVE_TO,
    CP_WATCH_ATTRIB,
    CP_WATCH_TYPES
} cp_watch_type;
extern const char *const cp_watch_type_names[CP_WATCH_TYPES + 1]; /* wire words, NULL-terminated */

enum {
    CP_WATCH_EVENTS_DEFAULT = (1 << CP_WATCH_TYPES) - 1 - (1 << CP_WATCH_ATTRIB),
    CP_WATCH_FOLDERS = 8192,     /* of one watcher */
    CP_WATCH_PENDING = 1000,     /* events that wait for one subscriber; more are dropped */
    CP_WATCH_WINDOW_MS = 75,     /* equal events within it are told once */
    CP_WATCH_RETAIN_MS = 600000, /* a watcher that only checks use lives so long after the last */
    CP_WATCH_GLOBS = 64,         /* patterns of one watcher */
};

/* Strings are borrowed for the call; equal patterns in another order make an equal watcher. */
typedef struct cp_watch_spec {
    const char *path; /* absolute, without "." and ".." (cp_watch_resolve) */
    bool recursive;
    unsigned events;                 /* bit per cp_watch_type */
    const cp_str *include, *exclude; /* at most CP_WATCH_GLOBS supported patterns of at most CP_GLOB_MAX bytes */
    size_t ninclude, nexclude;
} cp_watch_spec;

typedef struct cp_watch_event {
    struct cp_watch_event *prev, *next, *hash_next; /* watch_queue.c's */
    cp_watch_type type;
    bool is_dir;
    int64_t wall_ms;
    size_t n; /* of path */
    char path[];
} cp_watch_event;

typedef struct cp_watcher cp_watcher;
typedef struct cp_watch_list {
    cp_watch_event *head, *tail;
    size_t n;
} cp_watch_list;

/* A subscriber; embed in the owner. */
typedef struct cp_watch_sub {
    /* Once, unless cp_watch_open said that it is ready: all watches exist (err NULL), or the watcher could not be
     * started and the subscription is over. */
    void (*on_ready)(struct cp_watch_sub *sub, const cp_err *err);
    void (*on_events)(struct cp_watch_sub *sub); /* cp_watch_next has something, or `ended` has become true */
    bool ended, failed;                          /* no event will be added; failed: because of an error */
    char end_text[512];                          /* why */
    /* watch*.c's */
    cp_watcher *watcher;
    cp_loop *loop;
    cp_link link;                     /* with those that know that it is ready, or those that do not */
    cp_watch_list window, taken_from; /* being collected; ready to be taken */
    cp_watch_event *hash[256];        /* of window */
    cp_watch_event *current;
    cp_timer timer;
    bool due; /* the window is over, but what was ready before it has not been taken yet */
    uint64_t dropped;
} cp_watch_sub;

/* Subscribes. 1: ready now; 0: on_ready will be called; -1: refused. */
int cp_watch_open(cp_services *s, const cp_watch_spec *spec, cp_watch_sub *sub, cp_err *err);
void cp_watch_close(cp_watch_sub *sub);           /* in any state, also a zero-initialised one */
const char *cp_watch_id(const cp_watch_sub *sub); /* "watch-<n>-<ms>"; while ready and not ended */
/* The next event, valid until the next call; NULL: none for now. */
const cp_watch_event *cp_watch_next(cp_watch_sub *sub);

/* A question for the state of a retained watcher; embed in the owner. */
typedef struct cp_watch_check {
    /* Once, perhaps before cp_watch_check_start returns. err NULL: the members below are set. */
    void (*done)(struct cp_watch_check *c, const cp_err *err);
    const char *watch_id; /* valid in done only */
    uint64_t count;       /* events so far, everything included that happened before the check began */
    bool created;         /* the watcher did not exist before */
    bool lost;            /* events were lost: no version of this watcher says anything any more */
    /* watch.c's */
    cp_watcher *watcher;
    cp_link link;
    uint64_t from; /* what the watcher must have handled: all that was in the kernel's queue when the check began */
} cp_watch_check;
/* LIMIT_EXCEEDED: a watcher more would have to be kept than config->max_watches. */
void cp_watch_check_start(cp_services *s, const cp_watch_spec *spec, cp_watch_check *c);
void cp_watch_check_cancel(cp_watch_check *c); /* done will not be called; in any state */

void cp_watches_close(cp_services *s); /* without a word to anybody */
