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

pend_flow *pend_flow_of(pend *p) { return p->windowed ? (pend_flow *)(void *)((char *)p + flow_at(p->id_n)) : NULL; }

static size_t size_of(size_t id_n, bool windowed) {
    size_t size = windowed ? flow_at(id_n) + sizeof(pend_flow) : offsetof(pend, id) + id_n;
    return size > sizeof(pend) ? size : sizeof(pend);
}

pend *pend_add(pend_table *t, cp_str id, bool windowed) {
    pend *p = cp_alloc(size_of(id.n, windowed));
    t->bytes += size_of(id.n, windowed);
    p->windowed = windowed;
    if (id.n) memcpy(p->id, id.p, id.n);
    p->id_n = (uint16_t)id.n;
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
    t->bytes -= size_of(p->id_n, p->windowed);
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
