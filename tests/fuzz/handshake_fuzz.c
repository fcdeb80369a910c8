/* The text as the head of a response (client) and of a request (server): no crash, and what is accepted is complete. */
#include "transport/handshake.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define KEY "dGhlIHNhbXBsZSBub25jZQ=="

static cp_str header(const void *ctx, const char *name, size_t index) {
    cp_str text = *(const cp_str *)ctx;
    for (const char *lf; text.n && (lf = memchr(text.p, '\n', text.n));) {
        cp_str line = {text.p, (size_t)(lf - text.p)};
        const char *colon = line.n ? memchr(line.p, ':', line.n) : NULL;
        text = (cp_str){lf + 1, text.n - line.n - 1};
        if (!colon || !cp_str_ieq((cp_str){line.p, (size_t)(colon - line.p)}, cp_str_of(name))) continue;
        if (index-- == 0) return (cp_str){colon + 1, (size_t)(lf - colon - 1)};
    }
    return (cp_str){0};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const cp_str supported[] = {{"stdio.v1", 8}, {"b", 1}};
    cp_str text = {(const char *)data, size}, protocol;
    cp_err err;
    if (cp_ws_check_response(text, KEY, &protocol, &err) == 0 &&
        !memmem(data, size, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", 28))
        abort();

    cp_ws_request rq = {CP_STR("GET"), CP_STR("1.1"), header, &text};
    cp_ws_verdict v;
    cp_autobuf cp_buf out = {0};
    if (cp_ws_check(&rq, supported, CP_COUNT(supported), &v) == 101) {
        if (v.protocol.n && v.protocol.p != supported[0].p && v.protocol.p != supported[1].p) abort();
        if (strlen(v.accept) != CP_WS_ACCEPT_SIZE) abort();
        cp_ws_accept_head(&out, &v, NULL);
    } else {
        if (!v.why || !v.extra) abort();
        cp_ws_refuse_head(&out, &v, "text/plain", 0);
    }
    if (out.n < 4 || memcmp(out.p + out.n - 4, "\r\n\r\n", 4) != 0) abort();
    return 0;
}
