#include "handlers/rows.h"

#include "base/clock.h"
#include "handlers/reply.h"

enum { ROUND_US = 500, MOST = 4 };

/* Each of them holds what it has written: so many at a time. Loop thread. */
static struct {
    cp_rows *head, **tail;
    unsigned active;
} turns;

static void next_round(cp_task *t);

static void start(cp_rows *r) {
    r->w = cp_success_begin(&r->res);
    cp_jw_key(&r->w, r->ops->key);
    cp_jw_arr(&r->w);
    if (r->ops->begin) r->ops->begin(r);
}

static void leave_queue(cp_rows *r) {
    *r->link = r->next;
    if (r->next) r->next->link = r->link;
    else turns.tail = r->link;
    r->waits = false;
}

/* The one that has waited longest begins in a round of its own. */
static void pass_turn(void) {
    cp_rows *r = turns.head;
    if (!r) {
        turns.active--;
        return;
    }
    leave_queue(r);
    start(r);
    cp_loop_post(r->ctx->loop, &r->task, next_round);
}

static void over(cp_rows *r) {
    cp_result_free(&r->res);
    r->ops->free(r);
    pass_turn();
}

static void answer(cp_rows *r) {
    cp_reply *reply = r->reply;
    cp_jw_end_arr(&r->w);
    cp_success_end(&r->w);
    cp_result res = cp_take(r->res);
    over(r);
    reply->on_cancel = NULL;
    cp_reply_send(reply, &res);
}

static void refuse(cp_rows *r, const cp_err *err) {
    cp_reply *reply = r->reply;
    over(r);
    reply->on_cancel = NULL;
    cp_reply_error(reply, err, NULL, (cp_str){0});
}

static void write_some(cp_rows *r) {
    cp_err err = {0};
    uint64_t until = cp_now_us() + ROUND_US;
    bool more;
    do more = r->ops->row(r, &r->w);
    while (more && cp_now_us() < until);
    size_t n = r->res.body.n;
    r->res.charge.kind = CP_MEM_RESULTS;
    if (n > CP_BUDGET_SMALL && cp_charge_set(&r->res.charge, n, &err) < 0) refuse(r, &err);
    else if (more) cp_loop_post(r->ctx->loop, &r->task, next_round);
    else answer(r);
}

static void next_round(cp_task *t) {
    cp_rows *r = CP_CONTAINER(t, cp_rows, task);
    if (r->reply) write_some(r);
    else over(r);
}

static bool on_cancel(cp_reply *reply, cp_end why, bool kill) {
    (void)why, (void)kill;
    cp_rows *r = reply->handler;
    r->reply = NULL;
    if (!r->waits) return false; /* its next round ends it */
    leave_queue(r);
    r->ops->free(r);
    return false;
}

void cp_rows_answer(cp_rows *r, const cp_rows_ops *ops, cp_ctx *ctx, cp_reply *reply) {
    r->ops = ops;
    r->ctx = ctx;
    r->reply = reply;
    reply->handler = r;
    reply->on_cancel = on_cancel;
    if (turns.active < MOST) {
        turns.active++;
        start(r);
        write_some(r);
        return;
    }
    if (!turns.head) turns.tail = &turns.head;
    r->link = turns.tail;
    *turns.tail = r;
    turns.tail = &r->next;
    r->waits = true;
}
