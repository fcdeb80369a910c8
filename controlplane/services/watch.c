/* One inotify instance per watcher: a folder's watch belongs to nobody else, an overflow hits nobody else, and closing
 * the descriptor ends all of it.
 *
 *     open → walking (on the io pool) → ready ⇄ walking (a new folder) → over
 *
 * A watcher lives while it has subscribers or checks, or is retained for checks to come. */
#include "services/watch_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/metrics.h"

const char *const cp_watch_type_names[CP_WATCH_TYPES + 1] = {"create",    "modify",  "delete",
                                                             "move_from", "move_to", "attrib"};

bool watch_matches(const watch_globs *g, cp_str path) {
    for (size_t i = 0; i < g->n; i++)
        if (cp_glob_match(g->v[i], path)) return true;
    return false;
}

void watch_path(const cp_watcher *w, const watch_dir *d, cp_str name, cp_buf *out) {
    cp_buf_addz(out, w->path);
    if (d->parent && out->p[out->n - 1] != '/') cp_buf_addc(out, '/');
    watch_tree_path(d, out);
    if (!name.n) return;
    if (out->p[out->n - 1] != '/') cp_buf_addc(out, '/');
    cp_buf_add(out, name.p, name.n);
}

/* ---- making and freeing ---- */

static int compare(const void *a, const void *b) {
    const cp_str *x = a, *y = b;
    int c = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);
    return c ? c : x->n < y->n ? -1 : x->n > y->n;
}

static watch_globs globs_of(const cp_str *v, size_t n) {
    watch_globs g = {0};
    if (!n) return g;
    g.v = cp_alloc(n * sizeof *g.v);
    memcpy(g.v, v, n * sizeof *v);
    qsort(g.v, n, sizeof *g.v, compare);
    for (size_t i = 0; i < n; i++)
        if (!g.n || !cp_str_eq(g.v[g.n - 1], g.v[i])) g.v[g.n++] = g.v[i];
    for (size_t i = 0; i < g.n; i++) g.v[i].p = cp_str_dup(g.v[i]);
    return g;
}

static void globs_free(watch_globs *g) {
    for (size_t i = 0; i < g->n; i++) free((void *)(uintptr_t)g->v[i].p);
    free(g->v);
    *g = (watch_globs){0};
}

/* No pattern holds a NUL. */
static void add_key(cp_buf *key, const watch_globs *g) {
    for (size_t i = 0; i < g->n; i++) cp_buf_add(key, g->v[i].p, g->v[i].n + 1);
    cp_buf_addc(key, 0);
}

static void make_key(cp_watcher *w) {
    cp_buf_addf(&w->key, "%d%u", w->recursive, w->events);
    cp_buf_add(&w->key, w->path, strlen(w->path) + 1);
    add_key(&w->key, &w->include);
    add_key(&w->key, &w->exclude);
}

static void watcher_free(cp_watcher *w) {
    cp_io_del(w->svc->loop, &w->io);
    cp_timer_stop(w->svc->loop, &w->expiry);
    if (w->moving) watch_tree_remove(&w->tree, w->moving, -1);
    if (w->tree.root) watch_tree_remove(&w->tree, w->tree.root, -1);
    cp_close(&w->fd);
    globs_free(&w->include);
    globs_free(&w->exclude);
    cp_buf_free(&w->found);
    cp_buf_free(&w->walk_name);
    free(w->root_name);
    free(w->only);
    free(w->path);
    cp_buf_free(&w->key);
    free(w);
}

void watch_unhold(cp_watcher *w) {
    if (--w->hold == 0 && w->over && !w->walking) watcher_free(w);
}

static cp_watcher *watcher_new(cp_services *s, const cp_watch_spec *spec) {
    cp_watcher *w = cp_new(cp_watcher);
    w->svc = s;
    w->fd = w->parent_wd = -1;
    cp_ring_init(&w->subs);
    cp_ring_init(&w->untold);
    cp_ring_init(&w->checks);
    w->path = cp_str_dup(cp_str_of(spec->path));
    w->recursive = spec->recursive;
    w->events = spec->events;
    w->include = globs_of(spec->include, spec->ninclude);
    w->exclude = globs_of(spec->exclude, spec->nexclude);
    for (size_t i = 0; i < w->exclude.n; i++)
        if (memchr(w->exclude.v[i].p, '/', w->exclude.v[i].n)) w->exclude_deep = true;
    make_key(w);
    return w;
}

static void unlist(cp_watcher *w) {
    w->over = true;
    watch_walk_stop(w);
    cp_loop_undefer(w->svc->loop, &w->more);
    cp_metric_add(CP_M_WATCHERS, -1);
    if (w->prev) w->prev->next = w->next;
    else w->svc->watches->first = w->next;
    if (w->next) w->next->prev = w->prev;
}

static struct cp_watches *watches_of(cp_services *s) {
    if (!s->watches) s->watches = cp_new(struct cp_watches);
    return s->watches;
}

/* A watcher that is kept for checks holds one of the 128 inotify instances that a user has by default, while nobody is
 * connected. */
static int may_retain(const struct cp_watches *all, const cp_watcher *w, cp_err *err) {
    size_t n = 0;
    if (w->retained) return 0;
    for (const cp_watcher *have = all->first; have; have = have->next) n += have->retained;
    if (n < (size_t)w->svc->config->max_watches) return 0;
    return cp_fail(err, CP_E_LIMIT_EXCEEDED, "%zu watchers are kept for checks (limit max-watches)", n);
}

static void enlist(struct cp_watches *all, cp_watcher *w) {
    snprintf(w->id, sizeof w->id, "watch-%llu-%lld", (unsigned long long)++all->serial, (long long)cp_wall_ms());
    w->next = all->first;
    if (w->next) w->next->prev = w;
    all->first = w;
    cp_metric_add(CP_M_WATCHERS, 1);
}

/* The watcher for these options; a new one begins its walk. */
static cp_watcher *find_or_start(cp_services *s, const cp_watch_spec *spec, bool retain, bool *created, cp_err *err) {
    struct cp_watches *all = watches_of(s);
    cp_watcher *w = watcher_new(s, spec), *have = all->first;
    while (have && !cp_str_eq(cp_buf_str(&have->key), cp_buf_str(&w->key))) have = have->next;
    *created = !have;
    if (retain && may_retain(all, have ? have : w, err) < 0) {
        watcher_free(w);
        return NULL;
    }
    if (have) {
        watcher_free(w);
        return have;
    }
    enlist(all, w);
    watch_walk(w, NULL, (cp_str){0}, false);
    return w;
}

static bool is_used(const cp_watcher *w) {
    return !cp_ring_empty(&w->subs) || !cp_ring_empty(&w->untold) || !cp_ring_empty(&w->checks);
}

static void end_if_unused(cp_watcher *w) {
    if (w->over || is_used(w) || w->retained) return;
    unlist(w);
    w->hold++;
    watch_unhold(w);
}

/* ---- subscribers ---- */

int cp_watch_open(cp_services *s, const cp_watch_spec *spec, cp_watch_sub *sub, cp_err *err) {
    bool created;
    if (s->draining) return cp_fail(err, CP_E_WATCH_START_ERROR, "The server is shutting down");
    cp_watcher *w = find_or_start(s, spec, false, &created, err);
    sub->watcher = w;
    sub->loop = s->loop;
    cp_ring_add(w->ready ? &w->subs : &w->untold, &sub->link);
    return w->ready ? 1 : 0;
}

static void sub_unlink(cp_watch_sub *sub) {
    cp_ring_del(&sub->link);
    sub->watcher = NULL;
}

void cp_watch_close(cp_watch_sub *sub) {
    cp_watcher *w = sub->watcher;
    watch_sub_fini(sub);
    if (!w) return;
    sub_unlink(sub);
    end_if_unused(w);
}

const char *cp_watch_id(const cp_watch_sub *sub) { return sub->watcher ? sub->watcher->id : ""; }

/* Whoever is told may close itself and others: each time the list is looked at anew. */
void watch_started(cp_watcher *w) {
    w->ready = true;
    for (cp_link *l; !w->over && (l = cp_ring_first(&w->untold));) {
        cp_watch_sub *sub = CP_CONTAINER(l, cp_watch_sub, link);
        cp_ring_move(&w->subs, l);
        sub->on_ready(sub, NULL);
    }
}

/* ---- checks ---- */

static void check_unlink(cp_watch_check *c) {
    cp_ring_del(&c->link);
    c->watcher = NULL;
}

static void expired(cp_timer *t) {
    cp_watcher *w = CP_CONTAINER(t, cp_watcher, expiry);
    if (is_used(w)) {
        cp_timer_start(w->svc->loop, &w->expiry, CP_WATCH_RETAIN_MS, expired);
        return;
    }
    w->retained = false;
    end_if_unused(w);
}

static void answer(cp_watch_check *c, const cp_watcher *w, const cp_err *err, bool lost) {
    c->watch_id = w->id;
    c->count = w->count;
    c->lost = lost;
    check_unlink(c);
    c->done(c, err);
}

static cp_watch_check *answerable(const cp_watcher *w, bool drained) {
    cp_link *l = cp_ring_first(&w->checks);
    cp_watch_check *c = l ? CP_CONTAINER(l, cp_watch_check, link) : NULL;
    return c && (drained || c->from <= w->read - (w->in_n - w->in_at)) ? c : NULL;
}

void watch_answer(cp_watcher *w, bool drained) {
    w->hold++;
    for (cp_watch_check *c; !w->over && !w->walking && (c = answerable(w, drained));) {
        cp_timer_start(w->svc->loop, &w->expiry, CP_WATCH_RETAIN_MS, expired);
        answer(c, w, NULL, false);
    }
    watch_unhold(w);
}

void cp_watch_check_start(cp_services *s, const cp_watch_spec *spec, cp_watch_check *c) {
    cp_err err = {0};
    cp_watcher *w = find_or_start(s, spec, true, &c->created, &err);
    int queued = 0;
    c->watcher = w;
    if (!w) {
        c->done(c, &err);
        return;
    }
    cp_ring_add(&w->checks, &c->link);
    w->retained = true;
    cp_timer_start(s->loop, &w->expiry, CP_WATCH_RETAIN_MS, expired);
    if (!w->ready) {
        c->from = 0; /* the version begins with what the walk has found */
        return;
    }
    /* The walk of a new folder only adds to what must be read. */
    c->from = w->read + (ioctl(w->fd, FIONREAD, &queued) == 0 && queued > 0 ? (uint64_t)queued : 0);
    if (!w->walking) watch_pump(w);
}

void cp_watch_check_cancel(cp_watch_check *c) {
    cp_watcher *w = c->watcher;
    if (!w) return;
    check_unlink(c);
    if (!w->ready && cp_ring_empty(&w->checks))
        w->retained = false; /* nobody has been told a version to come again with */
    end_if_unused(w);
}

/* ---- the end ---- */

void watch_end(cp_watcher *w, bool failed, const cp_err *why_borrowed) {
    cp_err why = *why_borrowed;
    bool ready = w->ready;
    if (w->over) return;
    unlist(w);
    w->hold++;
    cp_io_del(w->svc->loop, &w->io);
    cp_timer_stop(w->svc->loop, &w->expiry);
    cp_ring_join(&w->subs, &w->untold);
    for (cp_link *l; (l = cp_ring_first(&w->subs));) {
        cp_watch_sub *sub = CP_CONTAINER(l, cp_watch_sub, link);
        sub_unlink(sub);
        watch_sub_end(sub, failed, why.msg);
        if (ready) sub->on_events(sub);
        else sub->on_ready(sub, &why);
    }
    for (cp_link *l; (l = cp_ring_first(&w->checks));) {
        bool lost = ready && failed;
        answer(CP_CONTAINER(l, cp_watch_check, link), w, lost ? NULL : &why, lost);
    }
    watch_unhold(w);
}

void cp_watches_close(cp_services *s) {
    if (!s->watches) return;
    for (cp_watcher *w; (w = s->watches->first);) {
        w->hold++;
        unlist(w);
        cp_ring_join(&w->subs, &w->untold);
        for (cp_link *l; (l = cp_ring_first(&w->subs));) sub_unlink(CP_CONTAINER(l, cp_watch_sub, link));
        for (cp_link *l; (l = cp_ring_first(&w->checks));) check_unlink(CP_CONTAINER(l, cp_watch_check, link));
        cp_io_del(s->loop, &w->io);
        cp_timer_stop(s->loop, &w->expiry);
        watch_unhold(w);
    }
    free(s->watches);
    s->watches = NULL;
}
