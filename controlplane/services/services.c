#include "services/services.h"

#include "base/act.h"
#include "base/age.h"
#include "base/aside.h"
#include "base/log.h"
#include "services/events.h"
#include "services/exec_core.h"
#include "services/leftovers.h"
#include "services/session.h"
#include "services/stray.h"
#include "services/upload.h"
#include "services/watch.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DRAIN_POLL_MS = 20 };

/* ---- executions ---- */

static struct cp_execs *execs_of(cp_services *s) {
    if (!s->execs) {
        s->execs = cp_new(struct cp_execs);
        s->execs->svc = s;
    }
    return s->execs;
}

static size_t table_size(const cp_config *c) {
    size_t want = (size_t)c->history + (size_t)c->max_processes, n = 256;
    while (n < want && n < 65536) n *= 2;
    return n;
}

/* On the PATH that this server has, once; /bin/bash when it is not there, and then the spawn says so. */
static char *find_bash(char *const *env) {
    const char *path = NULL;
    for (char *const *v = env; v && *v; v++)
        if (strncmp(*v, "PATH=", 5) == 0) path = *v + 5;
    for (const char *p = path, *end; p && *p; p = *end ? end + 1 : end) {
        cp_autobuf cp_buf file = {0};
        end = strchrnul(p, ':');
        cp_buf_add(&file, p, (size_t)(end - p));
        cp_buf_addz(&file, "/bash");
        if (*p == '/' && access(cp_buf_z(&file), X_OK) == 0) return cp_take(file).p;
    }
    return cp_str_dup(CP_STR("/bin/bash"));
}

static int resolve_child_user(cp_services *s, cp_err *err) {
    struct cp_execs *x = s->execs;
    const char *user = s->config->child_user;
    if (!user || !*user) return 0;
    if (geteuid() != 0) return cp_fail(err, CP_E_PERMISSION_DENIED, "--child-user %s needs privilege", user);
    if (cp_user_resolve(user, &x->uid, &x->gid, &x->user, err) < 0 ||
        cp_user_groups(x->user, x->gid, &x->groups, &x->ngroups, err) < 0)
        return cp_wrap(err, "--child-user");
    x->set_user = true;
    if (cp_act_setup(x->user, x->uid, x->gid, err) < 0) return cp_wrap(err, "--child-user");
    return 0;
}

static int open_execs(cp_services *s, cp_err *err) {
    struct cp_execs *x = execs_of(s);
    size_t n = table_size(s->config);
    x->by_id = cp_alloc(n * sizeof(cp_exec *));
    x->by_pid = cp_alloc(n * sizeof(cp_exec *));
    x->mask = n - 1;
    x->bash = find_bash(s->base_env);
    cp_autobuf cp_buf dir = {0};
    cp_buf_addf(&dir, "%s/logs", s->state_dir);
    if (cp_folder_make(cp_buf_z(&dir), 0700) < 0) /* the first log that needs it tries again */
        cp_log(CP_LOG_ERROR, "output.folder", "the folder of the logs cannot be made", CP_KVZ("path", cp_buf_z(&dir)),
               CP_KVZ("errno", cp_errno_name(errno)));
    if (resolve_child_user(s, err) < 0) return -1;
    cp_exec_age_start(s);
    return cp_exec_restore(s, err);
}

/* Durable children live on: the keeper has them. What is under way here is let go without a word. */
static void close_execs(cp_services *s) {
    struct cp_execs *x = s->execs;
    if (!x) return;
    cp_timer_stop(s->loop, &x->age);
    cp_exec_short_close(s);
    cp_timer_stop(s->loop, &x->drain);
    cp_exec_kills_close(s);
    cp_exec_orphans_close(s);
    while (x->last) cp_exec_unlist(x->last);
    for (struct cp_held_child *h; (h = x->held);) {
        x->held = h->next;
        for (int k = 0; k < 3; k++)
            if (h->h.fds[k] >= 0) close(h->h.fds[k]);
        free(h->key);
        free(h);
    }
    cp_tree_free(&x->procs);
    free(x->bash);
    free(x->by_id);
    free(x->by_pid);
    free(x->user);
    free(x->groups);
    free(x);
    s->execs = NULL;
    cp_output_drains_close(s->loop);
}

/* ---- all ---- */

void cp_services_held(cp_services *s, const cp_held *h) {
    if (strncmp(h->key, "x:", 2) != 0) {
        cp_sessions_held(s, h);
        return;
    }
    struct cp_held_child *c = cp_new(struct cp_held_child);
    c->h = *h;
    c->key = cp_str_dup(cp_str_of(h->key));
    c->h.key = c->key;
    c->next = execs_of(s)->held;
    s->execs->held = c;
}

/* The registry is the memory of the next server: what this one knows goes into it again. */
static void put_all(void *arg) {
    cp_services *s = arg;
    if (s->events) cp_events_put_all(s);
    if (s->execs) cp_exec_put_all(s);
    cp_sessions_put_all(s);
}

int cp_services_open(cp_services *s, cp_err *err) {
    cp_autobuf cp_buf clock = {0};
    cp_buf_addf(&clock, "%s/registry.clock", s->state_dir);
    cp_age_open(cp_buf_z(&clock));
    (void)signal(SIGPIPE, SIG_IGN); /* a child that has closed its stdin is no reason to die */
    if (s->registry) cp_registry_on_renewed(s->registry, put_all, s);
    if (cp_events_open(s, err) == 0 && open_execs(s, err) == 0 && cp_pool_open(s, err) == 0 &&
        cp_sessions_open(s, err) == 0) {
        if (s->files) {
            s->leftovers = cp_leftovers_open(s);
            s->uploads = cp_uploads_open(s);
        }
        return 0;
    }
    cp_services_close(s);
    return -1;
}

void cp_services_close(cp_services *s) {
    if (s->registry) cp_registry_on_renewed(s->registry, NULL, NULL);
    cp_uploads_close(s->uploads);
    s->uploads = NULL;
    cp_leftovers_close(s->leftovers);
    s->leftovers = NULL;
    cp_watches_close(s);
    /* Rows under way call back: let them, while there is something to call. */
    if (s->registry && s->execs && cp_registry_flush(s->registry, NULL) == 0) (void)cp_loop_once(s->loop, 0);
    if (s->sessions) cp_sessions_close(s);
    cp_pool_close(s);
    close_execs(s);
    cp_events_close(s);
    cp_strays_close(s);
}

/* ---- shutdown ---- */

static void drained(cp_services *s) {
    void (*done)(void *) = s->execs->drained;
    s->execs->drained = NULL;
    if (done) done(s->execs->drain_arg);
}

static void drain_poll(cp_timer *t) {
    struct cp_execs *x = CP_CONTAINER(t, struct cp_execs, drain);
    if (x->running == 0 || cp_loop_now(x->svc->loop) >= x->drain_until) drained(x->svc);
    else cp_timer_start(x->svc->loop, &x->drain, DRAIN_POLL_MS, drain_poll);
}

void cp_services_drain(cp_services *s, uint64_t limit_ms, void (*done)(void *arg), void *arg) {
    struct cp_execs *x = s->execs;
    uint64_t grace = limit_ms > 1000 ? limit_ms - 1000 : limit_ms / 2;
    s->draining = true;
    x->drained = done;
    x->drain_arg = arg;
    x->drain_until = cp_loop_now(s->loop) + limit_ms;
    for (cp_exec *e = x->first, *next; e; e = next) {
        next = e->impl->next;
        (void)cp_exec_kill(e, SIGTERM, grace, CP_OUTCOME_signal, NULL, NULL, NULL);
    }
    cp_timer_start(s->loop, &x->drain, 0, drain_poll);
}
