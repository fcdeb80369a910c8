/* The decoder takes a frame in two steps, head and payload, either of which may be cut anywhere by the input.
 *
 * Invariants
 * - Between calls, !in_frame means that head[0..head_n) is an incomplete but so far legal head.
 * - msg_opcode != 0 exactly while a message is open: between its fragments, or inside one of them. Control frames
 *   leave it, msg and utf8 alone.
 * - msg.n <= max_message, and msg grows with the bytes that arrived, never with a length that a head claims: a peer
 *   that announces 16 MiB and sends nothing costs nothing.
 * - Every verdict depends only on the bytes up to it, never on how they were cut: tests/fuzz/frame_fuzz.c compares.
 * - Text is validated as it arrives, so a bad byte ends a message whose rest may never come. */
#include "transport/frame.h"

/* Text is unmasked and validated block by block while it is in the first-level cache. A multiple of 4, so that the
 * rotated key fits every block. */
enum { TEXT_BLOCK = 4096 };

typedef uint64_t lanes __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint64_t word __attribute__((aligned(1), may_alias));

static uint32_t rotate(uint32_t key, size_t off) {
    uint8_t in[4], out[4];
    memcpy(in, &key, 4);
    for (size_t i = 0; i < 4; i++) out[i] = in[(i + off) & 3];
    memcpy(&key, out, 4);
    return key;
}

/* Returns whether any byte of the result is outside ASCII: the pass that unmasks pays for the check. */
static bool xor_key(char *dst, const char *src, size_t n, uint32_t key) {
    uint64_t wide = (uint64_t)key << 32 | key, high = 0;
    lanes k = {wide, wide}, any = {0, 0};
    size_t i = 0;
    for (; n - i >= 16; i += 16) {
        lanes x = *(const lanes *)(const void *)(src + i) ^ k;
        *(lanes *)(void *)(dst + i) = x;
        any |= x;
    }
    if (n - i >= 8) {
        high = *(const word *)(const void *)(src + i) ^ wide;
        *(word *)(void *)(dst + i) = high;
        i += 8;
    }
    high |= any[0] | any[1];
    const uint8_t *kb = (const uint8_t *)&key;
    for (; i < n; i++) {
        uint8_t x = (uint8_t)src[i] ^ kb[i & 3];
        dst[i] = (char)x;
        high |= x;
    }
    return (high & UINT64_C(0x8080808080808080)) != 0;
}

void cp_frame_mask(char *dst, const char *src, size_t n, const uint8_t key[4], size_t off) {
    uint32_t k;
    memcpy(&k, key, 4);
    xor_key(dst, src, n, rotate(k, off));
}

void cp_frame_in_init(cp_frame_in *d, cp_frame_role role, size_t max_message) {
    *d = (cp_frame_in){.role = role, .max_message = max_message};
}

void cp_frame_in_fini(cp_frame_in *d) { cp_buf_free(&d->msg); }

void cp_frame_take(cp_frame_in *d, const cp_frame_event *ev, cp_buf *out) {
    if (d->handed) {
        *out = cp_take(d->msg);
        d->handed = false;
    } else {
        cp_buf_add(out, ev->payload.p, ev->payload.n);
    }
}

static cp_frame_kind emit(cp_frame_event *ev, cp_frame_kind kind, unsigned code, cp_str payload) {
    ev->kind = kind;
    ev->code = (uint16_t)code;
    ev->data = NULL;
    ev->payload = payload.n ? payload : CP_STR("");
    return kind;
}

/* Nothing of a failed message is of use, and the connection may linger in its close handshake. */
static cp_frame_kind refuse(cp_frame_in *d, cp_frame_event *ev, unsigned code, const char *why) {
    d->over = true;
    cp_buf_free(&d->msg);
    return emit(ev, CP_FRAME_ERROR, code, cp_str_of(why));
}

/* ---- head (section 5.2) ---- */

/* What is wrong with the first byte of a frame, or NULL. */
static const char *first_byte_fault(const cp_frame_in *d, uint8_t b) {
    unsigned op = b & 0x0f;
    if (b & 0x70) return "reserved bits without an extension";
    if (op & 8) {
        if (op > CP_OP_PONG) return "reserved opcode";
        return b & 0x80 ? NULL : "fragmented control frame";
    }
    if (op > CP_OP_BINARY) return "reserved opcode";
    if (op == CP_OP_CONT) return d->msg_opcode ? NULL : "continuation without a message";
    return d->msg_opcode ? "new message inside a fragmented one" : NULL;
}

static const char *second_byte_fault(const cp_frame_in *d, uint8_t first, uint8_t b) {
    bool masked = b & 0x80;
    if (masked != (d->role == CP_FRAME_SERVER)) return masked ? "masked frame" : "unmasked frame";
    return (first & 8) && (b & 0x7f) > CP_FRAME_CONTROL_MAX ? "control frame over 125 bytes" : NULL;
}

static uint64_t big_endian(const uint8_t *p, size_t n) {
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++) v = v << 8 | p[i];
    return v;
}

static int refuse_head(cp_frame_in *d, cp_frame_event *ev, unsigned code, const char *why) {
    refuse(d, ev, code, why);
    return -1;
}

/* Returns the length of the head at h, 0 when it is not complete yet, -1 when it was refused. Each fault is found at
 * the byte that makes it one. */
static int parse_head(cp_frame_in *d, const uint8_t *h, size_t n, cp_frame_event *ev) {
    const char *fault;
    if (n < 1) return 0;
    if ((fault = first_byte_fault(d, h[0]))) return refuse_head(d, ev, CP_CLOSE_PROTOCOL, fault);
    if (n < 2) return 0;
    if ((fault = second_byte_fault(d, h[0], h[1]))) return refuse_head(d, ev, CP_CLOSE_PROTOCOL, fault);

    uint64_t len = h[1] & 0x7f;
    size_t ext = len == 127 ? 8 : len == 126 ? 2 : 0;
    if (n < 2 + ext) return 0;
    if (ext) {
        len = big_endian(h + 2, ext);
        if (len >> 63) return refuse_head(d, ev, CP_CLOSE_PROTOCOL, "length with the top bit set");
        if (len <= (ext == 2 ? 125 : 65535)) return refuse_head(d, ev, CP_CLOSE_PROTOCOL, "length not minimal");
    }
    if (!(h[0] & 8) && len > d->max_message - d->msg.n) return refuse_head(d, ev, CP_CLOSE_TOO_BIG, "message too big");

    size_t size = 2 + ext + (d->role == CP_FRAME_SERVER ? 4 : 0);
    if (n < size) return 0;
    if (d->role == CP_FRAME_SERVER) memcpy(&d->key, h + size - 4, 4);
    d->fin = h[0] & 0x80;
    d->opcode = h[0] & 0x0f;
    d->left = len;
    d->off = 0;
    d->in_frame = true;
    return (int)size;
}

/* As parse_head, over what an earlier input left in d->head and data[*at..n). Advances *at. */
static int take_head(cp_frame_in *d, const char *data, size_t n, size_t *at, cp_frame_event *ev) {
    const uint8_t *in = (const uint8_t *)data + *at;
    size_t more = n - *at, had = d->head_n;
    int size;
    if (had == 0 && (size = parse_head(d, in, more, ev)) != 0) {
        if (size > 0) *at += (size_t)size;
        return size;
    }
    if (more > sizeof d->head - had) more = sizeof d->head - had;
    if (more) memcpy(d->head + had, in, more);
    size = had == 0 ? 0 : parse_head(d, d->head, had + more, ev);
    if (size > 0) {
        *at += (size_t)size - had;
        d->head_n = 0;
    } else if (size == 0) {
        *at += more;
        d->head_n = (uint8_t)(had + more);
    }
    return size;
}

/* ---- payload ---- */

/* Unmasks and, for text, validates the next n bytes of the frame from src to dst (which may be src). */
static bool take_bytes(cp_frame_in *d, bool text, char *dst, const char *src, size_t n) {
    bool masked = d->role == CP_FRAME_SERVER;
    uint32_t key = d->off & 3 ? rotate(d->key, d->off) : d->key;
    d->left -= n;
    d->off += n;
    if (!text || !masked) {
        if (masked) xor_key(dst, src, n, key);
        else if (dst != src && n) memcpy(dst, src, n);
        return !text || cp_utf8_feed(&d->utf8, dst, n);
    }
    for (size_t i = 0; i < n; i += TEXT_BLOCK) {
        size_t len = n - i < TEXT_BLOCK ? n - i : TEXT_BLOCK;
        bool high = xor_key(dst + i, src + i, len, key);
        if ((high || !cp_utf8_complete(&d->utf8)) && !cp_utf8_feed(&d->utf8, dst + i, len)) return false;
    }
    return true;
}

static cp_frame_kind emit_message(cp_frame_in *d, cp_frame_event *ev, unsigned opcode, char *p, size_t n) {
    if (opcode == CP_OP_TEXT && !cp_utf8_complete(&d->utf8))
        return refuse(d, ev, CP_CLOSE_BAD_DATA, "text ends inside a UTF-8 sequence");
    ev->opcode = (uint8_t)opcode;
    emit(ev, CP_FRAME_MESSAGE, 0, (cp_str){p, n});
    ev->data = n ? p : d->ctl; /* an empty message may have no buffer at all */
    return CP_FRAME_MESSAGE;
}

/* Advances *at over the payload of a data frame; NEED_MORE here means no event yet. */
static cp_frame_kind take_data(cp_frame_in *d, char *data, size_t n, size_t *at, cp_frame_event *ev) {
    char *src = data + *at, *dst = src;
    bool whole = n - *at >= d->left, starts = d->off == 0 && d->opcode != CP_OP_CONT;
    size_t take = whole ? (size_t)d->left : n - *at;
    if (starts) d->msg_opcode = d->opcode; /* utf8 is between characters: the last text would have failed otherwise */
    bool in_place = starts && whole && d->fin;
    if (!in_place && take) {
        if (!cp_buf_try_reserve(&d->msg, take)) return refuse(d, ev, CP_CLOSE_TRY_AGAIN, "no memory for the message");
        dst = d->msg.p + d->msg.n;
        d->msg.n += take;
    }
    *at += take;
    unsigned opcode = d->msg_opcode;
    if (!take_bytes(d, opcode == CP_OP_TEXT, dst, src, take))
        return refuse(d, ev, CP_CLOSE_BAD_DATA, "text is not UTF-8");
    if (!whole) return CP_FRAME_NEED_MORE;
    d->in_frame = false;
    if (!d->fin) return CP_FRAME_NEED_MORE;
    d->msg_opcode = 0;
    if (in_place) return emit_message(d, ev, opcode, src, take);
    d->handed = true;
    return emit_message(d, ev, opcode, d->msg.p, d->msg.n);
}

bool cp_frame_close_code_ok(unsigned code) {
    return (code >= 1000 && code <= 1003) || (code >= 1007 && code <= 1014) || (code >= 3000 && code <= 4999);
}

/* Section 5.5.1 and 7.1.5. */
static cp_frame_kind emit_close(cp_frame_in *d, cp_frame_event *ev, cp_str body) {
    if (body.n == 1) return refuse(d, ev, CP_CLOSE_PROTOCOL, "close payload of one byte");
    unsigned code = CP_CLOSE_NO_STATUS;
    cp_str reason = CP_STR("");
    if (body.n) {
        code = (unsigned)big_endian((const uint8_t *)body.p, 2);
        reason = (cp_str){body.p + 2, body.n - 2};
        if (!cp_frame_close_code_ok(code)) return refuse(d, ev, CP_CLOSE_PROTOCOL, "bad close code");
        if (!cp_utf8_valid(reason.p, reason.n)) return refuse(d, ev, CP_CLOSE_BAD_DATA, "close reason is not UTF-8");
    }
    d->over = true;
    cp_buf_free(&d->msg);
    return emit(ev, CP_FRAME_CLOSE, code, reason);
}

static cp_frame_kind take_control(cp_frame_in *d, char *data, size_t n, size_t *at, cp_frame_event *ev) {
    char *src = data + *at, *dst = src;
    bool whole = n - *at >= d->left, in_place = d->off == 0 && whole;
    size_t take = whole ? (size_t)d->left : n - *at;
    if (!in_place) {
        if (d->off == 0) d->ctl_n = 0;
        dst = d->ctl + d->ctl_n;
        d->ctl_n = (uint8_t)(d->ctl_n + take);
    }
    *at += take;
    take_bytes(d, false, dst, src, take);
    if (!whole) return CP_FRAME_NEED_MORE;
    d->in_frame = false;
    cp_str body = in_place ? (cp_str){src, take} : (cp_str){d->ctl, d->ctl_n};
    ev->opcode = d->opcode;
    if (d->opcode == CP_OP_CLOSE) return emit_close(d, ev, body);
    return emit(ev, d->opcode == CP_OP_PING ? CP_FRAME_PING : CP_FRAME_PONG, 0, body);
}

cp_frame_kind cp_frame_next(cp_frame_in *d, char *data, size_t n, size_t *used, cp_frame_event *ev) {
    size_t at = 0;
    if (d->handed) { /* nothing is kept for a next time: thousands of idle connections must cost nothing */
        cp_buf_free(&d->msg);
        d->handed = false;
    }
    ev->opcode = 0;
    while (!d->over) {
        if (!d->in_frame) {
            int size = take_head(d, data, n, &at, ev);
            if (size == 0) break;
            if (size < 0) {
                *used = n;
                return ev->kind;
            }
        }
        cp_frame_kind kind = d->opcode & 8 ? take_control(d, data, n, &at, ev) : take_data(d, data, n, &at, ev);
        if (kind != CP_FRAME_NEED_MORE) {
            *used = at;
            return kind;
        }
        if (d->in_frame) break;
    }
    *used = n;
    return emit(ev, CP_FRAME_NEED_MORE, 0, CP_STR(""));
}

/* ---- encoder ---- */

size_t cp_frame_head(char out[CP_FRAME_HEAD_MAX], unsigned opcode, bool fin, uint64_t len, const uint8_t mask[4]) {
    size_t ext = len > 65535 ? 8 : len > 125 ? 2 : 0, n = 2;
    uint8_t len7 = ext == 8 ? 127 : ext == 2 ? 126 : (uint8_t)len;
    out[0] = (char)((fin ? 0x80 : 0) | opcode);
    out[1] = (char)((mask ? 0x80 : 0) | len7);
    while (ext--) out[n++] = (char)(len >> (8 * ext));
    if (mask) {
        memcpy(out + n, mask, 4);
        n += 4;
    }
    return n;
}

void cp_frame_put(cp_buf *out, unsigned opcode, bool fin, const void *p, size_t n, const uint8_t mask[4]) {
    char head[CP_FRAME_HEAD_MAX];
    cp_buf_reserve(out, CP_FRAME_HEAD_MAX + n);
    cp_buf_add(out, head, cp_frame_head(head, opcode, fin, n, mask));
    cp_buf_add(out, p, n);
    if (mask && n) cp_frame_mask(out->p + out->n - n, out->p + out->n - n, n, mask, 0);
}

size_t cp_frame_close(char out[CP_FRAME_CLOSE_MAX], unsigned code, cp_str reason, const uint8_t mask[4]) {
    char body[CP_FRAME_CONTROL_MAX];
    size_t n = 0;
    if (code != CP_CLOSE_NO_STATUS) {
        size_t room = sizeof body - 2, text = reason.n < room ? reason.n : room;
        if (text) text = cp_utf8_prefix(reason.p, text);
        body[0] = (char)(code >> 8);
        body[1] = (char)code;
        if (text) memcpy(body + 2, reason.p, text);
        n = 2 + text;
    }
    size_t head = cp_frame_head(out, CP_OP_CLOSE, true, n, mask);
    if (mask) cp_frame_mask(out + head, body, n, mask, 0);
    else memcpy(out + head, body, n);
    return head + n;
}
