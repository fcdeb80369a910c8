#pragma once
/* What people read. Texts that come from outside (names, messages of the server) must not be able to drive a terminal.
 */
#include "base/buf.h"

/* Appends s with control characters (C0, DEL, C1), marks that turn the direction of writing, and what is no UTF-8 as
 * \n, \t, \xNN or \u{NNNN}, and a backslash doubled. */
void cli_clean(cp_buf *out, cp_str s);
/* JSON text, which may hold DEL, C1 and directions as they are: those become \uNNNN, and the value stays the same. */
void cli_clean_json(cp_buf *out, cp_str json);

/* "conflux: …" on stderr, cleaned. Returns 125, for a `return`. */
int cli_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The same without a verdict. */
void cli_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* "1.5 MiB" */
void cli_bytes(char out[24], uint64_t n);

/* Rows whose cells stand under each other. Cells are cleaned; the last column is not padded. */
typedef struct cli_table {
    size_t ncols, nrows;
    char **cells;
} cli_table;
void cli_table_row(cli_table *t, const char *const cells[], size_t n); /* each row has as many as the first */
void cli_table_put(cli_table *t, size_t width, cp_buf *out); /* width 0: lines are not cut. Empties the table */
