#pragma once
/* Folders and files of ours that somebody else has touched: made again when they are gone, moved out of the way when
 * they are of no use. Any thread; blocks for a few system calls. Return -1 with errno set on failure. */
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/buf.h"

enum { CP_ASIDE_KEPT = 3 }; /* so many generations of a name are kept */

/* The folder at an absolute path, with all above it that is missing (0755). Something else in its place is moved aside;
 * one that lacks our own rights of the mode gets them. 1: it has been made; 0: it was there. */
int cp_folder_make(const char *path, mode_t mode);

/* Moves aside what stands at path if it is no plain file, which is a regular one, by no link, and has no other name: to
 * open that might wait, and to write to it would change what is not ours. Says so in the log. 1: moved; 0: a plain
 * file, or nothing; -1. */
int cp_file_clear(const char *path);
bool cp_is_plain(const struct stat *st); /* as lstat or fstat gives it */

/* Renames path, and what is named path plus one of the suffixes (NULL-terminated, or NULL), to
 * <path>.damaged-<time>[suffix]. What is not there is passed over. Of the generations before it the newest stay. *moved
 * (may be NULL) gets the new name of path, also where only suffixed ones were there; the owner frees. */
int cp_move_aside(const char *path, const char *const suffixes[], char **moved);
