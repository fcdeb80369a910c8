#pragma once
/* The parts of cp. Each is CLI_OK or an exit status, with everything said. */
#include <sys/stat.h>

#include "cli/transfer.h"
#include "services/files.h"

/* One local file to this remote path. */
int cli_copy_file_up(cli *c, int fd, const struct stat *st, const char *shown, const char *remote, cli_progress *p);
/* The content of a local folder into a remote one, which is made where it is missing. */
int cli_copy_folder_up(cli *c, const char *local, const char *remote);
int cli_copy_file_down(cli *c, const char *remote, const char *local);
int cli_copy_folder_down(cli *c, const char *remote, const char *local);
/* Where a local folder is. What it belongs to is the caller's to close; NULL: it has been said why. */
cp_files *cli_copy_where(const char *local, cp_where *w);
