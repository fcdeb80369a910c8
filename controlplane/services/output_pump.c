/* From pipe to log. The loop reads into memory; once a log is in a file the io pool splices, one job per output at a
 * time. The pipe is watched edge-triggered and `readable` remembers the edge: while a job runs or a reader holds the
 * child back there is neither a system call to mute the watch nor a busy loop on a hang-up that nobody may look at yet.
 */
#include "services/output.h"

#include "base/aside.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/metrics.h"
#include "services/output_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

static char scratch[CP_OUT_SLICE]; /* loop thread only */

/* ---- throwing away ---- */

/* Bytes taken from the pipe; 0 at the end; -1 EAGAIN. */
static ssize_t discard(int pipe, size_t max) {
    static int devnull = -1;
    if (devnull < 0) devnull = open("/dev/null", O_WRONLY | O_CLOEXEC);
    for (;;) {
        ssize_t k = devnull < 0 ? read(pipe, scratch, max < sizeof scratch ? max : sizeof scratch)
                                : splice(pipe, NULL, devnull, NULL, max, SPLICE_F_NONBLOCK);
        if (k >= 0 || errno != EINTR) return k;
    }
}

struct drain {
    struct drain *next, **link; /* link: what points to it */
    cp_loop *loop;
    cp_io io;
    int fd;
};
static struct drain *drains; /* loop thread only */

static void drain_close(struct drain *d) {
    *d->link = d->next;
    if (d->next) d->next->link = d->link;
    cp_io_del(d->loop, &d->io);
    cp_close(&d->fd);
    free(d);
}

static void drain_event(cp_io *io, uint32_t events) {
    (void)events;
    struct drain *d = CP_CONTAINER(io, struct drain, io);
    ssize_t k = discard(d->fd, CP_OUT_JOB);
    if (k == 0 || (k < 0 && errno != EAGAIN)) drain_close(d);
}

void cp_output_drains_close(cp_loop *loop) {
    for (struct drain *d = drains, *next; d; d = next) {
        next = d->next;
        if (d->loop == loop) drain_close(d);
    }
}

void cp_output_drain(cp_loop *loop, int fd) {
    struct drain *d = cp_new(struct drain);
    d->loop = loop;
    d->fd = fd;
    d->next = drains;
    d->link = &drains;
    if (d->next) d->next->link = &d->next;
    drains = d;
    if (cp_io_add(d->loop, &d->io, d->fd, EPOLLIN, drain_event) < 0) drain_close(d);
}

static void hand_to_drain(cp_output *o) {
    cp_io_del(o->opts.loop, &o->io);
    cp_output_drain(o->opts.loop, cp_take_fd(&o->pipe));
}

/* ---- common ---- */

static void pipe_ended(cp_output *o) {
    cp_io_del(o->opts.loop, &o->io);
    cp_close(&o->pipe);
    o->eof = true;
}

/* n bytes have left the pipe. `empty`: it had no more. */
static void took(cp_output *o, size_t n, bool empty) {
    if (!o->finishing || !o->counted) return;
    o->finish_left -= n < o->finish_left ? n : o->finish_left;
    if (o->pipe < 0 || (o->finish_left && !empty)) return;
    hand_to_drain(o);
    o->eof = true;
}

/* How many bytes the next step may take from the pipe. What was in it when the log was to finish comes in whatever the
 * readers do: it is at most a pipe full. */
static size_t allowance(const cp_output *o, size_t step) {
    if (o->finishing && o->counted) return o->finish_left < step ? o->finish_left : step;
    uint64_t room = cp_output_room(o);
    return room < step ? (size_t)room : step;
}

static void widen(cp_output *o) {
    if (o->wide) return;
    o->wide = true;
    (void)fcntl(o->pipe, F_SETPIPE_SZ, CP_OUT_JOB); /* refused beyond the user's quota: slower, nothing else */
}

static void later_fn(cp_deferred *d) { cp_output_kick(CP_CONTAINER(d, cp_output, more)); }

/* Others get their turn first. */
static void again(cp_output *o) { cp_loop_defer(o->opts.loop, &o->more, later_fn); }

/* For those who watch; the child waits for them as it would otherwise. */
static void pass_on(cp_output *o) {
    size_t max = allowance(o, sizeof scratch);
    if (max == 0) return; /* held back; advancing the cursor comes here again */
    ssize_t k;
    do k = read(o->pipe, scratch, max);
    while (k < 0 && errno == EINTR);
    if (k > 0) {
        cp_output_hold(o, scratch, (size_t)k);
        cp_metric_add(CP_M_OUTPUT_BYTES, k);
        cp_output_grown(o);
    } else if (k == 0) {
        pipe_ended(o);
    } else {
        o->readable = false;
    }
    took(o, k > 0 ? (size_t)k : 0, k < 0);
    if (o->readable && !o->eof) again(o);
}

static void throw_away(cp_output *o) {
    if (!cp_output_can_count(o)) { /* what nobody counts would be lost; in the pipe it is not */
        cp_output_retry(o);
        return;
    }
    if (cp_output_watched(o)) {
        pass_on(o);
        return;
    }
    widen(o);
    size_t max = allowance(o, CP_OUT_JOB);
    ssize_t k = max ? discard(o->pipe, max) : -1;
    bool empty = k < 0;
    if (k > 0) {
        o->discarded += (size_t)k;
        cp_output_gap(o);
        cp_metric_add(CP_M_OUTPUT_BYTES, k);
        cp_output_grown(o);
    } else if (k == 0) {
        pipe_ended(o);
    }
    if (empty) o->readable = false;
    took(o, k > 0 ? (size_t)k : 0, empty);
    if (o->readable && !o->eof) again(o);
}

/* ---- memory ---- */

static uint64_t budget_left(const cp_output *o) {
    if (!o->opts.stop_at_budget) return UINT64_MAX;
    return o->opts.budget > o->stored ? o->opts.budget - o->stored : 0;
}

static void keep(cp_output *o, const char *p, size_t n) {
    uint64_t left = budget_left(o);
    size_t k = n < left ? n : (size_t)left;
    cp_buf_add(&o->mem, p, k);
    o->stored += k;
    o->discarded += n - k;
    if (k < n) o->full = true;
    cp_metric_add(CP_M_OUTPUT_BYTES, (int64_t)n);
    cp_output_grown(o);
}

/* -1: the pipe is empty (or held back: then readable stays), 0: ended, else what was read. */
static ssize_t read_once(cp_output *o, size_t max) {
    ssize_t k;
    do k = read(o->pipe, scratch, max);
    while (k < 0 && errno == EINTR);
    if (k > 0) keep(o, scratch, (size_t)k);
    else if (k == 0) pipe_ended(o);
    else o->readable = false;
    took(o, k > 0 ? (size_t)k : 0, k < 0);
    return k;
}

static void read_into_memory(cp_output *o) {
    size_t max = allowance(o, sizeof scratch);
    if (max == 0) return; /* held back; advancing the cursor comes here again */
    ssize_t k = read_once(o, max);
    /* A short read emptied the pipe: the next one finds the end or nothing, and mostly it is the end. */
    if (k > 0 && (size_t)k < max && !o->eof && (max = allowance(o, sizeof scratch)) > 0) read_once(o, max);
    if (o->readable && !o->eof) again(o);
}

/* ---- file ---- */

/* The folder is made again where somebody has removed it. */
int cp_output_create(const cp_output *o, int flags) {
    int fd = open(o->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
    if (fd >= 0 || (errno != ENOENT && errno != ENOTDIR && errno != EACCES)) return fd;
    int sys = errno;
    cp_autofree char *folder = cp_str_dup(cp_str_of(o->path));
    char *slash = strrchr(folder, '/');
    if (!slash) return -1;
    *slash = '\0';
    if (cp_folder_make(folder, 0700) < 0) return -1;
    cp_metric_add(CP_M_STATE_MENDED, 1);
    cp_log(CP_LOG_ERROR, "output.folder", "the folder of the logs was gone or closed; it was made again",
           CP_KVZ("path", folder), CP_KVZ("errno", cp_errno_name(sys)));
    return open(o->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
}

static void job_open(cp_output *o, struct out_job *j) {
    j->file = cp_output_create(o, j->spill ? O_TRUNC : 0);
    if (j->file < 0) j->sys = errno;
    else if (j->spill) unlink(o->path);
}

static void job_spill(cp_output *o, struct out_job *j) {
    for (size_t n = 0; n < o->mem.n;) {
        ssize_t k = pwrite(j->file, o->mem.p + n, o->mem.n - n, (off_t)n);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) {
            j->sys = errno;
            return;
        }
        n += (size_t)k;
    }
}

static void job_splice(cp_output *o, struct out_job *j) {
    while (j->moved < j->max) {
        loff_t at = (loff_t)(j->at + j->moved);
        ssize_t k = splice(o->pipe, NULL, j->file, &at, j->max - j->moved, SPLICE_F_NONBLOCK);
        if (k > 0) {
            j->moved += (size_t)k;
            continue;
        }
        if (k < 0 && errno == EINTR) continue;
        if (k == 0) j->eof = true;
        else if (errno == EAGAIN) j->drained = true;
        else j->sys = errno;
        return;
    }
}

/* In this order: until the mode says otherwise, the next server takes what is behind the hole for thrown away. */
static void job_forget(const struct out_job *j) {
    (void)fallocate(j->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)(j->forget_to / 4096 * 4096));
    (void)fchmod(j->file, S_IRUSR | S_IWUSR);
}

/* Somebody has cut the file short: what is written now would stand behind zeros that nobody has written. The hole shows
 * where it begins, after a restart too. */
static void job_look(struct out_job *j) {
    struct stat st;
    j->cut = fstat(j->file, &st) == 0 && (uint64_t)st.st_size < j->at;
    if (j->cut) (void)fallocate(j->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)(j->at / 4096 * 4096));
}

static void job_run(cp_work *w) {
    struct out_job *j = CP_CONTAINER(w, struct out_job, work);
    cp_output *o = CP_CONTAINER(j, cp_output, job);
    if (j->open_file) job_open(o, j);
    if (!j->sys && j->forget_to) job_forget(j);
    if (!j->sys && j->spill) job_spill(o, j);
    if (!j->sys && j->punch_to > j->punch_from)
        j->punch_failed = fallocate(j->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)j->punch_from,
                                    (off_t)(j->punch_to - j->punch_from)) < 0;
    if (!j->sys && !j->again && !j->spill) job_look(j);
    if (!j->sys) job_splice(o, j);
}

static void harvest_file(cp_output *o, struct out_job *j) {
    if (j->open_file && j->file >= 0) {
        if (j->sys && j->spill && j->moved == 0) { /* the memory stays the log */
            cp_close(&j->file);
            return;
        }
        cp_close(&o->file); /* a reader may have opened it meanwhile */
        o->file = cp_take_fd(&j->file);
        o->in_file = true;
        if (j->spill) o->unlinked = true;
        else if (o->unlinked) unlink(o->path);
    }
    if (j->spill && o->in_file) cp_buf_free(&o->mem);
}

static void harvest_hole(cp_output *o, struct out_job *j) {
    if (j->punch_to <= j->punch_from) return;
    if (j->punch_failed || j->sys) {
        o->no_punch = true;
        o->reading = o->first;
        return;
    }
    cp_metric_add(CP_M_DROPPED_BYTES, (int64_t)(j->punch_to - o->first));
    o->first = j->punch_to;
}

/* The disk takes something again: the log goes on from here. The next job takes away what was before. */
static void store_again(cp_output *o, const struct out_job *j) {
    o->first = o->reading = o->stored = j->at;
    o->forget = true;
    o->discarded = 0;
    o->full = o->gap = false;
    cp_log(CP_LOG_INFO, "output.again", "output is stored again; what came before counts as dropped",
           CP_KVZ("path", o->path));
}

static void refused(cp_output *o, const struct out_job *j) {
    o->full = true;
    o->again_at = cp_loop_now(o->opts.loop) + CP_OUT_AGAIN_MS;
    if (j->again) return; /* nothing new */
    cp_metric_add(CP_M_LOGS_REFUSED, 1);
    cp_log(CP_LOG_ERROR, "output.write", "output cannot be stored; who watches gets it, the rest is thrown away",
           CP_KVZ("errno", cp_errno_name(j->sys)), CP_KVZ("path", o->path));
}

static void job_done(cp_work *w) {
    struct out_job *j = CP_CONTAINER(w, struct out_job, work);
    cp_output *o = CP_CONTAINER(j, cp_output, job);
    j->running = false;
    if (cp_no_fd(j->sys)) { /* it could not even be opened: nothing has been moved */
        o->reading = o->first;
        o->readable |= j->max > 0;
        cp_output_retry(o);
        cp_output_settle(o);
        return;
    }
    harvest_file(o, j);
    harvest_hole(o, j);
    if (j->cut) cp_output_lose_before(o, j->at);
    if (j->again && j->moved) store_again(o, j);
    if (j->moved) {
        o->stored += j->moved;
        cp_metric_add(CP_M_OUTPUT_BYTES, (int64_t)j->moved);
        cp_output_grown(o);
        if (j->moved >= CP_OUT_SLICE) widen(o);
    }
    if (j->sys) refused(o, j);
    if (!j->drained) o->readable = true;
    if (j->eof) pipe_ended(o);
    if (j->max) took(o, j->moved, j->drained);
    cp_output_kick(o);
}

/* Holes are made in steps, so that a full log does not punch with every page. */
static uint64_t hole_end(const cp_output *o) {
    uint64_t budget = o->opts.budget;
    if (o->opts.stop_at_budget || o->no_punch || o->stored - o->first <= budget) return o->first;
    uint64_t step = budget / 8 / 4096 * 4096;
    if (step > CP_OUT_JOB) step = CP_OUT_JOB;
    if (step < 4096) step = 4096;
    uint64_t to = (o->stored - budget + step - 1) / step * step;
    if (cp_output_slowest(o) < to) to = cp_output_slowest(o);
    if (to > o->stored) to = o->stored;
    to = to / 4096 * 4096; /* a part of a page would only be zeroed */
    return to > o->first ? to : o->first;
}

/* Steps of a small budget are small, so that its pages are not all taken by one job. */
static size_t job_size(const cp_output *o) {
    uint64_t half = o->opts.budget / 2;
    return half < CP_OUT_JOB ? (size_t)(half < 4096 ? 4096 : half) : CP_OUT_JOB;
}

/* Most children write nothing to stderr: their end needs no file. */
static bool ended_in_silence(cp_output *o) {
    struct pollfd p = {.fd = o->pipe, .events = POLLIN};
    if (o->file >= 0 || o->pipe < 0 || !o->readable || o->stored) return false;
    return poll(&p, 1, 0) == 1 && (p.revents & POLLHUP) && !(p.revents & POLLIN);
}

/* Until the next job has taken away what was kept, the hole between that and what is stored now is all that tells them
 * apart after a crash. The file system shows none that is less than a block. */
static bool hole_shows(cp_output *o) {
    if (!o->gap) return true;
    if (!cp_output_can_count(o)) return false; /* the file has to be open to be asked */
    uint64_t block = cp_output_block(o->file);
    return cp_output_total(o) / block > (o->stored + block - 1) / block;
}

/* Not while somebody has still to read what passes through memory. */
static bool may_store_again(cp_output *o) {
    return !o->opts.stop_at_budget && o->in_file && !o->unlinked && !o->held.n && !o->finishing &&
           cp_loop_now(o->opts.loop) >= o->again_at && hole_shows(o);
}

static void start_again(cp_output *o) {
    size_t max = allowance(o, job_size(o));
    if (max == 0) return;
    o->job = (struct out_job){.running = true,
                              .open_file = o->file < 0,
                              .file = o->file,
                              .at = cp_output_total(o),
                              .max = max,
                              .again = true};
    o->readable = false;
    cp_workers_submit(o->opts.workers, &o->job.work, job_run, job_done);
}

static void start_job(cp_output *o, bool spill) {
    struct out_job *j = &o->job;
    size_t max = 0;
    if (o->pipe >= 0 && !o->eof && o->readable) {
        max = allowance(o, job_size(o));
        if (max > budget_left(o)) max = (size_t)budget_left(o);
    }
    uint64_t hole = spill ? o->first : hole_end(o);
    if (max == 0 && hole == o->first && !spill && !o->forget) return;
    *j = (struct out_job){.running = true,
                          .open_file = o->file < 0,
                          .file = o->file,
                          .spill = spill,
                          .punch_from = o->first,
                          .punch_to = hole,
                          .forget_to = o->forget ? o->first : 0,
                          .at = o->stored,
                          .max = max};
    o->forget = false;
    o->reading = hole; /* what is being punched must not be read as zeros */
    if (max) o->readable = false;
    cp_workers_submit_to(o->opts.workers, CP_LANE_OUTPUT, CP_OWNER_ANYONE, &j->work, job_run, job_done);
}

void cp_output_kick(cp_output *o) {
    if (o->job.running || o->ended || o->free_asked) {
        if (o->free_asked) cp_output_settle(o);
        return;
    }
    if (o->finishing && !o->counted && o->pipe >= 0) {
        int n = 0;
        o->counted = true;
        o->finish_left = ioctl(o->pipe, FIONREAD, &n) == 0 && n > 0 ? (size_t)n : 0;
        o->readable = true;
        if (o->finish_left == 0) took(o, 0, true);
    }
    if (o->in_file && !o->full && budget_left(o) == 0) o->full = true;
    if (o->pipe >= 0 && o->readable && !o->eof) {
        if (o->full && may_store_again(o)) start_again(o);
        else if (o->full) throw_away(o);
        else if (!o->in_file && o->mem.n < CP_OUT_SPILL) read_into_memory(o);
    }
    if (o->in_file && !o->eof && ended_in_silence(o)) pipe_ended(o);
    if (!o->full && (o->in_file || o->mem.n >= CP_OUT_SPILL)) start_job(o, !o->in_file);
    cp_output_settle(o);
}

/* ---- the pipe ---- */

static void pipe_event(cp_io *io, uint32_t events) {
    (void)events;
    cp_output *o = CP_CONTAINER(io, cp_output, io);
    o->readable = true;
    cp_output_kick(o);
}

int cp_output_attach(cp_output *o, int fd, void (*on_end)(void *arg), void *arg, cp_err *err) {
    o->on_end = on_end;
    o->arg = arg;
    if (o->ended) { /* finished before there was a pipe */
        cp_close(&fd);
        return 0;
    }
    if (fd < 0) {
        o->eof = true;
        cp_output_settle(o);
        return 0;
    }
    if (cp_nonblock(fd) < 0 || cp_io_add(o->opts.loop, &o->io, fd, EPOLLIN | EPOLLET, pipe_event) < 0) {
        int sys = errno;
        cp_close(&fd);
        return cp_fail_sys(err, CP_E_INTERNAL_ERROR, sys, "cannot watch an output pipe");
    }
    o->pipe = fd;
    return 0;
}

void cp_output_finish(cp_output *o) {
    if (o->ended || o->finishing) return;
    o->finishing = true;
    if (o->pipe < 0) o->eof = true;
    cp_output_kick(o);
}
