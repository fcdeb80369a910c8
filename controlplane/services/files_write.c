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

static int create_temp(cp_stage *s) {
    cp_temp_name(s->temp);
    /* For those who watch the folder (cp_watch_staged): a rename does not tell whether there was a file before. */
    if (s->exists) memcpy(strrchr(s->temp, '.'), ".mod", 4);
    s->fd = openat(s->dir, s->temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (s->fd < 0) s->temp[0] = 0;
    return s->fd < 0 ? -1 : 0;
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
    if (create_temp(s) < 0) return cp_file_fail(err, errno, "open", w->full);
    return 0;
}

int cp_stage_open_as(cp_stage *s, const cp_where *w, const char *temp, bool create, cp_err *err) {
    int flags = O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0);
    if (create && stage_begin(s, w, true, err) < 0) return -1;
    if (!create && find_target(s, w, false) < 0) return cp_file_fail(err, errno, "open", w->full);
    s->exists = fstatat(s->dir, s->name, &s->old, AT_SYMLINK_NOFOLLOW) == 0;
    s->fd = openat(s->dir, temp, flags, 0666);
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

/* What the new file takes over from the old one. A change of owner that is not ours to make: -1/EPERM. */
static int take_over(cp_stage *s, const cp_owner *o) {
    cp_owner want = *o;
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
    if (create_temp(&s) < 0) return in_place_may_do(errno) ? 0 : -1;
    if (cp_write_all(s.fd, spec->data.p, spec->data.n) < 0) return -1;
    if (take_over(&s, &spec->owner) < 0 || publish(&s) < 0) return in_place_may_do(errno) ? 0 : -1;
    return 1;
}

static int fill(int fd, const cp_write_spec *spec, bool regular) {
    if (regular && !spec->append && ftruncate(fd, 0) < 0) return -1;
    if (cp_write_all(fd, spec->data.p, spec->data.n) < 0) return -1;
    return give(fd, spec->owner.mode, spec->owner.uid, spec->owner.gid);
}

static int in_place(const cp_where *w, const cp_write_spec *spec) {
    struct stat st;
    /* O_NONBLOCK: a pipe nobody reads is an error, not a wait. O_EXCL tells whether a leftover would be ours; it does
     * not go through links, so a link to nowhere comes to the second call. */
    int flags = O_WRONLY | O_NONBLOCK | (spec->append ? O_APPEND : 0);
    bool created = true;
    cp_autofd int fd = cp_where_open(w, w->path, flags | O_CREAT | O_EXCL, 0666);
    if (fd < 0 && errno == EEXIST) {
        created = false;
        fd = cp_where_open(w, w->path, flags | O_CREAT, 0666);
    }
    if (fd < 0 || fstat(fd, &st) < 0) return -1;
    if (fill(fd, spec, S_ISREG(st.st_mode)) == 0) return 0;
    int sys = errno;
    cp_split split;
    if (created && cp_path_split(w->path, &split) == 0) {
        cp_autofd int dir = cp_where_parent(w, &split, false);
        if (dir >= 0) unlinkat(dir, split.name, 0);
    }
    return errno = sys, -1;
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
