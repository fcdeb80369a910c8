#pragma once
/* Where the server is and how it is reached: flags, then environment, then $XDG_CONFIG_HOME/conflux/config, then
 * defaults. */
#include "base/buf.h"
#include "cli/args.h"

typedef struct cli_settings {
    char *url, *token, *token_file, *cacert, *mode; /* url and mode are always there */
    bool insecure;
    uint64_t connect_timeout_ms;
    char *token_from;   /* where the token came from, for people; NULL: there is none */
    char *token_path;   /* the file it was read from; NULL: none */
    char *config_path;  /* the file that is looked for; NULL: no home folder */
    bool config_exists; /* it was there */
    bool token_exposed; /* the file may be read by others */
} cli_settings;

#define CLI_DEFAULT_URL "http://127.0.0.1:3000"

/* Refuses a configuration file that holds a token and may be read by others. Tokens given as arguments or in the
 * environment are wiped there. */
int cli_settings_read(cli_settings *s, cli_args *a, cp_err *err);
void cli_settings_free(cli_settings *s);

/* One line of the file into s, unless a source before it has set that already. Pure. */
int cli_settings_line(cli_settings *s, cp_str line, cp_err *err);
