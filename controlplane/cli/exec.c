/* conflux exec. One execution with an id of ours, so that it is started at most once; its output comes as a stream of
 * events with offsets. When the connection is lost, the stream is asked for again from where it stopped: nothing is
 * missing, nothing comes twice, and no exit status is made up. */
#include "base/fd.h"
#include "cli/command.h"
#include "cli/feed.h"
#include "cli/interrupt.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct exec_run {
    cli *c;
    char id[132];
    cp_buf body;
    bool begun;         /* the server has it: what follows is asked for by id */
    bool asked;         /* it may have it: a connection was lost behind the request */
    char last[64];      /* where its output goes on; "": at the beginning */
    bool base64, heard; /* heard: an event came on this connection */
    bool ended;
    int status;       /* then */
    uint64_t dropped; /* bytes that the server did not keep */
    int write_error;  /* errno: our own stdout or stderr takes no more */
    cp_buf bytes;
    cli_patience patience;
    cli_interrupt interrupt;
    cli_feed feed;
} exec_run;

/* ---- events ---- */

/* What the terminal event leaves open: the shell of the session ended, or how it ended is not known. */
static int status_by_id(exec_run *r) {
    cp_autobuf cp_buf path = {0};
    cli_autoanswer cli_answer a = {0};
    conflux_error err;
    cli_path(&path, "/api/execution/", r->id, "");
    if (cli_try_again(r->c, &(conflux_request){.path = path.p}, &a, &err) == 0) return (int)cli_num(a.root, "exitCode");
    cp_autodoc yyjson_doc *doc = cp_json_parse((cp_str){a.rs.body, a.rs.body_len}, NULL);
    yyjson_val *code = yyjson_obj_get(yyjson_obj_get(yyjson_doc_get_root(doc), "context"), "exitCode");
    int status = cli_report(r->c, &err);
    if (strcmp(err.code, "EXECUTION_LOST") == 0) return CLI_LOST;
    return yyjson_is_int(code) ? (int)yyjson_get_int(code) : status;
}

/* What is left of a command whose parts were ended may well end with 0: it was not done all the same. */
static int status_of(exec_run *r, yyjson_val *ev) {
    yyjson_val *code = yyjson_obj_get(ev, "exitCode");
    int sig = atomic_load(&r->interrupt.passed);
    if (yyjson_is_true(yyjson_obj_get(ev, "timedOut"))) return CLI_TIMED_OUT;
    if (!yyjson_is_int(code)) return status_by_id(r);
    if (yyjson_get_int(code) == 0 && strcmp(cli_str(ev, "outcome"), "cancelled") == 0)
        return sig ? 128 + sig : cli_fail("the command was cancelled");
    return (int)yyjson_get_int(code);
}

static void on_complete(exec_run *r, yyjson_val *ev) {
    r->ended = true;
    r->status = status_of(r, ev);
    if (!r->dropped) return;
    cli_warn("%llu bytes of its output were not kept by the server%s", (unsigned long long)r->dropped,
             cli_opt(r->c, CLI_OPT_session) ? " (--stream has no such limit)" : "");
    if (!r->status) r->status = CLI_FAILED;
}

static int put(exec_run *r, int fd, const char *p, size_t n) {
    if (cli_put(fd, p, n) == 0) return 0;
    r->write_error = errno;
    return -1;
}

static int on_output(exec_run *r, yyjson_val *ev, int fd) {
    yyjson_val *data = yyjson_obj_get(ev, "data");
    cp_buf_clear(&r->bytes);
    if (!yyjson_is_str(data) || cp_base64_decode(&r->bytes, (cp_str){yyjson_get_str(data), yyjson_get_len(data)}) < 0)
        return r->write_error = EPROTO, -1;
    return put(r, fd, r->bytes.p, r->bytes.n);
}

static int put_json(exec_run *r, const conflux_event *ev) {
    cp_buf_clear(&r->bytes);
    cli_json_line(&r->bytes, (cp_str){ev->data, ev->len});
    return put(r, STDOUT_FILENO, r->bytes.p, r->bytes.n);
}

static void on_start(exec_run *r, conflux_stream *s, yyjson_val *ev) {
    const char *process_id = cli_str(ev, "processId");
    r->begun = true;
    cli_interrupt_process(&r->interrupt, process_id);
    cli_feed_attach(&r->feed, s, process_id);
}

static int on_event(exec_run *r, conflux_stream *s, const conflux_event *got) {
    cp_autodoc yyjson_doc *doc = cp_json_parse((cp_str){got->data, got->len}, NULL);
    yyjson_val *ev = yyjson_doc_get_root(doc);
    const char *type = cli_str(ev, "type");
    r->heard = true;
    if (got->id) snprintf(r->last, sizeof r->last, "%s", got->id);
    if (strcmp(type, "start") == 0) on_start(r, s, ev);
    if (strcmp(type, "dropped") == 0) r->dropped += (uint64_t)cli_num(ev, "bytes");
    if (strcmp(type, "complete") == 0) on_complete(r, ev);
    if (r->c->json) return put_json(r, got);
    if (strcmp(type, "stdout") == 0) return on_output(r, ev, STDOUT_FILENO);
    return strcmp(type, "stderr") == 0 ? on_output(r, ev, STDERR_FILENO) : 0;
}

/* ---- the stream ---- */

static conflux_stream *open_stream(exec_run *r, conflux_error *err) {
    cp_autobuf cp_buf path = {0}, query = {0};
    conflux_request rq = {.idle_timeout_ms = CONFLUX_NO_TIMEOUT,
                          .timeout_ms = cli_patience_ms(&r->patience, CONFLUX_NO_TIMEOUT)};
    if (r->begun) {
        cp_buf_addf(&query, "/stream?from=%s%s", *r->last ? r->last : "0", r->base64 ? "&encoding=base64" : "");
        cli_path(&path, "/api/execution/", r->id, cp_buf_z(&query));
        rq.path = path.p;
    } else {
        rq.path = "/api/execute/stream";
        rq.body = r->body.p;
        rq.body_len = r->body.n;
        rq.execution_id = r->id;
    }
    return conflux_fetch_stream(r->c->client, &rq, err);
}

/* One connection's worth. 0: it ended as it should; -1 with *err. *whole: all of the input given so far has arrived. */
static int follow(exec_run *r, conflux_error *err, bool *whole) {
    conflux_event ev;
    int rc = -1;
    *whole = true;
    conflux_stream *s = open_stream(r, err);
    if (!s) return -1;
    while (!r->write_error && (rc = conflux_stream_next(s, &ev, err)) > 0) on_event(r, s, &ev);
    if (r->write_error) conflux_stream_cancel(s, 1); /* else input may wait for ever to be taken */
    *whole = cli_feed_detach(&r->feed, s);
    conflux_stream_free(s);
    return rc;
}

/* A session runs its commands in its own shell only for calls that wait for the result. This one does not wait: the
 * output is followed by the execution's id. */
static int begin_in_session(exec_run *r) {
    cli_autoanswer cli_answer a = {0};
    conflux_error err;
    conflux_request rq = {
        .path = "/api/execute", .body = r->body.p, .body_len = r->body.n, .execution_id = r->id, .idempotent = 1};
    if (cli_try_again(r->c, &rq, &a, &err) < 0) return cli_report(r->c, &err);
    r->begun = true;
    return CLI_OK;
}

/* ---- ends ---- */

/* Nobody reads its output any more: it ends with all its descendants, as by SIGPIPE. */
static int end_remote(exec_run *r) {
    cp_autobuf cp_buf path = {0};
    cli_autoanswer cli_answer a = {0};
    conflux_error err;
    cli_path(&path, "/api/execution/", r->id, "?graceMs=500");
    cli_try(r->c, &(conflux_request){.method = "DELETE", .path = path.p, .timeout_ms = 10000}, &a, &err);
    if (r->write_error == EPIPE) {
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
    }
    return cli_fail("cannot write the output: %s", strerror(r->write_error));
}

static int lost(exec_run *r, const conflux_error *err, const char *why) {
    cli_warn("connection to %s lost: %s%s", r->c->set.url, err->message, why);
    cli_warn("the command may still run: conflux logs --from %s %s prints the rest, conflux wait %s waits for its end",
             *r->last ? r->last : "0", r->id, r->id);
    return CLI_LOST;
}

static bool never_there(const exec_run *r, const conflux_error *err) {
    return !r->begun && !r->asked && (err->kind == CONFLUX_E_CONNECT || err->kind == CONFLUX_E_CONNECT_TIMEOUT);
}

static int run(exec_run *r) {
    static const char unsure[] = "; how much of the input has arrived is not known";
    if (cli_reconnect_ms(r->c, &r->patience.limit_ms)) return CLI_FAILED;
    for (;;) {
        conflux_error err = {.kind = CONFLUX_E_CONNECTION_LOST, .message = "the stream ended early"}, input;
        bool whole;
        r->heard = false;
        int rc = follow(r, &err, &whole);
        if (r->ended) return r->status;
        if (r->write_error) return end_remote(r);
        if (cli_feed_broken(&r->feed, &input)) return lost(r, &input, unsure);
        if (rc < 0 && (!cli_is_lost(&err) || never_there(r, &err))) return cli_report(r->c, &err);
        if (!whole) return lost(r, &err, unsure);
        r->asked = true;
        if (r->heard) cli_patience_over(&r->patience);
        if (!r->patience.since && isatty(STDERR_FILENO)) cli_warn("connection lost (%s), trying again", err.message);
        if (!cli_patience_left(&r->patience)) return lost(r, &err, "");
    }
}

/* /dev/null is what the command has without us. */
static bool is_null(int fd) {
    struct stat st, null;
    return fstat(fd, &st) == 0 && stat("/dev/null", &null) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == null.st_rdev;
}

static bool wants_input(const cli *c) {
    if (cli_flag(&c->args, CLI_OPT_no_input) || is_null(STDIN_FILENO)) return false;
    return cli_flag(&c->args, CLI_OPT_input) || !isatty(STDIN_FILENO);
}

/* A session's own commands are no processes, and over HTTP only processes have a way in: their input goes with the
 * request, whole. CLI_OK: it is in the body, or (*input stays true) there is a WebSocket for it. */
static int put_input(exec_run *r, cp_jw *w, bool in_session, bool *input) {
    enum { MOST = 16 * 1024 * 1024 };
    conflux_error err;
    if (!*input) return CLI_OK;
    if (in_session && conflux_connect(r->c->client, &err) < 0) return cli_report(r->c, &err);
    if (!in_session || conflux_get_mode(r->c->client) != CONFLUX_HTTP) {
        cp_jw_kz(w, "stdin", "open");
        return CLI_OK;
    }
    *input = false;
    cp_buf_reserve(&r->bytes, MOST + 1);
    ssize_t n = cp_read_full(STDIN_FILENO, r->bytes.p, MOST + 1);
    if (n < 0) return cli_fail("cannot read stdin: %s", strerror(errno));
    if (n > MOST)
        return cli_fail("over HTTP a session's command takes 16 MiB of input at most (--stream has no limit)");
    cp_jw_kz(w, "stdinEncoding", "base64");
    cp_jw_key(w, "stdin");
    cp_jw_base64(w, r->bytes.p, (size_t)n);
    return CLI_OK;
}

/* Mistakes of ours are found before anybody is asked. */
static int prepare(exec_run *r, bool in_session, bool *input) {
    cp_jw w;
    cli_choose_id(r->c, r->id);
    int rc = cli_command_body(r->c, &w, &r->body);
    if (!rc && !cli_client(r->c)) rc = CLI_FAILED;
    if (!rc) rc = put_input(r, &w, in_session, input);
    if (rc) return rc;
    r->base64 = !r->c->json || cli_flag(&r->c->args, CLI_OPT_base64);
    if (r->base64) cp_jw_kz(&w, "encoding", "base64");
    if (in_session) cp_jw_ku64(&w, "detachAfterMs", 0);
    cp_jw_end_obj(&w);
    return CLI_OK;
}

static int run_all(exec_run *r, bool input, bool in_session) {
    signal(SIGPIPE, SIG_IGN);
    int rc = cli_interrupt_start(&r->interrupt, r->c, r->id);
    if (!rc && input) rc = cli_feed_start(&r->feed, r->c, STDIN_FILENO);
    if (!rc && in_session) rc = begin_in_session(r);
    if (!rc) rc = run(r);
    cli_feed_stop(&r->feed);
    cli_interrupt_stop(&r->interrupt);
    return rc;
}

int cli_cmd_exec(cli *c) {
    exec_run *r = cp_new(exec_run);
    bool input = wants_input(c), in_session = cli_opt(c, CLI_OPT_session) && !cli_flag(&c->args, CLI_OPT_beside);
    r->c = c;
    int rc = prepare(r, in_session, &input);
    if (!rc) rc = run_all(r, input, in_session);
    cp_buf_free(&r->body);
    cp_buf_free(&r->bytes);
    free(r);
    return rc;
}
