#include "base/thread.h"

#include <signal.h>

/* The mask is inherited: it is set before the thread exists, so that no signal can hit it in between. */
int cp_thread_start(pthread_t *t, size_t stack_bytes, void *(*fn)(void *), void *arg) {
    sigset_t all, old;
    pthread_attr_t attr;
    sigfillset(&all);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, stack_bytes);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(t, &attr, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return rc;
}
