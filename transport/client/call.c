/* The life of a call on the engine's thread, and what other threads may do to it. */
#include "transport/client/client_impl.h"

#include <stdio.h>
#include <stdlib.h>

/* Of the input of one command, unacknowledged; the server refuses more than 16 MiB or 16,384 pieces. */
enum { STDIN_PIECE = 48 * 1024, STDIN_WINDOW = 1024 * 1024, STDIN_PIECES = 4096 };

/* ---- queues ---- */

void queue_init(call_queue *q) { *q = (call_queue){.tail = &q->head}; }

void queue_push(call_queue *q, conflux_call *c) {
    c->queue_next = NULL;
    *q->tail = c;
    q->tail = &c->queue_next;
}

void queue_unpop(call_queue *q, conflux_call *c) {
    c->queue_next = q->head;
    if (!q->head) q->tail = &c->queue_next;
    q->head = c;
}

conflux_call *queue_pop(call_queue *q) {
    conflux_call *c = q->head;
    if (!c) return NULL;
    q->head = c->queue_next;
    if (!q->head) q->tail = &q->head;
    return c;
}

void queue_drop(call_queue *q, conflux_call *c) {
    conflux_call **at = &q->head;
    while (*at && *at != c) at = &(*at)->queue_next;
    if (!*at) return;
    *at = c->queue_next;
    if (!*at) q->tail = at;
}

/* ---- references ---- */

void call_ref(conflux_call *c) { atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed); }

void call_unref(conflux_call *c) {
    if (atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) != 1) return;
    free(c->method), free(c->path), free(c->content_type), free(c->execution_id), free(c->about);
    cp_buf_free(&c->body);
    curl_slist_free_all(c->headers);
    pthread_mutex_destroy(&c->mu);
    pthread_cond_destroy(&c->room);
    engine_unref(c->eng);
    free(c);
}

void msg_free(out_msg *m) {
    if (m->call) call_unref(m->call);
    cp_buf_free(&m->json);
    free(m);
}

/* ---- deadlines ---- */

static void on_deadline(cp_timer *t);

static uint64_t after(uint64_t from, uint32_t ms) { return ms == CONFLUX_NO_TIMEOUT ? UINT64_MAX : from + ms; }

static uint64_t due(const conflux_call *c) {
    uint64_t request = after(c->started, c->timeout);
    if (c->state == CALL_WAITING) {
        uint64_t connect = after(c->started, c->connect_timeout);
        return connect < request ? connect : request;
    }
    return c->answered ? after(c->heard, c->idle) : request;
}

void call_arm(conflux_call *c) {
    uint64_t at = due(c), now = cp_loop_now(c->eng->loop);
    if (at == UINT64_MAX) cp_timer_stop(c->eng->loop, &c->timer);
    else cp_timer_start(c->eng->loop, &c->timer, at > now ? at - now : 0, on_deadline);
}

static void tell_cancel(conflux_call *c, bool kill) {
    if (c->state != CALL_SENT || !c->link) return;
    cp_buf b = {0};
    cp_buf_addf(&b, "{\"type\":\"cancel\",\"id\":\"%llu\"%s}", (unsigned long long)c->id, kill ? ",\"kill\":true" : "");
    link_message(c->link, NULL, &b);
}

/* Over HTTP only the connection can be cut, which leaves the command alone: its end is another request. */
static void kill_by_id(conflux_call *c) {
    const char *id = c->execution_id ? c->execution_id : c->about ? c->about : c->http_id;
    if (*id && http_sent(c)) ending_begin(c->eng, id);
}

static void stop_command(conflux_call *c, bool kill) {
    if (!c->http) tell_cancel(c, kill);
    else if (kill || c->cancel_kills) kill_by_id(c);
}

static void on_deadline(cp_timer *t) {
    conflux_call *c = CP_CONTAINER(t, conflux_call, timer);
    conflux_error err;
    uint64_t now = cp_loop_now(c->eng->loop);
    if (c->answered && c->unconsumed >= c->eng->set.o.window) c->heard = now; /* silent because of us */
    if (now < due(c)) {
        call_arm(c);
        return;
    }
    if (c->answered) {
        fail(&err, CONFLUX_E_IDLE_TIMEOUT, "nothing came on the stream for %u ms", c->idle);
    } else if (now >= after(c->started, c->timeout)) {
        fail(&err, CONFLUX_E_REQUEST_TIMEOUT, "no answer within %u ms", c->timeout);
    } else {
        const conflux_error *cause = &c->eng->dial.cause;
        fail(&err, CONFLUX_E_CONNECT_TIMEOUT, "no connection within %u ms%s%.400s", c->connect_timeout,
             cause->kind ? ": " : "", cause->message);
    }
    if (c->stream || !c->execution_id) stop_command(c, false); /* else it stays, to be resumed */
    call_end(c, NULL, &err);
}

/* ---- the way of a call ---- */

/* The connection may stay, for others: a stream must not go on filling it. */
void call_abandon(conflux_call *c, const conflux_error *err) {
    if (c->stream || c->kill_on_disconnect) tell_cancel(c, c->kill_on_disconnect);
    call_end(c, NULL, err);
}

void call_placed(conflux_call *c, conflux_mode mode) {
    c->state = CALL_QUEUED;
    atomic_store(&c->mode, (int)mode);
    call_arm(c);
}

bool call_unsent(const conflux_call *c) {
    if (c->state != CALL_SENT) return c->state != CALL_OVER;
    return c->link ? c->sent_end > c->link->written : !http_sent(c);
}

static conflux_error judged(const conflux_call *c, const conflux_error *err) {
    conflux_error e = *err;
    bool unsent = call_unsent(c);
    e.retry_safe |= unsent || c->idempotent;
    if (!c->execution_id) return e;
    e.resumable = !unsent;
    snprintf(e.execution_id, sizeof e.execution_id, "%s", c->execution_id);
    return e;
}

static void detach(conflux_call *c) {
    engine *e = c->eng;
    if (c->state == CALL_WAITING) queue_drop(&e->waiting[c->priority], c);
    else if (c->link) link_drop_call(c->link, c);
    else http_drop_call(e, c);
    for (out_msg *m; (m = c->early);) {
        c->early = m->next;
        msg_free(m);
    }
    c->early_tail = &c->early;
    cp_timer_stop(e->loop, &c->timer);
    table_remove(&e->calls, c);
}

void call_end(conflux_call *c, conflux_response *resp, const conflux_error *err) {
    if (c->state == CALL_OVER) return;
    conflux_error e = {0};
    if (!resp) e = judged(c, err);
    if (tracing(c->eng)) {
        unsigned long long ms = cp_loop_now(c->eng->loop) - c->started;
        if (resp)
            trace(c->eng, "< %llu %d %zu bytes %llu ms", (unsigned long long)c->id, resp->status, resp->body_len, ms);
        else
            trace(c->eng, "! %llu %s %llu ms%s", (unsigned long long)c->id, conflux_kind_name(e.kind), ms,
                  e.retry_safe ? " retry-safe" : "");
    }
    detach(c);
    c->state = CALL_OVER;
    pthread_mutex_lock(&c->mu);
    atomic_store(&c->over, true);
    pthread_cond_broadcast(&c->room);
    pthread_mutex_unlock(&c->mu);
    c->handlers.on_done(c->handlers.arg, c, resp, resp ? NULL : &e);
    if (resp) conflux_response_free(resp);
    call_unref(c);
}

/* ---- flow control ---- */

static void credit(conflux_call *c, size_t n) {
    if (c->state == CALL_OVER || !n) return;
    c->unconsumed -= n < c->unconsumed ? n : c->unconsumed;
    c->owed += n;
    if (c->http) http_credit(c);
    if (!c->link || !c->link->ours || c->owed < c->eng->set.o.window / 4) return;
    cp_buf b = {0};
    cp_buf_addf(&b, "{\"type\":\"window\",\"id\":\"%llu\",\"bytes\":%llu}", (unsigned long long)c->id,
                (unsigned long long)c->owed);
    c->owed = 0;
    link_message(c->link, NULL, &b);
}

void call_event(conflux_call *c, const conflux_event *ev) {
    c->heard = cp_loop_now(c->eng->loop);
    if (!c->answered) {
        c->answered = true;
        call_arm(c);
    }
    c->unconsumed += ev->len;
    c->handlers.on_event(c->handlers.arg, c, ev);
    if (!c->handlers.manual_consume) credit(c, ev->len);
}

static void on_credit(cp_task *t) {
    conflux_call *c = CP_CONTAINER(t, conflux_call, credit);
    atomic_store(&c->crediting, false);
    credit(c, atomic_exchange(&c->consumed, 0));
    call_unref(c);
}

void conflux_call_consumed(conflux_call *c, size_t n) {
    atomic_fetch_add(&c->consumed, n);
    if (atomic_exchange(&c->crediting, true)) return;
    call_ref(c);
    if (!engine_post(c->eng, &c->credit, on_credit)) call_unref(c);
}

/* ---- start and cancel ---- */

static void on_start(cp_task *t) {
    conflux_call *c = CP_CONTAINER(t, conflux_call, task);
    engine *e = c->eng;
    c->started = c->heard = cp_loop_now(e->loop);
    table_add(&e->calls, c);
    if (tracing(e))
        trace(e, "> %llu %s %.*s %zu bytes priority %u", (unsigned long long)c->id, c->method,
              (int)strcspn(c->path, "?"), c->path, c->body.n, c->priority);
    client_want(c->client);
    engine_route(e, c);
}

void call_launch(conflux_call *c, const conflux_handlers *h) {
    c->handlers = *h;
    call_ref(c);
    if (engine_post(c->eng, &c->task, on_start)) return;
    conflux_error err;
    fail(&err, CONFLUX_E_CANCELLED, "the client has been freed");
    c->handlers.on_done(c->handlers.arg, c, NULL, &err);
    call_unref(c);
}

conflux_call *conflux_start(conflux_client *client, const conflux_request *rq, const conflux_handlers *h,
                            conflux_error *err) {
    if (atomic_load(&client->closing)) {
        fail(err, CONFLUX_E_CANCELLED, "the client is being freed");
        return NULL;
    }
    conflux_call *c = call_new(client, rq, h->on_event != NULL, err);
    if (c) call_launch(c, h);
    return c;
}

typedef struct call_op {
    cp_task task;
    conflux_call *c;
    bool kill;
    cp_buf json;
} call_op;

static void op_free(call_op *op) {
    call_unref(op->c);
    cp_buf_free(&op->json);
    free(op);
}

static bool post_op(call_op *op, void (*fn)(cp_task *)) {
    call_ref(op->c);
    if (engine_post(op->c->eng, &op->task, fn)) return true;
    op_free(op);
    return false;
}

static void on_cancel(cp_task *t) {
    call_op *op = CP_CONTAINER(t, call_op, task);
    conflux_call *c = op->c;
    conflux_error err;
    if (c->state != CALL_OVER) {
        stop_command(c, op->kill);
        fail(&err, CONFLUX_E_CANCELLED, "the call was cancelled");
        call_end(c, NULL, &err);
    }
    op_free(op);
}

void conflux_call_cancel(conflux_call *c, int kill) {
    if (atomic_load(&c->over)) return;
    call_op *op = cp_new(call_op);
    *op = (call_op){.c = c, .kill = kill};
    post_op(op, on_cancel);
}

void conflux_call_free(conflux_call *c) {
    if (c) call_unref(c);
}

/* ---- stdin ---- */

static void on_stdin(cp_task *t) {
    call_op *op = CP_CONTAINER(t, call_op, task);
    conflux_call *c = op->c;
    out_msg *m = cp_new(out_msg);
    call_ref(c);
    *m = (out_msg){.call = c, .json = cp_take(op->json)};
    if (c->state == CALL_OVER || c->http) {
        msg_free(m);
    } else if (c->state == CALL_SENT) {
        link_message(c->link, c, &m->json);
        msg_free(m);
    } else {
        *c->early_tail = m;
        c->early_tail = &m->next;
    }
    op_free(op);
}

static void stdin_json(const conflux_call *c, const char *p, size_t n, bool eof, cp_buf *out) {
    cp_buf_addf(out, "{\"type\":\"stdin\",\"id\":\"%llu\",\"ack\":true,\"encoding\":\"base64\",\"data\":\"",
                (unsigned long long)c->id);
    cp_base64_encode(out, p, n);
    cp_buf_addz(out, eof ? "\",\"eof\":true}" : "\"}");
}

void call_stdin_taken(conflux_call *c, uint64_t n) {
    c->heard = cp_loop_now(c->eng->loop);
    pthread_mutex_lock(&c->mu);
    c->stdin_owed -= n < c->stdin_owed ? (size_t)n : c->stdin_owed;
    if (n == UINT64_MAX) c->stdin_pieces = 0;
    else if (c->stdin_pieces) c->stdin_pieces--;
    pthread_cond_broadcast(&c->room);
    pthread_mutex_unlock(&c->mu);
}

size_t call_stdin_pending(conflux_call *c) {
    pthread_mutex_lock(&c->mu);
    size_t n = c->stdin_owed;
    pthread_mutex_unlock(&c->mu);
    return n;
}

static bool is_full(const conflux_call *c, size_t n) {
    return (c->stdin_owed && c->stdin_owed + n > STDIN_WINDOW) || c->stdin_pieces >= STDIN_PIECES;
}

static int take_room(conflux_call *c, size_t n, conflux_error *err) {
    int rc = 0;
    pthread_mutex_lock(&c->mu);
    while (is_full(c, n) && !atomic_load(&c->over)) pthread_cond_wait(&c->room, &c->mu);
    if (atomic_load(&c->over)) {
        rc = fail(err, CONFLUX_E_CANCELLED, "the call is over");
    } else {
        c->stdin_owed += n;
        c->stdin_pieces++;
    }
    pthread_mutex_unlock(&c->mu);
    return rc;
}

int conflux_call_stdin(conflux_call *c, const void *data, size_t n, int eof, conflux_error *err) {
    const char *p = data;
    if (engine_here()) return fail(err, CONFLUX_E_DEADLOCK, "stdin cannot be sent from a callback");
    do {
        size_t piece = n < STDIN_PIECE ? n : STDIN_PIECE;
        if (atomic_load(&c->mode) == CONFLUX_HTTP)
            return fail(err, CONFLUX_E_UNSUPPORTED, "input can be sent over a WebSocket only");
        if (take_room(c, piece, err) < 0) return -1;
        call_op *op = cp_new(call_op);
        *op = (call_op){.c = c};
        stdin_json(c, p, piece, eof && piece == n, &op->json);
        if (!post_op(op, on_stdin)) return fail(err, CONFLUX_E_CANCELLED, "the client has been freed");
        p += piece;
        n -= piece;
    } while (n);
    return 0;
}
