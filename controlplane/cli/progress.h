#pragma once
/* A line on a terminal (stderr) that tells how far a copy is. */
#include "base/buf.h"

typedef struct cli_progress {
    bool on;
    char name[256];
    uint64_t done, total; /* total 0: not known */
    uint64_t began_ms, shown_ms;
} cli_progress;

void cli_progress_begin(cli_progress *p, bool quiet, const char *name, uint64_t total);
void cli_progress_add(cli_progress *p, uint64_t n);
void cli_progress_end(cli_progress *p); /* the line goes */
