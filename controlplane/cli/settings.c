/* A token and a token file are one setting: the first source that has either has the word. */
#include "cli/settings.h"

#include "base/fd.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_CONFIG = 64 * 1024, MAX_TOKEN = 64 * 1024 };

static void wipe_free(char *z) {
    if (z) explicit_bzero(z, strlen(z));
    free(z);
}

void cli_settings_free(cli_settings *s) {
    wipe_free(s->token);
    free(s->url), free(s->token_file), free(s->cacert), free(s->mode);
    free(s->token_from), free(s->token_path), free(s->config_path);
    *s = (cli_settings){0};
}

static char *copy(const char *z) { return cp_str_dup(cp_str_of(z)); }

static void set_text(char **slot, cp_str v) {
    if (!*slot) *slot = cp_str_dup(v);
}

static void set_token(cli_settings *s, cp_str token, const char *from) {
    if (s->token_from) return;
    s->token = cp_str_dup(token);
    s->token_from = copy(from);
}

static void set_token_file(cli_settings *s, cp_str path) {
    if (s->token_from) return;
    s->token_file = cp_str_dup(path);
    s->token_from = cp_str_dup(path);
}

/* ---- flags and environment ---- */

static int read_flags(cli_settings *s, cli_args *a, cp_err *err) {
    const char *token = a->value[CLI_OPT_token], *file = a->value[CLI_OPT_token_file];
    if (token && file) return cp_fail(err, CP_E_VALIDATION_FAILED, "--token and --token-file exclude each other");
    if (a->value[CLI_OPT_url]) set_text(&s->url, cp_str_of(a->value[CLI_OPT_url]));
    if (a->value[CLI_OPT_cacert]) set_text(&s->cacert, cp_str_of(a->value[CLI_OPT_cacert]));
    if (a->value[CLI_OPT_mode]) set_text(&s->mode, cp_str_of(a->value[CLI_OPT_mode]));
    if (file) set_token_file(s, cp_str_of(file));
    s->insecure = cli_flag(a, CLI_OPT_insecure);
    if (token) {
        set_token(s, cp_str_of(token), "--token");
        explicit_bzero((char *)(uintptr_t)token, strlen(token)); /* it stands in /proc/self/cmdline */
    }
    return cli_duration_of(a, CLI_OPT_connect_timeout, &s->connect_timeout_ms, err);
}

static void read_environment(cli_settings *s) {
    const char *url = getenv("CONFLUX_URL"), *file = getenv("CONFLUX_TOKEN_FILE");
    char *token = getenv("CONFLUX_TOKEN");
    if (url && *url) set_text(&s->url, cp_str_of(url));
    if (token && *token) set_token(s, cp_str_of(token), "CONFLUX_TOKEN");
    else if (file && *file) set_token_file(s, cp_str_of(file));
    if (!token) return;
    explicit_bzero(token, strlen(token));
    unsetenv("CONFLUX_TOKEN");
}

/* ---- the file ---- */

static int set_line(cli_settings *s, cp_str key, cp_str v, cp_err *err) {
    cp_autofree char *text = cp_str_dup(v);
    if (cp_str_is(key, "url")) set_text(&s->url, v);
    else if (cp_str_is(key, "cacert")) set_text(&s->cacert, v);
    else if (cp_str_is(key, "mode")) set_text(&s->mode, v);
    else if (cp_str_is(key, "token-file")) set_token_file(s, v);
    else if (cp_str_is(key, "token")) set_token(s, v, "the configuration file");
    else if (cp_str_is(key, "insecure") && (cp_str_is(v, "true") || cp_str_is(v, "false")))
        s->insecure |= cp_str_is(v, "true");
    else if (cp_str_is(key, "connect-timeout"))
        return s->connect_timeout_ms ? 0 : cli_duration(text, "connect-timeout", &s->connect_timeout_ms, err);
    else if (cp_str_is(key, "insecure")) return cp_fail(err, CP_E_VALIDATION_FAILED, "insecure takes true or false");
    else
        return cp_fail(err, CP_E_VALIDATION_FAILED, "there is no setting \"%.*s\"", (int)(key.n < 40 ? key.n : 40),
                       key.p);
    return 0;
}

int cli_settings_line(cli_settings *s, cp_str line, cp_err *err) {
    line = cp_str_trim(line);
    if (!line.n || line.p[0] == '#') return 0;
    const char *eq = memchr(line.p, '=', line.n);
    if (!eq) return cp_fail(err, CP_E_VALIDATION_FAILED, "a line is \"key = value\"");
    cp_str key = cp_str_trim((cp_str){line.p, (size_t)(eq - line.p)});
    cp_str value = cp_str_trim((cp_str){eq + 1, line.n - (size_t)(eq + 1 - line.p)});
    if (!value.n)
        return cp_fail(err, CP_E_VALIDATION_FAILED, "%.*s has no value", (int)(key.n < 40 ? key.n : 40), key.p);
    return set_line(s, key, value, err);
}

static char *config_path(void) {
    const char *xdg = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    cp_buf b = {0};
    if (xdg && *xdg == '/') cp_buf_addf(&b, "%s/conflux/config", xdg);
    else if (home && *home) cp_buf_addf(&b, "%s/.config/conflux/config", home);
    else return NULL;
    cp_buf_addc(&b, '\0');
    return b.p;
}

static bool others_may_read(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && (st.st_mode & (S_IRGRP | S_IROTH));
}

static int read_lines(cli_settings *s, const char *text, cp_err *err) {
    unsigned number = 1;
    for (const char *p = text, *end; *p; p = *end ? end + 1 : end, number++) {
        end = strchrnul(p, '\n');
        if (cli_settings_line(s, (cp_str){p, (size_t)(end - p)}, err) < 0)
            return cp_wrap(err, "%s:%u", s->config_path, number);
    }
    return 0;
}

static int read_config(cli_settings *s, cp_err *err) {
    char *text = NULL;
    size_t n;
    s->config_path = config_path();
    if (!s->config_path) return 0;
    if (cp_read_file(s->config_path, MAX_CONFIG, &text, &n) < 0) {
        if (errno == ENOENT || errno == ENOTDIR) return 0;
        return cp_fail_sys(err, CP_E_VALIDATION_FAILED, errno, "%s", s->config_path);
    }
    s->config_exists = true;
    const char *had = s->token;
    int rc = read_lines(s, text, err);
    bool holds = s->token != had;
    wipe_free(text);
    if (rc == 0 && holds && others_may_read(s->config_path))
        return cp_fail(err, CP_E_PERMISSION_DENIED, "%s holds a token and may be read by others: chmod 600 %s",
                       s->config_path, s->config_path);
    return rc;
}

static int read_token_file(cli_settings *s, cp_err *err) {
    char *text = NULL;
    size_t n;
    if (!s->token_file) return 0;
    if (cp_read_file(s->token_file, MAX_TOKEN, &text, &n) < 0)
        return cp_fail_sys(err, CP_E_VALIDATION_FAILED, errno, "the token file %s", s->token_file);
    s->token = cp_str_dup((cp_str){text, strcspn(text, "\r\n")});
    wipe_free(text);
    s->token_path = copy(s->token_file);
    s->token_exposed = others_may_read(s->token_file);
    if (*s->token) return 0;
    return cp_fail(err, CP_E_VALIDATION_FAILED, "the first line of the token file %s is empty", s->token_file);
}

static int check_mode(const cli_settings *s, cp_err *err) {
    if (strcmp(s->mode, "auto") == 0 || strcmp(s->mode, "websocket") == 0 || strcmp(s->mode, "http") == 0) return 0;
    return cp_fail(err, CP_E_VALIDATION_FAILED, "mode is auto, websocket or http, not \"%s\"", s->mode);
}

int cli_settings_read(cli_settings *s, cli_args *a, cp_err *err) {
    *s = (cli_settings){0};
    int rc = read_flags(s, a, err);
    read_environment(s); /* also after a mistake: the token is to be wiped */
    if (rc < 0 || read_config(s, err) < 0 || read_token_file(s, err) < 0) return -1;
    set_text(&s->url, CP_STR(CLI_DEFAULT_URL));
    set_text(&s->mode, CP_STR("auto"));
    return check_mode(s, err);
}
