#pragma once
/* A binary heap of items that are embedded in their owners: the least key is at hand, and putting, moving and dropping
 * one takes O(log n) steps. One thread. */
#include <stddef.h>
#include <stdint.h>

/* Embed in the owner, zeroed. */
typedef struct cp_heap_item {
    uint64_t key;  /* read only */
    uint32_t slot; /* the heap's: index + 1, 0 while it is in none */
} cp_heap_item;

/* Zeroed it is empty; an empty one holds no memory. */
typedef struct cp_heap {
    cp_heap_item **v;
    uint32_t n, cap;
} cp_heap;

void cp_heap_put(cp_heap *h, cp_heap_item *i, uint64_t key); /* adds it, or moves it to this key */
void cp_heap_drop(cp_heap *h, cp_heap_item *i);              /* in none is fine */
static inline cp_heap_item *cp_heap_first(const cp_heap *h) { return h->n ? h->v[0] : NULL; }
