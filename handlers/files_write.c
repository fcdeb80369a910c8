/* POST /api/write. */
#include "handlers/files_impl.h"

#include <stdlib.h>

static int bad_base64(cp_result *res, cp_str path) {
    cp_err err;
    cp_fail(&err, CP_E_VALIDATION_FAILED,
            "Invalid base64 content for '%.*s': must contain only A-Z, a-z, 0-9, +, /, =", (int)path.n, path.p);
    cp_error_result(res, &err, NULL,
                    CP_STR("{\"validationErrors\":[{\"field\":\"content\",\"message\":\"Invalid "
                           "base64 characters\",\"code\":\"INVALID_BASE64\"}]}"));
    return 0;
}

static int options(const cp_request *req, cp_write_spec *spec, cp_err *err) {
    spec->owner = CP_OWNER_KEEP;
    spec->atomic = true;
    if (cp_files_mode_arg(req, &spec->owner.mode, err) < 0 ||
        cp_json_int(req->body, "uid", 0, UINT32_MAX - 1, &spec->owner.uid, err) < 0 ||
        cp_json_int(req->body, "gid", 0, UINT32_MAX - 1, &spec->owner.gid, err) < 0 ||
        cp_json_bool(req->body, "atomic", &spec->atomic, err) < 0 ||
        cp_json_bool(req->body, "append", &spec->append, err) < 0)
        return -1;
    return 0;
}

int cp_files_write(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    cp_files_path p;
    cp_write_spec spec = {0};
    cp_files_piece piece = {0};
    cp_autobuf cp_buf bytes = {0};
    if (cp_files_path_arg(ctx, req, "path", "file.write", &p, res) < 0) return 0;
    if (options(req, &spec, err) < 0 || cp_files_piece_args(req, &spec, &piece, err) < 0) return -1;
    if (cp_json_str(req->body, "content", true, &spec.data, err) < 0) return -1;
    if (cp_str_is(cp_files_body_str(req, "encoding"), "base64")) {
        if (cp_room(&bytes, spec.data.n, err) < 0) return -1;
        if (cp_base64_decode(&bytes, spec.data) < 0) return bad_base64(res, p.given);
        spec.data = cp_buf_str(&bytes);
    }
    if (piece.id.p) return cp_files_upload(ctx, &p, &spec, &piece, res);
    if (cp_file_write(&p.where, &spec, err) < 0)
        return cp_files_sdk_error(res, err, "file.write", p.given, "Failed to write file");
    cp_jw w = cp_success_begin(res);
    cp_jw_kstr(&w, "path", p.given);
    cp_success_end(&w);
    return 0;
}
