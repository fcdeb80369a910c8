/* A chunked body: whatever the pieces in which it comes, and whatever room there is for its content, the same content
 * and the same verdict, and never a byte more than came. The first byte of the input is the size of the pieces, the
 * second the room. */
#include <stdlib.h>

#include "base/buf.h"
#include "transport/http/chunk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok) {
    if (!ok) abort();
}

/* The verdict: -1 malformed, 1 ended, 0 more is needed; *used bytes of p. */
static int decode(const char *p, size_t n, size_t piece, size_t room, cp_buf *out, size_t *used) {
    cp_chunks c = {0};
    *used = 0;
    char small[256];
    for (size_t end = 0; !c.ended && (*used < end || end < n);) {
        size_t step = 0;
        if (*used == end) end = end + piece < n ? end + piece : n;
        ptrdiff_t got = cp_chunks_read(&c, p + *used, end - *used, small, room, &step);
        if (got < 0) return -1;
        require((size_t)got <= room && step <= end - *used && (step > 0 || got > 0));
        cp_buf_add(out, small, (size_t)got);
        *used += step;
    }
    return c.ended;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2 || size > 65536) return 0;
    const char *p = (const char *)data + 2;
    size_t n = size - 2, used, used_slow;
    cp_autobuf cp_buf fast = {0}, slow = {0};
    int rc = decode(p, n, n ? n : 1, 256, &fast, &used);
    int rc_slow = decode(p, n, data[0] + 1u, (data[1] % 256u) + 1, &slow, &used_slow);
    require(rc == rc_slow && fast.n <= n);
    require(rc < 0 || (used == used_slow && cp_str_eq(cp_buf_str(&fast), cp_buf_str(&slow))));
    return 0;
}
