#pragma once
/* File descriptors: close-on-exec at birth, empty is -1, scoped close. Return -1 with errno set on failure. */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

void cp_close(int *fd); /* closes if >= 0 and sets -1; EINTR counts as closed (Linux) */
#define cp_autofd __attribute__((cleanup(cp_close)))
static inline int cp_take_fd(int *fd) {
    int v = *fd;
    *fd = -1;
    return v;
}

static inline bool cp_no_fd(int sys) { return sys == EMFILE || sys == ENFILE; } /* a lack that passes */
static inline bool cp_lack(int sys) { return cp_no_fd(sys) || sys == ENOMEM; }  /* so that nothing is known */
/* The disk, the quota or the limit on the size of files (RLIMIT_FSIZE) takes no more. */
static inline bool cp_no_space(int sys) { return sys == ENOSPC || sys == EDQUOT || sys == EFBIG; }

int cp_pipe(int rw[2], int flags); /* pipe2 with O_CLOEXEC | flags */
int cp_nonblock(int fd);
int cp_write_all(int fd, const void *p, size_t n); /* blocking fds only; 0 or -1 */
ssize_t cp_read_full(int fd, void *p, size_t n);   /* reads until n or end; count or -1 */
/* A sealed memfd holding these bytes, offset 0; the fd or -1. */
int cp_memfd(const char *name, const void *p, size_t n);
/* Whole file (not over max bytes; -1/EFBIG beyond) into *out (heap, NUL-terminated, owner frees), length in *n. */
int cp_read_file(const char *path, size_t max, char **out, size_t *n);
