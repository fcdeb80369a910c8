#include "services/usage.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"

enum { FILE_MAX = 1 << 20 };

typedef struct place {
    const char *root;
    char *groups; /* /proc/self/cgroup */
} place;

__attribute__((format(printf, 2, 3))) static char *read_text(const place *at, const char *fmt, ...) {
    char path[4096], *text = NULL;
    size_t n = (size_t)snprintf(path, sizeof path, "%s", at->root);
    va_list ap;
    va_start(ap, fmt);
    int k = vsnprintf(path + n, sizeof path - n, fmt, ap);
    va_end(ap);
    if (k < 0 || n + (size_t)k >= sizeof path || cp_read_file(path, FILE_MAX, &text, &n) < 0) return NULL;
    return text;
}

bool cp_usage_number(const char *text, const char *name, uint64_t *out) {
    size_t n = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        const char *p = line + n;
        if (strncmp(line, name, n) != 0 || (n && *p != ' ' && *p != ':')) continue;
        p += strspn(p, ": \t");
        if (*p < '0' || *p > '9') return false;
        *out = strtoull(p, NULL, 10);
        return true;
    }
    return false;
}

bool cp_usage_group(const char *groups, const char *controller, char out[1024]) {
    size_t n = strlen(controller);
    for (const char *line = groups; line && *line; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        const char *list = strchr(line, ':'), *end = list ? strchr(list + 1, ':') : NULL;
        if (!end) return false;
        for (const char *p = list + 1; p <= end; p += strcspn(p, ",:") + 1) {
            if (strcspn(p, ",:") != n || strncmp(p, controller, n) != 0) continue;
            snprintf(out, 1024, "%.*s", (int)strcspn(end + 1, "\n"), end + 1);
            if (strcmp(out, "/") == 0) out[0] = 0;
            return true;
        }
    }
    return false;
}

/* A file of our group. Inside a container that has the host's view of the names, only the mount's top is there. */
static char *group_file(const place *at, const char *mount, const char *controller, const char *file) {
    char path[1024];
    if (!cp_usage_group(at->groups, controller, path)) return NULL;
    char *text = read_text(at, "/sys/fs/cgroup%s%s/%s", mount, path, file);
    return text || !path[0] ? text : read_text(at, "/sys/fs/cgroup%s/%s", mount, file);
}

/* ---- processor ---- */

static bool cpu_v2(const place *at, cp_usage *u) {
    cp_autofree char *stat = group_file(at, "", "", "cpu.stat");
    cp_autofree char *max = group_file(at, "", "", "cpu.max");
    uint64_t quota, period;
    if (!cp_usage_number(stat, "usage_usec", &u->cpu_us)) return false;
    const char *second = max ? strchr(max, ' ') : NULL;
    if (second && cp_usage_number(max, "", &quota) && cp_usage_number(second + 1, "", &period) && period)
        u->core_limit = (double)quota / (double)period;
    return true;
}

static bool cpu_v1(const place *at, cp_usage *u) {
    cp_autofree char *usage = group_file(at, "/cpuacct", "cpuacct", "cpuacct.usage");
    cp_autofree char *quota = group_file(at, "/cpu", "cpu", "cpu.cfs_quota_us");
    cp_autofree char *period = group_file(at, "/cpu", "cpu", "cpu.cfs_period_us");
    uint64_t ns, q, p;
    if (!cp_usage_number(usage, "", &ns)) return false;
    u->cpu_us = ns / 1000;
    if (cp_usage_number(quota, "", &q) && cp_usage_number(period, "", &p) && p)
        u->core_limit = (double)q / (double)p; /* -1: none */
    return true;
}

/* proc(5): user nice system idle iowait irq softirq steal, in ticks. */
static void cpu_proc(const place *at, cp_usage *u) {
    cp_autofree char *text = read_text(at, "/proc/stat");
    uint64_t ticks = 0;
    char *p = text && strncmp(text, "cpu ", 4) == 0 ? text + 4 : NULL;
    for (int i = 0; p && i < 8; i++) {
        uint64_t v = strtoull(p, &p, 10);
        if (i != 3 && i != 4) ticks += v;
    }
    u->cpu_us = ticks * 1000000 / (uint64_t)sysconf(_SC_CLK_TCK);
}

static unsigned usable_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return (unsigned)CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (unsigned)n : 1;
}

/* ---- memory ---- */

static void set_memory(cp_usage *u, uint64_t used, uint64_t droppable, uint64_t limit) {
    u->memory_used = used > droppable ? used - droppable : 0;
    u->memory_limit = limit < u->memory_total || !u->memory_total ? limit : 0; /* version 1 says "none" by a number */
}

/* What a version of cgroups calls it. */
static bool memory_of(const place *at, bool v1, cp_usage *u) {
    const char *dir = v1 ? "/memory" : "", *name = v1 ? "memory" : "";
    cp_autofree char *current = group_file(at, dir, name, v1 ? "memory.usage_in_bytes" : "memory.current");
    cp_autofree char *max = group_file(at, dir, name, v1 ? "memory.limit_in_bytes" : "memory.max");
    cp_autofree char *stat = group_file(at, dir, name, "memory.stat");
    uint64_t used, limit = 0, droppable = 0;
    if (!cp_usage_number(current, "", &used)) return false;
    (void)cp_usage_number(max, "", &limit);
    (void)cp_usage_number(stat, v1 ? "total_inactive_file" : "inactive_file", &droppable);
    set_memory(u, used, droppable, limit);
    return true;
}

static void memory_proc(const char *meminfo, cp_usage *u) {
    uint64_t available = 0;
    (void)cp_usage_number(meminfo, "MemAvailable", &available);
    set_memory(u, u->memory_total, available * 1024, 0);
}

/* ---- all ---- */

static void read_disk(const char *dir, cp_usage *u) {
    struct statvfs v;
    if (!dir || statvfs(dir, &v) < 0) return;
    u->disk_total = (uint64_t)v.f_blocks * v.f_frsize;
    u->disk_used = (uint64_t)(v.f_blocks - v.f_bfree) * v.f_frsize;
    u->disk_free = (uint64_t)v.f_bavail * v.f_frsize;
    u->has_disk = true;
}

void cp_usage_read(const char *root, const char *disk, cp_usage *u) {
    place at = {.root = root};
    cp_autofree char *groups = read_text(&at, "/proc/self/cgroup");
    cp_autofree char *meminfo = read_text(&at, "/proc/meminfo");
    *u = (cp_usage){.cores = usable_cores()};
    at.groups = groups;
    if (cp_usage_number(meminfo, "MemTotal", &u->memory_total)) u->memory_total *= 1024;
    if (cpu_v2(&at, u)) u->cpu_source = CP_USAGE_CGROUP2;
    else if (cpu_v1(&at, u)) u->cpu_source = CP_USAGE_CGROUP1;
    else cpu_proc(&at, u);
    if (memory_of(&at, false, u)) u->memory_source = CP_USAGE_CGROUP2;
    else if (memory_of(&at, true, u)) u->memory_source = CP_USAGE_CGROUP1;
    else memory_proc(meminfo, u);
    read_disk(disk, u);
}

const char *cp_usage_source_name(cp_usage_source s) {
    static const char *const names[] = {"proc", "cgroup1", "cgroup2"};
    return names[s];
}
