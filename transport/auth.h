#pragma once
/* Who may call: the checks of design.md section 11 that come before a request's body is read, and the CORS headers that
 * follow from them. Pure: any thread. */
#include "handlers/request.h"
#include "schema/config.h"

typedef struct cp_gate {
    const cp_config *config;
    uint16_t port; /* that we listen on */
} cp_gate;

/* The WebSocket subprotocol that we choose when it is offered. A browser, which cannot set headers on a WebSocket,
 * offers it beside "bearer.<token>": the server needs an answer to give, and must not give the token back. */
#define CP_WS_SUBPROTOCOL "conflux"

/* Origin (with Sec-Fetch-Site where there is none), Host and token, in this order: 0, or -1 with ORIGIN_NOT_ALLOWED,
 * HOST_NOT_ALLOWED or UNAUTHORIZED. `open`: no token is needed (CP_R_OPEN, and OPTIONS: a preflight carries none). The
 * token comes as Authorization: Bearer, or as X-Access-Token, for proxies that take Authorization away; with `upgrade`
 * also as subprotocol. The token is never taken from the query string, which ends up in logs. */
int cp_gate_check(const cp_gate *g, const cp_header *h, size_t n, bool open, bool upgrade, cp_err *err);

/* True when the Host check applies: we listen on loopback and nothing else tells our own clients from a web page whose
 * name has been rebound to 127.0.0.1. */
bool cp_gate_checks_host(const cp_gate *g);

/* With a token configured Authorization names no session, and is none of the handlers' business: takes the header (and
 * a bearer.* subprotocol offer) out of h[0..n) and returns the new count. */
size_t cp_gate_strip(const cp_gate *g, cp_header *h, size_t n);

/* Appends the Access-Control lines. origin: of a request that passed cp_gate_check, {NULL,0} when it had none. */
void cp_cors_headers(cp_str origin, cp_buf *out);
