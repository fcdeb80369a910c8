#include "cli/help.h"

enum { WIDTH = 80, INDENT = 30 };

void cli_option_head(const cli_option *o, cp_buf *out) {
    if (o->letter) cp_buf_addf(out, "-%c, ", o->letter);
    else cp_buf_addz(out, "    ");
    cp_buf_addf(out, "--%s%s%s", o->name, *o->arg ? " " : "", o->arg);
}

/* The text in lines of WIDTH; `at` is where the first one begins. */
static void wrap(cp_buf *out, const char *text, size_t indent, size_t at) {
    while (*text) {
        size_t n = strcspn(text, " ");
        if (at > indent && at + 1 + n > WIDTH) {
            cp_buf_addf(out, "\n%*s", (int)indent, "");
            at = indent;
        } else if (at > indent) {
            cp_buf_addc(out, ' ');
            at++;
        }
        cp_buf_add(out, text, n);
        at += n;
        text += n + strspn(text + n, " ");
    }
    cp_buf_addc(out, '\n');
}

static void put_option(const cli_option *o, cp_buf *out) {
    cp_autobuf cp_buf head = {0};
    cp_buf_addz(&head, "  ");
    cli_option_head(o, &head);
    cp_buf_add(out, head.p, head.n);
    if (head.n + 2 > INDENT) cp_buf_addf(out, "\n%*s", INDENT, "");
    else cp_buf_addf(out, "%*s", (int)(INDENT - head.n), "");
    wrap(out, o->help, INDENT, INDENT);
}

void cli_help(const cli_command *cmd, cp_buf *out) {
    cp_buf_addf(out, "usage: conflux %s [options]%s%s\n\n", cmd->name, *cmd->operands ? " " : "", cmd->operands);
    wrap(out, cmd->summary, 0, 0);
    if (*cmd->text) wrap(out, cmd->text, 0, 0);
    cp_buf_addc(out, '\n');
    for (size_t i = CLI_OPT_session; i < CLI_NOPTIONS; i++)
        if (cli_has(cmd, i)) put_option(&cli_options[i], out);
    cp_buf_addz(out, "\nthe server, and what all commands have:\n");
    for (size_t i = 0; i < CLI_OPT_session; i++) put_option(&cli_options[i], out);
    cp_buf_addz(out, "\nman conflux tells of settings in the environment and in a file, and of exit statuses.\n");
}
