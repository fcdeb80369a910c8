/* POST /api/files/stat, chmod, chown, copy: ours, so unknown fields are refused by name and errors have precise codes.
 */
#include "handlers/files_impl.h"

#include <stdio.h>

static const char *type_word(mode_t mode) {
    switch (mode & S_IFMT) {
    case S_IFREG: return "file";
    case S_IFDIR: return "directory";
    case S_IFLNK: return "symlink";
    case S_IFIFO: return "fifo";
    case S_IFSOCK: return "socket";
    case S_IFCHR: return "characterDevice";
    case S_IFBLK: return "blockDevice";
    default: return "other";
    }
}

static void put_stat(cp_jw *w, const struct stat *st) {
    char mode[16], etag[64];
    snprintf(mode, sizeof mode, "%04o", st->st_mode & 07777u);
    cp_file_etag(st, etag);
    cp_jw_kz(w, "type", type_word(st->st_mode));
    cp_jw_ki64(w, "size", st->st_size);
    cp_jw_kz(w, "mode", mode);
    cp_jw_ku64(w, "uid", st->st_uid);
    cp_jw_ku64(w, "gid", st->st_gid);
    cp_jw_ki64(w, "mtimeMs", (int64_t)st->st_mtim.tv_sec * 1000 + st->st_mtim.tv_nsec / 1000000);
    cp_jw_ku64(w, "ino", st->st_ino);
    cp_jw_ku64(w, "nlink", st->st_nlink);
    cp_jw_kz(w, "etag", etag);
}

int cp_files_stat(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    static const char *const known[] = {"path", "follow", CP_FILES_COMMON, NULL};
    cp_files_path p;
    struct stat st;
    bool follow = false;
    cp_autobuf cp_buf target = {0};
    if (cp_json_only(req->body, known, err) < 0 || cp_json_bool(req->body, "follow", &follow, err) < 0) return -1;
    if (cp_files_path_arg(ctx, req, "path", "file.stat", &p, res) < 0) return 0;
    if (cp_file_stat(&p.where, follow, &st, &target, err) < 0) return cp_files_error(res, err, "file.stat", p.given);
    cp_jw w = cp_success_begin(res);
    cp_jw_kstr(&w, "path", p.given);
    put_stat(&w, &st);
    if (target.n) cp_jw_kstr(&w, "target", cp_buf_str(&target));
    cp_success_end(&w);
    return 0;
}

static int done(cp_result *res, cp_str path) {
    cp_jw w = cp_success_begin(res);
    cp_jw_kstr(&w, "path", path);
    cp_success_end(&w);
    return 0;
}

int cp_files_chmod(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    static const char *const known[] = {"path", "mode", "recursive", CP_FILES_COMMON, NULL};
    cp_files_path p;
    int64_t mode = -1;
    bool recursive = false;
    if (cp_json_only(req->body, known, err) < 0 || cp_files_mode_arg(req, &mode, err) < 0 ||
        cp_json_bool(req->body, "recursive", &recursive, err) < 0)
        return -1;
    if (mode < 0) return cp_fail_field(err, "mode", "mode is required");
    if (cp_files_path_arg(ctx, req, "path", "file.chmod", &p, res) < 0) return 0;
    if (cp_file_chmod(&p.where, (mode_t)mode, recursive, err) < 0)
        return cp_files_error(res, err, "file.chmod", p.given);
    return done(res, p.given);
}

int cp_files_chown(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    static const char *const known[] = {"path", "uid", "gid", "recursive", CP_FILES_COMMON, NULL};
    cp_files_path p;
    int64_t uid = -1, gid = -1;
    bool recursive = false;
    if (cp_json_only(req->body, known, err) < 0 || cp_json_int(req->body, "uid", 0, UINT32_MAX - 1, &uid, err) < 0 ||
        cp_json_int(req->body, "gid", 0, UINT32_MAX - 1, &gid, err) < 0 ||
        cp_json_bool(req->body, "recursive", &recursive, err) < 0)
        return -1;
    if (uid < 0 && gid < 0) return cp_fail_field(err, "uid", "uid or gid is required");
    if (cp_files_path_arg(ctx, req, "path", "file.chown", &p, res) < 0) return 0;
    if (cp_file_chown(&p.where, uid, gid, recursive, err) < 0) return cp_files_error(res, err, "file.chown", p.given);
    return done(res, p.given);
}

int cp_files_copy(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    static const char *const known[] = {"source", "destination", "recursive", "overwrite", CP_FILES_COMMON, NULL};
    cp_files_path from, to;
    cp_copy_spec spec = {0};
    uint64_t bytes;
    if (cp_json_only(req->body, known, err) < 0 || cp_json_bool(req->body, "recursive", &spec.recursive, err) < 0 ||
        cp_json_bool(req->body, "overwrite", &spec.overwrite, err) < 0)
        return -1;
    if (cp_files_path_arg(ctx, req, "source", "file.copy", &from, res) < 0) return 0;
    if (cp_files_path_arg(ctx, req, "destination", "file.copy", &to, res) < 0) return 0;
    if (cp_file_copy(&from.where, &to.where, &spec, &bytes, err) < 0)
        return cp_files_error(res, err, "file.copy", err->field[0] ? from.given : to.given);
    cp_jw w = cp_success_begin(res);
    cp_jw_kstr(&w, "source", from.given);
    cp_jw_kstr(&w, "destination", to.given);
    cp_jw_ku64(&w, "bytes", bytes);
    cp_success_end(&w);
    return 0;
}
