/* POST /api/files/replace: edits of one file, all or none. */
#include <stdio.h>

#include "handlers/files_impl.h"
#include "services/files_edit.h"

#define OP "file.replace"

/* "old" → "edits[2].old" */
static int in_edit(cp_err *err, size_t i) {
    char field[sizeof err->field];
    snprintf(field, sizeof field, "edits[%zu]%s%.48s", i, err->field[0] ? "." : "", err->field);
    memcpy(err->field, field, sizeof field);
    return cp_wrap(err, "edits[%zu]", i);
}

static int read_edit(yyjson_val *v, cp_edit *e, cp_err *err) {
    static const char *const known[] = {"old", "new", "all", NULL};
    if (!yyjson_is_obj(v)) return cp_fail_field(err, "", "each edit must be an object");
    if (cp_json_only(v, known, err) < 0 || cp_json_str(v, "old", true, &e->old, err) < 0 ||
        cp_json_str(v, "new", true, &e->with, err) < 0 || cp_json_bool(v, "all", &e->all, err) < 0)
        return -1;
    return e->old.n ? 0 : cp_fail_field(err, "old", "old must not be empty");
}

static int read_edits(const cp_request *req, cp_edit edits[CP_EDITS_MAX], size_t *n, cp_err *err) {
    yyjson_val *list = NULL, *v;
    size_t i, max;
    if (cp_json_arr(req->body, "edits", &list, err) < 0) return -1;
    *n = yyjson_arr_size(list);
    if (*n < 1 || *n > CP_EDITS_MAX) return cp_fail_field(err, "edits", "edits must be 1 to %d edits", CP_EDITS_MAX);
    yyjson_arr_foreach(list, i, max, v) {
        if (read_edit(v, &edits[i], err) < 0) return in_edit(err, i);
    }
    return 0;
}

static int edit_failed(cp_result *res, const cp_err *err, cp_str path, const cp_edit_report *r) {
    cp_autobuf cp_buf context = {0};
    cp_jw w = cp_jw_on(&context);
    cp_jw_obj(&w);
    cp_jw_kstr(&w, "path", path);
    cp_jw_kz(&w, "operation", OP);
    cp_jw_kz(&w, "field", err->field);
    cp_jw_ku64(&w, "edit", r->edit);
    cp_jw_end_obj(&w);
    cp_error_result(res, err, OP, cp_buf_str(&context));
    return 0;
}

int cp_files_replace(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    static const char *const known[] = {"path", "edits", CP_FILES_COMMON, NULL};
    cp_files_path p;
    cp_edit edits[CP_EDITS_MAX] = {0};
    cp_edit_report r;
    size_t n;
    if (cp_json_only(req->body, known, err) < 0 || read_edits(req, edits, &n, err) < 0) return -1;
    if (cp_files_path_arg(ctx, req, "path", OP, &p, res) < 0) return 0;
    if (cp_file_edit(&p.where, edits, n, &r, err) < 0) {
        bool edit = err->code == CP_E_EDIT_NO_MATCH || err->code == CP_E_EDIT_AMBIGUOUS;
        return edit ? edit_failed(res, err, p.given, &r) : cp_files_error(res, err, OP, p.given);
    }
    cp_jw w = cp_success_begin(res);
    cp_jw_kstr(&w, "path", p.given);
    cp_jw_ku64(&w, "replacements", r.replaced);
    cp_jw_ku64(&w, "size", r.size);
    cp_success_end(&w);
    return 0;
}
