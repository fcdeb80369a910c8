/* The private folder of a session (its record is in memory, or the file `c`): the FIFO `s` for reports, and FIFO pairs
 * for the output.
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
#include <sys/stat.h>
#include <unistd.h>

static int to_owner(struct cp_session *s, const char *name) {
    struct cp_sessions *t = s->svc->sessions;
    return t->set_user ? fchownat(s->dir, name, t->uid, t->gid, AT_SYMLINK_NOFOLLOW) : 0;
}

static int folder_fail(struct cp_session *s, cp_err *err) {
    int sys = errno;
    cp_code code = sys == ENOSPC || sys == EDQUOT   ? CP_E_NO_SPACE
                   : sys == EMFILE || sys == ENFILE ? CP_E_TOO_MANY_FILES
                                                    : CP_E_INTERNAL_ERROR;
    return cp_fail_sys(err, code, sys, "the folder of session %s", s->id);
}

int session_fifo(struct cp_session *s, const char *name, int flags, cp_err *err) {
    int fd = openat(s->dir, name, flags | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 || errno != ENOENT) return fd >= 0 ? fd : folder_fail(s, err);
    if ((mkfifoat(s->dir, name, 0600) < 0 && errno != EEXIST) || to_owner(s, name) < 0) return folder_fail(s, err);
    fd = openat(s->dir, name, flags | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    return fd >= 0 ? fd : folder_fail(s, err);
}

#define RECORDS "/dev/shm"

static void record_name(char out[32], const char *token) { snprintf(out, 32, "conflux-record-%.12s", token); }

/* The record holds the environment of commands, which is never written to the state folder: it lies in memory, by a
 * name, because the shell may read it when the server that has written it is dead. Another user's shell has its whole
 * folder there (open_base). Where there is no such place it is the file c in the folder. */
static int record_open(struct cp_session *s) {
    struct stat st;
    cp_autobuf cp_buf path = {0};
    record_name(s->record_name, s->token);
    cp_buf_addf(&path, RECORDS "/%s", s->record_name);
    if (!s->svc->sessions->set_user) s->record = open(cp_buf_z(&path), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (s->record >= 0 && fstat(s->record, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid()) {
        s->record_dir = RECORDS;
        s->record_size = (size_t)st.st_size; /* a former server's */
        return 0;
    }
    cp_close(&s->record);
    s->record = openat(s->dir, "c", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    return s->record < 0 ? -1 : to_owner(s, "c");
}

int session_folder_open(struct cp_session *s, bool existing, cp_err *err) {
    cp_autobuf cp_buf path = {0};
    cp_buf_addf(&path, "%s/%s", s->svc->sessions->base, s->token);
    s->path = cp_str_dup(cp_buf_str(&path));
    if (!existing && mkdir(s->path, 0700) < 0) return folder_fail(s, err);
    s->dir = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (s->dir < 0 || to_owner(s, ".") < 0) return folder_fail(s, err);
    if (record_open(s) < 0) return folder_fail(s, err);
    if (s->status < 0) s->status = session_fifo(s, "s", O_RDWR, err);
    return s->status < 0 ? -1 : 0;
}

/* The record first: its name is known from the folder only. */
void session_folder_remove(const char *path) {
    const char *token = strrchr(path, '/');
    char name[32];
    cp_autobuf cp_buf record = {0};
    record_name(name, token ? token + 1 : path);
    cp_buf_addf(&record, RECORDS "/%s", name);
    (void)unlink(cp_buf_z(&record));
    DIR *d = opendir(path);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
    rmdir(path);
}

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

void session_folder_close(struct cp_session *s, bool remove) {
    while (s->pairs) {
        struct session_pair *p = s->pairs;
        s->pairs = p->next;
        session_pair_free(p);
    }
    session_stale_close(s);
    cp_close(&s->record);
    cp_close(&s->status);
    cp_close(&s->dir);
    if (remove && s->path) session_folder_remove(s->path);
}

void session_pair_drop(struct cp_session *s, struct session_pair *p) {
    for (const char *kind = "oeig"; *kind; kind++) {
        char name[16];
        snprintf(name, sizeof name, "%c%u", *kind, p->n);
        unlinkat(s->dir, name, 0);
    }
    session_pair_free(p);
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
    return j->pair->probe[k] < 0 ? folder_fail(s, err) : 0;
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
