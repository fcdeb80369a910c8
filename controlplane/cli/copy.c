/* cp: who is copied where. As cp(1): into a folder that is there, else to that name. */
#include "cli/copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fd.h"

typedef struct place {
    bool remote;
    const char *path;
} place;

typedef enum { NOTHING, FOLDER, OTHER, FAILED } what_is;

static place place_of(const char *operand) {
    static const char mark[] = "remote:";
    bool remote = strncmp(operand, mark, sizeof mark - 1) == 0;
    const char *path = remote ? operand + sizeof mark - 1 : operand;
    return (place){remote, remote && !*path ? "." : path};
}

static what_is local_kind(const char *path) {
    struct stat st;
    if (stat(path, &st) == 0) return S_ISDIR(st.st_mode) ? FOLDER : OTHER;
    if (errno == ENOENT) return NOTHING;
    cli_fail("%s: %s", path, strerror(errno));
    return FAILED;
}

static what_is remote_kind(cli *c, const char *path, int *status) {
    cli_autoanswer cli_answer a = {0};
    int there = cli_stat(c, path, true, &a, status);
    if (there <= 0) return there < 0 ? FAILED : NOTHING;
    return strcmp(cli_str(a.root, "type"), "directory") == 0 ? FOLDER : OTHER;
}

static what_is kind_of(cli *c, const place *p, int *status) {
    *status = CLI_FAILED;
    return p->remote ? remote_kind(c, p->path, status) : local_kind(p->path);
}

/* The last name of a path; "" for ".", ".." and "/", whose content goes into the destination itself. */
static cp_str last_name(const char *path) {
    cp_str s = cp_str_of(path);
    while (s.n && s.p[s.n - 1] == '/') s.n--;
    const char *slash = s.n ? memrchr(s.p, '/', s.n) : NULL;
    if (slash) s = (cp_str){slash + 1, s.n - (size_t)(slash + 1 - s.p)};
    return cp_str_is(s, ".") || cp_str_is(s, "..") ? (cp_str){"", 0} : s;
}

static bool ends_in_slash(const char *path) { return *path && path[strlen(path) - 1] == '/'; }

static void target_path(const place *from, const place *to, what_is there, cp_buf *out) {
    cp_str name = last_name(from->path);
    cp_buf_addz(out, to->path);
    if ((there == FOLDER || ends_in_slash(to->path)) && name.n) {
        if (!ends_in_slash(to->path)) cp_buf_addc(out, '/');
        cp_buf_add(out, name.p, name.n);
    }
    cp_buf_z(out);
}

cp_files *cli_copy_where(const char *local, cp_where *w) {
    char cwd[CP_PATH_MAX];
    cp_err err;
    if (!getcwd(cwd, sizeof cwd)) return cli_fail("this folder is gone: %s", strerror(errno)), NULL;
    cp_files *files = cp_files_open("", &err);
    if (files && cp_where_init(w, files, cwd, cp_str_of(local), &err) == 0) return files;
    cp_files_close(files);
    return cli_fail("%s", err.msg), NULL;
}

/* ---- the ways ---- */

static int file_up(cli *c, const char *local, const char *remote) {
    struct stat st;
    cli_progress p;
    cp_autofd int fd = open(local, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) return cli_fail("%s: %s", local, strerror(errno));
    cli_progress_begin(&p, cli_flag(&c->args, CLI_OPT_quiet), local, (uint64_t)st.st_size);
    int rc = cli_copy_file_up(c, fd, &st, local, remote, &p);
    cli_progress_end(&p);
    return rc;
}

static int there_to_there(cli *c, const char *from, const char *to) {
    cp_autobuf cp_buf body = {0};
    cli_autoanswer cli_answer a = {0};
    if (cli_check_utf8("the path", from) || cli_check_utf8("the path", to)) return CLI_FAILED;
    cp_jw w = cli_body_begin(c, &body);
    cp_jw_kz(&w, "source", from);
    cp_jw_kz(&w, "destination", to);
    cp_jw_kbool(&w, "recursive", true);
    cp_jw_kbool(&w, "overwrite", true);
    cp_jw_end_obj(&w);
    return cli_post(c, "/api/files/copy", &body, &a);
}

static int copy_one(cli *c, const place *from, const place *to, what_is there) {
    cp_autobuf cp_buf target = {0};
    int status;
    if (from->remote && to->remote) return there_to_there(c, from->path, to->path);
    if (!from->remote && !to->remote) return cli_fail("neither %s nor %s is remote:PATH", from->path, to->path);
    what_is kind = kind_of(c, from, &status);
    if (kind == FAILED) return status;
    if (kind == NOTHING) return cli_fail("there is no %s", from->path), from->remote ? CLI_REFUSED : CLI_FAILED;
    target_path(from, to, there, &target);
    if (kind == FOLDER && there == OTHER) return cli_fail("%s is no folder", to->path);
    if (kind == FOLDER)
        return to->remote ? cli_copy_folder_up(c, from->path, target.p) : cli_copy_folder_down(c, from->path, target.p);
    return to->remote ? file_up(c, from->path, target.p) : cli_copy_file_down(c, from->path, target.p);
}

static int check_all(const cli *c) {
    for (size_t i = 0; i < c->args.noperands; i++) {
        place p = place_of(c->args.operands[i]);
        if (p.remote && cli_check_utf8("the path", p.path)) return CLI_FAILED;
    }
    return CLI_OK;
}

int cli_cmd_cp(cli *c) {
    size_t n = c->args.noperands - 1;
    place to = place_of(c->args.operands[n]);
    int status = CLI_OK, worst = CLI_OK;
    if (check_all(c)) return CLI_FAILED;
    what_is there = kind_of(c, &to, &status);
    if (there == FAILED) return status;
    if (n > 1 && there != FOLDER) return cli_fail("%s is no folder", to.path);
    for (size_t i = 0; i < n; i++) {
        place from = place_of(c->args.operands[i]);
        int rc = copy_one(c, &from, &to, there);
        if (rc > worst) worst = rc;
    }
    if (!worst && c->json) return cli_out_json(CP_STR("{\"success\":true}"));
    return worst;
}
