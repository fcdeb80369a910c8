/* Writing: beside the target and renamed over it (a reader sees the old or the new file, a full disk leaves the old
 * one), or in place where a rename would change what the target is. */
#include "services/files_impl.h"

#include "base/act.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_LINKS = 40 }; /* as the kernel's own limit, path_resolution(7) */
/* Of a file that is being written. Whoever may not read it in the end must not read it before; and whoever has opened
 * it keeps it, so that to narrow the mode afterwards would be too late. */
enum { PRIVATE = 0600 };

static int next_hop(cp_where *at, const cp_split *split, const char *link) {
    char text[CP_PATH_MAX];
    cp_str target = {link, strlen(link)};
    /* Confined, the kernel refuses absolute links when it follows them; so do we, so that reads and writes agree. */
    if (at->files->root >= 0 && *link == '/') return errno = EXDEV, -1;
    if (cp_path_join(split->dir, target, text) < 0) return errno = ENAMETOOLONG, -1;
    memcpy(at->full, text, strlen(text) + 1);
    at->path = at->full;
    return 0;
}

/* Follows links in the last place by hand, so that the file to replace is known by its own folder and name; the text of
 * a hop is resolved by the kernel as it would be while following. Opens that folder. 0 or -1 with errno. */
static int find_target(cp_stage *s, const cp_where *w, bool parents) {
    cp_where at = {.files = w->files};
    memcpy(at.full, w->path, strlen(w->path) + 1);
    at.path = at.full;
    for (int hop = 0; hop < MAX_LINKS; hop++) {
        cp_split split;
        char link[CP_PATH_MAX];
        if (cp_path_split(at.path, &split) < 0) return errno = ENAMETOOLONG, -1;
        cp_close(&s->dir);
        s->dir = cp_where_parent(&at, &split, parents && hop == 0);
        if (s->dir < 0) return -1;
        ssize_t n = readlinkat(s->dir, split.name, link, sizeof link - 1);
        if (n < 0 || split.slash) {
            memcpy(s->name, split.name, sizeof s->name);
            return split.slash ? errno = EISDIR, -1 : 0;
        }
        link[n] = 0;
        if (next_hop(&at, &split, link) < 0) return -1;
    }
    return errno = ELOOP, -1;
}

static int create_temp(cp_stage *s, const cp_where *w) {
    cp_temp_name(s->temp);
    /* For those who watch the folder (cp_watch_staged): a rename does not tell whether there was a file before. */
    if (s->exists) memcpy(strrchr(s->temp, '.'), ".mod", 4);
    cp_temp_begin(&s->record, w->files->temps, s->dir, s->temp);
    s->fd = openat(s->dir, s->temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, PRIVATE);
    if (s->fd >= 0) {
        cp_temp_made(&s->record, s->dir, s->temp);
        return 0;
    }
    cp_temp_end(&s->record);
    s->temp[0] = 0;
    return -1;
}

/* Finds the target; 0 or -1 with errno. */
static int stage_find(cp_stage *s, const cp_where *w, bool parents) {
    if (find_target(s, w, parents) < 0) return -1;
    s->exists = fstatat(s->dir, s->name, &s->old, AT_SYMLINK_NOFOLLOW) == 0;
    if (!s->exists && errno != ENOENT) return -1;
    if (s->exists && S_ISDIR(s->old.st_mode)) return errno = EISDIR, -1;
    return 0;
}

/* Finds the target, and refuses what must not be replaced. */
static int stage_begin(cp_stage *s, const cp_where *w, bool parents, cp_err *err) {
    if (stage_find(s, w, parents) < 0) return cp_file_fail(err, errno, "open", w->full);
    if (s->exists && !S_ISREG(s->old.st_mode))
        return cp_fail(err, CP_E_FILESYSTEM_ERROR, "Not a regular file (pipe, device or socket): %s", w->full);
    if (s->exists && faccessat(s->dir, s->name, W_OK, AT_EACCESS) < 0) return cp_file_fail(err, errno, "open", w->full);
    return 0;
}

int cp_stage_open(cp_stage *s, const cp_where *w, bool parents, cp_err *err) {
    if (stage_begin(s, w, parents, err) < 0) return -1;
    if (create_temp(s, w) < 0) return cp_file_fail(err, errno, "open", w->full);
    return 0;
}

int cp_stage_open_as(cp_stage *s, const cp_where *w, const char *temp, bool create, cp_err *err) {
    int flags = O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0);
    if (create && stage_begin(s, w, true, err) < 0) return -1;
    if (!create && find_target(s, w, false) < 0) return cp_file_fail(err, errno, "open", w->full);
    s->exists = fstatat(s->dir, s->name, &s->old, AT_SYMLINK_NOFOLLOW) == 0;
    s->fd = openat(s->dir, temp, flags, PRIVATE);
    if (s->fd < 0) return cp_file_fail(err, errno, "open", w->full);
    snprintf(s->temp, sizeof s->temp, "%s", temp);
    return 0;
}

void cp_stage_keep(cp_stage *s) {
    s->temp[0] = 0;
    cp_stage_abort(s);
}

/* Owner before mode: chown takes the set-id bits away. 0 or -1 with errno. */
static int give(int fd, int64_t mode, int64_t uid, int64_t gid) {
    if ((uid >= 0 || gid >= 0) && fchown(fd, (uid_t)uid, (gid_t)gid) < 0) return -1;
    return mode >= 0 ? fchmod(fd, (mode_t)mode) : 0;
}

/* The mode of a new file for which none was asked: the one it would have been created with. *mode -1: it is not as
 * we made it, since its file system has its own idea of modes, or somebody was faster. Then it stays so. */
static int default_mode(int dir, int fd, int64_t *mode) {
    struct stat st;
    mode_t allowed;
    if (cp_dir_mode(dir, &allowed) < 0 || fstat(fd, &st) < 0) return -1;
    *mode = (st.st_mode & 07777) == (PRIVATE & allowed) ? (int64_t)(0666 & allowed) : -1;
    return 0;
}

/* What the new file takes over from the old one. A change of owner that is not ours to make: -1/EPERM. */
static int take_over(cp_stage *s, const cp_owner *o) {
    cp_owner want = *o;
    if (!s->exists && want.mode < 0 && default_mode(s->dir, s->fd, &want.mode) < 0) return -1;
    if (s->exists) {
        if (want.mode < 0) want.mode = s->old.st_mode & 07777;
        if (want.uid < 0 && s->old.st_uid != cp_act_uid()) want.uid = s->old.st_uid;
        if (want.gid < 0 && s->old.st_gid != getegid()) want.gid = s->old.st_gid;
    }
    return give(s->fd, want.mode, want.uid, want.gid);
}

static int publish(cp_stage *s) {
    if (renameat(s->dir, s->temp, s->dir, s->name) < 0) return -1;
    s->temp[0] = 0;
    cp_temp_end(&s->record);
    return 0;
}

static int sync_dir(int dir) {
    cp_autofd int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* an O_PATH descriptor cannot be synced */
    return fd < 0 || fsync(fd) == 0 || errno == EINVAL ? 0 : -1;
}

int cp_stage_commit(cp_stage *s, const cp_owner *owner, bool sync, struct stat *st, cp_err *err) {
    if (take_over(s, owner) < 0) return cp_file_fail(err, errno, "chown", s->name);
    if (sync && fsync(s->fd) < 0) return cp_file_fail(err, errno, "fsync", s->name);
    if (fstat(s->fd, st) < 0 || publish(s) < 0) return cp_file_fail(err, errno, "rename", s->name);
    if (sync && sync_dir(s->dir) < 0) return cp_file_fail(err, errno, "fsync", s->name);
    return 0;
}

void cp_stage_abort(cp_stage *s) {
    if (s->temp[0]) unlinkat(s->dir, s->temp, 0);
    s->temp[0] = 0;
    cp_temp_end(&s->record);
    cp_close(&s->fd);
    cp_close(&s->dir);
}

/* ---- /api/write ---- */

/* Did the replacing fail for a reason that writing in place may overcome? Not for a full disk: that would trade the old
 * content for a part of the new one. ENOENT: file systems without new names, such as /proc. EBUSY: a mount point. */
static bool in_place_may_do(int sys) {
    return sys == EACCES || sys == EPERM || sys == EROFS || sys == ENOENT || sys == EBUSY || sys == EOPNOTSUPP ||
           sys == EINVAL || sys == EXDEV;
}

/* 1 written, 0 to be written in place, -1 with errno. */
static int replace(const cp_where *w, const cp_write_spec *spec) {
    cp_autostage cp_stage s = CP_STAGE_EMPTY;
    if (stage_find(&s, w, true) < 0) return -1;
    if (s.exists && (!S_ISREG(s.old.st_mode) || s.old.st_nlink > 1)) return 0;
    /* A rename needs the right to write the folder only; a plain write needs that of the file. */
    if (s.exists && faccessat(s.dir, s.name, W_OK, AT_EACCESS) < 0) return 0;
    if (create_temp(&s, w) < 0) return in_place_may_do(errno) ? 0 : -1;
    if (cp_write_all(s.fd, spec->data.p, spec->data.n) < 0) return -1;
    if (take_over(&s, &spec->owner) < 0 || publish(&s) < 0) return in_place_may_do(errno) ? 0 : -1;
    return 1;
}

/* Who may not read the new content must not be able to open the file once it is there. */
static int narrow(int fd, const struct stat *st, int64_t mode) {
    mode_t old = st->st_mode & 07777;
    if (mode < 0 || (old & (mode_t)mode) == old) return 0;
    return fchmod(fd, old & (mode_t)mode);
}

static int fill(int fd, const cp_write_spec *spec, const struct stat *st) {
    if (narrow(fd, st, spec->owner.mode) < 0) return -1;
    if (S_ISREG(st->st_mode) && !spec->append && ftruncate(fd, 0) < 0) return -1;
    return cp_write_all(fd, spec->data.p, spec->data.n);
}

/* A file that was not there, also one that a link leads to. Nothing of it stays when it fails. */
static int fill_new(cp_stage *s, const cp_write_spec *spec) {
    struct stat st;
    cp_owner want = spec->owner;
    if (fstat(s->fd, &st) == 0 && fill(s->fd, spec, &st) == 0 &&
        (want.mode >= 0 || default_mode(s->dir, s->fd, &want.mode) == 0) &&
        give(s->fd, want.mode, want.uid, want.gid) == 0)
        return 0;
    int sys = errno;
    unlinkat(s->dir, s->name, 0);
    return errno = sys, -1;
}

static int in_place(const cp_where *w, const cp_write_spec *spec) {
    struct stat st;
    cp_autostage cp_stage s = CP_STAGE_EMPTY;
    /* O_NONBLOCK: a pipe nobody reads is an error, not a wait. */
    int flags = O_WRONLY | O_NONBLOCK | (spec->append ? O_APPEND : 0);
    if (find_target(&s, w, false) == 0)
        s.fd = openat(s.dir, s.name, flags | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, PRIVATE);
    if (s.fd >= 0) return fill_new(&s, spec);
    /* What is there is opened by its path: a link of /proc leads to a file that its text does not name. O_CREAT for the
     * checks that the kernel then makes in a folder for all (fs.protected_regular). */
    cp_autofd int fd = cp_where_open(w, w->path, flags | O_CREAT, PRIVATE);
    if (fd < 0 || fstat(fd, &st) < 0 || fill(fd, spec, &st) < 0) return -1;
    return give(fd, spec->owner.mode, spec->owner.uid, spec->owner.gid);
}

static int make_parents(const cp_where *w) {
    cp_split split;
    if (cp_path_split(w->path, &split) < 0) return errno = ENAMETOOLONG, -1;
    cp_autofd int dir = cp_where_parent(w, &split, true);
    return dir < 0 ? -1 : 0;
}

int cp_file_write(const cp_where *w, const cp_write_spec *spec, cp_err *err) {
    int done = spec->atomic && !spec->append ? replace(w, spec) : make_parents(w);
    if (done == 0) done = in_place(w, spec) < 0 ? -1 : 1;
    return done < 0 ? cp_file_fail(err, errno, "open", w->full) : 0;
}
