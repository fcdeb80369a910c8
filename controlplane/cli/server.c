/* sessions, ports, pending, events, usage: what the server knows of itself. */
#include "cli/command.h"
#include "cli/follow.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- sessions ---- */

static int sessions_list(cli *c) {
    cp_autobuf cp_buf out = {0};
    cli_autoanswer cli_answer a = {0};
    size_t i, n;
    yyjson_val *id;
    int rc = cli_get(c, "/api/session/list", &a);
    if (rc) return rc;
    if (c->json) return cli_out_answer(&a);
    yyjson_arr_foreach(yyjson_obj_get(a.root, "data"), i, n, id) {
        cli_put_name(&out, yyjson_get_str(id));
        cp_buf_addc(&out, '\n');
    }
    return cli_out(&out);
}

static int create_body(const cli *c, const char *id, cp_buf *body) {
    const char *cwd = cli_opt(c, CLI_OPT_cwd);
    uint64_t timeout = 0;
    cp_err err;
    if (cli_duration_of(&c->args, CLI_OPT_timeout, &timeout, &err) < 0) return cli_fail("%s", err.msg);
    if ((id && cli_check_utf8("the id", id)) || (cwd && cli_check_utf8("--cwd", cwd))) return CLI_FAILED;
    cp_jw w = cp_jw_on(body);
    cp_jw_obj(&w);
    if (id) cp_jw_kz(&w, "id", id);
    if (cwd) cp_jw_kz(&w, "cwd", cwd);
    if (timeout) cp_jw_ku64(&w, "commandTimeoutMs", timeout);
    int rc = cli_command_env(c, &w);
    cp_jw_end_obj(&w);
    return rc;
}

static int sessions_create(cli *c, const char *id) {
    cp_autobuf cp_buf body = {0};
    cli_autoanswer cli_answer a = {0};
    int rc = create_body(c, id, &body);
    if (!rc) rc = cli_post(c, "/api/session/create", &body, &a);
    if (rc) return rc;
    if (c->json) return cli_out_answer(&a);
    cp_buf_clear(&body);
    cli_put_name(&body, cli_str(yyjson_obj_get(a.root, "data"), "id"));
    cp_buf_addc(&body, '\n');
    return cli_out(&body);
}

static int sessions_delete(cli *c, const char *id) {
    cp_autobuf cp_buf body = {0};
    cli_autoanswer cli_answer a = {0};
    if (!id) return cli_fail("sessions delete takes an id");
    if (cli_check_utf8("the id", id)) return CLI_FAILED;
    cp_jw w = cp_jw_on(&body);
    cp_jw_obj(&w);
    cp_jw_kz(&w, "sessionId", id);
    cp_jw_kbool(&w, "keep", cli_flag(&c->args, CLI_OPT_keep));
    cp_jw_end_obj(&w);
    int rc = cli_post(c, "/api/session/delete", &body, &a);
    return rc || !c->json ? rc : cli_out_answer(&a);
}

int cli_cmd_sessions(cli *c) {
    const char *what = c->args.noperands ? c->args.operands[0] : "list", *id = c->args.operands[c->args.noperands > 0];
    if (strcmp(what, "create") == 0) return sessions_create(c, id);
    if (strcmp(what, "delete") == 0) return sessions_delete(c, id);
    if (strcmp(what, "list") == 0 && c->args.noperands < 2) return sessions_list(c);
    return cli_fail("sessions takes list, create or delete, not \"%s\" (see conflux sessions --help)", what);
}

/* ---- tables ---- */

typedef void put_rows(cli_table *t, yyjson_val *list);

static int print_table(cli *c, const char *path, const char *key, put_rows *put) {
    cp_autobuf cp_buf out = {0};
    cli_autoanswer cli_answer a = {0};
    cli_table t = {0};
    int rc = cli_get(c, path, &a);
    if (rc) return rc;
    if (c->json) return cli_out_answer(&a);
    put(&t, yyjson_obj_get(a.root, key));
    cli_table_put(&t, cli_width(), &out);
    return cli_out(&out);
}

static void put_ports(cli_table *t, yyjson_val *list) {
    size_t i, n;
    yyjson_val *p;
    cli_table_row(t, (const char *[]){"PORT", "ADDRESS", "PID", "NAME", "PROCESS"}, 5);
    yyjson_arr_foreach(list, i, n, p) {
        char port[24], pid[24];
        const char *process = cli_str(p, "processId");
        cli_num_text(p, "port", port);
        cli_num_text(p, "pid", pid);
        cli_table_row(t,
                      (const char *[]){port, cli_str(p, "address"), pid, cli_str(p, "name"),
                                       *process ? process : cli_str(p, "executionId")},
                      5);
    }
}

int cli_cmd_ports(cli *c) { return print_table(c, "/api/ports", "ports", put_ports); }

static void put_pending(cli_table *t, yyjson_val *list) {
    size_t i, n, k, m;
    yyjson_val *conn, *rq;
    cli_table_row(t, (const char *[]){"PEER", "STATE", "AGE", "BYTES", "ROUTE"}, 5);
    yyjson_arr_foreach(list, i, n, conn) {
        yyjson_arr_foreach(yyjson_obj_get(conn, "pending"), k, m, rq) {
            char age[32], bytes[24];
            snprintf(age, sizeof age, "%.1f s", (double)cli_num(rq, "ageMs") / 1000);
            cli_num_text(rq, "bytes", bytes);
            cli_table_row(
                t, (const char *[]){cli_str(conn, "peer"), cli_str(rq, "state"), age, bytes, cli_str(rq, "route")}, 5);
        }
    }
}

int cli_cmd_pending(cli *c) { return print_table(c, "/api/pending", "connections", put_pending); }

/* ---- events ---- */

static void events_path(void *arg, const char *last, cp_buf *out) {
    cp_buf_addz(out, "/api/events");
    cli_query_add(out, "from", *last ? last : cli_opt(arg, CLI_OPT_after));
}

static void put_field(cp_buf *out, yyjson_val *ev, const char *key) {
    yyjson_val *v = yyjson_obj_get(ev, key);
    if (!v) return;
    cp_buf_addf(out, " %s=", key);
    if (yyjson_is_str(v)) cli_put_name(out, yyjson_get_str(v));
    else cp_buf_addf(out, "%lld", (long long)cli_num(ev, key));
}

static int on_event(void *arg, yyjson_val *ev, const conflux_event *raw) {
    static const char *const fields[] = {"processId", "executionId", "sessionId", "pid",   "exitCode",
                                         "signal",    "outcome",     "stream",    "bytes", "next"};
    cp_autobuf cp_buf out = {0};
    if (((cli *)arg)->json) return cli_out_json((cp_str){raw->data, raw->len});
    cp_buf_addf(&out, "%lld ", (long long)cli_num(ev, "id"));
    cli_put_name(&out, cli_str(ev, "timestamp"));
    cp_buf_addc(&out, ' ');
    cli_put_name(&out, cli_str(ev, "type"));
    for (size_t i = 0; i < CP_COUNT(fields); i++) put_field(&out, ev, fields[i]);
    cp_buf_addc(&out, '\n');
    return cli_out(&out);
}

int cli_cmd_events(cli *c) {
    cli_follower f = {.arg = c, .path = events_path, .event = on_event, .again = true};
    return cli_follow(c, &f);
}

/* ---- usage ---- */

static void put_amount(cp_buf *out, yyjson_val *o, const char *what, const char *used, const char *of) {
    char a[24], b[24];
    if (!o) return;
    cli_bytes(a, (uint64_t)cli_num(o, used));
    cli_bytes(b, (uint64_t)cli_num(o, of));
    cp_buf_addf(out, "%s %s of %s", what, a, b);
}

static void put_usage(cp_buf *out, yyjson_val *root) {
    yyjson_val *cpu = yyjson_obj_get(root, "cpu"), *memory = yyjson_obj_get(root, "memory");
    yyjson_val *percent = yyjson_obj_get(cpu, "percent");
    cp_buf_addf(out, "cpu %.1f s", (double)cli_num(cpu, "usageMs") / 1000);
    if (percent) cp_buf_addf(out, " (%.0f %%)", yyjson_get_num(percent));
    cp_buf_addf(out, " on %lld cores", (long long)cli_num(cpu, "cores"));
    put_amount(out, memory, "   memory", "usedBytes", cli_num(memory, "limitBytes") ? "limitBytes" : "totalBytes");
    put_amount(out, yyjson_obj_get(root, "disk"), "   disk", "usedBytes", "totalBytes");
    cp_buf_addc(out, '\n');
}

static int on_usage(void *arg, yyjson_val *ev, const conflux_event *raw) {
    cp_autobuf cp_buf out = {0};
    if (((cli *)arg)->json) return cli_out_json((cp_str){raw->data, raw->len});
    put_usage(&out, ev);
    return cli_out(&out);
}

static void usage_path(void *arg, const char *last, cp_buf *out) {
    uint64_t interval = 1000;
    (void)last;
    cli_duration_of(&((cli *)arg)->args, CLI_OPT_interval, &interval, NULL);
    cp_buf_addf(out, "/api/usage?stream=1&intervalMs=%llu", (unsigned long long)interval);
}

int cli_cmd_usage(cli *c) {
    cli_follower f = {.arg = c, .path = usage_path, .event = on_usage, .again = true};
    cp_autobuf cp_buf out = {0};
    cli_autoanswer cli_answer a = {0};
    uint64_t interval;
    cp_err err;
    if (cli_duration_of(&c->args, CLI_OPT_interval, &interval, &err) < 0) return cli_fail("%s", err.msg);
    if (cli_flag(&c->args, CLI_OPT_follow)) return cli_follow(c, &f);
    int rc = cli_get(c, "/api/usage", &a);
    if (rc) return rc;
    if (c->json) return cli_out_answer(&a);
    put_usage(&out, a.root);
    return cli_out(&out);
}
