/* The error of a wait for a process that came to nothing: with the last bytes of what it printed, which a disk may have
 * to bring. */
#include <stdlib.h>

#include "handlers/exec_result.h"
#include "handlers/process.h"
#include "handlers/reply.h"

enum { TAIL = 4096 };

typedef struct tail_call {
    cp_reply *reply;
    cp_exec *exec;
    cp_err err;
    const char *word;
    unsigned timeout_ms;
    int stream; /* the one whose turn it is; 2: both are read */
    cp_fetch fetch;
    cp_buf text[2];
} tail_call;

static void tail_free(tail_call *t) {
    cp_fetch_cancel(&t->fetch);
    for (int k = 0; k < 2; k++) cp_buf_free(&t->text[k]);
    cp_exec_unref(t->exec);
    free(t);
}

static void answer(tail_call *t) {
    const cp_exec *e = t->exec;
    cp_autobuf cp_buf context = {0};
    cp_jw j = cp_jw_on(&context);
    cp_jw_obj(&j);
    cp_jw_kz(&j, "processId", e->process_id);
    cp_jw_kz(&j, "for", t->word);
    if (cp_exec_over(e)) {
        if (e->exit_code >= 0) cp_jw_ki64(&j, "exitCode", e->exit_code);
        if (e->state == CP_STATE_ENDED) cp_jw_kz(&j, "outcome", cp_outcome_name(e->outcome));
        cp_jw_kstr(&j, "stdout", cp_buf_str(&t->text[0]));
        cp_jw_kstr(&j, "stderr", cp_buf_str(&t->text[1]));
    } else {
        cp_jw_ku64(&j, "timeoutMs", t->timeout_ms);
    }
    cp_jw_end_obj(&j);
    t->reply->on_cancel = NULL;
    cp_reply_error(t->reply, &t->err, NULL, cp_buf_str(&context));
    tail_free(t);
}

static void read_tails(tail_call *t) {
    for (; t->stream < 2; t->stream++) {
        cp_output *o = t->exec->out[t->stream];
        uint64_t total = o ? cp_output_total(o) : 0, at;
        if (!o) continue;
        cp_output_get(o, &t->fetch, total > TAIL ? total - TAIL : 0, TAIL, &t->text[t->stream], &at);
        if (cp_fetch_waits(&t->fetch)) return;
    }
    answer(t);
}

static void on_fetched(cp_fetch *f) { read_tails(CP_CONTAINER(f, tail_call, fetch)); }

static bool on_cancel(cp_reply *reply, cp_end why, bool kill) {
    (void)why, (void)kill;
    tail_free(reply->handler);
    return false;
}

void cp_process_not_ready(cp_reply *reply, cp_exec *e, const cp_err *err, const char *word, unsigned timeout_ms) {
    tail_call *t = cp_new(tail_call);
    *t = (tail_call){.reply = reply, .exec = e, .err = *err, .word = word, .timeout_ms = timeout_ms};
    t->fetch.done = on_fetched;
    cp_exec_ref(e);
    reply->handler = t;
    reply->on_cancel = on_cancel;
    if (!cp_exec_over(e)) t->stream = 2;
    read_tails(t);
}
