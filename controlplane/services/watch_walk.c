/* Adding watches to a tree, on the io pool; meanwhile the loop does not read the watcher's events and leaves its tree
 * alone, so there is one user of both at any time and no lock.
 *
 * A folder is watched before it is listed: what comes into being afterwards is an event, what was there before is in
 * the list, and what falls between is both, never neither. The watch is put on the folder that is open (by way of
 * /proc/self/fd), and every folder is opened from the root name by name without following links: whatever is exchanged
 * for a link in the meantime, nothing outside is watched.
 *
 * Nothing below the root stays open between two walks: a descriptor would put off IN_DELETE_SELF. */
#include "services/watch_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/act.h"
#include "base/clock.h"
#include "base/metrics.h"
#include "services/files_impl.h"
#include "services/nofile.h"

enum { SETUP_MS = 10000 };

/* A folder that is still to be watched. Its parent is named by watch descriptor: the parent may be found again under
 * another name before this one's turn comes. */
typedef struct todo {
    struct todo *next;
    int parent_wd;
    size_t n;
    char name[];
} todo;

typedef struct walk {
    cp_watcher *w;
    int root; /* O_PATH */
    todo *head, **tail;
    size_t queued;
    uint64_t until;
} walk;

static int fail_watch(cp_err *err, int sys, const char *path) {
    if (sys == ENOSPC)
        return cp_fail(err, CP_E_WATCH_START_ERROR,
                       "No inotify watch is left for %s: raise the sysctl fs.inotify.max_user_watches", path);
    return cp_fail_sys(err, CP_E_WATCH_START_ERROR, sys, "Failed to watch %s", path);
}

static int open_inotify(cp_watcher *w, cp_err *err) {
    if (cp_nofile_room(CP_NOFILE_START, err) < 0) return -1;
    w->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (w->fd >= 0) return 0;
    if (errno == EMFILE)
        return cp_fail(
            err, CP_E_WATCH_START_ERROR,
            "No inotify instance is left: raise the sysctl fs.inotify.max_user_instances, or the limit of open files");
    return cp_fail_sys(err, CP_E_WATCH_START_ERROR, errno, "Failed to start a file watcher");
}

/* ---- the root ---- */

static int real_path(int fd, char out[CP_PATH_MAX]) {
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, out, CP_PATH_MAX - 1);
    if (n < 0) return -1;
    out[n] = 0;
    return 0;
}

/* What is open is inside the workspace and the file root, wherever links have led. */
static int check_inside(const cp_watcher *w, int fd, char real[CP_PATH_MAX], cp_err *err) {
    const cp_files *files = w->svc->files;
    cp_autofree char *workspace = realpath(w->svc->workspace, NULL);
    if (real_path(fd, real) < 0) return fail_watch(err, errno, w->path);
    bool inside = workspace && cp_path_inside(workspace, real);
    if (files && files->root_path && !cp_path_inside(files->root_path, real)) inside = false;
    if (inside) return 0;
    return cp_fail(err, CP_E_PERMISSION_DENIED, "path must be inside %s", w->svc->workspace);
}

static int fail_open(const cp_watcher *w, int sys, cp_err *err) {
    if (sys == ENOENT || sys == ENOTDIR || sys == ELOOP || sys == ENAMETOOLONG)
        return cp_fail(err, CP_E_FILE_NOT_FOUND, "Path does not exist: %s", w->path);
    return fail_watch(err, sys, w->path);
}

/* The folder is watched in the place of a file, by the file's name: its content may be exchanged for another file's,
 * which a watch on the file itself would not follow. */
static int open_folder_of(walk *k, char real[CP_PATH_MAX], cp_err *err) {
    cp_watcher *w = k->w;
    char dir[CP_PATH_MAX];
    cp_split split;
    if (cp_path_split(real, &split) < 0) return fail_open(w, ENAMETOOLONG, err);
    w->only = cp_str_dup(cp_str_of(split.name));
    w->recursive = false;
    cp_close(&k->root);
    k->root = open(split.dir, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (k->root < 0) return fail_open(w, errno, err);
    return check_inside(w, k->root, dir, err);
}

/* The removal of a folder is told to the folder's own watch only when nobody uses it any more, as a shell does that
 * stands in it; to its parent's at once. A parent that cannot be watched leaves the former. */
static void watch_parent(cp_watcher *w, const char *real) {
    cp_split split;
    w->parent_wd = -1;
    if (cp_path_split(real, &split) < 0 || strcmp(split.name, ".") == 0) return;
    w->root_name = cp_str_dup(cp_str_of(split.name));
    w->parent_wd = inotify_add_watch(w->fd, split.dir, IN_DELETE | IN_MOVED_FROM | IN_ONLYDIR | IN_MASK_ADD);
}

static int open_root(walk *k, bool first, cp_err *err) {
    cp_watcher *w = k->w;
    struct stat st;
    char real[CP_PATH_MAX];
    k->root = open(w->path, O_PATH | O_CLOEXEC);
    if (k->root < 0 || fstat(k->root, &st) < 0) return fail_open(w, errno, err);
    if (!first) return st.st_dev == w->dev && st.st_ino == w->ino ? 0 : fail_open(w, ENOENT, err);
    if (check_inside(w, k->root, real, err) < 0) return -1;
    w->dev = st.st_dev;
    w->ino = st.st_ino;
    if (!S_ISDIR(st.st_mode)) return open_folder_of(k, real, err);
    watch_parent(w, real);
    return 0;
}

/* ---- one folder ---- */

static void later(walk *k, const watch_dir *parent, cp_str name) {
    todo *t = cp_alloc(sizeof *t + name.n + 1);
    t->parent_wd = parent->wd;
    t->n = name.n;
    memcpy(t->name, name.p, name.n);
    *k->tail = t;
    k->tail = &t->next;
    k->queued++;
}

static todo *take_first(walk *k) {
    todo *t = k->head;
    k->head = t->next;
    if (!k->head) k->tail = &k->head;
    k->queued--;
    return t;
}

/* Opens the folder (parent, name) from the root. -1 with errno. */
static int open_dir(const walk *k, const watch_dir *parent, cp_str name) {
    cp_autobuf cp_buf path = {0};
    if (parent) watch_tree_path(parent, &path);
    if (path.n && name.n) cp_buf_addc(&path, '/');
    cp_buf_add(&path, name.p, name.n);
    if (!path.n) return openat(k->root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char *at = (char *)(uintptr_t)cp_buf_z(&path);
    cp_autofd int dir = -1;
    for (char *slash; (slash = strchr(at, '/')); at = slash + 1) {
        *slash = 0;
        int fd = openat(dir < 0 ? k->root : dir, at, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) return -1;
        cp_close(&dir);
        dir = fd;
    }
    return openat(dir < 0 ? k->root : dir, at, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static int add_watch(const cp_watcher *w, int dir, bool root) {
    static const uint32_t masks[CP_WATCH_TYPES] = {[CP_WATCH_MODIFY] = IN_MODIFY, [CP_WATCH_ATTRIB] = IN_ATTRIB};
    /* What tells of folders that come and go is needed whatever the client wants to hear. */
    uint32_t mask = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ONLYDIR | IN_EXCL_UNLINK;
    char path[32];
    for (int i = 0; i < CP_WATCH_TYPES; i++)
        if (w->events & 1u << i) mask |= masks[i];
    if (root) mask |= IN_DELETE_SELF | IN_MOVE_SELF;
    snprintf(path, sizeof path, "/proc/self/fd/%d", dir);
    return inotify_add_watch(w->fd, path, mask);
}

/* The kernel knows a folder by inode: the descriptor is an old one when the folder has been renamed since it was found
 * (then it is here now, and the event that tells so will find nothing to do) or is mounted once more. */
static watch_dir *place(cp_watcher *w, watch_dir *parent, cp_str name, int wd) {
    watch_dir *old = watch_tree_wd(&w->tree, wd);
    if (old && old->parent == parent && cp_str_eq((cp_str){old->name, old->n}, name)) return old;
    if (old && watch_tree_above(old, parent)) return NULL; /* a mount that holds itself */
    if (old) watch_tree_remove(&w->tree, old, -1);
    watch_dir *other = parent ? watch_tree_child(&w->tree, parent, name) : NULL;
    if (other) watch_tree_remove(&w->tree, other, w->fd);
    return watch_tree_add(&w->tree, parent, name, wd);
}

static bool entry_is_dir(int dir, const struct dirent *e) {
    struct stat st;
    if (e->d_type != DT_UNKNOWN) return e->d_type == DT_DIR;
    return fstatat(dir, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

static void report(cp_watcher *w, cp_str path, bool is_dir) {
    if (w->nfound++ >= WATCH_FOUND) return;
    cp_buf_addc(&w->found, is_dir ? 'd' : 'f');
    cp_buf_add(&w->found, path.p, path.n);
    cp_buf_addc(&w->found, 0);
}

static int enter_limits(const walk *k, cp_err *err) {
    if (k->w->tree.n + k->queued >= CP_WATCH_FOLDERS)
        return cp_fail(err, CP_E_WATCH_START_ERROR,
                       "%s holds more than %d folders to watch: watch a part of it, or exclude some", k->w->path,
                       CP_WATCH_FOLDERS);
    if (cp_now_ms() > k->until)
        return cp_fail(err, CP_E_WATCH_START_ERROR, "Timed out waiting for file watcher setup to complete");
    return 0;
}

static int list(walk *k, watch_dir *d, DIR *dir, cp_err *err) {
    cp_watcher *w = k->w;
    cp_autobuf cp_buf path = {0};
    for (struct dirent *e; (e = cp_dir_next(dir));) {
        cp_str name = cp_str_of(e->d_name);
        bool is_dir = entry_is_dir(dirfd(dir), e);
        if (w->walk_stop) break;
        if ((!is_dir && !w->report) || cp_watch_staged(name)) continue;
        cp_buf_clear(&path);
        watch_path(w, d, name, &path);
        if (path.n >= CP_PATH_MAX || watch_matches(&w->exclude, cp_buf_str(&path))) continue;
        if (w->report) report(w, cp_buf_str(&path), is_dir);
        if (!is_dir) continue;
        if (enter_limits(k, err) < 0) return -1;
        later(k, d, name);
    }
    return 0;
}

/* A folder below the root that has gone, or may not be read, is left out. */
static int leave_out(int sys, bool root, const cp_watcher *w, cp_err *err) {
    if (root) return fail_open(w, sys, err);
    if (sys == ENOENT || sys == ENOTDIR || sys == ELOOP || sys == EACCES || sys == EPERM) return 0;
    return fail_watch(err, sys, w->path);
}

static int enter(walk *k, watch_dir *parent, cp_str name, cp_err *err) {
    cp_watcher *w = k->w;
    bool root = !parent || (parent == w->tree.root && !name.n);
    if (!name.n && parent) { /* the folder itself once more */
        name = (cp_str){parent->name, parent->n};
        parent = parent->parent;
    }
    cp_autofd int fd = open_dir(k, parent, name);
    if (fd < 0) return leave_out(errno, root, w, err);
    int wd = add_watch(w, fd, root);
    if (wd < 0) return leave_out(errno, root, w, err);
    watch_dir *d = place(w, parent, name, wd);
    if (!d || !w->recursive) return 0;
    cp_autodir DIR *dir = fdopendir(fd);
    if (!dir) return leave_out(errno, root, w, err);
    fd = -1;
    return list(k, d, dir, err);
}

static int walk_all(walk *k, cp_err *err) {
    cp_watcher *w = k->w;
    bool first = w->fd < 0;
    if (first && open_inotify(w, err) < 0) return -1;
    if (open_root(k, first, err) < 0) return -1;
    if (enter(k, w->walk_at, cp_buf_str(&w->walk_name), err) < 0) return -1;
    while (k->head && !w->walk_stop) {
        cp_autofree todo *t = take_first(k);
        watch_dir *parent = watch_tree_wd(&w->tree, t->parent_wd);
        if (parent && enter(k, parent, (cp_str){t->name, t->n}, err) < 0) return -1;
    }
    return 0;
}

static void run(cp_work *work) {
    walk k = {.w = CP_CONTAINER(work, cp_watcher, work), .root = -1, .until = cp_now_ms() + SETUP_MS};
    k.tail = &k.head;
    if (cp_act_begin(&k.w->walk_err) == 0) {
        (void)walk_all(&k, &k.w->walk_err);
        cp_act_end();
    }
    while (k.head) free(take_first(&k));
    cp_close(&k.root);
}

static void done(cp_work *work) {
    cp_metric_add(CP_M_WATCH_WALKS, -1);
    watch_walked(CP_CONTAINER(work, cp_watcher, work));
}

void watch_walk_stop(cp_watcher *w) {
    if (!w->walking) return;
    w->walk_stop = true;
    if (!cp_workers_withdraw(&w->work)) return;
    cp_metric_add(CP_M_WATCH_WALKS, -1);
    w->walking = false;
}

void watch_walk(cp_watcher *w, watch_dir *at, cp_str name, bool report_content) {
    cp_metric_add(CP_M_WATCH_WALKS, 1);
    w->walking = true;
    w->walk_at = at;
    w->report = report_content;
    cp_buf_clear(&w->walk_name);
    cp_buf_add(&w->walk_name, name.p, name.n);
    cp_workers_submit_to(w->svc->workers, CP_LANE_FILES, CP_OWNER_WATCH, &w->work, run, done);
}
