/* GET /api/events (conflux-additions.md, "Events"). Beside that page:
 * - `from=0` is the first event there is. A Last-Event-ID header counts more than `from`: a client that connects again
 *   sends the same query.
 * - Where the next events are not kept any more the stream says {"type":"events.dropped","from","next"} and goes on
 *   with the event `next` or the one behind it. */
#include "services/events.h"

#include <stdio.h>
#include <stdlib.h>

#include "handlers/exec_result.h"
#include "handlers/families.h"

#define MAX_ID 9007199254740991 /* what JavaScript counts exactly */

typedef struct event_source {
    cp_source base;
    cp_event_sub sub;
} event_source;

static void put_id(cp_event *out, uint64_t id) { snprintf(out->id, sizeof out->id, "%llu", (unsigned long long)id); }

static void put_optional(cp_jw *w, const char *key, const char *value) {
    if (value) cp_jw_kz(w, key, value);
}

static void put_event(cp_event *out, const cp_event_row *ev) {
    cp_jw *w = &out->w;
    cp_jw_obj(w);
    cp_jw_ku64(w, "id", ev->id);
    cp_jw_kz(w, "type", ev->type);
    cp_jw_key(w, "timestamp");
    cp_jw_iso(w, ev->at_ms);
    put_optional(w, "processId", ev->process_id);
    put_optional(w, "executionId", ev->exec_id);
    put_optional(w, "sessionId", ev->session);
    if (ev->pid) cp_jw_ki64(w, "pid", ev->pid);
    if (ev->has_exit) cp_jw_ki64(w, "exitCode", ev->exit_code);
    if (ev->signal) cp_jw_signal(w, "signal", ev->signal);
    put_optional(w, "outcome", ev->outcome);
    put_optional(w, "stream", ev->stream);
    if (ev->bytes) cp_jw_ku64(w, "bytes", ev->bytes);
    cp_jw_end_obj(w);
    put_id(out, ev->id);
}

/* Its id lets a client that loses the connection here go on behind the gap. */
static void put_gap(cp_event *out, uint64_t from, uint64_t to) {
    cp_jw_obj(&out->w);
    cp_jw_kz(&out->w, "type", "events.dropped");
    cp_jw_ku64(&out->w, "from", from);
    cp_jw_ku64(&out->w, "next", to + 1);
    cp_jw_end_obj(&out->w);
    put_id(out, to);
}

static cp_pull pull(cp_source *base, size_t budget, cp_event *out) {
    (void)budget; /* an event is small: its ids are bounded */
    event_source *s = CP_CONTAINER(base, event_source, base);
    const cp_event_row *ev;
    uint64_t from = s->sub.last, to;
    switch (cp_event_next(&s->sub, &ev, &to)) {
    case CP_EVENT_NEXT: put_event(out, ev); return CP_PULL_EVENT;
    case CP_EVENT_GAP: put_gap(out, from, to); return CP_PULL_EVENT;
    case CP_EVENT_NONE: break;
    }
    return CP_PULL_WAIT;
}

static void on_close(cp_source *base, cp_end why, bool kill) {
    (void)why, (void)kill;
    event_source *s = CP_CONTAINER(base, event_source, base);
    cp_event_sub_close(&s->sub);
    free(s);
}

static void on_events(cp_event_sub *sub) { cp_source_wake(&CP_CONTAINER(sub, event_source, sub)->base); }

/* 1: *from is where to go on; 0: from now on; -1. */
static int read_from(const cp_request *req, uint64_t *from, cp_err *err) {
    static const char *const known[] = {"from", NULL};
    cp_str last = cp_request_header(req, "Last-Event-ID");
    int got = cp_request_param_u64(req, "from", MAX_ID, from, err);
    if (got < 0 || cp_request_only(req, known, err) < 0) return -1;
    if (!last.n) return got;
    if (!cp_str_u64(last, MAX_ID, from))
        return cp_fail_field(err, "Last-Event-ID", "Last-Event-ID must be the id of an event");
    return 1;
}

static void events(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    static const cp_source_ops ops = {.pull = pull, .close = on_close};
    cp_err err = {0};
    uint64_t from = 0;
    int got = read_from(req, &from, &err);
    if (got < 0) {
        cp_reply_error(reply, &err, NULL, (cp_str){0});
        return;
    }
    event_source *s = cp_new(event_source);
    s->base.ops = &ops;
    s->sub.on_events = on_events;
    if (got) cp_event_sub_open_after(&s->sub, ctx->svc, from);
    else cp_event_sub_open(&s->sub, ctx->svc);
    cp_reply_stream(reply, &s->base);
}

const cp_route cp_events_routes[] = {
    {CP_GET, "/api/events", CP_R_LOOP | CP_R_LASTS, "events", NULL, events,
     "What happens to processes, executions and sessions, live and from an event on"},
};
const size_t cp_events_nroutes = CP_COUNT(cp_events_routes);
