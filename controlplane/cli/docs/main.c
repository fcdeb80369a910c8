/* conflux-docs man | bash | zsh: run by the build, not installed. */
#include "cli/docs/docs.h"

#include <stdio.h>

const docs_program docs_programs[] = {
#define PROGRAM(name, summary)                                            {#name, summary},
#define COMMAND(id, order, least, most, operands, options, summary, text) {#id, summary},
#include "schema/commands.def"
#undef COMMAND
#undef PROGRAM
};
const size_t docs_nprograms = CP_COUNT(docs_programs);

const docs_serve_option docs_serve_options[] = {
    {"config", "FILE", "read options from this file (flag = value)"},
#define X(field, kind, flag, arg, def, min, max, help) {flag, arg, help},
#include "schema/options.def"
#undef X
};
const size_t docs_nserve_options = CP_COUNT(docs_serve_options);

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*make)(cp_buf *out);
    } kinds[] = {{"man", docs_man}, {"bash", docs_bash}, {"zsh", docs_zsh}};
    cp_autobuf cp_buf out = {0};
    for (size_t i = 0; argc == 2 && i < CP_COUNT(kinds); i++) {
        if (strcmp(argv[1], kinds[i].name) != 0) continue;
        kinds[i].make(&out);
        return fwrite(out.p, 1, out.n, stdout) == out.n && fflush(stdout) == 0 ? 0 : 1;
    }
    return fputs("usage: conflux-docs man | bash | zsh\n", stderr), 2;
}
