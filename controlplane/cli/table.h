#pragma once
/* The commands of conflux-cli and their options: schema/commands.def as data. */
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum cli_option_id {
#define OPTION(id, long_name, short_name, kind, arg, help) CLI_OPT_##id,
#include "schema/commands.def"
#undef OPTION
    CLI_NOPTIONS
} cli_option_id;

typedef enum cli_command_id {
#define COMMAND(id, order, least, most, operands, options, summary, text) CLI_CMD_##id,
#include "schema/commands.def"
#undef COMMAND
    CLI_NCOMMANDS
} cli_command_id;

typedef enum cli_kind { CLI_FLAG, CLI_VALUE, CLI_LIST } cli_kind;

typedef struct cli_option {
    const char *name;
    char letter; /* 0: none */
    cli_kind kind;
    const char *arg, *help;
} cli_option;

enum { CLI_MANY = INT_MAX };

typedef struct cli_command {
    const char *name;
    bool leading; /* options end at the first operand */
    int least, most;
    const char *operands;
    uint64_t options; /* bit i: cli_options[i] */
    const char *summary, *text;
} cli_command;

extern const cli_option cli_options[CLI_NOPTIONS];
extern const cli_command cli_commands[CLI_NCOMMANDS];

const cli_command *cli_command_find(const char *name); /* NULL: there is none */
/* The one that this command has; NULL: it has none of this name. */
const cli_option *cli_option_find(const cli_command *cmd, const char *name, size_t n);
const cli_option *cli_option_letter(const cli_command *cmd, char letter);
static inline bool cli_has(const cli_command *cmd, size_t i) { return cmd->options >> i & 1; }
