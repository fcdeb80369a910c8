#pragma once
/* What is made of schema/commands.def and schema/options.def when the program is built. */
#include "base/buf.h"
#include "cli/table.h"

void docs_man(cp_buf *out);  /* conflux(1), in the macros of man(7) */
void docs_bash(cp_buf *out); /* completions */
void docs_zsh(cp_buf *out);

typedef struct docs_program {
    const char *name, *summary;
} docs_program;
/* What conflux does itself, and what conflux-cli does: in the order of the table. */
extern const docs_program docs_programs[];
extern const size_t docs_nprograms;

typedef struct docs_serve_option {
    const char *flag, *arg, *help;
} docs_serve_option;
extern const docs_serve_option docs_serve_options[];
extern const size_t docs_nserve_options;
