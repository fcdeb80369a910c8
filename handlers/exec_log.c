#include "handlers/exec_log.h"

#include <stdlib.h>

#include "base/utf8.h"
#include "handlers/reply.h"

enum { DEFAULT_LIMIT = 64 << 10, MAX_LIMIT = 1 << 20 };
#define MAX_OFFSET 9007199254740991

static const char *const parameters[] = {"stream", "from", "limit", "encoding", NULL};

bool cp_exec_log_wanted(const cp_request *req) {
    cp_str raw;
    for (int i = 0; parameters[i]; i++)
        if (cp_request_query(req, parameters[i], &raw)) return true;
    return false;
}

/* One of two words; *out keeps its value when absent. */
static int param_word(const cp_request *req, const char *name, const char *const words[2], int *out, cp_err *err) {
    cp_autobuf cp_buf text = {0};
    int got = cp_request_param(req, name, &text, err);
    if (got <= 0) return got;
    for (int i = 0; i < 2; i++) {
        if (!cp_str_is(cp_buf_str(&text), words[i])) continue;
        *out = i;
        return 1;
    }
    return cp_fail_field(err, name, "%s must be %s or %s", name, words[0], words[1]);
}

typedef struct piece {
    int stream, base64;
    uint64_t from, limit, total, at;
    cp_buf data;
    cp_reply *reply;
    cp_exec *exec;
    cp_fetch fetch;
} piece;

static int read_params(const cp_request *req, piece *p, cp_err *err) {
    static const char *const streams[] = {"stdout", "stderr"}, *const encodings[] = {"utf-8", "base64"};
    p->limit = DEFAULT_LIMIT;
    if (cp_request_only(req, parameters, err) < 0 || param_word(req, "stream", streams, &p->stream, err) < 0 ||
        param_word(req, "encoding", encodings, &p->base64, err) < 0 ||
        cp_request_param_u64(req, "from", MAX_OFFSET, &p->from, err) < 0 ||
        cp_request_param_u64(req, "limit", MAX_OFFSET, &p->limit, err) < 0)
        return -1;
    if (p->limit == 0) return cp_fail_field(err, "limit", "limit must be at least 1");
    if (p->limit > MAX_LIMIT) p->limit = MAX_LIMIT;
    return 0;
}

static void piece_free(piece *p) {
    cp_fetch_cancel(&p->fetch);
    cp_buf_free(&p->data);
    cp_exec_unref(p->exec);
    free(p);
}

static void answer(piece *p) {
    const cp_output *o = p->exec->out[p->stream];
    cp_reply *reply = p->reply;
    cp_result res = {0};
    cp_jw w = cp_success_begin(&res);
    cp_jw_kz(&w, "stream", p->stream ? "stderr" : "stdout");
    cp_jw_ku64(&w, "from", p->from);
    cp_jw_key(&w, "data");
    if (p->base64) cp_jw_base64(&w, p->data.p, p->data.n);
    else cp_jw_str(&w, cp_buf_str(&p->data));
    cp_jw_kz(&w, "encoding", p->base64 ? "base64" : "utf-8");
    cp_jw_ku64(&w, "next", p->at + p->data.n);
    cp_jw_ku64(&w, "total", p->total);
    cp_jw_ku64(&w, "dropped", p->at > p->from ? p->at - p->from : 0);
    cp_jw_kbool(&w, "ended", o ? cp_output_ended(o) : true);
    if (w.lossy) cp_jw_kbool(&w, "lossy", true);
    cp_success_end(&w);
    piece_free(p);
    reply->on_cancel = NULL;
    cp_reply_send(reply, &res);
}

static void refuse(piece *p, const cp_err *err) {
    cp_reply *reply = p->reply;
    piece_free(p);
    reply->on_cancel = NULL;
    cp_reply_error(reply, err, NULL, (cp_str){0});
}

/* An unfinished UTF-8 sequence waits for its rest: it is left for the next piece, unless nothing else would be given.
 * Where nothing is kept behind the offset, all the rest has been dropped, and is said to be, or nobody would get past.
 */
static void cut_piece(const cp_output *o, piece *p) {
    size_t n = p->data.n;
    if (!n) {
        p->at = cp_output_total(o);
        return;
    }
    bool last = cp_output_ended(o) && p->at + n >= cp_output_total(o);
    size_t tail = p->base64 || last ? 0 : cp_utf8_tail(p->data.p, n);
    if (tail < n || n < p->limit) p->data.n -= tail;
}

static void read_piece(piece *p) {
    cp_err err = {0};
    cp_output *o = p->exec->out[p->stream];
    p->total = o ? cp_output_total(o) : 0;
    p->at = p->from > p->total ? p->total : p->from; /* beyond the end: nothing yet, and where the end is */
    if (o && p->from < p->total) {
        size_t n = cp_output_get(o, &p->fetch, p->from, (size_t)p->limit, &p->data, &p->at);
        if (cp_fetch_waits(&p->fetch)) return;
        if (!n && cp_output_waits(o)) {
            cp_fail(&err, CP_E_TOO_MANY_FILES, "the log cannot be opened at this moment");
            refuse(p, &err);
            return;
        }
        cut_piece(o, p);
    }
    answer(p);
}

static void on_fetched(cp_fetch *f) { read_piece(CP_CONTAINER(f, piece, fetch)); }

static bool on_cancel(cp_reply *reply, cp_end why, bool kill) {
    (void)why, (void)kill;
    piece_free(reply->handler);
    return false;
}

void cp_exec_log(const cp_request *req, cp_exec *e, cp_reply *reply) {
    piece *p = cp_new(piece);
    cp_err err = {0};
    p->reply = reply;
    p->exec = e;
    p->fetch.done = on_fetched;
    cp_exec_ref(e);
    reply->handler = p;
    reply->on_cancel = on_cancel;
    if (read_params(req, p, &err) < 0) refuse(p, &err);
    else read_piece(p);
}
