#pragma once
/* The one walk through a tree, of any depth, that can rest between any two entries: heap for each level, a few
 * descriptors in all (files_way.h), links never followed. Blocking; one thread at a time, not always the same. */
#include "services/files.h"

typedef struct cp_walk cp_walk;

typedef enum {
    /* What is to be looked at or packed: kernel file systems (proc, sysfs and the like) below the root are not entered,
     * since reading there may wait, or do things; our own temporary files are left out. */
    CP_WALK_VISIBLE, /* no names that begin with a dot, nor what is in them */
    CP_WALK_HIDDEN,  /* these too */
    /* As find(1) walks: everything is told, and entered. */
    CP_WALK_FIND,
    /* What is to be changed, copied or removed: everything, and each folder once more when it is left. What cannot be
     * read or entered ends the walk. */
    CP_WALK_WHOLE,
} cp_walk_how;

/* The longest path below the root whose folder is entered; CP_WALK_WHOLE has no such limit. A path is told with each
 * entry, so what a walk says grows with the square of the depth. */
enum { CP_WALK_PATH_MAX = 4 * CP_PATH_MAX };

typedef struct cp_walk_entry {
    int dir;              /* its folder; borrowed until the next call */
    const char *name;     /* in dir */
    const char *relative; /* below the folder that is walked */
    struct stat st;       /* of the link itself */
    bool left;            /* a folder whose content has been told */
} cp_walk_entry;

/* Folders are entered after they have been told, in the order of the folder. FILE_NOT_FOUND, NOT_DIRECTORY. */
cp_walk *cp_walk_open(const cp_where *w, cp_walk_how how, cp_err *err);
cp_walk *cp_walk_at(int dir, const char *name);  /* CP_WALK_WHOLE; not through a link. NULL with errno */
bool cp_walk_next(cp_walk *w, cp_walk_entry *e); /* false: the end */
void cp_walk_pass(cp_walk *w);                   /* the folder told last is not to be entered, nor told again */
int cp_walk_failed(const cp_walk *w);       /* after the end of CP_WALK_WHOLE: 0, or the errno that it ended with */
uint64_t cp_walk_skipped(const cp_walk *w); /* folders that could not be read, or have too long a path */
void cp_walk_close(cp_walk *w);             /* NULL is fine */
static inline void cp_autowalk_(cp_walk **w) { cp_walk_close(*w); }
#define cp_autowalk __attribute__((cleanup(cp_autowalk_)))

/* Where a walk of an unchanged tree would go on after the entry told last, as text for the client; and a walk just
 * opened set to go on there: what is gone meanwhile is passed over. -1: the text is none of these. */
void cp_walk_mark(const cp_walk *w, cp_buf *out);
int cp_walk_seek(cp_walk *w, cp_str mark);
