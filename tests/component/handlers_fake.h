#pragma once
/* Scripted services beneath the real router and handlers: the test says what a child prints and how it ends, so that
 * every order of events can be produced. Outputs are the real ones, fed through pipes. */
#pragma GCC diagnostic ignored "-Wunused-function" /* not every test uses all of it */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "component/disk.h"
#include <pthread.h>
#include <stdatomic.h>

#include "component/handlers_client.h"
#include "handlers/families.h"
#include "services/events.h"
#include "services/session.h"
#include "services/tree.h"

struct cp_exec_impl {
    cp_link watches;
    bool told_start, told_end;
    int ended; /* outputs that have */
    bool exited;
    int write_fd[2];
    char stdin_got[256];
    size_t stdin_n;
    bool stdin_eof;
    int killed_with; /* 0: not asked to die */
    cp_kill_done *kill_done;
    void *kill_arg;
};

enum { FAKE_EXECS = 10240 };
static struct {
    cp_loop *loop;
    cp_workers *workers;
    cp_services svc;
    cp_config config;
    cp_ctx ctx;
    cp_router *router;
    char dir[64];
    cp_exec *execs[FAKE_EXECS];
    size_t nexecs;
    cp_exec_spec last; /* strings are gone; counts and flags are not */
    char last_session[64], last_stdin[64], last_env[64];
    cp_err refuse;    /* the next start fails with it */
    bool start_fails; /* the next one is FAILED with ENOENT */
    const char *sessions[8];
    size_t nsessions;
} fake;

/* ---- services/exec.h ---- */

const char *cp_outcome_name(cp_outcome o) {
    static const char *const names[] = {
#define X(n) #n,
#include "schema/outcomes.def"
#undef X
    };
    return names[o];
}

void cp_exec_ref(cp_exec *e) { e->refs++; }
void cp_exec_unref(cp_exec *e) {
    assert_true(e->refs > 0);
    e->refs--;
}

void cp_exec_watch_add(cp_exec *e, cp_exec_watch *w) {
    w->exec = e;
    cp_ring_add(&e->impl->watches, &w->link);
}

void cp_exec_watch_del(cp_exec_watch *w) {
    if (!w->exec) return;
    cp_ring_del(&w->link);
    w->exec = NULL;
}

static cp_exec *fake_find(const char *id, bool process) {
    for (size_t i = 0; i < fake.nexecs; i++) {
        const char *have = process ? fake.execs[i]->process_id : fake.execs[i]->id;
        if (have && strcmp(have, id) == 0) return fake.execs[i];
    }
    return NULL;
}

cp_exec *cp_exec_find(cp_services *s, cp_str id) {
    (void)s;
    cp_autofree char *z = cp_str_dup(id);
    return fake_find(z, false);
}
cp_exec *cp_exec_find_process(cp_services *s, cp_str id) {
    (void)s;
    cp_autofree char *z = cp_str_dup(id);
    return fake_find(z, true);
}
bool cp_exec_gives_back(const cp_services *s) {
    (void)s;
    return false;
}
void cp_exec_each(cp_services *s, bool (*fn)(void *, cp_exec *), void *arg) {
    (void)s;
    for (size_t i = 0; i < fake.nexecs && fn(arg, fake.execs[i]); i++) continue;
}
size_t cp_exec_running(const cp_services *s) {
    (void)s;
    return 0;
}
const char *cp_exec_status(const cp_exec *e) {
    if (e->state == CP_STATE_RUNNING) return "running";
    if (e->state == CP_STATE_STARTING) return "starting";
    if (e->state == CP_STATE_FAILED) return "failed";
    return e->signal ? "killed" : e->exit_code ? "failed" : "completed";
}
int cp_exec_stdin(cp_exec *e, cp_str data, bool eof, cp_stdin_ack *ack, cp_err *err) {
    if (e->impl->exited) return cp_fail(err, CP_E_RESOURCE_BUSY, "ended");
    memcpy(e->impl->stdin_got + e->impl->stdin_n, data.p ? data.p : "", data.n);
    e->impl->stdin_n += data.n;
    e->impl->stdin_eof |= eof;
    if (ack) ack->taken(ack);
    return 0;
}
int cp_exec_signal(cp_exec *e, int sig, bool tree, cp_err *err) {
    (void)tree, (void)err;
    e->impl->killed_with = sig;
    return 0;
}
int cp_exec_kill(cp_exec *e, int sig, uint64_t grace, cp_outcome why, cp_kill_done *done, void *arg, cp_err *err) {
    (void)grace;
    if (e->impl->exited) return cp_fail(err, CP_E_COMMAND_NOT_FOUND, "ended");
    e->impl->killed_with = sig;
    e->outcome = why;
    e->cancelled = why == CP_OUTCOME_cancelled;
    e->impl->kill_done = done;
    e->impl->kill_arg = arg;
    return 0;
}

static void fake_tell(cp_exec *e, bool end) {
    if (end) fake_tell(e, false); /* as exec.c does: never an end without a start */
    bool *told = end ? &e->impl->told_end : &e->impl->told_start;
    if (*told) return;
    *told = true;
    for (cp_link *l = e->impl->watches.next, *next; l != &e->impl->watches; l = next) {
        next = l->next;
        cp_exec_watch *w = CP_CONTAINER(l, cp_exec_watch, link);
        void (*fn)(cp_exec_watch *, cp_exec *) = end ? w->ops->on_end : w->ops->on_start;
        if (fn) fn(w, e);
    }
}

static void fake_maybe_end(cp_exec *e) {
    if (e->impl->ended < 2 || !e->impl->exited || e->state == CP_STATE_ENDED) return;
    e->state = CP_STATE_ENDED;
    e->ended_wall = cp_wall_ms();
    e->ended_ms = cp_now_ms();
    fake_tell(e, true);
}

static void fake_output_ended(void *arg) {
    cp_exec *e = arg;
    e->impl->ended++;
    fake_maybe_end(e);
}

static void fake_outputs(cp_exec *e) {
    for (int k = 0; k < 2; k++) {
        char path[128];
        int rw[2];
        cp_err err;
        snprintf(path, sizeof path, "%s/%s.%d", fake.dir, e->id, k);
        cp_output_opts o = {
            .loop = fake.loop, .workers = fake.workers, .kind = CP_OUT_MEMORY, .path = path, .budget = UINT64_MAX};
        e->out[k] = cp_output_new(&o, &err);
        assert_non_null(e->out[k]);
        assert_int_equal(cp_pipe(rw, O_NONBLOCK), 0);
        assert_int_equal(cp_output_attach(e->out[k], rw[0], fake_output_ended, e, &err), 0);
        e->impl->write_fd[k] = rw[1];
    }
}

static void fake_copy(char out[64], cp_str s) { snprintf(out, 64, "%.*s", (int)s.n, s.p ? s.p : ""); }

int cp_exec_start(cp_services *s, const cp_exec_spec *spec, cp_exec_watch *w, cp_exec **out, bool *existing,
                  cp_err *err) {
    *existing = false;
    fake.last = *spec;
    fake_copy(fake.last_session, spec->session);
    fake_copy(fake.last_stdin, spec->stdin_data);
    if (spec->nenv)
        snprintf(fake.last_env, 64, "%.*s=%.*s", (int)spec->env[0].name.n, spec->env[0].name.p,
                 (int)spec->env[0].value.n, spec->env[0].value.p);
    if (fake.refuse.code) {
        *err = cp_take(fake.refuse);
        return -1;
    }
    cp_exec *e = cp_new(cp_exec);
    e->svc = s;
    e->impl = cp_new(struct cp_exec_impl);
    cp_ring_init(&e->impl->watches);
    e->kind = spec->kind;
    e->max_output = spec->max_output ? spec->max_output : UINT64_MAX;
    e->refs = 2; /* history's and the caller's */
    char id[32];
    snprintf(id, sizeof id, "x%zu", fake.nexecs);
    e->id = spec->exec_id.n ? cp_str_dup(spec->exec_id) : cp_str_dup(cp_str_of(id));
    snprintf(id, sizeof id, "p%zu", fake.nexecs);
    if (spec->kind != CP_EXEC_BUFFERED)
        e->process_id = spec->process_id.n ? cp_str_dup(spec->process_id) : cp_str_dup(cp_str_of(id));
    e->session = spec->sessionless ? NULL : cp_str_dup(spec->session);
    e->command = cp_str_dup(spec->command);
    e->timeout_ms = spec->timeout_ms;
    e->exit_code = -1;
    e->impl->write_fd[0] = e->impl->write_fd[1] = -1;
    if (w) cp_exec_watch_add(e, w);
    fake.execs[fake.nexecs++] = *out = e;
    return 0;
}

/* ---- the script ---- */

static void fake_loop(void) {
    for (int i = 0; i < 20; i++) cp_loop_once(fake.loop, 0);
}

static cp_exec *fake_newest(void) { return fake.execs[fake.nexecs - 1]; }

static cp_exec *fake_begin(cp_exec *e) {
    e->state = CP_STATE_RUNNING;
    cp_proc self;
    assert_true(cp_proc_read(getpid(), &self)); /* a pid that is alive for as long as the test */
    e->pid = self.pid;
    e->pid_start = self.start_time;
    e->started_wall = cp_wall_ms();
    e->started_ms = cp_now_ms();
    fake_outputs(e);
    fake_tell(e, false);
    return e;
}

static void fake_fail(cp_exec *e, cp_code code, int sys) {
    e->state = CP_STATE_FAILED;
    e->impl->exited = true;
    e->start_err = cp_new(cp_err);
    cp_fail_sys(e->start_err, code, sys, "nope");
    fake_tell(e, false);
    fake_tell(e, true);
}

static void fake_print(cp_exec *e, int k, const char *p, size_t n) {
    while (n) {
        ssize_t done = write(e->impl->write_fd[k], p, n);
        if (done > 0) p += done, n -= (size_t)done;
        fake_loop();
    }
}
static void fake_say(cp_exec *e, int k, const char *z) { fake_print(e, k, z, strlen(z)); }

static void fake_exit(cp_exec *e, int code, int sig) {
    e->impl->exited = true;
    e->exit_code = sig ? 128 + sig : code;
    e->signal = sig;
    cp_close(&e->impl->write_fd[0]);
    cp_close(&e->impl->write_fd[1]);
    fake_loop();
    fake_maybe_end(e);
}

static void fake_killed(cp_exec *e, const cp_kill_result *r) {
    cp_kill_done *done = cp_take(e->impl->kill_done);
    if (done) done(e->impl->kill_arg, e, r);
}

/* ---- services/session.h, registry ---- */

int cp_session_create(cp_services *s, const cp_session_spec *spec, cp_session_done *done, void *arg, cp_err *err) {
    (void)s;
    if (cp_session_exists(s, spec->id)) return cp_fail(err, CP_E_SESSION_ALREADY_EXISTS, "Session already exists");
    char id[64] = "session_1795811127947_415a67e4522d";
    if (spec->id.n) fake_copy(id, spec->id);
    fake.sessions[fake.nsessions++] = strdup(id);
    done(arg, NULL, id);
    return 0;
}
int cp_session_delete(cp_services *s, cp_str id, bool keep, cp_session_done *done, void *arg, cp_err *err) {
    (void)keep;
    if (!cp_session_exists(s, id))
        return cp_fail(err, CP_E_INTERNAL_ERROR, "Session '%.*s' not found", (int)id.n, id.p);
    free((char *)(uintptr_t)fake.sessions[--fake.nsessions]);
    done(arg, NULL, "");
    return 0;
}
void cp_session_each(cp_services *s, void (*fn)(void *, const char *), void *arg) {
    (void)s;
    for (size_t i = 0; i < fake.nsessions; i++) fn(arg, fake.sessions[i]);
}
bool cp_session_exists(cp_services *s, cp_str id) {
    (void)s;
    for (size_t i = 0; i < fake.nsessions; i++)
        if (cp_str_is(id, fake.sessions[i])) return true;
    return false;
}
void cp_session_cwd(cp_services *s, cp_str id, char out[4096]) {
    (void)s, (void)id;
    snprintf(out, 4096, "/");
}

/* A stand-in for the file routes: runs on the io pool and echoes what it was given. "/wait" waits for the gate. */
static atomic_uint fake_reads, fake_waiting;
static pthread_mutex_t fake_gate = PTHREAD_MUTEX_INITIALIZER;
static int fake_io(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    cp_str path = {0};
    (void)ctx;
    if (cp_json_str(req->body, "path", true, &path, err) < 0) return -1;
    atomic_fetch_add(&fake_reads, 1);
    if (cp_str_is(path, "/wait")) {
        atomic_store(&fake_waiting, 1);
        pthread_mutex_lock(&fake_gate);
        pthread_mutex_unlock(&fake_gate);
    } else if (!cp_str_is(path, "/yes"))
        return cp_fail(err, CP_E_FILE_NOT_FOUND, "File not found: %.*s", (int)path.n, path.p);
    cp_str session = cp_request_header(req, "X-Session-Id");
    res->status = 200;
    cp_jw w = cp_jw_on(&res->body);
    cp_jw_str(&w, session);
    return 0;
}
const cp_route cp_files_routes[] = {
    {CP_POST, "/api/read", CP_R_IO | CP_R_BODY, "file.read", fake_io, NULL, ""},
    {CP_PUT, "/api/files/raw", CP_R_IO | CP_R_RAW_BODY, "file.raw", fake_io, NULL, ""},
};
const size_t cp_files_nroutes = CP_COUNT(cp_files_routes);

/* ---- set-up ---- */

static int fake_setup(void **state) {
    (void)state;
    cp_err err = {0};
    memset(&fake, 0, sizeof fake);
    temp_dir_new(fake.dir, "handlers");
    fake.loop = cp_loop_new(&err);
    fake.workers = cp_workers_new(fake.loop, 1, &err);
    fake.config.timeout_grace = 500;
    fake.config.kill_grace = 5000;
    fake.config.history_age = 3600;
    fake.svc = (cp_services){.loop = fake.loop, .workers = fake.workers, .config = &fake.config, .state_dir = fake.dir};
    assert_int_equal(cp_events_open(&fake.svc, &err), 0); /* the real ones */
    fake.ctx = (cp_ctx){.loop = fake.loop, .workers = fake.workers, .svc = &fake.svc, .config = &fake.config};
    client_router = fake.router = fake.ctx.router = cp_router_new(&fake.ctx, &err);
    assert_non_null(fake.router);
    return 0;
}

static int fake_teardown(void **state) {
    (void)state;
    client_reset(&c);
    fake_loop();
    for (size_t i = 0; i < fake.nexecs; i++) {
        cp_exec *e = fake.execs[i];
        assert_int_equal(e->refs, 1); /* every handler has given its reference back */
        assert_true(cp_ring_empty(&e->impl->watches));
        for (int k = 0; k < 2; k++) {
            cp_close(&e->impl->write_fd[k]);
            cp_output_free(e->out[k]);
        }
        free(e->id), free(e->process_id), free(e->session), free(e->command), free(e->start_err), free(e->impl),
            free(e);
    }
    while (fake.nsessions) free((char *)(uintptr_t)fake.sessions[--fake.nsessions]);
    fake_loop();
    cp_router_free(fake.router);
    cp_events_close(&fake.svc);
    cp_workers_free(fake.workers);
    cp_loop_free(fake.loop);
    return temp_dir_remove(fake.dir);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, fake_setup, fake_teardown)

/* ---- what c asks, and is answered ---- */

static void execute(const char *body) { ask(&c, CP_POST, "/api/execute", body); }
static void stream(const char *body) { ask(&c, CP_POST, "/api/execute/stream", body); }

static void expect(int status, const char *code);

/* What is worked out on a thread comes when it comes. */
static inline void expect_soon(int status, const char *code) {
    while (!c.res.status) cp_loop_once(fake.loop, 1000);
    expect(status, code);
}

static void expect(int status, const char *code) {
    assert_int_equal(c.res.status, status);
    if (code) assert_string_equal(text(&c, "/code"), code);
}
