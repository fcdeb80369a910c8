#pragma once
/* How a child ended, from its wait status and rusage. */
#include <stdbool.h>
#include <stdint.h>

typedef struct cp_exit {
    int code;   /* exit code, or -1 when ended by a signal */
    int signal; /* signal number, or 0 */
    bool core;
    uint64_t max_rss; /* bytes (ru_maxrss of the child and what it waited for) */
    uint64_t cpu_us;  /* user + system */
} cp_exit;
