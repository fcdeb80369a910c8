/* Edits of text, against one that goes byte by byte. Input: a byte of how, lengths of `old` and `with`, the three
 * texts. */
#include <stdlib.h>

#include "services/files_edit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok) {
    if (!ok) abort();
}

static bool here(cp_str text, size_t at, cp_str what) {
    return text.n - at >= what.n && memcmp(text.p + at, what.p, what.n) == 0;
}

static int64_t slow_edit(cp_str text, const cp_edit *e, cp_buf *out) {
    size_t places = 0;
    int64_t n = 0;
    for (size_t i = 0; i < text.n; i++) places += here(text, i, e->old);
    if (!places) return 0;
    if (places > 1 && !e->all) return 2;
    for (size_t i = 0; i < text.n;) {
        if (here(text, i, e->old)) {
            cp_buf_add(out, e->with.p, e->with.n);
            i += e->old.n;
            n++;
        } else {
            cp_buf_addc(out, text.p[i++]);
        }
    }
    return n;
}

static cp_str cut(cp_str *rest, size_t n) {
    cp_str s = {rest->p, n < rest->n ? n : rest->n};
    *rest = (cp_str){rest->p + s.n, rest->n - s.n};
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 4) return 0;
    cp_str rest = {(const char *)data + 3, size - 3};
    cp_edit e = {.all = data[0] & 1};
    e.old = cut(&rest, 1 + data[1] % 8);
    e.with = cut(&rest, data[2] % 16);
    size_t max = data[0] & 2 ? data[0] >> 2 : SIZE_MAX / 2;
    cp_autobuf cp_buf fast = {0}, slow = {0};
    cp_buf_addz(&fast, "kept");
    int64_t want = slow_edit(rest, &e, &slow), got = cp_edit_text(rest, &e, max, &fast);
    bool changed = want == 1 || (e.all && want > 0);
    if (changed && slow.n > max) {
        require(got == -1 && fast.n == 4);
        return 0;
    }
    require(got == want && fast.n == 4 + (changed ? slow.n : 0) && memcmp(fast.p, "kept", 4) == 0);
    if (changed && slow.n) require(memcmp(fast.p + 4, slow.p, slow.n) == 0);
    return 0;
}
