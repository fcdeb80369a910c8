#pragma once
/* Whose a process is, wherever it has gone. The mark is in its limit RLIMIT_LOCKS, which Linux has not looked at since
 * 2.4.25 (setrlimit(2)): it is inherited over fork, exec, setsid, setuid and `env -i`, shows in no environment, and
 * another process may read it. Ruled out: a variable in the environment (a shell that takes it out of what its
 * commands see takes it out of what /proc shows of them), cgroups (no right to make one in most containers), a name in
 * a descriptor (closed by daemons).
 *
 * The hard limit names the spawn: a flag, the keeper's number, a counter of the keeper's. An unprivileged process can
 * only lower it, and so leave. The soft limit names the command within a session; as long as nobody has set one it is
 * the hard limit. Any thread. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"

#define CP_MARK_FLAG    (UINT64_C(1) << 62)
#define CP_MARK_KEEPERS (UINT64_C(1) << 26)
#define CP_MARK_SPAWNS  (UINT64_C(1) << 36) /* of one keeper */

typedef struct cp_mark {
    uint64_t spawn;   /* 0: none */
    uint64_t command; /* 0: that of no command; in what is looked for: whichever */
} cp_mark;

/* Reads the mark of a process. False: it has none, or is gone. */
bool cp_mark_of(pid_t pid, cp_mark *out);
/* The limit from the text of /proc/pid/limits, which ends in a NUL. False: it is not there, or no number. Pure. */
bool cp_mark_limits(cp_str text, uint64_t *soft, uint64_t *hard);
/* Is `limit` a mark? Not, for one, "unlimited". */
static inline bool cp_mark_is(uint64_t limit) { return limit >> 62 == 1; }
/* The part of a spawn's mark that all spawns of its keeper share. */
static inline uint64_t cp_mark_keeper(uint64_t spawn) { return spawn & ~(CP_MARK_SPAWNS - 1); }

static inline bool cp_mark_matches(const cp_mark *wanted, const cp_mark *have) {
    return wanted->spawn && have->spawn == wanted->spawn && (!wanted->command || have->command == wanted->command);
}
