#include "base/log.h"

#include "base/clock.h"
#include "base/escape.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

static struct {
    int fd;
    cp_log_level min;
    bool json;
} setup = {.fd = STDERR_FILENO, .min = CP_LOG_INFO};

static const char *const level_names[] = {"debug", "info", "warn", "error"};

void cp_log_setup(int fd, cp_log_level min, bool json) {
    setup.fd = fd;
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

void cp_log_write(cp_log_level level, const char *event, const char *msg, const cp_kv *kv, size_t n) {
    if (!cp_log_on(level)) return;
    char ts[CP_ISO_LEN + 1];
    cp_iso(cp_wall_ms(), ts);
    cp_autobuf cp_buf line = {0};
    if (setup.json) cp_buf_addc(&line, '{');
    add_pair(&line, "ts", cp_str_of(ts));
    add_pair(&line, "level", cp_str_of(level_names[level]));
    add_pair(&line, "event", cut(cp_str_of(event)));
    bool whole = add_if_room(&line, "msg", cp_str_of(msg));
    for (size_t i = 0; i < n; i++) whole = add_if_room(&line, kv[i].key, kv[i].value) && whole;
    if (!whole) add_pair(&line, "truncated", CP_STR("true"));
    cp_buf_addz(&line, setup.json ? "}\n" : "\n");
    /* A line that cannot be written is lost: there is nobody to tell. */
    while (write(setup.fd, line.p, line.n) < 0 && errno == EINTR) {
    }
}
