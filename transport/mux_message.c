/* A message from the peer: parsed on the loop when small, on the io pool when large, then told apart by its type. */
#include "transport/mux.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- fields ---- */

static bool is(yyjson_val *key, const char *name, size_t n) {
    const char *text = yyjson_get_str(key);
    return text && yyjson_get_len(key) == n && memcmp(text, name, n) == 0;
}

void mux_read_msg(yyjson_val *root, mux_msg *m) {
    *m = (mux_msg){.root = root};
    size_t i, n;
    yyjson_val *key, *val;
#define FIELD(f)                                                                                                       \
    if (is(key, #f, sizeof #f - 1)) {                                                                                  \
        m->f = val;                                                                                                    \
        continue;                                                                                                      \
    }
    yyjson_obj_foreach(root, i, n, key, val) {
        FIELD(type)
        FIELD(id)
        FIELD(method) FIELD(path) FIELD(body) FIELD(headers) FIELD(kill) FIELD(eof) FIELD(bytes) m->more = true;
    }
#undef FIELD
}

/* The id as JSON text in a form that is the same for equal ids ("\u0061" and "a"), empty when absent; borrowed from the
 * scratch buffer until the next message. */
static cp_str id_text(mux *m, yyjson_val *id) {
    cp_buf *b = &mux_shared_of(m->t)->id;
    cp_buf_reset(b, 4096);
    cp_jw w = cp_jw_on(b);
    if (yyjson_is_str(id)) cp_jw_str(&w, (cp_str){yyjson_get_str(id), yyjson_get_len(id)});
    else if (id) cp_jw_val(&w, id);
    return cp_buf_str(b);
}

size_t mux_id_limit(const mux *m) {
    int64_t limit = m->t->config->max_request_id;
    return limit < MUX_ID_MAX ? (size_t)limit : MUX_ID_MAX;
}

/* ---- by type ---- */

static void invalid(mux *m) {
    mux_refuse_as(m, (cp_str){0}, "INVALID_REQUEST", 400, "Message must be a valid WSRequest");
}

/* cancel, stdin and window must name a request. */
static bool names_request(const mux_msg *msg) { return yyjson_is_str(msg->id) || yyjson_is_num(msg->id); }

static void by_type(mux *m, const mux_msg *msg, yyjson_doc *doc_taken, cp_str text) {
    cp_autodoc yyjson_doc *doc = doc_taken;
    cp_str id = id_text(m, msg->id);
    if (id.n > mux_id_limit(m)) {
        char why[80];
        snprintf(why, sizeof why, "id is longer than %zu bytes", mux_id_limit(m));
        /* whoever waits for this id must hear of it: it is given back as far as a frame may carry it */
        mux_refuse_as(m, id.n <= MUX_ID_MAX ? id : (cp_str){0}, "LIMIT_EXCEEDED", 429, why);
    } else if (yyjson_equals_str(msg->type, "request")) {
        mux_request(m, msg, id, cp_take(doc), text);
    } else if (yyjson_equals_str(msg->type, "hello")) {
        mux_put_hello(m, id);
    } else if (!names_request(msg)) {
        invalid(m);
    } else if (yyjson_equals_str(msg->type, "cancel")) {
        mux_cancel(m, id, yyjson_is_true(msg->kill));
    } else if (yyjson_equals_str(msg->type, "stdin")) {
        mux_stdin(m, msg, id);
    } else if (yyjson_equals_str(msg->type, "window")) {
        mux_window(m, id, msg->bytes);
    } else {
        invalid(m);
    }
}

static unsigned times(yyjson_val *obj, const char *name) {
    unsigned found = 0;
    size_t i, n;
    yyjson_val *key, *val;
    yyjson_obj_foreach(obj, i, n, key, val) {
        (void)val;
        found += yyjson_equals_str(key, name);
    }
    return found;
}

/* A message that is not understood: a key stands twice, in itself or in its body, or it is not parsed. Whoever waits
 * for its id hears of it, unless it is not certain which request it was about. */
static void refuse_unread(mux *m, yyjson_val *root, const cp_err *err) {
    static const char *const about[] = {"cancel", "stdin", "window"};
    mux_msg msg;
    mux_read_msg(root, &msg);
    cp_str id = id_text(m, msg.id);
    if (id.n > MUX_ID_MAX || times(root, "id") > 1 || times(root, "type") > 1) id = (cp_str){0};
    for (size_t i = 0; id.n && i < CP_COUNT(about); i++) {
        if (!yyjson_equals_str(msg.type, about[i])) continue;
        mux_refuse_message(m, id, about[i], err);
        return;
    }
    mux_refuse(m, id, err);
}

void mux_handle(mux *m, yyjson_doc *doc, cp_str text, const cp_err *twice) {
    mux_msg msg;
    yyjson_val *root = yyjson_doc_get_root(doc);
    if (twice->code) {
        refuse_unread(m, root, twice);
        yyjson_doc_free(doc);
    } else if (yyjson_is_obj(root)) {
        mux_read_msg(root, &msg);
        by_type(m, &msg, doc, text);
    } else {
        yyjson_doc_free(doc);
        invalid(m);
    }
    mux_check_full(m);
}

/* What is no JSON is about nothing. Of what is, but cannot be parsed here, the envelope tells. */
static void not_parsed(mux *m, cp_str envelope, const cp_err *err) {
    cp_err none;
    cp_autodoc yyjson_doc *doc = envelope.n ? cp_json_parse_with(envelope, NULL, &none) : NULL;
    if (err->code == CP_E_PARSE_ERROR) mux_refuse_as(m, (cp_str){0}, "PARSE_ERROR", 400, "Invalid JSON message");
    else if (doc) refuse_unread(m, yyjson_doc_get_root(doc), err);
    else mux_refuse(m, (cp_str){0}, err);
    mux_check_full(m);
}

/* ---- small messages: memory from a slab that is good until the next ---- */

static void *slab_malloc(void *ctx, size_t n) {
    struct cp_mux_shared *s = ctx;
    size_t at = (s->slab_used + 15) & ~(size_t)15;
    if (n > MUX_SLAB || at > MUX_SLAB - n) return NULL;
    s->slab_used = at + n;
    s->slab_last = s->slab + at;
    return s->slab_last;
}

static void *slab_realloc(void *ctx, void *p, size_t old, size_t n) {
    struct cp_mux_shared *s = ctx;
    if (p == s->slab_last) {
        size_t at = (size_t)(s->slab_last - s->slab);
        if (n > MUX_SLAB - at) return NULL;
        s->slab_used = at + n;
        return p;
    }
    void *q = slab_malloc(ctx, n);
    if (q) memcpy(q, p, old < n ? old : n);
    return q;
}

static void slab_free(void *ctx, void *p) { (void)ctx, (void)p; }

/* *again: the document lives in the slab, so what outlasts the call must be parsed once more. */
static yyjson_doc *parse_small(mux *m, cp_str text, bool *again, cp_err *err) {
    struct cp_mux_shared *s = mux_shared_of(m->t);
    *again = text.n <= MUX_SLAB_PARSE;
    if (!*again) return cp_json_read(text, err);
    yyjson_alc alc = {slab_malloc, slab_realloc, slab_free, s};
    s->slab_used = 0;
    s->slab_last = NULL;
    yyjson_doc *doc = cp_json_parse_with(text, &alc, err);
    if (doc || err->code != CP_E_INTERNAL_ERROR) return doc;
    *again = false;
    return cp_json_read(text, err);
}

/* ---- large messages: on the pool ---- */

typedef struct mux_job {
    cp_work work;
    struct mux_job *next, **link; /* in the queue; link: what points to it, NULL once it is with the pool */
    struct cp_mux_shared *shared;
    mux *m; /* NULL: the connection has gone */
    cp_buf text, envelope;
    yyjson_doc *doc;
    cp_err err;
    size_t cost;
    cp_charge charge; /* for text */
    uint64_t client;
} mux_job;

static void job_run(cp_work *w) {
    mux_job *j = CP_CONTAINER(w, mux_job, work);
    j->doc = cp_json_read(cp_buf_str(&j->text), &j->err);
    if (j->doc) cp_json_unique(j->doc, &j->err);
    else if (j->err.code != CP_E_PARSE_ERROR) mux_envelope(cp_buf_str(&j->text), &j->envelope);
    cp_buf_free(&j->text);
    cp_charge_free(&j->charge);
}

static void job_free(mux_job *j) {
    cp_buf_free(&j->text);
    cp_buf_free(&j->envelope);
    cp_charge_free(&j->charge);
    yyjson_doc_free(j->doc);
    free(j);
}

static void job_done(cp_work *w);

/* One always may: what then has no room in the memory budget is refused. */
static bool may_parse(const struct cp_mux_shared *s, const mux_job *j) {
    size_t most = (size_t)s->t->config->memory_budget / 2;
    return !s->parsing || (s->parsing + j->cost <= most && !cp_budget_tight(CP_MEM_JSON));
}

static void dequeue(mux_job *j) {
    *j->link = j->next;
    if (j->next) j->next->link = j->link;
    else j->shared->queue_tail = j->link;
    j->link = NULL;
}

static void start_jobs(struct cp_mux_shared *s) {
    for (mux_job *j; (j = s->queue) && may_parse(s, j);) {
        dequeue(j);
        s->parsing += j->cost;
        cp_workers_submit_to(s->t->workers, CP_LANE_COMPUTE, j->client, &j->work, job_run, job_done);
    }
}

static void job_done(cp_work *w) {
    mux_job *j = CP_CONTAINER(w, mux_job, work);
    mux *m = j->m;
    j->shared->parsing -= j->cost;
    start_jobs(j->shared);
    if (m) {
        m->job = NULL;
        if (j->doc) mux_handle(m, cp_take(j->doc), (cp_str){0}, &j->err);
        else not_parsed(m, cp_buf_str(&j->envelope), &j->err);
    }
    job_free(j);
}

static void parse_large(mux *m) {
    struct cp_mux_shared *s = mux_shared_of(m->t);
    mux_job *j = cp_new(mux_job);
    j->shared = s;
    j->m = m;
    j->client = CP_OWNER_CLIENTS + cp_ws_id(m->ws) * 2;
    cp_ws_take(m->ws, &j->text);
    j->cost = j->text.n * MUX_PARSE_COST;
    j->charge.kind = CP_MEM_BODIES;
    cp_charge_force(&j->charge, j->text.cap);
    m->job = j;
    j->link = s->queue_tail;
    *s->queue_tail = j;
    s->queue_tail = &j->next;
    start_jobs(s);
    mux_check_full(m);
}

void mux_job_abandon(mux *m) {
    mux_job *j = m->job;
    if (!j) return;
    m->job = NULL;
    j->m = NULL;
    if (!j->link) return; /* it runs, and frees itself when done */
    dequeue(j);
    job_free(j);
}

void mux_on_message(cp_ws *ws, bool binary, char *p, size_t n) {
    (void)binary; /* the SDK sends text, others binary: both are JSON */
    mux *m = cp_ws_data(ws);
    cp_str text = {p, n};
    cp_err err = {0};
    bool again;
    if (n > MUX_INLINE_PARSE) {
        parse_large(m);
        return;
    }
    yyjson_doc *doc = parse_small(m, text, &again, &err);
    if (doc) cp_json_unique(doc, &err);
    if (doc) mux_handle(m, doc, again ? text : (cp_str){0}, &err);
    else {
        cp_autobuf cp_buf envelope = {0};
        mux_envelope(text, &envelope);
        not_parsed(m, cp_buf_str(&envelope), &err);
    }
}
