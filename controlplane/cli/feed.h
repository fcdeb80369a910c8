#pragma once
/* Our standard input, on its way to a command's: a thread of its own, so that output flows meanwhile. It reads no more
 * than is taken. Over HTTP, where a stream has no way in, each piece is a request. */
#include <pthread.h>

#include "cli/cli.h"

enum { CLI_FEED_PIECE = 48 * 1024 };

typedef enum { CLI_FEED_OPEN, CLI_FEED_DONE, CLI_FEED_BROKEN } cli_feed_state;

typedef struct cli_feed {
    cli *c;
    int in, wake; /* wake: an eventfd that ends waiting */
    pthread_t thread;
    bool started;
    pthread_mutex_t mu;
    pthread_cond_t changed;
    /* under mu */
    conflux_stream *stream; /* where input goes; NULL: nowhere at the moment */
    bool using, stop;
    cli_feed_state state;
    conflux_error err; /* BROKEN: why */
    char process_id[256];
    /* the thread's */
    bool over_http;
    char piece[CLI_FEED_PIECE];
    size_t n; /* bytes of piece that have not been taken */
    bool have, eof;
} cli_feed;

/* Reads descriptor `in`. Nothing is read before attach. CLI_OK, or an exit status. */
int cli_feed_start(cli_feed *f, cli *c, int in);
/* The command runs, and this stream (or, over HTTP, this process) takes its input; after a lost connection again. */
void cli_feed_attach(cli_feed *f, conflux_stream *stream, const char *process_id);
/* The stream is about to go. False: part of the input may or may not have arrived, so that nothing can follow it. */
bool cli_feed_detach(cli_feed *f, const conflux_stream *stream);
void cli_feed_stop(cli_feed *f); /* waits for the thread; fine when it was never started */
bool cli_feed_broken(cli_feed *f, conflux_error *err);

/* A piece of input for a process by request; waits while the process has too much of it to take, until `wake` is
 * readable (-1: none). 0; -1 with *err. */
int cli_feed_request(cli *c, const char *process_id, const void *p, size_t n, bool eof, int wake, conflux_error *err);
