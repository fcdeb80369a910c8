#include "transport/http/stack.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

static _Thread_local uintptr_t lowest; /* of the stack, above its guard; 0: not asked yet, 1: unknown */

static uintptr_t stack_base(void) {
    pthread_attr_t attr;
    void *addr;
    size_t size, guard;
    if (pthread_getattr_np(pthread_self(), &attr) != 0) return 1;
    int rc = pthread_attr_getstack(&attr, &addr, &size);
    rc |= pthread_attr_getguardsize(&attr, &guard);
    pthread_attr_destroy(&attr);
    /* whether addr includes the guard is the C library's secret: leaving as much again untouched is right for both */
    return rc ? 1 : (uintptr_t)addr + guard;
}

enum { MARGIN = 1024 }; /* below this frame, for the call itself */

__attribute__((noinline)) void cp_stack_trim(void) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), here = (uintptr_t)__builtin_frame_address(0);
    if (!lowest) lowest = stack_base();
    uintptr_t low = (lowest + page - 1) & ~(page - 1), high = (here - MARGIN) & ~(page - 1);
    if (lowest == 1 || high <= low) return;
    (void)madvise((void *)low, high - low, MADV_DONTNEED); /* refused: the pages stay, nothing is lost */
}
