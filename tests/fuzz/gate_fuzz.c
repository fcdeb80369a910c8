/* Who is let in: Host, Origin, Authorization, and tokens among the subprotocols that are offered. Compared with a
 * plainer reading. Input: one byte that chooses the options, then lines "Name: value". */
#include <arpa/inet.h>
#include <ctype.h>
#include <stdlib.h>

#include "base/sha.h"
#include "transport/auth.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define TOKEN "secret-1"

enum { HEADERS = 32, HAS_TOKEN = 1, PUBLIC = 2, OPEN = 4, UPGRADE = 8, PORT_80 = 16 };

static void require(bool ok) {
    if (!ok) abort();
}

static size_t read_headers(cp_str text, cp_header h[HEADERS]) {
    size_t n = 0;
    for (size_t from = 0, to; from < text.n && n < HEADERS; from = to + 1) {
        for (to = from; to < text.n && text.p[to] != '\n'; to++) continue;
        const char *colon = to > from ? memchr(text.p + from, ':', to - from) : NULL;
        if (!colon) continue;
        size_t name = (size_t)(colon - text.p - from);
        h[n++] = (cp_header){{text.p + from, name}, cp_str_trim((cp_str){colon + 1, to - from - name - 1})};
    }
    return n;
}

static bool named(const cp_header *h, const char *name) { return cp_str_ieq(h->name, cp_str_of(name)); }

/* ---- the plainer reading: on copies that end in NUL ---- */

static bool is_v4(const char *z) { return inet_pton(AF_INET, z, &(struct in_addr){0}) == 1; }
static bool is_v6(const char *z) { return inet_pton(AF_INET6, z, &(struct in6_addr){0}) == 1; }

static bool good_port(const char *z) {
    if (strspn(z, "0123456789") != strlen(z)) return false;
    while (*z == '0') z++;
    return strlen(z) <= 5 && atol(z) <= 65535;
}

static bool slow_host(cp_str value) {
    cp_autofree char *z = cp_str_dup(value);
    if (strlen(z) != value.n) { /* with a NUL it is no name: only one without a dot is let through */
        const char *colon = memchr(value.p, ':', value.n);
        size_t n = colon ? (size_t)(colon - value.p) : value.n;
        return value.p[0] != '[' && n && !memchr(value.p, '.', n) &&
               (!colon || (!memchr(colon, 0, value.n - n) && good_port(z + n + 1)));
    }
    char *end = z[0] == '[' ? strchr(z, ']') : z + strcspn(z, ":");
    if (!end) return false;
    if (z[0] == '[') end++;
    if (end == z || (*end && *end != ':') || (*end && !good_port(end + 1))) return false;
    bool bracketed = z[0] == '[';
    *end = 0;
    if (strcasecmp(z, "allowed.example") == 0) return true;
    if (bracketed) {
        end[-1] = 0;
        return is_v6(z + 1);
    }
    return strcasecmp(z, "localhost") == 0 || strcasecmp(z, "localhost.") == 0 || !strchr(z, '.') || is_v4(z);
}

static bool slow_origin(cp_str value, uint16_t port) {
    static const char *const hosts[] = {"127.0.0.1", "localhost", "[::1]"};
    bool ok = cp_str_ieq(value, CP_STR("https://app.example"));
    for (size_t i = 0; i < CP_COUNT(hosts); i++) {
        cp_autobuf cp_buf own = {0};
        cp_buf_addf(&own, "http://%s", hosts[i]);
        if (port != 80) cp_buf_addf(&own, ":%u", port);
        ok |= cp_str_ieq(value, cp_buf_str(&own));
    }
    return ok;
}

static bool slow_offer(cp_str list) {
    bool found = false;
    for (size_t from = 0, to; from < list.n; from = to + 1) {
        for (to = from; to < list.n && list.p[to] != ','; to++) continue;
        found |= cp_str_is(cp_str_trim((cp_str){list.p + from, to - from}), "bearer." TOKEN);
    }
    return found;
}

static bool slow_bearer(cp_str value) {
    return value.n > 7 && cp_str_ieq((cp_str){value.p, 7}, CP_STR("Bearer ")) &&
           cp_str_is(cp_str_trim((cp_str){value.p + 7, value.n - 7}), TOKEN);
}

static cp_code slow_check(unsigned how, uint16_t port, const cp_header *h, size_t n) {
    bool bad_origin = false, bad_host = false, token = false;
    for (size_t i = 0; i < n; i++) {
        if (named(&h[i], "Origin")) bad_origin |= !slow_origin(h[i].value, port);
        if (named(&h[i], "Host")) bad_host |= !slow_host(h[i].value);
        if (named(&h[i], "Authorization")) token |= slow_bearer(h[i].value);
        if (named(&h[i], "Sec-WebSocket-Protocol")) token |= (how & UPGRADE) && slow_offer(h[i].value);
    }
    if (bad_origin) return CP_E_ORIGIN_NOT_ALLOWED;
    if (bad_host && !(how & (HAS_TOKEN | PUBLIC))) return CP_E_HOST_NOT_ALLOWED;
    return (how & HAS_TOKEN) && !(how & OPEN) && !token ? CP_E_UNAUTHORIZED : CP_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char host[] = "127.0.0.1", public[] = "0.0.0.0", name[] = "allowed.example",
                origin[] = "https://app.example";
    static char *names[] = {name}, *origins[] = {origin};
    if (size == 0) return 0;
    unsigned how = data[0];
    cp_config c = {.has_token = how & HAS_TOKEN, .host = how & PUBLIC ? public : host};
    c.allow_host = (cp_strlist){.v = names, .n = 1};
    c.allow_origin = (cp_strlist){.v = origins, .n = 1};
    cp_sha256_of(TOKEN, strlen(TOKEN), c.token_sha256);
    cp_gate g = {.config = &c, .port = how & PORT_80 ? 80 : 3000};
    cp_header h[HEADERS];
    size_t n = read_headers((cp_str){(const char *)data + 1, size - 1}, h);
    cp_err err = {0};
    int rc = cp_gate_check(&g, h, n, how & OPEN, how & UPGRADE, &err);
    require(rc == 0 || err.msg[0]);
    require((rc ? err.code : CP_OK) == slow_check(how, g.port, h, n));
    size_t left = cp_gate_strip(&g, h, n);
    require(how & HAS_TOKEN ? left <= n : left == n);
    for (size_t i = 0; (how & HAS_TOKEN) && i < left; i++)
        require(!named(&h[i], "Authorization") && !named(&h[i], "Sec-WebSocket-Protocol"));
    return 0;
}
