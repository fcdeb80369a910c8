/* {"type":"stdin"}: input for a request in flight, and the receipts that its sender asked for. */
#include "transport/mux.h"

#include <stdlib.h>

/* Outlives its request, and its connection: the command keeps it until its pipe has taken the piece. */
struct mux_ack {
    cp_stdin_ack base;
    mux *m; /* NULL: nobody waits for it any more; then it is in no list */
    pend *p;
    size_t bytes;
    struct mux_ack **prev, *next; /* of the request */
};

static void unlink_ack(struct mux_ack *a) {
    *a->prev = a->next;
    if (a->next) a->next->prev = a->prev;
    a->m = NULL;
}

static void on_taken(cp_stdin_ack *base) {
    struct mux_ack *a = CP_CONTAINER(base, struct mux_ack, base);
    if (a->m) {
        if (!a->m->closing) mux_put_taken(a->m, pend_id(a->p), a->bytes);
        unlink_ack(a);
    }
    free(a);
}

void mux_forget_acks(pend *p) {
    while (p->acks) unlink_ack(p->acks);
}

static struct mux_ack *new_ack(mux *m, pend *p, size_t bytes) {
    struct mux_ack *a = cp_new(struct mux_ack);
    *a = (struct mux_ack){.base.taken = on_taken, .m = m, .p = p, .bytes = bytes, .prev = &p->acks, .next = p->acks};
    if (a->next) a->next->prev = &a->next;
    p->acks = a;
    return a;
}

static int stdin_text(mux *m, const mux_msg *msg, cp_str *data, cp_err *err) {
    static const char *const words[] = {"utf-8", "text", "utf8", "base64", NULL};
    int encoding = 0;
    if (cp_json_str(msg->root, "data", !yyjson_is_true(msg->eof), data, err) < 0) return -1;
    if (cp_json_enum(msg->root, "encoding", words, &encoding, err) < 0) return -1;
    if (encoding != 3) return 0;
    cp_buf *b = &mux_shared_of(m->t)->text;
    cp_buf_reset(b, 64 * 1024);
    if (cp_room(b, data->n, err) < 0) return -1;
    if (cp_base64_decode(b, *data) < 0) return cp_fail_field(err, "data", "data is not base64");
    *data = cp_buf_str(b);
    return 0;
}

/* The request that the input is for. NULL with *err. */
static pend *fed_request(mux *m, cp_str id, cp_err *err) {
    pend *p = pend_find(&m->table, id);
    if (p && p->state == PEND_WAITING) { /* its turn comes with its input: the client cannot know of turns */
        mux_run_now(m, p);
        p = pend_find(&m->table, id);
    }
    if (!p) cp_fail(err, CP_E_NOT_FOUND, "No request with this id is in flight");
    else if (p->state == PEND_STREAMING ? !p->src->ops->on_stdin : p->state != PEND_RUNNING || !p->reply.on_stdin)
        cp_fail(err, CP_E_NOT_SUPPORTED, "This request takes no input"), p = NULL;
    return p;
}

static int feed(mux *m, const mux_msg *msg, cp_str id, cp_err *err) {
    bool eof = false, want_ack = false;
    cp_str data = CP_STR("");
    if (cp_json_bool(msg->root, "eof", &eof, err) < 0 || cp_json_bool(msg->root, "ack", &want_ack, err) < 0 ||
        stdin_text(m, msg, &data, err) < 0)
        return -1;
    pend *p = fed_request(m, id, err);
    if (!p) return -1;
    struct mux_ack *a = want_ack ? new_ack(m, p, data.n) : NULL;
    cp_stdin_ack *ack = a ? &a->base : NULL;
    int rc = p->state == PEND_STREAMING ? p->src->ops->on_stdin(p->src, data, eof, ack, err)
                                        : p->reply.on_stdin(&p->reply, data, eof, ack, err);
    if (rc < 0 && a) {
        unlink_ack(a);
        free(a);
    }
    return rc;
}

void mux_stdin(mux *m, const mux_msg *msg, cp_str id) {
    cp_err err = {0};
    if (feed(m, msg, id, &err) < 0) mux_refuse_message(m, id, "stdin", &err);
}
