#include "services/files_way.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"

static void shut(cp_way_level *l) {
    if (l->d) closedir(l->d);
    else cp_close(&l->fd);
    l->d = NULL;
    l->fd = -1;
}

void cp_way_name(cp_way *w, const char *name) {
    w->path.n = cp_way_last(w)->path;
    cp_buf_addz(&w->path, name);
}

int cp_way_down(cp_way *w, int given) {
    cp_autofd int fd = given;
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0) return -1;
    if (w->n == w->cap) w->v = cp_realloc(w->v, (w->cap = w->cap ? 2 * w->cap : 16) * sizeof *w->v);
    if (w->n) cp_buf_addc(&w->path, '/');
    w->v[w->n++] = (cp_way_level){.fd = cp_take_fd(&fd), .dev = st.st_dev, .ino = st.st_ino, .path = w->path.n};
    if (w->n > CP_WAY_OPEN + 1) shut(&w->v[w->n - 1 - CP_WAY_OPEN]);
    return 0;
}

static bool is_it(int fd, const cp_way_level *l) {
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0) return false;
    if (st.st_dev == l->dev && st.st_ino == l->ino) return true;
    errno = ENOENT; /* another one has its name */
    return false;
}

/* Level `last` name by name from the first; its descriptor or -1. */
static int find_again(cp_way *w, size_t last) {
    int dir = w->v[0].fd;
    cp_autofd int at = -1;
    for (size_t i = 1; i <= last; i++) {
        char *name = w->path.p + w->v[i - 1].path, *slash = w->path.p + w->v[i].path - 1;
        int flags = O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | (i == last ? w->flags : O_PATH);
        *slash = 0;
        int next = openat(dir, name, flags);
        *slash = '/';
        if (next < 0) return -1;
        cp_close(&at);
        dir = at = next;
    }
    return is_it(at, &w->v[last]) ? cp_take_fd(&at) : -1;
}

/* The folder moved meanwhile: ".." leads elsewhere. It may not be entered any more: ".." leads nowhere. */
static int open_again(cp_way *w, size_t last) {
    int below = w->v[last + 1].fd;
    cp_autofd int fd = below < 0 ? -1 : openat(below, "..", w->flags | O_DIRECTORY | O_CLOEXEC);
    if (is_it(fd, &w->v[last])) return cp_take_fd(&fd);
    return fd < 0 && cp_no_fd(errno) ? -1 : find_again(w, last);
}

int cp_way_up(cp_way *w) {
    size_t last = w->n - 2;
    int sys = 0;
    if (w->v[last].fd < 0 && (w->v[last].fd = open_again(w, last)) < 0) sys = errno;
    shut(&w->v[last + 1]);
    w->path.n = w->v[last + 1].path - 1;
    w->n--;
    return sys ? errno = sys, -1 : 0;
}

void cp_way_end(cp_way *w) {
    while (w->n) shut(&w->v[--w->n]);
    free(w->v);
    cp_buf_free(&w->path);
    *w = (cp_way){0};
}
