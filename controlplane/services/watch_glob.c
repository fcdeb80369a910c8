/* A set of states is run over the path instead of trying and backtracking: patterns come from clients, are looked at
 * for each event on the loop, and "*a*a*a*b" must not cost more than its length. A state is the number of tokens that
 * have been passed, a set is 256 bits, and a character moves all of them at once. */
#include "services/watch_glob.h"

#include <stdint.h>
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

typedef struct bits {
    uint64_t w[4];
} bits;

static bool has(const bits *b, unsigned i) { return b->w[i >> 6] >> (i & 63) & 1; }
static void put(bits *b, unsigned i) { b->w[i >> 6] |= UINT64_C(1) << (i & 63); }

typedef struct tokens {
    cp_str p;
    unsigned n;
    uint8_t at[CP_GLOB_MAX], size[CP_GLOB_MAX]; /* of each in the pattern */
    bits any, star, stars, literal;             /* which are of that kind */
    bits known;                                 /* bytes whose `same` has been worked out */
    bits same[256];                             /* by byte: the tokens that are that character; of ASCII only */
} tokens;

static void split(tokens *t, cp_str p) {
    t->p = p;
    t->n = 0;
    t->any = t->star = t->stars = t->literal = t->known = (bits){0};
    bits *const sets[] = {
        [TOKEN_CHAR] = &t->literal, [TOKEN_ANY] = &t->any, [TOKEN_STAR] = &t->star, [TOKEN_STARS] = &t->stars};
    for (size_t at = 0; at < p.n; t->n++) {
        token_kind kind;
        size_t n = token(p, at, &kind);
        t->at[t->n] = (uint8_t)at;
        t->size[t->n] = (uint8_t)n;
        put(sets[kind], t->n);
        at += n;
    }
}

static bits same_as(const tokens *t, cp_str c) {
    bits same = {0};
    for (unsigned i = 0; i < t->n; i++)
        if (has(&t->literal, i) && cp_str_eq((cp_str){t->p.p + t->at[i], t->size[i]}, c)) put(&same, i);
    return same;
}

/* The tokens that are this character. */
static bits literal(tokens *t, cp_str c) {
    unsigned char byte = (unsigned char)c.p[0];
    if (c.n > 1 || byte >= 0x80) return same_as(t, c);
    if (!has(&t->known, byte)) {
        t->same[byte] = same_as(t, c);
        put(&t->known, byte);
    }
    return t->same[byte];
}

/* Passes stars that stand for nothing. */
static void pass_stars(const tokens *t, bits *set) {
    for (bool more = true; more;) {
        uint64_t carry = 0;
        more = false;
        for (int k = 0; k < 4; k++) {
            uint64_t on = set->w[k] & (t->star.w[k] | t->stars.w[k]), next = on << 1 | carry;
            carry = on >> 63;
            more |= (next & ~set->w[k]) != 0;
            set->w[k] |= next;
        }
    }
}

/* One character of the path. False: no state is left. */
static bool step(tokens *t, bits *set, cp_str c) {
    bool slash = c.p[0] == '/';
    bits same = literal(t, c);
    uint64_t carry = 0, left = 0;
    for (int k = 0; k < 4; k++) {
        uint64_t moves = set->w[k] & (same.w[k] | (slash ? 0 : t->any.w[k]));
        uint64_t stays = set->w[k] & (t->stars.w[k] | (slash ? 0 : t->star.w[k]));
        set->w[k] = moves << 1 | carry | stays;
        carry = moves >> 63;
        left |= set->w[k];
    }
    if (left) pass_stars(t, set);
    return left != 0;
}

static bool match(cp_str p, cp_str path, bool whole) {
    tokens t; /* `same` is made as it is needed */
    bits set = {0};
    bool live = false;
    if (!p.n || p.n > CP_GLOB_MAX) return false;
    split(&t, p);
    for (size_t at = 0;;) {
        if (at == 0 || path.p[at - 1] == '/') {
            put(&set, 0);
            pass_stars(&t, &set);
            live = true;
        }
        if (live && has(&set, t.n) && (at == path.n || (!whole && path.p[at] == '/'))) return true;
        if (at == path.n) return false;
        size_t n = char_size(path, at);
        if (live) live = step(&t, &set, (cp_str){path.p + at, n});
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
