/* Design notes. A web page can make its visitor's browser send any simple request to 127.0.0.1, `POST /api/execute`
 * with a text/plain body included, so a foreign Origin is refused on every request and not only where an answer would
 * be read. A page whose own name has been rebound to 127.0.0.1 is same-origin to the browser and sends no Origin on
 * GET: there the Host gives it away. Names without a dot cannot be had by an attacker in public DNS and are let
 * through. */
#include "transport/auth.h"

#include "base/host.h"
#include "base/sha.h"

#include <arpa/inet.h>
#include <stdio.h>

/* ---- hosts and origins ---- */

/* Splits "name:port", "[v6]:port"; the name keeps its brackets. False when malformed. */
static bool split_host(cp_str s, cp_str *name, cp_str *port) {
    size_t i = 0;
    if (s.n && s.p[0] == '[') {
        while (i < s.n && s.p[i] != ']') i++;
        if (i == s.n) return false;
        i++;
    } else {
        while (i < s.n && s.p[i] != ':') i++;
    }
    *name = (cp_str){s.p, i};
    *port = (cp_str){NULL, 0};
    if (i == s.n) return i > 0;
    uint64_t ignored;
    *port = (cp_str){s.p + i + 1, s.n - i - 1};
    return i > 0 && s.p[i] == ':' && (port->n == 0 || cp_str_u64(*port, 65535, &ignored));
}

static bool listed(const cp_strlist *list, cp_str s) {
    for (size_t i = 0; i < list->n; i++)
        if (cp_str_ieq(cp_str_of(list->v[i]), s)) return true;
    return false;
}

/* http://127.0.0.1:port, http://localhost:port, http://[::1]:port with our port, as browsers write them. */
static bool own_origin(const cp_gate *g, cp_str origin) {
    static const char *const hosts[] = {"127.0.0.1", "localhost", "[::1]"};
    char own[64];
    for (size_t i = 0; i < CP_COUNT(hosts); i++) {
        snprintf(own, sizeof own, g->port == 80 ? "http://%s" : "http://%s:%u", hosts[i], (unsigned)g->port);
        if (cp_str_ieq(origin, cp_str_of(own))) return true;
    }
    return false;
}

/* "null" is what sandboxed frames and file: pages send: anybody. It cannot be listed either. */
static bool origin_ok(const cp_gate *g, cp_str origin) {
    if (cp_str_ieq(origin, CP_STR("null"))) return false;
    return own_origin(g, origin) || listed(&g->config->allow_origin, origin);
}

bool cp_gate_checks_host(const cp_gate *g) {
    return !g->config->has_token && cp_host_is_loopback(cp_str_of(g->config->host));
}

static bool host_ok(const cp_gate *g, cp_str host) {
    cp_str name, port;
    struct in_addr v4;
    struct in6_addr v6;
    if (!split_host(host, &name, &port)) return false;
    if (listed(&g->config->allow_host, name) || listed(&g->config->allow_host, host)) return true;
    if (name.p[0] == '[') return cp_host_parse_ip(AF_INET6, cp_host_unbracket(name), &v6);
    return cp_host_is_localhost(name) || !memchr(name.p, '.', name.n) || cp_host_parse_ip(AF_INET, name, &v4);
}

/* ---- token ---- */

static bool token_ok(const cp_gate *g, cp_str token) {
    uint8_t digest[CP_SHA256_SIZE];
    cp_sha256_of(token.p, token.n, digest);
    return cp_equal_ct(digest, g->config->token_sha256, sizeof digest);
}

static bool bearer(cp_str value, cp_str *token) {
    static const cp_str scheme = {"Bearer ", 7};
    if (value.n <= scheme.n || !cp_str_ieq((cp_str){value.p, scheme.n}, scheme)) return false;
    *token = cp_str_trim((cp_str){value.p + scheme.n, value.n - scheme.n});
    return token->n > 0;
}

static cp_str next_offer(cp_str *list) {
    const char *comma = memchr(list->p, ',', list->n);
    size_t n = comma ? (size_t)(comma - list->p) : list->n;
    cp_str one = cp_str_trim((cp_str){list->p, n});
    list->p += n + !!comma;
    list->n -= n + !!comma;
    return one;
}

static bool is_token_offer(cp_str offer) { return cp_str_starts(offer, CP_STR("bearer.")); }

static bool offers_token(const cp_gate *g, cp_str list) {
    while (list.n) {
        cp_str offer = next_offer(&list);
        if (is_token_offer(offer) && token_ok(g, (cp_str){offer.p + 7, offer.n - 7})) return true;
    }
    return false;
}

static bool has_token(const cp_gate *g, const cp_header *h, size_t n, bool upgrade) {
    for (size_t i = 0; i < n; i++) {
        cp_str token;
        if (cp_str_ieq(h[i].name, CP_STR("Authorization")) && bearer(h[i].value, &token) && token_ok(g, token))
            return true;
        if (cp_str_ieq(h[i].name, CP_STR("X-Access-Token")) && h[i].value.n && token_ok(g, h[i].value)) return true;
        if (upgrade && cp_str_ieq(h[i].name, CP_STR("Sec-WebSocket-Protocol")) && offers_token(g, h[i].value))
            return true;
    }
    return false;
}

static cp_str value_of(const cp_header *h, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (cp_str_ieq(h[i].name, cp_str_of(name))) return h[i].value;
    return (cp_str){0};
}

/* A page may load what it likes as a script, an image or a frame without asking: no Origin is sent then, but browsers
 * say where the request comes from (W3C Fetch Metadata). Somebody who follows a link to us may; where there is an
 * Origin, that decides. */
static bool fetched_by_foreign_page(const cp_header *h, size_t n) {
    cp_str site = value_of(h, n, "Sec-Fetch-Site");
    if (!cp_str_ieq(site, CP_STR("cross-site")) && !cp_str_ieq(site, CP_STR("same-site"))) return false;
    if (value_of(h, n, "Origin").p) return false;
    return !cp_str_ieq(value_of(h, n, "Sec-Fetch-Mode"), CP_STR("navigate")) ||
           !cp_str_ieq(value_of(h, n, "Sec-Fetch-Dest"), CP_STR("document"));
}

int cp_gate_check(const cp_gate *g, const cp_header *h, size_t n, bool open, bool upgrade, cp_err *err) {
    for (size_t i = 0; i < n; i++)
        if (cp_str_ieq(h[i].name, CP_STR("Origin")) && !origin_ok(g, h[i].value))
            return cp_fail(err, CP_E_ORIGIN_NOT_ALLOWED, "Requests from this web origin are not allowed");
    if (fetched_by_foreign_page(h, n))
        return cp_fail(err, CP_E_ORIGIN_NOT_ALLOWED, "Requests from pages of another site are not allowed");
    bool check_host = cp_gate_checks_host(g);
    for (size_t i = 0; check_host && i < n; i++)
        if (cp_str_ieq(h[i].name, CP_STR("Host")) && !host_ok(g, h[i].value))
            return cp_fail(err, CP_E_HOST_NOT_ALLOWED, "This host name is not allowed");
    if (!open && g->config->has_token && !has_token(g, h, n, upgrade))
        return cp_fail(err, CP_E_UNAUTHORIZED, "A valid bearer token is required");
    return 0;
}

size_t cp_gate_strip(const cp_gate *g, cp_header *h, size_t n) {
    if (!g->config->has_token) return n;
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        bool secret = cp_str_ieq(h[i].name, CP_STR("Authorization")) ||
                      cp_str_ieq(h[i].name, CP_STR("X-Access-Token")) ||
                      cp_str_ieq(h[i].name, CP_STR("Sec-WebSocket-Protocol"));
        if (!secret) h[kept++] = h[i];
    }
    return kept;
}

/* ---- CORS ---- */

/* Values: cloudflare-sandbox.md section 1. Vary on every reply, so that no cache hands one origin's reply to another.
 */
void cp_cors_headers(cp_str origin, cp_buf *out) {
    static const char rest[] = "Access-Control-Allow-Methods: GET, POST, PUT, DELETE, OPTIONS\r\n"
                               "Access-Control-Allow-Headers: Content-Type, Authorization, X-Access-Token, "
                               "X-Session-Id, X-Sandbox-Id, X-Trace-Id\r\n";
    cp_buf_addz(out, "Access-Control-Allow-Origin: ");
    if (origin.n) cp_buf_add(out, origin.p, origin.n);
    else cp_buf_addc(out, '*');
    cp_buf_addz(out, "\r\nVary: Origin\r\n");
    cp_buf_add(out, rest, sizeof rest - 1);
}
