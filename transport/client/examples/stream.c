/* A command's output while it runs, resumed when the connection is lost on the way.
 * usage: stream URL COMMAND    (CONFLUX_TOKEN: the token) */
#include <conflux/client.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* {"command":"…"}; the caller frees it. */
static char *body_of(const char *command) {
    char *body = NULL;
    size_t n;
    FILE *f = open_memstream(&body, &n);
    if (!f) return NULL;
    fputs("{\"command\":\"", f);
    for (; *command; command++) {
        if (*command == '"' || *command == '\\') fputc('\\', f);
        fputc(*command, f);
    }
    fputs("\"}", f);
    fclose(f);
    return body;
}

static int follow(conflux_stream *s, conflux_error *err) {
    conflux_event ev;
    int rc;
    for (;;) {
        while ((rc = conflux_stream_next(s, &ev, err)) > 0) puts(ev.data);
        if (rc == 0 || !err->resumable) return rc;
        fprintf(stderr, "%s, resuming\n", err->message);
        if (conflux_stream_resume(s, err) < 0) return -1;
    }
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: %s URL COMMAND\n", argv[0]), 2;
    conflux_options o = {.url = argv[1], .token = getenv("CONFLUX_TOKEN")};
    conflux_error err;
    char id[64], *body = body_of(argv[2]);
    snprintf(id, sizeof id, "example-%lld-%d", (long long)time(NULL), rand());
    conflux_request rq = {.path = "/api/execute/stream", .body = body, .execution_id = id};
    conflux_client *c = conflux_client_new(&o, &err);
    conflux_stream *s = c ? conflux_fetch_stream(c, &rq, &err) : NULL;
    int rc = s ? follow(s, &err) : -1;
    if (rc < 0) fprintf(stderr, "%s: %s\n", conflux_kind_name(err.kind), err.message);
    conflux_stream_free(s);
    conflux_client_free(c);
    free(body);
    return rc < 0;
}
