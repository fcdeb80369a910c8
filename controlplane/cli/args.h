#pragma once
/* A command's arguments, taken apart. Pure. */
#include "base/err.h"
#include "cli/table.h"

typedef struct cli_args {
    const cli_command *cmd;
    const char *value[CLI_NOPTIONS]; /* NULL: not given; a flag: "" */
    const char **env;                /* of --env, the one option that may be repeated */
    size_t nenv;
    char **operands; /* NULL-terminated */
    size_t noperands;
} cli_args;

/* argv: behind the command's name, NULL-terminated. The strings stay the caller's; free with cli_args_free. With --help
 * the operands are not counted. */
int cli_args_read(cli_args *a, const cli_command *cmd, char **argv, cp_err *err);
void cli_args_free(cli_args *a);

static inline bool cli_flag(const cli_args *a, cli_option_id id) { return a->value[id] != NULL; }

/* Milliseconds from a number with ms, s, m, h or nothing (seconds) behind it: 1.5, 500ms, 2m. -1: what names it in the
 * message. */
int cli_duration(const char *text, const char *what, uint64_t *ms, cp_err *err);
/* The same of an option; *ms keeps its value when it was not given. */
int cli_duration_of(const cli_args *a, cli_option_id id, uint64_t *ms, cp_err *err);
