#include "keeper/core.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

static const int own_signals[] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGWINCH};

/* What was inherited (a shell's stray descriptors) must not reach children: marked once here, since every descriptor of
 * our own is close-on-exec at birth. */
static void mark_inherited_fds(void) {
    if (syscall(SYS_close_range, 3u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */) == 0) return;
    for (int fd = 3; fd < 1024; fd++) (void)fcntl(fd, F_SETFD, FD_CLOEXEC); /* kernel before 5.11 */
}

/* Descriptors 0..2 are there, so that nothing else gets these numbers. */
static void ensure_stdio(void) {
    int fd;
    do fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (fd >= 0 && fd < 3);
    if (fd >= 0) close(fd);
}

static void on_signal(cp_io *io, uint32_t events) {
    (void)events;
    keeper *k = CP_CONTAINER(io, keeper, sig_io);
    struct signalfd_siginfo si;
    bool reap = false;
    while (read(k->sigfd, &si, sizeof si) == sizeof si) {
        if (si.ssi_signo == SIGCHLD) reap = true;
        else supervise_signal(k, (int)si.ssi_signo, si.ssi_code == SI_KERNEL);
    }
    if (reap) reap_children(k);
}

static int open_signals(keeper *k, bool only_child) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (size_t i = 0; !only_child && i < CP_COUNT(own_signals); i++) sigaddset(&set, own_signals[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGCHLD, SIG_DFL); /* inherited as ignored, it would have the kernel throw the statuses away */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error, and no reason to die */
    k->sigfd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return k->sigfd < 0 ? -1 : cp_io_add(k->loop, &k->sig_io, k->sigfd, EPOLLIN, on_signal);
}

static int keeper_open(keeper *k, const cp_keeper_opts *opts, bool only_child, cp_err *err) {
    *k = (keeper){.opts = opts,
                  .lock = -1,
                  .folder_lock = -1,
                  .sigfd = -1,
                  .listener = -1,
                  .chan = {.fd = -1},
                  .spawner = {.devnull = -1}};
    k->starts_max = opts->starts_max ? opts->starts_max : STARTS_MAX;
    k->spawn_limit_ms = opts->spawn_limit_ms ? opts->spawn_limit_ms : SPAWN_LIMIT_MS;
    k->kill_limit_ms = opts->kill_limit_ms ? opts->kill_limit_ms : KILL_LIMIT_MS;
    k->children_max = opts->children_max ? opts->children_max : CHILDREN_MAX;
    books_init(&k->books);
    TAILQ_INIT(&k->starts);
    ensure_stdio();
    mark_init(k);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0) return cp_fail_sys(err, CP_E_INTERNAL_ERROR, errno, "subreaper");
    if (spawner_init(&k->spawner) < 0) return cp_fail_sys(err, CP_E_INTERNAL_ERROR, errno, "spawner");
    k->loop = cp_loop_new(err);
    if (!k->loop || state_lock(k, err) < 0) return -1;
    if (open_signals(k, only_child) < 0) return cp_fail_sys(err, CP_E_INTERNAL_ERROR, errno, "signals");
    return 0;
}

static void keeper_close(keeper *k) {
    if (k->loop) {
        peer_close(k);
        life_forget(k);
        cp_io_del(k->loop, &k->sig_io);
        starts_close(k);
    }
    listener_end(k);
    cp_close(&k->sigfd);
    cp_close(&k->lock);
    cp_close(&k->folder_lock);
    cp_loop_free(k->loop);
    spawner_fini(&k->spawner);
    books_free(&k->books);
}

static int run(keeper *k) {
    cp_err err;
    if (cp_loop_run(k->loop, &err) == 0) return k->exit_status;
    fprintf(stderr, "conflux: %s\n", err.msg);
    return 1;
}

int cp_keeper_main(const cp_keeper_opts *opts) {
    keeper k;
    cp_err err;
    mark_inherited_fds();
    int rc = 1;
    if (keeper_open(&k, opts, false, &err) < 0) {
        fprintf(stderr, "conflux: %s\n", err.msg);
    } else {
        start_server(&k);
        rc = run(&k);
    }
    keeper_close(&k);
    return rc;
}

int cp_keeper_run_on(int fd, const cp_keeper_opts *opts) {
    keeper k;
    cp_err err;
    int rc = 1;
    if (keeper_open(&k, opts, true, &err) < 0) {
        fprintf(stderr, "conflux: %s\n", err.msg);
        close(fd);
    } else {
        k.state = ATTACHED;
        peer_open(&k, fd);
        rc = run(&k);
    }
    keeper_close(&k);
    return rc;
}
