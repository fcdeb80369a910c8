#include "base/cond.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A signal that comes between the unlock and the sleep has changed the number, and the kernel does not let us sleep. */
bool cp_cond_wait_until(cp_cond *c, pthread_mutex_t *mu, const struct timespec *at) {
    uint32_t seen = atomic_load_explicit(&c->signals, memory_order_relaxed);
    c->waiters++;
    pthread_mutex_unlock(mu);
    long rc = syscall(SYS_futex, &c->signals, FUTEX_WAIT_BITSET_PRIVATE, seen, at, NULL, FUTEX_BITSET_MATCH_ANY);
    bool in_time = rc == 0 || errno != ETIMEDOUT;
    pthread_mutex_lock(mu);
    c->waiters--;
    return in_time;
}

void cp_cond_wait(cp_cond *c, pthread_mutex_t *mu) { cp_cond_wait_until(c, mu, NULL); }

static void wake(cp_cond *c, int most) {
    if (!c->waiters) return;
    atomic_fetch_add_explicit(&c->signals, 1, memory_order_relaxed);
    (void)syscall(SYS_futex, &c->signals, FUTEX_WAKE_PRIVATE, most, NULL, NULL, 0);
}

void cp_cond_signal(cp_cond *c) { wake(c, 1); }
void cp_cond_broadcast(cp_cond *c) { wake(c, INT_MAX); }
