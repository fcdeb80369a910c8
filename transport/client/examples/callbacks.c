/* Many calls at once without a thread for each: callbacks, priorities, state changes and the debug log.
 * usage: callbacks URL [auto|websocket|http]    (CONFLUX_TOKEN: the token) */
#include <conflux/client.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS = 100 };

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t all_done = PTHREAD_COND_INITIALIZER;
static int done, failed;

static void on_done(void *arg, conflux_call *call, conflux_response *rs, const conflux_error *err) {
    (void)arg, (void)call;
    pthread_mutex_lock(&mu);
    done++;
    failed += err || conflux_check(rs, NULL) < 0;
    pthread_cond_signal(&all_done);
    pthread_mutex_unlock(&mu);
}

static void on_state(void *arg, conflux_client *c, const conflux_status *s) {
    (void)arg, (void)c;
    fprintf(stderr, "now %s by %s%s%s\n", conflux_state_name(s->state), conflux_mode_name(s->mode),
            s->cause ? ": " : "", s->cause ? s->cause->message : "");
}

static void on_log(void *arg, const char *line) {
    (void)arg;
    fprintf(stderr, "%s\n", line);
}

static conflux_mode mode_of(const char *word) {
    if (word && strcmp(word, "websocket") == 0) return CONFLUX_WEBSOCKET;
    return word && strcmp(word, "http") == 0 ? CONFLUX_HTTP : CONFLUX_AUTO;
}

int main(int argc, char **argv) {
    conflux_options o = {.url = argc > 1 ? argv[1] : "http://127.0.0.1:3000",
                         .token = getenv("CONFLUX_TOKEN"),
                         .mode = mode_of(argc > 2 ? argv[2] : NULL),
                         .on_state = on_state,
                         .on_log = on_log};
    conflux_error err;
    conflux_client *c = conflux_client_new(&o, &err);
    if (!c || conflux_connect(c, &err) < 0) {
        fprintf(stderr, "%s: %s\n", conflux_kind_name(err.kind), err.message);
        conflux_client_free(c);
        return 1;
    }
    conflux_handlers h = {.on_done = on_done};
    for (int i = 0; i < CALLS; i++) {
        conflux_request rq = {.path = "/api/ping", .priority = i % 8 - 3};
        conflux_call_free(conflux_start(c, &rq, &h, NULL));
    }
    pthread_mutex_lock(&mu);
    while (done < CALLS) pthread_cond_wait(&all_done, &mu);
    pthread_mutex_unlock(&mu);
    printf("%d calls, %d failed\n", done, failed);
    conflux_client_free(c);
    return failed != 0;
}
