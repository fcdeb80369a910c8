#pragma once
/* Paths as text. Pure: nothing here asks the file system, and `..` is never folded away (with symbolic links in play
 * only the kernel knows what it means). */
#include <stdbool.h>

#include "base/buf.h"

enum { CP_PATH_MAX = 4096, CP_PATH_MAX_UTF16 = 4096, CP_NAME_MAX = 255 };

/* What is wrong with a path from outside (cloudflare-sandbox.md section 6.3), in the words for the client; NULL:
 * nothing. */
const char *cp_path_problem(cp_str path);
/* The path itself when it is absolute, else base + "/" + path; trailing slashes kept. -1 when it does not fit. */
int cp_path_join(const char *base, cp_str path, char out[CP_PATH_MAX]);

/* Folder and last name, for calls of the *at family. */
typedef struct cp_split {
    char dir[CP_PATH_MAX];      /* "/" or "." where the path names none */
    char name[CP_NAME_MAX + 1]; /* "." when the path ends in "/", "." or "..": dir is then the whole path */
    bool slash;                 /* it ended in a slash: only a folder will do */
} cp_split;
int cp_path_split(const char *path, cp_split *out); /* -1: the last name is too long */

/* The last name of a path, without trailing slashes; borrowed. "" for "/". */
cp_str cp_path_base(cp_str path);
/* What is left of path inside the folder root, without leading slashes ("." for root itself); NULL when the path is not
 * in it. Textual; root has no trailing slash unless it is "/". */
const char *cp_path_inside(const char *root, const char *path);
