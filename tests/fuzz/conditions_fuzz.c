/* Range, If-Match and If-None-Match, against slower readings of RFC 9110. Input: 8 bytes of file size, the header's
 * value. */
#include "handlers/conditions.h"

#include <ctype.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ETAG "\"1-2\""

static void require(bool ok) {
    if (!ok) abort();
}

/* ---- Range ---- */

/* Digits off the front: -1 none, -2 more than 64 bits. */
static __int128 take_number(const char **p, const char *end) {
    __int128 n = -1;
    for (; *p < end && isdigit((unsigned char)**p); ++*p) {
        if (n < 0) n = 0;
        n = n * 10 + (**p - '0');
        if (n > UINT64_MAX) n = (__int128)1 << 100; /* stays above */
    }
    return n > UINT64_MAX ? -2 : n;
}

static cp_range_kind slow_range(cp_str h, uint64_t size, __int128 *first, __int128 *last) {
    static const char unit[] = "bytes=";
    const char *p = h.p, *end = h.p + h.n;
    for (size_t i = 0; i < 6; i++, p++)
        if (p == end || tolower((unsigned char)*p) != unit[i]) return CP_RANGE_NONE;
    while (p < end && strchr(" \t\r\n", *p) && *p) p++;
    while (p < end && strchr(" \t\r\n", end[-1]) && end[-1]) end--;
    __int128 a = take_number(&p, end);
    if (p == end || *p++ != '-') return CP_RANGE_NONE;
    __int128 b = take_number(&p, end);
    if (p != end || a == -2 || b == -2 || (a == -1 && b == -1) || (a >= 0 && b >= 0 && b < a)) return CP_RANGE_NONE;
    *first = a >= 0 ? a : b < size ? (__int128)size - b : 0;
    *last = a < 0 || b < 0 || b >= size ? (__int128)size - 1 : b;
    return *first > *last ? CP_RANGE_BAD : CP_RANGE_ONE;
}

static void check_range(cp_str h, uint64_t size) {
    uint64_t from = 0, len = 0;
    __int128 first = 0, last = 0;
    cp_range_kind kind = cp_range_parse(h, size, &from, &len);
    require(kind == slow_range(h, size, &first, &last));
    if (kind != CP_RANGE_ONE) return;
    require(len > 0 && from < size && len <= size - from);
    require(from == first && from + (len - 1) == last);
}

/* ---- lists of tags ---- */

static bool slow_listed(cp_str list, bool weak) {
    bool found = false;
    for (size_t from = 0, to; from < list.n; from = to + 1) {
        for (to = from; to < list.n && list.p[to] != ','; to++) continue;
        cp_str tag = cp_str_trim((cp_str){list.p + from, to - from});
        found |= cp_str_is(tag, "*") || cp_str_is(tag, ETAG);
        found |= weak && (cp_str_is(tag, "W/*") || cp_str_is(tag, "W/" ETAG));
    }
    return found;
}

static void check_tags(cp_str list) {
    bool strong = cp_etag_listed(list, ETAG, false), weak = cp_etag_listed(list, ETAG, true);
    require(strong == slow_listed(list, false) && weak == slow_listed(list, true));
    require(weak || !strong);
    cp_autobuf cp_buf longer = {0};
    cp_buf_add(&longer, list.p, list.n);
    cp_buf_addz(&longer, ", " ETAG);
    require(cp_etag_listed(cp_buf_str(&longer), ETAG, false));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint64_t length;
    if (size < sizeof length) return 0;
    memcpy(&length, data, sizeof length);
    cp_str value = {(const char *)data + sizeof length, size - sizeof length};
    check_range(value, length >> 1);    /* a file's size is signed */
    check_range(value, length & 0xfff); /* where numbers meet it */
    check_tags(value);
    return 0;
}
