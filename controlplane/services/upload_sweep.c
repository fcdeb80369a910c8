/* Clearing away what is abandoned: on the io pool, ten minutes apart and at the start; and on the thread of an upload
 * that would not fit otherwise. */
#include "services/upload_impl.h"

#include "base/act.h"
#include "base/age.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SWEEP_MS = 10 * 60 * 1000 };

typedef struct found {
    char file[CP_UPLOAD_ID_MAX + 3];
    time_t moved;
    int64_t idle; /* seconds since then */
    uint64_t size;
    bool complete; /* or not begun yet: no more than a record */
} found;

typedef struct sweep {
    cp_uploads *u;
    found *v;
    size_t n, cap;
    int64_t open, bytes, complete;
} sweep;

static void note(sweep *s, const cp_upload *p) {
    if (s->n == s->cap) s->v = cp_realloc(s->v, (s->cap = s->cap ? 2 * s->cap : 64) * sizeof *s->v);
    found *f = &s->v[s->n++];
    *f = (found){.moved = p->moved,
                 .idle = cp_age_ms((int64_t)p->moved * 1000) / 1000,
                 .size = p->state.size,
                 .complete = p->state.complete || !p->begun};
    snprintf(f->file, sizeof f->file, "%s", p->file);
    s->complete += f->complete;
    s->open += !f->complete;
    s->bytes += f->complete ? 0 : (int64_t)f->size;
}

static void look(sweep *s) {
    cp_autofd int dir = cp_uploads_dir(s->u);
    cp_act_pause();
    cp_autodir DIR *d = dir < 0 ? NULL : cp_dir_open(dir, ".");
    cp_act_resume();
    cp_autofree cp_upload *p = cp_alloc(sizeof *p); /* the stacks of HTTP workers are small */
    if (!d) return;
    for (struct dirent *e; (e = cp_dir_next(d));) {
        if (strlen(e->d_name) >= sizeof p->file || strncmp(e->d_name, "u-", 2) != 0) continue;
        if (!cp_upload_id_valid(cp_str_of(e->d_name + 2)) || cp_upload_open(s->u, e->d_name, CP_UPLOAD_PEEK, p) <= 0)
            continue;
        note(s, p);
        cp_close(&p->fd);
    }
}

/* Unless it has moved in the meantime. */
static void drop(sweep *s, const found *f) {
    cp_autofree cp_upload *p = cp_alloc(sizeof *p);
    if (cp_upload_open(s->u, f->file, CP_UPLOAD_TRY, p) <= 0) return;
    if (p->moved == f->moved) {
        cp_upload_remove(s->u, p);
        s->complete -= f->complete;
        s->open -= !f->complete;
        s->bytes -= f->complete ? 0 : (int64_t)f->size;
    }
    cp_close(&p->fd);
}

static int by_age(const void *a, const void *b) {
    int64_t x = ((const found *)a)->idle, y = ((const found *)b)->idle;
    return (x < y) - (x > y);
}

static bool abandoned(const sweep *s, const found *f, uint64_t uploads, uint64_t bytes) {
    const cp_config *c = s->u->svc->config;
    if (f->idle >= c->upload_age) return true;
    if (f->complete) return s->complete > c->max_uploads; /* no more than a line each, but for a day */
    bool full = s->open + (int64_t)uploads > c->max_uploads || s->bytes + (int64_t)bytes > c->upload_bytes;
    return full && f->idle >= CP_UPLOAD_IDLE_S;
}

void cp_uploads_sweep(cp_uploads *u, uint64_t uploads, uint64_t bytes) {
    sweep s = {.u = u};
    if (atomic_flag_test_and_set(&u->sweeping)) return;
    int64_t open = u->open, held = u->bytes;
    look(&s);
    if (s.n) qsort(s.v, s.n, sizeof *s.v, by_age);
    for (size_t i = 0; i < s.n; i++)
        if (abandoned(&s, &s.v[i], uploads, bytes)) drop(&s, &s.v[i]);
    /* By what they differ: pieces that come while we look must not be forgotten. Counted twice they are at most, and
     * only until somebody would be refused for it: that one sweeps again. */
    u->open += s.open - open;
    u->bytes += s.bytes - held;
    free(s.v);
    atomic_flag_clear(&u->sweeping);
}

/* ---- now and then ---- */

static void sweep_again(cp_timer *t);

static void sweep_run(cp_work *w) {
    cp_err err;
    if (cp_act_begin(&err) < 0) return;
    cp_uploads_sweep(CP_CONTAINER(w, cp_uploads, work), 0, 0);
    cp_act_end();
}

static void sweep_done(cp_work *w) {
    cp_uploads *u = CP_CONTAINER(w, cp_uploads, work);
    u->working = false;
    if (u->closed) free(u);
    else cp_timer_start(u->svc->loop, &u->timer, SWEEP_MS, sweep_again);
}

static void sweep_start(cp_uploads *u) {
    u->working = true;
    cp_workers_submit_to(u->svc->workers, CP_LANE_FILES, CP_OWNER_UPKEEP, &u->work, sweep_run, sweep_done);
}

static void sweep_again(cp_timer *t) { sweep_start(CP_CONTAINER(t, cp_uploads, timer)); }

cp_uploads *cp_uploads_open(cp_services *s) {
    cp_uploads *u = cp_new(cp_uploads);
    u->svc = s;
    sweep_start(u);
    return u;
}

void cp_uploads_close(cp_uploads *u) {
    if (!u) return;
    cp_timer_stop(u->svc->loop, &u->timer);
    u->closed = true;
    if (!u->working) free(u);
}
