#include "cli/args.h"

#include "base/buf.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_DAYS = 7 };

static int usage(cp_err *err, const cli_command *cmd, const char *what) {
    return cp_fail(err, CP_E_VALIDATION_FAILED, "%s (see conflux %s --help)", what, cmd->name);
}

static int check_word(const cli_option *o, const char *v, cp_err *err) {
    size_t n = strlen(v);
    if (!strchr(o->arg, '|')) return 0;
    for (const char *p = o->arg, *end; *p; p = *end ? end + 1 : end) {
        end = strchrnul(p, '|');
        if ((size_t)(end - p) == n && memcmp(p, v, n) == 0) return 0;
    }
    return cp_fail(err, CP_E_VALIDATION_FAILED, "--%s takes %s, not \"%s\"", o->name, o->arg, v);
}

static int set(cli_args *a, const cli_option *o, const char *v, cp_err *err) {
    if (check_word(o, v, err) < 0) return -1;
    a->value[o - cli_options] = v;
    if (o->kind != CLI_LIST) return 0;
    a->env = cp_realloc(a->env, (a->nenv + 1) * sizeof *a->env);
    a->env[a->nenv++] = v;
    return 0;
}

static int read_long(cli_args *a, char ***argv, cp_err *err) {
    const char *arg = **argv + 2, *eq = strchrnul(arg, '=');
    const cli_option *o = cli_option_find(a->cmd, arg, (size_t)(eq - arg));
    char what[160];
    if (!o) {
        snprintf(what, sizeof what, "there is no option --%.*s", (int)(eq - arg), arg);
        return usage(err, a->cmd, what);
    }
    if (o->kind == CLI_FLAG)
        return *eq ? cp_fail(err, CP_E_VALIDATION_FAILED, "--%s takes no value", o->name) : set(a, o, "", err);
    if (*eq) return set(a, o, eq + 1, err);
    if (!(*argv)[1]) return cp_fail(err, CP_E_VALIDATION_FAILED, "--%s needs a value: %s", o->name, o->arg);
    return set(a, o, *++*argv, err);
}

/* -la, -sID, -s ID */
static int read_letters(cli_args *a, char ***argv, cp_err *err) {
    char what[80];
    for (const char *p = **argv + 1; *p; p++) {
        const cli_option *o = cli_option_letter(a->cmd, *p);
        if (!o) {
            snprintf(what, sizeof what, "there is no option -%c", isprint((unsigned char)*p) ? *p : '?');
            return usage(err, a->cmd, what);
        }
        if (o->kind == CLI_FLAG) {
            set(a, o, "", err);
            continue;
        }
        if (p[1]) return set(a, o, p + 1, err);
        if (!(*argv)[1]) return cp_fail(err, CP_E_VALIDATION_FAILED, "-%c needs a value: %s", *p, o->arg);
        return set(a, o, *++*argv, err);
    }
    return 0;
}

static int count_operands(const cli_args *a, cp_err *err) {
    const cli_command *cmd = a->cmd;
    char what[160];
    if (cli_flag(a, CLI_OPT_help)) return 0;
    if (a->noperands >= (size_t)cmd->least && a->noperands <= (size_t)cmd->most) return 0;
    if (cmd->most == 0) snprintf(what, sizeof what, "unexpected argument \"%.80s\"", a->operands[0]);
    else snprintf(what, sizeof what, "usage: conflux %s [options] %s", cmd->name, cmd->operands);
    return usage(err, cmd, what);
}

int cli_args_read(cli_args *a, const cli_command *cmd, char **argv, cp_err *err) {
    size_t n = 0;
    *a = (cli_args){.cmd = cmd};
    while (argv[n]) n++;
    a->operands = cp_alloc((n + 1) * sizeof *a->operands);
    bool options = true;
    for (; *argv; argv++) {
        const char *arg = *argv;
        bool option = options && arg[0] == '-' && arg[1];
        if (option && strcmp(arg, "--") == 0) {
            options = false;
        } else if (!option) {
            a->operands[a->noperands++] = *argv;
            if (cmd->leading) options = false;
        } else if ((arg[1] == '-' ? read_long(a, &argv, err) : read_letters(a, &argv, err)) < 0) {
            return -1;
        }
    }
    return count_operands(a, err);
}

void cli_args_free(cli_args *a) {
    free(a->env);
    free(a->operands);
    *a = (cli_args){0};
}

int cli_duration(const char *text, const char *what, uint64_t *ms, cp_err *err) {
    static const struct {
        const char *unit;
        double ms;
    } units[] = {{"", 1000}, {"ms", 1}, {"s", 1000}, {"m", 60e3}, {"h", 3600e3}};
    char *end = NULL;
    double v = isdigit((unsigned char)*text) ? strtod(text, &end) : -1;
    for (size_t i = 0; end && i < CP_COUNT(units); i++) {
        if (strcmp(end, units[i].unit) != 0 || v * units[i].ms > MAX_DAYS * 24 * 3600e3) continue;
        *ms = (uint64_t)(v * units[i].ms + 0.5);
        return 0;
    }
    return cp_fail(err, CP_E_VALIDATION_FAILED,
                   "%s takes a time of at most %d days, such as 5, 500ms or 2m, not \"%s\"", what, MAX_DAYS, text);
}

int cli_duration_of(const cli_args *a, cli_option_id id, uint64_t *ms, cp_err *err) {
    char what[40];
    if (!a->value[id]) return 0;
    snprintf(what, sizeof what, "--%s", cli_options[id].name);
    return cli_duration(a->value[id], what, ms, err);
}
