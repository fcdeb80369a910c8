#include "cli/follow.h"

#include <stdio.h>

typedef struct round {
    char last[64];
    bool heard;
    cli_patience patience;
    conflux_error err;
} round;

static conflux_stream *open_stream(cli *c, const cli_follower *f, round *r) {
    cp_autobuf cp_buf path = {0};
    conflux_request rq = {.idle_timeout_ms = CONFLUX_NO_TIMEOUT, .timeout_ms = cli_patience_ms(&r->patience, 0)};
    f->path(f->arg, r->last, &path);
    rq.path = cp_buf_z(&path);
    if (f->body) rq.body = f->body->p, rq.body_len = f->body->n;
    return conflux_fetch_stream(c->client, &rq, &r->err);
}

/* CLI_OK: the connection's end, as r->err says. */
static int follow_once(cli *c, const cli_follower *f, round *r) {
    conflux_event ev;
    int status = CLI_OK;
    r->heard = false;
    r->err = (conflux_error){.kind = CONFLUX_E_CONNECTION_LOST, .message = "the stream ended early"};
    conflux_stream *s = open_stream(c, f, r);
    while (s && !status && conflux_stream_next(s, &ev, &r->err) > 0) {
        cp_autodoc yyjson_doc *doc = cp_json_parse((cp_str){ev.data, ev.len}, NULL);
        if (ev.id) snprintf(r->last, sizeof r->last, "%s", ev.id);
        r->heard = true;
        status = f->event(f->arg, yyjson_doc_get_root(doc), &ev);
    }
    conflux_stream_free(s);
    return status;
}

int cli_follow(cli *c, const cli_follower *f) {
    round r = {0};
    bool ever = false;
    if (!cli_client(c) || cli_reconnect_ms(c, &r.patience.limit_ms)) return CLI_FAILED;
    for (;;) {
        int status = follow_once(c, f, &r);
        if (status) return status == CLI_ENOUGH ? CLI_OK : status;
        ever |= r.heard;
        if (r.heard) cli_patience_over(&r.patience);
        if (f->again && ever && cli_is_lost(&r.err) && cli_patience_left(&r.patience)) continue;
        if (ever && cli_is_lost(&r.err)) r.err.kind = CONFLUX_E_CONNECTION_LOST;
        return cli_report(c, &r.err);
    }
}
