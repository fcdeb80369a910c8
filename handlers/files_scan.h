#pragma once
/* A search that streams what it finds: the frame that search and grep share. See files_scan.c. */
#include <stdatomic.h>

#include "handlers/files_impl.h"
#include "services/files_walk.h"
#include "services/watch_glob.h"

typedef struct cp_scan cp_scan;

typedef struct cp_scan_ops {
    const char *op;
    /* On the io pool. Opens what is searched. -1: the reply is err. */
    int (*open)(cp_scan *s, cp_err *err);
    /* On the io pool: a little more, at most a few milliseconds. False: the end. */
    bool (*step)(cp_scan *s);
    void (*put_totals)(cp_scan *s, cp_jw *w); /* members of the complete event; NULL: none of its own */
    void (*free)(cp_scan *s);                 /* the owner */
} cp_scan_ops;

/* Embed as the first part of the owner. */
struct cp_scan {
    const cp_scan_ops *ops;
    cp_source src;
    cp_work work;
    cp_ctx *ctx;
    uint64_t client;
    cp_reply *reply; /* until the first job has ended; NULL also when the client has gone */
    cp_files_path path;
    char *given; /* owned: what path.given points to */

    /* the request */
    char glob[CP_GLOB_MAX + 1]; /* "": all */
    bool hidden;
    int64_t limit;

    /* the job's while `working` */
    cp_walk *walk;
    uint64_t skipped; /* files that could not be read; the walk counts the folders */
    cp_buf filling;   /* events: JSON text without line breaks, a newline after each */
    int64_t matches;
    bool opened, end;
    cp_err err;

    /* the loop's */
    atomic_bool stop; /* nobody wants it any more */
    bool working, streaming, full, closed;
    cp_buf sending;
    size_t at;
};

/* Reads path, glob, hidden, limit, and answers when they are wrong: -1, and then s is freed. */
int cp_scan_begin(cp_scan *s, const cp_scan_ops *ops, cp_ctx *ctx, const cp_request *req, cp_reply *reply);
void cp_scan_start(cp_scan *s);                     /* from here on s belongs to the stream */
void cp_scan_refuse(cp_scan *s, const cp_err *err); /* in its place: answers and frees */

bool cp_scan_wants(const cp_scan *s, const char *relative); /* by the glob */
/* One event: begin opens its object and puts the paths, end closes it and counts it as a match. */
cp_jw cp_scan_match(cp_scan *s, const char *relative);
void cp_scan_match_end(cp_scan *s, cp_jw *w);
