/* A posix_spawn loop of `bash -c true` with two pipes: the raw limit for a command, as any server must run it, with a
 * pipe for stdout and one for stderr, read to the end, reaped. */
#include <errno.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "load/load.h"
#include "load/raw.h"

typedef struct spawned {
    pid_t pid;
    int out, err;
    uint64_t started;
} spawned;

pid_t raw_start(const char *const argv[], int in, int out, int err) {
    const int fds[] = {in, out, err};
    pid_t pid;
    posix_spawn_file_actions_t fa;
    posix_spawn_file_actions_init(&fa);
    for (int i = 0; i < 3; i++)
        if (fds[i] >= 0) posix_spawn_file_actions_adddup2(&fa, fds[i], i);
    errno = posix_spawnp(&pid, argv[0], &fa, NULL, (char *const *)(uintptr_t)argv, environ);
    if (errno) die(argv[0]);
    posix_spawn_file_actions_destroy(&fa);
    return pid;
}

static spawned spawn_one(void) {
    int o[2], e[2];
    if (cp_pipe(o, 0) < 0 || cp_pipe(e, 0) < 0) die("pipe");
    spawned s = {.out = o[0], .err = e[0], .started = cp_now_ns()};
    s.pid = raw_start((const char *const[]){"bash", "-c", "true", NULL}, -1, o[1], e[1]);
    close(o[1]);
    close(e[1]);
    return s;
}

static void ended(spawned *s, uint64_t now) {
    char c;
    if (read(s->out, &c, 1) != 0 || read(s->err, &c, 1) != 0) die("unexpected output");
    close(s->out);
    close(s->err);
    window_note(s->started, now);
    *s = spawn_one();
}

int raw_spawn(void) {
    size_t n = (size_t)opt.inflight;
    spawned *v = cp_alloc(n * sizeof *v);
    uint64_t now;
    window_open();
    for (size_t i = 0; i < n; i++) v[i] = spawn_one();
    do {
        pid_t pid = wait(NULL);
        now = cp_now_ns();
        for (size_t i = 0; i < n; i++)
            if (v[i].pid == pid) {
                ended(&v[i], now);
                break;
            }
    } while (now < win.end || !win.latency.count);
    while (wait(NULL) > 0) continue;
    window_report("spawn", "");
    return 0;
}
