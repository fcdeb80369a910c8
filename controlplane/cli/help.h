#pragma once
#include "base/buf.h"
#include "cli/table.h"

/* `conflux COMMAND --help`. */
void cli_help(const cli_command *cmd, cp_buf *out);
/* "-s, --session ID" */
void cli_option_head(const cli_option *o, cp_buf *out);
