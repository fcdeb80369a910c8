#include "base/heap.h"

#include "base/buf.h"

#include <stdlib.h>

static void set(cp_heap *h, uint32_t k, cp_heap_item *i) {
    h->v[k] = i;
    i->slot = k + 1;
}

static void up(cp_heap *h, cp_heap_item *i) {
    uint32_t k = i->slot - 1;
    for (; k > 0 && h->v[(k - 1) / 2]->key > i->key; k = (k - 1) / 2) set(h, k, h->v[(k - 1) / 2]);
    set(h, k, i);
}

static void down(cp_heap *h, cp_heap_item *i) {
    uint32_t k = i->slot - 1;
    for (uint32_t c; (c = 2 * k + 1) < h->n; k = c) {
        if (c + 1 < h->n && h->v[c + 1]->key < h->v[c]->key) c++;
        if (h->v[c]->key >= i->key) break;
        set(h, k, h->v[c]);
    }
    set(h, k, i);
}

void cp_heap_put(cp_heap *h, cp_heap_item *i, uint64_t key) {
    i->key = key;
    if (!i->slot) {
        if (h->n == h->cap) {
            h->cap = h->cap ? h->cap * 2 : 4;
            h->v = cp_realloc(h->v, h->cap * sizeof(cp_heap_item *));
        }
        set(h, h->n++, i);
    }
    up(h, i);
    down(h, i);
}

void cp_heap_drop(cp_heap *h, cp_heap_item *i) {
    if (!i->slot) return;
    uint32_t k = i->slot - 1;
    cp_heap_item *last = h->v[--h->n];
    i->slot = 0;
    if (last != i) {
        set(h, k, last);
        up(h, last);
        down(h, last);
    }
    if (h->n) return;
    free(h->v);
    *h = (cp_heap){0};
}
