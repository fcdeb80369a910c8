/* From what inotify says to events with paths. Events are handled in the kernel's order; one that brings a new folder
 * stops the reading until that folder has been walked. */
#include "services/watch_impl.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { STEPS = 2048 /* before others have their turn: events, and subscribers that one is told to */ };

void watch_emit(cp_watcher *w, cp_watch_type type, cp_str path, bool is_dir) {
    if (!(w->events & 1u << type)) return;
    if (watch_matches(&w->exclude, path) || (w->include.n && !watch_matches(&w->include, path))) return;
    w->count++;
    for (cp_link *l = w->subs.next; l != &w->subs; l = l->next, w->steps++)
        watch_sub_push(CP_CONTAINER(l, cp_watch_sub, link), w->id, type, path, is_dir);
}

static bool type_of(uint32_t mask, cp_watch_type *out) {
    static const uint32_t masks[CP_WATCH_TYPES] = {IN_CREATE,     IN_MODIFY,   IN_DELETE,
                                                   IN_MOVED_FROM, IN_MOVED_TO, IN_ATTRIB};
    for (int i = 0; i < CP_WATCH_TYPES; i++) {
        if (!(mask & masks[i])) continue;
        *out = (cp_watch_type)i;
        return true;
    }
    return false;
}

static void end_removed(cp_watcher *w) {
    cp_err err;
    cp_fail(&err, CP_E_FILE_NOT_FOUND, "The watched path was removed: %s", w->path);
    watch_end(w, false, &err);
}

static void end_overflow(cp_watcher *w) {
    cp_err err;
    cp_fail(&err, CP_E_WATCH_START_ERROR,
            "Events were lost: they came faster than they could be read (sysctl fs.inotify.max_queued_events)");
    watch_end(w, true, &err);
}

/* ---- folders that come, go and move ---- */

static void forget_moving(cp_watcher *w) {
    if (w->moving) watch_tree_remove(&w->tree, cp_take(w->moving), w->fd);
}

static void folder_left(cp_watcher *w, watch_dir *d, uint32_t cookie) {
    if (!d) return;
    watch_tree_detach(&w->tree, d);
    w->moving = d;
    w->moving_cookie = cookie;
}

/* Renamed inside the tree: its watches are good as they are. Under its new name other patterns may apply. */
static void folder_renamed(cp_watcher *w, watch_dir *parent, cp_str name) {
    watch_dir *d = cp_take(w->moving), *there = watch_tree_child(&w->tree, parent, name);
    if (there) watch_tree_remove(&w->tree, there, w->fd);
    watch_tree_attach(&w->tree, d, parent, name);
    if (w->exclude_deep) watch_walk(w, d, (cp_str){0}, false);
}

static void folder_event(cp_watcher *w, watch_dir *dir, cp_str name, const struct inotify_event *ev, bool excluded) {
    watch_dir *child = watch_tree_child(&w->tree, dir, name);
    if (ev->mask & IN_DELETE) {
        if (child) watch_tree_remove(&w->tree, child, w->fd);
    } else if (ev->mask & IN_MOVED_FROM) {
        folder_left(w, child, ev->cookie);
    } else if (ev->mask & (IN_CREATE | IN_MOVED_TO) && excluded) {
        forget_moving(w);
    } else if (ev->mask & IN_MOVED_TO && w->moving) {
        folder_renamed(w, dir, name);
    } else if (ev->mask & IN_MOVED_TO || (ev->mask & IN_CREATE && !child)) {
        /* A walk may have found what is only now said to be created. But a folder that was moved here may have replaced
         * another, whose end is told later. */
        watch_walk(w, dir, name, true);
    }
}

/* ---- one event ---- */

static void staged_event(cp_watcher *w, const struct inotify_event *ev, cp_staged staged) {
    if (!(ev->mask & IN_MOVED_FROM)) return;
    w->staged = staged;
    w->staged_cookie = ev->cookie;
}

static void emit_named(cp_watcher *w, const struct inotify_event *ev, cp_str path) {
    bool is_dir = ev->mask & IN_ISDIR;
    cp_watch_type type;
    if (ev->mask & IN_MOVED_TO && w->staged && ev->cookie == w->staged_cookie) {
        if (w->staged == CP_STAGED_NEW) watch_emit(w, CP_WATCH_CREATE, path, is_dir);
        if (!is_dir) watch_emit(w, CP_WATCH_MODIFY, path, is_dir);
        w->staged = CP_STAGED_NOT;
    } else if (type_of(ev->mask, &type)) {
        watch_emit(w, type, path, is_dir);
    }
}

static void named_event(cp_watcher *w, watch_dir *dir, const struct inotify_event *ev) {
    cp_autobuf cp_buf path = {0};
    cp_str name = cp_str_of(ev->name);
    cp_staged staged = cp_watch_staged(name);
    if (staged) {
        staged_event(w, ev, staged);
        return;
    }
    if (w->only && !cp_str_is(name, w->only)) return;
    if (w->only) cp_buf_addz(&path, w->path);
    else watch_path(w, dir, name, &path);
    emit_named(w, ev, cp_buf_str(&path));
    if (ev->mask & IN_ISDIR && w->recursive)
        folder_event(w, dir, name, ev, watch_matches(&w->exclude, cp_buf_str(&path)));
}

/* An event of a watched folder itself. Those below the root are told by their parent's watch as well. */
static void self_event(cp_watcher *w, watch_dir *dir, uint32_t mask) {
    bool root = dir == w->tree.root;
    if (root && mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_IGNORED | IN_UNMOUNT)) end_removed(w);
    else if (mask & IN_IGNORED) watch_tree_remove(&w->tree, dir, w->fd);
    else if (root && mask & IN_ATTRIB && !w->only) watch_emit(w, CP_WATCH_ATTRIB, cp_str_of(w->path), true);
}

static bool root_removed(const cp_watcher *w, const struct inotify_event *ev) {
    return ev->wd == w->parent_wd && ev->len && ev->mask & (IN_DELETE | IN_MOVED_FROM) && w->root_name &&
           strcmp(ev->name, w->root_name) == 0;
}

static void handle(cp_watcher *w, const struct inotify_event *ev) {
    if (ev->mask & IN_Q_OVERFLOW) {
        end_overflow(w);
        return;
    }
    /* Where a folder went is told by the very next event, or it has left the tree (or the pair was torn apart by
     * another event, and it is found anew). */
    if (w->moving && !(ev->mask & IN_MOVED_TO && ev->cookie == w->moving_cookie)) forget_moving(w);
    watch_dir *dir = watch_tree_wd(&w->tree, ev->wd);
    if (root_removed(w, ev)) end_removed(w);
    else if (dir && ev->len) named_event(w, dir, ev);
    else if (dir) self_event(w, dir, ev->mask);
}

/* ---- reading ---- */

/* Both false: enough for now. */
static bool handle_buffered(cp_watcher *w) {
    for (; w->in_at < w->in_n && !w->over && !w->walking; w->steps++) {
        if (w->steps >= STEPS) return false;
        const struct inotify_event *ev = (const struct inotify_event *)(const void *)(w->in + w->in_at);
        w->in_at += sizeof *ev + ev->len;
        handle(w, ev);
    }
    return true;
}

/* What a walk has found in new folders. */
static bool tell_found(cp_watcher *w) {
    if (w->walking) return true; /* a thread is adding to it */
    for (; w->found_at < w->found.n; w->steps++) {
        if (w->steps >= STEPS) return false;
        const char *path = w->found.p + w->found_at + 1;
        size_t n = strlen(path);
        watch_emit(w, CP_WATCH_CREATE, (cp_str){path, n}, path[-1] == 'd');
        w->found_at += n + 2;
        w->named++;
    }
    /* Too many to name: far more than a subscriber gets, but for a check it must count as a change. */
    if (w->nfound > w->named) w->count += w->nfound - w->named;
    w->nfound = w->named = w->found_at = 0;
    cp_buf_reset(&w->found, 4096);
    return true;
}

/* False: nothing to read, or broken. */
static bool read_more(cp_watcher *w) {
    ssize_t n = read(w->fd, w->in, sizeof w->in);
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
        cp_err err;
        cp_fail_sys(&err, CP_E_WATCH_START_ERROR, errno, "Failed to read events");
        watch_end(w, true, &err);
    }
    if (n <= 0) return false;
    w->in_n = (size_t)n;
    w->in_at = 0;
    w->read += w->in_n;
    return true;
}

static void pump_more(cp_deferred *d) { watch_pump(CP_CONTAINER(d, cp_watcher, more)); }

void watch_pump(cp_watcher *w) {
    w->steps = 0;
    w->hold++;
    for (;;) {
        bool all = tell_found(w) && handle_buffered(w);
        if (!w->over && !w->walking && w->found_at == w->found.n) watch_answer(w, false);
        if (w->over || w->walking) break;
        if (!all || w->steps >= STEPS) {
            cp_loop_defer(w->svc->loop, &w->more, pump_more);
            break;
        }
        if (read_more(w)) continue;
        if (!w->over) watch_answer(w, true);
        break;
    }
    if (w->walking && !w->over && w->io.slot) cp_io_mod(w->svc->loop, &w->io, 0);
    watch_unhold(w);
}

static void readable(cp_io *io, uint32_t events) {
    (void)events;
    watch_pump(CP_CONTAINER(io, cp_watcher, io));
}

/* ---- after a walk ---- */

static int resume(cp_watcher *w) {
    cp_loop *loop = w->svc->loop;
    if (w->io.slot) return cp_io_mod(loop, &w->io, EPOLLIN);
    return cp_io_add(loop, &w->io, w->fd, EPOLLIN, readable);
}

void watch_walked(cp_watcher *w) {
    w->hold++;
    w->walking = false;
    cp_err err = w->walk_err;
    if (!w->over && !err.code && resume(w) < 0)
        cp_fail_sys(&err, CP_E_WATCH_START_ERROR, errno, "Failed to wait for events");
    if (!w->over && err.code) watch_end(w, !w->ready || err.code != CP_E_FILE_NOT_FOUND, &err);
    if (!w->over) watch_started(w);
    if (!w->over && !w->walking) watch_pump(w);
    watch_unhold(w);
}
