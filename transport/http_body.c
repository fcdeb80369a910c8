/* Design notes. mg_read blocks until it has filled the whole length, and a client that sends a byte a second keeps it
 * there for ever. CivetWeb does not tell how much it has buffered, so we cannot poll and read ourselves; instead the
 * slot gets a deadline, and the supervisor (slot.c) shuts the socket when it passes, upon which mg_read returns short.
 * The deadline allows a fixed time for the whole body and in addition the time that its bytes take at a minimum rate;
 * what the handler does between two reads does not count. */
#include "transport/http.h"

#include "base/clock.h"

#include <errno.h>
#include <sys/socket.h>

enum {
    MIN_RATE = 64 * 1024,    /* bytes a second */
    SLICE = 64 * 1024,       /* under pressure a client that takes over a second for one is slow */
    FIRST_ALLOC = 16 * 1024, /* memory grows with what arrives, never with what is claimed */
};

static uint64_t allowance_ms(const cp_body *b, size_t n) {
    uint64_t all = (uint64_t)b->slot->srv->t->config->header_timeout + (b->taken + n) * 1000 / MIN_RATE;
    return all > b->waited_ms ? all - b->waited_ms : 1;
}

/* RFC 9110 section 10.1.1. The socket is non-blocking; 25 bytes at the start of a reply always fit. */
static void send_continue(cp_body *b) {
    static const char line[] = "HTTP/1.1 100 Continue\r\n\r\n";
    b->expect = false;
    (void)!send(b->slot->fd, line, sizeof line - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static ssize_t read_some(cp_body *b, void *p, size_t n) {
    if (b->broken) return -1;
    if (b->ended || n == 0) return 0;
    if (b->expect) send_continue(b);
    if (!b->chunked && n > b->left) n = b->left;
    uint64_t began = cp_now_ms();
    cp_slot_deadline(b->slot, allowance_ms(b, n));
    int got = mg_read(b->conn, p, n);
    cp_slot_deadline(b->slot, 0);
    b->waited_ms += cp_now_ms() - began;
    if (b->chunked) {
        if (got == 0) b->ended = true;
        else if (got < 0) b->broken = true;
    } else if (got <= 0) {
        b->broken = true; /* the end came before Content-Length was reached */
    } else {
        b->left -= (size_t)got;
        b->ended = b->left == 0;
    }
    if (b->broken) return -1;
    b->taken += (size_t)got;
    return got;
}

static ssize_t reader_read(cp_body_reader *r, void *p, size_t n) {
    return read_some(CP_CONTAINER(r, cp_body, reader), p, n < SLICE ? n : SLICE);
}

void cp_body_init(cp_body *b, struct mg_connection *conn, cp_slot *s) {
    const cp_http_head *h = &s->head;
    *b = (cp_body){
        .reader = {.length = h->chunked ? -1 : (int64_t)h->length, .read = reader_read},
        .conn = conn,
        .slot = s,
        .left = h->length,
        .chunked = h->chunked,
        .ended = !h->chunked && h->length == 0,
        .expect = h->expect,
    };
}

bool cp_body_done(const cp_body *b) { return b->ended; }

static int too_large(uint64_t max, cp_err *err) {
    return cp_fail(err, CP_E_PAYLOAD_TOO_LARGE, "The request body is larger than %llu bytes", (unsigned long long)max);
}

/* All bodies together: many clients that send the largest allowed one must not end the process. */
static int charge(cp_body *b, size_t cap, cp_err *err) {
    cp_server *srv = b->slot->srv;
    uint64_t budget = 4 * (uint64_t)srv->t->config->max_body;
    if (cap <= CP_SLOT_KEEP || cap <= b->charged) return 0;
    uint64_t more = cap - b->charged;
    if (atomic_fetch_add(&srv->body_bytes, more) + more > budget) {
        atomic_fetch_sub(&srv->body_bytes, more);
        return cp_fail(err, CP_E_LIMIT_EXCEEDED, "Too many large request bodies at once");
    }
    b->charged = cap;
    return 0;
}

void cp_body_settle(cp_body *b, cp_buf *text) {
    cp_buf_reset(text, CP_SLOT_KEEP);
    atomic_fetch_sub(&b->slot->srv->body_bytes, b->charged);
    b->charged = 0;
}

int cp_body_read_all(cp_body *b, uint64_t max, cp_buf *out, cp_err *err) {
    if (!b->chunked && b->left > max) return too_large(max, err);
    while (!b->ended) {
        size_t step = out->n < FIRST_ALLOC ? FIRST_ALLOC : out->n;
        if (step > SLICE) step = SLICE;
        if (!b->chunked && step > b->left) step = b->left;
        cp_buf_reserve(out, step);
        if (charge(b, out->cap, err) < 0) return -1;
        ssize_t got = read_some(b, out->p + out->n, step);
        if (got < 0) return cp_fail(err, CP_E_OPERATION_INTERRUPTED, "The request body is incomplete");
        out->n += (size_t)got;
        if (out->n > max) return too_large(max, err);
    }
    return 0;
}
