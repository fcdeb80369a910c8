/* Design notes. The loop reads of a log what is in memory or in the page cache (RWF_NOWAIT, RESOLVE_CACHED); what a
 * disk has to bring is read by a thread, and the loop goes on meanwhile. The thread has a descriptor and a buffer of
 * its own and knows neither log nor reader: both may go while it reads, or waits.
 *
 * Meanwhile the log may have dropped what was read, or cut off its end (holes and truncation read as zeros). Both show
 * in `reading` and `stored`, which the loop sets before a thread touches the file: what lies outside of them when the
 * bytes are taken over is thrown away.
 *
 * Where the file system cannot say what is in memory (overlayfs and tmpfs of many kernels), a file that is in memory as
 * a whole is read at once, and so are the newest bytes of a log that is being written; the rest is the thread's. */
#include "services/output.h"

#include "base/budget.h"
#include "base/fd.h"
#include "services/output_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

struct out_fetch {
    cp_work work;
    cp_fetch *owner; /* NULL: nobody wants it any more */
    int fd;          /* its own; -1: to be opened */
    char *path;
    uint64_t at;
    size_t max, n; /* n: what was read */
    char *p;
    int sys; /* 0: none; with n == 0: the file ends before `at` */
};

static void job_free(struct out_fetch *j) {
    cp_close(&j->fd);
    free(j->path);
    free(j->p);
    free(j);
}

static void job_run(cp_work *w) {
    struct out_fetch *j = CP_CONTAINER(w, struct out_fetch, work);
    if (j->fd < 0) j->fd = open(j->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (j->fd < 0) {
        j->sys = errno;
        return;
    }
    j->p = cp_alloc(j->max);
    while (j->n < j->max) {
        ssize_t k = pread(j->fd, j->p + j->n, j->max - j->n, (off_t)(j->at + j->n));
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) j->sys = errno;
        if (k <= 0) break;
        j->n += (size_t)k;
    }
    cp_close(&j->fd); /* of a file without a name that may be the last one, and takes its time */
}

static void drop_got(cp_fetch *f) {
    free(f->p);
    f->p = NULL;
    f->n = 0;
    f->came = false;
    cp_charge_free(&f->charge);
}

static void job_done(cp_work *w) {
    struct out_fetch *j = CP_CONTAINER(w, struct out_fetch, work);
    cp_fetch *f = j->owner;
    if (f) {
        f->job = NULL;
        f->came = true;
        f->at = j->at;
        f->n = j->n;
        f->sys = j->sys;
        f->p = cp_take(j->p);
        f->charge.kind = CP_MEM_RESULTS;
        cp_charge_force(&f->charge, f->n);
    }
    job_free(j);
    if (f) f->done(f);
}

void cp_fetch_cancel(cp_fetch *f) {
    struct out_fetch *j = cp_take(f->job);
    drop_got(f);
    if (!j) return;
    j->owner = NULL;
    if (cp_workers_withdraw(&j->work)) job_free(j);
}

/* Readers of one log take turns with those of others. */
static uint64_t owner_of(const cp_output *o) { return CP_OWNER_CLIENTS + (uintptr_t)o / sizeof *o; }

/* False: no descriptor is free. */
static bool start(cp_output *o, cp_fetch *f, uint64_t at, size_t n) {
    int fd = o->file < 0 ? -1 : fcntl(o->file, F_DUPFD_CLOEXEC, 0);
    if (o->file >= 0 && fd < 0) return false;
    struct out_fetch *j = f->job = cp_new(struct out_fetch);
    j->owner = f;
    j->fd = fd;
    j->path = fd < 0 ? cp_str_dup(cp_str_of(o->path)) : NULL;
    j->at = at;
    j->max = n;
    cp_workers_submit_to(o->opts.workers, CP_LANE_OUTPUT, owner_of(o), &j->work, job_run, job_done);
    return true;
}

/* ---- without waiting ---- */

/* Opens it when that takes no look at the disk. */
static bool open_cached(cp_output *o) {
    struct open_how how = {.flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW, .resolve = RESOLVE_CACHED};
    if (o->file < 0) o->file = (int)syscall(SYS_openat2, AT_FDCWD, o->path, &how, sizeof how);
    return o->file >= 0;
}

static bool is_in_memory(const cp_output *o, uint64_t at) {
    struct statfs fs;
    if (o->pipe >= 0 && at + CP_OUT_WINDOW >= o->stored) return true;
    return fstatfs(o->file, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}

/* -1 with EAGAIN: the disk would have to bring it. */
static ssize_t read_cached(const cp_output *o, char *p, size_t n, uint64_t at) {
    const struct iovec io = {.iov_base = p, .iov_len = n};
    ssize_t k;
    do k = preadv2(o->file, &io, 1, (off_t)at, RWF_NOWAIT);
    while (k < 0 && errno == EINTR);
    if (k >= 0 || (errno != EOPNOTSUPP && errno != ENOSYS)) return k;
    if (is_in_memory(o, at)) return pread(o->file, p, n, (off_t)at);
    errno = EAGAIN;
    return -1;
}

/* What could not be read is gone, or is to be asked for again. */
static void not_read(cp_output *o, int sys) {
    if (cp_no_fd(sys)) cp_output_retry(o);
    else cp_output_lose(o, sys);
}

static size_t read_file(cp_output *o, cp_fetch *f, uint64_t at, size_t n, cp_buf *out) {
    ssize_t k = -1;
    if (open_cached(o)) {
        cp_buf_reserve(out, n);
        k = read_cached(o, out->p + out->n, n, at);
        int sys = errno;
        cp_output_rest(o);
        if (k > 0) {
            out->n += (size_t)k;
            return (size_t)k;
        }
        if (k == 0 || sys != EAGAIN) {
            not_read(o, k < 0 ? sys : 0);
            return 0;
        }
    }
    if (!start(o, f, at, n)) not_read(o, EMFILE);
    return 0;
}

/* ---- what a thread has read ---- */

static size_t take_got(const cp_output *o, cp_fetch *f, uint64_t lo, size_t max, cp_buf *out) {
    uint64_t end = f->at + f->n;
    if (end > o->stored) end = o->stored;
    size_t n = lo >= f->at && lo < end ? (size_t)(end - lo) : 0;
    if (n > max) n = max;
    if (n) cp_buf_add(out, f->p + (lo - f->at), n);
    if (!n || lo + n == end) drop_got(f);
    return n;
}

size_t cp_output_get(cp_output *o, cp_fetch *f, uint64_t from, size_t max, cp_buf *out, uint64_t *at) {
    uint64_t lo = from > o->reading ? from : o->reading;
    *at = lo;
    if (f->job || lo >= o->stored || !o->in_file || o->mem.n) return f->job ? 0 : cp_output_read(o, from, max, out, at);
    if (f->came && !f->n) {
        int sys = f->sys;
        drop_got(f);
        not_read(o, sys);
        return 0;
    }
    size_t n = f->came ? take_got(o, f, lo, max, out) : 0;
    uint64_t left = o->stored - lo;
    return n ? n : read_file(o, f, lo, left < max ? (size_t)left : max, out);
}

static void cursor_fetched(cp_fetch *f) { cp_output_wake(CP_CONTAINER(f, cp_cursor, fetch)); }

size_t cp_cursor_read(cp_cursor *c, size_t max, cp_buf *out, uint64_t *at) {
    c->fetch.done = cursor_fetched;
    return cp_output_get(c->o, &c->fetch, c->at, max, out, at);
}

bool cp_cursor_waits(const cp_cursor *c) { return c->fetch.job || cp_output_waits(c->o); }
