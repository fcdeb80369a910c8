/* The text of a command, which a client may make as long as a request may be.
 *
 * Design notes. Whole, it is only needed until the command has begun. So the job has it until then, counted in the
 * memory budget, and what is kept afterwards (in memory, in the registry, in every answer) is bounded: of a text of
 * more than CP_COMMAND_WHOLE bytes the beginning, the length and the SHA-256. The whole of it stands beside the logs,
 * as logs/ID.cmd, for as long as they are kept, and counts as they do (--log-total). Only what is durable has logs
 * there: the text of a plain call is gone when it has begun.
 *
 * The file is written by a thread, before the intent is recorded: what has a row has its text. It gets its name on the
 * loop, when it is known that somebody is still there to take it away. */
#include "base/fd.h"
#include "base/log.h"
#include "base/sha.h"
#include "services/exec_core.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- what is kept ---- */

void cp_exec_text_set(cp_exec *e, cp_str text, const uint8_t *sha256) {
    size_t head = cp_command_head(text);
    free(e->command);
    e->command = cp_str_dup((cp_str){text.p, head});
    e->command_length = text.n;
    e->command_truncated = head < text.n;
    if (!e->command_truncated) return;
    if (sha256) memcpy(e->command_sha256, sha256, sizeof e->command_sha256);
    else cp_sha256_of(text.p, text.n, e->command_sha256);
}

/* ---- the file ---- */

static void path_of(const cp_exec *e, cp_buf *out) {
    cp_buf_addf(out, "%s/logs/%s" CP_COMMAND_SUFFIX, e->svc->state_dir, e->id);
}

/* 0, or the errno; nothing is left behind then. */
static int write_file(const char *path, cp_str text) {
    cp_autofd int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return errno;
    if (cp_write_all(fd, text.p, text.n) == 0) return 0;
    int sys = errno;
    unlink(path);
    return sys;
}

struct text_job {
    cp_work work;
    cp_exec *e;
    char *temp; /* a name that no execution can have: what a crash leaves is swept by the next start */
    int sys;
    void (*then)(cp_exec *e);
};

static void save_run(cp_work *w) {
    struct text_job *t = CP_CONTAINER(w, struct text_job, work);
    t->sys = write_file(t->temp, cp_str_of(t->e->impl->job.command));
}

static int name_it(cp_exec *e, const char *temp) {
    cp_autobuf cp_buf path = {0};
    path_of(e, &path);
    if (rename(temp, cp_buf_z(&path)) < 0) return errno;
    e->impl->text_bytes = e->command_length;
    return 0;
}

static void refuse(cp_exec *e, int sys) {
    cp_err err = {0};
    cp_code code = cp_no_space(sys) ? CP_E_NO_SPACE : cp_no_fd(sys) ? CP_E_TOO_MANY_FILES : CP_E_FILESYSTEM_ERROR;
    cp_fail_sys(&err, code, sys, "the text of the command could not be kept");
    cp_exec_failed(e, &err);
}

static void save_done(cp_work *w) {
    struct text_job *t = CP_CONTAINER(w, struct text_job, work);
    cp_exec *e = t->e;
    bool over = !e->impl->listed || e->impl->has_exit; /* ended before it could begin, or the services were closed */
    e->impl->borrowed = false;
    if (!t->sys && !over) t->sys = name_it(e, t->temp);
    if (!e->impl->text_bytes) cp_output_remove(e->svc->workers, t->temp);
    if (over) cp_exec_job_free(e);
    else if (t->sys) refuse(e, t->sys);
    else t->then(e);
    free(t->temp);
    free(t);
    cp_exec_unref(e);
}

void cp_exec_text_save(cp_exec *e, void (*then)(cp_exec *e)) {
    static unsigned n; /* loop thread only */
    struct text_job *t = cp_new(struct text_job);
    cp_autobuf cp_buf temp = {0};
    cp_buf_addf(&temp, "%s/logs/~%d-%u" CP_COMMAND_SUFFIX, e->svc->state_dir, (int)getpid(), n++);
    t->e = e;
    t->temp = cp_str_dup(cp_buf_str(&temp));
    t->then = then;
    e->impl->borrowed = true;
    cp_exec_ref(e);
    cp_workers_submit_to(e->svc->workers, CP_LANE_OUTPUT, CP_OWNER_ANYONE, &t->work, save_run, save_done);
}

void cp_exec_text_remove(cp_exec *e) {
    cp_autobuf cp_buf path = {0};
    if (!e->impl->text_bytes) return;
    path_of(e, &path);
    cp_output_remove(e->svc->workers, cp_buf_z(&path));
    e->impl->text_bytes = 0;
}

/* ---- a former server's ---- */

/* One that kept texts whole in its rows: the file is made now, and the row is due to be written anew. */
static void shorten_row(cp_exec *e, cp_str text) {
    cp_autobuf cp_buf path = {0};
    path_of(e, &path);
    int sys = write_file(cp_buf_z(&path), text);
    if (sys && sys != EEXIST)
        cp_log(CP_LOG_WARN, "exec.text", "the text of a command could not be kept", CP_KVZ("id", e->id),
               CP_KVZ("errno", cp_errno_name(sys)));
    e->impl->row_due = true;
}

static void find_file(cp_exec *e) {
    struct stat st;
    cp_autobuf cp_buf path = {0};
    path_of(e, &path);
    if (lstat(cp_buf_z(&path), &st) == 0 && S_ISREG(st.st_mode)) e->impl->text_bytes = (uint64_t)st.st_size;
}

void cp_exec_text_of_row(cp_exec *e, const cp_exec_row *row) {
    cp_str text = cp_str_of(row->command ? row->command : "");
    cp_exec_text_set(e, text, NULL);
    if (e->command_truncated) shorten_row(e, text);
    if (row->command_length > text.n) {
        e->command_length = row->command_length;
        e->command_truncated = true;
        memcpy(e->command_sha256, row->command_sha256, sizeof e->command_sha256);
    }
    if (e->command_truncated) find_file(e);
}

bool cp_exec_text_load(cp_exec *e) {
    cp_autobuf cp_buf path = {0};
    path_of(e, &path);
    struct stat st;
    cp_autofd int fd = open(cp_buf_z(&path), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) return false;
    cp_autofree char *piece = cp_alloc(CP_COMMAND_WHOLE + 1);
    cp_sha256 sha;
    uint64_t total = 0;
    ssize_t n = read(fd, piece, CP_COMMAND_WHOLE + 1);
    if (n <= CP_COMMAND_WHOLE) return false; /* not one of ours, which are longer */
    cp_exec_text_set(e, (cp_str){piece, (size_t)n}, NULL);
    cp_sha256_init(&sha);
    for (; n > 0; n = read(fd, piece, CP_COMMAND_WHOLE)) {
        cp_sha256_update(&sha, piece, (size_t)n);
        total += (uint64_t)n;
    }
    cp_sha256_final(&sha, e->command_sha256);
    e->command_length = e->impl->text_bytes = total;
    return true;
}
