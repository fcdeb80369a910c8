/* Design notes. Offsets in the log are offsets in the backing: a file keeps its offsets because dropping means punching
 * a hole at its front (FALLOC_FL_PUNCH_HOLE | KEEP_SIZE), so nothing is ever moved or rotated and the size of the file
 * is the number of bytes written, also after a crash. Where the file system cannot make holes everything is kept, and
 * nothing counts as dropped: the total cap of the history is what bounds it then.
 *
 * A log that cannot be stored (disk full) goes on as if its budget were reached: what comes is read, counted and thrown
 * away, so that the child and its request end. The count is kept in the file itself, which grows by a hole as bytes are
 * thrown away (that takes no space) and has the mode CUT from then on: after a crash its size is what was written and
 * the end of its data what is kept. Without it the next server would store what still comes at offsets that are taken.
 * A hole begins at a block: where the budget does not tell the end of what is kept, the last bytes of a partly filled
 * block are given up. A lack of descriptors is waited for.
 *
 * What the loop does to files itself, and what it costs (a local disk, ext4; mean of hundreds, microseconds): reading
 * 64 KiB that are in the page cache, 10; opening a log again whose name is in the cache, 2; growing one by a hole, 10;
 * the mode of one that is cut, 1; a FIFO of a session made or removed, 210 and 14; the record of a session written, 1,
 * and wiped, 35. A state folder that is not local stalls all of these (docs/policies.md). What the disk has to bring is
 * read by a thread (output_fetch.c). What grows with the size of a log is not done by the loop either: taking away 64
 * MiB takes it 6,000 to 50,000. Such a file is given another name, and a thread does the rest; the hole that a log
 * leaves which begins anew is its next job's.
 *
 * While somebody watches, what cannot be stored passes through memory, at most CP_OUT_HELD of it: the child waits for
 * the slowest. The disk is tried again now and then; when it takes something the log goes on from there, and all that
 * was before counts as dropped, as if the budget had taken it. A log that loses its file while it is written goes on in
 * the descriptor; one whose file cannot be read any more has dropped what was in it.
 *
 * Files are created by the first bytes, in the io pool: a silent child costs no file. The descriptor is kept while
 * bytes come or cursors are open; afterwards a read opens it for itself, so a long history costs none. */
#include "services/output.h"

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/metrics.h"
#include "services/output_impl.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void later_fn(cp_deferred *d);
static void destroy(cp_output *o);

#define CUT (S_IRUSR | S_IWUSR | S_IXUSR)

cp_output *cp_output_new(const cp_output_opts *opts, cp_err *err) {
    if (!opts->path) {
        cp_fail(err, CP_E_INTERNAL_ERROR, "an output needs a path");
        return NULL;
    }
    cp_output *o = cp_new(cp_output);
    o->opts = *opts;
    o->opts.path = o->path = cp_str_dup(cp_str_of(opts->path));
    o->in_file = opts->kind == CP_OUT_FILE;
    o->file = o->pipe = o->job.file = -1;
    cp_ring_init(&o->idle);
    cp_ring_init(&o->due);
    return o;
}

static int open_log(cp_output *o) {
    if (o->file >= 0) return 0;
    o->file = open(o->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    return o->file < 0 ? -1 : 0;
}

uint64_t cp_output_block(int fd) {
    enum { LEAST = 4096, MOST = 1 << 20 }; /* some network file systems name what they like to transfer */
    struct stat st;
    return fd >= 0 && fstat(fd, &st) == 0 && st.st_blksize > LEAST && st.st_blksize <= MOST ? (uint64_t)st.st_blksize
                                                                                            : LEAST;
}

/* A log that has begun anew begins inside a block, of which the file system keeps the whole: what is before it there
 * reads as zeros. They are told from output by the hole in front; zeros of the child's at this place count as dropped
 * too, as any other byte that is this old might have been. */
static uint64_t behind_zeros(int fd, uint64_t at) {
    char bytes[4096];
    uint64_t end = at ? (at / cp_output_block(fd) + 1) * cp_output_block(fd) : 0;
    while (at < end) {
        size_t most = end - at < sizeof bytes ? (size_t)(end - at) : sizeof bytes;
        ssize_t n = pread(fd, bytes, most, (off_t)at), i = 0;
        while (i < n && !bytes[i]) i++;
        at += i > 0 ? (uint64_t)i : 0;
        if (n <= 0 || i < n) break;
    }
    return at;
}

/* Where the data begin: holes in front are what the former server dropped after it last wrote its row. */
static uint64_t first_data(int fd, uint64_t known, uint64_t size) {
    if (known >= size) return size;
    off_t at = lseek(fd, (off_t)known, SEEK_DATA);
    if (at < 0) return errno == ENXIO ? size : known;
    return behind_zeros(fd, (uint64_t)at);
}

/* Kept is one run of data; what was thrown away before it and behind it are holes. */
static void reopen_cut(cp_output *o, uint64_t size) {
    off_t first = lseek(o->file, 0, SEEK_DATA);
    off_t end = first < 0 ? -1 : lseek(o->file, first, SEEK_HOLE);
    o->first = o->reading = first < 0 ? 0 : behind_zeros(o->file, (uint64_t)first);
    o->stored = end < 0 ? o->first : (uint64_t)end;
    if (o->opts.stop_at_budget && o->stored > o->opts.budget) o->stored = o->opts.budget;
    o->discarded = size - o->stored;
    o->full = o->gap = true;
}

cp_output *cp_output_reopen(const cp_output_opts *opts, uint64_t dropped, cp_err *err) {
    return cp_output_reopen_known(opts, dropped, 0, err);
}

cp_output *cp_output_reopen_known(const cp_output_opts *opts, uint64_t dropped, uint64_t total, cp_err *err) {
    cp_output *o = cp_output_new(opts, err);
    if (!o) return NULL;
    o->in_file = true;
    struct stat st;
    int sys = open_log(o) < 0 ? errno : 0;
    if (cp_no_fd(sys) || sys == ENOMEM) {
        cp_fail_sys(err, CP_E_TOO_MANY_FILES, sys, "the log %s", o->path);
        destroy(o);
        return NULL;
    }
    if (sys && sys != ENOENT) { /* how much is there is not known, and would be written over */
        o->full = true;
        o->again_at = UINT64_MAX;
        cp_log(CP_LOG_ERROR, "output.reopen", "a log cannot be opened; what its command still writes is thrown away",
               CP_KVZ("errno", cp_errno_name(sys)), CP_KVZ("path", o->path));
    }
    if (sys == ENOENT && total > dropped) {
        dropped = total;
        cp_metric_add(CP_M_LOGS_LOST, 1);
        cp_log(CP_LOG_ERROR, "output.lost", "the file of a log is gone; what was in it counts as dropped",
               CP_KVZ("path", o->path), CP_KVI("bytes", (int64_t)dropped));
    }
    if (o->file >= 0 && fstat(o->file, &st) == 0) {
        if ((st.st_mode & 0777) == CUT) {
            reopen_cut(o, (uint64_t)st.st_size);
            cp_close(&o->file);
            return o;
        }
        o->stored = (uint64_t)st.st_size;
        if (!opts->stop_at_budget) o->first = o->reading = first_data(o->file, dropped, o->stored);
    } else if (!opts->stop_at_budget) {
        o->first = o->reading = o->stored = dropped; /* the file is gone, with all that was in it */
    }
    if (opts->stop_at_budget) {
        o->discarded = dropped;
        o->full = dropped > 0;
    }
    cp_close(&o->file);
    return o;
}

static bool grow(cp_output *o) { return ftruncate(o->file, (off_t)(o->stored + o->discarded)) == 0; }

/* Gives up what lies in a partly filled block, and looks whether the file system shows the hole. */
static void cut(cp_output *o) {
    uint64_t block = cp_output_block(o->file), rest = o->stored % block;
    bool at_budget = o->opts.stop_at_budget && o->stored == o->opts.budget;
    if (!at_budget) {
        if (rest > o->stored - o->first || ftruncate(o->file, (off_t)(o->stored - rest)) < 0) return;
        o->stored -= rest;
        o->discarded += rest;
        rest = 0;
    }
    if (!grow(o)) return;
    uint64_t hole = o->stored + (rest ? block - rest : 0);
    if (hole > cp_output_total(o)) hole = cp_output_total(o);
    o->gap = lseek(o->file, (off_t)o->first, SEEK_HOLE) == (off_t)hole && fchmod(o->file, CUT) == 0;
    if (!o->gap) (void)!ftruncate(o->file, (off_t)o->stored);
}

static bool counts_in_file(const cp_output *o) { return o->in_file && !o->unlinked && o->opts.kind == CP_OUT_FILE; }

bool cp_output_watched(const cp_output *o) { return cp_heap_first(&o->blocking) != NULL; }

uint64_t cp_output_slowest(const cp_output *o) {
    const cp_heap_item *first = cp_heap_first(&o->blocking);
    return first ? first->key : UINT64_MAX;
}

static bool has_cursors(const cp_output *o) { return !cp_ring_empty(&o->idle) || !cp_ring_empty(&o->due); }

static uint64_t held_at(const cp_output *o) { return cp_output_total(o) - o->held.n; }

static void trim_held(cp_output *o) {
    uint64_t slowest = cp_output_slowest(o);
    if (!o->held.n || slowest <= held_at(o)) return;
    uint64_t read = slowest - held_at(o);
    if (read < o->held.n) cp_buf_consume(&o->held, (size_t)read);
    else cp_buf_free(&o->held);
}

/* The hole that counts what is thrown away begins at a block: what lies before it in a partly filled one is given up,
 * and is held for those who have not read it. */
static void hold_rest(cp_output *o) {
    if (o->gap || o->discarded || !o->stored || !counts_in_file(o) || o->opts.stop_at_budget) return;
    if (open_log(o) < 0) return;
    uint64_t rest = o->stored % cp_output_block(o->file);
    if (rest > o->stored - o->first) return;
    cp_buf_reserve(&o->held, rest);
    if (pread(o->file, o->held.p, rest, (off_t)(o->stored - rest)) != (ssize_t)rest) return;
    if (ftruncate(o->file, (off_t)(o->stored - rest)) < 0) return;
    o->held.n = rest;
    o->stored -= rest;
    o->discarded += rest;
}

void cp_output_hold(cp_output *o, const char *p, size_t n) {
    hold_rest(o);
    cp_buf_add(&o->held, p, n);
    o->discarded += n;
    cp_output_gap(o);
}

bool cp_output_can_count(cp_output *o) { return !counts_in_file(o) || open_log(o) == 0 || !cp_no_fd(errno); }

void cp_output_gap(cp_output *o) {
    if (!counts_in_file(o) || !o->discarded) return;
    if (open_log(o) < 0) return; /* the next one tells the whole number */
    if (o->gap) (void)grow(o);
    else cut(o);
}

static void retry_fn(cp_timer *t) {
    cp_output *o = CP_CONTAINER(t, cp_output, retry);
    cp_output_grown(o);
    cp_output_kick(o);
}

bool cp_output_waits(const cp_output *o) { return cp_timer_active(&o->retry); }

void cp_output_retry(cp_output *o) {
    if (!cp_timer_active(&o->retry)) cp_timer_start(o->opts.loop, &o->retry, CP_OUT_RETRY_MS, retry_fn);
}

/* ---- taking away ---- */

typedef struct grave {
    cp_work work;
    int fd;
    char *path;
} grave;

static void bury_run(cp_work *w) {
    grave *g = CP_CONTAINER(w, grave, work);
    if (g->path) unlink(g->path);
    cp_close(&g->fd);
    free(g->path);
    free(g);
}

/* Takes the descriptor of a file without a name, and the name of one that nobody reads any more. */
static void bury(cp_workers *workers, int fd, char *path) {
    grave *g = cp_new(grave);
    g->fd = fd;
    g->path = path;
    cp_workers_submit_to(workers, CP_LANE_OUTPUT, CP_OWNER_UPKEEP, &g->work, bury_run, NULL);
}

/* Out of the way of a log that may take the same name at once. What a crash leaves is swept by the next start, because
 * no execution has such an id. NULL: there is no file, or it has been removed. */
static char *set_aside(const char *path) {
    static unsigned n; /* loop thread only */
    const char *slash = strrchr(path, '/');
    cp_autobuf cp_buf aside = {0};
    cp_buf_add(&aside, path, slash ? (size_t)(slash - path) + 1 : 0);
    cp_buf_addf(&aside, "~%d-%u.out", (int)getpid(), n++);
    if (rename(path, cp_buf_z(&aside)) == 0) return cp_str_dup(cp_buf_str(&aside));
    if (errno != ENOENT) unlink(path);
    return NULL;
}

void cp_output_remove(cp_workers *workers, const char *path) {
    char *aside = set_aside(path);
    if (aside) bury(workers, -1, aside);
}

static void destroy(cp_output *o) {
    cp_timer_stop(o->opts.loop, &o->retry);
    cp_loop_undefer(o->opts.loop, &o->later);
    cp_loop_undefer(o->opts.loop, &o->more);
    if (o->pipe >= 0) {
        cp_io_del(o->opts.loop, &o->io);
        cp_close(&o->pipe);
    }
    if (o->file >= 0 && o->unlinked) bury(o->opts.workers, cp_take_fd(&o->file), NULL);
    cp_close(&o->file);
    cp_buf_free(&o->mem);
    cp_buf_free(&o->held);
    cp_buf_free(&o->tail);
    free(o->path);
    free(o);
}

void cp_output_free(cp_output *o) {
    if (!o) return;
    assert(!has_cursors(o));
    o->on_end = NULL;
    o->free_asked = true;
    if (!o->job.running && !o->telling) destroy(o); /* else cp_output_settle does it */
}

void cp_output_unlink(cp_output *o) {
    if (!o->in_file || o->unlinked) return;
    if (has_cursors(o)) (void)open_log(o); /* whoever reads now reads on */
    o->unlinked = true;
    cp_output_remove(o->opts.workers, o->path); /* a job that creates it at this moment is seen to when it is done */
}

/* ---- what is there ---- */

uint64_t cp_output_total(const cp_output *o) { return o->stored + o->discarded; }
uint64_t cp_output_first(const cp_output *o) { return o->first; }
uint64_t cp_output_dropped(const cp_output *o) { return o->first + o->discarded; }
uint64_t cp_output_kept(const cp_output *o) { return o->stored - o->first; }
uint64_t cp_output_end(const cp_output *o) { return o->stored; }
bool cp_output_ended(const cp_output *o) { return o->ended; }
bool cp_output_truncated(const cp_output *o) { return o->discarded > 0; }

static void lose(cp_output *o, uint64_t before, const char *why) {
    if (before <= o->first) return;
    cp_log(CP_LOG_ERROR, "output.lost", "what a log had stored cannot be read any more; it counts as dropped",
           CP_KVZ("path", o->path), CP_KVZ("errno", why), CP_KVI("bytes", (int64_t)(before - o->first)));
    cp_metric_add(CP_M_LOGS_LOST, 1);
    o->first = o->reading = before;
    cp_output_grown(o);
}

void cp_output_lose_before(cp_output *o, uint64_t before) { lose(o, before, "EOF"); }

/* Its file is gone or cannot be read, while more is still to come. Of a log that has ended every reader is told. */
void cp_output_lose(cp_output *o, int sys) {
    if (!o->ended && !o->job.running) lose(o, o->stored, sys ? cp_errno_name(sys) : "EOF");
}

void cp_output_rest(cp_output *o) {
    if (o->ended && !has_cursors(o) && !o->unlinked && !o->job.running) cp_close(&o->file);
}

static size_t read_file(cp_output *o, uint64_t at, size_t n, cp_buf *out) {
    if (open_log(o) < 0) {
        if (cp_no_fd(errno)) cp_output_retry(o);
        else cp_output_lose(o, errno);
        return 0;
    }
    cp_buf_reserve(out, n);
    size_t got = 0;
    while (got < n) {
        ssize_t k = pread(o->file, out->p + out->n + got, n - got, (off_t)(at + got));
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0 && !got) cp_output_lose(o, k < 0 ? errno : 0);
        if (k <= 0) break;
        got += (size_t)k;
    }
    out->n += got;
    cp_output_rest(o);
    return got;
}

static size_t read_held(cp_output *o, uint64_t from, size_t max, cp_buf *out, uint64_t *at) {
    uint64_t lo = from > held_at(o) ? from : held_at(o), total = cp_output_total(o);
    *at = lo;
    if (!o->held.n || lo >= total) return 0;
    size_t n = total - lo < max ? (size_t)(total - lo) : max;
    cp_buf_add(out, o->held.p + (lo - held_at(o)), n);
    return n;
}

static size_t read_stored(cp_output *o, uint64_t from, size_t max, cp_buf *out, uint64_t *at) {
    uint64_t lo = from > o->reading ? from : o->reading;
    *at = lo;
    if (lo >= o->stored) return 0;
    uint64_t n = o->stored - lo;
    if (n > max) n = max;
    /* While a spill is being written the bytes are in memory still. */
    if (!o->in_file || o->mem.n) {
        cp_buf_add(out, o->mem.p + lo, n);
        return n;
    }
    return read_file(o, lo, n, out);
}

size_t cp_output_read(cp_output *o, uint64_t from, size_t max, cp_buf *out, uint64_t *at) {
    size_t n = read_stored(o, from, max, out, at);
    if (n || *at < o->stored || !o->held.n) return n;
    return read_held(o, from, max, out, at);
}

void cp_output_append(cp_output *o, cp_str s) {
    if (!o->ended) cp_buf_add(&o->tail, s.p, s.n);
}

/* ---- cursors ---- */

void cp_cursor_open(cp_cursor *c, cp_output *o, uint64_t from, bool blocking, void (*wake)(cp_cursor *)) {
    *c = (cp_cursor){.o = o, .at = from, .blocking = blocking, .wake = wake};
    cp_ring_add(&o->idle, &c->link);
    if (blocking) cp_heap_put(&o->blocking, &c->pace, from);
    if (o->stored > from || o->ended) cp_output_wake(c);
}

void cp_output_wake(cp_cursor *c) {
    cp_ring_move(&c->o->due, &c->link);
    cp_loop_defer(c->o->opts.loop, &c->o->later, later_fn);
}

/* The slowest blocking cursor stood at `before`. Only where it has moved there is more room for the child. */
static void slowest_moved(cp_output *o, uint64_t before) {
    if (cp_output_slowest(o) <= before) return;
    trim_held(o);
    cp_output_kick(o);
}

void cp_cursor_advance(cp_cursor *c, uint64_t to) {
    if (to <= c->at) return;
    c->at = to;
    if (!c->blocking) return;
    uint64_t before = cp_output_slowest(c->o);
    cp_heap_put(&c->o->blocking, &c->pace, to);
    slowest_moved(c->o, before);
}

void cp_cursor_close(cp_cursor *c) {
    cp_output *o = c->o;
    if (!o) return;
    cp_fetch_cancel(&c->fetch);
    uint64_t before = cp_output_slowest(o);
    cp_heap_drop(&o->blocking, &c->pace);
    cp_ring_del(&c->link);
    *c = (cp_cursor){0};
    cp_output_rest(o);
    slowest_moved(o, before);
}

uint64_t cp_output_room(const cp_output *o) {
    uint64_t slowest = cp_output_slowest(o);
    if (!cp_output_watched(o)) return UINT64_MAX;
    if (o->full) return o->held.n >= CP_OUT_HELD ? 0 : CP_OUT_HELD - o->held.n;
    if (slowest < o->reading) slowest = o->reading;
    uint64_t window = o->opts.budget < CP_OUT_WINDOW ? o->opts.budget : CP_OUT_WINDOW;
    uint64_t ahead = o->stored > slowest ? o->stored - slowest : 0;
    return ahead >= window ? 0 : window - ahead;
}

void cp_output_grown(cp_output *o) {
    cp_ring_join(&o->due, &o->idle);
    if (!cp_ring_empty(&o->due)) cp_loop_defer(o->opts.loop, &o->later, later_fn);
}

static void store_tail(cp_output *o) {
    if (o->tail.n == 0) return;
    if (o->full && cp_output_watched(o)) {
        cp_output_hold(o, o->tail.p, o->tail.n);
    } else if (o->full) {
        o->discarded += o->tail.n;
    } else if (!o->in_file) {
        cp_buf_add(&o->mem, o->tail.p, o->tail.n);
        o->stored += o->tail.n;
    } else {
        if (o->file < 0) o->file = cp_output_create(o, 0);
        ssize_t k = o->file < 0 ? -1 : pwrite(o->file, o->tail.p, o->tail.n, (off_t)o->stored);
        size_t n = k > 0 ? (size_t)k : 0;
        o->stored += n;
        o->discarded += o->tail.n - n;
    }
    if (o->discarded) cp_output_gap(o);
    cp_buf_free(&o->tail);
}

/* Somebody has removed its file: what was written is there as long as the descriptor is. */
static void keep_nameless(cp_output *o) {
    struct stat st;
    if (o->file < 0 || !o->in_file || o->unlinked || fstat(o->file, &st) < 0 || st.st_nlink) return;
    o->unlinked = true;
    cp_log(CP_LOG_WARN, "output.nameless", "the file of a log was removed; what it holds is kept until a restart",
           CP_KVZ("path", o->path));
}

void cp_output_settle(cp_output *o) {
    if (o->job.running) return;
    if (o->free_asked) {
        if (!o->telling) destroy(o);
        return;
    }
    if (o->ended || !o->eof) return;
    store_tail(o);
    keep_nameless(o);
    o->ended = true;
    cp_output_grown(o);
    cp_output_rest(o);
    cp_loop_defer(o->opts.loop, &o->later, later_fn);
}

/* Tells the cursors, as many as there is time for in one round, and the owner of the end. A callback may close any
 * cursor and free the output. */
static void later_fn(cp_deferred *d) {
    cp_output *o = CP_CONTAINER(d, cp_output, later);
    uint64_t until = cp_now_us() + CP_OUT_ROUND_US;
    bool late = false;
    o->telling = true;
    for (cp_link *l; !late && (l = cp_ring_first(&o->due)); late = cp_now_us() >= until) {
        cp_cursor *c = CP_CONTAINER(l, cp_cursor, link);
        cp_ring_move(&o->idle, l);
        c->wake(c);
    }
    if (!cp_ring_empty(&o->due)) cp_loop_defer(o->opts.loop, &o->later, later_fn);
    if (o->ended && !o->told && !o->free_asked) {
        o->told = true;
        if (o->on_end) o->on_end(o->arg);
    }
    o->telling = false;
    if (o->free_asked) {
        cp_output_settle(o);
        return;
    }
}
