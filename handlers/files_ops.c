/* delete, rename, move, mkdir, exists: the reference ran rm, mv and mkdir; errors keep their wording. */
#include "handlers/files_impl.h"

#include <errno.h>
#include <string.h>

static int done_path(cp_result *res, cp_str path) {
    cp_jw w = cp_success_begin(res);
    cp_jw_kstr(&w, "path", path);
    cp_success_end(&w);
    return 0;
}

int cp_files_delete(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    cp_files_path p;
    if (cp_files_path_arg(ctx, req, "path", "file.delete", &p, res) < 0) return 0;
    if (cp_file_delete(&p.where, err) == 0) return done_path(res, p.given);
    if (err->sys == ENOENT || err->sys == ENOTDIR)
        return cp_files_not_found(res, "file.delete", p.given, "File not found");
    if (err->sys != EISDIR) return cp_files_sdk_error(res, err, "file.delete", p.given, "Failed to delete file");
    cp_fail(err, CP_E_IS_DIRECTORY,
            "Cannot delete directory with deleteFile() at '%.*s'. Use exec('rm -rf <path>') instead.", (int)p.given.n,
            p.given.p);
    return cp_files_error(res, err, "file.delete", p.given);
}

int cp_files_exists(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    (void)err;
    cp_files_path p;
    if (cp_files_path_arg(ctx, req, "path", "file.exists", &p, res) < 0) return 0;
    cp_jw w = cp_success_begin(res);
    cp_jw_kstr(&w, "path", p.given);
    cp_jw_kbool(&w, "exists", cp_file_exists(&p.where));
    cp_success_end(&w);
    return 0;
}

/* ---- mkdir ---- */

static int mkdir_failed(cp_result *res, const cp_err *err, const cp_request *req, cp_str path) {
    cp_err full;
    cp_autobuf cp_buf context = {0}, text = {0};
    yyjson_val *recursive = yyjson_obj_get(req->body, "recursive");
    cp_buf_addz(&text, "mkdir: cannot create directory ‘");
    cp_buf_add(&text, path.p, path.n);
    cp_buf_addf(&text, "’: %s", strerrordesc_np(err->sys));
    cp_jw w = cp_jw_on(&context);
    cp_jw_obj(&w);
    cp_jw_kstr(&w, "path", path);
    cp_jw_key(&w, "options");
    cp_jw_obj(&w);
    if (recursive) {
        cp_jw_key(&w, "recursive");
        cp_jw_val(&w, recursive);
    }
    cp_jw_end_obj(&w);
    cp_jw_ki64(&w, "exitCode", 1);
    cp_jw_kstr(&w, "stderr", cp_buf_str(&text));
    cp_jw_end_obj(&w);
    cp_fail(&full, CP_E_FILESYSTEM_ERROR, "mkdir operation failed with exit code 1");
    cp_error_result(res, &full, NULL, cp_buf_str(&context));
    return 0;
}

int cp_files_mkdir(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    cp_files_path p;
    bool recursive = false;
    if (cp_files_path_arg(ctx, req, "path", "directory.create", &p, res) < 0) return 0;
    if (cp_json_bool(req->body, "recursive", &recursive, err) < 0) return -1;
    if (cp_file_mkdir(&p.where, recursive, err) < 0) {
        if (err->sys == EXDEV) return cp_files_error(res, err, "directory.create", p.given);
        return mkdir_failed(res, err, req, p.given);
    }
    cp_jw w = cp_success_begin(res);
    cp_jw_kstr(&w, "path", p.given);
    cp_jw_kbool(&w, "recursive", recursive);
    cp_success_end(&w);
    return 0;
}

/* ---- rename and move ---- */

typedef struct mv_names {
    const char *from, *to, *op, *title;
} mv_names;

static int mv_refuse_paths(cp_result *res, const mv_names *n, const cp_str given[2], const char *const why[2]) {
    cp_err err;
    cp_autobuf cp_buf context = {0};
    cp_jw w = cp_jw_on(&context);
    cp_jw_obj(&w);
    cp_jw_kstr(&w, n->from, given[0]);
    cp_jw_kstr(&w, n->to, given[1]);
    cp_jw_key(&w, "errors");
    cp_jw_arr(&w);
    for (int i = 0; i < 2; i++)
        if (why[i]) cp_jw_z(&w, why[i]);
    cp_jw_end_arr(&w);
    cp_jw_end_obj(&w);
    cp_fail(&err, CP_E_SECURITY_VALIDATION_FAILED, "Security validation failed: %s%s%s", why[0] ? why[0] : why[1],
            why[0] && why[1] ? ", " : "", why[0] && why[1] ? why[1] : "");
    cp_error_result(res, &err, NULL, cp_buf_str(&context));
    return 0;
}

static int mv_failed(cp_result *res, const cp_err *err, const mv_names *n, const cp_files_path *a,
                     const cp_files_path *b) {
    cp_err full;
    cp_autobuf cp_buf context = {0}, text = {0};
    bool same = err->sys == EINVAL && cp_str_eq(a->given, b->given);
    cp_buf_addz(&text, same ? "mv: '" : "mv: cannot move '");
    cp_buf_add(&text, a->given.p, a->given.n);
    cp_buf_addz(&text, same ? "' and '" : "' to '");
    cp_buf_add(&text, b->given.p, b->given.n);
    if (same) cp_buf_addz(&text, "' are the same file");
    else cp_buf_addf(&text, "': %s", strerrordesc_np(err->sys));
    cp_jw w = cp_jw_on(&context);
    cp_jw_obj(&w);
    cp_jw_kstr(&w, n->from, a->given);
    cp_jw_kstr(&w, n->to, b->given);
    cp_jw_ki64(&w, "exitCode", 1);
    cp_jw_kstr(&w, "stderr", cp_buf_str(&text));
    cp_jw_end_obj(&w);
    cp_fail(&full, CP_E_FILESYSTEM_ERROR, "%s operation failed with exit code 1", n->title);
    cp_error_result(res, &full, NULL, cp_buf_str(&context));
    return 0;
}

static int mv(cp_ctx *ctx, const cp_request *req, const mv_names *n, cp_result *res, cp_err *err) {
    cp_files_path a, b;
    cp_str given[2] = {cp_files_body_str(req, n->from), cp_files_body_str(req, n->to)};
    const char *why[2] = {cp_path_problem(given[0]), cp_path_problem(given[1])};
    if (why[0] || why[1]) return mv_refuse_paths(res, n, given, why);
    if (cp_files_path_arg(ctx, req, n->from, n->op, &a, res) < 0) return 0;
    if (cp_files_path_arg(ctx, req, n->to, n->op, &b, res) < 0) return 0;
    if (cp_file_move(&a.where, &b.where, err) < 0) {
        if (err->sys == EXDEV) return cp_files_error(res, err, n->op, a.given);
        if (err->field[0]) return cp_files_not_found(res, n->op, a.given, "Source file not found");
        return mv_failed(res, err, n, &a, &b);
    }
    cp_jw w = cp_success_begin(res);
    cp_jw_kstr(&w, "path", a.given);
    cp_jw_kstr(&w, "newPath", b.given);
    cp_success_end(&w);
    return 0;
}

int cp_files_rename(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    return mv(ctx, req, &(mv_names){"oldPath", "newPath", "file.rename", "Rename"}, res, err);
}

int cp_files_move(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    return mv(ctx, req, &(mv_names){"sourcePath", "destinationPath", "file.move", "Move"}, res, err);
}
