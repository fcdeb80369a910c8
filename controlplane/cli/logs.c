/* logs: what is there, by offset; with --follow the live stream, which is taken up again where it stopped when the
 * connection is lost. */
#include "cli/follow.h"
#include "cli/target.h"

#include <stdio.h>
#include <unistd.h>

typedef struct logs {
    cli *c;
    cp_buf path; /* of the process or execution */
    uint64_t from[2];
    bool want[2];
    cp_buf bytes;
} logs;

static const char *const names[] = {"stdout", "stderr"};

static int parse_from(logs *l, const char *text) {
    const char *dash = strchrnul(text, '-');
    cp_str first = {text, (size_t)(dash - text)}, second = *dash ? cp_str_of(dash + 1) : first;
    if (cp_str_u64(first, INT64_MAX, &l->from[0]) && cp_str_u64(second, INT64_MAX, &l->from[1])) return CLI_OK;
    return cli_fail("--from takes an offset, or two with - between them, not \"%s\"", text);
}

static void tell_dropped(int k, uint64_t bytes) {
    if (bytes) cli_warn("%llu bytes of its %s are not kept any more", (unsigned long long)bytes, names[k]);
}

static int put_data(logs *l, int k, yyjson_val *ev) {
    const char *data = cli_str(ev, "data");
    cp_buf_clear(&l->bytes);
    if (cp_base64_decode(&l->bytes, cp_str_of(data)) < 0) return cli_fail("the server's answer makes no sense");
    return cli_write(k ? STDERR_FILENO : STDOUT_FILENO, l->bytes.p, l->bytes.n) < 0 ? CLI_FAILED : CLI_OK;
}

/* ---- what is there ---- */

/* Up to what there is at the first answer: a process that writes all the time must not keep us for ever. */
static int print_kept(logs *l, int k) {
    uint64_t at = l->from[k], end = UINT64_MAX;
    while (at < end) {
        cp_autobuf cp_buf path = {0};
        cli_autoanswer cli_answer a = {0};
        conflux_error err;
        cp_buf_addf(&path, "%s/logs?stream=%s&from=%llu&limit=1048576&encoding=base64", l->path.p, names[k],
                    (unsigned long long)at);
        if (cli_try_again(l->c, &(conflux_request){.path = cp_buf_z(&path)}, &a, &err) < 0)
            return cli_report(l->c, &err);
        tell_dropped(k, (uint64_t)cli_num(a.root, "dropped"));
        int rc = l->c->json ? cli_out_answer(&a) : put_data(l, k, a.root);
        uint64_t next = (uint64_t)cli_num(a.root, "next");
        if (end == UINT64_MAX) end = (uint64_t)cli_num(a.root, "total");
        if (rc || next <= at) return rc;
        at = next;
    }
    return CLI_OK;
}

/* ---- live ---- */

static void live_path(void *arg, const char *last, cp_buf *out) {
    logs *l = arg;
    char from[64];
    snprintf(from, sizeof from, "%llu-%llu", (unsigned long long)l->from[0], (unsigned long long)l->from[1]);
    cp_buf_addf(out, "%s/stream?from=%s&encoding=base64", l->path.p, *last ? last : from);
}

static int on_event(void *arg, yyjson_val *ev, const conflux_event *raw) {
    logs *l = arg;
    const char *type = cli_str(ev, "type");
    bool dropped = strcmp(type, "dropped") == 0, end = strcmp(type, "exit") == 0 || strcmp(type, "complete") == 0;
    const char *stream = dropped ? cli_str(ev, "stream") : type;
    int k = strcmp(stream, "stdout") == 0 ? 0 : strcmp(stream, "stderr") == 0 ? 1 : -1, rc = CLI_OK;
    if (k >= 0 && !l->want[k]) return CLI_OK;
    if (dropped && k >= 0) tell_dropped(k, (uint64_t)cli_num(ev, "bytes"));
    if (l->c->json) rc = cli_out_json((cp_str){raw->data, raw->len});
    else if (k >= 0 && !dropped) rc = put_data(l, k, ev);
    return !rc && end ? CLI_ENOUGH : rc;
}

static int follow(logs *l) {
    cli_follower f = {.arg = l, .path = live_path, .event = on_event, .again = true};
    return cli_follow(l->c, &f);
}

int cli_cmd_logs(cli *c) {
    const char *stream = cli_opt(c, CLI_OPT_stream_of), *from = cli_opt(c, CLI_OPT_from);
    logs l = {.c = c};
    for (int k = 0; k < 2; k++) l.want[k] = !stream || strcmp(stream, names[k]) == 0;
    int rc = from ? parse_from(&l, from) : CLI_OK;
    if (!rc) rc = cli_target_path(c, c->args.operands[0], &l.path);
    if (!rc && cli_flag(&c->args, CLI_OPT_follow)) rc = follow(&l);
    else
        for (int k = 0; !rc && k < 2; k++)
            if (l.want[k]) rc = print_kept(&l, k);
    cp_buf_free(&l.path);
    cp_buf_free(&l.bytes);
    return rc;
}
