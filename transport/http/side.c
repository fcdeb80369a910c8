/* Design notes. A worker serves short requests. What may take long has threads of its own, in lanes (base/work.h):
 * handlers that read a large body as it comes; answers that are made while they are sent (archives), a piece at a time,
 * and files when half of the workers are at them already; file work in the same case, on a slow disk or a mount that
 * hangs; what computes for long. The threads are started when they are needed; when all of a lane are taken, more such
 * requests wait, and nothing else does.
 *
 * While bodies wait for a thread, clients that are more than a second behind the minimum rate of a body are cut, those
 * furthest behind first: so a crowd of slow uploads does not keep the threads to itself, be it silent or sending a byte
 * at a time. */
#include <stdlib.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/work.h"
#include "transport/http/http.h"

enum { THREADS = 32, TICK_MS = 100, SLOW_MS = 1000 };

typedef struct job {
    cp_work work;
    cp_side *side;
    cp_client *client;
    /* of a job that serves a request; one that only goes on with a reply has none of it: */
    cp_match match;
    cp_request *req;
    yyjson_doc *doc;
    cp_err body_err;
    cp_reply_to to;
    char *origin;
    cp_body_stream stream;
    bool reads; /* a body, and is counted */
    bool runs, cut;
    struct job *prev, *next;
} job;

struct cp_side {
    cp_server *srv;
    cp_workers *workers;
    pthread_mutex_t mu; /* guards jobs and what is marked so */
    job *jobs;
    unsigned nbodies, nreading; /* jobs that read bodies; of these, what has begun */
    bool closing;
    cp_timer timer; /* loop */
    cp_task task;
    atomic_bool watched; /* the task is posted or the timer runs */
};

cp_side *cp_side_new(cp_server *srv, cp_err *err) {
    cp_side *side = cp_new(cp_side);
    side->srv = srv;
    pthread_mutex_init(&side->mu, NULL);
    side->workers = cp_workers_new(srv->t->loop, THREADS, err);
    if (side->workers) return side;
    pthread_mutex_destroy(&side->mu);
    free(side);
    return NULL;
}

/* ---- clients that are waited for ---- */

static bool longer(const job *a, const job *b) {
    return !b || atomic_load(&a->stream.waits_since) < atomic_load(&b->stream.waits_since);
}

static void cut_slowest(cp_side *side) {
    uint64_t now = cp_now_ms();
    job *slowest = NULL;
    for (job *j = side->jobs; j; j = j->next) {
        if (!j->reads || !j->runs || j->cut) continue;
        uint64_t since = atomic_load(&j->stream.waits_since);
        if (since && now - since >= SLOW_MS && longer(j, slowest)) slowest = j;
    }
    if (!slowest) return;
    slowest->cut = true;
    cp_metric_add(CP_M_HTTP_SHED, 1);
    shutdown(slowest->client->fd, SHUT_RD); /* the handler sees the end; its answer can still be read */
}

static void on_tick(cp_timer *t) {
    cp_side *side = CP_CONTAINER(t, cp_side, timer);
    pthread_mutex_lock(&side->mu);
    bool crowded = side->nbodies > THREADS;
    for (unsigned n = side->nbodies - side->nreading; crowded && n; n--) cut_slowest(side);
    bool over = !crowded || side->closing;
    if (over) atomic_store(&side->watched, false);
    pthread_mutex_unlock(&side->mu);
    if (!over) cp_timer_start(side->srv->t->loop, t, TICK_MS, on_tick);
}

static void begin_watch(cp_task *task) {
    cp_side *side = CP_CONTAINER(task, cp_side, task);
    cp_timer_start(side->srv->t->loop, &side->timer, TICK_MS, on_tick);
}

bool cp_side_crowded(cp_side *side) {
    pthread_mutex_lock(&side->mu);
    bool crowded = side->nbodies >= THREADS;
    pthread_mutex_unlock(&side->mu);
    return crowded;
}

/* ---- jobs ---- */

static void job_add(cp_side *side, job *j) {
    pthread_mutex_lock(&side->mu);
    j->next = side->jobs;
    if (j->next) j->next->prev = j;
    side->jobs = j;
    side->nbodies += j->reads;
    bool crowded = side->nbodies > THREADS && !side->closing;
    if (crowded && !atomic_exchange(&side->watched, true)) cp_loop_post(side->srv->t->loop, &side->task, begin_watch);
    pthread_mutex_unlock(&side->mu);
}

static void job_remove(job *j) {
    cp_side *side = j->side;
    pthread_mutex_lock(&side->mu);
    if (j->prev) j->prev->next = j->next;
    else side->jobs = j->next;
    if (j->next) j->next->prev = j->prev;
    side->nbodies -= j->reads;
    side->nreading -= j->reads;
    pthread_mutex_unlock(&side->mu);
}

static void job_runs(job *j) {
    pthread_mutex_lock(&j->side->mu);
    j->runs = true;
    j->side->nreading += j->reads;
    bool closing = j->side->closing;
    pthread_mutex_unlock(&j->side->mu);
    if (closing) shutdown(j->client->fd, SHUT_RD);
}

static void job_free(job *j) {
    yyjson_doc_free(j->doc);
    free(j->req);
    free(j->origin);
    free(j);
}

static void job_done(cp_work *w) { job_free(CP_CONTAINER(w, job, work)); }

/* The client may be somebody else's as soon as its reply is out: the job leaves the list before. */
static void serve(cp_work *w) {
    job *j = CP_CONTAINER(w, job, work);
    cp_router *router = j->side->srv->t->router;
    cp_client *c = j->client;
    cp_result res = {0};
    uint64_t began = cp_now_us();
    if (j->req->raw) {
        cp_body_stream_init(&j->stream, c);
        j->req->raw = &j->stream.reader;
    }
    job_runs(j); /* from here on the loop looks at the stream */
    cp_router_call(router, &j->match, j->req, &res);
    cp_router_count(router, j->match.index, res.status, cp_now_us() - began);
    job_remove(j);
    if (c->body.bad) cp_body_say_malformed(c, &res);
    cp_autobuf cp_buf out = {0};
    if (cp_send_reply(c, &j->to, &res, &out)) cp_client_release(c);
}

static cp_lane lane_of(const job *j) {
    if (j->reads) return CP_LANE_BODIES;
    return j->match.route->flags & CP_R_COMPUTE ? CP_LANE_COMPUTE : CP_LANE_FILES;
}

void cp_side_serve(cp_side *side, cp_client *c, const cp_match *m, const cp_request *req, yyjson_doc *doc,
                   const cp_reply_to *to) {
    job *j = cp_new(job);
    cp_request with = *req;
    memcpy(with.params, m->params, sizeof with.params);
    j->side = side;
    j->client = c;
    j->match = *m;
    j->req = cp_request_keep(&with);
    memcpy(j->match.params, j->req->params, sizeof j->match.params);
    j->doc = doc;
    if (req->body_err) {
        j->body_err = *req->body_err;
        j->req->body_err = &j->body_err;
    }
    j->to = *to;
    j->to.origin.p = j->origin = cp_str_dup(to->origin);
    j->reads = req->raw != NULL;
    atomic_store(&c->phase, CP_CLIENT_SIDE);
    if (!req->raw) cp_client_used(c);
    job_add(side, j);
    cp_workers_submit_to(side->workers, lane_of(j), c->id, &j->work, serve, job_done);
}

static void send_on(cp_work *w) {
    job *j = CP_CONTAINER(w, job, work);
    cp_client *c = j->client;
    job_runs(j);
    job_remove(j);
    if (cp_send_here(c)) cp_client_release(c);
}

void cp_side_send(cp_side *side, cp_client *c) {
    job *j = cp_new(job);
    j->side = side;
    j->client = c;
    job_add(side, j);
    cp_workers_submit_to(side->workers, CP_LANE_BULK, c->id, &j->work, send_on, job_done);
}

void cp_side_free(cp_side *side) {
    if (!side) return;
    pthread_mutex_lock(&side->mu);
    side->closing = true;
    for (job *j = side->jobs; j; j = j->next)
        if (j->runs) shutdown(j->client->fd, SHUT_RD);
    pthread_mutex_unlock(&side->mu);
    cp_workers_free(side->workers);
    cp_timer_stop(side->srv->t->loop, &side->timer);
    cp_loop_once(side->srv->t->loop, 0); /* the last ones' done, and a watch that was asked for */
    cp_timer_stop(side->srv->t->loop, &side->timer);
    for (job *j = side->jobs, *next; j; j = next) { /* nobody began with them: their clients are closed with the rest */
        next = j->next;
        job_free(j);
    }
    pthread_mutex_destroy(&side->mu);
    free(side);
}
