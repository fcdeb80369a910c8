#include "transport/pending.h"

#include "base/id.h"

#include <stdlib.h>

enum { FIRST_BUCKETS = 16 };

/* FNV-1a from a random start: which ids collide cannot be worked out beforehand. */
static uint32_t hash_of(cp_str id) {
    static uint32_t seed;
    if (!seed) {
        cp_random(&seed, sizeof seed);
        seed |= 1;
    }
    uint32_t h = seed;
    for (size_t i = 0; i < id.n; i++) h = (h ^ (uint8_t)id.p[i]) * 16777619u;
    return h ^ h >> 15;
}

/* Those without an id cannot be asked for, but are among all. */
static uint32_t hash_of_nameless(const pend *p) { return (uint32_t)((uintptr_t)p >> 4) * 2654435769u >> 8; }

uint32_t pend_bucket(const pend_table *t, const pend *p) {
    return (p->id_n ? hash_of(pend_id(p)) : hash_of_nameless(p)) & (t->nbuckets - 1);
}

pend *pend_find(const pend_table *t, cp_str id) {
    if (!t->count || !id.n) return NULL;
    for (pend *p = t->buckets[hash_of(id) & (t->nbuckets - 1)]; p; p = p->hash_next)
        if (cp_str_eq(pend_id(p), id)) return p;
    return NULL;
}

static void insert(pend_table *t, pend *p) {
    pend **b = &t->buckets[pend_bucket(t, p)];
    p->hash_next = *b;
    *b = p;
}

static void resize(pend_table *t, uint32_t n) {
    pend_table old = *t;
    t->buckets = cp_alloc(n * sizeof *t->buckets);
    t->nbuckets = n;
    for (pend *p = pend_from(&old, 0), *next; p; p = next) {
        next = pend_next(&old, p);
        insert(t, p);
    }
    free(old.buckets);
}

/* Behind the id, where a pend_flow may stand. */
static size_t flow_at(size_t id_n) {
    size_t align = _Alignof(pend_flow), end = offsetof(pend, id) + id_n;
    return (end + align - 1) / align * align;
}

static size_t due_at(size_t id_n, bool windowed) { return flow_at(id_n) + (windowed ? sizeof(pend_flow) : 0); }

pend_flow *pend_flow_of(pend *p) { return p->windowed ? (pend_flow *)(void *)((char *)p + flow_at(p->id_n)) : NULL; }

static size_t size_of(size_t id_n, bool windowed, bool timed) {
    size_t size = timed      ? due_at(id_n, windowed) + sizeof(pend_due)
                  : windowed ? flow_at(id_n) + sizeof(pend_flow)
                             : offsetof(pend, id) + id_n;
    return size > sizeof(pend) ? size : sizeof(pend);
}

/* What it takes in the table, its place in the heap included. */
static size_t weight(const pend *p) {
    return size_of(p->id_n, p->windowed, p->timed) + (p->timed ? sizeof(cp_heap_item *) : 0);
}

static pend_due *due_of(pend *p) {
    return p->timed ? (pend_due *)(void *)((char *)p + due_at(p->id_n, p->windowed)) : NULL;
}

void pend_due_at(pend_table *t, pend *p, uint64_t at) {
    pend_due *d = due_of(p);
    d->p = p;
    cp_heap_put(&t->due, &d->at, at);
}

void pend_due_drop(pend_table *t, pend *p) {
    pend_due *d = due_of(p);
    if (d) cp_heap_drop(&t->due, &d->at);
}

uint64_t pend_deadline(const pend *p) {
    if (!p->timed) return 0;
    const pend_due *d = (const void *)((const char *)p + due_at(p->id_n, p->windowed));
    return d->at.slot ? d->at.key : 0;
}

pend *pend_due_first(const pend_table *t) {
    cp_heap_item *first = cp_heap_first(&t->due);
    return first ? CP_CONTAINER(first, pend_due, at)->p : NULL;
}

pend *pend_add(pend_table *t, cp_str id, bool windowed, bool timed) {
    pend *p = cp_alloc(size_of(id.n, windowed, timed));
    p->windowed = windowed;
    p->timed = timed;
    if (id.n) memcpy(p->id, id.p, id.n);
    p->id_n = (uint16_t)id.n;
    t->bytes += weight(p);
    if (t->count >= t->nbuckets) resize(t, t->nbuckets ? t->nbuckets * 2 : FIRST_BUCKETS);
    insert(t, p);
    t->count++;
    return p;
}

pend *pend_from(const pend_table *t, uint32_t bucket) {
    for (; bucket < t->nbuckets; bucket++)
        if (t->buckets[bucket]) return t->buckets[bucket];
    return NULL;
}

pend *pend_next(const pend_table *t, const pend *p) {
    return p->hash_next ? p->hash_next : pend_from(t, pend_bucket(t, p) + 1);
}

void pend_unlink(pend_table *t, pend *p) {
    pend **b = &t->buckets[pend_bucket(t, p)];
    while (*b != p) b = &(*b)->hash_next;
    *b = p->hash_next;
    p->hash_next = NULL;
    pend_due_drop(t, p);
    t->bytes -= weight(p);
    if (--t->count == 0 && t->nbuckets > FIRST_BUCKETS) { /* an idle connection is a cheap one */
        free(t->buckets);
        t->buckets = NULL;
        t->nbuckets = 0;
    }
}

void pend_push(pend_queue *q, pend *p) {
    unsigned k = p->priority;
    p->q_next = NULL;
    p->q_prev = q->tail[k];
    if (p->q_prev) p->q_prev->q_next = p;
    else q->head[k] = p;
    q->tail[k] = p;
    q->mask = (uint8_t)(q->mask | 1u << k);
    p->queued = true;
}

void pend_drop(pend_queue *q, pend *p) {
    if (!p->queued) return;
    unsigned k = p->priority;
    if (p->q_prev) p->q_prev->q_next = p->q_next;
    else q->head[k] = p->q_next;
    if (p->q_next) p->q_next->q_prev = p->q_prev;
    else q->tail[k] = p->q_prev;
    if (!q->head[k]) q->mask = (uint8_t)(q->mask & ~(1u << k));
    p->q_prev = p->q_next = NULL;
    p->queued = false;
}

pend *pend_top(const pend_queue *q) { return q->mask ? q->head[31 - __builtin_clz(q->mask)] : NULL; }
