/* Commands that are ended over HTTP: DELETE /api/execution/{id}, on its own, since cutting the command's connection
 * ends nothing.
 *
 * The trap: it goes over another connection than the command did, and may come first. Then the server knows no such
 * execution, and will start it a moment later; so it is asked again, for a while. And the client may be freed at once:
 * its thread stays for as long as the server needs to hear of it. */
#include "transport/client/client_impl.h"

#include <stdio.h>
#include <stdlib.h>

enum { WHILE_MS = 5000, FIRST_PAUSE_MS = 10, LONGEST_PAUSE_MS = 500, LEAVE_MS = 2000 };

struct ending {
    engine *eng;
    ending *next;
    char *path;
    http_call *http; /* NULL: between two attempts */
    cp_timer again;
    uint64_t until; /* cp_loop_now */
    uint32_t pause;
};

static void ending_free(ending *x) {
    engine *e = x->eng;
    ending **at = &e->endings;
    while (*at != x) at = &(*at)->next;
    *at = x->next;
    cp_timer_stop(e->loop, &x->again);
    if (x->http) http_free(x->http);
    free(x->path);
    free(x);
    if (e->leaving && !e->endings) cp_loop_stop(e->loop);
}

static void attempt(cp_timer *t);

static void later(ending *x) {
    engine *e = x->eng;
    if (cp_loop_now(e->loop) + x->pause >= x->until) {
        trace(e, "- %s was not heard", x->path);
        ending_free(x);
        return;
    }
    cp_timer_start(e->loop, &x->again, x->pause, attempt);
    x->pause = x->pause * 2 < LONGEST_PAUSE_MS ? x->pause * 2 : LONGEST_PAUSE_MS;
}

static void attempt(cp_timer *t) {
    ending *x = CP_CONTAINER(t, ending, again);
    conflux_error err;
    x->http = http_delete(x->eng, x, x->path, (uint32_t)(x->until - cp_loop_now(x->eng->loop)), &err);
    if (!x->http) later(x);
}

void ending_begin(engine *e, const char *id) {
    ending *x = cp_new(ending);
    cp_buf path = {0};
    cp_buf_addf(&path, "/api/execution/%s", id);
    x->eng = e;
    cp_buf_z(&path);
    x->path = path.p;
    x->until = cp_loop_now(e->loop) + WHILE_MS;
    x->pause = FIRST_PAUSE_MS;
    x->next = e->endings;
    e->endings = x;
    trace(e, "> DELETE %s", x->path);
    attempt(&x->again);
}

void ending_answered(ending *x, int status, cp_str body) {
    conflux_error err = {0};
    if (status >= 400) fail_server(&err, status, body.p, body.n);
    bool unknown = status == 404 && strcmp(err.code, "EXECUTION_NOT_FOUND") == 0;
    trace(x->eng, "< DELETE %s %d %s", x->path, status, err.code);
    http_free(cp_take(x->http));
    if (!status || unknown || err.retry_safe) later(x);
    else ending_free(x);
}

static void on_leave_time(cp_timer *t) {
    engine *e = CP_CONTAINER(t, engine, leave);
    cp_loop_stop(e->loop);
}

void endings_leave(cp_task *t) {
    engine *e = CP_CONTAINER(t, engine, leave_task);
    e->leaving = true;
    if (e->endings) cp_timer_start(e->loop, &e->leave, LEAVE_MS, on_leave_time);
    else cp_loop_stop(e->loop);
}

void endings_fini(engine *e) {
    cp_timer_stop(e->loop, &e->leave);
    while (e->endings) ending_free(e->endings);
}
