/* Design notes. Whoever reads the log may stall, and a loop that waits for him stands still: a line that does not go at
 * once is dropped, and the next that goes is preceded by the number of those that did not. stderr is shared with our
 * parent and with CMD, who would be surprised by O_NONBLOCK on it; so a pipe is opened anew, which makes a description
 * of our own. Files and terminals are written to as they are. A line for which there is no memory is dropped as well:
 * the keeper logs too, and must not end over it. */
#include "base/log.h"

#include "base/clock.h"
#include "base/escape.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* A line's memory, taken at once: CP_LOG_LINE_MAX, and what cp_escape wants ahead of one more value. */
enum { LINE_ROOM = CP_LOG_LINE_MAX + 12 * CP_LOG_VALUE_MAX };

static struct {
    int fd;
    int own; /* the pipe opened anew, or -1 */
    bool socket;
    cp_log_level min;
    bool json;
} setup = {.fd = STDERR_FILENO, .own = -1, .min = CP_LOG_INFO};

static atomic_ulong dropped;

static const char *const level_names[] = {"debug", "info", "warn", "error"};

/* -1: it cannot (a pipe of another user, no /proc), or nobody has the other end. */
static int open_anew(int fd) {
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    cp_autofd int own = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    /* Not one of 0..2, where those were closed: CMD would inherit it. */
    return own < 0 || own > STDERR_FILENO ? cp_take_fd(&own) : fcntl(own, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
}

void cp_log_setup(int fd, cp_log_level min, bool json) {
    struct stat st = {0};
    (void)fstat(fd, &st);
    cp_close(&setup.own);
    setup.own = S_ISFIFO(st.st_mode) ? open_anew(fd) : -1;
    setup.fd = setup.own >= 0 ? setup.own : fd;
    setup.socket = S_ISSOCK(st.st_mode);
    setup.min = min;
    setup.json = json;
}

bool cp_log_on(cp_log_level level) { return level >= setup.min; }

const char *cp_log_num(char buf[24], long long v) {
    snprintf(buf, 24, "%lld", v);
    return buf;
}

/* logfmt writes a value bare when no reader could mistake it. */
static bool bare(cp_str s) {
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] <= ' ' || s.p[i] == '"' || s.p[i] == '=' || s.p[i] == '\\' || s.p[i] == 0x7F) return false;
    return s.n > 0; /* bytes from 0x80 are negative: quoted, so that they are checked as UTF-8 */
}

/* s.n is bounded by the callers, so that a line's memory is, too. */
static void add_pair(cp_buf *line, const char *key, cp_str s) {
    bool first = line->n == 0 || (setup.json && line->n == 1);
    if (!first) cp_buf_addc(line, setup.json ? ',' : ' ');
    if (setup.json) cp_buf_addc(line, '"');
    cp_buf_addz(line, key);
    cp_buf_addz(line, setup.json ? "\":" : "=");
    bool quote = setup.json || !bare(s);
    if (quote) cp_buf_addc(line, '"');
    if (quote) cp_escape(line, s, 1);
    else cp_buf_add(line, s.p, s.n);
    if (quote) cp_buf_addc(line, '"');
}

static cp_str cut(cp_str s) {
    if (s.n > CP_LOG_VALUE_MAX) s.n = CP_LOG_VALUE_MAX;
    return s;
}

/* The pair, if the line stays short enough for the closing words as well. */
static bool add_if_room(cp_buf *line, const char *key, cp_str s) {
    static const char closing[] = ",\"truncated\":\"true\"}\n";
    size_t before = line->n;
    add_pair(line, key, cut(s));
    if (line->n + sizeof closing <= CP_LOG_LINE_MAX) return true;
    line->n = before;
    return false;
}

static void format(cp_buf *line, cp_log_level level, const char *event, const char *msg, const cp_kv *kv, size_t n) {
    char ts[CP_ISO_LEN + 1];
    cp_iso(cp_wall_ms(), ts);
    if (setup.json) cp_buf_addc(line, '{');
    add_pair(line, "ts", cp_str_of(ts));
    add_pair(line, "level", cp_str_of(level_names[level]));
    add_pair(line, "event", cut(cp_str_of(event)));
    bool whole = add_if_room(line, "msg", cp_str_of(msg));
    for (size_t i = 0; i < n; i++) whole = add_if_room(line, kv[i].key, kv[i].value) && whole;
    if (!whole) add_pair(line, "truncated", CP_STR("true"));
    cp_buf_addz(line, setup.json ? "}\n" : "\n");
}

/* false: not now. A line that can never be written is lost: there is nobody to tell. */
static bool put(const cp_buf *line) {
    ssize_t n;
    do
        n = setup.socket ? send(setup.fd, line->p, line->n, MSG_DONTWAIT | MSG_NOSIGNAL)
                         : write(setup.fd, line->p, line->n);
    while (n < 0 && errno == EINTR);
    return n >= 0 || errno != EAGAIN;
}

static bool put_dropped(cp_buf *line) {
    unsigned long n = atomic_exchange(&dropped, 0);
    if (!n) return true;
    const cp_kv kv[] = {CP_KVI("count", n)};
    format(line, CP_LOG_WARN, "log.dropped", "lines were dropped: nobody read them in time", kv, CP_COUNT(kv));
    bool gone = put(line);
    cp_buf_clear(line);
    if (!gone) atomic_fetch_add(&dropped, n);
    return gone;
}

void cp_log_write(cp_log_level level, const char *event, const char *msg, const cp_kv *kv, size_t n) {
    if (!cp_log_on(level)) return;
    cp_autobuf cp_buf line = {.p = malloc(LINE_ROOM)};
    if (line.p) line.cap = LINE_ROOM;
    bool gone = line.p && put_dropped(&line);
    if (gone) {
        format(&line, level, event, msg, kv, n);
        gone = put(&line);
    }
    if (!gone) atomic_fetch_add(&dropped, 1);
}
