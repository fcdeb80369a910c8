/* Handles: what a program holds of an engine. */
#include "transport/client/client_impl.h"

#include <stdlib.h>

typedef struct client_op {
    cp_task task;
    conflux_client *c;
    waiter w;
} client_op;

/* Runs fn on the engine's thread; it finishes op->w. */
static int run(conflux_client *c, void (*fn)(cp_task *), conflux_error *err) {
    if (engine_here()) return fail(err, CONFLUX_E_DEADLOCK, "this waits, and cannot be called from a callback");
    client_op op = {.c = c};
    waiter_init(&op.w);
    engine_run(c->eng, &op.w, fn, &op.task); /* the engine lives as long as its handles */
    int rc = op.w.rc;
    if (rc < 0 && err) *err = op.w.err;
    waiter_fini(&op.w);
    return rc;
}

/* ---- new ---- */

static void on_new(cp_task *t) {
    client_op *op = CP_CONTAINER(t, client_op, task);
    engine *e = op->c->eng;
    op->c->next = e->clients;
    e->clients = op->c;
    waiter_finish(&op->w, 0, NULL);
}

/* Deadlines and callbacks are this handle's own; what the connections are made of, the engine's. */
static void own_options(conflux_client *c, const conflux_options *o) {
#define OWN(field) c->o.field = o->field ? o->field : c->eng->set.o.field
    OWN(connect_timeout_ms);
    OWN(request_timeout_ms);
    OWN(idle_timeout_ms);
#undef OWN
    c->o.on_state = o->on_state;
    c->o.on_log = o->on_log;
    c->o.arg = o->arg;
}

conflux_client *conflux_client_new(const conflux_options *o, conflux_error *err) {
    if (engine_here()) {
        fail(err, CONFLUX_E_DEADLOCK, "a client cannot be made in a callback");
        return NULL;
    }
    engine *e = engine_get(o, err);
    if (!e) return NULL;
    conflux_client *c = cp_new(conflux_client);
    c->eng = e;
    own_options(c, o);
    run(c, on_new, NULL);
    return c;
}

/* ---- connect ---- */

/* What its sharers know already it is told now. */
void client_want(conflux_client *c) {
    engine *e = c->eng;
    if (c->wants) return;
    c->wants = true;
    if (e->told == CONFLUX_DISCONNECTED) return;
    conflux_status s = {.state = e->told, .mode = e->told_mode};
    engine_tell_client(c, &s);
}

static void settle(waiter *w, int rc, const conflux_error *err) {
    cp_timer_stop(w->client->eng->loop, &w->deadline);
    waiter_finish(w, rc, err); /* it is gone now */
}

void client_settle(conflux_client *c, const conflux_error *err) {
    for (waiter *w; (w = c->connecting);) {
        c->connecting = w->next;
        settle(w, err ? -1 : 0, err);
    }
}

/* Coming back may take for ever; whoever asks for it need not wait so long. */
static void on_connect_deadline(cp_timer *t) {
    waiter *w = CP_CONTAINER(t, waiter, deadline), **at = &w->client->connecting;
    const conflux_error *cause = &w->client->eng->dial.cause;
    conflux_error err;
    while (*at != w) at = &(*at)->next;
    *at = w->next;
    fail(&err, CONFLUX_E_CONNECT_TIMEOUT, "no connection in time%s%.400s", cause->kind ? ": " : "", cause->message);
    settle(w, -1, &err);
}

static void on_connect(cp_task *t) {
    client_op *op = CP_CONTAINER(t, client_op, task);
    conflux_client *c = op->c;
    engine *e = c->eng;
    client_want(c);
    if (e->active != CONFLUX_AUTO) {
        waiter_finish(&op->w, 0, NULL);
        return;
    }
    op->w.client = c;
    op->w.next = c->connecting;
    c->connecting = &op->w;
    /* A first attempt has its own deadline, and knows better what it was that took so long. */
    uint32_t patience = c->o.connect_timeout_ms;
    if (e->dial.was_connected && patience != CONFLUX_NO_TIMEOUT)
        cp_timer_start(e->loop, &op->w.deadline, patience, on_connect_deadline);
    dial_need(e);
}

int conflux_connect(conflux_client *c, conflux_error *err) { return run(c, on_connect, err); }

int conflux_is_connected(const conflux_client *c) { return atomic_load(&c->state) == CONFLUX_CONNECTED; }

conflux_state conflux_get_state(const conflux_client *c) { return (conflux_state)atomic_load(&c->state); }

conflux_mode conflux_get_mode(const conflux_client *c) {
    conflux_mode mode = (conflux_mode)atomic_load(&c->mode);
    return mode == CONFLUX_AUTO ? c->eng->set.o.mode : mode;
}

/* ---- disconnect ---- */

static void end_calls(conflux_client *client, const conflux_error *err) {
    size_t n;
    cp_autofree conflux_call **all = table_all(&client->eng->calls, &n);
    for (size_t i = 0; i < n; i++) {
        if (all[i]->client == client) call_abandon(all[i], err);
        call_unref(all[i]);
    }
}

static void close_connections(engine *e) {
    dial_stop(e);
    for (link_conn *l; (l = e->links);) {
        e->links = l->next;
        e->nlinks--;
        link_close(l, CP_CLOSE_NORMAL);
    }
    e->active = CONFLUX_AUTO;
    e->told = CONFLUX_DISCONNECTED;
}

static void let_go(conflux_client *c) {
    engine *e = c->eng;
    conflux_error err;
    fail(&err, CONFLUX_E_CANCELLED, "the client was disconnected");
    c->wants = false;
    end_calls(c, &err);
    client_settle(c, &err);
    if (!engine_wanted(e)) close_connections(e);
    conflux_status s = {.state = CONFLUX_DISCONNECTED, .mode = CONFLUX_AUTO};
    engine_tell_client(c, &s);
}

static void on_disconnect(cp_task *t) {
    client_op *op = CP_CONTAINER(t, client_op, task);
    let_go(op->c);
    waiter_finish(&op->w, 0, NULL);
}

int conflux_disconnect(conflux_client *c, conflux_error *err) { return run(c, on_disconnect, err); }

/* ---- free ---- */

/* Again, for the calls that callbacks started while the first round ended theirs; then it is gone. */
static void on_last(cp_task *t) {
    client_op *op = CP_CONTAINER(t, client_op, task);
    conflux_client **at = &op->c->eng->clients;
    let_go(op->c);
    while (*at != op->c) at = &(*at)->next;
    *at = op->c->next;
    waiter_finish(&op->w, 0, NULL);
}

static void on_free(cp_task *t) {
    client_op *op = CP_CONTAINER(t, client_op, task);
    let_go(op->c);
    engine_post(op->c->eng, &op->task, on_last);
}

void conflux_client_free(conflux_client *c) {
    if (!c || engine_here()) return;
    atomic_store(&c->closing, true);
    run(c, on_free, NULL);
    engine_put(c->eng);
    free(c);
}
