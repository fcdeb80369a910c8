#include "cli/command.h"

#include "base/id.h"

#include <stdio.h>
#include <stdlib.h>

/* A session's shell takes text: its own commands (cd, export) are to be found, too. */
static void put_text(const cli *c, cp_jw *w) {
    cp_autobuf cp_buf text = {0};
    for (size_t i = 0; i < c->args.noperands; i++) {
        if (i) cp_buf_addc(&text, ' ');
        cp_buf_add_word(&text, cp_str_of(c->args.operands[i]));
    }
    cp_jw_kstr(w, "command", cp_buf_str(&text));
}

static void put_args(const cli *c, cp_jw *w) {
    cp_jw_key(w, "args");
    cp_jw_arr(w);
    for (size_t i = 0; i < c->args.noperands; i++) cp_jw_z(w, c->args.operands[i]);
    cp_jw_end_arr(w);
}

static int put_what(const cli *c, cp_jw *w) {
    const char *shell = cli_opt(c, CLI_OPT_shell);
    if (shell && c->args.noperands) return cli_fail("--shell TEXT and CMD exclude each other");
    if (!shell && !c->args.noperands) return cli_fail("there is no command (see conflux %s --help)", c->args.cmd->name);
    if (shell && cli_check_utf8("--shell", shell)) return CLI_FAILED;
    for (size_t i = 0; i < c->args.noperands; i++)
        if (cli_check_utf8("an argument", c->args.operands[i])) return CLI_FAILED;
    if (shell) cp_jw_kz(w, "command", shell);
    else if (cli_opt(c, CLI_OPT_session)) put_text(c, w);
    else put_args(c, w);
    return CLI_OK;
}

/* A key of the JSON writer is written as it is: what could not stand there is no name of a variable either. */
static int check_env_names(const cli *c) {
    for (size_t i = 0; i < c->args.nenv; i++) {
        const char *p = c->args.env[i];
        size_t n = strspn(p, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_");
        if (!n || (*p >= '0' && *p <= '9') || (p[n] && p[n] != '='))
            return cli_fail("--env takes NAME=VALUE or NAME, not \"%s\"", p);
    }
    return CLI_OK;
}

int cli_command_env(const cli *c, cp_jw *w) {
    if (check_env_names(c)) return CLI_FAILED;
    if (!c->args.nenv) return CLI_OK;
    cp_jw_key(w, "env");
    cp_jw_obj(w);
    for (size_t i = 0; i < c->args.nenv; i++) {
        const char *given = c->args.env[i], *eq = strchr(given, '=');
        cp_autofree char *name = cp_str_dup((cp_str){given, eq ? (size_t)(eq - given) : strlen(given)});
        const char *value = eq ? eq + 1 : getenv(name);
        if (cli_check_utf8("--env", given)) return CLI_FAILED;
        if (!value) return cli_fail("--env %s: there is no such variable here", name);
        if (cli_check_utf8(name, value)) return CLI_FAILED;
        cp_jw_kz(w, name, value);
    }
    cp_jw_end_obj(w);
    return CLI_OK;
}

int cli_command_body(const cli *c, cp_jw *w, cp_buf *out) {
    const char *user = cli_opt(c, CLI_OPT_user), *cwd = cli_opt(c, CLI_OPT_cwd);
    uint64_t timeout = 0;
    cp_err err;
    if (cli_duration_of(&c->args, CLI_OPT_timeout, &timeout, &err) < 0) return cli_fail("%s", err.msg);
    if ((user && cli_check_utf8("--user", user)) || (cwd && cli_check_utf8("--cwd", cwd))) return CLI_FAILED;
    *w = cli_body_begin(c, out);
    if (put_what(c, w) || cli_command_env(c, w)) return CLI_FAILED;
    if (user) cp_jw_kz(w, "user", user);
    if (cwd) cp_jw_kz(w, "cwd", cwd);
    if (timeout) cp_jw_ku64(w, "timeoutMs", timeout);
    return CLI_OK;
}

void cli_choose_id(const cli *c, char out[132]) {
    const char *given = cli_opt(c, CLI_OPT_id);
    char random[21];
    cp_random_base36(random, sizeof random - 1);
    if (given) snprintf(out, 132, "%s", given);
    else snprintf(out, 132, "cli-%s", random);
}
