#pragma once
/* For tests of the client library: the real program on a free port with a folder of its own, and a door in front of it
 * that can be shut in several ways. */
#include <conflux/client.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "component/disk.h"
#include "component/wait.h"

/* ---- the server ---- */

typedef struct server {
    pid_t pid; /* the keeper */
    uint16_t port;
    char dir[64], url[64];
} server;

static inline void server_exec(const server *s, int out, char *const extra[]) {
    const char *bin = getenv("CONFLUX_PEER"); /* of another build than the test's */
    if (!bin) bin = getenv("CONFLUX_BIN");
    char state[96], work[96];
    const char *argv[24] = {bin ? bin : "conflux", "serve", "--port", "0", "--log-level", "error", "--state", state,
                            "--workspace",         work};
    snprintf(state, sizeof state, "%s/state", s->dir);
    snprintf(work, sizeof work, "%s/work", s->dir);
    for (int i = 0; extra && extra[i]; i++) argv[10 + i] = extra[i];
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* a test that is killed leaves nothing behind */
    dup2(out, 1);
    execvp(argv[0], (char **)(uintptr_t)argv);
    _exit(127);
}

/* extra: more arguments, ending in NULL; or NULL. */
static inline void server_start(server *s, char *const extra[]) {
    int rw[2];
    char text[4096];
    size_t n = 0;
    *s = (server){0};
    temp_dir_new(s->dir, "conflux-client");
    assert_int_equal(pipe2(rw, O_CLOEXEC), 0);
    s->pid = fork();
    if (s->pid == 0) server_exec(s, rw[1], extra);
    close(rw[1]);
    const char *at = NULL;
    while (!at || !strchr(at, '\n')) {
        ssize_t k = read(rw[0], text + n, sizeof text - 1 - n);
        if (k <= 0) fail_msg("the server does not start");
        n += (size_t)k;
        text[n] = '\0';
        at = strstr(text, "http://127.0.0.1:");
    }
    close(rw[0]);
    s->port = (uint16_t)strtoul(at + strlen("http://127.0.0.1:"), NULL, 10);
    snprintf(s->url, sizeof s->url, "http://127.0.0.1:%u", s->port);
}

static inline void server_stop(server *s) {
    kill(s->pid, SIGTERM);
    waitpid(s->pid, NULL, 0);
    assert_int_equal(temp_dir_remove(s->dir), 0);
}

/* The one of a test program, from its group's setup to its teardown. */
static server srv;

static inline int srv_start(void **state) {
    (void)state;
    server_start(&srv, NULL);
    return 0;
}

static inline int srv_stop(void **state) {
    (void)state;
    server_stop(&srv);
    return 0;
}

static inline pid_t server_child(const server *s) {
    DIR *d = opendir("/proc");
    pid_t found = 0;
    for (struct dirent *e; !found && (e = readdir(d));) {
        char path[300], text[512] = "", state = 0;
        int parent = 0;
        snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
        FILE *f = e->d_name[0] >= '1' && e->d_name[0] <= '9' ? fopen(path, "re") : NULL;
        if (!f) continue;
        if (fgets(text, sizeof text, f) && strstr(text, "(conflux-server") &&
            sscanf(strrchr(text, ')') + 1, " %c %d", &state, &parent) == 2 && parent == s->pid && state != 'Z')
            found = (pid_t)strtol(e->d_name, NULL, 10);
        fclose(f);
    }
    closedir(d);
    return found;
}

/* The server dies as by a crash; its keeper starts another on the same port. */
static inline void server_kill(const server *s) {
    pid_t pid = server_child(s);
    assert_true(pid > 0);
    kill(pid, SIGKILL);
}

static inline const char *in_dir(const server *s, const char *name) {
    static __thread char path[160];
    snprintf(path, sizeof path, "%s/%s", s->dir, name);
    return path;
}

static inline bool exists(const server *s, const char *name) { return access(in_dir(s, name), F_OK) == 0; }

static inline void make_file(const server *s, const char *name) {
    int fd = open(in_dir(s, name), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    close(fd);
}

static inline size_t file_size(const server *s, const char *name) {
    struct stat st;
    return stat(in_dir(s, name), &st) == 0 ? (size_t)st.st_size : 0;
}

/* ---- a door in front of it ---- */

typedef enum {
    DOOR_OPEN,
    DOOR_NO_UPGRADE, /* 404 for what asks for /ws, everything else goes through */
    DOOR_DEAF,       /* no answer at all to that */
    DOOR_SILENT,     /* takes connections and bytes, answers nothing */
    DOOR_ONE_WAY,    /* requests go in, no answer comes out */
    DOOR_SHUT,       /* connections end as soon as they are made */
    DOOR_HELD,       /* the connection on which bytes come first has them kept until the door opens */
} door_mode;

enum { PAIRS = 128 };

typedef struct door {
    pthread_t thread;
    int listener, wake[2];
    uint16_t port, to;
    const char *path; /* not NULL: a Unix socket instead of a port */
    char url[64];
    atomic_int mode, accepted, cut; /* cut: raise it to end all connections */
    atomic_int held;                /* 1 + the pair whose bytes are kept; 0: none yet */
    atomic_bool stop;
    struct {
        int in, out; /* the client's end, the server's; -1 */
        bool begun;
    } pair[PAIRS];
} door;

static inline int door_connect(const door *d) {
    struct sockaddr_in in = {
        .sin_family = AF_INET, .sin_port = htons(d->to), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    if (d->path) snprintf(un.sun_path, sizeof un.sun_path, "%s", d->path);
    const struct sockaddr *a = d->path ? (const void *)&un : (const void *)&in;
    int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, a, d->path ? sizeof un : sizeof in) == 0) return fd;
    close(fd);
    return -1;
}

static inline void door_end(door *d, int i) {
    if (d->pair[i].in >= 0) close(d->pair[i].in);
    if (d->pair[i].out >= 0) close(d->pair[i].out);
    d->pair[i].in = d->pair[i].out = -1;
    d->pair[i].begun = false;
}

static inline void door_accept(door *d) {
    int fd = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC), i = 0;
    if (fd < 0) return;
    atomic_fetch_add(&d->accepted, 1);
    while (i < PAIRS && d->pair[i].in >= 0) i++;
    int mode = atomic_load(&d->mode), out = -1;
    if (i == PAIRS || mode == DOOR_SHUT || (mode != DOOR_SILENT && (out = door_connect(d)) < 0)) {
        close(fd);
        return;
    }
    d->pair[i].in = fd;
    d->pair[i].out = out;
}

static inline bool door_sendall(int fd, const char *p, size_t n) {
    while (n) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k <= 0) return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

/* True: the connection is to end. */
static inline bool door_refuses(door *d, int i, const char *p, size_t n) {
    static const char no[] = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    bool first = !d->pair[i].begun;
    int mode = atomic_load(&d->mode);
    d->pair[i].begun = true;
    if (!first || n < 7 || memcmp(p, "GET /ws", 7) != 0) return false;
    if (mode == DOOR_DEAF) {
        close(d->pair[i].out);
        d->pair[i].out = -1;
    }
    if (mode == DOOR_NO_UPGRADE) door_sendall(d->pair[i].in, no, sizeof no - 1);
    return mode == DOOR_NO_UPGRADE;
}

static inline void door_move(door *d, int i, bool inward) {
    char p[16384];
    int mode = atomic_load(&d->mode);
    ssize_t n = recv(inward ? d->pair[i].in : d->pair[i].out, p, sizeof p, 0);
    if (n <= 0 || (inward && door_refuses(d, i, p, (size_t)n))) {
        door_end(d, i);
        return;
    }
    if (mode == DOOR_SILENT || (mode == DOOR_ONE_WAY && !inward) || d->pair[i].out < 0) return;
    if (!door_sendall(inward ? d->pair[i].out : d->pair[i].in, p, (size_t)n)) door_end(d, i);
}

static inline void *door_run(void *arg) {
    door *d = arg;
    int cut = 0;
    while (!atomic_load(&d->stop)) {
        struct pollfd p[2 + 2 * PAIRS] = {{.fd = d->listener, .events = POLLIN}, {.fd = d->wake[0], .events = POLLIN}};
        for (int i = 0; i < PAIRS; i++) {
            p[2 + 2 * i] = (struct pollfd){.fd = d->pair[i].in, .events = POLLIN};
            p[3 + 2 * i] = (struct pollfd){.fd = d->pair[i].out, .events = POLLIN};
        }
        int held = atomic_load(&d->held);
        if (held && atomic_load(&d->mode) == DOOR_HELD) p[2 * held].fd = -1;
        poll(p, 2 + 2 * PAIRS, -1);
        bool holds = atomic_load(&d->mode) == DOOR_HELD; /* as it is for what has come, not as it was before */
        char byte;
        if (p[1].revents) (void)!read(d->wake[0], &byte, 1);
        if (cut != atomic_load(&d->cut)) {
            cut = atomic_load(&d->cut);
            for (int i = 0; i < PAIRS; i++) door_end(d, i);
            continue;
        }
        for (int i = 0; i < PAIRS && holds && !held; i++) {
            if (!p[2 + 2 * i].revents) continue;
            atomic_store(&d->held, held = i + 1);
            p[2 + 2 * i].revents = 0;
        }
        for (int i = 0; i < PAIRS; i++) {
            if (p[2 + 2 * i].revents && d->pair[i].in == p[2 + 2 * i].fd) door_move(d, i, true);
            if (p[3 + 2 * i].revents && d->pair[i].out == p[3 + 2 * i].fd && d->pair[i].out >= 0)
                door_move(d, i, false);
        }
        if (p[0].revents) door_accept(d);
    }
    for (int i = 0; i < PAIRS; i++) door_end(d, i);
    return NULL;
}

static inline void door_open(door *d, uint16_t to, door_mode mode) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    memset(d, 0, sizeof *d);
    d->to = to;
    atomic_store(&d->mode, (int)mode);
    for (int i = 0; i < PAIRS; i++) d->pair[i].in = d->pair[i].out = -1;
    d->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(d->listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(d->listener, 64), 0);
    assert_int_equal(getsockname(d->listener, (struct sockaddr *)&a, &n), 0);
    assert_int_equal(pipe2(d->wake, O_CLOEXEC), 0);
    d->port = ntohs(a.sin_port);
    snprintf(d->url, sizeof d->url, "http://127.0.0.1:%u", d->port);
    assert_int_equal(pthread_create(&d->thread, NULL, door_run, d), 0);
}

static inline void door_wake(door *d) { (void)!write(d->wake[1], "", 1); }

static inline void door_cut(door *d) {
    atomic_fetch_add(&d->cut, 1);
    door_wake(d);
}

static inline void door_close(door *d) {
    atomic_store(&d->stop, true);
    door_wake(d);
    pthread_join(d->thread, NULL);
    close(d->listener);
    close(d->wake[0]);
    close(d->wake[1]);
}

/* ---- calls ---- */

static inline conflux_client *client_of(const char *url, conflux_mode mode) {
    conflux_error err = {0};
    conflux_options o = {.url = url, .mode = mode, .backoff_ms = 20, .upgrade_retry_ms = 50};
    conflux_client *c = conflux_client_new(&o, &err);
    if (!c) fail_msg("%s", err.message);
    return c;
}

/* After a kill: until there is a server again. A client that has never been connected does not wait by itself. */
static inline void wait_up(conflux_client *c) { wait_until(conflux_connect(c, NULL) == 0); }

/* The answer's body; the caller frees it. Fails the test when there is none, or its status is another. */
static inline char *body_of(conflux_client *c, const conflux_request *rq, int status) {
    conflux_response r;
    conflux_error err = {0};
    if (conflux_fetch(c, rq, &r, &err) < 0) fail_msg("%s: %s", conflux_kind_name(err.kind), err.message);
    if (r.status != status) fail_msg("status %d: %s", r.status, r.body);
    free(r.headers);
    return r.body;
}

/* A command's stdout is this. */
static inline void expect_output(conflux_client *c, const char *command, const char *output) {
    char body[512], want[512];
    snprintf(body, sizeof body, "{\"command\":\"%s\",\"sessionId\":\"__DISABLE_SESSION__\"}", command);
    snprintf(want, sizeof want, "\"stdout\":\"%s\"", output);
    conflux_request rq = {.path = "/api/execute", .body = body};
    char *got = body_of(c, &rq, 200);
    if (!strstr(got, want)) fail_msg("%s instead of %s", got, want);
    free(got);
}

/* ---- calls with callbacks ---- */

typedef struct outcome {
    conflux_error err;
    int status;
    atomic_int events;
    atomic_bool done;
} outcome;

static inline void see_event(void *arg, conflux_call *call, const conflux_event *ev) {
    (void)call, (void)ev;
    atomic_fetch_add(&((outcome *)arg)->events, 1);
}

static inline void see_done(void *arg, conflux_call *call, conflux_response *r, const conflux_error *err) {
    outcome *s = arg;
    (void)call;
    if (err) s->err = *err;
    s->status = r ? r->status : 0;
    atomic_store(&s->done, true);
}

static inline conflux_call *begin(conflux_client *c, const conflux_request *rq, outcome *s) {
    conflux_error err;
    conflux_handlers h = {.on_done = see_done, .arg = s};
    *s = (outcome){.status = -1};
    conflux_call *call = conflux_start(c, rq, &h, &err);
    if (!call) fail_msg("%s", err.message);
    return call;
}

static inline void finish(conflux_call *call, outcome *s) {
    wait_until(atomic_load(&s->done));
    conflux_call_free(call);
}
