/* The pending table: open addressing with linear probing. Ids are consecutive numbers, so the low bits spread them. */
#include "transport/client/client_impl.h"

#include <stdlib.h>

enum { LEAST = 64 };

static size_t home(const call_table *t, uint64_t id) { return (size_t)id & (t->cap - 1); }

static void place(call_table *t, conflux_call *c) {
    size_t i = home(t, c->id);
    while (t->slots[i]) i = (i + 1) & (t->cap - 1);
    t->slots[i] = c;
}

static void resize(call_table *t, size_t cap) {
    call_table old = *t;
    t->cap = cap;
    t->slots = cp_alloc(cap * sizeof *t->slots);
    for (size_t i = 0; i < old.cap; i++)
        if (old.slots[i]) place(t, old.slots[i]);
    free(old.slots);
}

void table_add(call_table *t, conflux_call *c) {
    if (t->n * 2 >= t->cap) resize(t, t->cap ? t->cap * 2 : LEAST);
    place(t, c);
    t->n++;
}

static size_t slot_of(const call_table *t, uint64_t id) {
    if (!t->cap) return SIZE_MAX;
    for (size_t i = home(t, id); t->slots[i]; i = (i + 1) & (t->cap - 1))
        if (t->slots[i]->id == id) return i;
    return SIZE_MAX;
}

conflux_call *table_find(const call_table *t, uint64_t id) {
    size_t i = slot_of(t, id);
    return i == SIZE_MAX ? NULL : t->slots[i];
}

/* Those behind the hole that would not be found over it any more move up: no tombstones. */
void table_remove(call_table *t, conflux_call *c) {
    size_t hole = slot_of(t, c->id), mask = t->cap - 1;
    if (hole == SIZE_MAX) return;
    t->slots[hole] = NULL;
    for (size_t i = (hole + 1) & mask; t->slots[i]; i = (i + 1) & mask) {
        size_t wants = home(t, t->slots[i]->id);
        if (((i - wants) & mask) < ((i - hole) & mask)) continue;
        t->slots[hole] = t->slots[i];
        t->slots[i] = NULL;
        hole = i;
    }
    t->n--;
    if (t->cap > LEAST && t->n < t->cap / 8) resize(t, t->cap / 2);
}

conflux_call **table_all(const call_table *t, size_t *n) {
    conflux_call **all = cp_alloc((t->n + 1) * sizeof *all);
    *n = 0;
    for (size_t i = 0; i < t->cap; i++) {
        if (!t->slots[i]) continue;
        call_ref(t->slots[i]);
        all[(*n)++] = t->slots[i];
    }
    return all;
}

void table_fini(call_table *t) {
    free(t->slots);
    *t = (call_table){0};
}
