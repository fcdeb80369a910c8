/* What waits for one subscriber. Events are collected in a window, in which an event that comes again takes the place
 * of the former at the end (so that the last word on a path is the true one), and become ready together when it is
 * over. A subscriber that does not take them keeps its window open: it gets less, never more than CP_WATCH_PENDING. */
#include "services/watch_impl.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/budget.h"
#include "base/clock.h"
#include "base/log.h"

static void list_append(cp_watch_list *l, cp_watch_event *e) {
    e->prev = l->tail;
    e->next = NULL;
    if (l->tail) l->tail->next = e;
    else l->head = e;
    l->tail = e;
    l->n++;
}

static void list_unlink(cp_watch_list *l, cp_watch_event *e) {
    if (e->prev) e->prev->next = e->next;
    else l->head = e->next;
    if (e->next) e->next->prev = e->prev;
    else l->tail = e->prev;
    l->n--;
}

static void event_free(cp_watch_event *e) {
    if (e) cp_budget_release(CP_MEM_WATCH, sizeof *e + e->n);
    free(e);
}

static void list_free(cp_watch_list *l) {
    for (cp_watch_event *e; (e = l->head);) {
        list_unlink(l, e);
        event_free(e);
    }
}

static void window_ready(cp_watch_sub *s) {
    for (cp_watch_event *e; (e = s->window.head);) {
        list_unlink(&s->window, e);
        list_append(&s->taken_from, e);
    }
    memset(s->hash, 0, sizeof s->hash);
    s->due = false;
}

static void window_over(cp_timer *t) {
    cp_watch_sub *s = CP_CONTAINER(t, cp_watch_sub, timer);
    s->due = true;
    if (s->taken_from.n) return;
    window_ready(s);
    s->on_events(s);
}

static unsigned hash_of(cp_watch_type type, cp_str path, bool is_dir) {
    uint32_t h = 2166136261u ^ (uint32_t)type ^ (is_dir ? 64 : 0);
    for (size_t i = 0; i < path.n; i++) h = (h ^ (unsigned char)path.p[i]) * 16777619u;
    return (h ^ h >> 16) & 255;
}

/* An event of n bytes has no room, with this subscriber or in the memory budget. */
static bool dropping(cp_watch_sub *s, const char *watch_id, size_t n) {
    if (s->window.n + s->taken_from.n < CP_WATCH_PENDING && cp_budget_reserve(CP_MEM_WATCH, n, NULL) == 0) return false;
    if (s->dropped++ % CP_WATCH_PENDING == 0)
        cp_log(CP_LOG_DEBUG, "watch.dropped", "a subscriber takes its events too slowly", CP_KVZ("watchId", watch_id),
               CP_KVI("dropped", s->dropped));
    return true;
}

void watch_sub_push(cp_watch_sub *s, const char *watch_id, cp_watch_type type, cp_str path, bool is_dir) {
    cp_watch_event **bucket = &s->hash[hash_of(type, path, is_dir)], *e = *bucket;
    while (e && (e->type != type || e->is_dir != is_dir || !cp_str_eq((cp_str){e->path, e->n}, path))) e = e->hash_next;
    if (e) {
        list_unlink(&s->window, e);
    } else {
        if (dropping(s, watch_id, sizeof *e + path.n)) return;
        e = cp_alloc(sizeof *e + path.n);
        e->type = type;
        e->is_dir = is_dir;
        e->n = path.n;
        memcpy(e->path, path.p, path.n);
        e->hash_next = *bucket;
        *bucket = e;
    }
    e->wall_ms = cp_wall_ms();
    list_append(&s->window, e);
    if (!s->due && !cp_timer_active(&s->timer)) cp_timer_start(s->loop, &s->timer, CP_WATCH_WINDOW_MS, window_over);
}

const cp_watch_event *cp_watch_next(cp_watch_sub *s) {
    event_free(s->current);
    s->current = NULL;
    if (!s->taken_from.n && s->due) window_ready(s);
    cp_watch_event *e = s->taken_from.head;
    if (!e) return NULL;
    list_unlink(&s->taken_from, e);
    s->current = e;
    return e;
}

void watch_sub_end(cp_watch_sub *s, bool failed, const char *text) {
    snprintf(s->end_text, sizeof s->end_text, "%s", text);
    s->ended = true;
    s->failed = failed;
    cp_timer_stop(s->loop, &s->timer);
    window_ready(s);
}

void watch_sub_fini(cp_watch_sub *s) {
    if (s->loop) cp_timer_stop(s->loop, &s->timer);
    list_free(&s->window);
    list_free(&s->taken_from);
    event_free(s->current);
    s->current = NULL;
}
