#include "cli/docs/docs.h"

/* Text inside of single quotes, where _arguments and _describe look for these characters. */
static void put_text(cp_buf *out, const char *text) {
    for (; *text; text++) {
        if (*text == '\'') cp_buf_addz(out, "'\\''");
        else if (strchr(":[]\\", *text)) cp_buf_addf(out, "\\%c", *text);
        else cp_buf_addc(out, *text);
    }
}

static void put_value(cp_buf *out, const char *arg) {
    if (!*arg) return;
    cp_buf_addc(out, ':');
    put_text(out, strchr(arg, '|') ? "word" : arg);
    cp_buf_addc(out, ':');
    if (strcmp(arg, "FILE") == 0) cp_buf_addz(out, "_files");
    if (strcmp(arg, "DIR") == 0) cp_buf_addz(out, "_files -/");
    if (!strchr(arg, '|')) return;
    cp_buf_addc(out, '(');
    for (; *arg; arg++) cp_buf_addc(out, *arg == '|' ? ' ' : *arg);
    cp_buf_addc(out, ')');
}

/* One that may be repeated shuts nothing out. */
static void put_option(cp_buf *out, const cli_option *o) {
    bool list = o->kind == CLI_LIST;
    cp_buf_addz(out, " \\\n      '");
    if (list) cp_buf_addc(out, '*');
    if (o->letter && !list) cp_buf_addf(out, "(-%c --%s)", o->letter, o->name);
    if (o->letter) cp_buf_addf(out, "'{-%c,--%s}'[", o->letter, o->name);
    else cp_buf_addf(out, "--%s[", o->name);
    put_text(out, o->help);
    cp_buf_addc(out, ']');
    put_value(out, o->arg);
    cp_buf_addc(out, '\'');
}

static void put_operands(cp_buf *out, const cli_command *cmd) {
    if (strcmp(cmd->name, "cp") == 0) cp_buf_addz(out, " \\\n      '*:path:_files'");
    else if (strcmp(cmd->name, "sessions") == 0) cp_buf_addz(out, " \\\n      '1:what:(list create delete)'");
    else if (cmd->leading) cp_buf_addz(out, " \\\n      '*:::command: '");
    else if (cmd->most) cp_buf_addz(out, " \\\n      '*:operand: '");
}

static void put_command(cp_buf *out, const cli_command *cmd) {
    cp_buf_addf(out, "    %s) _arguments -s", cmd->name);
    for (size_t i = 0; i < CLI_NOPTIONS; i++)
        if (cli_has(cmd, i)) put_option(out, &cli_options[i]);
    put_operands(out, cmd);
    cp_buf_addz(out, " ;;\n");
}

static void put_serve(cp_buf *out) {
    cp_buf_addz(out, "    serve) _arguments");
    for (size_t i = 0; i < docs_nserve_options; i++) {
        cp_buf_addf(out, " \\\n      '--%s[", docs_serve_options[i].flag);
        put_text(out, docs_serve_options[i].help);
        cp_buf_addc(out, ']');
        put_value(out, docs_serve_options[i].arg);
        cp_buf_addc(out, '\'');
    }
    cp_buf_addz(out, " ;;\n");
}

void docs_zsh(cp_buf *out) {
    cp_buf_addz(out, "#compdef conflux\n# made of its table of commands\n_conflux() {\n  local -a commands=(");
    for (size_t i = 0; i < docs_nprograms; i++) {
        cp_buf_addf(out, "\n    '%s:", docs_programs[i].name);
        put_text(out, docs_programs[i].summary);
        cp_buf_addc(out, '\'');
    }
    cp_buf_addz(out, ")\n  if (( CURRENT == 2 )); then _describe command commands; return; fi\n"
                     "  shift words; (( CURRENT-- ))\n  case $words[1] in\n"
                     "    help) _describe command commands ;;\n");
    for (size_t i = 0; i < CLI_NCOMMANDS; i++) put_command(out, &cli_commands[i]);
    put_serve(out);
    cp_buf_addz(out, "  esac\n}\n_conflux \"$@\"\n");
}
