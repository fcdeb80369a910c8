/* A request head as it comes from a client: what is accepted is a request that any parser reads the same way; what
 * CivetWeb is fed of it is one head, without the lines that frame the message; and it makes no difference in what
 * pieces it came. */
#include <stdlib.h>
#include <sys/uio.h>

#include "base/buf.h"
#include "transport/http/head.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok) {
    if (!ok) abort();
}

static bool clean(cp_str s) {
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] == '\r' || s.p[i] == '\n' || s.p[i] == '\0') return false;
    return true;
}

static size_t count(const char *p, size_t n, char c) {
    size_t k = 0;
    for (size_t i = 0; i < n; i++) k += p[i] == c;
    return k;
}

static void check_fed(const cp_head *h, const char *p) {
    struct iovec v[CP_HEAD_PIECES];
    cp_autobuf cp_buf fed = {0};
    int k = cp_head_pieces(h, p, v);
    require(k > 0 && k <= CP_HEAD_PIECES);
    for (int i = 0; i < k; i++) cp_buf_add(&fed, v[i].iov_base, v[i].iov_len);
    cp_head again = {0};
    cp_err err;
    require(fed.p[0] > ' ' && memmem(fed.p, fed.n, "\r\n\r\n", 4) == fed.p + fed.n - 4);
    require(cp_head_scan(&again, fed.p, fed.n, &err) == 1);
    require(again.end == fed.n && again.nown == 0 && again.nlines == h->nlines && again.http11);
    require(again.origin_form && cp_str_eq(again.method, h->fed_method) && cp_str_eq(again.query, h->query));
    require(cp_str_eq(again.target, cp_str_is(h->target, "*") ? CP_STR("/") : h->target));
}

static void check(const cp_head *h, const char *p) {
    require(h->begin < h->end && h->end - h->begin <= CP_HEAD_MAX);
    require(h->target.n && (h->target.p[0] == '/' || (h->target.n == 1 && cp_str_is(h->method, "OPTIONS"))));
    require(clean(h->target) && clean(h->query) && clean(h->method));
    for (size_t i = 0; i < h->nown; i++) require(clean(h->own[i].name) && clean(h->own[i].value));
    /* no line has been swallowed, and there is no line end but these */
    size_t lines = count(p + h->begin, h->end - h->begin, '\n');
    require(lines == h->nlines + h->nown + 2 && lines == count(p + h->begin, h->end - h->begin, '\r'));
    check_fed(h, p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    cp_err err, err_slow;
    cp_head h = {0}, slow = {0};
    if (size > 20000) return 0;
    char *p = calloc(1, size + 1); /* ASan sees what reads on, but for one byte */
    require(p != NULL);
    if (size) memcpy(p, data, size);
    int rc = cp_head_scan(&h, p, size, &err), rc_slow = 0;
    if (rc == 1) check(&h, p);
    for (size_t n = 1; n <= size && rc_slow == 0; n++) rc_slow = cp_head_scan(&slow, p, n, &err_slow);
    require(rc == rc_slow && h.end == slow.end);
    if (rc < 0) require(err.code == err_slow.code);
    free(p);
    return 0;
}
