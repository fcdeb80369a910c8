/* Nothing is buffered here: a cursor per stream says what has been sent, and what cannot be sent yet (the beginning of
 * a UTF-8 sequence) is simply read again. The cursors are blocking: while somebody watches, the child waits rather than
 * losing bytes. One scratch buffer is used again for every event. */
#include "handlers/exec_source.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "handlers/exec_result.h"

enum { CHUNK = 64 << 10 };

typedef enum { AT_START, AT_OUTPUT, AT_END } phase;

typedef struct exec_source {
    cp_source base;
    cp_ctx *ctx;
    cp_exec *exec;
    cp_exec_source_opts opts;
    cp_exec_watch watch;
    cp_cursor cursor[2];
    bool open; /* the cursors are */
    phase phase;
    unsigned turn; /* which stream goes first */
    cp_buf scratch;
} exec_source;

static const char *const stream_names[] = {"stdout", "stderr"};

static cp_jw *begin(cp_event *ev, const char *type) {
    cp_jw_obj(&ev->w);
    cp_jw_kz(&ev->w, "type", type);
    return &ev->w;
}

static void finish(cp_event *ev) {
    cp_jw_know(&ev->w);
    cp_jw_end_obj(&ev->w);
}

static void set_id(const exec_source *s, cp_event *ev) {
    if (!s->opts.offsets) return;
    snprintf(ev->id, sizeof ev->id, "%llu-%llu", (unsigned long long)s->cursor[0].at,
             (unsigned long long)s->cursor[1].at);
}

static cp_pull start_event(exec_source *s, cp_event *ev) {
    const cp_exec *e = s->exec;
    cp_jw *w = begin(ev, s->opts.process ? "process_info" : "start");
    if (s->opts.process) cp_jw_kz(w, "processId", e->process_id);
    cp_jw_command(w, e);
    if (s->opts.process) cp_jw_kz(w, "status", cp_exec_status(e));
    if (s->opts.ids) {
        cp_jw_kz(w, "executionId", e->id);
        if (!s->opts.process && e->process_id) cp_jw_kz(w, "processId", e->process_id);
    }
    set_id(s, ev);
    finish(ev);
    s->phase = AT_OUTPUT;
    return CP_PULL_EVENT;
}

/* How many of the n bytes just read may leave now. `last`: nothing will follow them. Text keeps an unfinished UTF-8
 * sequence back; base64 is cut at multiples of 3 while more is there, so that the pieces can be joined as text. */
static size_t sendable(const exec_source *s, size_t n, bool full, bool last) {
    if (last) return n;
    if (s->opts.base64) return full ? n - n % 3 : n;
    return n - cp_utf8_tail(s->scratch.p, n);
}

static void dropped_event(exec_source *s, int k, uint64_t to, cp_event *ev) {
    cp_jw *w = begin(ev, "dropped");
    cp_jw_kz(w, "stream", stream_names[k]);
    cp_jw_ku64(w, "bytes", to - s->cursor[k].at);
    cp_cursor_advance(&s->cursor[k], to);
    set_id(s, ev);
    finish(ev);
}

static void data_event(exec_source *s, int k, uint64_t at, size_t n, cp_event *ev) {
    cp_jw *w = begin(ev, stream_names[k]);
    cp_jw_key(w, "data");
    if (s->opts.base64) cp_jw_base64(w, s->scratch.p, n);
    else cp_jw_str(w, (cp_str){s->scratch.p, n});
    if (s->opts.process) cp_jw_kz(w, "processId", s->exec->process_id);
    if (s->opts.offsets) cp_jw_ku64(w, "offset", at);
    cp_cursor_advance(&s->cursor[k], at + n);
    set_id(s, ev);
    finish(ev);
}

static bool output_event(exec_source *s, int k, size_t budget, cp_event *ev) {
    cp_output *o = s->exec->out[k];
    cp_cursor *c = &s->cursor[k];
    uint64_t at;
    size_t max = budget < CHUNK ? budget : CHUNK;
    if (s->opts.base64) max -= max / 4;
    if (max < 4) max = 4; /* room for one character */
    cp_buf_clear(&s->scratch);
    size_t n = cp_cursor_read(c, max, &s->scratch, &at);
    if (!n) return false;
    if (at > c->at) {
        dropped_event(s, k, at, ev);
        return true;
    }
    n = sendable(s, n, n == max, cp_output_ended(o) && at + n >= cp_output_total(o));
    if (!n) return false;
    data_event(s, k, at, n, ev);
    return true;
}

/* Bytes that the log had dropped behind its last kept byte (a budget of 0, or the cut of maxOutputBytes) are announced,
 * so that received + dropped = written holds at the end too. */
static bool missing_event(exec_source *s, int k, cp_event *ev) {
    uint64_t total = cp_output_total(s->exec->out[k]);
    if (s->cursor[k].at >= total) return false;
    dropped_event(s, k, total, ev);
    return true;
}

static bool lost_its_shell(const cp_exec *e) {
    return e->session_destroyed || e->session_ended || e->outcome == CP_OUTCOME_lost || e->state == CP_STATE_FAILED;
}

static void end_additions(exec_source *s, cp_jw *w) {
    const cp_exec *e = s->exec;
    if (e->state == CP_STATE_FAILED) {
        cp_jw_start_error(w, e);
    } else if (s->opts.ids || e->outcome == CP_OUTCOME_lost) {
        cp_jw_kz(w, "outcome", cp_outcome_name(e->outcome));
        if (e->signal) cp_jw_signal(w, "signal", e->signal);
        cp_jw_kbool(w, "timedOut", e->timed_out);
    }
    if (!s->opts.offsets) return;
    cp_jw_key(w, "offsets");
    cp_jw_obj(w);
    for (int k = 0; k < 2; k++) cp_jw_ku64(w, stream_names[k], e->out[k] ? cp_output_total(e->out[k]) : 0);
    cp_jw_end_obj(w);
}

/* exitCode is always there, 0 included, unless how the command ended is not known: its session went away under it. */
static cp_pull end_event(exec_source *s, cp_event *ev) {
    const cp_exec *e = s->exec;
    bool known = !lost_its_shell(e) && e->exit_code >= 0;
    cp_jw *w = begin(ev, s->opts.process ? "exit" : "complete");
    if (s->opts.process) cp_jw_kz(w, "processId", e->process_id);
    if (known) cp_jw_ki64(w, "exitCode", e->exit_code);
    if (s->opts.process) {
        char text[96];
        if (known) snprintf(text, sizeof text, "Process %s with exit code %d", cp_exec_status(e), e->exit_code);
        else snprintf(text, sizeof text, "Process %s", cp_exec_status(e));
        cp_jw_kz(w, "data", text);
    }
    end_additions(s, w);
    set_id(s, ev);
    finish(ev);
    s->phase = AT_END;
    return CP_PULL_EVENT;
}

static cp_pull output(exec_source *s, size_t budget, cp_event *ev) {
    for (int i = 0; s->open && i < 2; i++) {
        int k = (int)(s->turn + (unsigned)i) & 1;
        if (!output_event(s, k, budget, ev)) continue;
        s->turn = (unsigned)k + 1;
        return CP_PULL_EVENT;
    }
    if (!cp_exec_over(s->exec)) return CP_PULL_WAIT;
    for (int k = 0; s->open && k < 2; k++) /* what cannot be read at this moment is not missing */
        if (cp_cursor_waits(&s->cursor[k])) return CP_PULL_WAIT;
    for (int k = 0; s->open && k < 2; k++)
        if (missing_event(s, k, ev)) return CP_PULL_EVENT;
    return end_event(s, ev);
}

static cp_pull pull(cp_source *base, size_t budget, cp_event *ev) {
    exec_source *s = CP_CONTAINER(base, exec_source, base);
    switch (s->phase) {
    case AT_START: return start_event(s, ev);
    case AT_OUTPUT: return output(s, budget, ev);
    case AT_END: break;
    }
    return CP_PULL_END;
}

static bool must_kill(const exec_source *s, cp_end why, bool kill) {
    if (s->phase == AT_END || why == CP_END_DONE || why == CP_END_SHUTDOWN) return false;
    return kill || (why == CP_END_DISCONNECTED ? s->opts.kill_on_disconnect : s->opts.kill_on_cancel);
}

static void on_close(cp_source *base, cp_end why, bool kill) {
    exec_source *s = CP_CONTAINER(base, exec_source, base);
    cp_exec_watch_del(&s->watch);
    for (int k = 0; s->open && k < 2; k++) cp_cursor_close(&s->cursor[k]);
    if (must_kill(s, why, kill))
        cp_exec_kill(s->exec, SIGTERM, (uint64_t)s->ctx->config->timeout_grace, CP_OUTCOME_cancelled, NULL, NULL, NULL);
    cp_exec_unref(s->exec);
    cp_buf_free(&s->scratch);
    free(s);
}

static int on_stdin(cp_source *base, cp_str data, bool eof, cp_stdin_ack *ack, cp_err *err) {
    return cp_exec_stdin(CP_CONTAINER(base, exec_source, base)->exec, data, eof, ack, err);
}

static void wake_stdout(cp_cursor *c) { cp_source_wake(&CP_CONTAINER(c, exec_source, cursor[0])->base); }
static void wake_stderr(cp_cursor *c) { cp_source_wake(&CP_CONTAINER(c, exec_source, cursor[1])->base); }
static void on_end(cp_exec_watch *w, cp_exec *e) {
    (void)e;
    cp_source_wake(&CP_CONTAINER(w, exec_source, watch)->base);
}

cp_source *cp_exec_source_new(cp_ctx *ctx, cp_exec *e, const cp_exec_source_opts *o) {
    static const cp_source_ops ops = {.pull = pull, .close = on_close, .on_stdin = on_stdin};
    static const cp_exec_watch_ops on_watch = {.on_end = on_end};
    exec_source *s = cp_new(exec_source);
    s->base.ops = &ops;
    s->ctx = ctx;
    s->exec = e;
    s->opts = *o;
    cp_exec_ref(e);
    s->watch.ops = &on_watch;
    s->open = e->out[0] && e->out[1];
    for (int k = 0; s->open && k < 2; k++)
        cp_cursor_open(&s->cursor[k], e->out[k], o->offsets ? o->from[k] : 0, e->kind != CP_EXEC_BUFFERED,
                       k ? wake_stderr : wake_stdout);
    if (!cp_exec_over(e)) cp_exec_watch_add(e, &s->watch);
    return &s->base;
}
