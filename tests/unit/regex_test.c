#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <regex.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/regex.h"

static long search(const char *pattern, const char *text, bool open_end, long *to) {
    const char *why;
    size_t from, end;
    cp_regex *re = cp_regex_new(cp_str_of(pattern), &why);
    assert_non_null(re);
    bool found = cp_regex_search(re, cp_str_of(text), open_end, &from, &end);
    cp_regex_free(re);
    *to = found ? (long)end : -1;
    return found ? (long)from : -1;
}

static void leftmost_and_longest(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *text;
        long from, to;
    } t[] = {
        {"a", "bab", 1, 2},
        {"a|ab|abc", "xabcd", 1, 4},
        {"b|abcd", "abcx", 1, 2},
        {"(a|ab)(c|bcd)", "abcd", 0, 4},
        {"x*", "aaa", 0, 0},
        {"x*", "xxa", 0, 2},
        {"a{2}", "aaaa", 0, 2},
        {"a{2,}", "baaaa", 1, 5},
        {"a{,2}", "aaaa", 0, 2},
        {"a{2,3}", "aaaa", 0, 3},
        {"(ab){2}c?", "xababc", 1, 6},
        {"a{0}b", "aab", 2, 3},
        {"^a", "ba", -1, -1},
        {"a$", "ab", -1, -1},
        {"^$", "", 0, 0},
        {"()", "a", 0, 0},
        {"(|a)b", "ab", 0, 2},
        {"a||b", "cb", 0, 0},
        {"[]a]+", "x]a]", 1, 4},
        {"[^]a]", "]ab", 2, 3},
        {"[a-]", "-", 0, 1},
        {"[[:digit:]]+", "port 8080", 5, 9},
        {"[[.-.]a]+", "-a", 0, 2},
        {"[[=a=]b]+", "xab", 1, 3},
        {"a.c", "a\nc", 0, 3},
        {"\\.", "a.b", 1, 2},
        {"\\w+\\W", "ab_1 ", 0, 5},
        {"\\bfoo\\b", "afoo foo", 5, 8},
        {"\\<f", "of f", 3, 4},
        {"f\\>", "fa of", 4, 5},
        {"o\\Bo", "foo", 1, 3},
        {"\\s+\\S", "a  b", 1, 4},
        {"a)", "xa)", 1, 3},
        {"a**", "aa", 0, 2},
        {"(a*)*", "aab", 0, 2},
        {"(a*)+b", "aaab", 0, 4},
        {"(^a|b)*c", "abc", 0, 3},
        {"\xc3\xa9", "caf\xc3\xa9", 3, 5},
    };
    for (size_t i = 0; i < CP_COUNT(t); i++) {
        long to, from = search(t[i].pattern, t[i].text, false, &to);
        if (from != t[i].from || to != t[i].to) fail_msg("%s in %s: %ld-%ld", t[i].pattern, t[i].text, from, to);
    }
}

static void an_open_end_is_no_end(void **state) {
    (void)state;
    long to;
    assert_int_equal(search("a$", "ba", false, &to), 1);
    assert_int_equal(search("a$", "ba", true, &to), -1);
    assert_int_equal(search("a|b$", "ba", true, &to), 1);
}

static void what_is_not_valid_is_refused(void **state) {
    (void)state;
    static const char *const bad[] = {
        "(",   "(a",   "[",     "[a", "[b-a]", "[[:no:]]", "[[:alpha:", "[[.ab.]]", "[a-[:digit:]]",
        "*a",  "a|*b", "(+a)",  "^*", "a{",    "a{x}",     "a{2,1}",    "a{,}",     "a{256}",
        "{2}", "\\",   "(a)\\1"};
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        const char *why = NULL;
        if (cp_regex_new(cp_str_of(bad[i]), &why)) fail_msg("%s was taken", bad[i]);
        assert_non_null(why);
    }
}

/* X12: bounds within bounds are counted before anything is written, and no order of them takes memory or time. */
static void what_would_grow_is_refused(void **state) {
    (void)state;
    static const char *const bad[] = {"(a{1,100}){1,100}",  "a?{100}{100}",
                                      "((a{9}){9}){255}",   "(((x{2}){2}){255}){255}",
                                      "(?:a{2,101,}){100}", "((((((((a{9}){9}){9}){9}){9}){9}){9}){9}){9}"};
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        const char *why = NULL;
        if (cp_regex_new(cp_str_of(bad[i]), &why)) fail_msg("%s was taken", bad[i]);
        assert_non_null(why);
    }
}

/* X12: each took the engine before from seconds to hours. Here each byte costs at most the size of the program, so that
 * the whole is done before the test's limit, on any machine and under any sanitizer. */
static void no_pattern_explodes(void **state) {
    (void)state;
    static const char *const bad[] = {"((a|aa)*)*b",
                                      "(a*)*b",
                                      "(a|a)*(a|a)*(a|a)*b",
                                      "(.*)(.*)(.*)(.*)(.*)[b-z]",
                                      "(a{1,50}){1,10}b",
                                      "(a?){100}a{100}b",
                                      "(x+x+)+y",
                                      "([a-z]|[b-z]|a)*(a|b)(a|b|.){100}b"};
    enum { LINE = 4096, LINES = 40 };
    static char line[LINE];
    memset(line, 'a', sizeof line);
    for (size_t i = 0; i < CP_COUNT(bad); i++) {
        const char *why;
        size_t from, to;
        cp_regex *re = cp_regex_new(cp_str_of(bad[i]), &why);
        assert_non_null(re);
        for (int k = 0; k < LINES; k++) assert_false(cp_regex_search(re, (cp_str){line, LINE}, false, &from, &to));
        cp_regex_free(re);
    }
}

/* ---- against another engine, over random patterns ---- */

static unsigned seed = 12345;
static unsigned any(unsigned n) {
    seed = seed * 1103515245u + 12345u;
    return (seed >> 16) % n;
}

static void random_pattern(char *out, size_t size) {
    static const char *const parts[] = {"a",    "b",    "c",     "ab",     "(",      ")",     "|",
                                        "*",    "+",    "?",     ".",      "^",      "$",     "[ab]",
                                        "[^a]", "{2}",  "{1,3}", "{0,2}",  "{2,}",   "(a|b)", "a*",
                                        "b+",   "(ab)", "\\w",   "[a-c]+", "(a|ab)", "c?",    "(b*c)*"};
    out[0] = 0;
    for (unsigned n = 1 + any(7); n; n--) {
        const char *part = parts[any(CP_COUNT(parts))];
        if (strlen(out) + strlen(part) + 1 < size) strcat(out, part);
    }
}

static void compare(const char *pattern) {
    regex_t other;
    const char *why;
    cp_regex *re = cp_regex_new(cp_str_of(pattern), &why);
    if (regcomp(&other, pattern, REG_EXTENDED) != 0) {
        cp_regex_free(re);
        return;
    }
    if (!re) fail_msg("%s was refused: %s", pattern, why);
    for (int k = 0; k < 30; k++) {
        char text[16];
        unsigned n = any(sizeof text);
        for (unsigned i = 0; i < n; i++) text[i] = "abcd"[any(4)];
        text[n] = 0;
        regmatch_t m;
        size_t from = 0, to = 0;
        bool want = regexec(&other, text, 1, &m, 0) == 0;
        bool got = cp_regex_search(re, (cp_str){text, n}, false, &from, &to);
        if (got != want || (got && ((long)from != m.rm_so || (long)to != m.rm_eo)))
            fail_msg("%s in %s: %d %zu-%zu, not %d %d-%d", pattern, text, got, from, to, want, m.rm_so, m.rm_eo);
    }
    regfree(&other);
    cp_regex_free(re);
}

static void agrees_with_another_engine(void **state) {
    (void)state;
    for (int i = 0; i < 4000; i++) {
        char pattern[64];
        random_pattern(pattern, sizeof pattern);
        compare(pattern);
    }
}

/* Few states fit the tables: what was learnt is forgotten in the middle of a text, and learnt again. */
static void forgets_and_learns_again(void **state) {
    (void)state;
    const char *why;
    size_t from, to;
    static char text[60000];
    cp_regex *re = cp_regex_new(CP_STR("(a|b)*a(a|b){14}c"), &why);
    assert_non_null(re);
    for (size_t i = 0; i < sizeof text; i++) text[i] = "ab"[any(2)];
    assert_false(cp_regex_search(re, (cp_str){text, sizeof text}, false, &from, &to));
    text[50000] = 'c';
    text[50000 - 15] = 'a';
    assert_true(cp_regex_search(re, (cp_str){text, sizeof text}, false, &from, &to));
    assert_int_equal(from, 0);
    assert_int_equal(to, 50001);
    cp_regex_free(re);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leftmost_and_longest),         cmocka_unit_test(an_open_end_is_no_end),
        cmocka_unit_test(what_is_not_valid_is_refused), cmocka_unit_test(what_would_grow_is_refused),
        cmocka_unit_test(no_pattern_explodes),          cmocka_unit_test(agrees_with_another_engine),
        cmocka_unit_test(forgets_and_learns_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
