/* From a conflux_request to a call: checks and copies, on the caller's thread. What is malformed must not get onto a
 * WebSocket: the server could not say whose fault it was, and the call would wait for its deadline. */
#include "transport/client/client_impl.h"

#include <stdio.h>
#include <stdlib.h>

static bool token_char(unsigned char c) { return c > ' ' && c < 0x7f && !strchr("\"(),/:;<=>?@[\\]{}", c); }

static bool is_token(const char *z) {
    if (!z || !*z) return false;
    while (*z && token_char((unsigned char)*z)) z++;
    return !*z;
}

static bool path_ok(const char *z) {
    if (!z || *z != '/') return false;
    for (; *z; z++)
        if ((unsigned char)*z <= ' ' || *z == 0x7f || *z == '#') return false;
    return true;
}

static bool execution_id_ok(const char *z) {
    size_t n = strspn(z, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:-");
    return n >= 1 && n <= CC_ID_MAX && !z[n];
}

static int add_headers(conflux_call *c, const conflux_request *rq, conflux_error *err) {
    for (size_t i = 0; i < rq->nheaders; i++) {
        const conflux_header *h = &rq->headers[i];
        if (!is_token(h->name) || !h->value || strpbrk(h->value, "\r\n"))
            return fail(err, CONFLUX_E_ARGUMENT, "header %zu cannot be sent", i);
        cp_autobuf cp_buf line = {0};
        cp_buf_addf(&line, "%s: %s", h->name, h->value);
        c->headers = curl_slist_append(c->headers, cp_buf_z(&line));
    }
    return 0;
}

void json_insert(cp_buf *out, cp_str object, cp_str pairs) {
    const char *brace = memchr(object.p, '{', object.n);
    size_t at = (size_t)(brace - object.p) + 1, end = at;
    while (strchr(" \t\r\n", object.p[end])) end++; /* it has been parsed: a } comes */
    if (object.p[end] == '}') pairs.n--;            /* the last comma */
    cp_buf_add(out, object.p, at);
    cp_buf_add(out, pairs.p, pairs.n);
    cp_buf_add(out, object.p + at, object.n - at);
}

static void set_about(conflux_call *c, cp_str id) {
    if (!c->about && id.n <= CC_ID_MAX) c->about = cp_str_dup(id);
}

static void set_about_of_path(conflux_call *c) {
    static const char attach[] = "/api/execution/";
    if (strncmp(c->path, attach, sizeof attach - 1) != 0) return;
    const char *id = c->path + sizeof attach - 1;
    set_about(c, (cp_str){id, strcspn(id, "/?")});
}

static int add_json(conflux_call *c, cp_str body, conflux_error *err) {
    yyjson_read_err why;
    cp_autodoc yyjson_doc *doc = yyjson_read_opts((char *)(uintptr_t)body.p, body.n, 0, NULL, &why);
    if (!doc) return fail(err, CONFLUX_E_ARGUMENT, "the body is not JSON: %s at byte %zu", why.msg, why.pos);
    yyjson_val *root = yyjson_doc_get_root(doc);
    if (!yyjson_is_obj(root)) return fail(err, CONFLUX_E_ARGUMENT, "the body must be a JSON object");
    const char *encoding = yyjson_get_str(yyjson_obj_get(root, "encoding"));
    c->base64 = encoding && strcmp(encoding, "base64") == 0;
    const char *on_cancel = yyjson_get_str(yyjson_obj_get(root, "onCancel"));
    if (on_cancel) c->cancel_kills = strcmp(on_cancel, "kill") == 0;
    yyjson_val *id = yyjson_obj_get(root, "executionId");
    if (!c->execution_id) {
        const char *z = yyjson_get_str(id);
        if (id) set_about(c, cp_str_of(z && execution_id_ok(z) ? z : "")); /* what is none the server refuses */
        cp_buf_add(&c->body, body.p, body.n);
        return 0;
    }
    if (id) return fail(err, CONFLUX_E_ARGUMENT, "the body has an executionId already");
    char pair[CC_ID_MAX + 24];
    snprintf(pair, sizeof pair, "\"executionId\":\"%s\",", c->execution_id);
    json_insert(&c->body, body, cp_str_of(pair));
    return 0;
}

static int add_body(conflux_call *c, const conflux_request *rq, conflux_error *err) {
    cp_str body = {rq->body, rq->body && !rq->body_len && !rq->content_type ? strlen(rq->body) : rq->body_len};
    if (rq->content_type) {
        if (strpbrk(rq->content_type, "\r\n")) return fail(err, CONFLUX_E_ARGUMENT, "no such content type");
        c->content_type = cp_str_dup(cp_str_of(rq->content_type));
        c->over_http = true;
        cp_buf_add(&c->body, body.p, body.n);
        return 0;
    }
    if (!rq->body && rq->execution_id) return fail(err, CONFLUX_E_ARGUMENT, "an execution id needs a body to stand in");
    return rq->body ? add_json(c, body, err) : 0;
}

/* Offsets come only with events that are asked for by offset; without them nothing could be resumed. */
static char *path_of(const conflux_request *rq, bool stream) {
    cp_autobuf cp_buf b = {0};
    cp_buf_addz(&b, rq->path);
    const char *query = strchr(rq->path, '?');
    if (stream && rq->execution_id && !(query && (strstr(query, "?from=") || strstr(query, "&from="))))
        cp_buf_addz(&b, query ? "&from=0" : "?from=0");
    return cp_str_dup(cp_buf_str(&b));
}

static int check(const conflux_request *rq, conflux_error *err) {
    if (!path_ok(rq->path)) return fail(err, CONFLUX_E_ARGUMENT, "the path must begin with / and be URL-encoded");
    if (rq->method && !is_token(rq->method)) return fail(err, CONFLUX_E_ARGUMENT, "there is no such method");
    if (rq->execution_id && !execution_id_ok(rq->execution_id))
        return fail(err, CONFLUX_E_ARGUMENT, "an execution id is 1 to %d of A-Z a-z 0-9 _ . : -", CC_ID_MAX);
    if (rq->priority < -CC_NORMAL || rq->priority > CC_PRIORITIES - 1 - CC_NORMAL)
        return fail(err, CONFLUX_E_ARGUMENT, "a priority is -3 to 4");
    return 0;
}

static uint32_t or_default(uint32_t given, uint32_t value) { return given ? given : value; }

static conflux_call *call_alloc(conflux_client *client) {
    conflux_call *c = cp_new(conflux_call);
    atomic_init(&c->refs, 1);
    engine_ref(client->eng);
    c->eng = client->eng;
    c->client = client;
    c->early_tail = &c->early;
    pthread_mutex_init(&c->mu, NULL);
    pthread_cond_init(&c->room, NULL);
    return c;
}

conflux_call *call_new(conflux_client *client, const conflux_request *rq, bool stream, conflux_error *err) {
    if (check(rq, err) < 0) return NULL;
    const conflux_options *o = &client->o;
    conflux_call *c = call_alloc(client);
    c->id = atomic_fetch_add(&c->eng->next_id, 1) + 1;
    c->method = cp_str_dup(cp_str_of(rq->method ? rq->method : rq->body ? "POST" : "GET"));
    c->path = path_of(rq, stream);
    if (stream) set_about_of_path(c);
    c->execution_id = rq->execution_id ? cp_str_dup(cp_str_of(rq->execution_id)) : NULL;
    c->timeout = or_default(rq->timeout_ms, o->request_timeout_ms);
    c->idle = or_default(rq->idle_timeout_ms, o->idle_timeout_ms);
    c->connect_timeout = o->connect_timeout_ms;
    c->priority = (uint8_t)(rq->priority + CC_NORMAL);
    c->stream = stream;
    c->cancel_kills = !stream;
    c->over_http = rq->over_http;
    c->kill_on_disconnect = rq->kill_on_disconnect;
    c->idempotent =
        rq->idempotent || rq->execution_id || strcmp(c->method, "GET") == 0 || strcmp(c->method, "HEAD") == 0;
    if (add_headers(c, rq, err) < 0 || add_body(c, rq, err) < 0) {
        call_unref(c);
        return NULL;
    }
    return c;
}
