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

pend *pend_find(const pend_table *t, cp_str id) {
    if (!t->count || !id.n) return NULL;
    uint32_t h = hash_of(id);
    for (pend *p = t->buckets[h & (t->nbuckets - 1)]; p; p = p->hash_next)
        if (p->hash == h && cp_str_eq(pend_id(p), id)) return p;
    return NULL;
}

static void insert(pend_table *t, pend *p) {
    if (!p->id_n) return; /* any number of them, and none can be asked for */
    pend **b = &t->buckets[p->hash & (t->nbuckets - 1)];
    p->hash_next = *b;
    *b = p;
}

static void resize(pend_table *t, uint32_t n) {
    free(t->buckets);
    t->buckets = cp_alloc(n * sizeof *t->buckets);
    t->nbuckets = n;
    for (pend *p = t->all; p; p = p->next) insert(t, p);
}

pend *pend_add(pend_table *t, cp_str id) {
    pend *p = cp_alloc(sizeof *p + id.n);
    if (id.n) memcpy(p->id, id.p, id.n);
    p->id_n = (uint16_t)id.n;
    p->hash = hash_of(id);
    if (t->count >= t->nbuckets) resize(t, t->nbuckets ? t->nbuckets * 2 : FIRST_BUCKETS);
    insert(t, p);
    p->next = t->all;
    if (p->next) p->next->prev = p;
    t->all = p;
    t->count++;
    return p;
}

void pend_clear_deadline(pend_table *t, pend *p) {
    if (!p->deadline_at) return;
    if (p->timed_prev) p->timed_prev->timed_next = p->timed_next;
    else t->timed = p->timed_next;
    if (p->timed_next) p->timed_next->timed_prev = p->timed_prev;
    p->timed_prev = p->timed_next = NULL;
    p->deadline_at = 0;
}

void pend_unlink(pend_table *t, pend *p) {
    pend_clear_deadline(t, p);
    pend **b = &t->buckets[p->hash & (t->nbuckets - 1)];
    while (p->id_n && *b != p) b = &(*b)->hash_next;
    if (p->id_n) *b = p->hash_next;
    if (p->prev) p->prev->next = p->next;
    else t->all = p->next;
    if (p->next) p->next->prev = p->prev;
    p->prev = p->next = p->hash_next = NULL;
    if (--t->count == 0 && t->nbuckets > FIRST_BUCKETS) { /* an idle connection is a cheap one */
        free(t->buckets);
        t->buckets = NULL;
        t->nbuckets = 0;
    }
}

void pend_set_deadline(pend_table *t, pend *p, uint64_t at) {
    p->deadline_at = at;
    p->timed_next = t->timed;
    if (p->timed_next) p->timed_next->timed_prev = p;
    t->timed = p;
}

pend *pend_expired(const pend_table *t, uint64_t now, uint64_t *next) {
    *next = 0;
    for (pend *p = t->timed; p; p = p->timed_next) {
        if (p->deadline_at <= now) return p;
        if (!*next || p->deadline_at < *next) *next = p->deadline_at;
    }
    return NULL;
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
