#pragma once
/* The memory budget of the process (--memory-budget): one counter of the bytes that clients make the server hold, with
 * a gauge for each kind (schema/memory.def). Who is about to hold something asks first, and gives back when it has let
 * go.
 *
 * - A kind may take at most its share of the budget, so that none can starve the others.
 * - The last eighth of the budget, and what is over a share, is for small holdings only (CP_BUDGET_SMALL): ordinary
 *   requests are served while the large ones are refused.
 * - A refusal is LIMIT_EXCEEDED and names kind, size and budget. Nothing is counted then.
 *
 * Any thread, never blocking: relaxed atomics. Before cp_budget_open the budget has no limit. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

typedef enum cp_mem_kind {
#define X(id, label, share, words) CP_MEM_##id,
#include "schema/memory.def"
#undef X
    CP_MEM_COUNT
} cp_mem_kind;

enum { CP_BUDGET_SMALL = 64 * 1024, CP_BUDGET_SHORT_MS = 10000 };

/* Sets the budget in bytes, once, before anything is charged. */
void cp_budget_open(uint64_t limit);

/* Counts n more bytes of a kind. -1 with LIMIT_EXCEEDED when they do not fit. */
int cp_budget_reserve(cp_mem_kind kind, size_t n, cp_err *err);
/* Counts what is held already and cannot be refused any more, over the limit too: what comes after is refused. */
void cp_budget_force(cp_mem_kind kind, size_t n);
/* Gives back what one of the two above has counted. */
void cp_budget_release(cp_mem_kind kind, size_t n);

/* A kind is over its share, or the budget is nearly used up: who can wait, waits, and who can be sent away, is. */
bool cp_budget_tight(cp_mem_kind kind);
/* More than half of the share, or of the budget, is held: who can do with less, does. */
bool cp_budget_half(cp_mem_kind kind);
/* Tight; or half of it is held, and somebody has been refused within CP_BUDGET_SHORT_MS: what is refused never makes
 * its kind tight. Who holds some of it and makes no use of it is sent away. */
bool cp_budget_short(cp_mem_kind kind);
size_t cp_budget_held(cp_mem_kind kind); /* CP_MEM_COUNT: all */
/* Counts n bytes that went to a file because memory had no room for them; for /metrics. */
void cp_budget_spilled(size_t n);
/* Appends the gauges and counters as Prometheus text. */
void cp_budget_metrics(cp_buf *out);

/* The system has no memory for what a client asked for: -1 with LIMIT_EXCEEDED, as when the budget has none. */
int cp_no_memory(cp_err *err, size_t n);
/* Room for `more` bytes behind what b holds (cp_buf_try_reserve). 0 or cp_no_memory. */
int cp_room(cp_buf *b, size_t more, cp_err *err);
/* n zeroed elements of `size` bytes; the caller frees. NULL with cp_no_memory. */
void *cp_try_array(size_t n, size_t size, cp_err *err);

/* One holding that grows and shrinks: a body that is received, a queue. Embed in the owner, which sets kind; the bytes
 * are the holding's own. One thread at a time. */
typedef struct cp_charge {
    cp_mem_kind kind;
    size_t bytes;
} cp_charge;
/* Makes the holding n bytes: asks for what is more, gives back what is less. -1 with LIMIT_EXCEEDED: it is as it was.
 * Whether it is small is judged by the whole holding. */
int cp_charge_set(cp_charge *c, size_t n, cp_err *err);
/* As cp_charge_set, but never refused (cp_budget_force). */
void cp_charge_force(cp_charge *c, size_t n);
static inline void cp_charge_free(cp_charge *c) { cp_charge_force(c, 0); } /* gives all back; may be called again */
