/* Calls over HTTP: a transfer of libcurl each, on connections that it keeps.
 *
 * The trap: when a kept connection turns out to be dead before a byte of the answer came, libcurl sends the request
 * again by itself. The server may have died of this very request, or after it had started it: a command would run
 * twice. libcurl gives up instead when it cannot rewind the body, so a request that must not be repeated has a body
 * that can be read once; and one without a body gets a connection of its own. Connections are not used again when they
 * have been idle for nearly as long as a server keeps them (15 s). */
#include "transport/client/client_impl.h"

#include "base/id.h"

#include <stdio.h>
#include <stdlib.h>

enum { KEEP_S = 10, SPARE = 64 };

struct http_call {
    CURL *easy;
    conflux_call *call; /* NULL: the probe, or an ending */
    ending *ending;
    engine *eng;
    http_call *next; /* spare */
    struct curl_slist *headers;
    cp_buf head, body, piece;
    cp_buf request; /* the call's body with options put in, if there are any */
    cp_str send;    /* that, or the body itself, which stays the call's: it may be sent again elsewhere */
    size_t read;
    sse sse;
    bool judged, events, collect, paused, too_large;
    char error[CURL_ERROR_SIZE];
};

/* ---- the answer ---- */

static void on_sse(void *arg, const conflux_event *ev) {
    http_call *h = arg;
    call_event(h->call, ev);
}

static bool is_event_stream(CURL *easy) {
    char *type = NULL;
    curl_easy_getinfo(easy, CURLINFO_CONTENT_TYPE, &type);
    return type && cp_str_starts(cp_str_of(type), CP_STR("text/event-stream"));
}

/* Once per answer, when its first byte is there: an error's body, and an answer nobody wants as a stream, is kept. */
static void judge(http_call *h) {
    long status = 0;
    if (h->judged) return;
    h->judged = true;
    curl_easy_getinfo(h->easy, CURLINFO_RESPONSE_CODE, &status);
    h->collect = !h->call || !h->call->stream || status >= 400;
    h->events = !h->collect && is_event_stream(h->easy);
    if (h->events) sse_init(&h->sse, (size_t)h->eng->set.o.max_answer, on_sse, h);
}

static void on_piece(http_call *h, const char *p, size_t n) {
    cp_buf_clear(&h->piece);
    cp_buf_add(&h->piece, p, n);
    conflux_event ev = {.data = cp_buf_z(&h->piece), .len = n};
    call_event(h->call, &ev);
}

static size_t on_body(char *p, size_t size, size_t n, void *arg) {
    http_call *h = arg;
    n *= size;
    judge(h);
    if (h->collect) {
        h->too_large = h->body.n + n > h->eng->set.o.max_answer;
        if (!h->too_large) cp_buf_add(&h->body, p, n);
        return h->too_large ? 0 : n;
    }
    if (h->call->unconsumed >= h->eng->set.o.window) {
        h->paused = true;
        return CURL_WRITEFUNC_PAUSE;
    }
    if (!h->events) on_piece(h, p, n);
    else h->too_large = sse_feed(&h->sse, p, n) < 0;
    return h->too_large ? 0 : n;
}

/* A second head (after 100 Continue) replaces the first. */
static size_t on_head(char *p, size_t size, size_t n, void *arg) {
    http_call *h = arg;
    n *= size;
    if (cp_str_starts((cp_str){p, n}, CP_STR("HTTP/"))) cp_buf_clear(&h->head);
    if (h->head.n + n > 256 * 1024) return 0;
    cp_buf_add(&h->head, p, n);
    return n;
}

void http_credit(conflux_call *c) {
    http_call *h = c->http;
    if (!h->paused || c->unconsumed > c->eng->set.o.window / 2) return;
    h->paused = false;
    curl_easy_pause(h->easy, CURLPAUSE_CONT);
}

/* ---- the request ---- */

static size_t on_read(char *p, size_t size, size_t n, void *arg) {
    http_call *h = arg;
    size_t left = h->send.n - h->read, take = n * size < left ? n * size : left;
    if (take) memcpy(p, h->send.p + h->read, take);
    h->read += take;
    return take;
}

/* A command without an id nobody could end: cutting its connection does not. */
static bool needs_id(const conflux_call *c) {
    if (c->content_type || c->execution_id || c->about) return false;
    cp_str path = {c->path, strcspn(c->path, "?")};
    return cp_str_is(path, "/api/execute") || cp_str_is(path, "/api/execute/stream");
}

static void set_body(http_call *h) {
    conflux_call *c = h->call;
    char pairs[128] = "";
    int n = 0;
    if (c->priority != CC_NORMAL) n = snprintf(pairs, sizeof pairs, "\"priority\":%u,", c->priority);
    if (c->kill_on_disconnect) n += snprintf(pairs + n, sizeof pairs - (size_t)n, "\"onDisconnect\":\"kill\",");
    if (needs_id(c)) {
        if (!*c->http_id) cp_random_hex(c->http_id, sizeof c->http_id - 1); /* the same for a second attempt */
        snprintf(pairs + n, sizeof pairs - (size_t)n, "\"executionId\":\"%s\",", c->http_id);
    }
    bool insert = *pairs && !c->content_type;
    if (insert) json_insert(&h->request, cp_buf_str(&c->body), cp_str_of(pairs));
    h->send = cp_buf_str(insert ? &h->request : &c->body);
    curl_easy_setopt(h->easy, CURLOPT_POST, 1L);
    curl_easy_setopt(h->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)h->send.n);
    if (c->idempotent) {
        curl_easy_setopt(h->easy, CURLOPT_POSTFIELDS, h->send.n ? h->send.p : "");
    } else {
        curl_easy_setopt(h->easy, CURLOPT_READFUNCTION, on_read);
        curl_easy_setopt(h->easy, CURLOPT_READDATA, h);
    }
}

static void add_header(http_call *h, const char *line) { h->headers = curl_slist_append(h->headers, line); }

static void set_request(http_call *h) {
    conflux_call *c = h->call;
    char type[160];
    bool body = c->body.n || c->content_type;
    for (const struct curl_slist *s = c->headers; s; s = s->next) add_header(h, s->data);
    if (body) {
        snprintf(type, sizeof type, "Content-Type: %s", c->content_type ? c->content_type : "application/json");
        add_header(h, type);
        add_header(h, "Expect:"); /* a round trip that no server of ours needs */
        set_body(h);
    } else if (!c->idempotent) {
        curl_easy_setopt(h->easy, CURLOPT_FRESH_CONNECT, 1L);
    }
    if (strcmp(c->method, "HEAD") == 0) curl_easy_setopt(h->easy, CURLOPT_NOBODY, 1L);
    else if (strcmp(c->method, "GET") != 0 || body) curl_easy_setopt(h->easy, CURLOPT_CUSTOMREQUEST, c->method);
}

static http_call *http_new(engine *e, conflux_call *c, const char *path) {
    http_call *h = e->spare;
    if (h) {
        e->spare = h->next;
        e->nspare--;
    } else {
        h = cp_new(http_call);
        h->easy = curl_easy_init();
    }
    CURL *easy = h->easy;
    *h = (http_call){.easy = easy, .eng = e, .call = c, .head = h->head, .piece = h->piece};
    cp_buf_clear(&h->head);
    cp_autobuf cp_buf url = {0};
    cp_buf_addf(&url, "%s%s", e->set.base, path);
    settings_apply(&e->set, easy, h->error);
    curl_easy_setopt(easy, CURLOPT_URL, cp_buf_z(&url));
    curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, h);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, h);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_head);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, h);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "libconflux/" CONFLUX_VERSION);
    curl_easy_setopt(easy, CURLOPT_MAXAGE_CONN, (long)KEEP_S);
    if (e->set.auth) add_header(h, e->set.auth);
    if (c) set_request(h);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, h->headers);
    return h;
}

void http_free(http_call *h) {
    engine *e = h->eng;
    pump_remove(&e->http, h->easy);
    curl_slist_free_all(h->headers);
    cp_buf_free(&h->request);
    cp_buf_free(&h->body);
    sse_fini(&h->sse);
    if (e->nspare >= SPARE) {
        curl_easy_cleanup(h->easy);
        cp_buf_free(&h->head);
        cp_buf_free(&h->piece);
        free(h);
        return;
    }
    curl_easy_reset(h->easy); /* the token is not kept in it */
    h->headers = NULL;
    h->next = e->spare;
    e->spare = h;
    e->nspare++;
}

/* ---- running ---- */

bool http_sent(const conflux_call *c) {
    long bytes = 0;
    if (c->http) curl_easy_getinfo(c->http->easy, CURLINFO_REQUEST_SIZE, &bytes);
    return bytes > 0;
}

static conflux_call *next_waiting(engine *e) {
    for (int k = CC_PRIORITIES; k-- > 0;) {
        conflux_call *c = queue_pop(&e->http_waiting[k]);
        if (c) return c;
    }
    return NULL;
}

static void begin(engine *e, conflux_call *c) {
    conflux_error err;
    c->http = http_new(e, c, c->path);
    c->state = CALL_SENT;
    if (!c->stream) e->http_running++;
    if (pump_add(&e->http, c->http->easy, &err) < 0) call_end(c, NULL, &err);
}

static void begin_waiting(engine *e) {
    conflux_call *c;
    while (e->http_running < e->set.o.http_connections && (c = next_waiting(e))) begin(e, c);
}

void http_add_call(engine *e, conflux_call *c) {
    conflux_error err;
    call_placed(c, CONFLUX_HTTP);
    queue_push(&e->http_waiting[c->priority], c);
    if (c->early) {
        fail(&err, CONFLUX_E_UNSUPPORTED, "input can be sent over a WebSocket only");
        call_end(c, NULL, &err);
    } else if (c->stream) {
        queue_drop(&e->http_waiting[c->priority], c);
        begin(e, c);
    } else {
        begin_waiting(e);
    }
}

void http_drop_call(engine *e, conflux_call *c) {
    if (c->state == CALL_QUEUED) {
        queue_drop(&e->http_waiting[c->priority], c);
        return;
    }
    if (!c->http) return;
    http_free(cp_take(c->http));
    if (c->stream) return;
    e->http_running--;
    cp_loop_defer(e->loop, &e->http_next, http_next);
}

void http_next(cp_deferred *d) { begin_waiting(CP_CONTAINER(d, engine, http_next)); }

static void probe_done(http_call *h, CURLcode rc) {
    engine *e = h->eng;
    conflux_error err = {0};
    long status = 0;
    curl_easy_getinfo(h->easy, CURLINFO_RESPONSE_CODE, &status);
    if (rc) {
        fail_curl(&err, rc, h->easy, h->error);
        if (err.kind == CONFLUX_E_CONNECTION_LOST) err.kind = CONFLUX_E_CONNECT;
    } else if (status >= 400) {
        fail_server(&err, (int)status, h->body.p, h->body.n);
        err.kind = status == 401 || status == 403 ? CONFLUX_E_UNAUTHORIZED : CONFLUX_E_CONNECT;
    }
    http_free(cp_take(e->probe));
    dial_probed(e, err.kind ? &err : NULL);
}

static void answered(http_call *h, int status) {
    conflux_response r = {.status = status, .mode = CONFLUX_HTTP, .body_len = h->body.n};
    cp_buf_z(&h->body);
    cp_buf_z(&h->head);
    r.body = r.body_len ? cp_take(h->body).p : NULL;
    r.headers = cp_take(h->head).p;
    call_end(h->call, &r, NULL);
}

static void call_done(http_call *h, CURLcode rc) {
    conflux_error err;
    conflux_call *c = h->call;
    long status = 0;
    curl_easy_getinfo(h->easy, CURLINFO_RESPONSE_CODE, &status);
    if (!rc) {
        answered(h, (int)status);
        return;
    }
    fail_curl(&err, rc, h->easy, h->error);
    if (h->too_large)
        fail(&err, CONFLUX_E_TOO_LARGE, "the answer is over %llu bytes", (unsigned long long)h->eng->set.o.max_answer);
    else if (http_sent(c)) /* libcurl's second attempt may have failed otherwise than the first, which had sent it */
        err.kind = CONFLUX_E_CONNECTION_LOST;
    if (err.kind == CONFLUX_E_CONNECT && !c->over_http && c->eng->active != CONFLUX_WEBSOCKET) {
        http_drop_call(c->eng, c); /* nobody there: it waits, as it would without a WebSocket */
        dial_lost_http(c->eng, &err);
        c->state = CALL_NEW;
        engine_route(c->eng, c);
    } else {
        call_end(c, NULL, &err);
    }
}

static void ending_done(http_call *h, CURLcode rc) {
    long status = 0;
    if (!rc) curl_easy_getinfo(h->easy, CURLINFO_RESPONSE_CODE, &status);
    cp_buf_z(&h->body);
    ending_answered(h->ending, (int)status, cp_buf_str(&h->body));
}

static void http_done(pump *p, CURL *easy, CURLcode rc) {
    char *private = NULL;
    (void)p;
    curl_easy_getinfo(easy, CURLINFO_PRIVATE, &private);
    http_call *h = (http_call *)(void *)private;
    if (h->call) call_done(h, rc);
    else if (h->ending) ending_done(h, rc);
    else probe_done(h, rc);
}

int http_probe(engine *e, conflux_error *err) {
    e->probe = http_new(e, NULL, "/api/ping");
    uint32_t ms = e->set.o.mode == CONFLUX_AUTO ? e->set.o.connect_timeout_ms / 2 : e->set.o.connect_timeout_ms;
    curl_easy_setopt(e->probe->easy, CURLOPT_TIMEOUT_MS, (long)(ms & INT32_MAX));
    if (pump_add(&e->http, e->probe->easy, err) == 0) return 0;
    http_free(cp_take(e->probe));
    return -1;
}

http_call *http_delete(engine *e, ending *x, const char *path, uint32_t timeout_ms, conflux_error *err) {
    http_call *h = http_new(e, NULL, path);
    h->ending = x;
    curl_easy_setopt(h->easy, CURLOPT_CUSTOMREQUEST, "DELETE");
    curl_easy_setopt(h->easy, CURLOPT_TIMEOUT_MS, (long)timeout_ms);
    if (pump_add(&e->http, h->easy, err) == 0) return h;
    http_free(h);
    return NULL;
}

void http_probe_stop(engine *e) {
    if (e->probe) http_free(cp_take(e->probe));
}

int http_init(engine *e, conflux_error *err) {
    for (int k = 0; k < CC_PRIORITIES; k++) queue_init(&e->http_waiting[k]);
    return pump_init(&e->http, e->loop, http_done, err);
}

void http_fini(engine *e) {
    for (http_call *h; (h = e->spare);) {
        e->spare = h->next;
        curl_easy_cleanup(h->easy);
        cp_buf_free(&h->head);
        cp_buf_free(&h->piece);
        free(h);
    }
    pump_fini(&e->http);
}
