/* Design notes. Most bodies are collected before anything is done with them: they lie behind their head in the client's
 * buffer, or are decoded from there when they come in chunks, and the client rests while more is awaited. So a client
 * that sends slowly holds its buffer and nothing else. Large raw bodies are read by the handler itself, on a side
 * thread, once their first piece has come. In both cases there is a fixed time for the whole, and in addition the time
 * that its bytes take at a minimum rate; what a handler does between two reads does not count. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "transport/http/http.h"

enum {
    MIN_RATE = 64 * 1024, /* bytes a second */
    SLICE = 64 * 1024,
    SMALL = 256 * 1024, /* a body up to this is collected, also where a handler will read it */
    FIRST = 16 * 1024,  /* what has to be there of a larger one before a thread is taken for it */
    QUIET_MS = 30000,   /* without a byte, however much has come before */
};

void cp_body_init(cp_body *b, const cp_http_head *head) {
    cp_charge charge = b->charge; /* the head may have come in pieces */
    *b = (cp_body){
        .chunked = head->chunked,
        .ended = !head->chunked && head->length == 0,
        .expect = head->expect,
        .left = head->length,
        .began = cp_now_ms(),
        .charge = charge,
    };
}

void cp_body_drop(cp_client *c) {
    cp_buf_free(&c->body.text);
    cp_charge_free(&c->body.charge);
    c->body.lies = 0;
}

cp_str cp_body_text(const cp_client *c) {
    if (c->body.chunked) return cp_buf_str(&c->body.text);
    return (cp_str){c->in.p + c->at + c->head.end, c->body.lies};
}

uint64_t cp_body_patience(const cp_client *c) {
    uint64_t allowed = (uint64_t)c->srv->t->config->header_timeout + c->body.taken * 1000 / MIN_RATE;
    uint64_t spent = cp_now_ms() - c->body.began, left = allowed > spent ? allowed - spent : 1;
    return left < QUIET_MS ? left : QUIET_MS;
}

/* 25 bytes at the start of a reply always fit. */
void cp_body_continue(cp_client *c) {
    static const char line[] = "HTTP/1.1 100 Continue\r\n\r\n";
    if (!c->body.expect) return;
    c->body.expect = false;
    (void)!send(c->fd, line, sizeof line - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* ---- collected ---- */

static int too_large(uint64_t max, cp_err *err) {
    return cp_fail(err, CP_E_PAYLOAD_TOO_LARGE, "The request body is larger than %llu bytes", (unsigned long long)max);
}

static int malformed(cp_client *c, cp_err *err) {
    c->body.broken = c->body.bad = true;
    return cp_fail(err, CP_E_INVALID_REQUEST, "Malformed request: the chunked body is not well-formed");
}

void cp_body_say_malformed(cp_client *c, cp_result *res) {
    cp_err err;
    malformed(c, &err);
    cp_result_free(res);
    cp_error_result(res, &err, NULL, (cp_str){0});
}

/* All bodies together: many clients that send the largest allowed one must not end the process. What has been granted
 * is kept until the request is over: a body of known length is granted as a whole. */
static int grant(cp_client *c, size_t held, cp_err *err) {
    return held <= c->body.charge.bytes ? 0 : cp_charge_set(&c->body.charge, held, err);
}

int cp_body_charge(cp_client *c, cp_err *err) { return grant(c, c->in.cap + c->body.text.cap, err); }

/* What is served at once and fits into a worker's own memory is not counted. */
static int charge(cp_client *c, cp_err *err) {
    return c->in.cap + c->body.text.cap <= CP_KEEP ? 0 : cp_body_charge(c, err);
}

static size_t behind_head(const cp_client *c) { return c->at + c->head.end; }

bool cp_body_reserve(cp_client *c) {
    size_t whole = c->head.end + (size_t)c->body.left;
    if (grant(c, whole, NULL) < 0) return false;
    cp_buf in = {.p = malloc(whole), .cap = whole};
    if (!in.p) return false;
    cp_buf_add(&in, c->in.p + c->at, c->in.n - c->at);
    cp_buf_free(&c->in);
    c->in = in;
    c->at = 0;
    return true;
}

/* Takes n bytes out that stand behind the head. */
static void cut(cp_client *c, size_t n) {
    size_t at = behind_head(c);
    memmove(c->in.p + at, c->in.p + at + n, c->in.n - at - n);
    c->in.n -= n;
}

static int decode_some(cp_client *c, char *out, size_t room, size_t *wrote) {
    size_t used, at = behind_head(c);
    ptrdiff_t n = cp_chunks_read(&c->body.chunks, c->in.p + at, c->in.n - at, out, room, &used);
    if (n < 0) return -1;
    cut(c, used);
    *wrote = (size_t)n;
    c->body.taken += (size_t)n;
    c->body.ended = c->body.chunks.ended;
    return 0;
}

static int collect_chunks(cp_client *c, uint64_t max, cp_err *err) {
    cp_buf *text = &c->body.text;
    size_t room = c->in.n - behind_head(c), wrote;
    if (cp_room(text, room + 1, err) < 0) return -1;
    if (decode_some(c, text->p + text->n, room, &wrote) < 0) return malformed(c, err);
    text->n += wrote;
    if (text->n > max) return too_large(max, err);
    return c->body.ended;
}

int cp_body_collect(cp_client *c, uint64_t max, cp_err *err) {
    cp_body *b = &c->body;
    if (charge(c, err) < 0) return -1;
    if (b->bad) return malformed(c, err); /* it is asked about again when the head is fed again */
    if (b->text.n > max) return too_large(max, err);
    if (b->ended) return 1;
    if (b->chunked) return collect_chunks(c, max, err);
    if (b->left > max) return too_large(max, err);
    size_t have = c->in.n - behind_head(c);
    b->taken = have;
    if (have < b->left) return 0;
    b->lies = (size_t)b->left;
    b->ended = true;
    return 1;
}

bool cp_body_is_small(const cp_client *c) { return !c->body.chunked && c->body.left <= SMALL; }

bool cp_body_begun(cp_client *c) {
    cp_body *b = &c->body;
    size_t have = c->in.n - behind_head(c), wrote;
    if (!b->chunked) {
        b->taken = have;
        return have >= (cp_body_is_small(c) ? b->left : FIRST);
    }
    if (have && !b->ended && !b->bad) {
        if (cp_room(&b->text, have, NULL) < 0) return true; /* the handler reads it piece by piece */
        b->broken = b->bad = decode_some(c, b->text.p + b->text.n, have, &wrote) < 0;
        if (!b->bad) b->text.n += wrote;
    }
    return b->ended || b->bad || b->text.n >= FIRST;
}

/* ---- read by a handler ---- */

/* Waits for the client. False: it is gone, or too slow. Who has been waited for longer than its bytes take at the
 * minimum rate is waited for since as much earlier: a byte now and then buys no new time. */
static bool await(cp_body_stream *s) {
    cp_client *c = s->client;
    struct pollfd p = {.fd = c->fd, .events = POLLIN};
    uint64_t began = cp_now_ms(), earned = c->body.taken * 1000 / MIN_RATE;
    uint64_t allowed = (uint64_t)c->srv->t->config->header_timeout + earned;
    if (s->waited_ms >= allowed) return false;
    atomic_store(&s->waits_since, s->waited_ms > earned ? began - (s->waited_ms - earned) : began);
    int n = poll(&p, 1, (int)(allowed - s->waited_ms < INT32_MAX ? allowed - s->waited_ms : INT32_MAX));
    atomic_store(&s->waits_since, 0);
    s->waited_ms += cp_now_ms() - began;
    return n > 0 || (n < 0 && errno == EINTR);
}

/* Content of the body that is there; 0: none yet; -1: there will be none. */
static ssize_t read_length(cp_client *c, char *p, size_t n) {
    cp_body *b = &c->body;
    size_t have = c->in.n - behind_head(c);
    if (n > b->left) n = (size_t)b->left;
    ssize_t got = (ssize_t)(n < have ? n : have);
    if (have) {
        memcpy(p, c->in.p + behind_head(c), (size_t)got);
        cut(c, (size_t)got);
    } else {
        got = recv(c->fd, p, n, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
        if (got <= 0) return -1;
    }
    b->left -= (size_t)got;
    b->taken += (size_t)got;
    b->ended = b->left == 0;
    return got;
}

static ssize_t read_first(cp_body *b, char *p, size_t n) {
    size_t left = b->text.n - b->given;
    if (n > left) n = left;
    memcpy(p, b->text.p + b->given, n);
    b->given += n;
    if (b->given == b->text.n) {
        cp_buf_free(&b->text);
        b->given = 0;
    }
    return (ssize_t)n;
}

static ssize_t read_chunks(cp_client *c, char *p, size_t n) {
    size_t wrote;
    if (c->in.n == behind_head(c)) {
        int rc = cp_client_read(c);
        if (rc <= 0) return rc;
    }
    if (decode_some(c, p, n, &wrote) < 0) {
        c->body.bad = true;
        return -1;
    }
    return (ssize_t)wrote;
}

static ssize_t reader_read(cp_body_reader *r, void *p, size_t n) {
    cp_body_stream *s = CP_CONTAINER(r, cp_body_stream, reader);
    cp_client *c = s->client;
    cp_body *b = &c->body;
    if (n > SLICE) n = SLICE;
    if (b->text.n) return read_first(b, p, n);
    while (!b->ended && !b->broken) {
        bool starved = c->in.n == behind_head(c);
        if (starved) cp_body_continue(c);
        ssize_t got = (b->chunked ? read_chunks : read_length)(c, p, n);
        if (got > 0) return got;
        /* nothing: what had been read was no content, or the socket has nothing */
        b->broken = got < 0 || (!b->ended && starved && !await(s));
    }
    return b->broken ? -1 : 0;
}

void cp_body_stream_init(cp_body_stream *s, cp_client *c) {
    cp_body *b = &c->body;
    if (!b->chunked) b->taken = 0; /* what was awaited is counted when it is read */
    *s = (cp_body_stream){.reader = {.length = b->chunked ? -1 : (int64_t)b->left, .read = reader_read}, .client = c};
    c->look = c->thorough = true; /* the handler reads past the epoll set */
}
