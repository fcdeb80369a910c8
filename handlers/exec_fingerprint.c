/* Every part goes in with its length before it, so that no two requests run together ("ab","c" and "a","bc"). What only
 * says how the answer travels (encoding, onCancel, from …) is left out: a client may ask for the same execution again
 * in another form. */
#include "handlers/exec_fingerprint.h"

#include <stdlib.h>
#include <string.h>

#include "base/budget.h"
#include "base/sha.h"

static void put_u64(cp_sha256 *h, uint64_t v) {
    uint8_t le[8];
    for (int i = 0; i < 8; i++) le[i] = (uint8_t)(v >> 8 * i);
    cp_sha256_update(h, le, sizeof le);
}

static void put(cp_sha256 *h, cp_str s) {
    put_u64(h, s.n);
    if (s.n) cp_sha256_update(h, s.p, s.n);
}

static int by_name(const void *va, const void *vb) {
    const cp_env_var *a = va, *b = vb;
    size_t n = a->name.n < b->name.n ? a->name.n : b->name.n;
    int c = memcmp(a->name.p, b->name.p, n);
    return c ? c : (a->name.n > b->name.n) - (a->name.n < b->name.n);
}

static int put_env(cp_sha256 *h, const cp_exec_spec *spec, cp_err *err) {
    put_u64(h, spec->nenv);
    if (!spec->nenv) return 0;
    cp_autofree cp_env_var *sorted = cp_try_array(spec->nenv, sizeof *sorted, err);
    if (!sorted) return -1;
    memcpy(sorted, spec->env, spec->nenv * sizeof *sorted);
    qsort(sorted, spec->nenv, sizeof *sorted, by_name);
    for (size_t i = 0; i < spec->nenv; i++) {
        put(h, sorted[i].name);
        put(h, sorted[i].value);
    }
    return 0;
}

/* A long command has been read once, for its own digest: that and its length stand for it. */
static void put_digest(cp_sha256 *h, const cp_exec_spec *spec) {
    put_u64(h, spec->command.n);
    cp_sha256_update(h, spec->command_sha256, CP_SHA256_SIZE);
}

int cp_exec_fingerprint(cp_exec_spec *spec, cp_err *err) {
    cp_sha256 h;
    bool by_digest = !spec->nargs && spec->command_sha256;
    cp_sha256_init(&h);
    put(&h, by_digest ? CP_STR("conflux execution 1, by digest") : CP_STR("conflux execution 1"));
    put_u64(&h, spec->kind);
    put_u64(&h, spec->nargs);
    if (by_digest) put_digest(&h, spec);
    else if (!spec->nargs) put(&h, spec->command);
    for (size_t i = 0; i < spec->nargs; i++) put(&h, spec->args[i]);
    put(&h, spec->session);
    put(&h, spec->cwd);
    if (put_env(&h, spec, err) < 0) return -1;
    put(&h, spec->stdin_data);
    put_u64(&h, spec->stdin_open);
    put_u64(&h, spec->timeout_ms);
    put_u64(&h, spec->max_output);
    put(&h, spec->user);
    cp_sha256_final(&h, spec->fingerprint);
    return 0;
}
