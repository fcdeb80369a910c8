/* Chunked upload (conflux-additions.md, "Files"): /api/write with uploadId, offset, final, on every door; and GET
 * /api/files/upload/{uploadId}. */
#include "handlers/files_impl.h"
#include "services/upload.h"

#define OP "file.upload"

int cp_files_piece_args(const cp_request *req, const cp_write_spec *spec, cp_files_piece *piece, cp_err *err) {
    static const char *const only_with[] = {"offset", "final"};
    int64_t offset = -1;
    if (cp_json_str(req->body, "uploadId", false, &piece->id, err) < 0) return -1;
    for (size_t i = 0; !piece->id.p && i < CP_COUNT(only_with); i++) /* ignored, a piece would be taken for the file */
        if (yyjson_obj_get(req->body, only_with[i]))
            return cp_fail_field(err, only_with[i], "%s needs an uploadId", only_with[i]);
    if (!piece->id.p) return 0;
    if (!cp_upload_id_valid(piece->id))
        return cp_fail_field(err, "uploadId", "uploadId must be 1 to %d characters of A-Z a-z 0-9 _ . : -",
                             CP_UPLOAD_ID_MAX);
    if (spec->append) return cp_fail_field(err, "append", "append does not go with uploadId");
    if (!spec->atomic) return cp_fail_field(err, "atomic", "an upload is always atomic");
    if (cp_json_int(req->body, "offset", 0, INT64_MAX - 1, &offset, err) < 0 ||
        cp_json_bool(req->body, "final", &piece->final, err) < 0)
        return -1;
    if (offset < 0) return cp_fail_field(err, "offset", "offset is required");
    piece->offset = (uint64_t)offset;
    return 0;
}

static void put_state(cp_jw *w, cp_str id, const cp_upload_state *s) {
    cp_jw_kstr(w, "uploadId", id);
    cp_jw_kz(w, "path", s->path);
    cp_jw_ku64(w, "size", s->size);
    cp_jw_kbool(w, "complete", s->complete);
}

static int answer(cp_result *res, cp_str id, const cp_upload_state *s) {
    cp_jw w = cp_success_begin(res);
    put_state(&w, id, s);
    cp_success_end(&w);
    return 0;
}

/* The size is what a client needs to go on. */
static int conflict(cp_result *res, const cp_err *err, cp_str id, const cp_upload_state *s) {
    cp_autobuf cp_buf context = {0};
    cp_jw w = cp_jw_on(&context);
    cp_jw_obj(&w);
    put_state(&w, id, s);
    cp_jw_end_obj(&w);
    cp_error_result(res, err, OP, cp_buf_str(&context));
    return 0;
}

int cp_files_upload(cp_ctx *ctx, const cp_files_path *p, const cp_write_spec *spec, const cp_files_piece *piece,
                    cp_result *res) {
    cp_err err = {0};
    cp_upload_state s = {0};
    cp_upload_piece given = {.id = piece->id,
                             .given = p->given,
                             .offset = piece->offset,
                             .data = spec->data,
                             .final = piece->final,
                             .owner = spec->owner};
    if (cp_upload_put(ctx->svc->uploads, &p->where, &given, &s, &err) == 0) return answer(res, piece->id, &s);
    if (err.code == CP_E_OFFSET_CONFLICT) return conflict(res, &err, piece->id, &s);
    if (err.code != CP_E_VALIDATION_FAILED) return cp_files_error(res, &err, OP, p->given);
    cp_error_result(res, &err, NULL, (cp_str){0});
    return 0;
}

int cp_files_upload_get(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    static const char *const known[] = {NULL};
    cp_upload_state s;
    cp_autobuf cp_buf id = {0};
    if (cp_request_only(req, known, err) < 0) return -1;
    if (cp_query_decode(req->params[0], &id) < 0 || !cp_upload_id_valid(cp_buf_str(&id)))
        return cp_fail(err, CP_E_UPLOAD_NOT_FOUND, "No upload has this id");
    if (cp_upload_get(ctx->svc->uploads, cp_buf_str(&id), &s, err) < 0) return -1;
    return answer(res, cp_buf_str(&id), &s);
}
