/* What a server says on a WebSocket (cloudflare-sandbox.md section 4, conflux-additions.md). */
#include "transport/client/client_impl.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct message {
    cp_str type, data, event_id, code, text, of;
    yyjson_val *id, *body;
    int64_t status, bytes;
} message;

static conflux_call *call_of(link_conn *l, yyjson_val *id) {
    uint64_t n;
    cp_str text = {yyjson_get_str(id), yyjson_get_len(id)};
    if (!yyjson_is_str(id) || !cp_str_u64(text, UINT64_MAX, &n)) return NULL;
    conflux_call *c = table_find(&l->eng->calls, n);
    return c && c->link == l && c->state == CALL_SENT ? c : NULL;
}

static void answer(conflux_call *c, int status, char *body, size_t n) {
    conflux_response r = {.status = status, .body = body, .body_len = n, .mode = CONFLUX_WEBSOCKET};
    call_end(c, &r, NULL);
}

static void on_response(link_conn *l, const message *m) {
    conflux_call *c = call_of(l, m->id);
    if (!c) return; /* it was given up */
    size_t n = 0;
    char *body = m->body && !yyjson_is_null(m->body) ? yyjson_val_write(m->body, 0, &n) : NULL;
    answer(c, (int)m->status, body, n);
}

static void on_stream(link_conn *l, const message *m) {
    conflux_call *c = call_of(l, m->id);
    char id[CC_EVENT_ID_MAX] = "";
    if (!c || !c->stream || !m->data.p) return;
    if (m->event_id.n && m->event_id.n < sizeof id) memcpy(id, m->event_id.p, m->event_id.n);
    conflux_event ev = {.data = m->data.p, .len = m->data.n, .id = *id ? id : NULL};
    call_event(c, &ev);
}

/* Our own message was refused. Input that is missing in the middle is worse than a command that is ended; that nobody
 * reads it any more is no error. */
static void on_refused_message(link_conn *l, conflux_call *c, const message *m) {
    if (!cp_str_is(m->of, "stdin") || cp_str_is(m->code, "NOT_FOUND")) return;
    if (cp_str_is(m->code, "RESOURCE_BUSY")) { /* nothing of it will be acknowledged, nor of what follows */
        call_stdin_taken(c, UINT64_MAX);
        return;
    }
    conflux_error err;
    fail(&err, CONFLUX_E_SERVER, "the server refused input: %.*s", (int)m->text.n, m->text.p);
    err.status = (int)m->status;
    if (m->code.p) snprintf(err.code, sizeof err.code, "%.*s", (int)m->code.n, m->code.p);
    cp_buf b = {0};
    cp_buf_addf(&b, "{\"type\":\"cancel\",\"id\":\"%llu\",\"kill\":true}", (unsigned long long)c->id);
    link_message(l, NULL, &b);
    call_end(c, NULL, &err);
}

static void on_stdin_taken(link_conn *l, const message *m) {
    conflux_call *c = call_of(l, m->id);
    if (c) call_stdin_taken(c, (uint64_t)m->bytes);
}

/* An error message becomes the answer that HTTP would have given: one shape for callers. */
static void on_error(link_conn *l, const message *m) {
    conflux_call *c = call_of(l, m->id);
    if (!c) return;
    if (m->of.n) {
        on_refused_message(l, c, m);
        return;
    }
    cp_buf b = {0};
    cp_jw w = cp_jw_on(&b);
    cp_jw_obj(&w);
    cp_jw_kstr(&w, "code", m->code);
    cp_jw_kstr(&w, "message", m->text);
    cp_jw_ki64(&w, "httpStatus", m->status);
    cp_jw_end_obj(&w);
    cp_buf_z(&b);
    answer(c, (int)m->status, b.p, b.n);
}

static void on_hello(link_conn *l, yyjson_val *root) {
    yyjson_val *limits = yyjson_obj_get(root, "limits");
    int64_t size = CC_MAX_MESSAGE, pending = CC_MAX_PENDING;
    cp_json_int(limits, "maxMessageBytes", 1, INT64_MAX, &size, NULL);
    cp_json_int(limits, "maxPending", 1, INT32_MAX, &pending, NULL);
    l->max_message = (uint64_t)size;
    l->max_pending = (size_t)pending;
    l->ours = true;
}

static int read_message(yyjson_val *root, message *m) {
    cp_json_str(root, "type", false, &m->type, NULL);
    cp_json_str(root, "data", false, &m->data, NULL);
    cp_json_str(root, "eventId", false, &m->event_id, NULL);
    cp_json_str(root, "code", false, &m->code, NULL);
    cp_json_str(root, "message", false, &m->text, NULL);
    cp_json_str(root, "of", false, &m->of, NULL);
    m->id = yyjson_obj_get(root, "id");
    m->body = yyjson_obj_get(root, "body");
    cp_json_int(root, "bytes", 0, INT64_MAX, &m->bytes, NULL);
    return cp_json_int(root, "status", 100, 999, &m->status, NULL);
}

int link_receive(link_conn *l, cp_str text, conflux_error *err) {
    message m = {.status = 500};
    /* The server's nesting and number of values are not bounded here: its length is. */
    cp_autodoc yyjson_doc *doc = yyjson_read(text.p, text.n, 0);
    yyjson_val *root = yyjson_doc_get_root(doc);
    if (!yyjson_is_obj(root) || read_message(root, &m) < 0)
        return fail(err, CONFLUX_E_PROTOCOL, "the server sent something that is no message");
    dial_worked(l->eng);
    if (cp_str_is(m.type, "stream")) on_stream(l, &m);
    else if (cp_str_is(m.type, "response")) on_response(l, &m);
    else if (cp_str_is(m.type, "error")) on_error(l, &m);
    else if (cp_str_is(m.type, "stdin")) on_stdin_taken(l, &m);
    else if (cp_str_is(m.type, "hello")) on_hello(l, root);
    return 0;
}
