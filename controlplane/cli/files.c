/* read, write, ls, stat. */
#include "cli/transfer.h"

#include "base/fd.h"
#include "base/id.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* ---- read ---- */

static int read_bytes(cli *c, const char *path) {
    cli_download d = {.path = path, .fd = STDOUT_FILENO};
    int rc = cli_download_look(c, &d);
    return rc ? rc : cli_download_run(c, &d);
}

static int read_json(cli *c, const char *path) {
    cp_autobuf cp_buf body = {0};
    cli_autoanswer cli_answer a = {0};
    if (cli_check_utf8("the path", path)) return CLI_FAILED;
    cp_jw w = cli_path_body(c, &body, path);
    cp_jw_end_obj(&w);
    int rc = cli_post(c, "/api/read", &body, &a);
    return rc ? rc : cli_out_answer(&a);
}

int cli_cmd_read(cli *c) {
    for (size_t i = 0; i < c->args.noperands; i++) {
        int rc = c->json ? read_json(c, c->args.operands[i]) : read_bytes(c, c->args.operands[i]);
        if (rc) return rc;
    }
    return CLI_OK;
}

/* ---- write ---- */

static int append_piece(cli *c, const char *path, const char *p, size_t n) {
    cp_autobuf cp_buf body = {0};
    cli_autoanswer cli_answer a = {0};
    cp_jw w = cli_path_body(c, &body, path);
    cp_jw_kbool(&w, "append", true);
    if (cli_opt(c, CLI_OPT_perm)) cp_jw_kz(&w, "mode", cli_opt(c, CLI_OPT_perm));
    cp_jw_kz(&w, "encoding", "base64");
    cp_jw_key(&w, "content");
    cp_jw_base64(&w, p, n);
    cp_jw_end_obj(&w);
    return cli_post(c, "/api/write", &body, &a);
}

/* Not sent again when an answer is lost: that would append it twice. */
static int append(cli *c, const char *path) {
    enum { PIECE = 1024 * 1024 };
    cp_autofree char *piece = cp_realloc(NULL, PIECE);
    ssize_t n = PIECE;
    for (bool first = true; n == PIECE; first = false) {
        n = cp_read_full(STDIN_FILENO, piece, PIECE);
        if (n < 0) return cli_fail("cannot read stdin: %s", strerror(errno));
        int rc = n || first ? append_piece(c, path, piece, (size_t)n) : CLI_OK;
        if (rc) return rc;
    }
    return CLI_OK;
}

static int write_new(cli *c, const char *path) {
    cli_upload u = {.path = path, .perm = cli_opt(c, CLI_OPT_perm), .fd = STDIN_FILENO};
    cp_random_base36(u.id, 32);
    return cli_upload_run(c, &u);
}

int cli_cmd_write(cli *c) {
    const char *path = c->args.operands[0];
    cp_autobuf cp_buf out = {0};
    if (cli_check_utf8("the path", path)) return CLI_FAILED;
    int rc = cli_flag(&c->args, CLI_OPT_append) ? append(c, path) : write_new(c, path);
    if (rc || !c->json) return rc;
    cp_jw w = cp_jw_on(&out);
    cp_jw_obj(&w);
    cp_jw_kbool(&w, "success", true);
    cp_jw_kz(&w, "path", path);
    cp_jw_end_obj(&w);
    return cli_out_json(cp_buf_str(&out));
}

/* ---- ls ---- */

static int by_path(const void *a, const void *b) {
    yyjson_val *const *x = a, *const *y = b;
    return strcmp(cli_str(*x, "relativePath"), cli_str(*y, "relativePath"));
}

static yyjson_val **sorted(yyjson_val *list, size_t *n) {
    size_t i, all;
    yyjson_val *v, **out = cp_alloc((yyjson_arr_size(list) + 1) * sizeof(yyjson_val *));
    *n = 0;
    yyjson_arr_foreach(list, i, all, v) out[(*n)++] = v;
    qsort(out, *n, sizeof(yyjson_val *), by_path);
    return out;
}

static char type_letter(const char *type) {
    if (strcmp(type, "directory") == 0) return 'd';
    if (strcmp(type, "symlink") == 0) return 'l';
    return strcmp(type, "file") == 0 ? '-' : '?';
}

static void put_long(cp_buf *out, yyjson_val *e) {
    cp_buf_addf(out, "%c%.9s %12lld  %.10s %.8s  ", type_letter(cli_str(e, "type")), cli_str(e, "mode"),
                (long long)cli_num(e, "size"), cli_str(e, "modifiedAt"),
                strlen(cli_str(e, "modifiedAt")) > 18 ? cli_str(e, "modifiedAt") + 11 : "");
}

static void put_entries(const cli *c, yyjson_val *list, cp_buf *out) {
    size_t n;
    cp_autobuf cp_buf line = {0};
    cp_autofree yyjson_val **v = sorted(list, &n);
    for (size_t i = 0; i < n; i++) {
        if (cli_flag(&c->args, CLI_OPT_details)) put_long(&line, v[i]);
        cp_buf_addz(&line, cli_str(v[i], "relativePath"));
        cli_put_line(out, &line);
    }
}

static void ls_body(const cli *c, const char *path, cp_buf *body) {
    cp_jw w = cli_path_body(c, body, path);
    cp_jw_key(&w, "options");
    cp_jw_obj(&w);
    cp_jw_kbool(&w, "recursive", cli_flag(&c->args, CLI_OPT_recursive));
    cp_jw_kbool(&w, "includeHidden", cli_flag(&c->args, CLI_OPT_hidden));
    cp_jw_end_obj(&w);
    cp_jw_end_obj(&w);
}

/* A file is listed as itself. */
static int ls_file(cli *c, const char *path) {
    cp_autobuf cp_buf line = {0}, out = {0};
    cli_autoanswer cli_answer a = {0};
    int status;
    if (cli_stat(c, path, false, &a, &status) <= 0) return status ? status : CLI_REFUSED;
    if (c->json) return cli_out_answer(&a);
    if (cli_flag(&c->args, CLI_OPT_details))
        cp_buf_addf(&line, "%c%s %lld  ", type_letter(cli_str(a.root, "type")), cli_str(a.root, "mode"),
                    (long long)cli_num(a.root, "size"));
    cp_buf_addz(&line, path);
    cli_put_line(&out, &line);
    return cli_out(&out);
}

static int ls_one(cli *c, const char *path, bool titled) {
    cp_autobuf cp_buf body = {0}, out = {0};
    cli_autoanswer cli_answer a = {0};
    conflux_error err;
    if (cli_check_utf8("the path", path) || !cli_client(c)) return CLI_FAILED;
    ls_body(c, path, &body);
    /* Over HTTP a list may have any length. */
    conflux_request rq = {
        .path = "/api/list-files", .body = body.p, .body_len = body.n, .idempotent = 1, .over_http = 1};
    if (cli_try(c, &rq, &a, &err) < 0)
        return strcmp(err.code, "NOT_DIRECTORY") == 0 ? ls_file(c, path) : cli_report(c, &err);
    if (c->json) return cli_out_answer(&a);
    if (titled) {
        cli_put_name(&out, path);
        cp_buf_addz(&out, ":\n");
    }
    put_entries(c, yyjson_obj_get(a.root, "files"), &out);
    return cli_out(&out);
}

int cli_cmd_ls(cli *c) {
    int worst = CLI_OK;
    if (!c->args.noperands) return ls_one(c, ".", false);
    for (size_t i = 0; i < c->args.noperands; i++) {
        int rc = ls_one(c, c->args.operands[i], c->args.noperands > 1);
        if (rc > worst) worst = rc;
    }
    return worst;
}

/* ---- stat ---- */

static void put_time(cp_buf *out, int64_t ms) {
    char text[40];
    struct tm tm;
    time_t at = (time_t)(ms / 1000);
    gmtime_r(&at, &tm);
    strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &tm);
    cp_buf_addf(out, "  modified %s.%03d UTC\n", text, (int)(ms % 1000));
}

static void put_stat(cp_buf *out, const char *path, yyjson_val *st) {
    cp_autobuf cp_buf line = {0};
    const char *target = cli_str(st, "target");
    cp_buf_addf(&line, "%s%s%s", path, *target ? " -> " : "", target);
    cli_put_line(out, &line);
    cp_buf_addf(&line, "  %s of %lld bytes, mode %s, owner %lld:%lld, %lld links", cli_str(st, "type"),
                (long long)cli_num(st, "size"), cli_str(st, "mode"), (long long)cli_num(st, "uid"),
                (long long)cli_num(st, "gid"), (long long)cli_num(st, "nlink"));
    cli_put_line(out, &line);
    put_time(out, cli_num(st, "mtimeMs"));
}

static int stat_one(cli *c, const char *path) {
    cp_autobuf cp_buf out = {0};
    cli_autoanswer cli_answer a = {0};
    int status, there = cli_stat(c, path, cli_flag(&c->args, CLI_OPT_links), &a, &status);
    if (there < 0) return status;
    if (!there) return cli_fail("there is no %s (FILE_NOT_FOUND)", path), CLI_REFUSED;
    if (c->json) return cli_out_answer(&a);
    put_stat(&out, path, a.root);
    return cli_out(&out);
}

int cli_cmd_stat(cli *c) {
    int worst = CLI_OK;
    for (size_t i = 0; i < c->args.noperands; i++) {
        int rc = stat_one(c, c->args.operands[i]);
        if (rc > worst) worst = rc;
    }
    return worst;
}
