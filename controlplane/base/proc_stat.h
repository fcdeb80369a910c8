#pragma once
/* /proc/pid/stat (proc(5)): the one reader of it. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct cp_proc_stat {
    char state; /* R S D Z T … */
    pid_t ppid, group, session;
    uint64_t start_time; /* clock ticks since boot */
    uint64_t cpu_ticks;  /* user and system */
    uint64_t rss_bytes;
} cp_proc_stat;

/* Of the text of that file. False when it is none. Pure. */
bool cp_proc_stat_parse(const char *text, cp_proc_stat *out);
/* The file `path` in the folder dir. False with errno (ESRCH: there is no such process any more). Any thread. */
bool cp_proc_stat_at(int dir, const char *path, cp_proc_stat *out);
bool cp_proc_stat_read(pid_t pid, cp_proc_stat *out); /* of one process */
