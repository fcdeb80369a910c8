/* The private folder of a session: the FIFO `s` for reports, `x` for exported variables, and the FIFOs of its commands
 * (session_fifo.c). Its record, which holds the environment of commands, lies in memory, or is the file `c`.
 *
 * Design notes. A shell goes by names, so whoever removes the folder under it takes away its way to answer. Before a
 * line is typed, and while a command is at work, names are therefore compared with descriptors, and what is gone or of
 * no use is made again under the same name: the shell goes on and notices nothing. The keeper holds the report FIFO
 * that the shell was started with; one that came later goes into the depot, for the next server. What a command would
 * have reported in between is lost, and it ends as lost: the caller sees to that (session_shell.c, session_job.c). */
#include "services/session_impl.h"

#include "base/aside.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/metrics.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static cp_code code_of(int sys) {
    if (sys == ENOSPC || sys == EDQUOT) return CP_E_NO_SPACE;
    return cp_no_fd(sys) ? CP_E_TOO_MANY_FILES : CP_E_FILESYSTEM_ERROR;
}

int session_folder_fail(struct cp_session *s, cp_err *err) {
    int sys = errno;
    return cp_fail_sys(err, code_of(sys), sys, "the folder of session %s", s->id);
}

/* ---- the folder of the folders ---- */

static bool is_ours(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid();
}

/* Other users' shells enter it by name; their folder of folders lies where everybody may put things. */
int session_base_make(struct cp_sessions *t, cp_err *err) {
    mode_t mode = t->set_user ? 0711 : 0700;
    struct stat st;
    if (cp_folder_make(t->base, mode) < 0) return cp_fail_sys(err, code_of(errno), errno, "%s", t->base);
    if (!is_ours(t->base) && (cp_move_aside(t->base, NULL, NULL) < 0 || mkdir(t->base, mode) < 0))
        return cp_fail_sys(err, code_of(errno), errno, "%s is not a folder of ours", t->base);
    if (stat(t->base, &st) == 0 && (st.st_mode & mode) == mode) return 0;
    return chmod(t->base, mode) < 0 ? cp_fail_sys(err, code_of(errno), errno, "%s", t->base) : 0;
}

/* ---- what is in one ---- */

static bool same(int fd, int at, const char *name) {
    struct stat a, b;
    return fd >= 0 && fstat(fd, &a) == 0 && fstatat(at, name, &b, AT_SYMLINK_NOFOLLOW) == 0 && a.st_ino == b.st_ino &&
           a.st_dev == b.st_dev;
}

/* Its owner may read and write it. */
static bool is_open_to_owner(int fd) {
    struct stat st;
    return fstat(fd, &st) == 0 && (st.st_mode & (S_IRUSR | S_IWUSR)) == (S_IRUSR | S_IWUSR);
}

static int to_owner(struct cp_session *s, const char *name) {
    struct cp_sessions *t = s->svc->sessions;
    return t->set_user ? fchownat(s->dir, name, t->uid, t->gid, AT_SYMLINK_NOFOLLOW) : 0;
}

/* Whatever has this name; a folder that holds something gets another. */
void session_name_clear(struct cp_session *s, const char *name) {
    char aside[64];
    if (unlinkat(s->dir, name, 0) == 0 || errno == ENOENT || unlinkat(s->dir, name, AT_REMOVEDIR) == 0) return;
    snprintf(aside, sizeof aside, "%.16s.%lld", name, (long long)cp_wall_ms());
    (void)renameat(s->dir, name, s->dir, aside); /* where it cannot, what is to be made there fails and says why */
}

static int open_fifo(struct cp_session *s, const char *name, int flags) {
    struct stat st;
    cp_autofd int fd = openat(s->dir, name, flags | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || (fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode))) return cp_take_fd(&fd);
    return errno = ENOTSUP, -1;
}

int session_fifo(struct cp_session *s, const char *name, int flags, cp_err *err) {
    int fd = open_fifo(s, name, flags);
    if (fd >= 0) return fd;
    if (cp_no_fd(errno) || errno == ENXIO) return session_folder_fail(s, err);
    if (errno != ENOENT) session_name_clear(s, name);
    if (mkfifoat(s->dir, name, 0600) < 0 || to_owner(s, name) < 0) return session_folder_fail(s, err);
    fd = open_fifo(s, name, flags);
    return fd >= 0 ? fd : session_folder_fail(s, err);
}

#define RECORDS "/dev/shm"

static void record_path(cp_buf *out, const char *token) { cp_buf_addf(out, RECORDS "/conflux-record-%.12s", token); }

static bool record_in_place(const struct cp_session *s) {
    if (!s->record_dir) return same(s->record, s->dir, "c");
    cp_autobuf cp_buf path = {0};
    record_path(&path, s->token);
    return same(s->record, AT_FDCWD, cp_buf_z(&path));
}

static bool is_record(int fd, uid_t owner) {
    struct stat st;
    return fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink == 1 && st.st_uid == owner;
}

/* In the folder: one that is there may be what the shell is about to read. Its owner may put another file there. */
static int record_in_folder(struct cp_session *s) {
    struct cp_sessions *t = s->svc->sessions;
    s->record = openat(s->dir, "c", O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (is_record(s->record, t->set_user ? t->uid : geteuid())) return 0;
    cp_close(&s->record);
    session_name_clear(s, "c");
    s->record = openat(s->dir, "c", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    return s->record < 0 ? -1 : to_owner(s, "c");
}

/* The environment of commands is never written to the state folder: the record lies in memory, by a name, because the
 * shell may read it when the server that has written it is dead. Another user's shell has its whole folder there
 * (open_base). Where there is no such place it is the file c in the folder. */
static size_t record_bytes(int fd) {
    struct stat st;
    return fstat(fd, &st) == 0 ? (size_t)st.st_size : 0;
}

static int record_open(struct cp_session *s) {
    cp_autobuf cp_buf path = {0};
    record_path(&path, s->token);
    cp_close(&s->record);
    s->record_size = 0;
    s->record_dir = NULL;
    if (!s->svc->sessions->set_user) s->record = open(cp_buf_z(&path), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (!is_record(s->record, geteuid())) {
        cp_close(&s->record);
        return record_in_folder(s);
    }
    s->record_dir = RECORDS;
    s->record_size = record_bytes(s->record); /* a former server's */
    snprintf(s->record_name, sizeof s->record_name, "%s", strrchr(cp_buf_z(&path), '/') + 1);
    return 0;
}

/* ---- made again ---- */

static bool may_all(int dir) {
    struct stat st;
    return fstat(dir, &st) == 0 && (st.st_mode & S_IRWXU) == S_IRWXU;
}

static bool in_place(const struct cp_session *s) {
    return same(s->dir, AT_FDCWD, s->path) && may_all(s->dir) && record_in_place(s) && is_open_to_owner(s->record) &&
           same(s->status, s->dir, "s") && is_open_to_owner(s->status) &&
           (s->exports_fd < 0 || (same(s->exports_fd, s->dir, "x") && is_open_to_owner(s->exports_fd)));
}

static int make_folder(struct cp_session *s, cp_err *err) {
    if (mkdir(s->path, 0700) < 0 &&
        (errno != EEXIST || cp_move_aside(s->path, NULL, NULL) < 0 || mkdir(s->path, 0700) < 0))
        return session_folder_fail(s, err);
    cp_autofd int dir = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (dir < 0) return session_folder_fail(s, err);
    for (struct session_pair *p; (p = s->pairs);) {
        s->pairs = p->next;
        session_pair_free(p);
    }
    cp_close(&s->dir);
    s->dir = cp_take_fd(&dir);
    return to_owner(s, ".") < 0 ? session_folder_fail(s, err) : 0;
}

/* Into an empty FIFO that nobody else writes to yet: there is room. */
static void carry_over(int from, int to) {
    char text[2048];
    ssize_t n = from >= 0 ? read(from, text, sizeof text) : 0;
    if (n > 0) (void)!write(to, text, (size_t)n);
}

/* What has been reported and not read: into the former FIFO, or, where that had been removed, into the file that the
 * shell has made in its place. */
static int renew_reports(struct cp_session *s, cp_err *err) {
    cp_autofd int stray = openat(s->dir, "s", O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    if (s->status >= 0 && stray >= 0) session_name_clear(s, "s");
    int fd = session_fifo(s, "s", O_RDWR, err);
    if (fd < 0) return -1;
    carry_over(s->status, fd);
    carry_over(stray, fd);
    session_reports_move(s, fd);
    return 0;
}

static int make_again(struct cp_session *s, cp_err *err) {
    if (session_base_make(s->svc->sessions, err) < 0) return -1;
    if (!same(s->dir, AT_FDCWD, s->path) && make_folder(s, err) < 0) return -1;
    if (!may_all(s->dir) && fchmod(s->dir, 0700) < 0) return session_folder_fail(s, err);
    if (!record_in_place(s) && record_open(s) < 0) return session_folder_fail(s, err);
    if (!same(s->status, s->dir, "s") && renew_reports(s, err) < 0) return -1;
    if (s->exports_fd >= 0 && !same(s->exports_fd, s->dir, "x")) session_exports_close(s);
    const int names[] = {s->record, s->status, s->exports_fd};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i] >= 0 && !is_open_to_owner(names[i]) && fchmod(names[i], 0600) < 0)
            return session_folder_fail(s, err);
    return 0;
}

int session_folder_mend(struct cp_session *s, cp_err *err) {
    if (in_place(s)) return 0;
    cp_err why = {0};
    bool first = s->status < 0; /* it has never been there */
    int rc = make_again(s, &why);
    if (rc < 0 && err) *err = why;
    if (rc < 0 || first) return rc < 0 ? -1 : 1;
    cp_metric_add(CP_M_STATE_MENDED, 1);
    cp_log(CP_LOG_ERROR, "session.folder",
           "the folder of a session, or something in it, was gone or closed; it was put right",
           CP_KVZ("session", s->id), CP_KVZ("path", s->path));
    return 1;
}

int session_folder_open(struct cp_session *s, bool existing, cp_err *err) {
    cp_autobuf cp_buf path = {0};
    cp_buf_addf(&path, "%s/%s", s->svc->sessions->base, s->token);
    s->path = cp_str_dup(cp_buf_str(&path));
    if (existing) s->dir = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (existing && s->dir < 0 && cp_no_fd(errno)) return session_folder_fail(s, err);
    if (s->dir >= 0 && record_open(s) < 0 && cp_no_fd(errno)) return session_folder_fail(s, err);
    return session_folder_mend(s, err) < 0 ? -1 : 0;
}

/* ---- the end ---- */

static bool all_of(const char *text, const char *set) { return *text && !text[strspn(text, set)]; }

/* A name of ours in a session's folder: s, x, c, or that of a command's FIFO. */
static bool is_our_name(const char *name) {
    return strchr("sxc", *name) ? !name[1] : strchr("oeig", *name) && all_of(name + 1, "0123456789");
}

/* The record first: its name is known from the folder only. Somebody may have put a link in the place of the folder, or
 * things of his own into it: what we have not made stays. */
void session_folder_remove(const char *path) {
    const char *token = strrchr(path, '/');
    cp_autofd int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    cp_autobuf cp_buf record = {0};
    record_path(&record, token ? token + 1 : path);
    if (fd >= 0 || errno == ENOENT) (void)unlink(cp_buf_z(&record));
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) return;
    (void)cp_take_fd(&fd);
    for (struct dirent *e; (e = readdir(d));)
        if (is_our_name(e->d_name)) (void)unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
    (void)rmdir(path); /* what stays is nobody's: the next start sweeps */
}

static bool is_token(const char *name) { return strlen(name) == SESSION_TOKEN && all_of(name, "0123456789abcdef"); }

static bool token_in_use(const struct cp_sessions *t, const char *token) {
    for (const struct cp_session *s = t->first; s; s = s->next)
        if (strcmp(s->token, token) == 0) return true;
    return false;
}

void session_folders_sweep(const struct cp_sessions *t, const char *base) {
    cp_autofd int fd = open(base, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) return;
    (void)cp_take_fd(&fd);
    for (struct dirent *e; (e = readdir(d));) {
        if (!is_token(e->d_name) || token_in_use(t, e->d_name)) continue;
        cp_autobuf cp_buf path = {0};
        cp_buf_addf(&path, "%s/%s", base, e->d_name);
        session_folder_remove(cp_buf_z(&path));
    }
    closedir(d);
}

void session_folder_close(struct cp_session *s, bool remove) {
    for (struct session_pair *p; (p = s->pairs);) {
        s->pairs = p->next;
        session_pair_free(p);
    }
    session_stale_close(s);
    cp_close(&s->record);
    cp_close(&s->status);
    cp_close(&s->dir);
    if (remove && s->path) session_folder_remove(s->path);
}
