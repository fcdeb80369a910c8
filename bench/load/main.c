/* The load program: one thread, one scenario a run, one JSON object on stdout. Only loopback is ever addressed. An
 * answer that is not a success ends the run with an error: a fast failure is no result. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "load/bytes.h"
#include "load/engine.h"
#include "load/hold.h"
#include "load/load.h"
#include "load/raw.h"

load_options opt;

/* Beyond its window a run may take this long, then it is ended: a server that hangs must not hang a benchmark. */
enum { GRACE_S = 120 };

typedef enum { WHOLE, SECONDS, NUMBER, TEXT } option_kind;

static const struct option {
    const char *name, *arg;
    option_kind kind;
    void *field;
    int64_t initial, max;
    const char *help;
} options[] = {
    /* clang-format off */
    {"port", "P", WHOLE, &opt.port, 0, 65535, "the server's port on 127.0.0.1"},
    {"door", "NAME", TEXT, &opt.door, 0, 0, "ws (default), ws-close, http, http-close; raw servers: echo, mux"},
    {"inflight", "N", WHOLE, &opt.inflight, 1, 20000, "operations in flight, on each WebSocket or over as many HTTP connections (1)"},
    {"conns", "N", WHOLE, &opt.conns, 1, 20000, "WebSockets (1)"},
    {"ops", "N", WHOLE, &opt.ops, 0, INT64_C(1) << 40, "closed loop: end after N operations, if the window has not ended before"},
    {"rate", "R", NUMBER, &opt.rate, 0, 0, "open loop: R operations a second, each counted from when it was due"},
    {"method", "M", TEXT, &opt.method, 0, 0, "GET (default), POST, …"},
    {"path", "T", TEXT, &opt.path, 0, 0, "request target (/api/ping)"},
    {"body", "JSON", TEXT, &opt.body, 0, 0, "body; $OFFSET, $LAST, $ID and $DATA vary by step and operation"},
    {"steps", "N", WHOLE, &opt.steps, 1, 1000000, "an operation is N requests, one after another"},
    {"step-size", "BYTES", WHOLE, &opt.step_size, 0, 1 << 28, "length of $DATA, distance of $OFFSET"},
    {"burst", "N", WHOLE, &opt.burst, 1, 10000, "a step is N requests at once (WebSocket)"},
    {"beside", "JSON", TEXT, &opt.beside, 0, 0, "body of an execute/stream that runs on the same socket all the time; a command for mux"},
    {"size", "BYTES", WHOLE, &opt.size, 0, INT64_C(1) << 40, "what put and dd-put send"},
    {"file", "PATH", TEXT, &opt.file, 0, 0, "file of dd-get and dd-put, database of commit"},
    {"event", "TEXT", TEXT, &opt.event, 0, 0, "hold: each request is a stream, held when an event with TEXT has come; sse: complete when one has"},
    {"rcvbuf", "BYTES", WHOLE, &opt.rcvbuf, 0, 1 << 30, "receive buffer of each connection: what may lie unread before an answer (the kernel's)"},
    {"window", "BYTES", WHOLE, &opt.window, 0, 1 << 30, "credit of the stream of --beside (WebSocket): what may be on its way"},
    {"encoding", "base64", TEXT, &opt.encoding, 0, 0, "sse: the data of events are base64"},
    {"seconds", "S", SECONDS, &opt.seconds_ms, 3000, 3600000, "measured window (3)"},
    {"warmup", "S", SECONDS, &opt.warmup_ms, 300, 60000, "time before it (0.3)"},
    {"timeout", "S", SECONDS, &opt.timeout_ms, 10000, 60000, "patience: calls, for answers after the window; sse, get, put, for the next byte (10)"},
    /* clang-format on */
};

static const struct scenario {
    const char *name;
    int (*run)(void);
    const char *help;
} scenarios[] = {
    {"calls", engine_run, "operations through a door, closed loop, or open loop with --rate"},
    {"stream", bytes_stream, "one execute/stream (--body) on a WebSocket: bytes of stdout per second"},
    {"sse", bytes_sse, "the same over HTTP (--path, --body)"},
    {"get", bytes_get, "one GET of --path: bytes per second"},
    {"put", bytes_put, "one PUT of --size bytes to --path"},
    {"hold", hold, "holds --conns WebSockets with --inflight requests each until stdin ends"},
    {"echo-server", raw_echo_server, "epoll echo for the door echo: prints its port, ends with stdin"},
    {"mux-server", raw_mux_server, "calls beside the output of a command for the door mux; likewise"},
    {"spawn", raw_spawn, "posix_spawn loop of bash -c true with two pipes"},
    {"pipe", raw_pipe, "bytes through a pipe"},
    {"socket", raw_socket, "bytes through a loopback socket"},
    {"commit", raw_commit, "SQLite transactions in --file"},
    {"dd-get", raw_dd_get, "--file through a socket, sent by dd"},
    {"dd-put", raw_dd_put, "--size bytes through a socket into --file, written by dd with fsync"},
};

static void usage(FILE *f) {
    fputs("usage: load SCENARIO [options]\n\nMeasures a server on 127.0.0.1, or this machine; prints one JSON "
          "object.\n\n",
          f);
    for (size_t i = 0; i < CP_COUNT(scenarios); i++) fprintf(f, "  %-12s %s\n", scenarios[i].name, scenarios[i].help);
    fputs("\noptions:\n", f);
    for (size_t i = 0; i < CP_COUNT(options); i++)
        fprintf(f, "  --%s %-*s %s\n", options[i].name, 15 - (int)strlen(options[i].name), options[i].arg,
                options[i].help);
    fputs("\n  load calls --port 3000 --inflight 64\n"
          "  load calls --port 3000 --door http --rate 1000 --method POST --path /api/execute --body "
          "'{\"command\":\":\"}'\n",
          f);
}

static _Noreturn void wrong(const char *what, const char *name) {
    fprintf(stderr, "load: %s: %s (load --help)\n", name, what);
    exit(2);
}

static void set(const struct option *o, const char *value) {
    char *end;
    double d = 0;
    if (o->kind == TEXT) {
        *(const char **)o->field = value;
        return;
    }
    if (o->kind == WHOLE) {
        uint64_t n;
        if (!cp_str_u64(cp_str_of(value), (uint64_t)o->max, &n)) wrong("a whole number is expected", o->name);
        *(int64_t *)o->field = (int64_t)n;
        return;
    }
    d = strtod(value, &end);
    if (end == value || *end || !(d >= 0) || (o->max && d * 1000 > (double)o->max))
        wrong("a number is expected", o->name);
    if (o->kind == NUMBER) *(double *)o->field = d;
    else *(int64_t *)o->field = (int64_t)(d * 1000);
}

static void parse(char **argv) {
    for (size_t i = 0; i < CP_COUNT(options); i++)
        if (options[i].kind == WHOLE || options[i].kind == SECONDS) *(int64_t *)options[i].field = options[i].initial;
    opt.door = "ws";
    opt.method = "GET";
    opt.path = "/api/ping";
    for (; *argv; argv += 2) {
        size_t i = 0;
        while (i < CP_COUNT(options) && (strncmp(*argv, "--", 2) != 0 || strcmp(*argv + 2, options[i].name) != 0)) i++;
        if (i == CP_COUNT(options)) wrong("no such option", *argv);
        if (!argv[1]) wrong("a value is expected", *argv);
        set(&options[i], argv[1]);
    }
    if (!opt.burst || !opt.steps || !opt.conns) wrong("must not be 0", "--burst, --steps, --conns");
}

int main(int argc, char **argv) {
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        usage(stdout);
        return 0;
    }
    for (size_t i = 0; argc > 1 && i < CP_COUNT(scenarios); i++) {
        if (strcmp(argv[1], scenarios[i].name) != 0) continue;
        parse(argv + 2);
        bool waits =
            scenarios[i].run == hold || scenarios[i].run == raw_echo_server || scenarios[i].run == raw_mux_server;
        if (!waits) alarm((unsigned)((opt.seconds_ms + opt.warmup_ms + opt.timeout_ms) / 1000) + GRACE_S);
        errno = 0;
        return scenarios[i].run();
    }
    usage(stderr);
    return 2;
}
