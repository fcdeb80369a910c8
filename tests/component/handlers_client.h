#pragma once
/* A client of the router: asks, and looks at the answer or pulls the events. */
#pragma GCC diagnostic ignored "-Wunused-function" /* not every test uses all of it */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "handlers/router.h"

static cp_router *client_router; /* set by the test */

typedef struct client {
    cp_reply reply;
    cp_result res; /* answered when status != 0 */
    cp_source *src;
    unsigned wakes;
    yyjson_doc *doc; /* of the answer or the last event */
    cp_event ev;
    cp_buf evbuf;
} client;

static void client_send(cp_reply *r, cp_result *res) {
    client *c = CP_CONTAINER(r, client, reply);
    assert_int_equal(c->res.status, 0);
    assert_null(c->src);
    c->res = *res;
    cp_err err;
    c->doc = res->type || !res->body.n ? NULL : cp_json_parse(cp_buf_str(&c->res.body), &err);
}
static void client_woken(cp_source *s) { ((client *)s->sink)->wakes++; }
static void client_stream(cp_reply *r, cp_source *src) {
    client *c = CP_CONTAINER(r, client, reply);
    assert_int_equal(c->res.status, 0);
    c->src = src;
    src->sink = c;
    src->wake = client_woken;
}
static const cp_reply_ops client_ops = {client_send, client_stream};

static void client_reset(client *c) {
    if (c->src) c->src->ops->close(c->src, CP_END_DONE, false);
    yyjson_doc_free(c->doc);
    cp_result_free(&c->res);
    cp_buf_free(&c->evbuf);
    *c = (client){.reply = {.ops = &client_ops}};
}

typedef struct ask_opts {
    const cp_header *headers;
    size_t nheaders;
    bool mux, respond_async, keeps;
} ask_opts;

/* target: path?query. body NULL: none. */
static void ask_with(client *c, cp_method m, const char *target, const char *body, ask_opts o) {
    cp_err err = {0};
    const char *q = strchr(target, '?');
    client_reset(c);
    yyjson_doc *doc = body ? cp_json_parse(cp_str_of(body), &err) : NULL;
    cp_request req = {.method = m,
                      .path = {target, q ? (size_t)(q - target) : strlen(target)},
                      .query = q ? cp_str_of(q + 1) : (cp_str){0},
                      .headers = o.headers,
                      .nheaders = o.nheaders,
                      .mux = o.mux,
                      .respond_async = o.respond_async,
                      .reply_keeps = o.keeps,
                      .body = doc ? yyjson_doc_get_root(doc) : NULL,
                      .body_err = body && !doc ? &err : NULL};
    cp_match match = cp_router_match(client_router, m, req.path);
    cp_router_dispatch(client_router, &match, &req, doc, &c->reply);
}
static void ask(client *c, cp_method m, const char *target, const char *body) {
    ask_with(c, m, target, body, (ask_opts){0});
}

/* The value at /a/b (RFC 6901) of the answer or event. */
static yyjson_val *at(client *c, const char *pointer) { return c->doc ? yyjson_doc_ptr_get(c->doc, pointer) : NULL; }
static const char *text(client *c, const char *pointer) {
    const char *s = yyjson_get_str(at(c, pointer));
    return s ? s : "(none)";
}
static long long num(client *c, const char *pointer) {
    yyjson_val *v = at(c, pointer);
    return yyjson_is_num(v) ? (long long)yyjson_get_num(v) : -999;
}

/* Pulls one event; returns its type, "WAIT" or "END". */
static const char *pull(client *c) {
    cp_buf_clear(&c->evbuf);
    c->ev = (cp_event){.w = cp_jw_on(&c->evbuf)};
    assert_non_null(c->src);
    cp_pull rc = c->src->ops->pull(c->src, 65536, &c->ev);
    if (rc == CP_PULL_WAIT) return "WAIT";
    if (rc == CP_PULL_END) return "END";
    cp_err err;
    yyjson_doc_free(c->doc);
    c->doc = cp_json_parse(cp_buf_str(&c->evbuf), &err);
    assert_non_null(c->doc);
    return text(c, "/type");
}

static client c = {.reply = {.ops = &client_ops}}; /* most tests need no other */
