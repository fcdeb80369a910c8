#pragma once
/* Shared by files*.c. */
#include <dirent.h>

#include "base/fd.h"
#include "services/files.h"

struct cp_files {
    int root;         /* O_PATH, or -1: not confined */
    char *root_path;  /* canonical; NULL: not confined */
    char *root_alias; /* as it was configured */
    cp_temps *temps;  /* NULL: temporaries are not recorded */
};

/* openat2 beneath the root, or plain openat. The fd, or -1 with errno (EXDEV: outside). Never gets a controlling
 * terminal. */
int cp_where_open(const cp_where *w, const char *path, int flags, mode_t mode);
/* The folder part of the path, opened O_PATH, created if missing with `parents`. -1 with errno. */
int cp_where_parent(const cp_where *w, const cp_split *split, bool parents);
/* The folder at path, created with its parents where missing. O_PATH fd or -1 with errno. */
int cp_where_mkdirs(const cp_where *w, const char *path);

/* The bits of a mode that the kernel leaves to a file created in the folder: those of its default ACL, or else of the
 * umask. 0 or -1 with errno. */
int cp_dir_mode(int dir, mode_t *allowed);

/* The one mapping of errno to codes. "EACCES: permission denied, open '/path'", as libuv says it. */
int cp_file_fail(cp_err *err, int sys, const char *call, const char *path);

/* Whole trees below (dir, name); 0 or -1 with errno. Links are never followed. */
int cp_tree_remove(int dir, const char *name);
/* The same for a tree of our own, whose folders may have got modes that keep us out; and for all that is in a folder
 * (a descriptor, which may be O_PATH). */
int cp_tree_discard(int dir, const char *name);
int cp_tree_empty(int folder);
typedef struct cp_tree_copy {
    bool preserve;  /* owner, times and all mode bits: a move */
    bool overwrite; /* replace files, merge folders */
    cp_temps *temps;
    const cp_temp *top; /* the copy itself is a temporary: told when it has been made. NULL: it is none */
    uint64_t bytes;
} cp_tree_copy;
int cp_tree_copy_to(cp_tree_copy *c, int from, const char *from_name, int to, const char *to_name);
/* Is the folder dir inside the folder that st describes (or that folder)? 1, 0, -1 with errno. */
int cp_tree_inside(int dir, const struct stat *st);

/* Temporary name in a folder: ".conflux-<16 hex>.tmp" (".mod" in its place: to replace a file). Not shown to those who
 * watch the folder. */
void cp_temp_name(char out[40]);

typedef DIR *cp_dirp;
static inline void cp_autodir_(DIR **d) {
    if (*d) closedir(*d);
}
#define cp_autodir __attribute__((cleanup(cp_autodir_)))
/* Opens the folder (dir, name) for reading, not through a link; NULL with errno. */
DIR *cp_dir_open(int dir, const char *name);
/* Next entry but "." and ".."; NULL at the end. */
struct dirent *cp_dir_next(DIR *d);
