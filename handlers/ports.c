/* GET /api/ports: listening ports, each with the process that holds it and the execution that this belongs to. */
#include "services/ports.h"

#include <stdlib.h>

#include "handlers/families.h"
#include "handlers/reply.h"
#include "handlers/rows.h"
#include "services/exec.h"

#define OP "ports"

typedef struct ports_job {
    cp_work work;
    cp_ctx *ctx;
    cp_reply *reply; /* NULL: the client has gone */
    cp_ports ports;
    cp_err err;
    cp_rows rows;
    size_t at; /* the next one to be written */
} ports_job;

static void ports_run(cp_work *w) {
    ports_job *j = CP_CONTAINER(w, ports_job, work);
    (void)cp_ports_read(&j->ports, &j->err);
}

typedef struct owner {
    const cp_port *port;
    const cp_exec *exec;
} owner;

/* By its mark, which survives the loss of parents; where there are no marks, by descent. */
static bool owns(const cp_exec *e, const cp_port *p) {
    if (cp_mark_matches(&e->mark, &p->mark)) return true;
    for (unsigned i = 0; i < p->n; i++)
        if (e->pid > 0 && p->chain[i].pid == e->pid && p->chain[i].start_time == e->pid_start) return !e->session;
    return false;
}

/* A process before a call, among those that fit: its id is what clients know. */
static bool look_at(void *arg, cp_exec *e) {
    owner *o = arg;
    if (e->state == CP_STATE_FAILED || !owns(e, o->port)) return true;
    if (!o->exec || e->process_id) o->exec = e;
    return !e->process_id;
}

static void put_port(cp_ctx *ctx, cp_jw *w, const cp_port *p) {
    owner o = {.port = p};
    if (p->n) cp_exec_each(ctx->svc, look_at, &o);
    cp_jw_obj(w);
    cp_jw_ku64(w, "port", p->port);
    cp_jw_kz(w, "address", p->address);
    cp_jw_kz(w, "protocol", p->v6 ? "tcp6" : "tcp");
    if (p->n) {
        cp_jw_ki64(w, "pid", p->chain[0].pid);
        cp_jw_kz(w, "name", p->name);
    }
    if (o.exec) {
        if (o.exec->process_id) cp_jw_kz(w, "processId", o.exec->process_id);
        cp_jw_kz(w, "executionId", o.exec->id);
        if (o.exec->session) cp_jw_kz(w, "sessionId", o.exec->session);
    }
    cp_jw_end_obj(w);
}

/* Each is looked for among all executions: as many ports in a round as that takes little time. */
static bool port_row(cp_rows *r, cp_jw *w) {
    ports_job *j = CP_CONTAINER(r, ports_job, rows);
    if (j->at == j->ports.n) return false;
    put_port(j->ctx, w, &j->ports.v[j->at++]);
    return true;
}

static void ports_free(cp_rows *r) {
    ports_job *j = CP_CONTAINER(r, ports_job, rows);
    cp_ports_free(&j->ports);
    free(j);
}

static void ports_done(cp_work *w) {
    static const cp_rows_ops ops = {.key = "ports", .row = port_row, .free = ports_free};
    ports_job *j = CP_CONTAINER(w, ports_job, work);
    if (j->reply && !j->err.code) {
        cp_rows_answer(&j->rows, &ops, j->ctx, j->reply);
        return;
    }
    if (j->reply) cp_reply_error(j->reply, &j->err, OP, (cp_str){0});
    ports_free(&j->rows);
}

static bool ports_cancel(cp_reply *reply, cp_end why, bool kill) {
    (void)why, (void)kill;
    ports_job *j = reply->handler;
    j->reply = NULL;
    if (cp_workers_withdraw(&j->work)) free(j);
    return false;
}

static void ports(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    static const char *const known[] = {NULL};
    cp_err err = {0};
    if (cp_request_only(req, known, &err) < 0) {
        cp_reply_error(reply, &err, NULL, (cp_str){0});
        return;
    }
    ports_job *j = cp_new(ports_job);
    j->ctx = ctx;
    j->reply = reply;
    reply->handler = j;
    reply->on_cancel = ports_cancel;
    cp_workers_submit_to(ctx->workers, CP_LANE_COMPUTE, cp_request_owner(req), &j->work, ports_run, ports_done);
}

const cp_route cp_ports_routes[] = {
    {CP_GET, "/api/ports", CP_R_LOOP, OP, NULL, ports, "Listening ports, with pid and process"},
};
const size_t cp_ports_nroutes = CP_COUNT(cp_ports_routes);
