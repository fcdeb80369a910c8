#include "load/http_in.h"

#include <errno.h>
#include <stdlib.h>

#include "load/load.h"

enum { HEAD_MAX = 64 << 10 };

void http_in_next(http_in *h) {
    h->state = HTTP_HEAD;
    h->status = 0;
    h->close = h->unending = false;
    h->left = 0;
    cp_buf_clear(&h->line);
}

void http_in_fini(http_in *h) { cp_buf_free(&h->line); }

static _Noreturn void malformed(const char *what) {
    errno = 0;
    die(what);
}

/* The value of a header, from after its colon to its CR; p NULL when it is not there. */
static cp_str header(cp_str head, const char *name) {
    size_t n = strlen(name);
    for (const char *at = head.p, *end = head.p + head.n, *eol; (eol = memchr(at, '\n', (size_t)(end - at)));
         at = eol + 1)
        if ((size_t)(eol - at) > n && at[n] == ':' && cp_str_ieq((cp_str){at, n}, (cp_str){name, n}))
            return cp_str_trim((cp_str){at + n + 1, (size_t)(eol - at) - n - 1});
    return (cp_str){0};
}

static void read_head(http_in *h) {
    cp_str head = cp_buf_str(&h->line);
    uint64_t status;
    if (head.n < 12 || memcmp(head.p, "HTTP/1.", 7) != 0) malformed("not an HTTP response");
    if (!cp_str_u64((cp_str){head.p + 9, 3}, 999, &status)) malformed("a status that is no number");
    h->status = (int)status;
    cp_str length = header(head, "Content-Length"), coding = header(head, "Transfer-Encoding");
    h->close = cp_str_ieq(header(head, "Connection"), CP_STR("close"));
    if (length.p && !cp_str_u64(length, UINT64_MAX, &h->left)) malformed("a Content-Length that is no number");
    h->unending = !length.p && !coding.p;
    h->close |= h->unending;
    if (coding.p) h->state = HTTP_CHUNK_HEAD;
    else h->state = h->left || h->unending ? HTTP_BODY : HTTP_DONE;
    cp_buf_clear(&h->line);
}

/* Collects up to a line feed; true when the line (the head, with its empty line) is there. */
static bool collect(http_in *h, const char *p, size_t n, size_t *used) {
    const char *eol = memchr(p, '\n', n);
    *used = eol ? (size_t)(eol + 1 - p) : n;
    if (h->line.n + *used > HEAD_MAX) malformed("a response head without end");
    cp_buf_add(&h->line, p, *used);
    if (!eol) return false;
    return h->state != HTTP_HEAD || (h->line.n >= 4 && memcmp(h->line.p + h->line.n - 4, "\r\n\r\n", 4) == 0);
}

static void end_of_line(http_in *h) {
    switch (h->state) {
    case HTTP_HEAD: read_head(h); return;
    case HTTP_CHUNK_HEAD:
        h->left = strtoull(cp_buf_z(&h->line), NULL, 16);
        h->state = h->left ? HTTP_CHUNK : HTTP_TRAILER;
        break;
    case HTTP_CHUNK_END: h->state = HTTP_CHUNK_HEAD; break;
    case HTTP_TRAILER:
        if (h->line.n <= 2) h->state = HTTP_DONE;
        break;
    default: break;
    }
    cp_buf_clear(&h->line);
}

static size_t take_body(http_in *h, const char *p, size_t n) {
    if (!h->unending && n > h->left) n = (size_t)h->left;
    if (h->body) h->body(h->ctx, p, n);
    if (h->unending) return n;
    h->left -= n;
    if (!h->left) h->state = h->state == HTTP_CHUNK ? HTTP_CHUNK_END : HTTP_DONE;
    return n;
}

size_t http_in_feed(http_in *h, const char *p, size_t n) {
    size_t at = 0;
    while (at < n && h->state != HTTP_DONE) {
        size_t used;
        if (h->state == HTTP_BODY || h->state == HTTP_CHUNK) {
            at += take_body(h, p + at, n - at);
            continue;
        }
        if (collect(h, p + at, n - at, &used)) end_of_line(h);
        at += used;
    }
    return at;
}
