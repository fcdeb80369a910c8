/* Design notes. An id is given on the loop, the row is queued for the registry, and the event becomes visible when the
 * commit is reported: completions come in the order of the ids. So an id that a subscriber has seen is on disk, and no
 * later server gives it to another event. While the disk takes nothing, events wait in the registry, in order, at most
 * CP_REGISTRY_WAITING of them. One that had to go is a hole in the ids, and a hole is told as a gap: here as in a
 * server that reads the table again. It is told once the event behind it is on disk: until then a restart could give
 * the same ids again.
 *
 * That an event comes exactly once over a crash is up to its row: the event is committed in the transaction of the row
 * that it tells of ("ended" with process.exited), waits with it, and a restarted server derives what is still to be
 * told from the rows.
 *
 * What is kept is in memory: a subscriber holds an id and never waits for the database. CP_EVENTS_KEPT of about 200
 * bytes are 2 MB at most, and no more than has happened. The table is trimmed in steps. */
#include "services/events.h"

#include "base/age.h"
#include "base/budget.h"
#include "base/clock.h"
#include "base/log.h"

#include <stdlib.h>

enum { RING_FIRST = 64, TRIM_STEP = 256, TELL_US = 500 /* so long subscribers are told in one round of the loop */ };

#define X(id, word) const char CP_EVENT_##id[] = word;
#include "schema/events.def"
#undef X

/* On its way to the disk, then in the ring; one block with its strings. Without a type: stands for the events up to its
 * id that never came. Behind it there is always one that did. */
struct event {
    cp_event_row row;
    size_t text_n;
    char text[];
};

struct publication {
    cp_reg_done done;
    struct cp_events *owner; /* NULL: closed meanwhile */
    struct publication *prev, *next;
    struct event *event;
};

struct cp_events {
    cp_services *svc;
    struct event **ring; /* in order of id; size is a power of two, or 0 */
    size_t size, begin, n;
    uint64_t first; /* the least id that can exist */
    uint64_t next_id;
    uint64_t gone;    /* id of the last one that is not kept any more; below `first`: none */
    unsigned trimmed; /* since the table was */
    struct publication *under_way;
    cp_link idle, due; /* subscribers that have been told, and those to whom there is something to say */
    cp_deferred tell;
};

/* ---- one event ---- */

static void event_free(struct event *e) {
    cp_budget_release(CP_MEM_EVENTS, sizeof *e + e->text_n);
    free(e);
}

static struct event *event_new(const cp_event_row *row) {
    const char *const *in[] = {&row->process_id, &row->exec_id, &row->session, &row->outcome, &row->stream, &row->type};
    size_t n = 0;
    for (size_t i = 0; i < CP_COUNT(in); i++) n += *in[i] ? strlen(*in[i]) + 1 : 0;
    struct event *e = cp_alloc(sizeof *e + n);
    cp_budget_force(CP_MEM_EVENTS, sizeof *e + n); /* their number is bounded */
    e->row = *row;
    e->text_n = n;
    cp_event_row *r = &e->row;
    const char **out[] = {&r->process_id, &r->exec_id, &r->session, &r->outcome, &r->stream, &r->type};
    char *at = e->text;
    for (size_t i = 0; i < CP_COUNT(out); i++) {
        if (!*in[i]) continue;
        size_t len = strlen(*in[i]) + 1;
        *out[i] = memcpy(at, *in[i], len);
        at += len;
    }
    return e;
}

/* ---- the ring ---- */

static struct event *nth(const struct cp_events *v, size_t i) { return v->ring[(v->begin + i) & (v->size - 1)]; }

static void grow(struct cp_events *v) {
    size_t size = v->size ? v->size * 2 : RING_FIRST;
    struct event **ring = cp_alloc(size * sizeof *ring);
    for (size_t i = 0; i < v->n; i++) ring[i] = nth(v, i);
    free(v->ring);
    v->ring = ring;
    v->size = size;
    v->begin = 0;
}

static void drop_oldest(struct cp_events *v) {
    struct event *e = nth(v, 0);
    v->gone = e->row.id;
    event_free(e);
    v->begin = (v->begin + 1) & (v->size - 1);
    v->n--;
    v->trimmed++;
}

/* The last one stays whatever its age: the next id is told from it. */
static void trim(struct cp_events *v) {
    int64_t most = v->svc->config->history_age * 1000;
    while (v->n > CP_EVENTS_KEPT || (v->n > 1 && cp_age_ms(nth(v, 0)->row.at_ms) > most)) drop_oldest(v);
    if (v->trimmed < TRIM_STEP) return;
    v->trimmed = 0;
    if (v->svc->registry) cp_registry_del_events(v->svc->registry, v->gone + 1);
}

static void push(struct cp_events *v, struct event *e) {
    if (v->n == v->size) grow(v);
    v->ring[(v->begin + v->n++) & (v->size - 1)] = e;
    if (v->n > CP_EVENTS_KEPT) drop_oldest(v);
}

static void append(struct cp_events *v, struct event *e) {
    uint64_t newest = v->n ? nth(v, v->n - 1)->row.id : v->gone;
    if (newest && e->row.id > newest + 1) push(v, event_new(&(cp_event_row){.id = e->row.id - 1}));
    push(v, e);
}

/* Index of the first event with a larger id. */
static size_t after(const struct cp_events *v, uint64_t id) {
    size_t low = 0, high = v->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (nth(v, mid)->row.id <= id) low = mid + 1;
        else high = mid;
    }
    return low;
}

/* ---- publishing ---- */

/* A callback may open and close any subscription. */
static void tell_fn(cp_deferred *d) {
    struct cp_events *v = CP_CONTAINER(d, struct cp_events, tell);
    uint64_t until = cp_now_us() + TELL_US;
    bool late = false;
    for (cp_link *l; !late && (l = cp_ring_first(&v->due)); late = cp_now_us() >= until) {
        cp_event_sub *s = CP_CONTAINER(l, cp_event_sub, link);
        cp_ring_move(&v->idle, l);
        s->on_events(s);
    }
    if (!cp_ring_empty(&v->due)) cp_loop_defer(v->svc->loop, &v->tell, tell_fn);
}

static void unlink_publication(struct cp_events *v, struct publication *p) {
    if (p->prev) p->prev->next = p->next;
    else v->under_way = p->next;
    if (p->next) p->next->prev = p->prev;
}

static void recorded(cp_reg_done *d) {
    struct publication *p = CP_CONTAINER(d, struct publication, done);
    struct cp_events *v = p->owner;
    if (v) unlink_publication(v, p);
    if (!v || d->failed) {
        event_free(p->event);
    } else {
        append(v, p->event);
        trim(v);
        cp_ring_join(&v->due, &v->idle);
        if (!cp_ring_empty(&v->due)) cp_loop_defer(v->svc->loop, &v->tell, tell_fn);
    }
    free(p);
}

static void no_registry(cp_task *t) { recorded(CP_CONTAINER(t, cp_reg_done, task)); }

void cp_event_publish(cp_services *s, const cp_event_row *ev) {
    struct cp_events *v = s->events;
    if (!v) return;
    struct publication *p = cp_new(struct publication);
    p->done.fn = recorded;
    p->owner = v;
    p->next = v->under_way;
    if (p->next) p->next->prev = p;
    v->under_way = p;
    p->event = event_new(ev);
    p->event->row.id = v->next_id++;
    p->event->row.at_ms = cp_wall_ms();
    if (s->registry) cp_registry_put_event(s->registry, &p->event->row, &p->done);
    else cp_loop_post(s->loop, &p->done.task, no_registry);
}

/* A hole has no row: it shows in the ids. */
void cp_events_put_all(cp_services *s) {
    const struct cp_events *v = s->events;
    if (!v || !s->registry) return;
    cp_registry_begin(s->registry);
    cp_registry_first_event(s->registry, v->first);
    for (size_t i = 0; i < v->n; i++)
        if (nth(v, i)->row.type) cp_registry_keep_event(s->registry, &nth(v, i)->row);
    cp_registry_end(s->registry);
}

/* ---- subscribers ---- */

void cp_event_sub_open_after(cp_event_sub *sub, cp_services *s, uint64_t id) {
    struct cp_events *v = s->events;
    trim(v);
    sub->svc = s;
    sub->last = id ? id : v->first - 1;
    cp_ring_add(&v->idle, &sub->link);
}

void cp_event_sub_open(cp_event_sub *sub, cp_services *s) {
    const struct cp_events *v = s->events;
    cp_event_sub_open_after(sub, s, v->n ? nth(v, v->n - 1)->row.id : v->gone);
}

void cp_event_sub_close(cp_event_sub *sub) {
    if (!sub->svc) return;
    cp_ring_del(&sub->link);
    sub->svc = NULL;
}

cp_event_got cp_event_next(cp_event_sub *sub, const cp_event_row **ev, uint64_t *gap_to) {
    if (!sub->svc) return CP_EVENT_NONE;
    const struct cp_events *v = sub->svc->events;
    uint64_t from = sub->last < v->gone ? v->gone : sub->last;
    size_t i = after(v, from);
    if (i < v->n && !nth(v, i)->row.type) from = nth(v, i)->row.id;
    if (from > sub->last) {
        *gap_to = sub->last = from;
        return CP_EVENT_GAP;
    }
    if (i == v->n) return CP_EVENT_NONE;
    *ev = &nth(v, i)->row;
    sub->last = (*ev)->id;
    return CP_EVENT_NEXT;
}

/* ---- life ---- */

static void restore(void *arg, const cp_event_row *row) {
    struct cp_events *v = arg;
    append(v, event_new(row));
    v->next_id = row->id + 1;
}

/* What a former server, or a former log, had before the oldest that is kept. */
static void find_gap(struct cp_events *v) {
    uint64_t oldest = v->n ? nth(v, 0)->row.id : v->first;
    v->gone = oldest - 1;
    if (v->next_id < v->first) v->next_id = v->first;
}

int cp_events_open(cp_services *s, cp_err *err) {
    struct cp_events *v = s->events = cp_new(struct cp_events);
    v->svc = s;
    cp_ring_init(&v->idle);
    cp_ring_init(&v->due);
    v->first = 1;
    if (s->registry && cp_registry_each_event(s->registry, &v->first, restore, v, err) < 0) return -1;
    find_gap(v);
    trim(v);
    if (s->generation) cp_event_publish(s, &(cp_event_row){.type = CP_EVENT_SERVER_RESTARTED});
    return 0;
}

void cp_events_close(cp_services *s) {
    struct cp_events *v = s->events;
    if (!v) return;
    cp_ring_join(&v->idle, &v->due);
    for (cp_link *l; (l = cp_ring_first(&v->idle));) cp_event_sub_close(CP_CONTAINER(l, cp_event_sub, link));
    for (struct publication *p; (p = v->under_way);) {
        unlink_publication(v, p);
        p->owner = NULL;
    }
    cp_loop_undefer(s->loop, &v->tell);
    while (v->n) drop_oldest(v);
    free(v->ring);
    free(v);
    s->events = NULL;
}
