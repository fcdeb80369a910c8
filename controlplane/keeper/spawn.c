/* Design notes. clone(CLONE_VM): the child borrows our memory, on a stack of its own, until it has exec'ed or exited.
 * So a spawn costs the same whatever we hold, and the child reports a failed step (errno, step) by writing it where we
 * look afterwards. It is not waited for (CLONE_VFORK): a folder or a program on a file system that does not answer, or
 * under a lease, would stop the keeper for everybody. That it is its program, or gone, a pipe tells which it alone
 * holds the other end of, close-on-exec. What this demands of the code in the child:
 *
 * - No signal handler may run in it, it would run on our memory: all signals are blocked before the clone, and their
 *   dispositions are back to default before the child unblocks them. execve alone would not do: it keeps SIG_IGN.
 * - Nothing that takes a lock or allocates, and no libc wrapper: those keep state, and write the errno of the thread
 *   that cloned, which runs at the same time. Hence bare system calls (rawcall.h).
 * - No sanitizer instrumentation: it would poison shadow memory that we go on using.
 * - Whatever needs a library (splitting strings, and user and group look-up, which is the server's to do) is done
 * before the clone.
 * - What it reads, its stack included, stays until it is its program or has been reaped: one that was sent KILL may
 *   still be running.
 *
 * One thread spawns, the one that reaps; a second one that waits for each exec would cost two more switches for every
 * spawn, and threads that are stuck would pile up instead of records.
 *
 * On a processor without bare calls the child is waited for, as vfork does: there one that is stuck stops us.
 *
 * A descriptor meant for the child's number i may lie at another target number j < 8, which placing j would overwrite:
 * those are moved above 8 first. */
#include "keeper/spawn.h"

#include "base/fd.h"
#include "keeper/rawcall.h"
#include "keeper/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { STACK_SIZE = 64 * 1024, GUARD = 4096, KERNEL_SIGNALS = 64, KERNEL_SIGSET = 8 };

#ifdef __SANITIZE_THREAD__
/* From gcc 14 on ThreadSanitizer wraps clone() as if it were a fork: with CLONE_VM the child would undo in our memory
 * what the parent then undoes again. This is the name that it does not wrap. */
int __clone(int (*fn)(void *), void *stack, int flags, void *arg, ...);
#define clone __clone
#endif

#define IN_CHILD CP_BARE

/* As in the kernel's struct sigaction of every architecture with 64 signals; all zero is SIG_DFL. */
static const uint64_t default_action[8];
static const uint64_t no_signals;

static const char *const default_path = "/bin:/usr/bin"; /* as execvp does without a PATH */

/* ---- in the child ---- */

IN_CHILD static long call(long number, long a, long b, long c, long d) { return cp_rawcall(number, a, b, c, d); }
IN_CHILD static long address(const volatile void *p) { return (long)(uintptr_t)p; }

IN_CHILD static bool failed(spawn_job *w, uint8_t step, long result) {
    w->step = step;
    w->sys = (int)-result;
    return false;
}

IN_CHILD static void reset_signals(const spawner *s) {
    for (int sig = 1; sig <= KERNEL_SIGNALS; sig++)
        if (s->ignored >> (sig - 1) & 1) call(SYS_rt_sigaction, sig, address(default_action), 0, KERNEL_SIGSET);
}

/* A second line: every descriptor of ours is close-on-exec. Kernels before 5.9 lack the call. */
IN_CHILD static void close_others(const spawn_job *w) {
    if (w->end > SPAWN_FDS) call(SYS_close_range, SPAWN_FDS, w->end - 1, 0, 0);
    call(SYS_close_range, w->end + 1, -1, 0, 0);
}

IN_CHILD static bool place_fds(spawn_job *w) {
    for (int i = 0; i < SPAWN_FDS; i++) {
        if (w->fds[i] < 0 || w->fds[i] >= SPAWN_FDS || w->fds[i] == i) continue;
        long fd = call(SYS_fcntl, w->fds[i], F_DUPFD_CLOEXEC, SPAWN_FDS, 0);
        if (fd < 0) return failed(w, CP_STEP_dup, fd);
        w->fds[i] = (int)fd;
    }
    for (int i = 0; i < SPAWN_FDS; i++) {
        if (w->fds[i] < 0) {
            call(SYS_close, i, 0, 0, 0);
            continue;
        }
        long rc = w->fds[i] == i ? call(SYS_fcntl, i, F_SETFD, 0, 0) : call(SYS_dup3, w->fds[i], i, 0, 0);
        if (rc < 0) return failed(w, CP_STEP_dup, rc);
    }
    close_others(w);
    return true;
}

IN_CHILD static bool join_group(spawn_job *w) {
    if (w->spec.group == SPAWN_GROUP) {
        long rc = call(SYS_setpgid, 0, 0, 0, 0);
        if (rc < 0) return failed(w, CP_STEP_setpgid, rc);
    } else if (w->spec.group == SPAWN_SESSION) {
        long rc = call(SYS_setsid, 0, 0, 0, 0);
        if (rc < 0) return failed(w, CP_STEP_setsid, rc);
        /* A terminal on stdin becomes the controlling one; anything else there is an error that does not matter. */
        call(SYS_ioctl, 0, TIOCSCTTY, 0, 0);
    }
    return true;
}

IN_CHILD static bool become_user(spawn_job *w) {
    const spawn_spec *p = &w->spec;
    if (!p->set_user) return true;
    long rc = call(SYS_setgroups, (long)p->ngroups, address(p->groups), 0, 0);
    if (rc < 0) return failed(w, CP_STEP_setgroups, rc);
    rc = call(SYS_setresgid, (long)p->gid, (long)p->gid, (long)p->gid, 0);
    if (rc < 0) return failed(w, CP_STEP_setgid, rc);
    rc = call(SYS_setresuid, (long)p->uid, (long)p->uid, (long)p->uid, 0);
    return rc >= 0 || failed(w, CP_STEP_setuid, rc);
}

IN_CHILD static bool restore_limit(spawn_job *w) {
    struct rlimit lim = {0};
    long rc = call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, address(&lim));
    if (rc < 0) return failed(w, CP_STEP_setrlimit, rc);
    lim.rlim_cur = w->s->nofile < lim.rlim_max ? w->s->nofile : lim.rlim_max;
    rc = call(SYS_prlimit64, 0, RLIMIT_NOFILE, address(&lim), 0);
    return rc >= 0 || failed(w, CP_STEP_setrlimit, rc);
}

/* Before it becomes another user, who may not raise what a keeper around us has lowered. Without the mark it runs as
 * well. */
IN_CHILD static void set_mark(const spawn_job *w) {
    struct rlimit lim = {.rlim_cur = w->spec.mark, .rlim_max = w->spec.mark};
    if (w->spec.mark) call(SYS_prlimit64, 0, RLIMIT_LOCKS, address(&lim), 0);
}

/* Returns only on failure. */
IN_CHILD static long exec_path(const spawn_job *w, const char *path) {
    long rc = call(SYS_execve, address(path), address(w->spec.argv), address(w->spec.env), 0);
    if (rc != -ENOEXEC) return rc;
    char **v = w->spec.argv - 1;
    char *zeroth = v[1];
    v[0] = (char *)(uintptr_t) "/bin/sh";
    v[1] = (char *)(uintptr_t)path;
    rc = call(SYS_execve, address(v[0]), address(v), address(w->spec.env), 0);
    v[1] = zeroth;
    return rc;
}

IN_CHILD static bool next_candidate(const spawn_job *w, const char **at) {
    if (!*at) return false;
    char *o = w->candidate;
    const char *p = *at;
    while (*p && *p != ':') *o++ = *p++;
    if (o != w->candidate) *o++ = '/'; /* an empty element is the working directory */
    for (const char *f = w->file; *f;) *o++ = *f++;
    *o = '\0';
    *at = *p ? p + 1 : NULL;
    return true;
}

IN_CHILD static bool looks_on(long rc) {
    return rc == -EACCES || rc == -ENOENT || rc == -ENOTDIR || rc == -ESTALE || rc == -ENODEV || rc == -ETIMEDOUT;
}

/* The rules of execvp: look on where a candidate is not there, remember that one was not allowed. */
IN_CHILD static bool exec_file(spawn_job *w) {
    w->step = CP_STEP_execve;
    if (!w->search) return failed(w, CP_STEP_execve, exec_path(w, w->file));
    bool denied = false;
    for (const char *at = w->search; next_candidate(w, &at);) {
        long rc = exec_path(w, w->candidate);
        if (!looks_on(rc)) return failed(w, CP_STEP_execve, rc);
        denied |= rc == -EACCES;
    }
    return failed(w, CP_STEP_execve, denied ? -EACCES : -ENOENT);
}

/* The directory is entered as the user, so that nobody gets into one that is closed to him. */
IN_CHILD static bool enter_directory(spawn_job *w) {
    if (!w->spec.cwd) return true;
    w->step = CP_STEP_chdir;
    long rc = call(SYS_chdir, address(w->spec.cwd), 0, 0, 0);
    return rc >= 0 || failed(w, CP_STEP_chdir, rc);
}

IN_CHILD static int child_main(void *arg) {
    spawn_job *w = arg;
    reset_signals(w->s);
    set_mark(w);
    if (place_fds(w) && join_group(w) && restore_limit(w) && become_user(w) && enter_directory(w)) {
        call(SYS_rt_sigprocmask, SIG_SETMASK, address(&no_signals), 0, KERNEL_SIGSET);
        exec_file(w);
    }
    call(SYS_exit_group, 127, 0, 0, 0);
    return 127;
}

/* ---- in the parent ---- */

static bool refused(spawn_job *w, int sys, uint8_t step) {
    w->sys = sys;
    w->step = step;
    return false;
}

static const char *env_path(char *const *env) {
    for (; *env; env++)
        if (strncmp(*env, "PATH=", 5) == 0) return *env + 5;
    return default_path;
}

static bool plan_search(spawn_job *w) {
    w->file = w->spec.file ? w->spec.file : w->spec.argv[0];
    if (w->spec.file || !*w->file || strchr(w->file, '/')) return true;
    w->search = env_path(w->spec.env);
    size_t longest = 0;
    for (const char *p = w->search; *p;) {
        size_t n = strcspn(p, ":");
        if (n > longest) longest = n;
        p += n + (p[n] == ':');
    }
    w->candidate = malloc(longest + strlen(w->file) + 2);
    return w->candidate || refused(w, ENOMEM, CP_STEP_memory);
}

static void plan_fds(spawn_job *w) {
    for (int i = 0; i < SPAWN_FDS; i++) {
        int fd = w->spec.fds[i];
        w->fds[i] = fd < 0 && i < 3 ? w->s->devnull : fd;
    }
}

static bool take_stack(spawner *s, spawn_job *w) {
    if (s->nstacks) {
        w->stack = s->stacks[--s->nstacks];
        return true;
    }
    void *p = mmap(NULL, GUARD + STACK_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (p == MAP_FAILED) return refused(w, errno, CP_STEP_memory);
    if (mprotect(p, GUARD, PROT_NONE) < 0) {
        int sys = errno;
        munmap(p, GUARD + STACK_SIZE);
        return refused(w, sys, CP_STEP_memory);
    }
    w->stack = p;
    return true;
}

static void give_stack(spawner *s, spawn_job *w) {
    if (!w->stack) return;
    if (s->nstacks < SPAWN_STACKS_KEPT) s->stacks[s->nstacks++] = w->stack;
    else munmap(w->stack, GUARD + STACK_SIZE);
    w->stack = NULL;
}

/* The child's end lies above what it is given. */
static bool open_pipe(spawn_job *w) {
    int rw[2];
    if (cp_pipe(rw, O_NONBLOCK) < 0) return refused(w, errno, CP_STEP_fds);
    w->fd = rw[0];
    w->end = rw[1];
    if (w->spec.reserve && w->end >= w->s->max_fds - w->spec.reserve) return refused(w, EMFILE, CP_STEP_fds);
    if (w->end >= SPAWN_FDS) return true;
    w->end = fcntl(rw[1], F_DUPFD_CLOEXEC, SPAWN_FDS);
    int sys = errno;
    close(rw[1]);
    return w->end >= 0 || refused(w, sys, CP_STEP_fds);
}

/* The clone itself, with all signals blocked: glibc's own two as well, which its sigprocmask would leave out. */
static bool clone_child(spawn_job *w) {
    uint64_t all = ~UINT64_C(0), old;
    int wait = CP_RAWCALL ? 0 : CLONE_VFORK;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &old, KERNEL_SIGSET);
    w->pid = clone(child_main, (char *)w->stack + GUARD + STACK_SIZE, CLONE_VM | wait | SIGCHLD, w);
    int sys = errno;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &old, NULL, KERNEL_SIGSET);
    return w->pid >= 0 || refused(w, sys, CP_STEP_clone);
}

bool spawn_begin(spawner *s, spawn_job *w) {
    w->s = s;
    w->fd = w->end = -1;
    plan_fds(w);
    w->step = CP_STEP_clone;
    bool ok = plan_search(w) && take_stack(s, w) && open_pipe(w) && clone_child(w);
    if (w->end >= 0) close(w->end); /* the number stays: the child is reading it */
    if (!ok) {
        w->pid = 0;
        spawn_end(s, w);
    }
    return ok;
}

spawn_state spawn_look(const spawn_job *w) {
    struct pollfd p = {.fd = w->fd, .events = POLLIN};
    if (poll(&p, 1, 0) != 1) return SPAWN_UNDER_WAY;
    return w->sys ? SPAWN_FAILED : SPAWN_DONE;
}

void spawn_end(spawner *s, spawn_job *w) {
    cp_close(&w->fd);
    give_stack(s, w);
    free(cp_take(w->candidate));
}

static uint64_t other_dispositions(void) {
    uint64_t set = 0;
    for (int sig = 1; sig < NSIG; sig++) {
        struct sigaction sa;
        if (sigaction(sig, NULL, &sa) == 0 && sa.sa_handler != SIG_DFL) set |= UINT64_C(1) << (sig - 1);
    }
    return set | UINT64_C(1) << (SIGPIPE - 1) | UINT64_C(1) << (SIGXFSZ - 1); /* which the keeper ignores for itself */
}

int spawner_init(spawner *s) {
    *s = (spawner){.devnull = open("/dev/null", O_RDWR | O_CLOEXEC), .ignored = other_dispositions()};
    struct rlimit lim;
    if (s->devnull < 0 || getrlimit(RLIMIT_NOFILE, &lim) < 0) return -1;
    s->nofile = lim.rlim_cur;
    lim.rlim_cur = lim.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &lim); /* refused over fs.nr_open: then it stays as it is */
    if (getrlimit(RLIMIT_NOFILE, &lim) < 0) return -1;
    s->max_fds = lim.rlim_cur < INT_MAX ? (int)lim.rlim_cur : INT_MAX;
    return 0;
}

void spawner_fini(spawner *s) {
    while (s->nstacks) munmap(s->stacks[--s->nstacks], GUARD + STACK_SIZE);
    cp_close(&s->devnull);
}
