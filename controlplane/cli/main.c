/* conflux-cli: the commands of conflux that talk to a server. `conflux` runs it (controlplane/cli_client.c). */
#include "cli/cli.h"
#include "cli/help.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static cli_run *const runs[CLI_NCOMMANDS] = {
#define COMMAND(id, order, least, most, operands, options, summary, text) cli_cmd_##id,
#include "schema/commands.def"
#undef COMMAND
};

static int print_help(const cli_command *cmd) {
    cp_autobuf cp_buf text = {0};
    cli_help(cmd, &text);
    return cli_out(&text);
}

static int run(const cli_command *cmd, char **argv) {
    cp_err err = {0};
    cli c = {0};
    int status = CLI_FAILED;
    bool ok = cli_args_read(&c.args, cmd, argv, &err) == 0;
    if (ok && cli_flag(&c.args, CLI_OPT_help)) {
        status = print_help(cmd);
    } else if (cli_settings_read(&c.set, &c.args, ok ? &err : &(cp_err){0}) < 0 || !ok) {
        cli_fail("%s", err.msg);
    } else {
        c.json = cli_flag(&c.args, CLI_OPT_json);
        if (c.set.token_exposed && cmd != &cli_commands[CLI_CMD_doctor])
            cli_warn("the token file %s may be read by others (chmod 600)", c.set.token_path);
        status = runs[cmd - cli_commands](&c);
    }
    conflux_client_free(c.client);
    cli_settings_free(&c.set);
    cli_args_free(&c.args);
    return status;
}

/* Closed ones would be given to our sockets. Those in their place fail as closed ones do: they are open the other way.
 */
static void open_missing(void) {
    static const int modes[] = {O_WRONLY, O_RDONLY, O_RDONLY};
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", modes[fd]) < 0) _exit(CLI_FAILED);
}

int main(int argc, char **argv) {
    open_missing();
    const cli_command *cmd = argc > 1 ? cli_command_find(argv[1]) : NULL;
    if (cmd) return run(cmd, argv + 2);
    return cli_fail("%s is run by conflux, with one of its commands (conflux help)", argv[0]);
}
