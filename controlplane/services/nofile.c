#include "services/nofile.h"

#include "base/fd.h"
#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <sys/eventfd.h>
#include <sys/param.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum {
    LEAST = 64,    /* the server itself has about 30 open */
    ITS_OWN = 32,  /* about */
    FOR_ALL = 64,  /* never given away: for connections that come next, the io pool's and our own files */
    FOR_ENDS = 64, /* beyond: left for connections when nothing can be started any more */
    A_START = 8,   /* what one opens for a moment */
    COUNTED = 4096,
    PER_SHELL = 64, /* of a low limit: one shell is started before it is asked for */
};

static uint64_t limit(void) {
    struct rlimit r;
    return getrlimit(RLIMIT_NOFILE, &r) < 0 || r.rlim_cur == RLIM_INFINITY ? UINT64_MAX : r.rlim_cur;
}

/* What is open is counted, whoever holds it; this comes on top, in proportion to what there is. */
static uint64_t reserve(uint64_t have, cp_nofile_for what) {
    return MIN(FOR_ALL, have / 8) + (what == CP_NOFILE_START ? MIN(FOR_ENDS, have / 8) + A_START : 0);
}

/* Each worker holds both ends of its connection to CivetWeb, and what CivetWeb wakes it by: so many leave three
 * quarters for what is served. */
static uint64_t workers_for(uint64_t have) { return (have - ITS_OWN) / 12; }

int cp_nofile_fit(cp_config *c, cp_err *err) {
    uint64_t have = limit();
    if (have < LEAST)
        return cp_fail(err, CP_E_LIMIT_EXCEEDED, "the limit of open files is %llu, at least %d are needed (ulimit -n)",
                       (unsigned long long)have, LEAST);
    c->pool_size = (int64_t)MIN((uint64_t)c->pool_size, have / PER_SHELL);
    if ((uint64_t)c->http_workers <= workers_for(have)) return 0;
    cp_log(CP_LOG_WARN, "server.nofile", "the limit of open files is low: there are fewer HTTP workers",
           CP_KVI("limit", (int64_t)have), CP_KVI("wanted", c->http_workers),
           CP_KVI("workers", (int64_t)workers_for(have)));
    c->http_workers = (int64_t)workers_for(have);
    return 0;
}

static uint64_t count_entries(void) {
    uint64_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    if (!d) return UINT64_MAX;
    while (readdir(d)) n++;
    closedir(d);
    return n - 3; /* ., .. and the folder's own */
}

/* proc_pid_fd(5): from Linux 6.2 on the size is the number of descriptors. Before, they are counted as long as there
 * can be few. Among many, the lowest free number will do: all below it are in use, though others may be, too. */
static uint64_t in_use(uint64_t have) {
    struct stat st;
    if (stat("/proc/self/fd", &st) == 0 && st.st_size > 0) return (uint64_t)st.st_size;
    if (have <= COUNTED) return count_entries();
    cp_autofd int lowest = eventfd(0, EFD_CLOEXEC);
    return lowest < 0 ? UINT64_MAX : (uint64_t)lowest;
}

int cp_nofile_room(cp_nofile_for what, cp_err *err) {
    uint64_t have = limit(), kept = reserve(have, what);
    if (have == UINT64_MAX || (kept < have && in_use(have) < have - kept)) return 0;
    return cp_fail_sys(err, CP_E_LIMIT_EXCEEDED, EMFILE,
                       "too few descriptors are free (the limit of open files is %llu)", (unsigned long long)have);
}
