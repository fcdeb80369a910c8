#include "base/json.h"

#include "base/budget.h"
#include "base/utf8.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* ---- limits, before the parser allocates ----
 *
 * yyjson takes memory for every value: 32 MiB of `1,1,1…` would become 16 million of them. So structure is counted
 * first, in two steps: a fast count of openers and commas wherever they stand, which settles nearly every text; and
 * only where that is too many (it also counts what stands inside strings), an exact scan. */

struct shape {
    uint64_t opens, commas;
};

static inline bool is_open(char c) { return (c & ~0x20) == '['; } /* [ and {, which differ in one bit */

static struct shape count_anywhere(const char *p, const char *end) {
    struct shape s = {0};
#ifdef __SSE2__
    for (; end - p >= 16; p += 16) {
        __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
        __m128i folded = _mm_andnot_si128(_mm_set1_epi8(0x20), x);
        int opens = _mm_movemask_epi8(_mm_cmpeq_epi8(folded, _mm_set1_epi8('[')));
        int commas = _mm_movemask_epi8(_mm_cmpeq_epi8(x, _mm_set1_epi8(',')));
        if (opens) s.opens += (unsigned)__builtin_popcount((unsigned)opens);
        if (commas) s.commas += (unsigned)__builtin_popcount((unsigned)commas);
    }
#endif
    for (; p < end; p++) {
        s.opens += is_open(*p);
        s.commas += *p == ',';
    }
    return s;
}

/* p is behind the opening quote; returns behind the closing one, or end. */
static const char *skip_string(const char *p, const char *end) {
    for (;;) {
#ifdef __SSE2__
        for (; end - p >= 16; p += 16) {
            __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
            __m128i hit = _mm_or_si128(_mm_cmpeq_epi8(x, _mm_set1_epi8('"')), _mm_cmpeq_epi8(x, _mm_set1_epi8('\\')));
            int m = _mm_movemask_epi8(hit);
            if (!m) continue;
            p += __builtin_ctz((unsigned)m);
            break;
        }
#endif
        while (p < end && *p != '"' && *p != '\\') p++;
        if (p == end) return end;
        if (*p == '"') return p + 1;
        if (end - p < 2) return end;
        p += 2;
    }
}

static int too_large(const char *what, unsigned limit, cp_err *err) {
    return cp_fail(err, CP_E_PAYLOAD_TOO_LARGE, "JSON has more than %u %s", limit, what);
}

static int scan_exactly(const char *p, const char *end, cp_err *err) {
    uint64_t depth = 0, values = 1;
    while (p < end) {
        char c = *p++;
        if (c == '"') {
            p = skip_string(p, end);
        } else if (is_open(c)) {
            values++;
            if (++depth > CP_JSON_MAX_DEPTH) return too_large("levels of nesting", CP_JSON_MAX_DEPTH, err);
        } else if (c == ']' || c == '}') {
            if (depth) depth--;
        } else if (c == ',') {
            values++;
        }
        if (values > CP_JSON_MAX_VALUES) return too_large("values", CP_JSON_MAX_VALUES, err);
    }
    return 0;
}

/* Values: the root, and in each container one more than it has commas. */
static int check_limits(cp_str text, cp_err *err) {
    if (text.n <= CP_JSON_MAX_DEPTH) return 0;
    struct shape s = count_anywhere(text.p, text.p + text.n);
    if (s.opens <= CP_JSON_MAX_DEPTH && 1 + s.opens + s.commas <= CP_JSON_MAX_VALUES) return 0;
    return scan_exactly(text.p, text.p + text.n, err);
}

/* ---- memory of documents, counted in the memory budget for as long as they live ---- */

static void *counted_malloc(void *ctx, size_t n) {
    (void)ctx;
    if (cp_budget_reserve(CP_MEM_JSON, n, NULL) < 0) return NULL;
    void *p = malloc(n);
    if (p) cp_budget_force(CP_MEM_JSON, malloc_usable_size(p) - n);
    else cp_budget_release(CP_MEM_JSON, n);
    return p;
}

static void *counted_realloc(void *ctx, void *p, size_t old, size_t n) {
    (void)ctx, (void)old;
    size_t had = malloc_usable_size(p);
    if (n > had && cp_budget_reserve(CP_MEM_JSON, n - had, NULL) < 0) return NULL;
    void *q = realloc(p, n);
    if (n > had) cp_budget_release(CP_MEM_JSON, n - had);
    if (!q) return NULL;
    size_t has = malloc_usable_size(q);
    if (has > had) cp_budget_force(CP_MEM_JSON, has - had);
    else cp_budget_release(CP_MEM_JSON, had - has);
    return q;
}

static void counted_free(void *ctx, void *p) {
    (void)ctx;
    if (p) cp_budget_release(CP_MEM_JSON, malloc_usable_size(p));
    free(p);
}

static const yyjson_alc counted = {counted_malloc, counted_realloc, counted_free, NULL};

yyjson_doc *cp_json_parse(cp_str text, cp_err *err) {
    yyjson_doc *doc = cp_json_read(text, err);
    if (!doc || cp_json_unique(doc, err) == 0) return doc;
    yyjson_doc_free(doc);
    return NULL;
}

yyjson_doc *cp_json_read(cp_str text, cp_err *err) {
    yyjson_doc *doc = cp_json_parse_with(text, &counted, err);
    if (!doc && err && err->code == CP_E_INTERNAL_ERROR)
        cp_fail(err, CP_E_LIMIT_EXCEEDED,
                "the memory budget (--memory-budget) has no room for %zu bytes of JSON once they are parsed", text.n);
    return doc;
}

yyjson_doc *cp_json_parse_with(cp_str text, const yyjson_alc *alc, cp_err *err) {
    if (text.n == 0) {
        cp_fail(err, CP_E_PARSE_ERROR, "empty text, at position 0");
        return NULL;
    }
    if (check_limits(text, err) < 0) return NULL;
    yyjson_read_err why;
    char *unchanged = (char *)(uintptr_t)text.p; /* not const in the declaration; written to only with READ_INSITU */
    yyjson_doc *doc = yyjson_read_opts(unchanged, text.n, YYJSON_READ_NOFLAG, alc, &why);
    if (!doc && why.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION)
        cp_fail(err, CP_E_INTERNAL_ERROR, "not enough memory for the JSON text");
    else if (!doc) cp_fail(err, CP_E_PARSE_ERROR, "%s, at position %zu", why.msg, why.pos);
    return doc;
}

/* ---- keys that stand twice ---- */

typedef struct key_ref {
    uint64_t hash;
    yyjson_val *key;
} key_ref;

static uint64_t hash_of(yyjson_val *key) {
    const char *p = unsafe_yyjson_get_str(key);
    uint64_t h = unsafe_yyjson_get_len(key);
    for (size_t i = 0, n = h; i < n; i++) h = (h ^ (uint8_t)p[i]) * 1099511628211u;
    return h;
}

static int compare_text(yyjson_val *a, yyjson_val *b) {
    size_t n = unsafe_yyjson_get_len(a), m = unsafe_yyjson_get_len(b);
    return n != m ? (n < m ? -1 : 1) : memcmp(unsafe_yyjson_get_str(a), unsafe_yyjson_get_str(b), n);
}

/* The hash only saves most of the comparing: who makes keys that collide gains nothing. */
static int compare_keys(const void *a, const void *b) {
    const key_ref *x = a, *y = b;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    return compare_text(x->key, y->key);
}

static int twice(yyjson_val *key, cp_err *err) {
    enum { SHOWN = 60 };
    size_t n = yyjson_get_len(key);
    char name[SHOWN + 4];
    size_t shown = n <= SHOWN ? n : cp_utf8_prefix(yyjson_get_str(key), SHOWN);
    snprintf(name, sizeof name, "%.*s%s", (int)shown, yyjson_get_str(key), n > SHOWN ? "..." : "");
    return cp_fail_field(err, name, "the key \"%s\" stands twice in one object", name);
}

static int unique_among_many(yyjson_val *obj, size_t n, cp_err *err) {
    key_ref *refs = counted_malloc(NULL, n * sizeof *refs);
    if (!refs) return cp_fail(err, CP_E_LIMIT_EXCEEDED, "the memory budget has no room to look at %zu JSON keys", n);
    size_t i, max;
    yyjson_val *key, *val, *found = NULL;
    yyjson_obj_foreach(obj, i, max, key, val) {
        (void)val;
        refs[i] = (key_ref){hash_of(key), key};
    }
    qsort(refs, n, sizeof *refs, compare_keys);
    for (i = 1; i < n && !found; i++)
        if (compare_keys(&refs[i - 1], &refs[i]) == 0) found = refs[i].key;
    counted_free(NULL, refs);
    return found ? twice(found, err) : 0;
}

static int unique_keys(yyjson_val *obj, cp_err *err) {
    enum { FEW = 16 };
    yyjson_val *keys[FEW], *key, *val;
    size_t i, n = yyjson_obj_size(obj);
    if (n > FEW) return unique_among_many(obj, n, err);
    yyjson_obj_foreach(obj, i, n, key, val) {
        (void)val;
        for (size_t k = 0; k < i; k++)
            if (compare_text(keys[k], key) == 0) return twice(key, err);
        keys[i] = key;
    }
    return 0;
}

/* The values of a document lie one behind the other, the root first: no recursion. */
int cp_json_unique(yyjson_doc *doc, cp_err *err) {
    yyjson_val *root = yyjson_doc_get_root(doc);
    size_t n = yyjson_doc_get_val_count(doc);
    for (size_t i = 0; i < n; i++)
        if (yyjson_is_obj(root + i) && unique_keys(root + i, err) < 0) return -1;
    return 0;
}

/* ---- typed getters ---- */

static yyjson_val *get(yyjson_val *obj, const char *key) {
    yyjson_val *v = yyjson_obj_get(obj, key);
    return yyjson_is_null(v) ? NULL : v;
}

int cp_json_str(yyjson_val *obj, const char *key, bool required, cp_str *out, cp_err *err) {
    yyjson_val *v = get(obj, key);
    if (!v) return required ? cp_fail_field(err, key, "%s is required", key) : 0;
    if (!yyjson_is_str(v)) return cp_fail_field(err, key, "%s must be a string", key);
    *out = (cp_str){yyjson_get_str(v), yyjson_get_len(v)};
    return 0;
}

int cp_json_bool(yyjson_val *obj, const char *key, bool *out, cp_err *err) {
    yyjson_val *v = get(obj, key);
    if (!v) return 0;
    if (!yyjson_is_bool(v)) return cp_fail_field(err, key, "%s must be true or false", key);
    *out = yyjson_get_bool(v);
    return 0;
}

/* false: not a whole number, or one that int64_t cannot hold. */
static bool whole(yyjson_val *v, int64_t *out) {
    if (yyjson_is_sint(v)) {
        *out = yyjson_get_sint(v);
        return true;
    }
    if (yyjson_is_uint(v)) {
        *out = (int64_t)yyjson_get_uint(v);
        return *out >= 0;
    }
    double d = yyjson_get_real(v);
    if (!yyjson_is_real(v) || !(d >= -0x1p63 && d < 0x1p63)) return false;
    *out = (int64_t)d;
    return (double)*out == d;
}

int cp_json_int(yyjson_val *obj, const char *key, int64_t min, int64_t max, int64_t *out, cp_err *err) {
    yyjson_val *v = get(obj, key);
    if (!v) return 0;
    if (!yyjson_is_num(v)) return cp_fail_field(err, key, "%s must be a number", key);
    int64_t i;
    if (!whole(v, &i) || i < min || i > max)
        return cp_fail_field(err, key, "%s must be a whole number from %lld to %lld", key, (long long)min,
                             (long long)max);
    *out = i;
    return 0;
}

int cp_json_obj(yyjson_val *obj, const char *key, yyjson_val **out, cp_err *err) {
    yyjson_val *v = get(obj, key);
    if (!v) return 0;
    if (!yyjson_is_obj(v)) return cp_fail_field(err, key, "%s must be an object", key);
    *out = v;
    return 0;
}

int cp_json_arr(yyjson_val *obj, const char *key, yyjson_val **out, cp_err *err) {
    yyjson_val *v = get(obj, key);
    if (!v) return 0;
    if (!yyjson_is_arr(v)) return cp_fail_field(err, key, "%s must be an array", key);
    *out = v;
    return 0;
}

static int not_one_of(const char *key, const char *const words[], cp_err *err) {
    cp_autobuf cp_buf list = {0};
    for (int i = 0; words[i]; i++) cp_buf_addf(&list, "%s%s", i ? ", " : "", words[i]);
    return cp_fail_field(err, key, "%s must be one of: %s", key, cp_buf_z(&list));
}

int cp_json_enum(yyjson_val *obj, const char *key, const char *const words[], int *out, cp_err *err) {
    yyjson_val *v = get(obj, key);
    if (!v) return 0;
    for (int i = 0; words[i]; i++) {
        if (!yyjson_equals_str(v, words[i])) continue;
        *out = i;
        return 0;
    }
    return not_one_of(key, words, err);
}

int cp_json_only(yyjson_val *obj, const char *const keys[], cp_err *err) {
    size_t i, n;
    yyjson_val *key, *val;
    yyjson_obj_foreach(obj, i, n, key, val) {
        (void)val;
        int k = 0;
        while (keys[k] && !yyjson_equals_str(key, keys[k])) k++;
        if (!keys[k]) return cp_fail_field(err, yyjson_get_str(key), "unknown field");
    }
    return 0;
}
