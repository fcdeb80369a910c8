#pragma once
/* What happens to processes, executions, sessions and the server, as numbered events that any number of subscribers
 * follow (conflux-additions.md, "Events"). Loop thread only.
 *
 * Which: process.* for what is listed as a process; its end is one process.exited (without outcome and pid: it could
 * not be started). execution.ended for a buffered call whose id somebody may ask for later: chosen by the caller, or
 * given out with a 202; a call that simply gets its answer is no event. session.ended when a session is deleted, or is
 * not there any more after a restart; its shell may come and go meanwhile. process.output_dropped tells of the bytes
 * since the former one, every few seconds while it lasts and before process.exited, so that they add up. */
#include "base/ring.h"
#include "services/services.h"

/* CP_EVENT_PROCESS_STARTED … : the words of schema/events.def, for cp_event_row.type. */
#define X(id, word) extern const char CP_EVENT_##id[];
#include "schema/events.def"
#undef X

enum { CP_EVENTS_KEPT = 10000 }; /* at most; and for config->history_age, but always the last one */

/* Reads what is kept of the former servers' events, and publishes server.restarted when there was one. */
int cp_events_open(cp_services *s, cp_err *err);
/* Subscribers that are left get no more. */
void cp_events_close(cp_services *s);

/* What is kept, into a registry that has been begun anew. */
void cp_events_put_all(cp_services *s);

/* Records one. id and at_ms are set here, the strings are copied. Subscribers see it when it is on disk, however long
 * that takes. Between cp_registry_begin and _end it is recorded together with the row that it tells of. */
void cp_event_publish(cp_services *s, const cp_event_row *ev);

/* Embed in the owner. */
typedef struct cp_event_sub {
    void (*on_events)(struct cp_event_sub *sub); /* there is more to take; never from inside a call */
    cp_services *svc;
    uint64_t last; /* id of the last one taken */
    cp_link link;
} cp_event_sub;

/* From now on. */
void cp_event_sub_open(cp_event_sub *sub, cp_services *s);
/* After the event with this id; 0: from the first one on. An id that is not there yet is waited for. */
void cp_event_sub_open_after(cp_event_sub *sub, cp_services *s, uint64_t id);
void cp_event_sub_close(cp_event_sub *sub); /* not open is fine */

typedef enum { CP_EVENT_NONE, CP_EVENT_NEXT, CP_EVENT_GAP } cp_event_got;
/* NEXT: *ev is the next event, valid until control returns to the loop. GAP: the next events are not kept any more;
 * *gap_to is the id of the last of them, and sub goes on behind it. */
cp_event_got cp_event_next(cp_event_sub *sub, const cp_event_row **ev, uint64_t *gap_to);
