/* find and grep: streams of matches. */
#include "cli/follow.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct search {
    cli *c;
    const char *route, *root; /* root: the path as it was given, for names that begin with it */
    bool grep;
    cp_buf body, out;
    int64_t matches;
} search;

static void path(void *arg, const char *last, cp_buf *out) {
    (void)last;
    cp_buf_addz(out, ((search *)arg)->route);
}

static void put_match(search *s, yyjson_val *ev) {
    const char *relative = cli_str(ev, "relativePath");
    size_t n = strlen(s->root);
    cp_buf_clear(&s->out);
    if (n) cli_put_name(&s->out, s->root);
    if (n && *relative && s->root[n - 1] != '/') cp_buf_addc(&s->out, '/');
    cli_put_name(&s->out, relative);
    if (s->grep) {
        cp_buf_addf(&s->out, ":%lld:", (long long)cli_num(ev, "line"));
        cli_put_name(&s->out, cli_str(ev, "text"));
    }
    cp_buf_addc(&s->out, '\n');
}

static int on_event(void *arg, yyjson_val *ev, const conflux_event *raw) {
    search *s = arg;
    bool complete = strcmp(cli_str(ev, "type"), "complete") == 0;
    int rc = CLI_OK;
    if (s->c->json) {
        rc = cli_out_json((cp_str){raw->data, raw->len});
    } else if (!complete) {
        put_match(s, ev);
        rc = cli_out(&s->out);
    }
    if (rc || !complete) return rc;
    s->matches = cli_num(ev, "matches");
    if (yyjson_is_true(yyjson_obj_get(ev, "truncated")))
        cli_warn("there is more: it stopped at %lld (--limit)", (long long)s->matches);
    if (cli_num(ev, "skipped")) cli_warn("%lld files or folders could not be read", (long long)cli_num(ev, "skipped"));
    return CLI_ENOUGH;
}

static int put_limit(const cli *c, cp_jw *w) {
    const char *text = cli_opt(c, CLI_OPT_limit);
    uint64_t limit;
    if (!text) return CLI_OK;
    if (!cp_str_u64(cp_str_of(text), INT64_MAX, &limit)) return cli_fail("--limit takes a number, not \"%s\"", text);
    cp_jw_ku64(w, "limit", limit);
    return CLI_OK;
}

/* The object is open: --pattern is grep's to add. */
static int begin(search *s, const char *given, cp_jw *w) {
    const char *glob = cli_opt(s->c, CLI_OPT_glob);
    if ((given && cli_check_utf8("the path", given)) || (glob && cli_check_utf8("--glob", glob))) return CLI_FAILED;
    s->root = given ? given : "";
    *w = cli_path_body(s->c, &s->body, given ? given : ".");
    if (glob) cp_jw_kz(w, "glob", glob);
    cp_jw_kbool(w, "hidden", cli_flag(&s->c->args, CLI_OPT_hidden));
    return put_limit(s->c, w);
}

static int run(search *s) {
    cli_follower f = {.arg = s, .path = path, .event = on_event, .body = &s->body};
    return cli_follow(s->c, &f);
}

int cli_cmd_find(cli *c) {
    search s = {.c = c, .route = "/api/files/search"};
    cp_jw w;
    int rc = begin(&s, c->args.operands[0], &w);
    cp_jw_end_obj(&w);
    if (!rc) rc = run(&s);
    cp_buf_free(&s.body);
    cp_buf_free(&s.out);
    return rc;
}

int cli_cmd_grep(cli *c) {
    search s = {.c = c, .route = "/api/files/grep", .grep = true};
    cp_jw w;
    if (cli_check_utf8("the pattern", c->args.operands[0])) return CLI_FAILED;
    int rc = begin(&s, c->args.operands[1], &w);
    cp_jw_kz(&w, "pattern", c->args.operands[0]);
    cp_jw_kbool(&w, "regex", cli_flag(&c->args, CLI_OPT_regex));
    cp_jw_end_obj(&w);
    if (!rc) rc = run(&s);
    if (!rc && !s.matches) rc = CLI_REFUSED;
    cp_buf_free(&s.body);
    cp_buf_free(&s.out);
    return rc;
}
