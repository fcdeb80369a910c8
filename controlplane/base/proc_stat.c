#include "base/proc_stat.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAST = 24 };

/* The name (field 2) may hold blanks and parentheses: the fields begin after the last ')'. */
bool cp_proc_stat_parse(const char *text, cp_proc_stat *out) {
    const char *p = strrchr(text, ')');
    if (!p || p[1] != ' ' || !p[2]) return false;
    uint64_t f[LAST + 1] = {0}; /* by field number, from 4 */
    char state = p[2], *end;
    p += 3;
    for (int i = 4; i <= LAST && *p == ' '; i++, p = end) f[i] = strtoull(p + 1, &end, 10);
    *out = (cp_proc_stat){.state = state,
                          .ppid = (pid_t)f[4],
                          .group = (pid_t)f[5],
                          .session = (pid_t)f[6],
                          .cpu_ticks = f[14] + f[15],
                          .start_time = f[22],
                          .rss_bytes = f[24] * (uint64_t)sysconf(_SC_PAGESIZE)};
    return true;
}

bool cp_proc_stat_at(int dir, const char *path, cp_proc_stat *out) {
    char text[1024];
    cp_autofd int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : cp_read_full(fd, text, sizeof text - 1);
    if (n == 0) errno = ESRCH;
    if (n <= 0) return false;
    text[n] = '\0';
    return cp_proc_stat_parse(text, out);
}

bool cp_proc_stat_read(pid_t pid, cp_proc_stat *out) {
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    return cp_proc_stat_at(AT_FDCWD, path, out);
}
