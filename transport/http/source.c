#include "transport/http/source.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/id.h"

enum { BUCKETS = 1024 };

struct cp_source_count {
    cp_source_count *next;
    uint64_t key[2];
    _Atomic unsigned n; /* changed under mu */
};

struct cp_sources {
    pthread_mutex_t mu;
    uint64_t seed; /* so that nobody can choose addresses that fall into one bucket */
    cp_source_count *buckets[BUCKETS];
    cp_source_count *unused; /* kept: who compares counts may still look at one */
};

static void free_list(cp_source_count *c) {
    while (c) {
        cp_source_count *next = c->next;
        free(c);
        c = next;
    }
}

cp_sources *cp_sources_new(void) {
    cp_sources *s = cp_new(cp_sources);
    pthread_mutex_init(&s->mu, NULL);
    cp_random(&s->seed, sizeof s->seed);
    return s;
}

void cp_sources_free(cp_sources *s) {
    if (!s) return;
    for (size_t i = 0; i < BUCKETS; i++) free_list(s->buckets[i]);
    free_list(s->unused);
    pthread_mutex_destroy(&s->mu);
    free(s);
}

/* A host of IPv6 has a /64 of its own, mostly: whoever has one can have any address in it. */
static void key_of(const struct sockaddr_storage *addr, uint64_t key[2]) {
    key[0] = key[1] = 0;
    if (addr->ss_family == AF_INET) {
        key[1] = 1 + (uint64_t)((const struct sockaddr_in *)addr)->sin_addr.s_addr;
    } else if (addr->ss_family == AF_INET6) {
        const struct in6_addr *a = &((const struct sockaddr_in6 *)addr)->sin6_addr;
        uint32_t v4;
        memcpy(&v4, a->s6_addr + 12, sizeof v4);
        if (IN6_IS_ADDR_V4MAPPED(a)) key[1] = 1 + (uint64_t)v4;
        else memcpy(&key[0], a->s6_addr, sizeof key[0]);
    }
}

static cp_source_count **bucket_of(cp_sources *s, const uint64_t key[2]) {
    uint64_t h = (key[0] ^ s->seed) * UINT64_C(0x9e3779b97f4a7c15);
    h = (h ^ h >> 29 ^ key[1]) * UINT64_C(0xbf58476d1ce4e5b9);
    return &s->buckets[(h ^ h >> 32) % BUCKETS];
}

static cp_source_count *new_count(cp_sources *s) {
    cp_source_count *c = s->unused;
    if (!c) return calloc(1, sizeof *c);
    s->unused = c->next;
    return c;
}

cp_source_count *cp_source_add(cp_sources *s, const struct sockaddr_storage *addr, unsigned most) {
    uint64_t key[2];
    key_of(addr, key);
    pthread_mutex_lock(&s->mu);
    cp_source_count **at = bucket_of(s, key), *c = *at;
    while (c && memcmp(c->key, key, sizeof key) != 0) c = c->next;
    if (!c && (c = new_count(s))) {
        memcpy(c->key, key, sizeof key);
        c->next = *at;
        *at = c;
    }
    if (c && most && c->n >= most) c = NULL;
    if (c) c->n++;
    pthread_mutex_unlock(&s->mu);
    return c;
}

void cp_source_drop(cp_sources *s, cp_source_count *c) {
    if (!c) return;
    pthread_mutex_lock(&s->mu);
    if (--c->n == 0) {
        cp_source_count **at = bucket_of(s, c->key);
        while (*at != c) at = &(*at)->next;
        *at = c->next;
        c->next = s->unused;
        s->unused = c;
    }
    pthread_mutex_unlock(&s->mu);
}

unsigned cp_source_now(const cp_source_count *c) { return c ? atomic_load_explicit(&c->n, memory_order_relaxed) : 0; }
