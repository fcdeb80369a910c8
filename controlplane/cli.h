#pragma once
/* One function per command of the conflux program: argv behind the command's name; returns the exit status. */

int cp_cli_serve(char **argv);
