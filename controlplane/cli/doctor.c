/* doctor: one check after another, each with what it found; the first that makes the rest pointless ends it. */
#include "cli/cli.h"

#include "base/clock.h"
#include "base/host.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 20 };

typedef enum { GOOD, NOTE, BAD } verdict;

typedef struct doctor {
    cli *c;
    cp_buf out;
    cp_jw w;
    unsigned bad;
} doctor;

/* `advice` NULL: nothing to do. */
static void tell(doctor *d, verdict v, const char *check, const char *found, const char *advice) {
    static const char *const marks[] = {"ok  ", "note", "BAD "}, *const words[] = {"ok", "note", "bad"};
    cp_autobuf cp_buf line = {0};
    d->bad += v == BAD;
    if (d->c->json) {
        cp_jw_obj(&d->w);
        cp_jw_kz(&d->w, "check", check);
        cp_jw_kz(&d->w, "verdict", words[v]);
        cp_jw_kz(&d->w, "found", found);
        if (advice) cp_jw_kz(&d->w, "advice", advice);
        cp_jw_end_obj(&d->w);
        return;
    }
    cp_buf_addf(&line, "%s  %-12s %s", marks[v], check, found);
    cli_put_line(&d->out, &line);
    if (!advice) return;
    cp_buf_addf(&line, "      -> %s", advice);
    cli_put_line(&d->out, &line);
}

static void check_settings(doctor *d) {
    const cli_settings *s = &d->c->set;
    char text[512];
    snprintf(text, sizeof text, "%s, mode %s%s%s%s", s->url, s->mode, s->insecure ? ", any certificate" : "",
             s->config_exists ? ", configuration " : "", s->config_exists ? s->config_path : "");
    tell(d, s->insecure ? NOTE : GOOD, "settings", text,
         s->insecure ? "--insecure trusts whoever answers: better --cacert FILE" : NULL);
}

/* Others may read what is sent there. */
static bool in_clear(const char *url) {
    if (strncmp(url, "http://", 7) != 0) return false;
    const char *host = url + 7;
    size_t n = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":/");
    return !cp_host_is_loopback((cp_str){host, n});
}

static void check_token(doctor *d) {
    const cli_settings *s = &d->c->set;
    char text[512];
    bool given_as_argument = s->token_from && strcmp(s->token_from, "--token") == 0;
    if (!s->token_from) {
        tell(d, GOOD, "token", "none", NULL);
    } else if (s->token_exposed) {
        snprintf(text, sizeof text, "from %s, which others may read", s->token_path);
        tell(d, BAD, "token", text, "chmod 600 that file");
    } else {
        snprintf(text, sizeof text, "from %s", s->token_from);
        tell(d, given_as_argument ? NOTE : GOOD, "token", text,
             given_as_argument ? "arguments show in the list of processes for a moment: better --token-file" : NULL);
    }
    if (s->token && in_clear(s->url))
        tell(d, NOTE, "secrecy", "the token travels in clear", "put TLS in front of the server and use https");
}

static const char *advice_for(conflux_kind kind) {
    switch (kind) {
    case CONFLUX_E_CONNECT: return "is \"conflux serve\" running there, is the port right, does a firewall allow it?";
    case CONFLUX_E_CONNECT_TIMEOUT: return "nothing answers: a firewall, or the wrong address";
    case CONFLUX_E_TLS: return "--cacert FILE names the authority of its certificate; the name in it must be the URL's";
    case CONFLUX_E_UNAUTHORIZED: return "compare the token with the server's (--token-file, CONFLUX_TOKEN)";
    case CONFLUX_E_UPGRADE: return "let the proxy pass Upgrade and Connection on; until then --mode http works";
    default: return "conflux doctor -v shows what was sent and received";
    }
}

/* True: this way of getting there works. */
static bool check_mode(doctor *d, conflux_mode mode, const char *check, verdict otherwise) {
    conflux_options o = cli_client_options(d->c);
    conflux_error err;
    o.mode = mode;
    conflux_client *client = conflux_client_new(&o, &err);
    int rc = client ? conflux_connect(client, &err) : -1;
    if (rc == 0) tell(d, GOOD, check, "connected", NULL);
    else tell(d, otherwise, check, err.message, advice_for(err.kind));
    conflux_client_free(client);
    return rc == 0;
}

static void check_version(doctor *d) {
    cli_autoanswer cli_answer a = {0};
    conflux_error err;
    char text[128];
    if (cli_try(d->c, &(conflux_request){.path = "/api/version"}, &a, &err) < 0) {
        tell(d, BAD, "version", err.message, advice_for(err.kind));
        return;
    }
    const char *version = cli_str(a.root, "version");
    bool same = strcmp(version, CONFLUX_VERSION) == 0;
    snprintf(text, sizeof text, "server %.60s, ours " CONFLUX_VERSION, version);
    tell(d, same ? GOOD : NOTE, "version", text,
         same ? NULL : "the same version on both sides knows the same commands");
}

static void check_ready(doctor *d) {
    cli_autoanswer cli_answer a = {0};
    conflux_error err;
    char text[256] = "lacks";
    size_t i, n;
    yyjson_val *key, *ok;
    if (cli_try(d->c, &(conflux_request){.path = "/readyz"}, &a, &err) == 0) {
        tell(d, GOOD, "readiness", "ready", NULL);
        return;
    }
    cp_autodoc yyjson_doc *doc = cp_json_parse((cp_str){a.rs.body, a.rs.body_len}, NULL);
    yyjson_val *checks = yyjson_obj_get(yyjson_doc_get_root(doc), "checks");
    yyjson_obj_foreach(checks, i, n, key, ok) {
        size_t at = strlen(text);
        if (!yyjson_is_true(ok)) snprintf(text + at, sizeof text - at, " %.40s", yyjson_get_str(key));
    }
    tell(d, BAD, "readiness", checks ? text : err.message, checks ? "look at the server's log and its disk" : NULL);
}

static int by_value(const void *a, const void *b) {
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void check_round_trip(doctor *d) {
    uint64_t us[ROUNDS];
    char text[128];
    conflux_error err;
    for (size_t i = 0; i < ROUNDS; i++) {
        cli_autoanswer cli_answer a = {0};
        uint64_t began = cp_now_us();
        if (cli_try(d->c, &(conflux_request){.path = "/api/ping"}, &a, &err) < 0) {
            tell(d, BAD, "round trip", err.message, advice_for(err.kind));
            return;
        }
        us[i] = cp_now_us() - began;
    }
    qsort(us, ROUNDS, sizeof *us, by_value);
    uint64_t median = us[ROUNDS / 2], longest = us[ROUNDS - 1];
    snprintf(text, sizeof text, "median %.2f ms, longest %.2f ms, over %s", (double)median / 1000,
             (double)longest / 1000, conflux_mode_name(conflux_get_mode(d->c->client)));
    tell(d, GOOD, "round trip", text, NULL);
}

/* Up from a command's shell to the keeper: is the file that its token was read from open to commands? */
static const char exposure_script[] =
    "p=$$; f=\n"
    "while [ \"$p\" -gt 0 ] && [ -r /proc/$p/cmdline ]; do\n"
    "  mapfile -d '' -t a </proc/$p/cmdline\n"
    "  if [[ ${a[0]} == *conflux && ${a[1]} == serve ]]; then\n"
    "    for ((i = 2; i < ${#a[@]}; i++)); do case ${a[i]} in --) break;; --token-file) f=${a[i+1]};;"
    " --token-file=*) f=${a[i]#*=};; esac; done\n"
    "    [[ $f == /* || -z $f ]] || f=/proc/$p/cwd/$f\n"
    "    break\n"
    "  fi\n"
    "  while read -r k v; do [ \"$k\" = PPid: ] && n=$v; done </proc/$p/status; p=$n\n"
    "done\n"
    "[ -z \"$f\" ] || [ ! -r \"$f\" ] || printf %s \"$f\"";

static void check_exposure(doctor *d) {
    cp_autobuf cp_buf body = {0};
    cli_autoanswer cli_answer a = {0};
    conflux_error err;
    char text[512];
    cp_jw w = cli_body_begin(d->c, &body);
    cp_jw_kz(&w, "command", exposure_script);
    cp_jw_ku64(&w, "timeoutMs", 10000);
    cp_jw_end_obj(&w);
    conflux_request rq = {.path = "/api/execute", .body = body.p, .body_len = body.n};
    if (cli_try(d->c, &rq, &a, &err) < 0) {
        tell(d, BAD, "commands", err.message, "a command could not be run there");
        return;
    }
    tell(d, GOOD, "commands", "run", NULL);
    const char *file = cli_str(a.root, "stdout");
    if (!*file) return;
    snprintf(text, sizeof text, "commands there can read its token file %.400s", file);
    tell(d, NOTE, "exposure", text,
         "run commands as another user (conflux serve --child-user), or give the token by --token-fd");
}

static void check_server(doctor *d) {
    bool http = check_mode(d, CONFLUX_HTTP, "HTTP", BAD);
    bool wanted = strcmp(d->c->set.mode, "http") != 0;
    bool ws = http && wanted &&
              check_mode(d, CONFLUX_WEBSOCKET, "WebSocket", strcmp(d->c->set.mode, "websocket") == 0 ? BAD : NOTE);
    if (!http || (!ws && strcmp(d->c->set.mode, "websocket") == 0)) return;
    check_version(d);
    check_ready(d);
    check_round_trip(d);
    check_exposure(d);
}

int cli_cmd_doctor(cli *c) {
    doctor d = {.c = c};
    d.w = cp_jw_on(&d.out);
    if (c->json) {
        cp_jw_obj(&d.w);
        cp_jw_key(&d.w, "checks");
        cp_jw_arr(&d.w);
    }
    check_settings(&d);
    check_token(&d);
    if (cli_client(c)) check_server(&d);
    if (c->json) {
        cp_jw_end_arr(&d.w);
        cp_jw_kbool(&d.w, "success", d.bad == 0);
        cp_jw_end_obj(&d.w);
    }
    int rc = c->json ? cli_out_json(cp_buf_str(&d.out)) : cli_out(&d.out);
    cp_buf_free(&d.out);
    return rc ? rc : d.bad ? CLI_REFUSED : CLI_OK;
}
