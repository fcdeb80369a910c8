#pragma once
/* The opening handshake of RFC 6455, section 4, for both ends. Pure. No extension is negotiated: an offered
 * permessage-deflate is left unanswered, which declines it. */
#include "base/buf.h"
#include "base/err.h"

enum { CP_WS_ACCEPT_SIZE = 28, CP_WS_KEY_SIZE = 24 };

/* What the server's HTTP side knows of a request. Everything is borrowed. */
typedef struct cp_ws_request {
    cp_str method;
    cp_str version; /* "1.1" */
    /* Value of the index-th header of that name (compared case-insensitively); p NULL when there are not so many. */
    cp_str (*header)(const void *ctx, const char *name, size_t index);
    const void *ctx;
} cp_ws_request;

typedef struct cp_ws_verdict {
    int status;                         /* 101, or 400, 405, 426 */
    const char *why;                    /* static text for the client when refused */
    const char *extra;                  /* static header lines that the refusal must carry, each with its CRLF; "" */
    cp_str protocol;                    /* the subprotocol chosen: points into `supported`; n 0 for none */
    char accept[CP_WS_ACCEPT_SIZE + 1]; /* Sec-WebSocket-Accept */
} cp_ws_verdict;

/* True when the request asks for a WebSocket at all (an Upgrade header names it), well-formed or not. */
bool cp_ws_wanted(const cp_ws_request *rq);

/* Decides (section 4.2.1) and returns the status. The subprotocol is the first of the client's offers that is in
 * supported[0..n), none if no offer is. */
int cp_ws_check(const cp_ws_request *rq, const cp_str *supported, size_t n, cp_ws_verdict *v);

/* Appends the whole 101 response, with `extra` header lines (each with its CRLF; NULL for none). */
void cp_ws_accept_head(cp_buf *out, const cp_ws_verdict *v, const char *extra);

/* Appends the head of a refusal that announces body_n bytes of the given type and the end of the connection. */
void cp_ws_refuse_head(cp_buf *out, const cp_ws_verdict *v, const char *type, size_t body_n);

/* ---- client ---- */

/* Sec-WebSocket-Key of 16 random bytes, and the accept value that belongs to a key. Both end in NUL. */
void cp_ws_key(const uint8_t nonce[16], char out[CP_WS_KEY_SIZE + 1]);
void cp_ws_accept(cp_str key, char out[CP_WS_ACCEPT_SIZE + 1]);

/* Appends the whole upgrade request. extra: header lines, each with its CRLF; NULL for none. The caller vouches that
 * host, target and extra hold no stray CR or LF. */
void cp_ws_request_head(cp_buf *out, const char *host, const char *target, const char *key, const char *extra);

/* Judges the server's response head (status line to the empty line) against the key that was sent: section 4.1.
 * *protocol is the chosen subprotocol, borrowed from head, n 0 for none; protocol may be NULL when none was offered,
 * and one that is answered all the same fails. Returns 0, or -1 with err. */
int cp_ws_check_response(cp_str head, const char *key, cp_str *protocol, cp_err *err);
