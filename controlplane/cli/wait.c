/* wait: asked again and again, a while each time, so that a lost connection costs one question and not the answer. */
#include "cli/target.h"

#include "base/clock.h"

#include <stdio.h>

enum { ASK_MS = 20000 };

static int read_query(const cli *c, cp_buf *query) {
    const char *what = cli_opt(c, CLI_OPT_until), *pattern = cli_opt(c, CLI_OPT_pattern),
               *port = cli_opt(c, CLI_OPT_port);
    if (!what) what = pattern ? "log" : port ? "port" : "exit";
    bool log = strcmp(what, "log") == 0;
    if (log != (pattern != NULL)) return cli_fail("--for log goes with --pattern TEXT");
    if ((strcmp(what, "port") == 0) != (port != NULL)) return cli_fail("--for port goes with --port PORT");
    cli_query_add(query, "for", what);
    cli_query_add(query, "pattern", pattern);
    cli_query_add(query, "port", port);
    cli_query_add(query, "stream", cli_opt(c, CLI_OPT_stream_of));
    cli_query_add(query, "regex", cli_flag(&c->args, CLI_OPT_regex) ? "1" : NULL);
    cp_buf_z(query);
    return CLI_OK;
}

static void put_result(yyjson_val *root, cp_buf *out) {
    yyjson_val *line = yyjson_obj_get(root, "line"), *port = yyjson_obj_get(root, "port");
    yyjson_val *p = yyjson_obj_get(root, "process");
    if (line) cli_put_name(out, yyjson_get_str(line));
    else if (port) cp_buf_addf(out, "%lld", (long long)yyjson_get_sint(port));
    else cp_buf_addf(out, "%lld", (long long)cli_num(p ? p : root, "exitCode"));
    cp_buf_addc(out, '\n');
}

static int print_result(const cli *c, const cli_answer *a) {
    cp_autobuf cp_buf out = {0};
    if (c->json) return cli_out_answer(a);
    put_result(a->root, &out);
    return cli_out(&out);
}

/* One question. 1: not yet; 0: answered, *status says how. */
static int ask(cli *c, const char *path, const char *query, bool process, uint64_t ms, int *status) {
    cp_autobuf cp_buf full = {0};
    cli_autoanswer cli_answer a = {0};
    conflux_error err;
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)ms);
    cp_buf_addf(&full, "%s%s%s", path, process ? "/wait" : "", process ? query : "");
    cli_query_add(&full, process ? "timeoutMs" : "waitMs", text);
    conflux_request rq = {.path = cp_buf_z(&full), .timeout_ms = ASK_MS + 30000};
    if (cli_try_again(c, &rq, &a, &err) < 0) {
        if (strcmp(err.code, "PROCESS_READY_TIMEOUT") == 0) return 1;
        *status = cli_report(c, &err);
        return 0;
    }
    if (a.rs.status == 202) return 1;
    *status = print_result(c, &a);
    return 0;
}

int cli_cmd_wait(cli *c) {
    cp_autobuf cp_buf path = {0}, query = {0};
    uint64_t timeout = UINT64_MAX, began = cp_now_ms(), left;
    cp_err err;
    if (cli_duration_of(&c->args, CLI_OPT_timeout, &timeout, &err) < 0) return cli_fail("%s", err.msg);
    int rc = read_query(c, &query);
    if (!rc) rc = cli_target_path(c, c->args.operands[0], &path);
    if (rc) return rc;
    bool process = cp_str_starts(cp_buf_str(&path), CP_STR("/api/process/"));
    if (!process && !strstr(query.p, "for=exit")) return cli_fail("only a process has logs and ports to wait for");
    do {
        uint64_t gone = cp_now_ms() - began;
        left = gone < timeout ? timeout - gone : 1;
        if (!ask(c, path.p, query.p, process, left < ASK_MS ? left : ASK_MS, &rc)) return rc;
    } while (left > 1);
    cli_fail("it did not happen within %s", cli_opt(c, CLI_OPT_timeout));
    return CLI_TIMED_OUT;
}
