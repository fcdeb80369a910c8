#include "transport/http/http.h"

#include <stdio.h>
#include <time.h>

const char *cp_http_reason(int status) {
    static const struct {
        int status;
        const char *reason;
    } table[] = {
        {100, "Continue"},
        {101, "Switching Protocols"},
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {206, "Partial Content"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {410, "Gone"},
        {412, "Precondition Failed"},
        {413, "Content Too Large"},
        {416, "Range Not Satisfiable"},
        {417, "Expectation Failed"},
        {422, "Unprocessable Content"},
        {426, "Upgrade Required"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {499, "Client Closed Request"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
    };
    for (size_t i = 0; i < CP_COUNT(table); i++)
        if (table[i].status == status) return table[i].reason;
    return "Unknown";
}

/* RFC 9110 section 8.6: no Content-Length in 1xx, 204; a 304 has no body either. */
static bool has_body(int status) { return status >= 200 && status != 204 && status != 304; }

static void add_length(cp_buf *out, const cp_reply_to *to, int64_t length) {
    if (length < 0) {
        if (to->http11) cp_buf_addz(out, "Transfer-Encoding: chunked\r\n");
        return;
    }
    cp_buf_addz(out, "Content-Length: ");
    cp_buf_addu(out, (uint64_t)length);
    cp_buf_addz(out, "\r\n");
}

/* RFC 9110 section 5.6.7; written anew once a second by each thread. */
static void add_date(cp_buf *out) {
    static const char days[] = "SunMonTueWedThuFriSat", months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    static _Thread_local time_t of;
    static _Thread_local char line[48];
    time_t now = time(NULL);
    if (now != of) {
        struct tm t;
        gmtime_r(&now, &t);
        snprintf(line, sizeof line, "Date: %.3s, %02d %.3s %04d %02d:%02d:%02d GMT\r\n", days + 3 * t.tm_wday,
                 t.tm_mday, months + 3 * t.tm_mon, t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
        of = now;
    }
    cp_buf_addz(out, line);
}

/* No page of another site may load an answer as a script, an image or a style sheet: such a request carries no Origin.
 */
static const char fixed[] = "X-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin\r\n";

void cp_http_head_write(cp_buf *out, const cp_reply_to *to, int status, const char *type, cp_str extra,
                        int64_t length) {
    cp_buf_reserve(out, 512 + extra.n + to->origin.n);
    cp_buf_addz(out, "HTTP/1.1 ");
    cp_buf_addu(out, (uint64_t)status);
    cp_buf_addc(out, ' ');
    cp_buf_addz(out, cp_http_reason(status));
    cp_buf_addz(out, "\r\n");
    if (has_body(status)) {
        cp_buf_addz(out, "Content-Type: ");
        cp_buf_addz(out, type ? type : "application/json");
        cp_buf_addz(out, "\r\n");
        add_length(out, to, length);
    }
    add_date(out);
    if (to->cors) cp_cors_headers(to->origin, out);
    cp_buf_add(out, fixed, sizeof fixed - 1);
    if (status == 401) cp_buf_addz(out, "WWW-Authenticate: Bearer\r\n");
    cp_buf_add(out, extra.p, extra.n);
    if (!to->keep_alive) cp_buf_addz(out, "Connection: close\r\n");
    else if (!to->http11) cp_buf_addz(out, "Connection: keep-alive\r\n");
    cp_buf_addz(out, "\r\n");
}

bool cp_http_reply_head(cp_buf *out, const cp_reply_to *to, const cp_result *res) {
    int64_t length = res->source ? -1 : (int64_t)(res->file_fd > 0 ? res->file_len : res->body.n);
    cp_http_head_write(out, to, res->status, res->type, cp_buf_str(&res->headers), length);
    return res->file_fd <= 0 && !to->head_only && has_body(res->status);
}
