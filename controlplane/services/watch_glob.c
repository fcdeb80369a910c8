/* A set of states is run over the path instead of trying and backtracking: patterns come from clients, and "*a*a*a*b"
 * must not cost more than its length. A state is the offset in the pattern that has been reached. */
#include "services/watch_glob.h"

#include <string.h>

typedef enum { TOKEN_CHAR, TOKEN_ANY, TOKEN_STAR, TOKEN_STARS } token_kind;

bool cp_glob_supported(cp_str pattern) {
    if (cp_str_trim(pattern).n == 0) return false;
    for (size_t i = 0; i < pattern.n; i++)
        if (!pattern.p[i] || strchr("[]{}", pattern.p[i])) return false;
    return true;
}

/* Bytes of the character at the offset; what is no valid UTF-8 counts byte by byte. */
static size_t char_size(cp_str s, size_t at) {
    unsigned char lead = (unsigned char)s.p[at];
    size_t want = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1, n = 1;
    while (n < want && at + n < s.n && ((unsigned char)s.p[at + n] & 0xC0) == 0x80) n++;
    return n == want ? n : 1;
}

static size_t token(cp_str p, size_t at, token_kind *kind) {
    if (p.p[at] == '*') {
        bool two = at + 1 < p.n && p.p[at + 1] == '*';
        *kind = two ? TOKEN_STARS : TOKEN_STAR;
        return two ? 2 : 1;
    }
    *kind = p.p[at] == '?' ? TOKEN_ANY : TOKEN_CHAR;
    return char_size(p, at);
}

/* Reaches the offset, and those behind stars that stand for nothing. */
static void reach(bool *set, cp_str p, size_t at) {
    token_kind kind;
    set[at] = true;
    while (at < p.n) {
        size_t n = token(p, at, &kind);
        if (kind != TOKEN_STAR && kind != TOKEN_STARS) return;
        set[at += n] = true;
    }
}

/* One character of the path. False: no state is left. */
static bool step(const bool *from, bool *to, cp_str p, cp_str c) {
    bool any = false, slash = c.p[0] == '/';
    memset(to, 0, p.n + 1);
    for (size_t at = 0; at < p.n; at++) {
        token_kind kind;
        if (!from[at]) continue;
        size_t n = token(p, at, &kind), next = at;
        if (kind == TOKEN_CHAR && !cp_str_eq((cp_str){p.p + at, n}, c)) continue;
        if ((kind == TOKEN_ANY || kind == TOKEN_STAR) && slash) continue;
        if (kind == TOKEN_CHAR || kind == TOKEN_ANY) next += n;
        reach(to, p, next);
        any = true;
    }
    return any;
}

static bool match(cp_str p, cp_str path, bool whole) {
    bool sets[2][CP_GLOB_MAX + 1] = {0}, live = false;
    unsigned now = 0;
    if (!p.n || p.n > CP_GLOB_MAX) return false;
    for (size_t at = 0;;) {
        if (at == 0 || path.p[at - 1] == '/') {
            reach(sets[now], p, 0);
            live = true;
        }
        if (live && sets[now][p.n] && (at == path.n || (!whole && path.p[at] == '/'))) return true;
        if (at == path.n) return false;
        size_t n = char_size(path, at);
        if (live) {
            live = step(sets[now], sets[!now], p, (cp_str){path.p + at, n});
            now = !now;
        }
        at += n;
    }
}

bool cp_glob_match(cp_str p, cp_str path) { return match(p, path, false); }
bool cp_glob_match_whole(cp_str p, cp_str path) { return match(p, path, true); }

/* Appends the parts of a path to out[0..n), folding; the new length, or 0 when it does not fit. */
static size_t append_parts(char out[CP_PATH_MAX], size_t n, cp_str path) {
    for (size_t i = 0, end; i < path.n; i = end + 1) {
        const char *slash = memchr(path.p + i, '/', path.n - i);
        end = slash ? (size_t)(slash - path.p) : path.n;
        cp_str part = {path.p + i, end - i};
        if (part.n == 0 || cp_str_is(part, ".")) continue;
        if (cp_str_is(part, "..")) {
            while (n > 1 && out[--n] != '/') continue;
            if (n == 0) n = 1;
            continue;
        }
        if (n + (n > 1) + part.n >= CP_PATH_MAX) return 0;
        if (n > 1) out[n++] = '/';
        memcpy(out + n, part.p, part.n);
        n += part.n;
    }
    return n;
}

int cp_watch_resolve(const char *base, cp_str path, char out[CP_PATH_MAX]) {
    size_t n = 1;
    out[0] = '/';
    if (!(path.n && path.p[0] == '/')) n = append_parts(out, n, cp_str_of(base));
    if (n) n = append_parts(out, n, path);
    if (!n) return -1;
    out[n] = 0;
    return 0;
}

cp_staged cp_watch_staged(cp_str name) {
    static const cp_str begin = {".conflux-", 9};
    if (name.n != begin.n + 16 + 4 || !cp_str_starts(name, begin)) return CP_STAGED_NOT;
    for (size_t i = begin.n; i < begin.n + 16; i++)
        if (!name.p[i] || !strchr("0123456789abcdef", name.p[i])) return CP_STAGED_NOT;
    cp_str end = {name.p + begin.n + 16, 4};
    return cp_str_is(end, ".tmp") ? CP_STAGED_NEW : cp_str_is(end, ".mod") ? CP_STAGED_REPLACES : CP_STAGED_NOT;
}
