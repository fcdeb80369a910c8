/* What is read as an archive, cut anywhere, is the same as in one piece; entries get exactly the bytes that they were
 * promised; and no size that is claimed takes memory. */
#include <stdlib.h>

#include "services/tar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok) {
    if (!ok) abort();
}

typedef struct sums {
    uint64_t hash, left;
    bool open;
} sums;

static void mix(sums *s, const void *p, size_t n) {
    const unsigned char *c = p;
    for (size_t i = 0; i < n; i++) s->hash = (s->hash ^ c[i]) * UINT64_C(1099511628211);
}

static int on_entry(void *arg, const cp_tar_entry *e, cp_err *err) {
    (void)err;
    sums *s = arg;
    require(!s->open);
    s->open = true;
    s->left = e->size;
    mix(s, e->path, strlen(e->path) + 1);
    mix(s, e->link, strlen(e->link) + 1);
    mix(s, &e->size, sizeof e->size);
    return 0;
}

static int on_data(void *arg, cp_str bytes, cp_err *err) {
    (void)err;
    sums *s = arg;
    require(s->open && bytes.n <= s->left);
    s->left -= bytes.n;
    mix(s, bytes.p, bytes.n);
    return 0;
}

static int on_end(void *arg, cp_err *err) {
    (void)err;
    sums *s = arg;
    require(s->open && s->left == 0);
    s->open = false;
    return 0;
}

static bool read_all(const char *p, size_t n, size_t piece, sums *s) {
    static const cp_untar_ops ops = {.entry = on_entry, .data = on_data, .entry_end = on_end};
    cp_untar u = {.ops = &ops, .arg = s};
    bool ok = true;
    for (size_t at = 0; ok && at < n; at += piece)
        ok = cp_untar_feed(&u, (cp_str){p + at, n - at < piece ? n - at : piece}, NULL) == 0;
    ok = ok && cp_untar_finish(&u, NULL) == 0;
    require(!ok || !s->open);
    require(u.meta.cap + u.path.cap + u.link.cap < 8 * CP_TAR_META_MAX);
    cp_untar_free(&u);
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    const char *p = (const char *)data + 1;
    size_t n = size - 1;
    sums whole = {0}, parts = {0};
    bool ok = read_all(p, n, n ? n : 1, &whole);
    require(ok == read_all(p, n, 1 + data[0], &parts));
    require(whole.hash == parts.hash);
    return 0;
}
