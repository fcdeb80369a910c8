/* Design notes. <state>/temps-<random> is the record of one server: slots of one page, each with the path of one
 * temporary. A slot is filled before the temporary is made and emptied when it has been renamed or removed, by
 * pwrite: what is in the page cache outlives a killed server, nothing is synced, and a full disk is an error, not a
 * SIGBUS as it would be in a mapping. Slots are taken lowest first, so that the file stays as small as the work is
 * parallel.
 *
 * The server holds a lock (flock) on its record as long as it lives, also while it drains after SIGHUP. A record
 * whose lock is free is of a dead one: the next server removes what it names, empties the slots, and removes the
 * record when nothing in it is left. What could not be removed stays in it for the start after.
 *
 * Whoever may write the folder of a temporary may put something else at its name or its path, to make us remove it:
 *  - the path is gone along name by name, and no link is followed;
 *  - name, inode and time of birth must be those of what was made. The device does not count by itself: that of an
 *    overlay is another after each mount. Before these are known, only what is still empty is removed, if its owner
 * is who made it;
 *  - with --child-user it is done as that user, if that user made it.
 *
 * A path too long for a system call is recorded by a folder above, below which the name is then searched for.
 *
 * Ruled out: O_TMPFILE and linkat, which cannot replace what is there, nor make folders; the registry, a transaction
 * for each write; to look for our names in all folders that clients have named. */
#include "services/files_temps.h"

#include "base/act.h"
#include "base/id.h"
#include "base/log.h"
#include "services/files_impl.h"
#include "services/files_walk.h"
#include "services/watch_glob.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#define PREFIX "temps-"
enum { SLOT = 4096, RANDOM = 16, WORDS = CP_TEMPS_MAX / 64, TAKEN = 0x74656d70 };
_Static_assert(CP_TEMPS_MAX % 64 == 0, "whole words");

/* All zero: not known yet. */
struct identity {
    uint64_t dev, ino;
    int64_t born_s; /* with born_ns 0: the file system does not know */
    uint32_t born_ns;
    uint32_t sum; /* of the fields before it */
};

struct entry {
    uint32_t taken; /* TAKEN, or the slot is empty */
    uint32_t sum;   /* of what comes after the identity, as far as it is used */
    struct identity id;
    uint32_t uid;                                       /* who made it */
    uint32_t deep;                                      /* it is somewhere below the folder */
    uint32_t n;                                         /* of the text */
    char text[SLOT - 8 - sizeof(struct identity) - 12]; /* folder and name, each with its NUL */
};
_Static_assert(sizeof(struct entry) == SLOT, "a slot is a page");

struct cp_temps {
    const char *state_dir;
    pthread_mutex_t mu; /* the rest is its own */
    char path[CP_PATH_MAX];
    int fd; /* the record; -1: not made yet */
    unsigned nused;
    uint64_t used[WORDS];
    bool complained;
};

static uint32_t sum_of(const void *p, size_t n) { return (uint32_t)crc32(crc32(0, NULL, 0), p, (uInt)n) | 1; }
static uint32_t entry_sum(const struct entry *e) {
    return sum_of(&e->uid, offsetof(struct entry, text) - offsetof(struct entry, uid) + e->n);
}
static uint32_t identity_sum(const struct identity *id) { return sum_of(id, offsetof(struct identity, sum)); }

/* ---- the record ---- */

cp_temps *cp_temps_new(const char *state_dir) {
    cp_temps *t = cp_new(cp_temps);
    t->state_dir = state_dir;
    t->fd = -1;
    pthread_mutex_init(&t->mu, NULL);
    return t;
}

void cp_temps_free(cp_temps *t) {
    if (!t) return;
    if (t->fd >= 0 && !t->nused) unlink(t->path);
    cp_close(&t->fd);
    pthread_mutex_destroy(&t->mu);
    free(t);
}

static bool linked(int fd) {
    struct stat st;
    return fstat(fd, &st) == 0 && st.st_nlink > 0;
}

/* Between its making and its lock it looks like the record of a dead server, to another one that sweeps: whoever
 * comes too late for the lock, or finds that it has been removed, makes another. */
static int make_record(cp_temps *t) {
    char hex[RANDOM + 1];
    cp_as_self;
    for (int tries = 0; tries < 8; tries++) {
        cp_random_hex(hex, RANDOM);
        if (snprintf(t->path, sizeof t->path, "%s/" PREFIX "%s", t->state_dir, hex) >= (int)sizeof t->path) return -1;
        cp_autofd int fd = open(t->path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0) return -1;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 && linked(fd)) return cp_take_fd(&fd);
    }
    return -1;
}

/* Somebody may have removed the state folder under us. */
static bool have_record(cp_temps *t) {
    if (t->fd >= 0 && !t->nused && !linked(t->fd)) cp_close(&t->fd);
    if (t->fd < 0) t->fd = make_record(t);
    return t->fd >= 0;
}

static bool take_slot(cp_temps *t, unsigned *slot) {
    for (unsigned i = 0; i < WORDS; i++) {
        if (t->used[i] == UINT64_MAX) continue;
        unsigned bit = (unsigned)__builtin_ctzll(~t->used[i]);
        t->used[i] |= UINT64_C(1) << bit;
        t->nused++;
        *slot = 64 * i + bit;
        return true;
    }
    return false;
}

static void give_slot(cp_temps *t, unsigned slot) {
    pthread_mutex_lock(&t->mu);
    t->used[slot / 64] &= ~(UINT64_C(1) << slot % 64);
    t->nused--;
    pthread_mutex_unlock(&t->mu);
}

static void complain(cp_temps *t) {
    int sys = errno;
    pthread_mutex_lock(&t->mu);
    bool first = !t->complained;
    t->complained = true;
    pthread_mutex_unlock(&t->mu);
    if (first)
        cp_log(CP_LOG_WARN, "temps.unrecorded",
               "what is being written is not recorded: if the server is killed now, its temporary files stay",
               CP_KVZ("state", t->state_dir), CP_KVZ("errno", strerrorname_np(sys)));
}

/* ---- one temporary ---- */

#define UP4  "../../../../"
#define UP16 UP4 UP4 UP4 UP4

/* The path of a folder, without links: the kernel tells it. Its length with the NUL; 0: it is not to be had. */
static size_t folder_text(int dir, char *out, size_t size, uint32_t *deep) {
    char link[32];
    cp_autofd int above = -1;
    for (*deep = 0;; *deep = 1) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", *deep ? above : dir);
        ssize_t n = readlink(link, out, size);
        if (n < 0 && errno != ENAMETOOLONG) return 0;
        if (n > 0 && (size_t)n < size) {
            out[n] = 0;
            return *out == '/' ? (size_t)n + 1 : 0; /* "(unreachable)": outside of our root folder */
        }
        int up = openat(*deep ? above : dir, UP16, O_PATH | O_DIRECTORY | O_CLOEXEC);
        cp_close(&above);
        above = up;
        if (above < 0) return 0;
    }
}

static bool fill_slot(cp_temps *t, unsigned slot, int dir, const char *name) {
    struct entry e;
    size_t name_n = strlen(name) + 1, folder_n;
    folder_n = folder_text(dir, e.text, sizeof e.text - name_n, &e.deep);
    if (!folder_n) return false;
    memcpy(e.text + folder_n, name, name_n);
    e.taken = TAKEN;
    e.id = (struct identity){0};
    e.uid = cp_act_uid();
    e.n = (uint32_t)(folder_n + name_n);
    e.sum = entry_sum(&e);
    size_t n = offsetof(struct entry, text) + e.n;
    return pwrite(t->fd, &e, n, (off_t)slot * SLOT) == (ssize_t)n;
}

static void empty_slot(int fd, unsigned slot) {
    uint32_t none = 0;
    (void)!pwrite(fd, &none, sizeof none, (off_t)slot * SLOT);
}

void cp_temp_begin(cp_temp *p, cp_temps *t, int dir, const char *name) {
    int sys = errno;
    unsigned slot;
    *p = (cp_temp){0};
    if (!t) return;
    errno = ENOSPC;
    pthread_mutex_lock(&t->mu);
    bool have = have_record(t) && take_slot(t, &slot);
    pthread_mutex_unlock(&t->mu);
    if (have && fill_slot(t, slot, dir, name)) {
        *p = (cp_temp){.in = t, .slot = slot};
    } else {
        complain(t);
        if (have) give_slot(t, slot);
    }
    errno = sys;
}

static bool identify(int dir, const char *name, int flags, struct identity *id, struct statx *st) {
    *id = (struct identity){0};
    if (statx(dir, name, flags | AT_SYMLINK_NOFOLLOW | AT_STATX_DONT_SYNC, STATX_BASIC_STATS | STATX_BTIME, st) < 0)
        return false;
    id->dev = (uint64_t)st->stx_dev_major << 32 | st->stx_dev_minor;
    id->ino = st->stx_ino;
    if (st->stx_mask & STATX_BTIME) {
        id->born_s = st->stx_btime.tv_sec;
        id->born_ns = st->stx_btime.tv_nsec;
    }
    id->sum = identity_sum(id);
    return true;
}

void cp_temp_made(const cp_temp *p, int dir, const char *name) {
    int sys = errno;
    struct identity id;
    struct statx st;
    if (p->in && identify(dir, name, 0, &id, &st))
        (void)!pwrite(p->in->fd, &id, sizeof id, (off_t)p->slot * SLOT + (off_t)offsetof(struct entry, id));
    errno = sys;
}

void cp_temp_end(cp_temp *p) {
    int sys = errno;
    if (p->in) {
        empty_slot(p->in->fd, p->slot);
        give_slot(p->in, p->slot);
        *p = (cp_temp){0};
    }
    errno = sys;
}

/* ---- sweeping ---- */

static bool born_known(const struct identity *id) { return id->born_s || id->born_ns; }

static bool same(const struct identity *was, const struct identity *is) {
    if (!born_known(was) || !born_known(is)) return was->ino == is->ino;
    return was->born_s == is->born_s && was->born_ns == is->born_ns && (was->ino == is->ino || was->dev != is->dev);
}

/* Is it what was made? Not known by more than its name it was just about to be. */
static bool ours(const struct entry *e, const struct identity *is, const struct statx *st) {
    if (e->id.sum == identity_sum(&e->id)) return same(&e->id, is);
    return st->stx_uid == e->uid && (!S_ISREG(st->stx_mode) || !st->stx_size);
}

typedef enum { NOT_OURS, GONE, REMOVED, FAILED /* errno */ } fate;

static fate remove_folder(const struct entry *e, int dir, const char *name) {
    struct identity is;
    struct statx st;
    cp_autofd int fd = openat(dir, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || !identify(fd, "", AT_EMPTY_PATH, &is, &st)) return FAILED;
    if (!ours(e, &is, &st)) return NOT_OURS; /* exchanged in this moment */
    bool known = e->id.sum == identity_sum(&e->id);
    if (known && cp_tree_empty(fd) < 0) return FAILED;
    if (unlinkat(dir, name, AT_REMOVEDIR) == 0) return REMOVED;
    return !known && errno == ENOTEMPTY ? NOT_OURS : FAILED;
}

static fate remove_one(const struct entry *e, int dir, const char *name) {
    struct identity is;
    struct statx st;
    if (!identify(dir, name, 0, &is, &st)) return errno == ENOENT ? GONE : FAILED;
    if (!ours(e, &is, &st)) return NOT_OURS;
    if (S_ISDIR(st.stx_mode)) return remove_folder(e, dir, name);
    return unlinkat(dir, name, 0) == 0 ? REMOVED : errno == ENOENT ? GONE : FAILED;
}

static fate remove_below(const struct entry *e, int dir, const char *name) {
    cp_walk_entry at;
    cp_autowalk cp_walk *walk = cp_walk_at(dir, ".");
    if (!walk) return FAILED;
    while (cp_walk_next(walk, &at))
        if (!at.left && strcmp(at.name, name) == 0) return remove_one(e, at.dir, name);
    return cp_walk_failed(walk) ? (errno = cp_walk_failed(walk), FAILED) : GONE;
}

/* No link is followed anywhere on the way. O_PATH, or -1 with errno. */
static int open_folder(const char *path) {
    char part[CP_NAME_MAX + 1];
    cp_autofd int at = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (const char *p = path; at >= 0 && *p;) {
        size_t n = strcspn(p, "/");
        if (n > CP_NAME_MAX) return errno = ENAMETOOLONG, -1;
        memcpy(part, p, n);
        part[n] = 0;
        p += n + (p[n] == '/');
        if (!n) continue;
        int next = openat(at, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        cp_close(&at);
        at = next;
    }
    return cp_take_fd(&at);
}

static fate remove_recorded(const struct entry *e, const char *folder, const char *name) {
    cp_autofd int dir = open_folder(folder);
    if (dir < 0) return errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? GONE : FAILED;
    return e->deep ? remove_below(e, dir, name) : remove_one(e, dir, name);
}

/* The name of the temporary; NULL: the slot is empty, or not as it was written (a power cut). */
static const char *name_in(const struct entry *e) {
    if (e->taken != TAKEN || e->n < 3 || e->n > sizeof e->text || e->sum != entry_sum(e)) return NULL;
    const char *nul = memchr(e->text, 0, e->n);
    if (e->text[0] != '/' || !nul || nul == e->text + e->n - 1 || e->text[e->n - 1]) return NULL;
    return cp_watch_staged(cp_str_of(nul + 1)) == CP_STAGED_NOT ? NULL : nul + 1;
}

static fate sweep_slot(const struct entry *e, const char *name) {
    uid_t uid;
    cp_err err;
    bool as_user = cp_act_user(&uid) && uid == e->uid && cp_act_begin(&err) == 0;
    fate f = remove_recorded(e, e->text, name);
    int sys = errno;
    if (as_user) cp_act_end();
    if (f == FAILED)
        cp_log(CP_LOG_WARN, "temps.left", "a temporary file of a server that was killed cannot be removed",
               CP_KVZ("folder", e->text), CP_KVZ("name", name), CP_KVZ("errno", strerrorname_np(sys)));
    return f;
}

/* A page of ours begins with one of two words; or it did, and what follows is as it was written. */
static bool is_page(const struct entry *e) {
    return !e->taken || e->taken == TAKEN || (e->n <= sizeof e->text && e->sum == entry_sum(e));
}

/* A file under such a name may be somebody else's. */
static bool is_record(int fd) {
    cp_autofree struct entry *e = cp_alloc(sizeof *e);
    for (unsigned slot = 0; slot < CP_TEMPS_MAX; slot++) {
        memset(e, 0, sizeof *e);
        ssize_t n = pread(fd, e, sizeof *e, (off_t)slot * SLOT);
        if (n <= 0) return n == 0;
        if (!is_page(e)) return false;
    }
    return true;
}

/* True: nothing that it names is left. */
static bool sweep_slots(int fd, cp_temps_swept *out) {
    cp_autofree struct entry *e = cp_alloc(sizeof *e);
    bool clean = true;
    for (unsigned slot = 0; slot < CP_TEMPS_MAX; slot++) {
        memset(e, 0, sizeof *e);
        ssize_t n = pread(fd, e, sizeof *e, (off_t)slot * SLOT);
        if (n <= 0) return clean && n == 0;
        const char *name = name_in(e);
        if (!name) continue;
        fate f = sweep_slot(e, name);
        out->removed += f == REMOVED;
        out->failed += f == FAILED;
        if (f == FAILED) clean = false;
        else empty_slot(fd, slot);
    }
    return clean;
}

static void sweep_record(int state, const char *file, cp_temps_swept *out) {
    struct stat st;
    cp_autofd int fd = openat(state, file, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_nlink != 1 || st.st_uid != geteuid()) return;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) return; /* its server lives */
    if (is_record(fd) && sweep_slots(fd, out)) unlinkat(state, file, 0);
}

void cp_temps_sweep(const char *state_dir, cp_temps_swept *out) {
    *out = (cp_temps_swept){0};
    cp_autodir DIR *d = opendir(state_dir);
    if (!d) return;
    for (struct dirent *e; (e = cp_dir_next(d));) {
        const char *hex = e->d_name + strlen(PREFIX);
        bool record = strncmp(e->d_name, PREFIX, strlen(PREFIX)) == 0 && strlen(hex) == RANDOM &&
                      strspn(hex, "0123456789abcdef") == RANDOM;
        if (record) sweep_record(dirfd(d), e->d_name, out);
    }
}
