/* A request target: which route serves it, with which captures, what its query says. Each is compared with a slower way
 * of telling. Input: one byte for the method, then path?query. */
#include <stdio.h>
#include <stdlib.h>

#include "handlers/route_index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok) {
    if (!ok) abort();
}

static const cp_route routes[] = {
    {.method = CP_GET, .pattern = "/"},
    {.method = CP_GET, .pattern = "/api/list"},
    {.method = CP_POST, .pattern = "/api/list"},
    {.method = CP_GET, .pattern = "/api/process/{id}"},
    {.method = CP_DELETE, .pattern = "/api/process/{id}"},
    {.method = CP_DELETE, .pattern = "/api/process/kill-all"},
    {.method = CP_GET, .pattern = "/api/process/{id}/logs"},
    {.method = CP_POST, .pattern = "/api/process/{id}/x/{other}"},
    {.method = CP_GET, .pattern = "/api/{family}/list"},
    {.method = CP_PUT, .pattern = "/{a}/{b}"},
};

static const cp_route_index *index_of_routes(void) {
    static cp_route_index *x;
    const cp_route *tables[] = {routes};
    size_t counts[] = {CP_COUNT(routes)};
    if (!x) x = cp_route_index_new(tables, counts, 1, NULL);
    require(x != NULL);
    return x;
}

/* ---- the route, segment by segment ---- */

static cp_str segment(cp_str *rest) {
    cp_str s = {rest->p, 0};
    while (s.n < rest->n && rest->p[s.n] != '/') s.n++;
    *rest = (cp_str){rest->p + s.n, rest->n - s.n};
    return s;
}

static bool fits(cp_str pattern, cp_str path, cp_str params[CP_MAX_PARAMS], bool *exact) {
    size_t n = 0;
    *exact = true;
    while (pattern.n && path.n) {
        if (*pattern.p != '/' || *path.p != '/') return false;
        pattern.p++, pattern.n--, path.p++, path.n--;
        cp_str want = segment(&pattern), have = segment(&path);
        if (want.n && *want.p == '{') {
            if (!have.n) return false;
            *exact = false;
            params[n++] = have;
        } else if (!cp_str_eq(want, have)) {
            return false;
        }
    }
    return pattern.n == path.n;
}

static size_t literal(const char *pattern) { return strcspn(pattern, "{"); }

/* The one that an exact path has, else that with the longest literal beginning, the longer pattern first. */
static int slow_find(cp_method method, cp_str path, cp_str params[CP_MAX_PARAMS]) {
    int best = -1;
    bool best_exact = false;
    for (size_t i = 0; i < CP_COUNT(routes); i++) {
        bool exact, better;
        cp_str got[CP_MAX_PARAMS] = {{0}};
        const char *p = routes[i].pattern;
        if (routes[i].method != method || !fits(cp_str_of(p), path, got, &exact)) continue;
        if (best < 0 || exact != best_exact) {
            better = best < 0 || exact;
        } else {
            const char *b = routes[best].pattern;
            better = literal(p) > literal(b) || (literal(p) == literal(b) && strlen(p) > strlen(b));
        }
        if (!better) continue;
        best = (int)i;
        best_exact = exact;
        memcpy(params, got, sizeof got);
    }
    return best;
}

static void check_route(cp_method method, cp_str path) {
    cp_str got[CP_MAX_PARAMS] = {{0}}, want[CP_MAX_PARAMS] = {{0}};
    int n = cp_route_index_find(index_of_routes(), method, path, got);
    require(n == slow_find(method, path, want));
    if (n < 0) return;
    for (size_t i = 0; strchr(routes[n].pattern, '{') && i < CP_MAX_PARAMS; i++)
        require(!want[i].p || (got[i].p == want[i].p && got[i].n == want[i].n));
    require(cp_route_index_methods(index_of_routes(), path) & 1u << method);
}

/* ---- the query ---- */

static int digit(char c) {
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)((at - digits) % 16) : -1;
}

static bool slow_decode(cp_str raw, cp_buf *out) {
    while (raw.n) {
        size_t used = 1;
        int c = *raw.p == '+' ? ' ' : (unsigned char)*raw.p;
        if (c == '%') {
            if (raw.n < 3 || digit(raw.p[1]) < 0 || digit(raw.p[2]) < 0) return false;
            c = digit(raw.p[1]) * 16 + digit(raw.p[2]);
            used = 3;
        }
        if (c == 0) return false;
        cp_buf_addc(out, (char)c);
        raw.p += used;
        raw.n -= used;
    }
    return true;
}

static void check_decode(cp_str raw) {
    cp_autobuf cp_buf fast = {0}, slow = {0}, again = {0}, coded = {0};
    cp_buf_addz(&fast, "kept");
    bool ok = cp_query_decode(raw, &fast) == 0;
    require(ok == slow_decode(raw, &slow));
    require(fast.n == 4 + (ok ? slow.n : 0) && memcmp(fast.p, "kept", 4) == 0);
    if (!ok) return;
    require(slow.n == 0 || memcmp(fast.p + 4, slow.p, slow.n) == 0);
    for (size_t i = 0; i < slow.n; i++) cp_buf_addf(&coded, "%%%02x", (unsigned char)slow.p[i]);
    require(cp_query_decode(cp_buf_str(&coded), &again) == 0 && cp_str_eq(cp_buf_str(&again), cp_buf_str(&slow)));
}

/* The first value of a name, found by cutting at every '&'. */
static bool slow_query(cp_str q, const char *name, cp_str *value) {
    for (size_t from = 0, to; from <= q.n; from = to + 1) {
        for (to = from; to < q.n && q.p[to] != '&'; to++) continue;
        size_t eq = from;
        while (eq < to && q.p[eq] != '=') eq++;
        if (to == from || !cp_str_is((cp_str){q.p + from, eq - from}, name)) continue;
        *value = eq < to ? (cp_str){q.p + eq + 1, to - eq - 1} : (cp_str){q.p + to, 0};
        return true;
    }
    return false;
}

static void check_query(cp_str query) {
    static const char *const names[] = {"a", "path", "", "x", NULL};
    cp_request rq = {.query = query};
    cp_err err = {0};
    for (size_t i = 0; names[i]; i++) {
        cp_str fast = {0}, slow = {0};
        bool there = cp_request_query(&rq, names[i], &fast);
        require(there == slow_query(query, names[i], &slow));
        require(!there || (fast.n == slow.n && (!fast.n || fast.p == slow.p)));
        cp_autobuf cp_buf text = {0};
        uint64_t number = 77;
        int got = cp_request_param(&rq, names[i], &text, &err);
        require(got == 0 ? !there : got == 1 || err.code == CP_E_VALIDATION_FAILED);
        got = cp_request_param_u64(&rq, names[i], 1000, &number, &err);
        require(got == 1 ? number <= 1000 : number == 77);
    }
    if (cp_request_only(&rq, names, &err) < 0) require(err.msg[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    cp_str all = {(const char *)data + 1, size - 1};
    const char *mark = all.n ? memchr(all.p, '?', all.n) : NULL;
    cp_str path = {all.p, mark ? (size_t)(mark - all.p) : all.n};
    check_route((cp_method)(data[0] % CP_METHOD_COUNT), path);
    check_decode(path);
    if (mark) check_query((cp_str){mark + 1, all.n - path.n - 1});
    return 0;
}
