/* Every source of a setting ends in set(): (option, text, where it came from). A later source does not replace an
 * earlier one: sources are read in the order of their precedence, and an option that is set is skipped (a list is
 * complete with the first source that names it). */
#include "config.h"

#include "base/fd.h"
#include "base/host.h"
#include "base/log.h"
#include "base/sha.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum { KIND_STR, KIND_INT, KIND_BOOL, KIND_LIST } option_kind;

static const struct option {
    const char *field, *flag, *arg, *def_str, *help;
    option_kind kind;
    size_t offset;
    int64_t def_int, min, max;
} options[] = {
#define DEF_STR_STR(d)  d
#define DEF_STR_LIST(d) d
#define DEF_STR_INT(d)  ""
#define DEF_STR_BOOL(d) ""
#define DEF_INT_STR(d)  0
#define DEF_INT_LIST(d) 0
#define DEF_INT_INT(d)  d
#define DEF_INT_BOOL(d) d
#define X(f, k, fl, a, d, mn, mx, h)                                                                                   \
    {.field = #f,                                                                                                      \
     .flag = fl,                                                                                                       \
     .arg = a,                                                                                                         \
     .def_str = DEF_STR_##k(d),                                                                                        \
     .help = h,                                                                                                        \
     .kind = KIND_##k,                                                                                                 \
     .offset = offsetof(cp_config, f),                                                                                 \
     .def_int = DEF_INT_##k(d),                                                                                        \
     .min = mn,                                                                                                        \
     .max = mx},
#include "schema/options.def"
#undef X
};
enum { NOPTIONS = sizeof options / sizeof *options };

struct loader {
    cp_config *cfg;
    bool done[NOPTIONS]; /* set by a source of higher precedence */
    bool here[NOPTIONS]; /* set by the source being read */
    const char *config_file;
    cp_err *err;
};

static void *slot(cp_config *cfg, const struct option *o) { return (char *)cfg + o->offset; }

static void put_str(cp_config *cfg, const struct option *o, cp_str v) {
    char **p = slot(cfg, o);
    free(*p);
    *p = cp_str_dup(v);
}

static void add_list(cp_config *cfg, const struct option *o, cp_str v) {
    cp_strlist *l = slot(cfg, o);
    l->v = cp_realloc(l->v, (l->n + 1) * sizeof *l->v);
    l->v[l->n++] = cp_str_dup(v);
}

/* Whole number with an optional k, M or G (powers of 1024). */
static bool parse_int(cp_str v, int64_t *out) {
    bool neg = v.n && v.p[0] == '-';
    if (neg) v.p++, v.n--;
    int shift = 0;
    if (v.n) switch (v.p[v.n - 1]) {
        case 'k':
        case 'K': shift = 10; break;
        case 'm':
        case 'M': shift = 20; break;
        case 'g':
        case 'G': shift = 30; break;
        }
    if (shift) v.n--;
    uint64_t u;
    if (!cp_str_u64(v, (uint64_t)INT64_MAX >> shift, &u)) return false;
    *out = (int64_t)(u << shift);
    if (neg) *out = -*out;
    return true;
}

static bool parse_bool(cp_str v, bool *out) {
    *out = cp_str_is(v, "1") || cp_str_is(v, "true") || cp_str_is(v, "yes") || cp_str_is(v, "on");
    return *out || cp_str_is(v, "0") || cp_str_is(v, "false") || cp_str_is(v, "no") || cp_str_is(v, "off");
}

static int set(struct loader *l, const struct option *o, cp_str v, const char *where) {
    size_t i = (size_t)(o - options);
    if (l->done[i]) return 0;
    l->here[i] = true;
    int64_t n;
    bool b;
    switch (o->kind) {
    case KIND_STR: put_str(l->cfg, o, v); return 0;
    case KIND_LIST: add_list(l->cfg, o, v); return 0;
    case KIND_BOOL:
        if (!parse_bool(v, &b))
            return cp_fail(l->err, CP_E_VALIDATION_FAILED, "%s: %s takes true or false", where, o->flag);
        *(bool *)slot(l->cfg, o) = b;
        return 0;
    case KIND_INT:
        if (!parse_int(v, &n) || n < o->min || n > o->max)
            return cp_fail(l->err, CP_E_VALIDATION_FAILED, "%s: %s takes a number from %lld to %lld, not \"%.*s\"",
                           where, o->flag, (long long)o->min, (long long)o->max, (int)(v.n > 40 ? 40 : v.n), v.p);
        *(int64_t *)slot(l->cfg, o) = n;
        return 0;
    }
    return 0;
}

static void source_done(struct loader *l) {
    for (size_t i = 0; i < NOPTIONS; i++) l->done[i] |= l->here[i], l->here[i] = false;
}

static const struct option *by_flag(cp_str name) {
    for (size_t i = 0; i < NOPTIONS; i++)
        if (cp_str_is(name, options[i].flag)) return &options[i];
    return NULL;
}

/* ---- the command line ---- */

static int read_flag(struct loader *l, char ***argv) {
    const char *arg = **argv;
    if (strncmp(arg, "--", 2) != 0)
        return cp_fail(l->err, CP_E_VALIDATION_FAILED, "unexpected argument \"%s\" (a command goes behind --)", arg);
    const char *eq = strchr(arg, '=');
    cp_str name = {arg + 2, eq ? (size_t)(eq - arg - 2) : strlen(arg + 2)};
    bool is_config = cp_str_is(name, "config");
    const struct option *o = is_config ? NULL : by_flag(name);
    if (!o && !is_config)
        return cp_fail(l->err, CP_E_VALIDATION_FAILED, "unknown option --%.*s (see conflux serve --help)", (int)name.n,
                       name.p);
    cp_str value = eq ? cp_str_of(eq + 1) : (cp_str){0};
    if (!eq) {
        if (o && o->kind == KIND_BOOL) {
            value = CP_STR("true");
        } else {
            if (!(*argv)[1]) return cp_fail(l->err, CP_E_VALIDATION_FAILED, "option %s needs a value", arg);
            value = cp_str_of(*++*argv);
        }
    }
    ++*argv;
    if (is_config) {
        l->config_file = value.p;
        return 0;
    }
    return set(l, o, value, "command line");
}

static int read_argv(struct loader *l, char **argv, char ***cmd, cp_run *run) {
    while (*argv) {
        if (strcmp(*argv, "--") == 0) {
            if (!argv[1]) return cp_fail(l->err, CP_E_VALIDATION_FAILED, "no command behind --");
            *cmd = argv + 1;
            break;
        }
        if (strcmp(*argv, "--help") == 0 || strcmp(*argv, "-h") == 0) {
            *run = CP_RUN_HELP;
            return 0;
        }
        if (read_flag(l, &argv) < 0) return -1;
    }
    source_done(l);
    return 0;
}

/* ---- the environment ---- */

static void env_name(const struct option *o, char out[64]) {
    int n = snprintf(out, 64, "CONFLUX_");
    for (const char *p = o->flag; *p && n < 63; p++) out[n++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
    out[n] = '\0';
}

static int set_comma_list(struct loader *l, const struct option *o, const char *v, const char *where) {
    for (const char *end; *v; v = *end ? end + 1 : end) {
        end = strchrnul(v, ',');
        cp_str item = cp_str_trim((cp_str){v, (size_t)(end - v)});
        if (item.n && set(l, o, item, where) < 0) return -1;
    }
    return 0;
}

static int read_env(struct loader *l) {
    for (size_t i = 0; i < NOPTIONS; i++) {
        char name[64];
        env_name(&options[i], name);
        const char *v = getenv(name);
        if (!v) continue;
        int rc = options[i].kind == KIND_LIST ? set_comma_list(l, &options[i], v, name)
                                              : set(l, &options[i], cp_str_of(v), name);
        if (rc < 0) return -1;
    }
    source_done(l);
    return 0;
}

static void set_defaults(struct loader *l) {
    for (size_t i = 0; i < NOPTIONS; i++) {
        const struct option *o = &options[i];
        if (l->done[i]) continue;
        if (o->kind == KIND_STR) put_str(l->cfg, o, cp_str_of(o->def_str));
        else if (o->kind == KIND_INT) *(int64_t *)slot(l->cfg, o) = o->def_int;
        else if (o->kind == KIND_BOOL) *(bool *)slot(l->cfg, o) = o->def_int != 0;
    }
}

/* ---- the file: "flag = value" lines, # comments ---- */

static int read_line(struct loader *l, cp_str line, const char *where) {
    line = cp_str_trim(line);
    if (!line.n || line.p[0] == '#') return 0;
    const char *eq = memchr(line.p, '=', line.n);
    if (!eq) return cp_fail(l->err, CP_E_VALIDATION_FAILED, "%s: expected \"option = value\"", where);
    cp_str name = cp_str_trim((cp_str){line.p, (size_t)(eq - line.p)});
    cp_str value = cp_str_trim((cp_str){eq + 1, line.n - (size_t)(eq + 1 - line.p)});
    const struct option *o = by_flag(name);
    if (!o) return cp_fail(l->err, CP_E_VALIDATION_FAILED, "%s: unknown option %.*s", where, (int)name.n, name.p);
    return set(l, o, value, where);
}

static int read_text(struct loader *l, cp_str text, const char *path) {
    for (unsigned number = 1; text.n; number++) {
        const char *nl = memchr(text.p, '\n', text.n);
        cp_str line = {text.p, nl ? (size_t)(nl - text.p) : text.n};
        char where[512];
        snprintf(where, sizeof where, "%s:%u", path, number);
        /* a value would end there, and the rest be lost without a word */
        if (memchr(line.p, '\0', line.n)) return cp_fail(l->err, CP_E_VALIDATION_FAILED, "%s: a NUL byte", where);
        if (read_line(l, line, where) < 0) return -1;
        text.p += line.n + (nl != NULL);
        text.n -= line.n + (nl != NULL);
    }
    source_done(l);
    return 0;
}

int cp_config_text(cp_config *cfg, cp_str text, const char *path, cp_err *err) {
    struct loader l = {.cfg = cfg, .err = err};
    if (read_text(&l, text, path) < 0) return -1;
    set_defaults(&l);
    return 0;
}

static int read_config_file(struct loader *l) {
    static const char fallback[] = "/etc/conflux/conflux.conf";
    const char *path = l->config_file ? l->config_file : getenv("CONFLUX_CONFIG");
    bool asked = path && *path;
    if (!asked) path = fallback;
    cp_autofree char *text = NULL;
    size_t n;
    if (cp_read_file(path, 1 << 20, &text, &n) == 0) return read_text(l, (cp_str){text, n}, path);
    if (!asked && (errno == ENOENT || errno == ENOTDIR)) return 0;
    return cp_fail_sys(l->err, CP_E_VALIDATION_FAILED, errno, "configuration file %s", path);
}

/* ---- the token ---- */

static int take_token(cp_config *cfg, char *text, const char *where, cp_err *err) {
    size_t n = strcspn(text, "\r\n");
    bool ok = n >= 8 && n <= 4096;
    if (ok) {
        cp_sha256_of(text, n, cfg->token_sha256);
        cfg->has_token = true;
    }
    explicit_bzero(text, strlen(text));
    return ok ? 0 : cp_fail(err, CP_E_VALIDATION_FAILED, "%s: a token has 8 to 4096 characters", where);
}

static int read_token_fd(cp_config *cfg, int fd, const char *where, cp_err *err) {
    char text[4100];
    ssize_t n = cp_read_full(fd, text, sizeof text - 1);
    if (n < 0) return cp_fail_sys(err, CP_E_VALIDATION_FAILED, errno, "%s", where);
    text[n] = '\0';
    return take_token(cfg, text, where, err);
}

static int read_token(cp_config *cfg, cp_err *err) {
    char *from_env = getenv("CONFLUX_TOKEN");
    int rc = 0;
    if (cfg->token_fd >= 0) {
        cp_autofd int fd = (int)cfg->token_fd;
        rc = read_token_fd(cfg, fd, "--token-fd", err);
    } else if (cfg->token_file[0]) {
        cp_autofd int fd = open(cfg->token_file, O_RDONLY | O_CLOEXEC);
        if (fd < 0) return cp_fail_sys(err, CP_E_VALIDATION_FAILED, errno, "--token-file %s", cfg->token_file);
        rc = read_token_fd(cfg, fd, "--token-file", err);
    } else if (from_env) {
        rc = take_token(cfg, from_env, "CONFLUX_TOKEN", err); /* wipes it where /proc/self/environ would show it */
    }
    if (from_env) {
        explicit_bzero(from_env, strlen(from_env));
        unsetenv("CONFLUX_TOKEN");
    }
    return rc;
}

int cp_config_load(cp_config *cfg, char **argv, char ***cmd, cp_run *run, cp_err *err) {
    struct loader l = {.cfg = cfg, .err = err};
    *cmd = NULL;
    *run = CP_RUN_SERVE;
    if (read_argv(&l, argv, cmd, run) < 0) return -1;
    if (*run == CP_RUN_HELP) return 0;
    if (read_env(&l) < 0 || read_config_file(&l) < 0) return -1;
    set_defaults(&l);
    return read_token(cfg, err);
}

/* ---- what belongs together ---- */

static int make_dirs(const char *path, mode_t mode) {
    cp_autofree char *copy = cp_str_dup(cp_str_of(path));
    for (char *p = copy + 1; *p; p++) {
        if (*p != '/') continue;
        *p = '\0';
        if (mkdir(copy, 0755) < 0 && errno != EEXIST) return -1;
        *p = '/';
    }
    return mkdir(copy, mode) < 0 && errno != EEXIST ? -1 : 0;
}

static const char *home_dir(void) {
    const char *home = getenv("HOME");
    if (home && home[0] == '/') return home;
    const struct passwd *pw = getpwuid(getuid());
    return pw && pw->pw_dir[0] == '/' ? pw->pw_dir : "/";
}

static bool is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static void own_str(char **slot_, char *v) {
    free(*slot_);
    *slot_ = v;
}

static void default_state(cp_config *cfg) {
    if (cfg->state[0]) return;
    cp_autobuf cp_buf b = {0};
    const char *xdg = getenv("XDG_STATE_HOME");
    if (geteuid() == 0) cp_buf_addz(&b, "/var/lib/conflux");
    else if (xdg && xdg[0] == '/') cp_buf_addf(&b, "%s/conflux", xdg);
    else cp_buf_addf(&b, "%s/.local/state/conflux", home_dir());
    own_str(&cfg->state, cp_str_dup(cp_buf_str(&b)));
}

static int absolute(char **path, const char *flag, cp_err *err) {
    char *real = realpath(*path, NULL);
    if (!real) return cp_fail_sys(err, CP_E_VALIDATION_FAILED, errno, "--%s %s", flag, *path);
    own_str(path, real);
    return is_dir(real) ? 0 : cp_fail(err, CP_E_VALIDATION_FAILED, "--%s %s is not a folder", flag, real);
}

static int resolve_dirs(cp_config *cfg, cp_err *err) {
    default_state(cfg);
    if (make_dirs(cfg->state, 0700) < 0)
        return cp_fail_sys(err, CP_E_VALIDATION_FAILED, errno, "--state %s", cfg->state);
    if (!cfg->workspace[0]) {
        bool usable = is_dir("/workspace") || mkdir("/workspace", 0755) == 0;
        own_str(&cfg->workspace, cp_str_dup(cp_str_of(usable ? "/workspace" : home_dir())));
    } else if (make_dirs(cfg->workspace, 0755) < 0) {
        return cp_fail_sys(err, CP_E_VALIDATION_FAILED, errno, "--workspace %s", cfg->workspace);
    }
    if (absolute(&cfg->state, "state", err) < 0 || absolute(&cfg->workspace, "workspace", err) < 0) return -1;
    return cfg->file_root[0] ? absolute(&cfg->file_root, "file-root", err) : 0;
}

static bool one_of(const char *v, const char *const words[]) {
    for (; *words; words++)
        if (strcmp(v, *words) == 0) return true;
    return false;
}

int cp_config_resolve(cp_config *cfg, cp_err *err) {
    static const char *const levels[] = {"debug", "info", "warn", "error", NULL};
    static const char *const formats[] = {"logfmt", "json", NULL};
    if (!one_of(cfg->log_level, levels))
        return cp_fail(err, CP_E_VALIDATION_FAILED, "--log-level takes debug, info, warn or error");
    if (!one_of(cfg->log_format, formats))
        return cp_fail(err, CP_E_VALIDATION_FAILED, "--log-format takes logfmt or json");
    if (!cp_host_is_loopback(cp_str_of(cfg->host)) && !cfg->has_token && !cfg->insecure)
        return cp_fail(err, CP_E_VALIDATION_FAILED,
                       "refusing to listen on %s without a token: anybody who reaches it could run commands here "
                       "(give --token-file, --token-fd or CONFLUX_TOKEN, or say --insecure)",
                       cfg->host);
    return resolve_dirs(cfg, err);
}

static cp_log_level level_of(const char *word) {
    static const char *const words[] = {"debug", "info", "warn", "error"};
    for (unsigned i = 0; i < CP_COUNT(words); i++)
        if (strcmp(word, words[i]) == 0) return (cp_log_level)i;
    return CP_LOG_INFO;
}

void cp_config_start_log(const cp_config *cfg) {
    cp_log_setup(STDERR_FILENO, level_of(cfg->log_level), strcmp(cfg->log_format, "json") == 0);
}

void cp_config_free(cp_config *cfg) {
    for (size_t i = 0; i < NOPTIONS; i++) {
        if (options[i].kind == KIND_STR) free(*(char **)slot(cfg, &options[i]));
        if (options[i].kind != KIND_LIST) continue;
        cp_strlist *l = slot(cfg, &options[i]);
        for (size_t k = 0; k < l->n; k++) free(l->v[k]);
        free(l->v);
    }
    *cfg = (cp_config){0};
}

void cp_config_help(FILE *out) {
    for (size_t i = 0; i < NOPTIONS; i++) {
        const struct option *o = &options[i];
        char left[48], def[96] = "";
        snprintf(left, sizeof left, "--%s %s", o->flag, o->arg);
        if (o->kind == KIND_INT && o->def_int >= 0) snprintf(def, sizeof def, " (%lld)", (long long)o->def_int);
        if (o->kind == KIND_STR && o->def_str[0]) snprintf(def, sizeof def, " (%s)", o->def_str);
        fprintf(out, "  %-24s %s%s\n", left, o->help, def);
    }
    fputs("  --config FILE            read options from FILE: lines of \"option = value\"\n", out);
}

/* ---- keeper to server ---- */

static void encode_line(cp_buf *out, const char *field, const char *v) {
    cp_buf_addf(out, "%s=", field);
    for (; *v; v++) {
        if (*v == '\n') cp_buf_addz(out, "\\n");
        else if (*v == '\\') cp_buf_addz(out, "\\\\");
        else cp_buf_addc(out, *v);
    }
    cp_buf_addc(out, '\n');
}

static void encode_option(const cp_config *cfg, const struct option *o, cp_buf *out) {
    const void *p = (const char *)cfg + o->offset;
    switch (o->kind) {
    case KIND_STR: encode_line(out, o->field, *(char *const *)p); break;
    case KIND_INT: cp_buf_addf(out, "%s=%lld\n", o->field, (long long)*(const int64_t *)p); break;
    case KIND_BOOL: cp_buf_addf(out, "%s=%d\n", o->field, *(const bool *)p); break;
    case KIND_LIST:
        for (size_t i = 0; i < ((const cp_strlist *)p)->n; i++)
            encode_line(out, o->field, ((const cp_strlist *)p)->v[i]);
        break;
    }
}

void cp_config_encode(const cp_config *cfg, cp_buf *out) {
    for (size_t i = 0; i < NOPTIONS; i++) encode_option(cfg, &options[i], out);
    if (!cfg->has_token) return;
    cp_buf_addz(out, "token_sha256=");
    for (size_t i = 0; i < sizeof cfg->token_sha256; i++) cp_buf_addf(out, "%02x", cfg->token_sha256[i]);
    cp_buf_addc(out, '\n');
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int decode_token(cp_config *cfg, cp_str v, cp_err *err) {
    if (v.n != 2 * sizeof cfg->token_sha256) return cp_fail(err, CP_E_INTERNAL_ERROR, "configuration: token_sha256");
    for (size_t i = 0; i < sizeof cfg->token_sha256; i++) {
        int hi = hex_digit(v.p[2 * i]), lo = hex_digit(v.p[2 * i + 1]);
        if (hi < 0 || lo < 0) return cp_fail(err, CP_E_INTERNAL_ERROR, "configuration: token_sha256");
        cfg->token_sha256[i] = (uint8_t)(hi << 4 | lo);
    }
    cfg->has_token = true;
    return 0;
}

/* A field that this build does not know comes from a keeper of another version: left alone. */
static int decode_line(struct loader *l, cp_str line) {
    const char *eq = memchr(line.p, '=', line.n);
    if (!eq) return cp_fail(l->err, CP_E_INTERNAL_ERROR, "configuration: malformed line");
    cp_str field = {line.p, (size_t)(eq - line.p)};
    cp_autobuf cp_buf v = {0};
    for (const char *p = eq + 1; p < line.p + line.n; p++) {
        bool escaped = *p == '\\' && p + 1 < line.p + line.n;
        if (escaped) p++;
        cp_buf_addc(&v, escaped && *p == 'n' ? '\n' : *p);
    }
    if (cp_str_is(field, "token_sha256")) return decode_token(l->cfg, cp_buf_str(&v), l->err);
    for (size_t i = 0; i < NOPTIONS; i++)
        if (cp_str_is(field, options[i].field)) return set(l, &options[i], cp_buf_str(&v), "keeper");
    return 0;
}

int cp_config_decode(cp_config *cfg, cp_str text, cp_err *err) {
    struct loader l = {.cfg = cfg, .err = err};
    while (text.n) {
        const char *nl = memchr(text.p, '\n', text.n);
        size_t n = nl ? (size_t)(nl - text.p) : text.n;
        if (n && decode_line(&l, (cp_str){text.p, n}) < 0) return -1;
        text.p += n + (nl != NULL);
        text.n -= n + (nl != NULL);
    }
    source_done(&l);
    set_defaults(&l);
    return 0;
}
