/* A posix_spawn loop of `bash -c true` with two pipes: the raw limit for a command, as any server must run it, with a
 * pipe for stdout and one for stderr, read to the end, reaped. */
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

static spawned spawn_one(void) {
    int o[2], e[2];
    if (cp_pipe(o, 0) < 0 || cp_pipe(e, 0) < 0) die("pipe");
    posix_spawn_file_actions_t fa;
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_adddup2(&fa, o[1], 1);
    posix_spawn_file_actions_adddup2(&fa, e[1], 2);
    char bash[] = "bash", dash_c[] = "-c", command[] = "true", *argv[] = {bash, dash_c, command, NULL};
    spawned s = {.out = o[0], .err = e[0], .started = cp_now_ns()};
    if (posix_spawnp(&s.pid, "bash", &fa, NULL, argv, environ) != 0) die("posix_spawn");
    posix_spawn_file_actions_destroy(&fa);
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
