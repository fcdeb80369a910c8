/* conflux: the program that is started. `conflux serve` is the keeper; it starts conflux-server. Other commands are
 * conflux-cli's. libc only. */
#include "cli.h"

#include <stdio.h>
#include <string.h>

static int help(char **argv);

static int version(char **argv) {
    (void)argv;
    puts("conflux " CONFLUX_VERSION);
    return 0;
}

#define serve cp_cli_serve
static const struct command {
    const char *name, *summary;
    int (*run)(char **argv); /* argv from the name on, NULL-terminated */
} commands[] = {
#define PROGRAM(name, text)                                              {#name, text, name},
#define COMMAND(name, order, least, most, operands, options, text, more) {#name, text, cp_cli_client},
#include "schema/commands.def"
#undef COMMAND
#undef PROGRAM
};
#undef serve

static const struct command *find(const char *name) {
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(name, commands[i].name) == 0) return &commands[i];
    return NULL;
}

static void usage(FILE *out) {
    fputs("usage: conflux COMMAND [options]\n\n", out);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fputs("\nconflux COMMAND --help tells a command's options. man conflux tells the rest.\n", out);
}

/* `conflux help COMMAND` is `conflux COMMAND --help`. */
static int help(char **argv) {
    static char flag[] = "--help";
    const struct command *c = argv[1] ? find(argv[1]) : NULL;
    if (c && c->run != help && c->run != version) {
        argv[0] = argv[-1]; /* what stands before the name is the program's */
        return c->run((char *[]){argv[0], argv[1], flag, NULL} + 1);
    }
    if (argv[1] && !c) return fprintf(stderr, "conflux: unknown command \"%s\"\n", argv[1]), 2;
    usage(stdout);
    return 0;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "--version") == 0) name = "version";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) name = "help";
    const struct command *c = find(name);
    if (c) return c->run(argv + 1);
    if (*name) fprintf(stderr, "conflux: unknown command \"%s\"\n", name);
    usage(stderr);
    return 2;
}
