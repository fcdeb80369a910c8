/* mv and cp. */
#include "services/files_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Source and destination, found. */
typedef struct pair {
    const cp_where *from, *to;
    cp_split from_split;
    int from_dir, to_dir;
    struct stat st; /* of the source */
    char to_name[CP_NAME_MAX + 1];
    bool exists; /* the destination */
    struct stat to_st;
} pair;
#define PAIR_EMPTY ((pair){.from_dir = -1, .to_dir = -1})

static void pair_close(pair *p) {
    cp_close(&p->from_dir);
    cp_close(&p->to_dir);
}
#define autopair __attribute__((cleanup(pair_close)))

static int find_source(pair *p, const char *call, cp_err *err) {
    if (cp_path_split(p->from->path, &p->from_split) < 0) return cp_file_fail(err, ENAMETOOLONG, call, p->from->full);
    p->from_dir = cp_where_parent(p->from, &p->from_split, false);
    if (p->from_dir >= 0 && fstatat(p->from_dir, p->from_split.name, &p->st, AT_SYMLINK_NOFOLLOW) == 0) {
        if (!p->from_split.slash || S_ISDIR(p->st.st_mode)) return 0;
        errno = ENOTDIR;
    }
    int sys = errno;
    cp_file_fail(err, sys, call, p->from->full);
    if (err && (sys == ENOENT || sys == ENOTDIR)) snprintf(err->field, sizeof err->field, "source");
    return -1;
}

/* An existing folder (or a link to one) means a place inside it. 0 or -1 with errno. */
static int find_destination(pair *p) {
    cp_split split;
    p->to_dir = cp_where_open(p->to, p->to->path, O_PATH | O_DIRECTORY, 0);
    if (p->to_dir >= 0) {
        memcpy(p->to_name, p->from_split.name, sizeof p->to_name);
    } else {
        if (errno == EXDEV) return -1;
        if (cp_path_split(p->to->path, &split) < 0) return errno = ENAMETOOLONG, -1;
        p->to_dir = cp_where_parent(p->to, &split, false);
        if (p->to_dir < 0) return -1;
        if (split.slash && !S_ISDIR(p->st.st_mode)) return errno = ENOTDIR, -1;
        memcpy(p->to_name, split.name, sizeof p->to_name);
    }
    p->exists = fstatat(p->to_dir, p->to_name, &p->to_st, AT_SYMLINK_NOFOLLOW) == 0;
    return p->exists || errno == ENOENT ? 0 : -1;
}

static bool same_inode(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool same_entry(const pair *p) {
    struct stat a, b;
    return strcmp(p->from_split.name, p->to_name) == 0 && fstat(p->from_dir, &a) == 0 && fstat(p->to_dir, &b) == 0 &&
           same_inode(&a, &b);
}

/* Copies to a temporary name and renames: complete or not at all. */
static int copy_staged(const pair *p, cp_tree_copy *c) {
    char temp[40];
    cp_autotemp cp_temp record = {0};
    cp_temp_name(temp);
    if (S_ISDIR(p->st.st_mode)) {
        int inside = cp_tree_inside(p->to_dir, &p->st);
        if (inside) return inside < 0 ? -1 : (errno = EINVAL, -1);
    }
    cp_temp_begin(&record, p->to->files->temps, p->to_dir, temp);
    c->top = &record;
    if (cp_tree_copy_to(c, p->from_dir, p->from_split.name, p->to_dir, temp) == 0 &&
        renameat(p->to_dir, temp, p->to_dir, p->to_name) == 0)
        return 0;
    int sys = errno;
    cp_tree_discard(p->to_dir, temp);
    return errno = sys, -1;
}

static int move(pair *p) {
    if (p->exists && same_inode(&p->st, &p->to_st)) {
        if (same_entry(p)) return errno = EINVAL, -1;
        return unlinkat(p->from_dir, p->from_split.name, 0); /* two names of one file: rename would do nothing */
    }
    if (renameat(p->from_dir, p->from_split.name, p->to_dir, p->to_name) == 0) return 0;
    if (errno != EXDEV) return -1;
    cp_tree_copy c = {.preserve = true};
    if (copy_staged(p, &c) < 0) return -1;
    return cp_tree_remove(p->from_dir, p->from_split.name);
}

int cp_file_move(const cp_where *from, const cp_where *to, cp_err *err) {
    autopair pair p = PAIR_EMPTY;
    p.from = from;
    p.to = to;
    if (find_source(&p, "rename", err) < 0) return -1;
    if (find_destination(&p) < 0 || move(&p) < 0) return cp_file_fail(err, errno, "rename", to->full);
    return 0;
}

static int copy(const pair *p, const cp_copy_spec *spec, uint64_t *bytes) {
    cp_tree_copy c = {.temps = p->to->files->temps};
    bool dir = S_ISDIR(p->st.st_mode);
    if (dir && !spec->recursive) return errno = EISDIR, -1;
    if (p->exists && !spec->overwrite) return errno = EEXIST, -1;
    if (p->exists && same_inode(&p->st, &p->to_st)) return errno = EINVAL, -1;
    int rc;
    if (p->exists && dir) { /* merged */
        int inside = cp_tree_inside(p->to_dir, &p->st);
        if (inside) return inside < 0 ? -1 : (errno = EINVAL, -1);
        c.overwrite = true;
        rc = cp_tree_copy_to(&c, p->from_dir, p->from_split.name, p->to_dir, p->to_name);
    } else {
        rc = copy_staged(p, &c);
    }
    *bytes = c.bytes;
    return rc;
}

int cp_file_copy(const cp_where *from, const cp_where *to, const cp_copy_spec *spec, uint64_t *bytes, cp_err *err) {
    autopair pair p = PAIR_EMPTY;
    p.from = from;
    p.to = to;
    *bytes = 0;
    if (find_source(&p, "copyfile", err) < 0) return -1;
    if (find_destination(&p) < 0) return cp_file_fail(err, errno, "copyfile", to->full);
    if (copy(&p, spec, bytes) < 0) return cp_file_fail(err, errno, "copyfile", errno == EISDIR ? from->full : to->full);
    return 0;
}
