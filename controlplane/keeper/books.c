#include "keeper/core.h"

#include "base/fd.h"

#include <stdlib.h>

static unsigned tag_bucket(uint64_t tag) { return (unsigned)(tag % BUCKETS); }
static unsigned pid_bucket(pid_t pid) { return (unsigned)pid % BUCKETS; }

static unsigned key_bucket(cp_str key) { /* FNV-1a */
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < key.n; i++) h = (h ^ (unsigned char)key.p[i]) * 16777619u;
    return h % BUCKETS;
}

static unsigned mark_bucket(uint64_t spawn) { return (unsigned)(spawn % BUCKETS); }

void books_init(books *b) {
    memset(b, 0, sizeof *b);
    TAILQ_INIT(&b->all);
}

void books_free(books *b) {
    for (child *c; (c = TAILQ_FIRST(&b->all));) books_remove(b, c);
}

child *books_add(books *b, uint64_t tag, const cp_mark *mark, cp_str key) {
    child *c = calloc(1, sizeof *c);
    char *own_key = key.n && c ? malloc(key.n + 1) : NULL;
    if (!c || (key.n && !own_key)) {
        free(c);
        return NULL;
    }
    c->tag = tag;
    for (int i = 0; i < 3; i++) c->hold[i] = -1;
    LIST_INSERT_HEAD(&b->by_tag[tag_bucket(tag)], c, by_tag);
    c->mark = *mark;
    LIST_INSERT_HEAD(&b->by_mark[mark_bucket(mark->spawn)], c, by_mark);
    if (key.n) {
        memcpy(own_key, key.p, key.n);
        own_key[key.n] = '\0';
        c->key = own_key;
        LIST_INSERT_HEAD(&b->by_key[key_bucket(key)], c, by_key);
    }
    TAILQ_INSERT_TAIL(&b->all, c, all);
    b->count++;
    return c;
}

void books_set_pid(books *b, child *c, pid_t pid) {
    c->pid = pid;
    LIST_INSERT_HEAD(&b->by_pid[pid_bucket(pid)], c, by_pid);
}

void books_no_pid(books *b, child *c) {
    (void)b;
    LIST_REMOVE(c, by_pid);
    c->pid = 0;
}

void books_disown(books *b, child *c) {
    (void)b;
    for (int i = 0; i < 3; i++) cp_close(&c->hold[i]);
    if (c->key) LIST_REMOVE(c, by_key);
    free(cp_take(c->key));
    c->acked = true;
}

void books_exited(books *b, child *c, const cp_exit *x) {
    (void)b;
    c->exited = true;
    c->exit = *x;
    LIST_REMOVE(c, by_pid);
}

void books_remove(books *b, child *c) {
    if (c->start) c->start->child = NULL;
    if (b->telling == c) b->telling = TAILQ_NEXT(c, all);
    if (c->adopt_by) b->adopting--;
    if (c->pid && !c->exited) LIST_REMOVE(c, by_pid);
    if (c->key) LIST_REMOVE(c, by_key);
    LIST_REMOVE(c, by_mark);
    LIST_REMOVE(c, by_tag);
    TAILQ_REMOVE(&b->all, c, all);
    b->count--;
    for (int i = 0; i < 3; i++) cp_close(&c->hold[i]);
    free(c->key);
    free(c);
}

child *books_by_tag(books *b, uint64_t tag) {
    child *c;
    LIST_FOREACH(c, &b->by_tag[tag_bucket(tag)], by_tag)
    if (c->tag == tag) return c;
    return NULL;
}

child *books_by_pid(books *b, pid_t pid) {
    child *c;
    LIST_FOREACH(c, &b->by_pid[pid_bucket(pid)], by_pid)
    if (c->pid == pid) return c;
    return NULL;
}

child *books_by_key(books *b, cp_str key) {
    child *c;
    LIST_FOREACH(c, &b->by_key[key_bucket(key)], by_key)
    if (cp_str_is(key, c->key)) return c;
    return NULL;
}

child *books_by_mark(books *b, const cp_mark *m) {
    child *c, *spawned = NULL;
    LIST_FOREACH(c, &b->by_mark[mark_bucket(m->spawn)], by_mark) {
        if (!m->spawn || c->mark.spawn != m->spawn) continue;
        if (c->mark.command == m->command) return c;
        if (!c->mark.command) spawned = c;
    }
    return spawned;
}
