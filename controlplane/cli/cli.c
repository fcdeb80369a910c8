#include "cli/cli.h"

#include "base/clock.h"
#include "base/utf8.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* ---- the server ---- */

static void on_log(void *arg, const char *line) {
    (void)arg;
    cli_warn("%s", line);
}

static conflux_mode mode_of(const char *word) {
    if (strcmp(word, "websocket") == 0) return CONFLUX_WEBSOCKET;
    return strcmp(word, "http") == 0 ? CONFLUX_HTTP : CONFLUX_AUTO;
}

conflux_options cli_client_options(const cli *c) {
    return (conflux_options){.url = c->set.url,
                             .token = c->set.token,
                             .mode = mode_of(c->set.mode),
                             .ca_file = c->set.cacert,
                             .insecure = c->set.insecure,
                             .connect_timeout_ms = (uint32_t)c->set.connect_timeout_ms,
                             .backoff_max_ms = 2000, /* somebody is watching */
                             .on_log = cli_flag(&c->args, CLI_OPT_verbose) ? on_log : NULL};
}

conflux_client *cli_client(cli *c) {
    conflux_options o = cli_client_options(c);
    conflux_error err;
    if (c->client) return c->client;
    c->client = conflux_client_new(&o, &err);
    if (!c->client) cli_fail("%s: %s", c->set.url, err.message);
    return c->client;
}

bool cli_is_lost(const conflux_error *err) {
    switch (err->kind) {
    case CONFLUX_E_CONNECTION_LOST:
    case CONFLUX_E_CONNECT:
    case CONFLUX_E_CONNECT_TIMEOUT:
    case CONFLUX_E_REQUEST_TIMEOUT:
    case CONFLUX_E_IDLE_TIMEOUT: return true;
    case CONFLUX_E_SERVER: return strcmp(err->code, "OPERATION_INTERRUPTED") == 0; /* it goes, another may come */
    default: return false;
    }
}

static bool runs_commands(const cli *c) {
    const cli_command *cmd = c->args.cmd;
    return cmd == &cli_commands[CLI_CMD_exec] || cmd == &cli_commands[CLI_CMD_run];
}

static int report_refusal(const cli *c, const conflux_error *err) {
    cli_fail("%s%s%s%s", err->message, *err->code ? " (" : "", err->code, *err->code ? ")" : "");
    if (!runs_commands(c)) return CLI_REFUSED;
    if (strcmp(err->code, "COMMAND_NOT_FOUND") == 0) return CLI_NO_COMMAND;
    return strcmp(err->code, "COMMAND_PERMISSION_DENIED") == 0 ? CLI_CANNOT_RUN : CLI_FAILED;
}

int cli_report(const cli *c, const conflux_error *err) {
    const char *url = c->set.url;
    switch (err->kind) {
    case CONFLUX_E_SERVER: return report_refusal(c, err);
    case CONFLUX_E_CONNECT:
        return cli_fail("cannot reach %s: %s; is \"conflux serve\" running there?", url, err->message);
    case CONFLUX_E_CONNECT_TIMEOUT: return cli_fail("cannot reach %s: %s", url, err->message);
    case CONFLUX_E_TLS: return cli_fail("no trust in %s: %s (--cacert FILE names its authority)", url, err->message);
    case CONFLUX_E_UPGRADE: return cli_fail("no WebSocket at %s: %s (--mode http does without)", url, err->message);
    case CONFLUX_E_UNAUTHORIZED:
        cli_fail("%s lets us not in: %s (%s)", url, err->message,
                 c->set.token_from ? "is it the right token?" : "--token-file FILE or CONFLUX_TOKEN gives the token");
        return runs_commands(c) ? CLI_FAILED : CLI_REFUSED;
    case CONFLUX_E_CONNECTION_LOST:
    case CONFLUX_E_REQUEST_TIMEOUT:
    case CONFLUX_E_IDLE_TIMEOUT: cli_fail("connection to %s lost: %s", url, err->message); return CLI_LOST;
    default: return cli_fail("%s: %s", url, err->message);
    }
}

int cli_reconnect_ms(const cli *c, uint64_t *ms) {
    cp_err err;
    *ms = 60000;
    return cli_duration_of(&c->args, CLI_OPT_reconnect, ms, &err) < 0 ? cli_fail("%s", err.msg) : 0;
}

bool cli_patience_left(cli_patience *p) {
    enum { FIRST_MS = 50, MOST_MS = 1000 };
    uint64_t now = cp_now_ms();
    if (!p->since) p->since = now;
    if (now - p->since >= p->limit_ms) return false;
    uint64_t left = p->limit_ms - (now - p->since), pause = p->pause_ms < left ? p->pause_ms : left;
    poll(NULL, 0, (int)pause);
    p->pause_ms = p->pause_ms ? 2 * p->pause_ms : FIRST_MS;
    if (p->pause_ms > MOST_MS) p->pause_ms = MOST_MS;
    return true;
}

uint32_t cli_patience_ms(const cli_patience *p, uint32_t otherwise) {
    if (!p->since) return otherwise;
    uint64_t gone = cp_now_ms() - p->since;
    return (uint32_t)(gone + 1000 < p->limit_ms ? p->limit_ms - gone : 1000);
}

/* ---- answers ---- */

void cli_answer_free(cli_answer *a) {
    yyjson_doc_free(a->doc);
    conflux_response_free(&a->rs);
    *a = (cli_answer){0};
}

static int unexpected(conflux_error *err, const char *what) {
    *err = (conflux_error){.kind = CONFLUX_E_PROTOCOL};
    snprintf(err->message, sizeof err->message, "%s", what);
    return -1;
}

int cli_try(cli *c, const conflux_request *rq, cli_answer *a, conflux_error *err) {
    cp_err why;
    *a = (cli_answer){0};
    conflux_client *client = cli_client(c);
    if (!client) return unexpected(err, "no client");
    if (conflux_fetch(client, rq, &a->rs, err) < 0 || conflux_check(&a->rs, err) < 0) return -1;
    a->doc = cp_json_parse((cp_str){a->rs.body, a->rs.body_len}, &why);
    a->root = yyjson_doc_get_root(a->doc);
    return yyjson_is_obj(a->root) ? 0 : unexpected(err, "the answer is not that of a Conflux server");
}

int cli_try_again(cli *c, const conflux_request *rq, cli_answer *a, conflux_error *err) {
    cli_patience p = {0};
    if (cli_reconnect_ms(c, &p.limit_ms)) return unexpected(err, "bad --reconnect");
    for (;;) {
        conflux_request now = *rq;
        now.timeout_ms = cli_patience_ms(&p, rq->timeout_ms);
        if (cli_try(c, &now, a, err) == 0) return 0;
        if (err->kind != CONFLUX_E_CONNECTION_LOST && !p.since) return -1;
        if (!cli_is_lost(err) || !cli_patience_left(&p)) return -1;
        cli_answer_free(a);
    }
}

int cli_ask(cli *c, const conflux_request *rq, cli_answer *a) {
    conflux_error err;
    if (!cli_client(c)) return CLI_FAILED;
    return cli_try(c, rq, a, &err) == 0 ? CLI_OK : cli_report(c, &err);
}

int cli_get(cli *c, const char *path, cli_answer *a) {
    conflux_request rq = {.path = path};
    return cli_ask(c, &rq, a);
}

int cli_post(cli *c, const char *path, cp_buf *body, cli_answer *a) {
    conflux_request rq = {.path = path, .body = body->p, .body_len = body->n};
    return cli_ask(c, &rq, a);
}

const char *cli_str(yyjson_val *obj, const char *key) {
    const char *z = yyjson_get_str(yyjson_obj_get(obj, key));
    return z ? z : "";
}

int64_t cli_num(yyjson_val *obj, const char *key) {
    int64_t v = 0;
    cp_json_int(obj, key, INT64_MIN, INT64_MAX, &v, NULL);
    return v;
}

void cli_num_text(yyjson_val *obj, const char *key, char out[24]) {
    out[0] = '\0';
    if (yyjson_is_num(yyjson_obj_get(obj, key))) snprintf(out, 24, "%lld", (long long)cli_num(obj, key));
}

/* ---- requests ---- */

int cli_check_utf8(const char *what, const char *text) {
    if (cp_utf8_valid(text, strlen(text))) return 0;
    return cli_fail("%s is not UTF-8, which it must be to be sent: \"%s\"", what, text);
}

/* A path segment or the value of a query, percent-encoded. */
static void add_encoded(cp_buf *out, const char *text) {
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:@";
    for (; *text; text++) {
        if (strchr(plain, *text)) cp_buf_addc(out, *text);
        else cp_buf_addf(out, "%%%02X", (unsigned char)*text);
    }
}

void cli_query_add(cp_buf *out, const char *name, const char *value) {
    if (!value) return;
    cp_buf_addf(out, "%c%s=", out->n && memchr(out->p, '?', out->n) ? '&' : '?', name);
    add_encoded(out, value);
}

void cli_path(cp_buf *out, const char *before, const char *id, const char *behind) {
    cp_buf_clear(out);
    cp_buf_addz(out, before);
    add_encoded(out, id);
    cp_buf_addz(out, behind);
    cp_buf_z(out);
}

cp_jw cli_body_begin(const cli *c, cp_buf *out) {
    cp_buf_clear(out);
    cp_jw w = cp_jw_on(out);
    cp_jw_obj(&w);
    cp_jw_kz(&w, "sessionId", cli_session(c));
    return w;
}

cp_jw cli_path_body(const cli *c, cp_buf *out, const char *path) {
    cp_jw w = cli_body_begin(c, out);
    cp_jw_kz(&w, "path", path);
    return w;
}

/* ---- printing ---- */

int cli_put(int fd, const void *data, size_t n) {
    for (const char *p = data; n;) {
        ssize_t k = write(fd, p, n);
        if (k > 0) {
            p += k;
            n -= (size_t)k;
        } else if (k < 0 && errno == EAGAIN) { /* somebody else made it non-blocking: it may be a terminal we share */
            struct pollfd wait = {.fd = fd, .events = POLLOUT};
            poll(&wait, 1, -1);
        } else if (k < 0 && errno != EINTR) {
            if (errno == ECONNRESET) errno = EPIPE; /* stdout may be a socket, whose reader left with bytes unread */
            return -1;
        }
    }
    return 0;
}

int cli_write(int fd, const void *p, size_t n) {
    if (cli_put(fd, p, n) == 0) return 0;
    if (errno == EPIPE) { /* our parent has us ignore SIGPIPE */
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
    }
    cli_fail("cannot write to %s: %s", fd == STDOUT_FILENO ? "stdout" : "stderr", strerror(errno));
    return -1;
}

int cli_out(cp_buf *text) {
    int rc = cli_write(STDOUT_FILENO, text->p, text->n);
    cp_buf_clear(text);
    return rc < 0 ? CLI_FAILED : CLI_OK;
}

bool cli_terminal(void) { return isatty(STDOUT_FILENO); }

void cli_json_line(cp_buf *out, cp_str json) {
    if (cli_terminal()) cli_clean_json(out, json);
    else cp_buf_add(out, json.p, json.n);
    cp_buf_addc(out, '\n');
}

int cli_out_json(cp_str json) {
    cp_autobuf cp_buf b = {0};
    cli_json_line(&b, json);
    return cli_out(&b);
}

int cli_out_answer(const cli_answer *a) { return cli_out_json((cp_str){a->rs.body, a->rs.body_len}); }

size_t cli_width(void) {
    struct winsize w;
    return cli_terminal() && ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 ? w.ws_col : 0;
}

void cli_put_name(cp_buf *out, const char *name) {
    if (cli_terminal()) cli_clean(out, cp_str_of(name));
    else cp_buf_addz(out, name);
}

void cli_put_line(cp_buf *out, cp_buf *line) {
    cli_put_name(out, cp_buf_z(line));
    cp_buf_addc(out, '\n');
    cp_buf_clear(line);
}
