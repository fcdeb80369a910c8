#pragma once
/* The folder that a test has for itself, and a disk that is full. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

/* Makes it, under a name that is told apart in /tmp. */
static inline void temp_dir_new(char out[64], const char *name) {
    int n = snprintf(out, 64, "/tmp/%s.XXXXXX", name);
    assert_in_range(n, 1, 63);
    assert_non_null(mkdtemp(out));
}

static inline int temp_dir_entry(const char *path, const struct stat *st, int flag, struct FTW *ftw) {
    (void)st, (void)flag, (void)ftw;
    return remove(path) < 0 && errno != ENOENT ? -1 : 0;
}

/* With all that is in it; 0 when it is gone. */
static inline int temp_dir_remove(const char *dir) { return nftw(dir, temp_dir_entry, 16, FTW_DEPTH | FTW_PHYS); }

/* No file of this process can grow: what a full disk looks like from here. */
static inline void disk_full(bool full) {
    struct rlimit r;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &r), 0);
    r.rlim_cur = full ? 1 : r.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &r), 0);
}
