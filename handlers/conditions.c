#include "handlers/conditions.h"

#include <string.h>
#include <strings.h>

bool cp_etag_listed(cp_str list, const char *etag, bool weak) {
    while (list.n) {
        const char *comma = memchr(list.p, ',', list.n); /* ours hold none */
        cp_str tag = {list.p, comma ? (size_t)(comma - list.p) : list.n};
        list.p += tag.n + (comma != NULL);
        list.n -= tag.n + (comma != NULL);
        tag = cp_str_trim(tag);
        if (weak && cp_str_starts(tag, CP_STR("W/"))) tag.p += 2, tag.n -= 2;
        if (cp_str_is(tag, "*") || cp_str_is(tag, etag)) return true;
    }
    return false;
}

cp_range_kind cp_range_parse(cp_str h, uint64_t size, uint64_t *from, uint64_t *len) {
    uint64_t a = 0, b = 0;
    if (h.n < 6 || strncasecmp(h.p, "bytes=", 6) != 0) return CP_RANGE_NONE;
    h = cp_str_trim((cp_str){h.p + 6, h.n - 6});
    const char *dash = h.n ? memchr(h.p, '-', h.n) : NULL;
    if (!dash || memchr(h.p, ',', h.n)) return CP_RANGE_NONE;
    cp_str first = {h.p, (size_t)(dash - h.p)}, last = {dash + 1, h.n - first.n - 1};
    if ((first.n && !cp_str_u64(first, UINT64_MAX, &a)) || (last.n && !cp_str_u64(last, UINT64_MAX, &b)))
        return CP_RANGE_NONE;
    if (!first.n && !last.n) return CP_RANGE_NONE;
    if (!first.n) { /* the last b bytes */
        if (!b || !size) return CP_RANGE_BAD;
        *len = b < size ? b : size;
        *from = size - *len;
        return CP_RANGE_ONE;
    }
    if (last.n && b < a) return CP_RANGE_NONE;
    if (a >= size) return CP_RANGE_BAD;
    *from = a;
    *len = last.n && b < size ? b - a + 1 : size - a;
    return CP_RANGE_ONE;
}
