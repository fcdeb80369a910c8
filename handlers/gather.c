/* Takes the output of an execution out of its logs and has an answer built from it. Logs belong to the loop, and a read
 * is a copy from memory or page cache: slices of 1 MiB, one a round, keep other connections moving. Escaping tens of
 * MiB is the io pool's. */
#include <stdlib.h>

#include "handlers/exec_result.h"

enum { SLICE = 1 << 20, INLINE_MAX = 256 << 10 };

typedef struct gather {
    cp_gathered g;
    cp_ctx *ctx;
    uint64_t at[2], end[2];
    cp_gather_build *build;
    cp_gather_done *done;
    void *arg;
    cp_result res;
    cp_task task;
    cp_work work;
} gather;

static void finish(gather *j) {
    cp_result res = cp_take(j->res);
    cp_gather_done *done = j->done;
    void *arg = j->arg;
    for (int k = 0; k < 2; k++) cp_buf_free(&j->g.text[k]);
    cp_exec_unref(j->g.exec);
    free(j);
    done(arg, &res);
}

static void build_run(cp_work *w) {
    gather *j = CP_CONTAINER(w, gather, work);
    j->build(&j->g, &j->res);
}

static void build_done(cp_work *w) { finish(CP_CONTAINER(w, gather, work)); }

/* Nothing came: all that is left was beyond the budget, or the log cannot be read. */
static void cut_short(gather *j, int k) {
    const cp_output *o = j->g.exec->out[k];
    j->g.truncated[k] = true;
    if (j->at[k] < cp_output_end(o) && !j->g.unread.code) {
        if (cp_output_waits(o)) cp_fail(&j->g.unread, CP_E_TOO_MANY_FILES, "the log cannot be opened at this moment");
        else cp_fail(&j->g.unread, CP_E_FILESYSTEM_ERROR, "the log cannot be read");
    }
    j->end[k] = j->at[k];
}

/* Reads up to SLICE bytes; false when all has been read. */
static bool read_slice(gather *j) {
    size_t left = SLICE;
    for (int k = 0; k < 2; k++) {
        while (left && j->at[k] < j->end[k]) {
            uint64_t want = j->end[k] - j->at[k], at;
            size_t n =
                cp_output_read(j->g.exec->out[k], j->at[k], want < left ? (size_t)want : left, &j->g.text[k], &at);
            if (!n) {
                cut_short(j, k);
                break;
            }
            j->g.truncated[k] |= at > j->at[k]; /* the oldest were dropped meanwhile */
            j->at[k] = at + n;
            left -= n;
        }
    }
    return j->at[0] < j->end[0] || j->at[1] < j->end[1];
}

static void step(cp_task *t) {
    gather *j = CP_CONTAINER(t, gather, task);
    if (read_slice(j)) {
        cp_loop_post(j->ctx->loop, &j->task, step);
    } else if (j->g.text[0].n + j->g.text[1].n > INLINE_MAX) {
        cp_workers_submit(j->ctx->workers, &j->work, build_run, build_done);
    } else {
        j->build(&j->g, &j->res);
        finish(j);
    }
}

void cp_gather(cp_ctx *ctx, cp_exec *e, cp_exec_view view, cp_gather_build *build, cp_gather_done *done, void *arg) {
    gather *j = cp_new(gather);
    j->g.exec = e;
    j->g.view = view;
    j->ctx = ctx;
    j->build = build;
    j->done = done;
    j->arg = arg;
    cp_exec_ref(e);
    for (int k = 0; k < 2 && e->out[k]; k++) {
        j->g.total[k] = cp_output_total(e->out[k]);
        j->g.truncated[k] = cp_output_truncated(e->out[k]) || cp_output_dropped(e->out[k]) > 0;
        j->at[k] = cp_output_first(e->out[k]);
        j->end[k] = j->g.total[k];
        if (e->kind == CP_EXEC_BUFFERED && j->end[k] - j->at[k] > e->max_output) { /* a durable log may hold more */
            j->end[k] = j->at[k] + e->max_output;
            j->g.truncated[k] = true;
        }
    }
    step(&j->task);
}
