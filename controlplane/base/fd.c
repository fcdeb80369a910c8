#include "base/fd.h"

#include "base/buf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

void cp_close(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

int cp_pipe(int rw[2], int flags) { return pipe2(rw, O_CLOEXEC | flags); }

int cp_nonblock(int fd) {
    int fl = fcntl(fd, F_GETFL);
    return fl < 0 ? -1 : fcntl(fd, F_SETFL, fl | O_NONBLOCK);
}

int cp_write_all(int fd, const void *p, size_t n) {
    const char *c = p;
    while (n) {
        ssize_t k = write(fd, c, n);
        if (k < 0) {
            if (errno == EINTR) continue;
            return -1;
        }
        c += k;
        n -= (size_t)k;
    }
    return 0;
}

ssize_t cp_read_full(int fd, void *p, size_t n) {
    size_t got = 0;
    while (got < n) {
        ssize_t k = read(fd, (char *)p + got, n - got);
        if (k < 0) {
            if (errno == EINTR) continue;
            return -1;
        }
        if (k == 0) break;
        got += (size_t)k;
    }
    return (ssize_t)got;
}

int cp_memfd(const char *name, const void *p, size_t n) {
    cp_autofd int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || cp_write_all(fd, p, n) < 0 || lseek(fd, 0, SEEK_SET) < 0) return -1;
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0) return -1;
    return cp_take_fd(&fd);
}

int cp_read_file(const char *path, size_t max, char **out, size_t *n) {
    cp_autofd int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    cp_autobuf cp_buf b = {0};
    for (;;) {
        cp_buf_reserve(&b, 4096);
        ssize_t k = read(fd, b.p + b.n, b.cap - b.n);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return -1;
        if (k == 0) break;
        b.n += (size_t)k;
        if (b.n > max) {
            errno = EFBIG;
            return -1;
        }
    }
    (void)cp_buf_z(&b);
    *n = b.n;
    *out = cp_take(b).p;
    return 0;
}
