/* Being connected, and coming back.
 *
 * One attempt at a time. In WebSocket mode an attempt is a link. In HTTP mode it is a ping. In auto mode it is a link;
 * when the server is there but does not take the upgrade, a ping, and after that HTTP carries the calls while the
 * upgrade is tried again now and then.
 *
 * A first attempt that fails is the end: who asked is told, nothing goes on behind its back. After a connection that
 * has worked, attempts go on: at once, then with doubling pauses, until one works or nobody wants it. What another
 * attempt cannot mend (token, certificate) ends them too. */
#include "transport/client/client_impl.h"

static void try_now(engine *e);

static bool has_connection(const engine *e) { return e->active != CONFLUX_AUTO; }

void dial_stop(engine *e) {
    dialer *d = &e->dial;
    cp_timer_stop(e->loop, &d->pause);
    cp_timer_stop(e->loop, &d->upgrade);
    if (d->link) link_close(cp_take(d->link), CP_CLOSE_NORMAL);
    http_probe_stop(e);
    *d = (dialer){0};
}

void dial_worked(engine *e) { e->dial.backoff = 0; }

/* ---- success ---- */

static void connected(engine *e, conflux_mode mode) {
    e->dial.phase = DIAL_IDLE;
    e->dial.was_connected = true;
    e->dial.cause = (conflux_error){0};
    e->active = mode;
    engine_tell(e, CONFLUX_CONNECTED, mode, NULL, 0);
    engine_settle(e, NULL);
    engine_route_waiting(e);
}

void link_opened(link_conn *l) {
    engine *e = l->eng;
    e->dial.link = NULL;
    cp_timer_stop(e->loop, &e->dial.upgrade);
    l->next = e->links;
    e->links = l;
    e->nlinks++;
    connected(e, CONFLUX_WEBSOCKET);
}

/* ---- failure ---- */

static void on_pause(cp_timer *t) {
    engine *e = CP_CONTAINER(t, engine, dial.pause);
    e->dial.phase = DIAL_IDLE;
    if (engine_wanted(e)) try_now(e);
}

static uint32_t next_delay(dialer *d, const conflux_options *o) {
    uint32_t delay = d->backoff, twice = delay > UINT32_MAX / 2 ? UINT32_MAX : delay * 2;
    if (!delay) twice = o->backoff_ms;
    d->backoff = twice < o->backoff_max_ms ? twice : o->backoff_max_ms;
    return delay;
}

static void pause_then_try(engine *e, const conflux_error *err) {
    uint32_t delay = next_delay(&e->dial, &e->set.o);
    e->dial.phase = DIAL_PAUSE;
    if (!has_connection(e)) engine_tell(e, CONFLUX_RECONNECTING, CONFLUX_AUTO, err, delay);
    cp_timer_start(e->loop, &e->dial.pause, delay, on_pause);
}

static void give_up(engine *e, const conflux_error *err) {
    conflux_error kept = *err; /* it may be the dialer's own */
    dial_stop(e);
    e->dial.cause = kept;
    for (conflux_client *c = e->clients; c; c = c->next) c->wants = false;
    engine_tell(e, CONFLUX_DISCONNECTED, CONFLUX_AUTO, &kept, 0);
    engine_settle(e, &kept);
    engine_fail_waiting(e, &kept);
}

static bool is_final(conflux_kind kind) { return kind == CONFLUX_E_UNAUTHORIZED || kind == CONFLUX_E_TLS; }

static void on_upgrade_time(cp_timer *t) {
    engine *e = CP_CONTAINER(t, engine, dial.upgrade);
    if (e->active == CONFLUX_HTTP && e->dial.phase == DIAL_IDLE && engine_wanted(e)) try_now(e);
}

static void try_upgrade_later(engine *e) {
    e->dial.phase = DIAL_IDLE;
    cp_timer_start(e->loop, &e->dial.upgrade, e->set.o.upgrade_retry_ms, on_upgrade_time);
}

static void failed(engine *e, const conflux_error *err) {
    dialer *d = &e->dial;
    if (err != &d->cause) d->cause = *err;
    d->phase = DIAL_IDLE;
    if (e->active == CONFLUX_HTTP) try_upgrade_later(e); /* it carries the calls meanwhile */
    else if (e->nlinks) pause_then_try(e, err);          /* the pool stays smaller for a while */
    else if (is_final(err->kind) || !d->was_connected) give_up(e, err);
    else pause_then_try(e, err);
}

static void link_failed(engine *e, const conflux_error *err) {
    e->dial.link = NULL;
    bool other_way = e->set.o.mode == CONFLUX_AUTO && err->kind == CONFLUX_E_UPGRADE && !has_connection(e);
    if (!other_way) {
        failed(e, err);
        return;
    }
    trace(e, "- %s: trying HTTP", err->message);
    e->dial.cause = *err;
    e->dial.phase = DIAL_PROBE;
    conflux_error why;
    if (http_probe(e, &why) < 0) failed(e, &why);
}

void dial_probed(engine *e, const conflux_error *err) {
    if (err) {
        failed(e, err);
        return;
    }
    dial_worked(e);
    connected(e, CONFLUX_HTTP);
    if (e->set.o.mode == CONFLUX_AUTO) try_upgrade_later(e);
}

/* ---- loss ---- */

static void unlist(engine *e, link_conn *l) {
    link_conn **at = &e->links;
    while (*at != l) at = &(*at)->next;
    *at = l->next;
    e->nlinks--;
}

/* Calls that were not begun to be written go elsewhere. The others end: nobody knows how far they got. */
static void orphan_calls(engine *e, link_conn *l, const conflux_error *err) {
    size_t n;
    cp_autofree conflux_call **all = table_all(&e->calls, &n);
    for (size_t i = 0; i < n; i++) {
        conflux_call *c = all[i];
        if (c->link == l && c->state == CALL_QUEUED) {
            link_drop_call(l, c);
            c->state = CALL_NEW;
            engine_route(e, c);
        } else if (c->link == l) {
            conflux_error lost = *err;
            lost.kind = err->kind == CONFLUX_E_TOO_LARGE ? err->kind : CONFLUX_E_CONNECTION_LOST;
            call_end(c, NULL, &lost);
        }
        call_unref(c);
    }
}

void link_lost(link_conn *l, const conflux_error *err) {
    engine *e = l->eng;
    if (l->state != LINK_UP) {
        link_failed(e, err);
        return;
    }
    unlist(e, l);
    if (!e->nlinks && e->active == CONFLUX_WEBSOCKET) {
        e->active = CONFLUX_AUTO;
        e->dial.cause = *err;
        if (!engine_wanted(e)) engine_tell(e, CONFLUX_DISCONNECTED, CONFLUX_AUTO, err, 0);
        else if (e->dial.phase == DIAL_IDLE) pause_then_try(e, err);
        else engine_tell(e, CONFLUX_RECONNECTING, CONFLUX_AUTO, err, 0);
    }
    orphan_calls(e, l, err);
}

void dial_lost_http(engine *e, const conflux_error *err) {
    if (e->active != CONFLUX_HTTP) return;
    e->active = CONFLUX_AUTO;
    e->dial.cause = *err;
    cp_timer_stop(e->loop, &e->dial.upgrade);
    if (e->dial.phase == DIAL_IDLE) pause_then_try(e, err);
    else engine_tell(e, CONFLUX_RECONNECTING, CONFLUX_AUTO, err, 0);
}

/* ---- attempts ---- */

static void try_now(engine *e) {
    conflux_error err;
    if (!has_connection(e)) {
        conflux_state state = e->dial.was_connected ? CONFLUX_RECONNECTING : CONFLUX_CONNECTING;
        engine_tell(e, state, CONFLUX_AUTO, NULL, 0);
    }
    e->dial.phase = e->set.o.mode == CONFLUX_HTTP ? DIAL_PROBE : DIAL_LINK;
    if (e->dial.phase == DIAL_PROBE) {
        if (http_probe(e, &err) < 0) failed(e, &err);
    } else {
        e->dial.link = link_open(e, &err);
        if (!e->dial.link) failed(e, &err);
    }
}

void dial_need(engine *e) {
    if (e->dial.phase == DIAL_IDLE) try_now(e);
}
