#include "keeper/client_impl.h"

#include "base/budget.h"
#include "base/fd.h"

enum { CWD_MAX = 4096 };

static size_t measure(const char *const *p, uint32_t *count) {
    size_t n = 0;
    for (; p && *p; p++, (*count)++) n += strlen(*p) + 1;
    return n;
}

static void add_all(cp_buf *data, const char *const *p) {
    for (; p && *p; p++) cp_buf_add(data, *p, strlen(*p) + 1);
}

/* argv, then env, each string with its NUL; counts them. */
static int gather(const cp_spawn *s, cp_buf *data, cp_wire_rec_spawn *r, cp_err *err) {
    size_t n = measure(s->argv, &r->argc) + measure(s->env, &r->envc);
    if (!r->argc) return cp_fail(err, CP_E_INVALID_COMMAND, "the command is empty");
    if (n > CP_WIRE_DATA_MAX)
        return cp_fail(err, CP_E_PAYLOAD_TOO_LARGE, "arguments and environment are over %d bytes", CP_WIRE_DATA_MAX);
    if (cp_room(data, n, err) < 0) return -1;
    add_all(data, s->argv);
    add_all(data, s->env);
    return 0;
}

static int fill(const cp_spawn *s, cp_wire_rec_spawn *r, cp_err *err) {
    r->flags = (uint8_t)((s->own_session ? CP_SPAWN_SESSION : 0) | (s->set_user ? CP_SPAWN_USER : 0));
    r->mark = s->mark;
    r->uid = s->uid;
    r->gid = s->gid;
    r->groups = (cp_str){(const char *)s->groups, s->ngroups * sizeof *s->groups};
    r->key = cp_str_of(s->key);
    r->cwd = cp_str_of(s->cwd ? s->cwd : "/");
    if (r->key.n > CP_WIRE_KEY_MAX) return cp_fail(err, CP_E_NAME_TOO_LONG, "the key of a child is too long");
    if (r->cwd.n >= CWD_MAX) return cp_fail(err, CP_E_NAME_TOO_LONG, "the working directory is too long");
    if (s->ngroups > CP_WIRE_GROUPS_MAX) return cp_fail(err, CP_E_LIMIT_EXCEEDED, "the user is in too many groups");
    return 0;
}

static uint8_t pick_fds(const int *from, int n, int fds[CP_WIRE_FDS], uint8_t *nfds) {
    uint8_t mask = 0;
    for (int i = 0; i < n; i++) {
        if (from[i] < 0) continue;
        mask |= (uint8_t)(1 << i);
        fds[(*nfds)++] = from[i];
    }
    return mask;
}

static bool fits(const cp_wire_rec_spawn *r, size_t data) {
    return data + r->groups.n + r->key.n + r->cwd.n + 256 <= CP_WIRE_MAX;
}

int cp_keeper_spawn(cp_keeper *k, cp_child *c, const cp_spawn *s, cp_err *err) {
    cp_autobuf cp_buf data = {0};
    cp_wire m = {.type = CP_WIRE_spawn};
    int fds[CP_WIRE_FDS];
    if (gather(s, &data, &m.spawn, err) < 0 || fill(s, &m.spawn, err) < 0) return -1;
    m.spawn.fds = pick_fds(s->fds, CP_SPAWN_FDS, fds, &m.nfds);
    if (s->key) m.spawn.hold = pick_fds(s->hold, 3, fds, &m.nfds);
    cp_autofd int memfd = -1;
    if (fits(&m.spawn, data.n)) {
        m.spawn.data = cp_buf_str(&data);
    } else {
        memfd = cp_memfd("conflux-spawn", data.p, data.n);
        if (memfd < 0) return cp_fail(err, CP_E_INTERNAL_ERROR, "no memory file for the arguments");
        m.spawn.flags |= CP_SPAWN_MEMFD;
        fds[m.nfds++] = memfd;
    }
    m.spawn.tag = c->tag = client_next_tag(k);
    c->pid = 0;
    if (client_ask(k, &m, fds, err) < 0) return -1;
    client_enter(k, c);
    return 0;
}

int cp_keeper_adopt(cp_keeper *k, cp_child *c, const char *key, const int hold[3], cp_err *err) {
    cp_wire m = {.type = CP_WIRE_adopt};
    int fds[CP_WIRE_FDS];
    if (c->pid <= 1) return cp_fail(err, CP_E_INTERNAL_ERROR, "no process to adopt");
    m.adopt = (cp_wire_rec_adopt){.pid = c->pid,
                                  .start_time = c->start_time,
                                  .spawn = c->mark.spawn,
                                  .command = c->mark.command,
                                  .key = cp_str_of(key)};
    if (m.adopt.key.n > CP_WIRE_KEY_MAX) return cp_fail(err, CP_E_NAME_TOO_LONG, "the key of a child is too long");
    if (key && hold) m.adopt.hold = pick_fds(hold, 3, fds, &m.nfds);
    m.adopt.tag = c->tag = client_next_tag(k);
    if (client_ask(k, &m, fds, err) < 0) return -1;
    client_enter(k, c);
    return 0;
}
