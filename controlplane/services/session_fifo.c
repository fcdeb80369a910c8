/* The FIFO pairs of a session's commands, by name in its folder (session_folder.c).
 *
 * FIFOs by name, not inherited descriptors: what the shell holds open its children would inherit, and a command could
 * read another's channel. A FIFO needs a reader before the shell opens it for writing, and shows its end to that reader
 * before anybody has written; so each use opens both ends here, and ours is closed when the shell is known to have its
 * own. */
#include "services/session_impl.h"

#include "base/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

/* An output that goes on from the former server has this FIFO: nobody else may take bytes out of it. */
static bool is_read(int fd) {
    struct stat st, other;
    DIR *d = fstat(fd, &st) == 0 ? opendir("/proc/self/fd") : NULL;
    bool found = !d; /* rather not drained than stolen */
    for (struct dirent *e; d && !found && (e = readdir(d));) {
        int n = (int)strtol(e->d_name, NULL, 10);
        found = n != fd && fstat(n, &other) == 0 && S_ISFIFO(other.st_mode) && other.st_ino == st.st_ino &&
                other.st_dev == st.st_dev;
    }
    if (d) closedir(d);
    return found;
}

/* The input of a command that is gone on with: it has its writer, or has met its end. */
static bool is_fed(const struct cp_session *s, const char *name, uint64_t pair) {
    for (size_t i = 0; name[0] == 'i' && s->held && i < s->held->n; i++)
        if (s->held->v[i].pair == pair && s->held->v[i].status < 0) return true;
    return false;
}

static void take_over_fifo(struct cp_session *s, const char *name) {
    uint64_t n;
    bool output = name[0] == 'o' || name[0] == 'e';
    if (!strchr("oeig", name[0]) || !cp_str_u64(cp_str_of(name + 1), UINT32_MAX - 1, &n)) return;
    if (n >= s->pair_next) s->pair_next = (unsigned)n + 1; /* what comes must not meet what goes on */
    if (is_fed(s, name, n) || (!output && s->nstale == CP_COUNT(s->stale))) return;
    int fd = openat(s->dir, name, (output ? O_RDONLY : O_RDWR) | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return;
    if (!output) s->stale[s->nstale++] = fd;
    else if (is_read(fd)) cp_close(&fd);
    else cp_output_drain(s->svc->loop, fd);
}

/* What a command that a former server started still writes, or is about to: its result is lost, it is not. The shell
 * may be about to open its input too, or a subshell what it waits on for its go-ahead: without another end they would
 * wait for ever. These are closed by the next report, which comes when they have been opened: then they show the end.
 */
void session_folder_drain(struct cp_session *s) {
    DIR *d = opendir(s->path);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) take_over_fifo(s, e->d_name); /* by name: d_type may be unknown */
    closedir(d);
    s->pair_first = s->pair_next;
}

/* The shell has come to the end of what a former server gave it. A reader sees no end of a FIFO that nobody has written
 * to since it was opened: one that writes nothing shows it, unless a background job is at it still. */
void session_folder_drained(struct cp_session *s) {
    DIR *d = opendir(s->path);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        uint64_t n;
        if ((e->d_name[0] != 'o' && e->d_name[0] != 'e') || !cp_str_u64(cp_str_of(e->d_name + 1), UINT32_MAX, &n) ||
            n >= s->pair_first)
            continue;
        int fd = openat(s->dir, e->d_name, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
        cp_close(&fd);
    }
    closedir(d);
}

void session_stale_close(struct cp_session *s) {
    while (s->nstale) cp_close(&s->stale[--s->nstale]);
}

void session_pair_free(struct session_pair *p) {
    cp_close(&p->probe[0]);
    cp_close(&p->probe[1]);
    free(p);
}

void session_pair_drop(struct cp_session *s, struct session_pair *p) {
    for (const char *kind = "oeig"; *kind; kind++) {
        char name[16];
        snprintf(name, sizeof name, "%c%u", *kind, p->n);
        (void)unlinkat(s->dir, name, 0); /* what stays goes with the folder */
    }
    session_pair_free(p);
}

typedef enum { IN_PLACE, MISSING, STRANGE } fifo_place;

static fifo_place place_of(const struct cp_session *s, char kind, unsigned n, int fd) {
    char name[16];
    struct stat there, ours;
    snprintf(name, sizeof name, "%c%u", kind, n);
    if (fstatat(s->dir, name, &there, AT_SYMLINK_NOFOLLOW) < 0) return MISSING;
    bool same = fstat(fd, &ours) == 0 && there.st_ino == ours.st_ino && there.st_dev == ours.st_dev;
    return same ? IN_PLACE : STRANGE;
}

static bool has_written(const struct session_job *j, int k) {
    int unread = 0;
    if (j->exec && cp_output_total(j->exec->out[k])) return true;
    return ioctl(j->pair->probe[k], FIONREAD, &unread) == 0 && unread > 0;
}

/* A shell that does not find a FIFO of its output makes a file of that name, or, where the folder is gone, leaves the
 * command out, with status 1. One that has opened it before needs no name. */
bool session_pair_missed(struct cp_session *s, const struct session_job *j, int status) {
    bool missing = false;
    for (int k = 0; k < 2; k++) {
        fifo_place at = j->pair->probe[k] < 0 ? IN_PLACE : place_of(s, "oe"[k], j -> pair -> n, j -> pair -> probe[k]);
        if (at == STRANGE) return true;
        missing |= at == MISSING;
    }
    return missing && status && !has_written(j, 0) && !has_written(j, 1);
}

bool session_input_lost(struct cp_session *s, const struct session_job *j) {
    return place_of(s, 'i', j->pair->n, j->in_keep) != IN_PLACE;
}

static bool hung_up(const struct session_pair *p) {
    struct pollfd f[2] = {{.fd = p->probe[0]}, {.fd = p->probe[1]}};
    return poll(f, 2, 0) == 2 && (f[0].revents & f[1].revents & POLLHUP);
}

/* Opening for writing fails when nobody has it open for reading: the log of the former command is done with it. While
 * it is not, it would read what the next command writes. */
static bool has_reader(struct cp_session *s, char kind, unsigned n) {
    char name[16];
    snprintf(name, sizeof name, "%c%u", kind, n);
    cp_autofd int fd = openat(s->dir, name, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    return fd >= 0 || errno != ENXIO;
}

/* A pair that a background job still writes to is given up: the log goes on draining it without us. */
static struct session_pair *pair_idle(struct cp_session *s) {
    for (struct session_pair **p = &s->pairs, *q; (q = *p);) {
        if (!q->quiet && !hung_up(q)) {
            *p = q->next;
            session_pair_drop(s, q);
            continue;
        }
        q->quiet = true;
        cp_close(&q->probe[0]);
        cp_close(&q->probe[1]);
        if (!has_reader(s, 'o', q->n) && !has_reader(s, 'e', q->n)) {
            *p = q->next;
            q->quiet = false;
            return q;
        }
        p = &q->next;
    }
    return NULL;
}

static struct session_pair *pair_new(struct cp_session *s) {
    struct session_pair *p = cp_new(struct session_pair);
    p->n = s->pair_next++;
    p->probe[0] = p->probe[1] = -1;
    return p;
}

static int pair_open(struct cp_session *s, struct session_job *j, int k, cp_err *err) {
    char name[16];
    snprintf(name, sizeof name, "%c%u", "oe"[k], j -> pair -> n);
    cp_close(&j->pair->probe[k]);
    j->read_end[k] = session_fifo(s, name, O_RDONLY, err);
    if (j->read_end[k] < 0) return -1;
    j->keep[k] = session_fifo(s, name, O_WRONLY, err);
    if (j->keep[k] < 0) return -1;
    j->pair->probe[k] = fcntl(j->read_end[k], F_DUPFD_CLOEXEC, 0);
    return j->pair->probe[k] < 0 ? session_folder_fail(s, err) : 0;
}

int session_pair_take(struct cp_session *s, struct session_job *j, cp_err *err) {
    j->pair = j->kind == JOB_BACKGROUND ? NULL : pair_idle(s);
    if (!j->pair) j->pair = pair_new(s);
    return pair_open(s, j, 0, err) < 0 || pair_open(s, j, 1, err) < 0 ? -1 : 0;
}

int session_stdin_open(struct cp_session *s, struct session_job *j, cp_err *err) {
    char name[16];
    snprintf(name, sizeof name, "i%u", j->pair->n);
    j->in_read = session_fifo(s, name, O_RDONLY, err);
    if (j->in_read < 0) return -1;
    j->in_keep = session_fifo(s, name, O_WRONLY, err);
    return j->in_keep < 0 ? -1 : 0;
}

void session_job_close(struct session_job *j) {
    for (int k = 0; k < 2; k++) {
        cp_close(&j->read_end[k]);
        cp_close(&j->keep[k]);
    }
    cp_close(&j->in_read);
    cp_close(&j->in_keep);
    cp_close(&j->go);
}
