/* A client's options, checked once and copied; and what of them every transfer needs. */
#include "transport/client/client_impl.h"

#include "base/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static char *copy(const char *z) { return z ? cp_str_dup(cp_str_of(z)) : NULL; }

static bool printable(const char *z) {
    for (; *z; z++)
        if ((unsigned char)*z <= ' ' || *z == 0x7f) return false;
    return true;
}

static void defaults(conflux_options *o) {
#define OR(field, value)                                                                                               \
    if (!o->field) o->field = (value)
    OR(connect_timeout_ms, 30000);
    OR(request_timeout_ms, 120000);
    OR(idle_timeout_ms, 300000);
    OR(ping_interval_ms, 15000);
    OR(backoff_ms, 250);
    OR(backoff_max_ms, 30000);
    OR(upgrade_retry_ms, 30000);
    OR(connections, 1);
    OR(http_connections, 64);
    OR(window, 1 << 20);
    OR(max_answer, 256 << 20);
#undef OR
}

/* ws and wss are http and https to libcurl: it is only to connect. */
static const char *scheme_of(const char *given, bool *tls) {
    static const struct {
        const char *name;
        bool tls;
    } known[] = {{"http", false}, {"ws", false}, {"https", true}, {"wss", true}};
    for (size_t i = 0; i < CP_COUNT(known); i++)
        if (cp_str_ieq(cp_str_of(given), cp_str_of(known[i].name))) {
            *tls = known[i].tls;
            return known[i].tls ? "https" : "http";
        }
    return NULL;
}

typedef struct url_parts {
    char *scheme, *host, *port, *path, *user, *query;
} url_parts;

static void parts_free(url_parts *p) {
    curl_free(p->scheme), curl_free(p->host), curl_free(p->port);
    curl_free(p->path), curl_free(p->user), curl_free(p->query);
}

static int use_parts(settings *s, const url_parts *p, conflux_error *err) {
    char text[320];
    const char *scheme = scheme_of(p->scheme, &s->tls);
    if (!scheme) return fail(err, CONFLUX_E_ARGUMENT, "the URL must begin with http, https, ws or wss");
    if (p->user) return fail(err, CONFLUX_E_ARGUMENT, "the URL must not hold a user or password: use the token");
    if (p->query) return fail(err, CONFLUX_E_ARGUMENT, "the URL must not have a query");
    if (strlen(p->host) > 255) return fail(err, CONFLUX_E_ARGUMENT, "the host name is too long");
    s->loopback = cp_host_is_loopback(cp_str_of(p->host));
    snprintf(text, sizeof text, "%s%s%s", p->host, p->port ? ":" : "", p->port ? p->port : "");
    s->host = copy(text);
    snprintf(text, sizeof text, "%s://%s", scheme, s->host);
    s->origin = copy(text);
    size_t n = strlen(p->path);
    while (n && p->path[n - 1] == '/') n--;
    s->prefix = cp_str_dup((cp_str){p->path, n});
    cp_autobuf cp_buf base = {0};
    cp_buf_addf(&base, "%s%s", s->origin, s->prefix);
    s->base = copy(cp_buf_z(&base));
    return 0;
}

static int parse_url(settings *s, const char *url, conflux_error *err) {
    url_parts p = {0};
    CURLU *u = curl_url();
    /* a scheme that this libcurl was not built with is none of its business here */
    CURLUcode rc = curl_url_set(u, CURLUPART_URL, url, CURLU_NON_SUPPORT_SCHEME);
    if (!rc) rc = curl_url_get(u, CURLUPART_SCHEME, &p.scheme, 0);
    if (!rc) rc = curl_url_get(u, CURLUPART_HOST, &p.host, 0);
    if (!rc) rc = curl_url_get(u, CURLUPART_PATH, &p.path, 0);
    curl_url_get(u, CURLUPART_PORT, &p.port, 0);
    curl_url_get(u, CURLUPART_USER, &p.user, 0);
    curl_url_get(u, CURLUPART_QUERY, &p.query, 0);
    int result = rc || !p.host
                     ? fail(err, CONFLUX_E_ARGUMENT, "the URL cannot be understood (%s)", curl_url_strerror(rc))
                     : use_parts(s, &p, err);
    parts_free(&p);
    curl_url_cleanup(u);
    return result;
}

static void wipe(char *z) {
    if (z) explicit_bzero(z, strlen(z));
    free(z);
}

void settings_fini(settings *s) {
    wipe(s->auth);
    wipe((char *)(uintptr_t)s->o.token);
    free((char *)(uintptr_t)s->o.url);
    free((char *)(uintptr_t)s->o.ca_file);
    free(s->base), free(s->origin), free(s->prefix), free(s->host);
    *s = (settings){0};
}

static int check(const conflux_options *o, conflux_error *err) {
    if (!o->url || !printable(o->url)) return fail(err, CONFLUX_E_ARGUMENT, "a URL without blanks is needed");
    if ((unsigned)o->mode > CONFLUX_HTTP) return fail(err, CONFLUX_E_ARGUMENT, "there is no such mode");
    if (o->token && (!*o->token || !printable(o->token)))
        return fail(err, CONFLUX_E_ARGUMENT, "the token is empty or holds blanks");
    if (o->ca_file && access(o->ca_file, R_OK) < 0)
        return fail(err, CONFLUX_E_TLS, "the file of authorities %s cannot be read", o->ca_file);
    return 0;
}

int settings_init(settings *s, const conflux_options *o, conflux_error *err) {
    *s = (settings){0};
    if (check(o, err) < 0 || parse_url(s, o->url, err) < 0) {
        settings_fini(s);
        return -1;
    }
    s->o = *o;
    defaults(&s->o);
    s->o.url = copy(o->url);
    s->o.token = copy(o->token);
    s->o.ca_file = copy(o->ca_file);
    if (!o->token) return 0;
    cp_buf b = {0};
    cp_buf_addf(&b, "Authorization: Bearer %s", o->token);
    cp_buf_addc(&b, '\0');
    s->auth = b.p; /* wiped with the rest; a buffer that grew may leave a copy behind, as malloc does everywhere */
    return 0;
}

static bool same(const char *a, const char *b) { return a == b || (a && b && strcmp(a, b) == 0); }

bool settings_equal(const settings *a, const settings *b) {
    return same(a->base, b->base) && same(a->o.token, b->o.token) && same(a->o.ca_file, b->o.ca_file) &&
           a->o.mode == b->o.mode && !a->o.insecure == !b->o.insecure && a->o.connections == b->o.connections &&
           a->o.http_connections == b->o.http_connections && a->o.window == b->o.window &&
           a->o.max_answer == b->o.max_answer;
}

/* libcurl's own does not ask for close-on-exec: another thread may be about to start a program. */
static curl_socket_t open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *a) {
    (void)arg, (void)purpose;
    int fd = socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
    return fd < 0 ? CURL_SOCKET_BAD : fd;
}

void settings_apply(const settings *s, CURL *easy, char *error) {
    error[0] = '\0';
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, error);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)(s->o.connect_timeout_ms & INT32_MAX));
    curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, s->o.insecure ? 0L : 1L);
    curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, s->o.insecure ? 0L : 2L);
    if (s->o.ca_file) {
        curl_easy_setopt(easy, CURLOPT_CAINFO, s->o.ca_file);
        curl_easy_setopt(easy, CURLOPT_CAPATH, NULL); /* these and no others */
    }
    if (s->loopback) curl_easy_setopt(easy, CURLOPT_NOPROXY, "*"); /* no proxy reaches this machine */
}
