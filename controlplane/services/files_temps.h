#pragma once
/* What the server has made beside a target and has not renamed yet is recorded in the state folder, so that the next
 * start finds and removes what a killed server has left. See files_temps.c for the design. Blocking (a few system
 * calls that stay in the page cache, about two microseconds in all); any thread but where it says otherwise.
 *
 * Not recorded, and so left behind should the server be killed at that moment, is a temporary when the record cannot
 * be written (the state folder's disk is full, there is no /proc). The work itself goes on: one temporary a thread at
 * most. CP_TEMPS_MAX is more than there can be threads (--http-workers, --io-threads). */
#include <stdbool.h>
#include <stddef.h>

enum { CP_TEMPS_MAX = 1152 };

typedef struct cp_temps cp_temps;
/* Touches no disk: the record is made when it is first needed. state_dir is borrowed. */
cp_temps *cp_temps_new(const char *state_dir);
/* The record goes too, unless something is still under way: then the next start looks after it. NULL is fine. */
void cp_temps_free(cp_temps *t);

/* One temporary: zero-initialised, nothing. */
typedef struct cp_temp {
    cp_temps *in;
    unsigned slot;
} cp_temp;
/* Before (dir, name) is made. t NULL: nothing is recorded. Leaves errno alone, as the other two do. */
void cp_temp_begin(cp_temp *p, cp_temps *t, int dir, const char *name);
/* When it has been made, before anything is put in: from now on it is known by more than its name. */
void cp_temp_made(const cp_temp *p, int dir, const char *name);
/* It has been renamed, or removed. Nothing without a begin. */
void cp_temp_end(cp_temp *p);
#define cp_autotemp __attribute__((cleanup(cp_temp_end)))

typedef struct cp_temps_swept {
    unsigned removed;
    unsigned failed; /* still there; the next start tries again */
} cp_temps_swept;
/* Removes what servers that are dead have recorded in this state folder. As the user of --child-user what was made as
 * that user, else as ourselves. Each failure is logged. */
void cp_temps_sweep(const char *state_dir, cp_temps_swept *out);
