/* conflux serve: resolve the options, then be the keeper. */
#include "cli.h"

#include "config.h"
#include "keeper/keeper.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char listen_host[256];

static void announce(uint16_t port) {
    bool bare = strchr(listen_host, ':') && listen_host[0] != '['; /* IPv6: RFC 3986 section 3.2.2 */
    printf("conflux: listening on http://%s%s%s:%u\n", bare ? "[" : "", listen_host, bare ? "]" : "", port);
    fflush(stdout);
}

static void serve_help(void) {
    puts("usage: conflux serve [options] [-- CMD ARGS...]\n\n"
         "Serves the control plane. CMD, if given, is run and supervised as the container's main program: signals are\n"
         "forwarded to it; when it fails, everything ends with its exit code; when it ends with 0, the server stays.\n"
         "Each option may also come from the environment (--log-level: CONFLUX_LOG_LEVEL) or from a file. The token "
         "may\n"
         "come from CONFLUX_TOKEN; it is hashed and wiped at once.\n");
    cp_config_help(stdout);
}

int cp_cli_serve(char **argv) {
    cp_config cfg = {0};
    cp_err err = {0};
    char **cmd;
    cp_run run;
    char server[PATH_MAX];
    cp_buf text = {0};
    int status = 2;
    if (cp_config_load(&cfg, argv + 1, &cmd, &run, &err) < 0) {
        fprintf(stderr, "conflux: %s\n", err.msg);
    } else if (run == CP_RUN_HELP) {
        serve_help();
        status = 0;
    } else if (cp_config_resolve(&cfg, &err) < 0 ||
               cp_find_program("conflux-server", "CONFLUX_SERVER", server, &err) < 0) {
        fprintf(stderr, "conflux: %s\n", err.msg);
        status = 1;
    } else {
        snprintf(listen_host, sizeof listen_host, "%s", cfg.host);
        cp_config_encode(&cfg, &text);
        cp_config_start_log(&cfg);
        cp_keeper_opts opts = {.server_path = server,
                               .config = cp_buf_str(&text),
                               .cmd = (const char *const *)cmd,
                               .state_dir = cfg.state,
                               .announce = announce,
                               .spawn_limit_ms = (unsigned)cfg.spawn_timeout};
        status = cp_keeper_main(&opts);
    }
    cp_buf_free(&text);
    cp_config_free(&cfg);
    return status;
}
