/* POST /api/read/stream (cloudflare-sandbox.md section 3.3): metadata, chunks, complete; any failure is one error
 * event.
 *
 * The file is opened and read on the io pool, one job at a time; while one piece is sent the next is read. The loop
 * owns the stream's state, a job only what it was given: fd, range and the slot it fills. Work cannot be cancelled, so
 * a stream that is given up while a job runs is freed by the job's end. */
#include "handlers/files_impl.h"

#include "base/act.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/utf8.h"
#include "services/mime.h"

enum { HEADROOM = 4, SLOTS = 2 };

typedef struct slot {
    char *buf; /* HEADROOM for the unfinished character of the piece before, then CP_FILE_CHUNK */
    size_t n;
} slot;

typedef enum { FS_METADATA, FS_CHUNKS, FS_COMPLETE, FS_OVER } fs_phase;

typedef struct file_stream {
    cp_source src;
    cp_work work;
    cp_workers *workers;
    uint64_t client;
    cp_files_path path;
    char *given;      /* owned: what path.given points to */
    cp_charge charge; /* of the slots */

    /* the job's while `reading` */
    int fd;
    slot *filling;
    cp_err job_err; /* code CP_OK: none */
    const char *mime;
    bool base64, sized; /* sized: the file told its size */
    uint64_t size;      /* as announced */
    uint64_t limit;     /* bytes to read at most */
    uint64_t read;      /* bytes */

    /* the loop's */
    bool reading, opened, eof, closed;
    cp_err err; /* code CP_OK: none */
    slot slots[SLOTS];
    unsigned head, ready; /* filled slots, from head on */
    fs_phase phase;
    bool lossy;
    uint64_t sent;        /* bytes of the file */
    char carry[HEADROOM]; /* the unfinished character that the last chunk ended with */
    size_t held;          /* its bytes */
} file_stream;

static void stream_free(file_stream *s) {
    cp_close(&s->fd);
    for (int i = 0; i < SLOTS; i++) free(s->slots[i].buf);
    free(s->given);
    cp_charge_free(&s->charge);
    free(s);
}

/* ---- on the io pool ---- */

static int open_file(file_stream *s) {
    struct stat st;
    if (cp_act_begin(&s->job_err) < 0) return -1;
    s->fd = cp_file_open(&s->path.where, &st, &s->job_err);
    cp_act_end();
    if (s->fd < 0) return -1;
    s->size = (uint64_t)st.st_size;
    /* A file that grows is sent as long as it was. Size 0 may be a file of /proc, whose end only reading finds. */
    s->sized = s->size > 0;
    s->limit = s->sized ? s->size : CP_READ_MAX;
    return 0;
}

static void describe(file_stream *s, const slot *first) {
    bool whole = first->n < CP_FILE_CHUNK;
    if (!s->size && whole) s->size = first->n;
    s->mime = cp_mime_of(cp_path_base(s->path.given), (cp_str){first->buf + HEADROOM, first->n}, whole);
    s->base64 = cp_mime_binary(s->mime);
}

static void read_run(cp_work *w) {
    file_stream *s = CP_CONTAINER(w, file_stream, work);
    slot *to = s->filling;
    bool first = s->fd < 0;
    if (first && open_file(s) < 0) return;
    if (!to->buf) to->buf = cp_realloc(NULL, HEADROOM + CP_FILE_CHUNK);
    uint64_t left = s->limit - s->read;
    ssize_t n = cp_read_full(s->fd, to->buf + HEADROOM, left < CP_FILE_CHUNK ? (size_t)left : CP_FILE_CHUNK);
    if (n < 0) {
        cp_fail_sys(&s->job_err, CP_E_FILESYSTEM_ERROR, errno, "read");
        return;
    }
    to->n = (size_t)n;
    s->read += (uint64_t)n;
    if (first) describe(s, to);
    if (!s->sized && s->read == s->limit)
        cp_fail(&s->job_err, CP_E_FILE_TOO_LARGE, "A file that tells no size gave more than %d bytes", CP_READ_MAX);
}

/* ---- on the loop ---- */

static void read_done(cp_work *w);

static void read_more(file_stream *s) {
    if (s->reading || s->eof || s->err.code || s->ready == SLOTS) return;
    s->reading = true;
    s->filling = &s->slots[(s->head + s->ready) % SLOTS];
    cp_workers_submit_to(s->workers, CP_LANE_FILES, s->client, &s->work, read_run, read_done);
}

static void read_done(cp_work *w) {
    file_stream *s = CP_CONTAINER(w, file_stream, work);
    s->reading = false;
    if (s->closed) {
        stream_free(s);
        return;
    }
    s->err = s->job_err;
    if (!s->err.code) {
        s->opened = true;
        s->eof = s->filling->n < CP_FILE_CHUNK || s->read == s->limit;
        if (s->filling->n) s->ready++;
    }
    read_more(s);
    cp_source_wake(&s->src);
}

static cp_pull put_error(file_stream *s, cp_event *ev) {
    const cp_err *e = &s->err;
    cp_autobuf cp_buf text = {0};
    bool missing = e->sys == ENOENT || e->sys == ENOTDIR || e->sys == EISDIR;
    cp_buf_addz(&text, missing ? "File not found: " : e->msg);
    if (missing) cp_buf_add(&text, s->path.given.p, s->path.given.n);
    cp_jw_obj(&ev->w);
    cp_jw_kz(&ev->w, "type", "error");
    cp_jw_kstr(&ev->w, "error", cp_buf_str(&text));
    cp_jw_end_obj(&ev->w);
    s->phase = FS_OVER;
    return CP_PULL_EVENT;
}

static cp_pull put_metadata(file_stream *s, cp_event *ev) {
    cp_jw_obj(&ev->w);
    cp_jw_kz(&ev->w, "type", "metadata");
    cp_jw_kz(&ev->w, "mimeType", s->mime);
    cp_jw_ku64(&ev->w, "size", s->size);
    cp_jw_kbool(&ev->w, "isBinary", s->base64);
    cp_jw_kz(&ev->w, "encoding", s->base64 ? "base64" : "utf-8");
    cp_jw_end_obj(&ev->w);
    s->phase = FS_CHUNKS;
    return CP_PULL_EVENT;
}

static cp_pull put_complete(file_stream *s, cp_event *ev) {
    cp_jw_obj(&ev->w);
    cp_jw_kz(&ev->w, "type", "complete");
    cp_jw_ku64(&ev->w, "bytesRead", s->sent);
    if (s->lossy) cp_jw_kbool(&ev->w, "lossy", true);
    cp_jw_end_obj(&ev->w);
    s->phase = FS_OVER;
    return CP_PULL_EVENT;
}

static void put_data(file_stream *s, cp_event *ev, const char *p, size_t n) {
    cp_jw_obj(&ev->w);
    cp_jw_kz(&ev->w, "type", "chunk");
    cp_jw_key(&ev->w, "data");
    if (s->base64) cp_jw_base64(&ev->w, p, n);
    else cp_jw_str(&ev->w, (cp_str){p, n});
    cp_jw_end_obj(&ev->w);
    s->lossy |= ev->w.lossy;
}

/* The unfinished character at the end of a text piece waits for the next one, and is put in front of it. */
static cp_pull put_chunk(file_stream *s, cp_event *ev) {
    slot *from = &s->slots[s->head];
    char *p = from->buf + HEADROOM - s->held;
    size_t n = from->n + s->held;
    memcpy(p, s->carry, s->held);
    s->held = s->base64 || (s->eof && s->ready == 1) ? 0 : cp_utf8_tail(p, n);
    memcpy(s->carry, p + n - s->held, s->held);
    put_data(s, ev, p, n - s->held);
    s->sent += from->n;
    s->head = (s->head + 1) % SLOTS;
    s->ready--;
    read_more(s);
    return CP_PULL_EVENT;
}

/* The file has become shorter and ends inside a character. */
static cp_pull put_carry(file_stream *s, cp_event *ev) {
    put_data(s, ev, s->carry, s->held);
    s->held = 0;
    return CP_PULL_EVENT;
}

/* A piece is sent whole whatever the budget says: clients count on 65,535 bytes a chunk. */
static cp_pull stream_pull(cp_source *src, size_t budget, cp_event *ev) {
    (void)budget;
    file_stream *s = CP_CONTAINER(src, file_stream, src);
    if (s->phase == FS_OVER) return CP_PULL_END;
    if (!s->opened && !s->err.code) return CP_PULL_WAIT;
    if (s->err.code && !s->ready) return put_error(s, ev);
    if (s->phase == FS_METADATA) return put_metadata(s, ev);
    if (s->ready) return put_chunk(s, ev);
    if (!s->eof) return CP_PULL_WAIT;
    return s->held ? put_carry(s, ev) : put_complete(s, ev);
}

static void stream_close(cp_source *src, cp_end why, bool kill) {
    (void)why, (void)kill;
    file_stream *s = CP_CONTAINER(src, file_stream, src);
    s->closed = true;
    s->src.wake = NULL;
    if (!s->reading || cp_workers_withdraw(&s->work)) stream_free(s);
}

void cp_files_read_stream(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    static const cp_source_ops ops = {.pull = stream_pull, .close = stream_close};
    file_stream *s = cp_new(file_stream);
    s->fd = -1;
    cp_str session, given = cp_files_body_str(req, "path");
    bool has = cp_files_session(req, &session);
    const char *why = cp_path_problem(given);
    cp_err err;
    s->charge.kind = CP_MEM_TRANSFERS;
    if (cp_charge_set(&s->charge, SLOTS * (HEADROOM + CP_FILE_CHUNK), &err) < 0) {
        stream_free(s);
        cp_reply_error(reply, &err, "file.readStream", (cp_str){0});
        return;
    }
    s->src.ops = &ops;
    s->workers = ctx->workers;
    s->client = cp_request_owner(req);
    s->given = cp_str_dup(given);
    s->path.given = (cp_str){s->given, given.n};
    if (why) cp_files_bad_path(&s->err, given, why);
    else cp_files_locate(ctx, has, session, &s->path, &s->err);
    read_more(s);
    cp_reply_stream(reply, &s->src);
}
