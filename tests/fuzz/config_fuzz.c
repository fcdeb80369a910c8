/* Options, from a file, from the command line and from the keeper: what has been taken is told to the server as it was
 * understood. The same for the settings and arguments of the command line client. Input: lines. */
#include "config.h"

#include <stdlib.h>

#include "cli/args.h"
#include "cli/settings.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WORDS = 64 };

static void require(bool ok) {
    if (!ok) abort();
}

/* ---- the server's ---- */

static void check_limits(const cp_config *c) {
#define LIMIT_STR(f, mn, mx)  require(c->f != NULL);
#define LIMIT_LIST(f, mn, mx) require(!c->f.n || c->f.v[c->f.n - 1]);
#define LIMIT_BOOL(f, mn, mx)
#define LIMIT_INT(f, mn, mx)         require(c->f >= (mn) && c->f <= (mx));
#define X(f, k, fl, a, d, mn, mx, h) LIMIT_##k(f, mn, mx)
#include "schema/options.def"
#undef X
}

/* What the keeper hands over is what it has. */
static void check_handed_over(const cp_config *c) {
    cp_autobuf cp_buf text = {0}, again = {0};
    cp_config other = {0};
    cp_err err;
    cp_config_encode(c, &text);
    require(cp_config_decode(&other, cp_buf_str(&text), &err) == 0);
    cp_config_encode(&other, &again);
    require(cp_str_eq(cp_buf_str(&text), cp_buf_str(&again)));
    cp_config_free(&other);
}

static void file(cp_str text) {
    cp_config c = {0};
    cp_err err = {0};
    if (cp_config_text(&c, text, "f", &err) == 0) {
        check_limits(&c);
        check_handed_over(&c);
    } else {
        require(err.code == CP_E_VALIDATION_FAILED && err.msg[0]);
    }
    cp_config_free(&c);
}

static void from_keeper(cp_str text) {
    cp_config c = {0};
    cp_err err = {0};
    if (cp_config_decode(&c, text, &err) == 0) check_limits(&c);
    else require(err.msg[0]);
    cp_config_free(&c);
}

/* What would open files, or close descriptors, of ours. */
static bool harmless(char **words) {
    for (; *words; words++)
        if (strncmp(*words, "--token", 7) == 0 || strncmp(*words, "--config", 8) == 0) return false;
    return true;
}

static void command_line(char **words) {
    cp_config c = {0};
    cp_err err = {0};
    cp_run run;
    char **cmd;
    if (!harmless(words)) return;
    if (cp_config_load(&c, words, &cmd, &run, &err) < 0) require(err.msg[0]);
    else if (run == CP_RUN_SERVE) {
        check_limits(&c);
        check_handed_over(&c);
        require(!cmd || (cmd > words && strcmp(cmd[-1], "--") == 0));
    }
    cp_config_free(&c);
}

/* ---- the client's ---- */

static void arguments(char **words) {
    for (size_t i = 0; i < CLI_NCOMMANDS; i++) {
        cli_args a;
        cp_err err = {0};
        size_t n = 0;
        while (words[n]) n++;
        if (cli_args_read(&a, &cli_commands[i], words, &err) < 0) require(err.msg[0]);
        else require(a.noperands <= n && a.operands[a.noperands] == NULL);
        cli_args_free(&a);
    }
}

static void settings(char **words) {
    cli_settings s = {0};
    cp_err err = {0};
    for (; *words; words++) {
        uint64_t ms;
        if (cli_settings_line(&s, cp_str_of(*words), &err) < 0) require(err.msg[0]);
        if (cli_duration(*words, "x", &ms, &err) == 0) require(ms <= UINT64_C(7) * 24 * 3600 * 1000);
    }
    cli_settings_free(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    cp_str text = {(const char *)data, size};
    char *words[WORDS + 1] = {0};
    size_t n = 0;
    file(text);
    from_keeper(text);
    for (size_t from = 0, to; from < size && n < WORDS; from = to + 1) {
        for (to = from; to < size && data[to] != '\n'; to++) continue;
        words[n++] = cp_str_dup((cp_str){text.p + from, to - from});
    }
    command_line(words);
    arguments(words);
    settings(words);
    for (size_t i = 0; i < n; i++) free(words[i]);
    return 0;
}
