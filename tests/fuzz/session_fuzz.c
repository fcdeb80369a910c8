/* What a session's shell says: reports, and its exported variables; any process of the session may write there. And
 * what it is told: words are quoted so that a shell reads them back. Input: the text, and a byte that cuts it. */
#include "services/session_script.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { EXPORTS_MAX = 40 };

static void require(bool ok) {
    if (!ok) abort();
}

static void report(cp_str line) {
    cp_report r;
    cp_autobuf cp_buf again = {0};
    if (!cp_report_parse(line, &r)) return;
    require(r.kind == 'i' || r.kind == 'd' || r.kind == 'p');
    cp_buf_addf(&again, "%c%llu", r.kind, (unsigned long long)r.seq);
    if (r.kind != 'i') cp_buf_addf(&again, " %llu", (unsigned long long)r.value);
    cp_report same;
    require(cp_report_parse(cp_buf_str(&again), &same));
    require(same.kind == r.kind && same.seq == r.seq && same.value == r.value);
}

static void each_line(cp_str text) {
    while (text.n) {
        const char *nl = memchr(text.p, '\n', text.n);
        size_t n = nl ? (size_t)(nl - text.p) : text.n;
        report((cp_str){text.p, n});
        text = (cp_str){text.p + n + (nl != NULL), text.n - n - (nl != NULL)};
    }
}

/* Dumps are what stands between two NULs; the last that is neither empty nor too long counts. */
static cp_str slow_dump(cp_str text) {
    cp_str last = {0};
    for (size_t from = 0; from < text.n;) {
        const char *nul = memchr(text.p + from, 0, text.n - from);
        if (!nul) break;
        size_t n = (size_t)(nul - text.p) - from;
        if (n && n <= EXPORTS_MAX) last = (cp_str){text.p + from, n};
        from += n + 1;
    }
    return last;
}

static void exports(cp_str text, size_t piece) {
    cp_script_dump d = {0};
    cp_autobuf cp_buf whole = {0};
    for (size_t at = 0; at < text.n; at += piece) {
        cp_script_exports_feed(&d, &whole, EXPORTS_MAX,
                               (cp_str){text.p + at, text.n - at < piece ? text.n - at : piece});
        require(d.text.n <= EXPORTS_MAX && whole.n <= EXPORTS_MAX);
    }
    require(cp_str_eq(cp_buf_str(&whole), slow_dump(text)));
    cp_buf_free(&d.text);
}

/* POSIX section 2.2.2: within single quotes each character is itself; \' stands outside of them. */
static void unquote(cp_str word, cp_buf *out) {
    for (size_t i = 0; i < word.n;) {
        if (word.p[i] == '\\') {
            require(i + 1 < word.n && word.p[i + 1] == '\'');
            cp_buf_addc(out, '\'');
            i += 2;
            continue;
        }
        require(word.p[i] == '\'');
        for (i++; i < word.n && word.p[i] != '\''; i++) cp_buf_addc(out, word.p[i]);
        require(i++ < word.n);
    }
}

static void quoting(cp_str text) {
    cp_autobuf cp_buf word = {0}, back = {0};
    cp_buf_add_word(&word, text);
    unquote(cp_buf_str(&word), &back);
    require(cp_str_eq(cp_buf_str(&back), text));
}

/* The command is the second of three elements, each ending in NUL, whatever is in it. */
static void record(cp_str text) {
    cp_autofree char *z = cp_str_dup(text);
    char *env[] = {(char[]){"A=b"}, NULL};
    cp_script s = {.dir = "/tmp/it's",
                   .seq = 7,
                   .command = z,
                   .cwd = z[0] ? z : NULL,
                   .env = env,
                   .in = "i1",
                   .interruptible = cp_script_interruptible(z)};
    for (int background = 0; background < 2; background++) {
        cp_autobuf cp_buf out = {0};
        if (background) cp_script_background(&out, &s);
        else cp_script_foreground(&out, &s);
        size_t nuls = 0, first = 0;
        for (size_t i = 0; i < out.n; i++)
            if (out.p[i] == 0 && nuls++ == 0) first = i;
        require(nuls == 3 && out.p[out.n - 1] == 0);
        require(strcmp(out.p + first + 1, z) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    cp_str text = {(const char *)data + 1, size - 1};
    each_line(text);
    exports(text, 1 + data[0] % 16);
    exports(text, size);
    quoting(text);
    record(text);
    return 0;
}
