/* Design notes. The clock that counts from the boot is never set, and goes on while the machine sleeps. What is kept of
 * it is short: for each stretch in which the wall clock was left alone, by how much the two differ. From that and a
 * time of the wall clock follows the time since boot. Where that fits several stretches, after a step back, the
 * youngest counts: too young keeps something for too long, too old throws it away, or ends a command before its time.
 *
 * It lies in a file, by the id of the boot, because rows and uploads outlive a server. Ruled out: a second time in each
 * row, which uploads have not; only the start of a process, which ended ones have not. */
#include "base/age.h"

#include "base/act.h"
#include "base/aside.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum {
    STEP_MS = 1000, /* less is how a clock is led, or that we were not run in between */
    SLACK_MS = 2 * STEP_MS,
    READING_MS = 20, /* both clocks within so long */
    BOOT_ID = 36,
};

/* ---- the pure part ---- */

static int64_t distance(int64_t a, int64_t b) { return a > b ? a - b : b - a; }

bool cp_ages_note(cp_ages *a, int64_t boot_ms, int64_t wall_ms) {
    int64_t offset = wall_ms - boot_ms, from = 0;
    cp_age_span *last = a->n ? &a->v[a->n - 1] : NULL;
    if (last && distance(offset, last->offset) <= STEP_MS) {
        last->offset = offset;
        if (boot_ms > last->to) last->to = boot_ms;
        return false;
    }
    if (last) { /* at some time since the last reading */
        from = last->to;
        last->to = boot_ms;
    }
    if (a->n == CP_AGE_SPANS) memmove(a->v, a->v + 1, --a->n * sizeof *a->v);
    a->v[a->n++] = (cp_age_span){from, boot_ms, offset};
    return true;
}

int64_t cp_ages_of(const cp_ages *a, int64_t wall_ms) {
    if (!a->n) return 0;
    int64_t now = a->v[a->n - 1].to, age = now + a->v[a->n - 1].offset - wall_ms; /* as if it had not been set */
    bool found = false;
    for (unsigned i = 0; i < a->n; i++) {
        const cp_age_span *s = &a->v[i];
        int64_t at = wall_ms - s->offset;
        if (at > s->to + SLACK_MS || (i > 0 && at < s->from - SLACK_MS)) continue;
        if (!found || now - at < age) age = now - at;
        found = true;
    }
    return age > 0 ? age : 0;
}

void cp_ages_encode(const cp_ages *a, const char *boot, cp_buf *out) {
    cp_buf_addf(out, "boot %s\n", boot);
    for (unsigned i = 0; i < a->n; i++)
        cp_buf_addf(out, "%" PRId64 " %" PRId64 " %" PRId64 "\n", a->v[i].from, a->v[i].to, a->v[i].offset);
}

static bool one_number(const char **at, char end, int64_t *out) {
    char *rest;
    *out = strtoll(*at, &rest, 10);
    if (rest == *at || *rest != end) return false;
    *at = rest + 1;
    return true;
}

bool cp_ages_decode(cp_ages *a, const char *boot, const char *text) {
    cp_ages got = {0};
    size_t n = strlen(boot);
    *a = got;
    if (strncmp(text, "boot ", 5) != 0 || strncmp(text + 5, boot, n) != 0 || text[5 + n] != '\n') return false;
    for (const char *at = text + 5 + n + 1; *at; got.n++) {
        if (got.n == CP_AGE_SPANS) return false;
        cp_age_span *s = &got.v[got.n];
        if (!one_number(&at, ' ', &s->from) || !one_number(&at, ' ', &s->to) || !one_number(&at, '\n', &s->offset))
            return false;
    }
    *a = got;
    return got.n > 0;
}

/* ---- this process ---- */

static struct {
    pthread_mutex_t mu;
    cp_ages ages;
    char boot[BOOT_ID + 1];
    char *path;
    bool unkept; /* the file does not say what we know */
} own = {.mu = PTHREAD_MUTEX_INITIALIZER};

static int64_t boot_ms(void) {
    struct timespec ts;
    clock_gettime(CLOCK_BOOTTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* Between the two readings we may not have been run. */
static bool read_both(int64_t *boot, int64_t *wall) {
    for (int tries = 0; tries < 8; tries++) {
        *boot = boot_ms();
        *wall = cp_wall_ms();
        if (boot_ms() - *boot <= READING_MS) return true;
    }
    return false;
}

/* By a new file and its name: never half of it, and never into what somebody has put there. */
static int write_file(const char *path, cp_str text) {
    cp_autobuf cp_buf new = {0};
    cp_buf_addf(&new, "%s.new", path);
    if (cp_file_clear(path) < 0 || cp_file_clear(cp_buf_z(&new)) < 0) return -1;
    cp_autofd int fd = open(cp_buf_z(&new), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    return fd < 0 || cp_write_all(fd, text.p, text.n) < 0 ? -1 : rename(cp_buf_z(&new), path);
}

static void keep(void) {
    cp_autobuf cp_buf text = {0};
    if (!own.path) return;
    cp_as_self;
    cp_ages_encode(&own.ages, own.boot, &text);
    bool again = own.unkept;
    own.unkept = write_file(own.path, cp_buf_str(&text)) < 0;
    if (!own.unkept || again) return;
    cp_log(CP_LOG_WARN, "clock.unrecorded", "that the clock was set is not recorded: the next server takes it as it is",
           CP_KVZ("path", own.path), CP_KVZ("errno", cp_errno_name(errno)));
}

static void look(void) {
    int64_t boot, wall;
    if (read_both(&boot, &wall) && cp_ages_note(&own.ages, boot, wall)) keep();
}

static void load(void) {
    char text[CP_AGE_SPANS * 64 + 64];
    struct stat st;
    cp_autofd int fd = open(own.path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0 || !cp_is_plain(&st)) return;
    ssize_t n = cp_read_full(fd, text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    (void)cp_ages_decode(&own.ages, own.boot, text);
}

void cp_age_open(const char *path) {
    pthread_mutex_lock(&own.mu);
    free(own.path);
    own.path = cp_str_dup(cp_str_of(path));
    own.ages = (cp_ages){0};
    cp_autofd int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : cp_read_full(fd, own.boot, BOOT_ID);
    own.boot[n > 0 ? n : 0] = '\0';
    if (n == BOOT_ID) load();
    look();
    keep(); /* as of now, so that the next server knows when a step came at the earliest */
    pthread_mutex_unlock(&own.mu);
}

void cp_age_look(void) {
    pthread_mutex_lock(&own.mu);
    look();
    if (own.unkept) keep();
    pthread_mutex_unlock(&own.mu);
}

int64_t cp_age_ms(int64_t wall_ms) {
    pthread_mutex_lock(&own.mu);
    look();
    int64_t age = cp_ages_of(&own.ages, wall_ms);
    pthread_mutex_unlock(&own.mu);
    return age;
}
