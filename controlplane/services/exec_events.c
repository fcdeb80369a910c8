/* The events that go with an execution's row. What has been told is what the row on disk says: a restarted server reads
 * from it where to go on. */
#include "services/events.h"
#include "services/exec_core.h"

static cp_event_row about(const cp_exec *e, const char *type) {
    return (cp_event_row){
        .type = type, .process_id = e->process_id, .exec_id = e->id, .session = e->session, .pid = e->pid};
}

static void publish_dropped(cp_exec *e, int k) {
    static const char *const streams[] = {"stdout", "stderr"};
    uint64_t dropped = cp_output_dropped(e->out[k]), *told = &e->impl->told_dropped[k];
    if (dropped <= *told) return;
    cp_event_row ev = about(e, CP_EVENT_PROCESS_OUTPUT_DROPPED);
    ev.stream = streams[k];
    ev.bytes = dropped - *told;
    *told = dropped;
    cp_event_publish(e->svc, &ev);
}

/* One that could not be started has neither pid nor outcome. */
static void publish_end(cp_exec *e) {
    cp_event_row ev = about(e, e->process_id ? CP_EVENT_PROCESS_EXITED : CP_EVENT_EXECUTION_ENDED);
    if (e->state == CP_STATE_ENDED) {
        ev.outcome = cp_outcome_name(e->outcome);
        ev.has_exit = e->exit_code >= 0;
        ev.exit_code = e->exit_code;
        ev.signal = e->signal;
    }
    e->impl->told_end = true;
    cp_event_publish(e->svc, &ev);
}

void cp_exec_publish(cp_exec *e) {
    struct cp_exec_impl *i = e->impl;
    bool over = e->state == CP_STATE_ENDED || e->state == CP_STATE_FAILED;
    if (e->process_id && !i->told_start && e->pid) {
        cp_event_row ev = about(e, CP_EVENT_PROCESS_STARTED);
        i->told_start = true;
        cp_event_publish(e->svc, &ev);
    }
    for (int k = 0; e->process_id && k < 2; k++) publish_dropped(e, k);
    if (over && !i->told_end && (e->durable || e->promised)) publish_end(e);
}

void cp_exec_publish_told(cp_exec *e, const cp_exec_row *row) {
    struct cp_exec_impl *i = e->impl;
    i->told_start = strcmp(row->state, "intent") != 0;
    i->told_end = strcmp(row->state, "ended") == 0;
    for (int k = 0; k < 2; k++) i->told_dropped[k] = row->dropped[k];
}
