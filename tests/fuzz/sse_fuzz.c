/* The same events, whole and cut anywhere; each event's text ends where it says. */
#include "transport/client/client_impl.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok) {
    if (!ok) abort();
}

static void note(void *arg, const conflux_event *ev) {
    cp_buf *b = arg;
    require(ev->data[ev->len] == '\0');
    cp_buf_addf(b, "%s|%zu|", ev->id ? ev->id : "-", ev->len);
    cp_buf_add(b, ev->data, ev->len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    const char *p = (const char *)data + 1;
    size_t n = size - 1, cut = n ? data[0] % (n + 1) : 0;
    cp_autobuf cp_buf whole = {0}, pieces = {0};
    sse a, b;
    sse_init(&a, SIZE_MAX, note, &whole);
    sse_init(&b, SIZE_MAX, note, &pieces);
    require(sse_feed(&a, p, n) == 0);
    require(sse_feed(&b, p, cut) == 0 && sse_feed(&b, p + cut, n - cut) == 0);
    require(cp_str_eq(cp_buf_str(&whole), cp_buf_str(&pieces)));
    sse_fini(&a);
    sse_fini(&b);
    return 0;
}
