#include "cli/docs/docs.h"

/* Needs nothing of the bash-completion package. */
static const char head[] =
    "# bash completion for conflux; made of its table of commands\n"
    "_conflux() {\n"
    "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} cmd=${COMP_WORDS[1]} "
    "options= words= operands= files=\n"
    "  COMPREPLY=()\n";

static void put_names(cp_buf *out) {
    for (size_t i = 0; i < docs_nprograms; i++) cp_buf_addf(out, "%s%s", i ? " " : "", docs_programs[i].name);
}

static void put_options(cp_buf *out, const cli_command *cmd) {
    for (size_t i = 0; i < CLI_NOPTIONS; i++) {
        if (!cli_has(cmd, i)) continue;
        cp_buf_addf(out, " --%s", cli_options[i].name);
        if (cli_options[i].letter) cp_buf_addf(out, " -%c", cli_options[i].letter);
    }
}

/* What may come behind an option that takes a value. */
static void put_value(cp_buf *out, const char *arg) {
    if (strchr(arg, '|')) {
        cp_buf_addz(out, "words=\"");
        for (; *arg; arg++) cp_buf_addc(out, *arg == '|' ? ' ' : *arg);
        cp_buf_addz(out, "\"");
    } else if (strcmp(arg, "FILE") == 0 || strcmp(arg, "DIR") == 0) {
        cp_buf_addz(out, "files=1");
    } else {
        cp_buf_addz(out, "return");
    }
    cp_buf_addz(out, " ;;\n");
}

static void put_values(cp_buf *out) {
    for (size_t c = 0; c < CLI_NCOMMANDS; c++) {
        for (size_t i = 0; i < CLI_NOPTIONS; i++) {
            const cli_option *o = &cli_options[i];
            if (!cli_has(&cli_commands[c], i) || o->kind == CLI_FLAG) continue;
            cp_buf_addf(out, "    '%s --%s'", cli_commands[c].name, o->name);
            if (o->letter) cp_buf_addf(out, "|'%s -%c'", cli_commands[c].name, o->letter);
            cp_buf_addz(out, ") ");
            put_value(out, o->arg);
        }
    }
    for (size_t i = 0; i < docs_nserve_options; i++) {
        if (!*docs_serve_options[i].arg) continue;
        cp_buf_addf(out, "    'serve --%s') ", docs_serve_options[i].flag);
        put_value(out, docs_serve_options[i].arg);
    }
}

static void put_commands(cp_buf *out) {
    for (size_t c = 0; c < CLI_NCOMMANDS; c++) {
        cp_buf_addf(out, "    %s) options='", cli_commands[c].name);
        put_options(out, &cli_commands[c]);
        cp_buf_addz(out, "' ;;\n");
    }
    cp_buf_addz(out, "    serve) options=' --help");
    for (size_t i = 0; i < docs_nserve_options; i++) cp_buf_addf(out, " --%s", docs_serve_options[i].flag);
    cp_buf_addz(out, "' ;;\n");
}

void docs_bash(cp_buf *out) {
    cp_buf_addz(out, head);
    cp_buf_addz(out, "  if [ \"$COMP_CWORD\" -eq 1 ]; then words='");
    put_names(out);
    cp_buf_addz(out, "'; cmd=; fi\n  case \"$cmd $prev\" in\n");
    put_values(out);
    cp_buf_addz(out, "    'help help') words='");
    put_names(out);
    cp_buf_addz(out, "' ;;\n    'sessions sessions') operands='list create delete' ;;\n"
                     "    'cp '*) files=1 ;;\n  esac\n  case $cmd in\n");
    put_commands(out);
    cp_buf_addz(out, "  esac\n"
                     "  if [ -n \"$words\" ]; then COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
                     "  elif [ \"${cur:0:1}\" = - ]; then COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
                     "  elif [ -n \"$operands\" ]; then COMPREPLY=($(compgen -W \"$operands\" -- \"$cur\"))\n"
                     "  elif [ -n \"$files\" ]; then compopt -o filenames 2>/dev/null; "
                     "mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
                     "  fi\n}\ncomplete -F _conflux conflux\n");
}
