#include "services/watch_impl.h"

#include <stdlib.h>

static size_t wd_bucket(int wd) { return (unsigned)wd % WATCH_BUCKETS; }

static size_t name_bucket(const watch_dir *parent, cp_str name) {
    uint32_t h = 2166136261u ^ (uint32_t)parent->wd;
    for (size_t i = 0; i < name.n; i++) h = (h ^ (unsigned char)name.p[i]) * 16777619u;
    return h % WATCH_BUCKETS;
}

watch_dir *watch_tree_wd(const watch_tree *t, int wd) {
    watch_dir *d = t->by_wd[wd_bucket(wd)];
    while (d && d->wd != wd) d = d->wd_next;
    return d;
}

watch_dir *watch_tree_child(const watch_tree *t, const watch_dir *parent, cp_str name) {
    watch_dir *d = t->by_name[name_bucket(parent, name)];
    while (d && (d->parent != parent || !cp_str_eq((cp_str){d->name, d->n}, name))) d = d->name_next;
    return d;
}

void watch_tree_attach(watch_tree *t, watch_dir *d, watch_dir *parent, cp_str name) {
    char *copy = cp_str_dup(name);
    free(d->name);
    d->name = copy;
    d->n = name.n;
    d->parent = parent;
    if (!parent) return;
    watch_dir **bucket = &t->by_name[name_bucket(parent, name)];
    d->name_next = *bucket;
    *bucket = d;
    d->prev = NULL;
    d->next = parent->child;
    if (d->next) d->next->prev = d;
    parent->child = d;
}

void watch_tree_detach(watch_tree *t, watch_dir *d) {
    watch_dir *parent = d->parent;
    if (!parent) return;
    watch_dir **at = &t->by_name[name_bucket(parent, (cp_str){d->name, d->n})];
    while (*at != d) at = &(*at)->name_next;
    *at = d->name_next;
    if (d->prev) d->prev->next = d->next;
    else parent->child = d->next;
    if (d->next) d->next->prev = d->prev;
    d->parent = d->prev = d->next = d->name_next = NULL;
}

watch_dir *watch_tree_add(watch_tree *t, watch_dir *parent, cp_str name, int wd) {
    watch_dir *d = cp_new(watch_dir), **bucket = &t->by_wd[wd_bucket(wd)];
    d->wd = wd;
    d->wd_next = *bucket;
    *bucket = d;
    watch_tree_attach(t, d, parent, name);
    if (!parent) t->root = d;
    t->n++;
    return d;
}

static void free_leaf(watch_tree *t, watch_dir *d, int fd) {
    watch_dir **at = &t->by_wd[wd_bucket(d->wd)];
    watch_tree_detach(t, d);
    while (*at != d) at = &(*at)->wd_next;
    *at = d->wd_next;
    /* EINVAL: the kernel has ended it itself, with the folder. */
    if (fd >= 0) (void)inotify_rm_watch(fd, d->wd);
    if (t->root == d) t->root = NULL;
    t->n--;
    free(d->name);
    free(d);
}

void watch_tree_remove(watch_tree *t, watch_dir *top, int fd) {
    watch_dir *d = top;
    for (;;) {
        while (d->child) d = d->child;
        watch_dir *parent = d->parent;
        bool last = d == top;
        free_leaf(t, d, fd);
        if (last) return;
        d = parent;
    }
}

bool watch_tree_above(const watch_dir *d, const watch_dir *below) {
    while (below && below != d) below = below->parent;
    return below != NULL;
}

void watch_tree_path(const watch_dir *dir, cp_buf *out) {
    size_t n = 0;
    for (const watch_dir *d = dir; d->parent; d = d->parent) n += d->n + (d != dir);
    if (!n) return;
    cp_buf_reserve(out, n);
    char *end = out->p + out->n + n;
    out->n += n;
    for (const watch_dir *d = dir; d->parent; d = d->parent) {
        if (d != dir) *--end = '/';
        end -= d->n;
        memcpy(end, d->name, d->n);
    }
}
