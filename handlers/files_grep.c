/* POST /api/files/grep {path, pattern, regex, glob, hidden, limit}: an event for each line that holds the pattern, then
 * {"type":"complete","matches","truncated","skipped","files","binary","longLines"}.
 *
 * A file is read in pieces of PIECE bytes and searched line by line in one buffer. What has a NUL in it is no text: it
 * is left, and counted. Plain text is found anywhere in a line of any length; a regular expression sees the first
 * CP_MATCH_REGEX_LINE_MAX bytes of a line (so that one step stays short), and longer lines are counted. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/utf8.h"
#include "handlers/files_scan.h"
#include "handlers/log_match.h"

enum { PIECE = 64 * 1024, STEP = 4 * 1024, TEXT_MAX = 1024, TEXT_BEFORE = 256 };

typedef struct grep {
    cp_scan scan;
    cp_log_match pattern; /* compiled; its feeding is not used */
    bool compiled;
    bool single; /* path is a file */

    int fd; /* the file being read, or -1 */
    char *relative;
    cp_buf buf; /* its bytes from `offset` on: the rest of a line, and what was read last */
    size_t at;  /* as far as it has been searched, while `searching` */
    bool searching, last;
    uint64_t offset, line;
    bool found;  /* a match in this line has been told */
    bool inside; /* buf does not begin where the line does */
    uint64_t files, binary, long_lines;
} grep;

static grep *of(cp_scan *s) { return CP_CONTAINER(s, grep, scan); }

static void leave_file(grep *g) {
    cp_close(&g->fd);
    free(cp_take(g->relative));
    cp_buf_clear(&g->buf);
    g->at = 0;
    g->searching = false;
}

static void enter_file(grep *g, int fd, const char *relative) {
    g->fd = fd;
    g->relative = cp_str_dup(cp_str_of(relative));
    g->offset = 0;
    g->line = 1;
    g->found = g->inside = false;
    g->files++;
}

static int grep_open(cp_scan *s, cp_err *err) {
    struct stat st;
    grep *g = of(s);
    s->walk = cp_walk_open(&s->path.where, s->hidden ? CP_WALK_HIDDEN : CP_WALK_VISIBLE, err);
    if (s->walk) return 0;
    if (err->sys != ENOTDIR) return -1;
    int fd = cp_file_open(&s->path.where, &st, err);
    if (fd < 0) return -1;
    *err = (cp_err){0};
    g->single = true;
    enter_file(g, fd, "");
    return 0;
}

/* ---- lines ---- */

/* A part of the line around the match, without half a character at its ends. */
static cp_str excerpt(cp_str line, size_t at) {
    size_t from = at > TEXT_BEFORE && line.n > TEXT_MAX ? at - TEXT_BEFORE : 0;
    while (from && from < at && ((unsigned char)line.p[from] & 0xC0) == 0x80) from++;
    cp_str text = {line.p + from, line.n - from};
    if (text.n > TEXT_MAX) {
        text.n = TEXT_MAX;
        text.n -= cp_utf8_tail(text.p, text.n);
    } else if (text.n && text.p[text.n - 1] == '\r') {
        text.n--;
    }
    return text;
}

static void put_match(grep *g, cp_str line, size_t at) {
    cp_str text = excerpt(line, at);
    size_t plain = line.n && line.p[line.n - 1] == '\r' ? line.n - 1 : line.n;
    cp_jw w = cp_scan_match(&g->scan, g->relative);
    cp_jw_ku64(&w, "line", g->line);
    cp_jw_ku64(&w, "offset", g->offset + (uint64_t)(line.p - g->buf.p) + at);
    cp_jw_kstr(&w, "text", text);
    if (g->inside || text.n < plain) cp_jw_kbool(&w, "cut", true);
    cp_scan_match_end(&g->scan, &w);
    g->found = true;
}

static bool find_plain(const grep *g, cp_str line, size_t *at) {
    const char *p = line.n ? memmem(line.p, line.n, g->pattern.pattern, strlen(g->pattern.pattern)) : NULL;
    if (p) *at = (size_t)(p - line.p);
    return p != NULL;
}

static bool find_regex(const grep *g, cp_str line, size_t *at) {
    bool carriage = line.n && line.p[line.n - 1] == '\r'; /* "$" is before it */
    size_t n = line.n - carriage;
    bool cut = n > CP_MATCH_REGEX_LINE_MAX;
    size_t end;
    return cp_regex_search(g->pattern.re, (cp_str){line.p, cut ? CP_MATCH_REGEX_LINE_MAX : n}, cut, at, &end);
}

static void search_line(grep *g, cp_str line) {
    size_t at = 0;
    if (g->found || (g->pattern.re && g->inside)) return;
    if (g->pattern.re ? find_regex(g, line, &at) : find_plain(g, line, &at)) put_match(g, line, at);
}

/* The lines that are complete, STEP bytes of them and one line more at most. True: there are others. */
static bool search_lines(grep *g) {
    size_t until = g->at + STEP;
    while (g->at < g->buf.n && g->scan.matches < g->scan.limit) {
        const char *begin = g->buf.p + g->at, *newline = memchr(begin, '\n', g->buf.n - g->at);
        if (!newline && !g->last) break;
        if (g->at >= until) return true;
        size_t n = newline ? (size_t)(newline - begin) : g->buf.n - g->at;
        if (g->pattern.re && !g->inside && n > CP_MATCH_REGEX_LINE_MAX) g->long_lines++;
        search_line(g, (cp_str){begin, n});
        g->at += n + (newline != NULL);
        g->line++;
        g->found = g->inside = false;
    }
    cp_buf_consume(&g->buf, g->at);
    g->offset += g->at;
    g->at = 0;
    return false;
}

/* A line that has no end in sight: searched as far as it is there, and forgotten but for what a match could begin with.
 */
static void shorten_line(grep *g) {
    if (g->buf.n < PIECE) return;
    if (g->pattern.re && !g->inside) g->long_lines++;
    search_line(g, cp_buf_str(&g->buf));
    size_t keep = g->pattern.re ? 0 : strlen(g->pattern.pattern) - 1, drop = g->buf.n - keep;
    cp_buf_consume(&g->buf, drop);
    g->offset += drop;
    g->inside = true;
}

/* False: there is nothing (more) in it to search. */
static bool read_piece(grep *g) {
    cp_buf_reserve(&g->buf, PIECE);
    char *to = g->buf.p + g->buf.n;
    ssize_t n = cp_read_full(g->fd, to, PIECE);
    if (n < 0) g->scan.skipped++;
    if (n > 0 && memchr(to, 0, (size_t)n)) {
        g->binary++;
        n = -1;
    }
    if (n < 0) { /* binary, or it cannot be read */
        leave_file(g);
        return false;
    }
    g->buf.n += (size_t)n;
    g->last = n < PIECE;
    return true;
}

static bool next_file(grep *g) {
    cp_walk_entry e;
    struct stat st;
    if (g->single || !cp_walk_next(g->scan.walk, &e)) return false;
    if (!S_ISREG(e.st.st_mode) || !cp_scan_wants(&g->scan, e.relative)) return true;
    cp_autofd int fd = openat(e.dir, e.name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) g->scan.skipped += errno != ENOENT && errno != ELOOP; /* else it has gone */
    else if (S_ISREG(st.st_mode)) enter_file(g, cp_take_fd(&fd), e.relative);
    return true;
}

static bool grep_step(cp_scan *s) {
    grep *g = of(s);
    if (g->fd < 0) return next_file(g);
    if (!g->searching && !read_piece(g)) return true;
    g->searching = search_lines(g);
    if (g->searching || g->scan.matches >= g->scan.limit) return true;
    if (g->last) leave_file(g);
    else shorten_line(g);
    return true;
}

static void grep_totals(cp_scan *s, cp_jw *w) {
    const grep *g = of(s);
    cp_jw_ku64(w, "files", g->files);
    cp_jw_ku64(w, "binary", g->binary);
    cp_jw_ku64(w, "longLines", g->long_lines);
}

static void grep_free(cp_scan *s) {
    grep *g = of(s);
    leave_file(g);
    cp_buf_free(&g->buf);
    if (g->compiled) cp_log_match_fini(&g->pattern);
    free(g);
}

static int read_pattern(grep *g, const cp_request *req, cp_err *err) {
    static const char *const known[] = {"path", "pattern", "regex", "glob", "hidden", "limit", CP_FILES_COMMON, NULL};
    cp_str pattern = {0};
    bool regex = false;
    if (cp_json_only(req->body, known, err) < 0 || cp_json_str(req->body, "pattern", true, &pattern, err) < 0 ||
        cp_json_bool(req->body, "regex", &regex, err) < 0)
        return -1;
    if (pattern.n && memchr(pattern.p, 0, pattern.n)) return cp_fail_field(err, "pattern", "pattern holds a NUL");
    if (cp_log_match_init(&g->pattern, pattern, regex, err) < 0) return -1;
    g->compiled = true;
    return 0;
}

void cp_files_grep(cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    static const cp_scan_ops ops = {
        .op = "file.grep", .open = grep_open, .step = grep_step, .put_totals = grep_totals, .free = grep_free};
    cp_err err = {0};
    grep *g = cp_new(grep);
    g->fd = -1;
    if (cp_scan_begin(&g->scan, &ops, ctx, req, reply) < 0) return;
    if (read_pattern(g, req, &err) < 0) cp_scan_refuse(&g->scan, &err);
    else cp_scan_start(&g->scan);
}
