#include "cli/table.h"

#include <string.h>

const cli_option cli_options[CLI_NOPTIONS] = {
#define OPTION(id, long_name, short_name, kind, arg, help) {long_name, short_name, CLI_##kind, arg, help},
#include "schema/commands.def"
#undef OPTION
};

#define OPT(id) (UINT64_C(1) << CLI_OPT_##id)
#define COMMON                                                                                                         \
    (OPT(url) | OPT(token) | OPT(token_file) | OPT(cacert) | OPT(insecure) | OPT(mode) | OPT(connect_timeout) |        \
     OPT(json) | OPT(verbose) | OPT(help))
#define ORDER_MIXED   false
#define ORDER_LEADING true
#define MANY          CLI_MANY

const cli_command cli_commands[CLI_NCOMMANDS] = {
#define COMMAND(id, order, least, most, operands, options, summary, text)                                              \
    {#id, ORDER_##order, least, most, operands, (options) | COMMON, summary, text},
#include "schema/commands.def"
#undef COMMAND
};

_Static_assert(CLI_NOPTIONS <= 64, "a command's options are the bits of one word");

const cli_command *cli_command_find(const char *name) {
    for (size_t i = 0; i < CLI_NCOMMANDS; i++)
        if (strcmp(cli_commands[i].name, name) == 0) return &cli_commands[i];
    return NULL;
}

const cli_option *cli_option_find(const cli_command *cmd, const char *name, size_t n) {
    for (size_t i = 0; i < CLI_NOPTIONS; i++)
        if (cli_has(cmd, i) && strlen(cli_options[i].name) == n && memcmp(cli_options[i].name, name, n) == 0)
            return &cli_options[i];
    return NULL;
}

const cli_option *cli_option_letter(const cli_command *cmd, char letter) {
    for (size_t i = 0; i < CLI_NOPTIONS; i++)
        if (cli_has(cmd, i) && cli_options[i].letter == letter) return &cli_options[i];
    return NULL;
}
