/* What a server says to the client library: messages on the WebSocket, error bodies, server-sent events are
 * sse_fuzz.c's. A server may be anything that listens there: each message is taken, ignored or refused, and the calls
 * in flight end at most once. Input: messages, one a line. */
#include "transport/client/client_impl.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CALLS = 3 };

static engine *the_engine;
static unsigned ended[CALLS + 1], events, taken, worked;

static void require(bool ok) {
    if (!ok) abort();
}

/* ---- what the library would do with it ---- */

void call_end(conflux_call *c, conflux_response *resp, const conflux_error *err) {
    require(c->id >= 1 && c->id <= CALLS && !ended[c->id]++ && c->state == CALL_SENT);
    require(!resp != !err);
    c->state = CALL_OVER;
    table_remove(&the_engine->calls, c);
    if (err) require(err->message[0] && memchr(err->code, 0, sizeof err->code));
    if (!resp) return;
    require(resp->status >= 100 && resp->status <= 999 && (!resp->body_len || resp->body[resp->body_len] == 0));
    conflux_error e;
    if (conflux_check(resp, &e) < 0) require(e.status == resp->status);
    conflux_response_free(resp);
}

void call_event(conflux_call *c, const conflux_event *ev) {
    require(c->stream && c->state == CALL_SENT && ev->data && ev->data[ev->len] == 0);
    require(!ev->id || strlen(ev->id) < CC_EVENT_ID_MAX);
    events++;
}

void call_stdin_taken(conflux_call *c, uint64_t n) {
    require(c->state == CALL_SENT && (n == UINT64_MAX || n <= INT64_MAX));
    taken++;
}

void link_message(link_conn *l, conflux_call *c, cp_buf *json) {
    require(l != NULL && !c);
    cp_autodoc yyjson_doc *doc = yyjson_read(json->p, json->n, 0);
    require(doc != NULL);
    cp_buf_free(json);
}

void call_ref(conflux_call *c) { require(c != NULL); }

void dial_worked(engine *e) {
    require(e == the_engine);
    worked++;
}

/* ---- the input ---- */

static void error_body(cp_str text) {
    for (int status = 400; status < 600; status += 103) {
        conflux_error e;
        fail_server(&e, status, text.p, text.n);
        require(e.kind == CONFLUX_E_SERVER && e.status == status && e.message[0]);
        require(memchr(e.code, 0, sizeof e.code) && memchr(e.message, 0, sizeof e.message));
    }
}

static void messages(cp_str text) {
    engine e = {0};
    link_conn l = {.eng = &e, .state = LINK_UP, .max_message = CC_MAX_MESSAGE, .max_pending = CC_MAX_PENDING};
    conflux_call calls[CALLS + 1];
    memset(calls, 0, sizeof calls);
    memset(ended, 0, sizeof ended);
    the_engine = &e;
    for (unsigned i = 1; i <= CALLS; i++) {
        calls[i].id = i;
        calls[i].eng = &e;
        calls[i].link = &l;
        calls[i].stream = i == 1;
        calls[i].state = CALL_SENT;
        table_add(&e.calls, &calls[i]);
    }
    while (text.n) {
        const char *nl = memchr(text.p, '\n', text.n);
        size_t n = nl ? (size_t)(nl - text.p) : text.n;
        conflux_error err = {0};
        cp_autofree char *line = cp_str_dup((cp_str){text.p, n});
        if (link_receive(&l, (cp_str){line, n}, &err) < 0) require(err.kind == CONFLUX_E_PROTOCOL);
        require(l.max_message > 0 && l.max_pending > 0);
        text = (cp_str){text.p + n + (nl != NULL), text.n - n - (nl != NULL)};
    }
    table_fini(&e.calls);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    cp_str text = {(const char *)data, size};
    error_body(text);
    messages(text);
    return 0;
}
