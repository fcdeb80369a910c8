/* Design notes. A pattern becomes a program of a few instructions, and a text is run over all paths through it at once;
 * nothing is tried and taken back. Whether a text holds a match is found with states (sets of places in the program)
 * that are made when they are first met and kept: a table look-up for each byte. Where the match lies is asked only
 * then, by a second run that carries with each place the beginning of the match that led there. Both cost at most the
 * size of the program for each byte, and the size is bounded.
 *
 * The program is written while the pattern is read, from left to right: what a repetition applies to is always the end
 * of what has been written. Jumps are relative, so that a piece can be moved and copied. Nothing recurs.
 *
 * Ruled out, measured on 64 MB of log lines: glibc's regexec (30 to 50 MB/s, but two minutes a megabyte for
 * "((a|aa)*)*b" and for others, and gigabytes to compile "(a{1,100}){1,100}"); TRE (5 to 13 MB/s, and the same
 * gigabytes); RE2 (30 to 70 MB/s and as safe as this, for a second language in the build and 1.3 MB in an idle server).
 * What is needed here is where a match lies, in bytes, and no groups. */
#include "base/regex.h"

#include <ctype.h>
#include <stdlib.h>

typedef enum { OP_SET, OP_SPLIT, OP_JUMP, OP_ASSERT, OP_MATCH } opcode;
typedef enum { AT_BEGIN, AT_END, AT_WORD, AT_NO_WORD, AT_WORD_BEGIN, AT_WORD_END } place;

typedef struct inst {
    uint8_t op;
    uint8_t place; /* ASSERT */
    int16_t x, y;  /* SET: x its index; JUMP: x; SPLIT: x and y, from this instruction on */
} inst;

typedef struct byte_set {
    uint64_t bit[4];
} byte_set;

/* What stands before, and what comes next. */
typedef enum { SIDE_NONE, SIDE_OTHER, SIDE_WORD, SIDE_OPEN } side;

typedef struct state {
    uint32_t at, n; /* places, in `places` */
    uint8_t before;
} state;

enum {
    TABLE_BYTES = 128 * 1024,
    STATES_FIRST = 8,
    STATES_MAX = 2048,
    PLACES_MAX = 32 * 1024, /* above the size of any program, so that one state always fits */
    UNKNOWN = -1,
    DEPTH_MAX = 512,
    SETS_MAX = 1024,
};

struct cp_regex {
    inst *prog;
    unsigned n;
    byte_set *sets;
    unsigned nsets;

    uint8_t class_of[256], byte_of[256]; /* bytes that no part of the pattern tells apart */
    unsigned classes, stride;            /* and two more: the end, and an end that is open */

    state *states;
    unsigned nstates, cap, most;
    int32_t *table; /* by state and class: the state that follows, times two, plus one if a match has ended */
    uint16_t *places;
    size_t nplaces, places_cap;
    int32_t *hash; /* of states, by their places */
    unsigned hash_size;

    uint16_t *stack, *out, *list;
    uint32_t *seen, *listed; /* by place: the round it was last met in */
    uint32_t round;
    struct thread *now, *next; /* of the second run */
};

typedef struct thread {
    uint16_t at;
    uint32_t from;
} thread;

static bool has(const byte_set *s, unsigned char c) { return s->bit[c >> 6] >> (c & 63) & 1; }
static void put(byte_set *s, unsigned c) { s->bit[c >> 6] |= UINT64_C(1) << (c & 63); }
static bool is_word(unsigned c) { return isalnum((int)c) || c == '_'; }

/* ---- from pattern to program ---- */

typedef struct frame {
    unsigned group, branch; /* where the group and its present branch begin */
    int jump;               /* the last of the jumps to the group's end, each naming the one before; -1 */
    int atom;               /* what a repetition would apply to; -1: nothing */
} frame;

typedef struct reader {
    cp_str p;
    size_t at;
    cp_regex *re;
    frame *frames;
    unsigned depth;
    const char *why;
} reader;

static int fail(reader *r, const char *why) {
    r->why = why;
    return -1;
}

static frame *top(reader *r) { return &r->frames[r->depth]; }

/* Room for `more` instructions, with a gap of `gap` of them at a place. */
static int make_room(reader *r, unsigned at, unsigned gap, unsigned more) {
    cp_regex *re = r->re;
    if (re->n + more + 1 > CP_REGEX_PROGRAM) return fail(r, "it is too large once its bounds are written out");
    memmove(re->prog + at + gap, re->prog + at, (re->n - at) * sizeof *re->prog);
    re->n += gap;
    return 0;
}

static int emit(reader *r, inst i) {
    if (make_room(r, r->re->n, 0, 1) < 0) return -1;
    r->re->prog[r->re->n++] = i;
    return 0;
}

static int emit_set(reader *r, const byte_set *set) {
    cp_regex *re = r->re;
    unsigned i = 0;
    while (i < re->nsets && memcmp(&re->sets[i], set, sizeof *set) != 0) i++;
    if (i == SETS_MAX) return fail(r, "it is too large");
    if (i == re->nsets) re->sets[re->nsets++] = *set;
    top(r)->atom = (int)re->n;
    return emit(r, (inst){.op = OP_SET, .x = (int16_t)i});
}

static int emit_byte(reader *r, unsigned char c) {
    byte_set set = {0};
    put(&set, c);
    return emit_set(r, &set);
}

static int emit_place(reader *r, place p) {
    top(r)->atom = -1; /* it cannot be repeated */
    return emit(r, (inst){.op = OP_ASSERT, .place = (uint8_t)p});
}

static int alternate(reader *r) {
    frame *f = top(r);
    if (make_room(r, f->branch, 1, 2) < 0) return -1;
    cp_regex *re = r->re;
    re->prog[f->branch] = (inst){.op = OP_SPLIT, .x = 1, .y = (int16_t)(re->n + 1 - f->branch)};
    re->prog[re->n] = (inst){.op = OP_JUMP, .x = (int16_t)f->jump};
    f->jump = (int)re->n++;
    f->branch = re->n;
    f->atom = -1;
    return 0;
}

static void close_group(reader *r) {
    frame *f = top(r);
    for (int at = f->jump, before; at >= 0; at = before) {
        before = r->re->prog[at].x;
        r->re->prog[at].x = (int16_t)((int)r->re->n - at);
    }
    if (!r->depth) return;
    r->depth--;
    top(r)->atom = (int)f->group;
}

static int open_group(reader *r) {
    if (r->depth + 1 == DEPTH_MAX) return fail(r, "it is nested too deeply");
    r->depth++;
    *top(r) = (frame){.group = r->re->n, .branch = r->re->n, .jump = -1, .atom = -1};
    return 0;
}

static int star(reader *r, unsigned from) {
    unsigned size = r->re->n - from;
    if (make_room(r, from, 1, 2) < 0) return -1;
    r->re->prog[from] = (inst){.op = OP_SPLIT, .x = 1, .y = (int16_t)(size + 2)};
    return emit(r, (inst){.op = OP_JUMP, .x = (int16_t) - (int)(size + 1)});
}

/* max < 0: without end. */
static int repeat(reader *r, int min, int max) {
    cp_regex *re = r->re;
    if (top(r)->atom < 0) return fail(r, "there is nothing before a repetition");
    unsigned from = (unsigned)top(r)->atom, size = re->n - from, options = max < 0 ? 0 : (unsigned)(max - min);
    if (max < 0 && min == 0) return star(r, from);
    uint64_t total = (uint64_t)min * size + (uint64_t)options * (size + 1) + (max < 0);
    if (from + total + 1 > CP_REGEX_PROGRAM) return fail(r, "it is too large once its bounds are written out");
    inst piece[CP_REGEX_PROGRAM];
    memcpy(piece, re->prog + from, size * sizeof *piece);
    re->n = from;
    for (int i = 0; i < min; i++, re->n += size) memcpy(re->prog + re->n, piece, size * sizeof *piece);
    if (max < 0) return emit(r, (inst){.op = OP_SPLIT, .x = (int16_t) - (int)size, .y = 1});
    for (unsigned left = options; left; left--, re->n += size) {
        re->prog[re->n++] = (inst){.op = OP_SPLIT, .x = 1, .y = (int16_t)(left * (size + 1))};
        memcpy(re->prog + re->n, piece, size * sizeof *piece);
    }
    return 0;
}

static int number(reader *r, int *out) {
    size_t begin = r->at;
    int v = 0;
    while (r->at < r->p.n && isdigit((unsigned char)r->p.p[r->at]) && v <= CP_REGEX_BOUND)
        v = v * 10 + (r->p.p[r->at++] - '0');
    if (v > CP_REGEX_BOUND) return fail(r, "it repeats more than 255 times");
    *out = v;
    return r->at > begin;
}

static int bound(reader *r) {
    int min = 0, max = -1;
    int first = number(r, &min), second = 0;
    bool comma = first >= 0 && r->at < r->p.n && r->p.p[r->at] == ',';
    if (comma) r->at++;
    if (comma) second = number(r, &max);
    if (first < 0 || second < 0) return -1;
    bool closed = r->at < r->p.n && r->p.p[r->at] == '}';
    if (!closed || (!first && !second) || (comma && second && max < min))
        return fail(r, "what is in {} is not a bound");
    r->at++;
    if (!comma) max = min;
    return repeat(r, min, comma && !second ? -1 : max);
}

/* ---- brackets ---- */

static const struct {
    const char *name;
    int (*is)(int c);
} kinds[] = {{"alpha", isalpha}, {"digit", isdigit}, {"alnum", isalnum}, {"upper", isupper},
             {"lower", islower}, {"space", isspace}, {"blank", isblank}, {"punct", ispunct},
             {"print", isprint}, {"graph", isgraph}, {"cntrl", iscntrl}, {"xdigit", isxdigit}};

/* [:name:], [=c=] or [.c.], at the opening bracket. 1: a set of its own was added; 0: *c is a character. */
static int named(reader *r, byte_set *set, unsigned char *c) {
    char mark = r->p.p[r->at + 1], end[3] = {mark, ']', 0};
    const char *begin = r->p.p + r->at + 2, *stop = memmem(begin, r->p.n - r->at - 2, end, 2);
    if (!stop) return fail(r, "a bracket is not closed");
    cp_str name = {begin, (size_t)(stop - begin)};
    r->at += 2 + name.n + 2;
    if (mark != ':') {
        if (name.n != 1) return fail(r, "a collating element is not a single character");
        *c = (unsigned char)name.p[0];
        return 0;
    }
    for (size_t i = 0; i < CP_COUNT(kinds); i++) {
        if (!cp_str_is(name, kinds[i].name)) continue;
        for (int b = 0; b < 256; b++)
            if (kinds[i].is(b)) put(set, (unsigned)b);
        return 1;
    }
    return fail(r, "a class of characters has no such name");
}

/* As named, for whatever stands there. */
static int bracket_item(reader *r, byte_set *set, unsigned char *c) {
    if (r->at >= r->p.n) return fail(r, "a bracket is not closed");
    if (r->p.p[r->at] == '[' && r->at + 1 < r->p.n && strchr(":=.", r->p.p[r->at + 1])) return named(r, set, c);
    *c = (unsigned char)r->p.p[r->at++];
    return 0;
}

static int bracket(reader *r) {
    byte_set set = {0};
    bool not = r->at < r->p.n && r->p.p[r->at] == '^';
    if (not ) r->at++;
    for (bool first = true;; first = false) {
        unsigned char low, high;
        if (!first && r->at < r->p.n && r->p.p[r->at] == ']') break;
        int got = bracket_item(r, &set, &low);
        if (got < 0) return -1;
        if (got) continue;
        high = low;
        if (r->at + 1 < r->p.n && r->p.p[r->at] == '-' && r->p.p[r->at + 1] != ']') {
            r->at++;
            if (bracket_item(r, &set, &high) != 0) return r->why ? -1 : fail(r, "a range ends in a class");
        }
        if (high < low) return fail(r, "a range ends before it begins");
        for (unsigned b = low; b <= high; b++) put(&set, b);
    }
    r->at++;
    for (int i = 0; not &&i < 4; i++) set.bit[i] = ~set.bit[i];
    return emit_set(r, &set);
}

/* ---- the rest of the syntax ---- */

static int emit_kind(reader *r, bool (*is)(unsigned c), bool negated) {
    byte_set set = {0};
    for (unsigned b = 0; b < 256; b++)
        if (is(b) != negated) put(&set, b);
    return emit_set(r, &set);
}

static bool is_blank(unsigned c) { return isspace((int)c) != 0; }
static bool is_any(unsigned c) { return c != 0; }

static int escape(reader *r) {
    if (r->at == r->p.n) return fail(r, "it ends in a backslash");
    char c = r->p.p[r->at++];
    switch (c) {
    case 'w': return emit_kind(r, is_word, false);
    case 'W': return emit_kind(r, is_word, true);
    case 's': return emit_kind(r, is_blank, false);
    case 'S': return emit_kind(r, is_blank, true);
    case 'b': return emit_place(r, AT_WORD);
    case 'B': return emit_place(r, AT_NO_WORD);
    case '<': return emit_place(r, AT_WORD_BEGIN);
    case '>': return emit_place(r, AT_WORD_END);
    case '`': return emit_place(r, AT_BEGIN);
    case '\'': return emit_place(r, AT_END);
    default: break;
    }
    if (c >= '1' && c <= '9') return fail(r, "back references are not supported");
    return emit_byte(r, (unsigned char)c);
}

static int read_one(reader *r) {
    char c = r->p.p[r->at++];
    switch (c) {
    case '(': return open_group(r);
    case '|': return alternate(r);
    case '*': return repeat(r, 0, -1);
    case '+': return repeat(r, 1, -1);
    case '?': return repeat(r, 0, 1);
    case '{': return bound(r);
    case '[': return bracket(r);
    case '\\': return escape(r);
    case '^': return emit_place(r, AT_BEGIN);
    case '$': return emit_place(r, AT_END);
    case '.': return emit_kind(r, is_any, false);
    case ')':
        if (!r->depth) break; /* an ordinary character */
        close_group(r);
        return 0;
    default: break;
    }
    return emit_byte(r, (unsigned char)c);
}

static int read_all(reader *r) {
    *top(r) = (frame){.jump = -1, .atom = -1};
    while (r->at < r->p.n)
        if (read_one(r) < 0) return -1;
    if (r->depth) return fail(r, "a parenthesis is not closed");
    close_group(r);
    r->re->prog[r->re->n++] = (inst){.op = OP_MATCH};
    return 0;
}

/* ---- classes of bytes ---- */

/* Bytes that were of one class so far, and of which some are in the set, are told apart from here on. */
static void tell_apart(cp_regex *re, const byte_set *set) {
    int fresh[256][2];
    unsigned n = 0;
    memset(fresh, -1, sizeof fresh);
    for (unsigned b = 0; b < 256; b++) {
        int *class = &fresh[re->class_of[b]][has(set, (unsigned char)b)];
        if (*class < 0) {
            re->byte_of[n] = (uint8_t)b;
            *class = (int)n++;
        }
        re->class_of[b] = (uint8_t) * class;
    }
    re->classes = n;
}

static void classify(cp_regex *re) {
    byte_set words = {0};
    for (unsigned b = 0; b < 256; b++)
        if (is_word(b)) put(&words, b);
    tell_apart(re, &words);
    for (unsigned i = 0; i < re->nsets; i++) tell_apart(re, &re->sets[i]);
    re->stride = re->classes + 2;
    re->most = TABLE_BYTES / (re->stride * (unsigned)sizeof *re->table);
    if (re->most > STATES_MAX) re->most = STATES_MAX;
}

cp_regex *cp_regex_new(cp_str pattern, const char **why) {
    cp_regex *re = cp_new(cp_regex);
    cp_autofree frame *frames = cp_alloc(DEPTH_MAX * sizeof *frames);
    re->prog = cp_alloc(CP_REGEX_PROGRAM * sizeof *re->prog);
    re->sets = cp_alloc(SETS_MAX * sizeof *re->sets);
    reader r = {.p = pattern, .re = re, .frames = frames};
    if (read_all(&r) < 0) {
        *why = r.why;
        cp_regex_free(re);
        return NULL;
    }
    re->prog = cp_realloc(re->prog, re->n * sizeof *re->prog);
    re->sets = cp_realloc(re->sets, (re->nsets + 1) * sizeof *re->sets);
    classify(re);
    return re;
}

void cp_regex_free(cp_regex *re) {
    if (!re) return;
    free(re->prog);
    free(re->sets);
    free(re->states);
    free(re->table);
    free(re->places);
    free(re->hash);
    free(re->stack);
    free(re->out);
    free(re->list);
    free(re->seen);
    free(re->listed);
    free(re->now);
    free(re->next);
    free(re);
}

/* ---- running: what both runs share ---- */

static bool holds(uint8_t what, side before, side after) {
    bool word_before = before == SIDE_WORD, word_after = after == SIDE_WORD;
    switch ((place)what) {
    case AT_BEGIN: return before == SIDE_NONE;
    case AT_END: return after == SIDE_NONE;
    case AT_WORD: return word_before != word_after;
    case AT_NO_WORD: return word_before == word_after;
    case AT_WORD_BEGIN: return !word_before && word_after;
    case AT_WORD_END: return word_before && !word_after;
    }
    return false;
}

static void begin_round(cp_regex *re) {
    if (++re->round) return;
    memset(re->seen, 0, re->n * sizeof *re->seen);
    memset(re->listed, 0, re->n * sizeof *re->listed);
    re->round = 1;
}

static void push(cp_regex *re, unsigned *depth, unsigned at) {
    if (re->seen[at] == re->round) return;
    re->seen[at] = re->round;
    re->stack[(*depth)++] = (uint16_t)at;
}

/* Follows all paths from a place up to a byte; out gets the places that take one. True: one led to the end. */
static bool follow(cp_regex *re, unsigned at, side before, side after, uint16_t *out, unsigned *n) {
    unsigned depth = 0;
    bool match = false;
    push(re, &depth, at);
    while (depth) {
        at = re->stack[--depth];
        const inst *i = &re->prog[at];
        switch ((opcode)i->op) {
        case OP_SET: out[(*n)++] = (uint16_t)at; break;
        case OP_MATCH: match = true; break;
        case OP_JUMP: push(re, &depth, (unsigned)((int)at + i->x)); break;
        case OP_ASSERT:
            if (holds(i->place, before, after)) push(re, &depth, at + 1);
            break;
        case OP_SPLIT:
            push(re, &depth, (unsigned)((int)at + i->y));
            push(re, &depth, (unsigned)((int)at + i->x));
            break;
        }
    }
    return match;
}

static side side_of(const cp_regex *re, unsigned c) {
    if (c >= re->classes) return c == re->classes ? SIDE_NONE : SIDE_OPEN;
    return is_word(re->byte_of[c]) ? SIDE_WORD : SIDE_OTHER;
}

static void prepare(cp_regex *re) {
    if (re->stack) return;
    re->stack = cp_alloc((re->n + 1) * sizeof *re->stack);
    re->out = cp_alloc((re->n + 1) * sizeof *re->out);
    re->list = cp_alloc((re->n + 1) * sizeof *re->list);
    re->seen = cp_alloc(re->n * sizeof *re->seen);
    re->listed = cp_alloc(re->n * sizeof *re->listed);
    re->now = cp_alloc((re->n + 1) * sizeof *re->now);
    re->next = cp_alloc((re->n + 1) * sizeof *re->next);
}

/* ---- the first run: is there a match? ---- */

static uint32_t hash_of(const uint16_t *places, unsigned n, unsigned before) {
    uint32_t h = 2166136261u ^ before;
    for (unsigned i = 0; i < n; i++) h = (h ^ places[i]) * 16777619u;
    return h ^ h >> 15;
}

static bool is_state(const cp_regex *re, int i, const uint16_t *places, unsigned n, side before) {
    const state *s = &re->states[i];
    return s->n == n && s->before == before && memcmp(re->places + s->at, places, n * sizeof *places) == 0;
}

/* Where a state with these places is noted, or would be. */
static unsigned slot_of(const cp_regex *re, const uint16_t *places, unsigned n, side before) {
    unsigned mask = re->hash_size - 1, slot = hash_of(places, n, before) & mask;
    while (re->hash[slot] != UNKNOWN && !is_state(re, re->hash[slot], places, n, before)) slot = (slot + 1) & mask;
    return slot;
}

/* Room for twice as many states as there are, or for the first. */
static void grow(cp_regex *re) {
    re->cap = re->cap ? re->cap * 2 : STATES_FIRST;
    if (re->cap > re->most) re->cap = re->most;
    re->hash_size = 1;
    while (re->hash_size < re->cap * 2) re->hash_size *= 2;
    re->states = cp_realloc(re->states, re->cap * sizeof *re->states);
    re->table = cp_realloc(re->table, (size_t)re->cap * re->stride * sizeof *re->table);
    re->hash = cp_realloc(re->hash, re->hash_size * sizeof *re->hash);
    for (unsigned i = 0; i < re->hash_size; i++) re->hash[i] = UNKNOWN;
    for (unsigned i = 0; i < re->nstates; i++) {
        const state *s = &re->states[i];
        re->hash[slot_of(re, re->places + s->at, s->n, (side)s->before)] = (int)i;
    }
}

static void forget_states(cp_regex *re) {
    re->nstates = 0;
    re->nplaces = 0;
    for (unsigned i = 0; i < re->hash_size; i++) re->hash[i] = UNKNOWN;
}

static void keep_places(cp_regex *re, const uint16_t *places, unsigned n) {
    if (re->nplaces + n > re->places_cap) {
        re->places_cap = (re->nplaces + n) * 2;
        re->places = cp_realloc(re->places, re->places_cap * sizeof *re->places);
    }
    memcpy(re->places + re->nplaces, places, n * sizeof *places);
    re->nplaces += n;
}

/* The state with these places, which are in order; for a new one all others may have to be forgotten. */
static int state_of(cp_regex *re, const uint16_t *places, unsigned n, side before) {
    if (!re->cap) grow(re);
    unsigned slot = slot_of(re, places, n, before);
    if (re->hash[slot] != UNKNOWN) return re->hash[slot];
    if (re->nplaces + n > PLACES_MAX || re->nstates == re->most) forget_states(re);
    else if (re->nstates == re->cap) grow(re);
    slot = slot_of(re, places, n, before);
    int i = (int)re->nstates++;
    re->hash[slot] = i;
    re->states[i] = (state){.at = (uint32_t)re->nplaces, .n = n, .before = (uint8_t)before};
    keep_places(re, places, n);
    for (unsigned c = 0; c < re->stride; c++) re->table[(unsigned)i * re->stride + c] = UNKNOWN;
    return i;
}

/* Works out where a byte of this class leads from a state. A match may begin anywhere, so the program's beginning is in
 * every state. */
static int32_t step(cp_regex *re, int from, unsigned class) {
    const state *s = &re->states[from];
    side before = (side)s->before, after = side_of(re, class);
    uint16_t *out = re->out, *next = re->list;
    unsigned n = 0, m = 0;
    bool match = false;
    begin_round(re);
    for (unsigned i = 0; i < s->n; i++) match |= follow(re, re->places[s->at + i], before, after, out, &n);
    if (match || class >= re->classes) return re->table[(unsigned)from * re->stride + class] = match;
    re->listed[0] = re->round;
    for (unsigned i = 0; i < n; i++)
        if (has(&re->sets[re->prog[out[i]].x], re->byte_of[class])) re->listed[out[i] + 1] = re->round;
    for (unsigned at = 0; at < re->n; at++)
        if (re->listed[at] == re->round) next[m++] = (uint16_t)at;
    unsigned known = re->nstates;
    int to = state_of(re, next, m, after);
    int32_t result = to << 1;
    if (re->nstates >= known) re->table[(unsigned)from * re->stride + class] = result; /* else `from` is forgotten */
    return result;
}

static bool holds_match(cp_regex *re, cp_str text, bool open_end) {
    static const uint16_t begin = 0;
    int at = state_of(re, &begin, 1, SIDE_NONE);
    for (size_t i = 0; i < text.n; i++) {
        unsigned c = re->class_of[(unsigned char)text.p[i]];
        int32_t to = re->table[(unsigned)at * re->stride + c];
        if (to == UNKNOWN) to = step(re, at, c);
        if (to & 1) return true;
        at = to >> 1;
    }
    unsigned end = re->classes + open_end;
    int32_t to = re->table[(unsigned)at * re->stride + end];
    if (to == UNKNOWN) to = step(re, at, end);
    return to & 1;
}

/* ---- the second run: where is it? ---- */

/* Threads stand in the order of their beginnings, so that the first to reach a place is the one that began first. */
static void find(cp_regex *re, cp_str text, bool open_end, size_t *from, size_t *to) {
    uint16_t *out = re->out;
    unsigned n = 0;
    bool found = false;
    side before = SIDE_NONE;
    for (size_t i = 0; n || !found; i++) {
        bool last = i == text.n;
        unsigned c = last ? re->classes + open_end : re->class_of[(unsigned char)text.p[i]], m = 0;
        side after = side_of(re, c);
        begin_round(re);
        if (!found) re->now[n++] = (thread){.at = 0, .from = (uint32_t)i};
        for (unsigned k = 0; k < n && !(found && re->now[k].from > *from); k++) {
            unsigned places = 0;
            if (follow(re, re->now[k].at, before, after, out, &places)) {
                found = true;
                *from = re->now[k].from;
                *to = i;
            }
            for (unsigned j = 0; j < places && !last; j++) {
                unsigned next = out[j] + 1u;
                if (re->listed[next] == re->round || !has(&re->sets[re->prog[out[j]].x], re->byte_of[c])) continue;
                re->listed[next] = re->round;
                re->next[m++] = (thread){.at = (uint16_t)next, .from = re->now[k].from};
            }
        }
        if (last) return;
        thread *was = re->now;
        re->now = re->next;
        re->next = was;
        n = m;
        before = after;
    }
}

bool cp_regex_search(cp_regex *re, cp_str text, bool open_end, size_t *from, size_t *to) {
    prepare(re);
    if (!holds_match(re, text, open_end)) return false;
    find(re, text, open_end, from, to);
    return true;
}
