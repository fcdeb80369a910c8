/* The marks of what this keeper spawns (base/mark.h). Its number is drawn at the start: one in 2^26 that two keepers
 * whose processes can see each other have the same. A keeper inside another one's child draws below the number that it
 * carries, so that it needs no privilege to mark its own. */
#include "keeper/core.h"

#include "base/id.h"
#include "base/log.h"

#include <errno.h>
#include <sys/resource.h>

static uint64_t draw(uint64_t hard) {
    uint64_t n, below = cp_mark_is(hard) ? (hard & (CP_MARK_FLAG - 1)) / CP_MARK_SPAWNS : CP_MARK_KEEPERS;
    if (below <= 1) below = CP_MARK_KEEPERS; /* nothing is below: it takes the privilege */
    cp_random(&n, sizeof n);
    return CP_MARK_FLAG | (1 + n % (below - 1)) * CP_MARK_SPAWNS;
}

/* Tried on ourselves, without leaving a trace. A limit that is high enough already is set as it is: some sandboxes know
 * the limit and refuse to set it. */
static bool may_set(uint64_t number, const struct rlimit *old) {
    uint64_t highest = number | (CP_MARK_SPAWNS - 1);
    if (old->rlim_max >= highest) return setrlimit(RLIMIT_LOCKS, old) == 0;
    struct rlimit raised = {.rlim_cur = highest, .rlim_max = highest};
    return setrlimit(RLIMIT_LOCKS, &raised) == 0 && setrlimit(RLIMIT_LOCKS, old) == 0;
}

void mark_init(keeper *k) {
    struct rlimit old;
    if (getrlimit(RLIMIT_LOCKS, &old) == 0) {
        k->mark = draw(old.rlim_max);
        if (may_set(k->mark, &old)) return;
    }
    cp_log(CP_LOG_WARN, "keeper.unmarked",
           "processes cannot be marked by their limit of file locks: one that leaves its session and its parent is not "
           "found when its command is killed",
           CP_KVZ("errno", cp_errno_name(errno)));
    k->mark = 0;
}

uint64_t mark_next(keeper *k) { return k->mark ? k->mark | (++k->spawns & (CP_MARK_SPAWNS - 1)) : 0; }

bool mark_is_of(uint64_t number, uint64_t spawn) { return number && cp_mark_keeper(spawn) == number; }
