/* Design notes. clone(CLONE_VM | CLONE_VFORK): the child borrows our memory, on a stack of its own, and this thread
 * sleeps until it has exec'ed or exited. So a spawn costs the same whatever we hold, and the child reports a failed
 * step (errno, step) by writing it where the parent looks afterwards. What that demands of the code in the child:
 *
 * - No signal handler may run in it, it would run on our memory: all signals are blocked before the clone, and their
 *   dispositions are back to default before the child unblocks them. execve alone would not do: it keeps SIG_IGN.
 * - Nothing that takes a lock or allocates, and no glibc wrapper that keeps state: glibc's setuid() signals every
 *   thread of the "process" to do the same, which from here means our own threads. Hence plain system calls.
 * - No sanitizer instrumentation: it would poison shadow memory that the parent goes on using.
 * - Whatever may block or needs a library (user and group look-up, splitting strings) is done before the clone.
 *
 * errno is the parent's errno, which is harmless: the parent sleeps, and reads the struct.
 *
 * One thread spawns, the one that reaps. In a bare loop of these clones, 16 children under way on 2 cores, a second
 * thread gained 7 to 12 %. It would cost this: each status reaped before its spawn is known would have to be kept for
 * it, and each start time be read before that.
 *
 * A descriptor meant for the child's number i may lie at another target number j < 8, which placing j would overwrite:
 * those are moved above 8 first. */
#include "keeper/spawn.h"

#include "base/fd.h"
#include "keeper/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK_SIZE = 64 * 1024, GUARD = 4096, KERNEL_SIGNALS = 64, KERNEL_SIGSET = 8 };

#ifdef __SANITIZE_THREAD__
/* From gcc 14 on ThreadSanitizer wraps clone() as if it were a fork: with CLONE_VM the child would undo in our memory
 * what the parent then undoes again. This is the name that it does not wrap. */
int __clone(int (*fn)(void *), void *stack, int flags, void *arg, ...);
#define clone __clone
#endif

#define IN_CHILD __attribute__((no_sanitize("address"), no_sanitize("undefined"), no_sanitize("thread")))

/* Read and written by the child. */
struct child_job {
    const spawner *s;
    const spawn_spec *spec;
    int fds[SPAWN_FDS];
    const char *search; /* PATH, or NULL when file is a path already */
    const char *file;
    char *candidate; /* room for any PATH element, '/', file */
    volatile int sys;
    volatile uint8_t step;
};

/* As in the kernel's struct sigaction of every architecture with 64 signals; all zero is SIG_DFL. */
static const uint64_t default_action[8];
static const uint64_t no_signals;

static const char *const default_path = "/bin:/usr/bin"; /* as execvp does without a PATH */

/* ---- in the child ---- */

IN_CHILD static bool failed(struct child_job *j, uint8_t step) {
    j->step = step;
    j->sys = errno;
    return false;
}

IN_CHILD static void reset_signals(const spawner *s) {
    for (int sig = 1; sig <= KERNEL_SIGNALS; sig++)
        if (s->ignored >> (sig - 1) & 1) syscall(SYS_rt_sigaction, sig, default_action, NULL, KERNEL_SIGSET);
}

IN_CHILD static bool place_fds(struct child_job *j) {
    for (int i = 0; i < SPAWN_FDS; i++) {
        if (j->fds[i] < 0 || j->fds[i] >= SPAWN_FDS || j->fds[i] == i) continue;
        j->fds[i] = (int)syscall(SYS_fcntl, j->fds[i], F_DUPFD_CLOEXEC, SPAWN_FDS);
        if (j->fds[i] < 0) return failed(j, CP_STEP_dup);
    }
    for (int i = 0; i < SPAWN_FDS; i++) {
        if (j->fds[i] < 0) {
            syscall(SYS_close, i);
            continue;
        }
        long rc = j->fds[i] == i ? syscall(SYS_fcntl, i, F_SETFD, 0) : syscall(SYS_dup3, j->fds[i], i, 0);
        if (rc < 0) return failed(j, CP_STEP_dup);
    }
    /* A second line: every descriptor of ours is close-on-exec. Kernels before 5.9 lack the call. */
    syscall(SYS_close_range, (unsigned)SPAWN_FDS, ~0u, 0u);
    return true;
}

IN_CHILD static bool join_group(struct child_job *j) {
    if (j->spec->group == SPAWN_GROUP) {
        if (syscall(SYS_setpgid, 0, 0) < 0) return failed(j, CP_STEP_setpgid);
    } else if (j->spec->group == SPAWN_SESSION) {
        if (syscall(SYS_setsid) < 0) return failed(j, CP_STEP_setsid);
        /* A terminal on stdin becomes the controlling one; anything else there is an error that does not matter. */
        syscall(SYS_ioctl, 0, TIOCSCTTY, 0);
    }
    return true;
}

IN_CHILD static bool become_user(struct child_job *j) {
    const spawn_spec *p = j->spec;
    if (!p->set_user) return true;
    if (syscall(SYS_setgroups, p->ngroups, p->groups) < 0) return failed(j, CP_STEP_setgroups);
    if (syscall(SYS_setresgid, p->gid, p->gid, p->gid) < 0) return failed(j, CP_STEP_setgid);
    if (syscall(SYS_setresuid, p->uid, p->uid, p->uid) < 0) return failed(j, CP_STEP_setuid);
    return true;
}

IN_CHILD static bool restore_limit(struct child_job *j) {
    struct rlimit lim;
    if (syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &lim) < 0) return failed(j, CP_STEP_setrlimit);
    lim.rlim_cur = j->s->nofile < lim.rlim_max ? j->s->nofile : lim.rlim_max;
    return syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &lim, NULL) == 0 || failed(j, CP_STEP_setrlimit);
}

/* Before it becomes another user, who may not raise what a keeper around us has lowered. Without the mark it runs as
 * well. */
IN_CHILD static void set_mark(const struct child_job *j) {
    struct rlimit lim = {.rlim_cur = j->spec->mark, .rlim_max = j->spec->mark};
    if (j->spec->mark) syscall(SYS_prlimit64, 0, RLIMIT_LOCKS, &lim, NULL);
}

/* Returns only on failure. */
IN_CHILD static void exec_path(const struct child_job *j, const char *path) {
    syscall(SYS_execve, path, j->spec->argv, j->spec->env);
    if (errno != ENOEXEC) return;
    char **v = j->spec->argv - 1;
    char *zeroth = v[1];
    v[0] = (char *)(uintptr_t) "/bin/sh";
    v[1] = (char *)(uintptr_t)path;
    syscall(SYS_execve, v[0], v, j->spec->env);
    v[1] = zeroth;
}

IN_CHILD static bool next_candidate(const struct child_job *j, const char **at) {
    if (!*at) return false;
    char *o = j->candidate;
    const char *p = *at;
    while (*p && *p != ':') *o++ = *p++;
    if (o != j->candidate) *o++ = '/'; /* an empty element is the working directory */
    for (const char *f = j->file; *f;) *o++ = *f++;
    *o = '\0';
    *at = *p ? p + 1 : NULL;
    return true;
}

/* The rules of execvp: look on where a candidate is not there, remember that one was not allowed. */
IN_CHILD static bool exec_file(struct child_job *j) {
    if (!j->search) {
        exec_path(j, j->file);
        return failed(j, CP_STEP_execve);
    }
    bool denied = false;
    for (const char *at = j->search; next_candidate(j, &at);) {
        exec_path(j, j->candidate);
        if (errno == EACCES) denied = true;
        else if (errno != ENOENT && errno != ENOTDIR && errno != ESTALE && errno != ENODEV && errno != ETIMEDOUT)
            return failed(j, CP_STEP_execve);
    }
    errno = denied ? EACCES : ENOENT;
    return failed(j, CP_STEP_execve);
}

/* The directory is entered as the user, so that nobody gets into one that is closed to him. */
IN_CHILD static bool enter_directory(struct child_job *j) {
    return !j->spec->cwd || syscall(SYS_chdir, j->spec->cwd) == 0 || failed(j, CP_STEP_chdir);
}

IN_CHILD static int child_main(void *arg) {
    struct child_job *j = arg;
    reset_signals(j->s);
    set_mark(j);
    if (place_fds(j) && join_group(j) && restore_limit(j) && become_user(j) && enter_directory(j)) {
        syscall(SYS_rt_sigprocmask, SIG_SETMASK, &no_signals, NULL, KERNEL_SIGSET);
        exec_file(j);
    }
    syscall(SYS_exit_group, 127);
    return 127;
}

/* ---- in the parent ---- */

static const char *env_path(char *const *env) {
    for (; *env; env++)
        if (strncmp(*env, "PATH=", 5) == 0) return *env + 5;
    return default_path;
}

static void plan_search(struct child_job *j) {
    j->file = j->spec->file ? j->spec->file : j->spec->argv[0];
    if (j->spec->file || !*j->file || strchr(j->file, '/')) return;
    j->search = env_path(j->spec->env);
    size_t longest = 0;
    for (const char *p = j->search; *p;) {
        size_t n = strcspn(p, ":");
        if (n > longest) longest = n;
        p += n + (p[n] == ':');
    }
    j->candidate = cp_alloc(longest + strlen(j->file) + 2);
}

static void plan_fds(struct child_job *j) {
    for (int i = 0; i < SPAWN_FDS; i++) {
        int fd = j->spec->fds[i];
        j->fds[i] = fd < 0 && i < 3 ? j->s->devnull : fd;
    }
}

/* The clone itself, with all signals blocked: glibc's own two as well, which its sigprocmask would leave out. */
static pid_t clone_child(const spawner *s, struct child_job *j) {
    uint64_t all = ~UINT64_C(0), old;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &old, KERNEL_SIGSET);
    pid_t pid = clone(child_main, s->stack + GUARD + STACK_SIZE, CLONE_VM | CLONE_VFORK | SIGCHLD, j);
    int sys = errno;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &old, NULL, KERNEL_SIGSET);
    if (pid >= 0) return pid;
    j->sys = sys;
    j->step = CP_STEP_clone;
    return -1;
}

pid_t spawner_run(const spawner *s, const spawn_spec *spec, int *sys, uint8_t *step) {
    struct child_job j = {.s = s, .spec = spec};
    plan_search(&j);
    plan_fds(&j);
    pid_t pid = clone_child(s, &j);
    free(j.candidate);
    if (!j.sys) return pid;
    if (pid > 0)
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
        }
    *sys = j.sys;
    *step = j.step;
    return -1;
}

static uint64_t other_dispositions(void) {
    uint64_t set = 0;
    for (int sig = 1; sig < NSIG; sig++) {
        struct sigaction sa;
        if (sigaction(sig, NULL, &sa) == 0 && sa.sa_handler != SIG_DFL) set |= UINT64_C(1) << (sig - 1);
    }
    return set | UINT64_C(1) << (SIGPIPE - 1); /* which the keeper ignores for itself */
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
    s->stack = mmap(NULL, GUARD + STACK_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (s->stack == MAP_FAILED) {
        s->stack = NULL;
        return -1;
    }
    return mprotect(s->stack, GUARD, PROT_NONE);
}

void spawner_fini(spawner *s) {
    if (s->stack) munmap(s->stack, GUARD + STACK_SIZE);
    s->stack = NULL;
    cp_close(&s->devnull);
}
