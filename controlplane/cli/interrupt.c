#include "cli/interrupt.h"

#include "base/fd.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { AGAIN_MS = 50 };

/* Over HTTP it may come before the command that it is for. arg: a duplicate of `again`, as the answer may outlive us.
 */
static void sent(void *arg, conflux_call *call, conflux_response *rs, const conflux_error *err) {
    int fd = (int)(intptr_t)arg;
    conflux_error refused = {0};
    uint64_t one = 1;
    (void)call;
    if (rs) conflux_check(rs, &refused);
    bool heard =
        rs && strcmp(refused.code, "EXECUTION_NOT_FOUND") != 0 && strcmp(refused.code, "PROCESS_NOT_FOUND") != 0;
    if (!heard && !(err && err->kind == CONFLUX_E_CANCELLED)) (void)!write(fd, &one, sizeof one);
    cp_close(&fd);
}

/* Nobody waits for the answer: the second signal must find us here. */
static void send(const cli_interrupt *i, const conflux_request *rq) {
    int fd = fcntl(i->again, F_DUPFD_CLOEXEC, 0);
    conflux_handlers h = {.on_done = sent, .arg = (void *)(intptr_t)fd};
    conflux_call *call = conflux_start(i->c->client, rq, &h, NULL);
    if (!call) cp_close(&fd);
    conflux_call_free(call);
}

static void pass_on(cli_interrupt *i, int sig) {
    cp_autobuf cp_buf path = {0};
    char body[64], process_id[sizeof i->process_id], query[64];
    pthread_mutex_lock(&i->mu);
    memcpy(process_id, i->process_id, sizeof process_id);
    pthread_mutex_unlock(&i->mu);
    if (*process_id) {
        cli_path(&path, "/api/process/", process_id, "/signal");
        snprintf(body, sizeof body, "{\"signal\":%d,\"tree\":true}", sig);
        send(i, &(conflux_request){.path = path.p, .body = body});
    } else {
        snprintf(query, sizeof query, "?signal=%d", sig);
        cli_path(&path, "/api/execution/", i->execution_id, query);
        send(i, &(conflux_request){.method = "DELETE", .path = path.p});
    }
}

static void leave(const cli_interrupt *i, int sig) {
    cli_warn("left: what runs there goes on (conflux logs -f %s, conflux kill %s)", i->execution_id, i->execution_id);
    _exit(128 + sig);
}

static void *watch(void *arg) {
    cli_interrupt *i = arg;
    struct signalfd_siginfo info;
    struct pollfd p[3] = {
        {.fd = i->wake, .events = POLLIN}, {.fd = i->signals, .events = POLLIN}, {.fd = i->again, .events = POLLIN}};
    uint64_t count;
    for (bool again = false;;) {
        int n = poll(p, 3, again ? AGAIN_MS : -1), before = atomic_load(&i->passed);
        if (n < 0) continue; /* EINTR */
        if (n == 0) {
            again = false;
            pass_on(i, before);
        } else if (p[0].revents) {
            return NULL;
        } else if (p[2].revents) {
            again = read(i->again, &count, sizeof count) == sizeof count;
        } else {
            if (read(i->signals, &info, sizeof info) != sizeof info) return NULL;
            if (before) leave(i, (int)info.ssi_signo);
            atomic_store(&i->passed, (int)info.ssi_signo);
            pass_on(i, (int)info.ssi_signo);
        }
    }
}

/* Those that our parent has us ignore (nohup, a job in the background) stay ignored. */
static void wanted(sigset_t *set) {
    static const int all[] = {SIGINT, SIGTERM, SIGHUP};
    sigemptyset(set);
    for (size_t k = 0; k < CP_COUNT(all); k++) {
        struct sigaction now;
        sigaction(all[k], NULL, &now);
        if (now.sa_handler != SIG_IGN) sigaddset(set, all[k]);
    }
}

int cli_interrupt_start(cli_interrupt *i, cli *c, const char *execution_id) {
    sigset_t set;
    i->c = c;
    i->execution_id = execution_id;
    wanted(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    pthread_mutex_init(&i->mu, NULL);
    i->signals = signalfd(-1, &set, SFD_CLOEXEC);
    i->wake = eventfd(0, EFD_CLOEXEC);
    i->again = eventfd(0, EFD_CLOEXEC);
    i->started =
        i->signals >= 0 && i->wake >= 0 && i->again >= 0 && cp_thread_start(&i->thread, 128 * 1024, watch, i) == 0;
    return i->started ? CLI_OK : cli_fail("cannot watch for signals: %s", strerror(errno));
}

void cli_interrupt_process(cli_interrupt *i, const char *process_id) {
    pthread_mutex_lock(&i->mu);
    snprintf(i->process_id, sizeof i->process_id, "%s", process_id);
    pthread_mutex_unlock(&i->mu);
}

void cli_interrupt_stop(cli_interrupt *i) {
    uint64_t one = 1;
    if (i->started && write(i->wake, &one, sizeof one) == sizeof one) pthread_join(i->thread, NULL);
    i->started = false;
    cp_close(&i->wake);
    cp_close(&i->signals);
    cp_close(&i->again);
    pthread_mutex_destroy(&i->mu);
}
