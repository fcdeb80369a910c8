/* Design notes. A client that rests has a deadline in its entry; a timer of the loop goes through the table a few times
 * a second while there are clients, and ends those whose time is over. Ten thousand entries are looked at in some tens
 * of microseconds. That is simpler than a timer for each, which would be set and taken back with every request. */
#include <sys/ioctl.h>

#include "base/clock.h"
#include "base/metrics.h"
#include "transport/http/http.h"
#include "transport/outbox.h"

enum {
    SLOWEST_MS = 250,
    FASTEST_MS = 10,
    AT_ONCE = 256,   /* clients that are ended in one turn of the loop */
    QUIET_MS = 1000, /* without a byte of its body a client may be ended, when room is short */
    QUEUE_MS = 250,  /* for as many as there is room for, when as many wait to be accepted */
    CROWD = 64,      /* as many may come at once without ill will */
    SPEAK_MS = 250,  /* for who has just come, in a crowd */
    FLOOD_MS = 30,   /* …and in what is larger */
    TRIES = 16,
};

/* An eighth of the shortest time that is kept. */
static uint64_t interval(const cp_server *srv) {
    const cp_config *c = srv->t->config;
    int64_t least = c->header_timeout < c->keepalive ? c->header_timeout : c->keepalive;
    if (c->stall_timeout < least) least = c->stall_timeout;
    uint64_t ms = (uint64_t)least / 8;
    if (ms < FASTEST_MS) return FASTEST_MS;
    return ms < SLOWEST_MS ? ms : SLOWEST_MS;
}

static bool is_idle(const cp_client *c) { return atomic_load(&c->phase) == CP_CLIENT_HEAD && c->in.n == c->at; }

static bool has_unread(const cp_client *c) {
    int unread = 0;
    return ioctl(c->fd, FIONREAD, &unread) == 0 && unread > 0;
}

/* The owner's. */
static void time_over(cp_client *c) {
    cp_err err;
    cp_client_phase phase = atomic_load(&c->phase);
    if (is_idle(c) && has_unread(c)) { /* its request has come, and this thread has been later than the deadline */
        c->look = true;
        cp_client_release(c);
        return;
    }
    if (phase == CP_CLIENT_LINGER || is_idle(c)) {
        cp_client_close(c);
        return;
    }
    cp_fail(&err, CP_E_REQUEST_TIMEOUT, "The request %s was not received in time",
            phase == CP_CLIENT_BODY ? "body" : "head");
    cp_request_refuse_raw(c, &err, true);
}

static bool overdue(const cp_client *c, uint64_t now) {
    uint64_t at = atomic_load_explicit(&c->deadline, memory_order_relaxed);
    return at && at <= now;
}

static bool rests(const cp_client *c) {
    return (atomic_load_explicit(&c->state, memory_order_relaxed) & (CP_STATE_OPEN | CP_STATE_BUSY)) == CP_STATE_OPEN;
}

typedef struct sweep {
    uint64_t now;
    uint64_t stall; /* ms that a reader may take nothing */
    bool tight;     /* memory that readers hold is short: every reader is looked at */
    bool short_of[CP_MEM_COUNT];
    bool bodies;    /* memory for bodies is: who is quiet within one is ended */
    unsigned ended; /* so far */
} sweep;

static bool reads(const cp_client *c) {
    return atomic_load_explicit(&c->phase, memory_order_relaxed) == CP_CLIENT_SEND;
}

static bool is_over(const cp_client *c, const sweep *s) {
    uint64_t since = atomic_load_explicit(&c->since, memory_order_relaxed);
    bool within_body = atomic_load_explicit(&c->phase, memory_order_relaxed) == CP_CLIENT_BODY;
    return overdue(c, s->now) || (s->bodies && within_body && s->now > since + CP_OUTBOX_SHORT_STALL_MS);
}

/* Of a reader whose reply holds what memory is short of, or of any where that is the replies themselves. */
static uint64_t stall_of(const sweep *s, const cp_client *c) {
    bool hurry = s->short_of[CP_MEM_UNSENT] || s->short_of[cp_send_kind(c)];
    return hurry && s->stall > CP_OUTBOX_SHORT_STALL_MS ? CP_OUTBOX_SHORT_STALL_MS : s->stall;
}

static void look(cp_client *c, void *arg) {
    sweep *s = arg;
    if (s->ended >= AT_ONCE || !rests(c) || !(is_over(c, s) || (s->tight && reads(c))) || !cp_client_take(c, 0)) return;
    if (reads(c)) {
        if (cp_send_patient(c, stall_of(s, c))) return;
        cp_client_close(c);
        s->ended++;
    } else if (is_over(c, s)) {
        time_over(c);
        s->ended++;
    } else {
        cp_client_release(c);
    }
}

static sweep begin_sweep(const cp_server *srv) {
    static const cp_mem_kind read[] = {CP_MEM_UNSENT, CP_MEM_RESULTS, CP_MEM_TRANSFERS};
    sweep s = {.now = cp_now_ms(), .stall = (uint64_t)srv->t->config->stall_timeout};
    for (size_t i = 0; i < CP_COUNT(read); i++) s.tight |= s.short_of[read[i]] = cp_budget_short(read[i]);
    s.bodies = cp_budget_tight(CP_MEM_BODIES);
    return s;
}

static void on_tick(cp_timer *t) {
    cp_server *srv = CP_CONTAINER(t, cp_server, sweep);
    sweep s = begin_sweep(srv);
    cp_clients_each(srv->clients, look, &s);
    atomic_store(&srv->admit, true);
    atomic_store(&srv->sweep_posted, false); /* before the look: who comes later posts again */
    cp_listener_rearm(srv);
    bool whole = cp_residents_mend(srv);
    if ((atomic_load(&srv->open) || !whole) && !atomic_exchange(&srv->sweep_posted, true))
        cp_timer_start(srv->t->loop, t, s.ended < AT_ONCE ? interval(srv) : FASTEST_MS, on_tick);
}

static void begin(cp_task *task) {
    cp_server *srv = CP_CONTAINER(task, cp_server, sweep_task);
    if (!atomic_load(&srv->closing)) cp_timer_start(srv->t->loop, &srv->sweep, interval(srv), on_tick);
}

void cp_sweep_wake(cp_server *srv) {
    if (atomic_load_explicit(&srv->sweep_posted, memory_order_relaxed) || atomic_load(&srv->closing)) return;
    if (!atomic_exchange(&srv->sweep_posted, true)) cp_loop_post(srv->t->loop, &srv->sweep_task, begin);
}

void cp_sweep_stop(cp_server *srv) { cp_timer_stop(srv->t->loop, &srv->sweep); }

/* ---- draining ---- */

static void part(cp_client *c, void *arg) {
    (void)arg;
    if (!rests(c) || atomic_load(&c->phase) != CP_CLIENT_HEAD || !cp_client_take(c, 0)) return;
    if (atomic_load(&c->phase) != CP_CLIENT_HEAD || has_unread(c)) {
        c->look = true;
        cp_client_release(c);
    } else {
        cp_client_close(c);
    }
}

void cp_sweep_idle(cp_server *srv) { cp_clients_each(srv->clients, part, NULL); }

/* ---- making room ---- */

typedef struct choice {
    cp_client *client;
    bool trusted;
    unsigned of_source;
    uint64_t since;
    uint64_t now;
    uint64_t idle;  /* ms that who has been served may rest */
    uint64_t fresh; /* ms that who has not shown that he may come in has for that */
} choice;

/* Many that wait to be accepted shall not wait until each of those before them has had a second to say nothing. */
static uint64_t time_to_speak(const cp_server *srv, uint64_t idle_ms) {
    uint64_t waiting = idle_ms ? cp_listener_waiting(srv) : 0, least = waiting > CROWD ? FLOOD_MS : SPEAK_MS;
    uint64_t ms = waiting ? QUEUE_MS * (uint64_t)srv->soft_open / waiting : idle_ms;
    if (ms < least) ms = least;
    return ms < idle_ms ? ms : idle_ms;
}

/* Ms of quiet after which a client may be ended; UINT64_MAX: it is not the client that is waited for. */
static uint64_t spared(const cp_client *c, const choice *how) {
    bool trusted = atomic_load_explicit(&c->trusted, memory_order_relaxed);
    switch ((cp_client_phase)atomic_load_explicit(&c->phase, memory_order_relaxed)) {
    case CP_CLIENT_HEAD: return trusted ? how->idle : how->fresh;
    case CP_CLIENT_LINGER: return how->fresh;
    case CP_CLIENT_BODY: return trusted ? QUIET_MS : how->fresh;
    case CP_CLIENT_SEND: return trusted ? CP_OUTBOX_SHORT_STALL_MS : how->fresh;
    case CP_CLIENT_CALL:
    case CP_CLIENT_SIDE:
    case CP_CLIENT_LENT: break;
    }
    return UINT64_MAX;
}

static void compare(cp_client *c, void *arg) {
    choice *best = arg;
    if (!rests(c)) return;
    bool trusted = atomic_load_explicit(&c->trusted, memory_order_relaxed);
    unsigned n = cp_source_now(atomic_load(&c->source));
    uint64_t since = atomic_load_explicit(&c->since, memory_order_relaxed), least = spared(c, best);
    if (least == UINT64_MAX || best->now < since + least) return;
    bool better = !best->client || (best->trusted && !trusted) ||
                  (best->trusted == trusted && (n > best->of_source || (n == best->of_source && since < best->since)));
    if (!better) return;
    best->client = c;
    best->trusted = trusted;
    best->of_source = n;
    best->since = since;
}

/* The owner's: it has spoken, or taken something, meanwhile. */
static bool has_moved(cp_client *c, const choice *how) {
    uint64_t least = spared(c, how);
    if (least == UINT64_MAX) {
        cp_client_release(c);
        return true;
    }
    if (reads(c)) return cp_send_patient(c, least);
    if (atomic_load(&c->phase) == CP_CLIENT_LINGER || !has_unread(c)) return false;
    c->look = true;
    cp_client_release(c);
    return true;
}

bool cp_sweep_evict(cp_server *srv, uint64_t idle_ms) {
    choice how = {.now = cp_now_ms(), .idle = idle_ms, .fresh = time_to_speak(srv, idle_ms)};
    for (int tries = 0; tries < TRIES; tries++) {
        choice best = how;
        cp_clients_each(srv->clients, compare, &best);
        if (!best.client) return false;
        if (!cp_client_take(best.client, 0) || has_moved(best.client, &how)) continue;
        cp_metric_add(CP_M_HTTP_SHED, 1);
        cp_client_close(best.client);
        return true;
    }
    return false;
}
