#pragma once
/* What the container uses, by its control group (version 2, else 1), or else the whole machine by /proc. Blocking, any
 * thread. */
#include <stdbool.h>
#include <stdint.h>

typedef enum { CP_USAGE_PROC, CP_USAGE_CGROUP1, CP_USAGE_CGROUP2 } cp_usage_source;

typedef struct cp_usage {
    cp_usage_source cpu_source, memory_source;
    uint64_t cpu_us;                           /* since the container (or machine) began */
    unsigned cores;                            /* that may run us */
    double core_limit;                         /* 0: none */
    uint64_t memory_used;                      /* without page cache that can be dropped at once */
    uint64_t memory_limit;                     /* 0: none */
    uint64_t memory_total;                     /* of the machine */
    uint64_t disk_total, disk_used, disk_free; /* free: for us */
    bool has_disk;
} cp_usage;

/* root: "" (a test has its own /proc and /sys below it). disk: a folder. What cannot be found out is 0. */
void cp_usage_read(const char *root, const char *disk, cp_usage *out);
/* "name 123" or "name: 123" at the begin of a line; name "": the first number there is. False: not there, or "max".
 * NULL is a text without any. Pure. */
bool cp_usage_number(const char *text, const char *name, uint64_t *out);
/* Our path in the hierarchy of a controller ("" is version 2's), from lines "4:cpu,cpuacct:/path" of
 * /proc/self/cgroup. "": the top. False: not there. Pure. */
bool cp_usage_group(const char *groups, const char *controller, char out[1024]);
const char *cp_usage_source_name(cp_usage_source s); /* "cgroup2", "cgroup1", "proc" */
