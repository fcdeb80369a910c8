/* Makes an answer from what an execution has printed. Logs belong to the loop: what memory or page cache has of them is
 * copied in pieces of 1 MiB, one a round, which keeps other connections moving, and a thread reads what the disk has to
 * bring (services/output_fetch.c). Escaping them, and writing them to a file where memory has no room, is the io
 * pool's; what is short is made on the loop at once.
 *
 * Life: begin → for each text: read a piece (loop), write it (pool), until it is over → end → done (loop). One that is
 * cancelled ends there; a piece that is being written is let go of when it is. */
#include <stdlib.h>

#include "base/escape.h"
#include "base/metrics.h"
#include "base/utf8.h"
#include "handlers/exec_result.h"

enum { SLICE = 1 << 20, INLINE_MAX = 256 << 10, MOST = 8 };

typedef struct cp_gathering gather;

struct cp_gathering {
    struct cp_gathering *next, **link; /* of those that wait for their turn; link: what points to it */
    cp_gathered g;
    cp_ctx *ctx;
    uint64_t at[2], end[2];
    const cp_gather_form *form;
    cp_gather_done *done;
    void *arg;
    int text;     /* the one being written; 2: both are */
    bool begun;   /* of that text: its key and quote are written */
    bool on_loop; /* it is short: no pool, unless memory has no room for it */
    bool waits;   /* for its turn */
    bool posted;  /* `task` is */
    bool cancelled;
    cp_buf piece; /* what was read of it; in front of that what the former piece could not settle */
    size_t left;  /* so much more may be read into this piece */
    cp_fetch fetch;
    cp_spool out;
    cp_jw w;
    cp_err err;
    cp_result res;
    cp_task task;
    cp_work work;
};

/* Each long one holds a piece that nobody counts: so many at a time. Loop thread. */
static struct {
    gather *head, **tail;
    unsigned active;
} turns;

/* ---- one piece of a text ---- */

static bool drop_nuls(cp_buf *b) {
    char *p = b->n ? memchr(b->p, 0, b->n) : NULL;
    if (!p) return false;
    char *o = p;
    for (const char *end = b->p + b->n; p < end; p++)
        if (*p) *o++ = *p;
    b->n = (size_t)(o - b->p);
    return true;
}

/* A session's text as the reference gives it: exactly one trailing newline is removed, NULs vanish. */
static bool session_text(const gather *j) { return j->g.exec->session && !j->g.view.base64 && !j->form->exact; }

/* Bytes at the end that only the next piece can tell the meaning of. */
static size_t unsettled(const gather *j, bool last) {
    const cp_buf *b = &j->piece;
    bool newline = b->n && b->p[b->n - 1] == '\n' && session_text(j);
    if (newline) return 1; /* of the last piece: that is the one which is removed */
    if (last) return 0;
    return j->g.view.base64 ? b->n % 3 : cp_utf8_tail(b->p, b->n);
}

static void write_piece(gather *j, bool last) {
    static const char *const keys[] = {"stdout", "stderr"};
    if (!j->begun) {
        cp_jw_key(&j->w, keys[j->text]);
        cp_buf_addc(j->w.out, '"');
        j->begun = true;
    }
    if (j->g.view.plain && session_text(j) && drop_nuls(&j->piece)) j->g.lossy = true;
    size_t rest = unsettled(j, last), n = j->piece.n - rest;
    if (!j->on_loop && cp_spool_room(&j->out, CP_ESCAPED_MAX(n), &j->err) < 0) return;
    if (j->g.view.base64) cp_base64_encode(j->w.out, j->piece.p, n);
    else if (n && !cp_escape(j->w.out, (cp_str){j->piece.p, n}, 1)) j->g.lossy = true;
    cp_buf_consume(&j->piece, n);
    if (!last) return;
    cp_buf_addc(j->w.out, '"');
    j->w.comma = true;
    cp_buf_clear(&j->piece);
    j->begun = false;
    j->text++;
}

/* ---- the whole ---- */

static void begin(gather *j) {
    if (!j->form->begin(&j->g, &j->res, &j->w)) j->text = 2;
}

/* The last step: false when it must be done on the pool, because a file is needed. */
static bool end(gather *j, bool may_block) {
    if (j->form->refuse && j->form->refuse(&j->g, &j->res)) return true;
    j->form->end(&j->g, &j->res, &j->w);
    if (!may_block && !cp_spool_fits(&j->out)) return false;
    cp_result_spooled(&j->res, &j->out, &j->err);
    return true;
}

static void step(gather *j);

static void gather_free(gather *j) {
    cp_metric_add(CP_M_GATHERS, -1);
    cp_fetch_cancel(&j->fetch);
    cp_result_free(&j->res);
    cp_spool_free(&j->out);
    cp_buf_free(&j->piece);
    cp_exec_unref(j->g.exec);
    free(j);
}

static void turn_came(cp_task *t) {
    gather *j = CP_CONTAINER(t, gather, task);
    j->posted = false;
    step(j);
}

static void leave_queue(gather *j) {
    *j->link = j->next;
    if (j->next) j->next->link = j->link;
    else turns.tail = j->link;
    j->waits = false;
}

static void next_turn(void) {
    turns.active--;
    gather *j = turns.head;
    if (!j) return;
    turns.active++;
    leave_queue(j);
    j->posted = true;
    cp_loop_post(j->ctx->loop, &j->task, turn_came);
}

static void await_turn(gather *j) {
    if (turns.active < MOST) {
        turns.active++;
        step(j);
        return;
    }
    if (!turns.head) turns.tail = &turns.head;
    j->link = turns.tail;
    *turns.tail = j;
    turns.tail = &j->next;
    j->waits = true;
}

static void finish(gather *j) {
    if (!j->on_loop) next_turn();
    cp_gather_done *done = j->done;
    void *arg = j->arg;
    if (j->err.code) {
        cp_result_free(&j->res);
        cp_error_result(&j->res, &j->err, NULL, (cp_str){0});
    }
    cp_result res = cp_take(j->res);
    gather_free(j);
    done(arg, &res);
}

static void drop(gather *j) {
    if (!j->on_loop) next_turn();
    gather_free(j);
}

void cp_gather_cancel(gather *j) {
    if (!j) return;
    j->cancelled = true;
    if (j->waits) {
        leave_queue(j);
        gather_free(j);
    } else if (!j->posted && (!j->work.pool || cp_workers_withdraw(&j->work))) {
        drop(j);
    } /* else its next step does it */
}

/* ---- reading, on the loop ---- */

/* The disk took none of it, or its file is gone: that is no empty log. */
static void look_for(gather *j, int k) {
    const cp_output *o = j->g.exec->out[k];
    if (cp_output_kept(o) || !cp_output_total(o) || j->g.exec->kind == CP_EXEC_BUFFERED) return;
    cp_fail(&j->g.unread, CP_E_FILESYSTEM_ERROR, "the log could not be kept: its %llu bytes are not there any more",
            (unsigned long long)cp_output_total(o));
}

/* Nothing came: all that is left was beyond the budget, or the log cannot be read. */
static void cut_short(gather *j, int k) {
    const cp_output *o = j->g.exec->out[k];
    j->g.truncated[k] = true;
    if (j->at[k] < cp_output_end(o) && !j->g.unread.code) {
        if (cp_output_waits(o)) cp_fail(&j->g.unread, CP_E_TOO_MANY_FILES, "the log cannot be opened at this moment");
        else cp_fail(&j->g.unread, CP_E_FILESYSTEM_ERROR, "the log cannot be read");
    }
    j->g.missing[k] += j->end[k] - j->at[k];
    j->end[k] = j->at[k];
}

/* Reads up to SLICE bytes of the text whose turn it is. False: the disk has to bring them first. */
static bool read_piece(gather *j) {
    int k = j->text;
    if (!j->left) j->left = SLICE;
    while (j->left && j->at[k] < j->end[k]) {
        uint64_t want = j->end[k] - j->at[k], at;
        size_t n = cp_output_get(j->g.exec->out[k], &j->fetch, j->at[k], want < j->left ? (size_t)want : j->left,
                                 &j->piece, &at);
        if (cp_fetch_waits(&j->fetch)) return false;
        if (!n) {
            cut_short(j, k);
            break;
        }
        j->g.truncated[k] |= at > j->at[k]; /* the oldest were dropped meanwhile */
        j->g.missing[k] += at - j->at[k];
        j->at[k] = at + n;
        j->left -= n;
    }
    j->left = 0;
    return true;
}

static bool read_all(const gather *j) { return j->at[j->text] >= j->end[j->text]; }

/* ---- steps ---- */

static void end_run(cp_work *w) {
    gather *j = CP_CONTAINER(w, gather, work);
    cp_result_spooled(&j->res, &j->out, &j->err);
}

static void end_done(cp_work *w) {
    gather *j = CP_CONTAINER(w, gather, work);
    if (j->cancelled) drop(j);
    else finish(j);
}

static void piece_run(cp_work *w) {
    gather *j = CP_CONTAINER(w, gather, work);
    write_piece(j, read_all(j));
    if (j->err.code || cp_spool_settle(&j->out, &j->err) < 0) return;
    if (j->text == 2) end(j, true);
}

static void piece_done(cp_work *w) {
    gather *j = CP_CONTAINER(w, gather, work);
    if (j->cancelled) drop(j);
    else if (j->err.code || j->text == 2) finish(j);
    else step(j);
}

static void on_fetched(cp_fetch *f) { step(CP_CONTAINER(f, gather, fetch)); }

static void step(gather *j) {
    if (j->cancelled) {
        drop(j);
        return;
    }
    for (bool more = true; more && j->text < 2; more = j->on_loop) {
        if (!read_piece(j)) return;
        if (j->on_loop) write_piece(j, read_all(j));
    }
    if (j->text < 2)
        cp_workers_submit_to(j->ctx->workers, CP_LANE_COMPUTE, CP_OWNER_ANYONE, &j->work, piece_run, piece_done);
    else if (end(j, false)) finish(j);
    else cp_workers_submit_to(j->ctx->workers, CP_LANE_COMPUTE, CP_OWNER_ANYONE, &j->work, end_run, end_done);
}

gather *cp_gather_new(cp_ctx *ctx, cp_exec *e, cp_exec_view view, const cp_gather_form *form, cp_gather_done *done,
                      void *arg) {
    gather *j = cp_new(gather);
    cp_metric_add(CP_M_GATHERS, 1);
    j->fetch.done = on_fetched;
    j->g.exec = e;
    j->g.view = view;
    j->ctx = ctx;
    j->form = form;
    j->done = done;
    j->arg = arg;
    j->out.charge.kind = CP_MEM_RESULTS;
    j->w = cp_jw_on(&j->out.mem);
    cp_exec_ref(e);
    uint64_t n = 0;
    for (int k = 0; k < 2 && e->out[k]; k++) {
        j->g.total[k] = cp_output_total(e->out[k]);
        look_for(j, k);
        j->g.truncated[k] = cp_output_truncated(e->out[k]) || cp_output_dropped(e->out[k]) > 0;
        j->at[k] = cp_output_first(e->out[k]);
        j->g.missing[k] = j->at[k];
        j->end[k] = j->g.total[k];
        if (e->kind == CP_EXEC_BUFFERED && j->end[k] - j->at[k] > e->max_output) { /* a durable log may hold more */
            j->end[k] = j->at[k] + e->max_output;
            j->g.truncated[k] = true;
        }
        n += j->end[k] - j->at[k];
    }
    j->on_loop = n <= INLINE_MAX && cp_charge_set(&j->out.charge, n, NULL) == 0;
    return j;
}

void cp_gather_start(gather *j) {
    begin(j);
    if (j->on_loop) step(j);
    else await_turn(j);
}
