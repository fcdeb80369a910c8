/* A stream that is pulled: a queue between the engine's thread and the reader. What the reader has taken is what the
 * sender gets credit for, so the queue never holds more than the window. */
#include "transport/client/client_impl.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct node {
    struct node *next;
    size_t len;
    char id[CC_EVENT_ID_MAX];
    char data[]; /* ends in a NUL */
} node;

struct conflux_stream {
    conflux_client *client;
    conflux_call *call;
    char *execution_id;
    char last_id[CC_EVENT_ID_MAX]; /* of the last event that the reader was given */
    uint32_t timeout, idle;
    bool resumed;
    bool base64; /* as the request has it: what is resumed goes on in the same encoding */
    node *held;  /* what the reader looks at */
    pthread_mutex_t mu;
    pthread_cond_t cond;
    node *head, **tail;
    bool done;
    conflux_response r;
    conflux_error err;
};

static void on_event(void *arg, conflux_call *c, const conflux_event *ev) {
    conflux_stream *s = arg;
    (void)c;
    node *n = cp_alloc(sizeof *n + ev->len + 1);
    n->len = ev->len;
    memcpy(n->data, ev->data, ev->len);
    if (ev->id) snprintf(n->id, sizeof n->id, "%s", ev->id);
    pthread_mutex_lock(&s->mu);
    *s->tail = n;
    s->tail = &n->next;
    pthread_cond_signal(&s->cond);
    pthread_mutex_unlock(&s->mu);
}

static void on_done(void *arg, conflux_call *c, conflux_response *r, const conflux_error *err) {
    conflux_stream *s = arg;
    (void)c;
    pthread_mutex_lock(&s->mu);
    if (r) s->r = cp_take(*r);
    else s->err = *err;
    s->done = true;
    pthread_cond_signal(&s->cond);
    pthread_mutex_unlock(&s->mu);
}

static const conflux_handlers *handlers(conflux_stream *s, conflux_handlers *h) {
    *h = (conflux_handlers){.on_event = on_event, .on_done = on_done, .arg = s, .manual_consume = 1};
    return h;
}

conflux_stream *conflux_fetch_stream(conflux_client *client, const conflux_request *rq, conflux_error *err) {
    conflux_handlers h;
    conflux_stream *s = cp_new(conflux_stream);
    s->client = client;
    s->tail = &s->head;
    s->timeout = rq->timeout_ms;
    s->idle = rq->idle_timeout_ms;
    s->execution_id = rq->execution_id ? cp_str_dup(cp_str_of(rq->execution_id)) : NULL;
    pthread_mutex_init(&s->mu, NULL);
    pthread_cond_init(&s->cond, NULL);
    s->call = conflux_start(client, rq, handlers(s, &h), err);
    if (s->call) {
        s->base64 = s->call->base64;
        return s;
    }
    s->done = true;
    conflux_stream_free(s);
    return NULL;
}

static void drop_held(conflux_stream *s) {
    if (!s->held) return;
    conflux_call_consumed(s->call, s->held->len);
    free(cp_take(s->held));
}

static int verdict(const conflux_stream *s, conflux_error *err) {
    if (!s->err.kind) return conflux_check(&s->r, err);
    if (!err) return -1;
    *err = s->err;
    if (!s->resumed) return -1;
    err->resumable = 1; /* what was lost is only another attempt at the rest */
    snprintf(err->execution_id, sizeof err->execution_id, "%s", s->execution_id);
    return -1;
}

int conflux_stream_next(conflux_stream *s, conflux_event *ev, conflux_error *err) {
    if (engine_here()) return fail(err, CONFLUX_E_DEADLOCK, "this waits, and cannot be called from a callback");
    drop_held(s);
    pthread_mutex_lock(&s->mu);
    while (!s->head && !s->done) pthread_cond_wait(&s->cond, &s->mu);
    node *n = s->head;
    if (n) {
        s->head = n->next;
        if (!s->head) s->tail = &s->head;
    }
    pthread_mutex_unlock(&s->mu);
    if (!n) return verdict(s, err);
    s->held = n;
    if (*n->id) memcpy(s->last_id, n->id, sizeof n->id);
    *ev = (conflux_event){.data = n->data, .len = n->len, .id = *n->id ? n->id : NULL};
    return 1;
}

int conflux_stream_resume(conflux_stream *s, conflux_error *err) {
    char path[CC_ID_MAX + CC_EVENT_ID_MAX + 64];
    conflux_handlers h;
    if (!s->execution_id) return fail(err, CONFLUX_E_ARGUMENT, "a stream without an execution id cannot be resumed");
    pthread_mutex_lock(&s->mu);
    bool done = s->done && !s->head;
    if (done) {
        s->done = false;
        s->err = (conflux_error){0};
        conflux_response_free(&s->r);
    }
    pthread_mutex_unlock(&s->mu);
    if (!done) return fail(err, CONFLUX_E_ARGUMENT, "the stream has not been read to its end");
    drop_held(s);
    snprintf(path, sizeof path, "/api/execution/%s/stream?from=%s%s", s->execution_id, *s->last_id ? s->last_id : "0",
             s->base64 ? "&encoding=base64" : "");
    conflux_request rq = {.path = path, .timeout_ms = s->timeout, .idle_timeout_ms = s->idle};
    conflux_call *c = conflux_start(s->client, &rq, handlers(s, &h), err);
    if (!c) {
        s->done = true;
        fail(&s->err, CONFLUX_E_CANCELLED, "the stream could not be resumed");
        return -1;
    }
    conflux_call_free(s->call);
    s->call = c;
    s->resumed = true;
    return 0;
}

int conflux_stream_stdin(conflux_stream *s, const void *data, size_t n, int eof, conflux_error *err) {
    return conflux_call_stdin(s->call, data, n, eof, err);
}

size_t conflux_stream_stdin_pending(const conflux_stream *s) { return call_stdin_pending(s->call); }

void conflux_stream_cancel(conflux_stream *s, int kill) { conflux_call_cancel(s->call, kill); }

void conflux_stream_free(conflux_stream *s) {
    if (!s) return;
    if (s->call) conflux_call_cancel(s->call, 0);
    if (engine_here()) return;
    pthread_mutex_lock(&s->mu);
    while (!s->done) pthread_cond_wait(&s->cond, &s->mu); /* its callbacks still use it */
    pthread_mutex_unlock(&s->mu);
    for (node *n; (n = s->head);) {
        s->head = n->next;
        free(n);
    }
    free(s->held);
    conflux_call_free(s->call);
    conflux_response_free(&s->r);
    free(s->execution_id);
    pthread_mutex_destroy(&s->mu);
    pthread_cond_destroy(&s->cond);
    free(s);
}
