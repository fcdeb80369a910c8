/* Calls that fail when a test says so. Linked into the programs with CONFLUX_FAULTS: what is defined in a program is
 * found before the C library's, by the libraries that it uses as well (SQLite, CivetWeb).
 *
 * The test and the programs share a file, CONFLUX_FAULTS in the environment. A call is known by its site: a hash of its
 * name and of the places in the program that it was called from, which is the same in every run of the program. The
 * test first lets a path run and has the sites recorded, then arms one: the call that comes from there fails once.
 * Calls of all threads count, in the one program (`program`) that is meant. Sockets and pipes are never written short
 * or refused by this: an error there means that the peer has gone.
 *
 * Memory: the linker sends the program's own malloc, calloc and realloc here (--wrap); SQLite's is reached by its
 * configuration. What cp_alloc and cp_realloc take ends the program when there is none, which is meant for what is
 * small or of a fixed size: of theirs only those fail that are LARGE, since a client has said how much. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sqlite3.h>
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
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum { SITES = 2000, DEPTH = 24, LARGE = 2 * 1024 * 1024, CONTROL_SIZE = 65536 };
enum { OFF, FAIL, RECORD };

typedef struct site {
    uint32_t hash;
    uint32_t count; /* calls from there since the recording began */
    char call[24];
} site;

typedef struct control {
    _Atomic uint32_t armed;   /* OFF, FAIL: OFF again when one has failed, RECORD */
    _Atomic int32_t left;     /* calls from the site that succeed before */
    _Atomic uint32_t fired;   /* that have failed since the file was made */
    _Atomic uint32_t program; /* 1: the keeper, 2: the server */
    char call[32];            /* which failed */
    _Atomic uint32_t site;    /* where one is to fail */
    uint32_t nsites;
    uint32_t frames[DEPTH]; /* of what failed: offsets in the program, innermost first, 0 ends */
    site sites[SITES];
} control;
_Static_assert(sizeof(control) <= CONTROL_SIZE, "the test makes a file of this size");

extern const char __executable_start, __etext;

static control *ctl;
static uint32_t self; /* as `program` */
static __thread int inside;
static pthread_mutex_t recording = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("CONFLUX_FAULTS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *p = mmap(NULL, CONTROL_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), *frame;
    close(fd);
    self = strcmp(program_invocation_short_name, "conflux-server") == 0 ? 2 : 1;
    (void)backtrace(&frame, 1); /* it loads a library first */
    if (p != MAP_FAILED) ctl = p;
}

static uint32_t stir(uint32_t hash, uint32_t v) { return (hash ^ v) * 16777619u; }

/* The frames in the program itself; returns the site. */
static uint32_t locate(const char *call, uint32_t out[DEPTH]) {
    void *frames[2 * DEPTH];
    int n = backtrace(frames, 2 * DEPTH), k = 0;
    uint32_t hash = 2166136261u;
    for (const char *p = call; *p; p++) hash = stir(hash, (unsigned char)*p);
    for (int i = 2; i < n && k < DEPTH; i++) { /* not this and its caller */
        const char *at = frames[i];
        if (at < &__executable_start || at >= &__etext) continue;
        out[k] = (uint32_t)(at - &__executable_start);
        hash = stir(hash, out[k++]);
    }
    if (k < DEPTH) out[k] = 0;
    return hash ? hash : 1;
}

static void record(const char *call, uint32_t hash) {
    pthread_mutex_lock(&recording);
    uint32_t i = 0;
    while (i < ctl->nsites && ctl->sites[i].hash != hash) i++;
    if (i < SITES) {
        site *s = &ctl->sites[i];
        if (i == ctl->nsites) {
            *s = (site){.hash = hash};
            strncpy(s->call, call, sizeof s->call - 1);
            ctl->nsites++;
        }
        s->count++;
    }
    pthread_mutex_unlock(&recording);
}

static void trace(const char *call) {
    void *frames[DEPTH];
    int n = backtrace(frames, DEPTH);
    (void)!write(STDERR_FILENO, call, strlen(call));
    (void)!write(STDERR_FILENO, " fails\n", 7);
    backtrace_symbols_fd(frames, n, STDERR_FILENO);
}

static int its_turn(const char *call) {
    uint32_t frames[DEPTH], armed = atomic_load(&ctl->armed), hash = locate(call, frames);
    if (armed == RECORD) record(call, hash);
    if (armed != FAIL || hash != atomic_load(&ctl->site) || atomic_fetch_sub(&ctl->left, 1) != 0) return 0;
    atomic_store(&ctl->armed, OFF);
    strncpy(ctl->call, call, sizeof ctl->call - 1);
    memcpy(ctl->frames, frames, sizeof frames);
    atomic_fetch_add(&ctl->fired, 1);
    if (getenv("CONFLUX_FAULTS_TRACE")) trace(call);
    return 1;
}

/* Is it this call's turn? Then errno is set. */
static int fails(const char *call, int error) {
    if (!ctl || inside || atomic_load(&ctl->armed) == OFF || atomic_load(&ctl->program) != self) return 0;
    int sys = errno;
    inside = 1;
    int yes = its_turn(call);
    inside = 0;
    errno = yes ? error : sys;
    return yes;
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

CALL(int, -1, EMFILE, accept, (int fd, struct sockaddr *peer, socklen_t *n), fd, peer, n)
CALL(int, -1, EMFILE, accept4, (int fd, struct sockaddr *peer, socklen_t *n, int flags), fd, peer, n, flags)
CALL(int, -1, EMFILE, pidfd_open, (pid_t pid, unsigned flags), pid, flags)
CALL(DIR *, NULL, EMFILE, opendir, (const char *path), path)
CALL(DIR *, NULL, ENOMEM, fdopendir, (int fd), fd)
CALL(int, -1, EMFILE, mkostemp, (char *path, int flags), path, flags)
CALL(void *, MAP_FAILED, ENOMEM, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t off), at, n, prot, flags,
     fd, off)
CALL(void *, MAP_FAILED, ENOMEM, mmap64, (void *at, size_t n, int prot, int flags, int fd, off64_t off), at, n, prot,
     flags, fd, off)

/* The one way that the keeper starts a child; what it begins runs on a stack of its own and never comes back here. */
int clone(int (*fn)(void *), void *stack, int flags, void *arg, ...) {
    static int (*real)(int (*)(void *), void *, int, void *, ...);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "clone");
    return fails("clone", EAGAIN) ? -1 : real(fn, stack, flags, arg);
}

/* Those that the C library has no function for. */
long syscall(long number, ...) {
    static long (*real)(long, ...);
    va_list ap;
    va_start(ap, number);
    long a[6];
    for (int i = 0; i < 6; i++) a[i] = va_arg(ap, long);
    va_end(ap);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "syscall");
    if (number == SYS_openat2 && fails("openat2", EMFILE)) return -1;
    if (number == SYS_pidfd_open && fails("pidfd_open", EMFILE)) return -1;
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

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

CALL(int, -1, ENOSPC, mknodat, (int dir, const char *path, mode_t mode, dev_t dev), dir, path, mode, dev)

DISK_CALL(ssize_t, ENOSPC, write, (int fd, const void *p, size_t n), fd, p, n)
DISK_CALL(ssize_t, ENOSPC, pwrite, (int fd, const void *p, size_t n, off_t at), fd, p, n, at)
DISK_CALL(ssize_t, ENOSPC, pwrite64, (int fd, const void *p, size_t n, off64_t at), fd, p, n, at)
DISK_CALL(int, EIO, fsync, (int fd), fd)
DISK_CALL(int, EIO, fdatasync, (int fd), fd)
DISK_CALL(int, ENOSPC, ftruncate, (int fd, off_t n), fd, n)
DISK_CALL(int, ENOSPC, ftruncate64, (int fd, off64_t n), fd, n)
DISK_CALL(int, ENOSPC, fallocate, (int fd, int mode, off_t at, off_t n), fd, mode, at, n)
DISK_CALL(int, ENOSPC, fallocate64, (int fd, int mode, off64_t at, off64_t n), fd, mode, at, n)
CALL(ssize_t, -1, ENOSPC, copy_file_range, (int from, off64_t *off, int to, off64_t *at, size_t n, unsigned flags),
     from, off, to, at, n, flags)

ssize_t splice(int from, off64_t *off, int to, off64_t *at, size_t n, unsigned flags) {
    static ssize_t (*real)(int, off64_t *, int, off64_t *, size_t, unsigned);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "splice");
    return on_disk(to) && fails("splice", ENOSPC) ? -1 : real(from, off, to, at, n, flags);
}

/* ---- memory ---- */

/* A small one of those who end the program when there is none. */
static int spared(size_t n, const void *caller) {
    Dl_info in;
    if (n >= LARGE || dladdr(caller, &in) == 0 || !in.dli_sname) return 0;
    return strcmp(in.dli_sname, "cp_alloc") == 0 || strcmp(in.dli_sname, "cp_realloc") == 0;
}

static int no_memory(const char *call, size_t n, const void *caller) {
    if (!ctl || inside || atomic_load(&ctl->armed) == OFF) return 0;
    return !spared(n, caller) && fails(call, ENOMEM);
}

void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_malloc(size_t n) { return no_memory("malloc", n, __builtin_return_address(0)) ? NULL : __real_malloc(n); }

void *__real_calloc(size_t k, size_t n);
void *__wrap_calloc(size_t k, size_t n);
void *__wrap_calloc(size_t k, size_t n) {
    return no_memory("calloc", k * n, __builtin_return_address(0)) ? NULL : __real_calloc(k, n);
}

void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n) {
    return no_memory("realloc", n, __builtin_return_address(0)) ? NULL : __real_realloc(p, n);
}

/* ---- SQLite's memory, in the program that has SQLite ---- */

#pragma weak sqlite3_config
static sqlite3_mem_methods plain;

static void *sqlite_malloc(int n) { return fails("sqlite malloc", ENOMEM) ? NULL : plain.xMalloc(n); }
static void *sqlite_realloc(void *p, int n) { return fails("sqlite realloc", ENOMEM) ? NULL : plain.xRealloc(p, n); }

__attribute__((constructor)) static void take_sqlite(void) {
    if (!sqlite3_config || !getenv("CONFLUX_FAULTS")) return;
    if (sqlite3_config(SQLITE_CONFIG_GETMALLOC, &plain) != SQLITE_OK) return;
    sqlite3_mem_methods ours = plain;
    ours.xMalloc = sqlite_malloc;
    ours.xRealloc = sqlite_realloc;
    (void)sqlite3_config(SQLITE_CONFIG_MALLOC, &ours);
}
