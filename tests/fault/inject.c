/* Calls that fail when a test says so. Linked into the programs with CONFLUX_FAULTS: what is defined in a program is
 * found before the C library's, by the libraries that it uses as well (SQLite, CivetWeb).
 *
 * The test and the program share a file of one page, CONFLUX_FAULTS in the environment. The test writes how many calls
 * may succeed, then `armed`; the call that comes next fails once and says which it was. Calls are counted from all
 * threads, in the one program (`program`) that is meant. Sockets and pipes are never written short or refused by this:
 * an error there means that the peer has gone. */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

typedef struct control {
    _Atomic uint32_t armed;   /* 1: count; 0 again when one has failed */
    _Atomic int32_t left;     /* calls that succeed before */
    _Atomic uint32_t fired;   /* that have failed since the file was made */
    _Atomic uint32_t program; /* 1: the keeper, 2: the server */
    char call[32];            /* which failed */
} control;

static control *ctl;
static uint32_t self; /* as `program` */
static __thread int inside;

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("CONFLUX_FAULTS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    self = strcmp(program_invocation_short_name, "conflux-server") == 0 ? 2 : 1;
    if (p != MAP_FAILED) ctl = p;
}

/* Is it this call's turn? Then errno is set. */
static int fails(const char *call, int error) {
    if (!ctl || inside || atomic_load(&ctl->armed) != 1 || atomic_load(&ctl->program) != self) return 0;
    if (atomic_fetch_sub(&ctl->left, 1) != 0) return 0;
    atomic_store(&ctl->armed, 0);
    inside = 1;
    strncpy(ctl->call, call, sizeof ctl->call - 1);
    atomic_fetch_add(&ctl->fired, 1);
    if (getenv("CONFLUX_FAULTS_TRACE")) {
        void *frames[24];
        int n = backtrace(frames, 24);
        (void)!write(STDERR_FILENO, call, strlen(call));
        (void)!write(STDERR_FILENO, " fails\n", 7);
        backtrace_symbols_fd(frames, n, STDERR_FILENO);
    }
    inside = 0;
    errno = error;
    return 1;
}

static int on_disk(int fd) {
    struct stat st;
    int sys = errno, is = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    errno = sys;
    return is;
}

/* ---- the calls ---- */

#define CALL(type, failure, error, name, params, ...)                                                                  \
    type name params;                                                                                                  \
    type name params {                                                                                                 \
        static type(*real) params;                                                                                     \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);                                                          \
        return fails(#name, error) ? (failure) : real(__VA_ARGS__);                                                    \
    }
#define DISK_CALL(type, error, name, params, ...)                                                                      \
    type name params;                                                                                                  \
    type name params {                                                                                                 \
        static type(*real) params;                                                                                     \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);                                                          \
        return on_disk(fd) && fails(#name, error) ? -1 : real(__VA_ARGS__);                                            \
    }

/* Their last argument is there when the flags say so, and harmless to pass on when not. */
#define OPEN_CALL(name, params, last, ...)                                                                             \
    int name params;                                                                                                   \
    int name params {                                                                                                  \
        static int(*real) params;                                                                                      \
        va_list ap;                                                                                                    \
        va_start(ap, last);                                                                                            \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;                                          \
        va_end(ap);                                                                                                    \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);                                                          \
        return fails(#name, EMFILE) ? -1 : real(__VA_ARGS__, mode);                                                    \
    }

OPEN_CALL(open, (const char *path, int flags, ...), flags, path, flags)
OPEN_CALL(open64, (const char *path, int flags, ...), flags, path, flags)
OPEN_CALL(openat, (int dir, const char *path, int flags, ...), flags, dir, path, flags)
OPEN_CALL(openat64, (int dir, const char *path, int flags, ...), flags, dir, path, flags)

#define FCNTL_CALL(name)                                                                                               \
    int name(int fd, int cmd, ...);                                                                                    \
    int name(int fd, int cmd, ...) {                                                                                   \
        static int (*real)(int, int, ...);                                                                             \
        va_list ap;                                                                                                    \
        va_start(ap, cmd);                                                                                             \
        void *arg = va_arg(ap, void *);                                                                                \
        va_end(ap);                                                                                                    \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);                                                          \
        int dups = cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC;                                                           \
        return dups && fails("F_DUPFD", EMFILE) ? -1 : real(fd, cmd, arg);                                             \
    }
FCNTL_CALL(fcntl)
FCNTL_CALL(fcntl64)

CALL(int, -1, EMFILE, socket, (int domain, int type, int protocol), domain, type, protocol)
CALL(int, -1, EMFILE, socketpair, (int domain, int type, int protocol, int sv[2]), domain, type, protocol, sv)
CALL(int, -1, EMFILE, pipe2, (int fds[2], int flags), fds, flags)
CALL(int, -1, EMFILE, pipe, (int fds[2]), fds)
CALL(int, -1, EMFILE, dup, (int fd), fd)
CALL(int, -1, EMFILE, dup3, (int fd, int to, int flags), fd, to, flags)
CALL(int, -1, EMFILE, eventfd, (unsigned count, int flags), count, flags)
CALL(int, -1, EMFILE, memfd_create, (const char *name, unsigned flags), name, flags)
CALL(int, -1, EMFILE, epoll_create1, (int flags), flags)
CALL(int, -1, EMFILE, inotify_init1, (int flags), flags)
CALL(int, -1, ENOSPC, inotify_add_watch, (int fd, const char *path, uint32_t mask), fd, path, mask)

int epoll_ctl(int ep, int op, int fd, struct epoll_event *ev) {
    static int (*real)(int, int, int, struct epoll_event *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "epoll_ctl");
    return op == EPOLL_CTL_ADD && fails("epoll_ctl", ENOMEM) ? -1 : real(ep, op, fd, ev);
}

int pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*fn)(void *), void *arg) {
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    return fails("pthread_create", EAGAIN) ? EAGAIN : real(t, attr, fn, arg);
}

CALL(int, -1, ENOSPC, mkdir, (const char *path, mode_t mode), path, mode)
CALL(int, -1, ENOSPC, mkdirat, (int dir, const char *path, mode_t mode), dir, path, mode)
CALL(int, -1, ENOSPC, mkfifoat, (int dir, const char *path, mode_t mode), dir, path, mode)
CALL(int, -1, ENOSPC, linkat, (int a, const char *p, int b, const char *q, int flags), a, p, b, q, flags)
CALL(int, -1, ENOSPC, symlinkat, (const char *target, int dir, const char *path), target, dir, path)
CALL(int, -1, ENOSPC, renameat, (int a, const char *p, int b, const char *q), a, p, b, q)

DISK_CALL(ssize_t, ENOSPC, write, (int fd, const void *p, size_t n), fd, p, n)
DISK_CALL(ssize_t, ENOSPC, pwrite, (int fd, const void *p, size_t n, off_t at), fd, p, n, at)
DISK_CALL(ssize_t, ENOSPC, pwrite64, (int fd, const void *p, size_t n, off64_t at), fd, p, n, at)
DISK_CALL(int, EIO, fsync, (int fd), fd)
DISK_CALL(int, EIO, fdatasync, (int fd), fd)
DISK_CALL(int, ENOSPC, ftruncate, (int fd, off_t n), fd, n)
DISK_CALL(int, ENOSPC, ftruncate64, (int fd, off64_t n), fd, n)

ssize_t splice(int from, off64_t *off, int to, off64_t *at, size_t n, unsigned flags) {
    static ssize_t (*real)(int, off64_t *, int, off64_t *, size_t, unsigned);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "splice");
    return on_disk(to) && fails("splice", ENOSPC) ? -1 : real(from, off, to, at, n, flags);
}
