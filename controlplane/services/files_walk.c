#include "services/files_walk.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "services/files_impl.h"
#include "services/watch_glob.h"

typedef struct level {
    DIR *d;
    dev_t dev;
    size_t path; /* length of its path, with a slash at the end */
} level;

struct cp_walk {
    level levels[CP_WALK_DEPTH];
    unsigned depth;
    bool hidden, enter; /* enter: the entry told last is a folder */
    dev_t enter_dev;
    cp_buf path;
    uint64_t skipped;
};

static bool kernels_own(int fd) {
    static const unsigned long types[] = {PROC_SUPER_MAGIC,   SYSFS_MAGIC,      DEBUGFS_MAGIC,  TRACEFS_MAGIC,
                                          CGROUP_SUPER_MAGIC, SECURITYFS_MAGIC, BPF_FS_MAGIC,   CGROUP2_SUPER_MAGIC,
                                          DEVPTS_SUPER_MAGIC, SELINUX_MAGIC,    EFIVARFS_MAGIC, BINFMTFS_MAGIC};
    struct statfs f;
    if (fstatfs(fd, &f) < 0) return true;
    for (size_t i = 0; i < CP_COUNT(types); i++)
        if ((unsigned long)f.f_type == types[i]) return true;
    return false;
}

static void push(cp_walk *w, DIR *d, dev_t dev) {
    w->levels[w->depth++] = (level){.d = d, .dev = dev, .path = w->path.n};
}

cp_walk *cp_walk_open(const cp_where *where, bool hidden, cp_err *err) {
    struct stat st;
    cp_autofd int fd = cp_where_open(where, where->path, O_RDONLY | O_DIRECTORY, 0);
    DIR *d = fd < 0 || fstat(fd, &st) < 0 ? NULL : fdopendir(fd);
    if (!d) {
        cp_file_fail(err, errno, "scandir", where->full);
        return NULL;
    }
    (void)cp_take_fd(&fd);
    cp_walk *w = cp_new(cp_walk);
    w->hidden = hidden;
    push(w, d, st.st_dev);
    return w;
}

/* The folder that was told last. */
static void enter(cp_walk *w) {
    level *top = &w->levels[w->depth - 1];
    w->enter = false;
    if (w->depth == CP_WALK_DEPTH) {
        w->skipped++;
        return;
    }
    const char *name = cp_buf_z(&w->path) + top->path;
    DIR *d = cp_dir_open(dirfd(top->d), name);
    if (!d) {
        if (errno != ENOENT) w->skipped++;
        return;
    }
    if (w->enter_dev != top->dev && kernels_own(dirfd(d))) {
        closedir(d);
        return;
    }
    cp_buf_addc(&w->path, '/');
    push(w, d, w->enter_dev);
}

/* What is being written (cp_temp_name) is not there yet: an archive must not hold half an upload. */
static bool left_out(const cp_walk *w, const char *name) {
    return *name == '.' && (!w->hidden || cp_watch_staged(cp_str_of(name)) != CP_STAGED_NOT);
}

bool cp_walk_next(cp_walk *w, cp_walk_entry *e) {
    if (w->enter) enter(w);
    while (w->depth) {
        level *top = &w->levels[w->depth - 1];
        struct dirent *found = cp_dir_next(top->d);
        if (!found) {
            closedir(top->d);
            w->depth--;
            continue;
        }
        if (left_out(w, found->d_name)) continue;
        if (fstatat(dirfd(top->d), found->d_name, &e->st, AT_SYMLINK_NOFOLLOW) < 0) continue; /* gone meanwhile */
        w->path.n = top->path;
        cp_buf_addz(&w->path, found->d_name);
        w->enter = S_ISDIR(e->st.st_mode);
        w->enter_dev = e->st.st_dev;
        e->dir = dirfd(top->d);
        e->relative = cp_buf_z(&w->path);
        e->name = e->relative + top->path;
        return true;
    }
    return false;
}

uint64_t cp_walk_skipped(const cp_walk *w) { return w->skipped; }

void cp_walk_close(cp_walk *w) {
    if (!w) return;
    while (w->depth) closedir(w->levels[--w->depth].d);
    cp_buf_free(&w->path);
    free(w);
}
