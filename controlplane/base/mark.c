#include "base/mark.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

_Static_assert(sizeof(rlim_t) == 8, "a mark has 63 bits");

bool cp_mark_limits(cp_str text, uint64_t *soft, uint64_t *hard) {
    static const char name[] = "\nMax file locks";
    const char *line = memmem(text.p, text.n, name, sizeof name - 1);
    unsigned long long s, h;
    if (!line || sscanf(line + sizeof name - 1, "%llu %llu", &s, &h) != 2) return false;
    *soft = s;
    *hard = h;
    return true;
}

/* proc(5): everybody may read it, while prlimit wants the same user or CAP_SYS_RESOURCE, which root in a container has
 * not. "unlimited" is no number and no mark. */
static bool read_limits(pid_t pid, struct rlimit *out) {
    char path[40];
    char text[4096]; /* the table is half of that; the keeper reads it too, which takes no memory for it */
    uint64_t soft, hard;
    snprintf(path, sizeof path, "/proc/%d/limits", (int)pid);
    cp_autofd int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : cp_read_full(fd, text, sizeof text);
    if (n <= 0 || !cp_mark_limits((cp_str){text, (size_t)n}, &soft, &hard)) return false;
    *out = (struct rlimit){.rlim_cur = soft, .rlim_max = hard};
    return true;
}

bool cp_mark_of(pid_t pid, cp_mark *out) {
    struct rlimit l;
    *out = (cp_mark){0};
    if (prlimit(pid, RLIMIT_LOCKS, NULL, &l) < 0 && (errno == ESRCH || !read_limits(pid, &l))) return false;
    if (!cp_mark_is(l.rlim_max)) return false;
    *out = (cp_mark){.spawn = l.rlim_max, .command = l.rlim_cur == l.rlim_max ? 0 : l.rlim_cur};
    return true;
}
