/* Design notes. A spawn is done on the spot: the answer is queued before the next request is read. Its key is checked
 * in the books first: the books hold a durable child until the server has acknowledged its end, so a spawn that is
 * repeated after a crash of the server meets EEXIST and is not run twice. */
#include "keeper/core.h"

#include "base/fd.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    GROUPS_MAX = 1024,
    /* Descriptor numbers that nothing held may have: the kernel gives out the lowest that is free, so these stay free
     * for what comes and goes (a look at /proc, a record from the server, the socket to the next one). Without them the
     * trees could not even be found to be ended. */
    RESERVE_FDS = 2 * CP_WIRE_FDS,
};

/* Why a spawn is refused. */
struct refusal {
    int sys;
    uint8_t step;
};
#define REFUSE(why, e, s) (*(why) = (struct refusal){(e), CP_STEP_##s}, false)

/* ---- strings of a spawn: argv, env ---- */

struct strings {
    cp_str data;
    void *map;          /* of the memfd */
    char **argv, **env; /* in one block; argv has a free slot before it */
    char **block;
};

static void strings_free(struct strings *s) {
    if (s->map) munmap(s->map, s->data.n);
    free(s->block);
}

/* Only a sealed memfd is mapped: in a file that shrinks under us, reading is SIGBUS. */
static bool map_data(struct strings *s, int fd, struct refusal *why) {
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
    struct stat st;
    int have = fcntl(fd, F_GET_SEALS);
    if (have < 0 || (have & seals) != seals || fstat(fd, &st) < 0) return REFUSE(why, EINVAL, memfd);
    if (st.st_size <= 0 || st.st_size > CP_WIRE_DATA_MAX) return REFUSE(why, E2BIG, memfd);
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) return REFUSE(why, errno, memfd);
    s->map = p;
    s->data = (cp_str){p, (size_t)st.st_size};
    return true;
}

static bool strings_split(struct strings *s, const cp_wire_rec_spawn *r, struct refusal *why) {
    uint64_t n = (uint64_t)r->argc + r->envc;
    if (r->argc == 0 || n > s->data.n) return REFUSE(why, EINVAL, request);
    /* scratch, argv, NULL, env, NULL */
    s->block = cp_alloc((n + 3) * sizeof *s->block);
    s->argv = s->block + 1;
    if (!cp_wire_strings(s->data, (uint32_t)n, s->argv)) return REFUSE(why, EINVAL, request);
    s->env = s->argv + r->argc + 1;
    memmove(s->env, s->argv + r->argc, r->envc * sizeof *s->env);
    s->argv[r->argc] = s->env[r->envc] = NULL;
    return true;
}

/* ---- user ---- */

/* May ask the name service, which loads its modules into the keeper: only for a spawn that names a user. */
static bool find_groups(const cp_wire_rec_spawn *r, gid_t *groups, size_t *n, struct refusal *why) {
    if (!(r->flags & CP_SPAWN_USER) || !r->user.n) return true;
    cp_autofree char *user = cp_str_dup(r->user);
    int count = GROUPS_MAX;
    if (getgrouplist(user, (gid_t)r->gid, groups, &count) < 0) return REFUSE(why, E2BIG, user);
    *n = (size_t)count;
    return true;
}

/* ---- spawn ---- */

static size_t bits(uint8_t mask) { return (size_t)__builtin_popcount(mask); }

/* Sorts what came into the child's descriptors, what is held, and the memfd. */
static bool sort_fds(const cp_wire *m, const int *fds, int child_fds[SPAWN_FDS], int hold_at[3], int *memfd,
                     struct refusal *why) {
    const cp_wire_rec_spawn *r = &m->spawn;
    size_t at = 0;
    for (int i = 0; i < SPAWN_FDS; i++) child_fds[i] = r->fds >> i & 1 ? fds[at++] : -1;
    for (int i = 0; i < 3; i++) hold_at[i] = r->hold >> i & 1 ? (int)at++ : -1;
    *memfd = r->flags & CP_SPAWN_MEMFD ? fds[at] : -1;
    for (size_t i = 0; i < m->nfds; i++)
        if (fds[i] < 0) return REFUSE(why, EMFILE, fds);
    return true;
}

static bool may_hold(const keeper *k, const int *fds, size_t from, size_t n) {
    for (size_t i = from; i < n; i++)
        if (fds[i] >= k->spawner.max_fds - RESERVE_FDS) return false;
    return true;
}

static void enter(keeper *k, const cp_wire *m, int *fds, const int hold_at[3], uint64_t mark, pid_t pid) {
    child *c = books_add(&k->books, m->spawn.tag, &(cp_mark){.spawn = mark}, m->spawn.key);
    books_set_pid(&k->books, c, pid);
    for (int i = 0; c->key && i < 3; i++)
        if (hold_at[i] >= 0) c->hold[i] = cp_take_fd(&fds[hold_at[i]]);
    c->generation = k->generation;
    c->told = true;
    proc_stat st;
    if (proc_read(pid, &st)) c->start_time = st.start_time; /* it is there, a zombie at least: only we reap it */
    peer_tell_spawned(k, c);
}

static bool admit(keeper *k, uint64_t tag, cp_str key, struct refusal *why) {
    if (key.n > CP_WIRE_KEY_MAX) return REFUSE(why, EINVAL, key);
    if (books_by_tag(&k->books, tag) || (key.n && books_by_key(&k->books, key))) return REFUSE(why, EEXIST, key);
    if (k->books.count >= k->children_max) return REFUSE(why, EAGAIN, children);
    return true;
}

static bool run(keeper *k, const cp_wire *m, int *fds, struct refusal *why) {
    const cp_wire_rec_spawn *r = &m->spawn;
    __attribute__((cleanup(strings_free))) struct strings strings = {.data = r->data};
    cp_autofree char *cwd = cp_str_dup(r->cwd);
    gid_t groups[GROUPS_MAX];
    int hold_at[3], memfd;
    spawn_spec spec = {.cwd = cwd,
                       .group = r->flags & CP_SPAWN_SESSION ? SPAWN_SESSION : SPAWN_GROUP,
                       .set_user = r->flags & CP_SPAWN_USER,
                       .uid = r->uid,
                       .gid = r->gid,
                       .groups = groups,
                       .mark = mark_is_of(k->mark, r->mark) ? r->mark : mark_next(k)};
    if (!admit(k, r->tag, r->key, why) || !sort_fds(m, fds, spec.fds, hold_at, &memfd, why)) return false;
    if (!may_hold(k, fds, bits(r->fds), bits(r->fds) + bits(r->hold))) return REFUSE(why, EMFILE, fds);
    if (memfd >= 0 && !map_data(&strings, memfd, why)) return false;
    if (!strings_split(&strings, r, why) || !find_groups(r, groups, &spec.ngroups, why)) return false;
    spec.argv = strings.argv;
    spec.env = strings.env;
    pid_t pid = spawner_run(&k->spawner, &spec, &why->sys, &why->step);
    if (pid < 0) return false;
    enter(k, m, fds, hold_at, spec.mark, pid);
    return true;
}

static bool on_spawn(keeper *k, const cp_wire *m, int *fds) {
    const cp_wire_rec_spawn *r = &m->spawn;
    if (bits(r->fds) + bits(r->hold) + !!(r->flags & CP_SPAWN_MEMFD) != m->nfds || r->hold > 7) return false;
    struct refusal why;
    if (!run(k, m, fds, &why)) peer_refuse(k, r->tag, why.sys, why.step);
    return true;
}

pid_t spawn_own(keeper *k, spawn_spec *spec, const char *const *argv, int *sys, uint8_t *step) {
    size_t argc = 0, envc = 0;
    while (argv[argc]) argc++;
    while (environ[envc]) envc++;
    __attribute__((cleanup(strings_free))) struct strings s = {0};
    s.block = cp_alloc((argc + envc + 3) * sizeof *s.block);
    s.argv = s.block + 1;
    s.env = s.argv + argc + 1;
    memcpy(s.argv, argv, argc * sizeof *s.argv);
    memcpy(s.env, environ, envc * sizeof *s.env);
    spec->mark = mark_next(k);
    spec->argv = s.argv;
    spec->env = s.env;
    return spawner_run(&k->spawner, spec, sys, step);
}

/* ---- the rest ---- */

static bool on_adopt(keeper *k, const cp_wire *m, int *fds) {
    const cp_wire_rec_adopt *r = &m->adopt;
    if (bits(r->hold) != m->nfds || r->hold > 7) return false;
    struct refusal why;
    if (r->pid <= 1 || books_by_pid(&k->books, r->pid)) {
        peer_refuse(k, r->tag, EINVAL, CP_STEP_adopt);
        return true;
    }
    if (!admit(k, r->tag, r->key, &why)) {
        peer_refuse(k, r->tag, why.sys, why.step);
        return true;
    }
    if (!may_hold(k, fds, 0, m->nfds)) {
        peer_refuse(k, r->tag, EMFILE, CP_STEP_fds);
        return true;
    }
    child *c = books_add(&k->books, r->tag, &(cp_mark){r->spawn, r->command}, r->key);
    for (int i = 0, at = 0; i < 3; i++)
        if (r->hold >> i & 1) {
            int fd = cp_take_fd(&fds[at++]);
            if (c->key) c->hold[i] = fd;
            else cp_close(&fd);
        }
    c->generation = k->generation;
    c->adopted = true;
    books_set_pid(&k->books, c, r->pid);
    adopt_begin(k, c, r->start_time);
    return true;
}

static bool on_close_hold(keeper *k, const cp_wire *m) {
    child *c = books_by_tag(&k->books, m->close_hold.tag);
    if (m->close_hold.which > 2) return false;
    if (c) cp_close(&c->hold[m->close_hold.which]);
    /* Answered also when there is nothing to close: the server waits for it before it closes its own. */
    peer_send(k, &(cp_wire){.type = CP_WIRE_closed, .closed = {m->close_hold.tag, m->close_hold.which}}, NULL);
    return true;
}

static void on_ack(keeper *k, uint64_t tag) {
    child *c = books_by_tag(&k->books, tag);
    if (c && c->exited) books_remove(&k->books, c);
}

static bool on_failed(keeper *k, cp_str reason) {
    if (!k->announced) fprintf(stderr, "conflux: %.*s\n", (int)reason.n, reason.p);
    else cp_log(CP_LOG_ERROR, "keeper.server_failed", "the server cannot start", CP_KVS("reason", reason));
    supervise(k, EV_FAILED);
    return true;
}

bool request_handle(keeper *k, const cp_wire *m, int *fds) {
    switch (m->type) {
    case CP_WIRE_ready:
        k->port = m->ready.port;
        supervise(k, EV_READY);
        return true;
    case CP_WIRE_failed: return on_failed(k, m->failed.reason);
    case CP_WIRE_spawn: return on_spawn(k, m, fds);
    case CP_WIRE_adopt: return on_adopt(k, m, fds);
    case CP_WIRE_close_hold: return on_close_hold(k, m);
    case CP_WIRE_ack: on_ack(k, m->ack.tag); return true;
    default: return false; /* records that only a keeper sends */
    }
}
