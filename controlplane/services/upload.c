/* Design notes. An upload is two files. What has been received is a temporary file beside the target, so that a rename
 * publishes it; its size is the truth about how far the upload has come, also after a crash in the middle of a piece.
 * The record <state>/uploads/u-<id> says where that file is, in strings that each end in a NUL:
 *
 *     path as given, absolute path, name of the temporary file [, size]
 *
 * It is written before the temporary file is made (a crash in between leaves an upload of size 0, never a file that
 * nobody knows), and the size is added before the rename: a record with a size and without a temporary file is an
 * upload that is complete, which answers a client that lost the reply to its last piece. The temporary name is random
 * and kept where only we can read it: one made from the id could be put in place by others first.
 *
 * The lock is flock on the record; whoever waited for it looks whether the record is still linked. Ruled out: a lock in
 * memory (held across a write), the state directory for the data (a rename from there may cross file systems). */
#include "services/upload_impl.h"

#include "base/act.h"
#include "base/aside.h"
#include "base/log.h"
#include "base/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

bool cp_upload_id_valid(cp_str id) {
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:-";
    if (!id.n || id.n > CP_UPLOAD_ID_MAX) return false;
    for (size_t i = 0; i < id.n; i++)
        if (!id.p[i] || !strchr(allowed, id.p[i])) return false;
    return true;
}

static void record_name(cp_str id, char out[CP_UPLOAD_ID_MAX + 3]) {
    snprintf(out, CP_UPLOAD_ID_MAX + 3, "u-%.*s", (int)id.n, id.p);
}

/* ---- records ---- */

/* Opened for each use: a descriptor that is kept would outlive the folder's name. */
int cp_uploads_dir(cp_uploads *u) {
    cp_autobuf cp_buf path = {0};
    cp_buf_addf(&path, "%s/uploads", u->svc->state_dir);
    cp_as_self;
    int made = cp_folder_make(cp_buf_z(&path), 0700);
    if (made < 0) return -1;
    if (atomic_exchange(&u->made, true) && made) {
        cp_metric_add(CP_M_STATE_MENDED, 1);
        cp_log(CP_LOG_ERROR, "upload.folder",
               "the folder of the uploads was gone, and what it said of unfinished ones; it was made again",
               CP_KVZ("path", cp_buf_z(&path)));
    }
    return open(cp_buf_z(&path), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static void record_path(const cp_uploads *u, const char *file, cp_buf *out) {
    cp_buf_addf(out, "%s/uploads/%s", u->svc->state_dir, file);
}

static int lock(int fd, cp_upload_how how) {
    int rc;
    if (how == CP_UPLOAD_PEEK) return 0;
    do rc = flock(fd, LOCK_EX | (how == CP_UPLOAD_TRY ? LOCK_NB : 0));
    while (rc < 0 && errno == EINTR);
    return rc;
}

/* What a client asks for by its id must work: something else in the place of a record is moved aside, one that somebody
 * has closed to us is opened again. True: out of the way. */
static bool put_right(const cp_uploads *u, int dir, const char *file) {
    struct stat st;
    cp_autobuf cp_buf path = {0};
    if (fstatat(dir, file, &st, AT_SYMLINK_NOFOLLOW) < 0) return false;
    if (cp_is_plain(&st)) return (st.st_mode & 0600) != 0600 && fchmodat(dir, file, 0600, 0) == 0;
    record_path(u, file, &path);
    return cp_file_clear(cp_buf_z(&path)) == 1;
}

static int open_record(const cp_uploads *u, int dir, const char *file, cp_upload_how how) {
    struct stat st;
    int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (how == CP_UPLOAD_CREATE ? O_CREAT : 0);
    bool asked_for = how == CP_UPLOAD_CREATE || how == CP_UPLOAD_WAIT;
    cp_as_self;
    for (int tries = 0;; tries++) {
        cp_autofd int fd = openat(dir, file, flags, 0600);
        if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink <= 1) return cp_take_fd(&fd);
        int sys = fd >= 0 ? ENOTSUP : errno;
        if (tries || sys == ENOENT || !asked_for || !put_right(u, dir, file)) return errno = sys, -1;
    }
}

static int lock_record(cp_uploads *u, const char *file, cp_upload_how how, cp_upload *p) {
    struct stat st;
    cp_autofd int dir = cp_uploads_dir(u);
    if (dir < 0) return -1;
    for (;;) {
        cp_autofd int fd = open_record(u, dir, file, how);
        if (fd < 0) return errno == ENOENT ? 0 : -1;
        if (lock(fd, how) < 0 || fstat(fd, &st) < 0) return -1;
        if (st.st_nlink == 0) continue; /* removed while we waited */
        *p = (cp_upload){.fd = cp_take_fd(&fd), .moved = st.st_mtim.tv_sec};
        snprintf(p->file, sizeof p->file, "%s", file);
        return 1;
    }
}

/* Is what lies at the recorded name the file that we made? Its folder may be writable for others. */
static bool ours(const struct stat *st) {
    return S_ISREG(st->st_mode) && st->st_nlink == 1 && st->st_uid == cp_act_uid();
}

static int look_at_file(const cp_uploads *u, cp_upload *p) {
    cp_where w;
    cp_err err = {0};
    struct stat st;
    cp_autostage cp_stage s = CP_STAGE_EMPTY;
    if (cp_where_init(&w, u->svc->files, "/", cp_str_of(p->full), &err) < 0) return 0; /* the root is another now */
    if (cp_stage_open_as(&s, &w, p->temp, false, &err) < 0)
        return cp_no_fd(err.sys) ? (errno = err.sys, -1) : 0; /* gone, or nothing that we could go on with */
    int rc = fstat(s.fd, &st);
    cp_stage_keep(&s);
    if (rc < 0 || !ours(&st)) return rc;
    p->present = true;
    p->moved = st.st_mtim.tv_sec;
    p->state.size = (uint64_t)st.st_size;
    return 0;
}

bool cp_upload_record_parse(cp_str text, cp_upload *out) {
    const char *field[4] = {0}, *at = text.p, *end = text.p + text.n;
    for (int i = 0; i < 4; i++) {
        const char *nul = at < end ? memchr(at, 0, (size_t)(end - at)) : NULL;
        if (!nul) break;
        field[i] = at;
        at = nul + 1;
        if (i == 2) out->head = (off_t)(at - text.p);
    }
    if (!field[2] || field[1][0] != '/' || !field[2][0] || strchr(field[2], '/')) return false;
    out->begun = true;
    snprintf(out->state.path, sizeof out->state.path, "%s", field[0]);
    snprintf(out->full, sizeof out->full, "%s", field[1]);
    snprintf(out->temp, sizeof out->temp, "%s", field[2]);
    out->last = field[3] != NULL;
    out->state.size = field[3] ? strtoull(field[3], NULL, 10) : 0;
    return true;
}

/* 1: one of ours, which is empty before it is begun; 0: a file of somebody else's. */
static int read_record(const cp_uploads *u, cp_upload *p) {
    enum { SIZE = 2 * CP_PATH_MAX + 128 };
    cp_autofree char *text = cp_realloc(NULL, SIZE); /* the stacks of HTTP workers are small */
    ssize_t n = pread(p->fd, text, SIZE, 0);
    if (n < 0) return -1;
    if (!cp_upload_record_parse((cp_str){text, (size_t)n}, p)) return n == 0;
    uint64_t said = p->state.size;
    p->state.size = 0;
    if (look_at_file(u, p) < 0) return -1;
    p->state.complete = p->last && !p->present;
    if (p->state.complete) p->state.size = said;
    return 1;
}

/* 0, or -1 with errno. */
static int make_way(const cp_uploads *u, const char *file) {
    cp_autobuf cp_buf path = {0};
    cp_autofree char *moved = NULL;
    record_path(u, file, &path);
    cp_as_self;
    if (cp_move_aside(cp_buf_z(&path), NULL, &moved) < 0) return -1;
    cp_log(CP_LOG_ERROR, "state.aside", "something else stood in the place of a file; it was moved aside",
           CP_KVZ("moved_to", moved));
    return 0;
}

int cp_upload_open(cp_uploads *u, const char *file, cp_upload_how how, cp_upload *out) {
    for (;;) {
        int got = lock_record(u, file, how, out);
        if (got <= 0) return got;
        got = read_record(u, out);
        if (got > 0) return got;
        int sys = errno;
        if (got == 0 && how == CP_UPLOAD_CREATE && make_way(u, file) < 0) sys = errno, got = -1;
        cp_close(&out->fd);
        if (got < 0) return errno = sys, -1;
        if (how != CP_UPLOAD_CREATE) return 0;
    }
}

void cp_upload_remove(cp_uploads *u, cp_upload *p) {
    cp_where w;
    cp_autostage cp_stage s = CP_STAGE_EMPTY;
    if (p->present && cp_where_init(&w, u->svc->files, "/", cp_str_of(p->full), NULL) == 0)
        (void)cp_stage_open_as(&s, &w, p->temp, false, NULL); /* the stage's end takes the file along */
    cp_autofd int dir = cp_uploads_dir(u);
    cp_as_self;
    if (unlinkat(dir, p->file, 0) < 0 && errno != ENOENT)
        cp_log(CP_LOG_ERROR, "upload.record", "the record of an upload stays, until a sweep can remove it",
               CP_KVZ("record", p->file), CP_KVZ("errno", cp_errno_name(errno)));
}

/* ---- pieces ---- */

static int conflict(const cp_upload_state *s, cp_err *err) {
    return cp_fail(err, CP_E_OFFSET_CONFLICT, "The upload %s %llu bytes: go on from there",
                   s->complete ? "is complete with" : "has", (unsigned long long)s->size);
}

static int record_failed(cp_err *err, int sys) {
    return cp_fail_sys(err, cp_no_space(sys) ? CP_E_NO_SPACE : CP_E_FILESYSTEM_ERROR, sys, "the record of the upload");
}

static int write_record(int fd, const char *p, size_t n, off_t at) {
    ssize_t k = pwrite(fd, p, n, at);
    if (k >= 0 && k != (ssize_t)n) errno = ENOSPC; /* a short write says nothing about why */
    return k == (ssize_t)n ? 0 : -1;
}

/* Counts are a little behind when pieces of several uploads come at once: the bounds hold to within those pieces. */
static int admit(cp_uploads *u, int64_t uploads, uint64_t bytes, cp_err *err) {
    const cp_config *c = u->svc->config;
    for (int swept = 0;; swept++) {
        bool many = u->open + uploads > c->max_uploads, large = u->bytes + (int64_t)bytes > c->upload_bytes;
        if (!many && !large) return 0;
        if (swept && many)
            return cp_fail(err, CP_E_LIMIT_EXCEEDED, "%lld uploads are unfinished (--max-uploads)",
                           (long long)c->max_uploads);
        if (swept)
            return cp_fail(err, CP_E_LIMIT_EXCEEDED, "Unfinished uploads may hold %lld bytes (--upload-bytes)",
                           (long long)c->upload_bytes);
        cp_uploads_sweep(u, (uint64_t)uploads, bytes);
    }
}

static int begin(cp_uploads *u, const cp_where *w, const cp_upload_piece *piece, cp_upload *p, cp_err *err) {
    cp_autobuf cp_buf text = {0};
    if (admit(u, 1, piece->data.n, err) < 0) return -1;
    cp_temp_name(p->temp);
    if (cp_file_exists(w)) memcpy(strrchr(p->temp, '.'), ".mod", 4); /* as create_temp does, for watchers */
    snprintf(p->full, sizeof p->full, "%s", w->full);
    cp_buf_add(&text, p->state.path, strlen(p->state.path) + 1);
    cp_buf_add(&text, p->full, strlen(p->full) + 1);
    cp_buf_add(&text, p->temp, strlen(p->temp) + 1);
    p->head = (off_t)text.n;
    if (write_record(p->fd, text.p, text.n, 0) < 0) return record_failed(err, errno);
    p->begun = true;
    u->open++;
    return 0;
}

/* What did not fit is taken away again, so that the size tells where to go on. */
static int write_piece(cp_uploads *u, cp_upload *p, int fd, cp_str data, cp_err *err) {
    off_t at = (off_t)p->state.size;
    struct stat st;
    if (fstat(fd, &st) < 0 || !ours(&st) || st.st_size != at) return cp_file_fail(err, EBUSY, "write", p->state.path);
    if (lseek(fd, at, SEEK_SET) == at && cp_write_all(fd, data.p, data.n) == 0) {
        p->state.size += data.n;
        u->bytes += (int64_t)data.n;
        return 0;
    }
    int sys = errno;
    if (ftruncate(fd, at) < 0) sys = errno;
    return cp_file_fail(err, sys, "write", p->state.path);
}

static int publish(cp_uploads *u, cp_upload *p, cp_stage *s, const cp_owner *owner, cp_err *err) {
    char size[24];
    struct stat st;
    int n = snprintf(size, sizeof size, "%llu", (unsigned long long)p->state.size) + 1;
    if (write_record(p->fd, size, (size_t)n, p->head) < 0) return record_failed(err, errno);
    int rc = cp_stage_commit(s, owner, true, &st, err);
    if (s->temp[0]) { /* not renamed */
        if (ftruncate(p->fd, p->head) < 0) return record_failed(err, errno);
        return -1;
    }
    p->state.complete = true;
    u->open--;
    u->bytes -= (int64_t)p->state.size;
    return rc;
}

static int append(cp_uploads *u, const cp_where *w, const cp_upload_piece *piece, cp_upload *p, cp_err *err) {
    cp_autostage cp_stage s = CP_STAGE_EMPTY;
    if (piece->offset != p->state.size) return conflict(&p->state, err);
    if (admit(u, 0, piece->data.n, err) < 0) return -1;
    if (p->last && ftruncate(p->fd, p->head) < 0) return record_failed(err, errno);
    if (cp_stage_open_as(&s, w, p->temp, !p->present, err) < 0) return -1;
    p->present = true;
    int rc = write_piece(u, p, s.fd, piece->data, err);
    if (rc == 0 && piece->final) rc = publish(u, p, &s, &piece->owner, err);
    cp_stage_keep(&s);
    return rc;
}

/* The last piece again, whose reply was lost: the same bytes end where the upload ended. */
static int again(const cp_upload_piece *piece, const cp_upload *p, cp_err *err) {
    bool same = piece->final && piece->offset + piece->data.n == p->state.size;
    return same ? 0 : conflict(&p->state, err);
}

static int put(cp_uploads *u, const cp_where *w, const cp_upload_piece *piece, cp_upload *p, cp_err *err) {
    if (!p->begun) {
        int rc = piece->offset ? conflict(&p->state, err) : begin(u, w, piece, p, err);
        if (rc == 0) rc = append(u, w, piece, p, err);
        if (rc == 0 || p->state.complete) return rc;
        if (p->begun) {
            u->open--;
            u->bytes -= (int64_t)p->state.size;
        }
        cp_upload_remove(u, p); /* nothing of it stays, not even an empty file */
        p->state.size = 0;
        return -1;
    }
    if (strcmp(p->full, w->full) != 0)
        return cp_fail_field(err, "uploadId", "uploadId belongs to the upload of another file");
    return p->state.complete ? again(piece, p, err) : append(u, w, piece, p, err);
}

int cp_upload_put(cp_uploads *u, const cp_where *w, const cp_upload_piece *piece, cp_upload_state *state, cp_err *err) {
    cp_autoupload cp_upload p = CP_UPLOAD_EMPTY;
    char file[CP_UPLOAD_ID_MAX + 3];
    record_name(piece->id, file);
    int got = cp_upload_open(u, file, piece->offset ? CP_UPLOAD_WAIT : CP_UPLOAD_CREATE, &p);
    if (got < 0) return record_failed(err, errno);
    if (!p.begun) snprintf(p.state.path, sizeof p.state.path, "%.*s", (int)piece->given.n, piece->given.p);
    int rc = got ? put(u, w, piece, &p, err) : conflict(&p.state, err);
    *state = p.state;
    return rc;
}

int cp_upload_get(cp_uploads *u, cp_str id, cp_upload_state *state, cp_err *err) {
    cp_autoupload cp_upload p = CP_UPLOAD_EMPTY;
    char file[CP_UPLOAD_ID_MAX + 3];
    record_name(id, file);
    int got = cp_upload_open(u, file, CP_UPLOAD_WAIT, &p);
    if (got < 0) return record_failed(err, errno);
    if (!got || !p.begun) return cp_fail(err, CP_E_UPLOAD_NOT_FOUND, "No upload has this id");
    *state = p.state;
    return 0;
}
