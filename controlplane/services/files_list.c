#include "services/files_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct lister {
    bool recursive, hidden;
    cp_list_fn *fn;
    void *arg;
    cp_buf path; /* of the entry, below the folder that is listed */
    unsigned depth;
} lister;

static void list_dir(lister *l, DIR *d);

static void list_entry(lister *l, DIR *d, const char *name) {
    struct stat st;
    size_t before = l->path.n;
    if (fstatat(dirfd(d), name, &st, AT_SYMLINK_NOFOLLOW) < 0) return; /* gone in the meantime */
    cp_buf_addz(&l->path, name);
    if (*name != '.' || l->hidden) {
        cp_entry_info e = {.name = name, .relative = cp_buf_z(&l->path), .st = &st};
        l->fn(l->arg, &e);
    }
    if (l->recursive && S_ISDIR(st.st_mode) && l->depth < CP_TREE_DEPTH) {
        cp_autodir DIR *sub = cp_dir_open(dirfd(d), name);
        cp_buf_addc(&l->path, '/');
        if (sub) list_dir(l, sub);
    }
    l->path.n = before;
}

static void list_dir(lister *l, DIR *d) {
    l->depth++;
    for (struct dirent *e; (e = cp_dir_next(d));) list_entry(l, d, e->d_name);
    l->depth--;
}

int cp_file_list(const cp_where *w, bool recursive, bool hidden, cp_list_fn *fn, void *arg, cp_err *err) {
    cp_autofd int fd = cp_where_open(w, w->path, O_RDONLY | O_DIRECTORY, 0);
    cp_autodir DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) return cp_file_fail(err, errno, "scandir", w->full);
    (void)cp_take_fd(&fd);
    lister l = {.recursive = recursive, .hidden = hidden, .fn = fn, .arg = arg};
    list_dir(&l, d);
    cp_buf_free(&l.path);
    return 0;
}

void cp_file_mode_text(mode_t mode, char out[10]) {
    memcpy(out, "rwxrwxrwx", 10);
    for (int i = 0; i < 9; i++)
        if (!(mode & (0400u >> i))) out[i] = '-';
    if (mode & S_ISUID) out[2] = mode & S_IXUSR ? 's' : 'S';
    if (mode & S_ISGID) out[5] = mode & S_IXGRP ? 's' : 'S';
    if (mode & S_ISVTX) out[8] = mode & S_IXOTH ? 't' : 'T';
}

void cp_file_time_text(struct timespec t, char out[40]) {
    struct tm tm = {0};
    localtime_r(&t.tv_sec, &tm);
    size_t n = strftime(out, 28, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + n, 40 - n, ".%09ld0", t.tv_nsec);
}

void cp_file_etag(const struct stat *st, char out[64]) {
    snprintf(out, 64, "\"%llx.%09lx-%llx-%llx\"", (unsigned long long)st->st_mtim.tv_sec, st->st_mtim.tv_nsec,
             (unsigned long long)st->st_size, (unsigned long long)st->st_ino);
}
