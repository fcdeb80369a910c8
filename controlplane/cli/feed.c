/* Who owns what: main attaches and detaches a stream; the thread uses it only while `using` is set, and detach waits
 * for that. A piece is kept until it has been taken, so that what a lost connection refuses goes to the next one. */
#include "cli/feed.h"

#include "base/fd.h"
#include "base/thread.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ---- over HTTP ---- */

static void stdin_body(cp_buf *out, const void *p, size_t n, bool eof) {
    cp_jw w = cp_jw_on(out);
    cp_jw_obj(&w);
    cp_jw_kz(&w, "encoding", "base64");
    cp_jw_key(&w, "data");
    cp_jw_base64(&w, p, n);
    cp_jw_kbool(&w, "eof", eof);
    cp_jw_end_obj(&w);
}

/* The process has too much to take, or the request was never sent whole: nothing of it has arrived. */
static bool try_later(const conflux_error *err, cli_patience *p) {
    if (strcmp(err->code, "LIMIT_EXCEEDED") == 0) return true;
    return cli_is_lost(err) && err->retry_safe && cli_patience_left(p);
}

int cli_feed_request(cli *c, const char *process_id, const void *p, size_t n, bool eof, int wake, conflux_error *err) {
    enum { FIRST_MS = 5, MOST_MS = 200 };
    cp_autobuf cp_buf body = {0}, path = {0};
    cli_patience patience = {0};
    cli_reconnect_ms(c, &patience.limit_ms);
    cli_path(&path, "/api/process/", process_id, "/stdin");
    stdin_body(&body, p, n, eof);
    for (int pause = FIRST_MS;; pause = pause < MOST_MS ? 2 * pause : MOST_MS) {
        /* To say twice that this was all does no harm. */
        conflux_request rq = {.path = path.p, .body = body.p, .body_len = body.n, .idempotent = n == 0};
        cli_autoanswer cli_answer a = {0};
        if (cli_try(c, &rq, &a, err) == 0) return 0;
        if (!try_later(err, &patience)) return -1;
        struct pollfd w = {.fd = wake, .events = POLLIN};
        if (poll(&w, 1, pause) > 0) return -1;
    }
}

/* ---- the thread ---- */

/* False: stop. A hang-up of the writer is the end of a pipe, which read tells. */
static bool readable(const cli_feed *f) {
    struct pollfd p[2] = {{.fd = f->wake, .events = POLLIN}, {.fd = f->in, .events = POLLIN}};
    while (poll(p, 2, -1) < 0 && errno == EINTR) continue;
    return !p[0].revents;
}

static int take_piece(cli_feed *f) {
    while (!f->have) {
        if (!readable(f)) return -1;
        ssize_t n = read(f->in, f->piece, sizeof f->piece);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n < 0) cli_warn("cannot read stdin: %s", strerror(errno));
        f->n = n > 0 ? (size_t)n : 0;
        f->eof = n <= 0;
        f->have = true;
    }
    return 0;
}

static int send_piece(cli_feed *f, conflux_stream *s, conflux_error *err) {
    if (!f->over_http) {
        if (conflux_stream_stdin(s, f->piece, f->n, f->eof, err) == 0) return 0;
        if (err->kind != CONFLUX_E_UNSUPPORTED) return -1;
        f->over_http = true;
    }
    if (cli_feed_request(f->c, f->process_id, f->piece, f->n, f->eof, f->wake, err) == 0) return 0;
    return strcmp(err->code, "RESOURCE_BUSY") == 0 ? 0 : -1; /* nobody reads it any more: as in a pipeline */
}

/* Over a WebSocket the call is over: there may be another, and the piece is for that. A request that failed may have
 * arrived or not. */
static void failed(cli_feed *f, const conflux_error *err) {
    conflux_stream *s = cp_take(f->stream);
    if (!f->over_http) return;
    f->state = CLI_FEED_BROKEN;
    f->err = *err;
    if (s) conflux_stream_cancel(s, 0);
}

/* With mu held; false: done. */
static bool feed_one(cli_feed *f) {
    conflux_error err = {0};
    while (!f->stream && !f->stop) pthread_cond_wait(&f->changed, &f->mu);
    if (f->stop) return false;
    pthread_mutex_unlock(&f->mu);
    int got = take_piece(f);
    pthread_mutex_lock(&f->mu);
    if (got < 0) return false;
    conflux_stream *s = f->stream;
    if (!s || f->stop) return !f->stop;
    f->using = true;
    pthread_mutex_unlock(&f->mu);
    int rc = send_piece(f, s, &err);
    pthread_mutex_lock(&f->mu);
    f->using = false;
    if (f->stop) return false;
    if (rc < 0) failed(f, &err);
    else if (f->eof) f->state = CLI_FEED_DONE;
    else f->have = false;
    pthread_cond_broadcast(&f->changed);
    return f->state == CLI_FEED_OPEN;
}

static void *run(void *arg) {
    cli_feed *f = arg;
    pthread_mutex_lock(&f->mu);
    while (feed_one(f)) continue;
    f->using = false;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->mu);
    return NULL;
}

/* ---- main's ---- */

int cli_feed_start(cli_feed *f, cli *c, int in) {
    f->c = c;
    f->in = in;
    f->wake = eventfd(0, EFD_CLOEXEC);
    pthread_mutex_init(&f->mu, NULL);
    pthread_cond_init(&f->changed, NULL);
    f->started = true;
    if (f->wake >= 0 && cp_thread_start(&f->thread, 128 * 1024, run, f) == 0) return CLI_OK;
    f->started = false;
    cp_close(&f->wake);
    return cli_fail("cannot start a thread");
}

/* The end of input that had been sent before the connection was lost is sent again: to say it twice does no harm. */
void cli_feed_attach(cli_feed *f, conflux_stream *stream, const char *process_id) {
    conflux_error err;
    if (!f->started) return;
    pthread_mutex_lock(&f->mu);
    snprintf(f->process_id, sizeof f->process_id, "%s", process_id);
    f->stream = stream;
    bool again = f->state == CLI_FEED_DONE;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->mu);
    if (again && !f->over_http) conflux_stream_stdin(stream, "", 0, 1, &err);
}

bool cli_feed_detach(cli_feed *f, const conflux_stream *stream) {
    if (!f->started) return true;
    pthread_mutex_lock(&f->mu);
    while (f->using) pthread_cond_wait(&f->changed, &f->mu);
    f->stream = NULL;
    bool whole = f->state != CLI_FEED_BROKEN;
    pthread_mutex_unlock(&f->mu);
    return whole && (f->over_http || conflux_stream_stdin_pending(stream) == 0);
}

void cli_feed_stop(cli_feed *f) {
    uint64_t one = 1;
    if (!f->started) return;
    pthread_mutex_lock(&f->mu);
    f->stop = true;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->mu);
    if (write(f->wake, &one, sizeof one) < 0) cli_warn("cannot end the reading of stdin");
    pthread_join(f->thread, NULL);
    cp_close(&f->wake);
    pthread_mutex_destroy(&f->mu);
    pthread_cond_destroy(&f->changed);
    f->started = false;
}

bool cli_feed_broken(cli_feed *f, conflux_error *err) {
    if (!f->started) return false;
    pthread_mutex_lock(&f->mu);
    bool broken = f->state == CLI_FEED_BROKEN;
    if (broken) *err = f->err;
    pthread_mutex_unlock(&f->mu);
    return broken;
}
