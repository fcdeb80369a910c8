/* The incremental validator, cut anywhere, says the same as the one that sees everything. */
#include <stdlib.h>

#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok) {
    if (!ok) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    const char *p = (const char *)data + 1;
    size_t n = size - 1, cut = n ? data[0] % (n + 1) : 0;

    bool valid = cp_utf8_valid(p, n);
    cp_utf8 u = {0};
    bool fed = cp_utf8_feed(&u, p, cut);
    fed = cp_utf8_feed(&u, p + cut, n - cut) && fed;
    require(valid == (fed && cp_utf8_complete(&u)));

    size_t prefix = cp_utf8_prefix(p, n), tail = cp_utf8_tail(p, n);
    require(prefix <= n && tail <= 3 && tail <= n);
    require(cp_utf8_valid(p, prefix));
    require(!fed || prefix + tail == n); /* unfinished, but not wrong: all that is missing is the tail */

    for (size_t i = 0; i < n;) {
        bool ok;
        size_t len = cp_utf8_next(p + i, n - i, &ok);
        require(len >= 1 && len <= 4 && len <= n - i);
        require(ok == cp_utf8_valid(p + i, len));
        i += len;
    }
    return 0;
}
