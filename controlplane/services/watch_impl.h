#pragma once
/* Inside of file watching: what watch.c, watch_events.c, watch_queue.c, watch_tree.c and watch_walk.c share. */
#include <sys/inotify.h>

#include "services/watch.h"
#include "services/watch_glob.h"

/* ---- watch_tree.c: the watched folders, by watch descriptor and by name. No thread of its own. ---- */

typedef struct watch_dir {
    int wd;
    struct watch_dir *parent, *child, *prev, *next; /* prev, next: siblings */
    struct watch_dir *wd_next, *name_next;          /* hash chains */
    size_t n;
    char *name; /* of the root: "" */
} watch_dir;

enum { WATCH_BUCKETS = 512 };
typedef struct watch_tree {
    watch_dir *root;
    watch_dir *by_wd[WATCH_BUCKETS], *by_name[WATCH_BUCKETS];
    size_t n;
} watch_tree;

watch_dir *watch_tree_add(watch_tree *t, watch_dir *parent, cp_str name, int wd); /* neither must be there yet */
watch_dir *watch_tree_wd(const watch_tree *t, int wd);
watch_dir *watch_tree_child(const watch_tree *t, const watch_dir *parent, cp_str name);
void watch_tree_detach(watch_tree *t, watch_dir *d); /* from its parent; its wd stays known */
void watch_tree_attach(watch_tree *t, watch_dir *d, watch_dir *parent, cp_str name);
/* Frees d and what is below; fd >= 0: their watches end too. */
void watch_tree_remove(watch_tree *t, watch_dir *d, int fd);
bool watch_tree_above(const watch_dir *d, const watch_dir *below); /* is d `below` or one of its ancestors? */
/* The path below the root, without a leading slash. */
void watch_tree_path(const watch_dir *d, cp_buf *out);

/* ---- the watcher ---- */

typedef struct watch_globs {
    cp_str *v;
    size_t n;
} watch_globs;

enum { WATCH_READ = 8192, WATCH_FOUND = 4096 /* entries of new folders that are told by name; the rest are counted */ };

struct cp_watcher {
    cp_services *svc;
    cp_watcher *prev, *next;
    char id[48];
    cp_buf key; /* equal for equal requests */
    char *path;
    bool recursive;
    unsigned events;
    watch_globs include, exclude;
    bool exclude_deep; /* an exclude pattern spans more than one name */

    /* The walk's while `walking`, else the loop's. */
    int fd;
    int parent_wd;   /* of the folder that holds the root, or -1 */
    char *root_name; /* the root's name there */
    char *only;      /* the root is a file: its name in the folder that is watched */
    uint64_t dev, ino;
    watch_tree tree;
    cp_buf found;                   /* paths of entries of new folders: 'd' or 'f', the path, NUL */
    size_t nfound, named, found_at; /* all; those that have been told; where the next one stands */

    /* What a walk is to do. */
    watch_dir *walk_at; /* NULL: begin at the root */
    cp_buf walk_name;   /* the new folder in it; "": walk_at itself again */
    bool report;
    cp_err walk_err; /* code CP_OK: none */
    cp_work work;
    _Atomic bool walk_stop; /* the watcher is over: what is left of the walk is for nobody */

    bool walking, ready;
    bool over;     /* out of the list; freed as soon as no walk and nobody up the stack has it */
    unsigned hold; /* frames up the stack that will look at it again: callbacks may end it */
    cp_io io;
    size_t in_n, in_at; /* of `in` */
    uint64_t read;      /* bytes that were ever read into it */
    unsigned steps;     /* taken in this round of the loop: what is found and read is told in rounds */
    cp_deferred more;
    watch_dir *moving; /* a folder that has left its name; the next event says where it went */
    uint32_t moving_cookie;
    cp_staged staged; /* a temporary file of ours has left its name, with this cookie */
    uint32_t staged_cookie;
    uint64_t count;
    cp_link subs, untold; /* subscribers, and those that have not heard that it is ready */
    cp_link checks;       /* in the order they began in, and so of what they wait for */
    bool retained;
    cp_timer expiry;
    char in[WATCH_READ] __attribute__((aligned(__alignof__(struct inotify_event))));
};

struct cp_watches {
    cp_watcher *first;
    uint64_t serial;
};

/* watch.c */
void watch_unhold(cp_watcher *w); /* the end of a `hold`: w may be gone afterwards */
/* The absolute path of a name in a watched folder; "": of the folder. */
void watch_path(const cp_watcher *w, const watch_dir *d, cp_str name, cp_buf *out);
bool watch_matches(const watch_globs *g, cp_str path);
/* The watcher is over: its subscribers and checks are told why. w is gone, or will be when its walk ends. */
void watch_end(cp_watcher *w, bool failed, const cp_err *why);
void watch_started(cp_watcher *w);              /* tells who waits for it */
void watch_answer(cp_watcher *w, bool drained); /* checks that have seen all they must */

/* watch_events.c */
void watch_pump(cp_watcher *w); /* reads what the kernel has; w may be gone afterwards */
void watch_emit(cp_watcher *w, cp_watch_type type, cp_str path, bool is_dir);

/* watch_queue.c */
void watch_sub_push(cp_watch_sub *s, const char *watch_id, cp_watch_type type, cp_str path, bool is_dir);
void watch_sub_end(cp_watch_sub *s, bool failed, const char *text);
void watch_sub_fini(cp_watch_sub *s);

/* watch_walk.c */
void watch_walk(cp_watcher *w, watch_dir *at, cp_str name, bool report); /* then `walking`, until watch_walked */
void watch_walk_stop(cp_watcher *w); /* one that has not begun never will; what has ends soon, then watch_walked */
void watch_walked(cp_watcher *w);    /* watch_events.c; on the loop */
