/* POST /api/files/search {path, glob, hidden, limit}: an event for each entry below path whose name fits, then
 * {"type":"complete","matches","truncated","skipped"}. */
#include <stdlib.h>

#include "handlers/files_scan.h"

static int search_open(cp_scan *s, cp_err *err) {
    s->walk = cp_walk_open(&s->path.where, s->hidden ? CP_WALK_HIDDEN : CP_WALK_VISIBLE, err);
    return s->walk ? 0 : -1;
}

static const char *kind_word(mode_t mode) {
    return S_ISREG(mode) ? "file" : S_ISDIR(mode) ? "directory" : S_ISLNK(mode) ? "symlink" : "other";
}

static bool search_step(cp_scan *s) {
    cp_walk_entry e;
    if (!cp_walk_next(s->walk, &e)) return false;
    if (!cp_scan_wants(s, e.relative)) return true;
    cp_jw w = cp_scan_match(s, e.relative);
    cp_jw_kz(&w, "name", e.name);
    cp_jw_kz(&w, "kind", kind_word(e.st.st_mode));
    cp_jw_ki64(&w, "size", e.st.st_size);
    cp_jw_ki64(&w, "mtimeMs", (int64_t)e.st.st_mtim.tv_sec * 1000 + e.st.st_mtim.tv_nsec / 1000000);
    cp_scan_match_end(s, &w);
    return true;
}

static void search_free(cp_scan *s) { free(s); }

void cp_files_search(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    static const cp_scan_ops ops = {.op = "file.search", .open = search_open, .step = search_step, .free = search_free};
    static const char *const known[] = {"path", "glob", "hidden", "limit", CP_FILES_COMMON, NULL};
    cp_err err = {0};
    cp_scan *s = cp_new(cp_scan);
    if (cp_scan_begin(s, &ops, ctx, req, reply) < 0) return;
    if (cp_json_only(req->body, known, &err) < 0) cp_scan_refuse(s, &err);
    else cp_scan_start(s);
}
