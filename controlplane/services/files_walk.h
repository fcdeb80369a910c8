#pragma once
/* A walk through a tree that can rest between any two entries: what streams a search does a little at a time. Blocking;
 * one thread at a time, not always the same. */
#include "services/files.h"

typedef struct cp_walk cp_walk;

enum { CP_WALK_DEPTH = 128 }; /* one descriptor each */

typedef struct cp_walk_entry {
    int dir;              /* its folder; borrowed until the next call */
    const char *name;     /* in dir */
    const char *relative; /* below the folder that is walked */
    struct stat st;       /* of the link itself */
} cp_walk_entry;

/* Folders are entered after they have been told, in the order of the folder. Links are not followed, so there are no
 * loops; kernel file systems (proc, sysfs and the like) below the root are not entered: reading there may wait, or do
 * things. `hidden`: also names that begin with a dot, else neither they nor what is in them; never our own temporary
 * files. FILE_NOT_FOUND, NOT_DIRECTORY. */
cp_walk *cp_walk_open(const cp_where *w, bool hidden, cp_err *err);
bool cp_walk_next(cp_walk *w, cp_walk_entry *e); /* false: the end */
uint64_t cp_walk_skipped(const cp_walk *w);      /* folders that could not be read, or are deeper than CP_WALK_DEPTH */
void cp_walk_close(cp_walk *w);                  /* NULL is fine */
