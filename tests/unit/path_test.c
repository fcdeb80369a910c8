#include "services/path.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

static void problems_are_named(void **state) {
    (void)state;
    assert_string_equal(cp_path_problem((cp_str){0}), "Path must be a non-empty string");
    assert_string_equal(cp_path_problem(CP_STR("a\0b")), "Path contains null bytes");
    assert_null(cp_path_problem(CP_STR("../x")));
}

/* The limit counts UTF-16 units: one for a character of three bytes, two for one of four. */
static void length_is_in_utf16_units(void **state) {
    (void)state;
    cp_autobuf cp_buf b = {0};
    for (int i = 0; i < 4096; i++) cp_buf_addz(&b, "€");
    assert_null(cp_path_problem(cp_buf_str(&b)));
    cp_buf_addc(&b, 'x');
    assert_non_null(cp_path_problem(cp_buf_str(&b)));
    cp_buf_clear(&b);
    for (int i = 0; i < 2048; i++) cp_buf_addz(&b, "\xF0\x9F\x9A\x80");
    assert_null(cp_path_problem(cp_buf_str(&b)));
    cp_buf_addc(&b, 'x');
    assert_non_null(cp_path_problem(cp_buf_str(&b)));
}

static void join_keeps_absolute_paths(void **state) {
    (void)state;
    char out[CP_PATH_MAX];
    assert_int_equal(cp_path_join("/w", CP_STR("/a"), out), 0);
    assert_string_equal(out, "/a");
    assert_int_equal(cp_path_join("/w", CP_STR("a/../b/"), out), 0);
    assert_string_equal(out, "/w/a/../b/");
    assert_int_equal(cp_path_join("/", CP_STR("a"), out), 0);
    assert_string_equal(out, "/a");
    cp_autobuf cp_buf b = {0};
    for (int i = 0; i < 4094; i++) cp_buf_addc(&b, 'x');
    assert_int_equal(cp_path_join("/", cp_buf_str(&b), out), 0); /* 4,095 bytes and a NUL */
    assert_int_equal(cp_path_join("/w", cp_buf_str(&b), out), -1);
}

static void check_split(const char *path, const char *dir, const char *name, bool slash) {
    cp_split s;
    assert_int_equal(cp_path_split(path, &s), 0);
    assert_string_equal(s.dir, dir);
    assert_string_equal(s.name, name);
    assert_int_equal(s.slash, slash);
}

static void split_finds_the_folder(void **state) {
    (void)state;
    check_split("/a/b", "/a", "b", false);
    check_split("/a", "/", "a", false);
    check_split("//a", "/", "a", false);
    check_split("a", ".", "a", false);
    check_split("a/b//", "a", "b", true);
    check_split("/a//b", "/a", "b", false);
    check_split("/", "/", ".", true);
    check_split(".", ".", ".", false);
    check_split("a/..", "a/..", ".", false);
    check_split("/a/./", "/a/./", ".", true);
    char longest[300];
    memset(longest, 'n', 256);
    longest[256] = 0;
    cp_split s;
    assert_int_equal(cp_path_split(longest, &s), -1);
    longest[255] = 0;
    assert_int_equal(cp_path_split(longest, &s), 0);
}

static void base_is_the_last_name(void **state) {
    (void)state;
    assert_true(cp_str_is(cp_path_base(CP_STR("/a/b.txt")), "b.txt"));
    assert_true(cp_str_is(cp_path_base(CP_STR("b.txt/")), "b.txt"));
    assert_true(cp_str_is(cp_path_base(CP_STR("/")), ""));
    assert_int_equal(cp_path_base((cp_str){0}).n, 0);
}

static void inside_compares_whole_names(void **state) {
    (void)state;
    assert_string_equal(cp_path_inside("/w", "/w/a"), "a");
    assert_string_equal(cp_path_inside("/w", "/w"), ".");
    assert_string_equal(cp_path_inside("/w", "/w//"), ".");
    assert_string_equal(cp_path_inside("/", "/etc"), "etc");
    assert_null(cp_path_inside("/w", "/wx"));
    assert_null(cp_path_inside("/w", "/"));
    assert_string_equal(cp_path_inside("/w", "/w/../x"), "../x"); /* the kernel refuses it */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(problems_are_named),        cmocka_unit_test(length_is_in_utf16_units),
        cmocka_unit_test(join_keeps_absolute_paths), cmocka_unit_test(split_finds_the_folder),
        cmocka_unit_test(base_is_the_last_name),     cmocka_unit_test(inside_compares_whole_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
