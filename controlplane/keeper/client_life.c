/* Our end of the life line (life.c). Threads share their descriptors, and those are closed when the last thread has
 * ended; so the thread that has this one shares nothing. Ruled out: a lock or a futex, which the kernel frees at the
 * end of a thread as well, but nobody can wait for without a thread of his own; a child process, which would be
 * everybody's to see and to end. */
#include "keeper/client.h"

#include "base/fd.h"
#include "base/thread.h"

#include <fcntl.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { STACK = 64 * 1024, CLOSE_RANGE_OWN = 2 /* CLOSE_RANGE_UNSHARE */ };

static struct {
    int fd;
    bool alone;
    sem_t begun;
} life;

/* Nothing is open yet but what the keeper gave: no descriptor of ours stays in this table by mistake. */
static bool have_own_descriptors(int fd) {
    if (syscall(SYS_close_range, (unsigned)fd + 1, ~0u, CLOSE_RANGE_OWN) < 0) return false; /* before Linux 5.9 */
    (void)syscall(SYS_close_range, 0u, (unsigned)fd - 1, 0u);
    return true;
}

static void *live(void *arg) {
    life.alone = have_own_descriptors(life.fd);
    sem_post(&life.begun);
    while (life.alone) pause(); /* every signal is blocked */
    return arg;
}

bool cp_life_begin(int fd) {
    pthread_t t;
    life.fd = fd;
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    sem_init(&life.begun, 0, 0);
    if (cp_thread_start(&t, STACK, live, NULL) != 0) return false;
    while (sem_wait(&life.begun) < 0) {
    } /* a signal */
    bool alone = life.alone;
    if (alone) pthread_detach(t);
    else pthread_join(t, NULL);
    if (alone) close(fd);
    return alone;
}
