#pragma once
/* A list whose entries know both neighbours, closed by its head: an entry leaves whichever list it is in without
 * knowing it, and one list is joined to another at once. Embed a cp_link in the owner. One thread. */
#include <stdbool.h>
#include <stddef.h>

typedef struct cp_link {
    struct cp_link *prev, *next;
} cp_link;

static inline void cp_ring_init(cp_link *head) { head->prev = head->next = head; }
static inline bool cp_ring_empty(const cp_link *head) { return head->next == head; }
static inline cp_link *cp_ring_first(const cp_link *head) { return head->next == head ? NULL : head->next; }

static inline void cp_ring_add(cp_link *head, cp_link *l) { /* as the last; l is in no list */
    l->prev = head->prev;
    l->next = head;
    head->prev->next = l;
    head->prev = l;
}

static inline void cp_ring_del(cp_link *l) {
    l->prev->next = l->next;
    l->next->prev = l->prev;
    l->prev = l->next = NULL;
}

static inline void cp_ring_move(cp_link *head, cp_link *l) { /* from where it is to the end of this one */
    cp_ring_del(l);
    cp_ring_add(head, l);
}

static inline void cp_ring_join(cp_link *head, cp_link *from) { /* all of `from`, which is empty afterwards */
    if (cp_ring_empty(from)) return;
    from->next->prev = head->prev;
    head->prev->next = from->next;
    from->prev->next = head;
    head->prev = from->prev;
    cp_ring_init(from);
}
