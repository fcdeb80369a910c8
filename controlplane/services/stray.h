#pragma once
/* Ends processes that nobody asks about any more: what is left of a session that was deleted, a shell that was
 * replaced, a command that begins after its client was told of its end. Where a lack of descriptors or memory keeps
 * them from being looked at, it is tried again until they can be, also when whoever ordered it is gone. Loop thread. */
#include "services/services.h"
#include "services/tree.h"

/* SIGKILL to one process, if it is still the one with that start time (0: not known; then it is tried once). */
void cp_stray_kill(cp_services *s, pid_t pid, uint64_t start_time);
/* The same to root (0: none), to all that cp_tree_collect finds for it, and to what carries the mark. */
void cp_stray_kill_all(cp_services *s, pid_t root, uint64_t start_time, const cp_mark *mark);
/* What has not been ended by now stays. Never opened is fine. */
void cp_strays_close(cp_services *s);
