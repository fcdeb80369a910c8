/* POST /api/list-files: the reference ran find.
 *
 * Design notes. A tree may hold any number of entries, so the answer is made while it is sent, in constant memory,
 * where the door allows that: over HTTP, once it has become long (a short one has its length told, as ever). On the
 * WebSocket a response is one message, and in a batch it is a part of one: there a long one is refused, not cut in
 * silence. `limit` asks for a part, which may be shorter there; that there is more is told (`truncated`), and `next` is
 * the `after` of the next call. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "handlers/files_impl.h"
#include "services/files_walk.h"

enum {
    GATHER = 256 * 1024,    /* what is not longer is sent with its length */
    PIECE = 16 * 1024,      /* what is made at once of a longer one */
    WHOLE = CP_READ_MAX,    /* the longest that is gathered where it must be */
    MOST = 1000 * 1000,     /* of limit */
    AFTER_MAX = 256 * 1024, /* of `after`: a cookie of 17 bytes for every other byte of the longest path, in base64 */
};

typedef struct listing {
    cp_body_source body;
    cp_walk *walk;
    bool recursive, hidden, end;
    int64_t limit; /* 0: none */
    cp_jw w;       /* on text */
    cp_buf text;
    cp_charge charge; /* of text, while it is sent */
    size_t at;        /* of text: given already */
    cp_buf path;      /* absolute path of the folder and a slash, then of the entry */
    size_t base;
    cp_buf mark; /* behind the last entry that the limit allows */
    int64_t count;
} listing;

static void listing_free(listing *l) {
    cp_walk_close(l->walk);
    cp_buf_free(&l->text);
    cp_charge_free(&l->charge);
    cp_buf_free(&l->path);
    cp_buf_free(&l->mark);
    free(l);
}

/* ---- entries ---- */

static const char *type_word(mode_t mode) {
    return S_ISREG(mode) ? "file" : S_ISDIR(mode) ? "directory" : S_ISLNK(mode) ? "symlink" : "other";
}

static void put_entry(listing *l, const cp_walk_entry *e) {
    cp_jw *w = &l->w;
    char mode[10], time[40];
    cp_file_mode_text(e->st.st_mode, mode);
    cp_file_time_text(e->st.st_mtim, time);
    l->path.n = l->base;
    cp_buf_addz(&l->path, e->relative);
    cp_jw_obj(w);
    cp_jw_kz(w, "name", e->name);
    cp_jw_kstr(w, "absolutePath", cp_buf_str(&l->path));
    cp_jw_kz(w, "relativePath", e->relative);
    cp_jw_kz(w, "type", type_word(e->st.st_mode));
    cp_jw_ki64(w, "size", e->st.st_size);
    cp_jw_kz(w, "modifiedAt", time);
    cp_jw_kz(w, "mode", mode);
    cp_jw_key(w, "permissions");
    cp_jw_obj(w);
    cp_jw_kbool(w, "readable", e->st.st_mode & S_IRUSR);
    cp_jw_kbool(w, "writable", e->st.st_mode & S_IWUSR);
    cp_jw_kbool(w, "executable", e->st.st_mode & S_IXUSR);
    cp_jw_end_obj(w);
    cp_jw_end_obj(w);
}

static void put_end(listing *l, bool truncated) {
    cp_jw *w = &l->w;
    cp_jw_end_arr(w);
    cp_jw_ki64(w, "count", l->count);
    if (cp_walk_skipped(l->walk)) cp_jw_ku64(w, "skipped", cp_walk_skipped(l->walk));
    if (l->limit) cp_jw_kbool(w, "truncated", truncated);
    if (truncated) {
        cp_jw_key(w, "next");
        cp_jw_base64(w, l->mark.p, l->mark.n);
    }
    cp_success_end(w);
    l->end = true;
}

/* Names that begin with a dot are left out unless asked for, but what is in folders of such names is not. */
static void step(listing *l) {
    cp_walk_entry e;
    if (!cp_walk_next(l->walk, &e)) {
        put_end(l, false);
        return;
    }
    if (!l->recursive) cp_walk_pass(l->walk);
    if (*e.name == '.' && !l->hidden) return;
    if (l->limit && l->count == l->limit) {
        put_end(l, true);
        return;
    }
    put_entry(l, &e);
    if (++l->count == l->limit) cp_walk_mark(l->walk, &l->mark);
}

static void make(listing *l, size_t n) {
    while (!l->end && l->text.n < n) step(l);
}

/* ---- a long one over HTTP ---- */

static ssize_t list_read(cp_body_source *b, void *to, size_t n) {
    listing *l = CP_CONTAINER(b, listing, body);
    if (l->at == l->text.n) {
        cp_buf_clear(&l->text);
        l->at = 0;
        make(l, PIECE);
        if (!l->text.n) return 0;
    }
    if (n > l->text.n - l->at) n = l->text.n - l->at;
    memcpy(to, l->text.p + l->at, n);
    l->at += n;
    if (l->at == l->text.n) cp_buf_free(&l->text), l->at = 0; /* nothing is held while the client is waited for */
    cp_charge_force(&l->charge, l->text.cap);
    return (ssize_t)n;
}

static void list_close(cp_body_source *b) { listing_free(CP_CONTAINER(b, listing, body)); }

/* ---- the request ---- */

static int list_failed(cp_result *res, cp_err *err, cp_str path) {
    if (err->sys == ENOENT) return cp_files_not_found(res, "directory.list", path, "Directory not found");
    if (err->sys != ENOTDIR) return cp_files_sdk_error(res, err, "directory.list", path, "Failed to list files in");
    cp_fail(err, CP_E_NOT_DIRECTORY, "Path is not a directory: %.*s", (int)path.n, path.p);
    return cp_files_error(res, err, "directory.list", path);
}

static int seek(listing *l, cp_str after, cp_err *err) {
    cp_autobuf cp_buf mark = {0};
    if (!after.p) return 0;
    if (after.n <= AFTER_MAX && cp_base64_decode(&mark, after) == 0 && cp_walk_seek(l->walk, cp_buf_str(&mark)) == 0)
        return 0;
    return cp_fail_field(err, "after", "after is what `next` of an earlier answer said");
}

static void begin(listing *l, const cp_files_path *p, cp_result *res) {
    l->w = cp_success_begin(res);
    l->text = cp_take(res->body);
    l->w.out = &l->text;
    cp_jw_kstr(&l->w, "path", p->given);
    cp_jw_key(&l->w, "files");
    cp_jw_arr(&l->w);
    cp_buf_addz(&l->path, p->where.full);
    while (l->path.n && l->path.p[l->path.n - 1] == '/') l->path.n--;
    cp_buf_addc(&l->path, '/');
    l->base = l->path.n;
}

/* In a part, too, that would be too long. */
static void cut(listing *l) {
    cp_buf_clear(&l->mark);
    cp_walk_mark(l->walk, &l->mark);
    put_end(l, true);
}

/* Takes l. */
static int answer(listing *l, bool whole, cp_result *res, cp_err *err) {
    make(l, whole ? WHOLE : GATHER);
    if (!l->end && !whole) {
        l->charge.kind = CP_MEM_TRANSFERS;
        if (cp_charge_set(&l->charge, l->text.cap, err) < 0) return listing_free(l), -1;
        l->body = (cp_body_source){.read = list_read, .close = list_close};
        res->source = &l->body;
        return 0;
    }
    if (!l->end && l->limit) cut(l);
    if (l->end) res->body = cp_take(l->text);
    listing_free(l);
    if (res->body.p) return 0;
    return cp_fail(
        err, CP_E_PAYLOAD_TOO_LARGE,
        "The listing is longer than %d bytes: ask for parts of it (options.limit, options.after), over HTTP, "
        "or for a stream (/api/files/search)",
        WHOLE);
}

static int read_options(const cp_request *req, listing *l, cp_str *after, cp_err *err) {
    yyjson_val *o = NULL;
    if (cp_json_obj(req->body, "options", &o, err) < 0) return -1;
    if (!o) return 0;
    return cp_json_bool(o, "recursive", &l->recursive, err) < 0 ||
                   cp_json_bool(o, "includeHidden", &l->hidden, err) < 0 ||
                   cp_json_int(o, "limit", 1, MOST, &l->limit, err) < 0 ||
                   cp_json_str(o, "after", false, after, err) < 0
               ? -1
               : 0;
}

int cp_files_list(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    cp_files_path p;
    listing asked = {0};
    cp_str after = {0};
    if (cp_files_path_arg(ctx, req, "path", "directory.list", &p, res) < 0) return 0;
    if (read_options(req, &asked, &after, err) < 0) return -1;
    asked.walk = cp_walk_open(&p.where, CP_WALK_FIND, err);
    if (!asked.walk) return list_failed(res, err, p.given);
    listing *l = cp_new(listing);
    *l = asked;
    if (seek(l, after, err) < 0) {
        listing_free(l);
        return -1;
    }
    begin(l, &p, res);
    return answer(l, req->mux || req->gathered, res, err);
}
