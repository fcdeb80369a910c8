/* Design notes. The loop queues operations under a mutex; the writer thread takes the whole queue, applies it in one
 * transaction and commits once (group commit), then posts the completions in order. An operation owns a packed copy of
 * its row's strings. A transaction that fails is applied again operation by operation (those between
 * cp_registry_begin and _end together), so that one bad row does not take its neighbours with it: what the schema
 * refuses fails alone.
 *
 * What the disk does not take (full, an I/O error, a lock that does not go) stays in line, and all that comes later
 * waits behind it: rows and events are written in the order in which things happened, or a deletion would be undone by
 * the write before it. The line is tried again after 100 ms, later every 5 s. Only a write that is a question (may this
 * be started?) does not wait: it brings on a try at once, and is refused when that fails. A try begins with the first
 * one alone, so that its cost does not grow with the line.
 *
 * Both the queue and the line are bounded. When the disk does not keep up with the queue, a new write is refused; out
 * of the line the oldest goes, because whatever is in it as a row may have been replaced by a later one. */
#include "registry/registry.h"

#include "base/aside.h"
#include "base/clock.h"
#include "base/cond.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/thread.h"
#include "registry/db.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    QUEUE_MAX_BYTES = 64 << 20 /* of the queue, and of the line */,
    RETRY_FIRST_MS = 100,
    RETRY_MAX_MS = 5000,
    CHECK_MS = 1000 /* between two looks for the files of an idle database */
};

typedef enum {
    OP_PUT_EXEC,
    OP_DEL_EXEC,
    OP_PUT_SESSION,
    OP_DEL_SESSION,
    OP_PUT_EVENT,
    OP_KEEP_EVENT,
    OP_DEL_EVENTS,
    OP_FIRST_EVENT
} op_kind;

struct op {
    struct op *next;
    op_kind kind;
    size_t bytes;
    cp_reg_done *done;
    bool joined; /* the next one is of the same transaction */
    union {
        cp_exec_row exec;
        cp_session_row session;
        cp_event_row event;
        const char *id;
        uint64_t before, first;
    };
    char text[]; /* the strings that the row points to */
};

struct renewal;

struct cp_registry {
    cp_loop *loop;
    cp_db db; /* the writer's, as is the rest down to `tried`, except before the thread starts and after it ended */
    char *dir, *path;
    bool lost;         /* set by the opening */
    cp_db_fault fault; /* DOUBTFUL, BROKEN: the last error was of a kind that a new database may mend; else REFUSED */
    bool reopened;     /* since the last commit */
    bool complained;
    uint64_t check_at;
    void (*renewed)(void *arg); /* the loop's, with its argument */
    void *renewed_arg;
    _Atomic(struct renewal *) renewal; /* under way to the loop */
    pthread_t thread;
    atomic_bool healthy;
    unsigned nested; /* the loop's, as is `group`: what cp_registry_end will queue */
    struct op *group, **group_tail;
    struct op *line, **line_tail; /* the writer's, down to retry_at: what is not written yet */
    uint64_t retry_ms, retry_at;
    pthread_mutex_t mu; /* guards all below */
    cp_cond work, idle;
    struct op *head, **tail;
    size_t bytes;
    bool blocked; /* the last try left something in line */
    bool urgent;  /* somebody waits for the next try */
    bool busy, reading, stopping;
};

/* ---- operations ---- */

static size_t len(const char *z) { return z ? strlen(z) + 1 : 0; }

static const char *pack(char **at, const char *z) {
    if (!z) return NULL;
    size_t n = len(z);
    char *p = memcpy(*at, z, n);
    *at += n;
    return p;
}

static struct op *op_new(op_kind kind, size_t text_bytes, cp_reg_done *done) {
    struct op *op = cp_alloc(sizeof *op + text_bytes);
    op->kind = kind;
    op->bytes = sizeof *op + text_bytes;
    op->done = done;
    return op;
}

static int apply(cp_db *db, const struct op *op, cp_err *err) {
    switch (op->kind) {
    case OP_PUT_EXEC: return cp_store_put_exec(db, &op->exec, err);
    case OP_DEL_EXEC: return cp_store_del_exec(db, op->id, err);
    case OP_PUT_SESSION: return cp_store_put_session(db, &op->session, err);
    case OP_DEL_SESSION: return cp_store_del_session(db, op->id, err);
    case OP_PUT_EVENT: return cp_store_put_event(db, &op->event, false, err);
    case OP_KEEP_EVENT: return cp_store_put_event(db, &op->event, true, err);
    case OP_DEL_EVENTS: return cp_store_del_events(db, op->before, err);
    case OP_FIRST_EVENT: return cp_store_set_first_event(db, op->first, err);
    }
    return 0;
}

/* ---- transactions ---- */

typedef enum { WRITTEN, REFUSED /* by the schema: never */, BLOCKED /* by the disk: not now */ } verdict;

static verdict verdict_of(cp_registry *r) {
    cp_db_fault f = cp_db_fault_of(&r->db);
    r->fault = f == CP_DB_BLOCKED ? CP_DB_REFUSED : f;
    return f == CP_DB_REFUSED ? REFUSED : BLOCKED;
}

static struct op *last_of(struct op *op) {
    while (op->joined) op = op->next;
    return op;
}

static verdict commit(cp_registry *r, const struct op *from, const struct op *end, cp_err *err) {
    verdict v = WRITTEN;
    if (cp_db_exec(&r->db, "BEGIN IMMEDIATE", err) < 0) {
        (void)verdict_of(r);
        return BLOCKED;
    }
    for (const struct op *op = from; v == WRITTEN && op != end; op = op->next)
        if (apply(&r->db, op, err) < 0) v = verdict_of(r);
    if (v == WRITTEN && cp_db_exec(&r->db, "COMMIT", err) < 0) v = verdict_of(r);
    if (v == WRITTEN) {
        r->reopened = false;
        cp_metric_add(CP_M_REGISTRY_COMMITS, 1);
    } else {
        sqlite3_exec(r->db.sq, "ROLLBACK", NULL, NULL, NULL); /* fails harmlessly where that has been done already */
    }
    return v;
}

static void run_done(cp_task *t) {
    cp_reg_done *d = CP_CONTAINER(t, cp_reg_done, task);
    d->fn(d);
}

static void complete(cp_registry *r, struct op *op, const cp_err *failed) {
    if (failed) cp_log(CP_LOG_ERROR, "registry.write", failed->msg);
    if (op->done) {
        op->done->failed = failed != NULL;
        if (failed) op->done->err = *failed;
        cp_loop_post(r->loop, &op->done->task, run_done);
    }
    free(op);
}

/* Up to, not including, end. */
static void complete_all(cp_registry *r, struct op *op, const struct op *end, const cp_err *failed) {
    for (struct op *next; op != end; op = next) {
        next = op->next;
        complete(r, op, failed);
    }
}

/* ---- the line ---- */

/* Takes what is before `end` out of it. */
static void advance(cp_registry *r, struct op *end, const cp_err *failed) {
    struct op *first = r->line;
    r->line = end;
    if (!end) r->line_tail = &r->line;
    complete_all(r, first, end, failed);
}

static verdict write_first(cp_registry *r, bool *all_ok, cp_err *err) {
    struct op *end = last_of(r->line)->next;
    verdict v = commit(r, r->line, end, err);
    if (v == BLOCKED) return v;
    *all_ok &= v == WRITTEN;
    advance(r, end, v == WRITTEN ? NULL : err);
    return v;
}

/* Returns false, with the reason, when something is left that the disk did not take. */
static bool write_line(cp_registry *r, bool *all_ok, cp_err *err) {
    if (r->blocked && write_first(r, all_ok, err) == BLOCKED) return false;
    if (r->line && commit(r, r->line, NULL, err) == WRITTEN) advance(r, NULL, NULL);
    while (r->line)
        if (write_first(r, all_ok, err) == BLOCKED) return false;
    return true;
}

/* A question that nothing happened on yet: somebody waits for the answer, and no event is in the transaction. */
static bool asks(const struct op *first) {
    bool awaited = false;
    for (const struct op *op = first;; op = op->next) {
        if (op->kind == OP_PUT_EVENT) return false;
        awaited |= op->done != NULL;
        if (!op->joined) return awaited;
    }
}

static void keep_in_line(cp_registry *r, const cp_err *why) {
    size_t n = 0, bytes = 0;
    struct op **at = &r->line;
    for (struct op *first; (first = *at);) {
        struct op *last = last_of(first), *end = last->next;
        if (asks(first)) {
            *at = end;
            complete_all(r, first, end, why);
            continue;
        }
        for (const struct op *op = first; op != end; op = op->next) bytes += op->bytes;
        n++;
        at = &last->next;
    }
    r->line_tail = at;
    for (; n > CP_REGISTRY_WAITING || bytes > QUEUE_MAX_BYTES; n--) {
        struct op *end = last_of(r->line)->next;
        for (const struct op *op = r->line; op != end; op = op->next) bytes -= op->bytes;
        advance(r, end, why);
    }
}

/* ---- a database that is damaged or gone ---- */

struct renewal {
    cp_task task;
    cp_registry *r; /* the loop's; NULL: closed meanwhile */
};

static void run_renewal(cp_task *t) {
    struct renewal *n = CP_CONTAINER(t, struct renewal, task);
    cp_registry *r = n->r;
    free(n);
    if (!r) return;
    atomic_store(&r->renewal, NULL); /* what is found after this asks again */
    if (r->renewed) r->renewed(r->renewed_arg);
}

static int ask_for_all(cp_registry *r) {
    if (atomic_load(&r->renewal)) return 0;
    struct renewal *n = cp_new(struct renewal);
    n->r = r;
    atomic_store(&r->renewal, n);
    cp_loop_post(r->loop, &n->task, run_renewal);
    return 0;
}

static bool unsound(const cp_registry *r) { return r->fault != CP_DB_REFUSED; }

/* Opened again under its name, unless that has been tried since the last commit. False with the reason in err. */
static bool open_again(cp_registry *r, cp_db_fault *fault, cp_err *err) {
    if (r->reopened) return false;
    r->reopened = true;
    if (cp_db_begin(&r->db, r->path, fault, err) < 0) return false;
    if (r->db.fresh) {
        cp_metric_add(CP_M_REGISTRY_RENEWED, 1);
        cp_log(CP_LOG_ERROR, "registry.gone", "the registry was gone; it was begun anew");
    }
    return true;
}

/* What is committed only in a -wal that has lost its name is written to the database first, which may have kept its
 * own. Where the disk may be at fault the database stays open, for reading, unless another can be made. */
static int mend(cp_registry *r, cp_err *err) {
    cp_db_fault why = r->fault, found = CP_DB_BROKEN;
    r->fault = CP_DB_REFUSED;
    if (cp_folder_make(r->dir, 0700) < 0)
        return cp_fail_sys(err, errno == ENOSPC ? CP_E_NO_SPACE : CP_E_FILESYSTEM_ERROR, errno, "registry: %s", r->dir);
    if (why != CP_DB_DOUBTFUL) {
        if (r->db.sq && why == CP_DB_REFUSED)
            sqlite3_exec(r->db.sq, "PRAGMA wal_checkpoint(TRUNCATE)", NULL, NULL, NULL);
        cp_db_abandon(&r->db);
        if (open_again(r, &found, err)) return ask_for_all(r);
        if (found == CP_DB_BLOCKED || found == CP_DB_NEWER) return -1;
    }
    r->reopened = false;
    if (cp_db_renew(&r->db, r->path, (cp_db_renewal){.force = why == CP_DB_BROKEN}, err) < 0) return -1;
    return ask_for_all(r);
}

/* ---- the writer thread ---- */

static void log_change(cp_registry *r, bool whole, const cp_err *why) {
    if (whole == !r->complained) return;
    r->complained = !whole;
    if (!whole) cp_log(CP_LOG_ERROR, "registry.blocked", why->msg);
    else cp_log(CP_LOG_INFO, "registry.unblocked", "what had to wait has been written");
}

/* What somebody else has written into the files shows in no name. */
static bool is_sound(cp_registry *r) {
    cp_err why = {0};
    if (cp_db_judge(&r->db, r->path, &why) == 0) return true;
    r->fault = cp_db_fault_of(&r->db);
    if (r->fault == CP_DB_REFUSED) r->fault = CP_DB_BROKEN;
    return false;
}

/* At most twice: where the first shows that the database is of no use, once more with another. */
static bool try_whole(cp_registry *r, bool *all_ok, cp_err *err) {
    if ((!cp_db_in_place(&r->db, r->path) || !is_sound(r)) && mend(r, err) < 0) return false;
    bool whole = write_line(r, all_ok, err) || (unsound(r) && mend(r, err) == 0 && write_line(r, all_ok, err));
    cp_db_note(&r->db, r->path);
    return whole;
}

/* Returns whether something is left. */
static bool try_line(cp_registry *r) {
    cp_err err = {0};
    bool all_ok = true, whole = try_whole(r, &all_ok, &err);
    if (!whole) keep_in_line(r, &err);
    bool left = r->line != NULL;
    log_change(r, whole, &err);
    uint64_t next = r->blocked ? r->retry_ms * 2 : RETRY_FIRST_MS;
    r->retry_ms = next < RETRY_MAX_MS ? next : RETRY_MAX_MS;
    r->retry_at = cp_now_ms() + r->retry_ms;
    r->check_at = cp_now_ms() + CHECK_MS;
    atomic_store_explicit(&r->healthy, all_ok && whole, memory_order_relaxed);
    return left;
}

static bool due(const cp_registry *r) {
    if (r->stopping) return true;
    if (r->reading) return false;
    if (r->urgent) return true; /* also when a try that was under way has left nothing to do */
    return cp_now_ms() >= (r->blocked ? r->retry_at : r->check_at) || (!r->blocked && r->head);
}

static void wait_until_due(cp_registry *r) {
    while (!due(r)) {
        uint64_t by = r->blocked ? r->retry_at : r->check_at;
        struct timespec at = {(time_t)(by / 1000), (long)(by % 1000) * 1000000};
        if (r->reading) cp_cond_wait(&r->work, &r->mu);
        else cp_cond_wait_until(&r->work, &r->mu, &at);
    }
}

static void join_line(cp_registry *r) {
    if (!r->head) return;
    *r->line_tail = r->head;
    r->line_tail = r->tail;
    r->head = NULL;
    r->tail = &r->head;
    r->bytes = 0;
}

static void give_up(cp_registry *r) {
    cp_err err;
    cp_fail(&err, CP_E_INTERNAL_ERROR, "registry: closed before this could be written");
    advance(r, NULL, &err);
}

static void *writer_main(void *arg) {
    cp_registry *r = arg;
    bool last = false;
    pthread_mutex_lock(&r->mu);
    while (!last) {
        wait_until_due(r);
        last = r->stopping;
        join_line(r);
        r->urgent = false;
        r->busy = true;
        pthread_mutex_unlock(&r->mu);
        bool left = try_line(r);
        pthread_mutex_lock(&r->mu);
        r->blocked = left;
        r->busy = false;
        cp_cond_broadcast(&r->idle);
    }
    pthread_mutex_unlock(&r->mu);
    give_up(r);
    return NULL;
}

static void queue_up(cp_registry *r, struct op *first, struct op **tail, size_t bytes) {
    pthread_mutex_lock(&r->mu);
    bool room = r->bytes + bytes <= QUEUE_MAX_BYTES;
    if (room) {
        *r->tail = first;
        r->tail = tail;
        r->bytes += bytes;
        r->urgent |= asks(first);
        cp_cond_signal(&r->work);
    }
    pthread_mutex_unlock(&r->mu);
    if (room) return;
    cp_err err;
    cp_fail(&err, CP_E_LIMIT_EXCEEDED, "registry: the disk does not keep up, a record was not written");
    complete_all(r, first, NULL, &err);
}

static void enqueue(cp_registry *r, struct op *op) {
    if (!r->nested) {
        queue_up(r, op, &op->next, op->bytes);
        return;
    }
    *r->group_tail = op;
    r->group_tail = &op->next;
}

void cp_registry_begin(cp_registry *r) {
    if (r->nested++ == 0) r->group_tail = &r->group;
}

void cp_registry_end(cp_registry *r) {
    if (--r->nested || !r->group) return;
    size_t bytes = 0;
    for (struct op *op = r->group; op; op = op->next) {
        bytes += op->bytes;
        op->joined = op->next != NULL;
    }
    struct op *first = cp_take(r->group);
    queue_up(r, first, r->group_tail, bytes);
}

/* ---- API ---- */

/* Where nothing can be written what is there is read at least, and what is to be written waits. */
static void open_for_reading(cp_registry *r, const cp_err *why) {
    bool rows = cp_db_view(&r->db, r->path, NULL) == 0;
    atomic_store(&r->healthy, false);
    r->complained = true;
    cp_log(CP_LOG_ERROR, "registry.blocked", "the registry cannot be written; the server runs without it meanwhile",
           CP_KVZ("reason", why->msg), CP_KVZ("former_rows", rows ? "read" : "not read"));
}

/* A lock, or a lack of memory or descriptors, fails the start: the next one may find what is there. */
static int open_db(cp_registry *r, cp_err *err) {
    cp_db_fault fault = CP_DB_BROKEN;
    cp_err why = {0};
    bool folder = cp_folder_make(r->dir, 0700) >= 0;
    if (!folder) cp_fail_sys(&why, CP_E_FILESYSTEM_ERROR, errno, "registry: %s", r->dir);
    if (folder && cp_db_begin(&r->db, r->path, &fault, &why) == 0) {
        r->lost = r->db.fresh;
        return 0;
    }
    bool refuse = fault == CP_DB_NEWER || (fault == CP_DB_BLOCKED && why.code != CP_E_NO_SPACE);
    if (refuse && err) *err = why;
    if (refuse) return -1;
    r->lost = true;
    bool renewable = folder && fault != CP_DB_BLOCKED;
    if (renewable && cp_db_renew(&r->db, r->path, (cp_db_renewal){.salvage = true}, &why) == 0) return 0;
    open_for_reading(r, &why);
    return 0;
}

static int start_writer(cp_registry *r, cp_err *err) {
    int rc = cp_thread_start(&r->thread, 512 * 1024, writer_main, r);
    return rc ? cp_fail_sys(err, CP_E_INTERNAL_ERROR, rc, "registry writer thread") : 0;
}

static void registry_free(cp_registry *r) {
    cp_db_close(&r->db);
    pthread_mutex_destroy(&r->mu);
    free(r->dir);
    free(r->path);
    free(r);
}

cp_registry *cp_registry_open(cp_loop *loop, const char *dir, cp_err *err) {
    cp_registry *r = cp_new(cp_registry);
    r->loop = loop;
    r->tail = &r->head;
    r->line_tail = &r->line;
    atomic_init(&r->healthy, true);
    atomic_init(&r->renewal, NULL);
    pthread_mutex_init(&r->mu, NULL);
    r->dir = cp_str_dup(cp_str_of(dir));
    cp_autobuf cp_buf path = {0};
    cp_buf_addf(&path, "%s/registry.db", dir);
    r->path = cp_str_dup(cp_buf_str(&path));
    if (open_db(r, err) == 0 && start_writer(r, err) == 0) return r;
    registry_free(r);
    return NULL;
}

void cp_registry_close(cp_registry *r) {
    if (!r) return;
    pthread_mutex_lock(&r->mu);
    r->stopping = true;
    cp_cond_signal(&r->work);
    pthread_mutex_unlock(&r->mu);
    pthread_join(r->thread, NULL);
    struct renewal *n = atomic_load(&r->renewal);
    if (n) n->r = NULL;
    registry_free(r);
}

void cp_registry_on_renewed(cp_registry *r, void (*renewed)(void *arg), void *arg) {
    r->renewed = renewed;
    r->renewed_arg = arg;
}

void cp_registry_put_exec(cp_registry *r, const cp_exec_row *row, cp_reg_done *done) {
    const char *const *in[] = {&row->id,  &row->process_id, &row->session, &row->command,
                               &row->cwd, &row->state,      &row->outcome, &row->error};
    size_t n = 0;
    for (size_t i = 0; i < CP_COUNT(in); i++) n += len(*in[i]);
    struct op *op = op_new(OP_PUT_EXEC, n, done);
    op->exec = *row;
    cp_exec_row *o = &op->exec;
    const char **out[] = {&o->id, &o->process_id, &o->session, &o->command, &o->cwd, &o->state, &o->outcome, &o->error};
    char *at = op->text;
    for (size_t i = 0; i < CP_COUNT(out); i++) *out[i] = pack(&at, *in[i]);
    enqueue(r, op);
}

void cp_registry_put_session(cp_registry *r, const cp_session_row *row, cp_reg_done *done) {
    struct op *op = op_new(OP_PUT_SESSION, len(row->id) + len(row->cwd) + len(row->state), done);
    op->session = *row;
    char *at = op->text;
    op->session.id = pack(&at, row->id);
    op->session.cwd = pack(&at, row->cwd);
    op->session.state = pack(&at, row->state);
    enqueue(r, op);
}

static struct op *event_op(op_kind kind, const cp_event_row *row, cp_reg_done *done) {
    const char *const *in[] = {&row->type, &row->process_id, &row->exec_id, &row->session, &row->outcome, &row->stream};
    size_t n = 0;
    for (size_t i = 0; i < CP_COUNT(in); i++) n += len(*in[i]);
    struct op *op = op_new(kind, n, done);
    op->event = *row;
    cp_event_row *o = &op->event;
    const char **out[] = {&o->type, &o->process_id, &o->exec_id, &o->session, &o->outcome, &o->stream};
    char *at = op->text;
    for (size_t i = 0; i < CP_COUNT(out); i++) *out[i] = pack(&at, *in[i]);
    return op;
}

void cp_registry_put_event(cp_registry *r, const cp_event_row *row, cp_reg_done *done) {
    enqueue(r, event_op(OP_PUT_EVENT, row, done));
}
void cp_registry_keep_event(cp_registry *r, const cp_event_row *row) { enqueue(r, event_op(OP_KEEP_EVENT, row, NULL)); }

void cp_registry_first_event(cp_registry *r, uint64_t first) {
    struct op *op = op_new(OP_FIRST_EVENT, 0, NULL);
    op->first = first;
    enqueue(r, op);
}

void cp_registry_del_events(cp_registry *r, uint64_t before) {
    struct op *op = op_new(OP_DEL_EVENTS, 0, NULL);
    op->before = before;
    enqueue(r, op);
}

static void enqueue_del(cp_registry *r, op_kind kind, const char *id) {
    struct op *op = op_new(kind, len(id), NULL);
    char *at = op->text;
    op->id = pack(&at, id);
    enqueue(r, op);
}

void cp_registry_del_exec(cp_registry *r, const char *id) { enqueue_del(r, OP_DEL_EXEC, id); }
void cp_registry_del_session(cp_registry *r, const char *id) { enqueue_del(r, OP_DEL_SESSION, id); }

/* With the lock. Until all that is queued or waits has been tried once more. */
static void await_try(cp_registry *r) {
    r->urgent |= r->blocked;
    cp_cond_signal(&r->work);
    while (r->head || r->busy || r->urgent) cp_cond_wait(&r->idle, &r->mu);
}

int cp_registry_flush(cp_registry *r, cp_err *err) {
    pthread_mutex_lock(&r->mu);
    await_try(r);
    pthread_mutex_unlock(&r->mu);
    return cp_registry_healthy(r) ? 0 : cp_fail(err, CP_E_INTERNAL_ERROR, "registry: the last write failed");
}

/* The connection is the writer's own: it sleeps while rows are read. What fn writes meanwhile is queued; applied at
 * once, INSERT OR REPLACE would move the row ahead of the scan, which would come by it again. A disk that takes nothing
 * can be read: a server that is started again on a full one serves, and its own first writes wait. */
static void begin_reading(cp_registry *r) {
    pthread_mutex_lock(&r->mu);
    await_try(r);
    r->reading = true;
    pthread_mutex_unlock(&r->mu);
}

static int end_reading(cp_registry *r, int rc) {
    pthread_mutex_lock(&r->mu);
    r->reading = false;
    cp_cond_signal(&r->work);
    pthread_mutex_unlock(&r->mu);
    return rc;
}

int cp_registry_each_exec(cp_registry *r, void (*fn)(void *, const cp_exec_row *), void *arg, cp_err *err) {
    begin_reading(r);
    return end_reading(r, r->db.sq ? cp_store_each_exec(&r->db, CP_SQL_ALL_EXEC, fn, arg, err) : 0);
}

int cp_registry_each_session(cp_registry *r, void (*fn)(void *, const cp_session_row *), void *arg, cp_err *err) {
    begin_reading(r);
    return end_reading(r, r->db.sq ? cp_store_each_session(&r->db, CP_SQL_ALL_SESSION, fn, arg, err) : 0);
}

/* Without a database the ids begin at the clock, as in a new one. */
int cp_registry_each_event(cp_registry *r, uint64_t *first, void (*fn)(void *, const cp_event_row *), void *arg,
                           cp_err *err) {
    begin_reading(r);
    *first = (uint64_t)cp_wall_ms() / 1000 * 1000;
    if (!r->db.sq) return end_reading(r, 0);
    int rc = cp_store_first_event(&r->db, first, err);
    return end_reading(r, rc < 0 ? rc : cp_store_each_event(&r->db, CP_SQL_ALL_EVENT, fn, arg, err));
}

bool cp_registry_lost(const cp_registry *r) { return r->lost; }
bool cp_registry_healthy(const cp_registry *r) { return atomic_load_explicit(&r->healthy, memory_order_relaxed); }
