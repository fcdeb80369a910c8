#pragma once
/* How many objects of a kind some code has looked at: each lies on a page of its own that nobody may touch, and the
 * first touch of each is counted. One thread, one arena at a time. */
#pragma GCC diagnostic ignored "-Wunused-function" /* not every test uses all of it */
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct {
    char *p;
    size_t n, page;
    volatile size_t count;
    struct sigaction before;
} touched;

static void on_touch(int sig, siginfo_t *info, void *context) {
    (void)sig, (void)context;
    char *at = info->si_addr;
    if (at < touched.p || at >= touched.p + touched.n * touched.page) { /* a real fault: it comes again */
        sigaction(SIGSEGV, &touched.before, NULL);
        return;
    }
    size_t i = (size_t)(at - touched.p) / touched.page;
    touched.count++;
    mprotect(touched.p + i * touched.page, touched.page, PROT_READ | PROT_WRITE);
}

/* n zeroed objects of at most a page, until touched_close. */
static void touched_open(size_t n) {
    const struct sigaction on = {.sa_sigaction = on_touch, .sa_flags = SA_SIGINFO};
    touched.page = (size_t)sysconf(_SC_PAGESIZE);
    touched.n = n;
    touched.p = mmap(NULL, n * touched.page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(touched.p != MAP_FAILED);
    assert_int_equal(sigaction(SIGSEGV, &on, &touched.before), 0);
}

static void *touched_at(size_t i) { return touched.p + i * touched.page; }

/* From here on it is counted. */
static void touched_arm(void) {
    touched.count = 0;
    assert_int_equal(mprotect(touched.p, touched.n * touched.page, PROT_NONE), 0);
}

/* How many were touched since. */
static size_t touched_count(void) {
    assert_int_equal(mprotect(touched.p, touched.n * touched.page, PROT_READ | PROT_WRITE), 0);
    return touched.count;
}

static void touched_close(void) {
    sigaction(SIGSEGV, &touched.before, NULL);
    munmap(touched.p, touched.n * touched.page);
}
