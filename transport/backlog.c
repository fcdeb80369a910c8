#include "transport/backlog.h"

#include <stdlib.h>

enum { BLOCK = 4096, SHARED_MOST = BLOCK / 4 /* a longer text has a block of its own */ };

struct backlog_block {
    uint32_t size, used; /* of bytes */
    uint32_t live;       /* texts */
    char bytes[];        /* each text has the offset of its copy in front */
};

static backlog_block *new_block(backlog *b, size_t size) {
    backlog_block *k = cp_alloc(sizeof *k + size);
    k->size = (uint32_t)size;
    b->held += sizeof *k + size;
    return k;
}

static backlog_block *with_room(backlog *b, size_t need) {
    if (need > SHARED_MOST) return new_block(b, need);
    if (!b->open || b->open->size - b->open->used < need) b->open = new_block(b, BLOCK - sizeof *b->open);
    return b->open;
}

char *backlog_add(backlog *b, cp_str text) {
    uint32_t at;
    backlog_block *k = with_room(b, sizeof at + text.n);
    at = k->used + (uint32_t)sizeof at;
    memcpy(k->bytes + k->used, &at, sizeof at);
    if (text.n) memcpy(k->bytes + at, text.p, text.n);
    k->used = at + (uint32_t)text.n;
    k->live++;
    return k->bytes + at;
}

void backlog_del(backlog *b, char *text) {
    uint32_t at;
    memcpy(&at, text - sizeof at, sizeof at);
    backlog_block *k = CP_CONTAINER(text - at, backlog_block, bytes);
    if (--k->live) return;
    if (k == b->open) b->open = NULL;
    b->held -= sizeof *k + k->size;
    free(k);
}
