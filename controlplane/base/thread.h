#pragma once
/* Threads of ours: every signal blocked (signals are the business of the thread that waits for them), a stack of the
 * size that the work needs. */
#include <pthread.h>
#include <stddef.h>

/* 0, or an errno. */
int cp_thread_start(pthread_t *t, size_t stack_bytes, void *(*fn)(void *), void *arg);
