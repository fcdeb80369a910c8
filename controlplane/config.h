#pragma once
/* Options: from the command line, CONFLUX_* variables and a file, by one table (schema/options.def). libc only, so that
 * the keeper can use it. Single-threaded: called before any thread exists. */
#include <stdio.h>

#include "base/buf.h"
#include "base/err.h"
#include "schema/config.h"

typedef enum { CP_RUN_SERVE, CP_RUN_HELP } cp_run;

/* Resolves the options of `conflux serve`. argv begins behind the word "serve". Precedence: flag, environment, file
 * (--config FILE, CONFLUX_CONFIG, else /etc/conflux/conflux.conf where it exists), default. *cmd is what follows "--",
 * NULL if nothing. CP_RUN_HELP: --help was asked for. The token is read, hashed and wiped (from the environment too).
 * -1: the message names the option and where it came from. cfg must be zeroed; free it in every case. */
int cp_config_load(cp_config *cfg, char **argv, char ***cmd, cp_run *run, cp_err *err);
/* What a configuration file of this text alone, with defaults for the rest, would set; no token is read. path: for
 * messages. Pure. As for the other, cfg must be zeroed and freed. */
int cp_config_text(cp_config *cfg, cp_str text, const char *path, cp_err *err);
/* Checks what belongs together, fills in the state and workspace folders and creates them. */
int cp_config_resolve(cp_config *cfg, cp_err *err);
/* The log of this process, on stderr, as the options say. */
void cp_config_start_log(const cp_config *cfg);
void cp_config_free(cp_config *cfg);
void cp_config_help(FILE *out); /* the options, as `conflux serve --help` prints them */

/* As text from the keeper to the server: one "field=value" line each, \ and newline escaped. */
void cp_config_encode(const cp_config *cfg, cp_buf *out);
int cp_config_decode(cp_config *cfg, cp_str text, cp_err *err);
