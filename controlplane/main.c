/* conflux: the program that is started. `conflux serve` is the keeper; it starts conflux-server. libc only. */
#include "cli.h"

#include <stdio.h>
#include <string.h>

static int help(char **argv);

static int version(char **argv) {
    (void)argv;
    puts("conflux " CONFLUX_VERSION);
    return 0;
}

static const struct command {
    const char *name, *help;
    int (*run)(char **argv); /* argv behind the name, NULL-terminated */
} commands[] = {
    {"serve", "run the control plane here (conflux serve --help tells its options)", cp_cli_serve},
    {"version", "print the version", version},
    {"help", "print this", help},
};

static void usage(FILE *out) {
    fputs("usage: conflux COMMAND [options]\n\n", out);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
}

static int help(char **argv) {
    (void)argv;
    usage(stdout);
    return 0;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "--version") == 0) name = "version";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) name = "help";
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(name, commands[i].name) == 0) return commands[i].run(argv + 2);
    if (*name) fprintf(stderr, "conflux: unknown command \"%s\"\n", name);
    usage(stderr);
    return 2;
}
