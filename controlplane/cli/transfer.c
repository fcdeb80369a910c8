#include "cli/transfer.h"

#include "base/fd.h"
#include "base/id.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { PIECE = 2 * 1024 * 1024 };

/* ---- up ---- */

/* Bytes of the next piece; -1: said. */
static ssize_t next_piece(const cli_upload *u, char *piece) {
    ssize_t n = 0;
    if (!u->seekable) {
        n = cp_read_full(u->fd, piece, PIECE);
    } else {
        for (ssize_t k; n < PIECE && (k = pread(u->fd, piece + n, PIECE - (size_t)n, (off_t)u->offset + n)) != 0;) {
            if (k < 0 && errno == EINTR) continue;
            if (k < 0) n = -1;
            if (k < 0) break;
            n += k;
        }
    }
    if (n < 0) cli_fail("cannot read what is to be sent: %s", strerror(errno));
    return n;
}

static void piece_body(const cli *c, const cli_upload *u, const char *p, size_t n, bool final, cp_buf *out) {
    cp_jw w = cli_path_body(c, out, u->path);
    cp_jw_kz(&w, "uploadId", u->id);
    cp_jw_ku64(&w, "offset", u->offset);
    cp_jw_kbool(&w, "final", final);
    if (u->perm) cp_jw_kz(&w, "mode", u->perm);
    cp_jw_kz(&w, "encoding", "base64");
    cp_jw_key(&w, "content");
    cp_jw_base64(&w, p, n);
    cp_jw_end_obj(&w);
}

/* A piece whose answer was lost is refused when it is sent again, by the size that there is meanwhile. */
static bool had_it_already(const cli_answer *a, const conflux_error *err, uint64_t size) {
    if (strcmp(err->code, "OFFSET_CONFLICT") != 0) return false;
    cp_autodoc yyjson_doc *doc = cp_json_parse((cp_str){a->rs.body, a->rs.body_len}, NULL);
    yyjson_val *context = yyjson_obj_get(yyjson_doc_get_root(doc), "context");
    return yyjson_is_obj(context) && (uint64_t)cli_num(context, "size") == size;
}

static int send_piece(cli *c, cli_upload *u, const char *p, size_t n, bool final) {
    cp_autobuf cp_buf body = {0};
    cli_autoanswer cli_answer a = {0};
    conflux_error err;
    piece_body(c, u, p, n, final, &body);
    conflux_request rq = {.path = "/api/write", .body = body.p, .body_len = body.n, .idempotent = 1};
    if (cli_try_again(c, &rq, &a, &err) < 0 && !(n && had_it_already(&a, &err, u->offset + n)))
        return cli_report(c, &err);
    u->offset += n;
    if (u->progress) cli_progress_add(u->progress, n);
    return CLI_OK;
}

/* What an earlier attempt has left. A complete one is another copy: this one gets an id of its own. */
static int look_for_upload(cli *c, cli_upload *u) {
    cp_autobuf cp_buf path = {0};
    cli_autoanswer cli_answer a = {0};
    conflux_error err;
    cli_path(&path, "/api/files/upload/", u->id, "");
    if (cli_try_again(c, &(conflux_request){.path = path.p}, &a, &err) < 0)
        return strcmp(err.code, "UPLOAD_NOT_FOUND") == 0 ? CLI_OK : cli_report(c, &err);
    if (yyjson_is_true(yyjson_obj_get(a.root, "complete"))) {
        cp_random_base36(u->id, 32);
        return CLI_OK;
    }
    u->offset = (uint64_t)cli_num(a.root, "size");
    if (u->progress) cli_progress_add(u->progress, u->offset);
    return CLI_OK;
}

int cli_upload_run(cli *c, cli_upload *u) {
    cp_autofree char *piece = cp_realloc(NULL, PIECE);
    int rc = cli_client(c) ? CLI_OK : CLI_FAILED;
    if (!rc && u->seekable) rc = look_for_upload(c, u);
    for (bool final = false; !rc && !final;) {
        ssize_t n = next_piece(u, piece);
        if (n < 0) return CLI_FAILED;
        final = n < PIECE;
        rc = send_piece(c, u, piece, (size_t)n, final);
    }
    return rc;
}

/* ---- down ---- */

void cli_file_path(const cli *c, const char *route, const char *path, cp_buf *out) {
    cp_buf_addz(out, route);
    cli_query_add(out, "sessionId", cli_session(c));
    cli_query_add(out, "path", path);
    cp_buf_z(out);
}

int cli_stat(cli *c, const char *path, bool follow, cli_answer *a, int *status) {
    cp_autobuf cp_buf body = {0};
    conflux_error err;
    *status = CLI_FAILED;
    if (cli_check_utf8("the path", path) || !cli_client(c)) return -1;
    cp_jw w = cli_path_body(c, &body, path);
    cp_jw_kbool(&w, "follow", follow);
    cp_jw_end_obj(&w);
    conflux_request rq = {.path = "/api/files/stat", .body = body.p, .body_len = body.n, .idempotent = 1};
    if (cli_try_again(c, &rq, a, &err) == 0) return 1;
    *status = strcmp(err.code, "FILE_NOT_FOUND") == 0 ? CLI_OK : cli_report(c, &err);
    return *status ? -1 : 0;
}

int cli_download_look(cli *c, cli_download *d) {
    cli_autoanswer cli_answer a = {0};
    int status, there = cli_stat(c, d->path, true, &a, &status);
    if (there < 0) return status;
    if (!there) return cli_fail("there is no %s (FILE_NOT_FOUND)", d->path), CLI_REFUSED;
    if (strcmp(cli_str(a.root, "type"), "file") != 0)
        return cli_fail("%s is a %s", d->path, cli_str(a.root, "type")), CLI_REFUSED;
    const char *etag = cli_str(a.root, "etag");
    if (*d->etag && strcmp(d->etag, etag) != 0)
        return cli_fail("%s was changed while it was copied", d->path), CLI_REFUSED;
    snprintf(d->etag, sizeof d->etag, "%s", etag);
    d->size = (uint64_t)cli_num(a.root, "size");
    d->mode = strtol(cli_str(a.root, "mode"), NULL, 8);
    return CLI_OK;
}

/* One connection's worth: 0 when the file has ended; -1 with *err (kind OK: our side failed, which has been said). */
static int receive(cli *c, cli_download *d, uint32_t timeout_ms, conflux_error *err) {
    cp_autobuf cp_buf path = {0};
    char range[40];
    conflux_event ev;
    int rc = -1;
    snprintf(range, sizeof range, "bytes=%llu-", (unsigned long long)d->offset);
    conflux_header headers[] = {{"Range", range}, {"If-Range", d->etag}};
    cli_file_path(c, "/api/files/raw", d->path, &path);
    conflux_request rq = {
        .path = path.p, .over_http = 1, .headers = headers, .nheaders = d->offset ? 2 : 0, .timeout_ms = timeout_ms};
    conflux_stream *s = conflux_fetch_stream(c->client, &rq, err);
    while (s && (rc = conflux_stream_next(s, &ev, err)) > 0) {
        if (cli_write(d->fd, ev.data, ev.len) < 0) {
            *err = (conflux_error){0};
            rc = -1;
            break;
        }
        d->offset += ev.len;
        if (d->progress) cli_progress_add(d->progress, ev.len);
    }
    conflux_stream_free(s);
    return rc;
}

/* What the server's kernel makes up (files of /proc) says size 0 and has content. */
static bool is_whole(const cli_download *d) { return d->offset == d->size || !d->size; }

int cli_download_run(cli *c, cli_download *d) {
    cli_patience patience = {0};
    if (cli_reconnect_ms(c, &patience.limit_ms)) return CLI_FAILED;
    while (!d->size || d->offset < d->size) {
        conflux_error err = {0};
        uint64_t before = d->offset;
        if (receive(c, d, cli_patience_ms(&patience, 0), &err) == 0) break;
        if (!err.kind) return CLI_FAILED;
        bool moved = d->offset > before;
        if (moved) cli_patience_over(&patience);
        if (!cli_is_lost(&err) || (!moved && !patience.since && err.kind != CONFLUX_E_CONNECTION_LOST) ||
            !cli_patience_left(&patience))
            return cli_report(c, &err);
        int rc = cli_download_look(c, d); /* the same file as before? */
        if (rc) return rc;
    }
    if (is_whole(d)) return CLI_OK;
    return cli_fail("%s was changed while it was copied", d->path), CLI_REFUSED;
}
