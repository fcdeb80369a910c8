/* Design notes. A spawn is begun on the spot, and answered when the child is its program (start.c). Its key is checked
 * in the books first: the books hold a durable child until the server has acknowledged its end, so a spawn that is
 * repeated after a crash of the server meets EEXIST and is not run twice. */
#include "keeper/core.h"

#include "base/fd.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Why a spawn is refused. */
struct refusal {
    int sys;
    uint8_t step;
};
#define REFUSE(why, e, s) (*(why) = (struct refusal){(e), CP_STEP_##s}, false)

/* ---- what a spawn is given: strings, groups ---- */

/* What came in, sorted; nothing is owned. */
struct wanted {
    const cp_wire_rec_spawn *r;
    int fds[SPAWN_FDS];
    int hold_at[3]; /* among the record's descriptors */
    int memfd;
    size_t size; /* of the memfd */
    uint64_t mark;
};

/* Only a sealed memfd is mapped: in a file that shrinks under us, reading is SIGBUS. */
static bool check_memfd(struct wanted *w, struct refusal *why) {
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
    struct stat st;
    int have = fcntl(w->memfd, F_GET_SEALS);
    if (have < 0 || (have & seals) != seals || fstat(w->memfd, &st) < 0) return REFUSE(why, EINVAL, memfd);
    if (st.st_size <= 0 || st.st_size > CP_WIRE_DATA_MAX) return REFUSE(why, E2BIG, memfd);
    w->size = (size_t)st.st_size;
    return true;
}

static bool map_data(keeper *k, starting *st, const struct wanted *w, cp_str *data, struct refusal *why) {
    if (!start_weigh(k, st, w->size)) return REFUSE(why, ENOMEM, memory);
    void *p = mmap(NULL, w->size, PROT_READ, MAP_PRIVATE, w->memfd, 0);
    if (p == MAP_FAILED) return REFUSE(why, errno, memfd);
    st->map = p;
    st->map_size = w->size;
    *data = (cp_str){p, w->size};
    return true;
}

/* The folder and the strings outlive the record. */
static bool copy_text(keeper *k, starting *st, const struct wanted *w, struct refusal *why) {
    const cp_wire_rec_spawn *r = w->r;
    uint32_t n = r->argc + r->envc;
    char **argv = st->block + 1, **env = argv + r->argc + 1, *at = st->text;
    cp_str data = {at + r->cwd.n + 1, r->data.n};
    memcpy(at, r->cwd.p, r->cwd.n);
    at[r->cwd.n] = '\0';
    if (r->data.n) memcpy(at + r->cwd.n + 1, r->data.p, r->data.n);
    if (w->memfd >= 0 && !map_data(k, st, w, &data, why)) return false;
    if (!cp_wire_strings(data, n, argv)) return REFUSE(why, EINVAL, request);
    memmove(env, argv + r->argc, r->envc * sizeof *env);
    argv[r->argc] = env[r->envc] = NULL;
    st->w.spec.argv = argv;
    st->w.spec.env = env;
    st->w.spec.cwd = at;
    return true;
}

static void copy_groups(starting *st, cp_str groups) {
    memcpy(st->groups, groups.p, groups.n);
    st->w.spec.groups = st->groups;
    st->w.spec.ngroups = groups.n / sizeof *st->groups;
}

static bool assemble(keeper *k, const struct wanted *w, starting **out, struct refusal *why) {
    const cp_wire_rec_spawn *r = w->r;
    uint64_t n = (uint64_t)r->argc + r->envc;
    size_t bytes = w->memfd >= 0 ? w->size : r->data.n;
    if (r->argc == 0 || n > bytes) return REFUSE(why, EINVAL, request);
    if (n * sizeof(char *) + bytes > START_BYTES_ONE) return REFUSE(why, E2BIG, request);
    if (r->groups.n % sizeof(gid_t) || r->groups.n / sizeof(gid_t) > CP_WIRE_GROUPS_MAX)
        return REFUSE(why, E2BIG, groups);
    starting *st = start_new(k, r->groups.n / sizeof(gid_t), (size_t)n, r->cwd.n + 1 + r->data.n);
    if (!st) return REFUSE(why, ENOMEM, memory);
    st->w.spec = (spawn_spec){.group = r->flags & CP_SPAWN_SESSION ? SPAWN_SESSION : SPAWN_GROUP,
                              .set_user = r->flags & CP_SPAWN_USER,
                              .uid = r->uid,
                              .gid = r->gid,
                              .mark = w->mark,
                              .reserve = RESERVE_FDS / 2};
    memcpy(st->w.spec.fds, w->fds, sizeof w->fds);
    copy_groups(st, r->groups);
    if (copy_text(k, st, w, why)) {
        *out = st;
        return true;
    }
    start_free(k, st);
    return false;
}

/* ---- spawn ---- */

static size_t bits(uint8_t mask) { return (size_t)__builtin_popcount(mask); }

/* Sorts what came into the child's descriptors, what is held, and the memfd. */
static bool sort_fds(const cp_wire *m, const int *fds, struct wanted *w, struct refusal *why) {
    const cp_wire_rec_spawn *r = &m->spawn;
    size_t at = 0;
    for (int i = 0; i < SPAWN_FDS; i++) w->fds[i] = r->fds >> i & 1 ? fds[at++] : -1;
    for (int i = 0; i < 3; i++) w->hold_at[i] = r->hold >> i & 1 ? (int)at++ : -1;
    w->memfd = r->flags & CP_SPAWN_MEMFD ? fds[at] : -1;
    for (size_t i = 0; i < m->nfds; i++)
        if (fds[i] < 0) return REFUSE(why, EMFILE, fds);
    return true;
}

static bool may_hold(const keeper *k, const int *fds, size_t from, size_t n) {
    for (size_t i = from; i < n; i++)
        if (fds[i] >= k->spawner.max_fds - RESERVE_FDS) return false;
    return true;
}

static bool admit(keeper *k, uint64_t tag, cp_str key, struct refusal *why) {
    if (key.n > CP_WIRE_KEY_MAX) return REFUSE(why, EINVAL, key);
    if (books_by_tag(&k->books, tag) || (key.n && books_by_key(&k->books, key))) return REFUSE(why, EEXIST, key);
    if (k->books.count >= k->children_max) return REFUSE(why, EAGAIN, children);
    return true;
}

static void book(keeper *k, child *c, const struct wanted *w, int *fds, pid_t pid) {
    cp_proc_stat st;
    books_set_pid(&k->books, c, pid);
    for (int i = 0; c->key && i < 3; i++)
        if (w->hold_at[i] >= 0) c->hold[i] = cp_take_fd(&fds[w->hold_at[i]]);
    c->generation = k->generation;
    if (cp_proc_stat_read(pid, &st))
        c->start_time = st.start_time; /* it is there, a zombie at least: only we reap it */
}

static bool begin(keeper *k, starting *st, const struct wanted *w, int *fds, struct refusal *why) {
    child *c = books_add(&k->books, w->r->tag, &(cp_mark){.spawn = w->mark}, w->r->key);
    if (!c) return REFUSE(why, ENOMEM, memory);
    st->child = c;
    c->start = st;
    if (start_begin(k, st)) {
        book(k, c, w, fds, st->w.pid);
        return true;
    }
    *why = (struct refusal){st->w.sys, st->w.step};
    books_remove(&k->books, c);
    return false;
}

static bool run(keeper *k, const cp_wire *m, int *fds, struct refusal *why) {
    const cp_wire_rec_spawn *r = &m->spawn;
    struct wanted w = {.r = r};
    if (!admit(k, r->tag, r->key, why) || !sort_fds(m, fds, &w, why)) return false;
    if (!may_hold(k, fds, bits(r->fds), bits(r->fds) + bits(r->hold))) return REFUSE(why, EMFILE, fds);
    if (w.memfd >= 0 && !check_memfd(&w, why)) return false;
    w.mark = mark_is_of(k->mark, r->mark) ? r->mark : mark_next(k);
    starting *st;
    if (!assemble(k, &w, &st, why)) return false;
    if (begin(k, st, &w, fds, why)) return true;
    start_free(k, st);
    return false;
}

static bool on_spawn(keeper *k, const cp_wire *m, int *fds) {
    const cp_wire_rec_spawn *r = &m->spawn;
    if (bits(r->fds) + bits(r->hold) + !!(r->flags & CP_SPAWN_MEMFD) != m->nfds || r->hold > 7) return false;
    struct refusal why;
    if (!run(k, m, fds, &why)) peer_refuse(k, r->tag, why.sys, why.step);
    return true;
}

pid_t spawn_own(keeper *k, const spawn_spec *spec, const char *const *argv, start_done *done, int *sys, uint8_t *step) {
    size_t argc = 0, envc = 0;
    while (argv[argc]) argc++;
    while (environ[envc]) envc++;
    starting *st = start_new(k, 0, argc + envc, 0);
    if (!st) {
        *sys = ENOMEM;
        *step = CP_STEP_memory;
        return -1;
    }
    st->w.spec = *spec;
    st->w.spec.mark = mark_next(k);
    st->w.spec.argv = st->block + 1;
    st->w.spec.env = st->w.spec.argv + argc + 1;
    memcpy(st->w.spec.argv, argv, (argc + 1) * sizeof *argv);
    memcpy(st->w.spec.env, environ, (envc + 1) * sizeof *environ);
    st->done = done;
    if (start_begin(k, st)) return st->w.pid;
    *sys = st->w.sys;
    *step = st->w.step;
    start_free(k, st);
    return -1;
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
    if (!c) {
        peer_refuse(k, r->tag, ENOMEM, CP_STEP_memory);
        return true;
    }
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
    peer_answer(k, &(cp_wire){.type = CP_WIRE_closed, .closed = {m->close_hold.tag, m->close_hold.which}});
    return true;
}

/* It may come before the end, from a server that has no use for what it was handed over. */
static void on_ack(keeper *k, uint64_t tag) {
    child *c = books_by_tag(&k->books, tag);
    if (!c) return;
    if (c->exited) books_remove(&k->books, c);
    else books_disown(&k->books, c);
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
        if (m->nfds && fds[0] >= 0) listener_keep(k, cp_take_fd(&fds[0]));
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
