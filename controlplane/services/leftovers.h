#pragma once
/* What servers that were killed have left on disk beside the targets of clients and in the state folder: removed at
 * the start, on the io pool. Sessions and executions look after their own when they open, uploads in pieces are
 * resumed or grow old (upload.h). */
#include "services/services.h"

typedef struct cp_leftovers cp_leftovers;

/* Begins; from now on the temporaries of s->files are recorded. Loop; what s points to outlives the work. */
cp_leftovers *cp_leftovers_open(cp_services *s);
/* No file operation may be running any more, nothing but its own work. NULL is fine. Loop. */
void cp_leftovers_close(cp_leftovers *l);
