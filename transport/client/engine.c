/* The engine: its thread, who shares it, and which connection a call goes to. */
#include "transport/client/client_impl.h"

#include "base/thread.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { STACK = 512 * 1024 };

static __thread bool here;
static pthread_mutex_t sharing = PTHREAD_MUTEX_INITIALIZER; /* guards `shared`, and `users` of each */
static engine *shared;

bool engine_here(void) { return here; }

/* ---- references ---- */

void engine_ref(engine *e) { atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed); }

void engine_unref(engine *e) {
    if (atomic_fetch_sub_explicit(&e->refs, 1, memory_order_acq_rel) != 1) return;
    cp_loop_free(e->loop);
    settings_fini(&e->set);
    table_fini(&e->calls);
    pthread_mutex_destroy(&e->mu);
    free(e);
}

/* ---- the thread ---- */

static void *run(void *arg) {
    engine *e = arg;
    here = true;
    cp_loop_run(e->loop, NULL);
    pthread_mutex_lock(&e->mu);
    e->closed = true;
    pthread_mutex_unlock(&e->mu);
    cp_loop_once(e->loop, 0); /* what was posted just before; frees what its round has buried */
    endings_fini(e);
    http_fini(e);
    cp_loop_once(e->loop, 0);
    return NULL;
}

bool engine_post(engine *e, cp_task *task, void (*fn)(cp_task *)) {
    pthread_mutex_lock(&e->mu);
    bool open = !e->closed;
    if (open) cp_loop_post(e->loop, task, fn);
    pthread_mutex_unlock(&e->mu);
    return open;
}

bool engine_run(engine *e, waiter *w, void (*fn)(cp_task *), cp_task *task) {
    if (!engine_post(e, task, fn)) return false;
    waiter_wait(w);
    return true;
}

static void global_init(void) { curl_global_init(CURL_GLOBAL_DEFAULT); }

static engine *engine_new(const conflux_options *o, conflux_error *err) {
    engine *e = cp_new(engine);
    cp_err why;
    atomic_init(&e->refs, 1);
    pthread_mutex_init(&e->mu, NULL);
    for (int k = 0; k < CC_PRIORITIES; k++) queue_init(&e->waiting[k]);
    e->told_mode = CONFLUX_AUTO;
    if (settings_init(&e->set, o, err) < 0) {
        engine_unref(e);
        return NULL;
    }
    e->loop = cp_loop_new(&why);
    if (!e->loop) fail(err, CONFLUX_E_SYSTEM, "%s", why.msg);
    if (!e->loop || http_init(e, err) < 0) {
        engine_unref(e);
        return NULL;
    }
    int rc = cp_thread_start(&e->thread, STACK, run, e);
    if (!rc) return e;
    fail(err, CONFLUX_E_SYSTEM, "no thread: %s", cp_errno_name(rc));
    http_fini(e);
    engine_unref(e);
    return NULL;
}

/* ---- sharing ---- */

static engine *find_shared(const conflux_options *o, conflux_error *err) {
    settings wanted;
    if (settings_init(&wanted, o, err) < 0) return NULL;
    engine *e = shared;
    while (e && !settings_equal(&e->set, &wanted)) e = e->next;
    settings_fini(&wanted);
    return e;
}

engine *engine_get(const conflux_options *o, conflux_error *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, global_init);
    if (!o->share) {
        engine *own = engine_new(o, err);
        if (own) own->users = 1;
        return own;
    }
    pthread_mutex_lock(&sharing);
    engine *e = find_shared(o, err);
    if (!e && (e = engine_new(o, err))) {
        e->next = shared;
        shared = e;
    }
    if (e) e->users++;
    pthread_mutex_unlock(&sharing);
    return e;
}

/* The last user takes it off the list under the mutex, so that nobody new comes. */
void engine_put(engine *e) {
    pthread_mutex_lock(&sharing);
    bool last = --e->users == 0;
    engine **at = &shared;
    while (last && *at && *at != e) at = &(*at)->next;
    if (last && *at) *at = e->next;
    pthread_mutex_unlock(&sharing);
    if (!last) return;
    engine_post(e, &e->leave_task, endings_leave);
    pthread_join(e->thread, NULL);
    engine_unref(e);
}

/* ---- which way ---- */

static link_conn *least_loaded(engine *e) {
    link_conn *best = e->links;
    for (link_conn *l = e->links; l; l = l->next)
        if (l->load < best->load) best = l;
    return best;
}

/* A message over the server's limit would end the connection for all that share it. The envelope's own bytes too. */
static bool fits(const link_conn *l, const conflux_call *c) {
    return c->body.n + strlen(c->path) + 4096 <= l->max_message;
}

static void route_to_link(engine *e, conflux_call *c) {
    conflux_error err;
    link_conn *l = least_loaded(e);
    if (l->load && e->nlinks < e->set.o.connections) dial_need(e);
    if (fits(l, c)) {
        link_add_call(l, c);
    } else if (e->set.o.mode == CONFLUX_AUTO) {
        http_add_call(e, c);
    } else {
        fail(&err, CONFLUX_E_TOO_LARGE, "the request is over the server's %llu bytes a message",
             (unsigned long long)l->max_message);
        call_end(c, NULL, &err);
    }
}

void engine_route(engine *e, conflux_call *c) {
    if (c->over_http || e->active == CONFLUX_HTTP) {
        http_add_call(e, c);
    } else if (e->links) {
        route_to_link(e, c);
    } else {
        c->state = CALL_WAITING;
        queue_push(&e->waiting[c->priority], c);
        call_arm(c);
        dial_need(e);
    }
}

static conflux_call *pop_waiting(engine *e) {
    for (int k = CC_PRIORITIES; k-- > 0;) {
        conflux_call *c = queue_pop(&e->waiting[k]);
        if (c) return c;
    }
    return NULL;
}

void engine_route_waiting(engine *e) {
    conflux_call *c;
    while (e->active != CONFLUX_AUTO && (c = pop_waiting(e))) {
        c->state = CALL_NEW;
        engine_route(e, c);
    }
}

void engine_fail_waiting(engine *e, const conflux_error *err) {
    conflux_call *c;
    while ((c = pop_waiting(e))) call_end(c, NULL, err);
}

/* ---- telling ---- */

bool engine_wanted(const engine *e) {
    const conflux_client *c = e->clients;
    while (c && !c->wants) c = c->next;
    return c != NULL;
}

void engine_tell_client(conflux_client *c, const conflux_status *s) {
    bool changed = atomic_load(&c->state) != (int)s->state || atomic_load(&c->mode) != (int)s->mode;
    atomic_store(&c->state, (int)s->state);
    atomic_store(&c->mode, (int)s->mode);
    if ((changed || s->cause) && c->o.on_state) c->o.on_state(c->o.arg, c, s);
}

void engine_tell(engine *e, conflux_state state, conflux_mode mode, const conflux_error *cause, uint32_t retry_in) {
    conflux_status s = {.state = state, .mode = mode, .cause = cause, .retry_in_ms = retry_in};
    e->told = state;
    e->told_mode = mode;
    trace(e, "= %s %s%s%s", conflux_state_name(state), conflux_mode_name(mode), cause ? ": " : "",
          cause ? cause->message : "");
    for (conflux_client *c = e->clients; c; c = c->next)
        if (c->wants || state == CONFLUX_DISCONNECTED) engine_tell_client(c, &s);
}

void engine_settle(engine *e, const conflux_error *err) {
    for (conflux_client *c = e->clients; c; c = c->next) client_settle(c, err);
}

bool tracing(const engine *e) {
    for (const conflux_client *c = e->clients; c; c = c->next)
        if (c->o.on_log) return true;
    return false;
}

void trace(engine *e, const char *fmt, ...) {
    char line[640];
    va_list ap;
    if (!tracing(e)) return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    for (conflux_client *c = e->clients; c; c = c->next)
        if (c->o.on_log) c->o.on_log(c->o.arg, line);
}

/* ---- waiting ---- */

void waiter_init(waiter *w) {
    *w = (waiter){0};
    pthread_mutex_init(&w->mu, NULL);
    pthread_cond_init(&w->cond, NULL);
}

void waiter_finish(waiter *w, int rc, const conflux_error *err) {
    pthread_mutex_lock(&w->mu);
    w->done = true;
    w->rc = rc;
    if (err) w->err = *err;
    pthread_cond_signal(&w->cond); /* under the mutex: the waiter owns the memory, and leaves when it has it */
    pthread_mutex_unlock(&w->mu);
}

void waiter_wait(waiter *w) {
    pthread_mutex_lock(&w->mu);
    while (!w->done) pthread_cond_wait(&w->cond, &w->mu);
    pthread_mutex_unlock(&w->mu);
}

void waiter_fini(waiter *w) {
    pthread_mutex_destroy(&w->mu);
    pthread_cond_destroy(&w->cond);
}
