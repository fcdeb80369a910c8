#pragma once
/* Replacing text in a file. */
#include "services/files.h"

enum { CP_EDITS_MAX = 256, CP_EDIT_NO_MEMORY = -2 };

typedef struct cp_edit {
    cp_str old; /* not empty */
    cp_str with;
    bool all; /* else it must be there exactly once */
} cp_edit;

typedef struct cp_edit_report {
    size_t edit;      /* the one that failed */
    uint64_t matches; /* of it: 0, or 2 for "more than one" */
    uint64_t replaced, size;
} cp_edit_report;

/* Appends the edited text; how often `old` was there: 0 or, unless `all`, 2 (more than once), and then nothing is
 * appended. -1: the result would be larger than max; CP_EDIT_NO_MEMORY. Pure. */
int64_t cp_edit_text(cp_str text, const cp_edit *e, size_t max, cp_buf *out);

/* One after another, each on what the one before has left; all or none. Written as cp_file_write does, atomically where
 * that keeps what the file is. EDIT_NO_MATCH and EDIT_AMBIGUOUS (report->edit, err->field "edits[i].old");
 * FILE_TOO_LARGE over CP_READ_MAX, before or after; RESOURCE_BUSY when somebody else has changed it meanwhile. */
int cp_file_edit(const cp_where *w, const cp_edit *edits, size_t n, cp_edit_report *report, cp_err *err);
