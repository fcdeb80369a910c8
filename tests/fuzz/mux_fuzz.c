/* Messages on the multiplexed WebSocket, from a peer that says anything: requests, cancels, input, windows. What comes
 * back is always JSON of a known type; no id is answered more often than it was asked; and when the peer has gone
 * nothing of it is left. Input: messages, one a line, put into frames. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/metrics.h"
#include "component/router_stub.h"
#include "transport/mux.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HELD = 64, MESSAGES = 48 };

static void require(bool ok) {
    if (!ok) abort();
}

/* ---- routes: at once, later, as a stream, after input ---- */

static cp_reply *held[HELD];
static unsigned nheld, streams;

static int at_once(cp_ctx *ctx, const cp_request *rq, cp_result *res, cp_err *err) {
    (void)ctx, (void)err;
    require(rq->priority <= 7 && rq->nheaders <= MUX_HEADERS && rq->deadline_ms <= INT32_MAX);
    res->status = 200;
    cp_jw w = cp_jw_on(&res->body);
    cp_jw_obj(&w);
    cp_jw_kstr(&w, "query", rq->query);
    cp_jw_end_obj(&w);
    return 0;
}

static bool on_cancel(cp_reply *r, cp_end why, bool kill) {
    (void)why, (void)kill;
    for (unsigned i = 0; i < nheld; i++)
        if (held[i] == r) held[i] = NULL;
    return false;
}

static int on_stdin(cp_reply *r, cp_str data, bool eof, cp_stdin_ack *ack, cp_err *err) {
    (void)r;
    if (cp_str_is(data, "bad")) return cp_fail(err, CP_E_PROCESS_ERROR, "stdin is closed");
    require(data.n == 0 || data.p);
    if (ack) ack->taken(ack);
    if (!eof) return 0;
    on_cancel(r, CP_END_DONE, false);
    cp_result res = {.status = 200};
    cp_buf_addz(&res.body, "{}");
    cp_reply_send(r, &res);
    return 0;
}

static void later(cp_ctx *ctx, const cp_request *rq, cp_reply *reply) {
    (void)ctx, (void)rq;
    cp_result res = {.status = 200};
    if (nheld == HELD) {
        cp_buf_addz(&res.body, "null");
        cp_reply_send(reply, &res);
        return;
    }
    reply->on_cancel = on_cancel;
    reply->on_stdin = on_stdin;
    held[nheld++] = reply;
}

typedef struct feed {
    cp_source src;
    unsigned left;
} feed;

static cp_pull pull(cp_source *s, size_t budget, cp_event *ev) {
    feed *f = CP_CONTAINER(s, feed, src);
    require(budget > 0);
    if (!f->left) return CP_PULL_WAIT; /* for ever */
    f->left--;
    cp_jw_obj(&ev->w);
    cp_jw_kz(&ev->w, "data", "abc");
    cp_jw_end_obj(&ev->w);
    return CP_PULL_EVENT;
}

static void closed(cp_source *s, cp_end why, bool kill) {
    (void)why, (void)kill;
    streams--;
    free(CP_CONTAINER(s, feed, src));
}

static void stream(cp_ctx *ctx, const cp_request *rq, cp_reply *reply) {
    static const cp_source_ops ops = {.pull = pull, .close = closed};
    (void)ctx, (void)rq;
    feed *f = cp_new(feed);
    f->src.ops = &ops;
    f->left = 3;
    streams++;
    cp_reply_stream(reply, &f->src);
}

const cp_route test_routes[] = {
    {CP_GET, "/o", CP_R_INLINE, "o", at_once, NULL, NULL},
    {CP_POST, "/o", CP_R_INLINE, "o", at_once, NULL, NULL},
    {CP_POST, "/l", CP_R_LOOP, "l", NULL, later, NULL},
    {CP_POST, "/s", CP_R_LOOP | CP_R_LASTS, "s", NULL, stream, NULL},
};
const size_t test_nroutes = CP_COUNT(test_routes);

struct cp_router {
    int none;
};

void cp_router_call(cp_router *r, const cp_match *m, cp_request *rq, cp_result *res) {
    cp_err err = {0};
    (void)r;
    if (!m->route) cp_router_refuse(m, res);
    else require(m->route->sync(NULL, rq, res, &err) == 0);
}

void cp_router_dispatch(cp_router *r, const cp_match *m, cp_request *rq, yyjson_doc *doc, cp_reply *reply) {
    (void)r;
    m->route->async(NULL, rq, reply);
    yyjson_doc_free(doc);
}

void cp_router_count(cp_router *r, unsigned index, int status, uint64_t us) {
    (void)r, (void)us;
    require(index <= test_nroutes && status >= 100 && status < 600);
}

/* ---- what was asked, and what came back ---- */

typedef struct asked {
    cp_buf id; /* as JSON text */
    unsigned requests, answers;
} asked;

static asked book[MESSAGES];
static size_t nbook;

static void id_text(yyjson_val *id, cp_buf *out) {
    cp_jw w = cp_jw_on(out);
    if (id) cp_jw_val(&w, id);
}

static asked *entry(yyjson_val *id, bool make) {
    cp_autobuf cp_buf text = {0};
    id_text(id, &text);
    for (size_t i = 0; i < nbook; i++)
        if (cp_str_eq(cp_buf_str(&book[i].id), cp_buf_str(&text))) return &book[i];
    if (!make) return NULL;
    require(nbook < MESSAGES);
    book[nbook] = (asked){.id = cp_take(text)};
    return &book[nbook++];
}

/* Of a message that is refused, too, the id is told, unless it stands twice: that says of none which one it is about.
 */
static void note_asked(cp_str line) {
    cp_err err = {0};
    cp_autobuf cp_buf envelope = {0};
    cp_autodoc yyjson_doc *whole = cp_json_read(line, &err), *start = NULL;
    if (!whole && err.code != CP_E_PARSE_ERROR) { /* too deep, too many values */
        mux_envelope(line, &envelope);
        start = cp_json_read(cp_buf_str(&envelope), &err);
    }
    yyjson_val *root = yyjson_doc_get_root(whole ? whole : start), *id = NULL, *key, *val;
    size_t i, n, ids = 0;
    if (!yyjson_is_obj(root)) return;
    yyjson_obj_foreach(root, i, n, key, val) {
        if (!yyjson_equals_str(key, "id")) continue;
        id = val;
        ids++;
    }
    entry(ids == 1 ? id : NULL, true)->requests++;
}

static void note_answer(cp_str text) {
    cp_autodoc yyjson_doc *doc = cp_json_parse(text, NULL); /* in which no key stands twice */
    yyjson_val *root = yyjson_doc_get_root(doc), *id = yyjson_obj_get(root, "id");
    const char *type = yyjson_get_str(yyjson_obj_get(root, "type"));
    require(yyjson_is_obj(root) && type);
    require(strcmp(type, "response") == 0 || strcmp(type, "stream") == 0 || strcmp(type, "error") == 0 ||
            strcmp(type, "stdin") == 0 || strcmp(type, "hello") == 0);
    if (strcmp(type, "stream") == 0 || strcmp(type, "stdin") == 0) require(entry(id, false) != NULL);
    if (!id || strcmp(type, "stream") == 0 || strcmp(type, "stdin") == 0) return;
    asked *a = entry(id, false);
    require(a && ++a->answers <= a->requests);
    if (strcmp(type, "response") == 0) require(yyjson_get_int(yyjson_obj_get(root, "status")) >= 100);
}

/* ---- the connection ---- */

static cp_transport *transport(void) {
    static cp_config config = {.max_message = 1 << 20,
                               .max_pending = 20,
                               .max_request_id = 64,
                               .ping_interval = 15000,
                               .stall_timeout = 300000};
    static cp_transport t;
    static cp_ctx ctx;
    static cp_router router;
    if (!t.loop) t = (cp_transport){.loop = cp_loop_new(NULL), .config = &config, .ctx = &ctx, .router = &router};
    require(t.loop != NULL);
    return &t;
}

static void read_answers(int fd, cp_frame_in *in) {
    static char bytes[64 * 1024];
    for (ssize_t n; (n = read(fd, bytes, sizeof bytes)) > 0;) {
        cp_frame_event ev;
        for (size_t at = 0, used; cp_frame_next(in, bytes + at, (size_t)n - at, &used, &ev) != CP_FRAME_NEED_MORE;
             at += used) {
            require(ev.kind == CP_FRAME_MESSAGE || ev.kind == CP_FRAME_PING || ev.kind == CP_FRAME_CLOSE);
            if (ev.kind == CP_FRAME_MESSAGE) note_answer(ev.payload);
        }
    }
    require(errno == EAGAIN);
}

static void say(cp_transport *t, int fd, cp_frame_in *in, cp_str line) {
    static const uint8_t mask[4] = {0};
    cp_autobuf cp_buf frame = {0};
    note_asked(line);
    cp_frame_put(&frame, CP_OP_TEXT, true, line.p, line.n, mask);
    require(send(fd, frame.p, frame.n, MSG_NOSIGNAL) == (ssize_t)frame.n);
    cp_loop_once(t->loop, 0);
    read_answers(fd, in);
}

static void converse(cp_transport *t, int fd, cp_str text) {
    cp_frame_in in;
    cp_frame_in_init(&in, CP_FRAME_CLIENT, 1 << 20);
    for (size_t k = 0; text.n && k < MESSAGES; k++) {
        const char *nl = memchr(text.p, '\n', text.n);
        cp_str line = {text.p, nl ? (size_t)(nl - text.p) : text.n};
        if (!cp_utf8_valid(line.p, line.n)) break; /* the codec's to refuse: frame_fuzz.c */
        say(t, fd, &in, line);
        text = (cp_str){text.p + line.n + (nl != NULL), text.n - line.n - (nl != NULL)};
    }
    cp_frame_in_fini(&in);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    cp_transport *t = transport();
    int sv[2];
    if (size > 32768) return 0; /* larger messages are parsed elsewhere, by the same parser */
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv) == 0);
    cp_ws_adopt(t, sv[1], &cp_ws_mux, NULL, NULL);
    converse(t, sv[0], (cp_str){(const char *)data, size});
    close(sv[0]);
    for (int i = 0; t->nconns && i < 100; i++) cp_loop_once(t->loop, 0);
    require(t->nconns == 0 && streams == 0 && cp_metric_values[CP_M_PENDING] == 0);
    for (unsigned i = 0; i < nheld; i++) require(!held[i]);
    for (size_t i = 0; i < nbook; i++) cp_buf_free(&book[i].id);
    nheld = 0;
    nbook = 0;
    return 0;
}
