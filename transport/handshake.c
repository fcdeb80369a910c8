#include "transport/handshake.h"

#include "base/sha.h"

static const char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* base/json has base64 for bodies; the codec links nothing but base. Ends with NUL. */
static void base64(const uint8_t *p, size_t n, char *out) {
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)p[i] << 16;
        if (i + 1 < n) v |= (uint32_t)p[i + 1] << 8;
        if (i + 2 < n) v |= p[i + 2];
        *out++ = ALPHABET[v >> 18];
        *out++ = ALPHABET[v >> 12 & 63];
        *out++ = i + 1 < n ? ALPHABET[v >> 6 & 63] : '=';
        *out++ = i + 2 < n ? ALPHABET[v & 63] : '=';
    }
    *out = '\0';
}

void cp_ws_key(const uint8_t nonce[16], char out[CP_WS_KEY_SIZE + 1]) { base64(nonce, 16, out); }

/* Section 4.2.2, step 5.4. */
void cp_ws_accept(cp_str key, char out[CP_WS_ACCEPT_SIZE + 1]) {
    static const char guid[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    char text[CP_WS_KEY_SIZE + sizeof guid];
    uint8_t digest[CP_SHA1_SIZE];
    size_t n = key.n < CP_WS_KEY_SIZE ? key.n : CP_WS_KEY_SIZE;
    if (n) memcpy(text, key.p, n);
    memcpy(text + n, guid, sizeof guid - 1);
    cp_sha1(text, n + sizeof guid - 1, digest);
    base64(digest, sizeof digest, out);
}

/* 16 bytes in base64: 22 digits and two pads. The four bits that the last digit has to spare may hold anything (RFC
 * 4648 section 3.5 leaves it to the decoder): clients that draw 22 random digits exist. */
static bool key_ok(cp_str key) {
    if (key.n != CP_WS_KEY_SIZE || key.p[22] != '=' || key.p[23] != '=') return false;
    for (size_t i = 0; i < 22; i++)
        if (!key.p[i] || !strchr(ALPHABET, key.p[i])) return false;
    return true;
}

/* Cuts the next non-empty element off a comma-separated list. */
static bool next_token(cp_str *list, cp_str *token) {
    while (list->n) {
        const char *comma = memchr(list->p, ',', list->n);
        size_t n = comma ? (size_t)(comma - list->p) : list->n, skip = n + (comma != NULL);
        *token = cp_str_trim((cp_str){list->p, n});
        *list = (cp_str){list->p + skip, list->n - skip};
        if (token->n) return true;
    }
    return false;
}

static bool list_has(cp_str list, const char *want) {
    cp_str token;
    while (next_token(&list, &token))
        if (cp_str_ieq(token, cp_str_of(want))) return true;
    return false;
}

/* ---- server ---- */

/* Several headers of one name are one list (RFC 9110 section 5.3). */
static bool header_has(const cp_ws_request *rq, const char *name, const char *want) {
    cp_str value;
    for (size_t i = 0; (value = rq->header(rq->ctx, name, i)).p; i++)
        if (list_has(value, want)) return true;
    return false;
}

/* The value of a header that must be there once; n 0 otherwise. */
static cp_str header_once(const cp_ws_request *rq, const char *name) {
    cp_str value = rq->header(rq->ctx, name, 0);
    return value.p && !rq->header(rq->ctx, name, 1).p ? cp_str_trim(value) : (cp_str){0};
}

/* A body would be read as frames by us, as a request by a proxy that did not understand the upgrade. */
static bool has_body(const cp_ws_request *rq) {
    cp_str length = rq->header(rq->ctx, "Content-Length", 0);
    return (length.p && !cp_str_is(cp_str_trim(length), "0")) || rq->header(rq->ctx, "Transfer-Encoding", 0).p;
}

static cp_str choose_protocol(const cp_ws_request *rq, const cp_str *supported, size_t n) {
    cp_str value, token;
    for (size_t i = 0; (value = rq->header(rq->ctx, "Sec-WebSocket-Protocol", i)).p; i++)
        while (next_token(&value, &token))
            for (size_t k = 0; k < n; k++)
                if (cp_str_eq(token, supported[k])) return supported[k];
    return (cp_str){0};
}

static int refuse(cp_ws_verdict *v, int status, const char *why, const char *extra) {
    v->status = status;
    v->why = why;
    v->extra = extra;
    return status;
}

bool cp_ws_wanted(const cp_ws_request *rq) { return header_has(rq, "Upgrade", "websocket"); }

static bool http_1_1(cp_str v) { return v.n == 3 && v.p[0] == '1' && v.p[1] == '.' && v.p[2] >= '1' && v.p[2] <= '9'; }

int cp_ws_check(const cp_ws_request *rq, const cp_str *supported, size_t n, cp_ws_verdict *v) {
    static const char upgrade[] = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n";
    *v = (cp_ws_verdict){.extra = ""};
    if (!cp_str_is(rq->method, "GET")) return refuse(v, 405, "a WebSocket is opened with GET", "Allow: GET\r\n");
    if (!http_1_1(rq->version)) return refuse(v, 400, "a WebSocket needs HTTP/1.1", "");
    if (!header_once(rq, "Host").n) return refuse(v, 400, "one Host header is needed", "");
    if (!cp_ws_wanted(rq)) return refuse(v, 426, "this is a WebSocket: Upgrade: websocket is needed", upgrade);
    if (!header_has(rq, "Connection", "upgrade")) return refuse(v, 426, "Connection: Upgrade is needed", upgrade);
    if (has_body(rq)) return refuse(v, 400, "an upgrade request has no body", "");
    cp_str version = header_once(rq, "Sec-WebSocket-Version"), key = header_once(rq, "Sec-WebSocket-Key");
    if (!version.n)
        return refuse(v, 400, "one Sec-WebSocket-Version header is needed", "Sec-WebSocket-Version: 13\r\n");
    if (!cp_str_is(version, "13")) return refuse(v, 426, "only WebSocket version 13 is spoken here", upgrade);
    if (!key_ok(key)) return refuse(v, 400, "Sec-WebSocket-Key must be 16 bytes in base64, once", "");
    v->status = 101;
    v->protocol = choose_protocol(rq, supported, n);
    cp_ws_accept(key, v->accept);
    return v->status;
}

void cp_ws_accept_head(cp_buf *out, const cp_ws_verdict *v, const char *extra) {
    cp_buf_addz(out, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                     "Sec-WebSocket-Accept: ");
    cp_buf_addz(out, v->accept);
    if (v->protocol.n) {
        cp_buf_addz(out, "\r\nSec-WebSocket-Protocol: ");
        cp_buf_add(out, v->protocol.p, v->protocol.n);
    }
    cp_buf_addz(out, "\r\n");
    if (extra) cp_buf_addz(out, extra);
    cp_buf_addz(out, "\r\n");
}

void cp_ws_refuse_head(cp_buf *out, const cp_ws_verdict *v, const char *type, size_t body_n) {
    const char *phrase = v->status == 426   ? "Upgrade Required"
                         : v->status == 405 ? "Method Not Allowed"
                                            : "Bad Request";
    /* RFC 9110 section 7.8: a sender of Upgrade names it in Connection. */
    const char *connection = v->status == 426 ? "Upgrade, close" : "close";
    cp_buf_addf(out, "HTTP/1.1 %d %s\r\nConnection: %s\r\n%sContent-Type: %s\r\nContent-Length: %zu\r\n\r\n", v->status,
                phrase, connection, v->extra, type, body_n);
}

/* ---- client ---- */

void cp_ws_request_head(cp_buf *out, const char *host, const char *target, const char *key, const char *extra) {
    cp_buf_addf(out,
                "GET %s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                "Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n%s\r\n",
                target, host, key, extra ? extra : "");
}

/* Cuts a line off, without its CRLF (or bare LF). */
static bool next_line(cp_str *text, cp_str *line) {
    const char *lf = text->n ? memchr(text->p, '\n', text->n) : NULL;
    if (!lf) return false;
    size_t n = (size_t)(lf - text->p);
    *line = (cp_str){text->p, n && text->p[n - 1] == '\r' ? n - 1 : n};
    *text = (cp_str){text->p + n + 1, text->n - n - 1};
    return true;
}

static bool split_header(cp_str line, cp_str *name, cp_str *value) {
    const char *colon = line.n ? memchr(line.p, ':', line.n) : NULL;
    if (!colon) return false;
    *name = (cp_str){line.p, (size_t)(colon - line.p)};
    *value = cp_str_trim((cp_str){colon + 1, line.n - name->n - 1});
    return true;
}

static bool is(cp_str name, const char *want) { return cp_str_ieq(name, cp_str_of(want)); }

typedef struct answer {
    bool upgrade, connection, extension;
    cp_str accept, protocol;
} answer;

static void note_header(answer *a, cp_str name, cp_str value) {
    if (is(name, "Upgrade")) a->upgrade |= is(value, "websocket");
    else if (is(name, "Connection")) a->connection |= list_has(value, "upgrade");
    else if (is(name, "Sec-WebSocket-Accept")) a->accept = value;
    else if (is(name, "Sec-WebSocket-Protocol")) a->protocol = value;
    else if (is(name, "Sec-WebSocket-Extensions")) a->extension |= value.n > 0;
}

int cp_ws_check_response(cp_str head, const char *key, cp_str *protocol, cp_err *err) {
    cp_str line, name, value;
    answer a = {0};
    char want[CP_WS_ACCEPT_SIZE + 1];
    if (!next_line(&head, &line) || !cp_str_starts(line, CP_STR("HTTP/1.1 ")) || line.n < 12)
        return cp_fail(err, CP_E_SERVICE_NOT_RESPONDING, "the answer to the upgrade is not HTTP/1.1");
    cp_str status = {line.p + 9, 3};
    if (!cp_str_is(status, "101"))
        return cp_fail(err, CP_E_SERVICE_NOT_RESPONDING, "the upgrade was refused: %.*s", (int)(line.n - 9),
                       line.p + 9);
    while (next_line(&head, &line) && line.n)
        if (split_header(line, &name, &value)) note_header(&a, name, value);
    cp_ws_accept(cp_str_of(key), want);
    if (!a.upgrade || !a.connection || !cp_str_is(a.accept, want))
        return cp_fail(err, CP_E_SERVICE_NOT_RESPONDING, "the answer to the upgrade is not a WebSocket's");
    if (a.extension) return cp_fail(err, CP_E_SERVICE_NOT_RESPONDING, "the server chose an extension nobody offered");
    if (a.protocol.n && !protocol)
        return cp_fail(err, CP_E_SERVICE_NOT_RESPONDING, "the server chose a subprotocol nobody offered");
    if (protocol) *protocol = a.protocol;
    return 0;
}
