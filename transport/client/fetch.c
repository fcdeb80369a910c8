/* Calls that are waited for: one, many, or an execution that somebody else has begun. */
#include "transport/client/client_impl.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct fetch {
    waiter w;
    conflux_response r;
} fetch;

static void on_done(void *arg, conflux_call *c, conflux_response *r, const conflux_error *err) {
    fetch *f = arg;
    (void)c;
    if (r) f->r = cp_take(*r);
    waiter_finish(&f->w, r ? 0 : -1, err);
}

/* False: it was not even started, and f is done. */
static bool fetch_start(fetch *f, conflux_client *client, const conflux_request *rq) {
    conflux_error err;
    conflux_handlers h = {.on_done = on_done, .arg = f};
    waiter_init(&f->w);
    conflux_call *c = conflux_start(client, rq, &h, &err);
    if (!c) waiter_finish(&f->w, -1, &err);
    conflux_call_free(c);
    return c != NULL;
}

static int fetch_wait(fetch *f, conflux_response *r, conflux_error *err) {
    waiter_wait(&f->w);
    *r = f->r;
    if (err) *err = f->w.err;
    waiter_fini(&f->w);
    return f->w.rc;
}

static int not_here(conflux_error *err) {
    return fail(err, CONFLUX_E_DEADLOCK, "this waits, and cannot be called from a callback");
}

int conflux_fetch(conflux_client *client, const conflux_request *rq, conflux_response *r, conflux_error *err) {
    fetch f = {0};
    *r = (conflux_response){0};
    if (engine_here()) return not_here(err);
    fetch_start(&f, client, rq);
    return fetch_wait(&f, r, err);
}

int conflux_batch(conflux_client *client, const conflux_request *rqs, size_t n, conflux_response *rs,
                  conflux_error *errs) {
    int answered = 0;
    if (engine_here()) return -1;
    cp_autofree fetch *all = cp_alloc((n + 1) * sizeof *all);
    for (size_t i = 0; i < n; i++) fetch_start(&all[i], client, &rqs[i]);
    for (size_t i = 0; i < n; i++) answered += fetch_wait(&all[i], &rs[i], errs ? &errs[i] : NULL) == 0;
    return answered;
}

/* ---- resume ---- */

enum { ASK_MS = 20000 }; /* the server holds each question so long; a lost connection then costs one of them */

static uint64_t left_until(uint64_t end) {
    uint64_t now = cp_now_ms();
    return now < end ? end - now : 0;
}

int conflux_resume(conflux_client *client, const char *id, uint32_t timeout, conflux_response *r, conflux_error *err) {
    if (!timeout) timeout = client->o.request_timeout_ms;
    uint64_t end = timeout == CONFLUX_NO_TIMEOUT ? UINT64_MAX : cp_now_ms() + timeout;
    *r = (conflux_response){0};
    for (;;) {
        char path[CC_ID_MAX + 64];
        uint64_t left = left_until(end), ask = left < ASK_MS ? left : ASK_MS;
        if (!left) return fail(err, CONFLUX_E_REQUEST_TIMEOUT, "the execution did not end within %u ms", timeout);
        snprintf(path, sizeof path, "/api/execution/%.128s?waitMs=%llu", id, (unsigned long long)ask);
        conflux_request rq = {.path = path, .timeout_ms = (uint32_t)(left < UINT32_MAX ? left : UINT32_MAX - 1)};
        conflux_error why;
        int rc = conflux_fetch(client, &rq, r, &why);
        if (rc == 0 && r->status != 202) return 0;
        conflux_response_free(r);
        if (rc == 0 || why.kind == CONFLUX_E_CONNECTION_LOST) continue;
        if (err) *err = why;
        return -1;
    }
}
