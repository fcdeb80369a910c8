/* The decoder must say the same of a byte string however it is cut, and must read back what the encoder wrote.
 * Input: one byte of role and limit, one that chooses the cuts, then the stream. */
#include "transport/frame.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint32_t next_random(uint32_t *seed) { return *seed = *seed * 1664525 + 1013904223; }

/* Kind, opcode, code, length and payload of every event, one after the other. */
static void feed(cp_frame_in *d, const uint8_t *p, size_t n, cp_buf *trace) {
    char *in = malloc(n); /* of the exact size, for the sanitizer */
    if (!in) abort();
    memcpy(in, p, n);
    cp_frame_event ev;
    for (size_t at = 0, used; cp_frame_next(d, in + at, n - at, &used, &ev) != CP_FRAME_NEED_MORE; at += used) {
        cp_buf_addf(trace, "%d %d %d %zu:", ev.kind, ev.opcode, ev.code, ev.payload.n);
        cp_buf_add(trace, ev.payload.p, ev.payload.n);
        if (ev.kind == CP_FRAME_MESSAGE) {
            if (ev.payload.n > d->max_message) abort();
            if (ev.opcode == CP_OP_TEXT && !cp_utf8_valid(ev.payload.p, ev.payload.n)) abort();
        }
    }
    free(in);
}

static void decode(cp_frame_role role, size_t max, const uint8_t *p, size_t n, uint32_t seed, cp_buf *trace) {
    cp_frame_in d;
    cp_frame_in_init(&d, role, max);
    for (size_t at = 0, piece; at < n; at += piece) {
        piece = seed ? 1 + (next_random(&seed) >> 16) % (seed & 1 ? 4 : 64) : n;
        if (piece > n - at) piece = n - at;
        feed(&d, p + at, piece, trace);
        if (cp_frame_held(&d) > 2 * n + 256) abort(); /* memory follows what came, not what was claimed */
    }
    cp_frame_in_fini(&d);
}

static void check_same(const cp_buf *a, const cp_buf *b) {
    if (!cp_str_eq(cp_buf_str(a), cp_buf_str(b))) abort();
}

/* The bytes as a binary message in masked fragments, with a ping between them. */
static void round_trip(const uint8_t *p, size_t n, uint32_t seed) {
    cp_autobuf cp_buf wire = {0}, want = {0}, got = {0};
    const uint8_t mask[4] = {(uint8_t)seed, (uint8_t)(seed >> 8), (uint8_t)(seed >> 16), (uint8_t)(seed >> 24)};
    size_t cut = next_random(&seed) % (n + 1);
    cp_frame_put(&wire, CP_OP_BINARY, false, p, cut, mask);
    cp_frame_put(&wire, CP_OP_PING, true, "x", 1, mask);
    cp_frame_put(&wire, CP_OP_CONT, true, p + cut, n - cut, mask);
    cp_buf_addf(&want, "%d %d 0 1:x%d %d 0 %zu:", CP_FRAME_PING, CP_OP_PING, CP_FRAME_MESSAGE, CP_OP_BINARY, n);
    cp_buf_add(&want, p, n);
    decode(CP_FRAME_SERVER, n, (const uint8_t *)wire.p, wire.n, seed | 1, &got);
    check_same(&want, &got);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const size_t limits[] = {0, 10, 200, (size_t)16 << 20};
    if (size < 3) return 0;
    cp_frame_role role = data[0] & 1 ? CP_FRAME_CLIENT : CP_FRAME_SERVER;
    size_t max = limits[data[0] >> 1 & 3];
    uint32_t seed = (uint32_t)data[1] * 2654435761u | 1;
    cp_autobuf cp_buf whole = {0}, cut = {0};
    decode(role, max, data + 2, size - 2, 0, &whole);
    decode(role, max, data + 2, size - 2, seed, &cut);
    check_same(&whole, &cut);
    round_trip(data + 2, size - 2, seed);
    return 0;
}
