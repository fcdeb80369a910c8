/* Patterns against paths, and paths as text, each compared with a slower way. Input: pattern, NUL, path. */
#include <stdlib.h>

#include "services/watch_glob.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 256 };

static void require(bool ok) {
    if (!ok) abort();
}

/* ---- patterns: a table of (rest of the pattern, rest of the path) ---- */

/* Offsets at which characters begin; what is no UTF-8 counts byte by byte. */
static size_t characters(cp_str s, size_t at[MOST + 1]) {
    static const unsigned char lead[][2] = {{0xF0, 4}, {0xE0, 3}, {0xC0, 2}};
    size_t n = 0;
    for (size_t i = 0; i < s.n;) {
        size_t len = 1, k = 0;
        while (k < CP_COUNT(lead) && (unsigned char)s.p[i] < lead[k][0]) k++;
        if (k < CP_COUNT(lead)) len = lead[k][1];
        for (size_t j = 1; j < len; j++)
            if (i + j >= s.n || ((unsigned char)s.p[i + j] & 0xC0) != 0x80) len = 1;
        at[n++] = i;
        i += len;
    }
    at[n] = s.n;
    return n;
}

typedef struct text {
    cp_str s;
    size_t at[MOST + 1], n;
} text;

static cp_str character(const text *t, size_t i) { return (cp_str){t->s.p + t->at[i], t->at[i + 1] - t->at[i]}; }
static bool is(const text *t, size_t i, char c) { return i < t->n && cp_str_eq(character(t, i), (cp_str){&c, 1}); }

static bool slow_match(const text *p, const text *s, bool whole) {
    static bool ok[MOST + 2][MOST + 2];
    for (size_t i = p->n + 1; i-- > 0;)
        for (size_t j = s->n + 1; j-- > 0;) {
            bool slash = is(s, j, '/'), more = j < s->n;
            if (i == p->n) ok[i][j] = !more || (!whole && slash);
            else if (is(p, i, '*') && is(p, i + 1, '*')) ok[i][j] = ok[i + 2][j] || (more && ok[i][j + 1]);
            else if (is(p, i, '*')) ok[i][j] = ok[i + 1][j] || (more && !slash && ok[i][j + 1]);
            else if (is(p, i, '?')) ok[i][j] = more && !slash && ok[i + 1][j + 1];
            else ok[i][j] = more && cp_str_eq(character(p, i), character(s, j)) && ok[i + 1][j + 1];
        }
    for (size_t j = 0; j <= s->n; j++)
        if ((j == 0 || is(s, j - 1, '/')) && ok[0][j]) return true;
    return false;
}

static void check_match(cp_str pattern, cp_str path) {
    static text p, s;
    if (pattern.n > MOST || path.n > MOST) return;
    bool part = cp_glob_match(pattern, path), whole = cp_glob_match_whole(pattern, path);
    require(part || !whole);
    if (pattern.n == 0 || pattern.n > CP_GLOB_MAX) {
        require(!part);
        return;
    }
    p = (text){.s = pattern};
    s = (text){.s = path};
    p.n = characters(pattern, p.at);
    s.n = characters(path, s.at);
    require(part == slow_match(&p, &s, false) && whole == slow_match(&p, &s, true));
}

/* ---- paths ---- */

static void check_resolve(cp_str path) {
    char out[CP_PATH_MAX], again[CP_PATH_MAX], joined[CP_PATH_MAX];
    if (cp_path_problem(path)) return;
    if (cp_watch_resolve("/base/./x", path, out) == 0) {
        size_t n = strlen(out);
        require(out[0] == '/' && n < CP_PATH_MAX && (n == 1 || out[n - 1] != '/') && !strstr(out, "//"));
        require(!strstr(out, "/../") && !strstr(out, "/./"));
        require(cp_watch_resolve("/", cp_str_of(out), again) == 0 && strcmp(out, again) == 0);
        require(cp_path_inside("/", out) != NULL);
        if (strncmp(out, "/base/x/", 8) == 0) require(strcmp(cp_path_inside("/base/x", out), out + 8) == 0);
    }
    if (cp_path_join("/base", path, joined) == 0) {
        size_t n = strlen(joined);
        require(n >= path.n && memcmp(joined + n - path.n, path.p, path.n) == 0);
    }
}

static void check_split(cp_str path) {
    static cp_split s;
    cp_autofree char *z = cp_str_dup(path);
    cp_str base = cp_path_base(cp_str_of(z));
    require(!base.n || !memchr(base.p, '/', base.n));
    if (cp_path_split(z, &s) < 0) return;
    require(s.name[0] && !strchr(s.name, '/') && strcmp(s.name, "..") != 0);
    require(s.slash == (*z && z[strlen(z) - 1] == '/'));
    require(strlen(s.dir) <= strlen(z) + 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    cp_str pattern = {(const char *)data, nul ? (size_t)(nul - data) : size};
    cp_str path = nul ? (cp_str){(const char *)nul + 1, size - pattern.n - 1} : (cp_str){"", 0};
    if (cp_glob_supported(pattern)) require(!memchr(pattern.p, '[', pattern.n) && !memchr(pattern.p, '}', pattern.n));
    check_match(pattern, path);
    check_resolve(path);
    check_split(path);
    if (cp_watch_staged(path) != CP_STAGED_NOT)
        require(path.n == 29 && memcmp(path.p, ".conflux-", 9) == 0 && !memchr(path.p, 0, path.n));
    return 0;
}
