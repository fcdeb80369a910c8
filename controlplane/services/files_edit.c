#include "services/files_edit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/budget.h"
#include "services/files_impl.h"

static const char *find(cp_str text, size_t from, cp_str what) {
    return from < text.n ? memmem(text.p + from, text.n - from, what.p, what.n) : NULL;
}

/* Without overlap, from the left: as they are replaced. */
static uint64_t count(cp_str text, cp_str what) {
    uint64_t n = 0;
    for (const char *p = text.p; (p = find(text, (size_t)(p - text.p), what)); p += what.n) n++;
    return n;
}

int64_t cp_edit_text(cp_str text, const cp_edit *e, size_t max, cp_buf *out) {
    const char *hit = find(text, 0, e->old);
    if (!hit) return 0;
    /* An overlapping second one makes it ambiguous, too. */
    if (!e->all && find(text, (size_t)(hit - text.p) + 1, e->old)) return 2;
    uint64_t n = e->all ? count(text, e->old) : 1;
    uint64_t rest = text.n - n * e->old.n;
    if (rest > max || (e->with.n && n > (max - rest) / e->with.n)) return -1;
    if (!cp_buf_try_reserve(out, (size_t)(rest + n * e->with.n))) return CP_EDIT_NO_MEMORY;
    size_t at = 0;
    for (uint64_t i = 0; i < n && hit; i++) {
        cp_buf_add(out, text.p + at, (size_t)(hit - text.p) - at);
        cp_buf_add(out, e->with.p, e->with.n);
        at = (size_t)(hit - text.p) + e->old.n;
        hit = find(text, at, e->old);
    }
    cp_buf_add(out, text.p + at, text.n - at);
    return (int64_t)n;
}

static int too_large(const cp_where *w, cp_err *err) {
    return cp_fail(err, CP_E_FILE_TOO_LARGE, "Files of up to %d bytes can be edited: %s", CP_READ_MAX, w->full);
}

static int read_all(const cp_where *w, struct stat *st, cp_buf *text, cp_err *err) {
    cp_autofd int fd = cp_file_open(w, st, err);
    if (fd < 0) return -1;
    if (st->st_size > CP_READ_MAX) return too_large(w, err);
    for (;;) { /* a file of /proc tells no size */
        size_t step = st->st_size > 0 && text->n == 0 ? (size_t)st->st_size + 1 : 65536;
        if (cp_room(text, step, err) < 0) return -1;
        ssize_t n = cp_read_full(fd, text->p + text->n, step);
        if (n < 0) return cp_file_fail(err, errno, "read", w->full);
        text->n += (size_t)n;
        if (text->n > CP_READ_MAX) return too_large(w, err);
        if ((size_t)n < step) return 0;
    }
}

static int edit_failed(cp_err *err, const cp_edit_report *r) {
    if (r->matches)
        cp_fail(err, CP_E_EDIT_AMBIGUOUS,
                "edits[%zu].old is there more than once: say more of what is around it, or all", r->edit);
    else cp_fail(err, CP_E_EDIT_NO_MATCH, "edits[%zu].old is not in the file", r->edit);
    if (err) snprintf(err->field, sizeof err->field, "edits[%zu].old", r->edit);
    return -1;
}

static int edit_all(const cp_where *w, const cp_edit *edits, size_t n, cp_buf *text, cp_edit_report *r, cp_err *err) {
    for (r->edit = 0; r->edit < n; r->edit++) {
        const cp_edit *e = &edits[r->edit];
        cp_autobuf cp_buf next = {0};
        int64_t got = cp_edit_text(cp_buf_str(text), e, CP_READ_MAX, &next);
        if (got == CP_EDIT_NO_MEMORY) return cp_no_memory(err, text->n);
        if (got < 0) return too_large(w, err);
        r->matches = (uint64_t)got;
        if (got == 0 || (!e->all && got > 1)) return edit_failed(err, r);
        r->replaced += (uint64_t)got;
        cp_buf old = *text;
        *text = next;
        next = old;
    }
    return 0;
}

/* Somebody who writes between this look and the rename is not seen: only a lock that all keep to could help. */
static int unchanged(const cp_where *w, const struct stat *st, cp_err *err) {
    struct stat now;
    cp_autobuf cp_buf target = {0};
    if (cp_file_stat(w, true, &now, &target, err) < 0) return -1;
    if (now.st_ino == st->st_ino && now.st_dev == st->st_dev && now.st_size == st->st_size &&
        now.st_mtim.tv_sec == st->st_mtim.tv_sec && now.st_mtim.tv_nsec == st->st_mtim.tv_nsec)
        return 0;
    return cp_fail(err, CP_E_RESOURCE_BUSY, "The file was changed while it was edited: %s", w->full);
}

int cp_file_edit(const cp_where *w, const cp_edit *edits, size_t n, cp_edit_report *report, cp_err *err) {
    struct stat st;
    cp_autobuf cp_buf text = {0};
    *report = (cp_edit_report){0};
    if (read_all(w, &st, &text, err) < 0 || edit_all(w, edits, n, &text, report, err) < 0) return -1;
    if (unchanged(w, &st, err) < 0) return -1;
    cp_write_spec spec = {.data = cp_buf_str(&text), .owner = CP_OWNER_KEEP, .atomic = true};
    report->size = text.n;
    return cp_file_write(w, &spec, err);
}
