#pragma once
/* One function per command of the conflux program: argv from the command's name on; returns the exit status. */
#include <limits.h>

#include "base/err.h"

int cp_cli_serve(char **argv);
int cp_cli_client(char **argv); /* every command that talks to a server: becomes conflux-cli */

/* A program of ours, which lies beside this one (a build tree) or in libexec (installed); the variable, where it is
 * set, names another. */
int cp_find_program(const char *name, const char *variable, char out[PATH_MAX], cp_err *err);
