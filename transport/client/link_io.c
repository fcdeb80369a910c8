/* Bytes of the socket. Without TLS it is read and written directly; with it through libcurl, which owns the session. */
#include "transport/client/client_impl.h"

#include <errno.h>
#include <sys/socket.h>

static int lost(const link_conn *l, conflux_error *err, const char *what) {
    return fail(err, l->state == LINK_UP ? CONFLUX_E_CONNECTION_LOST : CONFLUX_E_CONNECT, "the connection ended%s%s",
                *what ? ": " : "", what);
}

static ssize_t plain(const link_conn *l, ssize_t n, bool reading, conflux_error *err) {
    if (n > 0) return n;
    if (n == 0 && reading) return lost(l, err, "");
    if (errno == EAGAIN || errno == EINTR) return 0;
    return lost(l, err, cp_errno_name(errno));
}

ssize_t link_recv(link_conn *l, char *p, size_t n, conflux_error *err) {
    if (!l->easy) return plain(l, recv(l->fd, p, n, 0), true, err);
    size_t got = 0;
    CURLcode rc = curl_easy_recv(l->easy, p, n, &got);
    if (rc == CURLE_AGAIN) return 0;
    if (rc || !got) return lost(l, err, rc ? curl_easy_strerror(rc) : "");
    return (ssize_t)got;
}

ssize_t link_send(link_conn *l, const char *p, size_t n, conflux_error *err) {
    enum { TLS_RECORD = 16 * 1024 };
    if (!l->easy) return plain(l, send(l->fd, p, n, MSG_NOSIGNAL), false, err);
    size_t put = 0;
    CURLcode rc = curl_easy_send(l->easy, p, n < TLS_RECORD ? n : TLS_RECORD, &put);
    if (rc == CURLE_AGAIN) return 0;
    if (rc) return lost(l, err, curl_easy_strerror(rc));
    return (ssize_t)put;
}
