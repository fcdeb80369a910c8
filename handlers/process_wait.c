/* GET /api/process/{id}/wait: for its end, for text in its output, or for a TCP port (conflux-additions.md,
 * "Processes"). */
#include <stdlib.h>

#include "base/clock.h"
#include "handlers/exec_args.h"
#include "handlers/exec_result.h"
#include "handlers/log_match.h"
#include "handlers/port_probe.h"
#include "handlers/process.h"
#include "handlers/reply.h"
#include "services/events.h"

enum {
    SCAN = 64 << 10,     /* bytes of a log that are taken out of it at a time */
    SLICE_MS = 5,        /* of matching; then others have their turn */
    STEP = 4 << 10,      /* bytes between two looks at the clock */
    PATTERNS_MAX = 1000, /* that may wait at a time: each learns its own tables */
    PORT_POLL_MS = 50
};

typedef enum { FOR_EXIT, FOR_LOG, FOR_PORT } wait_for;
static const char *const wait_words[] = {"exit", "log", "port"};

/* What every wait has; by the thousand they wait for an exit, which needs no more, and nothing here that can be told
 * from the rest. */
typedef struct waiter {
    cp_exec_watch watch; /* holds a reference; its number is timeoutMs */
    cp_reply *reply;     /* NULL: over; only a probe that still runs keeps us */
    cp_timer timeout;
    uint64_t client; /* cp_request.client */
} waiter;

/* Matching is done off the loop, in slices: a pattern costs whoever waits for it, and nobody else. A piece is taken out
 * of the log on the loop, searched by as many jobs as it needs, and then the next is taken. */
typedef struct log_waiter {
    waiter base;
    cp_ctx *ctx;
    cp_log_match match[2];
    bool counted; /* in the context's patterns */
    bool look[2]; /* at stdout, at stderr */
    cp_cursor cursor[2];
    bool opened; /* the cursors are */
    uint64_t from[2];

    /* the piece, and the job's while `working` */
    bool working;
    cp_work work;
    int stream;
    cp_buf piece;
    uint64_t at; /* offset of its first byte */
    size_t done; /* bytes of it that hold no match */
    bool last, found;
    cp_log_hit hit;
} log_waiter;

typedef struct port_waiter {
    waiter base;
    cp_workers *workers;
    cp_timer again;
    uint16_t port;
    cp_work probe;
    bool probing, listening;
} port_waiter;

static const cp_exec_watch_ops watch_ops[3]; /* by wait_for: which of the structs it is in */

static wait_for what_of(const waiter *w) { return (wait_for)(w->watch.ops - watch_ops); }
static log_waiter *as_log(waiter *w) { return what_of(w) == FOR_LOG ? CP_CONTAINER(w, log_waiter, base) : NULL; }
static port_waiter *as_port(waiter *w) { return what_of(w) == FOR_PORT ? CP_CONTAINER(w, port_waiter, base) : NULL; }

static waiter *waiter_new(wait_for what) {
    waiter *w = what == FOR_LOG    ? &cp_new(log_waiter)->base
                : what == FOR_PORT ? &cp_new(port_waiter)->base
                                   : cp_new(waiter);
    w->watch.ops = &watch_ops[what];
    return w;
}

static cp_loop *loop_of(const waiter *w) { return w->watch.exec->svc->loop; }

static void waiter_free(waiter *w) {
    log_waiter *l = as_log(w);
    for (int k = 2; l && k-- > 0;) cp_log_match_fini(&l->match[k]);
    if (l) cp_buf_free(&l->piece);
    if (l && l->counted) l->ctx->patterns--;
    free(w); /* the first member of whatever it is in */
}

/* Lets go of everything but the execution and a job in flight; returns the reply to answer. */
static cp_reply *let_go(waiter *w) {
    cp_reply *r = cp_take(w->reply);
    log_waiter *l = as_log(w);
    port_waiter *p = as_port(w);
    cp_timer_stop(loop_of(w), &w->timeout);
    if (p) cp_timer_stop(loop_of(w), &p->again);
    for (int k = 0; l && k < 2; k++) cp_cursor_close(&l->cursor[k]);
    return r;
}

/* A job that has begun frees us when it is done. */
static bool job_runs(waiter *w) {
    log_waiter *l = as_log(w);
    port_waiter *p = as_port(w);
    if (l && l->working) return !cp_workers_withdraw(&l->work);
    if (p && p->probing) return !cp_workers_withdraw(&p->probe);
    return false;
}

static void finish(waiter *w) {
    cp_exec *e = w->watch.exec;
    cp_exec_watch_del(&w->watch);
    cp_exec_unref(e);
    if (!job_runs(w)) waiter_free(w);
}

/* ---- answers ---- */

static void publish_ready(const waiter *w, const char *stream) {
    const cp_exec *e = w->watch.exec;
    cp_event_publish(e->svc, &(cp_event_row){.type = CP_EVENT_PROCESS_READY,
                                             .process_id = e->process_id,
                                             .exec_id = e->id,
                                             .session = e->session,
                                             .pid = e->pid,
                                             .stream = stream});
}

static void answer(waiter *w, int k, const cp_log_hit *hit) {
    cp_reply *reply = let_go(w);
    cp_result res = {0};
    cp_jw j = cp_success_begin(&res);
    if (what_of(w) != FOR_EXIT) publish_ready(w, !hit ? NULL : k ? "stderr" : "stdout");
    if (hit) {
        cp_jw_kz(&j, "stream", k ? "stderr" : "stdout");
        cp_jw_ku64(&j, "offset", hit->offset);
        cp_jw_kstr(&j, "line", hit->line);
        cp_jw_kstr(&j, "match", hit->match);
    }
    if (as_port(w)) cp_jw_ku64(&j, "port", as_port(w)->port);
    cp_jw_key(&j, "process");
    cp_jw_process(&j, w->watch.exec);
    cp_success_end(&j);
    cp_reply_send(reply, &res);
    finish(w);
}

static void fail(waiter *w, const cp_err *err) {
    cp_process_not_ready(let_go(w), w->watch.exec, err, wait_words[what_of(w)], w->watch.number);
    finish(w);
}

static void fail_ended(waiter *w) {
    cp_err err;
    cp_fail(&err, CP_E_PROCESS_EXITED_BEFORE_READY, "Process %s ended before it was ready", w->watch.exec->process_id);
    fail(w, &err);
}

static void on_timeout(cp_timer *t) {
    waiter *w = CP_CONTAINER(t, waiter, timeout);
    cp_err err;
    cp_fail(&err, CP_E_PROCESS_READY_TIMEOUT, "Process %s was not ready within %ums", w->watch.exec->process_id,
            w->watch.number);
    fail(w, &err);
}

/* ---- log ---- */

static void match_run(cp_work *work) {
    log_waiter *l = CP_CONTAINER(work, log_waiter, work);
    uint64_t until = cp_now_ms() + SLICE_MS;
    do {
        size_t left = l->piece.n - l->done, n = left < STEP ? left : STEP;
        cp_str data = {l->piece.n ? l->piece.p + l->done : NULL, n};
        l->found = cp_log_match_feed(&l->match[l->stream], l->at + l->done, data, l->last && n == left, &l->hit);
        l->done += n;
    } while (!l->found && l->done < l->piece.n && cp_now_ms() < until);
}

static void match_done(cp_work *work);

static void match_on(log_waiter *l) {
    l->working = true;
    cp_workers_submit_to(l->ctx->workers, CP_LANE_COMPUTE, l->base.client, &l->work, match_run, match_done);
}

/* The next piece of a stream, whichever has one. False: nothing is there now. */
static bool take_piece(log_waiter *l, int k) {
    cp_exec *e = l->base.watch.exec;
    cp_output *o = e->out[k];
    if (!l->look[k] || !o || !l->cursor[k].o) return false;
    cp_buf_reset(&l->piece, SCAN);
    size_t n = cp_cursor_read(&l->cursor[k], SCAN, &l->piece, &l->at);
    l->last = cp_exec_over(e) && cp_output_ended(o) && l->at + n >= cp_output_total(o);
    if (!n && !l->last) return false;
    l->stream = k;
    l->done = 0;
    return true;
}

static void scan(log_waiter *l) {
    waiter *w = &l->base;
    if (l->working) return; /* looks again when it is done */
    for (int k = 0; k < 2; k++) {
        if (!take_piece(l, k)) continue;
        match_on(l);
        return;
    }
    cp_buf_free(&l->piece);
    for (int k = 0; k < 2; k++)
        if (l->look[k] && l->cursor[k].o && cp_cursor_waits(&l->cursor[k])) return;
    if (cp_exec_over(w->watch.exec)) fail_ended(w);
}

static void match_done(cp_work *work) {
    log_waiter *l = CP_CONTAINER(work, log_waiter, work);
    l->working = false;
    if (!l->base.reply) {
        waiter_free(&l->base);
    } else if (l->found) {
        answer(&l->base, l->stream, &l->hit);
    } else if (l->done < l->piece.n) {
        match_on(l);
    } else if (l->last) { /* of this stream there will be no more */
        cp_cursor_close(&l->cursor[l->stream]);
        scan(l);
    } else {
        cp_cursor_advance(&l->cursor[l->stream], l->at + l->piece.n);
        scan(l);
    }
}

static void wake_stdout(cp_cursor *c) { scan(CP_CONTAINER(c, log_waiter, cursor[0])); }
static void wake_stderr(cp_cursor *c) { scan(CP_CONTAINER(c, log_waiter, cursor[1])); }

static void begin_log(log_waiter *l) {
    cp_exec *e = l->base.watch.exec;
    l->opened = e->out[0] != NULL;
    for (int k = 0; k < 2; k++)
        if (l->look[k] && e->out[k])
            cp_cursor_open(&l->cursor[k], e->out[k], l->from[k], true, k ? wake_stderr : wake_stdout);
    scan(l);
}

/* ---- port ---- */

static void probe_run(cp_work *work) {
    port_waiter *p = CP_CONTAINER(work, port_waiter, probe);
    p->listening = cp_port_listening(p->port);
}

static void probe_again(cp_timer *t);
static void probe_done(cp_work *work) {
    port_waiter *p = CP_CONTAINER(work, port_waiter, probe);
    waiter *w = &p->base;
    p->probing = false;
    if (!w->reply) waiter_free(w);
    else if (p->listening) answer(w, 0, NULL);
    else if (cp_exec_over(w->watch.exec)) fail_ended(w);
    else cp_timer_start(loop_of(w), &p->again, PORT_POLL_MS, probe_again);
}

static void probe(port_waiter *p) {
    p->probing = true;
    cp_workers_submit_to(p->workers, CP_LANE_COMPUTE, p->base.client, &p->probe, probe_run, probe_done);
}

static void probe_again(cp_timer *t) { probe(CP_CONTAINER(t, port_waiter, again)); }

/* ---- life ---- */

static void exit_on_end(cp_exec_watch *watch, cp_exec *e) {
    (void)e;
    answer(CP_CONTAINER(watch, waiter, watch), 0, NULL);
}

static void log_on_start(cp_exec_watch *watch, cp_exec *e) {
    log_waiter *l = CP_CONTAINER(watch, log_waiter, base.watch);
    (void)e;
    if (!l->opened) begin_log(l); /* it was still starting: there was no log yet */
}

static void log_on_end(cp_exec_watch *watch, cp_exec *e) {
    (void)e;
    scan(CP_CONTAINER(watch, log_waiter, base.watch));
}

static void port_on_end(cp_exec_watch *watch, cp_exec *e) {
    port_waiter *p = CP_CONTAINER(watch, port_waiter, base.watch);
    (void)e;
    if (!p->probing) fail_ended(&p->base); /* else the probe that runs has the last word */
}

static const cp_exec_watch_ops watch_ops[3] = {[FOR_EXIT] = {.on_end = exit_on_end},
                                               [FOR_LOG] = {.on_start = log_on_start, .on_end = log_on_end},
                                               [FOR_PORT] = {.on_end = port_on_end}};

static bool on_cancel(cp_reply *reply, cp_end why, bool kill) {
    (void)why, (void)kill;
    waiter *w = reply->handler;
    let_go(w);
    finish(w);
    return false;
}

static int read_flag(const cp_request *req, const char *name, bool *out, cp_err *err) {
    uint64_t v = 0;
    if (cp_request_param_u64(req, name, 1, &v, err) < 0) return -1;
    *out = v == 1;
    return 0;
}

static int read_log(log_waiter *l, const cp_request *req, cp_err *err) {
    cp_autobuf cp_buf pattern = {0}, stream = {0};
    bool regex, given;
    if (cp_request_param(req, "pattern", &pattern, err) < 0 || cp_request_param(req, "stream", &stream, err) < 0 ||
        read_flag(req, "regex", &regex, err) < 0 || cp_offsets_of(req, l->from, &given, err) < 0)
        return -1;
    l->look[0] = !stream.n || cp_str_is(cp_buf_str(&stream), "stdout");
    l->look[1] = !stream.n || cp_str_is(cp_buf_str(&stream), "stderr");
    if (!l->look[0] && !l->look[1]) return cp_fail_field(err, "stream", "stream must be stdout or stderr");
    if (cp_log_match_init(&l->match[0], cp_buf_str(&pattern), regex, err) < 0) return -1;
    cp_log_match_share(&l->match[1], &l->match[0]);
    if (!regex) return 0;
    if (l->ctx->patterns >= PATTERNS_MAX)
        return cp_fail(err, CP_E_LIMIT_EXCEEDED, "%d waits for a regular expression are under way", PATTERNS_MAX);
    l->ctx->patterns++;
    l->counted = true;
    return 0;
}

static int read_port(port_waiter *p, const cp_request *req, cp_err *err) {
    uint64_t port = 0;
    if (cp_request_param_u64(req, "port", 65535, &port, err) < 0) return -1;
    if (!port) return cp_fail_field(err, "port", "port must be a number from 1 to 65535");
    p->port = (uint16_t)port;
    return 0;
}

static int read_what(const cp_request *req, wait_for *what, cp_err *err) {
    cp_autobuf cp_buf word = {0};
    int got = cp_request_param(req, "for", &word, err);
    if (got < 0) return -1;
    int i = 0;
    while (got && i < 3 && !cp_str_is(cp_buf_str(&word), wait_words[i])) i++;
    if (i == 3) return cp_fail_field(err, "for", "for must be exit, log or port");
    *what = (wait_for)i;
    return 0;
}

/* The wait that is asked for; NULL with *err. */
static waiter *read_wait(cp_ctx *ctx, const cp_request *req, cp_err *err) {
    static const char *const known[] = {"timeoutMs", "for", "pattern", "stream", "from", "port", "regex", NULL};
    wait_for what = FOR_EXIT;
    uint64_t timeout = 0;
    if (read_what(req, &what, err) < 0 || cp_request_only(req, known, err) < 0 ||
        cp_request_param_u64(req, "timeoutMs", CP_MAX_WAIT_MS, &timeout, err) < 0)
        return NULL;
    waiter *w = waiter_new(what);
    w->watch.number = (uint32_t)timeout;
    w->client = cp_request_owner(req);
    if (as_log(w)) as_log(w)->ctx = ctx;
    if (as_port(w)) as_port(w)->workers = ctx->workers;
    if ((what == FOR_LOG && read_log(as_log(w), req, err) < 0) ||
        (what == FOR_PORT && read_port(as_port(w), req, err) < 0)) {
        waiter_free(w);
        return NULL;
    }
    return w;
}

static void begin(waiter *w) {
    bool over = cp_exec_over(w->watch.exec);
    port_waiter *p = as_port(w);
    if (w->watch.number && !over) cp_timer_start(loop_of(w), &w->timeout, w->watch.number, on_timeout);
    if (as_log(w)) begin_log(as_log(w));
    else if (over && p) fail_ended(w);
    else if (over) answer(w, 0, NULL);
    else if (p) probe(p);
}

void cp_process_wait(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    cp_err err = {0};
    cp_exec *e = cp_process_find(ctx, req, reply);
    if (!e) return;
    waiter *w = read_wait(ctx, req, &err);
    if (!w) {
        cp_reply_error(reply, &err, NULL, (cp_str){0});
        return;
    }
    w->reply = reply;
    cp_exec_ref(e);
    cp_exec_watch_add(e, &w->watch);
    reply->handler = w;
    reply->on_cancel = on_cancel;
    begin(w);
}
