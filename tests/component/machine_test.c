/* Who listens, and what is used: from the tables of this machine, and from tables of others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "component/disk.h"
#include "services/ports.h"
#include "services/usage.h"

/* ---- ports ---- */

static void tables(void **state) {
    (void)state;
    cp_ports p = {0};
    cp_ports_parse(&p,
                   "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
                   "   0: 0100007F:0BB8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 "
                   "0000000000000000 100 0 0 10 0\n"
                   "   1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4712 1\n"
                   "   2: 0100007F:0BB8 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 4713 1\n"
                   "   3: broken\n",
                   false);
    assert_int_equal(p.n, 2); /* connections do not listen */
    assert_int_equal(p.v[0].port, 3000);
    assert_string_equal(p.v[0].address, "127.0.0.1");
    assert_int_equal(p.v[0].inode, 4711);
    assert_int_equal(p.v[1].port, 8080);
    assert_string_equal(p.v[1].address, "0.0.0.0");
    cp_ports_parse(&p,
                   "   0: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A "
                   "00000000:00000000 00:00000000 00000000     0        0 99 1",
                   true);
    assert_int_equal(p.n, 3);
    assert_string_equal(p.v[2].address, "::1");
    assert_int_equal(p.v[2].port, 80);
    cp_ports_free(&p);
}

static const cp_port *port_of(const cp_ports *all, uint16_t port) {
    for (size_t i = 0; i < all->n; i++)
        if (all->v[i].port == port) return &all->v[i];
    return NULL;
}

/* A child that has inherited the socket is not its owner; when only the child is left it is. */
static void owners(void **state) {
    (void)state;
    cp_err err = {0};
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int rw[2];
    cp_ports all = {0};
    cp_autofd int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    assert_int_equal(cp_pipe(rw, 0), 0);
    pid_t child = fork();
    if (child == 0) {
        char c;
        cp_close(&rw[1]);
        _exit(read(rw[0], &c, 1) == 0 ? 0 : 1);
    }
    cp_close(&rw[0]);
    assert_int_equal(cp_ports_read(&all, &err), 0);
    const cp_port *p = port_of(&all, ntohs(a.sin_port));
    assert_non_null(p);
    assert_int_equal(p->chain[0].pid, getpid());
    assert_int_equal(p->chain[1].pid, getppid());
    assert_true(strlen(p->name) > 0);
    cp_ports_free(&all);
    cp_close(&fd);
    assert_int_equal(cp_ports_read(&all, &err), 0);
    p = port_of(&all, ntohs(a.sin_port));
    assert_non_null(p);
    assert_int_equal(p->chain[0].pid, child);
    assert_int_equal(p->chain[1].pid, getpid());
    cp_ports_free(&all);
    cp_close(&rw[1]);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(cp_ports_read(&all, &err), 0);
    assert_null(port_of(&all, ntohs(a.sin_port)));
    cp_ports_free(&all);
}

/* ---- usage ---- */

static char root[64];

static int setup(void **state) {
    (void)state;
    temp_dir_new(root, "conflux-usage");
    return 0;
}
static int teardown(void **state) {
    (void)state;
    return temp_dir_remove(root);
}

static void put(const char *path, const char *text) {
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        (void)mkdir(full, 0755);
        *p = '/';
    }
    FILE *f = fopen(full, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void machine(void) {
    put("/proc/meminfo", "MemTotal:        1000 kB\nMemFree:          100 kB\nMemAvailable:     400 kB\n");
    put("/proc/stat", "cpu  100 20 30 5000 600 7 8 9 0 0\ncpu0 1 1 1 1\n");
}

static void version_2(void **state) {
    (void)state;
    cp_usage u;
    machine();
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/a/b/cpu.stat", "usage_usec 1234567\nuser_usec 1\n");
    put("/sys/fs/cgroup/a/b/cpu.max", "150000 100000\n");
    put("/sys/fs/cgroup/a/b/memory.current", "300000\n");
    put("/sys/fs/cgroup/a/b/memory.max", "500000\n");
    put("/sys/fs/cgroup/a/b/memory.stat", "anon 5\ninactive_file 100000\n");
    cp_usage_read(root, root, &u);
    assert_int_equal(u.cpu_source, CP_USAGE_CGROUP2);
    assert_int_equal(u.memory_source, CP_USAGE_CGROUP2);
    assert_int_equal(u.cpu_us, 1234567);
    assert_true(u.core_limit == 1.5);
    assert_int_equal(u.memory_used, 200000);
    assert_int_equal(u.memory_limit, 500000);
    assert_int_equal(u.memory_total, 1000 * 1024);
    assert_true(u.has_disk);
    put("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/a/b/memory.max", "max\n");
    cp_usage_read(root, root, &u);
    assert_true(u.core_limit == 0);
    assert_int_equal(u.memory_limit, 0);
}

/* Named as the host names it, mounted as the container sees it. */
static void version_2_by_the_hosts_name(void **state) {
    (void)state;
    cp_usage u;
    machine();
    put("/proc/self/cgroup", "0::/docker/0123\n");
    put("/sys/fs/cgroup/cpu.stat", "usage_usec 5\n");
    put("/sys/fs/cgroup/memory.current", "7\n");
    cp_usage_read(root, NULL, &u);
    assert_int_equal(u.cpu_source, CP_USAGE_CGROUP2);
    assert_int_equal(u.cpu_us, 5);
    assert_int_equal(u.memory_used, 7);
    assert_false(u.has_disk);
}

static void version_1(void **state) {
    (void)state;
    cp_usage u;
    machine();
    put("/proc/self/cgroup", "5:cpu,cpuacct:/c\n4:memory:/m\n1:name=systemd:/x\n0::/\n");
    put("/sys/fs/cgroup/cpuacct/c/cpuacct.usage", "9000000\n");
    put("/sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "50000\n");
    put("/sys/fs/cgroup/cpu/c/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/memory/m/memory.usage_in_bytes", "4000\n");
    put("/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/m/memory.stat", "inactive_file 1\ntotal_inactive_file 1500\n");
    cp_usage_read(root, root, &u);
    assert_int_equal(u.cpu_source, CP_USAGE_CGROUP1);
    assert_int_equal(u.cpu_us, 9000);
    assert_true(u.core_limit == 0.5);
    assert_int_equal(u.memory_source, CP_USAGE_CGROUP1);
    assert_int_equal(u.memory_used, 2500);
    assert_int_equal(u.memory_limit, 0);
    put("/sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "8192\n");
    cp_usage_read(root, root, &u);
    assert_true(u.core_limit == 0);
    assert_int_equal(u.memory_limit, 8192);
}

static void without_groups(void **state) {
    (void)state;
    cp_usage u;
    machine();
    cp_usage_read(root, root, &u);
    assert_int_equal(u.cpu_source, CP_USAGE_PROC);
    assert_int_equal(u.cpu_us, (uint64_t)(100 + 20 + 30 + 7 + 8 + 9) * 1000000 / (uint64_t)sysconf(_SC_CLK_TCK));
    assert_int_equal(u.memory_source, CP_USAGE_PROC);
    assert_int_equal(u.memory_used, 600 * 1024);
    assert_int_equal(u.memory_limit, 0);
    assert_true(u.cores >= 1);
}

static void without_anything(void **state) {
    (void)state;
    cp_usage u;
    cp_usage_read(root, "/nowhere", &u);
    assert_int_equal(u.cpu_us, 0);
    assert_int_equal(u.memory_total, 0);
    assert_false(u.has_disk);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables), cmocka_unit_test(owners), T(version_2), T(version_2_by_the_hosts_name), T(version_1),
        T(without_groups),        T(without_anything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
