#pragma once
/* The way from a folder down into its tree, as deep as the tree is: heap for each level, descriptors for the first and
 * the last few only. A folder between them is opened again when it is come back to: by "..", or name by name from the
 * first one, never through a link, and it counts only if it is the same one (device and inode). So nothing that is
 * exchanged meanwhile leads to where the way has not been. Blocking; one thread at a time. */
#include <dirent.h>

#include "services/files.h"

enum { CP_WAY_OPEN = 8 /* descriptors at the lower end; beside the first one's */ };

typedef struct cp_way_level {
    int fd; /* -1: not open now */
    DIR *d; /* NULL: not being read; else fd is its */
    dev_t dev;
    ino_t ino;
    size_t path; /* how much of cp_way.path is its own, with the slash at the end */
    long before; /* the user's: telldir(3) before the entry read last */
    bool mark;   /* the user's */
} cp_way_level;

/* Zero-initialise. */
typedef struct cp_way {
    int flags; /* O_PATH: folders are not to be read (the caller opens them so, too) */
    cp_way_level *v;
    size_t n, cap;
    cp_buf path; /* below the first folder: the last one's with a slash, then a name in it (cp_way_name) */
} cp_way;
#define cp_autoway __attribute__((cleanup(cp_way_end)))

static inline cp_way_level *cp_way_last(const cp_way *w) { return &w->v[w->n - 1]; }
/* Puts the name of an entry of the last folder into the path. */
void cp_way_name(cp_way *w, const char *name);
/* One level down: fd (taken, also on failure) is the folder that the path names, or the first of all. 0 or
 * -1 with errno. */
int cp_way_down(cp_way *w, int fd);
/* One level up, but not above the first; the path then names the folder that was left. 0: the last folder is open; -1
 * with errno: it is there no more, and its fd -1. */
int cp_way_up(cp_way *w);
void cp_way_end(cp_way *w); /* closes and frees all */
