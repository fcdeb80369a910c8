#pragma once
/* What exec and run have in common: from arguments to the body of a request. */
#include "cli/cli.h"

/* CLI_OK, or an exit status with everything said: what to run, and where. The object is left open; ids, input and
 * encoding are the caller's. */
int cli_command_body(const cli *c, cp_jw *w, cp_buf *out);
/* "env": {…} from --env, if there is any. */
int cli_command_env(const cli *c, cp_jw *w);
/* --id, or one of our own making. */
void cli_choose_id(const cli *c, char out[132]);
