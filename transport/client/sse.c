/* The event stream format of the HTML standard (section 9.2.6), as far as anything here sends it: data and id; other
 * fields and comments are skipped. Lines end in LF, CR or CRLF, wherever the input was cut. */
#include "transport/client/client_impl.h"

#include <stdio.h>

void sse_init(sse *s, size_t max, void (*emit)(void *, const conflux_event *), void *arg) {
    *s = (sse){.max = max, .emit = emit, .arg = arg};
}

void sse_fini(sse *s) {
    cp_buf_free(&s->line);
    cp_buf_free(&s->data);
}

static void dispatch(sse *s) {
    if (s->has_data) {
        if (s->data.n) s->data.n--; /* the last newline */
        conflux_event ev = {.data = cp_buf_z(&s->data), .len = s->data.n, .id = s->has_id ? s->id : NULL};
        s->emit(s->arg, &ev);
    }
    cp_buf_reset(&s->data, 256 * 1024);
    s->has_data = s->has_id = false;
}

static void on_line(sse *s, cp_str line) {
    if (!line.n) {
        dispatch(s);
        return;
    }
    const char *colon = memchr(line.p, ':', line.n);
    cp_str name = {line.p, colon ? (size_t)(colon - line.p) : line.n};
    cp_str value = {NULL, 0};
    if (colon) value = (cp_str){colon + 1, line.n - name.n - 1};
    if (value.n && *value.p == ' ') value = (cp_str){value.p + 1, value.n - 1};
    if (cp_str_is(name, "data")) {
        cp_buf_add(&s->data, value.p, value.n);
        cp_buf_addc(&s->data, '\n');
        s->has_data = true;
    } else if (cp_str_is(name, "id") && value.n < sizeof s->id) {
        snprintf(s->id, sizeof s->id, "%.*s", (int)value.n, value.n ? value.p : "");
        s->has_id = true;
    }
}

/* The line [p, p+n), which may have begun in earlier input. */
static void end_line(sse *s, const char *p, size_t n) {
    if (s->line.n) {
        cp_buf_add(&s->line, p, n);
        on_line(s, cp_buf_str(&s->line));
        cp_buf_reset(&s->line, 256 * 1024);
    } else {
        on_line(s, (cp_str){p, n});
    }
}

int sse_feed(sse *s, const char *p, size_t n) {
    const char *end = p + n;
    if (s->after_cr && p < end && *p == '\n') p++;
    if (n) s->after_cr = false;
    while (p < end) {
        const char *lf = memchr(p, '\n', (size_t)(end - p)), *stop = lf ? lf : end;
        const char *cr = memchr(p, '\r', (size_t)(stop - p));
        if (cr) stop = cr;
        if (stop == end) break;
        end_line(s, p, (size_t)(stop - p));
        p = stop + 1;
        if (!cr) continue;
        if (p == end) s->after_cr = true;
        else if (*p == '\n') p++;
    }
    cp_buf_add(&s->line, p, (size_t)(end - p));
    return s->line.n + s->data.n > s->max ? -1 : 0;
}
