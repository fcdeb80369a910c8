/* The text rules of watching (cloudflare-sandbox.md section 3.5). Expected matches are those of the regular expression
 * that the page gives: (^|/) pattern (/|$), "*" [^/]*, "**" .*, "?" one that is no slash. */
#include "services/watch_glob.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <regex.h>
#include <stdlib.h>

static bool match(const char *pattern, const char *path) { return cp_glob_match(cp_str_of(pattern), cp_str_of(path)); }

static void patterns_match_whole_names(void **state) {
    (void)state;
    assert_true(match(".git", "/w/.git"));
    assert_true(match(".git", "/w/.git/HEAD"));
    assert_true(match(".git", ".git"));
    assert_false(match(".git", "/w/.gitignore"));
    assert_false(match(".git", "/w/x.git"));
    assert_false(match(".git", "/w/agit"));
    assert_true(match("*.ts", "/w/a.ts"));
    assert_true(match("*.ts", "/w/a.ts/b"));
    assert_false(match("*.ts", "/w/a.tsx"));
    assert_true(match("src/*.c", "/w/src/a.c"));
    assert_false(match("src/*.c", "/w/src/d/a.c"));
    assert_true(match("src/**.c", "/w/src/d/e/a.c"));
    assert_true(match("src/**/a.c", "/w/src/d/e/a.c"));
    assert_false(match("src/**/a.c", "/w/src/a.c"));
    assert_true(match("/w/a", "/w/a/b"));
    assert_true(match("?", "/w/long"));
    assert_false(match("?", "/ab/cd"));
    assert_false(match("a?b", "/a/b"));
    assert_true(match("***", "/"));
    assert_false(match("x/", "/w/x/y"));
}

static void characters_are_whole(void **state) {
    (void)state;
    assert_true(match("?", "/aa/\xE2\x82\xAC"));
    assert_false(match("??", "/aaa/\xE2\x82\xAC"));
    assert_true(match("*\xE2\x82\xAC", "/aaa/x\xE2\x82\xAC"));
    assert_true(match("??", "/aaa/\xFF\xE2")); /* not UTF-8: byte by byte */
}

static void or_whole_paths(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *path;
        bool want;
    } cases[] = {{".git", ".git", true},      {".git", "w/.git", true}, {".git", ".git/HEAD", false},
                 {".git", ".git/.git", true}, {"*.c", "a/b.c", true},   {"*.c", "a.c/b", false},
                 {"a/*", "a/b", true},        {"a/*", "a/b/c", false},  {"a/**", "a/b/c", true},
                 {"a/**", "x/a/b", true}};
    for (size_t i = 0; i < CP_COUNT(cases); i++)
        assert_int_equal(cp_glob_match_whole(cp_str_of(cases[i].pattern), cp_str_of(cases[i].path)), cases[i].want);
}

/* All patterns of up to 4 of these against all paths of up to 6, compared with the C library. */
static void agrees_with_regular_expressions(void **state) {
    (void)state;
    static const char tokens[] = "a/*?", letters[] = "ab/";
    static const char *const regex[] = {"a", "/", NULL, "[^/]"};
    for (unsigned p = 1; p < 4 * 4 * 4 * 4; p++) {
        char pattern[8] = {0};
        cp_autobuf cp_buf text = {0};
        cp_buf_addz(&text, "(^|/)");
        size_t n = 0;
        for (unsigned v = p; v; v /= 4) pattern[n++] = tokens[v % 4];
        for (size_t i = 0; i < n; i++) {
            size_t k = (size_t)(strchr(tokens, pattern[i]) - tokens);
            bool two = k == 2 && pattern[i + 1] == '*';
            cp_buf_addz(&text, k != 2 ? regex[k] : two ? ".*" : "[^/]*");
            i += two;
        }
        cp_buf_addz(&text, "(/|$)");
        regex_t re;
        assert_int_equal(regcomp(&re, cp_buf_z(&text), REG_EXTENDED | REG_NOSUB), 0);
        for (unsigned s = 1; s < 3 * 3 * 3 * 3 * 3; s++) {
            char path[8] = "/";
            size_t m = 1;
            for (unsigned v = s; v; v /= 3) path[m++] = letters[v % 3];
            bool want = regexec(&re, path, 0, NULL, 0) == 0;
            if (match(pattern, path) != want) fail_msg("%s on %s: want %d", pattern, path, want);
        }
        regfree(&re);
    }
}

static void cost_does_not_explode(void **state) {
    (void)state;
    char pattern[CP_GLOB_MAX + 1] = {0}, path[4096] = {0};
    for (size_t i = 0; i + 2 < CP_GLOB_MAX; i += 2) memcpy(pattern + i, "*a", 2);
    pattern[CP_GLOB_MAX - 1] = 'b';
    memset(path, 'a', sizeof path - 1);
    assert_false(match(pattern, path)); /* by backtracking: never */
}

static void syntax_that_is_not_ours(void **state) {
    (void)state;
    static const char *const bad[] = {"", " \t", "[a]", "a]", "{a,b}", "a}"};
    for (size_t i = 0; i < CP_COUNT(bad); i++) assert_false(cp_glob_supported(cp_str_of(bad[i])));
    assert_false(cp_glob_supported(CP_STR("a\0b")));
    assert_true(cp_glob_supported(CP_STR("**/a(b)+?.c")));
    assert_true(match("a.c", "/a.c"));
    assert_false(match("a.c", "/abc"));
}

static void resolves(const char *base, const char *path, const char *want) {
    char out[CP_PATH_MAX];
    assert_int_equal(cp_watch_resolve(base, cp_str_of(path), out), 0);
    assert_string_equal(out, want);
}

static void paths_are_folded(void **state) {
    (void)state;
    resolves("/w", "a", "/w/a");
    resolves("/w", "", "/w");
    resolves("/w", ".", "/w");
    resolves("/w/", "./a//b/", "/w/a/b");
    resolves("/w", "..", "/");
    resolves("/w", "../../../etc", "/etc");
    resolves("/w", "/a/../b/./c/..", "/b");
    resolves("/", "a", "/a");
    resolves("/w", "..a/...", "/w/..a/...");
    char out[CP_PATH_MAX], longest[CP_PATH_MAX + 1] = {0};
    memset(longest, 'x', CP_PATH_MAX);
    longest[0] = '/';
    assert_int_equal(cp_watch_resolve("/", cp_str_of(longest), out), -1);
    longest[CP_PATH_MAX - 1] = 0;
    resolves("/", longest, longest);
}

static void staged_names(void **state) {
    (void)state;
    assert_int_equal(cp_watch_staged(CP_STR(".conflux-0123456789abcdef.tmp")), CP_STAGED_NEW);
    assert_int_equal(cp_watch_staged(CP_STR(".conflux-0123456789abcdef.mod")), CP_STAGED_REPLACES);
    assert_int_equal(cp_watch_staged(CP_STR(".conflux-0123456789abcdef.txt")), CP_STAGED_NOT);
    assert_int_equal(cp_watch_staged(CP_STR(".conflux-0123456789abcdeF.tmp")), CP_STAGED_NOT);
    assert_int_equal(cp_watch_staged(CP_STR(".conflux-0123.tmp")), CP_STAGED_NOT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_match_whole_names), cmocka_unit_test(or_whole_paths),
        cmocka_unit_test(characters_are_whole),       cmocka_unit_test(agrees_with_regular_expressions),
        cmocka_unit_test(cost_does_not_explode),      cmocka_unit_test(syntax_that_is_not_ours),
        cmocka_unit_test(paths_are_folded),           cmocka_unit_test(staged_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
