/* The table of sessions and what the API asks of it.
 *
 * A session is listed from its creation (explicit, or by the first command that names it) until it is deleted. Its
 * shell may end and be started again meanwhile. A deleted one leaves the table at once, so its id is free, and lives on
 * among `gone` until its shell has ended. Sessions of a former server come back with their shell when that is alive. */
#include "services/session_impl.h"

#include "base/clock.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/log.h"
#include "base/sha.h"
#include "services/events.h"
#include "services/exec_core.h"
#include "services/stray.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- table ---- */

static size_t slot_of(const struct cp_sessions *t, cp_str id) {
    uint64_t h = 1469598103934665603u; /* FNV-1a */
    for (size_t i = 0; i < id.n; i++) h = (h ^ (uint8_t)id.p[i]) * 1099511628211u;
    return (size_t)(h ^ h >> 32) & t->mask;
}

struct cp_session *session_find(cp_services *svc, cp_str id) {
    struct cp_session *s = svc->sessions->table[slot_of(svc->sessions, id)];
    while (s && !cp_str_is(id, s->id)) s = s->hash_next;
    return s;
}

static void list(struct cp_session *s) {
    struct cp_sessions *t = s->svc->sessions;
    struct cp_session **p = &t->table[slot_of(t, cp_str_of(s->id))];
    pthread_mutex_lock(&t->lock);
    s->hash_next = *p;
    *p = s;
    s->prev = t->last;
    if (t->last) t->last->next = s;
    else t->first = s;
    t->last = s;
    t->count++;
    pthread_mutex_unlock(&t->lock);
    s->listed = true;
}

static void unlist(struct cp_session *s) {
    struct cp_sessions *t = s->svc->sessions;
    struct cp_session **p = &t->table[slot_of(t, cp_str_of(s->id))];
    pthread_mutex_lock(&t->lock);
    while (*p != s) p = &(*p)->hash_next;
    *p = s->hash_next;
    if (s->prev) s->prev->next = s->next;
    else t->first = s->next;
    if (s->next) s->next->prev = s->prev;
    else t->last = s->prev;
    s->prev = s->next = NULL;
    t->count--;
    pthread_mutex_unlock(&t->lock);
    s->listed = false;
}

void session_set_cwd(struct cp_session *s, const char *cwd) {
    char *copy = cp_str_dup(cp_str_of(cwd));
    pthread_mutex_lock(&s->svc->sessions->lock);
    char *old = s->cwd;
    s->cwd = copy;
    pthread_mutex_unlock(&s->svc->sessions->lock);
    free(old);
}

void cp_session_cwd(cp_services *svc, cp_str id, char out[4096]) {
    struct cp_sessions *t = svc->sessions;
    pthread_mutex_lock(&t->lock);
    struct cp_session *s = session_find(svc, id);
    snprintf(out, 4096, "%s", s && s->cwd ? s->cwd : svc->workspace);
    pthread_mutex_unlock(&t->lock);
}

/* The row and its event are one transaction: each tells a restarted server of the other. */
static void announce(struct cp_session *s) {
    if (s->announced) return;
    s->announced = true;
    cp_event_publish(s->svc, &(cp_event_row){.type = CP_EVENT_SESSION_CREATED, .session = s->id, .pid = s->child.pid});
}

static void remove_row(cp_services *svc, const char *id) {
    if (svc->registry) {
        cp_registry_begin(svc->registry);
        cp_registry_del_session(svc->registry, id);
    }
    cp_event_publish(svc, &(cp_event_row){.type = CP_EVENT_SESSION_ENDED, .session = id});
    if (svc->registry) cp_registry_end(svc->registry);
}

void session_store(struct cp_session *s, const char *state) {
    if (!s->listed) return;
    bool live = s->shell == SHELL_READY;
    if (!s->svc->registry) {
        announce(s);
        return;
    }
    cp_session_row row = {.id = s->id,
                          .cwd = s->start_cwd,
                          .state = state,
                          .created_ms = s->created_wall,
                          .ended_ms = live ? 0 : cp_wall_ms(),
                          .pid = live ? s->child.pid : 0,
                          .pid_start = live ? s->child.start_time : 0};
    cp_registry_begin(s->svc->registry);
    cp_registry_put_session(s->svc->registry, &row, NULL);
    announce(s);
    cp_registry_end(s->svc->registry);
}

/* ---- environment of the shell ---- */

static bool names(const char *assignment, cp_str name) {
    return strncmp(assignment, name.p, name.n) == 0 && assignment[name.n] == '=';
}

static bool overridden(const char *assignment, const cp_session_spec *spec) {
    static const char *const ours[] = {"LANG", "LC_ALL"};
    for (size_t i = 0; i < CP_COUNT(ours); i++)
        if (names(assignment, cp_str_of(ours[i]))) return true;
    for (size_t i = 0; i < spec->nenv; i++)
        if (names(assignment, spec->env[i].name)) return true;
    return false;
}

static char *assignment(cp_str name, cp_str value) {
    cp_buf b = {0};
    cp_buf_add(&b, name.p, name.n);
    cp_buf_addc(&b, '=');
    cp_buf_add(&b, value.p, value.n);
    (void)cp_buf_z(&b);
    return b.p;
}

static char **make_env(const cp_services *svc, const cp_session_spec *spec, cp_err *err) {
    size_t base = 0, n = 0;
    while (svc->base_env[base]) base++;
    char **env = cp_try_array(base + spec->nenv + 3, sizeof *env, err);
    if (!env) return NULL;
    for (size_t i = 0; i < base; i++)
        if (!overridden(svc->base_env[i], spec)) env[n++] = cp_str_dup(cp_str_of(svc->base_env[i]));
    for (size_t i = 0; i < spec->nenv; i++) env[n++] = assignment(spec->env[i].name, spec->env[i].value);
    env[n++] = assignment(CP_STR("LANG"), CP_STR("C.UTF-8"));
    env[n++] = assignment(CP_STR("LC_ALL"), CP_STR("C.UTF-8"));
    return env;
}

static size_t size_of_env(char *const *env) {
    size_t n = 0;
    for (; *env; env++) n += strlen(*env) + 1;
    return n;
}

/* ---- one ---- */

static struct cp_session *session_blank(cp_services *svc, cp_str id) {
    struct cp_session *s = cp_new(struct cp_session);
    s->svc = svc;
    s->id = cp_str_dup(id);
    s->dir = s->record = s->status = s->script = s->depot = s->exports_fd = -1;
    s->env_charge.kind = s->exports_charge.kind = CP_MEM_SESSIONS;
    s->created_wall = cp_wall_ms();
    return s;
}

static void session_free(struct cp_session *s, bool remove_folder) {
    cp_loop_undefer(s->svc->loop, &s->more);
    session_shell_forget(s);
    cp_loop_undefer(s->svc->loop, &s->later);
    session_folder_close(s, remove_folder);
    cp_close(&s->depot);
    for (char **e = s->env; e && *e; e++) free(*e);
    free(s->env);
    free(s->start_cwd);
    free(s->shell_cwd);
    free(s->cwd);
    free(s->path);
    free(s->id);
    cp_buf_free(&s->inbox);
    cp_buf_free(&s->exports);
    cp_buf_free(&s->exports_new.text);
    cp_charge_free(&s->env_charge);
    cp_charge_free(&s->exports_charge);
    free(s);
}

static bool idle_dead(const struct cp_session *s) {
    return s->shell == SHELL_NONE && !s->head && !s->current && !s->on_created;
}

static void discard(struct cp_session *s) {
    unlist(s);
    if (s->announced) remove_row(s->svc, s->id);
    session_free(s, true);
}

/* Ids whose shell has ended hold a place only while there is room. */
static int make_room(struct cp_sessions *t, int64_t limit, cp_err *err) {
    for (struct cp_session *s = t->first, *next; s && t->count >= (size_t)limit; s = next) {
        next = s->next;
        if (idle_dead(s)) discard(s);
    }
    if (t->count < (size_t)limit) return 0;
    return cp_fail(err, CP_E_LIMIT_EXCEEDED, "%zu sessions exist (limit max-sessions)", t->count);
}

static struct cp_session *session_new(cp_services *svc, const cp_session_spec *spec, cp_err *err) {
    if (spec->id.n > CP_SESSION_ID_MAX) {
        cp_fail_field(err, "sessionId", "the id of a session is at most %d bytes", CP_SESSION_ID_MAX);
        return NULL;
    }
    if (make_room(svc->sessions, svc->config->max_sessions, err) < 0) return NULL;
    struct cp_session *s = session_blank(svc, spec->id);
    cp_random_hex(s->token, SESSION_TOKEN);
    s->start_cwd = cp_str_dup(spec->cwd.n ? spec->cwd : cp_str_of(svc->workspace));
    s->env = make_env(svc, spec, err);
    s->command_timeout_ms = spec->command_timeout_ms;
    if (!s->env || cp_charge_set(&s->env_charge, size_of_env(s->env), err) < 0) {
        if (err) snprintf(err->field, sizeof err->field, "env");
        session_free(s, false);
        return NULL;
    }
    if (session_folder_open(s, false, err) < 0) {
        session_free(s, true);
        return NULL;
    }
    session_set_cwd(s, s->start_cwd);
    list(s);
    return s;
}

/* The first command's folder becomes the session's; its variables are its own. */
struct cp_session *session_implicit(cp_exec *e, cp_err *err) {
    cp_session_spec spec = {.id = cp_str_of(e->session), .cwd = cp_str_of(cp_exec_job_of(e)->cwd)};
    return session_new(e->svc, &spec, err);
}

static void later(cp_deferred *d) {
    struct cp_session *s = CP_CONTAINER(d, struct cp_session, later);
    cp_session_done *created = cp_take(s->on_created);
    bool failed = s->create_err.code != CP_OK;
    if (created) created(s->created_arg, failed ? &s->create_err : NULL, s->id);
    if (!created || !failed || !s->listed) return;
    if (idle_dead(s)) discard(s);
    else (void)cp_session_delete(s->svc, cp_str_of(s->id), false, NULL, NULL, NULL);
}

void session_created(struct cp_session *s, const cp_err *err) {
    if (!s->on_created) return;
    s->create_err = err ? *err : (cp_err){0};
    cp_loop_defer(s->svc->loop, &s->later, later);
}

static void new_id(char out[48]) {
    char tail[13];
    cp_random_hex(tail, 12);
    snprintf(out, 48, "session_%013lld_%s", (long long)cp_wall_ms(), tail);
}

int cp_session_create(cp_services *svc, const cp_session_spec *spec, cp_session_done *done, void *arg, cp_err *err) {
    cp_session_spec full = *spec;
    char id[48];
    if (!full.id.n) {
        new_id(id);
        full.id = cp_str_of(id);
    }
    struct cp_session *s = session_find(svc, full.id);
    if (s && !idle_dead(s))
        return cp_fail(err, CP_E_SESSION_ALREADY_EXISTS, "Session '%.*s' already exists", (int)full.id.n, full.id.p);
    if (s) discard(s);
    s = session_new(svc, &full, err);
    if (!s) return -1;
    s->on_created = done;
    s->created_arg = arg;
    session_job_push(s, session_job_new(s, JOB_SYNC), false);
    session_pump(s);
    return 0;
}

/* ---- the end of one ---- */

static void gone_fn(cp_deferred *d) {
    struct cp_session *s = CP_CONTAINER(d, struct cp_session, later);
    struct cp_session **p = &s->svc->sessions->gone;
    while (*p != s) p = &(*p)->next;
    *p = s->next;
    if (s->on_created) s->on_created(s->created_arg, &s->create_err, s->id);
    if (s->on_deleted) s->on_deleted(s->deleted_arg, NULL, s->id);
    session_free(s, true);
}

void session_gone(struct cp_session *s) {
    if (s->current) return; /* a subshell whose fate the keeper has still to tell */
    cp_loop_undefer(s->svc->loop, &s->later);
    cp_loop_defer(s->svc->loop, &s->later, gone_fn);
}

struct gather {
    const char *id;
    cp_exec **v;
    size_t n, cap;
};

static bool gather_background(void *arg, cp_exec *e) {
    struct gather *g = arg;
    if (e->kind == CP_EXEC_BUFFERED || e->state != CP_STATE_RUNNING || !e->session || strcmp(e->session, g->id) != 0)
        return true;
    if (g->n == g->cap) g->v = cp_realloc(g->v, (g->cap = g->cap ? 2 * g->cap : 16) * sizeof(cp_exec *));
    cp_exec_ref(e);
    g->v[g->n++] = e;
    return true;
}

/* A stream then ends without an exit code, as the page has it; a process keeps its wait status. */
static void kill_background(struct cp_session *s) {
    struct gather g = {.id = s->id};
    cp_exec_each(s->svc, gather_background, &g);
    for (size_t i = 0; i < g.n; i++) {
        if (g.v[i]->kind == CP_EXEC_STREAM) g.v[i]->session_destroyed = true;
        (void)cp_exec_kill(g.v[i], SIGKILL, 0, CP_OUTCOME_signal, NULL, NULL, NULL);
        cp_exec_unref(g.v[i]);
    }
    free(g.v);
}

int cp_session_delete(cp_services *svc, cp_str id, bool keep, cp_session_done *done, void *arg, cp_err *err) {
    struct cp_session *s = session_find(svc, id);
    if (!s) return cp_fail(err, CP_E_INTERNAL_ERROR, "Session '%.*s' not found", (int)id.n, id.p);
    unlist(s);
    s->deleted = true;
    s->keep = keep;
    s->on_deleted = done;
    s->deleted_arg = arg;
    s->next = svc->sessions->gone;
    svc->sessions->gone = s;
    if (s->announced) remove_row(svc, s->id);
    cp_fail(&s->create_err, CP_E_SESSION_DESTROYED, "session %s has been deleted", s->id);
    session_fail_waiting(s, &s->create_err);
    if (s->current && s->current->exec) s->current->exec->session_destroyed = true;
    if (!keep) kill_background(s);
    if (s->shell == SHELL_READY) session_shell_kill(s);
    else if (!keep) session_kill_all(s); /* of former shells */
    if (s->shell == SHELL_NONE) session_gone(s);
    return 0;
}

void cp_session_each(cp_services *svc, void (*fn)(void *arg, const char *id), void *arg) {
    for (struct cp_session *s = svc->sessions->first; s; s = s->next) fn(arg, s->id);
}

bool cp_session_exists(cp_services *svc, cp_str id) { return session_find(svc, id) != NULL; }

/* ---- a former server's ---- */

static struct cp_sessions *sessions_of(cp_services *svc) {
    if (svc->sessions) return svc->sessions;
    struct cp_sessions *t = svc->sessions = cp_new(struct cp_sessions);
    pthread_mutex_init(&t->lock, NULL);
    t->loadavg = -1;
    return t;
}

void cp_sessions_held(cp_services *svc, const cp_held *h) {
    struct cp_sessions *t = sessions_of(svc);
    struct session_held *held = cp_new(struct session_held);
    held->h = *h;
    held->key = cp_str_dup(cp_str_of(h->key));
    held->h.key = held->key;
    held->n = session_depot_list(h->fds[2], held->v);
    t->held_cut |= errno != 0;
    held->next = t->held;
    t->held = held;
}

/* As it was given to the shell; kept nowhere else. */
static char **env_of_pid(pid_t pid) {
    char path[40];
    cp_autofree char *text = NULL;
    size_t n = 0, count = 0;
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    if (cp_read_file(path, (size_t)16 << 20, &text, &n) < 0) n = 0;
    for (size_t i = 0; i < n; i++) count += text[i] == '\0';
    char **env = cp_alloc((count + 2) * sizeof *env), **out = env;
    for (const char *p = text; p && p < text + n; p += strlen(p) + 1) *out++ = cp_str_dup(cp_str_of(p));
    return env;
}

/* Of no use: it has ended. The keeper need not hold it any longer. */
static void give_up(cp_services *svc, const cp_held *h) {
    cp_child gone = {0};
    cp_log(CP_LOG_INFO, "session.lost", "a session of the former server has ended", CP_KVZ("key", h->key));
    if (!h->exited) cp_stray_kill(svc, h->pid, h->start_time);
    cp_keeper_claim(svc->keeper, &gone, h);
    cp_keeper_ack(svc->keeper, &gone);
    cp_keeper_forget(svc->keeper, &gone);
}

/* Key "s:<token>:<id>"; NULL when it is not one. */
static const char *id_of_key(const char *key) {
    return strncmp(key, "s:", 2) == 0 && strlen(key) > 15 && key[14] == ':' ? key + 15 : NULL;
}

static bool revive(struct cp_session *s, const cp_held *h, cp_err *err) {
    if (h->exited || h->fds[0] < 0 || h->fds[1] < 0 || session_find(s->svc, cp_str_of(s->id))) return false;
    snprintf(s->token, sizeof s->token, "%.12s", h->key + 2);
    s->start_cwd = cp_str_dup(cp_str_of(s->svc->workspace)); /* until the registry says better */
    s->env = env_of_pid(h->pid);
    cp_charge_force(&s->env_charge, size_of_env(s->env)); /* it is there already */
    session_set_cwd(s, s->start_cwd);
    if (session_folder_open(s, true, err) < 0 && cp_no_fd(err->sys)) return false;
    list(s);
    s->pair_next = (unsigned)cp_wall_ms(); /* beyond what former servers have given */
    session_folder_drain(s);
    (void)session_exports_open(s); /* the shell may be about to write there, and would wait for a reader */
    session_shell_attach(s, h);
    s->seq = cp_now_us(); /* reports of commands that the former server gave carry other numbers */
    return true;
}

/* What could not be gone on with; unless the next start can. */
static void lose_rest(cp_services *svc, struct session_held *held, bool later) {
    for (size_t i = 0; i < held->n; i++) {
        cp_exec *e = cp_exec_find(svc, cp_str_of(held->v[i].id));
        if (e && !later && e->state == CP_STATE_STARTING) cp_exec_lose(e);
        session_deposit_close(&held->v[i]);
    }
}

/* The shell may be at work for nobody: a line that only reports is answered when that is over. A lack of descriptors is
 * no reason to end it: this start fails instead, and the next one finds it. */
static int restore(cp_services *svc, struct session_held *held, cp_err *err) {
    cp_err why = {0};
    cp_held *h = &held->h;
    const char *id = id_of_key(h->key);
    struct cp_session *s = session_blank(svc, cp_str_of(id ? id : ""));
    s->status = h->fds[1];
    s->depot = h->fds[2];
    s->held = held;
    (void)session_inherit_reports(s, held);
    bool revived = id && revive(s, h, &why);
    s->held = NULL;
    if (revived) {
        session_inherit(s, held);
        session_job_push(s, session_job_new(s, JOB_SYNC), false);
        session_pump(s);
        return 0;
    }
    bool again = cp_no_fd(why.sys);
    if (again) *err = why;
    else give_up(svc, h);
    cp_close(&h->fds[0]);
    session_free(s, !again);
    return again ? -1 : 0;
}

/* ---- all ---- */

/* Beside the state where that is enough; the shells of another user could not get into it. */
static char *base_path(const cp_services *svc, bool set_user) {
    cp_autobuf cp_buf path = {0};
    if (set_user) {
        uint8_t sum[32];
        cp_sha256_of(svc->state_dir, strlen(svc->state_dir), sum);
        cp_buf_addf(&path, "/dev/shm/conflux-%02x%02x%02x%02x", sum[0], sum[1], sum[2], sum[3]);
    } else {
        cp_buf_addf(&path, "%s/sessions", svc->state_dir);
    }
    return cp_str_dup(cp_buf_str(&path));
}

static bool is_ours(const char *folder) {
    struct stat st;
    return lstat(folder, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid();
}

static void open_base(cp_services *svc) {
    struct cp_sessions *t = svc->sessions;
    cp_err err;
    t->base = base_path(svc, t->set_user);
    if (session_base_make(t, &err) < 0)
        cp_log(CP_LOG_ERROR, "session.folder", "sessions cannot be created until this is put right",
               CP_KVZ("error", err.msg));
}

/* A server that was killed had --child-user, and this one has not, or the other way round. */
static void sweep_other_base(const cp_services *svc) {
    cp_autofree char *base = base_path(svc, !svc->sessions->set_user);
    if (!is_ours(base)) return;
    session_folders_sweep(svc->sessions, base);
    rmdir(base);
}

struct stale {
    cp_services *svc;
    char **v;
    size_t n;
};

static void stale_row(void *arg, const cp_session_row *row) {
    struct stale *g = arg;
    struct cp_session *s = session_find(g->svc, cp_str_of(row->id));
    if (s) {
        free(s->start_cwd);
        s->start_cwd = cp_str_dup(cp_str_of(row->cwd ? row->cwd : g->svc->workspace));
        s->created_wall = row->created_ms;
        s->announced = true;
        return;
    }
    g->v = cp_realloc(g->v, (g->n + 1) * sizeof *g->v);
    g->v[g->n++] = cp_str_dup(cp_str_of(row->id));
}

static int agree_with_registry(cp_services *svc, cp_err *err) {
    struct stale g = {.svc = svc};
    if (!svc->registry) return 0;
    int r = cp_registry_each_session(svc->registry, stale_row, &g, err);
    for (size_t i = 0; i < g.n; i++) {
        if (r == 0) remove_row(svc, g.v[i]);
        free(g.v[i]);
    }
    free(g.v);
    for (struct cp_session *s = svc->sessions->first; r == 0 && s; s = s->next) {
        s->announced |= cp_registry_lost(svc->registry); /* in the one that is gone */
        session_store(s, "live");
    }
    return r;
}

void cp_sessions_put_all(cp_services *svc) {
    for (struct cp_session *s = svc->sessions ? svc->sessions->first : NULL; s; s = s->next)
        if (s->announced) session_store(s, s->shell == SHELL_READY ? "live" : "ended");
}

int cp_sessions_open(cp_services *svc, cp_err *err) {
    struct cp_sessions *t = sessions_of(svc);
    t->mask = 1023;
    t->table = cp_alloc((t->mask + 1) * sizeof(struct cp_session *));
    t->set_user = svc->execs->set_user;
    t->uid = svc->execs->uid;
    t->gid = svc->execs->gid;
    t->groups = svc->execs->groups;
    t->ngroups = svc->execs->ngroups;
    t->loadavg = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
    open_base(svc);
    int r = 0;
    while (t->held) {
        struct session_held *held = t->held;
        t->held = held->next;
        bool later = restore(svc, held, err) < 0;
        if (later) r = -1;
        lose_rest(svc, held, later);
        free(held->key);
        free(held);
    }
    if (r < 0) return -1;
    session_folders_sweep(t, t->base);
    sweep_other_base(svc);
    return agree_with_registry(svc, err);
}

/* The shells live on: the keeper hands them to the next server, or ends them with everything else. */
void cp_sessions_close(cp_services *svc) {
    struct cp_sessions *t = svc->sessions;
    if (!t) return;
    while (t->first) {
        struct cp_session *s = t->first;
        session_abandon(s);
        unlist(s);
        session_free(s, svc->draining);
    }
    while (t->gone) {
        struct cp_session *s = t->gone;
        t->gone = s->next;
        session_abandon(s);
        session_free(s, true);
    }
    if (t->base && t->set_user && svc->draining) rmdir(t->base); /* it is not in the state folder */
    cp_close(&t->loadavg);
    free(t->table);
    free(t->base);
    pthread_mutex_destroy(&t->lock);
    free(t);
    svc->sessions = NULL;
}
