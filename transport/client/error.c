#include "transport/client/client_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const kinds[] = {
    [CONFLUX_OK] = "OK",
    [CONFLUX_E_ARGUMENT] = "ARGUMENT",
    [CONFLUX_E_CONNECT] = "CONNECT",
    [CONFLUX_E_CONNECT_TIMEOUT] = "CONNECT_TIMEOUT",
    [CONFLUX_E_TLS] = "TLS",
    [CONFLUX_E_UPGRADE] = "UPGRADE",
    [CONFLUX_E_UNAUTHORIZED] = "UNAUTHORIZED",
    [CONFLUX_E_REQUEST_TIMEOUT] = "REQUEST_TIMEOUT",
    [CONFLUX_E_IDLE_TIMEOUT] = "IDLE_TIMEOUT",
    [CONFLUX_E_CONNECTION_LOST] = "CONNECTION_LOST",
    [CONFLUX_E_CANCELLED] = "CANCELLED",
    [CONFLUX_E_TOO_LARGE] = "TOO_LARGE",
    [CONFLUX_E_PROTOCOL] = "PROTOCOL",
    [CONFLUX_E_SERVER] = "SERVER",
    [CONFLUX_E_UNSUPPORTED] = "UNSUPPORTED",
    [CONFLUX_E_DEADLOCK] = "DEADLOCK",
    [CONFLUX_E_SYSTEM] = "SYSTEM",
};

const char *conflux_kind_name(conflux_kind kind) { return (unsigned)kind < CP_COUNT(kinds) ? kinds[kind] : "UNKNOWN"; }

const char *conflux_mode_name(conflux_mode mode) {
    static const char *const names[] = {"auto", "websocket", "http"};
    return (unsigned)mode < CP_COUNT(names) ? names[mode] : "unknown";
}

const char *conflux_state_name(conflux_state state) {
    static const char *const names[] = {"disconnected", "connecting", "connected", "reconnecting"};
    return (unsigned)state < CP_COUNT(names) ? names[state] : "unknown";
}

int fail(conflux_error *err, conflux_kind kind, const char *fmt, ...) {
    if (!err) return -1;
    va_list ap;
    va_start(ap, fmt);
    *err = (conflux_error){.kind = kind};
    vsnprintf(err->message, sizeof err->message, fmt, ap);
    va_end(ap);
    return -1;
}

static conflux_kind kind_of(CURLcode rc) {
    switch (rc) {
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT: return CONFLUX_E_CONNECT;
    case CURLE_OPERATION_TIMEDOUT: return CONFLUX_E_CONNECT_TIMEOUT;
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_ENGINE_INITFAILED:
    case CURLE_SSL_CACERT_BADFILE: return CONFLUX_E_TLS;
    case CURLE_FILESIZE_EXCEEDED: return CONFLUX_E_TOO_LARGE;
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_WEIRD_SERVER_REPLY: return CONFLUX_E_PROTOCOL;
    case CURLE_OUT_OF_MEMORY: return CONFLUX_E_SYSTEM;
    default: return CONFLUX_E_CONNECTION_LOST; /* sending, receiving, an end in the middle, a rewind that we forbid */
    }
}

/* libcurl says that it could not connect, and keeps why to itself. */
static const char *reason(CURLcode rc, CURL *easy) {
    long sys = 0;
    if (rc != CURLE_COULDNT_CONNECT || curl_easy_getinfo(easy, CURLINFO_OS_ERRNO, &sys) != CURLE_OK || !sys)
        return NULL;
    return strerrordesc_np((int)sys);
}

void fail_curl(conflux_error *err, CURLcode rc, CURL *easy, const char *text) {
    if (!text || !*text) text = curl_easy_strerror(rc);
    const char *why = reason(rc, easy), *colon = strrchr(text, ':');
    if (why && colon) fail(err, kind_of(rc), "%.*s: %s", (int)(colon - text), text, why);
    else fail(err, kind_of(rc), "%s%s%s", text, why ? ": " : "", why ? why : "");
}

/* What says nothing leaves OUT as it is. */
static void copy_field(yyjson_val *obj, const char *key, char *out, size_t size) {
    cp_str s = {0};
    if (cp_json_str(obj, key, false, &s, NULL) == 0 && s.p && s.p[0]) snprintf(out, size, "%.*s", (int)s.n, s.p);
}

void fail_server(conflux_error *err, int status, const char *body, size_t n) {
    fail(err, CONFLUX_E_SERVER, "the server answered with status %d", status);
    if (!err) return;
    err->status = status;
    err->retry_safe = status == 429 || status == 503; /* refused before anything was begun */
    if (!n || n > INT32_MAX) return;
    cp_autodoc yyjson_doc *doc = yyjson_read(body, n, 0);
    yyjson_val *root = yyjson_doc_get_root(doc);
    if (!yyjson_is_obj(root)) return;
    copy_field(root, "code", err->code, sizeof err->code);
    copy_field(root, "message", err->message, sizeof err->message);
}

int conflux_check(const conflux_response *r, conflux_error *err) {
    if (r->status < 400) return 0;
    fail_server(err, r->status, r->body, r->body_len);
    return -1;
}

void conflux_response_free(conflux_response *r) {
    free(r->body);
    free(r->headers);
    *r = (conflux_response){0};
}
