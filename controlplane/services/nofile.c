#include "services/nofile.h"

#include "base/fd.h"

#include <sys/eventfd.h>
#include <sys/resource.h>

enum {
    FOR_FILES = 64,  /* connections that CivetWeb has accepted and no worker has yet; the io pool's and our own files */
    FOR_STARTS = 64, /* beyond: left for connections when nothing can be started any more */
    AT_LEAST = 128,  /* to begin with, for ourselves and for what is to be served */
};

static uint64_t limit(void) {
    struct rlimit r;
    return getrlimit(RLIMIT_NOFILE, &r) < 0 || r.rlim_cur == RLIM_INFINITY ? UINT64_MAX : r.rlim_cur;
}

/* Each worker holds a connection, and something to be woken by. */
static uint64_t reserve(const cp_config *c, cp_nofile_for what) {
    return 2 * (uint64_t)c->http_workers + FOR_FILES + (what == CP_NOFILE_START ? FOR_STARTS : 0);
}

int cp_nofile_check(const cp_config *c, cp_err *err) {
    uint64_t have = limit(), need = reserve(c, CP_NOFILE_START) + AT_LEAST;
    if (have >= need) return 0;
    return cp_fail(err, CP_E_LIMIT_EXCEEDED,
                   "the limit of open files is %llu, at least %llu are needed with %lld HTTP workers (ulimit -n)",
                   (unsigned long long)have, (unsigned long long)need, (long long)c->http_workers);
}

/* The kernel gives the lowest number that is free: all below it are in use. */
int cp_nofile_room(const cp_config *c, cp_nofile_for what, cp_err *err) {
    uint64_t have = limit();
    cp_autofd int lowest = eventfd(0, EFD_CLOEXEC);
    if (lowest >= 0 && (uint64_t)lowest + reserve(c, what) < have) return 0;
    return cp_fail(err, CP_E_LIMIT_EXCEEDED, "too few descriptors are free (the limit of open files is %llu)",
                   (unsigned long long)have);
}
