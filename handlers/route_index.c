/* Exact paths are in a hash table. The few patterns with {…} are tried one after another, the longest literal beginning
 * first: most are told apart by one comparison of their beginning. */
#include "handlers/route_index.h"

#include <stdlib.h>
#include <string.h>

typedef struct pattern {
    cp_str text;
    size_t prefix;                  /* bytes before the first '{'; the whole text when exact */
    int16_t route[CP_METHOD_COUNT]; /* -1: not served */
} pattern;

struct cp_route_index {
    const cp_route **routes;
    size_t nroutes;
    pattern *patterns; /* those with {…} come first, sorted */
    size_t npatterns, nvariable;
    int16_t *slots; /* exact ones, by hash: pattern number, -1 empty */
    uint32_t mask;
};

static uint32_t hash(cp_str s) { /* FNV-1a */
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < s.n; i++) h = (h ^ (uint8_t)s.p[i]) * 16777619u;
    return h ^ h >> 15;
}

static pattern *pattern_of(cp_route_index *x, cp_str text) {
    for (size_t i = 0; i < x->npatterns; i++)
        if (cp_str_eq(x->patterns[i].text, text)) return &x->patterns[i];
    pattern *p = &x->patterns[x->npatterns++];
    const char *brace = memchr(text.p, '{', text.n);
    p->text = text;
    p->prefix = brace ? (size_t)(brace - text.p) : text.n;
    memset(p->route, -1, sizeof p->route);
    return p;
}

static bool well_formed(cp_str t) {
    unsigned params = 0;
    if (!t.n || t.p[0] != '/') return false;
    for (size_t i = 0; i < t.n; i++) {
        if (t.p[i] != '{') continue;
        while (i < t.n && t.p[i] != '}') i++;
        if (++params > CP_MAX_PARAMS || i == t.n || (i + 1 < t.n && t.p[i + 1] != '/')) return false;
    }
    return true;
}

static int add_route(cp_route_index *x, const cp_route *r, cp_err *err) {
    cp_str text = cp_str_of(r->pattern);
    if (!well_formed(text)) return cp_fail(err, CP_E_INTERNAL_ERROR, "route pattern %s is malformed", r->pattern);
    if ((int)r->method < 0 || r->method >= CP_METHOD_COUNT)
        return cp_fail(err, CP_E_INTERNAL_ERROR, "route %s has no method", r->pattern);
    pattern *p = pattern_of(x, text);
    if (p->route[r->method] >= 0) return cp_fail(err, CP_E_INTERNAL_ERROR, "two routes serve %s", r->pattern);
    p->route[r->method] = (int16_t)x->nroutes;
    x->routes[x->nroutes++] = r;
    return 0;
}

static int variable_first(const void *va, const void *vb) {
    const pattern *a = va, *b = vb;
    bool av = a->prefix < a->text.n, bv = b->prefix < b->text.n;
    if (av != bv) return av ? -1 : 1;
    if (a->prefix != b->prefix) return a->prefix > b->prefix ? -1 : 1;
    return a->text.n > b->text.n ? -1 : a->text.n < b->text.n;
}

static void index_exact(cp_route_index *x) {
    uint32_t size = 16;
    while (size < 2 * x->npatterns) size *= 2;
    x->mask = size - 1;
    x->slots = cp_alloc(size * sizeof *x->slots);
    memset(x->slots, -1, size * sizeof *x->slots);
    for (size_t i = x->nvariable; i < x->npatterns; i++) {
        uint32_t at = hash(x->patterns[i].text) & x->mask;
        while (x->slots[at] >= 0) at = (at + 1) & x->mask;
        x->slots[at] = (int16_t)i;
    }
}

cp_route_index *cp_route_index_new(const cp_route *const *tables, const size_t *counts, size_t ntables, cp_err *err) {
    cp_route_index *x = cp_new(cp_route_index);
    size_t total = 0;
    for (size_t t = 0; t < ntables; t++) total += counts[t];
    x->routes = cp_alloc(total * sizeof *x->routes);
    x->patterns = cp_alloc(total * sizeof *x->patterns);
    for (size_t t = 0; t < ntables; t++) {
        for (size_t i = 0; i < counts[t]; i++) {
            if (add_route(x, &tables[t][i], err) == 0) continue;
            cp_route_index_free(x);
            return NULL;
        }
    }
    qsort(x->patterns, x->npatterns, sizeof *x->patterns, variable_first);
    while (x->nvariable < x->npatterns && x->patterns[x->nvariable].prefix < x->patterns[x->nvariable].text.n)
        x->nvariable++;
    index_exact(x);
    return x;
}

void cp_route_index_free(cp_route_index *x) {
    if (!x) return;
    free(x->routes);
    free(x->patterns);
    free(x->slots);
    free(x);
}

size_t cp_route_index_count(const cp_route_index *x) { return x->nroutes; }
const cp_route *cp_route_index_at(const cp_route_index *x, size_t i) { return x->routes[i]; }

static const pattern *find_exact(const cp_route_index *x, cp_str path) {
    for (uint32_t at = hash(path) & x->mask; x->slots[at] >= 0; at = (at + 1) & x->mask) {
        const pattern *p = &x->patterns[x->slots[at]];
        if (cp_str_eq(p->text, path)) return p;
    }
    return NULL;
}

static bool match_variable(const pattern *p, cp_str path, cp_str params[CP_MAX_PARAMS]) {
    size_t i = p->prefix, k = p->prefix, captured = 0;
    if (path.n <= p->prefix || memcmp(path.p, p->text.p, p->prefix) != 0) return false;
    while (i < p->text.n) {
        if (p->text.p[i] != '{') {
            if (k == path.n || path.p[k++] != p->text.p[i++]) return false;
            continue;
        }
        size_t from = k;
        while (k < path.n && path.p[k] != '/') k++;
        if (k == from) return false; /* a segment is not empty */
        params[captured++] = (cp_str){path.p + from, k - from};
        while (p->text.p[i++] != '}') continue;
    }
    return k == path.n;
}

int cp_route_index_find(const cp_route_index *x, cp_method method, cp_str path, cp_str params[CP_MAX_PARAMS]) {
    const pattern *exact = find_exact(x, path);
    if (exact && exact->route[method] >= 0) return exact->route[method];
    for (size_t i = 0; i < x->nvariable; i++) {
        const pattern *p = &x->patterns[i];
        if (p->route[method] >= 0 && match_variable(p, path, params)) return p->route[method];
    }
    return -1;
}

static unsigned method_bits(const pattern *p) {
    unsigned bits = 0;
    for (unsigned m = 0; m < CP_METHOD_COUNT; m++)
        if (p->route[m] >= 0) bits |= 1u << m;
    return bits;
}

unsigned cp_route_index_methods(const cp_route_index *x, cp_str path) {
    cp_str params[CP_MAX_PARAMS];
    const pattern *exact = find_exact(x, path);
    unsigned bits = exact ? method_bits(exact) : 0;
    for (size_t i = 0; i < x->nvariable; i++)
        if (match_variable(&x->patterns[i], path, params)) bits |= method_bits(&x->patterns[i]);
    return bits;
}
