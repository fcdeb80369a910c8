#pragma once
/* What an ID stands for: a process, or an execution. Ids of both are shown to users, and both have logs and an end. */
#include "cli/cli.h"

/* method on /api/process/ID<behind>, or on /api/execution/ID<behind> where there is no such process; again while the
 * connection is lost. CLI_OK, or an exit status with everything said. `behind`: a subpath, a query, or "". */
int cli_target(cli *c, const char *method, const char *id, const char *behind, cli_answer *a);

/* "/api/process/ID" or "/api/execution/ID", whichever there is. */
int cli_target_path(cli *c, const char *id, cp_buf *path);
