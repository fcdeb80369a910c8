/* The beginning of an execution: what the request resolves to, idempotency, limits, outputs, and the way to a backend.
 */
#include "services/exec.h"

#include "base/clock.h"
#include "base/id.h"
#include "base/metrics.h"
#include "services/exec_core.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- users ---- */

int cp_user_resolve(const char *user, uid_t *uid, gid_t *gid, char **name, cp_err *err) {
    struct passwd pw, *found = NULL;
    uint64_t number = 0;
    bool numeric = cp_str_u64(cp_str_of(user), UINT32_MAX - 1, &number);
    size_t cap = 16384;
    cp_autofree char *buf = cp_alloc(cap);
    int r = numeric ? getpwuid_r((uid_t)number, &pw, buf, cap, &found) : getpwnam_r(user, &pw, buf, cap, &found);
    if (!found && !numeric)
        return r ? cp_fail_field(err, "user", "user %s: %s", user, strerror(r))
                 : cp_fail_field(err, "user", "no such user: %s", user);
    *uid = found ? found->pw_uid : (uid_t)number;
    *gid = found ? found->pw_gid : (gid_t)number;
    *name = found ? cp_str_dup(cp_str_of(found->pw_name)) : NULL;
    return 0;
}

int cp_user_groups(const char *name, gid_t gid, gid_t **groups, size_t *n, cp_err *err) {
    enum { MOST = 1024 };
    int count = MOST;
    *groups = NULL;
    *n = 0;
    if (!name) return 0;
    cp_autofree gid_t *v = cp_alloc(MOST * sizeof *v);
    if (getgrouplist(name, gid, v, &count) < 0)
        return cp_fail_field(err, "user", "user %s is in more than %d groups", name, MOST);
    *n = (size_t)count;
    *groups = cp_take(v);
    return 0;
}

/* ---- the request ---- */

/* Both: NULL with an error when there is no memory. */
static char **copy_args(const cp_exec_spec *spec, cp_err *err) {
    char **v = cp_try_array(spec->nargs + 1, sizeof *v, err);
    if (!v) return NULL;
    for (size_t i = 0; i < spec->nargs; i++) v[i] = cp_str_dup(spec->args[i]);
    return v;
}

static char **copy_env(const cp_exec_spec *spec, cp_err *err) {
    char **v = cp_try_array(spec->nenv + 1, sizeof *v, err);
    if (!v) return NULL;
    for (size_t i = 0; i < spec->nenv; i++) {
        cp_buf b = {0};
        cp_buf_add(&b, spec->env[i].name.p, spec->env[i].name.n);
        cp_buf_addc(&b, '=');
        cp_buf_add(&b, spec->env[i].value.p, spec->env[i].value.n);
        (void)cp_buf_z(&b);
        v[i] = b.p;
    }
    return v;
}

static char *dup_some(cp_str s) { return s.n ? cp_str_dup(s) : NULL; }

static int copy_job(cp_exec *e, const cp_exec_spec *spec, cp_err *err) {
    cp_exec_job *j = &e->impl->job;
    struct cp_execs *x = e->svc->execs;
    if (!(j->command = cp_str_try_dup(spec->command))) return cp_no_memory(err, spec->command.n);
    if (spec->args && !(j->args = copy_args(spec, err))) return -1;
    if (spec->nenv && !(j->env = copy_env(spec, err))) return -1;
    j->cwd = dup_some(spec->cwd);
    j->want_stdin = spec->stdin_open || spec->stdin_data.n;
    j->user = dup_some(spec->user);
    j->set_user = j->user || x->set_user;
    if (!j->user && x->set_user) {
        j->uid = x->uid;
        j->gid = x->gid;
        if (x->user) j->user = cp_str_dup(cp_str_of(x->user));
        j->ngroups = x->ngroups;
        if (x->ngroups) {
            j->groups = cp_alloc(x->ngroups * sizeof *j->groups);
            memcpy(j->groups, x->groups, x->ngroups * sizeof *j->groups);
        }
    }
    return 0;
}

static size_t env_size(const cp_exec_spec *spec) {
    size_t n = 0;
    for (size_t i = 0; i < spec->nenv; i++) n += spec->env[i].name.n + spec->env[i].value.n;
    return n;
}

static size_t args_size(const cp_exec_spec *spec) {
    size_t n = 0;
    for (size_t i = 0; i < spec->nargs; i++) n += spec->args[i].n;
    return n;
}

static size_t job_size(const cp_exec_spec *spec) {
    return spec->command.n + args_size(spec) + env_size(spec) + spec->cwd.n + spec->user.n;
}

static void new_process_id(char out[40]) {
    char tail[7];
    cp_random_base36(tail, 6);
    snprintf(out, 40, "proc_%013lld_%s", (long long)cp_wall_ms(), tail);
}

static void new_exec_id(char out[40]) {
    char tail[9];
    cp_random_base36(tail, 8);
    snprintf(out, 40, "exec_%013lld_%s", (long long)cp_wall_ms(), tail);
}

bool cp_exec_made_id(cp_str id) {
    size_t digits = 0;
    if (id.n < 5 + 13 + 1 + 8 || memcmp(id.p, "exec_", 5) != 0) return false;
    while (5 + digits < id.n && id.p[5 + digits] >= '0' && id.p[5 + digits] <= '9') digits++;
    if (digits < 13 || id.n != 5 + digits + 1 + 8 || id.p[5 + digits] != '_') return false;
    for (size_t i = id.n - 8; i < id.n; i++)
        if (!strchr("0123456789abcdefghijklmnopqrstuvwxyz", id.p[i]) || !id.p[i]) return false;
    return true;
}

/* NULL: there is no memory for what the client has sent. */
static cp_exec *from_spec(cp_services *s, const cp_exec_spec *spec, cp_err *err) {
    char id[40];
    new_exec_id(id);
    cp_autofree char *chosen = dup_some(spec->exec_id);
    cp_exec *e = cp_exec_make(s, chosen ? chosen : id, spec->kind);
    e->chosen_id = chosen != NULL;
    e->durable = spec->kind != CP_EXEC_BUFFERED || e->chosen_id;
    if (spec->kind != CP_EXEC_BUFFERED) {
        new_process_id(id);
        e->process_id = spec->process_id.n ? cp_str_dup(spec->process_id) : cp_str_dup(cp_str_of(id));
    }
    if (!spec->sessionless) e->session = cp_str_dup(spec->session);
    e->cwd = spec->cwd.n ? cp_str_dup(spec->cwd) : spec->sessionless ? cp_str_dup(cp_str_of(s->workspace)) : NULL;
    cp_exec_text_set(e, spec->command, spec->command_sha256);
    e->timeout_ms = spec->timeout_ms;
    e->max_output = spec->max_output ? spec->max_output : (uint64_t)s->config->max_output;
    memcpy(e->fingerprint, spec->fingerprint, sizeof e->fingerprint);
    e->impl->argv_form = spec->args != NULL;
    if (copy_job(e, spec, err) < 0 || cp_room(&e->impl->in, spec->stdin_data.n, err) < 0) {
        cp_exec_unref(e);
        return NULL;
    }
    cp_charge_force(&e->impl->job_charge, job_size(spec)); /* admit has asked */
    cp_buf_add(&e->impl->in, spec->stdin_data.p, spec->stdin_data.n);
    e->impl->in_charge.kind = CP_MEM_STDIN;
    cp_charge_force(&e->impl->in_charge, e->impl->in.n); /* admit has asked */
    e->impl->in_open = e->impl->job.want_stdin;
    e->impl->in_eof = !spec->stdin_open;
    e->started_wall = cp_wall_ms();
    return e;
}

/* ---- outputs ---- */

/* A durable buffered call keeps the beginning, since that is its result, and more than the result, so that what was cut
 * off can still be fetched (B110). What runs on its own keeps the end. */
static void budget_of(const cp_exec *e, cp_output_opts *o) {
    uint64_t log = (uint64_t)e->svc->config->log_budget;
    o->kind = e->durable ? CP_OUT_FILE : CP_OUT_MEMORY;
    o->stop_at_budget = e->kind == CP_EXEC_BUFFERED;
    o->budget = log;
    if (e->kind == CP_EXEC_BUFFERED) o->budget = !e->durable || e->max_output > log ? e->max_output : log;
}

int cp_exec_outputs(cp_exec *e, const cp_exec_row *reopen, cp_err *err) {
    static const char *const ends[] = {"out", "err"};
    for (int k = 0; k < 2; k++) {
        cp_autobuf cp_buf path = {0};
        cp_buf_addf(&path, "%s/logs/%s.%s", e->svc->state_dir, e->id, ends[k]);
        cp_output_opts o = {.loop = e->svc->loop, .workers = e->svc->workers, .path = cp_buf_z(&path)};
        budget_of(e, &o);
        /* Its output would be written over the former one's, and the next server would take both for it. */
        if (!reopen && o.kind == CP_OUT_FILE && e->svc->execs->strange_logs) unlink(o.path);
        e->out[k] =
            reopen ? cp_output_reopen_known(&o, reopen->dropped[k], reopen->total[k], err) : cp_output_new(&o, err);
        if (!e->out[k]) return -1;
    }
    return 0;
}

/* ---- environment ---- */

static bool overrides(char *const *env, const char *var) {
    size_t n = (size_t)(strchrnul(var, '=') - var);
    for (; env && *env; env++)
        if (strncmp(*env, var, n) == 0 && (*env)[n] == '=') return true;
    return false;
}

const char **cp_exec_environ(cp_exec *e, cp_err *err) {
    char **mine = e->impl->job.env;
    size_t n = 1, k = 0;
    for (char **v = e->svc->base_env; v && *v; v++) n++;
    for (char **v = mine; v && *v; v++) n++;
    const char **env = cp_try_array(n, sizeof *env, err);
    if (!env) return NULL;
    for (char **v = e->svc->base_env; v && *v; v++)
        if (!overrides(mine, *v)) env[k++] = *v;
    for (char **v = mine; v && *v; v++) env[k++] = *v;
    return env;
}

/* ---- to a backend ---- */

/* For what somebody waits for, and neither the request nor its session says how long. Nothing in the background has a
 * limit that was not asked for (B046). */
static void default_timeout(cp_exec *e) {
    if (e->timeout_ms || e->kind != CP_EXEC_BUFFERED) return;
    e->timeout_ms = (uint64_t)e->svc->config->command_timeout;
    cp_exec_timeout_start(e);
}

void cp_exec_dispatch(cp_exec *e) {
    if (e->state != CP_STATE_STARTING || e->impl->has_exit) return; /* ended while it waited */
    e->impl->called = e->kind == CP_EXEC_BUFFERED;
    e->svc->execs->calls += e->impl->called;
    if (e->impl->argv_form) cp_exec_run_argv(e);
    else if (e->session) cp_exec_run_session(e);
    else cp_exec_run_shell(e);
    default_timeout(e);
}

static void intent_recorded(cp_reg_done *d) {
    struct cp_row_wait *w = CP_CONTAINER(d, struct cp_row_wait, done);
    cp_exec *e = w->e;
    if (d->failed && e->impl->listed) {
        cp_err err = d->err;
        cp_wrap(&err, "the execution could not be recorded");
        cp_exec_failed(e, &err);
    } else if (e->impl->listed) { /* else the services have been closed meanwhile */
        cp_exec_begin_with_room(e, false);
    }
    free(w);
    cp_exec_unref(e);
}

/* At most one start per id, also across a crash, and nobody is told of a child that a restarted server would not know:
 * the intent is recorded before there is a child. */
static void record(cp_exec *e) {
    bool waited = e->impl->job.user || e->impl->text_bytes; /* meanwhile */
    if (e->durable && e->svc->registry) cp_exec_put_row(e, "intent", intent_recorded);
    else cp_exec_begin_with_room(e, !waited);
}

static void begin(cp_exec *e) {
    if (e->durable && e->command_truncated) cp_exec_text_save(e, record);
    else record(e);
}

/* The name of a user may come over the network: not on the loop. A name that hangs delays itself: each is an owner. */
struct user_lookup {
    cp_work work;
    cp_exec *e;
    cp_err err;
    bool failed;
};

static void lookup_run(cp_work *w) {
    struct user_lookup *u = CP_CONTAINER(w, struct user_lookup, work);
    cp_exec_job *j = &u->e->impl->job;
    char *name = NULL;
    u->failed = cp_user_resolve(j->user, &j->uid, &j->gid, &name, &u->err) < 0;
    if (u->failed) return;
    u->failed = cp_user_groups(name, j->gid, &j->groups, &j->ngroups, &u->err) < 0;
    free(j->user);
    j->user = name;
}

static void lookup_done(cp_work *w) {
    struct user_lookup *u = CP_CONTAINER(w, struct user_lookup, work);
    cp_exec *e = u->e;
    e->impl->borrowed = false;
    if (!e->impl->listed || e->impl->has_exit) cp_exec_job_free(e);
    else if (u->failed) cp_exec_failed(e, &u->err);
    else begin(e);
    free(u);
    cp_exec_unref(e);
}

static uint64_t owner_of(const char *name) {
    uint64_t h = UINT64_C(14695981039346656037);
    for (; *name; name++) h = (h ^ (uint8_t)*name) * UINT64_C(1099511628211);
    return h | CP_OWNER_CLIENTS;
}

static void look_up(cp_exec *e) {
    struct user_lookup *u = cp_new(struct user_lookup);
    u->e = e;
    e->impl->borrowed = true;
    cp_exec_ref(e);
    cp_workers_submit_to(e->svc->workers, CP_LANE_LOOKUP, owner_of(e->impl->job.user), &u->work, lookup_run,
                         lookup_done);
}

/* ---- idempotency and limits ---- */

static bool same(const cp_exec *e, const cp_exec_spec *spec) {
    return memcmp(e->fingerprint, spec->fingerprint, sizeof e->fingerprint) == 0;
}

static int conflict(const cp_exec *e, cp_err *err) {
    static const uint8_t unknown[sizeof e->fingerprint];
    if (memcmp(e->fingerprint, unknown, sizeof unknown) != 0)
        return cp_fail(err, CP_E_EXECUTION_CONFLICT, "execution %s belongs to another request", e->id);
    return cp_fail(err, CP_E_EXECUTION_CONFLICT,
                   "execution %s is there already; by which request it was started was lost with the registry", e->id);
}

static bool over(const cp_exec *e) { return e->state == CP_STATE_ENDED || e->state == CP_STATE_FAILED; }

/* It was never begun for a lack that may have passed: whoever asks again gets a start, not the refusal of then. */
static bool may_begin_now(const cp_exec *e) {
    const cp_err *why = e->start_err;
    return why && (why->code == CP_E_LIMIT_EXCEEDED || why->code == CP_E_TOO_MANY_FILES || why->code == CP_E_NO_SPACE);
}

/* 1: *out is the one that there is; 0: start one; -1. */
static int find_existing(cp_services *s, const cp_exec_spec *spec, cp_exec **out, cp_err *err) {
    cp_exec *e = spec->exec_id.n ? cp_exec_find(s, spec->exec_id) : NULL;
    if (e && !same(e, spec)) return conflict(e, err);
    if (!e && spec->process_id.n) {
        e = cp_exec_find_process(s, spec->process_id);
        if (e && !same(e, spec)) {
            if (!over(e)) return cp_fail(err, CP_E_RESOURCE_BUSY, "process %s is running", e->process_id);
            cp_exec_evict(e);
            e = NULL;
        }
    }
    if (e && may_begin_now(e)) {
        cp_exec_evict(e);
        e = NULL;
    }
    *out = e;
    return e ? 1 : 0;
}

/* Whether memory has room for what comes with the request. */
static int room_for(cp_mem_kind kind, size_t n, const char *field, cp_err *err) {
    cp_charge room = {.kind = kind};
    int rc = cp_charge_set(&room, n, err);
    cp_charge_free(&room);
    if (rc < 0 && err) snprintf(err->field, sizeof err->field, "%s", field);
    return rc;
}

/* The field that most of it is in. */
static int room_for_job(const cp_exec_spec *spec, cp_err *err) {
    const char *field = env_size(spec) > spec->command.n ? "env" : spec->nargs ? "args" : "command";
    return room_for(CP_MEM_COMMANDS, job_size(spec), field, err);
}

static int admit(cp_services *s, const cp_exec_spec *spec, cp_err *err) {
    if (s->draining) return cp_fail(err, CP_E_OPERATION_INTERRUPTED, "the server is shutting down");
    if (s->execs->running >= (size_t)s->config->max_processes)
        return cp_fail(err, CP_E_LIMIT_EXCEEDED, "%zu commands are running (limit max-processes)", s->execs->running);
    if (spec->stdin_data.n > CP_STDIN_QUEUE) {
        cp_fail(err, CP_E_LIMIT_EXCEEDED, "stdin is over %d bytes; open it and send it in pieces", CP_STDIN_QUEUE);
        if (err) snprintf(err->field, sizeof err->field, "stdin");
        return -1;
    }
    if (room_for(CP_MEM_STDIN, spec->stdin_data.n, "stdin", err) < 0 || room_for_job(spec, err) < 0) return -1;
    if (spec->user.n && s->execs->set_user && !s->config->allow_user) {
        cp_fail(err, CP_E_PERMISSION_DENIED, "commands run as the user of --child-user (see --allow-user)");
        if (err) snprintf(err->field, sizeof err->field, "user");
        return -1;
    }
    if (spec->user.n && geteuid() != 0) {
        cp_fail(err, CP_E_PERMISSION_DENIED, "running as another user needs privilege");
        if (err) snprintf(err->field, sizeof err->field, "user");
        return -1;
    }
    return 0;
}

int cp_exec_start(cp_services *s, const cp_exec_spec *spec, cp_exec_watch *w, cp_exec **out, bool *existing,
                  cp_err *err) {
    cp_exec *e = NULL;
    int found = find_existing(s, spec, &e, err);
    *existing = found > 0;
    if (found < 0 || (!found && admit(s, spec, err) < 0)) return -1;
    if (!found) {
        if (!(e = from_spec(s, spec, err))) return -1;
        if (cp_exec_outputs(e, NULL, err) < 0) {
            cp_exec_unref(e);
            return -1;
        }
        cp_exec_list(e);
        s->execs->running++;
        e->impl->oneshot = e->kind == CP_EXEC_BUFFERED && !e->session;
        s->execs->oneshots += e->impl->oneshot;
        cp_metric_add(CP_M_PROCESSES, 1);
    } else {
        cp_exec_ref(e);
    }
    if (w) cp_exec_watch_add(e, w);
    *out = e;
    if (found) return 0;
    cp_exec_timeout_start(e);
    if (spec->user.n) look_up(e);
    else begin(e);
    return 0;
}
