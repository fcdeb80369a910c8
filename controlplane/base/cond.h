#pragma once
/* A condition variable whose signal waits for nobody. That of glibc may wait (before 2.41): once all waiters of one
 * group have been signalled, the next signal waits until each of them has run, and threads that are ready may be
 * without a processor for long. So what the loop signals, and what is signalled under a mutex that the loop takes, is
 * one of these.
 *
 * Zero is a fresh one, and there is nothing to free; like any other it may wake without a signal. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

typedef struct cp_cond {
    _Atomic uint32_t signals; /* how many there have been: a waiter sleeps only while it is what he has seen */
    uint32_t waiters;         /* guarded by the mutex */
} cp_cond;

/* All with `mu` held, which is always the same one. Any thread. */

/* Releases mu, waits for a signal, and holds mu again. */
void cp_cond_wait(cp_cond *c, pthread_mutex_t *mu);
/* At most until `at` (CLOCK_MONOTONIC); false: it has come to that. */
bool cp_cond_wait_until(cp_cond *c, pthread_mutex_t *mu, const struct timespec *at);
/* Wakes one of those that wait, or all. Never waits. */
void cp_cond_signal(cp_cond *c);
void cp_cond_broadcast(cp_cond *c);
