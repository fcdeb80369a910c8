/* run, ps, kill, signal, stdin: processes in the background. */
#include "cli/command.h"
#include "cli/feed.h"
#include "cli/target.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- run ---- */

static int run_body(const cli *c, const char *id, cp_buf *out) {
    cp_jw w;
    int rc = cli_command_body(c, &w, out);
    if (rc) return rc;
    if (cli_opt(c, CLI_OPT_id)) cp_jw_kz(&w, "processId", id);
    if (cli_flag(&c->args, CLI_OPT_input)) cp_jw_kz(&w, "stdin", "open");
    cp_jw_end_obj(&w);
    return CLI_OK;
}

/* A program that cannot be started is a record with an error, so that others can look at it. */
static int run_failed(yyjson_val *root) {
    const char *name = cli_str(root, "errno");
    cli_fail("%s", cli_str(root, "error"));
    if (strcmp(name, "ENOENT") == 0) return CLI_NO_COMMAND;
    return strcmp(name, "EACCES") == 0 ? CLI_CANNOT_RUN : CLI_FAILED;
}

int cli_cmd_run(cli *c) {
    char id[132];
    cp_autobuf cp_buf body = {0};
    cli_autoanswer cli_answer a = {0};
    conflux_error err;
    cli_choose_id(c, id);
    int rc = run_body(c, id, &body);
    if (rc) return rc;
    conflux_request rq = {.path = "/api/process/start", .body = body.p, .body_len = body.n, .execution_id = id};
    if (!cli_client(c)) return CLI_FAILED;
    if (cli_try_again(c, &rq, &a, &err) < 0) return cli_report(c, &err);
    if (*cli_str(a.root, "error")) return run_failed(a.root);
    if (c->json) return cli_out_answer(&a);
    cp_buf_clear(&body);
    cli_put_name(&body, cli_str(a.root, "processId"));
    cp_buf_addc(&body, '\n');
    return cli_out(&body);
}

/* ---- ps ---- */

static void how_it_stands(yyjson_val *p, char out[48]) {
    const char *status = cli_str(p, "status");
    yyjson_val *code = yyjson_obj_get(p, "exitCode");
    if (!yyjson_is_int(code)) snprintf(out, 48, "%s", status);
    else snprintf(out, 48, "%s (%lld)", status, (long long)yyjson_get_sint(code));
}

/* 2026-11-28T04:55:47.123Z as 2026-11-28 04:55:47 */
static void short_time(const char *iso, char out[24]) {
    snprintf(out, 24, "%.19s", iso);
    if (strlen(out) > 10 && out[10] == 'T') out[10] = ' ';
}

static void put_processes(yyjson_val *list, cp_buf *out) {
    cli_table t = {0};
    size_t i, n;
    yyjson_val *p;
    cli_table_row(&t, (const char *[]){"ID", "PID", "STATUS", "STARTED (UTC)", "COMMAND"}, 5);
    yyjson_arr_foreach(list, i, n, p) {
        char pid[24], status[48], started[24];
        cp_autobuf cp_buf command = {0};
        cp_buf_addf(&command, "%s%s", cli_str(p, "command"),
                    yyjson_is_true(yyjson_obj_get(p, "commandTruncated")) ? "…" : "");
        cli_num_text(p, "pid", pid);
        how_it_stands(p, status);
        short_time(cli_str(p, "startTime"), started);
        cli_table_row(&t, (const char *[]){cli_str(p, "id"), pid, status, started, cp_buf_z(&command)}, 5);
    }
    cli_table_put(&t, cli_width(), out);
}

int cli_cmd_ps(cli *c) {
    cp_autobuf cp_buf path = {0}, out = {0};
    cli_autoanswer cli_answer a = {0};
    cp_buf_addz(&path, "/api/process/list");
    cli_query_add(&path, "status", cli_opt(c, CLI_OPT_status));
    cli_query_add(&path, "sessionId", cli_opt(c, CLI_OPT_session));
    cli_query_add(&path, "limit", cli_opt(c, CLI_OPT_limit));
    int rc = cli_get(c, cp_buf_z(&path), &a);
    if (rc) return rc;
    if (c->json) return cli_out_answer(&a);
    put_processes(yyjson_obj_get(a.root, "processes"), &out);
    return cli_out(&out);
}

/* ---- kill ---- */

static void put_pids(cp_buf *out, const char *what, yyjson_val *list) {
    size_t i, n;
    yyjson_val *pid;
    if (!yyjson_arr_size(list)) return;
    cp_buf_addf(out, " %s", what);
    yyjson_arr_foreach(list, i, n, pid) cp_buf_addf(out, " %lld", (long long)yyjson_get_sint(pid));
}

static int kill_one(cli *c, const char *id, const char *query) {
    cp_autobuf cp_buf out = {0};
    cli_autoanswer cli_answer a = {0};
    int rc = cli_target(c, "DELETE", id, query, &a);
    if (rc) return rc;
    if (c->json) return cli_out_answer(&a);
    cli_put_name(&out, id);
    cp_buf_addc(&out, ':');
    put_pids(&out, "killed", yyjson_obj_get(a.root, "killed"));
    put_pids(&out, "alive", yyjson_obj_get(a.root, "survivors"));
    cp_buf_addc(&out, '\n');
    rc = cli_out(&out);
    return yyjson_arr_size(yyjson_obj_get(a.root, "survivors")) ? CLI_REFUSED : rc;
}

static int kill_every(cli *c) {
    cp_autobuf cp_buf out = {0};
    cli_autoanswer cli_answer a = {0};
    conflux_request rq = {.method = "DELETE", .path = "/api/process/kill-all"};
    int rc = cli_ask(c, &rq, &a);
    if (rc) return rc;
    if (c->json) return cli_out_answer(&a);
    cp_buf_addf(&out, "%lld killed\n", (long long)cli_num(a.root, "cleanedCount"));
    return cli_out(&out);
}

static int kill_query(const cli *c, cp_buf *query) {
    uint64_t grace = UINT64_MAX;
    cp_err err;
    char text[24];
    if (cli_duration_of(&c->args, CLI_OPT_grace, &grace, &err) < 0) return cli_fail("%s", err.msg);
    snprintf(text, sizeof text, "%llu", (unsigned long long)grace);
    cli_query_add(query, "signal", cli_opt(c, CLI_OPT_signal));
    cli_query_add(query, "graceMs", grace == UINT64_MAX ? NULL : text);
    cp_buf_z(query);
    return CLI_OK;
}

int cli_cmd_kill(cli *c) {
    cp_autobuf cp_buf query = {0};
    bool every = cli_flag(&c->args, CLI_OPT_every);
    if (every == (c->args.noperands > 0)) return cli_fail("kill takes ids, or --all");
    if (every && (cli_opt(c, CLI_OPT_signal) || cli_opt(c, CLI_OPT_grace)))
        return cli_fail("--all goes without --signal and --grace");
    int rc = kill_query(c, &query), worst = CLI_OK;
    if (rc) return rc;
    if (every) return kill_every(c);
    for (size_t i = 0; i < c->args.noperands; i++)
        if ((rc = kill_one(c, c->args.operands[i], query.p)) > worst) worst = rc;
    return worst;
}

/* ---- signal ---- */

int cli_cmd_signal(cli *c) {
    cp_autobuf cp_buf path = {0}, body = {0};
    cli_autoanswer cli_answer a = {0};
    if (cli_check_utf8("the signal", c->args.operands[1])) return CLI_FAILED;
    cli_path(&path, "/api/process/", c->args.operands[0], "/signal");
    cp_jw w = cp_jw_on(&body);
    cp_jw_obj(&w);
    cp_jw_kz(&w, "signal", c->args.operands[1]);
    cp_jw_kbool(&w, "tree", cli_flag(&c->args, CLI_OPT_tree));
    cp_jw_end_obj(&w);
    int rc = cli_post(c, path.p, &body, &a);
    return rc || !c->json ? rc : cli_out_answer(&a);
}

/* ---- stdin ---- */

int cli_cmd_stdin(cli *c) {
    char piece[CLI_FEED_PIECE];
    conflux_error err;
    uint64_t total = 0;
    if (!cli_client(c)) return CLI_FAILED;
    for (;;) {
        ssize_t n = read(STDIN_FILENO, piece, sizeof piece);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return cli_fail("cannot read stdin: %s", strerror(errno));
        if (n == 0 && cli_flag(&c->args, CLI_OPT_no_eof)) break;
        if (cli_feed_request(c, c->args.operands[0], piece, (size_t)n, n == 0, -1, &err) < 0)
            return cli_report(c, &err);
        total += (uint64_t)n;
        if (n == 0) break;
    }
    cp_autobuf cp_buf out = {0};
    cp_buf_addf(&out, "{\"success\":true,\"bytes\":%llu}", (unsigned long long)total);
    return c->json ? cli_out_json(cp_buf_str(&out)) : CLI_OK;
}
