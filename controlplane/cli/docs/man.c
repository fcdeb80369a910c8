#include "cli/docs/docs.h"

#include "cli/help.h"

static const char about[] =
    ".SH DESCRIPTION\n"
    "Conflux is a control plane that lives inside a container, or any Linux box, and lets programs outside drive it.\n"
    ".B conflux serve\nruns it; the other commands talk to one that runs, over one WebSocket, or over HTTP where there "
    "is "
    "none.\n"
    ".PP\n"
    "A time is a number of seconds, or a number with\n.BR ms ,\n.BR s ,\n.B m\nor\n.B h\nbehind it.\n"
    "Letters may stand together\n.RB ( \\-la ),\nand\n.B \\-\\-\nends the options.\n";

static const char rest[] =
    ".SH EXIT STATUS\n"
    "Of\n.BR exec :\nthat of the command; 128 and the number of the signal that ended it. Of the others: 0.\n"
    ".TP\n.B 1\nThe server said no; the message names its code. For\n.BR grep :\nno line was found.\n"
    ".TP\n.B 124\nA command was ended by its time\\-out\n.RB ( exec ),\nor it did not happen in time\n.RB ( wait ).\n"
    ".TP\n.B 125\nOur own failure, bad usage included: nothing was begun there. For\n.B exec\nand\n.B run\n"
    "also: the server refused it.\n"
    ".TP\n.BR 126 \", \" 127\nThe program cannot be executed, or is not there\n.RB ( exec \", \" run ).\n"
    ".TP\n.B 255\nThe connection was lost, and could not be made again in time: what became of it there is not known. "
    "The "
    "message says how to get the rest.\n"
    ".PP\nWhoever reads our output and leaves ends us as it would end\n.BR cat :\nby SIGPIPE, and\n.B exec\nends the "
    "command with us.\n"
    ".SH ENVIRONMENT\n"
    "Flags come first, then the environment, then the configuration file.\n"
    ".TP\n.B CONFLUX_URL\nThe server.\n"
    ".TP\n.B CONFLUX_TOKEN\nIts token. It is taken out of our environment at once.\n"
    ".TP\n.B CONFLUX_TOKEN_FILE\nA file whose first line is the token.\n"
    ".TP\n.BR CONFLUX_CLI \", \" CONFLUX_SERVER\nThe programs that\n.B conflux\nruns, where they are neither beside it "
    "nor "
    "in ../libexec/conflux.\n"
    ".PP\n.B conflux serve\ntakes each of its options from the environment, too: CONFLUX_LOG_LEVEL for "
    "\\-\\-log\\-level.\n"
    ".SH FILES\n"
    ".TP\n.I $XDG_CONFIG_HOME/conflux/config\n(or\n.IR ~/.config/conflux/config )\nLines of\n.IR \"key = value\" "
    ",\nand "
    "comments after #. Keys: url, token, token\\-file, cacert, insecure (true or false), mode, connect\\-timeout. A "
    "file "
    "that holds a token must not be readable by others.\n"
    ".SH EXAMPLES\n"
    ".nf\n"
    "conflux exec \\-\\- uname \\-a\n"
    "tar c . | conflux exec \\-\\- tar x \\-C /tmp\n"
    "conflux exec \\-s work \\-c 'cd /srv; make'\n"
    "id=$(conflux run \\-\\- python3 \\-m http.server 8000)\n"
    "conflux wait \\-\\-port 8000 $id; conflux logs \\-f $id\n"
    "conflux cp ./site remote:/srv/\n"
    "conflux kill $id\n"
    ".fi\n";

/* In roff a backslash begins an escape, a dash is a hyphen unless it is one, and a line that begins with a dot or a
 * quote is a request. */
static void put_text(cp_buf *out, const char *text) {
    if (*text == '.' || *text == '\'') cp_buf_addz(out, "\\&");
    for (; *text; text++) {
        if (*text == '\\') cp_buf_addz(out, "\\e");
        else if (*text == '-') cp_buf_addz(out, "\\-");
        else cp_buf_addc(out, *text);
    }
}

static void put_line(cp_buf *out, const char *text) {
    put_text(out, text);
    cp_buf_addc(out, '\n');
}

static void put_name(cp_buf *out, char letter, const char *name, const char *arg) {
    cp_buf_addz(out, ".TP\n");
    if (letter) cp_buf_addf(out, "\\fB\\-%c\\fR, ", letter);
    cp_buf_addz(out, "\\fB\\-\\-");
    put_text(out, name);
    cp_buf_addz(out, "\\fR");
    if (*arg) {
        cp_buf_addz(out, " \\fI");
        put_text(out, arg);
        cp_buf_addz(out, "\\fR");
    }
    cp_buf_addc(out, '\n');
}

static void put_option(cp_buf *out, const cli_option *o) {
    put_name(out, o->letter, o->name, o->arg);
    put_line(out, o->help);
}

static void put_command(cp_buf *out, const cli_command *cmd) {
    cp_buf_addf(out, ".SS conflux %s\n.B conflux %s\n[options]", cmd->name, cmd->name);
    if (*cmd->operands) cp_buf_addc(out, ' ');
    put_line(out, cmd->operands);
    cp_buf_addz(out, ".PP\n");
    cp_buf_addf(out, "%c", cmd->summary[0] - 'a' + 'A');
    put_text(out, cmd->summary + 1);
    cp_buf_addz(out, ".\n");
    if (*cmd->text) put_line(out, cmd->text);
    for (size_t i = CLI_OPT_session; i < CLI_NOPTIONS; i++)
        if (cli_has(cmd, i)) put_option(out, &cli_options[i]);
}

static void put_serve(cp_buf *out) {
    cp_buf_addz(out,
                ".SS conflux serve\n.B conflux serve\n[options] [\\-\\- CMD ARGS...]\n.PP\n"
                "Run the control plane here, and CMD as the container's main program: signals are forwarded to it; "
                "when it fails, everything ends with its exit code; when it ends with 0, the server stays.\n");
    for (size_t i = 0; i < docs_nserve_options; i++) {
        put_name(out, 0, docs_serve_options[i].flag, docs_serve_options[i].arg);
        put_line(out, docs_serve_options[i].help);
    }
}

void docs_man(cp_buf *out) {
    cp_buf_addz(out, ".TH CONFLUX 1 \"\" \"conflux " CONFLUX_VERSION "\" \"User Commands\"\n.SH NAME\n"
                     "conflux \\- run commands, move files and manage processes in a container\n"
                     ".SH SYNOPSIS\n.B conflux\n.I COMMAND\n[options]\n.br\n.B conflux\n.I COMMAND\n.B \\-\\-help\n");
    cp_buf_addz(out, about);
    cp_buf_addz(out, ".SH COMMANDS\n");
    for (size_t i = 0; i < CLI_NCOMMANDS; i++) put_command(out, &cli_commands[i]);
    put_serve(out);
    cp_buf_addz(out, ".SH OPTIONS OF ALL COMMANDS BUT SERVE\n");
    for (size_t i = 0; i < CLI_OPT_session; i++) put_option(out, &cli_options[i]);
    cp_buf_addz(out, rest);
}
